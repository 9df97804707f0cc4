"""What papers printed, read from published.csv: Press, Smith & Lewis (arXiv 2108.12409v2) and a few others.

Their perplexities are of other texts, tokens and models: next to ours only their ratios and the shape of the curve can
be compared, never the values.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posbench.report.lengths import perplexity_text, ratio_text
from posbench.report.parts import Line, Part
from posbench.report.tables import Cell, Column, Section, Table, cell

SHOWN = {"alibi": ("Table 5", 128), "sinusoidal": ("Table 2", 512), "rope": ("Table 2", 512), "t5": ("Table 2", 512)}
"""The paper's curve that stands beside one of ours, and the length it was trained at: 128 only for ALiBi."""


@dataclass(frozen=True)
class Printed:
    """One number of a paper, as a string with the digits it was printed with ("OOM" where it did not fit)."""

    paper: str
    """press, haviv, ...: what the claims of a study call it"""
    table: str
    encoding: str
    train_length: int
    length: int
    protocol: str
    stride: int | None
    text: str
    """perplexity; of Table 1 words a second"""
    source: str
    """paper, table, address and text"""
    model: str

    @property
    def name(self) -> str:
        """Whose table it is: "Press, Table 5"."""
        return f"{self.paper.capitalize()}, {self.table}"

    @property
    def value(self) -> float | None:
        return None if self.text == "OOM" else float(self.text)


