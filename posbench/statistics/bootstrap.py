"""The stationary bootstrap within documents (Politis & Romano 1994, https://doi.org/10.1080/01621459.1994.10476870).

Neighbouring blocks of text are alike, so a text is drawn anew in runs of blocks: a run begins at any block of the
split, is of geometric length, and goes on at the beginning of its document when it reaches the end. A text of as many
blocks as there are is drawn that way, 10,000 times.

It says what other passages of documents like these would give. That a whole document may be unlike the others it sees
only as far as its runs go: `blocks.by_documents` has them as units instead, and `scripts/coverage_check.py` shows both.

Shapes: B blocks, in the order of the text; C sums of each of them (of losses, of targets).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

RESAMPLES = 10_000


def run_length(values: np.ndarray, document: np.ndarray) -> float:
    """Mean length of a run, in blocks: for `values` (B,) with so much alike neighbours in `document` (B,).

    Twice the rule of Politis & White 2004 (https://doi.org/10.1081/ETC-120028836) for the stationary bootstrap, as
    corrected by Patton, Politis & White 2009 (https://doi.org/10.1080/07474930802459016): (G / g)^(2/3) B^(1/3), with
    g = sum_k w_k R(k) and G = sum_k w_k |k| R(k). R(k) is the autocovariance at lag k, here of pairs in one document;
    the weights w are 1 up to half of the bandwidth and fall to 0 at all of it, and half of the bandwidth is the last
    lag before five or more of no significance. Of a first-order autoregression with correlation r the rule is
    (2 r / (1 - r^2))^(2/3) B^(1/3).

    Twice, because the rule makes the mean squared error of the variance least, and an interval is better off with a
    variance that is less often too small. At least B^(1/3), because it takes what is not significant for nothing, and
    of a hundred blocks little is. At most 3 sqrt(B) or B/3, as in the paper.
    """
    blocks = len(values)
    least = blocks ** (1 / 3)
    most = max(least, min(3 * math.sqrt(blocks), blocks / 3))
    lags = max(5, math.ceil(math.sqrt(math.log10(max(blocks, 2)))))
    longest = min(math.ceil(math.sqrt(blocks)) + lags, blocks - 1)
    if longest <= lags:
        return least
    covariance = _covariance(values - values.mean(), document, longest)
    if covariance[0] <= 0:
        return least
    small = np.abs(covariance[1:]) < 2 * math.sqrt(math.log10(blocks) / blocks) * covariance[0]
    half = next((lag for lag in range(longest - lags + 1) if small[lag : lag + lags].all()), longest - lags)
    bandwidth = min(2 * max(half, 1), longest)
    lag = np.arange(bandwidth + 1)
    weighed = np.clip(2 * (1 - lag / bandwidth), 0, 1) * covariance[: bandwidth + 1]
    spread = 2 * weighed.sum() - weighed[0]
    if spread <= 0:  # neighbours so unlike that their sum hardly varies
        return least
    return float(np.clip(2 * (abs(2 * (lag @ weighed)) / spread) ** (2 / 3) * least, least, most))


def _covariance(x: np.ndarray, document: np.ndarray, longest: int) -> np.ndarray:
    """R(0), ..., R(longest) of values with mean 0, of pairs in one document."""
    found = [x @ x]
    for lag in range(1, longest + 1):
        same = document[lag:] == document[:-lag]
        found.append(x[lag:][same] @ x[:-lag][same])
    return np.array(found) / len(x)


def variance(values: np.ndarray, document: np.ndarray, run: float) -> float:
    """Variance of the sum of a text drawn anew, of `values` (B,) whose mean is 0; nothing is drawn for it.

    B [C(0) + 2 sum_k (1 - k/B) (1 - 1/run)^k C(k)], C the covariance of a block with the k-th after it, wrapped round
    in its document (lemma 1 of Politis & Romano), over what `kept` says.
    """
    weight = _weights(len(values), run)
    covariance = np.zeros(len(values))
    for a, b in _spans(document):
        power = np.abs(np.fft.rfft(values[a:b])) ** 2
        covariance += np.resize(np.fft.irfft(power, b - a), len(values))
    # Never negative but by rounding, where all values are equal.
    return max(0.0, float(2 * (weight @ covariance) - covariance[0])) / kept(document, run)


def kept(document: np.ndarray, run: float) -> float:
    """Variance of the sum of a text drawn anew over what it should be, of blocks that have nothing to do with each
    other.

    It is below 1 by what values lose to their own mean, as one divides by B - 1 for B, and above it by runs that come
    round to where they began.
    """
    blocks = len(document)
    weight = _weights(blocks, run)
    again = sum((b - a) * float(weight[b - a :: b - a].sum()) for a, b in _spans(document))
    return 1 + 2 * again / blocks - float(2 * weight.sum() - 1) / blocks


def _weights(blocks: int, run: float) -> np.ndarray:
    """Of each lag: the share of pairs that far apart in a text drawn anew that are of one run."""
    lag = np.arange(blocks)
    return (1 - lag / blocks) * (1 - 1 / run) ** lag


def resample(sums: np.ndarray, document: np.ndarray, run: float, seed: int = 0) -> np.ndarray:
    """(RESAMPLES, C): each column of `sums` (B, C) summed over a text drawn anew, the same for all columns.

    `run` is the mean length of a run. The same `seed` draws the same texts.
    """
    blocks, columns = sums.shape
    spans = _spans(document)
    begin = np.concatenate([np.full(b - a, a) for a, b in spans])
    size = np.concatenate([np.full(b - a, b - a) for a, b in spans])
    # Sums before each block of its document, and those of whole documents: a run is a difference of two of them.
    before = np.concatenate([np.cumsum(sums[a:b], axis=0) - sums[a:b] for a, b in spans])
    whole = np.concatenate([np.broadcast_to(sums[a:b].sum(axis=0), (b - a, columns)) for a, b in spans])
    rng = np.random.default_rng(seed)
    most = math.ceil(blocks / run + 8 * math.sqrt(blocks / run) + 8)
    found = []
    for chunk in np.array_split(np.arange(RESAMPLES), max(1, RESAMPLES * min(most, blocks) // 1_000_000)):
        shape = (len(chunk), min(most, blocks))
        # Runs until the text is as long as this one: the last is cut, and there are always enough of them.
        end = np.minimum(np.cumsum(rng.geometric(1 / run, shape), axis=1), blocks)
        end[:, -1] = blocks
        length = np.diff(end, axis=1, prepend=0)
        first = rng.integers(blocks, size=shape)
        step = first - begin[first] + length
        rounds, last = np.divmod(step, size[first])
        last += begin[first]
        total = np.empty((len(chunk), columns))
        for column in range(columns):
            run_sums = before[last, column] - before[first, column] + rounds * whole[first, column]
            total[:, column] = run_sums.sum(axis=1)
        found.append(total)
    return np.concatenate(found)


def _spans(document: np.ndarray) -> list[tuple[int, int]]:
    """Blocks [a, b) of each document.

    >>> _spans(np.array([0, 0, 0, 4, 4]))
    [(0, 3), (3, 5)]
    """
    ends = [0, *(np.flatnonzero(np.diff(document)) + 1).tolist(), len(document)]
    return list(pairwise(ends))
