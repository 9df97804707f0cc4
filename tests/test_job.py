"""One job: what is missing is done, what is there is said, and an error stands in the run's log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import made
import pytest
import toys

from posbench import evaluate, system
from posbench import job as jobs
from posbench.compose import settled
from posbench.config import Config, Eval
from posbench.errors import UserError
from posbench.job import Job, Result, attempt, finished
from posbench.lock import GoneError, HeldError, ReplacedError
from posbench.run import Run


@pytest.fixture(autouse=True)
def _folders(folders, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("POSBENCH_DEBUG", raising=False)


@pytest.fixture
def job(data: dict) -> Job:
    """Six steps of rope at 16, read at 16 and 32."""
    config = settled(toys.config(data, steps=6))
    requests = evaluate.requests(config, Eval(lengths=[32], targets=64))
    return Job(config, "posbench train encoding=rope", "rope", requests)


def failing(job: Job, error: Exception, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The result of an attempt whose training raises `error` before step 0."""

    def fail(config: Config, command: str, say: object) -> Run:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train", fail)
        return attempt(job, lambda text: None)


def test_it_is_trained_and_measured_and_the_second_time_only_said_to_be(job: Job):
    said, new = list[str](), []
    first = attempt(job, said.append, new.append)
    assert (first.state, [row.length for row in first.rows]) == ("done", [16, 32])
    assert new == first.rows
    assert job.run.record["command"] == "posbench train encoding=rope"
    said.clear()
    assert attempt(job, said.append, new.append) == first
    assert len(new) == 2
    assert said[1:] == [f"{job.run.name} is trained already", "2 of 2 rows were there already"]


def test_it_is_finished_when_it_is_trained_and_every_row_is_there(job: Job):
    only = replace(job, requests=())
    assert not finished(only)
    attempt(only, lambda text: None)
    assert finished(only)
    assert not finished(job)
    attempt(job, lambda text: None)
    assert finished(job)
    (job.run.path / "status.json").write_text("{")
    assert not finished(job)


def test_rows_alone_will_do_where_the_weights_are_gone(job: Job):
    """As on a laptop to which the rows of a big machine were copied; without one of them it is trained again."""
    first = attempt(job, lambda text: None)
    weights = toys.sha(job.run.weights)
    job.run.weights.unlink()
    said: list[str] = []
    assert job.run.status()["state"] == "rows only"
    assert finished(job)
    assert attempt(job, said.append) == first
    assert said == [f"{job.run.name} is done, rows only: its weights are gone, and all of its 2 rows are there"]
    with pytest.raises(UserError, match="has only its rows left"):
        job.run.model()
    assert first.rows[1].path is not None
    first.rows[1].path.unlink()
    assert not finished(job)
    again = attempt(job, lambda text: None)
    assert [row.loss for row in again.rows] == [row.loss for row in first.rows]
    assert toys.sha(job.run.weights) == weights


def test_rows_collected_without_their_tokenizer_will_do_where_the_text_has_it(job: Job):
    first = attempt(job, lambda text: None)
    job.run.weights.unlink()
    (job.run.path / "tokenizer.json").unlink()
    assert finished(job)
    assert attempt(job, lambda text: None) == first
    record = job.run.path / "run.json"
    record.write_text(record.read_text().replace(job.run.record["tokenizer"]["fingerprint"], "0" * 64))
    job = replace(job)  # that has not read it yet
    assert not finished(job)
    result = attempt(job, lambda text: None)
    assert (result.state, result.rows) == ("failed", [])
    assert "was trained with another tokenizer than its text has here" in result.message
    assert str(job.run.path / "tokenizer.json") in result.message


def test_a_run_that_lost_its_tokenizer_and_a_row_is_trained_again_and_has_both(job: Job):
    first = attempt(job, lambda text: None)
    tokenizer = (job.run.path / "tokenizer.json").read_bytes()
    job.run.weights.unlink()
    (job.run.path / "tokenizer.json").unlink()
    assert first.rows[1].path is not None
    first.rows[1].path.unlink()
    assert not finished(job)
    again = attempt(job, lambda text: None)
    assert [row.nats for row in again.rows] == [row.nats for row in first.rows]
    assert (job.run.path / "tokenizer.json").read_bytes() == tokenizer
    assert finished(job)


@pytest.mark.parametrize("weights", [True, False])
def test_what_is_finished_is_so_where_its_device_is_not(job: Job, weights: bool, monkeypatch: pytest.MonkeyPatch):
    """A study of a GPU, looked at from a login node, and from a laptop that has the rows alone."""
    monkeypatch.setattr(system.torch.cuda, "is_available", lambda: False)
    there = replace(job, config=replace(job.config, device="cuda"))
    assert jobs.kept(there, print) is None
    first = attempt(job, lambda text: None)
    if not weights:
        job.run.weights.unlink()
    said = list[str]()
    assert jobs.kept(there, said.append) == first
    assert said[-1].endswith("2 of 2 rows were there already" if weights else "all of its 2 rows are there")
    assert attempt(there, said.append).state == ("failed" if weights else "done")
    assert first.rows[1].path is not None
    first.rows[1].path.unlink()
    assert jobs.kept(there, print) is None


