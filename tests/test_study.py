"""A study trains what is missing, goes on after a failure, and reports from rows alone."""

from __future__ import annotations

import math
from pathlib import Path

import made
import pytest
import yaml
from made import row

from posbench import job, lock, study
from posbench.compose import combinations, compose
from posbench.errors import UserError
from posbench.evaluate import Request
from posbench.launch import Settings, summary
from posbench.report.tables import render
from posbench.run import Run, directory
from posbench.search_path import files

SHIPPED = "train_short_test_long"

PERPLEXITY = {"rope": 50.0, "alibi": 40.0, "none": 60.0, "unigram": 400.0, "bigram": 68.0}


def write(folder: Path, **entries: object) -> str:
    """The path of a study of rope, alibi and none at 64, read at 64 and 128."""
    content = {
        "common": ["train.length=64"],
        "runs": [["encoding=rope"], ["encoding=alibi"], ["encoding=none"]],
        "evals": {"flat": {"protocol": "nonoverlapping", "lengths": [128], "targets": 256}},
        "references": ["unigram", "bigram"],
        "budgets": {"default": {"common": ["train.tokens=8192"]}},
    } | entries
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


class Fakes:
    """Training and evaluation that take no time: what they were asked for, and what is done already."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.failing: set[str] = set()
        self.rows: dict[tuple[str, int], object] = {}

    def train(self, config, command, say) -> Run:
        run = Run(directory(config))
        run.path.mkdir(parents=True, exist_ok=True)
        name = config.encoding["name"]
        if name in self.failing:
            raise RuntimeError(f"{name} broke")
        self.trained.append(name)
        run.__dict__["config"] = config
        return run

    def evaluate(self, run, wanted, force, device, on_row) -> list:
        return self.measure(run.config.encoding["name"], run.config.train.length, wanted, on_row)

    def reference(self, name, config, wanted, force, on_row) -> list:
        return self.measure(name, None, wanted, on_row)

    def measure(self, name, train_length, wanted: list[Request], on_row) -> list:
        found = []
        for request in wanted:
            if (name, request.length) not in self.rows:
                loss = math.log(PERPLEXITY[name])
                made = row(
                    **{"status": "ok", "reason": None, "targets": 256, "loss": loss, "perplexity": PERPLEXITY[name]},
                    kind="reference" if train_length is None else "run",
                    encoding=name,
                    run_hash=name,
                    train_length=train_length,
                    protocol=request.protocol,
                    length=request.length,
                )
                self.rows[name, request.length] = made
                on_row(made)
            found.append(self.rows[name, request.length])
        return found


@pytest.fixture
def fakes(monkeypatch, tmp_path) -> Fakes:
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))
    fakes = Fakes()
    monkeypatch.setattr(job, "train", fakes.train)
    monkeypatch.setattr(job.evaluate, "evaluate", fakes.evaluate)
    monkeypatch.setattr(study.baselines, "evaluate", fakes.reference)
    monkeypatch.setattr(study.tokens, "prepare", lambda data, tokenizer, say: None)
    monkeypatch.setattr(study.system, "matmul_rate", lambda: 100.0)
    return fakes


# What a study says ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", ["default", "full", "smoke"])
def test_every_budget_of_the_shipped_study_composes(budget):
    plan = study.plan(study.load(SHIPPED), budget)
    made = [(job.config.encoding["name"], job.config.train.length) for job in plan.jobs]
    assert made == [(n, 128) for n in ("none", "sinusoidal", "learned", "rope", "alibi", "t5")] + [("sinusoidal", 256)]
    assert {job.config.data["name"] for job in plan.jobs} == {"sotu"}
    assert [eval.protocol for eval in plan.evals] == ["nonoverlapping", "same-targets"]
    assert len({job.config.train.tokens for job in plan.jobs}) == 1


def test_the_default_budget_is_the_comparison_that_is_documented():
    plan = study.plan(study.load(SHIPPED))
    flat, same = plan.evals
    assert plan.jobs[0].config.train.tokens == 800_000
    assert flat.lengths == [128, 256, 512, 1024, 2048, 4096]
    assert same.lengths == [32, 64, *flat.lengths], "a quarter of each training length is among them"
    assert flat.targets == 98_304
    assert all(flat.targets % length == 0 for length in flat.lengths)
    assert (same.min_context, same.block, same.targets) == (4096, 32, 2048)
    assert plan.study.references == ["unigram", "bigram"]


@pytest.mark.parametrize("name", [name for name in files("study") if name != SHIPPED])
def test_every_other_shipped_study_composes(name, monkeypatch):
    """Of each line of runs the first."""
    monkeypatch.setattr(study, "combinations", lambda words: combinations(words)[:1])
    shipped = study.load(name)
    plan = study.plan(shipped)
    assert len(plan.jobs) == len(shipped.runs)
    assert all(job.requests for job in plan.jobs)


def test_only_the_smoke_budget_says_that_its_numbers_mean_nothing():
    shipped = study.load(SHIPPED)
    assert "mean nothing" in study.plan(shipped, "smoke").note
    assert study.plan(shipped).note is None


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"rnus": []}, "Did you mean 'runs'"),
        ({"runs": []}, "names no runs"),
        ({"runs": 5}, "a run that is no list of settings: 5"),
        ({"runs": [[1]]}, "a run that is no list of settings"),
        ({"runs_from": "nowhere.txt"}, r"The list of runs .*nowhere\.txt cannot be read: No such file"),
        ({"runs": ["encoding=rope 'x"]}, "a run that cannot be read, encoding=rope 'x: No closing quotation"),
        ({"common": {"seed": 2}}, "a 'common' that is no list of settings"),
        ({"common": [5]}, "a 'common' that is no list of settings"),
        ({"common": "'data=sotu"}, "a 'common' that cannot be read"),
        ({"references": ["bigrams"]}, "Did you mean 'bigram'"),
        ({"references": "bigrams"}, "Did you mean 'bigram'"),
        ({"evals": [{"protocol": "sliding"}]}, "'evals' that is no mapping of keys"),
        ({"evals": {"flat": "sliding"}}, "an eval that is no mapping of keys: sliding"),
        ({"budgets": ["default"]}, "'budgets' that is no mapping of keys"),
        ({"budgets": {"default": ["seed=2"]}}, "a budget that is no mapping of keys"),
        ({"budgets": {"default": {"common": 5}}}, "a 'common' that is no list of settings: 5"),
        ({"budgets": {"default": {"evals": ["flat"]}}}, "'evals' that is no mapping of keys"),
        ({"budgets": {"default": {"evals": {"flat": 5}}}}, "an eval that is no mapping of keys: 5"),
        ({"claims": "rope wins"}, "a claim that is no mapping of keys: rope wins"),
        ({"primary": "rope wins"}, "no claim to be primary 'rope wins'"),
        ({"budgets": {"default": {"evals": {"flatt": {}}}}}, "Did you mean 'flat'"),
        ({"budgets": {"default": {"tokens": 5}}}, "no key of a budget 'tokens'"),
        ({"title": 5}, "a 'title' that is no text: 5"),
        ({"title": False}, "a 'title' that is no text: False"),
        ({"budgets": {"default": {"note": 5}}}, "a 'note' that is no text: 5"),
        ({"budgets": {"default": {"note": ["x"]}}}, "a 'note' that is no text"),
        ({"budgets": {2026: {}}}, "'budgets' with a key that is no text: 2026"),
        ({"evals": {True: {}}}, "'evals' with a key that is no text: True"),
        ({"runs_from": [["list.txt"]]}, "a 'runs_from' that is no text"),
        ({"claims_from": 5}, "a 'claims_from' that is no text"),
        ({"claims": [made.claim(note=5)]}, "The claim 'ALiBi at 2 L' cannot be read: 'note' is 5, which is no text"),
        ({"runs": ["seed=range(0,0)"]}, "In the run 'seed=range\\(0,0\\)': .*makes no job"),
        ({"runs": ["seed=range(0,9000)", "seed=range(9000,18000)"]}, "The study mine makes 18,000 jobs"),
        ({"evals": {"flat": {"lengths": {64: 1}}}}, "'lengths' that is neither a value nor a list"),
        ({"evals": {"flat": {"lengths": [[64]]}}}, "the eval flat with 'lengths' that is neither a value nor a list"),
        ({"budgets": {"default": {"evals": {"flat": {"targets": {"a": 1}}}}}}, "'targets' that is neither a value"),
        ({"evals": {"flat": {"targets": "1:30"}}}, "eval.targets: '1:30' is no whole number"),
        ({"runs": [["encoding=ropee"]]}, "Did you mean 'rope'"),
        ({"runs": [["encoding=rope"], ["encoding=rope"]]}, "twice"),
        ({"runs": [["encoding=rope"], ["model.heads=7"]]}, "model.heads=7"),
        ({"runs": [None]}, "has an empty run"),
        ({"runs": [["encoding=rope", "workers=2"]]}, "'workers' is no setting of a run.\nIt is one of the whole"),
        (
            {"runs": [[]], "common": ["encoding=ropee"]},
            r"In the run \[\] \(the common settings alone\): There is no enc",
        ),
        ({"runs": [""]}, "has an empty run"),
        ({"evals": {"flat": {"protocl": "sliding"}}}, "no setting of an eval 'protocl'"),
        ({"evals": {"flat": {"": "sliding"}}}, "no setting of an eval ''"),
        ({"evals": {"flat": {"lengths.0": 64}}}, "no setting of an eval 'lengths.0'"),
        ({"budgets": {"default": {"evals": {"flat": {"protocl": "sliding"}}}}}, "no setting of an eval 'protocl'"),
        ({"evals": {"flat": {"lengths": [None]}}}, "In the eval flat: eval.lengths.0. cannot be empty"),
        ({"evals": {"flat": {"targets": "many"}}}, "In the eval flat: eval.targets"),
        ({"evals": {"flat": {"protocol": "slidin"}}}, "Did you mean 'sliding'"),
        ({"evals": {"flat": {"extensions": ["yarm"]}}}, "Did you mean 'yarn'"),
    ],
)
def test_a_study_is_refused_whole_before_anything_starts(entries, message, tmp_path, fakes):
    with pytest.raises(UserError, match=message):
        study.plan(study.load(write(tmp_path, **entries)))
    assert fakes.trained == []


def test_a_study_that_is_no_text_cannot_be_read(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_bytes("title: café\nruns: [[encoding=rope]]\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"mine\.yaml cannot be read\.\n'utf-8' codec"):
        study.load(str(file))


def test_a_key_that_is_there_twice_is_refused_since_the_first_would_be_lost(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("runs: [[encoding=rope]]\nruns: [[encoding=alibi]]\n")
    with pytest.raises(
        UserError, match=r"mine\.yaml cannot be read\.\nLine 2, column 1: the key 'runs' is there twice"
    ):
        study.load(str(file))


def test_a_length_with_a_zero_before_it_is_decimal(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("runs: [[encoding=rope]]\nevals: {flat: {lengths: [0100]}}\n")
    assert study.plan(study.load(str(file))).evals[0].lengths == [100]


def test_an_entry_that_is_left_empty_is_empty(tmp_path):
    """As a key of which only the values are commented out."""
    emptied = dict.fromkeys(("title", "common", "runs_from", "references", "claims", "claims_from", "primary"))
    evals, budget = {"flat": None}, {"common": None, "evals": {"flat": None}, "note": None}
    found = study.load(write(tmp_path, **emptied, evals=evals, budgets={"default": budget, "full": None}))
    plain = {"evals": {"flat": {}}, "budgets": {"default": {"evals": {"flat": {}}}, "full": {}}}
    assert found == study.load(write(tmp_path, common=[], references=[], **plain))
    without = study.load(write(tmp_path, evals=None, budgets=None))
    assert without == study.load(write(tmp_path, evals={}, budgets={"default": {}}))
    assert len(study.plan(found).jobs) == 3


def test_one_thing_stands_for_a_list_of_it(tmp_path):
    """And words may be a line, as on a command line."""
    listed = study.load(
        write(tmp_path, common=["data=sotu", "seed=2"], runs=[["encoding=rope"]], references=["unigram"])
    )
    assert listed == study.load(write(tmp_path, common="data=sotu seed=2", runs="encoding=rope", references="unigram"))


def test_an_unknown_study_or_budget_names_what_there_is(tmp_path):
    with pytest.raises(UserError, match=f"Did you mean '{SHIPPED}'"):
        study.load("train_short")
    with pytest.raises(UserError, match="Did you mean 'default'"):
        study.plan(study.load(write(tmp_path)), "defautl")
    with pytest.raises(UserError, match="cannot be read"):
        study.load(str(tmp_path / "nowhere.yaml"))


# What becomes of it ---------------------------------------------------------------------------------------------------


def test_a_file_of_ones_own_is_named_where_its_ending_was_left_out(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="There is no study 'mine' in the config folders") as refusal:
        study.load("mine")
    assert refusal.value.hint == "One of your own is mine.yaml."


def test_rows_come_one_by_one_and_each_run_is_read_at_its_own_length_too(tmp_path, fakes):
    told = []
    outcome = study.run(study.plan(study.load(write(tmp_path))), on_row=told.append)
    assert [(one.encoding, one.length) for one in told[:4]] == [
        ("rope", 64),
        ("rope", 128),
        ("alibi", 64),
        ("alibi", 128),
    ]
    assert told == outcome.rows
    assert [one.encoding for one in told[-4:]] == ["unigram", "unigram", "bigram", "bigram"]
    assert (summary(outcome.results), outcome.matmul_rate) == ([], 100.0)
    names = [one.run.name for one in outcome.plan.jobs]
    assert [name for name, _ in outcome.results] == [*names, "unigram", "bigram"]


def test_a_second_time_nothing_is_computed_and_all_of_it_is_reported(tmp_path, fakes):
    """RUN-4: what is done is found again, and said to be."""
    first = study.run(study.plan(study.load(write(tmp_path))))
    said, told = [], []
    second = study.run(study.plan(study.load(write(tmp_path))), said.append, told.append)
    assert told == []
    assert second.rows == first.rows
    assert said.count("2 of 2 rows were there already") == 5


def test_a_failing_run_is_said_at_once_logged_and_named_and_the_others_run(tmp_path, fakes):
    """RUN-1: good, failing, good."""
    fakes.failing = {"alibi"}
    said: list[str] = []
    plan = study.plan(study.load(write(tmp_path)))
    outcome = study.run(plan, said.append)
    failing = plan.jobs[1].run
    assert fakes.trained == ["rope", "none"]
    at_once = next(line for line in said if line.startswith(f"error: {failing.name}: alibi broke\n"))
    assert "RuntimeError: alibi broke" in at_once
    assert said.index(at_once) < said.index(f"[3/3] {plan.jobs[2].run.name}")
    assert summary(outcome.results)[:2] == ["1 of 5 jobs failed:", f"  {failing.name}: alibi broke"]
    assert "RuntimeError: alibi broke" in (failing.path / "log.txt").read_text()
    assert {one.encoding for one in outcome.rows} == {"rope", "none", "unigram", "bigram"}


def test_it_can_be_told_to_stop_at_the_first_failure(tmp_path, fakes):
    fakes.failing = {"alibi"}
    outcome = study.run(study.plan(study.load(write(tmp_path))), how=Settings(on_error="stop"))
    assert fakes.trained == ["rope"]
    assert [result and result.state for _, result in outcome.results[:3]] == ["done", "failed", None]


def test_what_is_said_of_the_text_is_said_once(tmp_path, fakes, monkeypatch):
    """Each training prepares its text again, and says so; what it says of itself is told."""

    def prepare(data, tokenizer, say):
        say("the text is ready")

    def train(config, command, say):
        prepare(None, None, say)
        say("step 1")
        return fakes.train(config, command, say)

    monkeypatch.setattr(study.tokens, "prepare", prepare)
    monkeypatch.setattr(job, "train", train)
    said: list[str] = []
    study.run(study.plan(study.load(write(tmp_path))), said.append)
    assert (said.count("the text is ready"), said.count("step 1")) == (1, 3)


def test_a_full_disk_is_one_line_and_a_log_that_cannot_be_written_ends_nothing(tmp_path, fakes, monkeypatch):
    def full(*words):
        raise OSError(28, "No space left on device", "checkpoint.safetensors")

    monkeypatch.setattr(job, "train", full)
    monkeypatch.setattr(Run, "log", full)
    plan = study.plan(study.load(write(tmp_path)))
    outcome = study.run(plan)
    messages = [result.message for _, result in outcome.results]
    assert messages == ["No space left on device: checkpoint.safetensors"] * 3


def test_a_text_that_cannot_be_had_is_one_error_before_the_first_run(tmp_path, fakes, monkeypatch):
    def refuse(data, tokenizer, say):
        raise UserError("no such text")

    monkeypatch.setattr(study.tokens, "prepare", refuse)
    with pytest.raises(UserError, match="no such text"):
        study.run(study.plan(study.load(write(tmp_path))))
    assert fakes.trained == []


def test_runs_come_from_a_list_in_a_file_too_and_each_may_be_several(tmp_path, fakes):
    """Not only products: each encoding with its own training length, and of one of them three seeds."""
    (tmp_path / "list.txt").write_text("\ufeff# what else\n\nencoding=t5 train.length=32  # shorter\nencoding=fire\n")
    runs = [["encoding=rope", "train.length=128"], "encoding=alibi seed=1,2,3"]
    plan = study.plan(study.load(write(tmp_path, runs=runs, runs_from="list.txt")))
    made = [(one.config.encoding["name"], one.config.train.length, one.config.seed) for one in plan.jobs]
    assert made == [
        ("rope", 128, 1),
        ("alibi", 64, 1),
        ("alibi", 64, 2),
        ("alibi", 64, 3),
        ("t5", 32, 1),
        ("fire", 64, 1),
    ]
    only = study.plan(study.load(write(tmp_path, runs=[], runs_from="list.txt")))
    assert [one.config.encoding["name"] for one in only.jobs] == ["t5", "fire"]


def test_all_runs_share_their_same_targets_whatever_their_training_lengths(tmp_path):
    """The longest of all lengths is the context that every target has, as `posbench eval` has it."""
    evals = {"same": {"protocol": "same-targets", "lengths": [32, 128]}}
    runs = [["encoding=rope"], ["encoding=alibi", "train.length=256"]]
    plan = study.plan(study.load(write(tmp_path, runs=runs, evals=evals)))
    assert {request.min_context for one in plan.jobs for request in one.requests} == {256}


def test_what_a_study_lists_is_known_by_name(tmp_path, monkeypatch):
    """In the config folders, the user's own among them, under any budget."""
    (tmp_path / "study").mkdir()
    write(tmp_path / "study", budgets={"default": {}, "full": {"common": ["train.tokens=8192"]}})
    monkeypatch.setenv("POSBENCH_CONFIGS", str(tmp_path))
    monkeypatch.setattr(study, "files", lambda group: {"mine": tmp_path / "study" / "mine.yaml"})
    plan = study.plan(study.load("mine"), "full")
    names = [one.label for one in plan.jobs]
    assert study.needed([names[0], "another"]) == {names[0]: ["mine"]}


