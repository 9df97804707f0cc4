"""Damaged runs: whatever lies in the place of a file, a command says so in a sentence, and no other run pays.

One tiny run of each kind is trained, then copied for every case: `done` has weights and rows, `half` was killed with a
checkpoint. In the copy one file is damaged, and every command is given. Beside it stands a whole run that must keep
every byte.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import io
import json
import shlex
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import toys

from posbench import cli, files, train
from posbench import compose as composing
from posbench.cli import bridge
from posbench.compose import compose
from posbench.config import Config

SETTINGS = (
    "data=files tokenizer=bytes model.layers=1 model.width=16 model.heads=2 model.hidden=24 train.length=16 "
    "train.tokens=96 train.batch_tokens=32 train.checkpoint_seconds=0 train.threads=1 train.compile=off device=cpu"
)
EVAL = "--no-references --targets 64 --device cpu"

pytestmark = pytest.mark.slow

RUNS = {"done": "rope", "half": "alibi", "other": "none", "other half": "t5"}
"""The encoding of each: what a run is called by."""


class Done(NamedTuple):
    status: int
    out: str
    err: str


def posbench(line: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = cli.run(shlex.split(line))
    return Done(status, out.getvalue(), err.getvalue())


class Killed(BaseException):
    """Ends a training as a kill does."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """A folder with runs/ and the overrides that train them."""
    folder = tmp_path_factory.mktemp("made")
    data = toys.text(folder / "text")
    overrides = f"{SETTINGS} " + " ".join(f"data.{split}={data[split]}" for split in ("train", "validation", "test"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("POSBENCH_DATA", str(folder / "data"))
        patch.setenv("POSBENCH_RUNS", str(folder / "runs"))
        for name in ("POSBENCH_CONFIGS", "POSBENCH_DEBUG", "HYDRA_FULL_ERROR"):
            patch.delenv(name, raising=False)
        for kind in ("done", "other", "half"):
            assert posbench(f"train encoding={RUNS[kind]} {overrides}").status == 0
        for kind in ("done", "other"):
            assert posbench(f"eval {RUNS[kind]} --lengths 32 {EVAL}").status == 0
        of(folder / "runs", "half").rename(folder / "undisturbed")

        def kill(*_: object) -> None:
            raise Killed

        with patch.context() as killing:
            killing.setattr(train.checkpoint, "save_weights", kill)
            for kind in ("half", "other half"):
                with pytest.raises(Killed):
                    posbench(f"train encoding={RUNS[kind]} {overrides}")
        yield folder, overrides


@pytest.fixture
def runs(made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the runs, for one case. Configs are composed once: no file of a run has a part in that."""
    monkeypatch.setattr(bridge, "launch", lambda work, command, words, **more: work(composed(*words), command))
    monkeypatch.setattr(composing, "compose", lambda words: composed(*words))
    shutil.copytree(made[0] / "runs", tmp_path / "runs")
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@cache
def _composed(words: tuple[str, ...]) -> Config:
    return compose(words)


def composed(*words: str) -> Config:
    return copy.deepcopy(_composed(words))


def of(runs: Path, kind: str) -> Path:
    (found,) = runs.glob(f"{RUNS[kind]}-*")
    return found


def tree(folder: Path) -> dict[str, str]:
    """The digest of every file below `folder`."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def foreign(file: Path) -> None:
    """The same file of another run; a row of other numbers under this row's name."""
    runs = next(folder for folder in file.parents if folder.name == "runs")
    other = of(runs, "other half" if RUNS["half"] in str(file) else "other")
    file.write_bytes(min((other / file.parent.name).glob(f"*{file.suffix}"), default=other / file.name).read_bytes())


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "garbage": lambda file: file.write_bytes(bytes(range(255, -1, -1)) * 4),
    "another kind": lambda file: file.write_text('{"step": [], "state": []}\n'),
    "foreign": foreign,
    "missing": lambda file: file.unlink(),
}

FILES = {
    "run.json": "done",
    "status.json": "done",
    "model.safetensors": "done",
    "checkpoint.safetensors": "half",
    "metrics.jsonl": "half",
    "tokenizer.json": "half",
    "rows/*.json": "done",
    "rows/*.npz": "done",
}
"""Each file, and the kind of run it is damaged in."""

