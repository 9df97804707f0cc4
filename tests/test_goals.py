"""The goals of results/bench, judged by a calculator."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scripted


@pytest.fixture
def goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, on a folder of its own."""
    module = scripted.load("goals")
    monkeypatch.setattr(module, "BENCH", tmp_path)
    monkeypatch.setattr(module, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("# Speed\n\n<!-- goals: made -->\nold\n<!-- end of goals -->\nmore\n")
    return module


def table(name: str, *rows: dict[str, Any]) -> str:
    whole = {"status": "ok", "task": "train", "length": 128, "ratio": None}
    return json.dumps([{"title": name, "rows": [whole | row for row in rows]}])


def test_a_goal_is_met_when_the_worse_end_of_its_interval_reaches_it(goals: ModuleType, tmp_path: Path):
    rows = [
        {"name": "posbench", "encoding": "rope"},
        {"name": "neox", "encoding": "rope", "ratio": 1.5, "ratio_low": 1.3},
        {"name": "phi", "encoding": "rope", "ratio": 1.4, "ratio_low": 1.2},  # the best peer
        {"name": "bloom", "encoding": "alibi", "ratio": 2.0, "ratio_low": 1.25},
        {"name": "gone", "encoding": "alibi", "status": "n/a"},
    ]
    (tmp_path / "peers-nano.json").write_text(table("peers", *rows))
    assert [goal.line() for goal in goals.goals()] == [
        "| training, width 128, rope: posbench over its best peer, phi | 1.40 (from 1.20) | ≥ 1.25 | missed by 0.05 |",
        "| training, width 128, alibi: posbench over its best peer, bloom | 2.00 (from 1.25) | ≥ 1.25 | met |",
    ]


def test_a_time_may_be_at_most_so_long_at_its_longest(goals: ModuleType, tmp_path: Path):
    """0.8 of the speed is 1.25 of the time, and 0.625 of it 1.6, 0.2 above 1.4."""
    row = {"task": "eval", "length": 8192, "encoding": "t5", "name": "t5", "ratio": 0.8, "ratio_low": 0.625}
    (tmp_path / "encodings-nano.json").write_text(table("encodings", row))
    [goal] = goals.goals()
    assert goal.line() == "| evaluation at 8,192: time of t5 over none | 1.25 (to 1.60) | ≤ 1.40 | missed by 0.20 |"


def test_memory_is_above_that_of_1024_tokens_and_its_growth_is_held_against_the_lengths(
    goals: ModuleType, tmp_path: Path
):
    """100 MiB, 130, 160 and 220: 120 above the first, and the last two steps are 30 and 60."""
    peaks = {1024: 100, 8192: 130, 16384: 160, 32768: 220}
    rows = [
        {"task": "eval", "name": "t5", "encoding": "t5", "length": length, "peak_bytes": mib * 2**20}
        for length, mib in peaks.items()
    ]
    (tmp_path / "memory-nano-32768.json").write_text(table("memory", *rows))
    above, growth = goals.goals()
    assert above.line() == "| evaluation at 32,768, t5: MiB above 1,024 | 120 | ≤ 300 | met |"
    assert (growth.value, growth.least) == (2.0, 2.2)


def test_what_is_between_the_marks_is_made_again_and_checked(goals: ModuleType, tmp_path: Path):
    assert goals.main(["check"]) == 1
    assert goals.main([]) == 0
    assert goals.main(["check"]) == 0
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Speed\n\n<!-- goals: made -->\n\n| what |")
    assert "Not measured yet: training-nano, " in text
    assert text.endswith("<!-- end of goals -->\nmore\n")


def test_a_command_is_as_slow_as_the_worse_end_of_its_median(goals: ModuleType, tmp_path: Path):
    """Of three times that is the slowest, of 20 the 15th (rounds.median_rank)."""
    (tmp_path / "start.json").write_text('{"seconds": [1.2, 1.75, 1.3]}')
    (tmp_path / "reproduce.json").write_text('{"seconds": [545]}')
    start, whole = goals.goals()
    assert start.line().endswith("| 1.30 (to 1.75) | ≤ 1.50 | missed by 0.25 |")
    assert whole.line().endswith("| 545 | ≤ 600 | met |")
    (tmp_path / "start.json").write_text(json.dumps({"seconds": [1.2] * 14 + [1.4] + [9.0] * 5}))
    assert next(goals.goals()).line().endswith("| 1.20 (to 1.40) | ≤ 1.50 | met |")
