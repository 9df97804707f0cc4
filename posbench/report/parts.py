"""From rows to what may be compared.

    rows -> parts    what was measured on the same targets in the same way; only such rows may share a table
         -> lines    one recipe and its seeds, with its value at each length

Lines are sorted by loss at the longest length, never by ratio: a model that uses no context keeps a ratio of 1.
"""

from __future__ import annotations

import math
import statistics as stats
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from posbench.records import Row, digest, extension_label
from posbench.statistics import Blocks, contrast, exp, paired_error

SHARED = {
    "corpus_hash": "corpus",
    "tokenizer_hash": "tokenizer",
    "split": "split",
    "protocol": "protocol",
    "stride": "stride",
    "block": "block",
    "min_context": "minimal context",
    "targets_digest": "set of targets",
}
"""What rows of one table have in common, and its name for a reader."""

SPLIT = ("corpus_hash", "tokenizer_hash", "split")
"""Of these, the ones that say which text it is, whatever the protocol."""

UNDERTRAINED = "† undertrained: at L not below the bigram, so that past L it has nothing to lose."
"""Beside a table, a picture or a verdict that marks such a line."""

HALF = "half of each length"


@dataclass(frozen=True)
class Value:
    """One number of a table: its value, its uncertainty in the same unit, and the seeds it is the mean of.

    `error` is the text's standard error for one seed, that of the blocks behind it drawn anew (posbench/statistics), as
    a figure's band is; the standard deviation over seeds for more.
    """

    value: float
    error: float | None
    seeds: int


@dataclass
class Line:
    """The seeds of one recipe in one part: `rows[length]` holds one row a seed."""

    label: str
    one: Row
    rows: dict[int, list[Row]]
    undertrained: bool | None = None
    """Whether at its training length it is no better than the bigram; None: either was not measured there."""

    @property
    def trained(self) -> tuple[Any, ...]:
        """What all seeds share and no other recipe does: by it, never by the hash of a run, the same line is found in
        another part or under another extension, where other seeds may have been read."""
        return trained_as(self.one)

    @property
    def key(self) -> tuple[Any, ...]:
        """The same with the extension under which it was read."""
        return _key(self.one)

    @property
    def extension(self) -> str:
        """The change to the trained encoding under which it was read, as tables name it."""
        return extension_label(self.one)

    @property
    def name(self) -> str:
        """Its label, and the extension if there is one."""
        return self.label if self.one.extension is None else f"{self.label} + {self.extension}"

    @property
    def train_length(self) -> int | None:
        return self.one.train_length

    @property
    def variant(self) -> str:
        """The settings of its encoding that are not the default ones, as one would type them."""
        return " ".join(word for word in (self.one.settings or "").split() if word.startswith("encoding."))

    @property
    def seeds(self) -> int:
        return max(len(rows) for rows in self.rows.values())

    def measured(self, length: int) -> list[Row]:
        return [row for row in self.rows.get(length, []) if row.status == "ok"]

    def mean(self, length: int) -> float | None:
        """Nats a token at `length`, the mean over seeds; None where it was not measured."""
        rows = self.measured(length)
        return stats.fmean(_number(row.loss) for row in rows) if rows else None

    def loss(self, length: int) -> Value | None:
        """The same with its uncertainty, which for one seed is in the losses behind the row and takes time."""
        rows = self.measured(length)
        return mean_value([_number(row.loss) for row in rows], _error(rows)) if rows else None

    def perplexity(self, length: int) -> Value | None:
        """exp of the mean loss."""
        loss = self.loss(length)
        return None if loss is None else exponential(loss)

    def bits_per_byte(self, length: int) -> float | None:
        values = [row.bits_per_byte for row in self.measured(length) if row.bits_per_byte is not None]
        return stats.fmean(values) if values else None

    def ratio(self, length: int) -> Value | None:
        """Perplexity at `length` over the one at the training length, of the seeds read at both.

        Of one seed the error is that of the text, paired.
        """
        home = {row.seed: row for row in self.measured(self.train_length or 0)}
        pairs = [(row, home[row.seed]) for row in self.measured(length) if row.seed in home]
        if not pairs:
            return None
        error = None if length == self.train_length else _paired_error(pairs)
        return exponential(mean_value([_number(row.loss) - _number(other.loss) for row, other in pairs], error))


@dataclass
class Part:
    """Rows measured on the same targets in the same way, as lines. References stand apart."""

    shared: dict[str, Any]
    lines: list[Line]
    references: list[Line]
    lengths: list[int]

    @property
    def one(self) -> Row:
        return (self.lines or self.references)[0].one