HARMLESS = {
    *(("status.json", "foreign"), ("status.json", "missing"), ("checkpoint.safetensors", "missing")),
    *(("metrics.jsonl", how) for how in ("empty", "half", "foreign", "missing")),
    *(("tokenizer.json", "foreign"), ("rows/*.json", "missing")),
}
"""What no command has to name: nothing is wrong (both tokenizers are bytes), or what is gone is made again."""


def cells(text: str) -> dict[tuple[str, int], float]:
    """Perplexity by encoding and length, from `--format json`."""
    return {(row["encoding"], row["length"]): row["perplexity"] for table in json.loads(text) for row in table["rows"]}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("pattern", FILES)
def test_a_damaged_file_is_a_sentence_and_costs_no_other_run(made, runs: Path, pattern: str, how: str):
    """A file of a run is empty, cut short, garbage, foreign or gone: a sentence names it, and no other run pays."""
    kind = FILES[pattern]
    run, settings = of(runs, kind), f"encoding={RUNS[kind]} {made[1]}"
    whole = cells(posbench("table --format json").out)
    file = min(run.glob(pattern))
    DAMAGE[how](file)
    others = {folder: tree(folder) for folder in runs.iterdir() if folder != run}
    said = ""
    # The two slow commands by turns, so that each meets every file and every damage.
    turn = list(FILES).index(pattern) + list(DAMAGE).index(how)
    last = "train" if kind == "half" or turn % 2 else "eval"
    for command in ("runs", "table", f"show {run.name}", f"generate {run.name} the --tokens 2", last):
        before = tree(run)
        if command == "eval":
            # One length that is measured already and one that is not.
            done = posbench(f"eval --lengths 32,48 {EVAL} --format json")
            shown = cells(done.out)
            # Whatever was lost, a number that is shown is the number that was measured, and no fault of a file is a
            # row that is n/a from then on.
            assert shown == {cell: whole.get(cell, shown[cell]) for cell in shown}
            assert None not in shown.values()
            assert (RUNS["other"], 48) in shown
        elif command == "train":
            done = posbench(f"train {settings}")
            if done.status == 0:
                expected = made[0] / ("undisturbed" if kind == "half" else f"runs/{run.name}")
                assert toys.sha(run / "model.safetensors") == toys.sha(expected / "model.safetensors")
            else:
                kept = {name: digest for name, digest in before.items() if name not in ("log.txt", "status.json")}
                assert tree(run).items() >= kept.items()
        else:
            done = posbench(command)
            assert tree(run) == before
        assert done.status in ((0, 1, 2) if command == "eval" else (0, 2)), done.err
        assert "Traceback" not in done.err
        assert len([line for line in done.err.splitlines() if line.startswith("error: ")]) == bool(done.status)
        assert not done.status or run.name in done.err
        said += done.err
    assert all(tree(folder).items() >= before.items() for folder, before in others.items())
    named = "belongs to the run" if how == "foreign" and "safetensors" in said else file.name
    assert (pattern, how) in HARMLESS or named in said


def test_a_run_whose_record_is_damaged_is_listed_as_such(runs: Path):
    """A record is damaged: its run is listed as such, and the others as what they are."""
    run = of(runs, "done")
    (run / "run.json").write_text("{}")
    done = posbench("runs --format json")
    states = {row["run"]: row["state"] for row in json.loads(done.out)[0]["rows"]}
    assert (states[run.name], states[of(runs, "other").name]) == ("damaged", "done")
    assert f"warning: {run / 'run.json'} is damaged" in done.err


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_folder_in_a_rows_place_is_named_and_the_other_rows_stand(runs: Path, suffix: str):
    """A folder lies in the place of a row, read or to be written: it is named, and all other rows stand."""
    file = min((of(runs, "done") / "rows").glob(f"*{suffix}"))
    file.unlink()
    file.mkdir()
    done = posbench("table --format json")
    assert done.status == 0
    assert file.name in done.err
    assert len(cells(done.out)) == 3
    done = posbench(f"eval --lengths 32 {EVAL} --format json")
    assert done.status == 1
    assert f"error: Is a directory: {file}\n" in done.err
    assert {encoding for encoding, _ in cells(done.out)} == {RUNS["other"]}


