"""A tracker is told each step once, under the run's name, and can neither end a training nor hold it up."""

from __future__ import annotations

import json
import sys
import threading
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toys

from posbench import trackers
from posbench import train as training
from posbench.compose import compose, load_group
from posbench.config import Config
from posbench.errors import UserError
from posbench.identity import from_dict, identity, to_dict
from posbench.run import Run
from posbench.search_path import choices
from posbench.train import train

MINE = """\
import json
from pathlib import Path

from posbench.trackers import Tracker


class Mine(Tracker):
    def __init__(self, file: str, faulty: str = "") -> None:
        self.file, self.faulty = Path(file), faulty

    def _note(self, what, *more):
        if what == self.faulty:
            raise ConnectionError("nobody answers\\nat all")
        with self.file.open("a") as file:
            file.write(json.dumps([what, *more]) + "\\n")

    def begin(self, run, config):
        print("hello from the tracker")
        self._note("begin", run.name, config["seed"])

    def log(self, step, values):
        self._note("log", step, dict(values))

    def end(self):
        self._note("end")
"""


@pytest.fixture
def mine(tmp_path: Path, folders: None) -> dict[str, Any]:
    """`config.tracker` of one that writes down what it is told."""
    (tmp_path / "mine.py").write_text(MINE)
    return {"name": "mine", "class": f"{tmp_path / 'mine.py'}:Mine", "file": str(tmp_path / "told")}


def told(mine: dict[str, Any]) -> list[list[Any]]:
    return [json.loads(line) for line in Path(mine["file"]).read_text().splitlines()]


def test_it_is_told_what_stands_in_the_metrics(mine: dict[str, Any], data: dict, capsys: pytest.CaptureFixture[str]):
    """The loss of a step and its validation are one word to it. What it says itself is left out."""
    run = train(replace(toys.config(data, steps=15), tracker=mine))
    (begin, *steps, end), lines = told(mine), run.metrics()
    assert (begin, end) == (["begin", run.name, 1], ["end"])
    assert [step for _, step, _ in steps] == list(range(1, 16))
    assert steps[0][2]["loss"] == lines[0]["loss"]
    assert steps[14][2].keys() >= {"loss", "lr", "norm", "tokens", "tokens_per_second", "valid"}
    assert "step" not in steps[0][2]
    assert "hello" not in "".join(capsys.readouterr())


def test_a_run_that_goes_on_tells_no_step_twice(mine: dict[str, Any], data: dict, monkeypatch: pytest.MonkeyPatch):
    """Killed in step 8 with a checkpoint at 5: steps 6 and 7 were done and not told; then all come, under one name."""
    config = replace(toys.config(data, steps=12), tracker=mine)
    saves, save = iter(range(1, 100)), training.checkpoint.save

    def kept(*what: Any) -> None:
        if next(saves) <= 5:
            save(*what)

    with monkeypatch.context() as patch:
        patch.setattr(training.checkpoint, "save", kept)
        patch.setattr(Run, "write_status", _only_of_five(Run.write_status))
        toys.interrupted_at(8, patch)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    assert [word[1] for word in told(mine) if word[0] == "log"] == [1, 2, 3, 4, 5]
    run = train(config)
    words = told(mine)
    assert [word[1] for word in words if word[0] == "begin"] == [run.name, run.name]
    assert [word[1] for word in words if word[0] == "log"] == list(range(1, 13))


def _only_of_five(write: Any) -> Any:
    def status(run: Run, state: str, **fields: Any) -> None:
        if fields["step"] <= 5:
            write(run, state, **fields)

    return status


def test_what_was_saved_and_not_yet_told_when_it_was_killed_is_told_when_it_goes_on(mine: dict[str, Any], data: dict):
    """And a tracker that is named later gets what was before: each has its own mark."""
    run = train(replace(toys.config(data, steps=9), tracker=mine))
    mark = run.path / "tracker.json"
    run.check_whole()  # and is part of a run
    Path(mine["file"]).unlink()
    mark.write_text(mark.read_text().replace(": 9", ": 4"))
    with trackers.following(mine, run, {"seed": 1}, print):
        pass
    assert [word[1] for word in told(mine) if word[0] == "log"] == [5, 6, 7, 8, 9]
    other = mine | {"file": mine["file"] + "2"}
    with trackers.following(other, run, {"seed": 1}, print):
        pass
    assert [word[1] for word in told(other) if word[0] == "log"] == list(range(1, 10))


def test_runs_of_one_process_do_not_melt_into_one(mine: dict[str, Any], data: dict):
    """Two trainings after another: each has its own beginning and end, and its own steps from 1."""
    for encoding in ("rope", "none"):
        train(replace(toys.config(data, encoding, steps=3), tracker=mine))
    words = told(mine)
    assert [word[0] for word in words] == ["begin", "log", "log", "log", "end"] * 2
    assert words[0][1] != words[5][1]


@pytest.mark.parametrize("faulty", ["begin", "log", "end"])
def test_one_that_raises_is_left_out_and_named_once(mine: dict[str, Any], data: dict, faulty: str):
    said: list[str] = []
    run = train(replace(toys.config(data, steps=6), tracker=mine | {"faulty": faulty}), say=said.append)
    assert run.status()["state"] == "done"
    sentence = "The tracker Mine is left out from here on: ConnectionError, nobody answers."
    assert said.count(sentence) == 1
    assert sentence in (run.path / "log.txt").read_text()


