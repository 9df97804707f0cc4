"""What is said of the machine is true of this process."""

from __future__ import annotations

import mmap
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from posbench import system
from posbench.errors import UserError

LINUX = sys.platform.startswith("linux")


def test_what_is_put_on_a_device_is_the_same_there():
    """On CUDA by way of pinned memory; on a CPU it is where it is already."""
    batch = torch.arange(6).view(2, 3)
    assert system.on_device(batch, torch.device("cpu")) is batch
    assert torch.equal(system.on_device(batch, system.device("auto")).cpu(), batch)


def test_auto_is_a_device_that_works():
    device = system.device("auto")
    assert torch.ones(2, device=device).sum().item() == 2


def test_a_device_that_is_not_there_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert system.device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="device=cuda:1: there is none here") as caught:
        system.device("cuda:1")
    assert caught.value.hint == "device: auto, cpu"


def test_a_number_past_the_last_gpu_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert system.device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError, match="2 CUDA devices"):
        system.device("cuda:2")


@pytest.mark.parametrize("word", ["cuda:x", "cuda:", "cuda:-1", "cpu:0", "gpu", ""])
def test_what_is_no_device_is_refused_whatever_the_machine_has(monkeypatch: pytest.MonkeyPatch, word: str):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=f"There is no device '{word}'"):
        system.device(word)


def test_threads_of_one_job_do_not_leak_into_the_next():
    """A job with threads=1 comes before one with 0: the second must have the machine's again."""
    default = torch.get_num_threads()
    try:
        assert system.set_threads(system.DEFAULT_THREADS + 1) == system.DEFAULT_THREADS + 1
        assert system.set_threads(0) == system.DEFAULT_THREADS
    finally:
        torch.set_num_threads(default)


def touch(size: int) -> None:
    """Use that many bytes that come from the system and go back to it, whatever the allocator keeps in store."""
    with mmap.mmap(-1, size) as block:
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1


@pytest.mark.skipif(not LINUX, reason="peaks are only forgotten on Linux")
def test_peak_memory_is_of_the_block_and_not_of_what_ran_before_it():
    """128 MiB in the first block must not be in the second one's peak, nor 32 MiB in the second be missed."""
    if not system._forget_peak():
        pytest.skip("/proc/self/clear_refs is not writable here")
    with system.peak_memory() as before:
        pass
    with system.peak_memory() as large:
        touch(128 * 2**20)
    with system.peak_memory() as small:
        touch(32 * 2**20)
    assert large.bytes - before.bytes > 100 * 2**20
    assert 24 * 2**20 < small.bytes - before.bytes < 90 * 2**20


def test_where_a_peak_cannot_be_forgotten_that_of_the_whole_process_stands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(system, "_forget_peak", lambda: False)
    with system.peak_memory() as peak:
        pass
    assert peak.bytes == system._lifetime_peak()
    assert peak.bytes > 2**20


def test_the_rate_is_that_of_a_matrix_product():
    """Any machine multiplies two 64 x 64 matrices at 10 MF/s to 10 TF/s; a wrong unit is off by 1e3 or more."""
    assert 0.01 < system.matmul_rate(size=64, seconds=0.01) < 10_000


def test_a_compiler_without_pythons_headers_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(system.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert not system.has_compiler()
    (tmp_path / "Python.h").touch()
    assert system.has_compiler()
    monkeypatch.setattr(system.shutil, "which", lambda name: None)
    assert not system.has_compiler()


def test_the_commit_is_that_of_the_checkout_posbench_runs_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = system.commit()
    if (Path(system.__file__).parent.parent / ".git").exists():
        assert found is not None
        assert len(found[0]) == 40
    monkeypatch.setattr(system, "__file__", str(tmp_path / "site-packages" / "posbench" / "system.py"))
    assert system.commit() is None


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_what_is_measured_changes_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(system, "__file__", str(tmp_path / "posbench" / "system.py"))

    def git(*words: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *own, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "results").mkdir()
    for name in ("code.py", "results/kept.csv"):
        (tmp_path / name).write_text("old")
    git("add", "-A")
    git("commit", "-m", "first")
    for name in ("results/kept.csv", "results/made.json"):
        (tmp_path / name).write_text("new")
    assert (system.commit() or ("", None))[1] is False
    (tmp_path / "code.py").write_text("new")
    assert (system.commit() or ("", None))[1] is True
