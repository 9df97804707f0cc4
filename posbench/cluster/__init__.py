"""Jobs on an engine that has a queue and machines of its own: Slurm (slurm.py), Ray (ray.py).

    1. submit   what waits, in one piece
    2. there    `job.carry_out` in a process of the engine, as everywhere
    3. look     which of them have ended, with a result or without one; a line now and then says how many
    4. note     posbench/launch.py: what failed is tried again or is the end, as `on_error` says

A job knows nothing of the others, and its run's folder says how far it is, so the engine's queue goes on when this
process dies, and the same command finds what it did. On SIGINT and SIGTERM what waits is taken out of the queue, and
what runs writes a checkpoint and ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from posbench import lock
from posbench.errors import UserError, unknown
from posbench.extras import require
from posbench.launch import SAY_SECONDS, Settings, Work, with_threads
from posbench.stop import Stop

if TYPE_CHECKING:
    from posbench.job import Job, Result, Say
    from posbench.run import Run

POLL_SECONDS = 1.0
"""Between two looks at whether a job has ended."""

NETWORK_SECONDS = 60.0
"""How long what a job has written elsewhere may not be seen here: NFS keeps what it knows of a folder so long, by
default."""

NEEDS = {"slurm": "hydra_plugins.hydra_submitit_launcher", "ray": "ray"}
"""What hydra/launcher=NAME needs; its extra has the same name."""


@dataclass(frozen=True)
class Lost:
    """The end of a job that has left no result."""

    message: str
    said: list[str] = field(default_factory=list)
    """The last lines it wrote."""


class Task(ABC):
    """A job that was submitted."""

    place: str
    """Where it is, for a reader: "Slurm job 14_2, its log: ..." """

    @abstractmethod
    def end(self) -> Result | Lost | None:
        """How it ended; None: not yet. Raises `UserError` where it has, and a row of it is not seen here or damaged."""

    @abstractmethod
    def stop(self) -> None:
        """Take it out of the queue, or have it write a checkpoint and end."""


class Engine(ABC):
    """Something that carries jobs out elsewhere, several at a time."""

    name: str
    """As in hydra/launcher=NAME."""
    at_a_time: str
    """The setting that says how many jobs it does at a time, for a reader."""
    threads: int | None
    """Threads of a job; None: those of the machine it comes to."""

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> Sequence[Task]:
        """Put them into its queue, in this order."""

    def look(self) -> None:  # noqa: B027 (not every engine has to)
        """Take in how all is that was submitted, before each is asked."""


def chosen(words: Sequence[str]) -> tuple[Engine | None, list[str]]:
    """The engine that hydra/launcher=... and hydra.launcher.... on a command line name, and its other words.

    Raises `UserError` for a launcher that has none, or that is not installed.
    """
    from posbench.compose import launcher

    own = [word for word in words if word.lstrip("+").startswith(("hydra/launcher=", "hydra.launcher."))]
    if not own:
        return None, list(words)
    needs(own)
    found = launcher(own)
    if found is None:
        name = next(word.partition("=")[2] for word in own if word.startswith("hydra/launcher="))
        raise unknown("hydra/launcher", name, ("local", *NEEDS))
    engine: Engine | None = found.engine
    return engine, [word for word in words if word not in own]


def needs(words: Sequence[str]) -> None:
    """Raise `UserError` for a hydra/launcher= among `words` whose package is not installed."""
    for word in words:
        key, _, name = word.partition("=")
        if key == "hydra/launcher" and name in NEEDS:
            require(word, NEEDS[name], name)


def on(how: Settings, engine: Engine | None) -> Settings:
    """`how`, on an engine. Raises `UserError` for what has no meaning there."""
    if engine is not None and how.workers:
        hint = f"Leave it out, or write {engine.at_a_time}={how.workers}."
        raise UserError(f"workers={how.workers} has no effect with hydra/launcher={engine.name}.", hint)
    return replace(how, engine=engine)


def run(work: Work, engine: Engine, say: Say, pause: Callable[[float], None]) -> None:
    """Do the jobs of `work` on an engine; `launch.run` calls it. `pause` waits so many seconds."""
    from posbench import job

    if engine.threads is not None:
        work.jobs = [with_threads(one, max(1, engine.threads // one.config.nproc)) for one in work.jobs]
    tasks: dict[int, Task] = {}
    told = set[int]()
    unseen: defaultdict[int, float] = defaultdict(float)
    """For how long what a job has ended with could not be read."""
    begun, silent = False, 0.0
    with Stop() as stop:
        while tasks or (work.open and not stop.asked):
            fresh: list[int] = []
            while not stop.asked and (index := work.next()) is not None:
                lines = list[str]()
                if (result := job.kept(work.jobs[index], lines.append)) is not None:  # known without a queue
                    work.begin(index)
                    for line in lines:
                        say(line)
                    work.note(index, result)
                else:
                    fresh.append(index)
            if fresh:
                for index in fresh:
                    _free(work.jobs[index].run)
                try:
                    submitted = engine.submit([work.jobs[index] for index in fresh])
                except Exception as error:
                    if not begun:
                        raise
                    # Those at work are not left to themselves because of these: a queue may be full, or not answer.
                    for index in fresh:
                        work.note(index, job.Result("failed", *job.described(error)))
                else:
                    begun = True
                    for index, task in zip(fresh, submitted, strict=True):
                        tasks[index] = task
                        say(f"{work.number(index)} {work.jobs[index].label}: {task.place}")
            if not tasks:
                if work.open and not stop.asked:
                    work.wait(pause)
                continue
            pause(POLL_SECONDS)
            engine.look()
            for index, task in list(tasks.items()):
                try:
                    end = task.end()
                except UserError as error:
                    unseen[index] += POLL_SECONDS
                    end = Lost(error.message) if unseen[index] > NETWORK_SECONDS else None
                if end is None:
                    continue
                del tasks[index]
                if not isinstance(end, Lost):
                    work.note(index, end)
                elif index not in told:  # nothing else can be expected of one that was told to stop
                    work.note(index, job.crashed(work.jobs[index], end.message, end.said))
            if stop.asked or work.stopped:
                for index in tasks.keys() - told:
                    # After a failure those at work may end; one that has only just begun loses nothing.
                    if stop.asked or lock.owner(work.jobs[index].run.path) is None:
                        told.add(index)
                        tasks[index].stop()
            silent += POLL_SECONDS
            if silent >= SAY_SECONDS and tasks:
                silent = 0.0
                say(_count(work, tasks))
    stop.leave()


def _free(run: Run) -> None:
    """Take away the lock of a process that has died on this machine, which another one would wait 5 minutes for."""
    if (run.path / lock.NAME).exists():
        with suppress(OSError, lock.HeldError), run.lock():
            pass


def _count(work: Work, tasks: dict[int, Task]) -> str:
    """A sign of life."""
    ended = sum(result is not None for result in work.results)
    at_work = sum(lock.owner(work.jobs[index].run.path) is not None for index in tasks)
    return f"{ended} of {len(work.jobs)} jobs have ended, {at_work} at work, {len(tasks) - at_work} waiting"
