"""Several jobs: one after another in this process, N at a time, each in a process of its own, or on a cluster.

    1. next    the first job that waits; one whose run another process is working on is left for later
    2. do      posbench/job.py (on other machines: posbench/cluster)
    3. note    what came of it: done, failed (left behind, tried again, or the end, as `on_error` says), left
    4. again   when nothing else is to do: the jobs that were left, once their runs are free

A job of N at a time has a GPU for itself where there are any, and 1/N of the cores, however many others are at work
just then: so its bits do not depend on them. The number of threads is a decision of its run, kept when it is resumed.

On SIGINT and SIGTERM no further job begins; those at work write a checkpoint and end. A second Ctrl-C ends them.
"""

from __future__ import annotations

import re
import selectors
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from posbench import lock, processes
from posbench.errors import UserError, unknown
from posbench.stop import Stop

if TYPE_CHECKING:
    from posbench.cluster import Engine
    from posbench.job import Job, OnRow, Result, Say

SAID = 12
"""Of a process that ended without a result, the last lines it wrote: so many stand in the summary."""

MOST_WORKERS = 1024

LOOK_SECONDS = 2.0
"""Between two looks at a run that another process is working on."""

POLL_SECONDS = 0.5
"""Between two looks at whether a process has ended without a word."""

SAY_SECONDS = 30.0
"""Between two lines on what is waited for."""


@dataclass(frozen=True)
class Settings:
    """How jobs are done, which is no setting of any of their runs."""

    workers: int = 0
    """Jobs at a time, each in a process of its own; 0: one after another, in this one."""
    on_error: str = "continue"
    """continue | stop (begin no further job) | retry=N (try a failed one N times more, behind all others)"""
    engine: Engine | None = None
    """What carries them out on machines of its own (posbench/cluster); None: this machine."""

    @property
    def retries(self) -> int:
        return int(self.on_error.removeprefix("retry=")) if self.on_error.startswith("retry=") else 0


def asked(words: Iterable[str]) -> tuple[Settings, list[str]]:
    """What `workers=N` and `on_error=...` on a command line ask for, and its other words.

    >>> asked(["workers=2", "seed=1,2"])
    (Settings(workers=2, on_error='continue', engine=None), ['seed=1,2'])
    """
    found, rest = Settings(), []
    for word in words:
        key, _, value = word.partition("=")
        if key == "workers":
            if not re.fullmatch(r"[1-9]\d{0,3}", value) or int(value) > MOST_WORKERS:
                raise UserError(f"workers={value} is no number of jobs from 1 to {MOST_WORKERS}.", "As in workers=2.")
            found = replace(found, workers=int(value))
        elif key == "on_error":
            if not re.fullmatch(r"continue|stop|retry=[1-9]\d{0,2}", value):
                raise unknown("on_error", value, ("continue", "stop", "retry=N"))
            found = replace(found, on_error=value)
        else:
            rest.append(word)
    return found, rest


class Work:
    """What is still to do of a list of jobs, and what came of the others."""

    def __init__(self, jobs: Sequence[Job], how: Settings, say: Say, report: Callable[[Job], None]) -> None:
        self.jobs, self.how, self.say, self.report = list(jobs), how, say, report
        self.results: list[Result | None] = [None] * len(self.jobs)
        """None: not begun, or not ended."""
        self.waiting, self.left = deque(range(len(self.jobs))), list[int]()
        self.tries: Counter[int] = Counter()
        self.stopped = False
        self.silent = 0.0

    @property
    def open(self) -> bool:
        """Whether there is anything still to begin, now or later."""
        return not self.stopped and bool(self.waiting or self.left)

    def next(self, fits: Callable[[Job], bool] = lambda job: True) -> int | None:
        """The number of a job to do now, of those that fit; None when there is none now."""
        if self.stopped:
            return None
        for index in list(self.waiting):
            if owner := lock.owner(self.jobs[index].run.path):
                self.waiting.remove(index)
                self.leave(index, f"being worked on by another process, {owner}")
            elif fits(self.jobs[index]):
                self.waiting.remove(index)
                return index
        if not self.waiting:
            for index in self.left:
                if fits(self.jobs[index]) and lock.owner(self.jobs[index].run.path) is None:
                    self.left.remove(index)
                    return index
        return None

    def begin(self, index: int, where: str = "") -> None:
        if len(self.jobs) > 1:
            self.say(f"{self.number(index)} {self.jobs[index].label}{where}")

    def number(self, index: int) -> str:
        return f"[{index + 1}/{len(self.jobs)}]"

    def leave(self, index: int, why: str) -> None:
        self.left.append(index)
        self.say(f"{self.number(index)} {self.jobs[index].run.name} is left for later: {why}")

    def note(self, index: int, result: Result) -> None:
        """What came of a job: said at once, and kept."""
        job = self.jobs[index]
        if result.state == "held":
            self.leave(index, result.message)
            return
        self.results[index] = result
        if result.state == "done":
            self.report(job)
            return
        self.say("\n".join(result.lines(f"error: {job.label}")))
        if self.tries[index] < self.how.retries:
            self.tries[index] += 1
            self.say(f"{job.label} will be tried again ({self.tries[index]} of {self.how.retries})")
            self.waiting.append(index)
        self.stopped = self.how.on_error == "stop"

    def wait(self, pause: Callable[[float], None]) -> None:
        """Let others work on what was left to them; a line now and then says so."""
        pause(LOOK_SECONDS)
        self.silent += LOOK_SECONDS
        if self.silent >= SAY_SECONDS:
            self.silent = 0.0
            names = ", ".join(self.jobs[index].run.name for index in self.left)
            self.say(f"waiting for what other processes are working on: {names}")


