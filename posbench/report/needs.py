"""How many seeds and how much text each claim of a study needs, from what a pilot's rows vary by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from posbench.records import Row
from posbench.report.claims import Claim, Verdict, judge
from posbench.report.claims.claim import percent
from posbench.report.claims.comparison import Comparison
from posbench.report.tables import Cell, Column, Section, Table, cell
from posbench.statistics.planning import MOST, POWER, Need, Pilot, need

COLUMNS = [
    Column("claim", "claim", right=False),
    Column("effect", "effect"),
    Column("pilot_seeds", "pilot seeds"),
    Column("deviation", "over seeds"),
    Column("text_error", "over text"),
    Column("seeds", "seeds"),
    Column("pilot_text", "text read"),
    Column("text", "text"),
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
        "Seeds and text that the claims need",
        COLUMNS,
        [Section("", [_cells(record) for record in records])],
        _notes(verdicts) if any(record["pilot_seeds"] for record in records) else [],
        records,
    )


def _notes(verdicts: Sequence[Verdict]) -> list[str]:
    notes = [
        f"seeds: as many as support a claim in {POWER:.0%} of studies, if it is true by its effect. A primary one "
        "needs more, as it is corrected for the others, and so does one about a failure, for which several lengths are "
        "looked at.",
        "over seeds: standard deviation of the paired differences of the pilot's seeds, nats a token. The true one may "
        "be 30 times what two seeds show, and 6 times what three do (95 %).",
        "over text: their standard error for other text like this. text: with so much the text takes up half of the "
        "variance that the effect allows, or less, the seeds the rest; never less than was read, and with less more "
        "seeds may do. In documents where these differ by more than their passages do.",
        "text read: of the validation split where that can answer the claim. A study that is planned by its own test "
        "text, (test), has read that twice.",
    ]
    if any(verdict.claim.margin for verdict in verdicts):
        notes.append(
            "A claim with a margin has that as its effect, whatever --effect says: it is to be shown where there is no "
            "difference at all."
        )
    return notes


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
        "text_df": None,
        "seeds": None,
        "split": verdict.rows[0].split if verdict.rows else None,
        "unit": None,
        "pilot_text": None,
        "text": None,
        "power": None,
        "reason": verdict.reason,
    }
    if comparison is None or comparison.text is None:
        return record
    unit, read = _read(comparison)
    record |= {"unit": unit, "pilot_text": read}
    if math.isinf(comparison.text.error):
        return record | {"reason": "one block of text tells nothing of how text differs"}
    record |= {"text_error": comparison.text.error, "text_df": comparison.text.df}
    if comparison.seeds < 2:
        return record | {"reason": "one seed tells nothing of how seeds differ"}
    pilot = Pilot(statistics.stdev(comparison.values), comparison.text)
    found: Need = need(pilot, math.log1p(record["effect"]), equal=claim.relation == "equal")
    return record | {
        "deviation": pilot.deviation,
        "seeds": found.seeds,
        "text": [math.ceil(found.text * count) for count in read],
        "power": found.power,
        "reason": None if found.seeds else f"more than {MOST:,} seeds",
    }


def _read(comparison: Comparison) -> tuple[str, list[int]]:
    """What the text varies by, and how much of it was read; of targets in each set."""
    if comparison.text is comparison.documents:
        return "documents", [len({int(number) for blocks in comparison.blocks for number in blocks.document})]
    return "targets", [int(blocks.count.sum()) for blocks in comparison.blocks]


def _cells(record: dict[str, Any]) -> list[Cell]:
    numbers = {name: record[name] for name in ("deviation", "text_error")}
    shown = {name: Cell(value, "-" if value is None else f"{value:.4f}") for name, value in numbers.items()}
    test = "" if record["split"] in (None, "validation") else f" ({record['split']})"
    return [
        cell(record["claim"]),
        Cell(record["effect"], percent(record["effect"])),
        cell(record["pilot_seeds"]),
        shown["deviation"],
        shown["text_error"],
        Cell(record["seeds"], f"{record['seeds']:,}" if record["seeds"] else _why(record)),
        Cell(record["pilot_text"], _amount(record["pilot_text"], record["unit"]) + test),
        Cell(record["text"], _amount(record["text"], record["unit"])),
    ]


def _amount(counts: Sequence[int] | None, unit: str) -> str:
    """Such as "8,192 targets"."""
    return "-" if counts is None else f"{' + '.join(f'{count:,}' for count in counts)} {unit}"


def _why(record: dict[str, Any]) -> str:
    if not record["pilot_seeds"]:
        return "not measured"
    if record["text_error"] is None:
        return "one block"
    return "one seed" if record["deviation"] is None else f"> {MOST:,}"
