"""The wish of a user or a scheduler that a long job end, heard between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Stop:
    """SIGINT and SIGTERM noted instead of obeyed, until the step is over. A second one acts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        # Python hands signals to the main thread only, and refuses handlers elsewhere.
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self.__exit__()

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
