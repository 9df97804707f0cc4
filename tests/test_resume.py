"""On the CPU a run is a function of its config: the same bits after any kill and resume."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys

from posbench import checkpoint, train
from posbench import run as runs
from posbench.compose import settled
from posbench.config import Config, Optim
from posbench.errors import UserError
from posbench.run import Run, directory

pytestmark = pytest.mark.usefixtures("folders")


class Killed(BaseException):
    """Ends a training as nothing it catches would: like a kill, but within the test's process."""


def at_step(step: int, act: Callable[[], None], patch: pytest.MonkeyPatch, seen: list[str] | None = None) -> None:
    """Call `act` when a training has drawn its batch number `step` (from 1); note the digest of every batch."""
    real, count = train.gradient, iter(range(1, 10_000))

    def gradient(decoder, loss_of, batch, *rest):
        if next(count) == step:
            act()
        if seen is not None:
            seen.append(hashlib.sha256(batch.numpy().tobytes()).hexdigest())
        return real(decoder, loss_of, batch, *rest)

    patch.setattr(train, "gradient", gradient)


def kill() -> None:
    raise Killed


def killed_at(step: int, config: Config, monkeypatch: pytest.MonkeyPatch, seen: list[str] | None = None) -> Run:
    """A training that is killed in its step number `step`."""
    with monkeypatch.context() as patch:
        at_step(step, kill, patch, seen)
        with pytest.raises(Killed):
            train.train(config)
    return Run(runs.directory(config))


def losses(run: Run) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in run.metrics() if "loss" in line]


@pytest.mark.parametrize("method", ["muon", "adamw"])
def test_25_steps_and_a_resume_are_60_steps(data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str):
    """CKPT-1, with dropout: an epoch is 20 batches, so the kill falls into the second epoch and two more ends follow.
    Same batches, same losses, same bytes of the weights."""
    config = replace(toys.config(data, dropout=0.1), optim=Optim(name=method, method=method))
    expected: list[str] = []
    with monkeypatch.context() as patch:
        at_step(0, kill, patch, expected)
        whole = toys.undisturbed(config, tmp_path, monkeypatch)
    seen: list[str] = []
    assert checkpoint_step(killed_at(26, config, monkeypatch, seen).path) == 25
    with monkeypatch.context() as patch:
        at_step(0, kill, patch, seen)
        resumed = train.train(config)
    assert len(expected) == 60
    assert seen == expected
    assert losses(resumed) == losses(whole)
    assert toys.sha(resumed.weights) == toys.sha(whole.weights)
    assert not resumed.checkpoint.exists()


