"""The wish of a user or a scheduler that a long job end, heard between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


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