def run(
    jobs: Sequence[Job],
    how: Settings,
    say: Say,
    on_row: OnRow = lambda row: None,
    report: Callable[[Job], None] = lambda job: None,
    pause: Callable[[float], None] = time.sleep,
) -> list[Result | None]:
    """Do the jobs as `how` says; the result of each, None for one that was not begun.

    `say` is told in whole lines what begins, goes on, was done before and fails, `report` which job is done, `on_row`
    of every new row that is measured in this process (others say it themselves).
    """
    work = Work(jobs, how, say, report)
    try:
        if how.engine is not None:
            from posbench import cluster

            cluster.run(work, how.engine, say, pause)
        else:
            (_in_processes if how.workers else _here)(work, say, on_row, pause)
    except (KeyboardInterrupt, SystemExit):
        for line in summary([(job.label, result) for job, result in zip(work.jobs, work.results, strict=True)]):
            say(line)
        raise
    return work.results


def summary(results: Sequence[tuple[str, Result | None]]) -> list[str]:
    """The jobs that failed, with the last lines of each; nothing when none did."""
    failed = [(label, result) for label, result in results if result is not None and result.state == "failed"]
    if not failed:
        return []
    rest = sum(result is None for _, result in results)
    lines = [f"{len(failed)} of {len(results)} jobs failed" + (f", {rest} not begun:" if rest else ":")]
    for label, result in failed:
        lines += [f"  {line}" for line in result.lines(label)]
    return lines


def tally(results: Iterable[Result | None]) -> str:
    """How many ended how, in a line.

    >>> from posbench.job import Result
    >>> tally([Result("done"), Result("failed"), Result("done"), None])
    '4 jobs: 2 done, 1 failed, 1 not begun'
    """
    states = Counter("not begun" if result is None else result.state for result in results)
    return f"{states.total()} jobs: " + ", ".join(f"{states[state]} {state}" for state in sorted(states))


def _here(work: Work, say: Say, on_row: OnRow, pause: Callable[[float], None]) -> None:
    from posbench import job

    while work.open:
        index = work.next()
        if index is None:
            work.wait(pause)
        else:
            work.begin(index)
            work.note(index, job.attempt(work.jobs[index], say, on_row))


# In processes -----------------------------------------------------------------------------------------------------


def _in_processes(work: Work, say: Say, on_row: OnRow, pause: Callable[[float], None]) -> None:
    from posbench import job, system
    from posbench.gpus import Gpus, devices
    from posbench.worker import Worker

    for one in work.jobs:
        if one.config.nproc > 1:
            raise UserError(
                f"nproc={one.config.nproc} is one run on several devices, workers={work.how.workers} several runs on "
                "one each.",
                "Leave one of them out.",
            )
    if processes.started() > 1:
        raise UserError(f"workers={work.how.workers} has no effect under torchrun.", "Leave torchrun out.")
    gpus = Gpus(devices())
    threads = max(1, system.DEFAULT_THREADS // work.how.workers)
    work.jobs = [with_threads(one, threads) for one in work.jobs]
    running: list[Worker] = []
    told = False
    with Stop() as stop, selectors.DefaultSelector() as selector:
        try:
            while running or (work.open and not stop.asked):
                while not stop.asked and len(running) < work.how.workers:
                    index = work.next(gpus.has_one_for)
                    if index is None:
                        break
                    one = work.jobs[index]
                    if job.finished(one):  # which is known sooner than a process has started
                        work.begin(index)
                        work.note(index, job.attempt(one, say, on_row))
                        continue
                    gpu = gpus.take(one)
                    work.begin(index, f" on GPU {gpu}" if gpu else "")
                    running.append(Worker(index, one, gpu, threads, work.number(index), say, selector))
                if not running:
                    if work.open and not stop.asked:
                        work.wait(pause)
                    continue
                for key, _ in selector.select(POLL_SECONDS):
                    key.data()
                if stop.asked and not told:
                    told = True
                    for worker in running:
                        worker.stop()
                for worker in [one for one in running if one.ended]:
                    running.remove(worker)
                    gpus.give_back(worker.gpu)
                    result = worker.end(selector, stop.asked)
                    if result is not None:
                        work.note(worker.index, result)
        finally:
            for worker in running:
                worker.kill()
    stop.leave()


def with_threads(job: Job, threads: int) -> Job:
    """The job with its number of threads decided, unless it was asked for."""
    train = job.config.train
    return replace(job, config=replace(job.config, train=replace(train, threads=train.threads or threads)))
