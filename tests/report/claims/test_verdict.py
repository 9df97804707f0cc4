"""A claim is held against rows of the same targets; only three seeds or more support or contradict it."""

from __future__ import annotations

import math
from typing import Any

import made
import numpy as np
import pytest
from scipy import stats

from posbench import records
from posbench.report.claims import judge, parse
from posbench.report.claims.comparison import Comparison
from posbench.statistics import Blocks


def claim(**changes: Any) -> dict[str, Any]:
    """ALiBi trained at 128 is at 256 not above its value at 128, by at most 1 %."""
    right = {"encoding": "alibi", "train_length": 128, "at": 128}
    own = {"relation": "not-above", "right": right} | changes
    return made.claim(**({} if own["relation"] == "less" else {"margin": 0.01}) | own)


def verdict(make, left: float | None, right: float, **changes: Any) -> str:
    (found,) = judge(parse([claim(**changes)]), [make("alibi", 256, left), make("alibi", 128, right)])
    return found.text


def over_seeds(make, ratios: list[float], **changes: Any):
    """The verdict on seeds whose perplexity at 256 is so many times the 50 at 128."""
    rows = [make("alibi", 128, 50.0, seed=seed) for seed, _ in enumerate(ratios)]
    rows += [make("alibi", 256, 50.0 * ratio, seed=seed) for seed, ratio in enumerate(ratios)]
    (found,) = judge(parse([claim(**changes)]), rows)
    return found


# One seed or two ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("relation", "left", "expected"),
    [
        ("less", 49.99, "seen"),
        ("less", 50.01, "not seen"),
        ("not-above", 50.49, "seen"),
        ("not-above", 50.51, "not seen"),
        ("not-above", 10.0, "seen"),
        ("equal", 50.49, "seen"),
        ("equal", 50.51, "not seen"),
        # The margin is one of ratios: 1 / 1.01 is as far from 1 as 1.01.
        ("equal", 49.51, "seen"),
        ("equal", 49.49, "not seen"),
    ],
)
def test_a_relation_is_seen_or_not_by_the_two_values(make, relation, left, expected):
    """Right 50, margin 1 %: the border is 50.5, and 50 / 1.01 = 49.505 below."""
    assert verdict(make, left, 50.0, relation=relation) == expected


def test_losses_far_apart_are_compared_all_the_same(make):
    """e^800 times as much, and as little: neither ratio is a float."""
    rows = [make("alibi", 256, 1.0, loss=801.0), make("alibi", 128, 1.0, loss=1.0)]
    swapped = [make("alibi", 256, 1.0, loss=1.0), make("alibi", 128, 1.0, loss=801.0)]
    found = [judge(parse([claim(relation="less")]), some)[0] for some in (rows, swapped)]
    assert [one.text for one in found] == ["not seen", "seen"]
    assert [one.ratio.value for one in found] == [math.inf, 0]


def test_of_two_seeds_both_have_to_show_it(make):
    """Their mean is below 1.01, one of them is not."""
    assert over_seeds(make, [1.0, 1.005]).text == "seen"
    assert over_seeds(make, [0.9, 1.02]).text == "not seen"


def test_two_single_runs_have_no_interval(make):
    other = claim(
        left={"encoding": "alibi", "train_length": 128, "at": 256},
        relation="less",
        right={"encoding": "sinusoidal", "train_length": 256, "at": "1L"},
        paper={"table": "Table 5", "left": ["alibi", 128, 256], "right": ["sinusoidal", 256, 256]},
    )
    rows = [make("alibi", 256, 45.0), make("sinusoidal", 256, 44.0, train_length=256)]
    (found,) = judge(parse([other]), rows)
    assert (found.text, found.ratio.error, found.interval) == ("not seen", None, None)


