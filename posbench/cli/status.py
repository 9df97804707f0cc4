"""`posbench status`: how far a study, or everything, is."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from posbench.cli import completion
from posbench.cli.options import ConfigDirOption, Format, FormatOption, say, settings, show
from posbench.cli.study import BudgetOption, OverridesArgument
from posbench.errors import UserError
from posbench.search_path import extra_dir

if TYPE_CHECKING:
    from posbench.report.tables import Table

WATCH_SECONDS = 2.0


def status(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            help="In the config folders, or a file of your own; none: every run there is.",
            autocompletion=completion.choice("study"),
        ),
    ] = None,
    overrides: OverridesArgument = None,
    budget: BudgetOption = "default",
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and show it anew until all is done.")] = False,
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """How far the runs of a study are, or all of them.

    Done, running (step, loss, speed, time left), failed (why), waiting.

    posbench status mine.yaml --watch
    """
    if watch and (format is not Format.table or not sys.stdout.isatty()):
        raise UserError("--watch is for a terminal, and for people.", "Leave it out; --format json is for programs.")
    with extra_dir(config_dir):
        look = _of_all() if name is None else _of_study(name, budget, overrides)
    if watch:
        _watch(look)
    else:
        show(look(), format)


def _of_all() -> Callable[[], Table]:
    from posbench import run, status

    if not run.all_runs():
        raise UserError(f"There is no run in {run.root()}.", "Train one: posbench train encoding=rope")
    return lambda: status.overview(f"Runs in {run.root()}", [(one, None) for one in run.all_runs()])


def _of_study(name: str, budget: str, words: list[str] | None) -> Callable[[], Table]:
    from posbench import launch, status, study
    from posbench.run import Run

    _, rest = launch.asked(settings(words))  # the words of `study run`, as they stand
    plan = study.plan(study.load(name), budget, rest, say=say)
    seeds = sorted({job.config.seed for job in plan.jobs})
    of_seeds = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"  # more of them are asked for by name
    title = f"{plan.study.title} ({budget}, {of_seeds})"
    # A new look at each, which remembers nothing of the last one.
    return lambda: status.overview(title, [(Run(job.run.path), job.requests) for job in plan.jobs])


def _watch(look: Callable[[], Table]) -> None:
    """Show a table and its changes, until every run of it is in its last state or Ctrl-C is pressed."""
    from rich.live import Live
    from rich.text import Text

    from posbench.report.tables import render
    from posbench.status import FINAL

    def text(table: Table) -> Text:
        return Text(render(table, "table", shutil.get_terminal_size().columns))

    table = look()
    try:
        with Live(text(table), auto_refresh=False) as live:
            while any(row["state"] not in FINAL for row in table.data()):
                time.sleep(WATCH_SECONDS)
                table = look()
                live.update(text(table), refresh=True)
    except KeyboardInterrupt:
        return
