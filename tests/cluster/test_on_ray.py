"""On a real Ray of this machine alone.

pip install -e '.[ray]'
pytest -m ray tests/cluster
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Commands, until

pytestmark = pytest.mark.ray

ON_RAY = "hydra/launcher=ray hydra.launcher.init.num_cpus=2"


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    # Ray keeps a token in the home folder.
    found = Commands.within(tmp_path, HOME=str(tmp_path))
    yield found
    found.kill()


def test_a_sweep_with_one_that_fails_ends_in_the_bits_of_undisturbed_runs(commands: Commands):
    status, said = commands.run(f"sweep encoding=slow,broken seed=1 {ON_RAY}")
    assert status == 1, said
    assert "1 of 2 jobs failed:" in said
    assert "RuntimeError: this encoding never works" in said
    assert not set(said) & {"\x1b", "\r", "\b"}
    runs = commands.runs()
    assert "RuntimeError: this encoding never works" in (runs["broken-1"].path / "log.txt").read_text()
    assert runs["slow-1"].record["decisions"]["threads"] == 1
    assert commands.run("sweep encoding=slow seed=1", quick=True)[0] == 0
    assert commands.same_weights("slow-1")


def test_ctrl_c_waits_for_checkpoints_and_the_same_command_goes_on(commands: Commands):
    line = f"sweep encoding=slow seed=1,2 train.checkpoint_seconds=1000 {ON_RAY}"
    sweep = commands.start(line)
    until(lambda: (run := commands.runs().get("slow-1")) is not None and len(run.metrics()) > 5)
    sweep.send_signal(signal.SIGINT)
    status, said = commands.end(sweep)
    assert status == 130, said
    assert commands.runs()["slow-1"].status()["step"] > 5
    status, said = commands.run(line)
    assert status == 0, said
    assert commands.run("sweep encoding=slow seed=1,2", quick=True)[0] == 0
    assert commands.same_weights("slow-1", "slow-2")


def test_a_ray_that_is_there_already_trains_where_the_command_was_given(commands: Commands, tmp_path: Path):
    """It was brought up in another folder and under other settings; the texts are named from the command's folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (elsewhere := tmp_path / "elsewhere").mkdir()
    words = ["start", "--head", "--block", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    with (elsewhere / "said").open("w") as said:
        ray = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *words],
            cwd=elsewhere,
            env={**commands.environment, "POSBENCH_RUNS": str(elsewhere), "POSBENCH_DATA": str(elsewhere)},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        until(lambda: "Ray runtime started" in (elsewhere / "said").read_text())
        on = f"hydra/launcher=ray hydra.launcher.init.address=127.0.0.1:{port}"
        status, told = commands.run(f"sweep encoding=slow seed=1 {on}")
        assert status == 0, told
        assert commands.runs()["slow-1"].status()["state"] == "done"
        assert not list(elsewhere.glob("slow-*"))
    finally:
        ray.terminate()
        ray.wait()
