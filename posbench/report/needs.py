"""How many seeds and targets each claim of a study needs, from what a pilot's rows vary by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from posbench.records import Row
from posbench.report.claims import Claim, Verdict, judge
from posbench.report.tables import Cell, Column, Section, Table, cell
from posbench.statistics.planning import MOST, POWER, Need, Pilot, need

COLUMNS = [
    Column("claim", "claim", right=False),
    Column("effect", "effect"),
    Column("pilot_seeds", "pilot seeds"),
    Column("deviation", "over seeds"),
    Column("text_error", "over text"),
    Column("seeds", "seeds"),
    Column("pilot_targets", "targets read"),
    Column("targets", "targets"),
]


def piloted(claims: Sequence[Claim], rows: Sequence[Row]) -> list[Verdict]:
    """Each claim held against rows of validation text, and against others only where there are none of it: what a study
    is planned by should not be the text it is judged on."""
    validation, others = (
        judge(claims, [row for row in rows if (row.split == "validation") is wanted]) for wanted in (True, False)
    )
    return [
        other if first.comparison is None and other.comparison is not None else first
        for first, other in zip(validation, others, strict=True)
    ]


def needs_table(verdicts: Sequence[Verdict], effect: float) -> Table:
    """What each claim needs to be supported four times in five, if it is true by `effect`, a share of the perplexity;
    of a claim with a margin that, where the truth is no difference at all."""
    records = [_record(verdict, effect) for verdict in verdicts]
    return Table(
        "Seeds and targets that the claims need",
        COLUMNS,
        [Section("", [_cells(record) for record in records])],
        [
            f"Seeds with which a claim that is true by its effect is supported {POWER:.0%} of the time, each alone; a "
            "primary one needs more, as it is corrected for the others, and so does one about a failure, for which "
            "several lengths are looked at.",
            "over seeds: standard deviation of the paired differences of the pilot's seeds, nats a token. That of all "
            "seeds may be 30 times what two show, and 6 times what three do (95 %). over text: their standard error "
            "for other text like this. targets: as many as leave the seeds half of the room there is.",
            "Of validation text where a claim can be held against it. A study that is planned by its own test text "
            "(test) has read that twice.",
        ],
        records,
    )


def _record(verdict: Verdict, effect: float) -> dict[str, Any]:
    claim, comparison = verdict.claim, verdict.comparison
    record: dict[str, Any] = {
        "claim": claim.name,
        "primary": claim.primary,
        "relation": claim.relation,
        "effect": claim.margin or effect,
        "pilot_seeds": 0 if comparison is None else comparison.seeds,
        "deviation": None,
        "text_error": None,
        "seeds": None,
        "split": verdict.rows[0].split if verdict.rows else None,
        "pilot_targets": None,
        "targets": None,
        "power": None,
        "reason": verdict.reason,
    }
    if comparison is None or comparison.text is None:
        return record
    pilot_targets = sum(int(blocks.count.sum()) for blocks in comparison.blocks)
    record |= {"text_error": comparison.text.error, "pilot_targets": pilot_targets}
    if comparison.seeds < 2:
        return record | {"reason": "one seed tells nothing of how seeds differ"}
    pilot = Pilot(statistics.stdev(comparison.values), comparison.text.error, pilot_targets)
    found: Need = need(pilot, math.log1p(record["effect"]), equal=claim.relation == "equal")
    return record | {
        "deviation": pilot.deviation,
        "seeds": found.seeds,
        "targets": found.targets,
        "power": found.power,
        "reason": None if found.seeds else f"more than {MOST:,} seeds",
    }


def _cells(record: dict[str, Any]) -> list[Cell]:
    numbers = {name: record[name] for name in ("deviation", "text_error")}
    shown = {name: Cell(value, "-" if value is None else f"{value:.4f}") for name, value in numbers.items()}
    return [
        cell(record["claim"]),
        Cell(record["effect"], f"{record['effect']:.1%}"),
        cell(record["pilot_seeds"]),
        shown["deviation"],
        shown["text_error"],
        Cell(record["seeds"], f"{record['seeds']:,}" if record["seeds"] else _why(record)),
        Cell(record["pilot_targets"], _read(record)),
        cell(record["targets"]),
    ]


def _read(record: dict[str, Any]) -> str:
    if record["pilot_targets"] is None:
        return "-"
    return f"{record['pilot_targets']:,}" + ("" if record["split"] == "validation" else f" ({record['split']})")


def _why(record: dict[str, Any]) -> str:
    if not record["pilot_seeds"]:
        return "not measured"
    return "one seed" if record["deviation"] is None else f"> {MOST:,}"
