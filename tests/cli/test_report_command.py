"""`posbench report`, `posbench plot` and `posbench table --against`, from rows alone."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from conftest import Posbench
from made import arrays, row

from posbench import extras, records
from posbench.cli import report as command
from posbench.errors import UserError

LOSSES = {"alibi": {128: 480.0, 256: 470.0}, "rope": {128: 490.0, 256: 520.0}}
"""Nats of one block of 128 targets."""


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Two runs with two rows each, in the folder of runs of `posbench`."""
    for encoding, by_length in LOSSES.items():
        for length, nats in by_length.items():
            name = f"{encoding}-L128-nano-s1-{encoding}"
            about = {"encoding": encoding, "run": name, "run_hash": encoding, "recipe": encoding, "train_length": 128}
            behind = arrays([nats, nats + 1, nats + 2])
            records.write(tmp_path / "runs" / name / "rows", row(behind, length=length, **about), behind)
    return tmp_path / "runs"


def test_the_page_of_all_runs_lies_beside_them(posbench: Posbench, measured: Path):
    done = posbench("report")
    assert done.status == 0
    page = Path(done.out.strip())
    assert page == measured / "report" / "all" / "index.html"
    text = page.read_text()
    assert "rope-L128-nano-s1-rope" in text
    assert "posbench report" in text
    assert (page.parent / "figures" / "perplexity.svg").is_file()
    assert posbench("runs").status == 2  # and is no run itself


def test_the_page_goes_where_it_is_told(posbench: Posbench, measured: Path, tmp_path: Path, monkeypatch):
    """Drawing is tested elsewhere."""
    monkeypatch.setattr("posbench.report.page.drawings", lambda rows, bench: [])
    done = posbench("report --out", str(tmp_path / "there"))
    assert Path(done.out.strip()) == tmp_path / "there" / "index.html"


def test_another_page_of_that_name_is_not_written_over(posbench: Posbench, measured: Path, tmp_path: Path, monkeypatch):
    """One of its own is."""
    monkeypatch.setattr("posbench.report.page.drawings", lambda rows, bench: [])
    there = tmp_path / "there"
    there.mkdir()
    (there / "index.html").write_text("<h1>mine</h1>")
    done = posbench("report --out", str(there))
    assert (done.status, (there / "index.html").read_text()) == (2, "<h1>mine</h1>")
    assert f"{there / 'index.html'} was not written by posbench report." in done.err
    (there / "index.html").unlink()
    assert [posbench("report --out", str(there)).status for _ in range(2)] == [0, 0]


def test_a_folder_that_cannot_be_made_is_named(posbench: Posbench, measured: Path, tmp_path: Path, monkeypatch):
    """The one that was asked for, or the one within it."""
    monkeypatch.setattr("posbench.report.page.drawings", lambda rows, bench: [])
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "figures").write_text("mine")
    done = posbench("report --out", str(tmp_path / "there"))
    assert done.status == 2
    assert f"{tmp_path / 'there' / 'figures'} cannot be made" in done.err
    below = tmp_path / "there" / "figures" / "out"
    done = posbench("report --out", str(below))
    assert (done.status, f"{below} cannot be made" in done.err) == (2, True)
    assert [file.name for file in (tmp_path / "there").iterdir()] == ["figures"]


def test_an_empty_place_is_refused_and_not_taken_for_the_current_folder(posbench: Posbench, measured: Path):
    done = posbench("report --out", "")
    assert (done.status, done.err.splitlines()[0]) == (2, "error: --out is empty.")
    assert list(Path().iterdir()) == []


def test_a_study_of_which_nothing_was_measured_says_how_to(posbench: Posbench, measured: Path):
    done = posbench("report train_short_test_long")
    assert done.status == 2
    assert "Nothing of the study train_short_test_long (default) has been measured" in done.err
    assert done.err.splitlines()[1] == (
        "posbench study run train_short_test_long does that; posbench report shows the runs there are."
    )


def test_where_another_budget_was_measured_that_is_named(posbench: Posbench, measured: Path, monkeypatch):
    """After `reproduce --smoke`, say."""
    monkeypatch.setattr(
        "posbench.pilot.asked", lambda jobs: [True] * any(job.config.train.tokens == 16_384 for job in jobs)
    )
    done = posbench("report train_short_test_long seed=2")
    assert done.status == 2
    assert done.err.splitlines()[1] == (
        "Of another budget there is something: posbench report train_short_test_long seed=2 --budget smoke"
    )


def test_a_setting_that_another_budget_cannot_have_is_no_error(posbench: Posbench, measured: Path, monkeypatch):
    real = command._plan

    def plan(name: str, budget: str, *rest):
        if budget == "smoke":
            raise UserError("train.tokens is too small.")
        return real(name, budget, *rest)

    monkeypatch.setattr(command, "_plan", plan)
    done = posbench("report train_short_test_long")
    assert done.status == 2
    assert "Nothing of the study train_short_test_long (default) has been measured" in done.err
    assert "too small" not in done.err


def test_without_the_extra_a_sentence_says_how_to_get_it(posbench: Posbench, measured: Path, monkeypatch):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda module: None)
    done = posbench("report")
    assert done.status == 2
    assert "matplotlib, which is not installed" in done.err
    assert "pip install 'posbench[report]'" in done.err


def test_a_study_without_the_extra_ends_with_that_sentence_and_not_with_an_error(monkeypatch, capsys):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda module: None)
    command.say_page(None, "posbench report x", "posbench study run x")
    assert "pip install 'posbench[report]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            UserError("runs/report/x was not written by posbench report.", "Name another."),
            "runs/report/x was not written",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "runs/report/x"), "No space left on device: runs/report/x"),
    ],
)
def test_a_study_whose_page_has_no_room_says_so_and_ends_as_its_runs_do(monkeypatch, capsys, error, why):
    def full(made, folder):
        raise error

    monkeypatch.setattr(command, "of_study", lambda *of: of)
    monkeypatch.setattr(command, "place", lambda plan: "runs/report/x")
    monkeypatch.setattr("posbench.report.page.write", full)
    command.say_page(None, "posbench report x", "posbench study run x")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"No report: {why}")
    assert second == "To have it, also elsewhere: posbench report x --out DIR"


def test_a_bench_that_is_none_is_refused(posbench: Posbench, measured: Path, tmp_path: Path):
    (tmp_path / "bench.json").write_text('[{"rows": []}]')
    done = posbench("report --bench", str(tmp_path / "bench.json"))
    assert done.status == 2
    assert "holds no speeds of encodings" in done.err
    assert "cannot be read" in posbench("report --bench", str(tmp_path / "nowhere.json")).err


def test_the_curve_is_drawn_in_the_terminal(posbench: Posbench, measured: Path):
    """e^(481/128) = 42.9 and e^(521/128) = 58.6 are its ends."""
    done = posbench("plot")
    assert done.status == 0
    assert "a  alibi, L = 128: 39.63 at 256" in done.out
    assert "\x1b" not in done.out
    assert max(map(len, done.out.splitlines())) <= 100
    assert "rope" not in posbench("plot alibi-L128").out


def test_a_table_against_one_of_them(posbench: Posbench, measured: Path):
    done = posbench("table --against alibi")
    assert done.status == 0
    assert "Perplexity over that of alibi" in done.out
    assert posbench("table --against alib").status == 2
    assert posbench("table --against alibi --by-position").status == 2
