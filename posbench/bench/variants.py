"""Which variants of an entry are timed: each is tried in a process of its own, and those near the fastest stay.

A trial is a few calls in a process beside nobody, minutes before or after the next one's; on a noisy machine it cannot
tell two variants apart that differ by a tenth. So all that come near the fastest go into the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import torch

from posbench.bench import trial
from posbench.bench.cells import Cell
from posbench.bench.entries import Contender, Entry
from posbench.bench.trial import Trial, run, short

NEAR = 1.25
"""Times the fastest trial: a variant that is slower is not timed."""

MOST = 3
"""Variants of an entry that are timed, each of which makes every round longer."""

AT_ONCE = 3
"""Trials at the same time on a GPU, where most of one is compiling."""

TRIED = 0.6
"""Of the time of a whole comparison: what trials may take."""


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
    begun: float = field(default_factory=time.monotonic)

    def left(self, share: float = 1.0) -> float:
        """Seconds until that share of the whole time is over."""
        return share * self.within - (time.monotonic() - self.begun)


@dataclass
class Trials:
    """All trials of a comparison."""

    budget: Budget
    device: torch.device
    bases: dict[Cell, int | None] = field(default_factory=dict)
    """Peaks of short calls of what is compiled, which all lengths share."""

    def each(self, entries: Sequence[Entry]) -> Generator[Entry]:
        """Try all that have no reason yet, and give each when it is through."""
        # Where variants race for the shortest time each has to be alone.
        if self.device.type == "cuda" and all(len(entry.cells) == 1 for entry in entries):
            yield from self._side_by_side(entries)
        else:
            for entry in entries:
                self.attempt(entry)
                yield entry

    def attempt(self, entry: Entry, at_once: int = 1) -> None:
        """Find the contenders of an entry, or the reason why there are none, that of its first variant; it is one of
        so many at the same time, which share the memory."""
        if entry.reason is not None:
            return
        trials = []
        for cell in entry.cells:
            if self.budget.left(TRIED) <= 0:
                break
            trials.append((self._try(cell, at_once), cell))
        worked = [(found.seconds, Contender(cell, found)) for found, cell in trials if found.seconds is not None]
        worked.sort(key=lambda one: one[0])
        near = [contender for seconds, contender in worked if seconds <= NEAR * worked[0][0]]
        entry.contenders = [self._with_base(contender) for contender in near[:MOST]]
        if not trials:
            entry.reason = f"not tried: {TRIED * self.budget.within:g} s were over"
        elif not worked:
            entry.reason = trials[0][0].reason

    def _try(self, cell: Cell, at_once: int = 1) -> Trial:
        seconds = max(1.0, min(self.budget.trial_seconds, self.budget.left(TRIED)))
        return run(cell, self.budget.memory // at_once, seconds)

    def _with_base(self, contender: Contender) -> Contender:
        """Where no base was measured beside the peak it is measured now, or was for another length."""
        if contender.trial.base is None:
            key = short(contender.cell)
            if key not in self.bases:
                self.bases[key] = self._try(key).peak
            contender.trial = replace(contender.trial, base=self.bases[key])
        return contender

    def _side_by_side(self, entries: Sequence[Entry]) -> Generator[Entry]:
        """Several at a time, each with its share of the memory; what that is too little for is tried again alone."""
        refused = [entry for entry in entries if entry.reason is not None]
        pool = ThreadPoolExecutor(AT_ONCE)
        futures = [pool.submit(self.attempt, entry, AT_ONCE) for entry in entries]
        again = []
        try:
            for entry, future in zip(entries, futures, strict=True):
                future.result()
                if Trial(entry.reason).ran_out and entry not in refused:
                    again.append(entry)
                else:
                    yield entry
        finally:
            _end(futures)
            pool.shutdown()
        for entry in again:
            entry.reason = None
            self.attempt(entry)
            yield entry


def _end(futures: Sequence[Future[None]]) -> None:
    """Have none of them run on."""
    for future in futures:
        future.cancel()
    while not all(future.done() for future in futures):
        trial.stop()
        wait(futures, timeout=0.1)
