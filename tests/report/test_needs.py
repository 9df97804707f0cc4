"""What a pilot says of the study to come."""

from __future__ import annotations

import math
from typing import Any

import made
import pytest

from posbench.records import Row
from posbench.report.claims import judge, parse
from posbench.report.needs import needs_table, piloted
from posbench.report.tables import render
from posbench.statistics import Estimate
from posbench.statistics.planning import Pilot, need


def gained(folder, gains: list[float], split: str = "test", blocks: int = 10) -> list[Row]:
    """ALiBi at 256 gains so many nats a token over 128, a seed each, the same in all of so many blocks."""
    rows = []
    for seed, gain in enumerate(gains):
        for length, loss in ((128, 4.0), (256, 4.0 - gain)):
            arrays = made.arrays([128 * loss] * blocks)
            rows.append(made.alibi_row(folder, seed, length, arrays, split=split, targets_digest=split))
    return rows


def verdicts(folder, gains: list[float], **changes: Any):
    return judge(parse([made.claim(**changes)]), gained(folder, gains))


def test_test_text_is_no_pilot_where_there_is_validation_text(tmp_path):
    """Also where it has more targets, ten blocks to four."""
    rows = [*gained(tmp_path / "t", [0.01, 0.02]), *gained(tmp_path / "v", [0.03, 0.05], "validation", 4)]
    claims = parse([made.claim()])
    (record,) = needs_table(piloted(claims, rows), effect=0.01).records
    assert (record["split"], record["pilot_text"], record["unit"]) == ("validation", [512], "targets")
    table = needs_table(piloted(claims, rows[:4]), effect=0.01)
    assert table.records[0]["split"] == "test"
    assert "1,280 targets (test)" in render(table)


def test_one_block_of_text_says_nothing_of_how_text_varies(tmp_path):
    (record,) = needs_table(judge(parse([made.claim()]), gained(tmp_path, [0.01, 0.02], blocks=1)), 0.01).records
    assert (record["seeds"], record["text"], record["text_error"]) == (None, None, None)
    assert record["reason"] == "one block of text tells nothing of how text differs"


def test_seeds_are_those_of_the_pilots_deviation(tmp_path):
    """0.01, 0.02, 0.03: a deviation of 0.01."""
    (record,) = needs_table(verdicts(tmp_path, [0.01, 0.02, 0.03]), effect=0.01).records
    assert record["deviation"] == pytest.approx(0.01)
    assert record["seeds"] == need(Pilot(0.01, Estimate(0.0, 0.0)), math.log(1.01)).seeds
    assert (record["pilot_seeds"], record["pilot_text"], record["text"]) == (3, [1280], [1280])


def test_text_that_varies_by_documents_is_counted_in_documents(tmp_path):
    """Four documents that gain 0, 0, 0 and 0.04 nats, two blocks each: a mean of 0.01 with a standard error of
    sqrt(4 / 3 (3 0.01^2 + 0.03^2)) / 4 = 0.01, known with 3 degrees of freedom."""
    rows = []
    for seed in (1, 2):
        for length, gains in ((128, [0.0] * 4), (256, [0.0, 0.0, 0.0, 0.04])):
            nats = [128 * (4.0 - gain) for gain in gains for _ in range(2)]
            arrays = made.arrays(nats, document=[number for number in range(4) for _ in range(2)])
            rows.append(made.alibi_row(tmp_path, seed, length, arrays))
    (record,) = needs_table(judge(parse([made.claim()]), rows), 0.01).records
    assert (record["unit"], record["pilot_text"], record["text_df"]) == ("documents", [4], 3)
    assert record["text_error"] == pytest.approx(0.01)
    assert record["text"] == [math.ceil(4 * need(Pilot(0.0, Estimate(0.0, 0.01, 3.0)), math.log(1.01)).text)]
    assert "4 documents" in render(needs_table(judge(parse([made.claim()]), rows), 0.01))


def test_a_margin_is_the_effect_of_its_claim(tmp_path):
    table = needs_table(verdicts(tmp_path, [0.01, 0.02], relation="equal", margin=0.05), effect=0.01)
    assert table.records[0]["effect"] == 0.05
    assert "whatever --effect says" in render(table)
    same = needs_table(verdicts(tmp_path, [0.01, 0.02], relation="equal", margin=0.01), effect=0.01)
    assert "whatever --effect says" in render(same), "the truth is another one all the same"
    assert "--effect" not in render(needs_table(verdicts(tmp_path, [0.01, 0.02]), effect=0.01))


def test_what_the_pilot_does_not_tell_is_said(tmp_path):
    (one,) = needs_table(verdicts(tmp_path, [0.01]), effect=0.01).records
    assert (one["seeds"], one["reason"]) == (None, "one seed tells nothing of how seeds differ")
    table = needs_table(verdicts(tmp_path / "none", []), effect=0.01)
    assert "not measured" in render(table)
    assert "> 1,000" in render(needs_table(verdicts(tmp_path / "wide", [-5.0, 5.0]), effect=0.001))