@functools.cache
def printed() -> tuple[Printed, ...]:
    """All of published.csv."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as lines:
        return tuple(
            Printed(
                line["paper"],
                line["table"],
                line["encoding"],
                int(line["train_length"]),
                int(line["length"]),
                line["protocol"],
                int(line["stride"]) if line["stride"] else None,
                line["value"],
                line["source"],
                line["model"],
            )
            for line in csv.DictReader(lines)
        )


class UnprintedError(KeyError):
    """A paper has no such number."""

    def __str__(self) -> str:
        return str(self.args[0])


def find(table: str, encoding: str, train_length: int, length: int, paper: str = "press") -> Printed:
    """The number of one cell of a paper. Raises `UnprintedError` when there is none."""
    wanted = (paper, table, encoding, train_length, length)
    for entry in printed():
        if (entry.paper, entry.table, entry.encoding, entry.train_length, entry.length) == wanted:
            return entry
    raise UnprintedError(
        f"{table} of the paper has no {encoding} trained at {train_length} and read at {length} ({paper})"
    )


def along(table: str, encoding: str, train_length: int, paper: str = "press") -> list[Printed]:
    """All lengths at which a paper printed one model, shortest first. Raises `UnprintedError` when there is none."""
    wanted = (paper, table, encoding, train_length)
    found = [entry for entry in printed() if (entry.paper, entry.table, entry.encoding, entry.train_length) == wanted]
    if not found:
        raise UnprintedError(f"{table} of the paper has no {encoding} trained at {train_length} ({paper})")
    return sorted(found, key=lambda entry: entry.length)


def curve(table: str, encoding: str, train_length: int, multiples: Sequence[float]) -> dict[float, Printed]:
    """For each multiple of the training length the paper's nearest one, where it lies within a quarter.

    Table 2 has no whole multiples of 512 but 512, 1012, 1112, ...: 4 x is read at 2,512 (4.9 x), 32 x at 15,512.
    """
    entries = along(table, encoding, train_length)
    found: dict[float, Printed] = {}
    for multiple in multiples:
        wanted = multiple * train_length
        nearest = min(entries, key=lambda entry: abs(entry.length - wanted), default=None)
        if nearest and abs(nearest.length - wanted) <= wanted / 4:
            found[multiple] = nearest
    return found


@dataclass(frozen=True)
class Ratio:
    """A number of a paper over the one at the training length."""

    cell: Printed
    value: float


def ratios(encoding: str) -> list[Ratio]:
    """The curve that stands beside ours of an encoding in `SHOWN`: all lengths with a number, shortest first."""
    cells = along(*_row(encoding))
    return [Ratio(cell, _to_home(cell)) for cell in cells if cell.value is not None]


def _row(encoding: str) -> tuple[str, str, int]:
    table, train_length = SHOWN[encoding]
    return table, encoding, train_length


def _to_home(cell: Printed) -> float:
    home = find(cell.table, cell.encoding, cell.train_length, cell.train_length, cell.paper).value
    assert home is not None
    assert cell.value is not None
    return cell.value / home


def beside(part: Part) -> Table | None:
    """Our curves of a nonoverlapping part, each with the paper's below; None when it holds none the paper printed."""
    lines = [line for line in part.lines if line.one.encoding in SHOWN and line.one.extension is None]
    lines.sort(key=lambda line: (list(SHOWN).index(line.one.encoding), line.train_length))
    multiples = sorted({length / (line.train_length or 1) for line in lines for length in part.lengths})
    multiples = [multiple for multiple in multiples if multiple >= 1]
    if not lines:
        return None
    curves = []
    for encoding, (name, train_length) in SHOWN.items():
        ours = [line for line in lines if line.one.encoding == encoding]
        curves += [_ours(line, multiples) for line in ours]
        if ours:
            curves.append(_theirs(name, encoding, train_length, multiples))
    curves = [points for points in curves if points]
    columns = [Column("encoding", "encoding", right=False), Column("from", "from", right=False), Column("L", "L")]
    columns += [Column(f"{multiple:g}", f"{multiple:g} x") for multiple in multiples]

    def section(title: str, key: str, text: Callable[[float], str]) -> Section:
        rows = []
        for points in curves:
            head = [cell(points[0]["label"]), cell(points[0]["from"]), cell(points[0]["train_length"])]
            found = {point["multiple"]: point for point in points}
            for multiple in multiples:
                point = found.get(multiple, {})
                value = point.get(key)
                shown = point.get("printed", "") if value is None else text(value)
                true = point.get("length", 0) / points[0]["train_length"]
                head.append(Cell(value, shown + (f" ({true:.3g} x)" if shown and true != multiple else "")))
            rows.append(head)
        return Section(title, rows)

    return Table(
        "Beside the paper: Press, Smith & Lewis 2022, https://arxiv.org/abs/2108.12409v2, nonoverlapping",
        columns,
        [
            section("Ratio to the value at L", "ratio", ratio_text),
            section("Perplexity", "perplexity", perplexity_text),
        ],
        [
            "Only the ratios and the shape compare: the paper's perplexities are over the words of WikiText-103, "
            "with a model of 247M parameters.",
            "The paper trained ALiBi at 128 (Table 5). Of the others it printed such curves from L = 512 up (Table 2), "
            "which are shown under the nearest multiple, the true one in brackets.",
        ],
        [point for points in curves for point in points],
    )


def _ours(line: Line, multiples: Sequence[float]) -> list[dict[str, Any]]:
    train_length = line.train_length or 1
    points = []
    for multiple in multiples:
        length = round(multiple * train_length)
        perplexity, ratio = line.perplexity(length), line.ratio(length)
        points.append(
            {
                "encoding": line.one.encoding,
                "label": line.label,
                "from": "these runs",
                "train_length": train_length,
                "multiple": multiple,
                "length": length,
                "perplexity": perplexity and perplexity.value,
                "ratio": ratio and ratio.value,
            }
        )
    return points


def _theirs(name: str, encoding: str, train_length: int, multiples: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {
            "encoding": encoding,
            "label": encoding,
            "from": name,
            "train_length": train_length,
            "multiple": multiple,
            "length": entry.length,
            "perplexity": entry.value,
            "ratio": None if entry.value is None else _to_home(entry),
            "printed": entry.text,
        }
        for multiple, entry in curve(name, encoding, train_length, multiples).items()
    ]