# What the machine does ------------------------------------------------------------------------------------------------


class Disk:
    """A disk that is full from its write number `full` on (from 1)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.write, self.full, self.count = files.write_file, 0, 0
        patch.setattr(files, "write_file", self)

    def __call__(self, path: Path, write: Callable[[Path], object]) -> None:
        self.count += 1
        if self.full and self.count >= self.full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        self.write(path, write)


def test_a_disk_that_fills_up_at_any_write_of_a_training_costs_no_bit(
    made, runs: Path, monkeypatch: pytest.MonkeyPatch
):
    """The disk is full at any write of a training: a sentence; with room again the same command has the same bits."""
    disk, command = Disk(monkeypatch), f"train encoding={RUNS['half']} {made[1]}"
    expected = toys.sha(made[0] / "undisturbed" / "model.safetensors")
    shutil.rmtree(of(runs, "half"))
    assert posbench(command).status == 0
    writes = disk.count
    assert writes > 8
    for full in range(1, writes + 1):
        shutil.rmtree(of(runs, "half"))
        disk.full, disk.count = full, 0
        done = posbench(command)
        assert done.status == 2
        assert done.err.splitlines()[-1].startswith("error: No space left on device: ")
        disk.full = 0
        assert posbench(command).status == 0
        assert toys.sha(of(runs, "half") / "model.safetensors") == expected


def test_a_disk_that_fills_up_in_an_evaluation_keeps_the_rows_that_are_there(
    runs: Path, monkeypatch: pytest.MonkeyPatch
):
    """The disk is full at the first or second row of an evaluation: what is there stays, the rest is made later."""
    rows, disk = of(runs, "done") / "rows", Disk(monkeypatch)
    before = tree(rows)
    for full, kept in ((2, 2), (3, 3)):  # the first row of a run is two writes
        disk.full, disk.count = full, 0
        done = posbench(f"eval {RUNS['done']} --lengths 24,48 {EVAL}")
        assert done.status == 2
        assert done.err.splitlines()[-1].startswith("error: No space left on device: ")
        assert tree(rows).items() >= before.items()
        assert len(cells(posbench(f"table {RUNS['done']} --format json").out)) == kept
    disk.full = 0
    done = posbench(f"eval {RUNS['done']} --lengths 24,48 {EVAL} --format json")
    assert sorted(length for _, length in cells(done.out)) == [16, 24, 48]


def test_of_two_trainings_of_one_config_the_second_says_so(made, runs: Path, monkeypatch: pytest.MonkeyPatch):
    """Two trainings of one run at once: the second says so, and the first ends as if it had been alone."""
    command, seen = f"train encoding={RUNS['half']} {made[1]}", []
    real = train.gradient

    def gradient(*words):
        if not seen:
            seen.append(posbench(command))
        return real(*words)

    shutil.rmtree(of(runs, "half"))
    monkeypatch.setattr(train, "gradient", gradient)
    assert posbench(command).status == 0
    run = of(runs, "half")
    assert seen[0].status == 2
    assert f"error: {run.name} is being worked on by another process, pid " in seen[0].err
    assert toys.sha(run / "model.safetensors") == toys.sha(made[0] / "undisturbed" / "model.safetensors")


def test_runs_that_cannot_be_written_are_read_and_refused_in_a_sentence(
    made, runs: Path, monkeypatch: pytest.MonkeyPatch
):
    """The folder of runs is read-only: what is there is read, and what would be written is refused in a sentence."""
    # By what such a file system answers: tests may run as root, who may write anywhere.

    def read_only(path: Path, *_: object, **__: object) -> None:
        if runs in Path(path).parents:
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "mkdir", read_only)
    monkeypatch.setattr(files.tempfile, "mkstemp", lambda prefix, suffix, dir: read_only(dir / "x"))
    for command in ("table", "runs", f"show {RUNS['done']}", f"eval {RUNS['done']} --lengths 32 {EVAL}"):
        assert posbench(command).status == 0
    for command in (f"eval {RUNS['done']} --lengths 48 {EVAL}", f"train encoding={RUNS['half']} {made[1]} seed=2"):
        done = posbench(command)
        assert done.status == 2
        assert done.err.splitlines()[-1].startswith(f"error: Read-only file system: {runs}")
