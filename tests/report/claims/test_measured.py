"""Claims on rows that were measured, of a run with random weights: every kind of reading can be compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import made
import pytest
import torch

from posbench import evaluate, extensions
from posbench.compose import load_group
from posbench.evaluate import Request
from posbench.report.claims import claims_table, failure_table, judge, parse
from posbench.report.tables import render


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Rotary of length 16, as it was trained and under ntk, in all protocols."""
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(evaluate.system, "device", lambda name: torch.device("cpu"))
    run = made.finished_run(made.text(tmp_path / "text"), "rope", length=16)
    ntk = extensions.write(load_group("extension", "ntk"))
    same = Request("same-targets", 16, block=8, min_context=48, targets=64)
    return evaluate.evaluate(
        run,
        [
            *(Request("nonoverlapping", length, targets=256) for length in (16, 32, 64)),
            *(Request("sliding", length, stride=8, targets=256) for length in (16, 32, 64)),
            *(replace(same, length=length, extension=one) for length in (16, 24, 32, 48) for one in (None, ntk)),
        ],
    )


def test_gaps_extensions_and_failures_are_measured(rows):
    rope = {"encoding": "rope", "train_length": 16}
    paper = {"table": "Table 2", "left": ["rope", 512, 512], "right": ["rope", 512, 1012]}
    gap = {
        "name": "gap",
        "left": rope | {"at": "4L", "minus": {"protocol": "sliding"}},
        "relation": "less",
        "right": {"at": "1L", "minus": {"protocol": "sliding"}},
        "protocol": "nonoverlapping",
        "paper": paper,
    }
    extension = {
        "name": "extension",
        "left": rope | {"at": "2L", "extension": "ntk"},
        "relation": "equal",
        "right": {"at": "2L"},
        "protocol": "same-targets",
        "paper": paper,
    }
    failure = {
        "name": "failure",
        "left": rope,
        "relation": "fails-by",
        "right": {"at": "2L"},
        "protocol": "same-targets",
        "paper": {"table": "Table 2", "left": ["rope", 512]},
    }
    verdicts = judge(parse([gap, extension, failure]), rows)
    assert [one.reason for one in verdicts] == [None] * 3
    for one in verdicts:
        assert one.text in ("seen", "not seen", "undecided")
        low, high = one.interval
        assert low < one.ratio.value < high
    assert verdicts[0].ratio.value == pytest.approx(verdicts[0].left.value / verdicts[0].right.value)
    assert "gap (nonoverlapping - sliding)" in render(claims_table(verdicts))
    # As it was trained and under ntk.
    assert len(failure_table(rows).records) == 2
