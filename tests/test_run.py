"""The run directory: found by what a user types, refused when it is another run's, never trusted when damaged."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from posbench import identity as identities
from posbench import run as runs
from posbench.config import Config, Model, Train
from posbench.data.tokenizer import Tokenizer
from posbench.errors import UserError
from posbench.run import Run

TOKENIZER = Tokenizer("bytes", {"kind": "bytes"})


@pytest.fixture(autouse=True)
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))


def config(encoding: str = "rope", seed: int = 1, **own) -> Config:
    return Config(
        encoding=tiny.described(encoding, **own),
        model=Model("toy", layers=1, width=16, heads=2, hidden=24),
        data={"name": "sotu", "kind": "sotu", "attend": "stream"},
        tokenizer={"name": "bytes", "kind": "bytes"},
        train=Train(length=8, tokens=64, batch_tokens=16),
        seed=seed,
    )


def begun(asked: Config, digest: str = "d" * 64) -> Run:
    """A run whose record of step 0 was written."""
    run = Run(runs.directory(asked))
    record = {
        "ids_digest": digest,
        "corpus": {"name": "sotu", "fingerprint": "f"},
        "tokenizer": {"fingerprint": TOKENIZER.fingerprint, "vocab_size": 257},
        "steps": 4,
        "decisions": {},
        "versions": {"torch": "2.13.0"},
    }
    with run.lock():
        run.begin(asked, TOKENIZER, record)
    return Run(run.path)


def test_a_name_says_what_was_trained_and_ends_in_the_hash():
    asked = config()
    name = runs.directory(asked).name
    assert name == f"rope-L8-toy-s1-{identities.hash8(identities.identity(asked))}"


def test_a_wrapper_is_named_without_brackets_that_a_shell_would_read():
    asked = dataclasses.replace(config(), encoding=tiny.described("alibi") | {"inner": "rope"})
    assert runs.name(asked).startswith("alibi-rope-L8-toy-s1-")


def test_a_run_is_found_by_path_name_and_unique_beginnings(monkeypatch: pytest.MonkeyPatch):
    rope, alibi = begun(config("rope")), begun(config("alibi"))
    for word in (str(rope.path), rope.name, "rope", "r", rope.hash, rope.hash[:6]):
        assert runs.find(word).path == rope.path
    monkeypatch.chdir(alibi.path)
    assert runs.find(".").name == alibi.name


def test_a_whole_name_is_no_beginning_of_another():
    """A run copied to a longer name does not make the shorter one ambiguous."""
    rope = begun(config("rope"))
    longer = rope.path.with_name(rope.name + "-copy")
    longer.mkdir()
    (longer / "run.json").write_bytes((rope.path / "run.json").read_bytes())
    assert runs.find(rope.name).path == rope.path


def test_an_ambiguous_beginning_names_the_runs_it_could_mean():
    first, second = begun(config("rope")), begun(config("rope", seed=2))
    with pytest.raises(UserError, match="'rope' is the beginning of 2 runs") as caught:
        runs.find("rope")
    assert first.name in str(caught.value)
    assert second.name in str(caught.value)


def test_an_unknown_run_is_answered_with_the_nearest_name():
    rope = begun(config("rope"))
    with pytest.raises(UserError, match=f"Did you mean '{rope.name}'"):
        runs.find(rope.name.replace("rope", "roep"))
    with pytest.raises(UserError, match="There is no run ''"):
        runs.find("")


def test_before_the_first_run_find_says_how_to_train_one():
    with pytest.raises(UserError, match="holds none yet") as caught:
        runs.find("rope")
    assert "posbench train" in (caught.value.hint or "")


def test_runs_lie_under_the_environment_variable_or_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert runs.root() == tmp_path / "runs"
    monkeypatch.delenv("POSBENCH_RUNS")
    assert runs.root() == Path("runs")


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_place_of_runs_that_can_be_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str):
    """A file, a device, a link that leads nowhere, or what lies below one."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in (tmp_path / "file", tmp_path / "link", Path(os.devnull)):
        monkeypatch.setenv("POSBENCH_RUNS", str(place / below))
        with pytest.raises(UserError, match=f"{place}, where the runs are to be, is a file") as caught:
            runs.root()
        assert caught.value.hint == "Name a folder with POSBENCH_RUNS."
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "new" / below))
    assert runs.root() == tmp_path / "new" / below


def test_the_stored_config_is_read_back_whole():
    """CKPT-3: what is evaluated is what was trained, a base that is no default included."""
    asked = config("rope", base=500000.0)
    assert begun(asked).config == asked


