"""How far a run is, from its files alone: what is shown is what whoever works on it last wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import made
import pytest

from posbench import evaluate, lock, records, status
from posbench.config import Eval
from posbench.evaluate import Request
from posbench.identity import FORMAT
from posbench.report.tables import render
from posbench.run import Run

LINE = {"step": 30, "tokens": 3000, "loss": 4.25, "tokens_per_second": 500.0}


@pytest.fixture
def run(tmp_path: Path, folders: None) -> Run:
    """A run that is trained, at 64."""
    made.text(tmp_path / "texts")
    return made.finished_run(tmp_path / "texts", "rope", 64)


@pytest.fixture
def held(run: Run) -> Iterator[None]:
    with run.lock():
        yield


def asked(run: Run, **eval) -> list[Request]:
    return evaluate.requests(run.config, Eval(lengths=[128], targets=128, **eval))


def state(run: Run, requests: list[Request] | None = None) -> str:
    return status.look(Run(run.path), requests)["state"]


def test_a_run_that_is_not_begun_waits(tmp_path: Path):
    assert state(Run(tmp_path / "nowhere")) == "waiting"


def test_a_trained_run_is_done_when_nothing_is_asked_of_it_and_else_when_its_rows_are_there(run: Run):
    """Two lengths, of which one is measured, then both."""
    wanted = asked(run)
    assert (state(run), state(run, wanted)) == ("done", "trained")
    evaluate.evaluate(run, wanted[:1])
    assert status.look(run, wanted)["rows"] == 1
    with run.lock():
        assert state(run, wanted) == "evaluating"
    evaluate.evaluate(run, wanted)
    assert state(run, wanted) == "done"


def test_a_run_of_an_older_format_is_not_done_since_the_same_command_would_make_another(run: Run):
    """DESIGN, run directory: never continued, never counted as done."""
    file = run.path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": FORMAT - 1}))
    assert state(run) == "older format"


def test_rows_of_another_protocol_extension_or_number_of_targets_are_not_those_asked_for(run: Run):
    evaluate.evaluate(run, asked(run))
    assert status.look(run)["rows"] == 2
    assert status.look(run, asked(run))["rows"] == 2
    assert status.look(run, asked(run, protocol="sliding", stride=32))["rows"] == 0
    assert status.look(run, asked(run, extensions=["none", "pi"]))["rows"] == 2
    fewer = evaluate.requests(run.config, Eval(lengths=[128], targets=100))
    assert status.look(run, fewer)["rows"] == 0
    more = evaluate.requests(run.config, Eval(lengths=[128], targets=10**6))  # than the text has
    assert status.look(run, more)["rows"] == 2


def test_a_run_without_its_weights_is_done_when_its_rows_are_there(run: Run):
    wanted = asked(run)
    evaluate.evaluate(run, wanted[:1])
    run.weights.unlink()
    assert (state(run, wanted[:1]), state(run, wanted)) == ("done, rows only", "rows only")


@pytest.mark.usefixtures("held")
def test_a_running_one_says_step_loss_speed_and_time_left(run: Run):
    """Of its last line, which is newer than its last checkpoint: 70 of 100 steps of 100 tokens at 500 a second are
    left, 14 s. A torn line is none."""
    run.write_status("running", step=20, steps=100, loss=5.0)
    lines = [
        json.dumps(LINE | {"step": 29}),
        json.dumps(LINE),
        json.dumps({"step": 30, "valid": 4.0}),
        '{"step": 31, "lo',
    ]
    (run.path / "metrics.jsonl").write_text("\n".join(lines))
    seen = status.look(Run(run.path))
    assert (seen["state"], seen["step"], seen["steps"], seen["loss"]) == ("running", 30, 100, 4.25)
    assert (seen["tokens_per_second"], seen["seconds_left"]) == (500.0, 14.0)
    assert seen["reason"].startswith("pid ")


@pytest.mark.usefixtures("held")
def test_a_running_one_before_its_first_line_is_at_its_checkpoint(run: Run):
    run.write_status("running", step=20, steps=100, loss=5.0)
    seen = status.look(Run(run.path))
    assert (seen["step"], seen["loss"], seen["tokens_per_second"]) == (20, 5.0, None)


def test_only_the_end_of_long_metrics_is_read(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(status, "_TAIL_BYTES", 200)
    with run.lock():
        run.write_status("running", step=0, steps=100)
        (run.path / "metrics.jsonl").write_text(f"{json.dumps(LINE | {'step': 1})}\n" * 1000 + json.dumps(LINE) + "\n")
        assert status.look(Run(run.path))["step"] == 30


@pytest.mark.parametrize("written", ["interrupted", "failed"])
def test_what_is_begun_again_is_starting(run: Run, written: str):
    run.write_status(written, step=20, steps=100, reason="out of memory")
    assert state(run) == written
    assert status.look(run)["reason"] == ("out of memory" if written == "failed" else None)
    with run.lock():
        assert state(run) == "starting"


def test_a_killed_one_is_stopped(run: Run):
    run.write_status("running", step=20, steps=100)
    assert state(run) == "stopped"


def test_a_damaged_one_is_named_and_the_others_are_shown(run: Run, tmp_path: Path):
    (run.path / "status.json").write_text("{")
    table = status.overview("Runs", [(run, None), (Run(tmp_path / "b"), asked(run))])
    damaged, waiting = table.data()
    assert (damaged["state"], waiting["state"], waiting["rows"]) == ("damaged", "waiting", 0)
    assert "status.json is damaged" in damaged["reason"]
    text = render(table)
    assert "0 of 2" in text
    assert "2 runs: 1 damaged, 1 waiting" in text


def test_a_run_of_a_newer_format_is_not_called_older(run: Run):
    file = run.path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": FORMAT + 1}))
    seen = status.look(Run(run.path))
    assert (seen["state"], seen["reason"]) == ("newer format", f"format {FORMAT + 1}, and this posbench has {FORMAT}")


def test_one_that_was_killed_before_its_first_checkpoint_is_not_waiting(run: Run):
    """Its record is there, and no status yet."""
    (run.path / "status.json").unlink()
    seen = status.look(Run(run.path))
    assert (seen["state"], seen["step"], seen["reason"]) == ("stopped", 0, "before its first checkpoint")
    with run.lock():
        assert state(run) == "starting"


@pytest.mark.parametrize("content", ["{}", "[", "[" * 100_000, '{"key": []}'])
def test_a_row_that_is_no_row_does_not_count(run: Run, content: str):
    run.rows_dir.mkdir()
    (run.rows_dir / "sliding-64.json").write_text(content)
    assert status.look(run)["rows"] == status.look(run, asked(run))["rows"] == 0


def test_a_row_that_is_gone_does_not_count(run: Run):
    """As of one that is removed between two looks."""
    run.rows_dir.mkdir()
    (run.rows_dir / "sliding-64.json").symlink_to(run.path / "nowhere")
    (run.rows_dir / "sliding-128.json").symlink_to("sliding-128.json")
    assert status.look(run)["rows"] == 0


@pytest.mark.parametrize(
    ("kind", "changed"),
    [("key", {"extension": "foo"}), ("key", {"extension": ["yarn"]}), ("result", {"targets": None})]
    + [("result", {"perplexity": 1.0})],
)
def test_a_row_that_was_edited_does_not_count_since_it_will_be_measured_again(run: Run, kind: str, changed: dict):
    wanted = asked(run)
    file = evaluate.evaluate(run, wanted)[0].path
    assert state(run, wanted) == "done"
    record = json.loads(file.read_bytes())
    file.write_text(json.dumps(record | {kind: record[kind] | changed}))
    assert status.look(run, wanted)["rows"] == status.look(run)["rows"] == 1
    assert len(evaluate.missing(run, wanted)) == 1
    evaluate.evaluate(run, wanted)
    assert state(run, wanted) == "done"


def test_a_row_without_its_arrays_does_not_count(run: Run):
    wanted = asked(run)
    rows = evaluate.evaluate(run, wanted)
    assert state(run, wanted) == "done"
    rows[0].path.with_suffix(".npz").unlink()
    assert state(run, wanted) == "trained"


def test_a_status_nested_past_all_reading_is_damaged(run: Run):
    (run.path / "status.json").write_text("[" * 100_000)
    seen = status.look(run)
    assert (seen["state"], "nested too deeply" in seen["reason"]) == ("damaged", True)


@pytest.mark.usefixtures("held")
def test_looking_at_a_study_takes_no_lock(run: Run):
    before = lock.owner(run.path)
    state(run, asked(run))
    assert lock.owner(run.path) == before
    assert records.read([run.path]) == []
