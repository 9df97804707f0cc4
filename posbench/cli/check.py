"""`posbench check`: a suite of properties, for shipped encodings and for one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posbench.cli import bridge, completion
from posbench.cli.options import ConfigDirOption, Format, FormatOption, say, settings, show
from posbench.errors import UserError
from posbench.search_path import choices, extra_dir

if TYPE_CHECKING:
    from posbench.check import Verdict
    from posbench.check.subject import Subject


def check(
    encoding: Annotated[
        str,
        typer.Argument(
            metavar="[ENCODING|all|FILE.py:CLASS]",
            help="A name of the catalogue, all of it, or a class of your own.",
            autocompletion=completion.choice("encoding"),
        ),
    ] = "all",
    overrides: Annotated[list[str] | None, typer.Argument(metavar="encoding.KEY=VALUE", help="Its parameters.")] = None,
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Hold an encoding against what must be true of all.

    Causal, the same through a cache, exact in 16 bits, ... Prints a line for each property: passed, failed with the
    number, or why it does not apply. Exit status 1 when one failed. POSBENCH_DEBUG=1 shows the traceback of an encoding
    that raised.
    """
    with extra_dir(config_dir):
        from posbench import system
        from posbench.check import Verdict
        from posbench.report.tables import Column, table

        system.set_threads(1)  # its models are too small to share out
        subjects = _subjects(encoding, settings(overrides))
        rows = []
        for name, subject in subjects.items():
            try:
                rows += [_row(name, verdict, format) for verdict in _verdicts(subject)]
            except UserError as error:  # one of a folder that cannot be built; the others are checked
                if len(subjects) == 1:
                    raise
                rows.append(_row(name, Verdict("can be built", "failed", error.message), format))
        failed = {row["encoding"]: None for row in rows if row["outcome"] == "failed"}
        if format is not Format.table:
            columns = [Column(key, key, right=False) for key in ("encoding", "property", "outcome", "said")]
            show(table("Properties", columns, rows), format)
        say(
            f"{len(subjects)} encoding{'s' * (len(subjects) > 1)}, {len(rows)} properties: "
            + (f"failed in {', '.join(failed)}" if failed else "none failed")
        )
        if failed:
            raise typer.Exit(1)


def _verdicts(subject: Subject) -> Any:
    from posbench.check import check as run

    return run(subject)


def _row(name: str, verdict: Verdict, form: Format) -> dict[str, str]:
    """As a row of the table; in a terminal the line is there as soon as it is known."""
    if form is Format.table:
        print(f"{name:<16} {verdict.property:<22} {verdict.outcome:<7} {verdict.said}", flush=True)
    if verdict.trace and bridge.debugging():
        say(verdict.trace)
    return {"encoding": name, "property": verdict.property, "outcome": verdict.outcome, "said": verdict.said}


def _subjects(word: str, overrides: list[str]) -> dict[str, Subject]:
    """What is to be checked, by the name it is shown under."""
    from posbench.check.subject import Subject
    from posbench.compose import load_group
    from posbench.encodings import find_class
    from posbench.identity import label

    if word == "all":
        if overrides:
            raise UserError("Parameters belong to one encoding.", "As in posbench check rope encoding.base=500")
        return {name: Subject(load_group("encoding", name)) for name in choices("encoding")}
    for override in overrides:
        if not override.lstrip("+").startswith("encoding."):
            raise UserError(f"'{override}' is no parameter of an encoding.", "As in encoding.base=500")
    if word.endswith(".py") or ".py:" in word:
        find_class(word)
        file, _, cls = word.rpartition(":")
        # Beside nothing, `encoding` begins empty: what the class needs is given with a "+".
        own = load_group("encoding", "none", [f"+{override.lstrip('+')}" for override in overrides])
        return {cls: Subject(own | {"name": word, "class": f"{Path(file).resolve()}:{cls}"})}
    found = load_group("encoding", word, overrides)
    return {label(found): Subject(found)}
