"""The goals of speed and memory, held against the tables of results/bench: in the README of each folder there, which
holds the tables of one processor.

    python scripts/goals.py            write them there
    python scripts/goals.py check      status 1 when what is there is not what the tables say

Every goal has a line, also one of which nothing was measured. A goal is met when the worse end of the 95 % interval of
20 rounds or more reaches it; a peer that runs out of memory has lost, and the line says so. What was tried for one that
is missed is in docs/performance-log.md.
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posbench.bench.machine import WITH_CHANGES
from posbench.bench.peers import PEERS
from posbench.bench.rounds import median_rank
from posbench.bench.trial import OUT_OF_MEMORY

BENCH = Path(__file__).resolve().parents[1] / "results" / "bench"
MARKED = re.compile(r"(<!-- goals: .*? -->\n).*?(<!-- end of goals -->)", re.DOTALL)

MIB = 2**20

ROUNDS = 20
"""Of a ratio, for a verdict."""

LINEAR = 1.1
"""Growth of the tensors alive at once per token past 16,384 over that from 8,192 to there: up to here it is a line."""

SIZES = (("nano", 128, 1.25, 0.70), ("micro", 256, 1.15, 0.85))
"""Model, width, training speed over that of the best peer, and over the GEMM bound."""

KINDS = (("training", ""), ("compiled", ", compiled"))
"""Tables of training, and what a line says of them."""

OVER_NONE = {"sinusoidal": 0.95, "learned": 0.95, "rope": 0.95, "alibi": 0.95, "t5": 0.85, "shaw": 0.85, "kerple": 0.85}
"""Training speed over that of none."""

SLOWEST = 1.4
"""Time of a bias by distance over that of attention without one."""

AHEAD = {"none": 1.1, "rope": 1.1, "alibi": 4.0, "t5": 4.0}
"""Speed of evaluation over that of the best peer."""

BY_DISTANCE = ("alibi", "t5", "kerple", "fire", "sandwich")

TIMES = {
    "start": ("`posbench table` over 100 finished runs, seconds", 1.5),
    "reproduce": ("default study (`posbench reproduce`), seconds", 600),
}
"""Commands that are timed as a whole, and their goals in seconds."""

NEEDED = (
    "training-nano", "encodings-nano", "compiled-nano", "encodings-nano-32768", "memory-nano-32768", "peers-nano",
    "training-micro", "compiled-micro", "peers-micro", "time-to-loss", *TIMES,
)  # fmt: skip

NOT_MEASURED = "not measured"

Row = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """One line of the table."""

    what: str
    least: float
    value: float | None = None
    low: float | None = None
    """The worse end of its interval; None: there are too few rounds for one."""
    form: str = ".2f"
    most: bool = False
    """The goal is an upper bound."""
    rounds: int | None = None
    """Of a ratio."""
    said: str = NOT_MEASURED
    """In place of a value."""
    met: bool = False
    """Without one: the goal is met all the same."""

    def line(self) -> str:
        shown, verdict = self.said, "met" if self.met else ""
        if self.value is not None:
            shown, verdict = f"{self.value:{self.form}}", "no interval"
        if self.value is not None and self.low is not None:
            missed = self.low - self.least if self.most else self.least - self.low
            verdict = "met" if missed <= 0 else f"missed by {missed:{self.form}}"
            if self.rounds is not None and self.rounds < ROUNDS:
                verdict = f"of {self.rounds} rounds alone"
            if self.low != self.value:
                shown += f" ({'to' if self.most else 'from'} {self.low:{self.form}})"
        return f"| {self.what} | {shown} | {'≤' if self.most else '≥'} {self.least:{self.form}} | {verdict} |"


@dataclass(frozen=True)
class Tables:
    """Those of one folder, all of one processor."""

    folder: Path

    def stored(self, name: str) -> Any:
        """What a file holds; None where there is no such file."""
        file = self.folder / f"{name}.json"
        return json.loads(file.read_bytes()) if file.is_file() else None

    def rows(self, name: str, task: str, length: int | None = None, encoding: str | None = None) -> list[Row]:
        """Of a comparison, also what could not be measured."""
        return [
            row
            for table in (self.stored(name) or [])[:1]
            for row in table["rows"]
            if row["task"] == task and length in (None, row["length"]) and encoding in (None, row["encoding"])
        ]

    def one(self, name: str, task: str, encoding: str, length: int | None = None) -> Row | None:
        return next((row for row in self.rows(name, task, length) if row["name"] == encoding), None)


def main(words: list[str]) -> int:
    stale = 0
    for readme in sorted(BENCH.glob("*/README.md")):
        tables = Tables(readme.parent)
        told = [goal.line() for goal in goals(tables)]
        lines = ["| what | measured | goal | |", "| :--- | ---: | ---: | :--- |", *told]
        for said, names in notes(tables):
            lines += ["", f"{said}: {', '.join(names)}."]
        text = readme.read_text(encoding="utf-8")
        made = MARKED.sub(lambda marks, lines=lines: f"{marks[1]}\n" + "\n".join(lines) + f"\n\n{marks[2]}", text)
        if words != ["check"]:
            readme.write_text(made, encoding="utf-8")
        elif made != text:
            where = readme.relative_to(BENCH.parent)
            print(f"results/{where} is not what its tables say: python scripts/goals.py", file=sys.stderr)
            stale = 1
    return stale


def notes(tables: Tables) -> Iterator[tuple[str, list[str]]]:
    """What has to be known of the tables as a whole, with the names of those of which it is true."""
    there = {name: found for name in NEEDED if (found := tables.stored(name)) is not None}
    made: dict[str, list[str]] = {}
    for name, found in there.items():
        commit = fact(found, "commit") or "no known commit"
        if commit.endswith(WITH_CHANGES):
            commit = f"{commit.removesuffix(WITH_CHANGES)} and changes to it"
        made.setdefault(f"{fact(found, 'processor') or 'A processor without a name'}, {commit}", []).append(name)
    if missing := [name for name in NEEDED if name not in there]:
        yield "Not measured yet", missing
    yield from made.items()


def fact(found: Any, key: str) -> str:
    """One of the facts of a file; empty where it is not known."""
    if isinstance(found, dict):
        return found.get(key) or ""
    return next((row[key] for table in found for row in table["rows"] if row.get(key)), "")


def goals(tables: Tables) -> Iterator[Goal]:
    for size, width, ahead, share in SIZES:
        for encoding in dict.fromkeys(peer.encoding for peer in PEERS):
            yield from against_peers(
                tables, f"training, width {width}, {encoding}", ahead, f"peers-{size}", "train", encoding
            )
        for kind, how in KINDS:
            what = f"training, width {width}, none{how or ', eager'}: share of the GEMM bound"
            yield held(what, share, tables.one(f"{kind}-{size}", "train", "none"), "gemm_share")
        for kind, how in KINDS:
            for encoding, least in OVER_NONE.items():
                row = tables.one(f"{kind}-{size}", "train", encoding)
                yield held(f"training, width {width}{how}: {encoding} over none", least, row)
    for name, length in (("encodings-nano", 8192), ("encodings-nano-32768", 32768)):
        for encoding in ("alibi", "t5"):
            what = f"evaluation at {length:,}: time of {encoding} over none"
            yield held(what, SLOWEST, tables.one(name, "eval", encoding, length), inverse=True)
    for encoding in BY_DISTANCE:
        yield from memory(tables, encoding)
    for length in (4096, 8192):
        for encoding, least in AHEAD.items():
            what = f"evaluation at {length:,}, {encoding}"
            yield from against_peers(tables, what, least, "peers-nano", "eval", encoding, length, extra=least > 2)
    yield race(tables)
    for name, (what, most) in TIMES.items():
        form = ".2f" if most < 60 else ".0f"
        if (found := tables.stored(name)) is None:
            yield Goal(what, most, form=form, most=True)
        else:
            seconds = sorted(found["seconds"])
            slow = seconds[-max(1, median_rank(len(seconds)))]
            how = f"median of {len(seconds)} runs" if len(seconds) > 1 else "of one run"
            yield Goal(f"{what}, {how}", most, statistics.median(seconds), slow, form, most=True)


def held(what: str, goal: float, row: Row | None, key: str = "ratio", inverse: bool = False) -> Goal:
    """A ratio of a row against its goal; with `inverse` the other way round, as times are to speeds."""
    if row is None:
        return Goal(what, goal, most=inverse)
    if row["status"] != "ok":
        return Goal(what, goal, said=f"n/a: {row['reason']}", most=inverse)
    value, low = row.get(key), row.get(f"{key}_low")
    if value is None:
        return Goal(what, goal, said="n/a: what it is held against was not measured", most=inverse)
    if inverse:
        return Goal(what, goal, 1 / value, low and 1 / low, most=True, rounds=row.get("rounds"))
    return Goal(what, goal, value, low, rounds=row.get("rounds"))


def against_peers(
    tables: Tables,
    what: str,
    least: float,
    name: str,
    task: str,
    encoding: str,
    length: int | None = None,
    extra: bool = False,
) -> Iterator[Goal]:
    """posbench's speed over that of its best peer, the one it is ahead of least; with `extra`, its memory over that
    peer's too; and a line for each peer that could not be measured."""
    same = tables.rows(name, task, length, encoding)
    peers = [row for row in same if row.get("against")]
    if not peers:
        yield Goal(f"{what}: posbench over its best peer", least)
    measured = [row for row in peers if row["status"] == "ok" and row["ratio"] is not None]
    best = min(measured, key=lambda row: row["ratio_low"] or row["ratio"], default=None)
    for row in peers:
        ours = next((one for one in same if one["name"] == row["against"]), None)
        if row is best:
            how = f" ({ours['variant']})" if ours and ours.get("variant") else ""
            theirs = f" ({row['variant']})" if row.get("variant") else ""
            yield held(f"{what}: posbench{how} over its best peer, {row['name']}{theirs}", least, row)
            if extra:
                yield less("the same", ours, row)
        elif row["status"] != "ok" and row["reason"].startswith(OUT_OF_MEMORY) and ours and ours["status"] == "ok":
            yield Goal(f"{what}: {row['name']}", least, said=f"the peer cannot: {row['reason']}", met=True)
        elif row not in measured:
            yield held(f"{what}: {row['name']}", least, row)


