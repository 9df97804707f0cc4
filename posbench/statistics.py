"""How sure a number is, from the blocks of text behind it. Everything is in nats a token.

Which interval answers what:

    how well one row's loss is known on text like this                 `standard_error`: blocks taken as independent
    one checkpoint, two lengths, protocols or extensions               `difference`, `ratio`: the same blocks, paired

Both hold for one checkpoint: they say how the number would move with other text, not with another seed. Which of two
*encodings* is better is a question about training runs, and needs seeds: of two single runs `difference` tells only
that these two checkpoints differ on this text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from posbench import records
from posbench.errors import UserError
from posbench.records import Row

RUN = 8
"""Mean length of the runs of blocks that the bootstrap keeps together: 1,024 targets."""


def exp(nats: float) -> float:
    """The perplexity of a loss, or the ratio of two for their difference; `inf` past the largest float, e^709.

    >>> exp(1000.0)
    inf
    """
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def standard_error(nats: np.ndarray, count: np.ndarray) -> float | None:
    """Standard error of sum(nats) / sum(count), the loss of a token, over B independent blocks; None for B < 2.

    A block is 128 consecutive targets and shorter at a document's end, so both sums vary: this is the ratio estimator
    (Cochran, Sampling Techniques, 3rd edition, section 2.11, no finite population),
    sqrt(B / (B - 1) sum_b (nats_b - loss count_b)^2) / sum(count).
    """
    blocks, total = len(count), int(count.sum())
    if blocks < 2:
        return None
    residual = nats - nats.sum() / total * count
    return math.sqrt(blocks / (blocks - 1) * float(residual @ residual)) / total


@dataclass(frozen=True)
class Difference:
    """Nats a token of one row less those of another, on the same targets."""

    mean: float
    standard_error: float
    low: float
    """Lower end of the 95 % interval."""
    high: float


def difference(row: Row, base: Row) -> Difference:
    """Loss of `row` less loss of `base`, with the interval of the stationary bootstrap within documents.

    Blocks are resampled in runs of `RUN` on average, wrapped round within their document, because neighbouring blocks
    are alike; documents of fewer blocks are joined with the next. The variance of that bootstrap is known exactly
    (Politis & Romano 1994, https://doi.org/10.1080/01621459.1994.10476870, lemma 1), so nothing is drawn: the interval
    is mean -+ 1.96 standard errors. It holds for these two checkpoints on this text.

    Raises `UserError` when the rows are not of the same targets, or one of them is n/a.
    """
    ours, theirs = _same_blocks(row, base)
    count = ours.count.astype(np.float64)
    nats = ours.nats - theirs.nats
    mean = float(nats.sum() / count.sum())
    residual = nats - mean * count
    variance = sum(_bootstrap_variance(residual[a:b]) for a, b in _strata(ours.document))
    # One block tells nothing of how blocks differ.
    error = math.sqrt(variance) / float(count.sum()) if len(count) > 1 else math.inf
    reach = NormalDist().inv_cdf(0.975) * error
    return Difference(mean, error, mean - reach, mean + reach)


@dataclass(frozen=True)
class Ratio:
    """Perplexity of one row over that of another, on the same targets; below 1, the first is better."""

    value: float
    low: float
    """Lower end of the 95 % interval."""
    high: float


def ratio(row: Row, base: Row) -> Ratio:
    """Perplexity of `row` over that of `base`: exp of their paired `difference`, and of the ends of its interval."""
    found = difference(row, base)
    return Ratio(exp(found.mean), exp(found.low), exp(found.high))


def _same_blocks(row: Row, base: Row) -> tuple[records.Arrays, records.Arrays]:
    for one in (row, base):
        if one.status != "ok":
            raise UserError(f"{one.run} at {one.length} is n/a: {one.reason}", "There is nothing to compare.")
    if (row.targets_digest, row.tokenizer_hash) != (base.targets_digest, base.tokenizer_hash):
        raise UserError(
            f"{row.run} at {row.length} and {base.run} at {base.length} were not measured on the same targets.",
            "Compare rows of equal corpus, tokenizer, split and targets.",
        )
    ours, theirs = records.arrays(row), records.arrays(base)
    assert ours is not None
    assert theirs is not None
    assert np.array_equal(ours.first, theirs.first)
    assert np.array_equal(ours.count, theirs.count)
    return ours, theirs


def _strata(document: np.ndarray) -> list[tuple[int, int]]:
    """Blocks [a, b) resampled among themselves: documents, short ones joined until there are `RUN` blocks.

    >>> _strata(np.array([0] * 9 + [1] * 3 + [2] * 6 + [3] * 2))
    [(0, 9), (9, 20)]
    """
    ends = [*(np.flatnonzero(np.diff(document)) + 1).tolist(), len(document)]
    strata: list[tuple[int, int]] = []
    start = 0
    for end in ends:
        if end - start >= RUN:
            strata.append((start, end))
            start = end
    if start < len(document):
        # What is left over at the end is too short alone, and joins what came before.
        before = strata.pop()[0] if strata else 0
        strata.append((before, len(document)))
    return strata


def _bootstrap_variance(x: np.ndarray) -> float:
    """Variance of the sum of n values resampled in wrapped runs of geometric length with mean `RUN`.

    n [C(0) + 2 sum_i (1 - i/n) (1 - 1/RUN)^i C(i)], C the circular autocovariance.
    """
    n = len(x)
    power = np.abs(np.fft.rfft(x - x.mean())) ** 2
    covariance = np.fft.irfft(power, n) / n
    lag = np.arange(n)
    weight = (1 - lag / n) * (1 - 1 / RUN) ** lag
    # Never negative but by rounding, where all values are equal.
    return max(0.0, float(n * (2 * (weight @ covariance) - covariance[0])))
