"""SIGKILL a study again and again, go on with it, and hold the end against an undisturbed one.

A round: a study begins and is killed; another process goes on with it and is killed too; a third ends it. Two kills of
five are inside a write (the process kills itself there: file opened, half written, not yet renamed), the others come
from outside, at a time drawn uniformly from the first step to the end.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from judge import Finished, Verdict, content, finished, judge
from sweeps import Place, done, kill, start
from writes import HALF, KINDS, OPENED, WHOLE, Trap

from posbench.study import Plan

INSIDE = {1: (0, 2), 2: (1, 3)}
"""Of five rounds, those whose first kill is inside a write, and those whose second is."""

CELLS = [(kind, place) for place in (HALF, OPENED, WHOLE) for kind in KINDS]
"""What is killed inside a write, by turns."""


@dataclass(frozen=True)
class Kill:
    """A process that was killed, and how its study ended."""

    round: int
    nth: int
    """1: of a study that had just begun; 2: of a resumed one."""
    where: str
    """The kind of file and the place in its write; or what the process was doing."""
    runs: int
    """Finished ones at that moment."""
    rows: int
    verdict: Verdict

    @property
    def inside(self) -> bool:
        return self.where.split(",")[0] in KINDS


@dataclass(frozen=True)
class Undisturbed:
    """A study, and what it is when nobody disturbs it."""

    plan: Plan
    content: dict[str, Any]
    writes: dict[str, int]
    """How many of each kind."""
    seconds: float
    """From its first step to its end."""


def undisturbed(plan: Plan, place: Place) -> Undisturbed:
    sweep = start(plan, place)
    sweep.stepped()
    begun = time.monotonic()
    if sweep.end() != 0:
        sys.exit(f"The undisturbed study fails:\n{place.said[-2000:]}")
    seconds = time.monotonic() - begun
    found, again = content(place), done(plan, place)
    writes = place.ledger.kinds()
    if again != 0 or max(place.ledger.count("row", "status done").values()) > 1:
        sys.exit("The undisturbed study does its work twice.")
    return Undisturbed(plan, found, dict(writes), seconds)


def kill_inside(whole: Undisturbed, place: Place, turn: int, draw: random.Random, plain: bool) -> str | None:
    """Kill a process within a write; where, or None when there was no such write any more."""
    published = place.ledger.kinds()
    left = {kind: whole.writes[kind] - published[kind] for kind in KINDS}
    cells = [*CELLS[turn % len(CELLS) :], *CELLS]
    kind, at = next(((kind, at) for kind, at in cells if left[kind] > 0), ("status", HALF))
    sweep = start(whole.plan, place, Trap(kind, draw.randint(1, max(1, left[kind])), at, kill), plain)
    return sweep.where.get() if sweep.end() == -signal.SIGKILL else None


def kill_in_time(whole: Undisturbed, place: Place, turn: int, draw: random.Random, plain: bool) -> str | None:
    """Kill a process from outside at any time after the first step; where, or None when it had ended before."""
    rows = place.ledger.kinds()["row"]
    sweep = start(whole.plan, place, plain=plain)
    if not rows:
        sweep.stepped()
    time.sleep(draw.random() * whole.seconds * (1 - rows / whole.writes["row"]))
    sweep.send(signal.SIGKILL)
    return sweep.where.get() if sweep.end() == -signal.SIGKILL else None


def one_round(number: int, whole: Undisturbed, place: Place, plain: bool, seed: int) -> list[Kill]:
    """A study killed twice, or once where the second kill came too late."""
    draw = random.Random(f"{seed} {number}")
    killed: list[tuple[int, str, Finished]] = []
    for nth, fives in INSIDE.items():
        how = kill_inside if plain or number % 5 in fives else kill_in_time
        where = how(whole, place, 2 * number + nth, draw, plain)
        if where is not None:
            killed.append((nth, where, finished(place)))
    status = done(whole.plan, place, plain=plain)
    verdict = judge(whole.content, place, status, [then for _, _, then in killed])
    return [Kill(number, nth, where, len(then.runs), len(then.rows), verdict) for nth, where, then in killed]


@dataclass(frozen=True)
class Harness:
    """A study, and a folder where it is disturbed again and again."""

    whole: Undisturbed
    folder: Path
    plain: bool = False
    """Whether the version that is killed renames nothing; then every kill is inside a write."""
    seed: int = 0

    def round(self, number: int) -> list[Kill]:
        """One round, whose folder is kept when it ends badly."""
        place = Place(self.folder / f"round-{number}")
        kills = one_round(number, self.whole, place, self.plain, self.seed)
        if all(kill.verdict.good for kill in kills):
            shutil.rmtree(place.folder)
        return kills

    def rounds(self, count: int, lanes: int, tell: Callable[[str], None] = lambda text: None) -> list[Kill]:
        """So many kills of a study and as many of a resumed one, `lanes` studies at a time."""
        kills: list[Kill] = []
        begun = 0
        while (missing := count - min(sum(kill.nth == nth for kill in kills) for nth in INSIDE)) > 0:
            if begun > 3 * count + 10:
                sys.exit("Kills come too late again and again: this machine's speed changes too much.")
            numbers = range(begun, begun + missing)
            begun += missing
            for found in self._side_by_side(numbers, lanes):
                kills += found
            tell(f"{len(kills)} of {2 * count} kills")
        return kills

    def _side_by_side(self, numbers: Sequence[int], lanes: int) -> list[list[Kill]]:
        """The rounds of these numbers, in processes of their own."""
        files = [self.folder / f"lane-{lane}.jsonl" for lane in range(min(lanes, len(numbers)))]
        pids = []
        for lane, file in enumerate(files):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    with file.open("w") as out:
                        for number in numbers[lane::lanes]:
                            out.write(json.dumps([asdict(kill) for kill in self.round(number)]) + "\n")
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            pids.append(pid)
        failed = [pid for pid in pids if os.waitpid(pid, 0)[1]]
        if failed:
            sys.exit("A lane of the harness has failed.")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [[Kill(**one | {"verdict": Verdict(**one["verdict"])}) for one in json.loads(line)] for line in lines]
