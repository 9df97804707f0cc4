"""The cells of a paper in which a claim was seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posbench.report import published
from posbench.report.published import Printed


@dataclass(frozen=True)
class Source:
    """The cells of a paper in which a claim was seen; with `minus` their differences from those of another table."""

    left: Printed
    right: Printed
    minus: tuple[Printed, Printed] | None = None

    @property
    def difference(self) -> float | None:
        """Nats by which the left is above the right, of speeds the logarithm of their ratio; None where one of them is
        no number."""
        numbers = [cell.value for cell in self.cells]
        if None in numbers:
            return None
        left, right, *minus = (math.log(number) for number in numbers if number is not None)
        return left - right - (minus[0] - minus[1] if minus else 0)

    @property
    def name(self) -> str:
        """Whose table it is."""
        return self.left.name if self.minus is None else f"{self.left.name} - {self.minus[0].table}"

    @property
    def cells(self) -> tuple[Printed, ...]:
        return (self.left, self.right, *(self.minus or ()))


@dataclass(frozen=True)
class Curve:
    """All lengths at which a paper printed one model, in which a claim about a failure was seen."""

    cells: tuple[Printed, ...]

    @property
    def name(self) -> str:
        """Whose table it is."""
        return self.left.name

    @property
    def left(self) -> Printed:
        """The value at the training length."""
        return self.cells[0]

    @property
    def best(self) -> int:
        """The length of the lowest perplexity."""
        return readings({cell.length: cell.value for cell in self.cells})[0]

    @property
    def back(self) -> int | None:
        """The first length past the best at which it is above the value at the training length."""
        return readings({cell.length: cell.value for cell in self.cells})[1]


def readings(perplexity: Mapping[int, float | None]) -> tuple[int, int | None]:
    """Of perplexities by length, the training length first: where it is lowest, and from where on it is above that at
    the training length (None: nowhere).

    >>> readings({512: 20.0, 612: 19.0, 712: 20.1, 812: None})
    (612, 712)
    """
    known = {length: value for length, value in perplexity.items() if value is not None}
    at_home = known[min(known)]
    best = min(known, key=lambda length: (known[length], length))
    return best, next((length for length in sorted(known) if length > best and known[length] > at_home), None)


def source(entry: Mapping[str, Any], failure: bool) -> Source | Curve:
    """Of an entry whose keys are checked. Raises KeyError, ValueError and UserError for cells that nobody printed."""
    paper, table = str(entry.get("paper", "press")), str(entry["table"])
    if failure:
        encoding, train_length = _cell(entry, "left", ("encoding", "training length"))
        return Curve(tuple(published.along(table, encoding, train_length, paper)))

    def find(table: str) -> tuple[Printed, Printed]:
        parts = ("encoding", "training length", "length")
        cells: list[tuple[str, int, int]] = [_cell(entry, side, parts) for side in ("left", "right")]
        left, right = (published.find(table, *cell, paper) for cell in cells)
        return left, right

    return Source(*find(table), minus=find(str(entry["minus"])) if "minus" in entry else None)


def _cell(entry: Mapping[str, Any], side: str, parts: Sequence[str]) -> Any:
    """Which cell of a paper's table a source names."""
    if not isinstance(found := entry[side], list) or len(found) != len(parts):
        raise ValueError(f"'{side}' of a source is {found}, not [{', '.join(parts)}]")
    return found
