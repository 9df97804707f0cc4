"""Standard errors against a calculator, and the paired interval against the bootstrap it stands for."""

from __future__ import annotations

import math
from dataclasses import replace

import made
import numpy as np
import pytest

from posbench import records, statistics
from posbench.errors import UserError
from posbench.records import Row
from posbench.statistics import Blocks


def test_standard_error_of_equal_blocks_is_that_of_a_mean():
    """Block means 2, 3, 4 of 128 targets each: variance 1, so the mean of three has 1/sqrt(3)."""
    error = statistics.standard_error(np.array([256.0, 384.0, 512.0]), np.array([128, 128, 128]))
    assert error == pytest.approx(1 / math.sqrt(3))


def test_standard_error_of_unequal_blocks_by_hand():
    """100 targets at 2 nats and 10 at 4: loss 24/11, residuals 200 - 218.18 = -18.18 and 40 - 21.82 = 18.18, so
    sqrt(2/1 * 2 * 18.1818^2) / 110 = 36.3636 / 110."""
    error = statistics.standard_error(np.array([200.0, 40.0]), np.array([100, 10]))
    assert error == pytest.approx(0.330579, abs=1e-6)


def test_blocks_of_one_loss_have_no_error_whatever_their_size():
    """A short block with the same loss a token is no surprise: counts vary, their ratio does not."""
    assert statistics.standard_error(np.array([256.0, 20.0]), np.array([128, 10])) == pytest.approx(0, abs=1e-12)


def test_one_block_tells_nothing_of_the_spread():
    assert statistics.standard_error(np.array([256.0]), np.array([128])) is None


def test_a_perplexity_past_the_largest_float_is_infinite():
    """The largest is 1.798 x 10^308 = e^709.78."""
    assert statistics.exp(709.0) == pytest.approx(8.2184e307, rel=1e-4)
    assert statistics.exp(710.0) == math.inf
    assert statistics.exp(-1000.0) == 0


def pair(tmp_path, nats, base, document=None, count=None):
    """Two rows of the same blocks, at lengths 1024 and 512."""
    ours, theirs = made.arrays(nats, count, document), made.arrays(base, count, document)
    return (
        records.write(tmp_path, made.row(ours, length=1024), ours),
        records.write(tmp_path, made.row(theirs), theirs),
    )


def difference(row: Row, base: Row) -> Blocks:
    return statistics.contrast([(1, row), (-1, base)])


def test_a_difference_is_of_tokens_not_of_blocks(tmp_path):
    """128 targets that lose 1 nat each and 32 that lose none: (128 * 1 + 32 * 0) / 160 = 0.8."""
    row, base = pair(tmp_path, [384.0, 64.0], [256.0, 64.0], count=[128, 32])
    assert difference(row, base).mean == pytest.approx(0.8)


def test_what_both_rows_share_cancels(tmp_path):
    """Blocks between 1 and 9 nats that all lose 0.1: the difference is certain, though either loss is not."""
    base = (128 * np.random.default_rng(0).uniform(1, 9, 60)).tolist()
    row, base_row = pair(tmp_path, [nats + 12.8 for nats in base], base)
    found = difference(row, base_row)
    assert found.mean == pytest.approx(0.1)
    assert found.estimate().error == pytest.approx(0, abs=1e-9)
    assert base_row.standard_error > 0.2


def test_a_difference_changes_sign_with_its_rows(tmp_path):
    row, base = pair(tmp_path, [300.0, 280.0, 310.0], [256.0, 270.0, 250.0])
    there, back = difference(row, base), difference(base, row)
    (low, high), (back_low, back_high) = there.interval(), back.interval()
    assert (there.mean, low, high) == pytest.approx((-back.mean, -back_high, -back_low))
    assert low < there.mean < high


def test_the_ratio_of_perplexities_is_exp_of_the_difference(tmp_path):
    """Every block gains ln 2 nats a token: half the perplexity."""
    gain = 128 * math.log(2)
    row, base = pair(tmp_path, [400.0 - gain, 500.0 - gain], [400.0, 500.0])
    found = difference(row, base)
    assert [statistics.exp(nats) for nats in (found.mean, *found.interval())] == pytest.approx([0.5] * 3)
    assert row.perplexity / base.perplexity == pytest.approx(0.5)


