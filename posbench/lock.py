"""Who works on a folder: a file in it that names its owner.

    <folder>/.lock    {"host": ..., "machine": ..., "pid": ..., "started": ..., "token": ...}

An owner on this machine is dead when no process has its pid and start time. Of one elsewhere, or of another user where
/proc hides those (hidepid), nothing is seen but its heartbeat: it touches the file every 30 s, and is dead when it has
not for 5 minutes by the clock of the folder itself, so that no two machines' clocks are compared.

Whoever finds a dead owner takes its place. An owner that was only asleep, in a suspended machine or behind a network
that hung, wakes up replaced: the token is read again before every publish (posbench/files.py), and what such a one
would have written is not.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from posbench import files
from posbench.errors import UserError
from posbench.files import parse_json

NAME = ".lock"

BEAT = 30.0
"""Seconds between two heartbeats."""

SILENT = 300.0
"""Seconds without one, after which an owner on another machine is dead."""

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system without hard links answers."""


class HeldError(UserError):
    """Another process works on it."""


class ReplacedError(HeldError):
    """Another process has taken it over from this one."""


class GoneError(UserError):
    """The folder was removed."""


@dataclass(frozen=True)
class Owner:
    """A process, as it names itself in a lock."""

    host: str
    machine: str
    """In what its pid is counted: one boot, one pid namespace."""
    pid: int
    started: str
    """When it was started, in the machine's own words: a pid is given out again."""
    token: str
    """Random, another for each lock."""

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


_UNKNOWN = Owner("an unknown machine", "", 0, "", "")
"""Of a file that names no owner: cut short, or written by something else."""


@contextmanager
def hold(folder: Path, name: str) -> Iterator[None]:
    """Be the only process that works on `folder`, which is made, and taken away again when it stays empty.

    `name` is what messages call it. Within it nothing is published below `folder` once another process has taken over.
    Raises `HeldError` at once when one works on it; a killed process holds nothing.
    """
    folder = folder.resolve()
    lock = Lock(folder / NAME, name)
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # its parents were made, and are not there: /proc is such a place
            raise UserError(f"{folder} cannot be made here.") from error
        with suppress(FileNotFoundError):  # it was empty, and whoever held it took it away
            lock.take()
            break
    over = threading.Event()
    threading.Thread(target=_beat, args=(lock, over), daemon=True).start()
    try:
        with files.guarded(folder, lock.check):
            # What a write that was killed left behind; under the lock nobody else is writing here.
            for left_over in folder.rglob(".*.tmp"):
                left_over.unlink()
            # And what was killed while it took the lock; a younger one may be somebody's who is trying to.
            for left_over in list(folder.glob(f"{NAME}.*")):
                with suppress(OSError):
                    if _silence(left_over) > SILENT:
                        left_over.unlink()
            yield
    finally:
        over.set()
        lock.release()
        with suppress(OSError):
            folder.rmdir()


def owner(folder: Path) -> Owner | None:
    """Who works on `folder` now; None: nobody."""
    path = folder / NAME
    try:
        found = _read(path)
        return None if _dead(path, found) else found
    except FileNotFoundError:
        return None


