"""A hundred kills that put too little at risk prove too little, and the report says so."""

from __future__ import annotations

import pytest
from judge import Verdict
from kills import Kill
from report import too_little

GOOD = Verdict(lost=[], twice=[], unequal=[])


@pytest.mark.parametrize(
    ("inside", "runs", "rows", "said"),
    [
        (30, 12, 200, []),
        (29, 12, 200, ["- Too little: 29 of 100 kills inside a write, not 30."]),
        (30, 11, 199, ["- Too little: 11 runs at risk, not 12.", "- Too little: 199 rows at risk, not 200."]),
    ],
)
def test_a_whole_run_is_held_against_what_it_must_put_at_risk(inside: int, runs: int, rows: int, said: list[str]):
    kills = [Kill(0, 1, "status, half written", runs, rows, GOOD)]
    kills += [Kill(0, 1, "status, half written" if n < inside else "a step", 0, 0, GOOD) for n in range(1, 100)]
    assert too_little(kills) == said
