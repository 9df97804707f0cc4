"""`import posbench`: a run and the rows, from Python."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from made import arrays, row

import posbench
from posbench import records
from posbench.errors import UserError

ROOT = Path(__file__).parent.parent


def test_the_version_is_the_one_that_is_installed():
    assert posbench.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_records_are_the_rows_of_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path))
    records.write(tmp_path / "rope-L512-nano-s1-0a1b2c3d" / "rows", row(behind := arrays([256.0])), behind)
    frame = posbench.records()
    assert list(frame["encoding"]) == ["rope"]
    assert frame["loss"][0] == 2.0


def test_a_run_is_loaded_by_any_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path))
    path = tmp_path / "rope-L512-nano-s1-0a1b2c3d"
    path.mkdir()
    (path / "run.json").write_text("{}")
    for word in ("rope", "0a1b", path.name, path, str(path)):
        assert posbench.load(word).path == path.resolve()
    with pytest.raises(UserError, match="There is no run 'alibi'"):
        posbench.load("alibi")


def test_what_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        posbench.nonsense  # noqa: B018