def less(what: str, ours: Row | None, theirs: Row) -> Goal:
    """Memory of one call at most a twentieth of a peer's: by the tensors alive at once, which are the same in every
    process (posbench/bench/tensors.py); of older tables, which did not count them, by the peaks of one."""
    for key, called in (
        ("tensor_bytes", "tensors alive at once"),
        ("extra_bytes", "memory of one process above a short call"),
    ):
        mine, other = ours and ours.get(key), theirs.get(key)
        if mine is not None and other:
            of = f"{what}: {called}, over {theirs['name']}'s"
            return Goal(of, 0.05, mine / other, mine / other, ".3f", most=True)
    of = f"{what}: memory over {theirs['name']}'s"
    return Goal(of, 0.05, form=".3f", most=True, said="n/a: one of them took none that could be measured")


def memory(tables: Tables, encoding: str) -> Iterator[Goal]:
    """Peak memory of one window over that of 1,024 tokens; and whether the tensors alive at once grow by as much a
    token past 16,384 as before, which peaks of processes say only to tens of MiB."""
    found = {length: tables.one("memory-nano-32768", "eval", encoding, length) for length in (1024, 8192, 16384, 32768)}
    what = f"evaluation at 32,768, {encoding}: MiB above 1,024"
    then = f"evaluation at 32,768, {encoding}: tensors, growth per token past 16,384 over that from 8,192"
    there = {n: row for n, row in found.items() if row and row["status"] == "ok"}
    at = {n: row["tensor_bytes"] for n, row in there.items() if row.get("tensor_bytes") is not None}
    lacking = [row["reason"] for row in found.values() if row and row["status"] != "ok"]
    said = f"n/a: {lacking[0]}" if lacking else NOT_MEASURED
    if 1024 in there and 32768 in there:
        grown = (there[32768]["peak_bytes"] - there[1024]["peak_bytes"]) / MIB
        yield Goal(what, 300, grown, grown, ".0f", most=True)
    else:
        yield Goal(what, 300, form=".0f", most=True, said=said)
    if not all(length in at for length in (8192, 16384, 32768)):
        yield Goal(then, LINEAR, most=True, said=said if lacking or not there else "n/a: tensors were not counted")
        return
    steps = [at[b] - at[a] for a, b in itertools.pairwise(at)]
    each = [1024 * grown / (b - a) / MIB for grown, (a, b) in zip(steps, itertools.pairwise(at), strict=True)]
    ratio = each[-1] / each[-2]
    told = " to ".join(f"{one:.2f}" for one in each)
    yield Goal(f"{then}; MiB per 1,024 tokens {told}", LINEAR, ratio, ratio, most=True)


def race(tables: Tables) -> Goal:
    """The recipe at its best share."""
    what = "seconds to a loss over tuned AdamW's"
    recipes = [row for table in tables.stored("time-to-loss") or [] for row in table["rows"] if "share" in row]
    row = next((row for row in recipes if row["best"]), None)
    if not recipes:
        return Goal(what, 0.60, most=True)
    if row is None:
        return Goal(what, 0.60, most=True, said="missed: no share of the steps reaches it at every seed")
    others = f", {row['ratio_others']:.2f} of the seeds on which nothing was chosen" if row.get("ratio_others") else ""
    what = f"seconds to {row['target']:.4f} nats over tuned AdamW's, {row['share']:.0%} of its steps{others}"
    return Goal(what, 0.60, row["ratio"], row["ratio_high"], most=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
