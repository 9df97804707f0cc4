"""The one table and its one renderer.

Whoever has something to show builds a `Table`; `render` turns it into text for a terminal, Markdown, CSV, JSON or
LaTeX. A cell holds the value as measured and the text a reader sees, so that a printed number is always a rounding of
the one in the JSON.
"""

from __future__ import annotations

import csv
import html as markup
import io
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from posbench.errors import unknown

FORMATS = ("table", "md", "csv", "json", "latex")


class Cell(NamedTuple):
    """One entry: `value` unrounded, for csv and json; `text` for a reader."""

    value: Any
    text: str
    best: bool = False
    """Of its column: shown bold."""
    source: str = ""
    """The row it is from, as the page calls it."""


EMPTY = Cell(None, "")


def cell(value: Any, text: str | None = None) -> Cell:
    """A cell whose text is the value's own: thousands separated, floats to four digits, None a dash."""
    if text is None:
        if value is None:
            text = "-"
        elif isinstance(value, int) and not isinstance(value, bool):
            text = f"{value:,}"
        elif isinstance(value, float):
            text = f"{value:.4g}"
        else:
            text = str(value)
    return Cell(value, text)


@dataclass(frozen=True)
class Column:
    """`key` names it in csv and json, `title` on the page; numbers stand to the right."""

    key: str
    title: str
    right: bool = True


@dataclass
class Section:
    """Rows that belong together under a heading of their own (an empty one: only a line apart)."""

    title: str
    rows: list[list[Cell]]


@dataclass
class Table:
    """A title, columns, rows in sections, and notes below.

    `records` is what csv and json give, one mapping a line; None: the cells' values under the columns' keys. With
    `repeat_head` the columns are named again in each section that has a heading.
    """

    title: str
    columns: list[Column]
    sections: list[Section]
    notes: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] | None = None
    repeat_head: bool = True

    def data(self) -> list[dict[str, Any]]:
        """The rows as mappings of unrounded values."""
        if self.records is not None:
            return self.records
        keys = [column.key for column in self.columns]
        return [
            dict(zip(keys, (entry.value for entry in row), strict=True))
            for section in self.sections
            for row in section.rows
        ]


def table(title: str, columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], notes: Sequence[str] = ()) -> Table:
    """A plain table from one mapping a row: values are `Cell`s, or become one through `cell`."""
    body = [
        [entry if isinstance(entry := row.get(column.key), Cell) else cell(entry) for column in columns] for row in rows
    ]
    return Table(title, list(columns), [Section("", body)], list(notes))


def render(
    tables: Table | Sequence[Table],
    format: str = "table",
    width: int | None = None,
    bold: bool = False,
    digits: int | None = None,
) -> str:
    """The text of one or several tables.

    `width` is a terminal's: wider tables are then laid out in bands of columns, the first column repeated. None, off a
    terminal: the full width. No number is ever cut or wrapped. `bold`: it shows the best of each column so, as md and
    latex always do. `digits`: that many of the numbers in csv and json; None: all of them. Raises `UserError` for an
    unknown format.
    """
    many = [tables] if isinstance(tables, Table) else list(tables)
    if format == "table":
        return _terminal(many, width, bold)
    if format == "md":
        return "\n".join(_markdown(one) for one in many)
    if format == "latex":
        return PREAMBLE + "\n".join(_latex(one) for one in many)
    if format == "csv":
        return _csv(many, digits)
    if format == "json":
        entries = [{"title": one.title, "rows": _rounded(one.data(), digits), "notes": one.notes} for one in many]
        return json.dumps(_finite(entries), indent=1, ensure_ascii=False) + "\n"
    raise unknown("format", format, FORMATS)


