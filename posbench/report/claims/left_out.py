"""Primary claims with documents of one kind left out: whether what was found hangs on a single text or author."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from posbench.report.claims.verdict import Verdict, without
from posbench.report.lengths import ratio_text
from posbench.report.tables import EMPTY, Cell, Column, Section, Table, cell


def left_out_table(verdicts: Sequence[Verdict], documents: Mapping[str, Collection[int]]) -> Table | None:
    """Verdict and ratio of each primary claim that was measured, of all documents and without those of each name, given
    by their numbers in the split that was read; None when there is no such claim."""
    primary = [verdict for verdict in verdicts if verdict.claim.primary]
    found = {"all documents": primary} | {name: without(primary, some) for name, some in documents.items()}
    columns = [Column("claim", "claim", right=False)]
    columns += [Column(name, name if name == "all documents" else f"without {name}", right=False) for name in found]
    measured = [number for number, verdict in enumerate(primary) if verdict.comparison is not None]
    rows, records = [], []
    for number in measured:
        whole = primary[number]
        ones = {name: some[number] for name, some in found.items()}
        rows.append([cell(whole.claim.name), *(_cell(one, whole) for one in ones.values())])
        records += [_record(name, one, whole) for name, one in ones.items()]
    if not measured:
        return None
    notes = [
        "The ratio is that of the perplexities compared, in brackets 95 %; of a failure the length it is at, or the "
        "ratio at the longest. Empty: nothing of that was read, or nothing else."
    ]
    return Table("Primary claims with documents left out", columns, [Section("", rows)], notes, records)


def _same(one: Verdict, whole: Verdict) -> bool:
    """Whether nothing was left out."""
    return one is not whole and one.comparison is whole.comparison


def _cell(one: Verdict, whole: Verdict) -> Cell:
    if _same(one, whole) or one.ratio is None:
        return EMPTY
    at = _fails_at(one)
    if at is not None:
        return Cell(one.text, f"{one.text}, fails at {at:,}")
    interval = "" if one.interval is None else f" [{', '.join(map(ratio_text, one.interval))}]"
    return Cell(one.text, f"{one.text}, {ratio_text(one.ratio.value)}{interval}")


def _fails_at(one: Verdict) -> int | None:
    return None if one.failure is None else one.failure.at(one.claim.border)


def _record(name: str, one: Verdict, whole: Verdict) -> dict[str, Any]:
    left = one.ratio is not None and not _same(one, whole)
    return {
        "claim": one.claim.name,
        "left_out": None if one is whole else name,
        "verdict": one.text if left else None,
        "ratio": one.ratio.value if left and one.ratio else None,
        "low": one.interval[0] if left and one.interval else None,
        "high": one.interval[1] if left and one.interval else None,
        "fails_at": _fails_at(one) if left else None,
        "p": one.p if left else None,
        "p_corrected": one.corrected if left else None,
    }