def test_a_run_of_another_text_is_not_finished(job: Job, data: dict):
    attempt(job, lambda text: None)
    record = job.run.path / "run.json"
    record.write_text(record.read_text().replace(job.run.record["ids_digest"], "0" * 64))
    assert jobs.kept(replace(job, requests=()), print) is None


def test_an_error_before_step_0_leaves_a_log_and_its_reason_and_the_next_attempt_begins(
    job: Job, monkeypatch: pytest.MonkeyPatch
):
    result = failing(job, RuntimeError("it broke"), monkeypatch)
    assert (result.state, result.message) == ("failed", "it broke")
    assert result.tail[-2:] == ["RuntimeError: it broke", f"Its log: {job.run.path / 'log.txt'}"]
    log = (job.run.path / "log.txt").read_text()
    assert "Traceback" in log
    assert "RuntimeError: it broke" in log
    status = Run(job.run.path).status()
    assert (status["state"], status["reason"]) == ("failed", "it broke")
    assert not job.run.started
    assert attempt(job, lambda text: None).state == "done"


def test_of_a_users_mistake_the_hint_is_shown_and_no_traceback(job: Job, monkeypatch: pytest.MonkeyPatch):
    result = failing(job, UserError("too high", "Try a lower optim.lr."), monkeypatch)
    assert (result.message, result.tail[0]) == ("too high", "Try a lower optim.lr.")
    assert "Traceback" not in "".join(result.tail)
    monkeypatch.setenv("POSBENCH_DEBUG", "1")
    assert "Traceback" in failing(job, UserError("too high"), monkeypatch).tail[0]


def test_an_error_of_a_finished_run_does_not_take_that_back(job: Job, monkeypatch: pytest.MonkeyPatch):
    attempt(job, lambda text: None)
    failing(job, UserError("its text has changed"), monkeypatch)
    assert job.run.done
    assert "its text has changed" in (job.run.path / "log.txt").read_text()


def test_a_full_disk_is_one_line_though_it_cannot_be_logged(job: Job, monkeypatch: pytest.MonkeyPatch):
    def full(*words: object) -> None:
        raise OSError(28, "No space left on device", "log.txt")

    monkeypatch.setattr(Run, "log", full)
    result = failing(job, OSError(28, "No space left on device", "checkpoint.safetensors"), monkeypatch)
    assert (result.message, result.tail) == ("No space left on device: checkpoint.safetensors", [])


@pytest.mark.parametrize("error", [HeldError("it is being worked on"), ReplacedError("it was taken over")])
def test_a_run_of_another_process_is_no_failure(job: Job, error: HeldError, monkeypatch: pytest.MonkeyPatch):
    assert failing(job, error, monkeypatch) == Result("held", error.message)
    assert not job.run.path.exists()


def test_a_run_that_was_removed_does_not_come_back_as_a_log(job: Job, monkeypatch: pytest.MonkeyPatch):
    result = failing(job, GoneError("it was removed", "begin anew"), monkeypatch)
    assert (result.state, result.message, result.tail) == ("failed", "it was removed", ["begin anew"])
    assert not job.run.path.exists()


def test_a_process_that_ended_without_a_result_leaves_what_it_said(job: Job):
    result = jobs.crashed(job, "its process was ended by SIGKILL", ["step 1", "step 2"])
    assert (result.state, result.tail[:2]) == ("failed", ["step 1", "step 2"])
    assert "step 2\nits process was ended by SIGKILL" in (job.run.path / "log.txt").read_text()
    assert job.run.status()["reason"] == "its process was ended by SIGKILL"


def test_a_job_and_its_result_are_the_same_after_their_journey(job: Job):
    """To another process and back, as JSON. What the job is of has the same name there."""
    there = Job.from_json(job.to_json())
    assert there == job
    assert there.run.path == job.run.path
    assert "\n" not in job.to_json()
    done = attempt(job, lambda text: None)
    assert Result.from_json(done.to_json()) == done
    failed = Result("failed", "it broke", ["in line 3"])
    assert Result.from_json(failed.to_json()) == failed


def test_requests_of_one_run_are_those_of_its_config(tmp_path: Path):
    """A study asks before anything is trained."""
    made.text(tmp_path / "texts")
    run = made.finished_run(tmp_path / "texts", "rope", 64)
    wanted = evaluate.requests(run.config, Eval(lengths=[128], extensions=["none", "pi"]))
    assert [(one.length, one.extension and json.loads(one.extension)["name"]) for one in wanted] == [
        (64, None),
        (128, None),
        (64, "pi"),
        (128, "pi"),
    ]
