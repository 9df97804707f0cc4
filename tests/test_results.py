"""Committed results: what is collected of a study, and that all else is made of it again, byte for byte."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path
from types import ModuleType

import made
import pytest
import scripted
import yaml

from posbench import evaluate, records, study
from posbench.errors import UserError
from posbench.run import Run

STUDY = {
    "title": "Two toys",
    "common": [
        *("data=files", "data.path=text", f"data.holdout={made.HOLDOUT}", "tokenizer=bytes", "model=toy"),
        *("train.length=16", "train.tokens=64", "train.batch_tokens=16"),
    ],
    "runs": [["encoding=alibi"], ["encoding=rope"]],
    "evals": {
        "flat": {"protocol": "nonoverlapping", "lengths": [16, 32], "targets": 512},
        "same": {"protocol": "same-targets", "lengths": [8, 16, 32], "block": 4, "targets": 64},
    },
    "claims": [
        made.claim(
            primary=True,
            left={"encoding": "alibi", "train_length": 16, "at": "2L"},
            paper={"table": "Table 5", "left": ["alibi", 128, 256], "right": ["alibi", 128, 128]},
        )
    ],
}
MARKS = "# {}\n\n<!-- {name}: made by bash scripts/rebuild_results.sh -->\n<!-- end of {name} -->\n"
FILES = {
    "configs/model/toy.yaml": yaml.safe_dump({"layers": 2, "width": 32, "heads": 4, "hidden": 48}),
    "configs/study/two.yaml": yaml.safe_dump(STUDY),
    "results/studies.yaml": yaml.safe_dump({"two": {"study": "two", "commands": ["posbench study run two"]}}),
    "README.md": MARKS.format("A project", name="answer"),
    "results/README.md": MARKS.format("All", name="answer") + MARKS.format("", name="folders"),
    "results/two/README.md": MARKS.format("Two", name="runs"),
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return scripted.load("results")


@pytest.fixture(scope="module")
def once(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two toy runs, both trained, one of them measured, collected, and all that is made of it."""
    folder = tmp_path_factory.mktemp("once")
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch)
        made.text(Path("text"))
        for file, content in FILES.items():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(content, encoding="utf-8")
        alibi, rope = study.plan(study.load("two")).jobs
        for job in (alibi, rope):
            made.finished(job.config)
        evaluate.evaluate(alibi.run, alibi.requests, device="cpu")
        assert collect(script, Path("results")) == 5
        script.rebuild(Path("results"))
    return folder


