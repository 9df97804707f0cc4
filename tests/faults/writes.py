"""Every write of posbench, seen from within the process that makes it: stopped halfway, counted, or replaced.

Nothing of posbench knows of this. `watch` puts itself before the two functions that publish a file or a folder, in the
process that is to be disturbed and in no other.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posbench import evaluate, files, train

OPENED, HALF, WHOLE = "opened", "half written", "not yet renamed"
PLACES = (OPENED, HALF, WHOLE)
"""Between opening a file and renaming it: nothing is in it, half of it, all of it."""

KINDS = ("checkpoint", "weights", "status", "row", "losses", "record", "token file")

OTHERWISE = "in between"
"""Where a process is that neither writes nor steps nor evaluates: reading, planning, appending to a log."""


def kind(path: Path) -> str:
    """What a file is, of `KINDS`; a folder of prepared text counts as a token file, like all that is in it."""
    named = {"checkpoint.safetensors": "checkpoint", "model.safetensors": "weights", "status.json": "status"}
    if path.parent.name == "rows":
        return "row" if path.suffix == ".json" else "losses"
    if path.name in named:
        return named[path.name]
    return "record" if (path.parent / ".lock").exists() else "token file"


@dataclass(frozen=True)
class Trap:
    """What is done in the middle of a write."""

    kind: str
    number: int
    """Of all writes of that kind in this process, from 1."""
    place: str
    act: Callable[[Path], None]
    """Given the file that is being filled."""


class Whereabouts:
    """What a process is doing, for others to read also after it was killed: memory shared over a fork."""

    SIZE = 64

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, self.SIZE)
        self.set(OTHERWISE)

    def set(self, text: str) -> None:
        self.memory[:] = text.encode().ljust(self.SIZE)

    def get(self) -> str:
        return self.memory[:].decode().strip()

    @contextmanager
    def at(self, text: str) -> Iterator[None]:
        before = self.get()
        self.set(text)
        yield
        self.set(before)


class Ledger:
    """What was published by all processes of a study, a line each, kept outside of what they share."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, kind: str, file: Path) -> None:
        entry = {"kind": kind, "file": f"{file.parent.name}/{file.name}", "of": str(file)}
        if kind == "status":
            entry |= {"kind": f"status {json.loads(file.read_bytes())['state']}"}
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, (json.dumps(entry) + "\n").encode())  # one write: a kill tears no line
        os.close(handle)

    def entries(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def count(self, *kinds: str) -> Counter[str]:
        """How often each file of these kinds was published; a status by its state, "status done"."""
        return Counter(entry["of"] for entry in self.entries() if entry["kind"] in kinds)

    def kinds(self) -> Counter[str]:
        """How many writes of each of `KINDS` there were."""
        return Counter(entry["kind"] if entry["kind"] in KINDS else "status" for entry in self.entries())


def watch(
    ledger: Ledger,
    where: Whereabouts,
    trap: Trap | None = None,
    plain: bool = False,
    stepped: Callable[[], None] = lambda: None,
) -> None:
    """From here on every write of this process is watched. `plain`: and none is atomic. `stepped` is told of each step.

    For a process that ends: nothing is put back.
    """
    write_file = plain_file if plain else files.write_file
    publish_directory = plain_directory if plain else files.publish_directory
    seen: Counter[str] = Counter()

    def spring(what: str, number: int, place: str, file: Path) -> None:
        if trap is not None and (what, number, place) == (trap.kind, trap.number, trap.place):
            where.set(f"{what}, {place}")
            trap.act(file)

    def write(path: Path, fill: Callable[[Path], object]) -> None:
        what = kind(Path(path))
        seen[what] += 1
        number = seen[what]

        def stopped(file: Path) -> None:
            spring(what, number, OPENED, file)
            fill(file)
            if trap is not None and (what, number, HALF) == (trap.kind, trap.number, trap.place):
                os.truncate(file, file.stat().st_size // 2)
            spring(what, number, HALF, file)
            spring(what, number, WHOLE, file)

        with where.at(f"{what}, in the write"):
            write_file(path, stopped)
        ledger.add(what, Path(path))

    @contextmanager
    def directory(path: Path) -> Iterator[Path]:
        seen["token file"] += 1
        number = seen["token file"]
        with publish_directory(path) as folder:
            spring("token file", number, OPENED, folder)
            yield folder
            if trap is not None and ("token file", number, HALF) == (trap.kind, trap.number, trap.place):
                for file in sorted(folder.glob("*.npy"))[::2]:
                    os.truncate(file, file.stat().st_size // 2)
            spring("token file", number, HALF, folder)
            spring("token file", number, WHOLE, folder)
        ledger.add("token file", path)

    def doing(module: Any, name: str, text: str, done: Callable[[], None] = lambda: None) -> None:
        real = getattr(module, name)

        def marked(*words: Any, **named: Any) -> Any:
            with where.at(text):
                found = real(*words, **named)
            done()
            return found

        setattr(module, name, marked)

    files.write_file, files.publish_directory = write, directory
    doing(train, "gradient", "in a step", stepped)
    doing(evaluate, "measure", "in an evaluation")


# What a tool does that does not know of kills ------------------------------------------------------------------------


def plain_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Opened, which empties it, and filled where it lies."""
    Path(path).write_bytes(b"")
    fill(Path(path))


@contextmanager
def plain_directory(path: Path) -> Iterator[Path]:
    """Made and filled where it lies."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
