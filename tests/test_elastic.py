"""nproc=N: one command whose processes end together, however one of them ends."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import toys

from posbench import train
from posbench.run import all_runs

HERE = Path(__file__).parent


def begun(words: str, step: int) -> tuple[subprocess.Popen[str], list[str]]:
    """A command line in a process of its own, read until it says that it has reached `step`."""
    there = os.environ | {"PYTHONPATH": str(HERE.parent)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-m", "posbench", *words.split()], env=there, text=True, **pipes)
    said = []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if line.startswith(f"step {step} of"):
            break
    return process, said


@pytest.fixture
def words(folders, tmp_path: Path) -> str:
    """A training that is long enough to be ended, and says so at its first validation, after step 10."""
    toys.text(tmp_path / "text")
    texts = " ".join(f"data.{split}={tmp_path}/text/{split}.txt" for split in ("train", "validation"))
    return (
        f"train encoding=rope data=files {texts} tokenizer=bytes model.layers=1 model.width=16 model.heads=2 "
        "model.hidden=24 train.length=16 train.batch_tokens=48 train.tokens=19200 train.validate_tokens=480 "
        "train.checkpoint_seconds=0 device=cpu nproc=2"
    )


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_command_stops_its_processes_with_a_checkpoint(words: str, number: int, status: int):
    process, said = begun(words, 10)
    process.send_signal(number)
    _, rest = process.communicate()
    assert process.returncode == status, rest
    (run,) = all_runs()
    assert run.status()["state"] == "interrupted"
    assert run.status()["step"] >= 10
    assert not any("Traceback" in line or "torch" in line for line in [*said, rest])


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_the_others_and_the_same_command_goes_on(words: str, rank: int):
    """The first holds the lock and writes; the second does neither. Exit status 1 and one sentence, no traceback."""
    process, _ = begun(words, 10)
    os.kill(child(process.pid, rank), signal.SIGKILL)
    _, rest = process.communicate()
    assert process.returncode == 1, rest
    sentence = f"Process {rank} of 2 was ended by SIGKILL, most likely for want of memory."
    assert f"error: {sentence}" in rest
    assert "Traceback" not in rest
    (run,) = all_runs()
    assert run.status()["state"] == "failed"
    assert sentence in (run.path / "log.txt").read_text()
    step = run.status()["step"]
    assert train.train(replace(run.config, nproc=1)).done
    assert f"going on from step {step} of 400" in (run.path / "log.txt").read_text()


@pytest.mark.faults
@pytest.mark.process
def test_a_reader_of_what_is_said_that_goes_away_ends_no_training(words: str):
    """The leader has the command's own stderr."""
    process, _ = begun(words, 10)
    process.stderr.close()
    assert process.wait() == 0
    (run,) = all_runs()
    assert run.done


@pytest.mark.faults
@pytest.mark.process
def test_a_run_that_is_removed_while_processes_train_it_does_not_come_back(words: str):
    process, _ = begun(words.replace("train ", "sweep ", 1), 10)
    (run,) = all_runs()
    shutil.rmtree(run.path)
    _, rest = process.communicate()
    assert process.returncode == 1
    assert "was removed while this process worked on it" in rest
    assert not run.path.exists()


def child(pid: int, rank: int) -> int:
    """The process of that rank which `pid` has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            own = (folder / "environ").read_bytes().split(b"\0")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid and f"RANK={rank}".encode() in own:
                return int(folder.name)
    raise AssertionError(f"{pid} has no process {rank}")


@pytest.mark.faults
@pytest.mark.process
def test_processes_whose_parent_is_killed_end_with_a_checkpoint(words: str):
    process, _ = begun(words, 10)
    ends = [os.pidfd_open(child(process.pid, rank)) for rank in (0, 1)]
    process.kill()
    for end in ends:
        assert select.select([end], [], [], 60)[0]
        os.close(end)
    process.communicate()
    (run,) = all_runs()
    assert run.status()["state"] == "interrupted"
    assert run.status()["step"] >= 10
