"""`posbench train`: one job or a sweep, each as Hydra composes it, none of them disturbed by another."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Posbench

from posbench import job, train
from posbench.compose import combinations
from posbench.config import Config
from posbench.errors import UserError
from posbench.run import Run


@dataclass
class FakeRun:
    """What the command says of a run that was trained."""

    config: Config
    name: str = "rope-L512-nano-s1-12345678"
    path: Path = field(default_factory=lambda: Path.cwd() / "runs" / "rope-L512-nano-s1-12345678")

    def status(self) -> dict[str, Any]:
        return {"state": "done", "step": 0, "tokens": 1_499_136, "epochs": 0.625, "valid": 3.75}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, str]]:
    """The jobs that training was asked for; learned fails as a user's mistake does, shaw as a fault of ours."""
    jobs: list[tuple[Config, str]] = []

    def fake(config: Config, command: str, say: Any) -> FakeRun:
        jobs.append((config, command))
        if config.encoding["name"] == "learned":
            raise UserError("the loss is no longer finite", "Try a lower optim.lr.")
        if config.encoding["name"] == "shaw":
            raise RuntimeError("ours")
        return FakeRun(config)

    monkeypatch.setattr(train, "train", fake)
    monkeypatch.setattr(job, "train", fake)
    monkeypatch.setattr(Run, "status", FakeRun.status)
    return jobs


def test_a_run_of_a_sweep_that_is_not_seen_here_yet_is_said_to_be_trained(
    posbench: Posbench, trained: list[tuple[Config, str]], monkeypatch: pytest.MonkeyPatch
):
    """As after another machine has trained it, before its files come over the network: not yet, or not all of them."""
    monkeypatch.setattr(Run, "status", lambda run: {"state": "new", "step": 0})
    done = posbench("train -m encoding=rope")
    assert done.status == 0
    assert "is trained, and its folder is not seen here yet: " in done.err

    def half(run: Run) -> dict[str, Any]:
        raise UserError("it is marked done, but its weights are missing.")

    monkeypatch.setattr(Run, "status", half)
    assert posbench("train -m encoding=rope seed=2").status == 0


