"""Speeds of one run of `posbench bench` against each other, and against Table 1."""

from __future__ import annotations

from typing import Any

import made
import pytest

from posbench.report.claims import claims_table, judge, parse
from posbench.report.tables import render


def claim(**changes: Any) -> dict[str, Any]:
    """Rotary trains slower than sinusoidal; Table 1 has 20,000 words a second against 28,500."""
    cells = {"left": ["rope", 512, 512], "right": ["sinusoidal", 512, 512]}
    return made.claim(
        left={"encoding": "rope", "train_length": 128, "at": "1L"},
        right={"encoding": "sinusoidal", "at": "1L"},
        protocol="training",
        paper={"table": "Table 1 (training)", **cells},
        **changes,
    )


def timed(encoding: str, seconds: list[float], task: str = "train", length: int = 128) -> dict[str, Any]:
    """A row of bench: 100 tokens a call."""
    return {
        "task": task,
        "encoding": encoding,
        "length": length,
        "tokens_per_second": 100 / sorted(seconds)[len(seconds) // 2],
        "seconds": seconds,
    }


def verdict(rope: list[float], sinusoidal: list[float], **changes: Any):
    (found,) = judge(parse([claim(**changes)]), [], [timed("rope", rope), timed("sinusoidal", sinusoidal)])
    return found


def test_a_ratio_is_taken_within_each_round():
    """Every round of rotary takes twice as long, however long it is: 0.5, and nothing to doubt."""
    found = verdict([2.0, 4, 6, 8, 10, 12], [1.0, 2, 3, 4, 5, 6])
    assert (found.text, found.ratio.value, found.interval) == ("seen", 0.5, pytest.approx((0.5, 0.5)))


@pytest.mark.parametrize(
    ("rope", "relation", "expected"),
    [
        ([1.0, 1.1, 1.2, 0.9, 1.0, 1.1], "less", "undecided"),
        ([0.5] * 6, "less", "not seen"),
        ([1.01] * 6, "equal", "not seen"),
        ([1.005] * 6, "equal", "seen"),
        ([2.0], "less", "seen"),  # one round has no interval
    ],
)
def test_what_the_rounds_leave_open_is_undecided(rope, relation, expected):
    """Sinusoidal takes a second in each; equal is within 1 %."""
    assert verdict(rope, [1.0] * len(rope), relation=relation).text == expected


def test_without_speeds_it_is_not_measured_and_says_how_to_have_them():
    (found,) = judge(parse([claim()]), [])
    assert found.text == "not measured"
    assert "posbench bench encodings --out bench" in found.reason
    (other,) = judge(parse([claim()]), [], [timed("rope", [1.0])])
    assert other.reason == "training of sinusoidal at 128 was not timed"


def test_the_table_has_speeds_beside_those_of_the_paper():
    text = render(claims_table([verdict([2.0] * 6, [1.0] * 6)]), width=1000)
    ours, press = (next(line for line in text.splitlines() if line.startswith(word)) for word in ("these", "Press"))
    assert "50 tokens/s" in ours
    assert "0.500 to 0.500" in ours
    assert ("20,000 words/s" in press, "28,500 words/s" in press, "0.702" in press) == (True, True, True)
    assert "another may turn it round" in text
