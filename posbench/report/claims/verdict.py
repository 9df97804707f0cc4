"""Claims held against rows: supported, contradicted, undecided; of fewer than three seeds seen or not seen."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from posbench.records import Row
from posbench.report.claims.claim import Claim, Side
from posbench.report.claims.comparison import FEWEST_SEEDS, Comparison, Terms, compare
from posbench.report.claims.failure import LEVEL, Failure, candidates, failure
from posbench.report.claims.speed import Bench, Speed, speed
from posbench.report.parts import SPLIT, Line, Part, Value, parts, together
from posbench.statistics import exp, holm

TEXT = (*SPLIT, "targets_digest")
"""What rows have in common that are held against each other: all is of the same targets."""


@dataclass(frozen=True)
class Verdict:
    """A claim held against rows, or the reason why it cannot be."""

    claim: Claim
    left: Value | None = None
    """its perplexity, or its speed; of a claim with `minus`, the ratio of the two"""
    right: Value | None = None
    comparison: Comparison | None = None
    """left less right, in nats a token"""
    failure: Failure | None = None
    """of a claim about one"""
    speed: Speed | None = None
    """of a claim about one"""
    holds: bool | None = None
    """whether the numbers are what the claim says: of three seeds or more their mean, of fewer each of them"""
    p: float | None = None
    """of what the numbers say, the claim or its contrary; None for fewer than three seeds"""
    corrected: float | None = None
    """the same after Holm's correction, of a primary claim"""
    reason: str | None = None
    undertrained: bool = False
    """whether some of its runs are, at L not below the bigram"""
    rows: tuple[Row, ...] = ()
    """that it was reached on"""

    @property
    def text(self) -> str:
        """supported | contradicted | undecided | seen | not seen | not measured"""
        if self.holds is None:
            return "not measured"
        p = self.p if self.corrected is None else self.corrected
        if p is None:
            return "undecided" if self.open else "seen" if self.holds else "not seen"
        if p > LEVEL:
            return "undecided"
        return "supported" if self.holds else "contradicted"

    @property
    def open(self) -> bool:
        """Whether what one or two seeds say, or a machine, could be turned round: where their interval, which there is
        only of single checkpoints and of speeds, has values of both kinds. Of a failure where neither is shown, that a
        length is above L nor that all are within the tolerance."""
        if self.failure is not None:
            return self.failure.at(self.claim.border) is None and not self.failure.lasts(self.claim.tolerance)
        if self._interval is None:
            return False
        return not self.claim.settled_by(*self._interval)

    @property
    def seeds(self) -> int | None:
        if self.failure is not None:
            return min(found.seeds for found in self.failure.by_length.values())
        return None if self.comparison is None else self.comparison.seeds

    @property
    def ratio(self) -> Value | None:
        """Perplexity of the left over that of the right, with the error of what decides; of a speed, the speeds'."""
        if self.speed is not None:
            return Value(self.speed.times.median, None, 1)
        if self.comparison is None:
            return None
        value, deciding = exp(self.comparison.mean), self.comparison.deciding
        error = None if deciding is None or value == float("inf") else value * deciding.error
        return Value(value, error, self.comparison.seeds)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, of the ratio."""
        return None if self._interval is None else (exp(self._interval[0]), exp(self._interval[1]))

    @property
    def _interval(self) -> tuple[float, float] | None:
        """The same of its logarithm."""
        if self.speed is not None:
            low, high = self.speed.times.low, self.speed.times.high
            return None if low is None or high is None else (math.log(low), math.log(high))
        return None if self.comparison is None else self.comparison.interval


def judge(claims: Iterable[Claim], rows: Iterable[Row], bench: Bench = ()) -> list[Verdict]:
    """Each claim held against the rows, in the order of the claims: those of a claim are of the same targets, or of a
    gap each protocol's. Where several sets were read, the largest that a claim can be judged on counts. Those about a
    speed are held against `bench`.

    Primary claims are corrected for their number, those that were not measured among them.
    """
    texts = together(parts(rows), TEXT)
    texts.sort(key=lambda text: -max(part.one.targets for part in text))
    return _corrected([_timed(claim, bench) if claim.about_speed else _judge(claim, texts) for claim in claims])


def without(verdicts: Iterable[Verdict], documents: Collection[int]) -> list[Verdict]:
    """The same claims held against the same rows, all but what was read of some documents, numbers in their split."""
    return _corrected([_without(verdict, documents) for verdict in verdicts])


def _corrected(verdicts: list[Verdict]) -> list[Verdict]:
    """With Holm's correction of those that are primary."""
    family = [number for number, verdict in enumerate(verdicts) if verdict.claim.primary]
    values = holm([1.0 if (p := verdicts[number].p) is None else p for number in family])
    found = dict(zip(family, values, strict=True))
    return [
        replace(verdict, corrected=found[number]) if number in found and verdict.p is not None else verdict
        for number, verdict in enumerate(verdicts)
    ]


