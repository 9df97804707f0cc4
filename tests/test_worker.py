"""Jobs in real processes: the same bits as in this one, a failure in its log, and an end with a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import toys

from posbench import evaluate, launch, system, train
from posbench.compose import settled
from posbench.config import Config, Eval
from posbench.identity import label
from posbench.job import Job, Result
from posbench.launch import Settings
from posbench.run import Run, directory

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("folders")]


def job(config: Config, lengths: tuple[int, ...] = ()) -> Job:
    config = settled(config)
    requests = evaluate.requests(config, Eval(lengths=list(lengths), targets=64)) if lengths else ()
    return Job(config, "posbench train ...", label(config.encoding), requests)


def undisturbed(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same config trained in this process, elsewhere, on as many threads."""
    return toys.undisturbed(replace(config, train=replace(config.train, threads=1)), tmp_path, monkeypatch)


def test_two_at_a_time_are_what_each_is_alone_and_one_that_fails_is_left_behind(
    data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """RUN-1, RUN-3. Rows come back with the result; memory is of the process alone."""
    rope = toys.config(data, steps=8, dropout=0.1)
    none = toys.config(data, "none", steps=8)
    wild = replace(none, optim=replace(none.optim, lr=1e30, matrix_lr=1e30))
    said: list[str] = []
    jobs = [job(wild), job(rope, (32,))]
    failed, done = launch.run(jobs, Settings(workers=2), said.append)
    assert failed is not None
    assert done is not None
    assert (failed.state, done.state) == ("failed", "done")
    assert [row.length for row in done.rows] == [16, 32]
    assert "no longer finite" in failed.message
    assert "no longer finite" in (jobs[0].run.path / "log.txt").read_text()
    run = jobs[1].run
    assert toys.sha(run.weights) == toys.sha(undisturbed(rope, tmp_path, monkeypatch).weights)
    assert run.record["decisions"]["threads"] == 1
    assert run.status()["peak_memory"] > 2**20
    assert "[2/2] rope" in said
    assert any(line.startswith("[2/2] step 8 of 8: ") for line in said)
    assert not any(set(line) & {"\x1b", "\r", "\b"} for line in said)


def test_a_result_whose_row_cannot_be_read_is_a_failure_of_that_job_alone(
    data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nread job\necho '{json.dumps(vars(Result('done')) | {'rows': ['gone.json']})}'\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    one = job(toys.config(data), (32,))
    (result,) = launch.run([one], Settings(workers=1), print)
    assert result is not None
    assert (result.state, result.message) == ("failed", "gone.json cannot be read: No such file or directory.")
    assert result.message in (one.run.path / "log.txt").read_text()


def test_a_path_that_is_no_text_can_be_said():
    """Of a file whose name holds bytes that are no UTF-8: as Python itself shows it."""
    script = "from posbench import job; job.carry_out = lambda text: job._say('no \\udcff') or 'result'; job.main()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=system.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"{}\n")
        process.stdin.flush()
        assert process.stdout.read() == b"result\n"
        assert process.stderr.read() == b"no \\udcff\n"


@pytest.mark.faults
def test_ctrl_c_leaves_a_checkpoint_and_the_same_jobs_go_on_to_the_same_bits(
    data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = toys.config(data, steps=150, dropout=0.1, checkpoint_seconds=3600)
    one = job(config)

    def say(text: str) -> None:
        if "step 15 of 150" in text:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        launch.run([one], Settings(workers=1), say)
    status = Run(one.run.path).status()
    assert status["state"] == "interrupted"
    assert 15 <= status["step"] < 150
    train.train(one.config)
    assert toys.sha(one.run.weights) == toys.sha(undisturbed(config, tmp_path, monkeypatch).weights)


@pytest.mark.faults
def test_a_process_whose_parent_is_killed_ends_with_a_checkpoint(data: dict):
    """Nobody reads what it says any more, and its stdin is at its end."""
    one = job(toys.config(data, steps=150, checkpoint_seconds=3600))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    there = os.environ | {"PYTHONPATH": str(Path(train.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-m", "posbench.job"], env=there, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(one.to_json() + "\n")
        process.stdin.flush()
        next(line for line in process.stderr if "step 15 of 150" in line)
        for pipe in (process.stderr, process.stdout, process.stdin):
            pipe.close()
    assert process.returncode == 128 + signal.SIGTERM
    assert Run(directory(one.config)).status()["state"] == "interrupted"
