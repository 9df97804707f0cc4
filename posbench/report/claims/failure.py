"""Where a method fails: the first length past L at which it loses more than at L, on the same targets.

Read are L + 8, 16, 32, 64, 128 and 2 L, 4 L, ...; as so many lengths are looked at, each interval is wider than one
alone would be (Bonferroni: 95 % for all of them together).

Press et al. read failure off nonoverlapping windows in two ways: where perplexity is lowest, and where it is back above
the value at L. Both come later, as longer windows lower the mean unless the model gets worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from posbench.records import Row
from posbench.report.claims.comparison import Comparison, compare
from posbench.report.claims.source import Curve, readings
from posbench.report.parts import UNDERTRAINED, Line, Part, marked, parts
from posbench.report.published import SHOWN, along
from posbench.report.tables import Cell, Column, Section, Table, cell

STEPS = (8, 16, 32, 64, 128)

LEVEL = 0.05
"""Of a verdict."""


def candidates(train_length: int, longest: int) -> list[int]:
    """The lengths that are looked at, up to `longest`.

    >>> candidates(64, 256)
    [72, 80, 96, 128, 192, 256]
    """
    found = {train_length + step for step in STEPS}
    multiple = 2 * train_length
    while multiple <= longest:
        found.add(multiple)
        multiple *= 2
    return sorted(length for length in found if length <= longest)


@dataclass(frozen=True)
class Failure:
    """Loss at each length less loss at the training length."""

    train_length: int
    by_length: dict[int, Comparison]

    @property
    def level(self) -> float:
        """Of the interval of one length: all cover their truth together in 95 %."""
        return 1 - LEVEL / len(self.by_length)

    def at(self, margin: float = 0.0) -> int | None:
        """The first length whose interval lies above a margin, in nats; None: none does."""
        for length, found in self.by_length.items():
            estimate = found.deciding
            low = found.mean if estimate is None else estimate.interval(self.level)[0]
            if low > margin:
                return length
        return None

    @property
    def since_unread(self) -> bool:
        """Whether the length that would be looked at before the one at which it fails was not read: then it may have
        failed there already."""
        if (at := self.at()) is None:
            return False
        before = [length for length in candidates(self.train_length, at) if length < at]
        return bool(before) and before[-1] not in self.by_length

    def lasts(self, tolerance: float) -> bool:
        """Whether the interval of each length ends below a tolerance, in nats."""
        estimates = [(found.mean, found.deciding) for found in self.by_length.values()]
        return all((mean if one is None else one.interval()[1]) <= tolerance for mean, one in estimates)

    def settled(self, margin: float, tolerance: float) -> tuple[bool, float]:
        """Whether it fails rather than lasts, and the p-value of that. A loss that lies between the margin and the
        tolerance shows both; it has failed then, as the margin is what a failure is."""
        fails, lasts = self.p_values(margin, tolerance)
        return (True, fails) if fails <= LEVEL or fails < lasts else (False, lasts)

    def p_values(self, margin: float, tolerance: float) -> tuple[float, float]:
        """p-values against no failure at any of these lengths, and against one at some of them.

        The first, of losses above the margin, is the smallest of all lengths, times their number; the second the
        largest, as each length must be shown to be within the tolerance.
        """
        estimates = [found.deciding for found in self.by_length.values()]
        known = [estimate for estimate in estimates if estimate is not None]
        assert len(known) == len(estimates), "of three seeds or more each has an estimate"
        fails = min(1.0, len(known) * min(estimate.above(margin) for estimate in known))
        return fails, max(estimate.below(tolerance) for estimate in known)


def failure(line: Line, lengths: Iterable[int]) -> Failure | None:
    """Of a line that was read at its training length and at all of `lengths`; None when one has no seed for it."""
    train_length = line.train_length
    assert train_length is not None
    home = {row.seed: row for row in line.measured(train_length)}
    found: dict[int, Comparison] = {}
    for length in lengths:
        there = {row.seed: row for row in line.measured(length)}
        seeds = {seed: [(1, there[seed]), (-1, home[seed])] for seed in home if seed in there}
        if not seeds:
            return None
        found[length] = compare(seeds)
    return Failure(train_length, found) if found else None


def failure_table(rows: Iterable[Row]) -> Table | None:
    """Where each line fails on the same targets, beside the two readings of nonoverlapping windows, ours and the
    paper's; None without rows of same-targets at and past a training length."""
    found = parts(rows)
    flat = [line for part in found if part.shared["protocol"] == "nonoverlapping" for line in part.lines]
    by_line: dict[tuple[Any, ...], dict[str, Any]] = {}
    for part in (part for part in found if part.shared["protocol"] == "same-targets"):
        for line in part.lines:
            record, key = _record(part, line, flat), line.key
            # Of several sets of targets the one that was read at the most lengths.
            if record and (key not in by_line or len(record["lengths"]) > len(by_line[key]["lengths"])):
                by_line[key] = record
    records = list(by_line.values())
    if not records:
        return None
    columns = [
        Column("encoding", "encoding", right=False),
        Column("train_length", "L"),
        Column("seeds", "seeds"),
        Column("fails_at", "fails at"),
        Column("best", "best at"),
        Column("back", "above L from"),
        Column("paper_best", "paper: best at"),
        Column("paper_back", "above L from"),
        Column("paper", "paper", right=False),
    ]
    return Table(
        "Where each fails",
        columns,
        [Section("", [_cells(record) for record in records])],
        [
            "fails at: the first length read whose loss on the same targets is above that at L, interval above 0 (95 % "
            "for all lengths together; of fewer than three seeds the text's alone, for these checkpoints). In tokens, "
            "and in multiples of L; by: those between it and the one before were not read.",
            "best at, above L from: nonoverlapping windows as in the paper, where longer ones lower the mean unless "
            "the model gets worse: of the lengths read, and no finer than these, the one with the lowest perplexity, "
            "and the first past it that is above the value at L.",
            *([UNDERTRAINED] if any(record["undertrained"] for record in records) else []),
        ],
        records,
    )