def test_a_field_that_the_record_lost_stops_the_reader():
    """CKPT-3: a lost base must not fall back to 10,000."""
    run = begun(config("rope", base=500000.0))
    record = json.loads((run.path / "run.json").read_text())
    del record["config"]["encoding"]["base"]
    (run.path / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=f"gives the hash .*, where {run.hash} is stored"):
        _ = Run(run.path).config


def test_an_edited_encoding_of_ones_own_is_named_and_not_the_record(tmp_path: Path):
    """Also where a wrapper holds it; and with its content back the run is read again."""
    file = tmp_path / "mine.py"
    file.write_text("from posbench.encodings.rope import Rope\nclass Mine(Rope):\n    pass\n")
    mine = {"name": "mine", "class": f"{file}:Mine"}
    held = dataclasses.replace(config(), encoding=tiny.described("ssmax") | {"inner": mine})
    made = [begun(dataclasses.replace(config(), encoding=mine)), begun(held)]
    content = file.read_text()
    file.write_text(content + "# edited\n")
    for run in made:
        with pytest.raises(UserError) as caught:
            _ = Run(run.path).config
        assert caught.value.message == f"{file} was changed after {run.name} was trained with it."
    file.write_text(content)
    assert [Run(run.path).config.encoding["name"] for run in made] == ["mine", "ssmax"]


def test_an_inert_setting_that_an_older_record_lacks_changes_nothing():
    run = begun(config())
    record = json.loads((run.path / "run.json").read_text())
    del record["config"]["train"]["checkpoint_seconds"]
    (run.path / "run.json").write_text(json.dumps(record))
    assert Run(run.path).config == config()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"hash": "ab"}', "\x00\x01"])
def test_a_damaged_record_is_named(content: str):
    run = begun(config())
    (run.path / "run.json").write_text(content)
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        _ = Run(run.path).record
    assert [found.name for found in runs.all_runs()] == [run.name]


@pytest.mark.parametrize("versions", [[], None, {"python": "3.11"}])
def test_a_part_of_a_record_that_is_not_whole_is_named(versions: object):
    run = begun(config())
    record = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(record | {"versions": versions}))
    with pytest.raises(UserError, match=r"run\.json is damaged: its versions is not whole"):
        _ = Run(run.path).record


@pytest.mark.parametrize(
    "content",
    ["", '{"state": "done"', '{"state": 3, "step": 1}', f'{{"state": "done", "step": 4, "seconds": {10**400}}}'],
)
def test_a_damaged_status_is_named_and_no_run_counts_as_done_by_it(content: str):
    run = begun(config())
    (run.path / "status.json").write_text(content)
    with pytest.raises(UserError, match=r"status\.json is damaged"):
        _ = run.done


def test_a_run_marked_done_without_weights_is_refused():
    run = begun(config())
    run.write_status("done", step=4)
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        run.status()


def test_an_unfinished_run_gives_no_model():
    run = begun(config())
    run.write_status("running", step=2)
    with pytest.raises(UserError, match="is not finished: stopped at step 2"):
        run.model()


def test_a_run_whose_process_is_gone_is_stopped():
    """A killed process cannot say so itself: nobody holds its lock."""
    run = begun(config())
    with run.lock():
        run.write_status("running", step=1)
        assert Run(run.path).status()["state"] == "running"
    assert Run(run.path).status()["state"] == "stopped"


def test_a_failure_before_step_0_is_a_status_without_a_record():
    run = Run(runs.directory(config()))
    run.path.mkdir(parents=True)
    run.fail("there is no such text")
    assert (run.status()["state"], run.status()["reason"]) == ("failed", "there is no such text")
    assert not run.started
    assert runs.all_runs() == [run] == [runs.find(run.name)] == [runs.find(str(run.path))]
    run.write_status("done", step=4)
    with pytest.raises(UserError, match="holds no run"):
        run.status()


def test_a_run_that_has_lost_its_weights_has_its_rows_and_no_model():
    run = begun(config())
    run.write_status("done", step=4)
    run.rows_dir.mkdir()
    (run.rows_dir / "sliding-8.json").touch()
    assert (run.status()["state"], run.done) == ("rows only", False)
    with pytest.raises(UserError, match=r"has only its rows left: .*model\.safetensors is missing"):
        run.model()


def test_a_removed_run_is_gone_whole_and_one_that_is_at_work_stays():
    run, other = begun(config()), begun(config(seed=2))
    with other.lock(), pytest.raises(UserError, match="is being worked on"):
        Run(other.path).remove()
    run.remove()
    assert [one.name for one in runs.root().iterdir()] == [other.name]
    assert other.started


def test_a_run_that_another_process_took_over_is_no_longer_written():
    run = begun(config())
    with run.lock():
        run.write_status("running", step=1)
        (run.path / ".lock").write_text("another")
        for write in (lambda: run.write_status("done", step=4), lambda: run.log("done"), lambda: run.open_metrics(0)):
            with pytest.raises(UserError, match="was taken over by another process"):
                write()
    assert run.status()["step"] == 1
    assert not (run.path / "log.txt").exists()


