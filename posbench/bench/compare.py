"""A comparison: every cell tried in a process of its own, then all of them timed in rounds.

1. trial     each variant of each entry: its memory, whether it works; those near the fastest stay (variants.py)
2. prepare   these here, and with them the products of posbench's steps and the limits of the machine
3. rounds    all interleaved; of each entry the variant with the best median counts
4. rows      medians, ratios within the rounds (rows.py)

What cannot be measured in one of these keeps its reason, and the others go on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import torch

from posbench import system
from posbench.bench import limits
from posbench.bench.cells import half, prepare
from posbench.bench.entries import Contender, Entry
from posbench.bench.products import Step
from posbench.bench.rounds import Turn, interleave
from posbench.bench.trial import settle, why
from posbench.bench.variants import Budget, Trials
from posbench.progress import duration, progress

TURN_SECONDS = 0.2
"""A turn is as many calls as take about so long, at least one."""

KEEP_SECONDS = 60.0
"""Between two times that what was found so far is handed out."""

BUILT = 0.8
"""Of the time of a whole comparison: when everything must be built."""

Say = Callable[[str], None]


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


Turns = dict[Contender | Limit, Turn]


@dataclass
class Outcome:
    """What was timed: seconds of one call, by round."""

    entries: list[Entry]
    seconds: dict[Entry, list[float]] = field(default_factory=dict)
    """Of its best variant."""
    limits: dict[Limit, list[float]] = field(default_factory=dict)
    steps: dict[Entry, Step] = field(default_factory=dict)
    """Of posbench's training steps, their products."""

    def bound(self, step: Step | None) -> Limit | None:
        """The products of a step in the way that is faster, by the median; None: they were not timed."""
        ways = [limit for limit in self.limits if step is not None and limit.step == step]
        return min(ways, key=lambda limit: statistics.median(self.limits[limit]), default=None)

    def take(self, found: Mapping[Contender | Limit, list[float]]) -> None:
        """Settle the best variant of each entry by the medians of these rounds."""
        self.limits = {key: list(seconds) for key, seconds in found.items() if isinstance(key, Limit)}
        for entry in self.entries:
            timed = [one for one in entry.contenders if found.get(one)]
            entry.best = min(timed, key=lambda one: statistics.median(found[one]), default=None)
            if entry.best is not None:
                self.seconds[entry] = list(found[entry.best])
            else:
                self.seconds.pop(entry, None)
                entry.reason = entry.reason or next((one.reason for one in entry.contenders), None)


def compare(
    entries: list[Entry],
    budget: Budget,
    say: Say = lambda text: None,
    keep: Callable[[Outcome], object] = lambda outcome: None,
) -> Outcome:
    """Measure all entries; `keep` is handed now and then what the rounds have found so far."""
    device = system.device(entries[0].cells[0].config.device)
    with closing(Trials(budget, device).each(entries)) as tried:
        for number, entry in enumerate(tried, start=1):
            say(f"[{number}/{len(entries)}] {entry.label}, {entry.task} at {entry.length:,}: {_said(entry)}")

    outcome, turns = Outcome(entries), Turns()
    for entry in entries:
        if entry.reason is None:
            _prepare(entry, budget, outcome, turns, device)
    if turns:
        _add_limits(outcome, turns, device, say)
        each = sum(turn.calls * turn.seconds for turn in turns.values())
        say(f"{len(turns)} cells in {budget.rounds} rounds of about {duration(each)}")
    kept = time.monotonic()

    def drop(key: Contender | Limit, error: Exception) -> None:
        if isinstance(key, Contender):
            key.reason = f"it failed in the rounds: {why(error)}"
        say(f"left out from here on: {key.name if isinstance(key, Limit) else f'{key.cell.maker}, {key.reason}'}")

    with progress(budget.rounds, "rounds") as bar:

        def tick(done: int, seconds: Mapping[Contender | Limit, list[float]]) -> None:
            nonlocal kept
            bar.update(done)
            if done < budget.rounds and time.monotonic() - kept >= KEEP_SECONDS:
                outcome.take(seconds)
                keep(outcome)
                kept = time.monotonic()

        limit = min(budget.seconds, budget.left())
        found = interleave(turns, budget.rounds, settle=lambda: settle(device), limit=limit, tick=tick, drop=drop)
    outcome.take(found)
    if (done := max(map(len, found.values()), default=0)) < budget.rounds and turns:
        say(f"ended after {done} of {budget.rounds} rounds")
    return outcome


def _said(entry: Entry) -> str:
    if entry.reason is not None:
        return entry.reason
    return "; ".join(f"{one.cell.variant}, {_mib(one.trial.extra)} MiB" for one in entry.contenders)


def _prepare(entry: Entry, budget: Budget, outcome: Outcome, turns: Turns, device: torch.device) -> None:
    """Build the contenders of an entry here and call each once, which compiles it; with a training step of posbench's
    come its products."""
    ready = 0
    for contender in entry.contenders:
        if budget.left(BUILT) <= 0:
            contender.reason = f"not built: {BUILT * budget.within:g} s were over"
            continue
        assert contender.trial.seconds is not None
        try:
            prepared = prepare(contender.cell)
            if prepared.products is not None and entry not in outcome.steps:
                outcome.steps[entry] = prepared.products()
            prepared.call()
        except Exception as error:  # all are here at once, where each trial was alone
            contender.reason = f"not beside the other cells: {why(error)}"
            continue
        contender.kernel = prepared.kernel()
        turns[contender] = _turn(prepared.call, contender.trial.seconds)
        ready += 1
    if not ready:
        entry.reason = entry.contenders[0].reason


def _add_limits(outcome: Outcome, turns: Turns, device: torch.device, say: Say) -> None:
    cell = next(key.cell for key in turns if isinstance(key, Contender))
    dtype = torch.bfloat16 if half(cell, device) else torch.float32
    size = limits.SIZE[device.type]
    multiply, flops = limits.matmul(dtype, device)
    name = f"matmul peak, {str(dtype).removeprefix('torch.')}, {size:,} x {size:,}"
    made: dict[Limit, Callable[[], Callable[[], object]]] = {Limit(name, flops / 1e9, "GF/s"): lambda: multiply}
    if device.type == "cuda":
        copied = limits.COPIED / 1e9
        made[Limit("copy bandwidth, read and write", copied, "GB/s")] = partial(limits.copy, device)
    for entry, step in outcome.steps.items():
        for at_once in dict.fromkeys((1, step.at_once)):
            bound = Limit("GEMM bound", entry.cells[0].tokens, "tokens/s", step, at_once)
            made[bound] = partial(step.run, device, at_once)
    for limit, make in made.items():
        try:
            call = make()
            call()
            seconds = interleave({0: Turn(call)}, 1, settle=lambda: settle(device))[0][0]
        except Exception as error:
            say(f"{limit.name} is not measured: {why(error)}")
            continue
        turns[limit] = _turn(call, seconds)


def _turn(call: Callable[[], object], seconds: float) -> Turn:
    """Of as many calls of about so many seconds as fill it."""
    return Turn(call, max(1, round(TURN_SECONDS / seconds)), seconds)


def _mib(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else f"{n_bytes / 2**20:,.0f}"
