"""How many seeds and how much text a statement needs, from what a pilot varied by.

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
    text: Estimate
    """Its error for text like the pilot's, known by as many units of that (stretches or documents) as its degrees of
    freedom, and one more"""

    def on(self, more: float) -> Estimate:
        """The same of so many times the text: its variance falls with the number of its units."""
        return Estimate(self.text.mean, self.text.error / math.sqrt(more), (self.text.df + 1) * more - 1)


@dataclass(frozen=True)
class Need:
    """What a study needs."""

    seeds: int | None
    """None: more than `MOST`"""
    text: float
    """How many times the pilot's"""
    power: float
    """that these give"""


def need(pilot: Pilot, effect: float, equal: bool = False) -> Need:
    """Seeds and text with which a true statement is supported four times in five.

    `equal`: the effect is the margin of a statement that two values are equal, and they are. The text may take half of
    the variance that is allowed: where the pilot's takes more, more is read. Raises ValueError for an effect that is
    not above 0, and for a text of which a single block is known.
    """
    if not effect > 0:
        raise ValueError(f"an effect must be above 0, not {effect}")
    if math.isinf(pilot.text.error):
        raise ValueError("one block of text tells nothing of how text differs")
    chance = power_within if equal else power

    def by_text(more: float) -> float:
        """The power where the text takes half of the variance, and is all that it is known by."""
        text = pilot.on(more)
        return chance(effect, Estimate(text.mean, text.error * math.sqrt(2), text.df))

    more = _least(by_text)
    text = pilot.on(more)

    def reached(seeds: int) -> float:
        return chance(effect, with_text(Estimate(0.0, pilot.deviation / math.sqrt(seeds), seeds - 1.0), text))

    low, high = FEWEST, FEWEST
    while reached(high) < POWER:
        if high >= MOST:
            return Need(None, more, reached(MOST))
        low, high = high + 1, min(2 * high, MOST)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= POWER else (middle + 1, high)
    return Need(high, more, reached(high))


def _least(power: Callable[[float], float]) -> float:
    """The least multiple, 1 or more, that gives `POWER`, which grows with it."""
    low, high = 1.0, 1.0
    while power(high) < POWER:
        low, high = high, 2 * high
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high
