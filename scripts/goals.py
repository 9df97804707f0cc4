"""The goals of speed and memory, held against the tables of results/bench: the table in its README.

    python scripts/goals.py            write it there
    python scripts/goals.py check      status 1 when what is there is not what the tables say

A goal is met when the worse end of the 95 % interval reaches it. What was tried for one that is missed is in
docs/performance-log.md.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posbench.bench.rounds import median_rank

BENCH = Path(__file__).resolve().parents[1] / "results" / "bench"
README = BENCH / "README.md"
MARKED = re.compile(r"(<!-- goals: .*? -->\n).*?(<!-- end of goals -->)", re.DOTALL)

MIB = 2**20
SLOWEST = 1.4
"""Time of a bias by distance over that of attention without one."""

AHEAD = {"none": 1.1, "rope": 1.1, "alibi": 4.0, "t5": 4.0}
"""Speed of evaluation over that of the best peer."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """One line of the table."""

    what: str
    least: float
    value: float
    low: float
    """The worse end of its interval."""
    form: str = ".2f"
    most: bool = False
    """The goal is an upper bound."""

    def line(self) -> str:
        missed = self.low - self.least if self.most else self.least - self.low
        verdict = "met" if missed <= 0 else f"missed by {missed:{self.form}}"
        end = "" if self.low == self.value else f" ({'to' if self.most else 'from'} {self.low:{self.form}})"
        sign = "≤" if self.most else "≥"
        return f"| {self.what} | {self.value:{self.form}}{end} | {sign} {self.least:{self.form}} | {verdict} |"


def main(words: list[str]) -> int:
    lines = ["| what | measured | goal | |", "| :--- | ---: | ---: | :--- |", *(goal.line() for goal in goals())]
    missing = [name for name in NEEDED if not (BENCH / f"{name}.json").is_file()]
    if missing:
        lines += ["", f"Not measured yet: {', '.join(missing)}."]
    text = README.read_text(encoding="utf-8")
    made = MARKED.sub(lambda found: f"{found[1]}\n" + "\n".join(lines) + f"\n\n{found[2]}", text)
    if words == ["check"]:
        if made != text:
            print("results/bench/README.md is not what its tables say: python scripts/goals.py", file=sys.stderr)
        return int(made != text)
    README.write_text(made, encoding="utf-8")
    return 0


NEEDED = (
    "training-nano", "encodings-nano", "compiled-nano", "encodings-nano-32768", "memory-nano-32768", "peers-nano",
    "training-micro", "compiled-micro", "peers-micro", "time-to-loss", "start", "reproduce",
)  # fmt: skip

TIMES = {
    "start": ("`posbench table` over 100 finished runs, seconds", 1.5),
    "reproduce": ("default study (`posbench reproduce`), seconds", 600),
}
"""Commands that are timed as a whole, and their goals in seconds."""


def tables(name: str) -> list[dict[str, Any]]:
    """Those of a file, none where there is no such file."""
    file = BENCH / f"{name}.json"
    return json.loads(file.read_bytes()) if file.is_file() else []


def rows(name: str, task: str, length: int | None = None) -> list[Row]:
    """What was measured of a comparison."""
    return [
        row
        for table in tables(name)[:1]
        for row in table["rows"]
        if row["status"] == "ok" and row["task"] == task and length in (None, row["length"])
    ]


def goals() -> Iterator[Goal]:
    for size, width, ahead, share in (("nano", 128, 1.25, 0.70), ("micro", 256, 1.15, 0.85)):
        for encoding, peer in best_peers(rows(f"peers-{size}", "train")):
            what = f"training, width {width}, {encoding}: posbench over its best peer, {peer['name']}"
            yield Goal(what, ahead, peer["ratio"], peer["ratio_low"])
        for kind, how in (("training", "eager"), ("compiled", "compiled")):
            for row in rows(f"{kind}-{size}", "train"):
                if row["name"] == "none":
                    what = f"training, width {width}, none, {how}: share of the GEMM bound"
                    yield Goal(what, share, row["gemm_share"], row["gemm_share_low"])
        for row in rows(f"training-{size}", "train"):
            if row["name"] != "none":
                least = 0.85 if row["name"] in ("t5", "shaw", "kerple") else 0.95
                yield Goal(f"training, width {width}: {row['name']} over none", least, row["ratio"], row["ratio_low"])
    for name, length in (("encodings-nano", 8192), ("encodings-nano-32768", 32768)):
        for row in rows(name, "eval", length):
            if row["name"] in ("alibi", "t5"):
                what = f"evaluation at {length:,}: time of {row['name']} over none"
                yield Goal(what, SLOWEST, 1 / row["ratio"], 1 / row["ratio_low"], most=True)
    yield from memory()
    for length in (4096, 8192):
        for encoding, peer in best_peers(rows("peers-nano", "eval", length)):
            if encoding not in AHEAD:
                continue
            what = f"evaluation at {length:,}, {encoding}: posbench over its best peer, {peer['name']}"
            yield Goal(what, AHEAD[encoding], peer["ratio"], peer["ratio_low"])
            if AHEAD[encoding] > 2:
                same = [row for row in rows("peers-nano", "eval", length) if row["encoding"] == encoding]
                ours = next(row for row in same if row["name"] == peer["against"])
                extra = ours["extra_bytes"] / peer["extra_bytes"]
                what = f"the same: memory above a short call, over {peer['name']}'s"
                yield Goal(what, 0.05, extra, extra, ".3f", most=True)
    for row in race():
        what = f"seconds to {row['target']:.4f} nats over tuned AdamW's, {row['share']:.0%} of its steps"
        yield Goal(what, 0.60, row["ratio"], row["ratio_high"], most=True)
    for name, (what, most) in TIMES.items():
        if (file := BENCH / f"{name}.json").is_file():
            seconds = sorted(json.loads(file.read_bytes())["seconds"])
            slow = seconds[-max(1, median_rank(len(seconds)))]
            yield Goal(what, most, statistics.median(seconds), slow, ".2f" if most < 60 else ".0f", most=True)


def best_peers(found: list[Row]) -> Iterator[tuple[str, Row]]:
    """Of each encoding the peer that posbench is ahead of least."""
    peers = [row for row in found if row["ratio"] is not None]
    for encoding in dict.fromkeys(row["encoding"] for row in peers):
        yield encoding, min((row for row in peers if row["encoding"] == encoding), key=lambda row: row["ratio_low"])


def memory() -> Iterator[Goal]:
    """Peak memory of one window over that of 1,024 tokens, and whether its growth doubles with the length."""
    peaks = {(row["name"], row["length"]): row["peak_bytes"] / MIB for row in rows("memory-nano-32768", "eval")}
    for name in dict.fromkeys(name for name, length in peaks):
        if (name, 32768) in peaks and name != "none":
            grown = peaks[name, 32768] - peaks[name, 1024]
            yield Goal(f"evaluation at 32,768, {name}: MiB above 1,024", 300, grown, grown, ".0f", True)
            steps = [peaks[name, 2 * length] - peaks[name, length] for length in (8192, 16384)]
            times = steps[1] / steps[0]
            yield Goal("the same: from 16,384 to 32,768 over from 8,192 to 16,384", 2.2, times, times, most=True)


def race() -> list[Row]:
    """The recipe at its best share."""
    return [
        row for table in tables("time-to-loss") for row in table["rows"] if row.get("best") and row.get("ratio_high")
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
