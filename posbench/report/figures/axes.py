"""What figures have in common: an axis of lengths with L marked, a curve with its band, names at the ends of curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from posbench.report.curves import Curve, steep, value
from posbench.report.figures.style import INK, MUTED, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 6
"""Lengths that are named along an axis, at most about so many; never two within half an octave."""


def length_axis(axes: Axes, lengths: Iterable[int], homes: Iterable[int], label: str) -> None:
    """Logarithmic, named at the lengths that were read, with a line at each training length."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    lengths, named = sorted(set(lengths)), list[int]()
    apart = max(0.5, math.log2(lengths[-1] / lengths[0]) / NAMED)
    for length in lengths:
        if not named or math.log2(length / named[-1]) >= apart:
            named.append(length)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(named))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{length:,}" for length in named]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)
    for home in sorted(set(homes)):
        axes.axvline(home, color=MUTED, linewidth=1, linestyle=(0, (1, 2)), zorder=0)
        axes.annotate(
            f"L = {home:,}", (home, 1), xycoords=("data", "axes fraction"), xytext=(2, -2), fontsize=8.5, color=MUTED,
            textcoords="offset points", va="top", rotation=90,
        )  # fmt: skip


def value_axis(axes: Axes, values: Iterable[float], label: str) -> None:
    """Linear, or logarithmic where the values are steep."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_ylabel(label)
    if steep([one for one in values if math.isfinite(one) and one > 0]):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def draw(axes: Axes, curve: Curve, look: Look, rank: int = 0, curves: int = 1) -> None:
    """A curve with its band, fainter the more `curves` there are. What is n/a is a cross at the bottom, where `rank`
    keeps those of several curves apart; what no float holds is an arrow at the top."""
    known = curve.finite
    axes.plot(
        [point.length for point in known],
        [value(point) for point in known],
        color=look.colour,
        linestyle=look.dashes,
        marker=look.marker,
    )
    banded = [point for point in known if point.low is not None and point.high is not None]
    if len(banded) > 1 and look.marker:
        axes.fill_between(
            [point.length for point in banded],
            [point.low for point in banded if point.low is not None],
            [point.high for point in banded if point.high is not None],
            color=look.colour, alpha=min(0.18, 1.1 / curves), linewidth=0,
        )  # fmt: skip
    for point in known:
        if point.length == curve.line.train_length:
            axes.plot(
                [point.length], [value(point)], marker=look.marker, color=look.colour, markersize=8,
                markeredgecolor=INK, markeredgewidth=1,
            )  # fmt: skip
    edge = axes.get_xaxis_transform()
    for point in curve.points:
        if point.value is None:
            axes.plot([point.length], [0.03 + 0.05 * rank], marker="x", color=look.colour, transform=edge, markersize=6,
                      markeredgewidth=1.8, clip_on=False)  # fmt: skip
        elif math.isinf(point.value):
            axes.plot([point.length], [0.99], marker="^", color=look.colour, transform=edge, clip_on=False)


def end_labels(axes: Axes, labels: Sequence[tuple[float, float, str, Look]], size: float = 9.5) -> None:
    """The names of the curves to the right of the axes, each beside the end (x, y) of its own, none over another.

    To be called last: the limits of the axes must not change any more.
    """
    from matplotlib.lines import Line2D

    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    axes.set_xlim(*axes.get_xlim())
    to_axes = axes.transScale + axes.transLimits
    specification = axes.get_subplotspec()
    assert specification is not None
    figure = axes.get_figure(root=True)
    assert figure is not None
    height = figure.get_size_inches()[1] / specification.get_gridspec().nrows
    least = 1.35 * size / (72 * height * 0.78)
    ends = sorted(((*to_axes.transform((x, y)), text, look) for x, y, text, look in labels), key=lambda end: end[1])
    places = spread([min(1.0, max(0.0, float(end[1]))) for end in ends], least)
    for (x, y, text, look), place in zip(ends, places, strict=True):
        if x > 0.9:  # where the curve reaches the end of the axes, a thin line leads on to its name
            axes.plot([x, 1.03], [y, place], transform=axes.transAxes, color=look.colour, linewidth=0.7, clip_on=False)
        axes.add_line(
            Line2D([1.03, 1.075], [place, place], transform=axes.transAxes, color=look.colour, marker=look.marker,
                   markevery=[1], linestyle=look.dashes, linewidth=1.4, clip_on=False)
        )  # fmt: skip
        axes.text(1.1, place, text, transform=axes.transAxes, fontsize=size, va="center", color=INK)


def spread(places: Sequence[float], least: float) -> list[float]:
    """Sorted places moved apart to a distance of `least`, as little as that takes, each group about its middle.

    >>> [round(place, 2) for place in spread([0.1, 0.5, 0.5], 0.2)]
    [0.1, 0.4, 0.6]
    """
    groups = [[place] for place in places]
    centres = list(places)
    at = 0
    while at + 1 < len(groups):
        reach = (len(groups[at]) + len(groups[at + 1])) / 2 * least
        if centres[at + 1] - centres[at] >= reach - 1e-12:
            at += 1
            continue
        groups[at] += groups.pop(at + 1)
        centres.pop(at + 1)
        centres[at] = sum(groups[at]) / len(groups[at])
        at = max(0, at - 1)
    return [
        centre + (number - (len(group) - 1) / 2) * least
        for centre, group in zip(centres, groups, strict=True)
        for number in range(len(group))
    ]
