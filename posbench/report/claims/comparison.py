"""A difference between rows, seed by seed, and how sure it is."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from posbench.records import Row
from posbench.statistics import Blocks, Estimate, contrast, mean, over_seeds, with_text

FEWEST_SEEDS = 3
"""With fewer a claim is seen or not seen, and no more."""

Terms = Sequence[tuple[int, Row]]
"""Rows of one seed, each with its sign."""


@dataclass(frozen=True)
class Comparison:
    """A difference in nats a token, the mean over seeds."""

    values: list[float]
    """of each seed"""
    by_seed: list[Blocks] | None
    """the same by block of text; None of rows without losses behind them"""
    one_checkpoint: bool = False
    """whether all rows of a seed are: then the text is all that chance has a hand in"""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def seeds(self) -> int:
        return len(self.values)

    @property
    def over_seeds(self) -> Estimate | None:
        """For other seeds on this text; None for fewer than three."""
        return over_seeds(self.values) if self.seeds >= FEWEST_SEEDS else None

    @cached_property
    def blocks(self) -> Blocks | None:
        """The mean over seeds by block of text."""
        return None if self.by_seed is None else mean(self.by_seed)

    def without(self, document: int) -> Comparison:
        """The same on all documents but one; itself where that was not read, or is all there is."""
        if self.by_seed is None or not 0 < (self.by_seed[0].document == document).sum() < len(self.by_seed[0].document):
            return self
        left = [blocks.without(document) for blocks in self.by_seed]
        return Comparison([blocks.mean for blocks in left], left, self.one_checkpoint)

    @cached_property
    def text(self) -> Estimate | None:
        """For these checkpoints on other text like this."""
        return None if self.blocks is None else self.blocks.estimate()

    @property
    def deciding(self) -> Estimate | None:
        """For other seeds on other text like this, which is what a claim is about; of fewer seeds the text alone, and
        that only of one checkpoint: what two single runs differ by is no matter of the text."""
        if self.over_seeds is None:
            return self.text if self.one_checkpoint else None
        return self.over_seeds if self.text is None else with_text(self.over_seeds, self.text)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """95 %, of what decides; where that is the text alone, of 10,000 texts drawn anew."""
        if self.deciding is None:
            return None
        return self.deciding.interval() if self.blocks is None or self.over_seeds else self.blocks.interval()


def compare(seeds: Mapping[int | None, Terms]) -> Comparison:
    """The signed sum of the losses of each seed's rows, which are of the same targets."""
    values = [sum(sign * _loss(row) for sign, row in terms) for terms in seeds.values()]
    one_checkpoint = all(len({(row.run_hash, row.step) for _, row in terms}) == 1 for terms in seeds.values())
    if not all(row.arrays_sha256 for terms in seeds.values() for _, row in terms):
        return Comparison(values, None, one_checkpoint)
    return Comparison(values, [contrast(terms) for terms in seeds.values()], one_checkpoint)


def _loss(row: Row) -> float:
    assert row.loss is not None, "a row that is ok has a loss"
    return row.loss
