"""Use of context: what the same targets lose with more of their document before them."""

from __future__ import annotations

from collections.abc import Sequence

from posbench.report.curves import Curve, flat, use_of_context, value
from posbench.report.figures.axes import draw, end_labels, length_axis
from posbench.report.figures.drawing import Drawing, height, panels
from posbench.report.figures.perplexity import CLOSER, named
from posbench.report.figures.style import MUTED, looks
from posbench.report.parts import Part, how


def by_context(parts: Sequence[Part], name: str, title: str) -> Drawing | None:
    """Of the protocol that reads the same targets at every length; None where nothing was read so."""
    chosen = [(part, found) for part in parts if part.shared["min_context"] is not None and (found := _curves(part))]
    if not chosen:
        return None
    look = looks([curve.line for _, found in chosen for _, curve in found])
    panes = [pane for part, found in chosen for pane in _panes(part, found)]
    with panels(len(panes), height(max(len(found) for _, found in chosen)), 7.2) as (figure, axes):
        for one, (title_of_it, part, found, homes) in zip(axes, panes, strict=True):
            one.set_title(title_of_it, loc="left")
            length_axis(one, part.lengths, _homes(found), "tokens read at once")
            one.set_ylabel(f"nats a token, less those at {_base_text(found)}")
            one.axhline(0, color=MUTED, linewidth=1)
            absent = [curve for _, curve in found if len(curve.measured) < len(curve.points)]
            for _, curve in found:
                draw(one, curve, look[id(curve.line)], absent.index(curve) if curve in absent else 0, len(found))
            ends = [(curve.measured[-1], curve.line) for _, curve in found]
            end_labels(one, [(end.length, value(end), named(line, homes), look[id(line)]) for end, line in ends])
    notes = [
        "Where a curve falls the longer context helps, where it rises it harms, where it is flat it is not used: up to "
        "L that says how much context is used at all. Bands: 95 % of the paired difference, over seeds and text of "
        "three seeds or more, over the text alone of fewer. In blocks of several targets the first ones of a block see "
        "fewer tokens than the length says: at lengths of a few blocks a curve falls for that as well."
    ]
    if len(panes) > len(chosen):
        notes.append(CLOSER)
    others = [
        f"{named(curve.line, homes)} ({base:,})"
        for _, found in chosen
        for homes in [_homes(found)]
        for base, curve in found
        if not _quarter(base, curve)
    ]
    if others:
        notes.append(
            "Of these a quarter of L was not read, so that their differences are from the shortest length that was: "
            f"{', '.join(dict.fromkeys(others))}."
        )
    return Drawing(name, title, notes, figure)


def _curves(part: Part) -> list[tuple[int, Curve]]:
    lines = [line for line in part.lines if line.one.extension is None]
    return [found for line in lines if (found := use_of_context(line)) is not None]


def _panes(part: Part, found: list[tuple[int, Curve]]) -> list[tuple[str, Part, list[tuple[int, Curve]], list[int]]]:
    """As of perplexity: all curves, and with a scale of their own those that look flat; each with the training lengths
    of all, by which the lines are named."""
    level = flat([curve for _, curve in found])
    closer = [(base, curve) for base, curve in found if curve in level]
    panes = [(how(part), part, found, _homes(found))]
    return panes + ([(f"{how(part)}: closer", part, closer, _homes(found))] if closer else [])


def _homes(found: Sequence[tuple[int, Curve]]) -> list[int]:
    return [curve.line.train_length for _, curve in found if curve.line.train_length]


def _quarter(base: int, curve: Curve) -> bool:
    """Whether a curve starts where it is meant to."""
    return base == (curve.line.train_length or 0) // 4


def _base_text(found: Sequence[tuple[int, Curve]]) -> str:
    """Where the curves of a panel start: the one length, or a quarter of each one's own."""
    bases = {base for base, _ in found}
    if len(bases) == 1:
        return f"{bases.pop():,}"
    return "L/4" if all(_quarter(*one) for one in found) else "L/4, or the shortest read"
