"""The numbers behind a figure: what is drawn, with its interval, from rows and the losses behind them.

Every interval is 95 % and of the owner of that question (posbench/report/claims/comparison.py): of three seeds or more
it holds for other seeds and other text, of fewer for these checkpoints on other text like this. What has no interval
of its own (two runs of single seeds) is drawn without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posbench.records import Row
from posbench.report.claims.comparison import Comparison, compare
from posbench.report.parts import SPLIT, Line, Part, parts, together
from posbench.statistics import exp

STEEP = 5.0
"""From largest to smallest value: more is drawn on a logarithmic scale."""

FLAT = 5.0
"""What changes by less than one part in so many of all that is drawn with it looks flat there."""


@dataclass(frozen=True)
class Point:
    """A value at a window length."""

    length: int
    value: float | None
    """None: it could not be measured"""
    low: float | None = None
    """Lower end of the 95 % interval; None: there is none"""
    high: float | None = None


def value(point: Point) -> float:
    """Of one that was measured."""
    assert point.value is not None
    return point.value


@dataclass(frozen=True)
class Curve:
    """A line of a part over the lengths, shortest first."""

    line: Line
    points: list[Point]

    @property
    def measured(self) -> list[Point]:
        return [point for point in self.points if point.value is not None]

    @property
    def finite(self) -> list[Point]:
        """Those that can be drawn: not those whose perplexity no float holds."""
        return [point for point in self.measured if math.isfinite(value(point))]

    @property
    def values(self) -> list[float]:
        """Of these."""
        return [value(point) for point in self.finite]


def texts(rows: Sequence[Row]) -> list[list[Part]]:
    """The parts of the rows, those of one text and tokenizer together."""
    return together(parts(rows), SPLIT)


def perplexities(lines: Sequence[Line]) -> list[Curve]:
    """Perplexity at each length."""
    return [Curve(line, [_perplexity(line, length) for length in sorted(line.rows)]) for line in lines]


def beside(curves: Sequence[Curve]) -> list[tuple[Curve, str]]:
    """Those with a value, and where a reference is that has no room beside the models: "above" or "below" them all; ""
    for what is drawn.

    It has room no farther out than these reach from lowest to highest. So they keep half of the height, and a count
    that no model is near presses nothing together.
    """
    known = [curve for curve in curves if curve.finite]
    values = [found for curve in known if curve.line.one.kind == "run" for found in curve.values]
    if not values:
        return [(curve, "") for curve in known]
    scale = math.log if steep(values) else float
    low, high, span = scale(min(values)), scale(max(values)), _spread(values, scale)

    def side(curve: Curve) -> str:
        if scale(max(curve.values)) > high + span:
            return "above"
        return "below" if scale(min(curve.values)) < low - span else ""

    return [(curve, side(curve) if curve.line.one.kind == "reference" else "") for curve in known]


def flat(curves: Sequence[Curve]) -> list[Curve]:
    """Those of runs that change too little to be seen beside the others, on the scale on which they are drawn, and so
    need one of their own; [] where that is none of them or all."""
    moving = [curve for curve in curves if curve.line.one.kind == "run" and len(curve.finite) > 1]
    drawn = [found for curve in moving for found in curve.values]
    scale = math.log if steep(drawn) else float
    found = [curve for curve in moving if FLAT * _spread(curve.values, scale) <= _spread(drawn, scale)]
    return found if len(found) < len(moving) else []


def steep(values: Sequence[float]) -> bool:
    """Whether they are drawn on a logarithmic scale."""
    return bool(values) and min(values) > 0 and max(values) > STEEP * min(values)


def _spread(values: Sequence[float], scale: Callable[[float], float]) -> float:
    return scale(max(values)) - scale(min(values))


def use_of_context(line: Line) -> tuple[int, Curve] | None:
    """Nats a token at each length less those at a quarter of the training length, with that length; where this was not
    read, the shortest length that was. None with fewer than two lengths."""
    lengths = [length for length in sorted(line.rows) if line.measured(length)]
    if len(lengths) < 2 or line.train_length is None:
        return None
    quarter = line.train_length // 4
    base = quarter if quarter in lengths else lengths[0]
    found = {length: compare_lines(line, length, line, base) for length in sorted(line.rows)}
    return base, Curve(line, [_point(length, one, interval(one), float) for length, one in found.items()])


def compare_lines(line: Line, length: int, base: Line, base_length: int) -> Comparison | None:
    """Nats a token of `line` at `length` less those of `base` at `base_length`, of the seeds that both have."""
    theirs = {row.seed: row for row in base.measured(base_length)}
    pairs = {row.seed: [(1, row), (-1, theirs[row.seed])] for row in line.measured(length) if row.seed in theirs}
    return compare(pairs) if pairs else None


Ends = tuple[float, float] | tuple[None, None]
"""Of a 95 % interval in nats a token; None for each where there is none."""


def interval(found: Comparison | None) -> Ends:
    """Of a difference, the one with which a claim about it is held."""
    return (None, None) if found is None or found.interval is None else found.interval


def _perplexity(line: Line, length: int) -> Point:
    """With the interval of one reading, which no claim is about."""
    rows = line.measured(length)
    found = compare({row.seed: [(1, row)] for row in rows}) if rows else None
    ends: Ends = (None, None)
    if found is not None and found.deciding is not None:
        ends = found.deciding.interval()
    return _point(length, found, ends, exp)


def _point(length: int, found: Comparison | None, ends: Ends, scale: Callable[[float], float]) -> Point:
    if found is None:
        return Point(length, None)
    low, high = ends
    if low is None or high is None or math.isinf(high):
        return Point(length, scale(found.mean))
    return Point(length, scale(found.mean), scale(low), scale(high))