def gain(line: Line, base: Line, length: int) -> Value | None:
    """Nats a token that `base` loses more than `line` at `length`, both of the same checkpoints; None without a pair.

    Of one checkpoint the error is that of the text, paired.
    """
    theirs = {row.run_hash: row for row in base.measured(length)}
    pairs = [(row, theirs[row.run_hash]) for row in line.measured(length) if row.run_hash in theirs]
    if not pairs:
        return None
    return mean_value([_number(other.loss) - _number(row.loss) for row, other in pairs], _paired_error(pairs))


def bits_gained(line: Line, base: Line, length: int) -> Value | None:
    """Bits a byte that `base` needs more than `line` at `length`, of equal seeds; None without such a pair.

    Of one seed it has no error: what two single runs differ by is no matter of the text alone.
    """
    theirs = {row.seed: row for row in base.measured(length)}
    pairs = [(row, theirs[row.seed]) for row in line.measured(length) if row.seed in theirs]
    found = [
        other.bits_per_byte - row.bits_per_byte
        for row, other in pairs
        if row.bits_per_byte is not None and other.bits_per_byte is not None
    ]
    return mean_value(found, None) if found else None


def _error(rows: Sequence[Row]) -> float | None:
    """The standard error of one row over the text; None of several, whose error is that over the seeds.

    Where the losses behind it are not at hand it is the one that the row has, which takes blocks as independent.
    """
    if len(rows) > 1 or rows[0].arrays_sha256 is None:
        return rows[0].standard_error if len(rows) == 1 else None
    return text_error(contrast([(1, rows[0])]))


def _paired_error(pairs: Sequence[tuple[Row, Row]]) -> float | None:
    """The paired standard error of one pair over the text; None of several, whose error is that over the seeds."""
    if len(pairs) > 1 or not all(row.arrays_sha256 for row in pairs[0]):
        return None
    return _finite(paired_error(*pairs[0]))


def text_error(blocks: Blocks) -> float | None:
    """The standard error of their mean over the text; None of a single block, which tells nothing."""
    return _finite(blocks.estimate().error)


def _finite(error: float) -> float | None:
    return None if math.isinf(error) else error


