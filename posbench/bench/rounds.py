"""Timing in rounds, and what can be said of the times.

In each round every cell has one turn, in an order drawn anew, so that whatever slows the machine for a while slows all
alike and no cell always follows the same one. A ratio is taken within each round and only then summed up: what a round
has in common cancels.

Times are not normal: they have a floor and a long tail. So a time is its median with the smallest and the largest, and
the interval of a median is that of order statistics, which supposes no distribution (Hoefler & Belli 2015,
https://doi.org/10.1145/2807591.2807644, rules 5 and 6; Hahn & Meeker, Statistical Intervals, section 5.2).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from posbench.statistics.estimate import over_seeds

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Turn:
    """What one cell does when it is its turn: `call`, so many times."""

    call: Callable[[], object]
    calls: int = 1
    seconds: float = 0.0
    """About so many takes a call."""


def interleave(
    turns: Mapping[Key, Turn],
    rounds: int,
    *,
    seed: int = 0,
    settle: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    limit: float = math.inf,
    tick: Callable[[int, Mapping[Key, list[float]]], object] = lambda done, seconds: None,
    drop: Callable[[Key, Exception], object] | None = None,
) -> dict[Key, list[float]]:
    """Seconds of one call of each cell, by round.

    `settle` waits for a device that works on after a call returns. No round begins once `limit` seconds are over, but
    the first always does; `tick` is told the number of rounds done and their seconds. A cell that raises is left out
    from there on, also of what was found, and `drop` is told why; without `drop` it ends all. Ctrl-C and SIGTERM end it
    with the rounds that are whole.
    """
    rng = np.random.default_rng(seed)
    seconds: dict[Key, list[float]] = {key: [] for key in turns}
    whole, begun = 0, clock()
    try:
        while seconds and whole < rounds and (whole == 0 or clock() - begun < limit):
            keys = list(seconds)
            for key in [keys[number] for number in rng.permutation(len(keys))]:
                turn = turns[key]
                try:
                    settle()
                    start = clock()
                    for _ in range(turn.calls):
                        turn.call()
                    settle()
                    seconds[key].append((clock() - start) / turn.calls)
                except Exception as error:
                    if drop is None:
                        raise
                    del seconds[key]
                    drop(key, error)
            whole += 1
            tick(whole, seconds)
    except (KeyboardInterrupt, SystemExit):  # the latter is what a SIGTERM becomes (posbench/stop.py)
        if not whole:
            raise
    return {key: times[:whole] for key, times in seconds.items()}


@dataclass(frozen=True)
class Spread:
    """One number for each round."""

    median: float
    low: float
    """The smallest."""
    high: float
    rounds: int


def spread(values: Sequence[float]) -> Spread:
    """
    >>> spread([3.0, 1.0, 2.0, 10.0])
    Spread(median=2.5, low=1.0, high=10.0, rounds=4)
    """
    return Spread(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True)
class Ratio:
    """The median of the rounds' ratios, with its 95 % interval; None where there are too few rounds for one."""

    median: float
    low: float | None
    high: float | None
    rounds: int


def ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """`over` / `under`, round by round."""
    assert len(over) == len(under), "a ratio is of the same rounds"
    ratios = sorted(a / b for a, b in zip(over, under, strict=True))
    rank = median_rank(len(ratios))
    low, high = (ratios[rank - 1], ratios[-rank]) if rank else (None, None)
    return Ratio(statistics.median(ratios), low, high, len(ratios))


def median_rank(count: int, level: float = 0.95) -> int:
    """The rank r such that the r-th smallest and the r-th largest of `count` independent values hold the median of
    what they are drawn from with a probability of at least `level`; 0: there is none.

    Fewer than r of them lie below that median with probability sum_(i < r) C(n, i) / 2^n, and as many above: each must
    be (1 - level) / 2 at most. Six values are the fewest for 95 %; of 20, the interval is from the 6th to the 15th.

    >>> median_rank(5), median_rank(6), median_rank(20)
    (0, 1, 6)
    """
    below, rank = 0.0, 0
    while rank <= count // 2:
        below += math.comb(count, rank) / 2**count
        if below > (1 - level) / 2:
            break
        rank += 1
    return rank


def seed_ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """`over` / `under` seed by seed: the geometric mean, with the t interval of the logarithms.

    Of three seeds no order statistic is an interval; their logarithms are taken as normal. `rounds` are the seeds.

    >>> [round(x, 3) for x in (seed_ratio([1, 2, 4], [2, 2, 2]).median, seed_ratio([1, 2, 4], [2, 2, 2]).high)]
    [1.0, 5.595]
    """
    logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    if len(logs) < 2:
        return Ratio(math.exp(logs[0]), None, None, len(logs))
    mean = over_seeds(logs)
    low, high = mean.interval()
    return Ratio(math.exp(mean.mean), math.exp(low), math.exp(high), len(logs))
