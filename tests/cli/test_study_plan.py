"""`posbench study plan`: seeds and targets for each claim of a study, from the rows that there are."""

from __future__ import annotations

import json
from pathlib import Path

import made
import pytest
from conftest import Posbench

from posbench import pilot, records

STUDY = """
runs: [[encoding=rope]]
claims:
  - name: Rotary is worse at 2 L than at L
    left: {encoding: rope, train_length: 512, at: 1L}
    relation: less
    right: {at: 2L}
    protocol: nonoverlapping
    paper: {table: Table 2, left: [rope, 512, 512], right: [rope, 512, 1012]}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(STUDY)
    return file


def test_each_claim_gets_the_seeds_it_needs(posbench: Posbench, mine: Path, monkeypatch: pytest.MonkeyPatch):
    """Seeds that lose 0.01, 0.02 and 0.03 nats deviate by 0.01: a true effect of 1 % needs as many as are worked out in
    tests/statistics/test_planning.py."""
    rows = []
    for seed in range(3):
        for length, loss in ((512, 4.0), (1024, 4.0 + 0.01 * (seed + 1))):
            arrays = made.arrays([128 * loss] * 4)
            row = made.row(arrays, length=length, seed=seed, recipe="r", run_hash=str(seed))
            rows.append(records.write(mine.parent / "rows", row, arrays))
    monkeypatch.setattr(pilot, "rows", lambda jobs: rows if [job.label for job in jobs] else [])
    done = posbench(f"study plan {mine} --format json")
    assert done.status == 0, done.err
    (record,) = json.loads(done.out)[0]["rows"]
    assert (record["pilot_seeds"], record["seeds"], record["effect"]) == (3, 11, 0.01)
    (large,) = json.loads(posbench(f"study plan {mine} --format json --effect 0.1").out)[0]["rows"]
    assert large["seeds"] == 3


def test_before_anything_is_measured_it_says_so(posbench: Posbench, mine: Path):
    done = posbench(f"study plan {mine}")
    assert done.status == 0, done.err
    assert "not measured" in done.out
    assert done.err.splitlines()[-1].endswith(f"posbench study run {mine} seed=1,2")


def test_seeds_that_the_study_lists_are_not_asked_for_again(posbench: Posbench, mine: Path):
    mine.write_text(STUDY.replace("encoding=rope]", "encoding=rope, 'seed=3,4']"))
    done = posbench(f"study plan {mine}")
    assert done.err.splitlines()[-1].endswith(f"posbench study run {mine}")


def test_seeds_are_asked_for_that_all_runs_have(posbench: Posbench, mine: Path):
    """The study lists seed 3 of one and 4 of the other, which make no pair."""
    runs = "[encoding=rope, seed=3], [encoding=alibi, seed=4]"
    mine.write_text(STUDY.replace("[encoding=rope]", runs))
    done = posbench(f"study plan {mine}")
    assert done.err.splitlines()[-1].endswith(f"posbench study run {mine} seed=1,2")


def test_two_seeds_are_not_asked_for_where_that_would_make_a_run_twice(posbench: Posbench, mine: Path):
    runs = "[encoding=rope, seed=1], [encoding=rope, seed=2], [encoding=alibi]"
    mine.write_text(STUDY.replace("[encoding=rope]", runs))
    done = posbench(f"study plan {mine}")
    assert done.err.splitlines()[-1].endswith(f"posbench study run {mine}")


def test_claims_that_its_runs_cannot_answer_are_named(posbench: Posbench, mine: Path):
    mine.write_text(STUDY.replace("encoding: rope", "encoding: rpoe"))
    done = posbench(f"study plan {mine}")
    assert done.status == 0, done.err
    assert "the study lists no run of rpoe trained at 512 (of rope trained at 512 it does)" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--effect 1", "--effect 1 is no share of the perplexity."),
        ("--effect 0", "--effect 0 is no share of the perplexity."),
        ("--budget long", "There is no budget 'long'."),
    ],
)
def test_what_cannot_be_planned_is_refused(posbench: Posbench, mine: Path, words: str, message: str):
    done = posbench(f"study plan {mine} {words}")
    assert (done.status, message in done.err) == (2, True), done.err


def test_a_study_without_claims_has_nothing_to_plan(posbench: Posbench, mine: Path):
    mine.write_text("runs: [[encoding=rope]]")
    done = posbench(f"study plan {mine}")
    assert (done.status, "makes no claims" in done.err) == (2, True), done.err


def test_nor_has_one_of_speeds_alone(posbench: Posbench, mine: Path):
    mine.write_text(STUDY.replace("nonoverlapping", "training").replace("at: 2L", "encoding: alibi, at: 1L"))
    done = posbench(f"study plan {mine}")
    assert (done.status, "makes no claims of losses" in done.err) == (2, True), done.err
