"""What a pilot says of the study to come."""

from __future__ import annotations

import math
from typing import Any

import made
import pytest

from posbench.report.claims import judge, parse
from posbench.report.needs import needs_table
from posbench.report.tables import render
from posbench.statistics.planning import Pilot, need


def verdicts(folder, gains: list[float], **changes: Any):
    """ALiBi at 256 gains so many nats a token over 128, a seed each, the same in all of ten blocks."""
    rows = []
    for seed, gain in enumerate(gains):
        for length, loss in ((128, 4.0), (256, 4.0 - gain)):
            arrays = made.arrays([128 * loss] * 10)
            rows.append(made.alibi_row(folder, seed, length, arrays))
    return judge(parse([made.claim(**changes)]), rows)


def test_seeds_are_those_of_the_pilots_deviation(tmp_path):
    """0.01, 0.02, 0.03: a deviation of 0.01."""
    (record,) = needs_table(verdicts(tmp_path, [0.01, 0.02, 0.03]), effect=0.01).records
    assert record["deviation"] == pytest.approx(0.01)
    assert record["seeds"] == need(Pilot(0.01, 0.0, 1280), math.log(1.01)).seeds
    assert (record["pilot_seeds"], record["pilot_targets"], record["targets"]) == (3, 1280, 1280)


def test_a_margin_is_the_effect_of_its_claim(tmp_path):
    (record,) = needs_table(verdicts(tmp_path, [0.01, 0.02], relation="equal", margin=0.05), effect=0.01).records
    assert record["effect"] == 0.05


def test_what_the_pilot_does_not_tell_is_said(tmp_path):
    (one,) = needs_table(verdicts(tmp_path, [0.01]), effect=0.01).records
    assert (one["seeds"], one["reason"]) == (None, "one seed tells nothing of how seeds differ")
    table = needs_table(verdicts(tmp_path / "none", []), effect=0.01)
    assert "not measured" in render(table)
    assert "> 1,000" in render(needs_table(verdicts(tmp_path / "wide", [-5.0, 5.0]), effect=0.001))
