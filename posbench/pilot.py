"""What has been measured of a study: of its runs, and of other seeds of the same recipes."""

from __future__ import annotations

from collections.abc import Iterable

from posbench import extensions, initial, records
from posbench.evaluate import Request
from posbench.identity import identity
from posbench.job import Job
from posbench.records import READING, Row
from posbench.report.parts import SHARED


def rows(jobs: Iterable[Job]) -> list[Row]:
    """The rows that there are of these runs, whatever their seed."""
    wanted = {initial.recipe(job.config, identity(job.config)) for job in jobs}
    return [row for row in records.read() if row.recipe in wanted]


def asked(jobs: Iterable[Job]) -> list[Row]:
    """The rows that these jobs ask for, of every seed of their recipes; those of runs that started from one of these,
    and of references, on the same targets.

    Where one of them was read on several sets of targets, the largest that is no larger than what is asked for.
    """
    requests: dict[str, list[Request]] = {}
    for job in jobs:
        requests.setdefault(initial.recipe(job.config, identity(job.config)), []).extend(job.requests)
    largest: dict[tuple[object, ...], Row] = {}
    rows = records.read()
    for row in rows:
        wanted = requests.get(row.recipe or "", [])
        if row.corpus == row.trained_on and any(_fits(row, request) for request in wanted):
            key = (row.run_hash, row.step, row.dtype, row.extension, *(getattr(row, name) for name in READING))
            if key not in largest or largest[key].targets < row.targets:
                largest[key] = row
    found = list(largest.values())
    same, runs = {_shared(row) for row in found}, {row.run for row in found}
    further = [row for row in rows if row.init_from in runs and row.run not in runs]
    counted = [row for row in rows if row.kind == "reference"]
    return found + [row for row in further + counted if _shared(row) in same]


def common_seeds(jobs: Iterable[Job]) -> set[int]:
    """The seeds that every recipe of these runs has."""
    seeds: dict[str, set[int]] = {}
    for job in jobs:
        seeds.setdefault(initial.recipe(job.config, identity(job.config)), set()).add(job.config.seed)
    return set.intersection(*seeds.values())


def _shared(row: Row) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in SHARED)


def _fits(row: Row, request: Request) -> bool:
    if any(getattr(row, name) != getattr(request, name) for name in READING):
        return False
    if request.targets is not None and row.targets > request.targets:
        return False
    wanted = None if request.extension is None else extensions.key(extensions.read(request.extension))
    return _unsearched(row.extension) == wanted


def _unsearched(extension: str | None) -> str | None:
    """The extension in the key of a row, without what a search found."""
    if extension is None:
        return None
    return extensions.write({key: value for key, value in extensions.read(extension).items() if key != "found"})
