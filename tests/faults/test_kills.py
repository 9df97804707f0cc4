"""A few of the kills of report.py; and the same kills of a version that writes in place, which must be seen to lose."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from judge import finished, judge
from kills import Harness, Undisturbed
from sweeps import Place, done, kill, start
from writes import HALF, OPENED, Trap

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def test_a_study_that_is_killed_twice_ends_as_if_nothing_had_been(small: Undisturbed, tmp_path: Path):
    """A study is killed from outside, goes on, is killed inside a write, and goes on to the end."""
    kills = Harness(small, tmp_path).round(1)
    assert kills
    assert all(one.verdict.good for one in kills), kills


@pytest.mark.parametrize("plain", [False, True], ids=["renamed", "written in place"])
@pytest.mark.parametrize(
    ("kind", "number", "at"),
    [("checkpoint", 5, HALF), ("status", 6, OPENED), ("token file", 1, HALF)],
    ids=["checkpoint", "status", "token file"],
)
def test_only_a_version_that_writes_in_place_is_found_to_lose_something(
    small: Undisturbed, place: Place, kind: str, number: int, at: str, plain: bool
):
    """The same kill inside a write, of posbench and of a version that writes in place: the harness sees the loss."""
    assert start(small.plan, place, Trap(kind, number, at, kill), plain).end() == -signal.SIGKILL
    then = finished(place)
    verdict = judge(small.content, place, done(small.plan, place, plain=plain), [then])
    assert verdict.good is not plain
    assert bool(verdict.lost) is plain