class Lock:
    """One lock file."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        pid = os.getpid()
        self.owner = Owner(socket.gethostname(), _machine(), pid, _started(pid) or "", secrets.token_hex(8))

    def take(self) -> None:
        """Become its owner. Raises `HeldError` while another one is alive, `FileNotFoundError` without a folder."""
        while not self._put(self._link):
            try:
                found, content = _read(self.path), self.path.read_bytes()
                if found == self.owner:  # the answer to our own link was lost on its way over a network
                    return
                if not _dead(self.path, found):
                    raise HeldError(
                        f"{self.name} is being worked on by another process, {found}.",
                        "posbench status shows how far it is.",
                    )
            except FileNotFoundError:
                if not self.path.is_symlink():  # released in between
                    continue
                content = None  # a link to nowhere, as git-annex leaves them: nobody's
            # Of two who find it dead one takes its place, and the other must not take the place of that one: so the
            # right to replace this very content is a lock as well.
            heir = Lock(self.path.with_name(f"{NAME}.{hashlib.sha256(content or b'').hexdigest()[:16]}"), self.name)
            heir.take()
            try:
                if self._content() == content and (content is not None or self.path.is_symlink()):
                    self._put(lambda whole: whole.replace(self.path))
                    return
            finally:
                heir.release()

    def check(self) -> None:
        """Raise `ReplacedError` unless the file still has this owner's token, `GoneError` without a folder."""
        if self._held():
            return
        if not self.path.parent.is_dir():
            raise GoneError(
                f"{self.path.parent} was removed while this process worked on it.", "The same command begins it anew."
            )
        raise ReplacedError(f"{self.name} was taken over by another process while this one was silent.")

    def beat(self) -> None:
        """A sign of life."""
        if self._held():
            os.utime(self.path)

    def release(self) -> None:
        """Give it up. A lock that cannot be removed ends with this process."""
        with suppress(OSError):
            if self._held():
                self.path.unlink()

    def _held(self) -> bool:
        return self._content() is not None and _read(self.path) == self.owner

    def _content(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def _put(self, place: Callable[[Path], bool | Path]) -> bool:
        """Write the file under another name, whole, and `place` it; whether that succeeded."""
        handle, name = tempfile.mkstemp(prefix=f"{NAME}.", suffix=".new", dir=self.path.parent)
        whole = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(self.owner), file)
            whole.chmod(0o644)  # other users' processes have to read it
            return bool(place(whole))
        finally:
            whole.unlink(missing_ok=True)

    def _link(self, whole: Path) -> bool:
        """Put it there unless there is one."""
        try:
            self.path.hardlink_to(whole)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                with self.path.open("xb") as file:
                    file.write(whole.read_bytes())
            except FileExistsError:
                return False
        return True


def _beat(lock: Lock, over: threading.Event) -> None:
    while not over.wait(BEAT):
        with suppress(OSError):
            lock.beat()


def _read(path: Path) -> Owner:
    try:
        found = Owner(**parse_json(path.read_bytes()))
    except (ValueError, TypeError, IsADirectoryError):
        return _UNKNOWN
    return found if isinstance(found.pid, int) else _UNKNOWN


def _dead(path: Path, found: Owner) -> bool:
    if (found.host, found.machine) == (socket.gethostname(), _machine()):
        started = _started(found.pid)
        if started is not None or not _anothers(found.pid):
            return started != found.started
    # A clock that was set back leaves a heartbeat in the future; of a live owner the next one mends that.
    return abs(_silence(path)) > SILENT


def _silence(path: Path) -> float:
    """Seconds since `path` was touched, by the clock of its folder: a probe is written there and its time read."""
    touched = path.stat().st_mtime
    try:
        handle, name = tempfile.mkstemp(prefix=f"{NAME}.", suffix=".new", dir=path.parent)
    except OSError:  # a folder that can only be read: whoever asks will not write there either
        return time.time() - touched
    try:
        os.write(handle, b".")
        return os.fstat(handle).st_mtime - touched
    finally:
        os.close(handle)
        Path(name).unlink(missing_ok=True)


def _anothers(pid: int) -> bool:
    """Whether there is such a process, of another user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False


@cache
def _machine() -> str:
    with suppress(OSError):  # elsewhere than on Linux the host's name has to do
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _started(pid: int) -> str | None:
    """When a process of this machine was started, in the machine's own words; None when there is none. A zombie, which
    has ended and was not yet waited for, is none."""
    if not Path("/proc/self/stat").exists():
        words = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
        there = os.environ | {"LC_ALL": "C", "TZ": "UTC"}
        done = subprocess.run(words, env=there, capture_output=True, text=True, check=False)
        state, _, since = done.stdout.strip().partition(" ")
        return None if done.returncode or state.startswith("Z") else since.strip()
    try:
        # The second field is the program's name in brackets, which may hold blanks and brackets of its own.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
