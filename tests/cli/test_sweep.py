"""Sweeps: what is done is done once, whatever fails or is interrupted; the same command goes on."""

from __future__ import annotations

import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import toys
from conftest import Posbench

from posbench import cli, evaluate, launch, lock
from posbench.config import Config
from posbench.job import Job, Result
from posbench.launch import Settings
from posbench.run import Run

TINY = (
    "data=files tokenizer=bytes model.layers=1 model.width=16 model.heads=2 model.hidden=24 train.length=16 "
    "train.tokens=192 train.batch_tokens=32 train.checkpoint_seconds=0 train.threads=1 train.compile=off device=cpu"
)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Settings with which a run is six steps of a model of one layer."""
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    data = toys.text(tmp_path / "text")
    return f"{TINY} " + " ".join(f"data.{split}={data[split]}" for split in ("train", "validation", "test"))


def test_a_sweep_that_is_broken_off_goes_on_with_the_same_command(
    posbench: Posbench, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Ctrl-C in the second of two: the first is found done, the second goes on at its checkpoint. (To the same bits:
    test_launch.py.)"""
    line = f"sweep encoding=rope,alibi {words}"
    with monkeypatch.context() as patch:
        toys.interrupted_at(6 + 3, patch)
        done = posbench(line)
    assert done.status == 130
    assert done.err.endswith("Interrupted. The same command goes on from what is finished.\n")
    again = posbench(line)
    assert again.status == 0
    assert again.err.count("is trained already") == 1
    assert again.err.count("going on from step 2 of 6") == 1
    assert len(list((tmp_path / "runs").glob("*/model.safetensors"))) == 2


def test_two_sweeps_at_once_share_the_work(posbench: Posbench, words: str, tmp_path: Path, monkeypatch):
    """The other one is at the first of two runs: it is left, and looked at again behind the second. By then the other
    one has been killed, so it is done here."""
    line = f"sweep encoding=rope,alibi {words}"
    owners = iter(["pid 7 on elsewhere"])
    monkeypatch.setattr(launch.lock, "owner", lambda folder: next(owners, None))
    done = posbench(line)
    assert done.status == 0, done.err
    assert "is left for later: being worked on by another process, pid 7 on elsewhere" in done.err
    trained = [line.split(":")[0] for line in done.err.splitlines() if " trained at L = 16 on " in line]
    assert [name.split("-")[0] for name in trained] == ["alibi", "rope"]
    assert lock.NAME not in {file.name for file in (tmp_path / "runs").rglob("*")}


def test_a_sigterm_while_a_run_is_measured_sums_up_and_begins_no_other(
    posbench: Posbench, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Of three runs the first has failed and the third is not begun; nobody has to wait for the second one's lock."""
    study = tmp_path / "mine.yaml"
    study.write_text(
        f"common: {words.split()}\nruns: [encoding=rope, encoding=alibi, encoding=none]\nevals: {{a: {{}}}}\n"
    )
    measured: list[str] = []

    def stopped(run: Run, *_: object) -> list[Any]:
        measured.append(run.name.split("-")[0])
        if len(measured) == 1:
            raise RuntimeError("it broke")
        with run.lock():
            signal.raise_signal(signal.SIGTERM)
        return []

    monkeypatch.setattr(evaluate, "evaluate", stopped)
    monkeypatch.setattr(sys, "argv", ["posbench", "study", "run", str(study)])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as left:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 128 + signal.SIGTERM
    assert measured == ["rope", "alibi"]
    said = capsys.readouterr().err
    assert "1 of 3 jobs failed, 2 not begun:\n" in said
    assert said.endswith("Ended by SIGTERM. The same command goes on from what is finished.\n")
    assert lock.NAME not in {file.name for file in (tmp_path / "runs").rglob("*")}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What reaches `launch.run`; the jobs themselves take no time."""
    seen: dict[str, Any] = {}

    def run(jobs: list[Job], how: Settings, say: Any, **more: Any) -> list[Result]:
        seen.update(jobs=[*seen.get("jobs", []), *jobs], how=how)
        return [Result("done")] * len(jobs)

    monkeypatch.setattr(launch, "run", run)
    return seen


def test_sweep_is_train_with_several(posbench: Posbench, launched: dict[str, Any]):
    assert posbench("sweep encoding=rope seed=1,2 workers=3 on_error=retry=2").status == 0
    jobs, how = launched.pop("jobs"), launched["how"]
    assert how == Settings(3, "retry=2")
    assert [one.label for one in jobs][1] == "encoding=rope seed=2"
    assert jobs[1].command == "posbench train encoding=rope seed=2"
    assert posbench("train -m on_error=retry=2 workers=3 encoding=rope seed=1,2").status == 0
    assert [one.run.name for one in launched["jobs"]] == [one.run.name for one in jobs]
    assert launched["how"] == how


def test_another_launcher_gets_the_jobs_one_by_one(posbench: Posbench, launched: dict[str, Any]):
    """Hydra's own, here in this process; a cluster's calls the same task elsewhere."""
    done = posbench("sweep encoding=rope,alibi hydra/launcher=basic")
    assert done.status == 0, done.err
    assert [one.label for one in launched["jobs"]] == [
        "encoding=rope",
        "encoding=alibi",
    ]


def test_hydra_finds_our_launcher_also_in_the_wheel(posbench: Posbench):
    """It looks into the package `hydra_plugins` alone, which other plug-ins share: an __init__.py would hide theirs."""
    assert "LocalLauncher" in posbench("train --info plugins").out
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert "hydra_plugins" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert not (root / "hydra_plugins" / "__init__.py").exists()


def test_a_dry_run_of_a_sweep_plans_each_and_writes_nothing(posbench: Posbench, tmp_path: Path, monkeypatch):
    planned: list[str] = []

    def plan(config: Config) -> dict[str, Any]:
        planned.append(config.encoding["name"])
        return {
            "name": "x",
            "parameters": {},
            "steps": 1,
            "tokens": 1,
            "epochs": 1.0,
            "seconds": 1.0,
            "memory": 1,
            "decisions": [],
        }

    monkeypatch.setattr("posbench.plan.plan", plan)
    done = posbench("sweep encoding=rope,alibi --dry-run")
    assert (done.status, done.err.splitlines()[-1]) == (0, "2 jobs: 2 estimated")
    assert planned == ["rope", "alibi"]
    assert not (tmp_path / "runs").exists()
