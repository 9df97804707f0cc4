"""Loss by position: where in a window it is lost, from the sums that are kept beside each row.

With `nonoverlapping`, longer windows lower the mean because fewer targets stand early in one; down a column of this
table that effect is gone, and what remains is whether more context helps or harms. From column to column of one line
targets see as much, so that the text alone differs, but for a method that knows how long its window is.

Left out is what a few places of the text decide: buckets of fewer than `FEWEST_TARGETS`, and in sliding windows the
contexts below L - stride + 1, which the first window alone has.
"""

from __future__ import annotations

import statistics as stats
from collections.abc import Iterable, Sequence
from typing import Any

from posbench import records
from posbench.records import Row
from posbench.report.lengths import listed, numbered, part_title
from posbench.report.parts import Line, Part, before_target, order, parts
from posbench.report.tables import EMPTY, Cell, Column, Section, Table

FIRST = 8
"""The first bucket holds contexts 1 to 8; each further one ends at twice as much."""

FEWEST_TARGETS = 256
"""Of a bucket that is shown."""

LEFT_OUT = (
    f"Not shown: what fewer than {FEWEST_TARGETS} targets stand behind, and of sliding windows the short contexts that "
    "only the first one has."
)

SOME = "°"
"""Marks a loss of some of the targets that a part has at every length."""


def buckets(longest: int) -> list[tuple[int, int]]:
    """First and last context of each bucket up to `longest`.

    >>> buckets(40)
    [(1, 8), (9, 16), (17, 32), (33, 40)]
    """
    found, low, high = [], 1, FIRST
    while low <= longest:
        found.append((low, min(high, longest)))
        low, high = high + 1, 2 * high
    return found


def position_tables(rows: Iterable[Row]) -> list[Table]:
    """One table a part, one section a line: contexts down, window lengths across."""
    found = parts(rows)
    return numbered([_table(part) for part in found], found)


def _table(part: Part) -> Table:
    columns = [Column("context", "context")] + [Column(str(length), f"{length:,}") for length in part.lengths]
    sections, data, absent = [], [], []
    for line in [*part.lines, *part.references]:
        measured = {length: losses(line, length) for length in part.lengths}
        cells = []
        for low, high in buckets(part.lengths[-1]):
            seen = [measured[length].get(low) for length in part.lengths]
            if any(seen):
                cells.append([Cell(None, f"{low:,}-{high:,}"), *(_cell(record, part) for record in seen)])
        if cells:
            where = f", trained at {line.train_length:,}" if line.train_length else ""
            sections.append(Section(line.name + where, cells))
        data += [record for length in part.lengths for record in measured[length].values()]
        absent += _absent(line, part.lengths)
    notes = [
        "Nats a token of the targets that see that many tokens of their window (context), the mean over seeds. "
        + LEFT_OUT,
        before_target(part),
    ]
    if part.shared["protocol"] != "same-targets":
        notes.append(
            "Compare down a column, from few tokens seen to many. Along a row targets see as many in each column, and "
            "its numbers differ mostly because these are other targets."
        )
    if len(part.lines) > 1:
        notes.append(order(part))
    if any(entry.text.endswith(SOME) for section in sections for row in section.rows for entry in row):
        notes.append(
            f"{SOME} of only some of the targets, easier or harder than the rest: compare it with no other cell."
        )
    return Table(f"Loss by position, {part_title(part)}", columns, sections, [*notes, *absent], data, repeat_head=False)


def _cell(record: dict[str, Any] | None, part: Part) -> Cell:
    """Marked where its targets are only some of a set that is the same at every length."""
    if record is None:
        return EMPTY
    mark = ""
    if part.shared["protocol"] == "same-targets":
        # A space where no mark stands keeps the digits below each other.
        mark = SOME if record["targets"] < part.one.targets else " "
    return Cell(record["loss"], f"{record['loss']:.3f}{mark}")


def _absent(line: Line, lengths: Sequence[int]) -> list[str]:
    """A note for each reason why a line was not measured, with all lengths that it holds for."""
    found: dict[str | None, list[str]] = {}
    for length in lengths:
        if length in line.rows and not line.measured(length):
            found.setdefault(line.rows[length][0].reason, []).append(f"{length:,}")
    return [f"{line.name} at {listed(at)} is n/a: {reason}" for reason, at in found.items()]


def losses(line: Line, length: int) -> dict[int, dict[str, Any]]:
    """The record of each bucket that is shown, by its first context."""
    rows = line.measured(length)
    seeds = [arrays for row in rows if (arrays := records.arrays(row)) is not None]
    found = {}
    least = 1 if not rows or rows[0].stride is None else length - rows[0].stride + 1
    for low, high in buckets(length):
        # An edge of a bin may lie past the length, never past a bucket's end before that.
        inside = [(low <= one.position) & ((one.position <= high) | (high == length)) for one in seeds]
        count = [int(one.position_count[at].sum()) for one, at in zip(seeds, inside, strict=True)]
        if high < least or max(count, default=0) < FEWEST_TARGETS:
            continue
        nats = [float(one.position_nats[at].sum()) for one, at in zip(seeds, inside, strict=True)]
        means = [total / targets for total, targets in zip(nats, count, strict=True)]
        row = rows[0]
        found[low] = {
            "encoding": row.encoding,
            "label": line.name,
            "kind": row.kind,
            "train_length": row.train_length,
            "length": length,
            "protocol": row.protocol,
            "stride": row.stride,
            "block": row.block,
            "min_context": row.min_context,
            "corpus": row.corpus,
            "tokenizer": row.tokenizer,
            "split": row.split,
            "context_from": low,
            "context_to": high,
            "targets": count[0],
            "loss": stats.fmean(means),
            "loss_seed_deviation": stats.stdev(means) if len(means) > 1 else None,
            "seeds": len(means) if row.kind == "run" else None,
            "runs": [one.run for one in rows],
        }
    return found
