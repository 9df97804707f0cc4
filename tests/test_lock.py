"""A folder has one owner: a dead one is replaced, a living one never, and one that was replaced publishes nothing.

No clock is read and nothing waits: a heartbeat is as old as the time that a test gives its file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from posbench import files, lock
from posbench.errors import UserError
from posbench.lock import GoneError, HeldError, Lock, Owner, ReplacedError

NOBODY = 2**22 + 1
"""Process ids end below 2^22 on Linux: this one is nobody's."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def mine() -> Owner:
    """This process, as it names itself."""
    return Lock(Path(lock.NAME), "it").owner


def left(folder: Path, silent: float = 0.0, **other: object) -> Path:
    """A lock of an owner that differs from this process in `other`, touched `silent` seconds ago."""
    file = folder / lock.NAME
    file.write_text(json.dumps(asdict(replace(mine(), **other))))
    now = file.stat().st_mtime
    os.utime(file, (now - silent, now - silent))
    return file


def test_one_owner_at_a_time_and_the_other_is_told_who(folder: Path):
    with lock.hold(folder, "rope"):
        assert lock.owner(folder).pid == os.getpid()
        with pytest.raises(HeldError, match=f"rope is being worked on by another process, pid {os.getpid()} on "):
            lock.hold(folder, "rope").__enter__()
    assert lock.owner(folder) is None
    with lock.hold(folder, "rope"):
        pass
    assert not (folder / lock.NAME).exists()


def test_a_folder_is_made_and_taken_away_again_when_it_stays_empty(tmp_path: Path):
    with lock.hold(tmp_path / "runs" / "rope", "rope"):
        assert (tmp_path / "runs" / "rope").is_dir()
    assert not (tmp_path / "runs" / "rope").exists()
    with lock.hold(tmp_path / "runs" / "rope", "rope"):
        (tmp_path / "runs" / "rope" / "log.txt").write_text("it was here")
    assert (tmp_path / "runs" / "rope" / "log.txt").exists()


@pytest.mark.parametrize("other", [{"pid": NOBODY}, {"started": "1"}], ids=["pid is gone", "pid is another's now"])
def test_an_owner_on_this_machine_is_dead_when_its_process_is_gone(folder: Path, other: dict):
    """However short its silence: nobody waits 5 minutes after a kill."""
    left(folder, **other)
    assert lock.owner(folder) is None
    with lock.hold(folder, "rope"):
        assert lock.owner(folder).started == mine().started


