"""Every line against one of them: the paired ratio of their perplexities, length by length, with its interval.

Of three seeds or more the interval is Student's t over the seeds' paired differences, widened by what the text leaves
open; of fewer there is one only where both readings are of one checkpoint (extensions): what two single runs differ by
is no matter of the text alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posbench.errors import unknown
from posbench.records import Row, digest8
from posbench.report.claims.comparison import FEWEST_SEEDS
from posbench.report.curves import compare_lines, interval
from posbench.report.lengths import Reasons, numbered, part_title, ratio_cell
from posbench.report.parts import UNDERTRAINED, Line, Part, before_target, marked, order, parts
from posbench.report.tables import EMPTY, Cell, Column, Section, Table, cell
from posbench.statistics import exp


def against_tables(rows: Iterable[Row], name: str) -> list[Table]:
    """One table a part that holds the encoding `name` (its label, or with its extension as in "rope + yarn").

    Raises `UserError` when none does.
    """
    found = parts(rows)
    chosen = [part for part in found if _bases(part, name)]
    if not chosen:
        raise unknown("line", name, {line.name for part in found for line in [*part.lines, *part.references]})
    return numbered([_table(part, name) for part in chosen], chosen)


def _bases(part: Part, name: str) -> list[Line]:
    lines = [*part.lines, *part.references]
    return [line for line in lines if line.name == name] or [
        line for line in lines if line.one.encoding == name and line.one.extension is None
    ]


def _base(line: Line, bases: Sequence[Line]) -> Line | None:
    """The one that was trained at the same length; else the only one there is."""
    alike = [base for base in bases if base.train_length == line.train_length]
    return alike[0] if len(alike) == 1 else bases[0] if len(bases) == 1 else None


def _table(part: Part, name: str) -> Table:
    bases = _bases(part, name)
    columns = [Column("encoding", "encoding", right=False), Column("train_length", "L"), Column("seeds", "seeds")]
    columns += [Column(str(length), f"{length:,}") for length in part.lengths]
    rows, records, lost, reasons = [], list[dict[str, Any]](), [], Reasons()
    for line in [*part.lines, *part.references]:
        base = _base(line, bases)
        if base is None:
            lost.append(f"{line.name} at L = {line.train_length:,}" if line.train_length else line.name)
        if base is None or any(line is one for one in bases):
            continue
        of = [_record(line, base, length) for length in part.lengths]
        if not any(of):  # what was counted has no seed in common with what was trained
            continue
        records += [record for record in of if record is not None]
        head = [
            cell(marked(line.name, line.undertrained)),
            cell(line.train_length, "" if line.train_length is None else None),
        ]
        seeds = max((record["seeds"] for record in of if record), default=0)
        cells = [_cell(line, base, n, record, reasons) for n, record in zip(part.lengths, of, strict=True)]
        rows.append([*head, cell(seeds), *cells])
    rows = _with_best(rows)
    return Table(
        f"Perplexity over that of {name}, {part_title(part)}",
        columns,
        [Section("", rows)],
        [
            before_target(part),
            *([order(part)] if len(rows) > 1 else []),
            *_notes(records, bases, lost),
            *([UNDERTRAINED] if any(line.undertrained for line in part.lines) else []),
            *reasons.notes(),
        ],
        records,
    )


def _record(line: Line, base: Line, length: int) -> dict[str, Any] | None:
    found = compare_lines(line, length, base, length)
    if found is None:
        return None
    low, high = interval(found)
    text = found.text
    return {
        "encoding": line.one.encoding,
        "label": line.name,
        "train_length": line.train_length,
        "length": length,
        "against": base.name,
        "against_train_length": base.train_length,
        "protocol": line.one.protocol,
        "split": line.one.split,
        "corpus": line.one.corpus,
        "seeds": found.seeds,
        "ratio": exp(found.mean),
        "ratio_low": None if low is None else exp(low),
        "ratio_high": None if high is None else exp(high),
        "nats": found.mean,
        "nats_low": low,
        "nats_high": high,
        "nats_error_over_text": text and text.error,
        "runs": [row.run for one in (line, base) for row in one.measured(length)],
    }


def _cell(line: Line, base: Line, length: int, record: dict[str, Any] | None, reasons: Reasons) -> Cell:
    if record is None:
        failed = next((one for one in (line, base) if length in one.rows and not one.measured(length)), None)
        return EMPTY if failed is None else Cell(None, reasons.mark(failed.rows[length][0].reason or ""))
    source = digest8(line.measured(record["length"])[0])
    return ratio_cell(record["ratio"], record["ratio_low"], record["ratio_high"], source)


def _with_best(rows: list[list[Cell]]) -> list[list[Cell]]:
    """The lowest ratio of each length bold, where there are several and it is below 1."""
    for column in range(3, len(rows[0]) if rows else 0):
        known = [row for row in rows if row[column].value is not None]
        lowest = min(known, key=lambda row: row[column].value, default=None)
        if lowest is not None and len(known) > 1 and lowest[column].value < 1:
            lowest[column] = lowest[column]._replace(best=True)
    return rows


def _notes(records: Sequence[dict[str, Any]], bases: Sequence[Line], lost: Sequence[str]) -> list[str]:
    notes = ["Below 1 is better than that at the same length; of the same seeds, on the same targets."]
    if any(record["ratio_low"] is not None for record in records):
        notes.append("In brackets 95 %, for other seeds and text; of one checkpoint read in two ways for other text.")
    few = sorted({r["seeds"] for r in records if r["seeds"] < FEWEST_SEEDS and r["ratio_low"] is None})
    if few:
        seeds = f"{' or '.join(map(str, few))} seed{'s' * (few != [1])} each"
        notes.append(f"{seeds}: no interval, which takes {FEWEST_SEEDS}; another seed may turn it round.")
    if any(record["train_length"] != record["against_train_length"] for record in records):
        notes.append(f"The only {bases[0].name} is trained at {bases[0].train_length:,}, whatever stands against it.")
    if len(bases) > 1:
        trained = ", ".join(f"{base.train_length:,}" for base in bases if base.train_length)
        notes.append(f"It was trained at {trained}; each stands against the one of its own L.")
    if lost:
        notes.append(f"There is none of that L for {'; '.join(lost)}.")
    return notes
