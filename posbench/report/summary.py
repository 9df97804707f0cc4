"""The short answer: of each line whether it still works past its training length, and whether it uses what lies there.

A line is *better* or *worse* where the whole 95 % interval of its paired difference is on that side of 0, which may
still be within 1 % of perplexity and then says so; *the same* where the interval lies within 1 % to both sides;
otherwise *undecided*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posbench.records import digest8
from posbench.report.claims.claim import MARGIN, percent
from posbench.report.claims.comparison import FEWEST_SEEDS, Comparison
from posbench.report.claims.failure import failing
from posbench.report.claims.speed import Bench
from posbench.report.costs import where
from posbench.report.curves import compare_lines, interval
from posbench.report.lengths import perplexity_text, ratio_cell
from posbench.report.parts import UNDERTRAINED, Line, Part, marked
from posbench.report.tables import EMPTY, Cell, Column, Section, Table, cell
from posbench.statistics import exp

USE = {"better": "helps", "worse": "harms", "the same": "not used", "undecided": "undecided"}

WITHIN = f"within {percent(MARGIN)}"


def verdict(found: Comparison | None, words: Mapping[str, str] | None = None) -> str:
    """better | worse | the same | undecided, or what `words` says for it, of a difference in nats; "" where there is no
    interval. What is better or worse by little says so: "better, within 1 %"."""
    low, high = interval(found)
    if low is None or high is None:
        return ""
    little = exp(high) <= 1 + MARGIN and exp(low) >= 1 / (1 + MARGIN)
    if low <= 0 <= high:
        word, aside = "the same" if little else "undecided", ""
    else:
        word, aside = "worse" if low > 0 else "better", f", {WITHIN}" if little else ""
    return (words[word] if words else word) + aside


def summary_table(parts: Sequence[Part], bench: Bench = ()) -> Table | None:
    """Of the parts of one text: the longest length against L, on all targets and on the same ones; None where nothing
    was read at two lengths. With `bench`, of `read_bench`, the speed of training too."""
    flat = widest([part for part in parts if part.shared["protocol"] == "nonoverlapping"])
    same = widest([part for part in parts if part.shared["protocol"] == "same-targets"])
    lead = flat or same
    if lead is None:
        return None
    records = [
        _record(line, flat, same, bench) for line in lead.lines if line.one.extension is None and line.train_length
    ]
    timed = any(record["speed"] is not None for record in records)
    columns = [
        Column("encoding", "encoding", right=False),
        Column("train_length", "L"),
        Column("seeds", "seeds"),
        # What a narrow screen shows first is what is asked.
        *([Column("all_verdict", "past L, nonoverlapping", right=False)] if flat else []),
        *(
            [Column("fails_at", "same targets: fails at"), Column("same_verdict", "longer context", right=False)]
            if same
            else []
        ),
        Column("home", "perplexity at L"),
        *(_columns("all", flat) if flat else []),
        *(_columns("same", same) if same else []),
        *([Column("speed", "training speed, times none's [95 %]")] if timed else []),
    ]
    rows = [[_cell(column.key, record) for column in columns] for record in records]
    notes = _notes(records, flat, same) + (_speed_notes(bench) if timed else [])
    return Table(_text(lead), columns, [Section("", rows)], notes, records)


def _columns(key: str, part: Part) -> list[Column]:
    """Those of one protocol, which is read as far as it is, whatever the other."""
    length = f"{part.lengths[-1]:,}"
    if key == "all":
        return [Column("longest", f"at {length}"), Column("all_ratio", f"{length} over L [95 %]")]
    return [Column("same_ratio", f"same targets: {length} over L [95 %]")]


def widest(parts: Sequence[Part]) -> Part | None:
    """The part with the most lines, of those with several lengths; of equals the one that goes farthest."""
    several = [part for part in parts if len(part.lengths) > 1 and part.lines]
    return max(several, key=lambda part: (len(part.lines), part.lengths[-1], part.one.targets), default=None)


def _record(line: Line, flat: Part | None, same: Part | None, bench: Bench) -> dict[str, Any]:
    home = line.train_length
    assert home is not None
    record: dict[str, Any] = {"encoding": line.label, "train_length": home, "seeds": line.seeds}
    record["undertrained"] = line.undertrained
    record |= {"home": _perplexity(line, home), "row": _source(line, home), "longest": None}
    for key, part in (("all", flat), ("same", same)):
        if part is None:
            continue
        length = part.lengths[-1]
        ours = next((one for one in part.lines if one.key == line.key), None)
        rows = ours.rows.get(length, []) if ours else []
        found = compare_lines(ours, length, ours, home) if ours else None
        low, high = interval(found)
        record |= {
            f"{key}_length": length,
            f"{key}_ratio": found and exp(found.mean),
            f"{key}_low": low if low is None else exp(low),
            f"{key}_high": high if high is None else exp(high),
            f"{key}_verdict": verdict(found, USE if key == "same" else None)
            or ("n/a" if rows and rows[0].status != "ok" else ""),
            f"{key}_row": _source(ours, length) if ours else "",
        }
        if ours is not None and key == "all":
            record["longest"] = _perplexity(ours, length)
        if ours is not None and key == "same":
            record |= _within(part, ours, home)
    return record | _speed(line, bench)


def _within(part: Part, line: Line, home: int) -> dict[str, Any]:
    """Where it fails, and what it gains from the second half of the context that it was trained with."""
    failure = failing(part, line)
    found: dict[str, Any] = {"fails_at": None, "by": False, "not_to": None, "half": None}
    if failure is not None:
        found |= {"fails_at": failure.at(), "by": failure.since_unread, "not_to": max(failure.by_length)}
    gain = compare_lines(line, home, line, home // 2) if line.measured(home // 2) and line.measured(home) else None
    return found if gain is None else found | {"half": exp(gain.mean)}


def _speed(line: Line, bench: Bench) -> dict[str, Any]:
    """What was timed of training such a line: its encoding as it is shipped, at its own length."""
    rows = bench if not line.variant else ()
    wanted = ("train", line.one.encoding, line.train_length)
    row = next((row for row in rows if (row["task"], row["encoding"], row["length"]) == wanted), None)
    if row is None or not row["tokens_per_second"]:
        return dict.fromkeys(("speed", "speed_low", "speed_high"))
    # `none` is held against nothing.
    times = row["ratio"] if row["ratio"] is not None or row["against"] is not None else 1.0
    return {"speed": times, "speed_low": row["ratio_low"], "speed_high": row["ratio_high"]}


def _speed_notes(bench: Bench) -> list[str]:
    return [
        "training speed: at the length L, by `posbench bench encodings`: the median ratio of interleaved rounds; "
        f"{where(bench)}"
    ]


def _perplexity(line: Line, length: int) -> float | None:
    loss = line.mean(length)
    return None if loss is None else exp(loss)


def _text(part: Part) -> str:
    row = part.one
    return f"L against the longest length read: {row.split} split of {row.corpus}, tokenizer {row.tokenizer}"


def _source(line: Line, length: int) -> str:
    rows = line.rows.get(length)
    return digest8(rows[0]) if rows else ""


def _cell(key: str, record: dict[str, Any]) -> Cell:
    value = record.get(key)
    if key == "encoding":
        return cell(value, marked(str(value), record["undertrained"]))
    if key in ("home", "longest"):
        source = record["row"] if key == "home" else record["all_row"]
        return EMPTY if value is None else Cell(value, perplexity_text(value), source=source)
    if key == "fails_at" and value is None:
        return EMPTY if record.get("not_to") is None else Cell(None, f"not to {record['not_to']:,}")
    if key == "fails_at" and record["by"]:
        return Cell(value, f"by {value:,}")
    if key.endswith("_ratio") or key == "speed":
        name = key.removesuffix("_ratio")
        low, high = record[f"{name}_low"], record[f"{name}_high"]
        return EMPTY if value is None else ratio_cell(value, low, high, record.get(f"{name}_row", ""))
    return cell(value, str(value)) if isinstance(value, str) else cell(value)


def _notes(records: Sequence[dict[str, Any]], flat: Part | None, same: Part | None) -> list[str]:
    few = any(record["seeds"] < FEWEST_SEEDS for record in records)
    notes = [
        f"In brackets 95 %. worse, better: the whole interval is above 1, below 1, `{WITHIN}` where it is no farther "
        f"off; the same: it has 1 in it and lies {WITHIN}; undecided: none of these."
        + (" With fewer than three seeds that holds for these checkpoints on these documents." if few else "")
    ]
    if any(record["undertrained"] for record in records):
        notes.append(UNDERTRAINED)
    if not any(line.one.encoding == "bigram" for part in (flat, same) if part for line in part.references):
        notes.append("No bigram was read beside them, so that none can be marked undertrained.")
    if flat:
        notes.append(
            f"past L: {flat.lengths[-1]:,} over L, in nonoverlapping windows, where longer ones lower the mean unless "
            "the model gets worse past L, as fewer targets stand early in one. So what is better there may fail on the "
            "same targets."
        )
    if same:
        notes.append(
            f"longer context: same targets, {same.lengths[-1]:,} over L, with more of their own document before them. "
            "helps, harms, not used: better, worse, the same with it. fails at: the first length read past L that is "
            "worse than L, interval above 1 (95 % for all lengths together); by: those between it and the one before "
            "were not read."
        )
        halves = [
            f"{record['encoding']} ({record['train_length']:,}) {record['half']:.3f}"
            for record in records
            if record.get("half") is not None
        ]
        if halves:
            notes.append(
                "How much of the context that it was trained with each uses: on the same targets "
                f"(block {same.shared['block']}) the perplexity at L over that at L/2 is {', '.join(halves)}. What "
                "gains next to nothing there has little to gain past L."
            )
    return notes
