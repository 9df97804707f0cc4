"""Options that several commands share, and how a command speaks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posbench.cli import completion
from posbench.errors import UserError

if TYPE_CHECKING:
    from posbench.records import Row
    from posbench.report.tables import Table


class Format(StrEnum):
    """The forms of `posbench.report.tables.FORMATS`."""

    table = "table"
    md = "md"
    csv = "csv"
    json = "json"
    latex = "latex"


@dataclass
class Lengths:
    """Window lengths, as given to --lengths."""

    values: list[int]


def lengths(text: str) -> Lengths:
    """Window lengths as "512,1024,4096", in brackets or not.

    >>> lengths("512,1024")
    Lengths(values=[512, 1024])
    """
    words = [word.strip() for word in text.strip().removeprefix("[").removesuffix("]").split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit()) or int(word) < 1:
            raise typer.BadParameter(f"'{word}' is not a positive whole number; write for example 512,1024,4096")
    return Lengths([int(word) for word in words])


LengthsOption = Annotated[
    Lengths | None,
    typer.Option(
        "--lengths",
        parser=lengths,
        metavar="L,L,...",
        help="Window lengths; each run's own training length is always added.",
        show_default=False,
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How tables are printed.")]
ConfigDirOption = Annotated[
    str | None,
    typer.Option("--config-dir", metavar="DIR", help="A folder with encoding/, data/, ... of your own."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN", help="Path, name, or the beginning of one.", autocompletion=completion.runs),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Path, name, or the beginning of one.", autocompletion=completion.runs)
]


def show(tables: Table | Sequence[Table], form: Format) -> None:
    """Print tables on stdout."""
    from posbench.report import tables as report

    report.show(tables, form.value)


def settings(words: Sequence[str] | None) -> list[str]:
    """Words of a command line that are no options. Raises `UserError` for an option that stands behind "--"."""
    for word in words or []:
        if word.startswith("-") and word != "-":
            raise UserError(f"'{word}' is no setting.", "Write options without '--' before them.")
    # A carriage return comes with lines pasted or read from a file written on Windows.
    return [word.rstrip("\r\n") for word in words or []]


def legible(text: str) -> str:
    r"""One line of it: a word of the command line may hold line ends, and what a terminal would obey.

    >>> print(legible("rope\x1b[2J\n"))
    rope\x1b[2J\n
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def command_line(*words: str, overrides: Sequence[str] | None, **options: Any) -> str:
    """What to type to have it once more; an option that is None or False is not on it."""
    line = ["posbench", *words, *settings(overrides)]
    for key, value in options.items():
        option = f"--{key.replace('_', '-')}"
        if value is True:
            line.append(option)
        elif value is not None and value is not False:
            line += [option, str(value)]
    return shlex.join(line)


def say(text: str) -> None:
    """One line to the reader on stderr, so that stdout holds results alone."""
    print(text, file=sys.stderr, flush=True)


def say_row(row: Row) -> None:
    """What was just measured."""
    from posbench.records import sentence

    say(sentence(row))
