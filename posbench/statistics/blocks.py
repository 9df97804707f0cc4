"""What the blocks of text behind a row tell: how well its loss is known, and its difference from another row.

Blocks are 128 consecutive targets or fewer. A difference is of the same blocks of both rows, so what makes a text hard
for both cancels. It holds for these checkpoints: it says how the number would move with other passages of documents
like these, or (`by_documents`) with other documents.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbench import records
from posbench.errors import UserError
from posbench.records import Row
from posbench.statistics import bootstrap, student
from posbench.statistics.estimate import Estimate

FEWEST_DOCUMENTS = 3
"""That can be units: of two the error is known so badly that an interval is 12.7 of it wide on either side."""


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
class Blocks:
    """Losses summed by block of text; of several rows, each with its weight."""

    document: np.ndarray
    """(B,) number of the document"""
    count: np.ndarray
    """(B,) targets"""
    nats: np.ndarray
    """(B,) sum of their losses"""

    @property
    def mean(self) -> float:
        """Nats a token."""
        return float(self.nats.sum() / self.count.sum())

    @property
    def residual(self) -> np.ndarray:
        """(B,) the nats of a block less those of as many average tokens."""
        return self.nats - self.mean * self.count

    def without(self, documents: Collection[int]) -> Blocks:
        """All but those of some documents."""
        others = ~np.isin(self.document, list(documents))
        return Blocks(self.document[others], self.count[others], self.nats[others])

    @cached_property
    def run(self) -> float:
        """Mean length of the runs in which these blocks are drawn anew."""
        return bootstrap.run_length(self.residual, self.document)

    def estimate(self) -> Estimate:
        """The mean and its standard error over texts drawn anew; of one block, which tells nothing, infinite.

        Its degrees of freedom are those of as many stretches of text as have nothing to do with each other.
        """
        if len(self.count) < 2:
            return Estimate(self.mean, math.inf)
        variance = bootstrap.variance(self.residual, self.document, self.run)
        return Estimate(self.mean, math.sqrt(variance) / float(self.count.sum()), self._df)

    @property
    def _df(self) -> float:
        return max(1.0, len(self.count) / (2 * self.run - 1) - 1)

    def interval(self) -> tuple[float, float]:
        """Where the mean lies in 95 % of the texts drawn anew, each end moved away from it by what drawing loses and by
        as much as Student's t is wider than the normal."""
        if len(self.count) < 2:
            return -math.inf, math.inf
        sums = np.stack([self.nats, self.count], axis=1)
        nats, count = bootstrap.resample(sums, self.document, self.run).T
        wider = student.quantile(0.975, self._df) / student.quantile(0.975, math.inf)
        wider /= math.sqrt(bootstrap.kept(self.document, self.run))
        low, high = np.quantile(nats / count - self.mean, [0.025, 0.975]) * wider
        return self.mean + float(low), self.mean + float(high)


def by_documents(sets: Sequence[Blocks]) -> Estimate | None:
    """The sum of the means of sets of targets, and its standard error with whole documents as units.

    What a document makes of one set it may make of another, so that it is summed up over all sets first: with e_d the
    sum over sets of document d's residual over the set's targets, D / (D - 1) sum_d e_d^2, known with D - 1 degrees of
    freedom. None for fewer than `FEWEST_DOCUMENTS`.
    """
    documents = np.unique(np.concatenate([blocks.document for blocks in sets]))
    if (n := len(documents)) < FEWEST_DOCUMENTS:
        return None
    each = np.zeros(n)
    for blocks in sets:
        place = np.searchsorted(documents, blocks.document)
        each += np.bincount(place, blocks.residual, n) / blocks.count.sum()
    error = math.sqrt(n / (n - 1) * float(each @ each))
    return Estimate(sum(blocks.mean for blocks in sets), error, n - 1.0)


def contrast(terms: Sequence[tuple[float, Row]]) -> Blocks:
    """The losses of several rows of the same targets, each times its weight, summed by block.

    Raises `UserError` when the rows are not of the same targets in the same blocks, or one of them is n/a.
    """
    first = terms[0][1]
    for _, row in terms:
        if row.status != "ok":
            raise UserError(f"{row.run} at {row.length} is n/a: {row.reason}", "There is nothing to compare.")
        if (row.targets_digest, row.tokenizer_hash) != (first.targets_digest, first.tokenizer_hash):
            raise UserError(
                f"{first.run} at {first.length} and {row.run} at {row.length} were not measured on the same targets.",
                "Compare rows of equal corpus, tokenizer, split and targets.",
            )
    behind = []
    for weight, row in terms:
        arrays = records.arrays(row)
        assert arrays is not None
        behind.append((weight, arrays))
    one = behind[0][1]
    for (_, row), (_, arrays) in zip(terms, behind, strict=True):
        if not (np.array_equal(arrays.first, one.first) and np.array_equal(arrays.count, one.count)):
            raise UserError(f"{row.path} has other blocks of text than {first.path}, of the same targets.")
    nats = sum(weight * arrays.nats for weight, arrays in behind)
    return Blocks(one.document, one.count.astype(np.float64), np.asarray(nats))


def mean(of: Sequence[Blocks]) -> Blocks:
    """The mean of losses of the same targets, block by block."""
    return Blocks(of[0].document, of[0].count, np.mean([blocks.nats for blocks in of], axis=0))


def paired_error(row: Row, base: Row) -> float:
    """Standard error of the paired difference of two rows, nats a token: that of its resamples, none of them drawn."""
    return contrast([(1, row), (-1, base)]).estimate().error
