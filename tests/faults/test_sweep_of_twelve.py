"""A sweep of twelve runs, each command a process: one run that raises, a mistake in the settings, Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Commands, until

pytestmark = pytest.mark.faults

ELEVEN = "none,sinusoidal,learned,rope,alibi,t5,shaw,kerple,fire,xpos,sandwich"


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    found = Commands.within(tmp_path)
    yield found
    found.kill()


def test_one_that_raises_stops_none_of_the_eleven_others(commands: Commands):
    """A sweep of twelve runs, one of which raises: eleven are done, the fault is in the summary, status 1."""
    status, said = commands.run(f"sweep encoding={ELEVEN.replace('rope,', 'rope,broken,')}")
    assert status == 1, said
    runs = commands.runs()
    assert sorted(run.status()["state"] for run in runs.values()) == ["done"] * 11 + ["failed"]
    summary = said[said.index("1 of 12 jobs failed:") :]
    assert "encoding=broken" in summary
    assert "RuntimeError: this encoding never works" in summary
    assert "RuntimeError: this encoding never works" in (runs["broken-1"].path / "log.txt").read_text()


@pytest.mark.parametrize("mistake", ["encoding=none,rope,alibi,alibii", "encoding=none,rope seed=1,2,x"])
def test_a_mistake_in_the_last_choice_is_refused_before_the_first_run(commands: Commands, mistake: str):
    """A sweep with a mistake in its last choice: refused before any job, status 2, nothing written."""
    status, said = commands.run(f"sweep {mistake}")
    assert status == 2
    assert len(said.splitlines()) <= 2
    assert commands.runs() == {}
    assert not (commands.folder / "data").exists()


def test_after_ctrl_c_the_same_command_ends_as_an_undisturbed_sweep(commands: Commands):
    """Ctrl-C in the middle of the sixth of twelve, and the same command again: the weights of an undisturbed sweep."""
    line = f"sweep encoding={ELEVEN.replace('t5', 'slow,t5')}"
    sweep = commands.start(line)
    until(lambda: (run := commands.runs().get("slow-1")) is not None and len(run.metrics()) > 5)
    sweep.send_signal(signal.SIGINT)
    status, said = commands.end(sweep)
    assert status == 130, said
    states = [run.status()["state"] for run in commands.runs().values()]
    assert sorted(states) == ["done"] * 5 + ["interrupted"]
    before = {name: run.weights.stat().st_ino for name, run in commands.runs().items() if run.weights.exists()}

    status, said = commands.run(line)
    assert status == 0, said
    after = commands.runs()
    assert len(after) == 12
    assert {name: after[name].weights.stat().st_ino for name in before} == before, "what was done was done again"
    assert commands.run(line, quick=True)[0] == 0
    assert commands.same_weights(*after)
