"""Loss by position: sums of the bins beside each row, in buckets that double."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from made import arrays, row

from posbench import records
from posbench.report.positions import FEWEST_TARGETS, position_tables
from posbench.report.tables import FORMATS, render


def kept(folder, bins: dict[int, tuple[int, float]] | None, each: int = FEWEST_TARGETS, **changes):
    """A written row: `bins` are `each` times so many (targets, nats) by the largest context of a bin; None: n/a."""
    if bins is None:
        return records.write(folder, row(**changes), None)
    behind = replace(
        arrays([1.0], [changes.get("targets", 128)]),
        position=np.array(list(bins), np.int32),
        position_count=np.array([each * count for count, _ in bins.values()], np.int64),
        position_nats=np.array([each * nats for _, nats in bins.values()]),
    )
    return records.write(folder, row(behind, **changes), behind)


SHORT = {1: (2, 10.0), 8: (2, 6.0), 9: (4, 12.0)}
"""Contexts 1 to 8: 16 nats of 4 targets; 9: 12 nats of 4."""

LONG = {8: (4, 20.0), 16: (2, 5.0), 20: (1, 2.0)}


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_each_length_has_its_loss_in_buckets_that_double(tmp_path):
    """16 / 4 = 4 and 12 / 4 = 3 nats at 9; 20 / 4 = 5, 5 / 2 = 2.5 and 2 / 1 = 2 at 20."""
    rows = [kept(tmp_path, SHORT, length=9, train_length=9), kept(tmp_path, LONG, length=20, train_length=9)]
    text = render(position_tables(rows), width=80)
    assert "rope, trained at 9" in text
    found = lines(text)
    assert ["context", "9", "20"] in found
    assert ["1-8", "4.000", "5.000"] in found
    assert ["9-16", "3.000", "2.500"] in found
    assert ["17-20", "2.000"] in found


def test_a_bin_that_ends_past_the_length_counts_to_the_last_bucket(tmp_path):
    """The bins of 24 an octave are the same at every length: 70 lies in the one that ends at 71."""
    (table,) = position_tables([kept(tmp_path, {64: (64, 64.0), 71: (6, 18.0)}, length=70)])
    assert [(one["context_from"], one["context_to"], one["loss"]) for one in table.data()] == [
        (33, 64, 1.0),
        (65, 70, 3.0),
    ]


def test_seeds_are_averaged_and_protocols_have_tables_of_their_own(tmp_path):
    """Seeds of 4 and 6 nats: 5, standard deviation sqrt(2)."""
    rows = [
        kept(tmp_path, {8: (2, nats)}, seed=seed, run_hash=str(seed), recipe="r", length=8)
        for seed, nats in ((1, 8.0), (2, 12.0))
    ]
    rows.append(kept(tmp_path, {8: (1, 1.0)}, length=8, protocol="sliding", stride=4))
    first, second = position_tables(rows)
    (record,) = first.data()
    assert (record["loss"], record["seeds"], record["targets"]) == (5.0, 2, 2 * FEWEST_TARGETS)
    assert record["loss_seed_deviation"] == pytest.approx(2**0.5)
    assert second.title.startswith("Part 2 of 2, Loss by position, sliding, stride 4")


def test_a_length_that_was_not_measured_has_its_reason(tmp_path):
    rows = [kept(tmp_path, {8: (1, 1.0)}, length=8), kept(tmp_path, None, length=16)]
    assert "rope at 16 is n/a: not measured" in render(position_tables(rows))


def test_lengths_with_one_reason_share_a_note(tmp_path):
    rows = [kept(tmp_path, {8: (1, 1.0)}, length=8), *(kept(tmp_path, None, length=length) for length in (16, 32, 64))]
    (table,) = position_tables(rows)
    assert [note for note in table.notes if "n/a" in note] == ["rope at 16, 32 and 64 is n/a: not measured"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_has_every_number(tmp_path, form):
    text = render(position_tables([kept(tmp_path, {8: (3, 1.0)}, length=8)]), form)
    if form == "json":
        assert json.loads(text)[0]["rows"][0]["loss"] == 1 / 3
    elif form == "csv":
        assert float(next(csv.DictReader(io.StringIO(text)))["loss"]) == 1 / 3
    else:
        assert "0.333" in text


def test_six_lengths_fit_a_terminal_of_80_columns(tmp_path):
    lengths = (128, 256, 512, 1024, 2048, 4096)
    rows = [kept(tmp_path, dict.fromkeys((8, 64, 128, length), (10, 40.0)), length=length) for length in lengths]
    text = render(position_tables(rows), width=80)
    assert text.count("context  ") == 1, "one band of columns"
    assert max(map(len, text.splitlines())) <= 80


def test_what_few_targets_stand_behind_is_left_out(tmp_path):
    """255 of contexts 1 to 8, 256 of 9 to 16."""
    (table,) = position_tables([kept(tmp_path, {8: (255, 255.0), 16: (256, 512.0)}, 1, length=16)])
    assert [(one["context_from"], one["loss"]) for one in table.data()] == [(9, 2.0)]
    assert "Not shown: what fewer than 256 targets stand behind" in table.notes[0]


def test_what_the_first_of_sliding_windows_alone_sees_is_left_out(tmp_path):
    """By half of 512 all others see 257 to 512; the 128 or 256 of each bucket before are one place of the text."""
    bins = {8: (8, 6.8), 16: (8, 8.0), 256: (240, 720.0), 512: (256, 1024.0)}
    sliding = {"protocol": "sliding", "stride": 256}
    (table,) = position_tables([kept(tmp_path, bins, length=512, **sliding)])
    assert [(one["context_from"], one["loss"]) for one in table.data()] == [(257, 4.0)]


def test_of_the_same_targets_a_bucket_of_some_is_marked(tmp_path):
    """136 tokens before a block of 32: its first 24 see 105 to 128, its last 8 more."""
    same = {"protocol": "same-targets", "block": 32, "min_context": 512, "targets": 4 * 256}
    rows = [
        kept(tmp_path, {128: (4, 12.0)}, length=128, **same),
        kept(tmp_path, {128: (3, 9.0), 136: (1, 2.0)}, length=136, **same),
    ]
    (table,) = position_tables(rows)
    found = lines(render(table))
    assert ["65-128", "3.000", "3.000°"] in found
    assert ["129-136", "2.000°"] in found
    assert any(note.startswith("° of only some of the targets") for note in table.notes)
    assert "°" not in render(position_tables(rows[:1]))


def test_it_says_along_which_way_to_compare(tmp_path):
    (flat,) = position_tables([kept(tmp_path, {8: (1, 1.0)}, length=8)])
    same = {"protocol": "same-targets", "block": 1, "min_context": 8, "targets": 256}
    (other,) = position_tables([kept(tmp_path, {8: (1, 1.0)}, length=8, **same)])
    assert any(note.startswith("Compare down a column") for note in flat.notes)
    assert other.notes[1].startswith("The same targets at every length")
    assert not any(note.startswith("Compare down a column") for note in other.notes)
