"""The command line. Commands parse, call and print; nothing heavy is imported before a command needs it.

    train.py                 one run, or a sweep through Hydra (bridge.py)
    study.py status.py       a study, and how far it is
    eval.py                  runs at lengths
    read.py                  table, show, runs, encodings
    report.py                report, plot
    rm.py data.py generate.py doctor.py check.py bench.py
    completion.py groups.py  what <tab> and --help say of the configs
    options.py               options that several commands share

Exit status: 0, 1 when jobs failed, 2 for a mistake in the input (one or two lines on stderr), 130 on Ctrl-C, 143 on
SIGTERM. A traceback is a fault of ours, unless POSBENCH_DEBUG=1 or HYDRA_FULL_ERROR=1 asks for it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import posbench
from posbench import streams
from posbench.cli import (
    bench,
    bridge,
    check,
    data,
    doctor,
    eval,
    generate,
    groups,
    read,
    report,
    rm,
    status,
    study,
    train,
)
from posbench.cli.options import legible, say
from posbench.errors import UserError, refused
from posbench.stop import leave_on_sigterm

INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""

TERMINATED = 143
"""128 + SIGTERM."""

GOES_ON = "The same command goes on from what is finished."

PIPE_CLOSED = 141
"""128 + SIGPIPE."""

app = typer.Typer(
    name="posbench",
    # Rich help doubles the start-up time.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", cls=groups.WithGroups)(train.train)
app.command("sweep", cls=groups.WithGroups)(train.sweep)
app.command("eval")(eval.evaluate)
app.command("table")(read.table)
app.command("plot")(report.plot)
app.command("report")(report.report)
app.command("runs")(read.runs)
app.command("show")(read.show_run)
app.command("encodings")(read.encodings)
app.add_typer(data.app, name="data")
app.add_typer(study.app, name="study")
app.command("reproduce")(study.reproduce)
app.command("status")(status.status)
app.command("rm")(rm.remove)
app.command("check")(check.check)
app.add_typer(bench.app, name="bench")
app.command("generate")(generate.generate)
app.command("doctor")(doctor.doctor)


def _version(asked: bool) -> None:
    if asked:
        print(posbench.__version__)
        raise typer.Exit


@app.callback()
def _posbench(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Which position encoding still works past the training length, how sure is that, and what does it cost?"""


def main() -> None:
    """The entry point."""
    streams.prepare()
    leave_on_sigterm()
    if "WORLD_SIZE" not in os.environ:
        sys.exit(run(sys.argv[1:]))
    # Of several processes (torchrun). What they need is not imported to show a --help.
    from posbench import processes

    sys.exit(processes.command(lambda: run(sys.argv[1:])))


def run(words: Sequence[str]) -> int:
    """Carry out one command line and return its exit status."""
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            _refuse_nowhere()
            if words[-1:] == ["--"]:  # more was meant, and without it train would begin with the defaults
                raise UserError("Nothing follows '--'.", "Leave it out, or write settings after it.")
            _refuse_twice(words)
            status = app(args=list(words) or ["--help"], prog_name="posbench", standalone_mode=False) or 0
            sys.stdout.flush()
            if status == INTERRUPTED:
                say(f"Interrupted. {GOES_ON}")
            return status
        except UserError as error:
            bridge.tell(error, bridge.debugging())
            return error.status
        except typer.TyperException as error:
            say(f"error: {legible(error.format_message().replace('Value error, ', ''))}")
            say(_setting(error) or f"{_command(error)} --help lists what there is.")
            return error.exit_code
        except typer.Abort:
            return INTERRUPTED
        except SystemExit as end:
            if end.code == TERMINATED:
                say(f"Ended by SIGTERM. {GOES_ON}")
            raise
        except BrokenPipeError:
            # Whoever read our output has read enough, as in `posbench table | head`.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return PIPE_CLOSED
        except OSError as error:
            explained = refused(error)
            if explained is None or bridge.debugging():
                raise
            bridge.tell(explained, False)
            return 2


def _refuse_nowhere() -> None:
    """Hydra, and every relative path, needs a folder to start from."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("The current folder does not exist any more.", "cd to one that does.") from None


def _refuse_twice(words: Sequence[str]) -> None:
    """The last of two would win without a word."""
    named = [word.split("=")[0] for word in words if word.startswith("--") and word != "--"]
    if twice := next((name for name in named if named.count(name) > 1), None):
        raise UserError(f"{twice} is given twice.", "Several values stand behind one, with commas: --lengths 512,1024")


def _setting(error: typer.TyperException) -> str | None:
    """How an option that there is not is written, where it is meant as a setting."""
    from dataclasses import fields

    from posbench.config import Config

    word = str(getattr(error, "option_name", "")).lstrip("-")
    group = word.split(".")[0]
    return f"A setting has no dashes: {word}=..." if group in {field.name for field in fields(Config)} else None


def _command(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "posbench"


def _warn(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
    say(f"warning: {message}")
