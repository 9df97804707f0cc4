"""Standard streams as a long job needs them: all three there, and stderr also when nobody reads it any more."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any


class _Stderr(io.FileIO):
    """Standard error whose reader may have gone, as in `posbench sweep ... 2>&1 | head`: no reason to fail."""

    def write(self, data: Any, /) -> int:
        with suppress(BrokenPipeError):
            return super().write(data)
        return memoryview(data).nbytes


def prepare() -> None:
    """Open what this process was started without (`posbench ... >&-`), and let nothing fail for want of a reader of
    stderr."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which the next file would get otherwise, and what C prints with it.
            # The processes that this one starts have it too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = sys.stdout or _text(io.FileIO(1, "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):  # in an encoding that may lack ± and what a curve is drawn with
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__:  # or both are None
        sys.stderr = _text(_Stderr(2, "w", closefd=False))


def _text(raw: io.RawIOBase) -> io.TextIOWrapper:
    # As Python's own: a path may hold bytes that are no text.
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True)
