"""`posbench rm` asks first, and takes neither what a study lists nor what is being worked on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from conftest import Posbench

from posbench import study
from posbench.run import Run

NAMES = ("alibi-L128-nano-s1-12345678", "rope-L128-nano-s1-87654321")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, which no study lists."""
    for name in NAMES:
        path = tmp_path / "runs" / name
        (path / "rows").mkdir(parents=True)
        (path / "run.json").write_text("{}")
    monkeypatch.setattr(study, "needed", lambda names: {})
    return tmp_path / "runs"


def left(runs: Path) -> list[str]:
    return sorted(one.name for one in runs.iterdir())


def test_without_a_terminal_it_takes_a_yes(posbench: Posbench, runs: Path):
    done = posbench("rm rope")
    assert done.status == 2
    assert done.err == "error: There is nobody to ask.\n--yes removes without asking.\n"
    assert left(runs) == [*NAMES]
    assert posbench("rm rope rope-L128 --yes").err == f"removed {runs / NAMES[1]}\n"
    assert left(runs) == [NAMES[0]]


@pytest.mark.parametrize(("answer", "status"), [(True, 0), (False, 1)])
def test_it_says_what_would_go_and_asks(
    posbench: Posbench, runs: Path, monkeypatch: pytest.MonkeyPatch, answer: bool, status: int
):
    asked: list[str] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda text, err: asked.append(text) or answer)
    done = posbench("rm rope alibi")
    assert (done.status, asked) == (status, ["Remove these?"])
    assert f"{runs / NAMES[1]}: 2 bytes, 0 rows" in done.err
    assert left(runs) == ([] if answer else [*NAMES])


def test_what_a_study_lists_stays_unless_forced(posbench: Posbench, runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(study, "needed", lambda names: {NAMES[1]: ["mine"]} if NAMES[1] in names else {})
    done = posbench("rm alibi rope --yes")
    assert done.status == 2
    assert done.err.startswith(f"error: {NAMES[1]} belongs to the study mine.\n")
    assert left(runs) == [*NAMES]
    assert posbench("rm alibi --yes").status == 0
    assert posbench("rm rope --yes --force").status == 0
    assert left(runs) == []


def test_what_is_being_worked_on_stays_even_if_forced(posbench: Posbench, runs: Path):
    with Run(runs / NAMES[1]).lock():
        done = posbench("rm alibi rope --yes --force")
    assert done.status == 2
    assert "is being worked on by another process" in done.err
    assert left(runs) == [*NAMES]


def test_a_study_that_cannot_be_read_may_list_it(posbench: Posbench, runs: Path, tmp_path: Path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("POSBENCH_RUNS", str(runs))
    (tmp_path / "my" / "study").mkdir(parents=True)
    (tmp_path / "my" / "study" / "mine.yaml").write_text("runs: [[encoding=rope, model.heads=7]]\n")
    monkeypatch.setattr(study, "files", lambda group: {"mine": tmp_path / "my" / "study" / "mine.yaml"})
    done = posbench("rm rope --yes")
    assert done.status == 2
    assert "model.heads=7 does not divide" in done.err
    assert "may list it" in done.err
    assert left(runs) == [*NAMES]


@pytest.mark.parametrize("file", ["status.json", "run.json"])
def test_a_folder_of_something_else_is_no_run(posbench: Posbench, runs: Path, tmp_path: Path, file: str):
    """Other programs write a status.json too."""
    (project := tmp_path / "here" / "rope").mkdir()
    (project / file).write_text('{"status": "fine"}')
    for word in ("./rope", str(project)):
        done = posbench(f"rm {word} --yes")
        assert (done.status, done.err.splitlines()[0]) == (2, f"error: There is no run '{word}' in {runs}.")
    assert posbench("rm rope --yes").err == f"removed {runs / NAMES[1]}\n"
    assert (project / file).is_file()


@pytest.mark.parametrize("file", ["thesis.tex", "rows/thesis.tex", ".git/HEAD", "mine/run.json"])
def test_what_is_of_no_run_is_not_removed_with_it(posbench: Posbench, runs: Path, file: str):
    (runs / NAMES[1] / file).parent.mkdir(exist_ok=True)
    (runs / NAMES[1] / file).write_text("precious")
    done = posbench("rm rope --yes")
    assert done.status == 2
    assert done.err.splitlines() == [
        f"error: {runs / NAMES[1]} holds {file}, which is of no run.",
        "Nothing was removed. Take it out first.",
    ]
    assert left(runs) == [*NAMES]


def test_nothing_is_removed_where_one_of_several_holds_something_else(posbench: Posbench, runs: Path):
    (runs / NAMES[0] / "thesis.tex").touch()
    assert posbench("rm rope alibi --yes").status == 2
    assert left(runs) == [*NAMES]


def test_beside_a_run_elsewhere_nothing_else_is_removed(posbench: Posbench, runs: Path, tmp_path: Path):
    old = tmp_path / "old"
    (old / ".removed-photos").mkdir(parents=True)
    (old / ".removed-photos" / "cat.png").touch()
    (runs / NAMES[1]).rename(old / NAMES[1])
    (old / NAMES[1] / "status.json").write_text('{"state": "failed", "step": 0, "host": "here"}')
    assert posbench(f"rm {old / NAMES[1]} --yes").status == 0
    assert left(old) == [".removed-photos"]


def test_a_link_to_itself_is_no_run(posbench: Posbench, runs: Path, tmp_path: Path):
    (tmp_path / "loop").symlink_to("loop")
    assert posbench(f"rm {tmp_path / 'loop'} --yes").err.startswith(f"error: There is no run '{tmp_path / 'loop'}'")


def test_a_status_of_something_else_makes_no_run_of_a_folder_beside_them(posbench: Posbench, runs: Path):
    (runs / "exp").mkdir()
    (runs / "exp" / "status.json").write_text('{"status": "ok"}')
    assert posbench("rm exp --yes").status == 2
    assert (runs / "exp" / "status.json").is_file()


def test_what_a_killed_removal_left_goes_with_the_next(posbench: Posbench, runs: Path):
    """One that is still empty is another process's, which is about to move a run into it."""
    (runs / ".removed-a" / "alibi" / "rows").mkdir(parents=True)
    (runs / ".removed-b").mkdir()
    assert posbench("rm rope --yes").status == 0
    assert left(runs) == [".removed-b", NAMES[0]]
