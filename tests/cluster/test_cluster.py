"""Jobs on an engine: what ends with a result, without one, or is told to stop; the engine is a stand-in that takes no
time. (Real ones: test_on_slurm.py, test_on_ray.py.)"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posbench import cluster, launch, lock
from posbench import job as jobs
from posbench.cluster import Engine, Lost, Task
from posbench.config import Config
from posbench.errors import UserError
from posbench.job import Job, Result
from posbench.launch import Settings


class Piece(Task):
    """A job on the stand-in: it ends after so many looks, or when it is told to stop."""

    def __init__(self, engine: Instant, name: str) -> None:
        self.engine, self.name, self.place = engine, name, f"place {name}"
        self.looks, self.stopped = engine.takes.get(name, 1), False

    def end(self) -> Result | Lost | None:
        if self.stopped:
            return Lost("it was told to stop")
        self.looks -= 1
        return self.engine.outcome(self.name) if self.looks <= 0 else None

    def stop(self) -> None:
        self.stopped = True
        self.engine.told.append(self.name)


class Instant(Engine):
    """What each job comes to, by its name, an error among it raised; done where nothing is said."""

    name, at_a_time, threads = "instant", "hydra.launcher.most", None

    def __init__(self, takes: dict[str, int] | None = None, **ends: Sequence[Result | Lost | UserError]) -> None:
        self.takes, self.ends = takes or {}, {name: list(found) for name, found in ends.items()}
        self.submitted, self.told = list[list[str]](), list[str]()
        self.refuses = set[int]()
        """Which submissions it does not take."""

    def submit(self, jobs: Sequence[Job]) -> list[Piece]:
        self.submitted.append([job.label for job in jobs])
        if len(self.submitted) in self.refuses:
            raise UserError("Slurm does not take the jobs: unable to contact slurm controller", "Try later.")
        return [Piece(self, job.label) for job in jobs]

    def outcome(self, name: str) -> Result | Lost:
        ends = self.ends.get(name, [])
        end = ends.pop(0) if ends else Result("done")
        if isinstance(end, UserError):
            raise end
        return end


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jobs, "directory", lambda config: tmp_path / config.encoding["name"])
    return tmp_path


def job(name: str) -> Job:
    return Job(Config(encoding={"name": name}), f"posbench train encoding={name}", name)


def run(engine: Engine, names: str, said: list[str] | None = None, pause: Any = None, **how: Any) -> list[str | None]:
    said = [] if said is None else said
    found = launch.run(
        [job(one) for one in names], Settings(engine=engine, **how), said.append, pause=pause or (lambda seconds: None)
    )
    return [result and result.state for result in found]


def test_all_are_submitted_in_one_piece_and_each_is_said_with_its_place(runs: Path):
    engine, said = Instant(), list[str]()
    assert run(engine, "abc", said) == ["done"] * 3
    assert engine.submitted == [["a", "b", "c"]]
    assert said == ["[1/3] a: place a", "[2/3] b: place b", "[3/3] c: place c"]


def test_a_failure_there_and_an_end_without_a_result_are_failures(runs: Path):
    """RUN-1: both said at once, and the latter, which nobody else can have written down, stands in the run's log."""
    lost = Lost("the node is gone", ["last words"])
    engine, said = Instant(b=[Result("failed", "it broke", ["in line 3"])], c=[lost]), list[str]()
    assert run(engine, "abcd", said) == ["done", "failed", "failed", "done"]
    assert "error: b: it broke\n  in line 3" in said
    log = runs / "c" / "log.txt"
    assert f"error: c: the node is gone\n  last words\n  Its log: {log}" in said
    assert log.read_text().endswith("last words\nthe node is gone\n")


def test_retry_submits_again_what_failed(runs: Path):
    failed = Result("failed", "it broke")
    engine = Instant(b=[failed, failed], c=[failed] * 9)
    assert run(engine, "abcd", on_error="retry=2") == ["done", "done", "failed", "done"]
    assert engine.submitted == [["a", "b", "c", "d"], ["b", "c"], ["b", "c"]]


