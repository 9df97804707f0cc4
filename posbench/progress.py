"""How far a long job is: a live bar in a terminal, a plain line now and then everywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

LINE_SECONDS = 30.0
"""Between two lines off a terminal: a log grows with time, not with steps."""

_LOOK_SECONDS = 1.0
"""Between two looks at whether a line is due."""


class Progress:
    """Handed out by `progress`: tell it how much is done, in any unit, and what else a reader wants to know.

    This one tells nobody.
    """

    def update(self, done: int, text: str = "") -> None:
        """`done` of the total, and for example "loss 4.213, 18,000 tokens/s"."""


class _Bar(Progress):
    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self.bar, self.task = bar, task

    def update(self, done: int, text: str = "") -> None:
        self.bar.update(self.task, completed=done, text=text)


class _Lines(Progress):
    """A thread writes what is due, so that a step of minutes is no silence."""

    def __init__(self, total: int, title: str) -> None:
        self.total, self.title = total, title
        self.first: tuple[int, float] | None = None
        self.last = (0, "")
        self.shown: tuple[int, str] | None = None
        self.begun = self.written = self.reached = time.monotonic()
        self.writing, self.over = threading.Lock(), threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.over.wait(_LOOK_SECONDS):
            self.beat()

    def beat(self) -> None:
        """Write a line when the last one is long enough ago."""
        with self.writing:
            if (now := time.monotonic()) - self.written >= LINE_SECONDS:
                self.write()
                self.shown, self.written = self.last, now

    def update(self, done: int, text: str = "") -> None:
        self.reached = time.monotonic()
        # A resumed job starts somewhere in the middle: its speed counts from there.
        self.first = self.first or (done, self.reached)
        self.last = (done, text)
        self.beat()

    def write(self) -> None:
        done, text = self.last
        parts = [f"{self.title} {done}/{self.total} ({100 * done // max(self.total, 1)}%)"]
        parts += [text] if text else []
        started, since = self.first or (done, self.reached)
        if done > started and done < self.total:
            left = (self.reached - since) * (self.total - done) / (done - started)
            parts.append(f"{duration(left)} left")
        print(", ".join(parts), file=sys.stderr, flush=True)

    def end(self) -> None:
        """The last line of a job that was long enough to have any."""
        self.over.set()
        with self.writing:
            if self.shown not in (None, self.last):
                self.write()


class _Waiting(_Lines):
    """Of something that cannot say how far it is."""

    def __init__(self, title: str) -> None:
        super().__init__(0, title)

    def write(self) -> None:
        print(f"{self.title}, {duration(time.monotonic() - self.begun)} so far", file=sys.stderr, flush=True)


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Say on stderr every 30 s that the body is still at it: `sotu: tokenizing with bpe, 1 min 0 s so far`."""
    lines = _Waiting(title)
    try:
        yield
    finally:
        lines.end()


@contextmanager
def progress(total: int, title: str, shown: bool = True) -> Iterator[Progress]:
    """Show on stderr how far a job of `total` units is, while the body calls `.update(done, text)`.

    In a terminal it is a bar with the time left. In a file or pipe it is one line every 30 s, and one at the end when
    there was any before, without control characters: `rope-L512 180/360 (50%), loss 4.213, 41 s left`. Unless it is to
    be `shown`, nothing.
    """
    if not shown:
        yield Progress()
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not (console.is_interactive and sys.stderr.isatty()):
        lines = _Lines(total, title)
        try:
            yield lines
        finally:
            lines.end()
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[text]}"))
    with RichProgress(*columns, TimeRemainingColumn(), console=console) as bar:
        yield _Bar(bar, bar.add_task(title, total=total, text=""))


def duration(seconds: float) -> str:
    """Seconds as a reader says them.

    >>> duration(41.3), duration(200), duration(7300)
    ('41 s', '3 min 20 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