def test_another_users_process_that_is_hidden_lives_by_its_heartbeat(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """With hidepid, /proc shows a user nothing but his own processes; that there is one, a signal still says."""

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (NOBODY, 0)
        raise PermissionError

    monkeypatch.setattr(lock.os, "kill", kill)
    left(folder, silent=295.0, pid=NOBODY)
    with pytest.raises(HeldError):
        lock.hold(folder, "rope").__enter__()
    left(folder, silent=305.0, pid=NOBODY)
    assert lock.owner(folder) is None


def test_an_owner_on_this_machine_lives_however_long_it_is_silent(folder: Path):
    """A process that is stopped, or swapped out for an hour, is still at it."""
    left(folder, silent=3600.0)
    assert lock.owner(folder) is not None


@pytest.mark.parametrize("other", [{"host": "elsewhere"}, {"machine": "another boot or container"}])
def test_an_owner_elsewhere_is_dead_after_five_minutes_without_a_heartbeat(folder: Path, other: dict):
    """Its pid says nothing here, though it may be one of ours."""
    left(folder, silent=295.0, pid=NOBODY, **other)
    with pytest.raises(HeldError):
        lock.hold(folder, "rope").__enter__()
    left(folder, silent=305.0, **other)
    assert lock.owner(folder) is None
    with lock.hold(folder, "rope"):
        pass


def test_silence_is_measured_by_the_clock_of_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A file server that is an hour behind: what this machine's clock says must not kill a living owner."""
    monkeypatch.setattr(lock.time, "time", lambda: 4e9)
    left(folder, silent=10.0, host="elsewhere")
    assert lock.owner(folder) is not None
    assert [file.name for file in folder.iterdir()] == [lock.NAME]


def test_a_heartbeat_far_in_the_future_is_nobodys(folder: Path):
    """The clock was set back by an hour. A living owner touches its file again within 30 s."""
    left(folder, silent=-3600.0, host="elsewhere")
    assert lock.owner(folder) is None


def test_a_folder_that_can_only_be_read_is_judged_by_this_machines_clock(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def read_only(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    file = left(folder, silent=295.0, host="elsewhere")
    monkeypatch.setattr(lock.tempfile, "mkstemp", read_only)
    monkeypatch.setattr(lock.time, "time", lambda: file.stat().st_mtime + 295)
    assert lock.owner(folder) is not None
    monkeypatch.setattr(lock.time, "time", lambda: file.stat().st_mtime + 305)
    assert lock.owner(folder) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": "x"}', '{"pid": 1}', "\x00"])
def test_what_names_no_owner_counts_for_five_minutes(folder: Path, content: str):
    file = folder / lock.NAME
    file.write_text(content)
    with pytest.raises(HeldError, match="an unknown machine"):
        lock.hold(folder, "rope").__enter__()
    os.utime(file, (file.stat().st_mtime - 305,) * 2)
    with lock.hold(folder, "rope"):
        pass


def test_of_two_that_find_it_dead_one_takes_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The second found it dead before the first replaced it. It must not replace the first."""
    left(folder, pid=NOBODY)
    real, first = lock._dead, Lock(folder / lock.NAME, "rope")

    def dead(path: Path, found: Owner) -> bool:
        monkeypatch.setattr(lock, "_dead", real)
        first.take()
        return True

    monkeypatch.setattr(lock, "_dead", dead)
    with pytest.raises(HeldError):
        Lock(folder / lock.NAME, "rope").take()
    first.check()
    first.release()
    assert not list(folder.iterdir())


def test_whoever_dies_while_taking_its_place_is_in_nobodys_way(folder: Path, monkeypatch: pytest.MonkeyPatch):
    file = left(folder, pid=NOBODY)

    class KilledError(BaseException):
        pass

    def kill(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", kill)
        patch.setattr(Lock, "release", lambda lock: None)
        with pytest.raises(KilledError):
            Lock(file, "rope").take()
    (heir,) = (one for one in folder.iterdir() if one != file)
    heir.write_text(json.dumps(json.loads(heir.read_text()) | {"pid": NOBODY}))
    with lock.hold(folder, "rope"):
        assert [one.name for one in folder.iterdir()] == [lock.NAME]


def test_an_owner_that_was_replaced_publishes_nothing_and_takes_nothing_back(folder: Path, tmp_path: Path):
    """It slept for longer than 5 minutes. Its next write is refused, and the new owner keeps its lock."""
    file = folder / "status.json"
    with lock.hold(folder, "rope"):
        files.write_json(file, {"step": 1})
        left(folder, token="another")
        files.write_json(tmp_path / "elsewhere.json", {})
        with pytest.raises(ReplacedError, match="rope was taken over by another process"):
            files.write_json(file, {"step": 2})
    assert json.loads(file.read_text()) == {"step": 1}
    assert json.loads((folder / lock.NAME).read_text())["token"] == "another"
    assert sorted(one.name for one in folder.iterdir()) == [lock.NAME, "status.json"]


def test_a_lock_that_was_removed_is_lost(folder: Path):
    with lock.hold(folder, "rope"):
        (folder / lock.NAME).unlink()
        with pytest.raises(ReplacedError):
            files.write_bytes(folder / "status.json", b"")


def test_a_folder_that_was_removed_is_said_to_be(folder: Path):
    """Nobody has taken it over: what was trained in it is lost, and a sweep must not wait for another process."""
    with lock.hold(folder, "rope"):
        shutil.rmtree(folder)
        with pytest.raises(GoneError, match="run was removed while this process worked on it") as gone:
            files.write_bytes(folder / "status.json", b"")
        assert not isinstance(gone.value, HeldError)


def test_a_folder_that_cannot_be_made_is_a_sentence():
    """Neither does /proc refuse it, nor is it there afterwards."""
    with pytest.raises(UserError, match="/proc/nope cannot be made here"):
        lock.hold(Path("/proc/nope"), "rope").__enter__()


def test_a_link_to_nowhere_is_nobodys_lock(folder: Path):
    (folder / lock.NAME).symlink_to("nowhere")
    assert lock.owner(folder) is None
    with lock.hold(folder, "rope"):
        assert lock.owner(folder).pid == os.getpid()


def test_of_two_who_find_a_link_to_nowhere_one_takes_its_place(folder: Path):
    """The other would remove what the first has put there."""
    (folder / lock.NAME).symlink_to("nowhere")
    heir = Lock(folder / f"{lock.NAME}.{hashlib.sha256(b'').hexdigest()[:16]}", "rope")
    heir.take()
    with pytest.raises(HeldError):
        Lock(folder / lock.NAME, "rope").take()
    assert (folder / lock.NAME).is_symlink()
    heir.release()
    Lock(folder / lock.NAME, "rope").take()
    assert lock.owner(folder).pid == os.getpid()


def test_a_folder_in_place_of_a_lock_is_refused_and_costs_no_overview(folder: Path):
    (folder / lock.NAME).mkdir()
    assert lock.owner(folder) is not None
    with pytest.raises(IsADirectoryError):
        lock.hold(folder, "rope").__enter__()


def test_a_heartbeat_is_a_touch_and_ends_with_the_lock(folder: Path):
    one = Lock(folder / lock.NAME, "rope")
    one.take()
    os.utime(one.path, (1000.0, 1000.0))
    one.beat()
    assert one.path.stat().st_mtime > 1000
    file = left(folder, token="another")
    os.utime(file, (1000.0, 1000.0))
    one.beat()
    assert file.stat().st_mtime == 1000


def test_a_file_system_without_hard_links_will_do(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def no_links(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(self))

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    with lock.hold(folder, "rope"):
        assert lock.owner(folder).pid == os.getpid()
        with pytest.raises(HeldError):
            lock.hold(folder, "rope").__enter__()
    assert not list(folder.parent.iterdir())


def test_what_a_killed_write_left_is_cleared_and_nothing_else(folder: Path):
    (folder / "rows").mkdir()
    torn = [folder / ".checkpoint.safetensors.abc.tmp", folder / "rows" / ".row.json.abc.tmp"]
    for file in (*torn, folder / "log.txt"):
        file.write_text("half")
    with lock.hold(folder, "rope"):
        assert not [file for file in torn if file.exists()]
    assert (folder / "log.txt").exists()


def test_what_was_killed_while_it_took_the_lock_is_cleared_once_it_is_old(folder: Path):
    """A younger one may be of a process that is about to find the lock taken."""
    old, young = (folder / f"{lock.NAME}.{name}" for name in ("abc.new", "def.new"))
    heir = folder / f"{lock.NAME}.0123456789abcdef"
    for file, silent in ((old, 305.0), (heir, 305.0), (young, 295.0)):
        file.write_text("{}")
        os.utime(file, (file.stat().st_mtime - silent,) * 2)
    with lock.hold(folder, "rope"):
        assert {file.name for file in folder.iterdir()} == {lock.NAME, young.name}


HOLD = "import sys; from pathlib import Path; from posbench import lock\n"
HOLD += "with lock.hold(Path(sys.argv[1]), 'rope'): print('held', flush=True); sys.stdin.read()"


@pytest.mark.process
def test_a_process_that_is_killed_holds_nothing(folder: Path):
    """At once, also while nobody has waited for it (a zombie)."""
    there = os.environ | {"PYTHONPATH": str(Path(lock.__file__).parents[1])}
    words = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=there) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(HeldError, match=f"pid {other.pid}"):
            lock.hold(folder, "rope").__enter__()
        other.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        with lock.hold(folder, "rope"):
            pass
