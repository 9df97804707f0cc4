"""What a study has to show for itself: what is finished on disk, and whether the end is that of an undisturbed one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import toys
from sweeps import Place

from posbench import records
from posbench.errors import UserError
from posbench.records import KINDS
from posbench.run import Run
from posbench.stored import read_json

Stamp = tuple[int, int]
"""Inode and time of a file: another one after it was published again."""


@dataclass(frozen=True)
class Finished:
    """The runs and rows on disk that are whole, each with the stamp of the file that makes it so."""

    runs: dict[str, Stamp]
    rows: dict[str, Stamp]

    @property
    def all(self) -> dict[str, Stamp]:
        return self.runs | self.rows


def finished(place: Place) -> Finished:
    """What nothing may cost any more: runs that are done, rows that can be read."""
    runs, rows = {}, {}
    for file in sorted(place.runs.glob("*/status.json")):
        run = Run(file.parent)
        try:
            if run.done:
                runs[run.name] = _stamp(run.weights)
        except UserError:  # damaged
            continue
    for file in sorted(place.runs.glob("*/rows/*.json")):
        try:
            records.load(file)
        except UserError:
            continue
        rows[_name(file)] = _stamp(file)
    return Finished(runs, rows)


def content(place: Place) -> dict[str, Any]:
    """All that must come out the same, bit for bit, by what it is of.

    Weights by their digest; the losses of each step and validation; of each row key, what it is of, and result, in
    which the digest of its losses stands.
    """
    found: dict[str, Any] = {}
    for folder in sorted(path.parent for path in place.runs.glob("*/status.json")):
        run = Run(folder)
        try:
            if not run.done:
                continue
            losses = [(line["step"], line.get("loss"), line.get("valid")) for line in run.metrics()]
        except UserError:
            continue
        found[run.name] = (toys.sha(run.weights), losses)
    for file in sorted(place.runs.glob("*/rows/*.json")):
        try:
            records.load(file)
        except UserError:
            continue
        record = read_json(file)
        found[_name(file)] = {kind: record[kind] for kind in KINDS if kind != "cost"}
    return found


@dataclass
class Verdict:
    """How a disturbed study ended beside the undisturbed one."""

    lost: list[str]
    """Runs and rows that it does not have in the end: finished ones that are gone, and those it can no longer make."""
    twice: list[str]
    """Runs and rows that were finished, and were made again."""
    unequal: list[str]
    """Those that are not, bit for bit, what they are in the undisturbed study."""
    left: list[str] = field(default_factory=list)
    """Temporary files that nobody has cleared."""
    said: str = ""
    """The last lines of a study that did not get to its end."""

    @property
    def good(self) -> bool:
        return not (self.lost or self.twice or self.unequal or self.left or self.said)


def judge(expected: dict[str, Any], place: Place, status: int, before: list[Finished]) -> Verdict:
    """`status` is that of the last process; `before` is what was finished at each kill."""
    end, now = content(place), finished(place).all
    published = place.ledger.count("row", "status done")
    twice = Counter({_name(Path(of)): count for of, count in published.items() if count > 1})
    for one in before:
        twice.update(name for name, stamp in one.all.items() if name in now and now[name] != stamp)
    return Verdict(
        lost=sorted(expected.keys() - now.keys()),
        twice=sorted(twice),
        unequal=sorted(name for name, value in end.items() if value != expected.get(name)),
        left=sorted(str(file.relative_to(place.folder)) for file in place.folder.rglob(".*.tmp")),
        said="" if status == 0 else "\n".join(place.said.splitlines()[-8:]),
    )


def _name(file: Path) -> str:
    """A row by its run and file, a run by its own name."""
    return f"{file.parent.parent.name}/{file.stem}" if file.parent.name == "rows" else file.parent.name


def _stamp(file: Path) -> Stamp:
    facts = file.stat()
    return facts.st_ino, facts.st_mtime_ns
