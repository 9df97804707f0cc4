"""The remaining commands: encodings, data, doctor, reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Posbench
from made import arrays, row

from posbench import study
from posbench.cli.study import STUDY
from posbench.job import Result
from posbench.launch import Settings
from posbench.study import Outcome, Plan


def rows(text: str, table: int = 0) -> list[dict[str, Any]]:
    return json.loads(text)[table]["rows"]


def test_the_catalogue_counts_learned_parameters_at_the_size_asked_for(posbench: Posbench):
    """A learned table of 1024 x 768 has 786,432, GPT-2 small's; T5's bias has 32 buckets x 12 heads."""
    done = posbench("encodings --model base --length 1024 --format json")
    found = {entry["encoding"]: entry for entry in rows(done.out)}
    assert found["learned"]["parameters"] == 786_432
    assert found["learned"]["max_length"] == 1024
    assert found["t5"]["parameters"] == 384
    assert found["rope"]["parameters"] == 0
    assert found["alibi"]["paper"] == "https://arxiv.org/abs/2108.12409"


def test_an_encoding_has_a_page(posbench: Posbench):
    done = posbench("encodings rope")
    assert done.status == 0
    assert "Differences from the paper" in done.out
    assert "encoding.base" in done.out
    page = json.loads(posbench("encodings rope --format json").out)[0]
    assert {entry["what"]: entry["value"] for entry in page["rows"]}["encoding.layout"] == "half"
    assert "Differences from the paper" in page["notes"][0]


def test_the_page_of_an_encoding_says_what_a_length_leaves_untrained(posbench: Posbench):
    assert "buckets 27-31 are never trained" in posbench("encodings t5 --length 64").out.replace("\n", " ")
    for other in ("t5 --length 128", "rope --length 64"):
        assert "never trained, since" not in posbench(f"encodings {other}").out.replace("\n", " ")


def test_the_catalogue_is_one_page_with_an_encoding_of_ones_own_and_what_is_not_there(
    posbench: Posbench, tmp_path: Path
):
    folder = tmp_path / "my" / "encoding"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(
        'from posbench.encodings.rope import Rope\n\n\nclass Mine(Rope):\n    """As *RoPE*."""\n'
    )
    (folder / "mine.yaml").write_text("class: mine.py:Mine\nbase: 500\n")
    page = posbench(f"encodings --page --config-dir {tmp_path / 'my'}").out
    assert "| [mine](#mine) | queries and keys | 0 | - | abf, dynamic_ntk," in page  # what RoPE reports is not its own
    assert "`encoding.base=500`" in page
    assert "As \\*RoPE\\*." in page
    assert "2507.23083" in page
    assert "Not there: CARoPE" in posbench("encodings").out
    for words in ("encodings rope --page", "encodings --page --format csv"):
        done = posbench(words)
        assert (done.status, done.out) == (2, "")
        assert "--page is Markdown, and of all encodings." in done.err


def test_corpora_are_listed_and_one_is_prepared_ahead(
    posbench: Posbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    folder = tmp_path / "my" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 40)
    shipped = (Path(study.__file__).parent.parent / "configs" / "data" / "files.yaml").read_text()
    (folder / "cat.yaml").write_text(shipped.replace("path: null", f"path: {tmp_path / 'text.txt'}"))
    listed = rows(posbench(f"data --format json --config-dir {tmp_path / 'my'}").out)
    found = {entry["name"]: entry for entry in listed}
    assert {"sotu", "books", "files", "cat"} <= set(found)
    assert (found["sotu"]["documents"], found["sotu"]["prepared"]) == (237, "no")
    done = posbench(f"data prepare cat tokenizer=bytes --config-dir {tmp_path / 'my'}")
    assert done.status == 0, done.err
    assert f"cat is ready in {tmp_path / 'data'}" in done.err
    listed = rows(posbench(f"data --format json --config-dir {tmp_path / 'my'}").out)
    cat = next(entry for entry in listed if entry["name"] == "cat")
    assert (cat["prepared"], cat["bytes"]) == ("bytes", 960)
    assert cat["tokens"] == 963  # an end token for each of the three parts of the text
    out = posbench(f"data prepare cat tokenizer=bytes --out {tmp_path / 'usb'} --config-dir {tmp_path / 'my'}")
    assert f"cat is ready in {tmp_path / 'usb'}" in out.err


def test_the_doctor_tells_what_there_is(posbench: Posbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    facts = {entry["what"]: entry["value"] for entry in rows(posbench("doctor --format json").out)}
    assert facts["runs"] == str(tmp_path / "runs")
    assert facts["float32 matmul"].endswith("GF/s")
    assert {"torch", "device", "compiler", "threads"} <= set(facts)


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `reproduce` asked the study for; the study itself takes no time."""
    asked: dict[str, Any] = {"results": []}

    def run(plan: Plan, say: Any, on_row: Any, how: Settings) -> Outcome:
        asked.update(plan=plan, budget=plan.budget, how=how)
        say("[1/7] none")
        one = row(arrays([256.0]))
        on_row(one)
        return Outcome(plan, [one], asked["results"], seconds=700.0, matmul_rate=212.4)

    monkeypatch.setattr(study, "run", run)
    return asked


