"""The short answer: of each line whether it still works past its training length, and whether it uses what lies there.

A line is *better* or *worse* where the whole 95 % interval of its paired difference is on that side of 0, *the same*
where all of it lies within 1 % of perplexity, otherwise *undecided*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posbench.records import digest8
from posbench.report.claims.claim import MARGIN
from posbench.report.claims.comparison import FEWEST_SEEDS, Comparison
from posbench.report.curves import difference, interval
from posbench.report.lengths import perplexity_text, ratio_cell
from posbench.report.parts import Line, Part
from posbench.report.tables import EMPTY, Cell, Column, Section, Table, cell
from posbench.statistics import exp

USE = {"better": "helps", "worse": "harms", "the same": "not used"}


def verdict(found: Comparison | None) -> str:
    """better | worse | the same | undecided, of a difference in nats; "" where there is no interval."""
    low, high = interval(found)
    if low is None or high is None:
        return ""
    if exp(high) <= 1 + MARGIN and exp(low) >= 1 / (1 + MARGIN):
        return "the same"
    return "worse" if low > 0 else "better" if high < 0 else "undecided"


def summary_table(parts: Sequence[Part]) -> Table | None:
    """Of the parts of one text: the longest length against L, on all targets and on the same ones; None where nothing
    was read at two lengths."""
    flat = widest([part for part in parts if part.shared["min_context"] is None])
    same = widest([part for part in parts if part.shared["min_context"] is not None])
    lead = flat or same
    if lead is None:
        return None
    columns = [
        Column("encoding", "encoding", right=False),
        Column("train_length", "L"),
        Column("seeds", "seeds"),
        Column("home", "perplexity at L"),
        *(_columns("all", flat, "times that at L [95 %]") if flat else []),
        *(_columns("same", same, "on the same targets [95 %]") if same else []),
        Column("tokens_per_second", "tokens/s"),
    ]
    records = [_record(line, flat, same) for line in lead.lines if line.one.extension is None and line.train_length]
    rows = [[_cell(column.key, record) for column in columns] for record in records]
    return Table(_text(lead), columns, [Section("", rows)], _notes(records, flat, same), records)


def _columns(key: str, part: Part, what: str) -> list[Column]:
    length = part.lengths[-1]
    return [
        *([Column("longest", f"at {length:,}")] if key == "all" else []),
        Column(f"{key}_ratio", what),
        Column(f"{key}_verdict", "past L" if key == "all" else "longer context", right=False),
    ]


def widest(parts: Sequence[Part]) -> Part | None:
    """The part with the most lines, of those with several lengths; of equals the one that goes farthest."""
    several = [part for part in parts if len(part.lengths) > 1 and part.lines]
    return max(several, key=lambda part: (len(part.lines), part.lengths[-1], part.one.targets), default=None)


def _record(line: Line, flat: Part | None, same: Part | None) -> dict[str, Any]:
    home = line.train_length
    assert home is not None
    record: dict[str, Any] = {"encoding": line.label, "train_length": home, "seeds": line.seeds}
    record["undertrained"] = line.undertrained
    value = line.perplexity(home)
    record |= {"home": value and value.value, "row": _source(line, home), "longest": None, "tokens_per_second": None}
    for key, part in (("all", flat), ("same", same)):
        if part is None:
            continue
        length = part.lengths[-1]
        ours = next((one for one in part.lines if _like(one) == _like(line)), None)
        rows = ours.rows.get(length, []) if ours else []
        found = difference(ours, length, ours, home) if ours else None
        low, high = interval(found)
        record |= {
            f"{key}_ratio": found and exp(found.mean),
            f"{key}_low": low if low is None else exp(low),
            f"{key}_high": high if high is None else exp(high),
            f"{key}_verdict": _word(key, verdict(found)) or ("n/a" if rows and rows[0].status != "ok" else ""),
            f"{key}_row": _source(ours, length) if ours else "",
        }
        if ours is not None and key == ("all" if flat else "same"):
            longest = ours.perplexity(length)
            speeds = [row.tokens_per_second for row in rows if row.tokens_per_second]
            record["longest"] = longest and longest.value
            record["tokens_per_second"] = sum(speeds) / len(speeds) if speeds else None
    return record


def _word(key: str, found: str) -> str:
    """What a verdict says of the use of context."""
    return USE.get(found, found) if key == "same" else found


def _text(part: Part) -> str:
    row = part.one
    return f"L against the longest length read: {row.split} split of {row.corpus}, tokenizer {row.tokenizer}"


def _like(line: Line) -> tuple[Any, ...]:
    return line.one.encoding, line.one.recipe or line.one.run_hash, line.one.step, line.one.extension, line.one.dtype


def _source(line: Line, length: int) -> str:
    rows = line.rows.get(length)
    return digest8(rows[0]) if rows else ""


def _cell(key: str, record: dict[str, Any]) -> Cell:
    value = record.get(key)
    if key == "encoding":
        return cell(value, f"{value} †" if record["undertrained"] else value)
    if key in ("home", "longest"):
        source = record["row"] if key == "home" else record.get("all_row", "")
        return EMPTY if value is None else Cell(value, perplexity_text(value), source=source)
    if key.endswith("_ratio"):
        name = key.removesuffix("_ratio")
        low, high = record[f"{name}_low"], record[f"{name}_high"]
        return EMPTY if value is None else ratio_cell(value, low, high, record[f"{name}_row"])
    if key == "tokens_per_second":
        return EMPTY if value is None else Cell(value, f"{value:,.0f}")
    return cell(value, str(value)) if isinstance(value, str) else cell(value)


def _notes(records: Sequence[dict[str, Any]], flat: Part | None, same: Part | None) -> list[str]:
    few = any(record["seeds"] < FEWEST_SEEDS for record in records)
    notes = [
        "In brackets 95 %. worse, better: the whole interval is above 1, below 1; the same: within 1 % of it; "
        "undecided: none of these."
        + (" With fewer than three seeds that holds for these checkpoints on other text like this." if few else "")
    ]
    if any(record["undertrained"] for record in records):
        notes.append("† undertrained: at L not below the bigram, so that past L it has nothing to lose.")
    if flat:
        notes.append(
            "times that at L: in all windows, where longer ones lower the mean for any model, as fewer targets stand "
            "early in one."
        )
    if same:
        notes.append(
            "on the same targets: with more of their own document before them. helps, harms, not used: better, worse, "
            "the same with it."
        )
    return notes