def test_a_study_needs_what_its_runs_start_from(tmp_path, monkeypatch):
    """Without it the study cannot even be planned, though the run that started from it has all its rows."""
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    start = made.finished_run(made.text(tmp_path / "texts"), "rope", 64)
    runs = [[f"init_from={start.name}", "extension=pi", "train.length=128"]]
    file = Path(write(tmp_path, common=[], runs=runs))
    monkeypatch.setattr(study, "files", lambda group: {"mine": file})
    (job,) = study.plan(study.load("mine")).jobs
    assert study.needed([start.name, job.label]) == {start.name: ["mine"], job.label: ["mine"]}


def test_a_reference_that_another_process_counts_is_waited_for(tmp_path, fakes, monkeypatch):
    real, waited = fakes.reference, list[float]()

    def counted(*words):
        if not waited:
            raise lock.HeldError("unigram is being worked on")
        return real(*words)

    monkeypatch.setattr(study.baselines, "evaluate", counted)
    outcome = study.run(study.plan(study.load(write(tmp_path))), pause=waited.append)
    assert len(waited) == 1
    assert summary(outcome.results) == []


def test_many_runs_are_said_before_they_are_composed(tmp_path, monkeypatch):
    monkeypatch.setattr("posbench.compose.MANY", 3)
    said: list[str] = []
    study.plan(study.load(write(tmp_path)), say=said.append)
    study.plan(study.load(write(tmp_path, runs="encoding=rope")), say=said.append)
    assert said == ["3 jobs are composed and checked first"]


