"""A cell in a process of its own: what fails there is a reason, and nothing else is lost."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import works

from posbench import system
from posbench.bench import cells, trial
from posbench.bench.trial import Trial
from posbench.errors import UserError

GIB = 2**30


def test_a_cell_is_the_same_after_json():
    cell = works.cell(works.config("t5"), task="eval", length=64)
    assert cells.from_dict(json.loads(json.dumps(cell.to_dict()))) == cell
    assert cell.tokens == 128


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no limit of the address space elsewhere")
def test_a_cell_that_does_not_fit_is_marked_out_of_memory():
    """An embedding of 2^22 x 64 float32 takes 1 GiB, and there is a quarter of one."""
    found = trial.run(works.cell(vocab=2**22), GIB // 4, 120)
    assert found == Trial("out of memory (0.25 GiB)")


@pytest.mark.process
def test_a_cell_that_takes_too_long_is_marked():
    assert trial.run(works.cell(), GIB, 0.01) == Trial("not done within 0.01 s")


def instead_of_the_trial(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have its process do something else."""
    real = subprocess.Popen

    def instead(words: list[str], **how: object) -> subprocess.Popen:
        return real([sys.executable, "-c", f"import sys; sys.stdin.read(); {code}"], **how)

    monkeypatch.setattr(subprocess, "Popen", instead)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL, most likely for want of memory"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "its process was ended by SIGTERM"),
        ("raise RuntimeError('its words')", "its process failed: RuntimeError: its words"),
        ("raise SystemExit(3)", "its process failed: exit status 3"),
    ],
)
def test_a_process_that_ends_otherwise_is_marked(monkeypatch: pytest.MonkeyPatch, code: str, reason: str):
    instead_of_the_trial(monkeypatch, code)
    assert (trial.run(works.cell(), GIB, 60).reason or "").endswith(reason)


