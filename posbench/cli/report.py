"""`posbench report`: the page of a study or of all runs; `posbench plot`: the length curve in the terminal."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posbench.cli import completion
from posbench.cli.options import ConfigDirOption, RunsArgument, command_line, say, settings
from posbench.cli.read import rows_of
from posbench.errors import UserError, reason, refused
from posbench.search_path import extra_dir

if TYPE_CHECKING:
    from posbench.report.figures import Bench
    from posbench.report.page import Report
    from posbench.study import Plan

WIDTH = 80
"""Of a plot into a pipe or file."""

BudgetOption = Annotated[str, typer.Option("--budget", help="One of those that the study has.")]


def report(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            help="In the config folders, or a file of your own; none: all runs there are.",
            autocompletion=completion.choice("study"),
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="As for study run.", autocompletion=completion.overrides),
    ] = None,
    budget: BudgetOption = "default",
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Where to; default: report/NAME in the folder of the runs."),
    ] = None,
    bench: Annotated[
        str | None,
        typer.Option("--bench", metavar="FILE", help="Costs from what posbench bench encodings --out wrote (.json)."),
    ] = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Figures, tables and claims as one page, from rows alone.

    Of a study every seed that was measured. The page needs nothing beside it; SVG, PNG and all tables lie there too.

    posbench report train_short_test_long
    """
    from posbench import run
    from posbench.report import page
    from posbench.report.figures import need, read_bench

    need()
    for option, given in (("--out", out), ("--bench", bench)):
        if given == "":
            raise UserError(f"{option} is empty.", "Name one, or leave it out.")
    speeds = read_bench(Path(bench)) if bench else []
    command = page_command(study, budget, overrides, config_dir, bench)
    with extra_dir(config_dir):
        if study is None:
            made = page.Report("Position encodings: all runs", rows_of(None), command, bench=speeds)
            folder = run.root() / "report" / "all"
        else:
            plan = _plan(study, budget, overrides, config_dir)
            found = of_study(plan, command, run_command(study, budget, overrides, config_dir), speeds)
            if found is None:
                raise UserError(
                    f"Nothing of the study {plan.study.name} ({budget}) has been measured in {run.root()}.",
                    _elsewhere(study, plan, overrides, config_dir),
                )
            made, folder = found, place(plan)
    say(f"Drawing figures and tables of {len(made.rows):,} rows ...")
    print(page.write(made, Path(out) if out else folder))


def page_command(
    study: str | None, budget: str, overrides: list[str] | None, config_dir: str | None, bench: str | None = None
) -> str:
    """The command line that makes a page again."""
    return command_line(
        "report",
        *([study] if study else []),
        overrides=overrides,
        budget=None if budget == "default" else budget,
        bench=bench,
        config_dir=config_dir,
    )


def run_command(study: str, budget: str, overrides: list[str] | None, config_dir: str | None) -> str:
    """The command line that measures what a page shows."""
    budget_of_it = None if budget == "default" else budget
    return command_line("study", "run", study, overrides=overrides, budget=budget_of_it, config_dir=config_dir)


def _plan(name: str, budget: str, overrides: list[str] | None, config_dir: str | None) -> Plan:
    from posbench import launch, study

    _, rest = launch.asked(settings(overrides))
    return study.plan(study.load(name), budget, rest, config_dir)


def _elsewhere(name: str, empty: Plan, overrides: list[str] | None, config_dir: str | None) -> str:
    """Where there is something to show, if not of that budget; or what to run for it."""
    from posbench import pilot, records

    for budget in empty.study.budgets:
        with suppress(UserError):  # what was set for this budget need not be possible with that one
            if budget != empty.budget and pilot.asked(_plan(name, budget, overrides, config_dir).jobs):
                return f"Of another budget there is something: {page_command(name, budget, overrides, config_dir)}"
    line = run_command(name, empty.budget, overrides, config_dir)
    return f"{line} does that; posbench report shows the runs there are." if records.read() else line


def of_study(plan: Plan, command: str, measured_by: str, bench: Bench = ()) -> Report | None:
    """What the page of a study is made of; None where nothing was measured."""
    from posbench import pilot
    from posbench.report.page import Report

    rows = pilot.asked(plan.jobs)
    study = plan.study
    return (
        Report(study.title, rows, command, study.claims, plan.note, bench, measured_by=[measured_by]) if rows else None
    )


def place(plan: Plan) -> Path:
    """Where its page lies unless another place is named."""
    from posbench import run

    budget = "" if plan.budget == "default" else f"-{plan.budget}"
    return run.root() / "report" / f"{plan.study.name}{budget}"


def say_page(plan: Plan, command: str, measured_by: str) -> None:
    """Write the page of a study that was just run, and say where it is; or why it is not there."""
    from posbench.report import page
    from posbench.report.figures import need

    try:
        need()
    except UserError as error:
        say(f"{error.message} {error.hint}")
        return
    if (made := of_study(plan, command, measured_by)) is not None:
        try:
            say(f"Report: {page.write(made, place(plan))}")
        except (UserError, OSError) as error:
            said = refused(error) or error
            why = said.message if isinstance(said, UserError) else reason(said)
            say(f"No report: {why}")
            say(f"To have it, also elsewhere: {command} --out DIR")


def plot(runs: RunsArgument = None) -> None:
    """Perplexity over the lengths, drawn in the terminal.

    RUN is a run, a folder of runs, or a file of one row; none: everything there is.
    """
    from posbench.report.parts import parts
    from posbench.report.terminal import plots

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    print("\n".join(plots(parts(rows_of(runs)), width)), end="")