def test_a_log_takes_what_is_no_text():
    """A file may be named in bytes that are no UTF-8."""
    run = begun(config())
    run.log("no file a\udcff.txt")
    assert (run.path / "log.txt").read_text().endswith(" no file a\\udcff.txt\n")


def test_a_failure_keeps_the_progress_and_adds_the_reason():
    run = begun(config())
    run.write_status("running", step=3, loss=5.0)
    run.fail("the disk is full")
    status = run.status()
    assert (status["state"], status["step"], status["loss"]) == ("failed", 3, 5.0)
    assert status["reason"] == "the disk is full"


def test_a_run_of_another_text_is_refused():
    run = begun(config(), digest="a" * 64)
    run.refuse_other(config(), "a" * 64)
    with pytest.raises(UserError, match="digest aaaaaaaaaaaa, and the text now gives bbbbbbbbbbbb"):
        run.refuse_other(config(), "b" * 64)


def test_a_run_that_lost_its_tokenizer_is_not_gone_on_with():
    """It would be trained to the end, and then could not be evaluated."""
    run = begun(config())
    (run.path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read"):
        run.refuse_other(config(), "d" * 64)


@pytest.mark.parametrize("name", ["tokenizer.json", "run.json"])
def test_a_file_that_may_not_be_read_is_no_reason_to_train_again(name: str):
    """Here it is a folder: permissions mean nothing to whoever is root."""
    run = begun(config())
    (run.path / name).unlink()
    (run.path / name).mkdir()
    readers = {"tokenizer.json": Run.tokenizer, "run.json": lambda run: run.record}
    with pytest.raises(UserError, match="cannot be read: Is a directory") as caught:
        readers[name](Run(run.path))
    assert "Remove" not in str(caught.value)


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "model.safetensors"])
def test_weights_without_a_record_are_not_written_over(name: str):
    """Nobody can say what text they were trained on."""
    run = begun(config())
    (run.path / "run.json").unlink()
    (run.path / name).write_bytes(b"weights")
    with pytest.raises(UserError, match=f"{name}, but no run.json beside it"):
        begun(config())
    assert (run.path / name).read_bytes() == b"weights"


def test_a_run_of_another_config_is_refused_and_the_first_difference_named():
    """It can only lie there by hand: the hash is in the name."""
    run = begun(config("rope", base=500000.0))
    with pytest.raises(UserError, match=r"encoding\.base is 500000\.0 there, and None was asked for"):
        run.refuse_other(config("rope"), "d" * 64)


def test_a_run_of_another_format_is_refused(monkeypatch: pytest.MonkeyPatch):
    run = begun(config())
    now = identities.FORMAT
    monkeypatch.setattr(identities, "FORMAT", now + 1)
    monkeypatch.setattr(runs, "FORMAT", now + 1)
    assert runs.directory(config()) != run.path
    with pytest.raises(UserError, match=f"was trained by format {now} of posbench, and this is format {now + 1}"):
        run.refuse_other(config(), "d" * 64)


def test_one_holder_at_a_time():
    run = begun(config())
    with run.lock(), pytest.raises(UserError, match="is being worked on by another process"), Run(run.path).lock():
        pass
    with run.lock():
        pass


def test_metrics_lose_a_torn_last_line_and_what_lies_past_the_checkpoint():
    """A run killed at step 4 with a checkpoint of step 2 goes on at 3: the lines of 3 and 4 would stand twice."""
    run = begun(config())
    lines = [{"step": step, "loss": float(step)} for step in (1, 2, 3, 4)]
    file = run.path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 5, "lo')
    assert run.metrics() == lines
    with run.open_metrics(step=2) as metrics:
        metrics.add(step=3, loss=3.5)
    assert run.metrics() == [*lines[:2], {"step": 3, "loss": 3.5}]
    assert file.read_bytes().endswith(b"}\n")


def test_a_damaged_line_of_metrics_is_named():
    run = begun(config())
    good = '{"step": 1, "loss": 5.0}\n'
    for bad in ("nonsense", "[1]", '{"step": 2}', '{"step": 2, "loss": "5"}', '{"step": 2, "valid": NaN}'):
        (run.path / "metrics.jsonl").write_text(f"{good}{bad}\n{good}")
        with pytest.raises(UserError, match="line 2 is no metric"):
            run.metrics()


@pytest.mark.process
def test_listing_runs_loads_no_torch():
    """`posbench runs` answers at once."""
    code = "import sys, posbench.run as r; r.all_runs(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