def test_one_that_hangs_is_not_waited_for_and_takes_nothing_with_it(
    mine: dict[str, Any], data: dict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What is printed while it hangs, and after, is seen; waking up later it tells nothing, not even that it failed."""
    monkeypatch.setattr(trackers, "END_SECONDS", 0.01)
    never = threading.Event()

    def begin(*words: Any) -> None:
        print("hello from the tracker")
        never.wait(30)
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(trackers.Tracker, "begin", begin)
    hanging = {"name": "hanging", "class": f"{mine['class'].rpartition(':')[0]}:Hanging"}
    (Path(mine["file"]).parent / "mine.py").write_text(MINE + "\n\nclass Hanging(Tracker):\n    pass\n")
    run = train(replace(toys.config(data, steps=3), tracker=hanging), say=print)
    print("a table")
    (thread,) = [one for one in threading.enumerate() if one.name == f"tracker of {run.name}"]
    never.set()
    thread.join()
    assert run.status()["state"] == "done"
    *said, last, table = capsys.readouterr().out.splitlines()
    assert (last, table) == ("The tracker Hanging is not done yet, and is not waited for.", "a table")
    assert any(line.startswith("step 3 of 3") for line in said)
    assert "hello from the tracker" not in said
    assert not (run.path / "tracker.json").exists()


def test_a_tracker_names_no_other_run():
    config = compose()
    assert identity(replace(config, tracker={"name": "wandb", "class": "posbench.trackers.Wandb"})) == identity(config)


def test_runs_of_before_there_were_trackers_are_read():
    default = compose()
    stored = {key: value for key, value in to_dict(default).items() if key != "tracker"}
    assert from_dict(stored) == replace(default, tracker={})


# The shipped ones ---------------------------------------------------------------------------------------------------


class Calls:
    """A stand-in for a package: what is called on it, with what."""

    def __init__(self, name: str) -> None:
        self.name, self.calls = name, list[tuple[str, tuple[Any, ...], dict[str, Any]]]()

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **named: Any) -> Any:
            self.calls.append((name, words, named))
            return self

        return call


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a stand-in in the place of a package that is not installed here."""

    def put(name: str, module: str) -> Calls:
        calls = Calls(name)
        monkeypatch.setitem(sys.modules, module, calls)
        monkeypatch.setattr(trackers, "require", lambda *words: None)
        return calls

    return put


def trained(data: dict, name: str, *more: str) -> tuple[Run, Config]:
    config = replace(toys.config(data, steps=2), tracker=compose([f"tracker={name}", *more]).tracker)
    return train(config), config


@pytest.mark.usefixtures("folders")
def test_trackio_gets_a_run_by_its_name_that_may_be_there_already(package: Any, data: dict):
    calls = package("trackio", "trackio").calls
    run, _ = trained(data, "trackio", "tracker.project=mine")
    (name, words, named), first, second, end = calls
    assert (name, words) == ("init", ("mine",))
    assert (named["name"], named["resume"], named["config"]["seed"]) == (run.name, "allow", 1)
    assert (first[0], first[2], second[2]) == ("log", {"step": 1}, {"step": 2})
    assert first[1][0]["loss"] == run.metrics()[0]["loss"]
    assert end[0] == "finish"


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(("mode", "resume"), [("offline", None), ("online", "allow")])
def test_wandb_gets_a_run_by_its_id_and_sends_nothing_unless_asked(package: Any, data: dict, mode: str, resume: str):
    calls = package("wandb", "wandb").calls
    run, _ = trained(data, "wandb", *([] if mode == "offline" else ["tracker.mode=online"]))
    _settings, (name, _, named), *steps, end = calls
    assert name == "init"
    assert (named["id"], named["name"], named["mode"], named["resume"]) == (run.name, run.name, mode, resume)
    assert Path(named["dir"]) == run.path.parent / ".wandb"
    assert [(step[0], step[2]) for step in steps] == [("log", {"step": 1}), ("log", {"step": 2})]
    assert end[0] == "finish"


@pytest.mark.usefixtures("folders")
def test_tensorboard_gets_a_folder_for_each_run(package: Any, data: dict, monkeypatch: pytest.MonkeyPatch):
    calls = Calls("tensorboard")
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = calls.SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(trackers, "require", lambda *words: None)
    run, _ = trained(data, "tensorboard")
    (name, words, _), *scalars, end = calls.calls
    assert (name, words) == ("SummaryWriter", (run.path.parent / ".tensorboard" / run.name,))
    losses = [(value, step) for _, (key, value, step), _ in scalars if key == "loss"]
    assert losses == [(line["loss"], line["step"]) for line in run.metrics() if "loss" in line]
    assert end[0] == "close"


@pytest.mark.parametrize("name", [name for name in choices("tracker") if name != "none"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(UserError) as refused:
        trackers.build(load_group("tracker", name))
    assert refused.value.message == f"tracker={name} needs {name}, which is not installed."
    assert refused.value.hint == f"Type: pip install 'posbench[{name}]'"


def test_a_setting_that_it_does_not_have_is_refused_before_anything_is_trained():
    with pytest.raises(UserError, match=r"There is no setting 'tracker.projcet'. Did you mean 'tracker.project'?"):
        compose(["tracker=trackio", "+tracker.projcet=mine"])
    with pytest.raises(UserError, match=r"There is no tracker 'tensorbord'. Did you mean 'tensorboard'?"):
        compose(["tracker=tensorbord"])
