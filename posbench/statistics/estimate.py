"""An estimate with its standard error, and what can be said of it: intervals, and tests against a border.

A statement of the form "below b" is tested one-sided, but with two-sided p-values (twice the tail): 0.05 or less, and
the 95 % interval lies below b, are then the same. "Within m of 0" is two one-sided tests at 5 % each, as in Schuirmann
1987, https://doi.org/10.1007/BF01068419: the same as a 90 % interval within -m ... m.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from posbench.statistics import student


@dataclass(frozen=True)
class Estimate:
    """A mean in nats a token, its standard error, and the degrees of freedom with which that error is known."""

    mean: float
    error: float
    df: float = math.inf

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Both ends of the interval that covers the true mean with probability `level`."""
        if math.isinf(self.error):
            return -math.inf, math.inf
        reach = student.quantile((1 + level) / 2, self.df) * self.error
        return self.mean - reach, self.mean + reach

    def below(self, border: float) -> float:
        """p-value against a true mean at `border` or above it."""
        return min(1.0, 2 * self._tail(self.mean - border))

    def above(self, border: float) -> float:
        """p-value against a true mean at `border` or below it."""
        return min(1.0, 2 * self._tail(border - self.mean))

    def within(self, margin: float) -> float:
        """p-value against a true mean that is `margin` or more away from 0: the larger of two one-sided tests."""
        return max(self._tail(self.mean - margin), self._tail(-margin - self.mean))

    def outside(self, margin: float) -> float:
        """p-value against a true mean that is `margin` or less away from 0."""
        return min(1.0, 2 * self._tail(margin - abs(self.mean)))

    def _tail(self, distance: float) -> float:
        """How probable a mean as low as this, or lower, was, at a true one from which it is `distance` away."""
        if self.error == 0:
            # All seeds alike: certain, but at the border itself.
            return 1.0 if distance >= 0 else 0.0
        return student.cdf(distance / self.error, self.df)


def over_seeds(values: Sequence[float]) -> Estimate:
    """The mean over n seeds, n >= 2, and its standard error s / sqrt(n), known with n - 1 degrees of freedom.

    It answers what another n seeds would give on this text. A seed gives both sides the same batches and, where they
    have them, the same initial weights; so `values` are differences, one a seed.
    """
    return Estimate(
        statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)), df=float(len(values) - 1)
    )


def with_text(seeds: Estimate, text: Estimate) -> Estimate:
    """The same mean, its error that of other seeds *and* other text like this.

    The variances add up, their degrees of freedom by Satterthwaite 1946, https://doi.org/10.2307/3002019. `text` is the
    bootstrap's error of the mean over these seeds. What chance in single blocks of single seeds adds is in both, so
    that the sum is rather too large than too small.
    """
    variances = [one.error**2 for one in (seeds, text)]
    total = sum(variances)
    if total == 0 or math.isinf(total):
        return Estimate(seeds.mean, math.sqrt(total), min(seeds.df, text.df))
    parts = sum(variance**2 / one.df for variance, one in zip(variances, (seeds, text), strict=True))
    return Estimate(seeds.mean, math.sqrt(total), total**2 / parts if parts else math.inf)
