"""The one place that puts a file on disk: written beside its target, fsynced, renamed.

A reader therefore sees the old file or the new one, never a part of either, whatever is killed when. In a folder that
is locked nothing is published by a process that has lost the lock (posbench/lock.py). And what all readers have in
common: a file may hold anything.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


_UMASK = _umask()
"""Read once, while there is one thread: to read it is to set it, so that of two threads that publish at the same time
one could leave the other's 0 behind for good."""


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_guards: dict[Path, Callable[[], None]] = {}


@contextmanager
def guarded(folder: Path, check: Callable[[], None]) -> Iterator[None]:
    """Within it, nothing is published anywhere below `folder` unless `check` returns. `folder` is resolved."""
    _guards[folder] = check
    try:
        yield
    finally:
        del _guards[folder]


def check(path: Path) -> None:
    """Raise what the guards of the folders above `path` raise, if it must not be written now."""
    above = [path.parent.resolve(), *path.parent.resolve().parents] if _guards else []
    for folder, guard in list(_guards.items()):
        if folder in above:
            guard()


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Publish one file at `path`. `write` fills the temporary file it is given the path of."""
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except FileNotFoundError:
        check(path)  # of a folder that somebody has removed it says so
        raise
    os.close(handle)
    temporary = Path(name)
    try:
        with _naming(path):
            write(temporary)
            # mkstemp makes the file private; a published one follows the umask like any other.
            temporary.chmod(0o666 & ~_UMASK)
            _fsync(temporary)
            check(path)
            temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        check(path)  # whoever has taken a folder over clears what was unfinished in it: then that is what is wrong
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _fsync(path.parent)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What the operating system refuses names the file, also where a library in Rust has put it into its own words:
    safetensors says "I/O error: No space left on device (os error 28)"."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    except Exception as error:
        if told := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(told[1]), os.strerror(int(told[1])), str(path)) from error
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Publish `content` at `path`."""
    write_file(path, lambda temporary: temporary.write_bytes(content))


def write_json(path: Path, value: Any) -> None:
    """Publish `value` as indented JSON with sorted keys; floats keep every digit."""
    write_bytes(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


@contextmanager
def publish_directory(path: Path) -> Iterator[Path]:
    """Fill the directory this yields; on leaving without an error it becomes `path` in one rename.

    When another process published the same directory first, its copy stays and ours is dropped.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
        for file in temporary.rglob("*"):
            _fsync(file)
        _fsync(temporary)
        temporary.chmod(0o777 & ~_UMASK)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _fsync(path.parent)


def parse_json(content: bytes | str) -> Any:
    """What JSON says. Raises ValueError for anything that is none, also for what is nested deeper than can be read."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
