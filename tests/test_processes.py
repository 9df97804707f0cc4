"""A run that several processes train: the losses of one, the checkpoint of one, and an end together.

Two real processes make all the trainings of `session`, one after another, since a process takes seconds to begin.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import toys
from safetensors import safe_open
from safetensors.torch import load_file

from posbench import launch, processes, system, train
from posbench.compose import settled
from posbench.config import Config, Optim
from posbench.decisions import Decisions
from posbench.errors import UserError
from posbench.identity import to_dict
from posbench.job import Job
from posbench.journal import NotFiniteError
from posbench.launch import Settings
from posbench.run import Run, directory

HERE = Path(__file__).parent

STEPS = 50
"""As many are compared with those of one process."""


def several(data: dict, encoding: str = "t5", method: str = "muon", **settings: Any) -> Config:
    """One layer; batches of 5 windows, which two processes cannot share equally; an encoding with weights of its own.
    (In pieces each step sends some forty messages, each of which waits for both processes.)"""
    usual = {"steps": STEPS, "batch_tokens": 80, "tokens": 80 * STEPS, "validate_tokens": 80 * STEPS}
    config = toys.config(data, encoding, **{**usual, **settings})
    model = replace(config.model, layers=1)
    return replace(config, model=model, optim=Optim(name=method, method=method))


# A session ------------------------------------------------------------------------------------------------------------

SELDOM: dict[str, Any] = {"checkpoint_seconds": 3600}

MOVED, STOPPED, FAILED = 10, 20, 13
"""The steps after which "moved" goes from one process to two, and is stopped; that in which the second one fails."""


def trainings(data: dict) -> dict[str, Config]:
    """What the two processes train, in this order."""
    return {
        "muon": several(data, shard="off", **SELDOM),
        "muon in pieces": several(data, shard="on", micro_tokens=16, **SELDOM),
        "adamw": several(data, method="adamw", shard="off", **SELDOM),
        "adamw in pieces": several(data, method="adamw", shard="on", **SELDOM),
        "moved": several(data, "rope", shard="on", **SELDOM),
        "wild": replace(several(data, "none"), optim=Optim(lr=1e30, matrix_lr=1e30)),
        "failing": several(data, "alibi", shard="off"),
    }


def lead(data: dict, root: str) -> int:
    """In the first process: train all of them, and print what came of each."""
    found = {}
    for name, config in trainings(data).items():
        os.environ["POSBENCH_RUNS"] = f"{root}/{name}"
        try:
            train.train(config)
            found[name] = ["done", ""]
        except (UserError, SystemExit) as error:
            found[name] = [type(error).__name__, str(error)]
    print(json.dumps(found))
    return 0


def second(data: dict) -> int:
    """The second process, in which a signal comes in one training, and which fails in another."""
    gradient, take_part, seen = train.gradient, train.take_part, Counter[str]()

    def counted(run: Run, config: Config, *rest: Any) -> None:
        def step(*how: Any) -> torch.Tensor:
            seen[name := config.encoding["name"]] += 1
            if (name, seen[name]) == ("rope", STOPPED - MOVED):
                os.kill(os.getpid(), signal.SIGTERM)
            if (name, seen[name]) == ("alibi", FAILED):
                raise OSError("the second process broke")
            return gradient(*how)

        train.gradient = step
        take_part(run, config, *rest)

    train.take_part = counted
    return processes.command(lambda: 0)


@dataclass
class Session:
    data: dict
    root: Path
    found: dict[str, list[str]]
    """What each training raised."""
    statuses: list[int]
    """With which the processes ended."""

    @contextmanager
    def at(self, name: str, folder: str = "") -> Iterator[Config]:
        """The config of a training, in its folder or another one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("POSBENCH_DATA", str(self.root / "data"))
            patch.setenv("POSBENCH_RUNS", str(self.root / (folder or name)))
            yield trainings(self.data)[name]

    def run(self, name: str) -> Run:
        with self.at(name) as config:
            return Run(directory(config))

    def alone(self, name: str, folder: str = "") -> Run:
        """The same run, trained or gone on with by this process."""
        with self.at(name, folder) as config:
            return train.train(config)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Two processes, told of each other as torchrun does; before them this one has begun "moved"."""
    root = tmp_path_factory.mktemp("several")
    made = Session(toys.text(root / "text"), root, {}, [])
    with made.at("moved") as config, pytest.MonkeyPatch.context() as patch:
        toys.interrupted_at(MOVED + 1, patch)
        with pytest.raises(KeyboardInterrupt):
            train.train(replace(config, train=replace(config.train, checkpoint_seconds=0)))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
        there |= {"PYTHONPATH": f"{HERE}:{HERE.parent}", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        calls = [f"processes.command(lambda: lead({made.data!r}, {str(root)!r}))", f"second({made.data!r})"]
        both = [
            subprocess.Popen(
                [sys.executable, "-c", f"import sys; from test_processes import *; sys.exit({call})"],
                env={**os.environ, **there, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, call in enumerate(calls)
        ]
        ended = [process.communicate() for process in both]
    assert ended[0][0], ended
    made.found, made.statuses = json.loads(ended[0][0]), [process.returncode for process in both]
    return made


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in run.metrics() if "loss" in line]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("method", ["muon", "adamw"])
def test_two_processes_have_the_losses_of_one(session: Session, method: str):
    """5 windows a batch, in shares of 2 and 3, whole or in pieces: 50 losses within 1e-4, the norm of the gradient
    before it is clipped, and the weights and validation that come out."""
    one = session.alone(method, f"alone {method}")
    for name in (method, f"{method} in pieces"):
        two = session.run(name)
        assert session.found[name] == ["done", ""]
        assert two.record["decisions"]["shard"] == ("pieces" in name)
        assert len(losses(two)) == STEPS
        assert losses(two) == pytest.approx(losses(one), abs=1e-4)
        norms = [[line["norm"] for line in run.metrics() if "norm" in line] for run in (one, two)]
        assert norms[1] == pytest.approx(norms[0], rel=1e-3)
        assert max(norms[0]) > 1  # so that it was clipped
        assert two.status()["valid"] == pytest.approx(one.status()["valid"], abs=1e-4)
        for key, tensor in load_file(one.weights).items():
            torch.testing.assert_close(load_file(two.weights)[key], tensor, rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.process
def test_a_run_is_the_same_run_in_any_number_of_processes(session: Session):
    """Its name, and what lies in its folder: one process writes."""
    one, two = session.alone("muon", "alone muon"), session.run("muon")
    assert one.name == two.name
    assert {file.name for file in one.path.iterdir()} == {file.name for file in two.path.iterdir()}
    assert (two.record["decisions"]["nproc"], one.record["decisions"]["nproc"]) == (2, 1)
    assert [line["step"] for line in two.metrics() if "loss" in line] == list(range(1, STEPS + 1))


@pytest.mark.slow
@pytest.mark.process
def test_a_run_moves_from_one_process_to_two_and_back(session: Session):
    """10 steps in one, 10 in two with weights in pieces, where a signal to the second stops both, 30 in one."""
    assert session.found["moved"] == ["SystemExit", str(128 + signal.SIGTERM)]
    stopped = session.run("moved")
    assert (stopped.status()["state"], stopped.status()["step"]) == ("interrupted", STOPPED)
    with safe_open(stopped.checkpoint, framework="pt") as file:
        assert {"rng.cpu", "rng.cpu.1"} <= set(file.keys())
    moved, whole = session.alone("moved"), session.alone("moved", "undisturbed")
    log = (moved.path / "log.txt").read_text()
    assert "begun with nproc=1, goes on with nproc=2, each process with 1 threads" in log
    assert "going on from step 10 of 50" in log
    assert "going on from step 20 of 50" in log
    assert losses(moved) == pytest.approx(losses(whole), abs=1e-4)
    assert moved.done


@pytest.mark.slow
@pytest.mark.process
def test_what_all_processes_find_ends_that_training_alone(session: Session):
    """The loss is no number in either: the next training of the session is not touched."""
    kind, said = session.found["wild"]
    assert kind == "NotFiniteError"
    assert "no longer finite" in said
    assert session.run("wild").status()["state"] == "failed"


@pytest.mark.slow
@pytest.mark.process
def test_a_process_that_fails_ends_all_and_its_words_are_in_the_log(session: Session):
    said = "Process 1 of 2: the second process broke."
    assert session.found["failing"] == ["ProcessError", said]
    assert session.statuses == [0, 1]
    run = session.run("failing")
    assert (run.status()["state"], run.status()["reason"]) == ("failed", said)
    assert said in (run.path / "log.txt").read_text()
    with safe_open(run.checkpoint, framework="pt") as file:
        assert json.loads(file.metadata()["posbench"])["state"]["step"] == FAILED - 1
    assert session.alone("failing").done


# Each of them alone -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "error", "ends"),
    [
        ("cuda", None, ["destroyed"]),
        ("cuda", NotFiniteError("no number", 7), ["destroyed"]),
        ("cuda", OSError(28, "No space left on device"), ["aborted"]),
        ("cpu", OSError(28, "No space left on device"), ["destroyed"]),
    ],
)
def test_a_process_that_fails_waits_for_no_sum_on_a_gpu_and_says_why_before(
    monkeypatch: pytest.MonkeyPatch, device: str, error: Exception | None, ends: list[str]
):
    """(Without a GPU: what is called, and when.)"""
    found, there = list[str](), list[bool]()

    def begin(*words: Any, **how: Any) -> None:
        there.append(True)

    def end(what: str) -> None:
        found.append(what)
        there.pop()
        if error and not isinstance(error, NotFiniteError):
            assert member.store.get("failed/0") == b"Process 1 of 2: No space left on device."

    monkeypatch.setattr(torch.cuda, "set_device", lambda number: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", begin)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: bool(there))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: end("destroyed"))
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_abort_process_group", lambda: end("aborted"))
    member = object.__new__(processes.Member)
    vars(member).update(
        store=torch.distributed.HashStore(), rank=1, count=2, local=1, parent=1, trainings=0, heard=[], broken=False
    )
    with suppress(*([type(error)] if error else [])), member.joined(device):
        if error:
            raise error
    assert found == ends


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("The text has changed.", "Train it again."), 2, "error: The text has changed.\nTrain it again.\n"),
        (PermissionError(13, "Permission denied", "text.txt"), 2, "error: Permission denied: text.txt\n"),
        (RuntimeError("ours"), 1, "RuntimeError: ours\n"),
    ],
)
def test_a_users_mistake_in_a_process_that_follows_is_no_traceback(
    data: dict,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    status: int,
    said: str,
):
    def fail(*words: Any) -> None:
        raise error

    decisions = dict.fromkeys((one.name for one in fields(Decisions)), 0) | {"device": "cpu"}
    what = {"run": "runs/rope", "config": to_dict(settled(several(data))), "decisions": decisions}
    member = SimpleNamespace(announced=lambda: what, joined=lambda device: nullcontext())
    monkeypatch.setattr(processes, "note_signals", lambda member: None)
    monkeypatch.setattr(train, "take_part", fail)
    assert processes.follow(member) == status
    err = capsys.readouterr().err
    assert err.endswith(said)
    assert ("Traceback" in err) == (status == 1)


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_process_whose_starter_is_gone_before_they_met_does_not_wait_for_it():
    """It would ask the store of a process that is dead, for as long as that may take to answer."""
    there = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    words = [sys.executable, "-m", "posbench.elastic", "nowhere"]
    gone = system.environment() | there | {processes.STARTER: "1"}
    done = subprocess.run(words, env=gone, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("nproc", "said"),
    [
        (0, "nproc=0 must be 1 or more"),
        (-2, "nproc=-2 must be 1 or more"),
        (6, "nproc=6 is more than the windows of a batch, of which there are 5"),
    ],
)
def test_a_number_of_processes_that_makes_no_sense_is_refused(data: dict, folders, nproc: int, said: str):
    with pytest.raises(UserError, match=said):
        train.train(replace(several(data), nproc=nproc))


@pytest.mark.parametrize(
    ("device", "gpus", "said"),
    [
        ("cuda", 1, "nproc=2 takes a CUDA device for each process, and this machine has 1"),
        ("cuda:0", 8, "device=cuda:0 is one device, and nproc=2 takes one for each process"),
        ("mps", 0, "nproc=2 needs CUDA devices or the CPU"),
    ],
)
def test_a_device_is_needed_for_each_process(
    data: dict, monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, said: str
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    config = replace(several(data), nproc=2, device=device)
    with pytest.raises(UserError, match=said):
        processes.refuse(config, torch.device(device))
    processes.refuse(replace(config, nproc=1), torch.device(device))
    processes.refuse(config, torch.device("cpu"))


def test_several_runs_at_a_time_are_each_one_process(data: dict):
    job = Job(replace(several(data), nproc=2), "posbench train ...", "rope")
    with pytest.raises(UserError, match="nproc=2 is one run on several devices, workers=4 several runs on one each"):
        launch.run([job], Settings(workers=4), print)


def test_torchrun_says_how_many_there_are(data: dict, monkeypatch: pytest.MonkeyPatch):
    config = several(data)
    assert processes.counted(replace(config, nproc=3)).nproc == 3
    for word in processes.ENVIRONMENT:
        monkeypatch.setenv(word, "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert processes.counted(config).nproc == 4
    assert processes.here(config) == 2
    with pytest.raises(UserError, match="nproc=3, and torchrun has started 4 processes"):
        processes.counted(replace(config, nproc=3))
    with pytest.raises(UserError, match="workers=2 has no effect under torchrun"):
        launch.run([Job(config, "", "")], Settings(workers=2), print)