def failing(part: Part, line: Line) -> Failure | None:
    """Of all lengths at which a line of same-targets was read; None where it was not read at L and past it."""
    train_length = line.train_length
    if train_length is None or not line.measured(train_length):
        return None
    read = [length for length in candidates(train_length, part.lengths[-1]) if line.measured(length)]
    return failure(line, read)


def _record(part: Part, line: Line, flat: list[Line]) -> dict[str, Any] | None:
    found, train_length = failing(part, line), line.train_length
    if found is None or train_length is None:
        return None
    read = sorted(found.by_length)
    ours = next((one for one in flat if one.key == line.key), None)
    best, back = _readings(ours, train_length)
    record: dict[str, Any] = {
        "encoding": line.name,
        "undertrained": line.undertrained,
        "train_length": train_length,
        "seeds": found.by_length[read[0]].seeds,
        "fails_at": found.at(),
        "by": found.since_unread,
        "longest": read[-1],
        "lengths": read,
        "best": best,
        "back": back,
        "paper_best": None,
        "paper_back": None,
        "paper_train_length": None,
        "paper": None,
    }
    if line.name in SHOWN:
        table, length = SHOWN[line.name]
        curve = Curve(tuple(along(table, line.name, length)))
        record |= {"paper_best": curve.best, "paper_back": curve.back, "paper_train_length": length}
        record["paper"] = f"{table}, L = {length:,}, to {curve.cells[-1].length:,}"
    return record


def _readings(line: Line | None, train_length: int) -> tuple[int | None, int | None]:
    """Both readings of a nonoverlapping line that was read at its training length and further."""
    if line is None or not line.measured(train_length):
        return None, None
    known = {length: line.perplexity(length) for length in sorted(line.rows) if length >= train_length}
    return readings({length: None if value is None else value.value for length, value in known.items()})


def _cells(record: Mapping[str, object]) -> list[Cell]:
    home, away = record["train_length"], record["paper_train_length"]
    none = f"not to {record['longest']:,}"
    return [
        cell(record["encoding"], marked(str(record["encoding"]), bool(record["undertrained"]))),
        cell(home),
        cell(record["seeds"]),
        _times(record["fails_at"], home, none, "by " if record["by"] else ""),
        _times(record["best"], home, "-"),
        _times(record["back"], home, "-" if record["best"] is None else "not"),
        _times(record["paper_best"], away, "-"),
        _times(record["paper_back"], away, "-" if record["paper"] is None else "not"),
        cell(record["paper"], str(record["paper"] or "")),
    ]


def _times(length: object, train_length: object, none: str, before: str = "") -> Cell:
    """Such as "160 (1.25 x)"."""
    if length is None:
        return Cell(None, none)
    assert isinstance(length, int)
    assert isinstance(train_length, int)
    return Cell(length, f"{before}{length:,} ({length / train_length:.3g} x)")