def enter(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Work in a folder: a text of one's own is then at a path that is no machine's."""
    patch.chdir(folder)
    for name, place in {"POSBENCH_CONFIGS": "configs", "POSBENCH_DATA": "data", "POSBENCH_RUNS": "runs"}.items():
        patch.setenv(name, str(folder / place))


@pytest.fixture
def results(once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in a folder of the test's own."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    enter(tmp_path, monkeypatch)
    return Path("results")


def measure_the_other() -> None:
    _, rope = study.plan(study.load("two")).jobs
    evaluate.evaluate(rope.run, rope.requests, device="cpu")


def collect(script: ModuleType, results: Path) -> int:
    return script.collect(script.folders(results)[0])


def test_rows_are_copied_as_they_are_and_nothing_of_the_machine_with_them(results, once):
    kept = list((results / "two" / "runs").rglob("*"))
    assert {file.suffix for file in kept if file.is_file()} == {".json", ".npz"}
    for file in kept:
        if file.suffix == ".json":
            text = file.read_text()
            assert f'"{socket.gethostname()}"' not in text
            assert str(once) not in text
    rows = records.read([results / "two" / "runs"])
    assert sorted(map(records.digest, rows)) == sorted(map(records.digest, records.read()))
    (run,) = {row.run for row in rows}
    assert Run(results / "two" / "runs" / run).status()["state"] == "rows only"


def test_what_is_collected_stays_and_only_what_is_new_is_added(script, results):
    for row in records.read():
        row.path.unlink()
    assert collect(script, results) == 0
    assert len(script.folders(results)[0].rows) == 5
    measure_the_other()
    assert collect(script, results) == 5


def test_a_path_of_this_machine_is_refused(script, results, tmp_path):
    (run,) = (tmp_path / "runs").glob("alibi-*")
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"steps": 4', f'"steps": 4, "command": "--config-dir {tmp_path}"'))
    with pytest.raises(UserError, match=r"names .*, which is of this machine"):
        collect(script, results)


def test_all_that_is_made_is_made_again_byte_for_byte(script, results, monkeypatch):
    """From committed rows alone: the runs, the text and its tokens are gone."""
    found = {str(file.relative_to(results)) for file in results.rglob("*")}
    tables = {f"two/tables.{ending}" for ending in ("md", "csv", "json", "tex")}
    assert tables | {"two/index.html", "two/figures/answer.svg"} <= found
    monkeypatch.setenv("POSBENCH_RUNS", "nowhere")
    monkeypatch.setenv("POSBENCH_DATA", "nowhere")
    assert script.main(["check", "--results", str(results)]) == 0


def test_what_is_missing_is_named_until_it_is_there(script, results):
    page = (results / "two" / "README.md").read_text().partition("**Missing:**")[2]
    assert "rope-L16-toy-s1" in page.splitlines()[2]
    assert "not measured" in page.splitlines()[2]
    assert "| 1 of 2 | 1 run |" in (results / "README.md").read_text()
    measure_the_other()
    collect(script, results)
    pages = script.pages(results, script.folders(results))
    assert "Nothing is missing" in pages[results / "two" / "README.md"]
    assert "| 2 of 2 | nothing |" in pages[results / "README.md"]


def test_references_and_runs_that_go_on_from_one_of_these_are_missed_too(script, results):
    """Without the bigram no run can be seen to be undertrained."""
    Path("configs/study/two.yaml").write_text(yaml.safe_dump(STUDY | {"references": ["bigram"]}), encoding="utf-8")
    entry = {"study": "two", "commands": ["posbench study run two"], "further": 2}
    (results / "studies.yaml").write_text(yaml.safe_dump({"two": entry}), encoding="utf-8")
    pages = script.pages(results, script.folders(results))
    assert "| 1 of 2 | 1 run, bigram, init_from |" in pages[results / "README.md"]
    page = pages[results / "two" / "README.md"]
    assert "- `bigram`: not counted" in page
    assert "- `init_from`: 2 of 2 runs that go on from one of these" in page


@pytest.mark.parametrize("text", ["{", "", "two: 5", "two: {stduy: two, commands: []}"])
def test_a_list_of_folders_that_is_none_is_named(script, results, capsys, text: str):
    (results / "studies.yaml").write_text(text, encoding="utf-8")
    assert script.main(["check", "--results", str(results)]) == 2
    assert "studies.yaml names no folders of results" in capsys.readouterr().err


def test_a_folder_that_is_not_listed_is_named_in_a_check_too(script, results, capsys):
    assert script.main(["check", "tow", "--results", str(results)]) == 2
    assert "Did you mean 'two'" in capsys.readouterr().err


def test_the_page_opens_with_the_table_the_figure_and_the_primary_claims(results):
    text = (results / "README.md").read_text()
    assert text.index("| alibi | 16 |") < text.index("two/figures/answer.svg") < text.index("| ALiBi at 2 L |")


def test_the_front_page_has_the_table_with_what_its_words_mean_and_the_figure(script, results):
    text = Path("README.md").read_text()
    assert (
        text.index("*Two toys.* So far 1 of 2 runs.") < text.index("| alibi | 16 |") < text.index("- In brackets 95 %.")
    )
    (figure,) = re.findall(r"\]\((\S+answer\.svg)\)", text)
    assert Path(figure).is_file()
    shutil.rmtree(results / "two" / "runs")
    front = script.pages(results, script.folders(results))[Path("README.md")]
    assert "Nothing of `two` has been measured yet." in front


def test_a_byte_that_is_not_as_it_is_made_fails_the_check(script, results, capsys):
    """A page between its marks, a table, a figure, and a figure that is made no more."""
    files = [results / name for name in ("two/figures/answer.svg", "two/tables.md", "two/README.md", "README.md")]
    files += [Path("README.md")]
    for file in files:
        file.write_text(file.read_text().replace("1", "2", 1))
    stale = results / "two" / "figures" / "old.svg"
    stale.write_text("<svg/>")
    assert script.main(["check", "--results", str(results)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == sorted(f"not as it is made: {file}" for file in [*files, stale])


def test_a_damaged_row_is_an_error_and_not_left_out(script, results, capsys):
    row = next((results / "two" / "runs").rglob("rows/*.json"))
    row.write_text(row.read_text().replace('"ok"', '"ko"'))
    assert script.main(["check", "--results", str(results)]) == 2
    assert "was changed after it was written" in capsys.readouterr().err


def test_a_page_without_the_place_for_a_part_is_refused(script, results, capsys):
    (results / "README.md").write_text("# All\n")
    assert script.main(["rebuild", "--results", str(results)]) == 2
    assert "has no place for 'answer'" in capsys.readouterr().err


def test_the_folders_of_the_results_are_of_studies_that_are_shipped(script):
    """Each with its page."""
    place = scripted.SCRIPTS.parent / "results"
    listed = script.folders(place)
    for folder in listed:
        assert folder.budget in study.load(folder.study).budgets
        assert "end of runs" in (folder.path / "README.md").read_text()
    with pytest.raises(UserError, match="Did you mean 'tsl-cpu'"):
        script.folders(place, ["tsl_cpu"])
