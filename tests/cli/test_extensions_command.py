"""`posbench eval --extension`, and training on under one: what a user types, and what a mistake is answered with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import made
import pytest
from conftest import Posbench

from posbench.run import Run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """A finished rope run and a finished alibi one, trained at 16, made once."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSBENCH_RUNS", str(folder / "runs"))
        patch.setenv("POSBENCH_DATA", str(folder / "data"))
        text = made.text(folder / "text")
        yield folder, [made.finished_run(text, name, 16) for name in ("rope", "alibi")]


@pytest.fixture
def runs(finished: tuple[Path, list[Run]], posbench: Posbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those two, without rows, in a folder of this test."""
    folder, made = finished
    monkeypatch.setenv("POSBENCH_DATA", str(folder / "data"))
    for one in made:
        shutil.copytree(one.path, tmp_path / "runs" / one.name)
    return [one.name for one in made]


EVAL = "--lengths 64 eval.targets=128 --no-references --device cpu --format json"


def cells(text: str) -> dict[tuple[str, str, int], str]:
    """Status by (encoding, extension, length) of a table printed as JSON."""
    rows = [row for table in json.loads(text) for row in table["rows"]]
    return {(row["encoding"], row["extension"], row["length"]): row["status"] for row in rows}


def test_one_checkpoint_gives_a_table_of_extensions_by_lengths(posbench: Posbench, runs: list[str]):
    done = posbench(f"eval rope --extension none,pi,yarn {EVAL}")
    assert done.status == 0, done.err
    assert cells(done.out) == {("rope", name, length): "ok" for name in ("none", "pi", "yarn") for length in (16, 64)}
    (table,) = json.loads(done.out)
    gains = {row["extension"]: row["gain_nats"] for row in table["rows"] if row["length"] == 64}
    losses = {row["extension"]: row["loss"] for row in table["rows"] if row["length"] == 64}
    assert gains["none"] is None
    assert gains["pi"] == pytest.approx(losses["none"] - losses["pi"])
    assert posbench("table --format json").out == done.out


def test_a_setting_of_an_extension_is_given_beside_its_name(posbench: Posbench, runs: list[str]):
    done = posbench(f"eval rope --extension none,pi extension.factor=8 {EVAL}")
    assert done.status == 0, done.err
    assert {extension for _, extension, _ in cells(done.out)} == {"none", "pi factor=8"}


def test_of_one_named_run_an_extension_that_does_not_apply_is_a_mistake(posbench: Posbench, runs: list[str]):
    done = posbench(f"eval alibi --extension pi,yarn {EVAL}")
    assert (done.status, done.out) == (2, "")
    assert done.err == "error: The extension 'yarn' does not apply to alibi.\nextension: logn, none, pi\n"


def test_of_all_runs_it_is_a_marked_row(posbench: Posbench, runs: list[str]):
    done = posbench(f"eval --extension yarn {EVAL}")
    assert done.status == 0, done.err
    found = cells(done.out)
    assert found["rope", "yarn", 64] == "ok"
    assert found["alibi", "yarn", 64] == "n/a"
    assert "n/a: The extension 'yarn' does not apply to alibi" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--extension yarm", "There is no extension 'yarm'. Did you mean 'yarn'?"),
        ("--extension none extension.factor=8", "extension.factor=8 has no effect here.\nName the extension:"),
        ("extension.factor=8", "extension.factor=8 has no effect here.\nName the extension: --extension yarn"),
        ("extension=yarn", "extension=yarn is no setting of an evaluation.\nWrite --extension yarn."),
        ("--extension yarn extension.rapm=paper", "There is no setting 'extension.rapm'. Did you mean"),
        ("--extension yarn extension.mscale=1", "The extension 'yarn' has no setting 'mscale'.\nThey are a ratio"),
        ("--extension abf extension.factor=2", "There is no setting 'extension.factor'."),
        ("--extension pi extension.factor=0", "factor must be auto or a number of 1 or more, not 0"),
        ("--extension [", "There is no extension ''."),
        ("--extension pi,,yarn", "There is no extension ''."),
        ('--extension "pi yarn"', "There is no extension 'pi yarn'. Did you mean"),
    ],
)
def test_a_mistake_is_said_in_a_sentence_or_two(posbench: Posbench, runs: list[str], words: str, said: str):
    done = posbench(f"eval rope {words} {EVAL}")
    assert done.status == 2, done.err
    assert done.out == ""
    assert said in done.err
    assert len(done.err.splitlines()) <= 2


def test_training_goes_on_under_an_extension_and_without_one(posbench: Posbench, runs: list[str]):
    short = "train.length=64 train.tokens=64 train.batch_tokens=64 device=cpu"
    for words in ("extension=pi", ""):
        done = posbench(f"train init_from=rope-L16 {words} {short}")
        assert done.status == 0, done.err
    assert f"from the weights of {runs[0]}" in done.err
    done = posbench(f"eval rope+pi {EVAL}")
    assert cells(done.out) == {("rope+pi", "as trained", 64): "ok"}
    again = posbench(f"train init_from=rope-L16 extension=pi {short}")
    assert "is trained already" in again.err


def test_a_setting_of_other_tools_is_answered_with_what_to_write_here(posbench: Posbench, runs: list[str]):
    done = posbench("train init_from=rope-L16 extension=yarn extension.mscale=1")
    assert done.status == 2
    assert done.err.startswith("error: There is no setting 'extension.mscale'.\nThey are a ratio")
    assert "Did you mean" in posbench("train init_from=rope-L16 extension=yarn extension.rapm=code").err


def test_the_choices_are_in_the_help_of_train(posbench: Posbench):
    assert "extension" in posbench("train --help").out
    assert "ntk_by_parts" in posbench("train --help").out
