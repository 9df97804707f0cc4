"""A disk that is full in the middle of a file: a sentence, what was there stays, and with room again it goes on.

The disk is a small tmpfs, filled up at the moment the file is opened, so that it is the kernel that refuses the rest.
Without the right to mount one (on a Mac, or not as root) the write is cut in half and refused in the kernel's words.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import sweeps
from judge import finished, judge
from kills import Undisturbed
from writes import HALF, OPENED, Trap

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@dataclass(frozen=True)
class Disk:
    folder: Path
    real: bool

    def trap(self, kind: str, number: int, room: int) -> Trap:
        """Full, but for `room` bytes, in the middle of that file."""

        def fill(file: Path) -> None:
            if not self.real:
                raise OSError(errno.ENOSPC, "No space left on device", str(file))
            state = os.statvfs(self.folder)
            (self.folder / "ballast").write_bytes(bytes(max(0, state.f_bavail * state.f_frsize - room)))

        return Trap(kind, number, OPENED if self.real else HALF, fill)

    def make_room(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path):
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    try:
        real = subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        real = False
    yield Disk(folder, real)
    if real:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("kind", "number", "room"),
    [("checkpoint", 4, 20_000), ("weights", 1, 10_000), ("row", 6, 0), ("losses", 6, 0), ("token file", 1, 0)],
    ids=["checkpoint", "weights", "row", "losses", "token file"],
)
def test_a_disk_that_is_full_in_the_middle_of_a_file_costs_nothing(
    small: Undisturbed, tmp_path: Path, disk: Disk, kind: str, number: int, room: int
):
    """The disk is full in the middle of a file, and then has room again."""
    place = sweeps.Place(tmp_path / "study", disk.folder)
    assert sweeps.start(small.plan, place, disk.trap(kind, number, room)).end() in (1, 2)
    then = finished(place)
    assert len(then.rows) == (number - 1 if kind in ("row", "losses") else 0)
    errors = [line for line in place.said.splitlines() if line.startswith("error: ")]
    assert errors
    assert all("No space left on device" in line for line in errors)
    assert 'File "' not in place.said
    disk.make_room()
    assert sweeps.done(small.plan, place) == 0
    if kind == "checkpoint":
        assert re.search(rf"going on from step {number - 1} of 10", place.said)
    assert judge(small.content, place, 0, [then]).good
