"""A wish to stop waits for the end of a step; a second Ctrl-C does not wait."""

from __future__ import annotations

import signal
import threading

import pytest

from posbench.stop import Stop, leave_on_sigterm


def test_a_signal_is_noted_and_acts_when_the_step_is_over():
    with Stop() as stop:
        stop.leave()
        assert not stop.asked
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            stop.leave()


@pytest.fixture
def interruptible():
    """What a shell starts in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_ctrl_c_behind_it_acts_at_once(first: signal.Signals):
    with Stop():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_sigterm_that_comes_twice_is_one():
    """As Slurm's do, at any distance: the checkpoint that the first asks for is written all the same."""
    with Stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as left:
            stop.leave()
    assert left.value.code == 128 + signal.SIGTERM


def test_the_handlers_of_before_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with Stop():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_trains_without_handlers():
    """Python refuses them outside the main thread; a training started there must not fail for it."""
    entered: list[bool] = []

    def work() -> None:
        with Stop() as stop:
            entered.append(stop.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [False]


@pytest.fixture
def obedient():
    """A process that leaves on SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    leave_on_sigterm()
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("obedient")
def test_outside_a_training_a_sigterm_unwinds_and_a_second_one_does_not_disturb_that():
    ended: list[bool] = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            ended.append(True)

    with pytest.raises(SystemExit) as left:
        work()
    assert (left.value.code, ended) == (128 + signal.SIGTERM, [True])


@pytest.mark.usefixtures("obedient")
def test_within_a_training_it_waits_for_the_step():
    with Stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
