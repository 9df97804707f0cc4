"""On a real Slurm of two nodes (scripts/slurm-up.sh): what fails, is cancelled, preempted or out of time, and goes on.

    pytest -m slurm tests/cluster

It needs root and Debian's packages of Slurm, which are installed where they are missing.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import STEPS, TINY, Commands, output, until

ROOT = Path(__file__).parents[2]
ON_SLURM = "hydra/launcher=slurm hydra.launcher.cpus_per_task=1 hydra.launcher.timeout_min=10"

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def slurm() -> Iterator[str]:
    """SLURM_CONF of a Slurm that lives as long as these tests."""
    # Not below pytest's own folder, which the database's user may not enter.
    folder = Path(tempfile.mkdtemp(prefix="posbench-slurm-"))
    try:
        # Its output goes to files: a daemon may hold them open.
        with (folder / "up.log").open("w") as log:
            up = subprocess.run(
                ["bash", str(ROOT / "scripts" / "slurm-up.sh"), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=400,
                check=False,
            )
        assert up.returncode == 0, (folder / "up.log").read_text()
        yield str(folder / "slurm.conf")
    finally:
        subprocess.run(["bash", str(ROOT / "scripts" / "slurm-down.sh"), str(folder)], timeout=200, check=True)
        shutil.rmtree(folder)


@pytest.fixture
def commands(tmp_path: Path, slurm: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.setenv("SLURM_CONF", slurm)
    found = Commands.within(tmp_path)
    yield found
    found.kill()
    subprocess.run(["scancel", "--me"], check=False)
    until(lambda: not queue())


def queue() -> dict[str, str]:
    """The states of what Slurm has, by job."""
    return dict(line.split() for line in output("squeue", "--me", "-h", "-r", "-o", "%i %T").splitlines())


def steps(commands: Commands, name: str) -> int:
    """How many steps of a run have been done, in checkpoints or not."""
    run = commands.runs().get(name)
    return len(run.metrics()) if run is not None else 0


def test_a_sweep_with_one_that_fails_one_that_is_cancelled_and_one_that_is_preempted(commands: Commands):
    """Of four jobs: the failing ones and the cancelled one are named with why, in the summary and in their logs; the
    preempted one comes back by itself. The same command again finishes the cancelled one. Both to the bits of
    undisturbed runs, and from checkpoints that only the signals can have made them write."""
    line = f"sweep encoding=slow,broken seed=1,2 train.checkpoint_seconds=1000 {ON_SLURM}"
    sweep = commands.start(line)
    until(lambda: steps(commands, "slow-1") > 5 and steps(commands, "slow-2") > 5)
    places = dict(zip(("slow-1", "slow-2"), sorted(queue()), strict=False))
    node = output("squeue", "-h", "-j", places["slow-1"], "-o", "%N").strip()
    output("scancel", places["slow-2"])
    until(lambda: len(queue()) == 1)
    # Another's job, of a partition that goes before, takes the whole node.
    output("sbatch", "-p", "high", "-w", node, "-c", "2", "-o", "/dev/null", "--wrap", "sleep 3")
    status, said = commands.end(sweep)

    assert status == 1, said
    assert "3 of 4 jobs failed:" in said
    summary = said[said.index("3 of 4 jobs failed:") :]
    assert re.search(rf"encoding=slow seed=2 .*: Slurm job {places['slow-2']} ended \(CANCELLED", summary)
    assert summary.count("RuntimeError: this encoding never works") == 2
    runs = commands.runs()
    assert "ended (CANCELLED" in (runs["slow-2"].path / "log.txt").read_text()
    assert "RuntimeError: this encoding never works" in (runs["broken-1"].path / "log.txt").read_text()
    assert runs["slow-1"].status()["state"] == "done"
    assert "PREEMPTED" in output("sacct", "-D", "-n", "-X", "-j", places["slow-1"], "-o", "State")
    assert "going on from step" in (runs["slow-1"].path / "log.txt").read_text()
    log = commands.folder / "runs" / ".slurm" / places["slow-1"] / f"{places['slow-1']}_0_log.err"
    assert str(log) in said
    assert "done in" in log.read_text()
    assert runs["slow-2"].status()["step"] > 5

    status, said = commands.run(line.replace("slow,broken", "slow"))
    assert status == 0, said
    assert "is trained already" in said
    assert "going on from step" in (runs["slow-2"].path / "log.txt").read_text()
    assert commands.run("sweep encoding=slow seed=1,2", quick=True)[0] == 0
    assert commands.same_weights("slow-1", "slow-2")


def test_one_whose_time_is_up_goes_back_into_the_queue_and_on_to_the_same_bits(commands: Commands):
    """Slurm's signal comes 50 s before two minutes are over, and up to 60 s earlier, in a training of 90 s or more: the
    checkpoint is written, however long ago the last regular one was, and the requeued job goes on at it."""
    line = "sweep encoding=slow seed=7 train.checkpoint_seconds=1000"
    on = ON_SLURM.replace("timeout_min=10", "timeout_min=2") + " hydra.launcher.signal_delay_s=50"
    tiny = TINY.replace(f"train.tokens={32 * STEPS}", f"train.tokens={32 * 600}")
    status, said = commands.run(f"{line} {on}", tiny=tiny)
    assert status == 0, said
    (log,) = (commands.folder / "runs" / ".slurm").glob("*/*_log.err")
    assert "this job is timed-out" in log.read_text()
    assert "Requeue" in log.read_text() or "REQUEUE" in log.read_text()
    assert "going on from step" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert commands.run(line, tiny=tiny, quick=True)[0] == 0
    assert commands.same_weights("slow-7")


def test_ctrl_c_empties_the_queue_after_checkpoints(commands: Commands):
    sweep = commands.start(f"sweep encoding=slow seed=1,2,3,4,5,6 train.checkpoint_seconds=1000 {ON_SLURM}")
    until(lambda: steps(commands, "slow-1") > 5)
    sweep.send_signal(signal.SIGINT)
    status, said = commands.end(sweep)
    assert status == 130, said
    assert queue() == {}
    states = [run.status()["state"] for run in commands.runs().values()]
    assert "interrupted" in states
    assert "done" not in states
    assert len(states) <= 4  # as many as there are processors


def test_a_study_is_trained_and_measured_there(commands: Commands):
    (commands.folder / "two.yaml").write_text(
        "title: two\nruns: [[encoding=alibi], [encoding=none]]\n"
        "evals: {flat: {protocol: nonoverlapping, lengths: [16, 32], targets: 64}}\nreferences: [unigram]\n"
    )
    status, said = commands.run(f"study run two.yaml {ON_SLURM}")
    assert status == 0, said
    assert said.count("Slurm job") == 2
    assert [len(list(run.rows_dir.glob("*.json"))) for run in commands.runs().values()] == [2, 2]
    status, said = commands.run(f"study run two.yaml {ON_SLURM}")
    assert status == 0, said
    assert "Slurm job" not in said


def test_one_run_on_two_nodes(commands: Commands):
    """Two tasks with half of each batch: the same losses as of one process, up to rounding."""
    line = "sweep encoding=slow seed=1"
    status, said = commands.run(f"{line} {ON_SLURM} hydra.launcher.nodes=2")
    assert status == 0, said
    assert commands.run(line, quick=True)[0] == 0
    together, alone = (commands.runs(folder)["slow-1"].metrics() for folder in ("runs", "undisturbed"))
    losses = [(a["loss"], b["loss"]) for a, b in zip(together, alone, strict=True) if "loss" in a]
    assert len(losses) == STEPS
    assert max(abs(a - b) for a, b in losses[:50]) < 1e-4


def test_what_slurm_does_not_take_is_said_in_its_words(commands: Commands):
    status, said = commands.run(f"sweep encoding=slow seed=1 {ON_SLURM} hydra.launcher.partition=nowhere")
    assert status == 2
    assert "Slurm does not take the jobs: sbatch: error: " in said
    assert "nowhere" in said or "partition" in said
    assert "Traceback" not in said
