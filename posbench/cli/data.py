"""`posbench data`: the corpora, and preparing one ahead."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posbench.cli import completion
from posbench.cli.options import ConfigDirOption, Format, FormatOption, say, settings, show
from posbench.errors import UserError
from posbench.search_path import extra_dir

if TYPE_CHECKING:
    from posbench.report.tables import Table

app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@app.callback()
def data(ctx: typer.Context, config_dir: ConfigDirOption = None, format: FormatOption = Format.table) -> None:
    """The corpora and their size; `prepare` one ahead."""
    if ctx.invoked_subcommand is not None:
        return
    with extra_dir(config_dir):
        show(corpora(), format)


def corpora() -> Table:
    """One line a corpus, or one for each tokenizer it is prepared with."""
    from posbench.data.overview import overview
    from posbench.report.tables import Column, table

    lines: list[dict[str, Any]] = []
    for entry in overview():
        line = {key: entry[key] for key in ("name", "documents", "bytes", "note")}
        for prepared in entry["prepared"]:
            tokens = sum(counts["tokens"] for counts in prepared["splits"].values())
            line |= {
                "documents": prepared["documents"],
                "bytes": prepared["bytes"],
                "note": prepared["text"] or entry["note"],
            }
            lines.append(line | {"prepared": prepared["tokenizer"], "tokens": tokens})
        if not entry["prepared"]:
            lines.append(line | {"prepared": "no"})
    columns = [
        Column("name", "corpus", right=False),
        Column("documents", "documents"),
        Column("bytes", "bytes"),
        Column("prepared", "prepared", right=False),
        Column("tokens", "tokens"),
        Column("note", "what", right=False),
    ]
    return table("Corpora", columns, lines)


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="A corpus.", autocompletion=completion.choice("data"))],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Such as tokenizer=bytes or data.path=my.txt."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to put it, to be copied to a machine without network or packages."),
    ] = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Make the tokens of a corpus ahead of training.

    posbench data prepare sotu
    """
    with extra_dir(config_dir):
        from posbench.compose import compose
        from posbench.data import tokens

        config = compose([f"data={name}", *settings(overrides)])
        if config.data["name"] != name:
            raise UserError(
                f"data={config.data['name']} and {name} exclude each other.", "Prepare one after the other."
            )
        prepared = tokens.prepare(config.data, config.tokenizer, root=out, say=say)
        say(f"{name} is ready in {prepared.path}")
