"""A study is configuration: runs, how each is evaluated, references, and the claims to hold against them.

    1. load    configs/study/NAME.yaml, or a file of the user's own
    2. plan    one of its budgets, every run composed and checked before the first starts
    3. run     train what is missing, evaluate each run as soon as it is trained, go on after a failure
    4. tables  the rows of these runs, the paper's numbers beside them, the claims seen or not seen

    title: what it compares
    common: [data=sotu, train.length=128]               overrides of every run
    runs: [[encoding=rope], [encoding=alibi, seed=2]]   and of each
    evals: {NAME: {protocol: sliding, lengths: [...]}}  settings of the group `eval`
    references: [unigram, bigram]
    budgets: {default: {common: [train.tokens=...], evals: {NAME: {targets: ...}}, note: ...}, ...}
    claims: [...]                                       see posbench/report/claims.py

Nothing of a study is kept anywhere: its runs are runs like any other, and may belong to several. What is done is found
again by its name, so that the same command goes on with a study that was broken off.
"""

from __future__ import annotations

import shlex
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from posbench import baselines, evaluate, system
from posbench.compose import compose
from posbench.config import Config, Eval
from posbench.data import tokens
from posbench.errors import UserError, refused, unknown
from posbench.records import Row
from posbench.report import claims, published
from posbench.report.claims import Claim
from posbench.report.lengths import length_tables
from posbench.report.parts import parts
from posbench.report.tables import Table
from posbench.run import Run, directory
from posbench.search_path import files
from posbench.train import train

KEYS = ("title", "common", "runs", "evals", "references", "budgets", "claims")
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
    claims: list[Claim]


@dataclass(frozen=True)
class Job:
    """One run of a plan: the overrides that make it, and the config they compose to."""

    overrides: list[str]
    config: Config

    @property
    def run(self) -> Run:
        return Run(directory(self.config))


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
    failed: dict[str, str] = field(default_factory=dict)
    """Error by run or reference."""
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
    file = Path(name)
    if file.suffix not in (".yaml", ".yml"):
        known = files("study")
        if name not in known:
            raise unknown("study", name, known)
        file = known[name]
    try:
        entries = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"The study {file} cannot be read.", " ".join(str(error).split())) from error
    if not isinstance(entries, Mapping) or not entries.get("runs"):
        raise UserError(f"The study {file} names no runs.", "As in runs: [[encoding=rope], [encoding=alibi]]")
    _known("key of a study", entries, KEYS)
    study = Study(
        name=file.stem,
        title=entries.get("title", file.stem),
        common=entries.get("common", []),
        runs=entries["runs"],
        evals=entries.get("evals", {}),
        references=entries.get("references", []),
        budgets=entries.get("budgets", {"default": {}}),
        claims=claims.parse(entries.get("claims", [])),
    )
    for reference in study.references:
        if reference not in baselines.NAMES:
            raise unknown("reference", reference, baselines.NAMES)
    for budget in study.budgets.values():
        _known("key of a budget", budget, BUDGET_KEYS)
        _known("eval of this study", budget.get("evals", {}), study.evals)
    return study


def _known(kind: str, entries: Mapping[str, Any], allowed: Sequence[str] | Mapping[str, Any]) -> None:
    for key in entries:
        if key not in allowed:
            raise unknown(kind, str(key), allowed)


