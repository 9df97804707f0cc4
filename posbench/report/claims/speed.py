"""Speeds of two encodings against each other, from the rows of one `posbench bench encodings`.

They were timed in the same rounds, so that a ratio is taken within each: its median, with the interval of order
statistics (posbench/bench/rounds.py). It holds for that machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posbench.bench.rounds import Ratio, ratio
from posbench.report.claims.claim import Claim, Side

Bench = Sequence[Mapping[str, Any]]
"""The rows that `posbench bench encodings --out PREFIX` wrote to PREFIX.json."""

TASKS = {"training": "train", "evaluation": "eval"}


def heading(row: Mapping[str, Any]) -> str:
    """What the rows timed together with this one have in common."""
    windows = f"{row['windows']} window{'s' * (row['windows'] > 1)}"
    if row["task"] == "train":
        return f"training at {row['length']:,}, {windows} a step"
    return f"evaluation at {row['length']:,}, {windows} a call"


@dataclass(frozen=True)
class Speed:
    """Tokens a second of both sides, and how many times that of the right the left is."""

    left: float
    right: float
    times: Ratio


def speed(claim: Claim, bench: Bench) -> Speed | str:
    """Of a claim about one; or why there is none."""
    if not bench:
        return "no speeds were given: posbench bench encodings --out bench, then posbench report --bench bench.json"
    left, right = (_find(side, bench) for side in (claim.left, claim.right))
    for side, found in ((claim.left, left), (claim.right, right)):
        if found is None or not found.get("seconds"):
            return f"{side.protocol} of {side.encoding} at {side.length:,} was not timed"
    assert left is not None
    assert right is not None
    if len(left["seconds"]) != len(right["seconds"]):
        return "the two were not timed in the same rounds"
    return Speed(left["tokens_per_second"], right["tokens_per_second"], ratio(right["seconds"], left["seconds"]))


def _find(side: Side, bench: Bench) -> Mapping[str, Any] | None:
    wanted = (TASKS[side.protocol], side.encoding, side.length)
    return next((row for row in bench if (row["task"], row["encoding"], row["length"]) == wanted), None)
