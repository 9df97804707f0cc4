"""The paper's curves beside ours, as ratios to the value at the training length against multiples of it."""

from __future__ import annotations

from collections.abc import Sequence

from posbench.report.curves import Curve, Point, value
from posbench.report.figures.axes import end_labels, value_axis
from posbench.report.figures.drawing import Drawing, height, panels
from posbench.report.figures.style import MUTED, Look, looks
from posbench.report.parts import Line, Part
from posbench.report.published import SHOWN, Ratio, ratios


def beside_the_paper(parts: Sequence[Part], name: str, title: str) -> Drawing | None:
    """Of the first part of nonoverlapping windows with an encoding whose curve the paper printed; else None."""
    flat = [part for part in parts if part.shared["protocol"] == "nonoverlapping"]
    for part in flat:
        lines = [line for line in part.lines if line.name in SHOWN and len(_ours(line).points) > 1]
        if lines:
            return _draw(lines, name, title)
    return None


def _draw(lines: Sequence[Line], name: str, title: str) -> Drawing:
    look = looks(lines)
    # Of several training lengths the shortest: its look is the encoding's own.
    first = {line.name: line for line in sorted(lines, key=lambda line: -(line.train_length or 0))}
    ours = [(line.name, look[id(line)], line.train_length or 1, _ours(line).points) for line in first.values()]
    theirs = [(line.name, look[id(line)], *_theirs(ratios(line.name))) for line in first.values()]
    with panels(2, height(len(ours))) as (figure, axes):
        for one, curves, heading in zip(axes, (ours, theirs), ("these runs", "Press et al. 2022"), strict=True):
            one.set_title(heading, loc="left")
            one.axhline(1, color=MUTED, linewidth=1)
            for _, its, home, points in curves:
                one.plot(
                    [point.length / home for point in points], [value(point) for point in points], color=its.colour,
                    marker=its.marker, markersize=4,
                )  # fmt: skip
            _multiples(one, [point.length / home for _, _, home, points in curves for point in points])
            value_axis(one, [value(point) for *_, points in curves for point in points], "perplexity, times that at L")
            end_labels(one, [_end(*curve) for curve in curves])
    return Drawing(
        name,
        title,
        [
            "Nonoverlapping windows in both. Only the shape compares: the paper's perplexities are over the words of "
            "WikiText-103, with a model of 247M parameters. Each panel has a scale of its own.",
            "The paper: " + "; ".join(f"{label}, {found[0].cell.source}" for label in first if (found := ratios(label)))
            + ".",
        ],
        figure,
    )  # fmt: skip


def _multiples(axes: object, found: Sequence[float]) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    assert isinstance(axes, Axes)
    named = [2**power for power in range(8) if 2**power <= max(found) * 1.01]
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(named))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{multiple} L" for multiple in named]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("tokens read at once")


def _end(label: str, its: Look, home: int, points: Sequence[Point]) -> tuple[float, float, str, Look]:
    return points[-1].length / home, value(points[-1]), f"{label}, L = {home:,}", its


def _ours(line: Line) -> Curve:
    home = line.train_length or 1
    found = {length: line.ratio(length) for length in sorted(line.rows) if length >= home}
    return Curve(line, [Point(length, ratio.value) for length, ratio in found.items() if ratio is not None])


def _theirs(found: Sequence[Ratio]) -> tuple[int, list[Point]]:
    return found[0].cell.train_length, [Point(one.cell.length, one.value) for one in found]
