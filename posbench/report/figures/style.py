"""How things look: one colour and one marker an encoding, in every figure, by a rule that knows no encoding.

Colour and marker are drawn from the hash of a label, so that an encoding of the user's own has its own too, and an
encoding keeps its look whatever stands beside it. There are more encodings than colours that can be told apart: where
two share one, their markers differ, and every curve has its name at its end. Lines of one label (of several training
lengths, say) are told apart by their dashes. What was counted, not trained, is grey.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from posbench.extras import require
from posbench.report.parts import Line

COLOURS = {
    "#1878d8": "#6078a8",
    "#a89000": "#d8f048",
    "#783078": "#f0c0f0",
    "#f060a8": "#d86078",
    "#903000": "#d84818",
    "#1830a8": "#a878f0",
    "#186048": "#a8f0c0",
    "#00a860": "#48f078",
}
"""On white, and on the dark ground of the page: at least 3 : 1 against it, and found by a search for those that are
farthest apart for eyes of all kinds (at least 20 in CIELAB, red-, green- and blue-blind ones too)."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))

INK, MUTED, GRID, GROUND = "#1f2328", "#646b73", "#d8dce0", "#ffffff"
DARK = {INK: "#e6e8eb", MUTED: "#9aa2ab", GRID: "#3a4047", GROUND: "#16191d"}

SALT = "posbench 4790"
"""The first that gives the encodings of the shipped study colours of their own, and no two shipped ones one look."""

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # it comes with matplotlib, so that a figure is laid out alike everywhere
    "font.size": 11,
    "axes.titlesize": 10.5,
    "axes.labelsize": 11,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "figure.facecolor": GROUND,
    "text.color": INK,
    "text.parse_math": False,  # a name may hold a dollar
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",  # text stays text: it can be read out, found and copied
    "svg.hashsalt": SALT,
}


@dataclass(frozen=True)
class Look:
    """Of one line of a figure."""

    colour: str
    marker: str
    dashes: Any


def look(label: str) -> tuple[str, str]:
    """Colour and marker of an encoding, by its label."""
    digest = hashlib.sha256(f"{SALT} {label}".encode()).digest()
    return list(COLOURS)[digest[0] % len(COLOURS)], MARKERS[digest[1] % len(MARKERS)]


def looks(lines: Iterable[Line]) -> dict[int, Look]:
    """The look of each line, by its id; of one label the shortest training length comes first, without dashes."""
    order: dict[str, dict[tuple[int, str], int]] = {}
    for line in sorted(lines := list(lines), key=_twin):
        alike = order.setdefault(_label(line), {})
        alike.setdefault(_twin(line), len(alike))
    return {id(line): _look(line, order[_label(line)][_twin(line)]) for line in lines}


def _look(line: Line, rank: int) -> Look:
    if line.one.kind == "reference":
        return Look(MUTED, "", DASHES[(rank + 1) % len(DASHES)])
    return Look(*look(_label(line)), DASHES[rank % len(DASHES)])


def _twin(line: Line) -> tuple[int, str]:
    """What tells lines of one label apart, in all panels of a figure."""
    return line.train_length or 0, line.name


def _label(line: Line) -> str:
    """What decides its colour: its encoding, and the extension under which it was read."""
    if line.one.kind == "reference":
        return ""
    return line.one.encoding if line.one.extension is None else f"{line.one.encoding} + {line.extension}"


def need() -> None:
    """Raise `UserError` where what figures and the page are made with is not installed."""
    for module in ("matplotlib", "jinja2"):
        require("A report", module, "report")
