"""Measured rows as tables; csv and json hold every number unrounded, with all that is needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posbench import files
from posbench.bench.race import Race
from posbench.report.claims.speed import heading
from posbench.report.tables import Cell, Column, Section, Table, cell, render

NAME = Column("name", "", right=False)
SPEED = [Column("tokens_per_second", "tokens/s"), Column("range", "min - max")]
MEMORY = [
    Column("extra_bytes", "memory, MiB"), Column("tensor_bytes", "tensors, MiB"), Column("peak_bytes", "process, MiB"),
]  # fmt: skip
NOTE = Column("note", "", right=False)

ENCODINGS = [
    NAME, *SPEED, Column("ratio", "x none"), Column("ratio_interval", "95 %"),
    Column("gemm_share", "of GEMM bound"), Column("gemm_share_interval", "95 %"), *MEMORY, NOTE,
]  # fmt: skip
PEERS = [
    NAME, *SPEED, Column("ratio", "posbench is x"), Column("ratio_interval", "95 %"),
    Column("gemm_share", "of GEMM bound"), Column("gemm_share_interval", "95 %"), *MEMORY,
    Column("parameters", "parameters"), Column("loss_difference", "loss differs"), NOTE,
]  # fmt: skip

HOW = [
    "Each cell has one turn a round, in an order drawn anew; a ratio is the median of the rounds' ratios, its interval "
    "that of order statistics. Of several variants (compiled or not, each attention) those within a quarter of the "
    "fastest trial have turns, and the one with the best median counts.",
    "memory: of evaluation above a call of 128 tokens, of training above the process without a model (of what is "
    "compiled, with what the compiler leaves behind); each in a process of its own. tensors: those that one call of "
    "evaluation makes, as many as are alive at once; of a process's memory the allocator holds more, and by chance.",
    "Evaluation: one call at a time, each operation by all threads, with weights N(0, 1 / inputs) on both sides, whose "
    "scores lie as far apart as a trained model's: how far a bias that falls is read hangs on them. On a CPU posbench "
    "eval reads windows of up to 4,096 tokens side by side, each batch of them by threads of its own, and is faster "
    "there than one call is here.",
    "GEMM bound: all matrix products of the step run alone at the shapes they have in it, in the faster of two ways: "
    "one after the other by all threads, or the parts of the batch at the same time, as the step computes them. Those "
    "inside fused attention are not among them; a bias that is learned has no fused gradient and scores that are "
    "rewritten no fused attention, so theirs are.",
]


def comparison(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    by_encoding: bool = False,
) -> Table:
    """Rows in sections by task and length, with `by_encoding` by encoding too."""
    sections: dict[str, Section] = {}
    for row in rows:
        under = heading(row) + (f": {row['encoding']}" if by_encoding else "")
        section = sections.setdefault(under, Section(under, []))
        shown = _shown(row)
        section.rows.append([shown.get(column.key) or cell(row.get(column.key)) for column in columns])
    records = [dict(row) | dict(facts) for row in rows]
    return Table(title, list(columns), list(sections.values()), [*HOW, *_told(facts)], records, repeat_head=False)


def _shown(row: Mapping[str, Any]) -> dict[str, Cell]:
    """The cells whose text is not the value's own."""
    found = {"note": Cell(row["reason"], _note(row))}
    for key, form in (("extra_bytes", ",.0f"), ("tensor_bytes", ",.1f"), ("peak_bytes", ",.0f")):
        if row[key] is not None:
            found[key] = Cell(row[key], f"{row[key] / 2**20:{form}}")
    if row["loss_difference"] is not None:
        found["loss_difference"] = Cell(row["loss_difference"], f"{row['loss_difference']:.0e}")
    if row["tokens_per_second"] is not None:
        found["tokens_per_second"] = Cell(row["tokens_per_second"], f"{row['tokens_per_second']:,.0f}")
        found["range"] = Cell(None, f"{row['lowest']:,.0f} - {row['highest']:,.0f}")
    for name, form in (("ratio", ".3f"), ("gemm_share", ".1%")):
        if row[name] is not None:
            found[name] = Cell(row[name], f"{row[name]:{form}}")
        if row[f"{name}_low"] is not None:
            found[f"{name}_interval"] = Cell(None, f"{row[f'{name}_low']:{form}} - {row[f'{name}_high']:{form}}")
    return found


def _note(row: Mapping[str, Any]) -> str:
    if row["status"] != "ok":
        return f"n/a: {row['reason']}"
    return ", ".join(filter(None, (row["variant"], row["kernel"])))