def test_a_trial_ends_with_all_of_its_processes_when_its_starter_has_ended(monkeypatch: pytest.MonkeyPatch):
    """Whoever is killed cannot end it, and its limit is gone with them."""
    ended: list[object] = []
    parents = iter([7, 7, 1])
    monkeypatch.setattr(trial, "LOOK_SECONDS", 0)
    monkeypatch.setattr(trial.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(trial.os, "getpgrp", trial.os.getpid)
    monkeypatch.setattr(trial.os, "killpg", lambda group, number: ended.append((group, number)))
    monkeypatch.setattr(trial.os, "_exit", ended.append)
    trial._outlive_nobody(7)
    assert ended == [(0, signal.SIGKILL), 1]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits that would have been set on this process."""
    found: list[int] = []
    monkeypatch.setattr(trial, "_limit", lambda extra, device: found.append(extra))
    return found


@pytest.mark.parametrize("task", ["train", "eval"])
def test_a_trial_measures_time_memory_and_size(limits: list[int], task: str):
    *before, found = trial.here(works.cell(task=task), GIB)
    assert limits == [GIB]
    assert found.reason is None
    assert found.seconds is not None
    assert found.seconds > 0
    assert found.peak is not None
    assert found.base is not None
    assert found.peak >= found.base > 2**20
    # 2 x (4 x 64 x 64 + 3 x 64 x 176 + 2 x 64) + 64 + 64 x 64
    assert found.parameters == 104_768
    # Of evaluation at least the residual stream of 2 x 16 tokens of 64 numbers; of training nothing is counted.
    # The largest is of a feed-forward: two of them, its norm and the stream beside it, of 176 and 64 numbers a token.
    if task == "train":
        assert (before, found.tensors) == ([], None)
    else:
        assert before == [replace(found, tensors=None)]
        assert found.tensors is not None
        assert 2 * 16 * 64 * 4 <= found.tensors < 2 * 16 * 64 * 4 * 20


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_call_that_cannot_be_counted_keeps_its_row(
    limits: list[int], monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def most_alive(call: object) -> int:
        raise error

    monkeypatch.setattr(trial, "most_alive", most_alive)
    [found] = trial.here(works.cell(task="eval"), GIB)
    assert (found.reason, found.tensors) == (None, None)
    assert found.seconds is not None


SAID = Trial(None, 0.5, 2 * GIB, GIB, 7)


@pytest.mark.parametrize("half", ["", '{"reason": null, "sec'])
def test_what_was_said_before_a_process_dies_stands(monkeypatch: pytest.MonkeyPatch, half: str):
    words = f"print({json.dumps(asdict(SAID))!r}); print({half!r}, end='', flush=True); import os; os.abort()"
    instead_of_the_trial(monkeypatch, words)
    assert trial.run(works.cell(), GIB, 60) == SAID


def test_what_was_said_before_a_process_hangs_stands(monkeypatch: pytest.MonkeyPatch):
    class Hangs(subprocess.Popen):
        def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
            if timeout is None:  # it is killed by now
                return super().communicate()
            assert select.select([self.stdout], [], [], 60)[0]  # it has said it
            raise subprocess.TimeoutExpired(self.args, timeout)

    code = f"print({json.dumps(asdict(SAID))!r}, flush=True); import threading; threading.Event().wait()"
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: Hangs([sys.executable, "-c", code], **how))
    assert trial.run(works.cell(), GIB, 5) == SAID


def test_what_fails_otherwise_is_not_passed_over(monkeypatch: pytest.MonkeyPatch):
    """An error of our own after a trial was said: the row says so."""
    code = f"print({json.dumps(asdict(Trial(None, 0.5)))!r}, flush=True); raise KeyError('Addr')"
    instead_of_the_trial(monkeypatch, code)
    assert trial.run(works.cell(), GIB, 60) == Trial("its process failed: KeyError: 'Addr'")


def test_memory_is_counted_above_the_base_and_never_below_nothing():
    assert Trial(peak=300, base=100).extra == 200
    assert Trial(peak=90, base=100).extra == 0
    assert Trial("out of memory").extra is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError("std::bad_alloc"), "out of memory (1 GiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory (1 GiB)"),
        (UserError("bloom has 3 parameters."), "bloom has 3 parameters."),
        (KeyError("gone"), "KeyError: 'gone'"),
    ],
)
def test_what_a_cell_raises_is_its_reason(
    limits: list[int], monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
):
    def prepare(cell: cells.Cell) -> cells.Prepared:
        raise error

    monkeypatch.setattr(trial, "prepare", prepare)
    assert list(trial.here(works.cell(), GIB)) == [Trial(reason)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no limit of the address space elsewhere")
def test_the_limit_is_what_is_mapped_and_so_much_more(monkeypatch: pytest.MonkeyPatch):
    found = []
    monkeypatch.setattr(trial.resource, "setrlimit", lambda kind, limit: found.append((kind, limit[0])))
    trial._limit(GIB, system.device("cpu"))
    [(kind, most)] = found
    assert kind == trial.resource.RLIMIT_AS
    assert most > GIB + 2**20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no limit of the address space elsewhere")
def test_the_limit_is_never_above_one_that_cannot_be_raised(monkeypatch: pytest.MonkeyPatch):
    """As `ulimit -v` sets it."""
    found = []
    monkeypatch.setattr(trial.resource, "getrlimit", lambda kind: (GIB, GIB))
    monkeypatch.setattr(trial.resource, "setrlimit", lambda kind, limit: found.append(limit))
    trial._limit(64 * GIB, system.device("cpu"))
    assert found == [(GIB, GIB)]


def test_a_peer_under_autocast_is_as_posbench_is():
    """bf16 in training where it is asked for, in evaluation on CUDA alone."""
    cpu = system.device("cpu")
    own = works.config()
    asked = replace(own, train=replace(own.train, precision="bf16"))
    assert [
        cells.half(works.cell(config, task=task), cpu) for config in (own, asked) for task in ("train", "eval")
    ] == [
        False,
        False,
        True,
        False,
    ]