def stored(folder, length: int, gain: list[float], seed: int = 1, **changes: Any) -> records.Row:
    """A row of ALiBi trained at 128 whose blocks lose 4 nats a token, each less its gain."""
    arrays = made.arrays([128 * (4 - one) for one in gain])
    own = {"encoding": "alibi", "train_length": 128, "seed": seed, "recipe": "a", "run_hash": f"{seed}"}
    return records.write(folder, made.row(arrays, length=length, **own | changes), arrays)


def test_one_checkpoint_at_two_lengths_has_the_interval_of_its_text(tmp_path):
    """0.05 and 0.15 nats in turn, 40 blocks: the mean is 0.1, and no text drawn anew has less than 0.05."""
    rows = [stored(tmp_path, 128, [0.0] * 40), stored(tmp_path, 256, [0.05, 0.15] * 20)]
    (found,) = judge(parse([claim(relation="less")]), rows)
    low, high = found.interval
    assert found.text == "seen"
    assert found.ratio.value == pytest.approx(math.exp(-0.1))
    assert math.exp(-0.15) < low < math.exp(-0.1) < high < math.exp(-0.05)


@pytest.mark.parametrize(
    ("relation", "nats", "expected"),
    [
        ("less", [0.3, -0.1], "undecided"),  # 0.1 on average, and texts drawn anew that say the contrary
        ("less", [-0.09, -0.11], "not seen"),
        ("equal", [0.0001, -0.0001], "seen"),  # all of them within 1 %
        ("equal", [0.09, 0.11], "not seen"),
        ("equal", [0.3, -0.3], "undecided"),  # on both sides of the margin
    ],
)
def test_what_its_own_text_leaves_open_is_neither_seen_nor_not_seen(tmp_path, relation, nats, expected):
    """One checkpoint at two lengths: 40 blocks with these gains in turn, in tens, so that neighbours are alike."""
    gains = [gain for _ in range(2) for gain in nats for _ in range(10)]
    rows = [stored(tmp_path, 128, [0.0] * 40), stored(tmp_path, 256, gains)]
    (found,) = judge(parse([claim(relation=relation)]), rows)
    assert found.text == expected


# Three seeds or more --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("relation", "ratios", "expected"),
    [
        ("less", [0.97, 0.975, 0.98], "supported"),
        ("less", [1.03, 1.025, 1.02], "contradicted"),
        ("less", [0.95, 0.99, 1.05], "undecided"),
        # Above 1, and within the margin for certain.
        ("not-above", [1.004, 1.005, 1.006], "supported"),
        ("not-above", [1.03, 1.025, 1.02], "contradicted"),
        ("not-above", [1.0, 1.01, 1.02], "undecided"),
        ("equal", [1.001, 1.0, 0.999], "supported"),
        ("equal", [1.03, 1.025, 1.02], "contradicted"),
        ("equal", [0.97, 0.975, 0.98], "contradicted"),
        ("equal", [0.98, 1.0, 1.02], "undecided"),
    ],
)
def test_three_seeds_support_contradict_or_leave_open(make, relation, ratios, expected):
    assert over_seeds(make, ratios, relation=relation).text == expected


def test_the_p_value_and_the_interval_are_those_of_scipys_paired_test(make):
    ratios = [0.97, 0.99, 0.985, 0.98]
    found = over_seeds(make, ratios, relation="less")
    logs = np.log(ratios)
    test = stats.ttest_1samp(logs, 0)
    assert found.p == pytest.approx(test.pvalue)
    assert np.log(found.interval) == pytest.approx(list(test.confidence_interval()))
    assert found.ratio.value == pytest.approx(math.exp(logs.mean()))


def test_equal_is_two_one_sided_tests(make):
    ratios = [1.004, 1.001, 0.999, 1.003]
    logs, margin = np.log(ratios), math.log(1.01)
    upper = stats.ttest_1samp(logs, margin, alternative="less").pvalue
    lower = stats.ttest_1samp(logs, -margin, alternative="greater").pvalue
    assert over_seeds(make, ratios, relation="equal").p == pytest.approx(max(upper, lower))


