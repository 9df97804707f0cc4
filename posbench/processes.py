"""One training in several processes: how many there are, and how those that follow learn what to do.

    nproc=N     N processes of this machine are started for it (posbench/elastic.py)
    torchrun    has started them already, on one machine or several: its environment variables are obeyed

The process of rank 0 leads: it takes the lock, writes and speaks, as a training alone does. When it comes to the steps
it announces the run in the store that all can reach, and the others (`follow`) build the same model and make the steps
with it (posbench/group.py). Under torchrun it carries out the whole command line, a sweep or a study too, while the
others wait for what comes next.

A process that ends takes the others with it. The leader writes why into the run's log, and the same command goes on
from the last checkpoint, with as many processes or as few as it then has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench.errors import ProcessError, UserError, reason, refused

if TYPE_CHECKING:
    import torch

    from posbench.config import Config
    from posbench.decisions import Decisions
    from posbench.group import Group
    from posbench.run import Run

ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process."""

PATIENCE = timedelta(minutes=30)
"""How long one process waits for the others within a training, the leader's writing of a checkpoint included."""

STARTER = "POSBENCH_STARTER"
"""The pid of the process that `posbench.elastic` starts others from, in their environment: one that asks who its parent
is may ask too late."""

LOOK_SECONDS = 0.2
"""Between two looks at what the leader says next, and whether whoever started this process is still there."""


def started() -> int:
    """The processes that torchrun, or who else sets its variables, has started for this command; 1: none."""
    return int(os.environ["WORLD_SIZE"]) if all(map(os.environ.get, ENVIRONMENT)) else 1


def starter() -> int:
    """The pid of whoever started this process, as long as that lives; by torchrun's and Slurm's leave the parent."""
    return int(os.environ.get(STARTER) or os.getppid())


def counted(config: Config) -> Config:
    """The config with the number of processes there will be. Raises UserError for another one than torchrun has
    started."""
    there = started()
    if there > 1 and config.nproc not in (1, there):
        raise UserError(f"nproc={config.nproc}, and torchrun has started {there} processes.", "Leave nproc out.")
    return replace(config, nproc=there) if there > 1 else config


def here(config: Config) -> int:
    """How many of a training's processes are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or config.nproc) if started() > 1 else config.nproc


def refuse(config: Config, device: torch.device) -> None:
    """Raise UserError where there is no device for each process."""
    if config.nproc == 1 or device.type == "cpu":
        return
    if device.type != "cuda":
        raise UserError(f"nproc={config.nproc} needs CUDA devices or the CPU.", "Add device=cpu, or leave nproc out.")
    if device.index is not None:
        raise UserError(
            f"device={config.device} is one device, and nproc={config.nproc} takes one for each process.",
            "Write device=cuda; CUDA_VISIBLE_DEVICES says which are taken.",
        )
    import torch

    if here(config) > (there := torch.cuda.device_count()):
        raise UserError(
            f"nproc={config.nproc} takes a CUDA device for each process, and this machine has {there}.",
            f"nproc={there} fits, and so does device=cpu.",
        )


# Those that follow, and the one that leads -------------------------------------------------------------------------


class Member:
    """This process among those that were started together."""

    def __init__(self) -> None:
        from torch.distributed.rendezvous import rendezvous

        self.store, self.rank, self.count = next(iter(rendezvous("env://")))
        self.local = int(os.environ["LOCAL_RANK"])
        self.parent = starter()
        self.trainings = 0
        self.heard: list[int] = []
        """Signals that came while nobody could act on them."""
        self.broken = False
        """A training ended in one process and not in all, which cannot be brought together again."""

    def announce(self, what: dict[str, Any] | None) -> None:
        """Tell the others what is to be trained, None: nothing more."""
        self.store.set(f"training/{self.trainings}", json.dumps(what))

    def announced(self) -> dict[str, Any] | None:
        """What the leader says next."""
        from torch.distributed import DistError

        key = f"training/{self.trainings}"
        with suppress(DistError):  # of a store that is gone, with the process that held it
            while os.getppid() == self.parent and not self.heard:
                if self.store.check([key]):
                    return json.loads(self.store.get(key))
                time.sleep(LOOK_SECONDS)
        return None

    @contextmanager
    def joined(self, device: str) -> Iterator[Group]:
        """A training together with the others. Raises ProcessError where another one has failed."""
        from torch import cuda, distributed

        from posbench.group import Several
        from posbench.journal import NotFiniteError

        if self.broken:
            raise ProcessError("An earlier training has lost one of its processes.", "Give the same command again.")
        number = self.trainings
        self.trainings += 1
        if device == "cuda":
            cuda.set_device(self.local)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
            store=distributed.PrefixStore(f"group/{number}", self.store),
            rank=self.rank,
            world_size=self.count,
            timeout=PATIENCE,
        )
        try:
            yield Several(self.rank, self.count, self.local, self.heard, self.parent)
        except NotFiniteError:  # which all of them find
            raise
        except Exception as error:
            self.broken = True
            if not _lost(error):
                self.store.set(f"failed/{number}", f"Process {self.rank} of {self.count}: {reason(error)}.")
                raise
            with suppress(distributed.DistError):
                if self.store.check([f"failed/{number}"]):
                    raise ProcessError(self.store.get(f"failed/{number}").decode()) from error
            raise LostError(f"One of the {self.count} processes has ended without a word.") from error
        finally:
            if self.broken and device == "cuda":
                _abort()
            if distributed.is_initialized():
                distributed.destroy_process_group()


def _abort() -> None:
    """Let go of what is queued on the GPUs: a sum in which a process that has failed takes no part never ends, and the
    usual end waits for it."""
    from torch.distributed import distributed_c10d

    with suppress(Exception):  # it is not of torch's public names
        distributed_c10d._abort_process_group()


class LostError(ProcessError):
    """Another process is gone, and nobody knows why."""


def _lost(error: Exception) -> bool:
    """Whether it says that another process is no longer there."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