def test_overrides_come_last_in_every_run(tmp_path):
    plan = study.plan(study.load(write(tmp_path)), overrides=["seed=7", "train.tokens=4096"])
    assert {(one.config.seed, one.config.train.tokens) for one in plan.jobs} == {(7, 4096)}


def test_its_tables_are_lengths_the_paper_beside_and_the_statements(tmp_path, fakes):
    claim = {
        "name": "ALiBi is better than rotary",
        "left": {"encoding": "alibi", "train_length": 64, "at": "2L"},
        "relation": "less",
        "right": {"encoding": "rope", "train_length": 64, "at": "2L"},
        "protocol": "nonoverlapping",
        "paper": {"table": "Table 2", "left": ["alibi", 512, 1012], "right": ["rope", 512, 1012]},
    }
    budgets = {"default": {"note": "These numbers mean nothing."}}
    outcome = study.run(study.plan(study.load(write(tmp_path, claims=[claim], budgets=budgets))))
    lengths, beside, claims = outcome.tables()
    assert [section.rows[0][0].text for section in lengths.sections[:2]] == ["alibi", "bigram"]
    assert "Table 5" in render(beside)
    assert [section.title for section in claims.sections] == ["seen: ALiBi is better than rotary (nonoverlapping)"]
    assert all(table.notes[-1] == "These numbers mean nothing." for table in (lengths, beside, claims))


