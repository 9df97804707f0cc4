"""What <tab> offers, asked as the shells ask: through the environment that their completion scripts set."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Posbench

from posbench import cli
from posbench.search_path import choices


@pytest.fixture
def bash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], posbench: Posbench):
    """What bash is offered for a line that ends at the cursor."""

    def offered(line: str) -> list[str]:
        # As bash cuts it: "=" is a word of its own, and a line that ends in a blank has an empty last word.
        words = [word for word in re.split(r"(=)|\s+", line) if word] + ([""] if line.endswith(" ") else [])
        monkeypatch.setenv("_POSBENCH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        capsys.readouterr()
        with pytest.raises(SystemExit):
            cli.run([])
        return capsys.readouterr().out.split()

    return offered


@pytest.fixture
def zsh(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], posbench: Posbench):
    """What zsh is offered: whole words."""

    def offered(line: str) -> list[str]:
        monkeypatch.setenv("_POSBENCH_COMPLETE", "complete_zsh")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        capsys.readouterr()
        with pytest.raises(SystemExit):
            cli.run([])
        return re.findall(r'"([^"]+)"', capsys.readouterr().out)

    return offered


ENCODINGS = choices("encoding")


def test_bash_is_offered_what_follows_the_last_equals_sign(bash):
    assert bash("posbench train encoding=ro") == ["rope"]
    assert bash("posbench train encoding=") == ENCODINGS
    assert bash("posbench train seed=2 encoding=al") == ["alibi"]
    assert bash("posbench train -m encoding=rope,al") == ["rope,alibi"]
    assert bash("posbench train hydra/launcher=ba") == ["basic"]


def test_bash_is_offered_groups_and_settings(bash):
    assert {"encoding=", "encoding.", "train."} <= set(bash("posbench train "))
    assert bash("posbench train train.le") == ["train.length=", "train.length=512"]
    assert bash("posbench train encoding=t5 encoding.buck") == ["encoding.buckets=", "encoding.buckets=32"]
    assert not [word for word in bash("posbench train ") if word.startswith("hydra")]


def test_what_is_of_several_jobs_is_offered_where_there_are_several(bash):
    assert bash("posbench sweep seed=1,2 work") == ["workers=2", "workers=4", "workers=8"]
    assert bash("posbench sweep workers=2 encoding=rope,al") == ["rope,alibi"]
    assert bash("posbench train -m on_error=s") == ["stop"]
    assert bash("posbench train -m seed=1,2 encoding=ro") == ["rope"]
    assert bash("posbench train on_error=s") == []
    assert bash("posbench study run train_sh") == ["train_short_test_long"]
    assert bash("posbench study run train_short_test_long workers=") == ["2", "4", "8"]


def test_zsh_is_offered_whole_words(zsh):
    assert zsh("posbench train encoding=ro") == ["encoding=rope"]
    assert zsh("posbench train encoding=") == [f"encoding={name}" for name in ENCODINGS]
    assert zsh("posbench train encoding=rope,al") == ["encoding=rope,alibi"]


def test_commands_flags_and_choices_are_offered(bash):
    assert bash("posbench tra") == ["train"]
    assert bash("posbench train --mul") == ["--multirun"]
    assert bash("posbench table --format j") == ["json"]
    assert bash("posbench encodings ro") == ["rope"]
    assert bash("posbench data prepare sotu_") == ["sotu_books"]


def test_runs_are_offered_by_name(bash, tmp_path: Path):
    for name in ("rope-L128-nano-s1-aaaaaaaa", "alibi-L128-nano-s1-bbbbbbbb"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").touch()
    (tmp_path / "runs" / "rope-no-run").mkdir()
    assert bash("posbench show ro") == ["rope-L128-nano-s1-aaaaaaaa"]
    assert bash("posbench eval ali") == ["alibi-L128-nano-s1-bbbbbbbb"]
    assert bash("posbench eval eval.blo") == ["eval.block=", "eval.block=32"]


def test_a_folder_of_ones_own_is_completed_too(bash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my" / "encoding").mkdir(parents=True)
    (tmp_path / "my" / "encoding" / "mine.yaml").write_text("class: mine.py:Mine\n")
    assert bash(f"posbench train --config-dir {tmp_path / 'my'} encoding=mi") == ["mine"]
    monkeypatch.setenv("POSBENCH_CONFIGS", str(tmp_path / "my"))
    assert bash("posbench train encoding=mi") == ["mine"]


def test_a_completion_never_disturbs_the_shell(bash):
    for line in ("train encoding=x=", "train [", "train nothing.at.all=", "eval ="):
        assert bash(f"posbench {line}") == []


@pytest.mark.process
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_script_that_bash_reads_completes_in_bash(tmp_path: Path):
    """The printed script, a `posbench` on the path, and a line as bash itself cuts it."""
    root = Path(__file__).parents[2]
    command = tmp_path / "posbench"
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{root}" exec "{sys.executable}" -m posbench "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    script = """
        set -e
        eval "$(posbench --show-completion bash)"
        COMP_WORDS=(posbench train encoding = ro) COMP_CWORD=4
        _posbench_completion posbench
        echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout == "rope\n", done.stderr