@cache
def this_member() -> Member:
    """This process, which joins the others at the first call."""
    return Member()


@contextmanager
def together(run: Run, config: Config, decisions: Decisions) -> Iterator[Group]:
    """All processes of a training, which begin to make its steps; this one leads."""
    from posbench.compose import settled
    from posbench.group import ALONE
    from posbench.identity import to_dict

    if started() == 1:
        yield ALONE
        return
    member = this_member()
    member.announce({"run": str(run.path), "config": to_dict(settled(config)), "decisions": asdict(decisions)})
    try:
        with member.joined(decisions.device) as group:
            yield group
    except ProcessError as error:
        with suppress(OSError, UserError):  # on a full disk, say, the error itself must not be lost for this
            run.log(error.message)
            run.fail(error.message)
        raise


def command(lead: Callable[[], int]) -> int:
    """Carry out a command line with `lead`, or follow the process that does; the exit status."""
    if started() == 1:
        return lead()
    member = this_member()
    if member.rank:
        return follow(member)
    try:
        return lead()
    finally:
        member.announce(None)


def follow(member: Member) -> int:
    """Take part in what the leader trains, until it says that there is nothing more; the exit status.

    A process that fails says why where the leader finds it, and ends.
    """
    from posbench.decisions import Decisions
    from posbench.identity import from_dict
    from posbench.journal import NotFiniteError
    from posbench.run import Followed
    from posbench.train import take_part

    note_signals(member)
    while (what := member.announced()) is not None:
        decisions = Decisions(**what["decisions"])
        try:
            with member.joined(decisions.device) as group:
                take_part(Followed(Path(what["run"])), from_dict(what["config"]), decisions, group)
        except (NotFiniteError, KeyboardInterrupt, SystemExit):  # as all others have it
            continue
        except ProcessError:  # another one has failed, and has said why if it could
            return 0
        except Exception as error:
            mistake = refused(error) or error
            if isinstance(mistake, UserError):
                print(f"error: {mistake}", file=sys.stderr)
                return mistake.status
            traceback.print_exc()
            return 1
    return 0


def note_signals(member: Member) -> None:
    """Between the steps of a training a signal ends nothing: all stop together, at the next step."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda heard, frame: member.heard.append(heard))
