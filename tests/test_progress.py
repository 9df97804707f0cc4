"""Off a terminal progress is plain lines, as many as the time they stand for."""

from __future__ import annotations

import sys

import pytest

from posbench import progress
from posbench.progress import duration


class Clock:
    """A clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_line_every_thirty_seconds_and_one_at_the_end(clock: Clock, capsys: pytest.CaptureFixture[str]):
    """100 steps of 1 s: 30, 60 and 90 s are lines, then the end. 10,000 steps of 0.01 s would be no more."""
    with progress.progress(100, "rope") as bar:
        for step in range(101):
            bar.update(step, f"loss {10 - step / 100:.2f}")
            clock.now += 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "rope 30/100 (30%), loss 9.70, 1 min 10 s left",
        "rope 60/100 (60%), loss 9.40, 40 s left",
        "rope 90/100 (90%), loss 9.10, 10 s left",
        "rope 100/100 (100%), loss 9.00",
    ]


def test_the_number_of_lines_follows_the_time_and_not_the_steps(clock: Clock, capsys: pytest.CaptureFixture[str]):
    with progress.progress(10_000, "rope") as bar:
        for step in range(10_001):
            bar.update(step)
            clock.now += 0.01
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_the_last_line_is_not_said_twice(clock: Clock, capsys: pytest.CaptureFixture[str]):
    with progress.progress(2, "rope") as bar:
        clock.now += 30
        bar.update(1)
        clock.now += 30
        bar.update(2)
    assert capsys.readouterr().err.splitlines() == ["rope 1/2 (50%)", "rope 2/2 (100%)"]


def test_a_step_of_minutes_is_no_silence(clock: Clock, capsys: pytest.CaptureFixture[str]):
    """The first step takes 70 s, as with a compilation: a line at 31 s and one at 62, then what the step gave."""
    with progress.progress(100, "rope") as bar:
        assert isinstance(bar, progress._Lines)
        for _ in range(2):
            clock.now += 31
            bar.beat()
            bar.beat()
        clock.now += 8
        bar.update(1, "loss 9.0")
    assert capsys.readouterr().err.splitlines() == ["rope 0/100 (0%)", "rope 0/100 (0%)", "rope 1/100 (1%), loss 9.0"]


def test_the_time_left_is_that_of_the_last_step_however_long_ago(clock: Clock, capsys: pytest.CaptureFixture[str]):
    """10 of 100 took 20 s, so the other 90 take 180 s: also when the 11th takes a minute."""
    with progress.progress(100, "rope") as bar:
        bar.update(0)
        clock.now += 20
        bar.update(10)
        clock.now += 60
        assert isinstance(bar, progress._Lines)
        bar.beat()
    assert capsys.readouterr().err == "rope 10/100 (10%), 3 min 0 s left\n"


def test_what_cannot_say_how_far_it_is_says_that_it_is_still_at_it(clock: Clock, capsys: pytest.CaptureFixture[str]):
    lines = progress._Waiting("sotu: preparing the text")
    lines.beat()
    clock.now += 61
    lines.beat()
    lines.end()
    with progress.waiting("sotu: preparing the text"):
        pass
    assert capsys.readouterr().err == "sotu: preparing the text, 1 min 1 s so far\n"


def test_a_short_job_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]):
    with progress.progress(3, "rope") as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""


def test_a_resumed_job_is_timed_from_where_it_went_on(clock: Clock, capsys: pytest.CaptureFixture[str]):
    """90 of 100 were there; 5 more took 30 s, so the last 5 take 30 s. Timed from 0 it would be 2 s."""
    with progress.progress(100, "rope") as bar:
        bar.update(90)
        clock.now += 30
        bar.update(95)
    assert capsys.readouterr().err.startswith("rope 95/100 (95%), 30 s left\n")


def test_no_control_bytes_off_a_terminal_even_when_colour_is_forced(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with progress.progress(2, "rope") as bar:
        clock.now += 31
        bar.update(1, "loss 2.0")
    err = capsys.readouterr().err
    assert err
    assert not set(err) & {"\x1b", "\r", "\b"}


def test_a_terminal_gets_a_bar_on_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with progress.progress(2, "rope") as bar:
        bar.update(2, "loss 2.0")
    out, err = capsys.readouterr()
    assert out == ""
    assert "rope" in err
    assert "100%" in err
    assert "loss 2.0" in err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (90061, "25 h 1 min"),
    ],
)
def test_durations_read_as_one_says_them(seconds: float, words: str):
    assert duration(seconds) == words
