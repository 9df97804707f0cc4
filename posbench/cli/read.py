"""Commands that only read: `table`, `show`, `runs`, `encodings`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posbench.cli import completion
from posbench.cli.options import (
    ConfigDirOption,
    Format,
    FormatOption,
    RunArgument,
    RunsArgument,
    command_line,
    say,
    show,
)
from posbench.errors import UserError, unknown
from posbench.search_path import choices, extra_dir

if TYPE_CHECKING:
    from posbench.encodings.base import Shape
    from posbench.records import Row
    from posbench.report.tables import Table
    from posbench.run import Run

CURVE = 12
"""Lines of a loss curve."""


def table(
    runs: RunsArgument = None,
    by_position: Annotated[
        bool, typer.Option("--by-position", help="Loss by the number of tokens that a target sees instead.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="ENCODING",
            help="Perplexity over that of this one, paired, with 95 % intervals (with three seeds or more).",
        ),
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Encodings by lengths, from the rows there are.

    RUN is a run, a folder of runs, or a file of one row; none: everything there is.
    """
    if against is not None and by_position:
        raise UserError("--against and --by-position are two tables.", "Give one of them.")
    rows = rows_of(runs)
    if against is not None:
        from posbench.report.against import against_tables

        show(against_tables(rows, against), format)
    elif by_position:
        from posbench.report.positions import position_tables

        show(position_tables(rows), format)
    else:
        from posbench.report.lengths import length_tables

        show(length_tables(rows), format)


def rows_of(runs: list[str] | None) -> list[Row]:
    """The rows of these runs, folders and files; None: all there are. Raises `UserError` where there are none."""
    from posbench import records, run

    rows = records.read(None if not runs else [_rows_at(word) for word in runs])
    if not rows:
        raise UserError(
            f"There are no rows in {', '.join(runs) if runs else run.root()}.",
            "Measure some: posbench eval --lengths 512,1024,4096",
        )
    return rows


def _rows_at(word: str) -> Any:
    """A path as it is, the folder of a run otherwise."""
    from pathlib import Path

    from posbench import run

    path = Path(word)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        raise _no_run(word)
    if word and path.exists():
        return path
    try:
        return run.find(word).path
    except UserError as error:
        if word in choices("study"):
            raise _no_run(word) from None
        if word and (own := Path(f"{word}.yaml")).is_file():
            raise UserError(error.message, _no_run(str(own)).hint) from None
        raise


def _no_run(study: str) -> UserError:
    """What to say of a study, by its name or file: its runs lie where all others do."""
    return UserError(
        f"{study} is no run and no row.",
        f"The tables of a study: {command_line('report', study, overrides=None)}; or "
        f"{command_line('study', 'run', study, overrides=None)}, which first measures what is missing",
    )


def runs(format: FormatOption = Format.table) -> None:
    """Every run and how far it is."""
    from posbench import run
    from posbench.report.tables import Column, table

    found = run.all_runs()
    if not found:
        raise UserError(f"There is no run in {run.root()}.", "Train one: posbench train encoding=rope")
    columns = [
        Column("run", "run", right=False),
        Column("state", "state", right=False),
        Column("step", "step"),
        Column("steps", "of"),
        Column("tokens", "tokens"),
        Column("valid", "validation"),
        Column("rows", "rows"),
    ]
    notes = ["validation: loss in nats a token on the validation split of the run's own text, with its tokenizer."]
    show(table(f"Runs in {run.root()}", columns, [_run_line(one) for one in found], notes), format)


def _run_line(one: Run) -> dict[str, Any]:
    rows = len(list(one.rows_dir.glob("*.json")))
    try:
        return {"run": one.name, "rows": rows, **one.status()}
    except UserError as error:
        say(f"warning: {error.message}")
        return {"run": one.name, "rows": rows, "state": "damaged"}


def show_run(run: RunArgument, format: FormatOption = Format.table) -> None:
    """One run: command, settings, loss curve, rows."""
    from posbench import records
    from posbench.report.lengths import length_tables
    from posbench.run import find

    one = find(run)
    if not one.started and (status := one.status())["state"] == "failed":
        raise UserError(f"{one.name} failed before its first step: {status['reason']}.", f"Its log: {one.path}/log.txt")
    rows, trained = records.read([one.path]), one.metrics()
    tables = [_settings(one, trained), *([_curve(trained)] if trained else [])]
    show([*tables, *(length_tables(rows) if rows else [])], format)


