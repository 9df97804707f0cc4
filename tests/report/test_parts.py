"""Which rows may stand side by side, and what becomes of several seeds."""

from __future__ import annotations

import math

import made
import numpy as np
import pytest

from posbench import records
from posbench.report.curves import perplexities
from posbench.report.parts import HALF, SHARED, before_target, bits_gained, how, parts
from posbench.statistics import contrast, standard_error


def test_rows_of_one_measurement_are_one_part_sorted_by_loss_at_the_longest_length(make):
    """`none` keeps the best ratio (60 to 61) and still stands last: 61 at 256 is the largest loss."""
    rows = [make("none", 128, 60.0), make("none", 256, 61.0), make("rope", 128, 40.0), make("rope", 256, 55.0)]
    (part,) = parts(rows)
    assert [line.label for line in part.lines] == ["rope", "none"]
    assert part.lengths == [128, 256]


def test_what_is_not_measured_at_the_longest_length_stands_last(make):
    rows = [make("learned", 128, 30.0), make("learned", 256, None), make("none", 128, 60.0), make("none", 256, 61.0)]
    assert [line.label for line in parts(rows)[0].lines] == ["none", "learned"]


@pytest.mark.parametrize("field", SHARED)
def test_rows_that_differ_in_anything_shared_are_never_in_one_part(make, field):
    other = {"stride": 32, "block": 32, "min_context": 4096}.get(field, "other")
    rows = [make("rope", 128, 40.0), make("rope", 256, 41.0, **{field: other})]
    assert [part.lengths for part in parts(rows)] == [[128], [256]]


