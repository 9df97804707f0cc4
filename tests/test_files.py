"""A file is published whole or not at all, and a refusal names it in the operating system's words."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest
from safetensors import SafetensorError

from posbench import files
from posbench.errors import refused


def refusing(error: Exception):
    """Fills half a file and gives up."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(b"ha")
        raise error

    return write


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["Python", "Rust"],
)
def test_a_full_disk_is_said_in_the_same_words_whoever_met_it(tmp_path: Path, error: Exception):
    file = tmp_path / "checkpoint.safetensors"
    files.write_bytes(file, b"whole")
    with pytest.raises(OSError, match="No space left on device") as caught:
        files.write_file(file, refusing(error))
    assert str(refused(caught.value)) == f"No space left on device: {file}"
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("checkpoint.safetensors", b"whole")]


def test_what_is_no_refusal_stays_what_it_is(tmp_path: Path):
    with pytest.raises(SafetensorError, match="no such type"):
        files.write_file(tmp_path / "a", refusing(SafetensorError("no such type")))
    assert not list(tmp_path.iterdir())


def test_whoever_was_replaced_in_a_write_says_so_and_not_that_its_file_is_missing(tmp_path: Path):
    """The new owner has cleared what was unfinished."""

    class ReplacedError(Exception):
        pass

    def replaced() -> None:
        raise ReplacedError

    with files.guarded(tmp_path.resolve(), replaced), pytest.raises(ReplacedError):
        files.write_file(tmp_path / "a", lambda temporary: temporary.unlink())


def test_what_is_published_follows_the_umask_which_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Reading it is setting it, for the whole process: another thread may write a file just then."""

    def touched(mask: int) -> int:
        raise AssertionError("the umask was set")

    monkeypatch.setattr(files.os, "umask", touched)
    monkeypatch.setattr(files, "_UMASK", 0o027)
    files.write_bytes(tmp_path / "a", b"whole")
    with files.publish_directory(tmp_path / "b"):
        pass
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"] == [0o640, 0o750]
