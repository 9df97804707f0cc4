"""One training in several processes: how they are started, and how those that follow learn what to do.

    nproc=N     torch's elastic launcher starts N processes of this machine (`start`); this one waits for them
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
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench.errors import ProcessError, UserError, how_it_ended, reason, refused

if TYPE_CHECKING:
    import torch

    from posbench.config import Config
    from posbench.decisions import Decisions
    from posbench.group import Group
    from posbench.run import Run

ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process."""

ROLE = "posbench"
"""Of the processes that `start` starts."""

SHUTDOWN_SECONDS = 300
"""Between a signal and the end of processes that do not end: the step they are in, and a checkpoint."""

PATIENCE = timedelta(minutes=30)
"""How long one process waits for the others within a training, the leader's writing of a checkpoint included."""

LOOK_SECONDS = 0.2
"""Between two looks at what the leader says next, and whether whoever started this process is still there."""


def started() -> int:
    """The processes that torchrun, or who else sets its variables, has started for this command; 1: none."""
    return int(os.environ["WORLD_SIZE"]) if all(map(os.environ.get, ENVIRONMENT)) else 1


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


def said() -> bool:
    """Whether the process that has started this one says what comes before a training."""
    return os.environ.get("ROLE_NAME") == ROLE


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
        self.parent = os.getppid()
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
            yield Several(self.rank, self.count, self.local, self.heard)
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
def _member() -> Member:
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
    member = _member()
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
    member = _member()
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

    _note_signals(member)
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


def _note_signals(member: Member) -> None:
    """Between the steps of a training a signal ends nothing: all stop together, at the next step."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda heard, frame: member.heard.append(heard))


# Starting them ------------------------------------------------------------------------------------------------------


def start(run: Run, config: Config, command: str) -> None:
    """Train the run of `config` in `nproc` processes of this machine, and wait for their end.

    Raises what a training in this process would have raised, and ProcessError when one of them has ended.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import LaunchConfig, elastic_launch

    from posbench import files
    from posbench.compose import settled
    from posbench.identity import to_dict

    with tempfile.TemporaryDirectory(prefix="posbench-") as name, _undisturbed():
        folder = Path(name)
        files.write_json(folder / "job.json", {"config": to_dict(settled(config)), "command": command})
        settings = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=config.nproc,
            role=ROLE,
            run_id=run.name,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,  # the same command goes on
            # The leader's words are ours. What the others' libraries say is no reader's business.
            logs_specs=DefaultLogsSpecs(name, redirects=dict.fromkeys(range(1, config.nproc), Std.ALL)),
            signals_to_handle="SIGINT,SIGTERM",
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        ended, stopped = "", 0
        try:
            elastic_launch(settings, sys.executable)("-m", "posbench.processes", name)
        except SignalException as error:
            stopped = error.sigval
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            ended = f"Process {rank} of {config.nproc} {how_it_ended(failure.exitcode)}."
        result = folder / "result.json"
        told = json.loads(result.read_bytes()) if result.is_file() else {"state": "lost"}
    _settle(run, told, ended, stopped)


def _settle(run: Run, told: dict[str, Any], ended: str, stopped: int) -> None:
    """Raise what came of it: what the leader told, how a process ended, by which signal all were stopped."""
    from posbench.lock import HeldError

    state = told["state"]
    if stopped or state == "stopped":
        number = stopped or told["signal"]
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
    if state == "lost":
        message = ended or "The processes have ended without a word."
        with suppress(OSError, UserError), run.lock():
            run.log(message)
            run.fail(message)
        raise ProcessError(message, "The same command goes on from the last checkpoint.")
    if state != "done":
        kinds = {"held": HeldError, "refused": UserError, "failed": ProcessError}
        raise kinds[state](told["message"], told["hint"])


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Within it, processes find this very posbench, and what the launcher changes in this one is put back."""
    from posbench import system

    log = logging.getLogger("torch.distributed.elastic")
    before, propagate = os.environ.copy(), log.propagate
    main = threading.current_thread() is threading.main_thread()
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)} if main else {}
    quiet = logging.NullHandler()
    log.addHandler(quiet)
    log.propagate = False  # it would say what happened in its own words, in forty lines
    os.environ.update(system.environment())
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for key in os.environ.keys() - before.keys():
            del os.environ[key]
        os.environ.update(before)
        log.removeHandler(quiet)
        log.propagate = propagate


def _lead(folder: Path, member: Member) -> int:
    """Train what job.json asks for, and write into result.json what came of it."""
    from posbench import files
    from posbench.identity import from_dict
    from posbench.lock import HeldError
    from posbench.run import Run, directory
    from posbench.train import train

    _note_signals(member)
    job = json.loads((folder / "job.json").read_bytes())
    config = from_dict(job["config"])
    told: dict[str, Any] = {"state": "done"}
    try:
        train(config, job["command"], lambda text: print(text, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        told = {"state": "stopped", "signal": signal.SIGINT}
    except SystemExit as end:
        told = {"state": "stopped", "signal": int(end.code or 0) - 128}
    except LostError:
        told = {"state": "lost"}
    except Exception as error:
        error = refused(error) or error
        if isinstance(error, UserError):
            kinds = ((HeldError, "held"), (ProcessError, "failed"), (UserError, "refused"))
            state = next(name for kind, name in kinds if isinstance(error, kind))
            told = {"state": state, "message": error.message, "hint": error.hint}
        else:
            run = Run(directory(config))
            with suppress(OSError, UserError):
                run.log("".join(traceback.format_exception(error)).rstrip())
            told = {"state": "failed", "message": reason(error), "hint": f"Its log: {run.path / 'log.txt'}"}
    files.write_json(folder / "result.json", told)
    return 0


def main() -> int:
    """One of the processes that `start` has started."""
    member = _member()
    return command(lambda: _lead(Path(sys.argv[1]), member))


if __name__ == "__main__":
    # As a module by its name: `python -m` runs a copy, whose classes are others.
    from posbench import processes

    sys.exit(processes.main())
