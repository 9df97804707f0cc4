"""`posbench status`: a study or everything, as a table, as JSON and live."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Posbench

from posbench import study
from posbench.cli import status as command
from posbench.run import Run


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A study of two runs."""
    file = tmp_path / "mine.yaml"
    file.write_text(
        "title: Two of them\nruns: [[encoding=rope], [encoding=alibi]]\n"
        "evals: {flat: {protocol: nonoverlapping, lengths: [512, 1024]}}\n"
    )
    return file


def rows(text: str) -> list[dict[str, Any]]:
    return json.loads(text)[0]["rows"]


def test_a_study_is_shown_run_by_run(posbench: Posbench, mine: Path):
    jobs = study.plan(study.load(str(mine))).jobs
    done = posbench(f"status {mine}")
    assert done.status == 0, done.err
    assert done.out.startswith("Two of them (default, seed 1)\n")
    for job in jobs:
        assert job.run.name in done.out
    assert "0 of 2" in done.out
    assert "2 runs: 2 waiting" in done.out
    jobs[1].run.path.mkdir(parents=True)
    jobs[1].run.fail("out of memory")
    first, second = rows(posbench(f"status {mine} --format json").out)
    assert (first["state"], first["rows"], first["loss"]) == ("waiting", 0, None)
    assert (second["state"], second["reason"]) == ("failed", "out of memory")


def test_the_words_of_the_study_are_those_of_its_status(posbench: Posbench, mine: Path):
    """What `study run` was given names other runs; `workers` and `on_error` name none."""
    plain = [row["run"] for row in rows(posbench(f"status {mine} --format json").out)]
    with_workers = rows(posbench(f"status {mine} workers=2 on_error=stop --format json").out)
    assert [row["run"] for row in with_workers] == plain
    other = rows(posbench(f"status {mine} seed=2 --format json").out)
    assert not {row["run"] for row in other} & set(plain)


def test_without_a_study_every_run_is_shown(posbench: Posbench, tmp_path: Path):
    path = tmp_path / "runs" / "rope-L512-nano-s1-12345678"
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}")
    (row,) = rows(posbench("status --format json").out)
    assert (row["run"], row["state"]) == (path.name, "damaged")


def test_a_run_that_failed_before_step_0_is_shown_with_why_and_can_be_removed(posbench: Posbench, tmp_path: Path):
    """Of it there is no record: its text was not to be had, say."""
    run = Run(tmp_path / "runs" / "rope-L512-nano-s1-12345678")
    run.path.mkdir(parents=True)
    run.fail("there is no such text")
    (row,) = rows(posbench("status --format json").out)
    assert (row["run"], row["state"], row["reason"]) == (run.name, "failed", "there is no such text")
    (row,) = rows(posbench("runs --format json").out)
    assert (row["run"], row["state"]) == (run.name, "failed")
    shown = posbench("show rope")
    assert (shown.status, shown.err.splitlines()) == (
        2,
        [f"error: {run.name} failed before its first step: there is no such text.", f"Its log: {run.path}/log.txt"],
    )
    assert "is not finished: failed at step 0" in posbench("generate rope the").err
    assert posbench("eval --no-references").err.startswith("error: There is no finished run in ")
    assert posbench("rm rope --yes --force").status == 0
    assert not run.path.exists()


def test_the_title_of_a_study_says_of_which_seeds_it_is(posbench: Posbench, mine: Path):
    """Other seeds are other runs, which one may have and not see."""
    assert posbench(f"status {mine} seed=2").out.splitlines()[0].endswith("(default, seed 2)")
    assert posbench(f"status {mine} seed=2,1").out.splitlines()[0].endswith("(default, seeds 1, 2)")


def test_it_is_watched_until_all_is_done(posbench: Posbench, mine: Path, monkeypatch: pytest.MonkeyPatch):
    """Both runs fail, one while it is watched, at the first pause: one table more, and the end."""
    first, second = (job.run for job in study.plan(study.load(str(mine))).jobs)
    for run in (first, second):
        run.path.mkdir(parents=True)
    first.fail("out of memory")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        Run(second.path).fail("the disk is full")

    monkeypatch.setattr(command.time, "sleep", pause)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = posbench(f"status {mine} --watch")
    assert done.status == 0, done.err
    assert len(pauses) == 1
    assert "the disk is full" in done.out


def test_ctrl_c_ends_watching_and_nothing_else(posbench: Posbench, mine: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", interrupt)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = posbench(f"status {mine} --watch")
    assert (done.status, done.err) == (0, "")
