"""Which variants of an entry stay, when all that is known of each is a trial."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import works

from posbench.bench import trial, variants
from posbench.bench.cells import Cell, Variant
from posbench.bench.entries import Entry
from posbench.bench.trial import Trial
from posbench.bench.variants import Budget, Trials

GIB = 2**30
KINDS = [Variant(attention, mode) for attention in ("flash", "explicit") for mode in (False, True)]


def entry(task: str = "train", kinds: int = 4, length: int = 16) -> Entry:
    return Entry("x", "none", [works.cell(task=task, variant=kind, length=length) for kind in KINDS[:kinds]])


def trials(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[Cell, int, float], Trial], device: str = "cpu", **budget: float
) -> Trials:
    monkeypatch.setattr(variants, "run", run)
    return Trials(replace(Budget(6, GIB, 10, float("inf")), **budget), torch.device(device))


def taking(*seconds: float | None) -> Callable[[Cell, int, float], Trial]:
    """Trials by variant: so many seconds, None: out of memory."""
    by_kind = dict(zip(KINDS, seconds, strict=False))

    def run(cell: Cell, memory: int, limit: float) -> Trial:
        found = by_kind[cell.variant]
        return Trial("out of memory (1 GiB)") if found is None else Trial(None, found, 30, 10, 100)

    return run


@pytest.mark.parametrize(
    ("seconds", "stay"),
    [
        ((1.0, 1.2, 1.26, 2.0), [0, 1]),  # 1.25 times the fastest
        ((1.2, 1.0, None, 1.25), [1, 0, 3]),
        ((1.0, 1.03, 1.02, 1.01), [0, 3, 2]),  # three at most
        ((None, 5.0, 9.0, 9.0), [1]),
    ],
)
def test_all_variants_near_the_fastest_trial_are_timed(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float | None, ...], stay: list[int]
):
    one = entry()
    trials(monkeypatch, taking(*seconds)).attempt(one)
    assert [contender.cell.variant for contender in one.contenders] == [KINDS[number] for number in stay]
    assert one.reason is None


def test_an_entry_of_which_nothing_works_keeps_the_reason_of_the_first(monkeypatch: pytest.MonkeyPatch):
    reasons = iter(["out of memory (1 GiB)", "not done within 300 s"])
    one = entry(kinds=2)
    trials(monkeypatch, lambda *args: Trial(next(reasons))).attempt(one)
    assert (one.reason, one.contenders) == ("out of memory (1 GiB)", [])


def test_the_time_that_is_left_is_asked_before_each_variant(monkeypatch: pytest.MonkeyPatch):
    """Of 10 s trials may take 6, and each takes 4: the second is told of the 2 that are left, no third one begins."""
    clock, limits = [100.0], list[float]()
    monkeypatch.setattr(variants.time, "monotonic", lambda: clock[0])

    def run(cell: Cell, memory: int, limit: float) -> Trial:
        limits.append(limit)
        clock[0] += 4
        return Trial(None, 1.0, 30, 10, 100)

    found = trials(monkeypatch, run, within=10.0, begun=100.0)
    first, second = entry(), entry()
    for one in (first, second):
        found.attempt(one)
    assert limits == [6.0, 2.0]
    assert [contender.cell.variant for contender in first.contenders] == KINDS[:2]
    assert (second.contenders, second.reason) == ([], "not tried: 6 s were over")


def test_the_base_of_what_is_compiled_is_the_peak_of_a_process_with_short_calls_alone(monkeypatch: pytest.MonkeyPatch):
    """One for all lengths of a variant."""
    tried: list[tuple[int, int]] = []

    def run(cell: Cell, memory: int, limit: float) -> Trial:
        tried.append((cell.length, cell.windows))
        return Trial(None, 1.0, 100 + cell.length, 10 if not cell.variant.compiled else None, 100)

    found = trials(monkeypatch, run)
    for length in (512, 1024):
        eager, compiled = entry("eval", 2, length), entry("eval", 2, length)
        for one in (eager, compiled):
            found.attempt(one)
            assert [contender.trial.extra for contender in one.contenders] == [90 + length, length - 128]
    assert tried.count((128, 1)) == 1


def test_on_a_gpu_trials_share_the_memory_and_what_ran_out_of_it_is_tried_again_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    """Cells of 64 tokens take more than a third; those of 128 tokens more than there is."""
    running, beside = set[int](), list[int]()

    def run(cell: Cell, memory: int, limit: float) -> Trial:
        running.add(cell.length)
        if memory == GIB:
            beside.append(len(running))
        needs = {16: GIB // 4, 64: GIB // 2, 128: 2 * GIB}[cell.length]
        running.remove(cell.length)
        return Trial("out of memory (1 GiB)") if needs > memory else Trial(None, 1.0, 30, 10, 100)

    many = [entry("eval", 1, length) for length in (16, 64, 128, 16)]
    many[3].reason = "out of memory"  # when it was compared with posbench: it has no trial
    found = trials(monkeypatch, run, device="cuda")
    assert [many.index(one) for one in found.each(many)] == [0, 3, 1, 2]
    assert [one.reason for one in many] == [None, None, "out of memory (1 GiB)", "out of memory"]
    assert beside == [1, 1]


def test_an_interruption_ends_the_trials_that_run(monkeypatch: pytest.MonkeyPatch):
    """Three wait for processes that would not end by themselves, others have not begun."""
    ended, begun = threading.Event(), threading.Semaphore(0)
    monkeypatch.setattr(trial, "stop", ended.set)

    def run(cell: Cell, memory: int, limit: float) -> Trial:
        begun.release()
        if cell.length > 16:
            ended.wait()
        return Trial(None, 1.0, 30, 10, 100)

    many = [entry("eval", 1, length) for length in (16, 64, 64, 64, 64, 64)]
    going = trials(monkeypatch, run, device="cuda").each(many)
    assert next(going) is many[0]
    with pytest.raises(KeyboardInterrupt):
        going.throw(KeyboardInterrupt())
    assert ended.is_set()
    assert not many[-1].contenders


@pytest.mark.process
def test_stop_ends_a_process_that_another_thread_waits_for(monkeypatch: pytest.MonkeyPatch):
    begun, found = threading.Event(), list[Trial]()

    class Running(set):
        def add(self, process: object) -> None:
            super().add(process)
            begun.set()

    monkeypatch.setattr(trial, "_running", Running())
    waiting = threading.Thread(target=lambda: found.append(trial.run(works.cell(), GIB, 60)))
    waiting.start()
    assert begun.wait(20)
    trial.stop()
    waiting.join(20)
    assert found == [Trial("its process was ended by SIGKILL, most likely for want of memory")]
