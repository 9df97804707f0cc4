"""Where in a window it is lost: loss by the tokens that a target sees, at the longest window of each line.

The points are those of `posbench table --by-position`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posbench.report.curves import Curve, Point, value
from posbench.report.figures.axes import draw, end_labels, length_axis
from posbench.report.figures.drawing import Drawing, height, panels
from posbench.report.figures.perplexity import named
from posbench.report.figures.style import looks
from posbench.report.parts import Line, Part, how
from posbench.report.positions import LEFT_OUT, losses

FEWEST = 4
"""Buckets that a line must have: where every target sees a window's length or so, there is nothing to draw."""


def by_position(parts: Sequence[Part], name: str, title: str) -> Drawing | None:
    """None where no protocol has early and late targets in one window."""
    chosen = [(part, curves) for part in parts if (curves := _curves(part))]
    if not chosen:
        return None
    look = looks([curve.line for _, curves in chosen for curve in curves])
    bases = dict.fromkeys(base.label for part, _ in chosen if (base := _base(part)))
    with panels(len(chosen), height(max(len(curves) for _, curves in chosen)), 7.2) as (figure, axes):
        for one, (part, curves) in zip(axes, chosen, strict=True):
            homes = [curve.line.train_length for curve in curves if curve.line.train_length]
            one.set_title(how(part), loc="left")
            ticks = [2**power for power in range(3, math.ceil(math.log2(max(part.lengths))) + 1)]
            length_axis(one, ticks, homes, "context: tokens of its window that a target sees")
            base = _base(part)
            one.set_ylabel("loss, nats a token" + (f", less that of the {base.label}" if base else ""))
            for curve in curves:
                draw(one, curve, look[id(curve.line)])
            ends = [(curve.points[-1], curve.line) for curve in curves]
            end_labels(one, [(end.length, value(end), named(line, homes), look[id(line)]) for end, line in ends])
    notes = [
        "Each line in the longest window that it was read in; dotted: the training length L. A curve that rises "
        "past L is harmed by what lies there; one that falls a little may use it, or stand on easier targets, as those "
        "of each stretch are others: the same ones are compared under the longer context. A point stands in the middle "
        f"of its stretch; there is no interval. {LEFT_OUT}"
    ]
    if bases:
        notes.append(
            f"Less the loss of the {' or '.join(bases)} on the same targets, so that what is hard in the text itself "
            "cancels; below 0 is better than that."
        )
    return Drawing(name, title, notes, figure)


def _base(part: Part) -> Line | None:
    """The best of what was counted and not trained."""
    return part.references[0] if part.references else None


def _curves(part: Part) -> list[Curve]:
    lines = [line for line in part.lines if line.one.extension is None]
    curves = [Curve(line, _points(line, _base(part))) for line in lines]
    return [curve for curve in curves if len(curve.points) >= FEWEST]


def _points(line: Line, base: Line | None) -> list[Point]:
    measured = [length for length in line.rows if line.measured(length)]
    if not measured:
        return []
    ours = losses(line, max(measured))
    theirs = losses(base, max(measured)) if base else {}
    return [
        Point(_middle(record), record["loss"] - (theirs[low]["loss"] if theirs else 0.0))
        for low, record in ours.items()
        if not theirs or low in theirs
    ]


def _middle(record: Mapping[str, Any]) -> int:
    return round(math.sqrt(record["context_from"] * record["context_to"]))
