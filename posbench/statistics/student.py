"""Student's t distribution, for any number of degrees of freedom, infinitely many among them: the normal one."""

from __future__ import annotations

import math
from statistics import NormalDist

NORMAL = NormalDist()


def cdf(t: float, df: float) -> float:
    """The probability of a value of at most `t`.

    >>> round(cdf(2.776445, 4), 6), round(cdf(1.959964, math.inf), 6)
    (0.975, 0.975)
    """
    if math.isnan(t):
        return math.nan
    if math.isinf(t):
        return float(t > 0)
    if df > 1e6:
        return NORMAL.cdf(t)
    tail = _beta(df / (df + t * t), df / 2, 0.5) / 2
    return 1 - tail if t > 0 else tail


def quantile(p: float, df: float) -> float:
    """The value that is not exceeded with probability `p`, 0 < p < 1.

    >>> [round(quantile(0.975, df), 3) for df in (1, 2, 4, math.inf)]
    [12.706, 4.303, 2.776, 1.96]
    """
    assert 0 < p < 1
    if df > 1e6:
        return NORMAL.inv_cdf(p)
    if p < 0.5:  # the lower tail is known to more digits than 1 less the upper one
        low, high = -1.0, 0.0
        while cdf(low, df) > p:
            low *= 2
        while (middle := (low + high) / 2) not in (low, high):
            low, high = (middle, high) if cdf(middle, df) < p else (low, middle)
        return high
    return -quantile(1 - p, df) if p > 0.5 else 0.0


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction.

    https://dlmf.nist.gov/8.17.E22, evaluated by Lentz's method. Where that converges slowly, I_x(a, b) =
    1 - I_(1-x)(b, a) is used.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    over, under, fraction = 1.0, 1 / (1 - (a + b) * x / (a + 1)), 1 / (1 - (a + b) * x / (a + 1))
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            over, under = 1 + term / over, 1 / (1 + term * under)
            fraction *= over * under
        if abs(over * under - 1) < 1e-15:
            break
    return math.exp(logarithm) * fraction / a
