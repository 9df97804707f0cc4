"""`posbench study run`: a comparison in one command; `posbench reproduce` is the shipped one; `study plan`, how many
seeds it needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from posbench.cli import completion
from posbench.cli.options import ConfigDirOption, Format, FormatOption, say, say_row, settings, show
from posbench.cli.report import page_command, run_command, say_page
from posbench.errors import UserError
from posbench.search_path import extra_dir

if TYPE_CHECKING:
    from posbench.report.claims import Claim
    from posbench.study import Plan

STUDY = "train_short_test_long"

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def study() -> None:
    """Comparisons written down in a file."""


OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Of every run, such as device=cpu; workers=N and on_error=... of the whole.",
        autocompletion=completion.overrides,
    ),
]
StudyArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE.yaml",
        help="In the config folders, or a file of your own.",
        autocompletion=completion.choice("study"),
    ),
]
BudgetOption = Annotated[str, typer.Option("--budget", help="One of those that the study has.")]


@app.command()
def run(
    name: StudyArgument,
    overrides: OverridesArgument = None,
    budget: BudgetOption = "default",
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Train and measure what a study lists, and print its tables. What is done is not done again.

    posbench study run mine.yaml workers=2 on_error=retry=1
    """
    with extra_dir(config_dir):
        _run(name, budget, overrides, config_dir, format)


@app.command()
def plan(
    name: StudyArgument,
    overrides: OverridesArgument = None,
    effect: Annotated[
        float, typer.Option("--effect", help="A difference that is to be shown, a share of the perplexity.")
    ] = 0.01,
    budget: BudgetOption = "default",
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """How many seeds and how much text each claim of a study needs, from what its runs so far vary by.

    Two seeds or more are a pilot, best read on validation text.

    posbench study plan train_short_test_long --effect 0.02
    """
    from posbench import launch, pilot, study
    from posbench.report.claims.claim import LEAST_MARGIN
    from posbench.report.needs import needs_table, piloted

    if not LEAST_MARGIN <= effect < 1:
        raise UserError(f"--effect {effect:g} is no share of the perplexity.", "As in --effect 0.01, for 1 %.")
    with extra_dir(config_dir):
        _, rest = launch.asked(settings(overrides))
        loaded = study.load(name)
        planned = study.plan(loaded, budget, rest, config_dir, say)
    claims = [claim for claim in planned.study.claims if not claim.about_speed]
    if not claims:
        raise UserError(f"The study {planned.study.name} makes no claims of losses.", "docs/sweeps.md says how.")
    _say_unanswered(planned, claims)
    verdicts = piloted(claims, pilot.rows(planned.jobs))
    show(needs_table(verdicts, effect), format)
    if all(verdict.comparison is None or verdict.comparison.seeds < 2 for verdict in verdicts):
        words = overrides
        if len(pilot.common_seeds(planned.jobs)) < 2:
            two = [*(word for word in overrides or [] if not word.startswith("seed=")), "seed=1,2"]
            with (
                suppress(UserError),
                extra_dir(config_dir),
            ):  # of runs that differ in their seed alone some are twice then
                study.plan(loaded, budget, launch.asked(settings(two))[1], config_dir)
                words = two
        pilots = run_command(name, budget, words, config_dir)
        say(f"No claim has two seeds yet, which a pilot needs: {pilots}")


def reproduce(
    overrides: OverridesArgument = None,
    full: Annotated[bool, typer.Option("--full", help="Train for one epoch or more.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Within a minute; the numbers mean nothing.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """Train short, test long: the whole comparison.

    Six encodings on one text, their tables, the paper's numbers beside them: posbench study run train_short_test_long.
    What is done is not done again: the same command goes on after an interruption.
    """
    if full and smoke:
        raise UserError("Only one of --full and --smoke can be given.")
    _run(STUDY, "full" if full else "smoke" if smoke else "default", overrides, None, format)


def _run(name: str, budget: str, words: list[str] | None, folder: str | None, form: Format) -> None:
    from posbench import cluster, launch, study
    from posbench.progress import duration

    how, rest = launch.asked(settings(words))
    engine, rest = cluster.chosen(rest)
    how = cluster.on(how, engine)
    plan = study.plan(study.load(name), budget, rest, folder, say)
    _say_unanswered(plan, plan.study.claims)
    outcome = study.run(plan, say, say_row, how)
    if outcome.rows:
        show(outcome.tables(), form)
    say(f"Took {duration(outcome.seconds)} at {outcome.matmul_rate:.0f} GF/s of float32 matmul.")
    say_page(plan, page_command(name, budget, words, folder), run_command(name, budget, words, folder))
    lines = launch.summary(outcome.results)
    for line in lines:
        say(line)
    if lines:
        raise typer.Exit(1)


def _say_unanswered(plan: Plan, claims: Sequence[Claim]) -> None:
    """What the runs of a budget cannot answer: of one that is not the first, what is left out may be meant to be."""
    from posbench.unanswered import unanswered

    of_budget = "" if plan.budget == next(iter(plan.study.budgets)) else f"Of the budget {plan.budget}: "
    for line in unanswered(claims, plan.jobs):
        say(of_budget + line)
