"""Student's t against scipy, for few and many degrees of freedom, whole and not."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from posbench.statistics import student

DEGREES = [1, 2, 2.7, 4, 9.3, 30, 500.5, 40_000, math.inf]


@pytest.mark.parametrize("df", DEGREES)
@pytest.mark.parametrize("t", [-40, -2.1, -0.3, 0.0, 0.01, 1, 3, 12])
def test_the_probability_of_a_value_is_scipys(t, df):
    expected = stats.norm.cdf(t) if math.isinf(df) else stats.t.cdf(t, df)
    assert student.cdf(t, df) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("df", DEGREES)
@pytest.mark.parametrize("p", [1e-6, 0.0028, 0.025, 0.4, 0.5, 0.9, 0.975, 0.99972])
def test_the_value_of_a_probability_is_scipys(p, df):
    expected = stats.norm.ppf(p) if math.isinf(df) else stats.t.ppf(p, df)
    assert student.quantile(p, df) == pytest.approx(expected, rel=1e-8, abs=1e-12)


def test_both_ends_of_the_line():
    assert student.cdf(-math.inf, 3) == 0
    assert student.cdf(math.inf, 3) == 1
