"""Every generated command line (lines.py) gets its answer: a mistake is at most three lines on stderr and status 2, and
nothing is written, by whichever way it came.
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lines import Line, all_lines

import posbench
from posbench import cli

pytestmark = pytest.mark.faults

LINES = all_lines()
AS_PROCESSES = random.Random(1).sample(LINES, 25)


def name(line: Line) -> str:
    """Of a line, in a report of the tests."""
    words = " ".join(word if len(word) < 60 else f"{word[:20]}..." for word in line.words)
    return f"{line.kind}: {words}".encode("ascii", "backslashreplace").decode()


def tree(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in; runs and texts would come to lie beside it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for kind in ("RUNS", "DATA"):
        monkeypatch.setenv(f"POSBENCH_{kind}", str(tmp_path / kind.lower()))
    for variable in ("POSBENCH_CONFIGS", "POSBENCH_DEBUG", "HYDRA_FULL_ERROR"):
        monkeypatch.delenv(variable, raising=False)
    return folder


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """`train --info` has Hydra write its log to the streams there are now, which a later line does not have."""
    loggers = [logging.getLogger(), logging.getLogger("hydra")]
    before = [(one.level, one.handlers[:]) for one in loggers]
    yield
    for one, (level, handlers) in zip(loggers, before, strict=True):
        one.setLevel(level)
        one.handlers[:] = handlers


def judge(line: Line, status: int, out: str, err: str) -> None:
    assert "Traceback" not in err
    assert status == line.status, err
    if status:
        assert line.said in err
        assert out == ""
        assert 1 <= len(err.splitlines()) <= 3
    else:
        assert line.said in out
        assert err == ""


def test_there_are_enough_of_them_and_none_twice():
    """475 command lines at least, no two alike."""
    assert len(LINES) >= 475
    assert len({line.words for line in LINES}) == len(LINES)
    assert len({line.kind for line in LINES}) >= 25


@pytest.mark.usefixtures("logging_restored")
@pytest.mark.parametrize("line", LINES, ids=name)
def test_a_line_gets_its_answer(line: Line, here: Path, capfd: pytest.CaptureFixture[str]):
    """A generated command line, malformed or valid, gets its answer and writes nothing."""
    status = cli.run(list(line.words))
    judge(line, status, *capfd.readouterr())
    assert tree(here.parent) == [here]


@pytest.mark.process
@pytest.mark.parametrize("line", AS_PROCESSES, ids=name)
def test_a_process_gives_the_same_answer(line: Line, here: Path):
    """The same of a process of its own."""
    words = [sys.executable, "-m", "posbench", *map(os.fsencode, line.words)]
    environment = os.environ | {"PYTHONPATH": str(Path(posbench.__file__).parents[1])}  # also where it is not installed
    done = subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL, env=environment)
    judge(line, done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"))
    assert tree(here.parent) == [here]
