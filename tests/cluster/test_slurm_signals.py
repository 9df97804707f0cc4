"""What a process in a Slurm job does with signals, and what is asked of Slurm; without a Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posbench import job, lock
from posbench.cluster import Lost, chosen, slurm
from posbench.cluster.slurm import Attempt, Slurm, SlurmTask
from posbench.compose import compose
from posbench.errors import UserError
from posbench.job import Result


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Slurm:
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path))
    found, _ = chosen(["hydra/launcher=slurm"])
    assert isinstance(found, Slurm)
    return found


@pytest.fixture
def handlers() -> Iterator[None]:
    """All handlers are put back."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_when_the_time_is_up_the_checkpoint_is_written_before_the_job_goes_back_into_the_queue(monkeypatch):
    order: list[str] = []

    def submitits(number: int, frame: Any) -> None:
        order.append("requeued")
        os.kill(os.getpid(), signal.SIGTERM)  # which Slurm sends with the requeue
        raise SystemExit(-1)

    def training(text: str) -> str:
        def leave(*_: Any) -> None:
            order.append("checkpoint")
            raise SystemExit(143)

        signal.signal(signal.SIGTERM, leave)
        os.kill(os.getpid(), signal.SIGUSR2)
        return "never"

    signal.signal(signal.SIGUSR2, submitits)
    monkeypatch.setattr(slurm, "_end", lambda status: order.append("ended"))
    monkeypatch.setattr(job, "carry_out", training)
    with pytest.raises(SystemExit) as left:
        Attempt(None)("{}")
    assert order == ["checkpoint", "requeued", "ended"]
    assert left.value.code == 143


@pytest.mark.usefixtures("handlers")
def test_the_processes_of_a_job_do_not_die_of_the_signal_that_is_for_the_job(monkeypatch):
    """Slurm sends it to each: one that is started within has it blocked, and this one hears it all the same."""
    heard: list[int] = []

    def training(text: str) -> str:
        child = subprocess.run(["sh", "-c", "kill -USR2 $$; echo alive"], capture_output=True, text=True, check=False)
        os.kill(os.getpid(), signal.SIGUSR2)
        until = time.monotonic() + 60
        while not heard and time.monotonic() < until:  # it comes to another thread, which tells this one
            pass
        return child.stdout

    def leave(*_: Any) -> None:
        heard.append(signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGUSR2, lambda *_: pytest.fail("it ended in no time"))
    monkeypatch.setattr(job, "carry_out", training)
    assert Attempt(None)("{}") == "alive\n"
    assert heard == [signal.SIGTERM]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGUSR1, signal.SIGUSR2}


@pytest.mark.usefixtures("handlers")
def test_after_a_preemption_it_is_slurm_that_brings_the_job_back(monkeypatch):
    def training(text: str) -> str:
        raise SystemExit(143)

    signal.signal(signal.SIGUSR2, lambda *_: pytest.fail("it asks for a requeue"))
    monkeypatch.setattr(slurm, "_end", lambda status: None)
    monkeypatch.setattr(job, "carry_out", training)
    with pytest.raises(SystemExit) as left:
        Attempt(None)("{}")
    assert left.value.code == 143


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("rank", "result"), [(0, "{}"), (1, "")])
def test_several_tasks_of_a_job_train_its_run_together(monkeypatch: pytest.MonkeyPatch, rank: int, result: str):
    """The first carries the job out, and tells the others what to train: posbench/processes.py."""
    exported: list[dict[str, bool]] = []
    there = SimpleNamespace(export=lambda **how: exported.append(how))
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setattr("submitit.helpers.TorchDistributedEnvironment", lambda: there)
    monkeypatch.setattr("posbench.processes.command", lambda lead: 0 if rank else lead())
    monkeypatch.setattr(job, "carry_out", lambda text: text)
    assert Attempt(None)("{}") == result
    assert exported == [{"set_cuda_visible_devices": False}]


