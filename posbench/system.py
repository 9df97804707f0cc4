"""What this machine is and how much of it was used."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from posbench.config import check_device
from posbench.errors import UserError

DEFAULT_THREADS = torch.get_num_threads()
"""Torch's own choice for this process (cores, affinity, OMP_NUM_THREADS), read before anything changes it."""


def device(name: str) -> torch.device:
    """The device of the setting `device`: auto is the first of cuda, mps, cpu that is there.

    Raises `UserError` for one that is not.
    """
    check_device(name)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    kind, _, number = name.partition(":")
    if not there.get(kind, False):
        raise UserError(
            f"device={name}: there is none here.", f"device: auto, {', '.join(k for k in there if there[k])}"
        )
    if number and int(number) >= torch.cuda.device_count():
        raise UserError(f"device={name}: this machine has {torch.cuda.device_count()} CUDA devices, from cuda:0.")
    return torch.device(name)


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """It on the device.

    On CUDA from pinned memory and without waiting: whoever makes the next batch does so while the GPU is still at work
    on the last one. Torch keeps the pinned memory until the copy is through.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def set_threads(count: int) -> int:
    """Compute with `count` threads, 0: torch's own choice; returns how many that is."""
    torch.set_num_threads(count or DEFAULT_THREADS)
    return torch.get_num_threads()


@dataclass
class Peak:
    """The most memory in use within a `peak_memory` block, in bytes; 0 until it ends."""

    bytes: int = 0


@contextmanager
def peak_memory(device: torch.device | None = None) -> Iterator[Peak]:
    """Measure the peak memory of a block: of the device on CUDA, of the whole process elsewhere.

    Linux forgets earlier peaks on request (VmHWM, through /proc/self/clear_refs). Where that is not allowed the peak
    of the whole life of the process stands in, which can only be too high.
    """
    peak = Peak()
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.bytes = torch.cuda.max_memory_allocated(device)
        return
    forgotten = _forget_peak()
    yield peak
    peak.bytes = _high_water_mark() if forgotten else _lifetime_peak()


def _forget_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _high_water_mark() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _lifetime_peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def out_of_memory(error: Exception) -> bool:
    """Whether an error says so: torch has a class for CUDA alone; elsewhere it is a RuntimeError like any other."""
    said = ("not enough memory", "can't allocate memory", "ALLOC_FAILED", "backend out of memory")
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(words in str(error) for words in said)


def commit() -> tuple[str, bool] | None:
    """Hash of the commit posbench runs from, and whether the checkout has changes, not counting those of results/,
    where measurements of that very commit are written; None for an installed posbench."""
    checkout = Path(__file__).resolve().parent.parent
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return None

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    head = git("rev-parse", "HEAD")
    return (head, bool(git("status", "--porcelain", "--", ".", ":(exclude)results"))) if head else None


def environment(**more: str) -> dict[str, str]:
    """This process's, with which a Python of its own finds this very posbench; and `more`."""
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": paths} | more


def matmul_rate(size: int = 1024, seconds: float = 0.3) -> float:
    """GF/s of a float32 matrix product of `size` x `size`: the best of as many as fit in `seconds`."""
    a = torch.rand(size, size)
    b = torch.rand(size, size)
    out = a @ b
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def has_compiler() -> bool:
    """Whether `torch.compile` can build its CPU kernels here: a C++ compiler and Python's own headers."""
    named = os.environ.get("CXX")
    compiler = any(map(shutil.which, [named] if named else ["g++", "clang++", "c++"]))
    return compiler and Path(sysconfig.get_paths()["include"], "Python.h").is_file()