def parts(rows: Iterable[Row]) -> list[Part]:
    """Rows sorted into parts, in the order in which they first come."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in {digest(row): row for row in rows}.values():
        groups.setdefault(tuple(getattr(row, key) for key in SHARED), []).append(row)
    groups = _join_halves(groups)
    return [_part(dict(zip(SHARED, key, strict=True)), members) for key, members in groups.items()]


def together(found: Iterable[Part], keys: Sequence[str]) -> list[list[Part]]:
    """The parts, those in one list that have the same `keys` (of `SHARED`), in the order in which they first come."""
    groups: dict[tuple[Any, ...], list[Part]] = {}
    for part in found:
        groups.setdefault(tuple(part.shared[key] for key in keys), []).append(part)
    return list(groups.values())


def _join_halves(groups: dict[tuple[Any, ...], list[Row]]) -> dict[tuple[Any, ...], list[Row]]:
    """Sliding rows whose stride is half of their length belong together although their strides differ.

    A part of one fixed stride stays where it holds more than rows of such a part.
    """
    stride = list(SHARED).index("stride")
    halves: dict[tuple[Any, ...], list[Row]] = {}
    for key, members in groups.items():
        rows = [row for row in members if row.stride == max(1, row.length // 2)]
        if rows:
            halves.setdefault((*key[:stride], HALF, *key[stride + 1 :]), []).extend(rows)
    halves = {key: rows for key, rows in halves.items() if len({row.length for row in rows}) > 1}
    joined = {id(row) for rows in halves.values() for row in rows}
    return {key: rows for key, rows in groups.items() if not {id(row) for row in rows} <= joined} | halves


def _part(shared: dict[str, Any], rows: list[Row]) -> Part:
    # What references alone were counted at would be columns without a run.
    lengths = sorted({row.length for row in rows if row.kind == "run"} or {row.length for row in rows})
    rows = [row for row in rows if row.length in lengths]
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(_key(row), []).append(row)
    lines = [Line("", members[0], _by_length(members)) for members in grouped.values()]
    part = Part(
        shared,
        [line for line in lines if line.one.kind == "run"],
        [line for line in lines if line.one.kind == "reference"],
        lengths,
    )
    _name(part.lines)
    for line in part.references:
        line.label = line.one.encoding
    part.lines.sort(key=lambda line: _order(line, lengths))
    part.references.sort(key=lambda line: _order(line, lengths))
    bigram = next((line for line in part.references if line.one.encoding == "bigram"), None)
    for line in part.lines:
        home = line.train_length or 0
        ours, theirs = line.mean(home), bigram.mean(home) if bigram else None
        line.undertrained = None if ours is None or theirs is None else ours >= theirs
    return part


def marked(name: str, undertrained: bool | None) -> str:
    """The name of a line as it stands in a table."""
    return f"{name} †" if undertrained else name


def trained_as(row: Row) -> tuple[Any, ...]:
    """What the seeds of one recipe share."""
    return row.kind, row.encoding, row.recipe or row.run_hash, row.dtype, row.step


def _key(row: Row) -> tuple[Any, ...]:
    # By the label of the extension: what a search has found differs from length to length and from seed to seed.
    return *trained_as(row), None if row.extension is None else extension_label(row)


def _by_length(rows: Sequence[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.length, []).append(row)
    return found


def _order(line: Line, lengths: Sequence[int]) -> list[float]:
    """Loss at the longest length first; where it is missing, after all that have one."""
    losses = [line.mean(length) for length in reversed(lengths)]
    return [math.inf if loss is None else loss for loss in losses]


def _name(lines: Sequence[Line]) -> None:
    """Give each line a label; lines of one encoding and training length also say in what they differ."""
    shapes = {shape_text(line.one) for line in lines}
    for line in lines:
        row = line.one
        line.label = row.encoding
        if len(shapes) > 1:
            line.label += f" ({shape_text(row)})"
    groups: dict[tuple[str, int | None, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.label, line.train_length, line.extension), []).append(line)
    for twins in groups.values():
        if len(twins) == 1:
            continue
        words = [(line.one.settings or "").split() for line in twins]
        tells = {
            "settings": [
                " ".join(word.removeprefix("encoding.") for word in own if not all(word in other for other in words))
                for own in words
            ],
            "tokens": [f"{line.one.train_tokens or 0:,} tokens" for line in twins],
            "start": [f"from {line.one.init_from}" if line.one.init_from else "from scratch" for line in twins],
            "text": [f"trained on {line.one.trained_on}" for line in twins],
            "dtype": [line.one.dtype for line in twins],
            "step": [f"step {line.one.step:,}" for line in twins],
            "recipe": [line.one.run_hash[:8] for line in twins],
        }
        labels = [line.label for line in twins]
        for texts in tells.values():
            if len(set(labels)) == len(labels):
                break
            if len(set(texts)) > 1:
                labels = [", ".join(filter(None, pair)) for pair in zip(labels, texts, strict=True)]
        for line, label in zip(twins, labels, strict=True):
            line.label = label


def how(part: Part) -> str:
    """How a part was measured: its protocol and the settings of that."""
    settings = {"stride": "stride", "block": "block", "min_context": "minimal context"}
    shown = {name: part.shared[key] for key, name in settings.items()}
    return part.one.protocol + "".join(
        f", {name} {value:,}" if isinstance(value, int) else f", {name} {value}"
        for name, value in shown.items()
        if value is not None
    )


def before_target(part: Part) -> str:
    """What a scored token had before it, in a sentence for those who do not know the protocols."""
    stride, block, min_context = (part.shared[key] for key in ("stride", "block", "min_context"))
    if stride is not None:
        moved, least = (
            ("half their length", "half a window")
            if stride == HALF
            else (f"{stride:,} token{'s' * (stride != 1)}", f"length - {stride:,} + 1 tokens")
        )
        return f"Windows move on by {moved}: a target sees at least {least} of text, those of the first window less."
    if block is not None:
        seen = (
            "each sees as many tokens as the length says"
            if block == 1
            else f"of each block of {block:,} the first sees length - {block - 1:,} tokens, the last as many as the "
            "length says"
        )
        return f"The same targets at every length, {min_context:,} tokens or more into their document: {seen}."
    return (
        "The text is cut into windows of that length: a target sees the tokens before it in its own window, from one "
        "to all of them."
    )


def order(part: Part) -> str:
    """How the lines of a part are sorted."""
    return f"Sorted by perplexity at {part.lengths[-1]:,}, lowest first; what has none there stands last."


def shape_text(row: Row) -> str:
    return f"{row.model}, {row.heads} x {row.head_dim}"


def mean_value(values: Sequence[float], error_of_one: float | None) -> Value:
    """The mean over seeds with their standard deviation; of a single one with the error that the text gives it."""
    if len(values) == 1:
        return Value(values[0], error_of_one, 1)
    # `stats.stdev` sums fractions, which is slow: a table of 100 runs has a thousand of these.
    mean = stats.fmean(values)
    squares = math.fsum((value - mean) * (value - mean) for value in values)
    return Value(mean, math.sqrt(squares / (len(values) - 1)), len(values))


def exponential(nats: Value) -> Value:
    """exp of a value, its uncertainty carried over to first order; none of a value past the largest float."""
    value = exp(nats.value)
    error = None if nats.error is None or math.isinf(value) else value * nats.error
    return Value(value, error, nats.seeds)


def _number(value: float | None) -> float:
    assert value is not None, "a row that is ok has a loss"
    return value
