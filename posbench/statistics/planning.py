"""How many seeds and how many targets a statement needs, from what a pilot varied by.

An effect is the difference, in nats a token, that is to be told from 0 (or from a margin: then the effect is how far
the truth lies from it). The pilot says by how much that difference varies from seed to seed, and how well its text
fixes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from posbench.statistics import student
from posbench.statistics.estimate import Estimate, with_text

POWER = 0.8
"""How often a true statement is to be supported."""

FEWEST, MOST = 3, 1000
"""Seeds: fewer give no interval, and of more nobody trains."""


def power(effect: float, estimate: Estimate) -> float:
    """How often the 95 % interval of an estimate with this error excludes 0 on the right side, when the truth is
    `effect` away from it: the noncentral t distribution.
    """
    if estimate.error == 0:
        return float(effect > 0)
    reach = student.quantile(0.975, estimate.df)
    return _over_errors(estimate.df, lambda s: student.NORMAL.cdf(effect / estimate.error - reach * s))


def power_within(margin: float, estimate: Estimate) -> float:
    """How often two one-sided tests at 5 % show that the truth lies within `margin` of 0, when it is 0."""
    if estimate.error == 0:
        return float(margin > 0)
    reach = student.quantile(0.95, estimate.df)
    return _over_errors(
        estimate.df, lambda s: max(0.0, 2 * student.NORMAL.cdf(margin / estimate.error - reach * s) - 1)
    )


def _over_errors(df: float, probability: Callable[[float], float]) -> float:
    """The mean of a probability over what the error turns out to be: `s` times the true one, df s^2 ~ chi-squared."""
    if df > 1e6:
        return float(probability(1.0))
    s = np.linspace(0, 1 + 10 / math.sqrt(df), 2001)[1:]
    logarithm = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2) + (df - 1) * np.log(s) - df * s * s / 2
    density = np.exp(logarithm)
    values = np.array([probability(float(one)) for one in s])
    return float((values @ density) / density.sum())


@dataclass(frozen=True)
class Pilot:
    """What is known of a difference before the study."""

    deviation: float
    """Standard deviation from seed to seed, nats a token"""
    text_error: float
    """Standard error for text like the pilot's, nats a token"""
    targets: int
    """of that text"""


@dataclass(frozen=True)
class Need:
    """What a study needs."""

    seeds: int | None
    """None: more than `MOST`"""
    targets: int | None
    """None: nothing is known of how the text varies"""
    power: float
    """that these give"""


def need(pilot: Pilot, effect: float, equal: bool = False) -> Need:
    """Seeds and targets with which a true statement is supported four times in five.

    `equal`: the effect is the margin of a statement that two values are equal, and they are. The text may take half of
    the variance that is allowed: where the pilot's takes more, more targets are read, as its variance falls with their
    number. Raises ValueError for an effect that is not above 0.
    """
    if not effect > 0:
        raise ValueError(f"an effect must be above 0, not {effect}")
    normal = student.NORMAL
    # The error that gives this power when it is known exactly: with more seeds than any study has.
    allowed = effect / (
        normal.inv_cdf(0.95) + normal.inv_cdf((1 + POWER) / 2)
        if equal
        else normal.inv_cdf(0.975) + normal.inv_cdf(POWER)
    )
    if math.isinf(pilot.text_error):  # of a single block of text
        return Need(None, None, 0.0)
    more = max(1.0, 2 * (pilot.text_error / allowed) ** 2)
    targets = math.ceil(pilot.targets * more)
    text = Estimate(0.0, pilot.text_error / math.sqrt(more))

    def reached(seeds: int) -> float:
        estimate = with_text(Estimate(0.0, pilot.deviation / math.sqrt(seeds), seeds - 1.0), text)
        return power_within(effect, estimate) if equal else power(effect, estimate)

    low, high = FEWEST, FEWEST
    while reached(high) < POWER:
        if high >= MOST:
            return Need(None, targets, reached(MOST))
        low, high = high + 1, min(2 * high, MOST)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= POWER else (middle + 1, high)
    return Need(high, targets, reached(high))
