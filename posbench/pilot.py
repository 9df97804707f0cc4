"""What has been measured of a study: of its runs, and of other seeds of the same recipes."""

from __future__ import annotations

from collections.abc import Iterable

from posbench import initial, records
from posbench.identity import identity
from posbench.job import Job
from posbench.records import Row


def rows(jobs: Iterable[Job]) -> list[Row]:
    """The rows that there are of these runs, whatever their seed, those of validation text first: what a study is
    planned by should not be the text it is judged on."""
    wanted = {initial.recipe(job.config, identity(job.config)) for job in jobs}
    found = [row for row in records.read() if row.recipe in wanted]
    return sorted(found, key=lambda row: row.split != "validation")
