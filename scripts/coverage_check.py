"""How often the intervals of posbench cover the truth, on losses made like the stored ones.

    python scripts/coverage_check.py                               1,000 simulations of each text and number of seeds
    python scripts/coverage_check.py --simulations 200
    python scripts/coverage_check.py --rows ROW.json BASE.json     a text like that of these two rows

The texts are like those of rows that are committed, all seeds of rotary and of ALiBi in results/tsl-cpu: one that fails
past its training length, where seeds are far apart, and one that does not. What comes out is kept in results/coverage.

A difference between two readings, or the loss of one, is made up block by block of what is measured of a real one: what
the text makes of it (the same for all seeds), what a seed makes of it (the same for all blocks), and what is left (of
this seed in this block). Text and rest are first-order autoregressions within documents, and documents differ by as
much as those do. The truth is known, that of all such documents, so it can be counted how often an interval covers it,
and how often a statement that is just not true is supported.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from posbench import records
from posbench.errors import UserError
from posbench.report.claims.comparison import Comparison
from posbench.report.claims.failure import LEVEL, Failure
from posbench.statistics import Blocks, Estimate, by_documents, contrast, holm, with_text
from posbench.statistics.bootstrap import variance

RUNS = Path(__file__).resolve().parents[1] / "results" / "tsl-cpu" / "runs"
MARGIN = math.log(1.01)
TRAIN_LENGTH = 128

LIKE = {
    "rotary, 2,048 targets, 256 less 128": (("rope", "same-targets", 32, 256), TRAIN_LENGTH),
    "ALiBi, all of the test split, 2,048 less 128": (("alibi", "nonoverlapping", None, 2048), TRAIN_LENGTH),
    "ALiBi, all of the test split, its loss at 128": (("alibi", "nonoverlapping", None, 128), None),
    "ALiBi, 2,048 targets, 4,096 less 128": (("alibi", "same-targets", 32, 4096), TRAIN_LENGTH),
    "ALiBi, 512 targets of exactly so much context, 256 less 128": (("alibi", "same-targets", 1, 256), TRAIN_LENGTH),
}
"""Encoding, protocol, block and length of the rows of which each text is made, and the length of those taken off."""


@dataclass(frozen=True)
class Shape:
    """What the losses are made like. Deviations are in nats a token of a block."""

    name: str
    documents: Sequence[int]
    """blocks of each document"""
    tokens: int
    """targets of a block"""
    correlation: float
    """of a block with the next one"""
    text: float
    """deviation of what the text makes of a difference"""
    rest: float
    """and of what is left of one seed in one block"""
    seed: float
    """deviation from seed to seed"""
    of_documents: float = 0.0
    """share of the variance of text and rest that all blocks of a document have in common"""

    @property
    def document(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.documents)), self.documents)


def shapes() -> Iterator[Shape]:
    """Those of the committed rows, and one of few blocks again with a tenth of its variance between documents, of which
    so few say nothing."""
    rows = {
        (row.encoding, row.protocol, row.block, row.length, row.seed): row
        for row in records.read([RUNS])
        if row.train_length == TRAIN_LENGTH and not row.settings
    }
    for name, (like, base) in LIKE.items():
        seeds = sorted(seed for *others, seed in rows if tuple(others) == like)
        found = [(rows[*like, seed], rows[*like[:3], base, seed] if base else None) for seed in seeds]
        shape = measured(f"{name}, of {len(seeds)} seeds", [paired(*pair) for pair in found])
        yield shape
        if like[-1] == 4096:
            yield replace(shape, name=f"{shape.name}, documents unlike each other", of_documents=0.1)


def simulate(shape: Shape, seeds: int, truth: float, rng: np.random.Generator) -> Comparison:
    """One study: `seeds` paired differences whose true mean is `truth`, on one text."""
    values = autoregression(shape, seeds + 1, rng)
    effect = truth + shape.seed * rng.normal(size=(seeds, 1))
    nats = shape.tokens * (effect + shape.text * values[:1] + shape.rest * values[1:])
    count = np.full(nats.shape[1], float(shape.tokens))
    by_seed = [Blocks(shape.document, count, one) for one in nats]
    return Comparison([blocks.mean for blocks in by_seed], [by_seed])


def autoregression(shape: Shape, many: int, rng: np.random.Generator) -> np.ndarray:
    """(many, B) with mean 0, deviation 1 and the shape's correlation from one block to the next of its document."""
    own, shared = math.sqrt(1 - shape.of_documents), math.sqrt(shape.of_documents)
    drawn = [
        own * mixing(size, shape.correlation) @ rng.normal(size=(size, many)) + shared * rng.normal(size=many)
        for size in shape.documents
    ]
    return np.concatenate(drawn).T


