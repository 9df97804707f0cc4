"""The short answer: better, worse and the same by a stated rule, from paired intervals."""

from __future__ import annotations

import made
import numpy as np
import pytest

from posbench.report.claims import judge, parse
from posbench.report.curves import texts
from posbench.report.summary import summary_table
from posbench.report.tables import render

SAME = {"protocol": "same-targets", "block": 32, "min_context": 512, "targets_digest": "same"}


def seeds(make, encoding: str, ratio: float, spread: float = 0.0, **other):
    """Three seeds at 128 and 512, whose ratios are `ratio` and `spread` to each side of it."""
    rows = [make(encoding, 128, 40.0, seed=seed, **other) for seed in (1, 2, 3)]
    return rows + [
        make(encoding, 512, 40.0 * ratio * float(np.exp(shift)), seed=seed, **other)
        for seed, shift in enumerate((-spread, 0.0, spread), start=1)
    ]


def words(rows) -> dict[str, tuple[str, str]]:
    (group,) = texts(rows)
    table = summary_table(group)
    return {record["encoding"]: (record.get("all_verdict"), record.get("same_verdict")) for record in table.records}


def test_each_word_has_its_rule(make):
    """With s = 0.01 Student's t gives 4.303 x 0.01 / sqrt(3) = 2.5 % to each side."""
    rows = seeds(make, "rope", 1.5, 0.01) + seeds(make, "alibi", 0.9, 0.01)
    rows += seeds(make, "t5", 1.02, 0.01) + seeds(make, "none", 1.002, 0.001)
    assert {name: found[0] for name, found in words(rows).items()} == {
        "rope": "worse",
        "alibi": "better",
        "t5": "undecided",
        "none": "the same",
    }


def test_what_is_surely_better_by_little_says_both(make):
    """0.994 with 0.25 % to each side, [0.9915, 0.9965], is below 1 and within 1 %: it uses what it was given."""
    rows = [*seeds(make, "rope", 1.006, 0.001), *seeds(make, "rope", 0.994, 0.001, **SAME)]
    assert words(rows) == {"rope": ("worse, within 1 %", "helps, within 1 %")}


def test_the_use_of_context_is_said_of_the_same_targets(make):
    rows = [*seeds(make, "rope", 0.8), *seeds(make, "rope", 1.3, **SAME)]
    rows += [*seeds(make, "alibi", 0.9), *seeds(make, "alibi", 1.0, **SAME)]
    assert words(rows) == {"rope": ("better", "harms"), "alibi": ("better", "not used")}


def test_a_single_seed_without_losses_behind_it_is_given_no_word(make):
    assert words([make("rope", 128, 40.0), make("rope", 512, 80.0)]) == {"rope": ("", None)}


def test_what_has_no_positions_further_on_is_not_measurable(make):
    rows = [make("learned", 128, 40.0), make("learned", 512, None), make("rope", 128, 40.0), make("rope", 512, 41.0)]
    assert words(rows)["learned"][0] == "n/a"
    assert "n/a" in render(summary_table(texts(rows)[0]))


def test_one_length_gives_no_answer(make):
    assert summary_table(texts([make("rope", 128, 40.0)])[0]) is None


def test_what_learned_nothing_is_marked_since_it_has_nothing_to_lose(make, reference):
    rows = [*seeds(make, "none", 1.0), *seeds(make, "rope", 1.1)]
    rows += [make("alibi", 128, 60.0), make("alibi", 512, 60.0), reference("bigram", 128, 50.0)]
    text = render(summary_table(texts(rows)[0]))
    assert "alibi †" in text
    assert "rope †" not in text
    assert "† undertrained" in text
    assert "No bigram" not in text
    assert "No bigram" in render(summary_table(texts(rows[:-1])[0])), "without it a mark would be missed"


def test_where_it_fails_stands_beside_what_the_context_up_to_l_is_worth(make):
    """Fails at 136, though it is read at 512 too; the second half of the context gains 45 to 40."""
    rows = [
        make("rope", length, value, **SAME) for length, value in ((64, 45.0), (128, 40.0), (136, 41.0), (512, 50.0))
    ]
    rows += [make("alibi", length, 40.0, **SAME) for length in (128, 512)]
    table = summary_table(texts(rows)[0])
    found = {record["encoding"]: (record["fails_at"], record["half"]) for record in table.records}
    assert found == {"rope": (136, pytest.approx(40 / 45)), "alibi": (None, None)}
    assert "rope (128) 0.889." in " ".join(render(table).split())
    assert "not to 512" in render(table)


