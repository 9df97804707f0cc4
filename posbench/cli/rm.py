"""`posbench rm`: remove runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from posbench.cli import completion
from posbench.cli.options import ConfigDirOption, say
from posbench.errors import UserError
from posbench.search_path import extra_dir


def remove(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Path, name, or the beginning of one.", autocompletion=completion.runs),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also those that a study lists.")] = False,
    config_dir: ConfigDirOption = None,
) -> None:
    """Remove runs, their rows with them. Asks first.

    Not one that a process is working on, nor one that a study in the config folders lists.
    """
    from posbench import lock, run, study

    found = list({one.path: one for one in map(run.find, runs)}.values())
    for one in found:
        if owner := lock.owner(one.path):
            raise lock.HeldError(f"{one.name} is being worked on by another process, {owner}.", "Nothing was removed.")
        one.check_whole()
    with extra_dir(config_dir):
        try:
            needed = {} if force else study.needed([one.name for one in found])
        except UserError as error:
            raise UserError(
                error.message,
                "A study that cannot be read may list it. Nothing was removed; --force removes it anyway.",
            ) from error
    for name, studies in needed.items():
        raise UserError(f"{name} belongs to the study {studies[0]}.", "Nothing was removed. --force removes it anyway.")
    if not yes:
        if not sys.stdin.isatty():
            raise UserError("There is nobody to ask.", "--yes removes without asking.")
        for one in found:
            files = [file for file in one.path.rglob("*") if file.is_file()]
            rows = sum(file.parent == one.rows_dir and file.suffix == ".json" for file in files)
            say(f"{one.path}: {sum(file.stat().st_size for file in files):,} bytes, {rows} rows")
        if not typer.confirm(f"Remove {'these' if len(found) > 1 else 'this run'}?", err=True):
            say("Nothing was removed.")
            raise typer.Exit(1)
    for one in found:
        one.remove()
        say(f"removed {one.path}")