def _without(verdict: Verdict, documents: Collection[int]) -> Verdict:
    if verdict.failure is not None:
        left = {length: found.without(documents) for length, found in verdict.failure.by_length.items()}
        return _failed(verdict.claim, replace(verdict.failure, by_length=left))
    return verdict if verdict.comparison is None else _compared(verdict.claim, verdict.comparison.without(documents))


def _compared(claim: Claim, comparison: Comparison) -> Verdict:
    """A comparison judged."""
    if comparison.seeds < FEWEST_SEEDS:
        return Verdict(claim, comparison=comparison, holds=all(map(claim.holds, comparison.values)))
    assert comparison.deciding is not None
    holds = claim.holds(comparison.mean)
    so, not_so = claim.p_values(comparison.deciding)
    return Verdict(claim, comparison=comparison, holds=holds, p=so if holds else not_so)


def _failed(claim: Claim, failure: Failure) -> Verdict:
    """A failure judged. Its comparison is at the length where it fails, or else the longest."""
    at = failure.at(claim.border)
    comparison = failure.by_length[at or max(failure.by_length)]
    seeds = min(found.seeds for found in failure.by_length.values())
    fails, p = at is not None, None
    if seeds >= FEWEST_SEEDS:
        fails, p = failure.settled(claim.border, claim.tolerance)
    return Verdict(claim, comparison=comparison, failure=failure, holds=fails == (claim.relation == "fails-by"), p=p)


def _timed(claim: Claim, bench: Bench) -> Verdict:
    """A claim about a speed, held against one run of `posbench bench`."""
    found = speed(claim, bench)
    if isinstance(found, str):
        return Verdict(claim, reason=found)
    left, right = (Value(one, None, 1) for one in (found.left, found.right))
    return Verdict(claim, left, right, speed=found, holds=claim.holds(math.log(found.times.median)))


def _judge(claim: Claim, texts: Sequence[Sequence[Part]]) -> Verdict:
    """On the first text on which it can be judged; else what is missing where least is."""
    best: tuple[int, Verdict] | None = None
    for text, other in _readable(claim, texts):
        missing, verdict = _failure_on(claim, text) if claim.about_failure else _comparison_on(claim, text, other)
        if best is None or missing < best[0]:
            best = missing, verdict
    protocols = dict.fromkeys(side.protocol for side in claim.sides)
    read = {part.shared["protocol"] for text in texts for part in text}
    absent = [protocol for protocol in protocols if protocol not in read]
    if best is None or absent:
        return Verdict(claim, reason=f"nothing is read with {' and '.join(absent or protocols)}")
    return best[1]


def _readable(claim: Claim, texts: Sequence[Sequence[Part]]) -> Iterator[tuple[Sequence[Part], Sequence[Part]]]:
    """The texts to judge a claim on, each twice: for its sides and for what is taken off from them. Of a gap these may
    be two, as its protocols have targets of their own: either is held against itself."""
    yield from ((text, text) for text in texts)
    if claim.left.minus is not None and claim.right.minus is not None:
        yield from (
            (text, other)
            for text in texts
            for other in texts
            if other is not text and all(text[0].shared[key] == other[0].shared[key] for key in SPLIT)
        )