def test_only_seeds_that_both_sides_have_are_compared(make):
    rows = [make("alibi", 128, 50.0, seed=seed) for seed in (1, 2, 3)]
    rows += [make("alibi", 256, 45.0, seed=seed) for seed in (2, 3, 4)]
    (found,) = judge(parse([claim()]), rows)
    assert (found.seeds, found.text) == (2, "seen")


def test_a_text_that_leaves_it_open_leaves_the_verdict_open(tmp_path):
    """Five seeds that all gain 0.01 within 0.001, but in one block of twenty: other text may have none like it."""

    def rows(folder, gain):
        noise = np.random.default_rng(0).normal(0, 0.001, 5)
        return [
            stored(folder, length, [extra + (length == 256) * one for one in gain], seed)
            for seed, extra in enumerate(noise)
            for length in (128, 256)
        ]

    for name, gain, expected in (("even", [0.01] * 20, "supported"), ("odd", [0.2, *[0.0] * 19], "undecided")):
        (found,) = judge(parse([claim(relation="less")]), rows(tmp_path / name, gain))
        assert found.text == expected
        low, high = found.comparison.over_seeds.interval()
        assert low < high < 0, "the seeds alone would have it"


def test_documents_that_are_unlike_each_other_widen_what_is_said_of_other_text():
    """Five documents of 40 blocks each, which gain 1, 2, 3, 4 and 5 hundredths a token throughout: as five values their
    mean 0.03 is known to 0.0158 / sqrt(5) = 0.00707, with four degrees of freedom; as 200 blocks, neighbours alike, to
    less. Of one document it is passages alone."""
    document = np.repeat(np.arange(5), 40)
    noise = np.random.default_rng(0).normal(0, 0.005, 200)
    nats = 128 * (0.01 * (document + 1) + noise - np.repeat(noise.reshape(5, 40).mean(1), 40))
    blocks = Blocks(document, np.full(200, 128.0), nats)
    found = Comparison([blocks.mean] * 3, [[blocks] * 3])
    assert (found.text.error, found.text.df) == (pytest.approx(0.00707, abs=1e-5), 4)
    assert found.passages.error < found.text.error
    one = Blocks(np.zeros(200, int), blocks.count, blocks.nats)
    alone = Comparison([one.mean] * 3, [[one] * 3])
    assert alone.text == alone.passages


def test_primary_claims_are_corrected_and_the_others_are_not(make):
    """A p-value below 0.05 and above a third of it: enough for one, and not for three."""
    ratios = [0.98, 0.985, 0.99, 0.993]
    rows = [make("alibi", 128, 50.0, seed=seed) for seed, _ in enumerate(ratios)]
    rows += [make("alibi", 256, 50.0 * ratio, seed=seed) for seed, ratio in enumerate(ratios)]
    three = [claim(name=name, relation="less", primary=name != "d") for name in "abcd"]
    p = float(stats.ttest_1samp(np.log(ratios), 0).pvalue)
    assert 0.05 / 3 < p < 0.05
    found = judge(parse(three), rows)
    assert [one.text for one in found] == ["undecided"] * 3 + ["supported"]
    assert [one.corrected for one in found] == pytest.approx([3 * p, 3 * p, 3 * p, None])


def test_a_primary_claim_that_was_not_measured_counts_among_them(make):
    """Otherwise a study could be made surer by leaving something out."""
    rows = [make("alibi", n, 50.0 - 0.01 * n * (1 + s / 10), seed=s) for s in range(3) for n in (128, 256)]
    absent = claim(name="absent", primary=True, protocol="sliding")
    found = judge(parse([claim(relation="less", primary=True), absent]), rows)
    assert [one.text for one in found] == ["supported", "not measured"]
    assert found[0].corrected == pytest.approx(2 * found[0].p)


# Gaps and extensions --------------------------------------------------------------------------------------------------


