"""The goals of results/bench, judged by a calculator."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scripted


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The folder of one processor."""
    folder = tmp_path / "z80"
    folder.mkdir()
    (folder / "README.md").write_text("# Speed\n\n<!-- goals: made -->\nold\n<!-- end of goals -->\nmore\n")
    return folder


@pytest.fixture
def goals(there: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, on a folder of its own."""
    module = scripted.load("goals")
    monkeypatch.setattr(module, "BENCH", there.parent)
    return module


def table(name: str, *rows: dict[str, Any]) -> str:
    whole = {"status": "ok", "reason": None, "task": "train", "length": 128, "ratio": None, "ratio_low": None}
    return json.dumps([{"title": name, "rows": [whole | row for row in rows]}])


def lines(goals: ModuleType, *words: str) -> list[str]:
    """Those that hold all the words."""
    found = [goal.line() for goal in goals.goals(goals.Tables(goals.BENCH / "z80"))]
    return [line for line in found if all(word in line for word in words)]


OURS = {"name": "posbench", "encoding": "rope", "variant": "compiled"}


def peer(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "encoding": "rope", "against": "posbench", **more}


def test_a_goal_is_met_when_the_worse_end_of_its_interval_reaches_it(goals: ModuleType, there: Path):
    rows = [
        OURS,
        peer("neox", ratio=1.5, ratio_low=1.3),
        peer("phi", ratio=1.4, ratio_low=1.2, variant="eager"),  # the best peer
        peer("bloom", encoding="alibi", ratio=2.0, ratio_low=1.25),
    ]
    (there / "peers-nano.json").write_text(table("peers", *rows))
    assert lines(goals, "training, width 128", "best peer, ") == [
        "| training, width 128, rope: posbench (compiled) over its best peer, phi (eager) | 1.40 (from 1.20) | ≥ 1.25 "
        "| missed by 0.05 |",
        "| training, width 128, alibi: posbench over its best peer, bloom | 2.00 (from 1.25) | ≥ 1.25 | met |",
    ]


def test_what_could_not_be_measured_has_a_line_with_its_reason(goals: ModuleType, there: Path):
    """A peer that is not there says nothing about posbench; one that runs out of memory has lost."""
    rows = [
        OURS,
        peer("llama", status="n/a", reason="transformers is not installed"),
        peer("phi", status="n/a", reason="out of memory (12 GiB)"),
        peer("neox", ratio=1.5),  # of five rounds
        {"name": "none", "encoding": "none", "status": "n/a", "reason": "it failed"},
        peer("gpt", encoding="none", against="none"),
    ]
    (there / "peers-nano.json").write_text(table("peers", *rows))
    of = "| training, width 128, "
    assert lines(goals, "width 128", "rope: ", "1.25") == [
        f"{of}rope: llama | n/a: transformers is not installed | ≥ 1.25 |  |",
        f"{of}rope: phi | the peer cannot: out of memory (12 GiB) | ≥ 1.25 | met |",
        f"{of}rope: posbench (compiled) over its best peer, neox | 1.50 | ≥ 1.25 | no interval |",
    ]
    assert lines(goals, "width 128, none: gpt") == [
        f"{of}none: gpt | n/a: what it is held against was not measured | ≥ 1.25 |  |"
    ]
    assert lines(goals, "width 128, t5: ") == [f"{of}t5: posbench over its best peer | not measured | ≥ 1.25 |  |"]


def test_every_goal_has_a_line_before_anything_is_measured(goals: ModuleType):
    found = lines(goals)
    assert all("| not measured |" in line for line in found)
    assert len([line for line in found if "over none" in line]) == 2 * 2 * 7 + 2 * 2  # widths, kinds; lengths
    assert len([line for line in found if "GEMM bound" in line]) == 2 * 2
    assert len([line for line in found if "MiB above" in line]) == 5


def test_eager_and_compiled_training_are_both_shown(goals: ModuleType, there: Path):
    for kind, ratio in (("training", 0.9), ("compiled", 0.8)):
        none = {"name": "none", "encoding": "none", "gemm_share": ratio, "gemm_share_low": ratio}
        t5 = {"name": "t5", "encoding": "t5", "ratio": ratio, "ratio_low": ratio}
        (there / f"{kind}-nano.json").write_text(table(kind, none, t5))
    assert lines(goals, "width 128", "t5 over none") == [
        "| training, width 128: t5 over none | 0.90 | ≥ 0.85 | met |",
        "| training, width 128, compiled: t5 over none | 0.80 | ≥ 0.85 | missed by 0.05 |",
    ]
    assert [line.split("|")[2].strip() for line in lines(goals, "width 128", "GEMM")] == ["0.90", "0.80"]


def test_a_time_may_be_at_most_so_long_at_its_longest(goals: ModuleType, there: Path):
    """0.8 of the speed is 1.25 of the time, and 0.625 of it 1.6, 0.2 above 1.4."""
    row = {"task": "eval", "length": 8192, "encoding": "t5", "name": "t5", "ratio": 0.8, "ratio_low": 0.625}
    (there / "encodings-nano.json").write_text(table("encodings", row))
    assert lines(goals, "8,192: time of t5") == [
        "| evaluation at 8,192: time of t5 over none | 1.25 (to 1.60) | ≤ 1.40 | missed by 0.20 |"
    ]


def peaks(**mib: int | None) -> list[dict[str, Any]]:
    """Of t5 by length, of the process and ten less of its tensors; None: out of memory."""
    row = {"task": "eval", "name": "t5", "encoding": "t5"}
    return [
        row
        | {"length": int(length[1:])}
        | (
            {"status": "n/a", "reason": "out of memory (1 GiB)"}
            if one is None
            else {"peak_bytes": one * 2**20, "tensor_bytes": (one - 10) * 2**20}
        )
        for length, one in mib.items()
    ]


@pytest.mark.parametrize(
    ("measured", "above", "growth"),
    [
        # 120 above the first; the steps are 30 of 7 x 1,024 tokens, 30 of 8 and 60 of 16.
        (
            {"_1024": 100, "_8192": 130, "_16384": 160, "_32768": 220},
            "120 | ≤ 300 | met",
            "; MiB per 1,024 tokens 4.29 to 3.75 to 3.75 | 1.00 | ≤ 1.10 | met",
        ),
        # By squares: 30 and 120.
        (
            {"_1024": 100, "_8192": 130, "_16384": 160, "_32768": 280},
            "180 | ≤ 300 | met",
            "; MiB per 1,024 tokens 4.29 to 3.75 to 7.50 | 2.00 | ≤ 1.10 | missed by 0.90",
        ),
        (
            {"_1024": 100, "_8192": 130, "_16384": 160, "_32768": None},
            "n/a: out of memory (1 GiB) | ≤ 300 | ",
            " | n/a: out of memory (1 GiB) | ≤ 1.10 | ",
        ),
        (
            {"_1024": None, "_8192": 130, "_16384": 160, "_32768": 220},
            "n/a: out of memory (1 GiB) | ≤ 300 | ",
            "; MiB per 1,024 tokens 3.75 to 3.75 | 1.00 | ≤ 1.10 | met",
        ),
    ],
)
def test_memory_is_above_that_of_1024_tokens_and_the_growth_of_tensors_is_held_against_the_lengths(
    goals: ModuleType, there: Path, measured: dict[str, int | None], above: str, growth: str
):
    (there / "memory-nano-32768.json").write_text(table("memory", *peaks(**measured)))
    assert lines(goals, "32,768, t5") == [
        f"| evaluation at 32,768, t5: MiB above 1,024 | {above} |",
        f"| evaluation at 32,768, t5: tensors, growth per token past 16,384 over that from 8,192{growth} |",
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        ((5, 100), (100, 1000), "tensors alive at once, over x's | 0.050 | ≤ 0.050 | met"),
        ((6, 1), (100, 1000), "tensors alive at once, over x's | 0.060 | ≤ 0.050 | missed by 0.010"),
        ((None, 100), (100, 2000), "memory of one process above a short call, over x's | 0.050 | ≤ 0.050 | met"),
        ((None, 100), (None, 0), "memory over x's | n/a: one of them took none that could be measured | ≤ 0.050 | "),
    ],
)
def test_memory_is_held_against_the_best_peers(
    goals: ModuleType, there: Path, ours: tuple[int | None, int], theirs: tuple[int | None, int], shown: str
):
    """Tensors are the same in every process, its peak is not."""
    at = {"task": "eval", "length": 8192, "encoding": "t5"}
    mine, other = ({"tensor_bytes": tensors, "extra_bytes": extra} for tensors, extra in (ours, theirs))
    rows = [OURS | at | mine, peer("x", ratio=9.0, ratio_low=8.0) | at | other]
    (there / "peers-nano.json").write_text(table("peers", *rows))
    assert lines(goals, "the same: ") == [f"| the same: {shown} |"]


def test_a_ratio_of_few_rounds_is_no_verdict(goals: ModuleType, there: Path):
    for rounds, verdict in ((19, "of 19 rounds alone"), (20, "met")):
        row = {"name": "rope", "encoding": "rope", "ratio": 1.2, "ratio_low": 1.1, "rounds": rounds}
        (there / "training-nano.json").write_text(table("training", row))
        [line] = lines(goals, "width 128: rope over none")
        assert line.endswith(f"| 1.20 (from 1.10) | ≥ 0.95 | {verdict} |")


def test_a_race_without_a_winner_is_missed(goals: ModuleType, there: Path):
    rows = [{"recipe": "adamw", "share": 1.0, "best": False}, {"recipe": "muon", "share": 0.5, "best": False}]
    (there / "time-to-loss.json").write_text(table("race", {"rate": 1e-3, "best": True}, *rows))
    [line] = lines(goals, "tuned AdamW")
    assert "missed: no share of the steps reaches it at every seed" in line
    won = rows[1] | {"best": True, "target": 4.2, "ratio": 0.5, "ratio_high": 0.58, "ratio_others": 0.55}
    (there / "time-to-loss.json").write_text(table("race", rows[0], won))
    assert lines(goals, "tuned AdamW") == [
        "| seconds to 4.2000 nats over tuned AdamW's, 50% of its steps, 0.55 of the seeds on which nothing was chosen "
        "| 0.50 (to 0.58) | ≤ 0.60 | met |"
    ]


def test_what_is_between_the_marks_is_made_again_and_checked(goals: ModuleType, there: Path):
    assert goals.main(["check"]) == 1
    assert goals.main([]) == 0
    assert goals.main(["check"]) == 0
    text = (there / "README.md").read_text()
    assert text.startswith("# Speed\n\n<!-- goals: made -->\n\n| what |")
    assert "Not measured yet: training-nano, " in text
    assert text.endswith("<!-- end of goals -->\nmore\n")


def test_each_processor_has_a_folder_and_its_own_goals(goals: ModuleType, there: Path):
    other = there.parent / "6502"
    other.mkdir()
    (other / "README.md").write_text("<!-- goals: made -->\n<!-- end of goals -->\n")
    (other / "start.json").write_text('{"seconds": [1.2]}')
    assert goals.main([]) == 0
    line = "| `posbench table` over 100 finished runs, seconds, of one run | 1.20 | ≤ 1.50 | met |"
    assert line in (other / "README.md").read_text()
    assert line not in (there / "README.md").read_text()
    (other / "start.json").write_text('{"seconds": [1.3]}')
    assert goals.main(["check"]) == 1


def test_processor_and_commit_of_every_table_are_named(goals: ModuleType, there: Path):
    for name, commit in (("training-nano", "0123 with changes"), ("compiled-nano", "0123")):
        (there / f"{name}.json").write_text(table(name, {"name": "x", "encoding": "x", "commit": commit}))
    (there / "start.json").write_text('{"seconds": [1.2], "processor": "Z80"}')
    found = dict(goals.notes(goals.Tables(there)))
    assert "encodings-nano" in found.pop("Not measured yet")
    assert found == {
        "A processor without a name, 0123 and changes to it": ["training-nano"],
        "A processor without a name, 0123": ["compiled-nano"],
        "Z80, no known commit": ["start"],
    }


def test_a_command_is_as_slow_as_the_worse_end_of_its_median(goals: ModuleType, there: Path):
    """Of three times that is the slowest, of 20 the 15th (rounds.median_rank)."""
    (there / "start.json").write_text('{"seconds": [1.2, 1.75, 1.3]}')
    (there / "reproduce.json").write_text('{"seconds": [545]}')
    [start], [whole] = lines(goals, "`posbench table`"), lines(goals, "default study")
    assert start.endswith("| 1.30 (to 1.75) | ≤ 1.50 | missed by 0.25 |")
    assert whole.endswith("| 545 | ≤ 600 | met |")
    (there / "start.json").write_text(json.dumps({"seconds": [1.2] * 14 + [1.4] + [9.0] * 5}))
    assert lines(goals, "`posbench table`")[0].endswith("| 1.20 (to 1.40) | ≤ 1.50 | met |")
