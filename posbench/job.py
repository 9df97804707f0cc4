"""One job: a run to train, and what to measure of it.

This is the one place that carries a job out. `attempt` does it in the process it is called from; `python -m
posbench.job` is a process for one job, which reads it on stdin and writes its result on stdout, a line of JSON each,
and says all else on stderr. Its stdin stays open: at its end whoever asked is gone, and the job ends as on SIGTERM,
after a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from posbench import evaluate, records, streams
from posbench.config import Config
from posbench.errors import UserError, reason, refused
from posbench.evaluate import Request
from posbench.identity import from_dict, to_dict
from posbench.lock import GoneError, HeldError
from posbench.records import Row
from posbench.run import Run, directory
from posbench.stop import leave_on_sigterm
from posbench.train import train

TAIL = 6
"""Lines of a traceback that a summary shows: the last call and what it raised."""

Say = Callable[[str], None]
OnRow = Callable[[Row], None]


@dataclass(frozen=True)
class Job:
    """What is asked for."""

    config: Config
    command: str
    """The command line that trains its run alone."""
    label: str
    """What messages call it."""
    requests: Sequence[Request] = ()
    """What is measured once it is trained."""

    @cached_property
    def run(self) -> Run:
        return Run(directory(self.config))

    def to_json(self) -> str:
        """As one line, for `from_json`."""
        parts = {"command": self.command, "label": self.label, "requests": [asdict(one) for one in self.requests]}
        return json.dumps({"config": to_dict(self.config), **parts})

    @classmethod
    def from_json(cls, text: str) -> Job:
        parts = json.loads(text)
        requests = [Request(**one) for one in parts["requests"]]
        return cls(from_dict(parts["config"]), parts["command"], parts["label"], requests)


@dataclass(frozen=True)
class Result:
    """What came of it."""

    state: str
    """done | failed | held (another process works on its run) | estimated (a dry run)"""
    message: str = ""
    """Why it failed, or who holds it: one line."""
    tail: list[str] = field(default_factory=list)
    """More of why it failed: a hint, or the last lines of the traceback and where the whole of it is."""
    rows: list[Row] = field(default_factory=list)
    """Of all its requests, new or not."""

    def lines(self, label: str) -> list[str]:
        """Why that job failed."""
        return [f"{label}: {self.message}", *(f"  {line}" for line in self.tail)]

    def to_json(self) -> str:
        """As one line, for `from_json`; rows by their files."""
        return json.dumps({**vars(self), "rows": [str(row.path) for row in self.rows]})

    @classmethod
    def from_json(cls, text: str) -> Result:
        parts = json.loads(text)
        return cls(**{**parts, "rows": [records.load(Path(path)) for path in parts["rows"]]})


def attempt(job: Job, say: Say, on_row: OnRow = lambda row: None) -> Result:
    """Do what is missing of a job. `on_row` is told of every new row once it is on disk.

    An error is in the run's log and in the result. On SIGINT and SIGTERM it ends as `train` does.
    """
    try:
        return Result("done", rows=_rows(job, say, on_row))
    except HeldError as held:
        return Result("held", held.message)
    except GoneError as gone:  # there is no log any more for it to stand in
        return Result("failed", gone.message, [gone.hint] if gone.hint else [])
    except Exception as error:
        message, tail = described(error)
        return _note(job, message, _traceback(error), tail)


def _rows(job: Job, say: Say, on_row: OnRow) -> list[Row]:
    if (rows := _rows_only(job, say)) is not None:
        return rows
    trained = train(job.config, job.command, say)
    if not job.requests:
        return []
    return measured(partial(evaluate.evaluate, trained, job.requests, False, job.config.device), say, on_row)


def _rows_only(job: Job, say: Say) -> list[Row] | None:
    """All its rows, where its run has lost its weights since they were measured."""
    run = job.run
    if not job.requests or run.status()["state"] != "rows only":
        return None
    rows = evaluate.kept(run, job.requests)
    if rows is not None:
        say(f"{run.name} is done, rows only: its weights are gone, and all of its {len(rows)} rows are there")
    return rows


def measured(rows_of: Callable[[OnRow], list[Row]], say: Say, on_row: OnRow) -> list[Row]:
    """The rows that `rows_of` gives, which tells `on_row` of every new one; `say` is told how many are not."""
    new: list[Row] = []

    def told(row: Row) -> None:
        new.append(row)
        on_row(row)

    rows = rows_of(told)
    if len(new) < len(rows):
        say(f"{len(rows) - len(new)} of {len(rows)} rows were there already")
    return rows


def finished(job: Job) -> bool:
    """Whether nothing is left to do of it on this machine, which is looked up without its weights. A damaged run is
    not finished."""
    with suppress(OSError, UserError):
        if job.run.done:
            return not job.requests or not evaluate.missing(job.run, job.requests, job.config.device)
        return _rows_only(job, lambda text: None) is not None
    return False


def kept(job: Job, say: Say) -> Result | None:
    """Its result, where nothing is left to do of it on a machine that has its device, which this one need not have;
    None otherwise, also of a damaged run. Nothing is computed."""
    with suppress(OSError, UserError):
        if (rows := _rows_only(job, say)) is not None:
            return Result("done", rows=rows)
        if job.run.done and (rows := evaluate.kept(job.run, job.requests, job.config.device)) is not None:
            train(replace(job.config, device="cpu"), job.command, say)  # that it is, or why it is not the one asked for
            return Result("done", rows=measured(lambda on_row: rows, say, lambda row: None))
    return None


def crashed(job: Job, message: str, said: Sequence[str]) -> Result:
    """The result of a job whose process ended without one; `said` are the last lines it wrote."""
    return _note(job, message, [*said, message], list(said))


def described(error: Exception) -> tuple[str, list[str]]:
    """What to say of an error in one line, and what more there is to it: a hint, the last lines of a traceback, or
    under POSBENCH_DEBUG=1 the whole of it."""
    lines = _traceback(error)
    error = refused(error) or error
    if os.environ.get("POSBENCH_DEBUG") == "1":
        return reason(error), lines
    if isinstance(error, UserError):
        return error.message, [error.hint] if error.hint else []
    return reason(error), lines[-TAIL:]


def _traceback(error: Exception) -> list[str]:
    return "".join(traceback.format_exception(error)).rstrip().splitlines()


def _note(job: Job, message: str, lines: Sequence[str], tail: list[str]) -> Result:
    """Put a failure into the run's log, and into its status where the training did not get to it."""
    run = job.run
    # On a full disk, say, the error itself must not be lost for this.
    with suppress(OSError, UserError):
        run.path.mkdir(parents=True, exist_ok=True)
        run.log("\n".join(lines))
        tail = [*tail, f"Its log: {run.path / 'log.txt'}"]
        with run.lock():
            if run.status()["state"] in ("new", "stopped", "interrupted"):
                run.fail(message)
    return Result("failed", message, tail)


# A process of its own ---------------------------------------------------------------------------------------------


def carry_out(text: str) -> str:
    """A job, as `Job.to_json` has it, done in this process, which is there for nothing else; its result, as
    `Result.to_json` has it.

    What it says goes to stderr. On SIGTERM it writes a checkpoint and ends.
    """
    leave_on_sigterm()
    warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
    return attempt(Job.from_json(text), _say, lambda row: _say(records.sentence(row))).to_json()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _outlive_nobody() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Carry out the job on stdin."""
    text = sys.stdin.readline()
    streams.prepare()
    threading.Thread(target=_outlive_nobody, daemon=True).start()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # whatever prints within must not stand before the result
        out.write(carry_out(text) + "\n")


if __name__ == "__main__":
    main()
