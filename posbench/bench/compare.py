"""A comparison: every cell tried in a process of its own, then all of them timed in rounds, then a row for each.

1. trial     each variant of each entry: its memory, whether it works; the fastest variant stays
2. prepare   these here, and with them the products of posbench's steps and the limits of the machine
3. rounds    all interleaved
4. rows      medians, ratios within the rounds
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from posbench import system
from posbench.bench import limits
from posbench.bench.cells import OURS, half, prepare
from posbench.bench.entries import Entry
from posbench.bench.products import Step
from posbench.bench.rounds import Ratio, Turn, interleave, ratio, spread
from posbench.bench.trial import run, settle
from posbench.errors import reason
from posbench.progress import duration, progress

TURN_SECONDS = 0.2
"""A turn is as many calls as take about so long, at least one."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Budget:
    """What a comparison may take."""

    rounds: int
    memory: int
    """Bytes of one cell."""
    trial_seconds: float
    """Of one variant's trial, compilation included."""
    seconds: float
    """Of the rounds: none begins after."""
    within: float = float("inf")
    """Of all of it: no round begins after. What is not tried after 0.6 of it, or not built after 0.8, is left out."""


@dataclass(frozen=True)
class Limit:
    """Something the machine does in the rounds for its own sake."""

    name: str
    amount: float
    """Of one call; over its seconds it is a rate in `unit`."""
    unit: str
    step: Step | None = None
    """That whose products it is the time of."""
    at_once: int = 1
    """Parts of it at the same time."""


@dataclass
class Outcome:
    """What was timed: seconds of one call, by round."""

    entries: list[Entry]
    seconds: dict[Entry, list[float]] = field(default_factory=dict)
    limits: dict[Limit, list[float]] = field(default_factory=dict)
    steps: dict[Entry, Step] = field(default_factory=dict)
    """Of posbench's training steps, their products."""
    kernels: dict[Entry, str] = field(default_factory=dict)

    def bound(self, step: Step | None) -> Limit | None:
        """The products of a step in the way that is faster, by the median; None: they were not timed."""
        ways = [limit for limit in self.limits if step is not None and limit.step == step]
        return min(ways, key=lambda limit: statistics.median(self.limits[limit]), default=None)


def compare(entries: list[Entry], budget: Budget, say: Say = lambda text: None) -> Outcome:
    """Measure all entries. One that cannot be measured keeps the reason, and the others go on."""
    config = entries[0].cells[0].config
    device, begun = system.device(config.device), time.monotonic()

    def left(share: float = 1.0) -> float:
        return share * budget.within - (time.monotonic() - begun)

    def attempt(entry: Entry) -> Entry:
        if entry.reason is None and left(0.6) <= 0:
            entry.reason = f"not tried: {0.6 * budget.within:g} s were over"
        elif entry.reason is None:
            try_variants(entry, replace(budget, trial_seconds=min(budget.trial_seconds, left(0.6))))
        return entry

    # For a GPU most of a trial is compiling; where variants race for the shortest time each has to be alone.
    single = device.type == "cuda" and all(len(entry.cells) == 1 for entry in entries)
    with ThreadPoolExecutor(3) as pool:
        for number, entry in enumerate(pool.map(attempt, entries) if single else map(attempt, entries), start=1):
            said = entry.reason or f"{entry.cell.variant if entry.cell else ''}, {_mib(entry.trial.extra)} MiB"
            say(f"[{number}/{len(entries)}] {entry.label}, {entry.task} at {entry.length:,}: {said}")

    outcome = Outcome(entries)
    turns: dict[Entry | Limit, Turn] = {}
    for entry in entries:
        if entry.reason is None and left(0.8) <= 0:
            entry.reason = f"not built: {0.8 * budget.within:g} s were over"
        elif entry.reason is None:
            _prepare(entry, outcome, turns, device)
    if turns:
        _add_limits(outcome, turns, device)
        each = sum(_seconds(turn.call, device) * turn.calls for turn in turns.values())
        say(f"{len(turns)} cells in {budget.rounds} rounds of about {duration(each)}")
    with progress(budget.rounds, "rounds") as bar:
        limit = min(budget.seconds, left())
        found = interleave(turns, budget.rounds, settle=lambda: settle(device), limit=limit, tick=bar.update)
    for key, seconds in found.items():
        if isinstance(key, Entry):
            outcome.seconds[key] = seconds
        else:
            outcome.limits[key] = seconds
    return outcome


def try_variants(entry: Entry, budget: Budget) -> None:
    """Keep the fastest of an entry's variants that works, or the reason of the first."""
    trials = [(run(cell, budget.memory, budget.trial_seconds), cell) for cell in entry.cells]
    worked = [(trial.seconds, trial, cell) for trial, cell in trials if trial.seconds is not None]
    if worked:
        _, entry.trial, entry.cell = min(worked, key=lambda one: one[0])
    else:
        entry.reason = trials[0][0].reason


def _prepare(entry: Entry, outcome: Outcome, turns: dict[Entry | Limit, Turn], device: torch.device) -> None:
    """Build an entry here and call it once, which compiles it; with a training step of posbench's comes its bound."""
    assert entry.cell is not None
    assert entry.trial.seconds is not None
    try:
        prepared = prepare(entry.cell)
        if prepared.products is not None:
            outcome.steps[entry] = prepared.products()
        prepared.call()
    except (MemoryError, RuntimeError) as error:  # all are here at once, where the trial was alone
        entry.reason = f"not beside the other cells: {reason(error)}"
        return
    if entry.cell.maker == OURS:
        outcome.kernels[entry] = prepared.kernel()
    turns[entry] = Turn(prepared.call, _calls(entry.trial.seconds))