def test_half_strides_are_one_part_and_a_fixed_stride_another(make):
    """Stride 64 at 128 is half of it, and is also a row of the part with stride 64; half of 257 is 128."""
    sliding = {"protocol": "sliding"}
    halves = [make("rope", length, 40.0, stride=length // 2, **sliding) for length in (128, 257)]
    fixed = [make("rope", length, 40.0, stride=64, **sliding) for length in (128, 257)]
    found = {part.shared["stride"]: part.lengths for part in parts([*halves, *fixed])}
    assert found == {HALF: [128, 257], 64: [128, 257]}
    assert [part.shared["stride"] for part in parts(halves)] == [HALF]


def test_the_same_row_twice_is_one_row(make):
    (part,) = parts([make("rope", 128, 40.0), make("rope", 128, 40.0)])
    assert part.lines[0].seeds == 1


def test_seeds_of_one_recipe_are_one_line_with_mean_and_deviation_in_nats(make):
    """Losses ln 40 and ln 44.1: mean ln 42 (40 x 44.1 = 42^2); their deviation is ln(44.1 / 40) / sqrt(2)."""
    (part,) = parts([make("rope", 128, 40.0, seed=1), make("rope", 128, 44.1, seed=2)])
    (line,) = part.lines
    value = line.perplexity(128)
    assert (line.seeds, value.seeds) == (2, 2)
    assert value.value == pytest.approx(42.0)
    assert value.error == pytest.approx(42.0 * math.log(44.1 / 40) / math.sqrt(2))


def test_the_ratio_over_seeds_pairs_each_seed_with_itself(make):
    """Both seeds grow by 1.1 and 1.21: geometric mean of the ratios 1.1 * sqrt(1.1)."""
    rows = [make("rope", 128, 40.0, seed=1), make("rope", 256, 44.0, seed=1)]
    rows += [make("rope", 128, 50.0, seed=2), make("rope", 256, 60.5, seed=2), make("rope", 256, 99.0, seed=3)]
    assert parts(rows)[0].lines[0].ratio(256).value == pytest.approx(1.1 * math.sqrt(1.1))


def test_runs_of_one_encoding_that_are_no_seeds_of_each_other_say_how_they_differ(make):
    short = make("rope", 128, 50.0, recipe="r1", train_tokens=1_000_000)
    long = make("rope", 128, 40.0, recipe="r2", train_tokens=3_500_000)
    assert [line.label for line in parts([short, long])[0].lines] == [
        "rope, 3,500,000 tokens",
        "rope, 1,000,000 tokens",
    ]
    other = make("rope", 128, 45.0, recipe="r3", run_hash="0badcafe")
    assert [line.label for line in parts([short, other])[0].lines] == ["rope, 0badcafe", "rope, r1s1"]


def test_a_setting_that_one_of_them_has_is_its_name_and_what_all_have_is_not(make):
    """The shipped one keeps the bare name, under which claims and papers know it."""
    both = "optim.lr=0.01"
    plain = make("rope", 128, 40.0, recipe="r1", settings=both)
    scaled = make("rope", 128, 50.0, recipe="r2", settings=f"encoding.embed_scale=true {both}")
    assert [line.label for line in parts([plain, scaled])[0].lines] == ["rope", "rope, embed_scale=true"]


def test_models_of_different_size_say_so_in_their_label(make):
    rows = [make("alibi", 128, 40.0), make("alibi", 128, 30.0, model="micro", heads=8, recipe="m")]
    assert [line.label for line in parts(rows)[0].lines] == ["alibi (micro, 8 x 32)", "alibi (nano, 4 x 32)"]


def test_a_run_no_better_than_the_bigram_at_its_own_length_is_undertrained(make, reference):
    rows = [make("rope", 128, 67.9), make("none", 128, 68.0), reference("bigram", 128, 68.0)]
    assert {line.label: line.undertrained for line in parts(rows)[0].lines} == {"rope": False, "none": True}


def test_a_reference_stands_apart_from_the_lines(make, reference):
    (part,) = parts([make("rope", 128, 40.0), reference("unigram", 128, 300.0), reference("bigram", 128, 68.0)])
    assert [line.label for line in part.lines] == ["rope"]
    assert [line.label for line in part.references] == ["bigram", "unigram"]


def test_lengths_are_those_of_runs_and_of_references_where_there_is_nothing_else(make, reference):
    bigram = [reference("bigram", length, 68.0) for length in (128, 256)]
    (beside,) = parts([make("rope", 128, 40.0), *bigram])
    assert (beside.lengths, list(beside.references[0].rows)) == ([128], [128])
    assert [part.lengths for part in parts(bigram)] == [[128, 256]]


def test_the_uncertainty_of_one_seed_is_that_of_its_band_in_a_figure(make, tmp_path):
    """Blocks that go up and down slowly know the mean less well than as many independent ones would."""
    behind = made.arrays((400 + 100 * np.sin(np.arange(64) / 8)).tolist())
    loss = float(behind.nats.sum() / behind.count.sum())
    row = make("rope", 128, math.exp(loss), standard_error=0.01, targets=64 * 128)
    row = records.write(tmp_path, row, behind)
    (line,) = parts([row])[0].lines
    estimate = contrast([(1, row)]).estimate()
    assert line.loss(128).error == estimate.error
    assert line.loss(128).error > 1.5 * standard_error(behind.nats, behind.count)
    (curve,) = perplexities([line])
    assert (curve.points[0].low, curve.points[0].high) == pytest.approx(tuple(map(math.exp, estimate.interval())))


def test_bits_are_gained_seed_by_seed(make):
    """Bits a byte are loss / 2 here. Seed 1 gains ln(60 / 40) / 2 = 0.203 over its own `none`, whatever the others of
    that are; of two pairs the deviation is over the seeds."""
    rows = [make("none", 128, value, seed=seed) for seed, value in ((1, 60.0), (2, 66.0), (3, 90.0))]
    fox, none = parts([*rows, make("fox", 128, 40.0)])[0].lines
    found = bits_gained(fox, none, 128)
    assert (found.value, found.error, found.seeds) == (pytest.approx(math.log(60 / 40) / 2), None, 1)
    fox, none = parts([*rows, make("fox", 128, 40.0), make("fox", 128, 40.0, seed=2)])[0].lines
    assert bits_gained(fox, none, 128).error == pytest.approx(math.log(66 / 60) / 2 / math.sqrt(2))


def test_a_line_is_the_same_in_two_parts_though_its_first_seeds_differ(make):
    rows = [make("rope", 128, 40.0, seed=seed) for seed in (1, 2)]
    flat, slid = parts([*rows, make("rope", 128, 40.0, seed=2, protocol="sliding", stride=64)])
    assert flat.lines[0].one.run_hash != slid.lines[0].one.run_hash
    assert flat.lines[0].key == slid.lines[0].key


def test_the_ratio_of_one_seed_carries_the_paired_interval_of_the_text(make, tmp_path):
    """Every block loses the same 0.1 nats a token: the ratio is exp(0.1) and its error 0, though the blocks differ."""
    count = np.full(16, 128, np.int16)
    base = count * np.linspace(3, 4, 16)

    def keep(length, nats):
        arrays = records.Arrays(
            document=np.repeat(np.arange(2), 8).astype(np.int32),
            first=(np.arange(16) * 128).astype(np.int64),
            count=count,
            bytes=(count * 3).astype(np.int32),
            nats=nats,
            position=np.array([128], np.int32),
            position_count=np.array([16 * 128]),
            position_nats=np.array([nats.sum()]),
        )
        row = make("rope", length, math.exp(nats.sum() / count.sum()), targets=int(count.sum()))
        return records.write(tmp_path, row, arrays)

    ratio = parts([keep(128, base), keep(256, base + 0.1 * count)])[0].lines[0].ratio(256)
    assert ratio.value == pytest.approx(math.exp(0.1))
    assert ratio.error == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "a target sees the tokens before it in its own window, from one to all of them."),
        ({"stride": 64}, "Windows move on by 64 tokens: a target sees at least length - 64 + 1 tokens of text"),
        ({"block": 32, "min_context": 4096}, "4,096 tokens or more into their document: of each block of 32 the first"),
        ({"block": 1, "min_context": 512}, "512 tokens or more into their document: each sees as many tokens as"),
    ],
)
def test_what_a_target_had_before_it_is_said_in_a_sentence(make, settings, said):
    (part,) = parts([make("rope", 128, 40.0, **settings)])
    assert said in before_target(part)


def test_by_half_of_each_length_a_target_sees_half_a_window(make):
    (part,) = parts([make("rope", n, 40.0, protocol="sliding", stride=n // 2) for n in (128, 256)])
    assert "by half their length: a target sees at least half a window of text" in before_target(part)


def test_settings_have_their_thousands_separated(make):
    (part,) = parts([make("rope", 128, 40.0, protocol="same-targets", block=32, min_context=4096)])
    assert how(part) == "same-targets, block 32, minimal context 4,096"
