"""What it costs: speed and memory against perplexity, from the rows themselves or from a `posbench bench`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from posbench.entries import read_text
from posbench.errors import UserError, reason
from posbench.files import parse_json
from posbench.report.claims.speed import Bench
from posbench.report.figures.axes import end_labels
from posbench.report.figures.drawing import Drawing, height, panels
from posbench.report.figures.perplexity import named
from posbench.report.figures.style import looks
from posbench.report.parts import Line, Part, how

SHOWN = (
    *("task", "encoding", "length", "windows", "status", "reason", "variant", "kernel"),
    *("tokens_per_second", "against", "ratio", "ratio_low", "ratio_high", "seconds", "extra_bytes"),
    *("command", "commit", "device", "processor", "threads", "model"),
)
"""What is read of a row of a bench, so that each has to have it."""


@dataclass(frozen=True)
class Spot:
    """A line where its cost and its perplexity meet."""

    line: Line
    cost: float
    perplexity: float
    low: float | None = None
    """Of the cost, 95 %"""
    high: float | None = None


def read_bench(file: Path) -> list[dict[str, Any]]:
    """Its rows of encodings. Raises `UserError` for anything but such a file."""
    try:
        tables = parse_json(read_text(file))
        rows = [row for table in tables for row in table["rows"] if "task" in row and row["name"] == row["encoding"]]
        for row in rows:
            itemgetter(*SHOWN)(row)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {reason(error)}.") from error
    except KeyError as error:
        raise UserError(f"{file} is not whole: a row of it has no {error}.") from error
    except (ValueError, TypeError, AttributeError):
        rows = []
    if not rows:
        raise UserError(f"{file} holds no speeds of encodings.", "posbench bench encodings --out bench makes them.")
    return rows


def by_cost(parts: Sequence[Part], name: str, title: str, bench: Bench = ()) -> Drawing | None:
    """Of the first part that has any; None where no row says what it took."""
    for part in parts:
        length = part.lengths[-1]
        lines = [line for line in part.lines if line.one.extension is None and line.measured(length)]
        drawn = _benched(lines, length, bench) if bench else _of_rows(lines, length)
        if any(spots for _, spots in drawn):
            return _draw(part, length, drawn, name, title, bool(bench))
    return None


def _draw(
    part: Part, length: int, drawn: list[tuple[str, list[Spot]]], name: str, title: str, benched: bool
) -> Drawing:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    drawn = [(label, spots) for label, spots in drawn if spots]
    look = looks([spot.line for _, spots in drawn for spot in spots])
    with panels(len(drawn), height(max(len(spots) for _, spots in drawn))) as (figure, axes):
        for one, (label, spots) in zip(axes, drawn, strict=True):
            homes = [spot.line.train_length for spot in spots if spot.line.train_length]
            for spot in spots:
                its = look[id(spot.line)]
                one.plot([spot.cost], [spot.perplexity], marker=its.marker, color=its.colour, markersize=9)
                if spot.low is not None and spot.high is not None:
                    one.hlines(spot.perplexity, spot.low, spot.high, color=its.colour, linewidth=1.5)
            one.set_xlim(0, 1.08 * max(spot.high or spot.cost for spot in spots))
            one.xaxis.set_major_locator(MaxNLocator(5))
            one.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
            one.set_xlabel(label)
            one.set_ylabel(f"perplexity at {length:,}")
            one.margins(y=0.12)
            one.grid(axis="x")
            end_labels(one, [(0.0, spot.perplexity, named(spot.line, homes), look[id(spot.line)]) for spot in spots])
    notes = [f"Perplexity: {how(part)}, windows of {length:,} tokens. Lower is better; so is further right for speed."]
    if benched:
        notes.append("Speeds are of `posbench bench encodings`: interleaved rounds, with 95 % intervals.")
    else:
        notes.append(
            "Speed and memory are those noted with each row while it was measured, once, on a machine that may have "
            "had other work; `posbench bench encodings --out bench` and then `posbench report --bench bench.json` tell "
            "them apart."
        )
    return Drawing(name, title, notes, figure)


def _of_rows(lines: Sequence[Line], length: int) -> list[tuple[str, list[Spot]]]:
    """Of the machine that most rows are from: what another one took cannot stand beside it."""
    machines = Counter((row.device, row.threads) for line in lines for row in line.measured(length))
    if not machines:
        return []
    (device, threads), _ = machines.most_common(1)[0]
    rows = {
        id(line): [row for row in line.measured(length) if (row.device, row.threads) == (device, threads)]
        for line in lines
    }
    where = f"{device}, {threads} thread{'s' * (threads != 1)}" if device == "cpu" else device
    speeds = {key: [row.tokens_per_second for row in some] for key, some in rows.items()}
    peaks = {key: [row.peak_memory for row in some] for key, some in rows.items()}
    return [
        (f"tokens a second read ({where})", _spots(lines, length, speeds, 1.0)),
        ("peak memory, MiB", _spots(lines, length, peaks, 2.0**20)),
    ]


def _spots(lines: Sequence[Line], length: int, costs: Mapping[int, Sequence[float | None]], unit: float) -> list[Spot]:
    found = []
    for line in lines:
        known = [cost for cost in costs[id(line)] if cost]
        perplexity = line.perplexity(length)
        if known and perplexity:
            found.append(Spot(line, statistics.fmean(known) / unit, perplexity.value))
    return found


def _benched(lines: Sequence[Line], length: int, bench: Bench) -> list[tuple[str, list[Spot]]]:
    """A panel a task: training, and evaluation at the length that is nearest to the one drawn."""
    found = []
    for task, doing in (("train", "training"), ("eval", "evaluation")):
        rows = [row for row in bench if row["task"] == task and row["tokens_per_second"]]
        if not rows:
            continue
        nearest = min({row["length"] for row in rows}, key=lambda other: abs(other - length))
        speeds = {row["encoding"]: row for row in rows if row["length"] == nearest}
        spots = []
        for line in lines:
            row, perplexity = speeds.get(line.one.encoding), line.perplexity(length)
            # `none` is held against nothing, where it could be measured.
            timed = row is not None and (row["ratio"] is not None or row["against"] is None)
            if row is not None and timed and perplexity is not None:
                ratio = row["ratio"] or 1.0
                spots.append(Spot(line, ratio, perplexity.value, row["ratio_low"], row["ratio_high"]))
        found.append((f"{doing} speed at {nearest:,}, times that of none", spots))
    return found
