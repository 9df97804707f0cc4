"""Rows of one checkpoint under extensions: a line each, what it gains over the trained encoding, and nothing mixed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import made
import numpy as np
import pytest

from posbench import records
from posbench.report import claims, published
from posbench.report.lengths import length_tables
from posbench.report.parts import parts
from posbench.report.tables import render

PI = json.dumps({"class": "posbench.extensions.pi.Pi", "name": "pi"})
NONE = json.dumps({"name": "none"})


def long(*factors: float) -> str:
    return json.dumps({"class": "posbench.extensions.longrope.LongRope", "found": {"factors": factors}, "name": "long"})


def test_each_extension_is_a_line_beside_the_trained_encoding(make):
    rows = [make("rope", n, value, extension=e) for e, value in ((None, 50.0), (PI, 40.0)) for n in (128, 256)]
    (table,) = length_tables(rows)
    text = render([table])
    assert text.splitlines()[3].split()[:3] == ["encoding", "extension", "L"]
    assert [(r["extension"], r["label"]) for r in table.records[::2]] == [("pi", "rope + pi"), ("none", "rope")]
    assert "Nats a token gained by the extension" in text


def test_without_extensions_there_is_no_column_for_them(make):
    text = render(length_tables([make("rope", 128, 50.0)]))
    assert "extension" not in text


def test_what_a_search_found_at_each_length_is_one_line(make):
    """The factors differ from length to length, the method does not."""
    rows = [make("rope", 128, 50.0, extension=long(1.0, 1.0)), make("rope", 256, 50.0, extension=long(1.0, 2.0))]
    (part,) = parts(rows)
    (line,) = part.lines
    assert sorted(line.rows) == [128, 256]
    assert line.extension == "long"


def test_a_run_trained_under_an_extension_says_how_it_was_read(make):
    rows = [make("rope+pi", 128, 50.0, extended=True), make("rope+pi", 128, 60.0, extended=True, extension=NONE)]
    (table,) = length_tables(rows)
    assert [(r["encoding"], r["extension"]) for r in table.records] == [("rope+pi", "as trained"), ("rope+pi", "none")]
    said = "Of rope+pi, trained under an extension: `as trained` is under it, `none` without it; any other extension"
    assert f"{said} takes its place." in table.notes
    assert not any("as trained" in note for note in length_tables(rows[:1])[0].notes)


def test_the_gain_is_over_the_same_checkpoint(make):
    """ln(50 / 40) = 0.2231 nats; another seed's run without an extension is no base for it."""
    rows = [make("rope", 256, 50.0), make("rope", 256, 40.0, extension=PI)]
    (table,) = length_tables(rows)
    gains = {r["extension"]: r["gain_nats"] for r in table.records}
    assert gains == {"none": None, "pi": pytest.approx(math.log(50 / 40))}
    assert "+0.2231" in render([table])
    rows[0] = make("rope", 256, 50.0, recipe="other")
    (table,) = length_tables(rows)
    assert all(r["gain_nats"] is None for r in table.records)


def test_an_extension_is_held_against_the_same_checkpoint_though_another_seed_comes_first(make):
    """Seed 1 was read as trained alone: of seed 2 ln(60 / 40) = 0.405."""
    rows = [make("rope", 256, value, seed=seed) for seed, value in ((1, 50.0), (2, 60.0))]
    (table,) = length_tables([*rows, make("rope", 256, 40.0, seed=2, extension=PI)])
    assert [r["gain_nats"] for r in table.records] == [pytest.approx(math.log(60 / 40)), None]


def test_the_gain_of_seeds_is_their_mean_and_its_error_their_deviation(make):
    """Gains ln(50/40) and ln(60/40): mean 0.3143, deviation 0.1289."""
    rows = [make("rope", 256, value, seed=seed) for seed, value in ((1, 50.0), (2, 60.0))]
    rows += [make("rope", 256, 40.0, seed=seed, extension=PI) for seed in (1, 2)]
    (table,) = length_tables(rows)
    (record,) = [r for r in table.records if r["extension"] == "pi"]
    assert record["gain_nats"] == pytest.approx((math.log(1.25) + math.log(1.5)) / 2)
    assert record["gain_nats_error"] == pytest.approx((math.log(1.5) - math.log(1.25)) / 2**0.5)


def test_the_gain_of_one_checkpoint_has_the_paired_error_of_the_text(tmp_path: Path):
    """Sixteen blocks of 128 targets that all gain 12.8 nats: 0.1 a token, and no doubt about it; both losses alone are
    known to no better than their blocks are alike."""
    nats = np.linspace(300, 500, 16)
    plain, other = made.arrays((nats + 12.8).tolist()), made.arrays(nats.tolist())
    rows = [
        records.write(tmp_path / "a", made.row(plain, length=1024), plain),
        records.write(tmp_path / "a", made.row(other, length=1024, extension=PI), other),
    ]
    (table,) = length_tables(rows)
    (record,) = [r for r in table.records if r["extension"] == "pi"]
    assert record["gain_nats"] == pytest.approx(0.1)
    assert record["gain_nats_error"] == pytest.approx(0, abs=1e-9)
    assert record["loss_standard_error"] > 0.05


def test_a_gain_over_the_encoding_none_is_over_that_without_an_extension(make):
    """`none` names an encoding there, and rows of it under log-n are no base."""
    rows = [make("none", 256, 60.0, extension=PI), make("none", 256, 70.0), make("rope", 256, 40.0)]
    (table,) = length_tables(rows)
    (record,) = [r for r in table.records if r["encoding"] == "rope"]
    assert record["gain_bits_per_byte"] == pytest.approx(math.log(70 / 40) / 2)


def test_statements_of_papers_are_held_against_trained_encodings_alone(make):
    rows = [make("alibi", length, 40.0, extension=e) for length in (128, 256) for e in (None, PI)]
    (part,) = parts(rows)
    claim = claims.parse(
        [
            {
                "name": "one",
                "left": {"encoding": "alibi", "train_length": 128, "at": "2L"},
                "right": {"encoding": "alibi", "train_length": 128, "at": "1L"},
                "relation": "not-above",
                "protocol": "nonoverlapping",
                "paper": {"table": "Table 5", "left": ["alibi", 128, 256], "right": ["alibi", 128, 128]},
            }
        ]
    )
    (verdict,) = claims.judge(claim, rows)
    assert verdict.ratio is not None
    beside = published.beside(part)
    assert beside is None or all("+" not in record["label"] for record in beside.records)