def show(tables: Table | Sequence[Table], format: str = "table") -> None:
    """Print `tables` on stdout: as wide as they are into a pipe or file, in bands on a terminal too narrow for them."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    sys.stdout.write(render(tables, format, width, bold=terminal and os.environ.get("TERM") != "dumb"))


def _terminal(tables: Sequence[Table], width: int | None, bold: bool) -> str:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    out = io.StringIO()
    gap = 2

    def prose(text: str, least: int) -> None:
        # Only between words: a number or a path stays whole, whatever the width.
        limit = width or max(least, 100)
        out.write(textwrap.fill(text, limit, break_long_words=False, break_on_hyphens=False) + "\n")

    for number, one in enumerate(tables):
        rows = [row for section in one.sections for row in section.rows]
        widths = [
            max([cell_len(column.title), *(cell_len(row[i].text) for row in rows)])
            for i, column in enumerate(one.columns)
        ]
        size = sum(widths) + gap * len(widths) + 1
        console = Console(file=out, width=size, color_system="standard" if bold else None, force_terminal=bold)
        out.write("\n" if number else "")
        prose(one.title, sum(widths))
        for band in _bands(widths, gap, width):
            for position, section in enumerate(one.sections):
                if section.title:
                    out.write("\n")
                    prose(section.title, sum(widths))
                elif position:
                    out.write("─" * (sum(widths[i] + gap for i in band) - gap) + "\n")
                head = position == 0 or (one.repeat_head and bool(section.title))
                grid = Grid(box=None, padding=(0, gap, 0, 0), show_header=head, pad_edge=False)
                for i in band:
                    justify: Literal["left", "right"] = "right" if one.columns[i].right else "left"
                    grid.add_column(Text(one.columns[i].title), width=widths[i], no_wrap=True, justify=justify)
                for row in section.rows:
                    grid.add_row(*(Text(row[i].text, "bold" if row[i].best else "") for i in band))
                console.print(grid)
        notes = _notes(one) if bold else one.notes
        out.write("\n" if notes else "")
        for note in notes:
            prose(note, sum(widths))
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


def _bands(widths: Sequence[int], gap: int, limit: int | None) -> list[list[int]]:
    """The columns in groups that fit `limit` characters, the first column in each.

    >>> _bands([4, 5, 5, 5], gap=2, limit=18)
    [[0, 1, 2], [0, 3]]
    """
    if limit is None:
        return [list(range(len(widths)))]
    bands = [[0]]
    used = widths[0]
    for i in range(1, len(widths)):
        if len(bands[-1]) > 1 and used + gap + widths[i] > limit:
            bands.append([0])
            used = widths[0]
        bands[-1].append(i)
        used += gap + widths[i]
    return bands


def _notes(one: Table) -> list[str]:
    """Those of a table whose best values are shown bold."""
    best = any(entry.best for section in one.sections for row in section.rows for entry in row)
    return [*one.notes, *(["Bold: the best of its column."] if best else [])]


def _bold(entry: Cell, begin: str, end: str, written: Callable[[str], str] = str) -> str:
    return begin + written(entry.text.strip()) + end if entry.best else written(entry.text)


def _markdown(one: Table) -> str:
    def line(texts: Iterable[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    lines = [f"**{one.title}**", ""]
    for position, section in enumerate(one.sections):
        if section.title:
            lines += [*([""] if position else []), f"*{section.title}*", ""]
        if section.title or position == 0:
            lines.append(line(column.title for column in one.columns))
            lines.append(line("---:" if column.right else ":---" for column in one.columns))
        lines += [line(_bold(entry, "**", "**") for entry in row) for row in section.rows]
    if notes := _notes(one):
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
_LATEX |= {"×": r"$\times$", "<": r"$<$", ">": r"$>$", "≤": r"$\le$"}
_LATEX |= {character: "\\" + character for character in "&%$#_{}"}


PREAMBLE = "% needs \\usepackage{booktabs}\n"


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _latex(one: Table) -> str:
    count = len(one.columns)
    lines = [r"\begin{table}", rf"\caption{{{_tex(one.title)}}}"]
    lines.append(rf"\begin{{tabular}}{{{''.join('r' if column.right else 'l' for column in one.columns)}}}")
    lines += [r"\toprule", " & ".join(_tex(column.title) for column in one.columns) + r" \\"]
    for section in one.sections:
        lines.append(r"\midrule")
        if section.title:
            lines.append(rf"\multicolumn{{{count}}}{{l}}{{\emph{{{_tex(section.title)}}}}} \\")
        lines += [" & ".join(_bold(entry, r"\textbf{", "}", _tex) for entry in row) + r" \\" for row in section.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\footnotesize {_tex(note)}" for note in _notes(one)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _csv(tables: Sequence[Table], digits: int | None) -> str:
    """One header over all tables; with several, the first column tells which table a line is of."""
    data = [(one.title, record) for one in tables for record in _rounded(one.data(), digits)]
    records = [({"table": title} if len(tables) > 1 else {}) | record for title, record in data]
    keys = list(dict.fromkeys(key for record in records for key in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _plain(value) for key, value in record.items()} for record in records)
    return out.getvalue()


def _plain(value: Any) -> Any:
    """A list as its members with spaces between them: a cell of csv has no lists."""
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _rounded(value: Any, digits: int | None) -> Any:
    """The same data with so many significant digits of each float.

    >>> _rounded([{"loss": 1 / 3, "seeds": 2}], 3)
    [{'loss': 0.333, 'seeds': 2}]
    """
    if isinstance(value, float) and digits is not None:
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _rounded(entry, digits) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry, digits) for entry in value]
    return value


def _finite(value: Any) -> Any:
    """The same data with None for the floats that JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def html(one: Table, rows: Collection[str] = ()) -> str:
    """A table of a page, all of it escaped. A cell whose source is among `rows` is a link to it."""
    head = "".join(f'<th scope="col"{_left(column)}>{_head(column)}</th>' for column in one.columns)
    lines = [f"<table><caption>{linked(one.title)}</caption>", f"<thead><tr>{head}</tr></thead>"]
    for section in one.sections:
        lines.append("<tbody>")
        if section.title:
            lines.append(
                f'<tr><th scope="rowgroup" colspan="{len(one.columns)}" class="section">'
                f"{linked(section.title)}</th></tr>"
            )
        for row in section.rows:
            cells = [
                f"<td{_left(column)}>{_html_cell(entry, rows)}</td>"
                for column, entry in zip(one.columns, row, strict=True)
            ]
            lines.append(f"<tr>{''.join(cells)}</tr>")
        lines.append("</tbody>")
    lines.append("</table>")
    notes = "".join(f"<li>{linked(note)}</li>" for note in _notes(one))
    return f'<div class="table">{"".join(lines)}</div>' + (f'<ul class="notes">{notes}</ul>' if notes else "")


def linked(text: str) -> str:
    """A text escaped for a page, its addresses links, what stands in backquotes code.

    >>> linked("<b> at https://arxiv.org/abs/2108.12409v2, p. 3")
    '&lt;b&gt; at <a href="https://arxiv.org/abs/2108.12409v2">arxiv.org/abs/2108.12409v2</a>, p. 3'
    """
    found = re.sub(r"`([^`]+)`", r"<code>\1</code>", markup.escape(text))
    return re.sub(r"https?://([\w./%-]*\w)", r'<a href="\g<0>">\1</a>', found)


def _head(column: Column) -> str:
    """Its title, which a narrow page may wrap, but not before a sign of percent."""
    return markup.escape(column.title).replace(" %", "&nbsp;%")


def _left(column: Column) -> str:
    return "" if column.right else ' class="left"'


def _html_cell(entry: Cell, rows: Collection[str]) -> str:
    text = markup.escape(entry.text.strip())
    text = f"<strong>{text}</strong>" if entry.best else text
    return f'<a href="#row-{entry.source}">{text}</a>' if entry.source in rows else text
