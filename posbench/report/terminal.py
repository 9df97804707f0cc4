"""The length curve as text: a letter a line at each length that was read, dots between them, for any width.

    75.3 ┤                    r
         │               . .
         │          r
    42.9 ┤r a a . . a . . . . a
         └┬─────────┬─────────┬─
          128       256       512
          L

Nothing here needs colour: it is read the same in a file.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import ascii_letters

from posbench.report.curves import Curve, beside, perplexities, steep, value
from posbench.report.lengths import listed, part_title, perplexity_text, told_apart
from posbench.report.parts import UNDERTRAINED, Line, Part, before_target, marked

LEAST, MOST = 30, 100
"""Columns of a plot with its axis."""

HEIGHT = 16

Name = tuple[str, int | None]
"""Of a line, with its training length: what the same line has in every part."""

Scale = Callable[[float], float]
"""Of the axis of values."""

Hidden = dict[tuple[str, str], list[int]]
"""The lengths at which one letter stands behind another, by (hidden, seen)."""


def plots(found: Sequence[Part], width: int) -> list[str]:
    """A picture a part: the perplexity of every line over the lengths, which letter is which, and what has none.

    A line has the same letter in all of them, of its own name where that is free.
    """
    letters = _letters(line for part in found for line in [*part.lines, *part.references])
    titles = told_apart([part_title(part) for part in found], found)
    return [
        _plot(part, title, max(LEAST, min(width, MOST)), letters) for part, title in zip(found, titles, strict=True)
    ]


def _name(line: Line) -> Name:
    return line.name, line.train_length


def _letters(lines: Iterable[Line]) -> dict[Name, str]:
    """One for each name, the runs' first; a question mark when there are none left."""
    found: dict[Name, str] = {}
    for line in sorted(lines, key=lambda line: (line.one.kind != "run", line.name, line.train_length or 0)):
        own = "".join(character for character in line.name if character in ascii_letters).lower()
        wanted = own[:1] + own[:1].upper() + own + own.upper() + ascii_letters
        taken = set(found.values())
        found.setdefault(_name(line), next((letter for letter in wanted if letter not in taken), "?"))
    return found


def _plot(part: Part, title: str, width: int, names: Mapping[Name, str]) -> str:
    curves = perplexities([*part.lines, *part.references])
    sides = beside(curves)
    letters = [(names[_name(curve.line)], curve) for curve, side in sides if not side]
    models = [found for curve, _ in sides if curve.line.one.kind == "run" for found in curve.values]
    scale = math.log if steep(models or [found for _, curve in letters for found in curve.values]) else float
    lines, hidden = _drawn(letters, part.lengths, width, scale) if letters else ([], {})
    outside = [f"{_named(curve)}: {_ends(curve)}, {side} the plot" for curve, side in sides if side]
    absent = [f"{_named(curve)}: {_unread(curve)}" for curve in curves if not curve.finite]
    daggers = [UNDERTRAINED] if any(line.undertrained for line in part.lines) else []
    told = [*_legend(letters, hidden), *outside, *absent, *daggers, "", before_target(part)]
    wrapped = [textwrap.fill(line, width, subsequent_indent="   " * (line != told[-1])) for line in told]
    return "\n".join([f"Perplexity, {title}", "", *lines, "", *wrapped]) + "\n"


def _drawn(
    letters: Sequence[tuple[str, Curve]], lengths: Sequence[int], width: int, scale: Scale
) -> tuple[list[str], Hidden]:
    values = [found for _, curve in letters for found in curve.values]
    low, high = min(values), max(values)
    text = [perplexity_text(low), perplexity_text(high)]
    gutter = max(map(len, text)) + 1
    columns = width - gutter - 2

    def row(one: float) -> int:
        """Of a value on the scale."""
        span = scale(high) - scale(low)
        return HEIGHT - 1 if span == 0 else round((scale(high) - one) / span * (HEIGHT - 1))

    def column(length: int) -> int:
        span = math.log2(lengths[-1] / lengths[0])
        return 0 if span == 0 else round(math.log2(length / lengths[0]) / span * (columns - 1))

    grid = [[" "] * columns for _ in range(HEIGHT)]
    for _, curve in letters:
        for a, b in zip(curve.finite, curve.finite[1:], strict=False):
            start, end = column(a.length), column(b.length)
            first, last = scale(value(a)), scale(value(b))
            for at in range(start + 1, end):
                grid[row(first + (last - first) * (at - start) / (end - start))][at] = "·"
    seen: dict[tuple[int, int], str] = {}
    hidden: Hidden = {}
    # In the order of the legend, so that the best one is seen.
    for letter, curve in letters:
        for point in curve.finite:
            place = row(scale(value(point))), column(point.length)
            if seen.setdefault(place, letter) != letter:
                hidden.setdefault((letter, seen[place]), []).append(point.length)
    for (down, across), letter in seen.items():
        grid[down][across] = letter
    # Of a single value that is one label, where it stands.
    side = {row(scale(one)): f"{word:>{gutter - 1}} ┤" for one, word in zip((low, high), text, strict=True)}
    lines = [(side.get(number) or " " * gutter + "│") + "".join(cells).rstrip() for number, cells in enumerate(grid)]
    return [*lines, *_axis(letters, lengths, [column(length) for length in lengths], columns, gutter)], hidden


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


def _legend(letters: Sequence[tuple[str, Curve]], hidden: Hidden) -> list[str]:
    found = []
    for letter, curve in letters:
        absent = [point for point in curve.points if point.value is None]
        behind = [
            f"; behind {seen} at {listed([f'{length:,}' for length in at])}"
            for (covered, seen), at in hidden.items()
            if covered == letter
        ]
        further = ", n/a further on" if absent else ""
        found.append(f"{letter}  {_named(curve)}: {_ends(curve)}{further}{''.join(behind)}")
    return found


def _named(curve: Curve) -> str:
    line = curve.line
    trained = f", L = {line.train_length:,}" if line.train_length else ""
    return f"{marked(line.name, line.undertrained)}{trained}" + (f", {line.seeds} seeds" if line.seeds > 1 else "")


def _ends(curve: Curve) -> str:
    last = curve.finite[-1]
    return f"{perplexity_text(value(last))} at {last.length:,}"


def _unread(curve: Curve) -> str:
    """Why a line has nothing that could be drawn."""
    return "past any number" if curve.measured else "n/a"