@pytest.mark.usefixtures("handlers")
def test_a_job_computes_with_as_many_threads_as_it_has_processors(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(job, "carry_out", lambda text: os.environ["OMP_NUM_THREADS"])
    assert Attempt(3)("{}") == "3"


def test_what_is_asked_of_slurm(engine: Slurm, tmp_path: Path):
    """As submitit's executor names it: shared settings by their names, Slurm's own with its name before them."""
    engine.settings |= {"partition": "gpu", "gpus_per_node": 1, "additional_parameters": {"nice": 5}}
    asked = engine._of_jobs()
    assert {key: asked[key] for key in ("timeout_min", "cpus_per_task", "gpus_per_node", "nodes")} == {
        "timeout_min": 240, "cpus_per_task": 4, "gpus_per_node": 1, "nodes": 1
    }  # fmt: skip
    assert asked["slurm_partition"] == "gpu"
    assert asked["slurm_signal_delay_s"] == 120
    assert asked["slurm_additional_parameters"] == {"nice": 5}
    assert not asked.keys() & {"slurm_account", "slurm_max_num_timeout", "submitit_folder", "slurm_submitit_folder"}
    assert engine._of_executor() == {"folder": tmp_path / ".slurm" / "%j", "slurm_max_num_timeout": 50}
    assert engine.threads == 4


def test_what_it_hands_over_lies_in_the_folder_of_runs(engine: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Which an empty POSBENCH_RUNS does not name; or where one says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSBENCH_RUNS", "")
    assert engine._of_executor()["folder"] == tmp_path / "runs" / ".slurm" / "%j"
    engine.settings["submitit_folder"] = "mine/%j"
    assert engine._of_executor()["folder"] == tmp_path / "mine" / "%j"


def test_without_slurm_and_without_time_for_a_checkpoint_it_says_so(engine: Slurm, monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="This machine has no sbatch"):
        engine.submit([])
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    engine.settings["timeout_min"] = 2
    with pytest.raises(UserError, match="timeout_min=2 ends before the 120 s that are left") as refused:
        engine.submit([])
    assert "timeout_min=3 or more" in str(refused.value.hint)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("alive", "looks"), [(3, 3), (10**6, 33)])
def test_a_requeued_job_waits_for_the_lock_it_held_on_a_node_that_was_lost(
    monkeypatch: pytest.MonkeyPatch, alive: int, looks: int
):
    """Until it is silent for 5 minutes; one that goes on beating is another's, and whose it is the job itself says."""
    now, owners = [1000.0], iter([lock._UNKNOWN] * alive)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(slurm.time, "sleep", sleep)
    monkeypatch.setattr(slurm.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(lock, "owner", lambda folder: next(owners, None))
    monkeypatch.setattr(job, "carry_out", lambda text: "carried out")
    text = job.Job(compose(), "", "").to_json()
    assert Attempt(None)(text) == "carried out"
    assert now[0] == 1000
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert Attempt(None)(text) == "carried out"
    assert now[0] == 1000 + looks * slurm.LOOK_SECONDS


# How a job has ended ------------------------------------------------------------------------------------------------


class Queue:
    """Slurm's, as squeue tells it, with a clock that goes on at each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs, self.status, self.now = "14_0\n14_1\n", 0, 1000.0
        monkeypatch.setattr(slurm.subprocess, "run", self.run)
        monkeypatch.setattr(slurm.time, "monotonic", self.clock)

    def run(self, command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, self.status, self.jobs, "")

    def clock(self) -> float:
        self.now += 11
        return self.now


class Outcome:
    """A job of submitit's."""

    def __init__(self, folder: Path, state: str = "CANCELLED by 0", error: str = "") -> None:
        self.job_id = "14_0"
        self.paths = SimpleNamespace(result_pickle=folder / "result.pkl", stderr=folder / "log.err")
        self.watcher = SimpleNamespace(get_state=lambda job, mode: state)
        self.error = error

    def exception(self) -> Exception | None:
        return RuntimeError(self.error) if self.error else None

    def results(self) -> list[str]:
        return [Result("failed", "it broke").to_json()]


def task(engine: Slurm, outcome: Outcome) -> SlurmTask:
    engine.missing[outcome.job_id] = 0
    return SlurmTask(engine, outcome)


def test_a_job_that_has_left_the_queue_without_a_result_is_lost(engine: Slurm, monkeypatch, tmp_path: Path):
    """For a minute, at a look every ten seconds: a result may be on its way over a network. A controller that does not
    answer says nothing."""
    queue = Queue(monkeypatch)
    (tmp_path / "log.err").write_text("one\ntwo\n")
    one = task(engine, Outcome(tmp_path))
    assert one.place == f"Slurm job 14_0, its log: {tmp_path / 'log.err'}"
    engine.look()
    assert one.end() is None
    queue.jobs, queue.status = "", 1
    engine.look()
    assert one.end() is None
    queue.jobs, queue.status = "14_1\n", 0
    for _ in range(6):
        engine.look()
        assert one.end() is None
    engine.look()
    end = one.end()
    assert isinstance(end, Lost)
    assert end.message == "Slurm job 14_0 ended (CANCELLED by 0) without a result"
    assert end.said == ["one", "two", f"Its Slurm log: {tmp_path / 'log.err'}"]


def test_a_job_that_comes_back_was_not_lost(engine: Slurm, monkeypatch, tmp_path: Path):
    queue = Queue(monkeypatch)
    one = task(engine, Outcome(tmp_path))
    for jobs in ("", "14_0\n", "", "14_0\n"):
        queue.jobs = jobs
        engine.look()
        assert one.end() is None


def test_the_controller_is_asked_now_and_then(engine: Slurm, monkeypatch):
    queue, asked = Queue(monkeypatch), list[Any]()
    monkeypatch.setattr(slurm.subprocess, "run", lambda command, **how: asked.append(command) or queue.run(command))
    monkeypatch.setattr(slurm.time, "monotonic", iter([100.0, 100.0, 101.0, 109.0, 111.0, 111.0]).__next__)
    for _ in range(4):
        engine.look()
    assert len(asked) == 2


def test_a_result_is_the_jobs_and_an_error_of_submitit_is_named_by_its_last_line(engine: Slurm, tmp_path: Path):
    (tmp_path / "result.pkl").touch()
    assert task(engine, Outcome(tmp_path)).end() == Result("failed", "it broke")
    rule = "-" * 22
    said = (
        f"Job (task=0) failed during processing with trace:\n{rule}\nTraceback:\n  x\nE: timed-out too many times.\n\n"
    )
    end = task(engine, Outcome(tmp_path, "UNKNOWN", f"{said}{rule}\nYou can check full logs")).end()
    assert isinstance(end, Lost)
    assert end.message == "Slurm job 14_0 ended: E: timed-out too many times."
