"""A command line in this process: what it printed and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from posbench import cli


class Done(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


Posbench = Callable[..., Done]


@pytest.fixture
def posbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Posbench:
    """`posbench("train encoding=rope")` in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))
    for name in ("POSBENCH_CONFIGS", "POSBENCH_DEBUG", "HYDRA_FULL_ERROR"):
        monkeypatch.delenv(name, raising=False)

    def run(line: str, *words: str) -> Done:
        capsys.readouterr()
        status = cli.run([*shlex.split(line), *words])
        return Done(status, *capsys.readouterr())

    return run
