"""Perplexity against the length of the window, a panel a protocol."""

from __future__ import annotations

from collections.abc import Sequence

from posbench.report.curves import Curve, beside, flat, perplexities, value
from posbench.report.figures.axes import draw, end_labels, length_axis, value_axis
from posbench.report.figures.drawing import Drawing, height, panels
from posbench.report.figures.style import looks
from posbench.report.lengths import listed
from posbench.report.parts import Line, Part, how

CLOSER = "A panel that is called closer shows those curves of its protocol that change little, at a scale of their own."

NOTES = [
    "Bands are 95 % intervals: over seeds and text of three seeds or more, over the text alone of fewer. Dotted: the "
    "training length L; the point there is larger. A cross at the bottom: not measurable at that length, an arrow at "
    "the top: past any number. Lines of one encoding differ in their training length.",
    "What is hard in a text is hard for all: bands that overlap say nothing of a difference, which has an interval of "
    "its own (`posbench table --against ENCODING`).",
]


def by_length(parts: Sequence[Part], name: str, title: str, extended: bool = False) -> Drawing | None:
    """Of the lines as they were trained, or with `extended` of those that were read under extensions too, each with
    its checkpoint as it was trained; None where there is nothing of the kind."""
    chosen = [(part, lines) for part in parts if (lines := _lines(part, extended))]
    if not chosen:
        return None
    look = looks([line for _, lines in chosen for line in lines])
    panes = [pane for part, lines in chosen for pane in _panes(part, lines)]
    with panels(len(panes), height(max(len(lines) for _, lines in chosen))) as (figure, axes):
        for one, (title_of_it, part, curves) in zip(axes, panes, strict=True):
            homes = _homes(part.lines)
            one.set_title(title_of_it, loc="left")
            length_axis(one, part.lengths, _homes([curve.line for curve in curves]), "tokens read at once")
            value_axis(one, [found for curve in curves for found in curve.values], "perplexity")
            absent = [curve for curve in curves if len(curve.measured) < len(curve.points)]
            for curve in curves:
                draw(one, curve, look[id(curve.line)], absent.index(curve) if curve in absent else 0, len(curves))
            end_labels(one, [(*_end(curve), named(curve.line, homes), look[id(curve.line)]) for curve in curves])
    notes = [*NOTES, *([CLOSER] if len(panes) > len(chosen) else [])]
    drawn = {id(curve.line) for _, _, curves in panes for curve in curves}
    left_out = dict.fromkeys(line.name for _, lines in chosen for line in lines if id(line) not in drawn)
    if left_out:
        notes.append(f"Not drawn where far from all models, or without a value: {listed(list(left_out))}.")
    if len(chosen) > 1:
        notes.append("Values compare within a protocol, not between them: each has targets of its own.")
    return Drawing(name, title, notes, figure)


def _panes(part: Part, lines: Sequence[Line]) -> list[tuple[str, Part, list[Curve]]]:
    """A panel for all curves of a part, and one with a scale of its own for those that look flat in it."""
    curves = [curve for curve, side in beside(perplexities(lines)) if not side]
    panes = [(how(part), part, curves)]
    return panes + ([(f"{how(part)}: closer", part, level)] if (level := flat(curves)) else [])


def named(line: Line, homes: Sequence[int]) -> str:
    """Its name, and where several training lengths are about its own."""
    return f"{line.name}, L = {line.train_length:,}" if line.train_length and len(set(homes)) > 1 else line.name


def _lines(part: Part, extended: bool) -> list[Line]:
    if not extended:
        return [line for line in [*part.lines, *part.references] if line.one.extension is None]
    with_extension = {line.trained for line in part.lines if line.one.extension is not None}
    return [line for line in part.lines if line.trained in with_extension]


def _homes(lines: Sequence[Line]) -> list[int]:
    return [line.train_length for line in lines if line.train_length]


def _end(curve: Curve) -> tuple[float, float]:
    """The last point that can be drawn."""
    last = curve.finite[-1]
    return last.length, value(last)
