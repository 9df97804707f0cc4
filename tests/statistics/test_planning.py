"""How many seeds: against scipy's noncentral t, against a simulation, and the plain cases by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from posbench.statistics import Estimate, over_seeds
from posbench.statistics.planning import MOST, POWER, Pilot, need, power, power_within

NO_ERROR = Estimate(0.0, 0.0)


@pytest.mark.parametrize("seeds", [3, 5, 20])
@pytest.mark.parametrize("effect", [0.5, 1.0, 2.0])
def test_power_is_scipys_noncentral_t(seeds, effect):
    """Deviation 1: the noncentrality is effect sqrt(n)."""
    expected = stats.nct.sf(stats.t.ppf(0.975, seeds - 1), seeds - 1, effect * math.sqrt(seeds))
    found = power(effect, Estimate(0.0, 1 / math.sqrt(seeds), seeds - 1))
    assert found == pytest.approx(expected, abs=1e-4)


def test_power_of_two_one_sided_tests_is_that_of_a_simulation():
    rng = np.random.default_rng(0)
    seen = [over_seeds(rng.normal(size=6).tolist()).within(1.5) <= 0.05 for _ in range(3000)]
    assert power_within(1.5, Estimate(0.0, 1 / math.sqrt(6), 5)) == pytest.approx(np.mean(seen), abs=0.03)


def test_seeds_are_the_fewest_that_suffice():
    """An effect of one deviation needs 10 seeds (the textbook's number for 80 % of a paired t test)."""
    found = need(Pilot(0.01, NO_ERROR), effect=0.01)
    assert (found.seeds, found.text) == (10, 1.0)
    assert found.power >= POWER
    assert power(0.01, Estimate(0.0, 0.01 / 3, 8)) < POWER, "nine"


def test_a_large_effect_needs_three_seeds_all_the_same():
    assert need(Pilot(0.01, Estimate(0.0, 0.001)), effect=1.0).seeds == 3


def test_half_the_effect_needs_about_four_times_the_seeds():
    pilot = Pilot(0.05, NO_ERROR)
    large, small = (need(pilot, effect).seeds for effect in (0.02, 0.01))
    assert small / large == pytest.approx(4, rel=0.1)


def test_a_text_that_is_too_short_is_to_be_longer():
    """An effect of 0.01 allows an error of 0.01 / 2.8016 = 0.003569, of whose variance the text may take half. An error
    of 0.01 takes 15.7 times that."""
    found = need(Pilot(0.001, Estimate(0.0, 0.01)), effect=0.01)
    assert found.text == pytest.approx(2 * (0.01 * 2.801585 / 0.01) ** 2, rel=2e-4)
    assert found.power >= POWER


def test_few_documents_are_to_be_more_of_them():
    """Three, of an error that is small enough were it known exactly, are known with 2 degrees of freedom: an interval
    reaches 4.30 errors, not 1.96."""
    small = 0.01 / 2.801585 / math.sqrt(2)
    assert need(Pilot(0.001, Estimate(0.0, small)), 0.01).text == pytest.approx(1.0, rel=2e-4)
    found = need(Pilot(0.001, Estimate(0.0, small, 2.0)), 0.01)
    df = 3 * found.text - 1
    power = stats.nct.sf(stats.t.ppf(0.975, df), df, 2.801585 * math.sqrt(found.text))
    assert power == pytest.approx(POWER, abs=1e-3)
    assert 1 < found.text < 3
    assert found.power >= POWER


def test_more_text_is_of_more_units():
    """Four times three documents are twelve: half the error, 11 degrees of freedom."""
    assert Pilot(0.0, Estimate(0.0, 0.01, 2.0)).on(4.0) == Estimate(0.0, 0.005, 11.0)


def test_what_no_number_of_seeds_shows_is_said():
    found = need(Pilot(1.0, NO_ERROR), effect=0.001)
    assert found.seeds is None
    assert found.power < POWER
    assert MOST == 1000


def test_a_claim_that_two_are_equal_needs_more_than_one_that_they_differ_by_its_margin():
    """(1.645 + 1.282)^2 against (1.960 + 0.842)^2: 1.09 times as many."""
    pilot = Pilot(0.1, Estimate(0.0, 0.001))
    assert need(pilot, 0.01, equal=True).seeds == pytest.approx(1.09 * need(pilot, 0.01).seeds, rel=0.01)


def test_no_effect_is_no_question():
    with pytest.raises(ValueError, match="above 0"):
        need(Pilot(0.01, Estimate(0.0, 0.001)), effect=0.0)
    with pytest.raises(ValueError, match="one block"):
        need(Pilot(0.01, Estimate(0.0, math.inf)), effect=0.01)
