"""The processes of a training with nproc=N: torch's elastic launcher starts them, this one waits for them.

start       writes job.json into a folder that is gone at the end, and has N processes started: `main`
main        in each of them: rank 0 trains what job.json asks for and writes into result.json what came of it,
            the others follow it (posbench/processes.py)
_settle     raises here what a training in this process would have raised
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench import processes, streams
from posbench.errors import ProcessError, UserError, how_it_ended, reason, refused

if TYPE_CHECKING:
    from posbench.config import Config
    from posbench.processes import Member
    from posbench.run import Run

ROLE = "posbench"
"""Of the processes that `start` starts."""

SHUTDOWN_SECONDS = 300
"""Between a signal and the end of processes that do not end: the step they are in, and a checkpoint."""


def said() -> bool:
    """Whether the process that has started this one says what comes before a training."""
    return os.environ.get("ROLE_NAME") == ROLE


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
            elastic_launch(settings, sys.executable)("-m", "posbench.elastic", name)
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
        raise _kinds()[state](told["message"], told["hint"])


def _kinds() -> dict[str, type[UserError]]:
    """What a leader may tell of an error, the more general kind last."""
    from posbench.lock import GoneError, HeldError

    return {"held": HeldError, "gone": GoneError, "failed": ProcessError, "refused": UserError}


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
    os.environ.update(system.environment() | {processes.STARTER: str(os.getpid())})
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
    from posbench.run import Run, directory
    from posbench.train import train

    processes.note_signals(member)
    job = json.loads((folder / "job.json").read_bytes())
    config = from_dict(job["config"])
    told: dict[str, Any] = {"state": "done"}
    try:
        train(config, job["command"], lambda text: print(text, file=sys.stderr, flush=True))
    except KeyboardInterrupt:
        told = {"state": "stopped", "signal": signal.SIGINT}
    except SystemExit as end:
        told = {"state": "stopped", "signal": int(end.code or 0) - 128}
    except processes.LostError:
        told = {"state": "lost"}
    except Exception as error:
        error = refused(error) or error
        if isinstance(error, UserError):
            state = next(name for name, kind in _kinds().items() if isinstance(error, kind))
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
    streams.prepare()
    joined = threading.Event()
    threading.Thread(target=_outlive_nobody, args=(joined,), daemon=True).start()
    member = processes.this_member()
    joined.set()  # from here on it looks itself, and ends between two steps
    return processes.command(lambda: _lead(Path(sys.argv[1]), member))


def _outlive_nobody(joined: threading.Event) -> None:
    """End this process when the one that started it is gone before they have met, at whose place it would wait."""
    while not joined.wait(processes.LOOK_SECONDS):
        if os.getppid() != processes.starter():
            os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
