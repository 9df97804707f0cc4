"""A study is configuration: runs, how each is evaluated, references, and the claims to hold against them.

    1. load    configs/study/NAME.yaml, or a file of the user's own
    2. plan    one of its budgets, every run and what is measured of it composed and checked before the first starts
    3. run     posbench/launch.py: train what is missing, evaluate each run as soon as it is trained; then references
    4. tables  the rows of these runs, the paper's numbers beside them, the claims and what became of them

    title: what it compares
    common: [data=sotu, train.length=128]               overrides of every run
    runs: [[encoding=rope], [encoding=alibi, "seed=1,2"]]  and of each; as after -m, several values are several runs
    runs_from: FILE                                     more of them, a line each, beside this file or at a path
    evals: {NAME: {protocol: sliding, lengths: [...]}}  settings of the group `eval`
    references: [unigram, bigram]
    budgets: {default: {common: [train.tokens=...], evals: {NAME: {targets: ...}}, note: ...}, ...}
    claims: [...]                                       see posbench/report/claims
    claims_from: [STUDY, ...]                           those of other studies, by name or at a path, before its own
    primary: [NAME, ...]                                which of all these claims are primary, whatever else they say

Nothing of a study is kept anywhere: its runs are runs like any other, and may belong to several. What is done is found
again by its name, so that the same command goes on with a study that was broken off.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from posbench import baselines, entries, evaluate, launch, system
from posbench.compose import combinations, compose, refuse_too_many, tell_many
from posbench.config import Config, Eval
from posbench.data import tokens
from posbench.errors import UserError, reason, unknown
from posbench.job import Job, Result, described, measured
from posbench.launch import LOOK_SECONDS, Settings
from posbench.lock import HeldError
from posbench.records import Row
from posbench.report import claims, published
from posbench.report.claims import Claim
from posbench.report.lengths import length_tables
from posbench.report.parts import parts
from posbench.report.tables import Table
from posbench.run import name as run_name
from posbench.search_path import files

KEYS = ("title", "common", "runs", "runs_from", "evals", "references", "budgets", "claims", "claims_from", "primary")
BUDGET_KEYS = ("common", "evals", "note")


@dataclass(frozen=True)
class Study:
    """What a YAML says, its keys checked, nothing composed yet."""

    name: str
    title: str
    common: list[str]
    runs: list[list[str]]
    evals: dict[str, dict[str, Any]]
    references: list[str]
    budgets: dict[str, dict[str, Any]]
    """Each with common, evals and note."""
    claims: list[Claim]


@dataclass(frozen=True)
class Plan:
    """A study under one of its budgets, ready to start."""

    study: Study
    budget: str
    jobs: list[Job]
    evals: list[Eval]
    note: str | None
    """What a reader of its numbers has to know."""


@dataclass
class Outcome:
    """What came of a plan."""

    plan: Plan
    rows: list[Row] = field(default_factory=list)
    results: list[tuple[str, Result | None]] = field(default_factory=list)
    """What came of each run and reference, by name; None of one that was not begun."""
    seconds: float = 0.0
    matmul_rate: float = 0.0
    """GF/s of a float32 matrix product on this machine."""

    def tables(self) -> list[Table]:
        """Encodings by lengths in each protocol, ours beside the paper's, and the claims."""
        found = length_tables(self.rows)
        flat = [part for part in parts(self.rows) if part.shared["protocol"] == "nonoverlapping"]
        found += [table for part in flat if (table := published.beside(part)) is not None]
        if self.plan.study.claims:
            found.append(claims.claims_table(claims.judge(self.plan.study.claims, self.rows)))
        for table in found:
            table.notes += [self.plan.note] if self.plan.note else []
        return found


def load(name: str) -> Study:
    """The study of that name in the config folders, or of the YAML file at that path; `UserError` for a bad one."""
    return _load(name, ())


def _load(name: str, within: tuple[Path, ...]) -> Study:
    """`within`: the studies that have it read for its claims."""
    file = Path(name)
    if file.suffix not in (".yaml", ".yml"):
        known = files("study")
        if name not in known:
            if (own := Path(f"{name}.yaml")).is_file():
                raise UserError(f"There is no study '{name}' in the config folders.", f"One of your own is {own}.")
            raise unknown("study", name, known)
        file = known[name]
    here = f"The study {file}"
    found = entries.read_yaml(file, "The study")
    if not isinstance(found, Mapping):
        raise UserError(f"{here} is no mapping of keys.", f"key of a study: {', '.join(KEYS)}")
    _known("key of a study", found, KEYS)
    runs = [_run(here, own) for own in entries.listed(found.get("runs"))]
    for one in _texts(here, found, "runs_from"):
        runs += _runs_from(file.parent / one)
    if not runs:
        raise UserError(f"{here} names no runs.", "As in runs: [[encoding=rope], [encoding=alibi]]")
    own_claims = [entries.mapping(here, "a claim", one) for one in entries.listed(found.get("claims"))]
    primary = None if found.get("primary") is None else _texts(here, found, "primary")
    study = Study(
        name=file.stem,
        title=entries.text(here, "title", found.get("title")) or file.stem,
        common=entries.words(here, "a 'common'", found.get("common")),
        runs=runs,
        evals=_evals(here, found.get("evals")),
        references=_texts(here, found, "references"),
        budgets=_budgets(here, found.get("budgets")),
        claims=claims.parse(own_claims, _claims_from(file, _texts(here, found, "claims_from"), within), primary),
    )
    for reference in study.references:
        if reference not in baselines.NAMES:
            raise unknown("reference", reference, baselines.NAMES)
    for budget in study.budgets.values():
        _known("eval of this study", budget["evals"], study.evals)
    return study


