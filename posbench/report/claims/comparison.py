"""A difference between rows, seed by seed, and how sure it is."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbench.records import Row
from posbench.statistics import Blocks, Estimate, by_documents, contrast, mean, over_seeds, with_text

FEWEST_SEEDS = 3
"""With fewer a claim is seen or not seen, and no more."""

Terms = Sequence[tuple[int, Row]]
"""Rows of one seed, each with its sign."""


@dataclass(frozen=True)
class Comparison:
    """A difference in nats a token, the mean over seeds; of rows of several sets of targets the sum of the difference
    within each."""

    values: list[float]
    """of each seed"""
    sets: list[list[Blocks]] | None
    """of each set of targets the same by block of text, a seed each; None of rows without losses behind them"""
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
    def blocks(self) -> list[Blocks]:
        """Of each set of targets the mean over seeds by block of text; of rows without losses behind them none."""
        return [mean(by_seed) for by_seed in self.sets or []]

    def without(self, documents: Collection[int]) -> Comparison:
        """The same on all other documents; itself where none of these was read, or nothing else."""
        if self.sets is None or not all(_touches(by_seed[0], documents) for by_seed in self.sets):
            return self
        left = [[blocks.without(documents) for blocks in by_seed] for by_seed in self.sets]
        values = [sum(blocks.mean for blocks in one) for one in zip(*left, strict=True)]
        return Comparison(values, left, self.one_checkpoint)

    @cached_property
    def passages(self) -> Estimate | None:
        """For these checkpoints on other passages of these documents. What sets of targets have in common is not known
        there, so that their errors add up."""
        found = [blocks.estimate() for blocks in self.blocks]
        if len(found) < 2:
            return found[0] if found else None
        return Estimate(self.mean, sum(one.error for one in found), min(one.df for one in found))

    @cached_property
    def documents(self) -> Estimate | None:
        """For these checkpoints on other documents; None of too few."""
        return by_documents(self.blocks) if self.blocks else None

    @property
    def text(self) -> Estimate | None:
        """For these checkpoints on other text like this, whose documents may be unlike each other: the larger of the
        errors by passages and by documents, and of several sets of targets the latter, which knows what they have in
        common. (scripts/coverage_check.py has both.)"""
        if self.passages is None or self.documents is None:
            return self.passages
        larger = len(self.blocks) > 1 or self.documents.error > self.passages.error
        return self.documents if larger else self.passages

    @property
    def deciding(self) -> Estimate | None:
        """For other seeds on other text like this, which is what a claim is about; of fewer seeds other passages alone,
        and that only of one checkpoint: what two single runs differ by is no matter of the text."""
        if self.over_seeds is None:
            return self.passages if self.one_checkpoint else None
        return self.over_seeds if self.text is None else with_text(self.over_seeds, self.text)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """95 %, of what decides; where that is the text of one set of targets, of 10,000 texts drawn anew."""
        if self.deciding is None:
            return None
        if self.over_seeds or len(self.blocks) != 1:
            return self.deciding.interval()
        return self.blocks[0].interval()


def _touches(blocks: Blocks, documents: Collection[int]) -> bool:
    """Whether some of these documents are in it, and others too."""
    return 0 < int(np.isin(blocks.document, list(documents)).sum()) < len(blocks.document)


def compare(seeds: Mapping[int | None, Terms]) -> Comparison:
    """The signed sum of the losses of each seed's rows. Each is held against rows of its own targets: where these are
    several sets, the signs of each add up to 0."""
    values = [sum(sign * _loss(row) for sign, row in terms) for terms in seeds.values()]
    one_checkpoint = all(len({(row.run_hash, row.step) for _, row in terms}) == 1 for terms in seeds.values())
    if not all(row.arrays_sha256 for terms in seeds.values() for _, row in terms):
        return Comparison(values, None, one_checkpoint)
    by_set = [_by_set(terms) for terms in seeds.values()]
    sets = [[contrast(of[key]) for of in by_set] for key in by_set[0]]
    return Comparison(values, sets, one_checkpoint)


def _by_set(terms: Terms) -> dict[str, list[tuple[int, Row]]]:
    found: dict[str, list[tuple[int, Row]]] = {}
    for sign, row in terms:
        found.setdefault(row.targets_digest, []).append((sign, row))
    assert len(found) == 1 or not any(sum(sign for sign, _ in of) for of in found.values()), "two sets are compared"
    return found


def _loss(row: Row) -> float:
    assert row.loss is not None, "a row that is ok has a loss"
    return row.loss