def gap_claim() -> dict[str, Any]:
    return claim(
        left={"encoding": "alibi", "train_length": 128, "at": "4L", "minus": {"protocol": "sliding"}},
        relation="less",
        right={"at": "1L", "minus": {"protocol": "sliding"}},
        paper={
            "table": "Table 5",
            "minus": "Table 15",
            "left": ["alibi", 512, 2048],
            "right": ["alibi", 512, 512],
        },
    )


def test_a_gap_is_one_protocol_less_another(make):
    """At 128 60 against 50, at 512 44 against 40: ratios 1.2 and 1.1."""
    rows = [make("alibi", 128, 60.0), make("alibi", 512, 44.0)]
    rows += [make("alibi", 128, 50.0, protocol="sliding", stride=32)]
    rows += [make("alibi", 512, 40.0, protocol="sliding", stride=32)]
    (found,) = judge(parse([gap_claim()]), rows)
    assert found.text == "seen"
    assert (found.left.value, found.right.value) == pytest.approx((1.1, 1.2))
    assert found.ratio.value == pytest.approx(1.1 / 1.2)


def test_of_several_strides_the_smallest_is_taken(make):
    rows = [make("alibi", n, 60.0) for n in (128, 512)]
    rows += [make("alibi", n, 50.0, protocol="sliding", stride=64) for n in (128, 512)]
    rows += [make("alibi", n, p, protocol="sliding", stride=8) for n, p in ((128, 40.0), (512, 30.0))]
    (found,) = judge(parse([gap_claim()]), rows)
    assert (found.left.value, found.right.value) == pytest.approx((2.0, 1.5))


def test_a_gap_without_its_second_protocol_is_not_measured(make):
    (found,) = judge(parse([gap_claim()]), [make("alibi", n, 60.0) for n in (128, 512)])
    assert (found.text, found.reason) == ("not measured", "nothing is read with sliding")


def test_an_extension_is_a_side_of_its_own(make):
    """Held against the encoding as it was trained, unless the side names one."""
    ntk = '{"class": "posbench.extensions.ntk.Ntk", "name": "ntk"}'
    one = claim(
        left={"encoding": "rope", "train_length": 128, "at": "2L", "extension": "ntk"},
        right={"at": "2L"},
        relation="less",
        paper={"paper": "wang", "table": "Table 2", "left": ["rope + ntk", 2048, 4096], "right": ["rope", 2048, 4096]},
    )
    rows = [make("rope", 256, 60.0), make("rope", 256, 50.0, extension=ntk)]
    (found,) = judge(parse([one]), rows)
    assert (found.text, found.left.value, found.right.value) == ("seen", pytest.approx(50), pytest.approx(60))
    (absent,) = judge(parse([one]), rows[:1])
    assert absent.reason == "there is no row of rope + ntk trained at 128 and read at 256 on the same targets"


# Not measured ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("alibi", 128, 50.0, {})], "there is no row of alibi trained at 128 and read at 256 on the same targets"),
        ([("alibi", 128, 50.0, {}), ("alibi", 256, None, {"reason": "too long"})], "read at 256: too long"),
        ([("alibi", 128, 50.0, {}), ("alibi", 256, 45.0, {"targets_digest": "o"})], "on the same targets"),
        ([("alibi", 128, 50.0, {"seed": 1}), ("alibi", 256, 45.0, {"seed": 2})], "no seed in common"),
        ([("alibi", 128, 50.0, {"protocol": "sliding"})], "nothing is read with nonoverlapping"),
        (
            [("alibi", n, 50.0, {"recipe": r, "train_tokens": t}) for n in (128, 256) for r, t in (("a", 1), ("b", 2))],
            "which alibi trained at 128 is meant",
        ),
        ([], "nothing is read with nonoverlapping"),
    ],
)
def test_what_no_pair_of_rows_answers_is_not_measured_with_the_reason(make, rows, reason):
    found = judge(parse([claim()]), [make(name, length, value, **other) for name, length, value, other in rows])
    assert found[0].text == "not measured"
    assert reason in found[0].reason