def _add_limits(outcome: Outcome, turns: dict[Entry | Limit, Turn], device: torch.device) -> None:
    cell = next(entry.cell for entry in turns if isinstance(entry, Entry) and entry.cell)
    dtype = torch.bfloat16 if half(cell, device) else torch.float32
    size = limits.SIZE[device.type]
    multiply, flops = limits.matmul(dtype, device)
    calls: dict[Limit, Callable[[], object]] = {
        Limit(f"matmul peak, {str(dtype).removeprefix('torch.')}, {size:,} x {size:,}", flops / 1e9, "GF/s"): multiply
    }
    if device.type == "cuda":
        copy, n_bytes = limits.copy(device)
        calls[Limit("copy bandwidth, read and write", n_bytes / 1e9, "GB/s")] = copy
    for entry, step in outcome.steps.items():
        assert entry.cell is not None
        for at_once in dict.fromkeys((1, step.at_once)):
            bound = Limit("GEMM bound", entry.cell.tokens, "tokens/s", step, at_once)
            if bound not in calls:
                calls[bound] = step.run(device, at_once)
    for limit, call in calls.items():
        call()
        turns[limit] = Turn(call, _calls(_seconds(call, device)))


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    return interleave({0: Turn(call)}, 1, settle=lambda: settle(device))[0][0]


def _calls(seconds: float) -> int:
    return max(1, round(TURN_SECONDS / seconds))


def _mib(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else f"{n_bytes / 2**20:,.0f}"


# Rows -----------------------------------------------------------------------------------------------------------------


def records(outcome: Outcome) -> list[dict[str, Any]]:
    """A row for each entry in plain values, unrounded; bytes, tokens a second, and of each ratio its interval."""
    return [_record(entry, outcome) for entry in outcome.entries]


def _record(entry: Entry, outcome: Outcome) -> dict[str, Any]:
    trial, seconds = entry.trial, outcome.seconds.get(entry)
    tokens = entry.cells[0].tokens
    found: dict[str, Any] = {
        "name": entry.name,
        "encoding": entry.encoding,
        "task": entry.task,
        "length": entry.length,
        "windows": entry.windows,
        "status": "n/a" if seconds is None else "ok",
        "reason": entry.reason,
        "variant": str(entry.cell.variant) if entry.cell else None,
        "kernel": outcome.kernels.get(entry),
        "parameters": trial.parameters,
        "loss_difference": entry.loss_difference,
        "peak_bytes": trial.peak,
        "extra_bytes": trial.extra,
    }
    speed = None if seconds is None else spread([tokens / one for one in seconds])
    found |= {
        "tokens_per_second": speed and speed.median,
        "lowest": speed and speed.low,
        "highest": speed and speed.high,
        "rounds": speed and speed.rounds,
        "seconds": seconds,  # of one call, by round: any two entries can be held against each other
    }
    found |= {"against": entry.against.name if entry.against else None}
    found |= _ratio("ratio", _times_base(entry, outcome))
    step = outcome.steps.get(entry)
    bound = outcome.bound(step)
    found |= _ratio("gemm_share", ratio(outcome.limits[bound], seconds) if bound and seconds else None)
    peak = next(((one, times) for one, times in outcome.limits.items() if one.unit == "GF/s"), None)
    # Of the products' multiplications alone: those of attention are not counted.
    share = ratio(peak[1], seconds) if step and peak and seconds else None
    times = step.flops / 1e9 / peak[0].amount if step and peak else 1.0
    found |= {key: value and times * value for key, value in _ratio("peak_share", share).items()}
    return found | {"gflop_products": step.flops / 1e9 if step else None}


def _times_base(entry: Entry, outcome: Outcome) -> Ratio | None:
    """Of an encoding its speed over the base's; of a peer posbench's over its."""
    seconds = outcome.seconds.get(entry)
    base = outcome.seconds.get(entry.against) if entry.against else None
    if seconds is None or base is None:
        return None
    ours = entry.cells[0].maker == OURS
    return ratio(base, seconds) if ours else ratio(seconds, base)


def _ratio(name: str, found: Ratio | None) -> dict[str, Any]:
    return {
        name: found and found.median,
        f"{name}_low": found and found.low,
        f"{name}_high": found and found.high,
    }


def limit_records(outcome: Outcome) -> list[dict[str, Any]]:
    """What the machine did in the same rounds."""
    found = []
    for limit, seconds in outcome.limits.items():
        speed = spread([limit.amount / one for one in seconds])
        found.append(
            {
                "limit": _called(limit, outcome),
                "median": speed.median,
                "lowest": speed.low,
                "highest": speed.high,
                "unit": limit.unit,
                "rounds": speed.rounds,
                "products": len(limit.step.products) if limit.step else None,
                "gflop": limit.step.flops / 1e9 if limit.step else None,
            }
        )
    return found


def _called(limit: Limit, outcome: Outcome) -> str:
    """Of products whose they are, how they were run, and whether that is the slower way, which bounds nothing."""
    if limit.step is None:
        return limit.name
    of = ", ".join(dict.fromkeys(entry.label for entry, step in outcome.steps.items() if step == limit.step))
    way = "all threads in turn" if limit.at_once == 1 else f"{limit.at_once} parts at once"
    slower = "" if outcome.bound(limit.step) == limit else " (slower)"
    return f"{limit.name}, {way}{slower}: {of}"
