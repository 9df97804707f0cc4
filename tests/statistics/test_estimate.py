"""Intervals and tests over seeds: by hand, and against scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from posbench.statistics import Estimate, over_seeds, with_text

SEEDS = [0.012, 0.019, 0.007, 0.016, 0.011]


def test_three_seeds_by_hand():
    """Mean 2, deviation 1: the error is 1 / sqrt(3), and of two degrees of freedom t is 4.303."""
    estimate = over_seeds([1.0, 2.0, 3.0])
    assert (estimate.mean, estimate.df) == (2, 2)
    assert estimate.interval() == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))


@pytest.mark.parametrize("level", [0.9, 0.95, 0.995])
def test_the_interval_is_scipys(level):
    found = stats.ttest_1samp(SEEDS, 0).confidence_interval(level)
    assert over_seeds(SEEDS).interval(level) == pytest.approx((found.low, found.high))


@pytest.mark.parametrize("border", [-0.01, 0.0, 0.01, 0.013, 0.02])
def test_below_and_above_a_border_are_twice_scipys_one_sided_tests(border):
    estimate = over_seeds(SEEDS)
    below = stats.ttest_1samp(SEEDS, border, alternative="less").pvalue
    above = stats.ttest_1samp(SEEDS, border, alternative="greater").pvalue
    assert estimate.below(border) == pytest.approx(min(1, 2 * below))
    assert estimate.above(border) == pytest.approx(min(1, 2 * above))


@pytest.mark.parametrize("margin", [0.001, 0.015, 0.02, 0.1])
def test_within_a_margin_is_the_larger_of_scipys_two_one_sided_tests(margin):
    lower = stats.ttest_1samp(SEEDS, -margin, alternative="greater").pvalue
    upper = stats.ttest_1samp(SEEDS, margin, alternative="less").pvalue
    assert over_seeds(SEEDS).within(margin) == pytest.approx(max(lower, upper))


@pytest.mark.parametrize("margin", [0.015, 0.0172, 0.018, 0.03])
def test_within_a_margin_at_5_percent_means_the_90_percent_interval_is(margin):
    estimate = over_seeds(SEEDS)
    low, high = estimate.interval(0.9)
    assert (estimate.within(margin) <= 0.05) == (-margin <= low and high <= margin)


@pytest.mark.parametrize("border", [0.005, 0.0073, 0.0075, 0.0187, 0.0188])
def test_a_border_at_5_percent_means_the_95_percent_interval_is_on_one_side(border):
    estimate = over_seeds(SEEDS)
    low, high = estimate.interval()
    assert (estimate.above(border) <= 0.05) == (low >= border)
    assert (estimate.below(border) <= 0.05) == (high <= border)


def test_outside_a_margin_is_beyond_the_nearer_end():
    estimate = over_seeds(SEEDS)
    assert estimate.outside(0.005) == pytest.approx(estimate.above(0.005))
    assert Estimate(-estimate.mean, estimate.error, 4).outside(0.005) == pytest.approx(estimate.above(0.005))
    assert estimate.outside(0.05) == 1


def test_seeds_that_are_all_alike_leave_no_doubt():
    estimate = over_seeds([0.25, 0.25, 0.25])
    assert estimate.interval() == (0.25, 0.25)
    assert (estimate.above(0.0), estimate.below(0.0), estimate.above(0.25)) == (0, 1, 1)


def test_with_the_text_variances_add_up_and_their_degrees_of_freedom_by_satterthwaite():
    """0.3^2 + 0.4^2 = 0.5^2; 0.25^2 / (0.09^2 / 4 + 0.16^2 / 16) = 17.2."""
    both = with_text(Estimate(1.0, 0.3, 4), Estimate(1.0, 0.4, 16))
    assert (both.mean, both.error) == pytest.approx((1, 0.5))
    assert both.df == pytest.approx(0.0625 / (0.0081 / 4 + 0.0256 / 16))


def test_degrees_of_freedom_of_two_samples_are_scipys():
    """Welch's test has the same sum of two variances of means."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=4), 2 * rng.normal(size=9)
    both = with_text(over_seeds(a.tolist()), over_seeds(b.tolist()))
    assert both.df == pytest.approx(stats.ttest_ind(a, b, equal_var=False).df)


def test_a_text_that_leaves_nothing_open_changes_nothing():
    seeds = over_seeds(SEEDS)
    both = with_text(seeds, Estimate(seeds.mean, 0.0, 12.0))
    assert (both.error, both.df) == pytest.approx((seeds.error, seeds.df))


def test_a_text_of_one_block_leaves_everything_open():
    both = with_text(over_seeds(SEEDS), Estimate(0.013, math.inf))
    assert both.interval() == (-math.inf, math.inf)
    assert both.below(1.0) == 1
