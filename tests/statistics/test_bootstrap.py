"""Texts drawn anew: what is drawn, how it spreads, and how long the runs are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from posbench.statistics import bootstrap


def autoregression(size: int, r: float, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=size)
    for i in range(1, size):
        drawn[i] = r * drawn[i - 1] + math.sqrt(1 - r * r) * drawn[i]
    return drawn


def test_a_text_drawn_anew_has_as_many_blocks_whatever_the_runs():
    document = np.repeat([0, 1, 2], [7, 1, 12])
    for run in (1.0, 2.5, 6.0):
        drawn = bootstrap.resample(np.ones((20, 1)), document, run)
        assert drawn.shape == (bootstrap.RESAMPLES, 1)
        assert (drawn == 20).all()


def test_runs_go_round_in_their_document():
    """Document 0 holds the values 1 and 2, document 1 the values 10 and 20. Runs of 2 blocks or more hold both of their
    document alike; so sums are made of 3s and 30s alone, but for what single blocks are left over."""
    values = np.array([[1.0], [2.0], [10.0], [20.0]])
    document = np.array([0, 0, 1, 1])
    drawn = bootstrap.resample(values, document, run=1e9)[:, 0]
    assert set(drawn) == {6.0, 60.0}, "one run, twice round"


def test_columns_are_drawn_together():
    sums = np.random.default_rng(0).normal(size=(30, 1))
    drawn = bootstrap.resample(np.hstack([sums, 2 * sums, np.ones((30, 1))]), np.zeros(30, int), 3.0)
    assert drawn[:, 1] == pytest.approx(2 * drawn[:, 0])


def test_the_same_seed_draws_the_same_texts():
    sums = np.random.default_rng(0).normal(size=(30, 1))
    first, again, other = (bootstrap.resample(sums, np.zeros(30, int), 3.0, seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_variance_is_that_of_texts_drawn_block_by_block():
    """Two documents of 40 and 25 blocks with alike neighbours. Drawn as Politis and Romano write it down, 20,000 times:
    the next block follows in its document, or with probability 1/run any block does."""
    rng = np.random.default_rng(0)
    document = np.repeat([0, 1], [40, 25])
    values = np.concatenate([autoregression(40, 0.5, 1), autoregression(25, 0.5, 2)])
    values -= values.mean()
    run, begin, size = 4.0, np.where(document == 0, 0, 40), np.where(document == 0, 40, 25)
    at = rng.integers(65, size=20_000)
    sums = np.zeros(20_000)
    for _ in range(65):
        sums += values[at]
        after = begin[at] + (at - begin[at] + 1) % size[at]
        at = np.where(rng.random(20_000) < 1 / run, rng.integers(65, size=20_000), after)
    found = sums.var() / bootstrap.variance(values, document, run)
    assert found == pytest.approx(bootstrap.kept(document, run), rel=0.03)
    drawn = bootstrap.resample(values[:, None], document, run)[:, 0]
    assert drawn.var() == pytest.approx(sums.var(), rel=0.03)


def test_of_blocks_that_have_nothing_to_do_with_each_other_the_variance_is_theirs_on_average():
    """Also where documents are shorter than runs, which then come round: 64 blocks of variance 1, 64 for their sum."""
    document = np.repeat([0, 1, 2, 3], [3, 5, 16, 40])
    rng = np.random.default_rng(0)
    for run in (1.0, 4.0, 8.0):
        found = [bootstrap.variance(x - x.mean(), document, run) for x in rng.normal(size=(600, 64))]
        assert np.mean(found) == pytest.approx(64, rel=0.06)


def test_runs_of_one_block_are_the_textbooks_standard_error():
    """B / (B - 1) sum of squares: of 1, 2, 3, 4 less their mean 4/3 x 5."""
    values = np.array([-1.5, -0.5, 0.5, 1.5])
    assert bootstrap.variance(values, np.zeros(4, int), 1.0) == pytest.approx(20 / 3)


def test_the_run_length_of_an_autoregression_is_twice_that_of_the_rule():
    """2 (2 r / (1 - r^2))^(2/3) B^(1/3) = 48.5 for r = 0.5 and B = 8,000: the mean of what ten texts give."""
    document = np.repeat(np.arange(8), 1000)
    found = [
        bootstrap.run_length(np.concatenate([autoregression(1000, 0.5, 8 * n + i) for i in range(8)]), document)
        for n in range(10)
    ]
    expected = 2 * (2 * 0.5 / 0.75) ** (2 / 3) * 20
    assert np.mean(found) == pytest.approx(expected, rel=0.15)


def test_independent_blocks_are_drawn_in_the_shortest_runs():
    """700^(1/3) = 8.9."""
    found = [bootstrap.run_length(autoregression(700, 0.0, seed), np.zeros(700, int)) for seed in range(10)]
    assert np.median(found) == pytest.approx(8.879, abs=1e-3)


def test_a_run_length_does_not_look_across_documents():
    """Documents of one block each: within a document no block has a neighbour."""
    values = autoregression(600, 0.9)
    assert bootstrap.run_length(values, np.zeros(600, int)) > 20
    assert bootstrap.run_length(values, np.arange(600)) == pytest.approx(600 ** (1 / 3))


@pytest.mark.parametrize("values", [[0.0], [1.0, 1.0, 1.0], [1.0, 2.0], [1.0] * 40, [1.0, -1.0] * 20])
def test_a_run_is_at_most_a_third_of_a_text_that_has_room_for_one(values):
    blocks = len(values)
    found = bootstrap.run_length(np.array(values), np.zeros(blocks, int))
    assert blocks ** (1 / 3) <= found <= max(blocks ** (1 / 3), blocks / 3)
