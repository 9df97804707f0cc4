"""The scripts that set posbench up, with a stand-in for the virtual environment's Python: nothing is installed here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted([*(ROOT / "scripts").glob("*.sh"), ROOT / ".ci" / "run"])

STAND_IN = """\
#!/usr/bin/env bash
# Writes down what it is asked to run, and fails at what FAILS matches.
case "$1" in
  -) exit 0 ;;                                           # whether this Python fits
  -c) [[ "$2" == *find_spec* ]] && exit "${MISSING:-0}"; exit 0 ;;
  --version) echo Python 3.11.0; exit 0 ;;
esac
echo "$*" >>calls
[[ -z "${FAILS:-}" || "$*" != *"$FAILS"* ]]
"""


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the scripts read, with a .venv whose Python is the stand-in."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STAND_IN)
    python.chmod(0o755)
    return tmp_path


def bash(checkout: Path, script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One script from another folder, as a user or a scheduler would call it."""
    return subprocess.run(
        ["bash", str(checkout / "scripts" / script), *words],
        cwd="/",
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def calls(checkout: Path) -> list[str]:
    """What the stand-in was asked to run since the last look."""
    file = checkout / "calls"
    found = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return found


def pins() -> dict[str, str]:
    """Version by normalised name."""
    lines = (ROOT / "scripts" / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in pairs}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_is_bash(script):
    assert script.read_text().startswith(("#!/usr/bin/env bash\n", "# Sourced"))
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_torch_and_all_that_pyproject_names_are_pinned():
    """An unpinned dependency is one whose next release can break the two commands of the README."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = [
        *project["project"]["dependencies"],
        *project["build-system"]["requires"],
        *(one for extra in ("test", "books") for one in project["project"]["optional-dependencies"][extra]),
    ]
    pinned = pins()
    assert pinned["torch"] == "2.13.0"
    assert {normal(re.split(r"[<>=!~\[; ]", one)[0]) for one in named} - pinned.keys() == set()
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pinned.values())


def test_the_pins_are_names_and_versions_alone():
    """A path, an address or a local build (+cpu) would hold on one machine only."""
    lines = [line for line in (ROOT / "scripts" / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
    assert lines == sorted(lines)
    assert not [line for line in lines if re.search(r"[/+@]", line)]


def test_the_first_time_installs_at_the_pinned_versions_and_the_second_time_nothing(checkout):
    assert bash(checkout, "reproduce.sh", "--smoke").returncode == 0
    tools, install, study = calls(checkout)
    assert "pip install" in tools
    assert "-c scripts/constraints.txt" in tools
    assert "-c scripts/constraints.txt" in install
    assert install.endswith("-e .[report]")
    assert study == "-m posbench reproduce --smoke"
    bash(checkout, "reproduce.sh")
    assert calls(checkout) == ["-m posbench reproduce"]


def test_the_test_tools_come_in_addition(checkout):
    """reproduce.sh after test.sh must neither miss what it needs nor undo what the tests need."""
    bash(checkout, "reproduce.sh")
    calls(checkout)
    assert bash(checkout, "test.sh").returncode == 0
    assert next(call for call in calls(checkout) if "-e" in call.split()).endswith("-e .[test,books]")
    bash(checkout, "reproduce.sh")
    bash(checkout, "test.sh")
    assert not [call for call in calls(checkout) if "pip" in call]


@pytest.mark.parametrize("name", ["pyproject.toml", "scripts/constraints.txt"])
def test_a_changed_input_is_installed_anew_for_every_script(checkout, name):
    """Also when it is changed back: what is installed then is of the version between."""
    file = checkout / name
    before = file.read_text()
    bash(checkout, "reproduce.sh")
    for text in (before + "# changed\n", before):
        calls(checkout)
        file.write_text(text)
        bash(checkout, "test.sh")
        assert [call for call in calls(checkout) if "pip install" in call]
    bash(checkout, "reproduce.sh")
    assert [call for call in calls(checkout) if "pip install" in call]


def test_a_failed_install_fails_the_script_and_is_tried_again(checkout):
    assert bash(checkout, "reproduce.sh", FAILS="--no-build-isolation").returncode != 0
    assert "-m posbench reproduce" not in calls(checkout)
    assert bash(checkout, "reproduce.sh").returncode == 0
    assert [call for call in calls(checkout) if "pip install" in call]


@pytest.mark.parametrize("step", ["ruff format --check", "ruff check", "mypy", "pytest"])
def test_whatever_fails_fails_the_tests(checkout, step):
    """Types are looked at beside the first tests, and what they say is waited for before the others."""
    assert bash(checkout, "test.sh", FAILS=f"-m {step}").returncode != 0
    assert not any("-m pytest -n 2" in call for call in calls(checkout))


def test_the_exit_status_of_the_study_is_the_scripts(checkout):
    assert bash(checkout, "reproduce.sh", FAILS="posbench").returncode == 1


def test_words_of_the_tests_go_to_pytest(checkout):
    bash(checkout, "test.sh", "-m", "not slow", "tests/test_run.py")
    assert calls(checkout)[-1].endswith("-m not slow tests/test_run.py")


def test_stdout_is_left_to_the_results(checkout):
    done = bash(checkout, "reproduce.sh")
    assert done.stdout == ""
    assert "source .venv/bin/activate" in done.stderr


@pytest.mark.parametrize("torch_is_missing", [True, False])
def test_a_large_download_is_announced_with_the_way_around_it(checkout, torch_is_missing):
    done = bash(checkout, "reproduce.sh", MISSING=str(int(torch_is_missing)))
    assert ("about 200 MB" in done.stderr) == torch_is_missing
    if sys.platform == "linux":
        assert ("PIP_EXTRA_INDEX_URL=" in done.stderr) == torch_is_missing


def test_without_a_python_that_fits_the_versions_are_named(checkout):
    """A broken .venv has to be made anew, and there is nothing to make it with."""
    (checkout / ".venv" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    done = bash(checkout, "reproduce.sh", PYTHON="/nowhere/python")
    assert done.returncode == 2
    assert "needs Python 3.11 to 3.14" in done.stderr
    assert "/nowhere/python: not there" in done.stderr


def test_a_python_is_named_with_what_keeps_it_from_fitting(checkout):
    old = checkout / "old python"
    old.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 3.9.2' || exit 1\n")
    old.chmod(0o755)
    (checkout / ".venv" / "bin" / "python").unlink()
    done = bash(checkout, "reproduce.sh", PYTHON=str(old))
    assert done.returncode == 2
    assert "Python 3.9.2" in done.stderr


def test_the_python_that_runs_the_tests_fits():
    """The one check of the real condition: a working Python of a version in range with venv and ensurepip."""
    command = f"source {ROOT}/scripts/environment.sh; fits {sys.executable}"
    fits = subprocess.run(["bash", "-c", command], check=False).returncode == 0
    assert fits == ((3, 11) <= sys.version_info[:2] <= (3, 14))


def test_ci_runs_the_readmes_test_command():
    assert "bash scripts/test.sh" in (ROOT / ".ci" / "run").read_text()
    assert "$ bash scripts/test.sh" in (ROOT / "README.md").read_text()