def exact_gap() -> dict[str, Any]:
    """Nonoverlapping windows less windows in which every target sees all of the length."""
    entry = gap_claim()
    for side in ("left", "right"):
        entry[side] = entry[side] | {"minus": {"protocol": "same-targets", "block": 1}}
    return entry


EXACT = {"protocol": "same-targets", "min_context": 512, "targets_digest": "few", "targets": 512}


def test_the_protocols_of_a_gap_may_have_targets_of_their_own(make):
    """60 and 44 against 50 and 40 of other targets, as if they were of the same. Where the larger block was read as
    well, the claim says that it means the smaller."""
    rows = [make("alibi", 128, 60.0), make("alibi", 512, 44.0)]
    rows += [make("alibi", n, p, block=1, **EXACT) for n, p in ((128, 50.0), (512, 40.0))]
    rows += [make("alibi", n, p, block=32, **EXACT | {"targets_digest": "many"}) for n, p in ((128, 1.0), (512, 9.0))]
    (found,) = judge(parse([exact_gap()]), rows)
    assert (found.text, found.ratio.value) == ("seen", pytest.approx(1.1 / 1.2))


def test_either_protocol_of_a_gap_is_held_against_itself(make):
    """At 128 the one, at 512 the other set of targets: there is nothing to take off from what."""
    rows = [make("alibi", 128, 60.0), make("alibi", 512, 44.0, targets_digest="other")]
    rows += [make("alibi", n, 50.0, block=1, **EXACT) for n in (128, 512)]
    (found,) = judge(parse([exact_gap()]), rows)
    assert (found.text, found.reason) == (
        "not measured",
        "there is no row of alibi trained at 128 and read at 512 on the same targets",
    )


def test_the_errors_of_two_sets_of_targets_add_up(tmp_path):
    """Of one checkpoint: no claim is surer than the less sure of its two texts."""

    def row(length: int, nats: list[float], **own: Any) -> records.Row:
        return stored(tmp_path, length, nats, setup=None, **own)

    flat = [row(128, [0.0] * 40), row(512, [0.2, 0.1] * 20)]
    own = EXACT | {"block": 1, "targets": 12 * 128}
    exact = [row(128, [0.0] * 12, **own), row(512, [0.1, -0.1] * 6, **own)]
    (found,) = judge(parse([exact_gap()]), [*flat, *exact])
    large, small = (
        judge(parse([one]), rows)[0] for one, rows in ((claim(left=SHORT, right=LONG), flat), (BLOCK, exact))
    )
    assert found.comparison.mean == pytest.approx(-0.15)
    assert found.comparison.text.error == pytest.approx(large.comparison.text.error + small.comparison.text.error)
    assert found.comparison.text.df == small.comparison.text.df


SHORT, LONG = ({"encoding": "alibi", "train_length": 128, "at": at} for at in (128, 512))
BLOCK = claim(left=SHORT | {"block": 1}, right={"at": 512}, protocol="same-targets")


def test_an_encoding_is_meant_as_it_is_shipped(make):
    rows = [make("alibi", n, p, settings="", recipe="a") for n, p in ((128, 50.0), (256, 40.0))]
    rows += [make("alibi", n, 9.0, settings="encoding.slopes=[1]", recipe="b") for n in (128, 256)]
    (found,) = judge(parse([claim(relation="less")]), rows)
    assert (found.text, found.left.value) == ("seen", 40.0)


def test_of_several_sets_of_targets_the_largest_counts(make):
    """A study reads few targets first, and all of them in the end."""
    rows = [make("alibi", n, p, targets_digest="few", targets=512) for n, p in ((128, 50.0), (256, 60.0))]
    rows += [make("alibi", n, p) for n, p in ((128, 50.0), (256, 40.0))]
    (found,) = judge(parse([claim(relation="less")]), rows)
    assert (found.text, found.left.value) == ("seen", 40.0)
