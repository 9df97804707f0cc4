"""What a task of Ray's does before it carries its job out; without a Ray."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from posbench import job
from posbench.cluster import ray


def test_a_task_is_carried_out_where_and_under_what_it_was_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A worker of a Ray that was there before has the folder and the settings of the command that brought it up."""
    monkeypatch.chdir(tmp_path)
    for key in ("POSBENCH_RUNS", "POSBENCH_DATA", "POSBENCH_FLEX", "OMP_NUM_THREADS"):
        monkeypatch.setenv(key, "theirs")
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(job, "carry_out", lambda text: f"{text} in {Path.cwd().name}")
    ours = {"POSBENCH_RUNS": "ours", "POSBENCH_DATA": "ours"}
    assert ray._attempt("the job", 3, str(tmp_path / "here"), ours) == "the job in here"
    assert ray._own(os.environ) == ours
    assert os.environ["OMP_NUM_THREADS"] == "3"
