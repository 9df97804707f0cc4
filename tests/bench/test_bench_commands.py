"""Each command of `posbench bench` in its smallest form, from the words to the table."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import toys

from posbench import cli
from posbench.bench import compare, trial, variants
from posbench.bench.peers import PEERS

SIZE = [
    "model.layers=1", "model.width=64", "model.heads=4", "model.hidden=176", "train.length=16", "train.batch_tokens=32",
    "train.tokens=256", "device=cpu",
]  # fmt: skip
QUICK = ["--rounds", "6", "--vocab", "64"]


class Done(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`bench("encodings", ...)`, whose trials are made in this process, without a limit."""
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("POSBENCH_CONFIGS", raising=False)
    monkeypatch.setattr(trial, "_limit", lambda extra, device: None)
    monkeypatch.setattr(variants, "run", lambda cell, memory, seconds: list(trial.here(cell, memory))[-1])
    monkeypatch.setattr(compare, "TURN_SECONDS", 0.0)

    def run(*words: str) -> Done:
        capsys.readouterr()
        return Done(cli.run(["bench", *words]), *capsys.readouterr())

    return run


def test_encodings_against_none(bench, tmp_path: Path):
    out = tmp_path / "results" / "tiny"
    done = bench("encodings", *SIZE, *QUICK, "--encodings", "alibi,learned", "--lengths", "16,32", "--out", str(out))
    assert done.status == 0, done.err
    for said in ("training at 16, 2 windows a step", "evaluation at 32, 1 window a call", "GEMM bound", "matmul peak"):
        assert said in done.out
    rows = [row for row in csv.DictReader(io.StringIO(out.with_suffix(".csv").read_text())) if row["task"]]
    assert [(row["task"], row["length"], row["name"], row["status"]) for row in rows] == [
        ("train", "16", "none", "ok"),
        ("train", "16", "alibi", "ok"),
        ("train", "16", "learned", "ok"),
        ("eval", "16", "none", "ok"),
        ("eval", "16", "alibi", "ok"),
        ("eval", "16", "learned", "ok"),
        ("eval", "32", "none", "ok"),
        ("eval", "32", "alibi", "ok"),
        ("eval", "32", "learned", "n/a"),
    ]
    for row in rows[:8]:
        assert (row["rounds"], row["threads"] != "", row["torch"] != "", row["device"]) == ("6", True, True, "cpu")
        assert row["command"].startswith("posbench bench encodings model.layers=1 ")
    assert float(rows[1]["ratio_low"]) <= float(rows[1]["ratio"]) <= float(rows[1]["ratio_high"])
    assert float(rows[0]["gemm_share"]) > 0
    assert rows[3]["gemm_share"] == ""
    assert "n/a: learned has positions for 16 inputs and no more" in out.with_suffix(".md").read_text()


def test_the_command_that_a_row_names_asks_for_the_same_again(bench):
    done = bench("encodings", *SIZE, *QUICK, "--encodings", "none", "--eval-tokens", "64", "--format", "json")
    [command] = {row["command"] for table in json.loads(done.out) for row in table["rows"]}
    assert command == (
        f"posbench bench encodings {' '.join(SIZE)} --encodings none --lengths 16 --rounds 6 --vocab 64 "
        "--eval-tokens 64"
    )


def test_peers_of_the_same_encoding(bench):
    pytest.importorskip("transformers")
    done = bench("peers", *SIZE, *QUICK, "--peers", "llama", "--encodings", "rope", "--no-compile", "--format", "json")
    assert done.status == 0, done.err
    compared, machine = json.loads(done.out)
    ours, llama = (row for row in compared["rows"] if row["task"] == "train")
    assert (ours["name"], ours["status"], ours["variant"]) == ("posbench", "ok", "eager")
    assert (llama["name"], llama["status"], llama["against"]) == ("llama", "ok", "posbench")
    assert llama["parameters"] == ours["parameters"]
    assert abs(llama["loss_difference"]) < 1e-4
    assert llama["ratio"] > 0
    assert llama["optim"] == "adamw"
    assert llama["transformers"]
    assert [row["unit"] for row in machine["rows"]] == ["GF/s", "tokens/s"]