@pytest.mark.parametrize(("flag", "budget"), [("", "default"), ("--full", "full"), ("--smoke", "smoke")])
def test_the_study_runs_on_the_budget_asked_for(posbench: Posbench, outcome: dict[str, Any], flag: str, budget: str):
    done = posbench(f"reproduce {flag}")
    assert done.status == 0, done.err
    assert outcome["budget"] == budget
    assert "rope-L512-nano-s1-0a1b2c3d nonoverlapping at 512: perplexity 7.389" in done.err
    assert "Took 11 min 40 s at 212 GF/s of float32 matmul." in done.err
    assert "Perplexity" in done.out


def test_a_study_in_which_a_run_failed_prints_its_tables_and_ends_with_1(posbench: Posbench, outcome: dict[str, Any]):
    failed = Result("failed", "out of memory", ["Ask for smaller parts."])
    outcome["results"] = [("none", Result("done")), ("t5-L128-nano-s1-12345678", failed), ("bigram", None)]
    done = posbench("reproduce")
    assert done.status == 1
    assert "Perplexity" in done.out
    assert done.err.endswith(
        "1 of 3 jobs failed, 1 not begun:\n  t5-L128-nano-s1-12345678: out of memory\n    Ask for smaller parts.\n"
    )


def test_words_of_the_whole_and_of_every_run_reach_the_study(posbench: Posbench, outcome: dict[str, Any]):
    posbench("reproduce --smoke")
    assert outcome["how"] == Settings()
    posbench("reproduce --smoke workers=2 on_error=retry=3 seed=7")
    assert outcome["how"] == Settings(2, "retry=3")
    assert {job.config.seed for job in outcome["plan"].jobs} == {7}


def test_a_study_of_ones_own_runs_under_a_budget_and_with_a_folder_of_ones_own(
    posbench: Posbench, outcome: dict[str, Any], tmp_path: Path
):
    (tmp_path / "my" / "study").mkdir(parents=True)
    text = "runs: [[encoding=rope], [encoding=alibi]]\nbudgets: {default: {}, half: {common: [train.tokens=8192]}}\n"
    (tmp_path / "my" / "study" / "mine.yaml").write_text(text)
    done = posbench(f"study run mine --budget half --config-dir {tmp_path / 'my'}")
    assert done.status == 0, done.err
    plan = outcome["plan"]
    assert (plan.study.name, plan.budget) == ("mine", "half")
    assert plan.jobs[1].command == f"posbench train train.tokens=8192 encoding=alibi --config-dir {tmp_path / 'my'}"
    assert posbench(f"study run {tmp_path / 'my' / 'study' / 'mine.yaml'}").status == 0
    assert outcome["plan"].budget == "default"


def test_the_study_that_is_reproduced_is_shipped():
    assert study.load(STUDY).budgets.keys() == {"default", "full", "smoke"}