@functools.cache
def mixing(size: int, r: float) -> np.ndarray:
    """(size, size): what makes an autoregression of independent values."""
    lag = np.subtract.outer(np.arange(size), np.arange(size))
    found = np.where(lag >= 0, r ** np.maximum(lag, 0), 0.0) * math.sqrt(1 - r * r)
    found[:, 0] = r ** np.arange(size)
    return found


# Coverage -------------------------------------------------------------------------------------------------------------


def on_one_checkpoint(shape: Shape, rng: np.random.Generator) -> dict[str, bool]:
    """Whether each way to an interval of one checkpoint covers its true difference: that on all passages of these
    documents, whose means then are the truth, or on all documents like these."""
    one = replace(shape, seed=0.0, rest=math.hypot(shape.text, shape.rest), text=0.0)
    blocks, other = (_one(replace(one, of_documents=share), rng) for share in (0.0, shape.of_documents))
    mean, residual, total = blocks.mean, blocks.residual, blocks.count.sum()
    fixed = math.sqrt(variance(residual, blocks.document, 8.0)) / total
    alone = math.sqrt(variance(residual, blocks.document, 1.0)) / total
    text = Comparison([other.mean], [[other]]).text
    documents = by_documents([other])
    assert text is not None
    assert documents is not None
    return {
        "these documents: stationary bootstrap, 10,000 texts (posbench)": _covers(blocks.interval(), 0.0),
        "these documents: its standard error, Student's t (posbench)": _covers(blocks.estimate().interval(), 0.0),
        "these documents: its standard error in runs of 8, normal": abs(mean) <= 1.96 * fixed,
        "these documents: blocks taken as independent, normal": abs(mean) <= 1.96 * alone,
        "other documents: the bootstrap's standard error, Student's t": _covers(other.estimate().interval(), 0.0),
        "other documents: taken as units, Student's t": _covers(documents.interval(), 0.0),
        "other documents: the larger of the two (of verdicts)": _covers(text.interval(), 0.0),
    }


def _one(shape: Shape, rng: np.random.Generator) -> Blocks:
    (blocks,) = simulate(shape, 1, 0.0, rng).blocks
    return blocks


def over_seeds(shape: Shape, seeds: int, rng: np.random.Generator) -> dict[str, bool]:
    """Whether each interval over seeds covers what it is for."""
    quiet = replace(shape, text=0.0, of_documents=0.0)
    same_text, other_text = simulate(quiet, seeds, 0.0, rng), simulate(shape, seeds, 0.0, rng)
    assert same_text.over_seeds is not None
    assert other_text.over_seeds is not None
    assert other_text.passages is not None
    assert other_text.deciding is not None
    apart, together = gap(shape, seeds, rng, 0.0), gap(shape, seeds, rng, 0.5)
    return {
        "t over seeds; for other seeds on this text": _covers(same_text.over_seeds.interval(), 0.0),
        "t over seeds; taken for other text as well": _covers(other_text.over_seeds.interval(), 0.0),
        "with the variance of passages; for both": _covers(
            with_text(other_text.over_seeds, other_text.passages).interval(), 0.0
        ),
        "with the larger of passages' and documents'; for both (verdicts)": _covers(
            other_text.deciding.interval(), 0.0
        ),
        "a gap of two independent sets of targets, by documents (verdicts)": _by_documents(apart),
        "a gap of two independent sets of targets, errors added": _errors_added(apart),
        "a gap of two sets half alike, by documents (verdicts)": _by_documents(together),
        "a gap of two sets half alike, errors added": _errors_added(together),
    }


