"""`posbench eval` and what reads its rows, on runs of a small text."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import made
import pytest
from conftest import Posbench

from posbench import baselines, evaluate
from posbench.errors import UserError
from posbench.run import Run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """A finished rope run and a finished learned one, trained at 32, made once."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSBENCH_RUNS", str(folder / "runs"))
        patch.setenv("POSBENCH_DATA", str(folder / "data"))
        text = made.text(folder / "text")
        yield folder, [made.finished_run(text, name, 32) for name in ("rope", "learned")]


@pytest.fixture
def runs(finished: tuple[Path, list[Run]], posbench: Posbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those two, without rows, in a folder of this test."""
    folder, made = finished
    monkeypatch.setenv("POSBENCH_DATA", str(folder / "data"))
    for one in made:
        path = tmp_path / "runs" / one.name
        shutil.copytree(one.path, path)
        status = json.loads((path / "status.json").read_text())
        (path / "status.json").write_text(json.dumps(status | {"tokens": 128, "seconds": 0.5, "valid": 5.0}))
    return [one.name for one in made]


def values(text: str) -> dict[tuple[str, int], float | None]:
    """Perplexity of the runs by (encoding, length), of a table printed as JSON."""
    rows = [row for table in json.loads(text) for row in table["rows"] if row["encoding"] not in baselines.NAMES]
    return {(row["encoding"], row["length"]): row["perplexity"] for row in rows}


def test_a_run_is_found_in_a_folder_with_an_equals_sign_and_at_the_end_of_a_line_of_windows(
    posbench: Posbench, runs: list[str], tmp_path: Path
):
    (tmp_path / "a=b").mkdir()
    moved = (tmp_path / "runs" / runs[0]).rename(tmp_path / "a=b" / runs[0])
    assert posbench("eval", str(moved), "eval.targets=64").status == 0
    assert posbench("eval", runs[1] + "\r", "eval.targets=64\r").status == 0


def test_every_finished_run_is_read_at_these_lengths_and_at_its_own(posbench: Posbench, runs: list[str]):
    """`--lengths 64,128` is one evaluation with three rows (CLI-1); a learned table of 32 ends: two marked rows."""
    done = posbench("eval --lengths 64,128 --format json")
    assert done.status == 0, done.err
    assert "2 finished run(s) x lengths: 6 results, 6 of them to be measured, about" in done.err
    found = values(done.out)
    assert {key for key, value in found.items() if value is not None} == {
        ("rope", 32),
        ("rope", 64),
        ("rope", 128),
        ("learned", 32),
    }
    assert f"{runs[1]} nonoverlapping at 64: n/a: learned" in done.err
    again = posbench("eval --lengths 64,128 --format json")
    assert "6 results, all of them measured before." in again.err
    assert again.out == done.out
    assert posbench("table --format json").out == done.out


def test_a_run_that_has_learned_less_than_a_bigram_is_marked_and_unmarked_where_there_is_none(
    posbench: Posbench, runs: list[str]
):
    """A step of training beats no count of pairs; without one, nothing is said for or against it."""

    def undertrained(words: str) -> set[str]:
        lines = csv.DictReader(io.StringIO(posbench(f"eval rope --targets 64 --format csv {words}").out))
        return {line["undertrained"] for line in lines if line["encoding"] == "rope"}

    assert undertrained("--no-references") == {""}
    assert undertrained("") == {"True"}
    assert "rope †" in posbench("table").out


def test_where_the_training_text_is_gone_runs_stand_without_references(
    posbench: Posbench, runs: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(baselines, "evaluate", no_text)
    done = posbench("eval rope --targets 64")
    assert done.status == 0
    assert "warning: The text is gone. No unigram and bigram stand beside" in done.err
    assert "rope" in done.out


def no_text(*_: object, **__: object) -> None:
    raise UserError("The text is gone.")


def test_options_and_overrides_say_the_same(posbench: Posbench, runs: list[str]):
    options = posbench("eval rope --lengths 64 --protocol sliding --stride 16 --targets 200 --format json")
    assert options.status == 0, options.err
    overrides = posbench(
        "eval rope eval.lengths=[64] eval.protocol=sliding eval.stride=16 eval.targets=200 --format json"
    )
    assert overrides.out == options.out
    assert "sliding at 64" not in overrides.err  # the rows were there


def test_a_run_is_named_by_the_beginning_of_its_name_or_hash_or_its_path(posbench: Posbench, runs: list[str]):
    for word in (runs[0], "rope", runs[0][-8:-3], f"../runs/{runs[0]}"):
        done = posbench(f"eval {word} --targets 64 --no-references --format csv")
        assert done.status == 0, done.err
        assert [line["encoding"] for line in csv.DictReader(io.StringIO(done.out))] == ["rope"]


def test_a_run_that_cannot_be_read_does_not_take_the_others_with_it(
    posbench: Posbench, runs: list[str], tmp_path: Path
):
    (tmp_path / "runs" / runs[0] / "model.safetensors").write_bytes(b"torn")
    done = posbench("eval --targets 64 --format json")
    assert done.status == 1
    assert values(done.out).keys() == {("learned", 32)}
    assert f"1 of 2 runs could not be evaluated: {runs[0]}" in done.err
    alone = posbench("eval rope --targets 64")
    assert alone.status == 2
    assert alone.err.startswith("error: ")
    assert "Traceback" not in alone.err


def test_a_damaged_status_is_said_and_left_out(posbench: Posbench, runs: list[str], tmp_path: Path):
    (tmp_path / "runs" / runs[0] / "status.json").write_text("{")
    done = posbench("eval --targets 64 --format json")
    assert done.status == 0
    assert "warning: " in done.err
    assert values(done.out).keys() == {("learned", 32)}
    listed = posbench("runs --format json")
    assert [row["state"] for row in json.loads(listed.out)[0]["rows"]] == ["done", "damaged"]


def test_force_measures_again(posbench: Posbench, runs: list[str]):
    posbench("eval rope --targets 64")
    assert "nonoverlapping at 32" not in posbench("eval rope --targets 64").err
    assert "nonoverlapping at 32" in posbench("eval rope --targets 64 --force").err


def test_an_interruption_keeps_the_rows_that_are_finished(
    posbench: Posbench, runs: list[str], monkeypatch: pytest.MonkeyPatch
):
    """As OUT-3: stopped in the third length, the first two are in the table, and only the third is computed after."""
    real, lengths = evaluate.measure, []

    def interrupted(stream, windows, *rest):
        lengths.append(int(windows.lengths.max()))
        if len(lengths) == 3:
            raise KeyboardInterrupt
        return real(stream, windows, *rest)

    monkeypatch.setattr(evaluate, "measure", interrupted)
    assert posbench("eval rope --lengths 64,128").status == 130
    assert values(posbench("table --format json").out).keys() == {("rope", 32), ("rope", 64)}
    assert posbench("eval rope --lengths 64,128 --no-references").status == 0
    assert lengths == [32, 64, 128, 128]


def test_a_piped_table_shows_every_number_in_full(posbench: Posbench, runs: list[str], monkeypatch: pytest.MonkeyPatch):
    """As OUT-2: off a terminal a width of 60 cuts nothing, and the text is a rounding of the JSON."""
    lengths = ",".join(str(length) for length in range(33, 49))
    posbench(f"eval rope --lengths {lengths} --targets 200")
    monkeypatch.setenv("COLUMNS", "60")
    text, found = posbench("table").out, values(posbench("table --format json").out)
    assert len(found) == 17
    assert "…" not in text
    assert max(map(len, text.splitlines())) > 100
    for value in found.values():
        assert f"{value:.2f}" in text or f"{value:.1f}" in text


# Reading --------------------------------------------------------------------------------------------------------------


def test_a_run_shows_its_settings_and_rows(posbench: Posbench, runs: list[str]):
    posbench("eval rope --lengths 64 --targets 200")
    done = posbench("show rope")
    assert done.status == 0, done.err
    for words in ("encoding.base", "train.length", "No loss curve here.", "Perplexity"):
        assert words in done.out
    tables = json.loads(posbench("show rope --format json").out)
    settings = {row["setting"]: row["value"] for row in tables[0]["rows"]}
    assert (settings["train.length"], settings["encoding.base"], settings["state"]) == (32, 10000, "done")


def test_what_a_training_took_is_shown_with_units_and_as_no_cost(posbench: Posbench, runs: list[str], tmp_path: Path):
    status = tmp_path / "runs" / runs[0] / "status.json"
    measured = {"seconds": 7889.4, "peak_memory": 512 * 2**20, "valid": 3.25}
    status.write_text(json.dumps(json.loads(status.read_text()) | measured))
    text = posbench("show rope").out
    assert "2 h 11 min, wall-clock of the training" in text
    assert "not a cost (posbench bench)" in text
    assert "512 MiB" in text
    assert "3.2500 nats a token, on the validation split of files-" in text
    settings = {row["setting"]: row["value"] for row in json.loads(posbench("show rope --format json").out)[0]["rows"]}
    assert {key: settings[key] for key in measured} == measured


def test_a_run_of_rows_only_says_that_it_has_no_loss_curve(posbench: Posbench, runs: list[str], tmp_path: Path):
    posbench("eval rope --lengths 32 --targets 64")
    (tmp_path / "runs" / runs[0] / "model.safetensors").unlink()
    text = posbench("show rope").out
    assert "No loss curve here: only its rows were kept." in text
    assert "Loss, nats a token" not in text


def test_a_loss_curve_keeps_every_validation_and_the_last_step(posbench: Posbench, runs: list[str], tmp_path: Path):
    lines = []
    for step in range(1, 101):
        lines.append({"step": step, "tokens": 32 * step, "loss": 5 - step / 100})
        if step % 30 == 0:
            lines.append({"step": step, "tokens": 32 * step, "valid": 4.5})
    file = tmp_path / "runs" / runs[0] / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = json.loads(posbench("show rope --format json").out)[1]["rows"]
    assert 12 <= len(curve) <= 16
    assert curve[-1] == {"step": 100, "tokens": 3200, "loss": 4.0, "valid": None}
    assert [point["step"] for point in curve if point["valid"] is not None] == [30, 60, 90]


def test_runs_are_listed_with_how_far_they_are(posbench: Posbench, runs: list[str]):
    posbench("eval rope --targets 64")
    rows = json.loads(posbench("runs --format json").out)[0]["rows"]
    assert [(row["run"], row["state"], row["rows"]) for row in rows] == [(runs[1], "done", 0), (runs[0], "done", 1)]


def test_a_run_writes_on(posbench: Posbench, runs: list[str]):
    done = posbench("generate rope 'the people' --tokens 12")
    assert done.status == 0, done.err
    assert done.out.startswith("the people")
    assert done.out == posbench("generate rope 'the people' --tokens 12").out
    refused = posbench("generate learned 'the people' --tokens 500")
    assert refused.status == 2
    assert "ends at 32 positions" in refused.err
    assert refused.out == ""


def test_a_file_of_the_user_is_another_text(posbench: Posbench, runs: list[str], tmp_path: Path):
    """`--on FILE` reads all of it as the test split, in the run's own (byte) tokenizer: 300 letters, one end token."""
    text = tmp_path / "novel.txt"
    text.write_text("abc" * 100)
    done = posbench(f"eval rope --lengths 64 --on {text} --format json")
    assert done.status == 0, done.err
    (table,) = json.loads(done.out)
    assert {(row["corpus"], row["targets"]) for row in table["rows"]} == {("files-novel", 301)}
    missing = posbench("eval rope --lengths 64 --on novle.txt")
    assert missing.status == 2
    assert missing.err.startswith("error: There is no file or folder 'novle.txt'.")


def test_runs_evaluated_together_share_their_targets(posbench: Posbench, runs: list[str], tmp_path: Path):
    """Runs of L = 32 and 64 read at 32: min_context is 64 for both, the longest of all, so their rows are one table."""
    other = made.finished_run(made.text(tmp_path / "text"), "rope", 64)
    status = other.path / "status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"tokens": 128, "seconds": 0.5, "valid": 5.0}))
    done = posbench(f"eval {runs[0]} {other.name} --lengths 32 --protocol same-targets --block 8 --format json")
    assert done.status == 0, done.err
    assert {row["min_context"] for table in json.loads(done.out) for row in table["rows"]} == {64}