def test_one_block_gives_no_interval(tmp_path):
    row, base = pair(tmp_path, [300.0], [256.0])
    assert difference(row, base).interval() == (-math.inf, math.inf)


def test_the_interval_is_where_the_mean_lies_in_19_of_20_texts_drawn_anew(tmp_path):
    """Two documents of 400 and 250 blocks with alike neighbours. The mean of so many blocks drawn anew is all but
    normal, so the ends are those of Student's t."""
    rng = np.random.default_rng(0)
    size = [400, 250]
    nats = 256 + 30 * np.convolve(rng.normal(size=sum(size) + 5), np.ones(6) / 6, "valid")
    document = np.repeat([0, 1], size)
    row, base = pair(tmp_path, nats.tolist(), [256.0] * sum(size), document.tolist())
    found = difference(row, base)
    error = found.estimate().error
    assert error > 1.3 * statistics.standard_error(nats, np.full(sum(size), 128)), "neighbours are alike"
    assert statistics.paired_error(row, base) == error
    low, high = found.estimate().interval()
    assert found.interval() == pytest.approx((low, high), abs=0.06 * (high - low) / 2)


def of_documents(*means: float, targets: int = 128) -> Blocks:
    """A block of each document, and one of as many targets that lose the same."""
    document = np.repeat(np.arange(len(means)), 2)
    nats = np.repeat(np.array(means), 2) * targets
    return Blocks(document, np.full(len(document), float(targets)), nats)


def test_by_documents_it_is_the_standard_error_of_a_mean_of_them():
    """Documents that lose 2, 3 and 4 nats: deviation 1, so the mean of three has 1 / sqrt(3), known with two degrees of
    freedom; six blocks would make it sqrt(0.8 / 6)."""
    found = statistics.by_documents([of_documents(2, 3, 4)])
    assert (found.mean, found.error, found.df) == pytest.approx((3, 1 / math.sqrt(3), 2))


def test_what_a_document_makes_of_two_sets_of_targets_goes_together():
    """Of twice the same it is twice as much, and of a set and its contrary nothing, however many targets each has."""
    one, more = of_documents(2, 3, 4), of_documents(2, 3, 4, targets=32)
    contrary = of_documents(4, 3, 2, targets=32)
    assert statistics.by_documents([one, more]).error == pytest.approx(2 / math.sqrt(3))
    assert statistics.by_documents([one, contrary]).error == pytest.approx(0, abs=1e-12)
    assert statistics.by_documents([one, contrary]).mean == pytest.approx(6)


def test_two_documents_are_no_units():
    assert statistics.by_documents([of_documents(2, 3)]) is None


def test_the_mean_over_seeds_is_a_contrast_like_any_other(tmp_path):
    """Seeds that gain 12.8 and 38.4 nats in every block of 128: 0.1 and 0.3, 0.2 on average, and nothing is open."""
    base = [256.0, 300.0, 280.0]
    first, base_row = pair(tmp_path, [nats + 12.8 for nats in base], base)
    second, _ = pair(tmp_path / "second", [nats + 38.4 for nats in base], base)
    blocks = statistics.contrast([(0.5, first), (0.5, second), (-1, base_row)])
    estimate = blocks.estimate()
    assert (blocks.mean, estimate.mean) == pytest.approx((0.2, 0.2))
    assert estimate.error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("changes", [{"targets_digest": "e" * 16}, {"tokenizer_hash": "u" * 64}])
def test_rows_of_different_targets_are_not_compared(tmp_path, changes):
    """PPL-6: a difference between different texts is no effect of length."""
    row, base = pair(tmp_path, [300.0, 310.0], [256.0, 250.0])
    with pytest.raises(UserError, match="not measured on the same targets"):
        difference(replace(row, **changes), base)


def test_an_na_row_is_compared_with_nothing(tmp_path):
    row, _ = pair(tmp_path, [300.0, 310.0], [256.0, 250.0])
    with pytest.raises(UserError, match="n/a: it does not fit"):
        difference(row, made.row(reason="it does not fit"))
