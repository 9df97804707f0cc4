"""Several processes at one study, asleep, killed, or with a clock that was set back: each thing is done once."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest
import toys
from judge import judge
from kills import Undisturbed
from sweeps import Place, Sweep, done, kill, start, stop
from writes import HALF, OPENED, WHOLE, Trap

from posbench import lock

pytestmark = [pytest.mark.faults, pytest.mark.slow]

SILENT, SET_BACK = -305.0, 3600.0
"""When the last heartbeat was, in seconds from now: five minutes ago; by a clock that was set back since, ahead."""


def elsewhere() -> None:
    """To this process and its locks, as seen from the others, belongs another machine."""
    lock._machine = lambda: "another machine"


def time_runs_back() -> None:
    """The clock of a process loses an hour whenever it is read."""
    begun, reads = time.time(), iter(range(10**9))
    time.time = lambda: begun - 3600.0 * next(reads)


def touched(place: Place, seconds: float) -> None:
    """The heartbeat of the one lock there is, so many seconds from now."""
    (file,) = place.runs.glob(f"*/{lock.NAME}")
    now = time.time() + seconds
    os.utime(file, (now, now))


def tree(place: Place) -> dict[str, tuple[int, str]]:
    """Time and content of every file of the runs."""
    files = (file for file in place.runs.rglob("*") if file.is_file())
    return {str(file): (file.stat().st_mtime_ns, toys.sha(file)) for file in files}


def end(sweep: Sweep) -> None:
    """Of a test that failed before its process did end."""
    with suppress(ProcessLookupError, ChildProcessError):
        sweep.send(signal.SIGKILL)
        sweep.end()


@pytest.mark.parametrize("trap", [None, Trap("losses", 3, HALF, kill)], ids=["both live", "one is killed"])
def test_two_at_one_study_share_the_work(small: Undisturbed, place: Place, trap: Trap | None):
    """Two sweeps race on one study, to the end or until one of them is killed in the middle of a row."""
    both = [start(small.plan, place, trap), start(small.plan, place)]
    assert [one.end() for one in both] == [0 if trap is None else -signal.SIGKILL, 0]
    assert judge(small.content, place, 0, []).good


@pytest.mark.parametrize(
    ("kind", "number", "at", "heartbeat"),
    [
        pytest.param("checkpoint", 3, WHOLE, SILENT, id="checkpoint"),
        pytest.param("status", 4, HALF, SILENT, id="status"),
        pytest.param("weights", 1, WHOLE, SILENT, id="weights"),
        pytest.param("losses", 4, OPENED, SILENT, id="losses"),
        pytest.param("row", 4, WHOLE, SILENT, id="row"),
        pytest.param("checkpoint", 3, WHOLE, SET_BACK, id="clock set back"),
    ],
)
def test_an_owner_that_wakes_up_replaced_writes_nothing(
    small: Undisturbed, place: Place, kind: str, number: int, at: str, heartbeat: float
):
    """An owner on another machine sleeps inside a write, is replaced, and wakes up when all is done."""
    owner = start(small.plan, place, Trap(kind, number, at, stop), prepare=elsewhere)
    try:
        owner.stopped()
        touched(place, heartbeat)
        assert done(small.plan, place) == 0
        before = tree(place)
        owner.send(signal.SIGCONT)
        assert owner.end() == 0, place.said
    finally:
        end(owner)
    assert tree(place) == before
    assert "was taken over by another process while this one was silent" in place.said
    assert judge(small.content, place, 0, []).good


def test_a_clock_that_is_set_back_takes_no_run_from_its_owner(small: Undisturbed, place: Place):
    """The clock loses an hour with every look, and a lock lies an hour ahead: its owner, which is alive, keeps it."""
    owner = start(small.plan, place, Trap("checkpoint", 3, OPENED, stop), prepare=time_runs_back)
    other = None
    try:
        owner.stopped()
        touched(place, 3600.0)
        other = start(small.plan, place, prepare=time_runs_back)
        until = time.monotonic() + 300
        while "is left for later" not in place.said and time.monotonic() < until:
            time.sleep(0.05)
        owner.send(signal.SIGCONT)
        assert [owner.end(), other.end()] == [0, 0], place.said
    finally:
        for one in (owner, other):
            if one is not None:
                end(one)
    assert "is left for later: being worked on by another process" in place.said
    assert "going on from step" not in place.said
    assert judge(small.content, place, 0, []).good
