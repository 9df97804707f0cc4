"""A row is read back as it was written, or it is not read at all."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import made
import numpy as np
import pytest

import posbench
from posbench import records
from posbench.errors import UserError

ARRAYS = made.arrays([256.0, 384.0])
"""Two blocks of 128 targets at 2 and 3 nats."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rope-L512-nano-s1-0a1b2c3d" / "rows"


def test_a_row_is_read_back_as_it_was_written(folder):
    written = records.write(folder, made.row(ARRAYS), ARRAYS)
    read = records.load(written.path)
    assert read == written
    assert read.perplexity == np.exp(2.5)
    back = records.arrays(read)
    for field in fields(back):
        assert np.array_equal(getattr(back, field.name), getattr(ARRAYS, field.name))
        assert getattr(back, field.name).dtype == getattr(ARRAYS, field.name).dtype


def test_an_na_row_keeps_its_reason_and_has_no_arrays(folder):
    written = records.write(folder, made.row(reason="the text is too short"), None)
    assert records.load(written.path).reason == "the text is too short"
    assert records.arrays(written) is None
    assert not list(folder.glob("*.npz"))


def test_the_file_says_what_was_measured(folder):
    row = made.row(ARRAYS, protocol="sliding", length=4096, stride=256)
    name = records.write(folder, row, ARRAYS).path.name
    assert name == f"sliding-4096-stride256-test-{records.digest(row)[:8]}.json"


def test_a_row_is_stored_by_kind(folder):
    """Whoever opens the file sees what identifies it, what came out, and what it took."""
    stored = json.loads(records.write(folder, made.row(ARRAYS), ARRAYS).path.read_text())
    assert list(stored) == ["about", "cost", "key", "result", "sha256"]
    assert stored["key"]["length"] == 512
    assert stored["result"]["nats"] == 640.0
    assert stored["cost"]["device"] == "cpu"


@pytest.mark.parametrize("name", [field.name for field in fields(records.Key)])
def test_every_field_of_the_key_changes_the_digest(name):
    row = made.row(ARRAYS)
    other = 7 if isinstance(getattr(row, name), int) else "another"
    assert records.digest(replace(row, **{name: other})) != records.digest(row)


def test_nothing_but_the_key_changes_the_digest():
    """A row computed again elsewhere, or by another commit, takes the place of the first."""
    again = made.row(None, device="cuda", seconds=3.0, commit="f" * 40, time="2027-01-01T00:00:00+00:00")
    assert records.digest(again) == records.digest(made.row(ARRAYS))


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def damage_garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xff\x00")


def damage_list(path: Path) -> None:
    path.write_text("[1, 2]")


def damage_other_json(path: Path) -> None:
    path.write_text('{"perplexity": 12.0}')


def damage_number(path: Path) -> None:
    path.write_text(path.read_text().replace('"targets": 256', '"targets": 255'))


def damage_key(path: Path) -> None:
    path.write_text(path.read_text().replace('"length": 512', '"length": 256'))


def damage_name(path: Path) -> None:
    path.rename(path.with_name("nonoverlapping-512-test-00000000.json"))


def damage_format(path: Path) -> None:
    path.write_text(path.read_text().replace('"format": 1', '"format": 999'))


def damage_no_arrays(path: Path) -> None:
    path.with_suffix(".npz").unlink()


