"""A cell in a process of its own: what memory it takes, whether it works at all, and roughly how long a call is.

    1. start    torch's threads, the compiler and the peer's library, which are there whatever is measured
    2. limit    the address space, to what is mapped now and so much more; then build the model
    3. base     evaluation: the peak of a second short call. A compiled one has none yet: it is the peak of a process
                that makes short calls alone (`short`), since what a long call leaves behind is a part of what it
                takes, and what is compiled for one length is compiled anew for another.
                Training: the process before there is a model
    4. peak     evaluation: of the call. Training: of a second step, the optimizer's state being there. What is compiled
                is called once before; what the compiler leaves behind counts in training, and in evaluation stands on
                both sides
    5. time     the fastest of a few calls
    6. tensors  evaluation on a CPU: those alive at once in one more call, which is timed no longer

A cell that runs out of memory, is killed, raises or takes too long is a marked row, and nothing else is lost: what was
measured by step 5 is said before step 6, and stands whatever becomes of that. On CUDA it is the card's memory that is
limited and counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from posbench import system
from posbench.bench.cells import OURS, SHORT, Cell, from_dict, prepare
from posbench.bench.tensors import most_alive
from posbench.errors import UserError, how_it_ended, reason
from posbench.train import compiled

CALLS = 3
"""Calls of which the fastest says how long one takes."""

OUT_OF_MEMORY = "out of memory"
"""How the reason of a cell begins that had too little."""

LOOK_SECONDS = 0.2
"""Between two looks at whether whoever started this process is still there."""

TRIAL_SECONDS = 3.0
"""After which no further call is made."""


@dataclass(frozen=True)
class Trial:
    """What came of it. Of one that failed all is None but the reason."""

    reason: str | None = None
    seconds: float | None = None
    """Of one call."""
    peak: int | None = None
    """Bytes: of the whole process, on CUDA of its tensors."""
    base: int | None = None
    """Bytes of a short call, and of a training the process before there is a model; None: not measured here."""
    parameters: int | None = None
    tensors: int | None = None
    """Bytes of those alive at once in a call of evaluation on a CPU (`tensors.most_alive`)."""

    @property
    def extra(self) -> int | None:
        """Bytes above the base: what the length takes, or in training the model and its step."""
        return None if self.peak is None or self.base is None else max(0, self.peak - self.base)

    @property
    def ran_out(self) -> bool:
        """Whether there was too little memory."""
        return self.reason is not None and self.reason.startswith(OUT_OF_MEMORY)


def run(cell: Cell, limit: int, seconds: float) -> Trial:
    """Try a cell in a process of its own that may take `limit` bytes and `seconds`."""
    words = [sys.executable, "-m", "posbench.bench.trial"]
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=system.environment(),
        start_new_session=True,  # so that the compiler's own processes end with it
    )
    _running.add(process)
    asked = {"cell": cell.to_dict(), "limit": limit, "starter": os.getpid()}
    late = False
    try:
        out, err = process.communicate(json.dumps(asked), timeout=seconds)
    except subprocess.TimeoutExpired:
        late = True
        _kill(process)
        out, err = process.communicate()
    finally:
        _kill(process)
        process.wait()
        _running.discard(process)
    if process.returncode <= 0:
        for line in reversed(out.splitlines()):  # the last that is whole
            with contextlib.suppress(ValueError, TypeError):
                return Trial(**json.loads(line))
    if late:
        return Trial(f"not done within {seconds:g} s")
    if process.returncode < 0:
        return Trial(f"its process {how_it_ended(process.returncode)}")
    said = err.strip().splitlines()
    return Trial(f"its process failed: {said[-1] if said else f'exit status {process.returncode}'}")


_running: set[subprocess.Popen[str]] = set()
"""Those of all threads."""


def stop() -> None:
    """End all trials that run now: whoever waits for one in another thread cannot be interrupted."""
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def short(cell: Cell) -> Cell:
    """The same model reading one short window."""
    return replace(cell, length=min(SHORT, cell.length), windows=1)


def here(cell: Cell, limit: int) -> Iterator[Trial]:
    """The same in this process, whose address space is limited from now on; where tensors are counted it comes once
    before that, and once with them."""
    device = system.device(cell.config.device)
    try:
        _start(cell, device)
        with system.peak_memory(device) as start:
            pass
        base = start.bytes if cell.task == "train" else None
        _limit(limit, device)
        prepared = prepare(cell)
        if cell.task == "train" or cell.variant.compiled:
            prepared.call()
        elif prepared.short is not None:
            prepared.short()
            with system.peak_memory(device) as before:
                prepared.short()
            base = before.bytes
        with system.peak_memory(device) as peak:
            times = [_timed(prepared.call, device)]
        while len(times) < CALLS and sum(times) < TRIAL_SECONDS:
            times.append(_timed(prepared.call, device))
    except Exception as error:
        yield Trial(why(error, limit))
        return
    found = Trial(None, min(times), peak.bytes, base, prepared.parameters)
    yield found
    if cell.task == "eval" and device.type == "cpu":
        # The profiler's memory may be too much where the call's was not; torch says so in a RuntimeError.
        with contextlib.suppress(MemoryError, RuntimeError):
            yield replace(found, tensors=most_alive(prepared.call))


def why(error: Exception, limit: int | None = None) -> str:
    """What a row says of an error that a cell raised, under a limit of so many bytes.

    >>> why(MemoryError(), 2**30), why(TypeError("no such argument"))
    ('out of memory (1 GiB)', 'TypeError: no such argument')
    """
    if isinstance(error, UserError):
        return error.message
    # A library that meets the limit says so in its own words.
    if system.out_of_memory(error) or "bad_alloc" in str(error):
        return OUT_OF_MEMORY if limit is None else f"{OUT_OF_MEMORY} ({limit / 2**30:.3g} GiB)"
    return f"{type(error).__name__}: {reason(error)}"


def _timed(call: Callable[[], object], device: torch.device) -> float:
    settle(device)
    start = time.perf_counter()
    call()
    settle(device)
    return time.perf_counter() - start


def settle(device: torch.device) -> None:
    """Wait for all that a GPU has been given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _start(cell: Cell, device: torch.device) -> None:
    """Have every thread, library and compiler there that a first step needs: they are not the model's memory."""
    a = torch.rand(256, 256, device=device, requires_grad=True)
    square = compiled(torch.square) if cell.variant.compiled else torch.square
    square(a @ a).sum().backward()
    if cell.maker != OURS:
        from posbench.bench import peers

        with torch.device("meta"):
            peers.find(cell.maker).model(cell.config, cell.vocab, cell.variant.attention)
    settle(device)


def _limit(extra: int, device: torch.device) -> None:
    """Let this process take `extra` bytes more than it has now."""
    if device.type == "cuda":  # whose driver maps far more addresses than there is memory
        share = extra / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
    elif sys.platform.startswith("linux"):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        wanted, hard = pages * os.sysconf("SC_PAGE_SIZE") + extra, resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _outlive_nobody(starter: int) -> None:
    """End this process, and with it the compiler's, when the one that started it is gone: its limit is gone as well."""
    while os.getppid() == starter:
        time.sleep(LOOK_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    """Read a cell and a limit on stdin, and print its trial as the last line, and what is known of it before."""
    asked = json.load(sys.stdin)
    threading.Thread(target=_outlive_nobody, args=(asked["starter"],), daemon=True).start()
    for found in here(from_dict(asked["cell"]), asked["limit"]):
        print("\n" + json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