def _settings(one: Run, trained: list[dict[str, Any]]) -> Table:
    from posbench.identity import to_dict
    from posbench.report.tables import Cell, Column, table

    record, status = one.record, one.status()
    facts: dict[str, Any] = {"path": str(one.path), "command": record.get("command"), "created": record.get("created")}
    facts |= {
        key: status.get(key)
        for key in ("state", "step", "steps", "tokens", "epochs", "valid", "seconds", "peak_memory")
    }
    for group, value in to_dict(one.config).items():
        if group == "eval":
            continue  # settings of a later question
        facts |= (
            {f"{group}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {group: value}
        )
    facts |= {f"decided: {key}": value for key, value in record["decisions"].items() if key != "reasons"}
    told = _measured(one, status)
    rows = [
        {"setting": Cell(key, told[key][0]), "value": Cell(value, told[key][1])}
        if key in told
        else {"setting": key, "value": value}
        for key, value in facts.items()
        if value is not None
    ]
    notes = []
    if not trained:
        notes.append("No loss curve here" + (": only its rows were kept." if status["state"] == "rows only" else "."))
    columns = [Column("setting", "setting", right=False), Column("value", "value", right=False)]
    return table(one.name, columns, rows, notes)


def _measured(one: Run, status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """How a reader is told what the training left in its status: the name and the value of each, with its unit."""
    from posbench.progress import duration

    told = {}
    if status.get("valid") is not None:
        text = f"{status['valid']:.4f} nats a token, on the validation split of {one.record['corpus']['name']}"
        told["valid"] = "validation loss", text
    if status.get("seconds") is not None:
        besides = "wall-clock of the training, beside whatever else the machine did: not a cost (posbench bench)"
        told["seconds"] = "time", f"{duration(status['seconds'])}, {besides}"
    if status.get("peak_memory") is not None:
        told["peak_memory"] = "peak memory", f"{status['peak_memory'] / 2**20:,.0f} MiB"
    return told


def _curve(trained: list[dict[str, Any]]) -> Table:
    """A dozen points of the training, the last one among them, with the validation nearest before each."""
    from posbench.report.tables import Column, table

    points: list[dict[str, Any]] = []
    valid = None
    for line in trained:
        valid = line.get("valid", valid)
        if "loss" in line:
            points.append({**line, "valid": None})
        elif points:
            points[-1]["valid"] = line["valid"]
    step = max(1, -(-len(points) // CURVE))
    kept = [point for i, point in enumerate(points) if point["valid"] is not None or (len(points) - 1 - i) % step == 0]
    columns = [
        Column("step", "step"),
        Column("tokens", "tokens"),
        Column("loss", "loss"),
        Column("valid", "validation"),
    ]
    return table("Loss, nats a token", columns, kept)


def encodings(
    name: Annotated[
        str | None,
        typer.Argument(help="One of them: its page.", autocompletion=completion.choice("encoding")),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="The size that learned parameters are counted at.", autocompletion=completion.choice("model")
        ),
    ] = "nano",
    length: Annotated[int, typer.Option(min=1, help="The training length they are counted at.")] = 512,
    page: Annotated[
        bool, typer.Option("--page", help="All of them and the extensions as one page of Markdown.")
    ] = False,
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """The catalogue of encodings, or one of them.

    With NAME: its formula, where it acts, its parameters.
    """
    if page and (name is not None or format is not Format.table):
        raise UserError("--page is Markdown, and of all encodings.", "Leave out NAME and --format.")
    with extra_dir(config_dir):
        from posbench.encodings import catalogue as entries
        from posbench.report import catalogue

        if page:
            print(catalogue.page(model, length))
        elif name is None:
            show(catalogue.overview(model, length), format)
        else:
            found = dict(entries())
            if name not in found:
                raise unknown("encoding", name, found)
            _page(name, found[name], catalogue.shape(model, length), f"{name} ({model}, trained at {length})", format)


def _page(name: str, entry: dict[str, Any], shape: Shape, title: str, form: Format) -> None:
    from posbench.encodings import find_class
    from posbench.report.catalogue import applying, facts
    from posbench.report.tables import Column, table

    own = {f"encoding.{key}": value for key, value in entry.items() if key not in ("name", "class")}
    said = facts(entry, shape) | {"extensions": ", ".join(applying(entry, shape))}
    caveat = said.pop("caveat")
    columns = [Column("what", "what", right=False), Column("value", "value", right=False)]
    doc = inspect.getdoc(find_class(entry["class"])) or ""
    if form is Format.table:
        print(doc + "\n")
    notes = [text for text in ("" if form is Format.table else doc, caveat) if text]
    rows = [{"what": key, "value": value} for key, value in ({"class": entry["class"]} | own | said).items()]
    show(table(title, columns, rows, notes), form)