def plan(study: Study, budget: str = "default", overrides: Sequence[str] = ()) -> Plan:
    """Every run and eval of a budget, composed and checked; `overrides` come last, in every run.

    Raises `UserError` for a budget that does not exist and for anything that could not be trained or evaluated.
    """
    if budget not in study.budgets:
        raise unknown("budget", budget, study.budgets)
    chosen = study.budgets[budget]
    common = [*study.common, *chosen.get("common", [])]
    jobs = []
    for own in study.runs:
        words = [*common, *own, *overrides]
        jobs.append(Job(words, compose(words)))
    names = [job.run.name for job in jobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(f"The study {study.name} has the run {twice} twice.")
    evals = []
    for name, settings in study.evals.items():
        settings = settings | chosen.get("evals", {}).get(name, {})
        evals.append(compose([f"eval.{key}={_hydra(value)}" for key, value in settings.items()]).eval)
    return Plan(study, budget, jobs, evals, chosen.get("note"))


def _hydra(value: Any) -> str:
    """A YAML value in Hydra's grammar.

    >>> _hydra([128, 256]), _hydra(None)
    ('[128,256]', 'null')
    """
    if isinstance(value, list):
        return f"[{','.join(map(_hydra, value))}]"
    return "null" if value is None else str(value)


def run(
    plan: Plan,
    say: Callable[[str], None] = lambda text: None,
    on_row: Callable[[Row], None] = lambda row: None,
    fail_fast: bool = False,
) -> Outcome:
    """Do what is missing of a plan and gather the rows of all of it.

    `say` is told in whole lines what is done, what was done before and what failed; `on_row` is told of every new row
    once it is on disk. A run that fails is left behind, unless `fail_fast`: its error is said at once, stands in its
    log, and is in the outcome. Raises `UserError` when the text itself cannot be had.
    """
    start = time.monotonic()
    system.set_threads(0)
    outcome = Outcome(plan, matmul_rate=system.matmul_rate())
    say(plan.study.title)
    if plan.note:
        say(plan.note)
    texts: dict[str, tuple[Config, dict[evaluate.Request, None]]] = {}
    said: set[str] = set()

    def say_once(text: str) -> None:
        said.add(text)
        say(text)

    def say_new(text: str) -> None:
        """What a training says, but for what was said of its text before the first one."""
        if text not in said:
            say(text)

    for job in plan.jobs:
        # Before the first run: a corpus that cannot be had is one error, not one of every run.
        if (text := _text(job.config)) not in texts:
            tokens.prepare(job.config.data, job.config.tokenizer, say=say_once)
            texts[text] = (job.config, {})

    def measure(rows: Callable[[Callable[[Row], None]], list[Row]]) -> None:
        new: list[Row] = []

        def told(row: Row) -> None:
            new.append(row)
            on_row(row)

        found = rows(told)
        outcome.rows += found
        if len(new) < len(found):
            say(f"{len(found) - len(new)} of {len(found)} rows were there already")

    for number, job in enumerate(plan.jobs, start=1):
        say(f"[{number}/{len(plan.jobs)}] {job.run.name}")
        try:
            trained = train(job.config, f"posbench train {shlex.join(job.overrides)}", say_new)
            wanted = [request for eval in plan.evals for request in evaluate.requests(trained, eval)]
            texts[_text(job.config)][1].update(dict.fromkeys(wanted))
            measure(partial(evaluate.evaluate, trained, wanted, False, job.config.device))
        except Exception as error:
            _fail(outcome, job.run.name, error, say, job.run)
            if fail_fast:
                break
    for config, asked in texts.values():
        for name in plan.study.references if asked else []:
            try:
                measure(partial(baselines.evaluate, name, config, list(asked), False))
            except Exception as error:
                _fail(outcome, name, error, say)
    outcome.seconds = time.monotonic() - start
    return outcome


def _text(config: Config) -> str:
    return repr((config.data, config.tokenizer))


def _fail(outcome: Outcome, name: str, error: Exception, say: Callable[[str], None], run: Run | None = None) -> None:
    """Say it now, keep it for the summary, and put what the programmer needs into the run's log."""
    outcome.failed[name] = str(refused(error) or error) or type(error).__name__
    say(f"error: {name}: {outcome.failed[name]}")
    if run is not None and run.path.is_dir():
        with suppress(OSError):  # a log that cannot be written, say on a full disk, must not end the study
            run.log("".join(traceback.format_exception(error)).rstrip())