def gap(shape: Shape, seeds: int, rng: np.random.Generator, alike: float) -> Comparison:
    """A difference of two differences on two sets of targets of the same documents, the second of which is by `alike`
    what the first is."""
    sets = [simulate(shape, seeds, 0.0, rng).sets for _ in range(2)]
    first, second = (one[0] for one in sets if one is not None)
    mixed = [
        replace(b, nats=alike * a.nats + math.sqrt(1 - alike**2) * b.nats) for a, b in zip(first, second, strict=True)
    ]
    return Comparison([a.mean + b.mean for a, b in zip(first, mixed, strict=True)], [first, mixed])


def _by_documents(found: Comparison) -> bool:
    assert found.deciding is not None
    return _covers(found.deciding.interval(), 0.0)


def _errors_added(found: Comparison) -> bool:
    assert found.over_seeds is not None
    assert found.passages is not None
    return _covers(with_text(found.over_seeds, found.passages).interval(), 0.0)


def _covers(interval: tuple[float, float], truth: float) -> bool:
    return interval[0] <= truth <= interval[1]


# False support --------------------------------------------------------------------------------------------------------


def false_support(shape: Shape, seeds: int, rng: np.random.Generator) -> dict[str, bool]:
    """Whether each kind of claim is supported where it is just not true."""

    def p_value(truth: float, p: Callable[[Comparison], float]) -> float:
        return p(simulate(shape, seeds, truth, rng))

    def shown(lengths: dict[int, Comparison], fails: bool, margin: float = 0.0) -> bool:
        found, p = Failure(1, lengths).settled(margin, MARGIN)
        return found == fails and p <= LEVEL

    def at(comparison: Comparison) -> Estimate:
        assert comparison.deciding is not None
        return comparison.deciding

    less = [p_value(0.0, lambda one: at(one).below(0.0)) for _ in range(6)]
    lengths = {length: simulate(shape, seeds, 0.0, rng) for length in range(9)}
    one_above = lengths | {8: simulate(shape, seeds, MARGIN, rng)}
    by_half = lengths | {8: simulate(shape, seeds, MARGIN / 2, rng)}
    return {
        "less, of two that are equal": less[0] <= LEVEL,
        "not-above within 1 %, of one 1 % above": p_value(MARGIN, lambda one: at(one).below(MARGIN)) <= LEVEL,
        "equal within 1 %, of one 1 % above": p_value(MARGIN, lambda one: at(one).within(MARGIN)) <= LEVEL,
        "fails-by, of a method that is the same at 9 lengths": shown(lengths, fails=True),
        "holds-to within 1 %, of a method 1 % above at one of 9": shown(one_above, fails=False, margin=MARGIN),
        "(fails-by contradicted, of a method half a percent above at one of 9)": shown(by_half, fails=False),
        "any of 6 primary claims, all false, after Holm": min(holm(less)) <= LEVEL,
        "any of 6 primary claims, all false, uncorrected": min(less) <= LEVEL,
    }


def rates(once: Callable[[], dict[str, bool]], simulations: int) -> dict[str, float]:
    """How often each thing was true."""
    found = [once() for _ in range(simulations)]
    return {name: sum(one[name] for one in found) / simulations for name in found[0]}


# Report ---------------------------------------------------------------------------------------------------------------


def paired(row: records.Row, base: records.Row | None) -> Blocks:
    return contrast([(1, row)] if base is None else [(1, row), (-1, base)])