def test_jobs_that_are_not_taken_again_have_failed_and_those_at_work_are_waited_for(runs: Path):
    """a fails and is not taken for its second try, while b is at work; it is for its third."""
    engine, said = Instant(takes={"b": 9}, a=[Result("failed", "it broke")]), list[str]()
    engine.refuses = {2}
    assert run(engine, "ab", said, on_error="retry=1") == ["failed", "done"]
    assert "error: a: Slurm does not take the jobs: unable to contact slurm controller\n  Try later." in said
    engine = Instant(takes={"b": 9}, a=[Result("failed", "it broke")])
    engine.refuses = {2}
    assert run(engine, "ab", on_error="retry=2") == ["done", "done"]
    engine.refuses = {1, 2, 3, 4}
    with pytest.raises(UserError, match="does not take the jobs"):
        run(engine, "ab")


def test_stop_takes_out_of_the_queue_what_nobody_has_begun(runs: Path, monkeypatch: pytest.MonkeyPatch):
    """b fails while c is at work and d waits: c may end, d has no result."""
    monkeypatch.setattr(lock, "owner", lambda folder: "pid 7" if folder.name == "c" and engine.submitted else None)
    engine = Instant(takes={"c": 5, "d": 9}, b=[Result("failed", "it broke")])
    assert run(engine, "abcd", on_error="stop") == ["done", "failed", "done", None]
    assert engine.told == ["d"]


def test_what_another_process_holds_is_submitted_once_it_is_free(runs: Path, monkeypatch: pytest.MonkeyPatch):
    """Here it is held before, there it is found held, where the owner was seen too late: both are done in the end."""
    held = {"a": 3}

    def owner(folder: Path) -> str | None:
        held["a"] -= folder.name == "a"
        return "pid 7 on elsewhere" if held.get(folder.name, 0) > 0 else None

    monkeypatch.setattr(lock, "owner", owner)
    engine, said = Instant(b=[Result("held", "b is being worked on")]), list[str]()
    assert run(engine, "abc", said) == ["done"] * 3
    assert engine.submitted[0] == ["b", "c"]
    assert sorted(engine.submitted[1:]) in ([["a"], ["b"]], [["a", "b"]], [["b", "a"]])
    assert "[2/3] b is left for later: b is being worked on" in said


def test_a_row_that_is_not_seen_here_yet_is_looked_for_again_for_a_minute(runs: Path):
    """As over NFS; the looks are a second apart. One that never comes is a failure of its job and of no other."""
    unseen, said = UserError("row.json cannot be read: No such file or directory."), list[str]()
    engine = Instant(a=[unseen] * 60, b=[unseen] * 61)
    assert run(engine, "abc", said) == ["done", "failed", "done"]
    assert "error: b: row.json cannot be read: No such file or directory." in "\n".join(said)


def test_a_process_that_died_here_holds_up_no_job_there(runs: Path):
    """Here it is known to be dead at once, on another machine only when it has been silent for 5 minutes."""
    (runs / "a").mkdir()
    dead = lock.Lock(runs / "a" / lock.NAME, "a")
    dead.owner = replace(dead.owner, started="long ago")
    dead.take()
    engine = Instant()
    assert run(engine, "a") == ["done"]
    assert not (runs / "a" / lock.NAME).exists()


def test_what_is_finished_waits_in_no_queue(runs: Path, monkeypatch: pytest.MonkeyPatch):
    def kept(job: Job, say: Any) -> Result | None:
        say(f"{job.label} is looked at")
        return Result("done") if job.label == "a" else None

    monkeypatch.setattr(jobs, "kept", kept)
    engine, said = Instant(), list[str]()
    assert run(engine, "ab", said) == ["done", "done"]
    assert engine.submitted == [["b"]]
    assert said == ["[1/2] a", "a is looked at", "[2/2] b: place b"]


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_stops_all_and_waits_for_their_checkpoints(runs: Path, number: int, raised: type[BaseException]):
    engine, said, pauses = Instant(takes={"b": 99, "c": 99}), list[str](), iter(range(99))

    def pause(seconds: float) -> None:
        if next(pauses) == 2:
            os.kill(os.getpid(), number)

    with pytest.raises(raised):
        run(engine, "abc", said, pause)
    assert sorted(engine.told) == ["b", "c"]
    assert not (runs / "b").exists()  # it was told to end: no failure