def test_a_run_says_what_it_was_where_it_is_and_what_to_type_next(
    posbench: Posbench, trained: list[tuple[Config, str]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("POSBENCH_RUNS")
    done = posbench("train encoding=rope")
    assert done.status == 0
    assert "rope trained at L = 512 on sotu, 1,499,136 tokens, 0.62 epochs, validation 3.7500 nats a token" in done.err
    assert f"It is in {Path.cwd() / 'runs'}" in done.err
    assert done.out == "posbench eval rope-L512-nano-s1-12345678 --lengths 512,1024,2048,4096\n"
    assert trained[0][1] == "posbench train encoding=rope"


def test_overrides_of_every_form_reach_the_job(posbench: Posbench, trained: list[tuple[Config, str]]):
    done = posbench("train model=micro train.length=128 ++seed=3 encoding.base=5e5 '~encoding.embed_scale'")
    assert done.status == 0, done.err
    config = trained[0][0]
    assert (config.model.layers, config.train.length, config.seed) == (6, 128, 3)
    assert config.encoding["base"] == 5e5
    assert "embed_scale" not in config.encoding


def test_a_trailing_carriage_return_is_no_part_of_a_value(posbench: Posbench, trained: list[tuple[Config, str]]):
    assert posbench("train", "encoding=alibi\r", "seed=2\r\n").status == 0
    assert (trained[0][0].encoding["name"], trained[0][0].seed) == ("alibi", 2)


def test_hydra_leaves_nothing_behind(posbench: Posbench, trained: list[tuple[Config, str]]):
    before = (list(sys.argv), dict(os.environ))
    assert posbench("train encoding=rope").status == 0
    assert posbench("train -m encoding=rope,alibi").status == 0
    assert not list(Path.cwd().iterdir())
    assert (sys.argv, dict(os.environ)) == before


# Sweeps ---------------------------------------------------------------------------------------------------------------


def test_a_sweep_is_one_job_for_each_combination(posbench: Posbench, trained: list[tuple[Config, str]]):
    done = posbench("train -m encoding=rope,alibi seed=1,2 train.length=128")
    assert done.status == 0, done.err
    assert [(config.encoding["name"], config.seed) for config, _ in trained] == [
        ("rope", 1),
        ("rope", 2),
        ("alibi", 1),
        ("alibi", 2),
    ]
    assert [command for _, command in trained][1] == "posbench train encoding=rope seed=2 train.length=128"
    assert "[3/4] encoding=alibi seed=1 train.length=128" in done.err


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (["a=1,2", "b=3"], [["a=1", "b=3"], ["a=2", "b=3"]]),
        (["a=range(1,4)"], [["a=1"], ["a=2"], ["a=3"]]),
        (["a=choice(x,y)", "+b=1,2"], [["a=x", "+b=1"], ["a=x", "+b=2"], ["a=y", "+b=1"], ["a=y", "+b=2"]]),
        (["a=[1,2]", "~c"], [["a=[1,2]", "~c"]]),
        (["model=glob(*)"], [["model=base"], ["model=micro"], ["model=nano"], ["model=press"], ["model=small"]]),
    ],
)
def test_combinations_are_those_of_hydras_grammar(words: list[str], jobs: list[list[str]]):
    assert combinations(words) == jobs


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=range(1,1000001)"], "makes 1,000,000 jobs, and at most 10,000 can be made"),
        (["seed=range(0,200)", "train.length=range(0,200)"], "makes 40,000 jobs"),
        (["seed=range(0.0,1e9,1e-3)"], "makes 1,000,000,000,000 jobs"),
        (["seed=range(0,0)", "encoding=rope,alibi"], "makes no job"),
        (["seed=range(3,1)", "train.tokens=range(1,10000000000)"], "makes no job"),
        (["model=glob(*)", "seed=range(0,5000)"], "makes 25,000 jobs"),
        (["seed=range(0.0,1e308,1e-300)"], "has no end"),
        (["seed=range(0.0,inf)"], r"seed=range\(0.0,inf\) has no end"),
        (["seed=range(1,5,0)"], r"seed=range\(1,5,0\) has no end"),
    ],
)
def test_jobs_are_counted_before_any_of_them_is_made(words: list[str], message: str):
    with pytest.raises(UserError, match=message):
        combinations(words)


def test_a_failing_job_does_not_stop_the_others_and_is_named_twice(
    posbench: Posbench, trained: list[tuple[Config, str]]
):
    done = posbench("train -m encoding=rope,learned,shaw,alibi")
    assert done.status == 1
    assert [config.encoding["name"] for config, _ in trained] == ["rope", "learned", "shaw", "alibi"]
    at_once, _, summary = done.err.partition("2 of 4 jobs failed:\n")
    assert "error: encoding=learned: the loss is no longer finite\n  Try a lower optim.lr.\n  Its log: " in at_once
    assert at_once.index("error: encoding=learned") < at_once.index("[3/4]")
    assert "  RuntimeError: ours\n" in at_once
    lines = summary.splitlines()
    assert lines[:2] == ["  encoding=learned: the loss is no longer finite", "    Try a lower optim.lr."]
    assert {"  encoding=shaw: ours", "    RuntimeError: ours"} <= set(lines)
    logs = [Path(line.partition("Its log: ")[2]) for line in lines if "Its log: " in line]
    assert "the loss is no longer finite" in logs[0].read_text()
    assert "RuntimeError: ours" in logs[1].read_text()


def test_a_sweep_can_be_told_to_begin_no_job_after_one_that_failed(
    posbench: Posbench, trained: list[tuple[Config, str]]
):
    """RUN-1: the other policy. What was not begun is counted."""
    done = posbench("train -m on_error=stop encoding=rope,learned,shaw,alibi")
    assert done.status == 1
    assert [config.encoding["name"] for config, _ in trained] == ["rope", "learned"]
    assert "1 of 4 jobs failed, 2 not begun:\n  encoding=learned: the loss is no longer finite\n" in done.err
    assert done.err.endswith("\n4 jobs: 1 done, 1 failed, 2 not begun\n")


