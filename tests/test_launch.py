"""Several jobs: each is done once, whatever fails, is held by others or is interrupted; N at a time never share a GPU.

Jobs and processes are stand-ins that take no time; real ones are in test_worker.py.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import toys

from posbench import job as jobs
from posbench import launch, lock, system, worker
from posbench.compose import settled
from posbench.config import Config
from posbench.errors import UserError
from posbench.gpus import Gpus
from posbench.job import Job, Result
from posbench.launch import Settings


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jobs, "directory", lambda config: tmp_path / config.encoding["name"])
    return tmp_path


def job(name: str, device: str = "auto") -> Job:
    return Job(Config(encoding={"name": name}, device=device), f"posbench train encoding={name}", name)


@dataclass
class Others:
    """Other processes: what they hold, and for how many looks more."""

    held: dict[str, int] = field(default_factory=dict)
    waited: int = 0

    def owner(self, folder: Path) -> str | None:
        return "pid 7 on elsewhere" if self.held.get(folder.name, 0) else None

    def pause(self, seconds: float) -> None:
        self.waited += 1
        self.held = {name: looks - 1 for name, looks in self.held.items()}


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    found = Others()
    monkeypatch.setattr(lock, "owner", found.owner)
    return found


class Attempts:
    """Stands in for `job.attempt`: what was tried, and what fails how often."""

    def __init__(self, **failing: int) -> None:
        self.failing, self.tried = failing, list[str]()

    def __call__(self, job: Job, say: Any, on_row: Any) -> Result:
        self.tried.append(job.label)
        if self.failing.get(job.label, 0):
            self.failing[job.label] -= 1
            return Result("failed", f"{job.label} broke", ["in line 3", "its log"])
        return Result("done")


def run(attempts: Any, names: str, said: list[str] | None = None, **how: Any) -> list[str | None]:
    said = [] if said is None else said
    pause = how.pop("pause", lambda seconds: pytest.fail("nothing to wait for"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "attempt", attempts)
        found = launch.run([job(one) for one in names], Settings(**how), said.append, pause=pause)
    return [result and result.state for result in found]


# Settings -------------------------------------------------------------------------------------------------------------


def test_what_is_of_all_jobs_is_taken_off_the_words_of_each():
    how, rest = launch.asked(["seed=1,2", "workers=8", "on_error=retry=2", "train.length=128"])
    assert (how, how.retries) == (Settings(8, "retry=2"), 2)
    assert rest == ["seed=1,2", "train.length=128"]
    assert launch.asked([]) == (Settings(), [])


@pytest.mark.parametrize("word", ["workers=0", "workers=two", "workers=-1", "workers=", "workers=1025", "workers=1.5"])
def test_workers_are_a_number(word: str):
    with pytest.raises(UserError, match=f"{word} is no number of jobs"):
        launch.asked([word])


@pytest.mark.parametrize("value", ["stpo", "retry", "retry=", "retry=0", "retry=-1", "", "continue,stop"])
def test_a_policy_that_there_is_not_is_named_with_those_there_are(value: str):
    with pytest.raises(UserError, match="on_error: continue, retry=N, stop"):
        launch.asked([f"on_error={value}"])


# What becomes of jobs ---------------------------------------------------------------------------------------------


def test_good_failing_good(runs: Path, others: Others):
    """RUN-1: said at once with its last lines, the next one begins, and the summary names it again."""
    said: list[str] = []
    attempts = Attempts(b=9)
    assert run(attempts, "abc", said) == ["done", "failed", "done"]
    assert attempts.tried == ["a", "b", "c"]
    assert said == ["[1/3] a", "[2/3] b", "error: b: b broke\n  in line 3\n  its log", "[3/3] c"]


def test_stop_begins_nothing_after_a_failure(runs: Path, others: Others):
    attempts = Attempts(b=9)
    assert run(attempts, "abcd", on_error="stop") == ["done", "failed", None, None]
    assert attempts.tried == ["a", "b"]


def test_retry_tries_again_behind_all_others(runs: Path, others: Others):
    """b fails twice and c for good: with two more tries each b is done and c is not."""
    attempts, said = Attempts(b=2, c=9), list[str]()
    assert run(attempts, "abcd", said, on_error="retry=2") == ["done", "done", "failed", "done"]
    assert "".join(attempts.tried) == "abcdbcbc"
    assert "b will be tried again (2 of 2)" in said


def test_a_summary_names_each_failure_with_its_last_lines():
    failed = Result("failed", "it broke", ["in line 3", "its log: a.txt"])
    lines = launch.summary([("a", Result("done")), ("b", failed), ("c", None), ("d", None)])
    assert lines == ["1 of 4 jobs failed, 2 not begun:", "  b: it broke", "    in line 3", "    its log: a.txt"]
    assert launch.summary([("a", Result("done"))]) == []


def test_what_another_process_works_on_is_left_and_looked_at_again_at_the_end(runs: Path, others: Others):
    """The other one is killed or done after three looks: then the run is tried, and is found done or goes on."""
    others.held = {"a": 3}
    attempts, said = Attempts(), list[str]()
    assert run(attempts, "abc", said, pause=others.pause) == ["done", "done", "done"]
    assert attempts.tried == ["b", "c", "a"]
    assert others.waited == 3
    assert "[1/3] a is left for later: being worked on by another process, pid 7 on elsewhere" in said


def test_what_another_process_took_in_between_is_left_too(runs: Path, others: Others):
    """Between the look and the lock: the attempt itself finds it held."""
    found, tried = iter([Result("held", "a is being worked on"), Result("done")]), list[str]()

    def attempt(job: Job, say: Any, on_row: Any) -> Result:
        tried.append(job.label)
        return next(found) if job.label == "a" else Result("done")

    assert run(attempt, "ab", pause=others.pause) == ["done", "done"]
    assert tried == ["a", "b", "a"]


def test_waiting_for_others_says_so_every_30_seconds_and_no_more(runs: Path, others: Others):
    """100 looks of 2 s: 6 lines."""
    others.held = {"a": 100}
    said: list[str] = []
    run(Attempts(), "a", said, pause=others.pause)
    assert said.count("waiting for what other processes are working on: a") == 6


def test_ctrl_c_ends_it_and_the_failures_so_far_are_summed_up(runs: Path, others: Others):
    class Interrupted(Attempts):
        def __call__(self, job: Job, say: Any, on_row: Any) -> Result:
            if job.label == "c":
                raise KeyboardInterrupt
            return super().__call__(job, say, on_row)

    attempts, said = Interrupted(b=1), list[str]()
    with pytest.raises(KeyboardInterrupt):
        run(attempts, "abcd", said)
    assert attempts.tried == ["a", "b"]
    assert "1 of 4 jobs failed, 2 not begun:" in said


# N at a time --------------------------------------------------------------------------------------------------------


class Processes:
    """Stands in for `worker.Worker`: those at work, in the order they began, each until it is told to end."""

    def __init__(self, ends: Any = None) -> None:
        self.ends = ends or (lambda one: True)
        self.begun: list[Any] = []
        self.at_once = 0

    def __call__(self, index, job, gpu, threads, number, say, selector) -> Any:
        one = Process(self, index, job, gpu, threads)
        self.begun.append(one)
        self.at_once = max(self.at_once, sum(not other.over for other in self.begun))
        return one


class Process:
    def __init__(self, all: Processes, index: int, job: Job, gpu: str | None, threads: int) -> None:
        self.all, self.index, self.job, self.gpu, self.threads = all, index, job, gpu, threads
        self.over, self.stopped, self.killed = False, 0, False

    @property
    def ended(self) -> bool:
        return bool(self.stopped or self.all.ends(self))

    def end(self, selector: Any, stopping: bool) -> Result | None:
        self.over = True
        return None if stopping else Result("done")

    def stop(self) -> None:
        self.stopped += 1

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def processes(runs: Path, others: Others, monkeypatch: pytest.MonkeyPatch) -> Processes:
    found = Processes()
    monkeypatch.setattr(worker, "Worker", found)
    monkeypatch.setattr(launch, "POLL_SECONDS", 0)
    monkeypatch.setattr(system, "DEFAULT_THREADS", 8)
    gpus(monkeypatch, [])
    return found


def gpus(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    from posbench import gpus

    monkeypatch.setattr(gpus, "devices", lambda: names)


def in_processes(all: list[Job], workers: int, **how: Any) -> list[str | None]:
    found = launch.run(all, Settings(workers, **how), lambda text: None)
    return [result and result.state for result in found]


def test_n_at_a_time_and_never_more(processes: Processes):
    """Each ends only when no more could begin beside it."""
    processes.ends = lambda one: len(processes.begun) >= min(7, one.index + 3 - one.index % 3)
    assert in_processes([job(name) for name in "abcdefg"], workers=3) == ["done"] * 7
    assert processes.at_once == 3


@pytest.mark.parametrize(("workers", "threads"), [(1, 8), (2, 4), (3, 2), (16, 1)])
def test_threads_are_the_cores_shared_among_the_workers_whoever_is_at_work(
    processes: Processes, workers: int, threads: int
):
    """Also with fewer jobs than workers: a run must not depend on how many were left to do. What is asked for stays."""
    asked = job("b")
    asked = replace(asked, config=replace(asked.config, train=replace(asked.config.train, threads=5)))
    in_processes([job("a"), asked], workers)
    assert [one.job.config.train.threads for one in processes.begun] == [threads, 5]
    assert {one.threads for one in processes.begun} == {threads}


def test_each_has_a_gpu_for_itself_and_queues_where_there_are_fewer(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
):
    """RUN-5: 3 workers, 2 GPUs. Jobs on the CPU need none, and overtake."""
    gpus(monkeypatch, ["4", "GPU-ab"])
    at_once: list[set[str | None]] = []

    def ends(one: Process) -> bool:
        at_once.append({other.gpu for other in processes.begun if not other.over})
        return True

    processes.ends = ends
    all = [job("a"), job("b", "cuda"), job("c"), job("d", "cpu"), job("e")]
    assert in_processes(all, workers=3) == ["done"] * 5
    assert [one.job.label for one in processes.begun[:3]] == ["a", "b", "d"]
    assert at_once[0] == {"4", "GPU-ab", None}
    assert {one.gpu for one in processes.begun if one.job.label in "abce"} == {"4", "GPU-ab"}


def test_a_numbered_gpu_is_waited_for():
    gpus = Gpus(["4", "5"])
    assert gpus.take(job("a", "cuda:1")) == "5"
    assert not gpus.has_one_for(job("b", "cuda:1"))
    assert gpus.has_one_for(job("b", "cuda"))
    gpus.give_back("5")
    assert gpus.has_one_for(job("b", "cuda:1"))


def test_a_gpu_that_there_is_not_is_the_jobs_own_error():
    """It begins, and says so itself: waiting for it would be for ever."""
    assert Gpus(["0"]).has_one_for(job("a", "cuda:7"))
    assert Gpus([]).has_one_for(job("a", "cuda"))


def test_a_finished_job_needs_no_process(processes: Processes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "finished", lambda job: job.label == "a")
    monkeypatch.setattr(jobs, "attempt", Attempts())
    assert in_processes([job("a"), job("b")], workers=2) == ["done", "done"]
    assert [one.job.label for one in processes.begun] == ["b"]


@pytest.fixture
def interruptible():
    """What a shell starts in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_stops_those_at_work_once_and_begins_no_other(processes: Processes, number: int, raised: type):
    """They have time to write a checkpoint: nobody is killed."""

    signals = iter([number])

    def ends(one: Process) -> bool:
        for once in signals:
            os.kill(os.getpid(), once)
        return False

    processes.ends = ends
    with pytest.raises(raised):
        in_processes([job(name) for name in "abcd"], workers=2)
    assert [(one.job.label, one.stopped, one.killed) for one in processes.begun] == [("a", 1, False), ("b", 1, False)]