def _run(here: str, entry: Any) -> list[str]:
    """The overrides of one; an empty list is a run at the common settings, and nothing at all a slip."""
    if entry is None or entry == "":
        raise UserError(f"{here} has an empty run.", "As in runs: [[encoding=rope], [encoding=alibi]]")
    return entries.words(here, "a run", entry)


def _texts(here: str, found: Mapping[str, Any], key: str) -> list[str]:
    """The texts that stand under a key, in a list or alone."""
    return [text for one in entries.listed(found.get(key)) if (text := entries.text(here, key, one)) is not None]


def _evals(here: str, entry: Any) -> dict[str, dict[str, Any]]:
    """The settings of each eval by its name."""
    evals = entries.mapping(here, "'evals'", entry)
    found = {name: entries.mapping(here, "an eval", settings) for name, settings in evals.items()}
    for name, settings in found.items():
        _known("setting of an eval", settings, [one.name for one in fields(Eval)])
        for key, value in settings.items():
            if any(isinstance(one, Mapping | list) for one in entries.listed(value)):
                raise UserError(
                    f"{here} has the eval {name} with '{key}' that is neither a value nor a list of values: {value}.",
                    "As in lengths: [64, 128]",
                )
    return found


def _budgets(here: str, entry: Any) -> dict[str, dict[str, Any]]:
    """Each budget by its name, with all of its keys; without any there is one, which changes nothing."""
    found = {}
    for name, budget in (entries.mapping(here, "'budgets'", entry) or {"default": {}}).items():
        own = entries.mapping(here, "a budget", budget)
        _known("key of a budget", own, BUDGET_KEYS)
        found[name] = {
            "common": entries.words(here, "a 'common'", own.get("common")),
            "evals": _evals(here, own.get("evals")),
            "note": entries.text(here, "note", own.get("note")),
        }
    return found


def _runs_from(file: Path) -> list[list[str]]:
    """The runs of a list in a file: one a line, in the words of a command line; what follows a # is left out."""
    try:
        lines = [shlex.split(line, comments=True) for line in entries.read_text(file).splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f"The list of runs {file} cannot be read: {reason(error)}.") from error
    return [words for words in lines if words]


def _claims_from(file: Path, names: Sequence[str], within: tuple[Path, ...]) -> list[Claim]:
    """The claims of the other studies that a study names."""
    within = (*within, file.resolve())
    if file.resolve() in within[:-1]:
        raise UserError(f"The study {file} has claims from itself.")
    studies = [_load(str(file.parent / name) if Path(name).suffix else name, within) for name in names]
    return [claim for study in studies for claim in study.claims]


def _known(kind: str, given: Mapping[str, Any], allowed: Sequence[str] | Mapping[str, Any]) -> None:
    for key in given:
        if key not in allowed:
            raise unknown(kind, str(key), allowed)