def test_a_disk_that_is_full_is_one_line_in_a_sweep_too(posbench: Posbench, monkeypatch: pytest.MonkeyPatch):
    def full(*words: object) -> None:
        raise OSError(28, "No space left on device", "/runs/rope/checkpoint.safetensors")

    monkeypatch.setattr(job, "train", full)
    done = posbench("train -m encoding=rope,alibi")
    assert done.status == 1
    assert (
        done.err.splitlines()[1] == "error: encoding=rope: No space left on device: /runs/rope/checkpoint.safetensors"
    )
    assert "Traceback" not in done.err


def test_every_job_is_composed_and_checked_before_the_first_starts(
    posbench: Posbench, trained: list[tuple[Config, str]]
):
    assert posbench("train -m train.length=128,100").status == 2
    assert posbench("train -m encoding=none,rope model.heads=8,128").status == 2
    assert not trained


def test_a_single_failing_job_is_a_users_error_as_it_stands(posbench: Posbench, trained: list[tuple[Config, str]]):
    done = posbench("train encoding=learned")
    assert done.status == 2
    assert done.err == "error: the loss is no longer finite\nTry a lower optim.lr.\n"


# What Hydra tells of itself -------------------------------------------------------------------------------------------


def test_the_composed_config_is_printed_on_stdout(posbench: Posbench, trained: list[tuple[Config, str]]):
    done = posbench("train encoding=alibi seed=7 --cfg job")
    assert (done.status, done.err) == (0, "")
    config = yaml.safe_load(done.out)
    assert (config["encoding"]["class"], config["seed"]) == ("posbench.encodings.alibi.Alibi", 7)
    part = posbench("train --cfg job --package train --resolve").out
    assert yaml.safe_load(part.removeprefix("# @package train\n"))["length"] == 512
    nothing = posbench("train --cfg job --package trian")
    assert (nothing.status, nothing.err) == (2, "package 'trian' not found in config\n")  # Hydra's own sentence
    assert "encoding/rope" in posbench("train --info defaults").out
    assert not trained


def test_a_folder_of_ones_own_gives_choices(posbench: Posbench, trained: list[tuple[Config, str]], tmp_path: Path):
    folder = tmp_path / "my"
    (folder / "encoding").mkdir(parents=True)
    (folder / "encoding" / "mine.yaml").write_text("class: mine.py:Mine\n")
    (folder / "encoding" / "mine.py").write_text(
        "from posbench.encodings.base import Encoding\n\n\nclass Mine(Encoding):\n"
        "    def __init__(self, shape, slope: float = 1.0):\n        super().__init__(shape)\n"
    )
    assert posbench(f"train encoding=mine +encoding.slope=2 --config-dir {folder}").status == 0
    assert trained[0][0].encoding == {"class": f"{folder}/encoding/mine.py:Mine", "slope": 2, "name": "mine"}
    assert trained[0][1] == f"posbench train encoding=mine +encoding.slope=2 --config-dir {folder}"
    assert posbench(f"train -m encoding=mine,rope --config-dir {folder}").status == 0
    assert len(trained) == 3
    assert "mine" in posbench(f"encodings --config-dir {folder}").out
    assert "POSBENCH_CONFIGS" not in os.environ
    assert "mine" not in posbench("encodings").out


def test_a_dry_run_trains_nothing(posbench: Posbench, trained: list[tuple[Config, str]], monkeypatch):
    plan = {
        "name": "rope-L512-nano-s1-12345678",
        "parameters": {"blocks": 791_680, "total": 1_053_824},
        "steps": 366,
        "tokens": 1_499_136,
        "epochs": 0.525,
        "seconds": 154.0,
        "memory": 84_477_992,
        "decisions": ["device cpu", "threads 2 (the machine's cores)"],
    }
    monkeypatch.setattr("posbench.plan.plan", lambda config: plan)
    done = posbench("train --dry-run")
    assert done.status == 0
    for words in (
        "791,680 blocks, 1,053,824 total",
        "2 min 34 s",
        "81 MiB",
        "1,499,136",
        "0.53",
        "device cpu; threads 2",
    ):
        assert words in done.out
    rows = json.loads(posbench("train --dry-run --format json").out)[0]["rows"]
    assert {row["what"]: row["value"] for row in rows} == plan
    assert not trained