@pytest.mark.usefixtures("interruptible")
def test_a_second_ctrl_c_kills(processes: Processes):
    def ends(one: Process) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return False

    processes.ends = ends
    with pytest.raises(KeyboardInterrupt):
        in_processes([job("a"), job("b")], workers=2)
    assert all(one.killed for one in processes.begun)


# Real ones, in this process ---------------------------------------------------------------------------------------


@pytest.fixture
def five(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Runs of three steps each, with a checkpoint after every one."""
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))
    data = toys.text(tmp_path / "text")
    names = ("none", "rope", "alibi", "t5", "shaw")
    configs = [settled(toys.config(data, name, steps=3, dropout=0.1)) for name in names]
    return [Job(config, "posbench train ...", config.encoding["name"]) for config in configs]


def weights(runs: Path) -> dict[str, str]:
    """The digest of the weights of every run below a folder."""
    return {file.parent.name: toys.sha(file) for file in runs.glob("*/model.safetensors")}


def test_what_is_broken_off_goes_on_to_what_an_undisturbed_sweep_gives(
    five: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """RUN-4: in job 3 of 5. The same again finds 1 and 2 done, goes on with 3, and does 4 and 5; once more it finds all
    done, and changes no byte."""

    def sweep(where: str) -> list[str]:
        said: list[str] = []
        monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / where))
        launch.run([replace(one) for one in five], Settings(), said.append)
        return [line for line in said if "already" in line or line.startswith("going on")]

    assert sweep("undisturbed") == []
    with monkeypatch.context() as patch:
        toys.interrupted_at(3 + 3 + 2, patch)
        with pytest.raises(KeyboardInterrupt):
            sweep("runs")
    assert len(weights(tmp_path / "runs")) == 2
    *done, resumed = sweep("runs")
    assert (len(done), resumed) == (2, "going on from step 1 of 3")
    assert weights(tmp_path / "runs") == weights(tmp_path / "undisturbed")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("*") if file.is_file()}
    assert len(sweep("runs")) == 5
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("*") if file.is_file()} == before
