"""The length curve as text: a letter a line at each length that was read, dots between them, for any width.

    75.3 ┤                    b
         │               . .
         │          b
    42.9 ┤b a a . . a . . . . a
         └┬─────────┬─────────┬─
          128       256       512
          L

Nothing here needs colour: it is read the same in a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters

from posbench.report.curves import STEEP, Curve, perplexities, value, worth_drawing
from posbench.report.lengths import part_title, perplexity_text
from posbench.report.parts import Part

LEAST, MOST = 30, 100
"""Columns of a plot with its axis."""

HEIGHT = 16


def plot(part: Part, width: int) -> str:
    """The perplexity of every line of a part over the lengths, and which letter is which."""
    curves = worth_drawing(perplexities([*part.lines, *part.references]))
    names = ascii_letters[: len(curves)] if len(curves) <= len(ascii_letters) else "?" * len(curves)
    letters = list(zip(names, curves, strict=True))
    lines = _drawn(letters, part.lengths, max(LEAST, min(width, MOST))) if curves else []
    return "\n".join([f"Perplexity, {part_title(part)}", "", *lines, "", *_legend(letters)]) + "\n"


def _drawn(letters: Sequence[tuple[str, Curve]], lengths: Sequence[int], width: int) -> list[str]:
    values = [found for _, curve in letters for found in curve.values]
    low, high = min(values), max(values)
    steep = high > STEEP * low
    text = [perplexity_text(low), perplexity_text(high)]
    gutter = max(map(len, text)) + 1
    columns = width - gutter - 2

    def scaled(one: float) -> float:
        return math.log(one) if steep else one

    def row(one: float) -> int:
        span = scaled(high) - scaled(low)
        return HEIGHT - 1 if span == 0 else round((scaled(high) - scaled(one)) / span * (HEIGHT - 1))

    def column(length: int) -> int:
        span = math.log2(lengths[-1] / lengths[0])
        return 0 if span == 0 else round(math.log2(length / lengths[0]) / span * (columns - 1))

    grid = [[" "] * columns for _ in range(HEIGHT)]
    for _, curve in letters:
        for a, b in zip(curve.finite, curve.finite[1:], strict=False):
            start, end = column(a.length), column(b.length)
            for at in range(start + 1, end):
                between = scaled(value(a)) + (scaled(value(b)) - scaled(value(a))) * (at - start) / (end - start)
                grid[row(math.exp(between) if steep else between)][at] = "·"
    # In the order of the legend from last to first, so that the best one stands on top.
    for letter, curve in reversed(letters):
        for point in curve.finite:
            grid[row(value(point))][column(point.length)] = letter
    side = {0: f"{text[1]:>{gutter - 1}} ┤", HEIGHT - 1: f"{text[0]:>{gutter - 1}} ┤"}
    lines = [(side.get(number) or " " * gutter + "│") + "".join(cells).rstrip() for number, cells in enumerate(grid)]
    return [*lines, *_axis(letters, lengths, [column(length) for length in lengths], columns, gutter)]


def _axis(
    letters: Sequence[tuple[str, Curve]], lengths: Sequence[int], at: Sequence[int], columns: int, gutter: int
) -> list[str]:
    """The line below, the lengths that find room, and where the training lengths are."""
    ruler, named, homes = ["─"] * columns, "", [" "] * columns
    for column, length in zip(at, lengths, strict=True):
        ruler[column] = "┬"
        text = f"{length:,}"
        # The last one ends where the axis does.
        start = min(column, columns - len(text))
        if start >= len(named) + (1 if named else 0):
            named = named.ljust(start) + text
    for length, column in zip(lengths, at, strict=True):
        if any(curve.line.train_length == length for _, curve in letters):
            homes[column] = "L"
    indent = " " * (gutter + 1)
    return [f"{' ' * gutter}└{''.join(ruler)}", indent + named, (indent + "".join(homes)).rstrip()]


def _legend(letters: Sequence[tuple[str, Curve]]) -> list[str]:
    found = []
    for letter, curve in letters:
        line, last = curve.line, curve.finite[-1]
        trained = f", L = {line.train_length:,}" if line.train_length else ""
        seeds = f", {line.seeds} seeds" if line.seeds > 1 else ""
        ends = f"{perplexity_text(value(last))} at {last.length:,}"
        absent = [point for point in curve.points if point.value is None]
        found.append(f"{letter}  {line.name}{trained}{seeds}: {ends}" + (", n/a further on" if absent else ""))
    return found
