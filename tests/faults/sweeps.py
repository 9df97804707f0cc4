"""A study of toys, and processes that work on it: forked from one that has imported everything, so that each begins at
once and a hundred can be killed.

The parent makes no thread and computes no tensor before it forks; a child ends without returning here.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

# Imported by posbench, and by what it uses, where they are needed: that is after the fork, in each child anew.
import datasets  # noqa: F401
import rich.console  # noqa: F401
import scipy.io  # noqa: F401
import torch._dynamo  # noqa: F401
import toys
import yaml
from writes import Ledger, Trap, Whereabouts, watch

from posbench import launch, study, system
from posbench.errors import UserError
from posbench.study import Plan

SETTINGS = (
    "tokenizer=bytes model.layers=1 model.width=16 model.heads=2 model.hidden=24 train.length=16 train.tokens=320 "
    "train.batch_tokens=32 train.validate_tokens=96 train.dropout=0.1 train.threads=1 train.compile=off device=cpu"
)
"""Ten steps; an epoch is twenty."""

EVERY_STEP, NOW_AND_THEN = "train.checkpoint_seconds=0", "train.checkpoint_seconds=0.02"

EVALS = {
    "flat": {"protocol": "nonoverlapping", "lengths": [8, 12, 20, 24, 32, 40, 48], "targets": 64},
    "sliding": {"protocol": "sliding", "lengths": [20, 24, 32, 40], "stride": 8, "targets": 64},
    "same": {"protocol": "same-targets", "lengths": [8, 24, 32], "block": 4, "min_context": 32, "targets": 32},
}
"""Rows of a run: 8 + 5 + 4, its own length of 16 among them in each."""


def planned(folder: Path, seeds: int) -> Plan:
    """The study of three encodings at so many seeds: a run and 17 rows each, and the 17 rows of the unigram."""
    data = toys.text(folder / "text")
    of_text = [f"data.{split}={data[split]}" for split in ("train", "validation", "test")]
    each = "seed=" + ",".join(str(seed) for seed in range(seeds))
    entries = {
        "title": "Toys",
        "common": ["data=files", *of_text, *SETTINGS.split()],
        "runs": [
            ["encoding=rope", EVERY_STEP, each],
            ["encoding=alibi", NOW_AND_THEN, each],
            ["encoding=randomized", EVERY_STEP, each],
        ],
        "evals": EVALS,
        "references": ["unigram"],
    }
    file = folder / "toys.yaml"
    file.write_text(yaml.safe_dump(entries))
    return study.plan(study.load(str(file)))


@dataclass
class Place:
    """Where a study is worked on: runs, prepared text, what was published, what was said."""

    folder: Path
    disk: Path | None = None
    """Where runs and text lie, if not there."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(self.folder / "ledger.jsonl")

    @property
    def runs(self) -> Path:
        return (self.disk or self.folder) / "runs"

    @property
    def data(self) -> Path:
        return (self.disk or self.folder) / "data"

    @property
    def said(self) -> str:
        """By all processes that worked here."""
        file = self.folder / "said.txt"
        return file.read_text() if file.exists() else ""


@dataclass
class Sweep:
    """A process at work on a study."""

    pid: int
    where: Whereabouts
    steps: int
    """The end of a pipe on which each step is a byte."""
    begun: float = field(default_factory=time.monotonic)

    def stepped(self) -> None:
        """Return when it has made its first step, or has ended."""
        os.read(self.steps, 1)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def stopped(self) -> None:
        """Return when it has stopped itself: a trap's `stop`."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it ended with {status}"

    def end(self) -> int:
        """Its exit status once it has ended, of one that was killed -9."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.steps)
        return os.waitstatus_to_exitcode(status)


def start(
    plan: Plan,
    place: Place,
    trap: Trap | None = None,
    plain: bool = False,
    prepare: Callable[[], object] = lambda: None,
) -> Sweep:
    """Begin to do what is missing of a plan, in a process of its own; `prepare` is called in it."""
    where = Whereabouts()
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return Sweep(pid, where, read)
    os.close(read)
    _work(plan, place, trap, plain, prepare, where, write)


def _work(
    plan: Plan,
    place: Place,
    trap: Trap | None,
    plain: bool,
    prepare: Callable[[], object],
    where: Whereabouts,
    steps: int,
) -> NoReturn:
    status = 3
    try:
        os.environ.update(POSBENCH_RUNS=str(place.runs), POSBENCH_DATA=str(place.data))
        said = (place.folder / "said.txt").open("a", buffering=1)
        sys.stdout = sys.stderr = said
        system.matmul_rate = lambda: 0.0  # of the machine: a third of a second for no row
        launch.LOOK_SECONDS = study.LOOK_SECONDS = 0.05
        signal.signal(signal.SIGINT, signal.default_int_handler)
        watch(place.ledger, where, trap, plain, lambda: _byte(steps))
        prepare()
        outcome = study.run(plan, lambda text: print(text))
        status = 0 if all(result and result.state == "done" for _, result in outcome.results) else 1
    except UserError as error:
        status = 2
        print(f"error: {error}")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _byte(pipe: int) -> None:
    with suppress(OSError):  # nobody may listen any more
        os.write(pipe, b".")


def kill(_: Path) -> None:
    """Of a trap: end this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_: Path) -> None:
    """Of a trap: put this process to sleep, until it is sent SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def done(plan: Plan, place: Place, **how: Any) -> int:
    """The exit status of one more process that goes on to the end: 0 when all of the study is done."""
    return start(plan, place, **how).end()