def test_the_last_word_on_a_setting_counts_and_the_others_are_not_on_the_command(tmp_path):
    plan = study.plan(study.load(write(tmp_path)), overrides=["train.length=32", "train.length=128", "seed=2,3"])
    assert [(one.config.train.length, one.config.seed) for one in plan.jobs[:2]] == [(128, 2), (128, 3)]
    assert plan.jobs[0].command == "posbench train train.tokens=8192 encoding=rope train.length=128 seed=2"


def test_a_study_has_the_claims_of_others_before_its_own(tmp_path):
    write(tmp_path, claims=[made.claim(name="a", primary=True), made.claim(name="b")])
    (tmp_path / "mine.yaml").rename(tmp_path / "base.yaml")
    found = study.load(write(tmp_path, claims_from="base.yaml", claims=[made.claim(name="c")], primary=["b"]))
    assert [(claim.name, claim.primary) for claim in found.claims] == [("a", False), ("b", True), ("c", False)]
    shipped = study.load(write(tmp_path, claims_from=[SHIPPED]))
    assert shipped.claims == study.load(SHIPPED).claims
    with pytest.raises(UserError, match="has claims from itself"):
        study.load(write(tmp_path, claims_from="mine.yaml"))


@pytest.mark.slow
def test_a_small_study_runs_whole_on_a_text_of_ones_own(tmp_path, monkeypatch):
    """Two documents a split, bytes, a model of one layer: every cell measured or marked, nothing failed."""
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.txt").write_text(f"One two three, {split} four five six seven. " * 100)
    common = [
        *(f"data.{split}={tmp_path / split}.txt" for split in ("train", "validation", "test")),
        *("data=files", "tokenizer=bytes", "model.layers=1", "model.width=16", "model.heads=2", "model.hidden=32"),
        *("train.length=32", "train.tokens=2048", "train.batch_tokens=256", "train.compile=off", "device=cpu"),
    ]
    evals = {
        "flat": {"protocol": "nonoverlapping", "lengths": [32, 64, 128], "targets": 1024},
        "same": {"protocol": "same-targets", "lengths": [32, 64, 128], "min_context": 128, "block": 16, "targets": 64},
    }
    runs = [["encoding=none"], ["encoding=learned"], ["encoding=alibi"]]
    plan = study.plan(study.load(write(tmp_path, common=common, runs=runs, evals=evals, budgets={"default": {}})))
    outcome = study.run(plan)
    assert summary(outcome.results) == []
    flat, same, *_ = outcome.tables()
    assert len(flat.records) == len(same.records) == (3 + 2) * 3
    absent = {(r["encoding"], r["length"]): r["reason"] for r in [*flat.records, *same.records] if r["status"] != "ok"}
    assert set(absent) == {("learned", 64), ("learned", 128)}
    assert all(absent.values())
    alibi = next(r for r in flat.records if (r["encoding"], r["length"]) == ("alibi", 128))
    assert (alibi["heads"], alibi["head_dim"]) == (2, 8)
    assert alibi["ratio_error"] > 0
    assert alibi["gain_bits_per_byte"] is not None
    assert study.run(plan).rows == outcome.rows


def test_no_library_module_imports_a_study():
    """The library knows nothing of studies; only the command line may."""
    package = Path(study.__file__).parent
    importing = [
        file.relative_to(package)
        for file in package.rglob("*.py")
        if file.parent.name != "cli" and file.name != "study.py" and "import study" in file.read_text()
    ]
    assert importing == []


def test_the_command_that_made_a_run_can_be_typed(tmp_path, fakes, monkeypatch):
    commands = []
    monkeypatch.setattr(
        job, "train", lambda config, command, say: commands.append(command) or fakes.train(config, command, say)
    )
    plan = study.plan(study.load(write(tmp_path)))
    study.run(plan)
    assert commands[0] == "posbench train train.length=64 train.tokens=8192 encoding=rope"
    assert directory(compose(commands[0].split()[2:])) == plan.jobs[0].run.path