def damage_arrays(path: Path) -> None:
    content = bytearray(path.with_suffix(".npz").read_bytes())
    content[len(content) // 2] ^= 1
    path.with_suffix(".npz").write_bytes(content)


DAMAGE = [value for name, value in globals().items() if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_row_is_left_out_by_name_and_the_others_stand(folder, damage):
    good = records.write(folder, made.row(ARRAYS, length=1024), ARRAYS)
    bad = records.write(folder, made.row(ARRAYS), ARRAYS).path
    damage(bad)
    with pytest.warns(records.BadRow, match="nonoverlapping-512-test") as said:
        assert records.read([folder]) == [good]
    assert len(said) == 1


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_row_asked_for_by_name_is_refused(folder, damage):
    path = records.write(folder, made.row(ARRAYS), ARRAYS).path
    damage(path)
    (left,) = folder.glob("*.json")
    with pytest.raises(UserError, match="nonoverlapping-512-test"):
        records.read([left])


WRONG = {
    "loss": ["2.5", None, math.nan, math.inf, True],
    "nats": [None, math.nan, 10**30],
    "perplexity": [math.nan, "12"],
    "seed": ["1", 1.0, True],
    "threads": ["2", None],
    "length": [None, 512.0, "512"],
    "status": ["fine", None],
    "kind": ["model"],
    "extended": [0],
    "extension": ["yarn", "[]", "{}"],
    "arrays_sha256": [None, 7],
    "time": [1767323045, "yesterday", ""],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_row_whose_checksum_is_right_and_a_value_wrong_is_none(folder, name, value):
    good = records.write(folder, made.row(ARRAYS, length=1024), ARRAYS)
    bad = rewritten(records.write(folder, made.row(ARRAYS), ARRAYS).path, name, value)
    with pytest.raises(UserError, match=rf"{bad.name} is not a row of posbench\.$"):
        records.load(bad)
    with pytest.warns(records.BadRow, match=f"{bad.name} is not a row of posbench. It is left out"):
        assert records.read([folder]) == [good]


def rewritten(path: Path, name: str, value: object) -> Path:
    """The file of a row with another value and the checksum and name that go with it."""
    stored = json.loads(path.read_text())
    del stored["sha256"]
    next(part for part in stored.values() if name in part)[name] = value
    row = records.Row(**{key: one for part in stored.values() for key, one in part.items()})
    there = path.with_name(f"{records.file_name(row)}.json")
    path.with_suffix(".npz").rename(there.with_suffix(".npz"))
    path.unlink()
    there.write_text(json.dumps(stored | {"sha256": records._sha256(stored)}))
    return there


def test_an_na_row_without_a_reason_is_none(folder):
    path = records.write(folder, made.row(None, reason=None), None).path
    with pytest.raises(UserError, match="is not a row of posbench"):
        records.load(path)


def test_a_whole_number_is_a_float_too(folder):
    """JSON of other programs has 3 for 3.0."""
    row = records.write(folder, made.row(ARRAYS, seconds=3), ARRAYS)
    assert records.load(row.path).seconds == 3


BEHIND = {name.name: getattr(ARRAYS, name.name) for name in fields(ARRAYS)}
NO_ARRAYS = {
    "one is missing": {name: array for name, array in BEHIND.items() if name != "nats"},
    "one is not known": BEHIND | {"more": BEHIND["nats"]},
    "none of them": {},
    "no block": {name: array[:0] for name, array in BEHIND.items()},
    "of other lengths": BEHIND | {"document": np.zeros(3, np.int32)},
    "bins of other lengths": BEHIND | {"position_nats": np.zeros(3)},
    "of other shapes": BEHIND | {"nats": np.array([[256.0], [384.0]])},
    "no numbers": BEHIND | {"nats": np.array(["256", "384"])},
    "of other targets": BEHIND | {"count": np.array([128, 127], np.int16)},
    "not finite": BEHIND | {"nats": np.array([256.0, np.nan])},
    "of parts": BEHIND | {"count": np.array([128.0, 128.0])},
    "objects": BEHIND | {"nats": np.array([256.0, None], object)},
}


@pytest.mark.parametrize("stored", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_arrays_that_are_not_those_of_the_row_are_named(folder, monkeypatch, stored):
    monkeypatch.setattr(records, "_save", lambda path, arrays: savez(path, stored))
    row = records.write(folder, made.row(ARRAYS), ARRAYS)
    with pytest.raises(UserError, match=r"nonoverlapping-512.*\.npz does not hold the losses of a row of posbench"):
        records.arrays(records.load(row.path))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"text", b"\x93NUMPY"])
def test_a_file_of_no_arrays_is_named(folder, monkeypatch, content):
    monkeypatch.setattr(records, "_save", lambda path, arrays: path.write_bytes(content))
    row = records.write(folder, made.row(ARRAYS), ARRAYS)
    with pytest.raises(UserError, match=r"\.npz does not hold the losses"):
        records.arrays(row)


def savez(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def test_a_leftover_of_a_killed_write_is_no_row(folder):
    """`write` publishes through a hidden temporary file, which a kill may leave behind."""
    good = records.write(folder, made.row(ARRAYS), ARRAYS)
    (folder / f".{good.path.name}.x.tmp").write_text("{")
    assert records.read([folder]) == [good]


def test_rows_are_found_in_a_row_file_a_run_and_a_folder_of_runs(folder):
    first = records.write(folder, made.row(ARRAYS), ARRAYS)
    other = folder.parents[1] / "alibi-L512-nano-s1-11111111" / "rows"
    second = records.write(other, made.row(ARRAYS, run_hash="11111111", encoding="alibi"), ARRAYS)
    runs = folder.parents[1]
    assert records.read([first.path]) == [first]
    assert records.read([folder]) == records.read([folder.parent]) == [first]
    assert records.read([runs]) == [second, first]
    assert records.read([runs, folder, second.path]) == [second, first], "each row once"


def test_without_paths_every_run_is_read(folder, monkeypatch):
    monkeypatch.setenv("POSBENCH_RUNS", str(folder.parents[1]))
    assert records.read() == []
    written = records.write(folder, made.row(ARRAYS), ARRAYS)
    assert records.read() == [written]


def test_a_path_that_is_not_there_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match="nothing at"):
        records.read([tmp_path / "ropee"])


def test_the_frame_is_typed_also_where_values_are_missing(folder):
    reference = made.row(ARRAYS, kind="reference", seed=None, train_length=None, model=None, stride=None)
    frame = records.frame([records.write(folder, made.row(ARRAYS), ARRAYS), reference])
    wanted = {
        "length": "int64",
        "seed": "Int64",
        "stride": "Int64",
        "perplexity": "float64",
        "word_perplexity": "float64",
        "dirty": "boolean",
        "encoding": "string",
        "status": "string",
        "time": "datetime64[ns, UTC]",
    }
    assert {name: str(frame[name].dtype) for name in wanted} == wanted
    assert frame.columns[0] == "run_hash"
    assert frame["seed"].isna().tolist() == [False, True]
    assert frame["perplexity"].tolist() == [np.exp(2.5)] * 2


def test_no_rows_give_an_empty_frame_with_the_same_columns():
    full, empty = records.frame([made.row(ARRAYS)]), records.frame([])
    assert len(empty) == 0
    assert empty.dtypes.to_dict() == full.dtypes.to_dict()


def test_posbench_records_is_a_dataframe_of_all_runs(folder, monkeypatch):
    monkeypatch.setenv("POSBENCH_RUNS", str(folder.parents[1]))
    records.write(folder, made.row(ARRAYS), ARRAYS)
    assert posbench.records()["perplexity"].tolist() == [np.exp(2.5)]


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="kills itself")
def test_a_kill_between_arrays_and_row_leaves_no_row(folder):
    """OUT-3: the row is the last thing written, so whatever can be read is complete."""
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(made.__file__).parent)!r})
from pathlib import Path
import made
from posbench import files, records
files.write_json = lambda path, value: os.kill(os.getpid(), signal.SIGKILL)
behind = made.arrays([256.0, 384.0])
records.write(Path({str(folder)!r}), made.row(behind), behind)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(folder.glob("*.npz"))) == 1
    assert records.read([folder]) == []


def test_a_row_nested_past_all_reading_is_no_row(folder):
    path = records.write(folder, made.row(ARRAYS), ARRAYS).path
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match="is not a row of posbench"):
        records.load(path)
