"""What each encoding costs, from the rows of one `posbench bench encodings`: speed against none's, and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posbench.report.claims.speed import Bench, heading
from posbench.report.lengths import ratio_cell
from posbench.report.tables import EMPTY, Cell, Column, Section, Table, cell

COLUMNS = [
    Column("encoding", "encoding", right=False),
    Column("ratio", "times none's speed [95 %]"),
    Column("tokens_per_second", "tokens/s"),
    Column("extra_bytes", "memory, MiB"),
    Column("kernel", "how", right=False),
]


def cost_table(bench: Bench) -> Table | None:
    """A section for training and one for each length of evaluation; None where nothing was timed."""
    if not bench:
        return None
    sections: dict[str, Section] = {}
    for row in bench:
        section = sections.setdefault(heading(row), Section(heading(row), []))
        section.rows.append([_cell(column.key, row) for column in COLUMNS])
    return Table(
        "What each encoding costs",
        COLUMNS,
        list(sections.values()),
        [
            "The median ratio of interleaved rounds, and the median speed, on one machine. memory: of evaluation above "
            "a call of 128 tokens, of training above the process without a model.",
            f"`{bench[0]['command']}`; {where(bench)} Commit {bench[0]['commit'] or 'unknown'}.",
        ],
        [{key: value for key, value in row.items() if key != "seconds"} for row in bench],
    )


def where(bench: Bench) -> str:
    """The model and the machine of these rows."""
    row = bench[0]
    device = row["device"]
    if device == "cpu":
        device = f"{row['processor']}, {row['threads']} thread{'s' * (row['threads'] != 1)}"
    return f"{row['model']}; on {device}."


def _cell(key: str, row: Mapping[str, Any]) -> Cell:
    if key == "kernel":
        return cell(f"{row['variant']}, {row['kernel']}" if row["status"] == "ok" else f"n/a: {row['reason']}")
    value = row[key]
    if value is None:
        return EMPTY
    if key == "ratio":
        return ratio_cell(value, row["ratio_low"], row["ratio_high"], "")
    return cell(value) if key == "encoding" else Cell(value, f"{value / (2**20 if key == 'extra_bytes' else 1):,.0f}")