def checkpoint_step(path: Path) -> int:
    from safetensors import safe_open

    with safe_open(path / "checkpoint.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["posbench"])["state"]["step"]


@pytest.mark.parametrize("killed", [1, 19, 21, 40])
def test_steps_past_the_checkpoint_are_made_again(
    data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: int
):
    """Checkpoints every 7 steps only; the kill also falls before the first one, and beside the ends of the epochs.
    No step stands twice in the metrics."""
    config = toys.config(data, steps=42, dropout=0.1)
    whole = toys.undisturbed(config, tmp_path, monkeypatch)
    real = checkpoint.save

    def seldom(path, run_hash, state, *rest):
        if state.step % 7 == 0:
            real(path, run_hash, state, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", seldom)
        killed_at(killed, config, patch)
    resumed = train.train(config)
    assert losses(resumed) == losses(whole)
    assert toys.sha(resumed.weights) == toys.sha(whole.weights)


def test_a_run_is_the_same_alone_and_after_others(data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """RUN-3: no state survives from one training to the next in a process."""
    config = toys.config(data, steps=10, dropout=0.1)
    alone = toys.undisturbed(config, tmp_path, monkeypatch)
    train.train(replace(config, seed=2))
    train.train(toys.config(data, encoding="t5", steps=10, dropout=0.3))
    torch.rand(7)
    assert toys.sha(train.train(config).weights) == toys.sha(alone.weights)


MANY = """
import json, resource, sys
from dataclasses import replace
import toys
from posbench import train
from posbench.config import Model
config = replace(toys.config(json.loads(sys.argv[1]), steps=3), model=Model("toy", 2, 128, 2, 344))
peaks = []
for seed in range(6):
    train.train(replace(config, seed=seed))
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(json.dumps(peaks))
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.faults
def test_trainings_in_a_row_keep_memory_flat(data: dict):
    """RUN-3, six for twenty. The sixth stood 2 MiB above the second; with every optimizer kept on purpose (428,000
    parameters and their momentum) it was 18."""
    there = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[1]}"}
    words = [sys.executable, "-c", MANY, json.dumps(data)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=there)
    peaks = json.loads(done.stdout)
    unit = 1 if sys.platform == "darwin" else 1024
    assert (peaks[5] - peaks[1]) * unit < 8 * 2**20


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_writes_a_checkpoint_and_ends_the_process_as_usual(
    data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, ends: type[BaseException]
):
    config = toys.config(data, steps=20, checkpoint_seconds=3600)
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        at_step(8, lambda: os.kill(os.getpid(), number), patch)
        with pytest.raises(ends) as caught:
            train.train(config)
    if ends is SystemExit:
        assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(number) is before
    run = Run(runs.directory(config))
    assert run.status()["state"] == "interrupted"
    assert run.status()["step"] == checkpoint_step(run.path) == 8
    assert (run.path / "log.txt").read_text().endswith(" interrupted at step 8 of 20, with a checkpoint\n")
    whole = toys.undisturbed(config, tmp_path, monkeypatch)
    assert toys.sha(train.train(config).weights) == toys.sha(whole.weights)


def test_a_finished_run_is_returned_as_it_is(data: dict, monkeypatch: pytest.MonkeyPatch):
    config = toys.config(data, steps=3)
    first = train.train(config)
    before = {file.name: file.read_bytes() for file in first.path.iterdir()}
    at_step(1, kill, monkeypatch)
    said: list[str] = []
    again = train.train(config, say=said.append)
    assert again.path == first.path
    assert f"{first.name} is trained already" in said
    assert {file.name: file.read_bytes() for file in again.path.iterdir()} == before


def test_a_kill_between_the_weights_and_the_status_is_made_good(data: dict, monkeypatch: pytest.MonkeyPatch):
    """The weights are there, the status still says running: the last steps are made again, to the same bytes."""
    config = toys.config(data, steps=4)
    real = Run.write_status

    def killed(self, state, **fields):
        if state == "done":
            raise Killed
        real(self, state, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_status", killed)
        with pytest.raises(Killed):
            train.train(config)
    run = Run(runs.directory(config))
    before = toys.sha(run.weights)
    assert not run.done
    train.train(config)
    assert toys.sha(run.weights) == before
    assert run.done


def test_a_changed_text_is_another_run_and_a_copy_of_it_the_same(data: dict, tmp_path: Path):
    """At the same paths and elsewhere: a run is named by what it was trained on."""
    config = toys.config(data, steps=3)
    run = train.train(config)
    before = toys.sha(run.weights)
    copied = train.train(toys.config(toys.text(tmp_path / "copy"), steps=3))
    assert copied.path == run.path
    toys.text(tmp_path / "text", seed=5)
    changed = train.train(config)
    assert changed.path != run.path
    assert changed.record["ids_digest"] != run.record["ids_digest"]
    assert toys.sha(run.weights) == before


def test_a_text_that_changes_after_its_run_was_named_is_refused(data: dict, tmp_path: Path):
    """As in a study, whose runs are named before the first one starts."""
    config = settled(toys.config(data, steps=3))
    toys.text(tmp_path / "text", seed=5)
    with pytest.raises(UserError, match=r"The text of 'files-train' is not the one this run is of: it has changed"):
        train.train(config)
    assert not directory(config).exists()


def test_a_damaged_checkpoint_is_named_and_kept(data: dict, monkeypatch: pytest.MonkeyPatch):
    config = toys.config(data, steps=6)
    run = killed_at(4, config, monkeypatch)
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-10])
    before = {name: toys.sha(run.path / name) for name in ("checkpoint.safetensors", "status.json", "metrics.jsonl")}
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged"):
        train.train(config)
    assert {name: toys.sha(run.path / name) for name in before} == before


def test_a_finished_run_with_damaged_weights_is_not_counted_as_done(data: dict):
    config = toys.config(data, steps=3)
    run = train.train(config)
    run.weights.write_bytes(run.weights.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        train.train(config)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        run.model()


def test_what_was_decided_at_step_0_is_obeyed(data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Other parts, threads and compilation are asked for on resume: none changes the run's name, each gets one line,
    and the weights are those of the run that was never disturbed."""
    config = toys.config(data, steps=12, micro_tokens=16, threads=1)
    whole = toys.undisturbed(config, tmp_path, monkeypatch)
    killed_at(6, config, monkeypatch)
    said: list[str] = []
    other = replace(config, train=replace(config.train, micro_tokens=32, threads=2))
    run = train.train(other, say=said.append)
    assert run.record["decisions"]["micro_tokens"] == 16
    assert "micro_tokens stays 16 as at step 0, though it would now be 32" in said
    assert "threads stays 1 as at step 0, though it would now be 2" in said
    assert torch.get_num_threads() == 1
    assert toys.sha(run.weights) == toys.sha(whole.weights)


def test_a_loss_that_is_not_finite_fails_the_run_and_keeps_the_last_checkpoint(
    data: dict, monkeypatch: pytest.MonkeyPatch
):
    config = toys.config(data, steps=10)
    real = train.gradient
    calls = iter(range(1, 100))
    with monkeypatch.context() as patch:
        patch.setattr(train, "gradient", lambda *how: real(*how) * (float("nan") if next(calls) == 7 else 1.0))
        with pytest.raises(UserError, match="The loss is no longer finite at step 7"):
            train.train(config)
    run = Run(runs.directory(config))
    assert run.status()["state"] == "failed"
    assert "no longer finite at step 7" in run.status()["reason"]
    assert checkpoint_step(run.path) == 6
    assert not run.weights.exists()
    assert train.train(config).done


@pytest.mark.process
def test_a_second_process_is_refused(data: dict):
    """The lock is held here; the other process ends at once and leaves everything as it was."""
    config = toys.config(data, steps=3)
    with Run(runs.directory(config)).lock():
        other = child(f"train.train(toys.config({data!r}, steps=3))")
    assert other.returncode == 1
    assert "is being worked on by another process" in other.stderr
    assert not (runs.directory(config) / "run.json").exists()


def child(code: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own."""
    here = Path(__file__).parent
    prelude = f"import sys; sys.path[:0] = [{str(here)!r}, {str(here.parent)!r}]; import toys; from posbench import *; "
    prelude += "from posbench import checkpoint, train; import os, signal, pathlib; "
    return subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, check=False)


IN_A_STEP = """
real, count = train.gradient, iter(range(1, 999))
def gradient(*how):
    if next(count) == 13: os.kill(os.getpid(), signal.SIGKILL)
    return real(*how)
train.gradient = gradient
"""
BEFORE_THE_RENAME = """
real, count = pathlib.Path.replace, iter(range(1, 999))
def replace(self, target):
    if target.name == 'checkpoint.safetensors' and next(count) == 13: os.kill(os.getpid(), signal.SIGKILL)
    return real(self, target)
pathlib.Path.replace = replace
"""
HALF_WRITTEN = """
real, count = checkpoint.save_file, iter(range(1, 999))
def save_file(tensors, path, metadata):
    real(tensors, path, metadata)
    if next(count) == 13:
        os.truncate(path, 1000)
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint.save_file = save_file
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(IN_A_STEP, id="step", marks=pytest.mark.faults),
        pytest.param(BEFORE_THE_RENAME, id="rename", marks=pytest.mark.faults),
        pytest.param(HALF_WRITTEN, id="write"),
    ],
)
def test_sigkill_anywhere_and_the_same_command_again(
    data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    """A process that kills itself in the middle of step 13, or with the 13th checkpoint half written, or written and
    not yet renamed. Another process goes on from step 12 to the weights that this process trains undisturbed."""
    config = toys.config(data, steps=24, dropout=0.1)
    whole = toys.undisturbed(config, tmp_path, monkeypatch)
    command = f"train.train(toys.config({data!r}, steps=24, dropout=0.1))"
    assert child(f"exec({how!r}); {command}").returncode == -signal.SIGKILL
    path = runs.directory(config)
    assert Run(path).status()["state"] == "stopped"
    assert checkpoint_step(path) == 12
    done = child(command)
    assert done.returncode == 0, done.stderr
    assert toys.sha(Run(path).weights) == toys.sha(whole.weights)
    assert not list(path.glob(".*.tmp"))