def test_a_sign_of_life_every_thirty_seconds(runs: Path, monkeypatch: pytest.MonkeyPatch):
    """a has ended after one second, b is at work for 70, c waits for 70: two lines."""
    monkeypatch.setattr(lock, "owner", lambda folder: "pid 7" if folder.name == "b" and engine.submitted else None)
    engine, said = Instant(takes={"b": 70, "c": 70}), list[str]()
    run(engine, "abc", said)
    assert [line for line in said if "have ended" in line] == ["1 of 3 jobs have ended, 1 at work, 1 waiting"] * 2


def test_threads_are_those_of_the_engine_unless_asked_for(runs: Path, monkeypatch: pytest.MonkeyPatch):
    engine, seen = Instant(), list[int]()
    engine.threads = 3
    monkeypatch.setattr(engine, "submit", lambda jobs: [seen.append(one.config.train.threads) for one in jobs] and [])
    asked = job("a")
    asked.config.train.threads = 1
    with pytest.raises(ValueError, match="zip"):
        launch.run([asked, job("b")], Settings(engine=engine), print)
    assert seen == [1, 3]


# Words of a command line ------------------------------------------------------------------------------------------


def test_the_words_that_name_an_engine_are_of_no_run(monkeypatch: pytest.MonkeyPatch):
    words = ["hydra/launcher=slurm", "seed=1", "hydra.launcher.timeout_min=30", "hydra.launcher.partition=gpu"]
    engine, rest = cluster.chosen(words)
    assert rest == ["seed=1"]
    assert engine is not None
    assert (engine.name, engine.settings["timeout_min"], engine.settings["partition"]) == ("slurm", 30, "gpu")
    assert cluster.chosen(["seed=1"]) == (None, ["seed=1"])
    assert cluster.chosen(["hydra/launcher=local"])[0] is None


def test_a_launcher_that_there_is_not_and_a_setting_that_it_does_not_have():
    with pytest.raises(UserError, match=r"There is no hydra/launcher 'slrum'\. Did you mean 'slurm'\?"):
        cluster.chosen(["hydra/launcher=slrum"])
    with pytest.raises(UserError, match=r"There is no hydra/launcher 'basic'"):
        cluster.chosen(["hydra/launcher=basic"])
    with pytest.raises(UserError, match=r"hydra.launcher.timeout"):
        cluster.chosen(["hydra/launcher=slurm", "hydra.launcher.timeout=30"])


def test_a_launcher_of_ones_own_may_stand_on_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "hydra" / "launcher").mkdir(parents=True)
    (tmp_path / "hydra" / "launcher" / "ours.yaml").write_text("defaults: [slurm]\npartition: gpu\naccount: mine\n")
    monkeypatch.setenv("POSBENCH_CONFIGS", str(tmp_path))
    engine, _ = cluster.chosen(["hydra/launcher=ours", "hydra.launcher.account=yours"])
    assert engine is not None
    assert (engine.name, engine.settings["partition"], engine.settings["account"]) == ("slurm", "gpu", "yours")


@pytest.mark.parametrize(("name", "module"), sorted(cluster.NEEDS.items()))
def test_an_engine_that_is_not_installed_is_named_with_what_installs_it(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(UserError) as refused:
        cluster.needs(["seed=1", f"hydra/launcher={name}"])
    assert refused.value.message == f"hydra/launcher={name} needs {module}, which is not installed."
    assert refused.value.hint == f"Type: pip install 'posbench[{name}]'"


def test_workers_mean_nothing_on_an_engine():
    engine = Instant()
    with pytest.raises(UserError, match="workers=2 has no effect with hydra/launcher=instant") as refused:
        cluster.on(Settings(workers=2), engine)
    assert refused.value.hint == "Leave it out, or write hydra.launcher.most=2."
    assert cluster.on(Settings(), engine).engine is engine
