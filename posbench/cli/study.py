"""`posbench reproduce`: the whole comparison in one command."""

from __future__ import annotations

from typing import Annotated

import typer

from posbench.cli.options import Format, FormatOption, say, say_row, show
from posbench.errors import UserError

STUDY = "train_short_test_long"


def reproduce(
    full: Annotated[bool, typer.Option("--full", help="Train for one epoch or more.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Within a minute; the numbers mean nothing.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Begin no run after one that failed.")] = False,
    format: FormatOption = Format.table,
) -> None:
    """Train short, test long: the whole comparison.

    Six encodings on one text, their tables, the paper's numbers beside them. What is done is not done again: the same
    command goes on after an interruption.
    """
    if full and smoke:
        raise UserError("Only one of --full and --smoke can be given.")

    from posbench import study
    from posbench.progress import duration

    plan = study.plan(study.load(STUDY), "full" if full else "smoke" if smoke else "default")
    outcome = study.run(plan, say, say_row, fail_fast)
    if outcome.rows:
        show(outcome.tables(), format)
    say(f"Took {duration(outcome.seconds)} at {outcome.matmul_rate:.0f} GF/s of float32 matmul.")
    if outcome.failed:
        say(f"{len(outcome.failed)} of {len(plan.jobs) + len(plan.study.references)} failed:")
        for name, error in outcome.failed.items():
            say(f"  {name}: {error.splitlines()[0]}")
        raise typer.Exit(1)