def _comparison_on(claim: Claim, text: Sequence[Part], other: Sequence[Part]) -> tuple[int, Verdict]:
    """How much is missing on a text, with what is taken off on another, and the verdict there."""
    found = {id(side): _find(side, text) for side in (claim.left, claim.right)}
    found |= {id(side.minus): _find(side.minus, other) for side in (claim.left, claim.right) if side.minus}
    left, right = (_value(side, found) for side in (claim.left, claim.right))
    reasons = [one for one in found.values() if isinstance(one, str)]
    if reasons:
        return len(reasons), Verdict(claim, left, right, reason="; ".join(dict.fromkeys(reasons)))
    lines = {key: line for key, line in found.items() if isinstance(line, Line)}
    terms = _terms(claim, lines)
    if not terms:
        return 1, Verdict(claim, left, right, reason="the two have no seed in common")
    rows = tuple(row for seed in terms.values() for _, row in seed)
    undertrained = any(line.undertrained for line in lines.values())
    return 0, replace(_compared(claim, compare(terms)), left=left, right=right, undertrained=undertrained, rows=rows)


def _failure_on(claim: Claim, text: Sequence[Part]) -> tuple[int, Verdict]:
    side, home = claim.left, claim.left.train_length
    lengths = candidates(home, claim.right.length)
    found = _find(side, text)
    if isinstance(found, str):
        return len(lengths) + 1, Verdict(claim, reason=found)
    missing = [length for length in lengths if not found.measured(length)]
    if missing:
        reasons = [_why(replace(side, length=length), [found]) for length in missing]
        if all(length not in found.rows for length in missing):
            reasons = [f"{side.name} trained at {home:,} is not read at {', '.join(f'{n:,}' for n in missing)}"]
        return len(missing), Verdict(claim, reason="; ".join(reasons))
    measured = failure(found, lengths)
    if measured is None:
        return 1, Verdict(claim, reason="the two have no seed in common")
    at = measured.at(claim.border) or lengths[-1]
    rows = tuple(row for length in (home, *lengths) for row in found.measured(length))
    left, right = found.perplexity(at), found.perplexity(home)
    undertrained = bool(found.undertrained)
    return 0, replace(_failed(claim, measured), left=left, right=right, undertrained=undertrained, rows=rows)


def _find(side: Side, text: Sequence[Part]) -> Line | str:
    """The line of a reading that was measured, or why there is none."""
    of_protocol = [part for part in text if part.shared["protocol"] == side.protocol]
    if side.block is not None:
        of_protocol = [part for part in of_protocol if part.shared["block"] == side.block]
    if side.protocol == "sliding":
        strides = {id(part): part.shared["stride"] for part in of_protocol}
        if side.stride is not None:
            of_protocol = [part for part in of_protocol if strides[id(part)] == side.stride]
        # The smallest stride first: it is nearest to what papers mean. Half of each length is no number.
        of_protocol.sort(key=lambda part: (isinstance(strides[id(part)], str), str(strides[id(part)]).zfill(9)))
    reason = None
    for part in of_protocol:
        lines = [line for line in part.lines if side.is_of(line.one)]
        lines = [line for line in lines if not line.variant] or lines  # an encoding is meant as it is shipped
        if len(lines) == 1 and lines[0].measured(side.length):
            return lines[0]
        reason = reason or _why(side, lines)
    return reason or _why(side, [])


def _why(side: Side, lines: Sequence[Line]) -> str:
    if len(lines) > 1:
        labels = "; ".join(line.label for line in lines)
        return f"which {side.name} trained at {side.train_length:,} is meant: {labels}?"
    rows = lines[0].rows.get(side.length) if lines else None
    return f"{side}: {rows[0].reason}" if rows else f"there is no row of {side} on the same targets"


def _value(side: Side, found: dict[int, Line | str]) -> Value | None:
    lines = [found[id(reading)] for _, reading in side.readings]
    if any(isinstance(line, str) for line in lines):
        return None
    values = [
        line.perplexity(reading.length)
        for line, (_, reading) in zip(lines, side.readings, strict=True)
        if isinstance(line, Line)
    ]
    if len(values) == 1 or None in values:
        return values[0]
    first, second = (value for value in values if value is not None)
    return Value(first.value / second.value, None, min(first.seeds, second.seeds))


def _terms(claim: Claim, lines: dict[int, Line]) -> dict[int | None, Terms]:
    """By seed all rows of both sides with their signs; only seeds that every one of them has."""
    signed = [
        (side_sign * sign, {row.seed: row for row in lines[id(reading)].measured(reading.length)})
        for side_sign, side in ((1, claim.left), (-1, claim.right))
        for sign, reading in side.readings
    ]
    common = [seed for seed in signed[0][1] if all(seed in rows for _, rows in signed)]
    return {seed: [(sign, rows[seed]) for sign, rows in signed] for seed in common}
