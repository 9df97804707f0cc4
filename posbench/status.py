"""How far runs are, from what lies in their folders: seen from any terminal or node, and without loading a model.

done, done, rows only       nothing is left to do (the latter has lost its weights since)
running, evaluating         a process is at it now; starting: it reads the text or makes the model
failed                      and why
interrupted, stopped        nobody is at it; the same command goes on (stopped: it was killed, maybe before its first
                            checkpoint)
trained                     not yet measured, or not all of it
older format                the same config gives other weights now: it is another run, with a name of its own
newer format                this posbench is older than it: another one can read it
waiting                     not begun
damaged                     and what of it
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench import lock
from posbench.errors import UserError
from posbench.files import parse_json
from posbench.identity import FORMAT, newer_format
from posbench.report.tables import Cell, Column, Table, table
from posbench.run import Run

if TYPE_CHECKING:
    from posbench.evaluate import Request
    from posbench.records import Row

FINAL = ("done", "done, rows only", "failed", "damaged", "older format", "newer format")
"""States that nothing will change by itself."""

_TAIL_BYTES = 1 << 13
"""Of metrics.jsonl, in which the last line with a loss is looked for."""

COLUMNS = [
    Column("run", "run", right=False),
    Column("state", "state", right=False),
    Column("step", "step"),
    Column("steps", "of"),
    Column("loss", "loss"),
    Column("tokens_per_second", "tokens/s"),
    Column("seconds_left", "left"),
    Column("rows", "rows"),
    Column("reason", "", right=False),
]


def overview(title: str, runs: Iterable[tuple[Run, Sequence[Request] | None]]) -> Table:
    """A line for each run; with the requests of a study, how many of their rows are there."""
    from posbench.progress import duration

    lines = []
    for run, requests in runs:
        line = look(run, requests)
        left, speed, rows = line["seconds_left"], line["tokens_per_second"], str(line["rows"])
        lines.append(
            line
            | {"seconds_left": Cell(left, "" if left is None else duration(left))}
            | {"tokens_per_second": Cell(speed, "" if speed is None else f"{speed:,.0f}")}
            | {key: Cell(line[key], "") for key in ("step", "steps", "loss", "reason") if line[key] is None}
            | {"rows": Cell(line["rows"], rows if requests is None else f"{rows} of {len(requests)}")}
        )
    states = [line["state"] for line in lines]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return table(title, COLUMNS, lines, [f"{len(lines)} runs: {counts}"])


def look(run: Run, requests: Sequence[Request] | None = None) -> dict[str, Any]:
    """How far one run is, by the keys of `COLUMNS`; None where there is nothing to say.

    `rows` counts those there are, with `requests` those of them that are asked for. (Whether a row has the very targets
    that are asked for only whoever reads the text can say; here their number has to do.)
    """
    found: dict[str, Any] = dict.fromkeys(column.key for column in COLUMNS)
    found |= {"run": run.name, "rows": _rows(run, requests)}
    try:
        status = run.status()
        record = run.record if run.started else {"format": FORMAT}
    except UserError as error:
        return found | {"state": "damaged", "reason": error.message}
    owner = lock.owner(run.path)
    found |= {key: status[key] for key in ("step", "steps", "loss", "reason") if key in status and run.started}
    state, reason = status["state"], None if owner is None else str(owner)
    if record["format"] != FORMAT:
        state = "newer format" if newer_format(record["format"]) else "older format"
        reason = f"format {record['format']}, and this posbench has {FORMAT}"
    elif state == "running":
        found |= _live(run, found)
    elif state in ("done", "rows only"):
        state = _measured(state, owner is not None, found["rows"], requests)
    elif owner is not None:
        state = "starting"
    elif state == "new":
        state, reason = ("stopped", "before its first checkpoint") if run.started else ("waiting", None)
    if state == "failed":
        reason = status.get("reason")
    return found | {"state": state, "reason": reason}


def _measured(state: str, held: bool, rows: int, requests: Sequence[Request] | None) -> str:
    """The state of a run that was trained."""
    if requests is not None and rows < len(requests):
        return "evaluating" if held else "trained" if state == "done" else state
    return "done" if state == "done" else "done, rows only"


def _live(run: Run, found: dict[str, Any]) -> dict[str, Any]:
    """What the last line of its metrics says, which is newer than its last checkpoint."""
    file = run.path / "metrics.jsonl"
    with suppress(OSError), file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        for text in reversed(stream.read().split(b"\n")):
            with suppress(ValueError, KeyError, TypeError):
                line = parse_json(text)
                step, speed = line["step"], line["tokens_per_second"]
                left = (found["steps"] - step) * line["tokens"] / step / speed
                return {"step": step, "loss": line["loss"], "tokens_per_second": speed, "seconds_left": left}
    return {}


def _rows(run: Run, requests: Sequence[Request] | None) -> int:
    there = [row for file in run.rows_dir.glob("[!.]*.json") if (row := _row(file))]
    if requests is None:
        return len(there)
    return sum(any(_answers(row, request) for row in there) for request in requests)


def _row(file: Path) -> Row | None:
    """The row in a file; None where there is none that a table or a study would take."""
    with suppress(OSError, UserError):
        marks = [_mark(one) for one in (file, file.with_suffix(".npz"))]
        return _loaded(file, *marks)
    return None


def _mark(file: Path) -> tuple[int, ...] | None:
    """What is another one as soon as a file is; None where there is none."""
    with suppress(FileNotFoundError):
        seen = file.stat()
        return seen.st_mtime_ns, seen.st_size, seen.st_ino
    return None


@lru_cache(maxsize=1 << 16)
def _loaded(file: Path, *marks: tuple[int, ...] | None) -> Row:
    """Read once, however often it is looked at: with `marks`, so that a new one is read again."""
    from posbench import records  # here, since where there are no rows it goes without numpy

    return records.load(file)


def _answers(row: Row, request: Request) -> bool:
    from posbench.records import READING

    if any(getattr(row, name) != getattr(request, name) for name in READING):
        return False
    # A text may have fewer targets than are asked for.
    fits = request.targets is None or row.targets <= request.targets
    return fits and _extension(row.extension) == _extension(request.extension)


def _extension(text: str | None) -> str | None:
    """Its name: settings that are at their defaults stand in a request and not in a row."""
    return None if text is None else json.loads(text)["name"]