def machine(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Table:
    """The limits of the machine, in the same rounds."""
    columns = [
        Column("limit", "in the same rounds", right=False), Column("median", "median"), Column("range", "min - max"),
        Column("unit", "", right=False), Column("products", "products"), Column("gflop", "GFLOP"),
    ]  # fmt: skip
    body = [
        [
            cell(row["limit"]),
            Cell(row["median"], f"{row['median']:,.0f}"),
            Cell(None, f"{row['lowest']:,.0f} - {row['highest']:,.0f}"),
            cell(row["unit"]),
            cell(row["products"]),
            cell(row["gflop"]),
        ]
        for row in rows
    ]
    return Table("The machine", columns, [Section("", body)], [], [dict(row) | dict(facts) for row in rows])


def rates(found: Race, facts: Mapping[str, Any]) -> Table:
    """AdamW at each of its rates, of the first seed."""
    columns = [Column("rate", "rate"), Column("valid", "nats"), Column("seconds", "seconds"), Column("best", "", False)]
    records, rows = [], []
    for rate, racer in found.rates.items():
        seconds, best = racer.points[-1].seconds, rate == found.best_rate
        records.append({"rate": rate, "valid": racer.final, "seconds": seconds, "best": best} | dict(facts))
        rows.append(
            [
                Cell(rate, f"{rate:g}"),
                Cell(racer.final, f"{racer.final:.4f}"),
                Cell(seconds, f"{seconds:.1f}"),
                Cell(best, "best" if best else ""),
            ]
        )
    title = f"AdamW: nats a token of validation text at the end, by peak rate, seed {found.chosen_on}"
    return Table(title, columns, [Section("", rows)], [], records)


def times(found: Race, recipe: str, facts: Mapping[str, Any]) -> Table:
    """Seconds to the target by recipe, share of the steps, and seed."""
    columns = [Column("recipe", "recipe", False), Column("share", "steps")]
    for seed in sorted(found.adamw):
        columns += [Column(f"seconds_{seed}", f"seed {seed}: s"), Column(f"valid_{seed}", "at its end")]
    columns += [Column("ratio", "x adamw"), Column("interval", "95 %"), Column("ratio_others", "of the others")]
    columns += [Column("best", "", False)]
    records, rows = [], []
    for name, share, racers in [("adamw", 1.0, found.adamw), *((recipe, *one) for one in found.ours.items())]:
        ours = racers is not found.adamw
        ratio = found.ratio(share) if ours else None
        record: dict[str, Any] = {"recipe": name, "share": share, "target": found.target}
        shown = {"share": Cell(share, f"{share:.0%}")}
        for seed, racer in sorted(racers.items()):
            seconds = racer.seconds_to(found.target)
            record |= {f"seconds_{seed}": seconds, f"valid_{seed}": racer.final}
            shown[f"valid_{seed}"] = Cell(racer.final, f"{racer.final:.4f}")
            if seconds is not None:
                shown[f"seconds_{seed}"] = Cell(seconds, f"{seconds:.1f}")
        if ratio is not None:
            record |= {"ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high}
            shown["ratio"] = Cell(ratio.median, f"{ratio.median:.3f}")
            if ratio.low is not None:
                shown["interval"] = Cell(None, f"{ratio.low:.3f} - {ratio.high:.3f}")
            if (others := found.ratio(share, others=True)) is not None:
                record |= {
                    "ratio_others": others.median,
                    "ratio_others_low": others.low,
                    "ratio_others_high": others.high,
                }
                shown["ratio_others"] = Cell(others.median, f"{others.median:.3f}")
        best = record["best"] = ours and share == found.best_share
        shown["best"] = Cell(best, "best" if best else "")
        records.append(record | dict(facts))
        rows.append([shown.get(column.key) or cell(record.get(column.key)) for column in columns])
    notes = [
        f"The loss is {found.target:.4f} nats a token of validation text, which AdamW at {found.best_rate:g} ends with "
        "at its worst seed. steps: of AdamW's, since a schedule ends where the steps do. -: not reached.",
        "Seconds of training, compilation included, validation left out. x adamw: geometric mean over seeds, its "
        "interval Student's t of the logarithms. AdamW's rate and the best share are chosen on seed "
        f"{found.chosen_on}; of the others: the same mean without that seed.",
        *_told(facts),
    ]
    return Table(f"Seconds to {found.target:.4f} nats a token", columns, [Section("", rows)], notes, records)


def _told(facts: Mapping[str, Any]) -> list[str]:
    """The facts as two lines: the command, and the rest."""
    rest = "; ".join(f"{key} {value}" for key, value in facts.items() if key != "command" and value is not None)
    return [f"{facts['command']}", rest]


def save(tables: Sequence[Table], prefix: Path) -> list[Path]:
    """Write them as PREFIX.md, PREFIX.csv and PREFIX.json, each whole or not at all; returns what was written."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for form in ("md", "csv", "json"):
        file = prefix.with_name(f"{prefix.name}.{form}")
        files.write_bytes(file, render(tables, form).encode())
        written.append(file)
    return written