def test_a_peer_that_is_not_there_is_a_row(bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # so that to import it raises
    words = ["--peers", "llama", "--encodings", "rope", "--no-compile", "--format", "json"]
    done = bench("peers", *SIZE, *QUICK, *words)
    assert done.status == 0, done.err
    rows = {row["name"]: row for row in json.loads(done.out)[0]["rows"] if row["task"] == "train"}
    assert rows["posbench"]["status"] == "ok"
    assert rows["llama"]["reason"] == "transformers is not installed (pip install 'posbench[peers]')"


def test_seconds_to_a_loss(bench, tmp_path: Path):
    data = toys.text(tmp_path / "text")
    text = ["data=files", "tokenizer=bytes", *(f"data.{split}={data[split]}" for split in ("train", "validation"))]
    words = ["--rates", "1e-3,1e-2", "--seeds", "1,2", "--shares", "0.5,1", "--validations", "4", "--format", "json"]
    done = bench("time-to-loss", *SIZE, *text, *words)
    assert done.status == 0, done.err
    rates, times = json.loads(done.out)
    assert [row["rate"] for row in rates["rows"]] == [1e-3, 1e-2]
    assert [(row["recipe"], row["share"]) for row in times["rows"]] == [("adamw", 1.0), ("muon", 0.5), ("muon", 1.0)]
    assert times["rows"][0]["seconds_1"] is not None
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["encodings", "--encodings", "alibu"], "There is no encoding 'alibu'. Did you mean 'alibi'?"),
        (["encodings", "encoding=alibi"], "encoding= has no place here."),
        (["encodings", "model=nana"], "There is no model 'nana'. Did you mean 'nano'?"),
        (["encodings", "--lengths", "12,x"], "'x' is not a positive whole number"),
        (["peers", "--peers", "lama"], "There is no peer 'lama'. Did you mean 'llama'?"),
        (["peers", "--peers", "llama", "--encodings", "alibi"], "None of these peers has an encoding of alibi."),
        (["peers", "optim=muon"], "Peers are timed with AdamW on both sides."),
        (["time-to-loss", "optim=adamw"], "AdamW is what the recipe is held against."),
        (["time-to-loss", "--rates", "fast"], "--rates fast is not a list of positive numbers."),
        (["time-to-loss", "--seeds", "1,1"], "--seeds 1,1 names one twice."),
        (["time-to-loss", "--seeds", "1,1.5"], "--seeds 1,1.5 is not a list of whole numbers"),
        (["time-to-loss", "--seeds", "inf"], "--seeds inf is not a list of whole numbers"),
        (["time-to-loss", "--seeds", "1e30"], "--seeds 1e30 is not a list of whole numbers"),
        (["time-to-loss", "--seeds", "9" * 20], "is not a list of whole numbers from 0 to 2^63 - 1."),
        (["time-to-loss", "--rates", "1e-3,nan"], "--rates 1e-3,nan is not a list of positive numbers."),
        (["time-to-loss", "--shares", "inf"], "--shares inf is not a list of positive numbers."),
        (["time-to-loss", "--shares", "nan"], "--shares nan is not a list of positive numbers."),
        (["encodings", "--memory", "inf"], "inf is not a number to measure with."),
        (["encodings", "--memory", "nan"], "Invalid value for '--memory': Input should be greater than or equal to"),
        (["peers", "--trial-seconds", "inf"], "inf is not a number to measure with."),
        (["peers", "--within", "nan"], "Invalid value for '--within': Input should be greater than or equal to"),
        (["encodings", "nproc=2"], "nproc= has no place here."),
        (["time-to-loss", "nproc=2"], "nproc= has no place here."),
    ],
)
def test_a_mistake_is_answered_in_a_sentence(bench, words: list[str], said: str):
    done = bench(*words)
    assert done.status == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_names_of_peers_can_be_given_in_a_list():
    assert not any("," in peer.name for peer in PEERS)
