"""The wish of a user or a scheduler that a long job end: heard between two steps of a training, at once elsewhere."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any


def leave_on_sigterm() -> None:
    """From now on a SIGTERM ends this process as a Ctrl-C does, so that locks are given back and a summary is said.

    By itself it would end at once. A second one is ignored: what the first has begun is to be brought to its end.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _leave)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


class Stop:
    """SIGINT and SIGTERM noted instead of obeyed, until the step is over.

    A Ctrl-C after that acts at once. A SIGTERM does not: Slurm sends each twice, by srun and by the node, and the
    second must not end the step that the first waits for. (Whoever cannot wait sends SIGKILL.)
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        # Python hands signals to the main thread only, and refuses handlers elsewhere.
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        if signal.SIGINT in self.before:
            signal.signal(signal.SIGINT, self.before.pop(signal.SIGINT))

    def __exit__(self, *_: object) -> None:
        while self.before:
            signal.signal(*self.before.popitem())

    @property
    def asked(self) -> bool:
        return self.signal is not None

    def leave(self) -> None:
        """End as the signal would have, if there was one."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            raise SystemExit(128 + self.signal)