def plan(
    study: Study,
    budget: str = "default",
    overrides: Sequence[str] = (),
    folder: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Every run and eval of a budget, composed and checked; `overrides` come last, in every run.

    `folder` is the --config-dir that the command of each run needs; `say` is told of many runs, which take long. Raises
    `UserError` for a budget that does not exist and for anything that could not be trained or evaluated.
    """
    if budget not in study.budgets:
        raise unknown("budget", budget, study.budgets)
    chosen = study.budgets[budget]
    common = [*study.common, *chosen["common"]]
    extra = ["--config-dir", folder] if folder else []
    listed, jobs = [], []
    for own in study.runs:
        with _naming(f"run {_words(own)}"):
            listed.append(combinations(_last([*common, *own, *overrides])))
    refuse_too_many(f"The study {study.name}", count := sum(map(len, listed)))
    tell_many(count, say)
    for own, words_of in zip(study.runs, listed, strict=True):
        with _naming(f"run {_words(own)}"):
            for words in words_of:
                config = compose(words)
                jobs.append(Job(config, shlex.join(["posbench", "train", *words, *extra]), run_name(config)))
    names = [job.label for job in jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        alike = f"Every run has {shlex.join(overrides)}, which may make two of them one." if overrides else None
        raise UserError(f"The study {study.name} has the run {twice} twice.", alike)
    evals = []
    for name, settings in study.evals.items():
        settings = settings | chosen["evals"].get(name, {})
        with _naming(f"eval {name}"):
            evals.append(compose([f"eval.{key}={_hydra(value)}" for key, value in settings.items()]).eval)
    for eval in evals:
        evaluate.share_targets(eval, [job.config for job in jobs])
    asked = [[one for eval in evals for one in evaluate.requests(job.config, eval)] for job in jobs]
    jobs = [replace(job, requests=requests) for job, requests in zip(jobs, asked, strict=True)]
    return Plan(study, budget, jobs, evals, chosen["note"])


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Within it, a `UserError` says in which run or eval of the study it is."""
    try:
        yield
    except UserError as error:
        raise UserError(f"In the {what}: {error.message}", error.hint) from error


def _words(own: Sequence[str]) -> str:
    return shlex.join(own) if own else "[] (the common settings alone)"


def _last(words: Sequence[str]) -> list[str]:
    """The words without those that a later one of the same key overrules.

    >>> _last(["seed=1", "train.length=128", "seed=2,3"])
    ['train.length=128', 'seed=2,3']
    """
    last = {word.partition("=")[0]: number for number, word in enumerate(words)}
    return [words[number] for number in sorted(last.values())]


def _hydra(value: Any) -> str:
    """A YAML value in Hydra's grammar.

    >>> _hydra([128, 256]), _hydra(None)
    ('[128,256]', 'null')
    """
    if isinstance(value, list):
        return f"[{','.join(map(_hydra, value))}]"
    return "null" if value is None else str(value)


def needed(names: Collection[str]) -> dict[str, list[str]]:
    """Of the runs of these names those that studies in the config folders list or start from, each with these studies.

    Raises `UserError` for a study that cannot be planned: nobody can say what that needs.
    """
    found: dict[str, list[str]] = {}
    for study in map(load, files("study")):
        listed = set()
        for budget in study.budgets.values():
            for own in study.runs:
                for words in combinations(_last([*study.common, *budget["common"], *own])):
                    if any(_could_be(name, words) for name in names):
                        config = compose(words)
                        listed.add(run_name(config))
                        if config.init_from is not None:
                            listed.add(config.init_from["name"])
        for name in listed.intersection(names):
            found.setdefault(name, []).append(study.name)
    return found


def _could_be(run: str, words: Sequence[str]) -> bool:
    """Whether these overrides may need the run of that name, as far as its name says: composing them takes longer."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    if "init_from" in given:  # which is needed too, and says what the words do not
        return True
    parts = {"encoding": "{}", "train.length": "-L{}-", "model": "-{}-s", "seed": "-s{}-"}
    return all(pattern.format(given[key]) in run for key, pattern in parts.items() if given.get(key, "").isalnum())


def run(
    plan: Plan,
    say: Callable[[str], None] = lambda text: None,
    on_row: Callable[[Row], None] = lambda row: None,
    how: Settings = Settings(),  # noqa: B008 (it cannot be changed)
    pause: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Do what is missing of a plan and gather the rows of all of it.

    `say` is told in whole lines what is done, what was done before and what failed; `on_row` is told of every new row
    that is measured in this process, once it is on disk. A run that fails is said at once, stands in its log, and is in
    the outcome. Raises `UserError` when the text itself cannot be had.
    """
    start = time.monotonic()
    system.set_threads(0)
    outcome = Outcome(plan, matmul_rate=system.matmul_rate())
    say(plan.study.title)
    if plan.note:
        say(plan.note)
    said: set[str] = set()

    def say_once(text: str) -> None:
        said.add(text)
        say(text)

    def say_new(text: str) -> None:
        """What a job says, but for what was said of its text before the first one."""
        if text not in said:
            say(text)

    for config, _ in baselines.by_text((job.config, job.requests) for job in plan.jobs):
        # Before the first run: a corpus that cannot be had is one error, not one of every run.
        tokens.prepare(config.data, config.tokenizer, say=say_once)

    results = launch.run(plan.jobs, how, say_new, on_row, pause=pause)
    outcome.results = [(job.label, result) for job, result in zip(plan.jobs, results, strict=True)]
    done = [job for job, result in zip(plan.jobs, results, strict=True) if result and result.state == "done"]
    for config, requests in baselines.by_text((job.config, job.requests) for job in done):
        for name in plan.study.references:
            outcome.results.append((name, _reference(name, config, requests, say, on_row, pause)))
    outcome.rows = [row for _, result in outcome.results if result for row in result.rows]
    outcome.seconds = time.monotonic() - start
    return outcome


def _reference(
    name: str,
    config: Config,
    requests: list[evaluate.Request],
    say: Callable[[str], None],
    on_row: Callable[[Row], None],
    pause: Callable[[float], None],
) -> Result:
    """The rows of a reference on the text of `config`."""
    while True:
        try:
            rows = measured(partial(baselines.evaluate, name, config, requests, False), say, on_row)
        except HeldError:  # it takes seconds, and then is there
            pause(LOOK_SECONDS)
        except Exception as error:
            result = Result("failed", *described(error))
            say("\n".join(result.lines(f"error: {name}")))
            return result
        else:
            return Result("done", rows=rows)