def test_each_ratio_names_the_length_it_goes_to_whatever_the_other_protocol_reads(make):
    """Nonoverlapping to 512, the same targets to 1,024."""
    rows = [*seeds(make, "rope", 1.5), *seeds(make, "rope", 1.3, **SAME), make("rope", 1024, 60.0, **SAME)]
    (group,) = texts(rows)
    titles = [column.title for column in summary_table(group).columns]
    assert "512 over L [95 %]" in titles
    assert "same targets: 1,024 over L [95 %]" in titles


def test_windows_that_slide_are_no_nonoverlapping_ones(make):
    """However many lines they have: their note would be wrong of them."""
    sliding = {"protocol": "sliding", "stride": 64, "targets_digest": "slid"}
    rows = [*seeds(make, "rope", 1.5), *seeds(make, "rope", 0.5, **sliding), *seeds(make, "alibi", 0.5, **sliding)]
    assert words(rows) == {"rope": ("worse", None)}


def test_a_line_is_found_on_the_same_targets_whichever_seeds_were_read_there(make):
    rows = [*seeds(make, "rope", 1.5), *seeds(make, "rope", 1.3, **SAME)]
    rows = [row for row in rows if row.seed != 1 or row.protocol != "same-targets"]
    (record,) = summary_table(texts(rows)[0]).records
    assert (record["same_ratio"], record["same_verdict"]) == (pytest.approx(1.3), "")


def timed(encoding: str, ratio: float | None, low: float | None = None, high: float | None = None, **other):
    against = {"against": None if encoding == "none" else "none", "ratio": ratio, "ratio_low": low, "ratio_high": high}
    machine = {"device": "cpu", "processor": "a processor", "threads": 2, "model": "nano: 4 x 128"}
    return {"task": "train", "encoding": encoding, "length": 128, "tokens_per_second": 9.0} | against | machine | other


def test_what_training_costs_is_told_by_bench_alone(make):
    """The speed noted with a row is of a machine with other work. Of another length or setting nothing was timed."""
    rows = seeds(make, "none", 1.5, tokens_per_second=1000.0) + seeds(make, "rope", 1.2) + seeds(make, "alibi", 0.9)
    rows += seeds(make, "rope", 1.3, recipe="scaled", settings="encoding.embed_scale=true")
    (group,) = texts(rows)
    bench = [timed("none", None), timed("rope", 0.8, 0.75, 0.85), timed("alibi", 0.9, 0.8, 1.0, length=64)]
    table = summary_table(group, bench)
    shown = {row[0].text: row[-1].text for row in table.sections[0].rows}
    assert shown == {
        "none": "1.000",
        "rope": "0.800 [0.750, 0.850]",
        "rope, embed_scale=true": "",
        "alibi": "",
    }
    assert table.notes[-1].endswith("nano: 4 x 128; on a processor, 2 threads.")
    assert "speed" not in [column.key for column in summary_table(group).columns]


def test_of_several_sets_of_the_same_targets_the_one_that_goes_farthest_answers(make):
    rows = seeds(make, "rope", 1.3, **SAME)
    few = SAME | {"block": 1, "targets_digest": "few"}
    rows = [make("rope", length, 40.0, seed=seed, **few) for seed in (1, 2, 3) for length in (128, 256)] + rows
    assert words(rows)["rope"] == (None, "harms")


def test_its_interval_is_the_one_a_claim_is_held_with(tmp_path):
    """Of one checkpoint that of 10,000 texts drawn anew, in both."""
    gains = np.random.default_rng(0).gamma(0.3, 0.1, 40)
    rows = [
        made.alibi_row(tmp_path, 1, length, made.arrays([128 * (4 - (length == 256) * one) for one in gains]))
        for length in (128, 256)
    ]
    (record,) = summary_table(texts(rows)[0]).records
    (found,) = judge(parse([made.claim()]), rows)
    assert (record["all_low"], record["all_high"]) == found.interval
