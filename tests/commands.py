"""posbench as a process of its own, with an encoding that takes its time and one that fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import toys

from posbench import system
from posbench.run import Run

OWN = """\
import os
import time

from posbench.encodings.base import Encoding


class Slow(Encoding):
    def embed(self, x, positions):
        time.sleep(float(os.environ.get("SLOW", 0)))
        return x


class Broken(Encoding):
    def embed(self, x, positions):
        raise RuntimeError("this encoding never works")
"""

SECONDS_A_STEP = 0.15
STEPS = 100

TINY = (
    "data=files tokenizer=bytes model.layers=1 model.width=16 model.heads=2 model.hidden=24 train.length=16 "
    f"train.tokens={32 * STEPS} train.batch_tokens=32 train.validate_tokens={32 * STEPS} train.threads=1 "
    "train.compile=off device=cpu"
)


@dataclass
class Commands:
    """Commands in one folder: `encoding=slow` takes 15 s, and with `quick=True` no time."""

    folder: Path
    environment: dict[str, str]
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @classmethod
    def within(cls, folder: Path, **environment: str) -> Commands:
        own = folder / "own" / "encoding"
        own.mkdir(parents=True)
        (own / "mine.py").write_text(OWN)
        (own / "slow.yaml").write_text("class: mine.py:Slow\n")
        (own / "broken.yaml").write_text("class: mine.py:Broken\n")
        toys.text(folder / "text")
        more = {"POSBENCH_CONFIGS": str(folder / "own"), "POSBENCH_DATA": str(folder / "data"), "COLUMNS": "200"}
        return cls(folder, {**system.environment(OMP_NUM_THREADS="1"), **more, **environment})

    def start(self, line: str, *, tiny: str = TINY, quick: bool = False) -> subprocess.Popen[str]:
        """`posbench` with that line, and the settings with which a run is small."""
        data = [f"data.{split}=text/{split}.txt" for split in ("train", "validation", "test")]
        runs = self.folder / ("undisturbed" if quick else "runs")
        self.running.append(
            subprocess.Popen(
                [sys.executable, "-m", "posbench", *line.split(), *tiny.split(), *data],
                cwd=self.folder,
                env=self.environment | {"POSBENCH_RUNS": str(runs), "SLOW": "0" if quick else str(SECONDS_A_STEP)},
                stdin=subprocess.DEVNULL,
                stdout=self._file("out"),
                stderr=self._file("err"),
                text=True,
            )
        )
        return self.running[-1]

    def _file(self, name: str) -> IO[str]:
        return (self.folder / f"{len(self.running)}.{name}").open("w", encoding="utf-8")

    def end(self, running: subprocess.Popen[str], seconds: float = 900) -> tuple[int, str]:
        """Its status and what it said, once it has ended."""
        status = running.wait(seconds)
        return status, self.said(running)

    def said(self, running: subprocess.Popen[str]) -> str:
        return (self.folder / f"{self.running.index(running)}.err").read_text()

    def run(self, line: str, *, tiny: str = TINY, quick: bool = False) -> tuple[int, str]:
        return self.end(self.start(line, tiny=tiny, quick=quick))

    def runs(self, folder: str = "runs") -> dict[str, Run]:
        """By encoding and seed: "slow-1"."""
        found = [Run(path) for path in sorted((self.folder / folder).glob("*-s*-*"))]
        return {run.name.split("-")[0] + "-" + run.name.split("-s")[-1].split("-")[0]: run for run in found}

    def same_weights(self, *names: str) -> bool:
        """Whether these runs have the very weights of the undisturbed ones."""
        here, there = self.runs(), self.runs("undisturbed")
        return all(toys.sha(here[name].weights) == toys.sha(there[name].weights) for name in names)

    def kill(self) -> None:
        """End what a test has left behind."""
        for one in self.running:
            if one.poll() is None:
                one.kill()
                one.wait()


def until(true: Callable[[], bool], seconds: float = 240) -> None:
    """Wait for other processes."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not come to that"
        time.sleep(0.25)


def output(*words: str, **environment: str) -> str:
    """What a program prints."""
    there = os.environ | environment
    return subprocess.run(words, env=there, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