def measured(name: str, seeds: Sequence[Blocks]) -> Shape:
    """A shape like these paired differences, those of each seed on the same targets.

    What seeds have in common in a block is the text's, whatever else is there the rest; of the spread of their means
    that rest is taken off. Text and rest are taken to be correlated alike from one block to the next, and to differ
    alike from document to document. Of one seed half the variance is taken as the text's, and its error as the seeds'
    spread.
    """
    first = seeds[0]
    full = first.count == first.count.max()
    each = np.stack([blocks.residual / blocks.count for blocks in seeds])
    follows = (first.document[1:] == first.document[:-1]) & full[1:] & full[:-1]
    correlations = [np.corrcoef(one[1:][follows], one[:-1][follows])[0, 1] for one in each]
    errors = np.array([blocks.estimate().error for blocks in seeds])
    total, common = float(each[:, full].var(axis=1, ddof=1).mean()), 0.5
    spread = float(errors[0])
    if len(seeds) > 1:
        covariances = np.cov(each[:, full])[~np.eye(len(seeds), dtype=bool)]
        common = float(np.clip(covariances.mean() / total, 0, 1))
        of_rest = (1 - common) * float((errors**2).mean())
        spread = math.sqrt(max(0.0, float(np.var([blocks.mean for blocks in seeds], ddof=1)) - of_rest))
    correlation = max(0.0, float(np.mean(correlations)))
    _, documents = np.unique(first.document, return_counts=True)
    return Shape(
        name,
        documents.tolist(),
        int(first.count.max()),
        correlation,
        math.sqrt(total * common),
        math.sqrt(total * (1 - common)),
        spread,
        float(np.mean([between_documents(one[full], first.document[full], correlation) for one in each])),
    )


def between_documents(values: np.ndarray, document: np.ndarray, correlation: float) -> float:
    """Share of the variance of blocks (B,) that is between documents: from the mean squares between and within them, as
    in an analysis of variance, but that neighbours alike make the means of documents differ by (1 + r) / (1 - r) of
    what independent blocks would."""
    _, place, sizes = np.unique(document, return_inverse=True, return_counts=True)
    means = np.bincount(place, values) / sizes
    many, blocks = len(sizes), len(values)
    between = float(sizes @ (means - values.mean()) ** 2) / (many - 1)
    within = float(((values - means[place]) ** 2).sum()) / (blocks - many)
    size = (blocks - float(sizes @ sizes) / blocks) / (many - 1)
    excess = max(0.0, between - within * (1 + correlation) / (1 - correlation)) / size
    return excess / (excess + within)


def lines(shape: Shape, simulations: int, seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    blocks = sum(shape.documents)
    yield f"{shape.name}: {blocks} blocks of {len(shape.documents)} documents, correlation {shape.correlation:.2f}"
    yield f"  share of the variance between documents {shape.of_documents:.4f}"
    yield f"  deviations in nats: text {shape.text:.4f} and rest {shape.rest:.4f} a block, seed {shape.seed:.4f}"
    yield "  95 % intervals that cover the truth"
    for name, rate in rates(partial(on_one_checkpoint, shape, rng), simulations).items():
        yield f"    {rate:7.1%}  one checkpoint, {name}"
    for seeds in (3, 5):
        for name, rate in rates(partial(over_seeds, shape, seeds, rng), simulations).items():
            yield f"    {rate:7.1%}  {seeds} seeds: {name}"
    yield "  claims that are false and supported all the same"
    for seeds in (3, 5):
        for name, rate in rates(partial(false_support, shape, seeds, rng), simulations).items():
            yield f"    {rate:7.1%}  {seeds} seeds: {name}"


def asked_for(rows: Sequence[str] | None) -> Iterator[Shape]:
    """The text like that of two rows, or those of the committed ones."""
    if rows is None:
        yield from shapes()
        return
    found = records.read(rows)
    if len(found) != 2:
        raise UserError(f"--rows names {len(found)} row{'s' * (len(found) != 1)}.", "Name the files of two.")
    row, base = found
    name = f"{row.run} at {row.length} less {base.run} at {base.length}, {row.protocol}"
    yield measured(name, [paired(row, base)])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Coverage of the intervals of posbench on simulated losses.")
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", nargs=2, metavar=("ROW", "BASE"), help="two rows on the same targets")
    asked = parser.parse_args(words)
    try:
        for name, least, usual in (("simulations", 1, 200), ("seed", 0, 0)):
            if (given := getattr(asked, name)) < least:
                raise UserError(f"--{name} {given} is below {least}.", f"Write for example --{name} {usual}.")
        texts = list(asked_for(asked.rows))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    for shape in texts:
        for line in lines(shape, asked.simulations, asked.seed):
            print(line, flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
