"""`posbench train`: one run, or with -m one for each combination."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from posbench.cli import bridge, completion
from posbench.cli.options import ConfigDirOption, Format, FormatOption, say, show
from posbench.errors import UserError


class Cfg(StrEnum):
    """What of the composed config is printed."""

    job = "job"
    hydra = "hydra"
    all = "all"


class Info(StrEnum):
    """What Hydra tells of itself."""

    all = "all"
    config = "config"
    defaults = "defaults"
    tree = "defaults-tree"
    plugins = "plugins"
    searchpath = "searchpath"


def train(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUP=CHOICE|KEY=VALUE",
            help="Such as encoding=alibi model=micro train.length=256 seed=2.",
            autocompletion=completion.overrides,
        ),
    ] = None,
    multirun: Annotated[bool, typer.Option("--multirun", "-m", help="One job for each of a=1,2 b=3,4: four.")] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="With -m: begin no job after one that failed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would take: tokens, time, memory.")
    ] = False,
    cfg: Annotated[Cfg | None, typer.Option("--cfg", "-c", help="Only print the composed config.")] = None,
    package: Annotated[str | None, typer.Option("--package", "-p", help="With --cfg: the part to print.")] = None,
    resolve: Annotated[bool, typer.Option("--resolve", help="With --cfg: fill in what refers elsewhere.")] = False,
    info: Annotated[Info | None, typer.Option("--info", "-i", help="Only print Hydra's account of itself.")] = None,
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Train a model. A finished run is not trained again, an interrupted one goes on where it was.

    posbench train encoding=rope

    posbench train -m encoding=rope,alibi seed=1,2,3
    """
    if cfg is None and (package or resolve):
        raise UserError("--package and --resolve say how --cfg prints.", "Add --cfg job.")
    if sum((cfg is not None, info is not None, multirun)) > 1:
        raise UserError("Only one of --cfg, --info and -m can be given.")
    if fail_fast and not multirun:
        raise UserError("--fail-fast has no effect here.", "It belongs to -m.")
    flags = ["--cfg", cfg.value] if cfg else []
    flags += ["--package", package] if package else []
    flags += ["--resolve"] if resolve else []
    flags += ["--info", info.value] if info else []

    def plan(config: Any, command: str) -> None:
        from posbench import train

        _show_plan(train.plan(config), format)

    work = plan if dry_run else _train
    bridge.launch(work, "train", overrides, multirun=multirun, fail_fast=fail_fast, flags=flags, folder=config_dir)


def _train(config: Any, command: str) -> None:
    from posbench.identity import label
    from posbench.run import root
    from posbench.train import train

    run, name = train(config, command, say), label(config.encoding, config.extension)
    status = run.status()
    loss = f"validation {status['valid']:.4f} nats a token" if status.get("valid") is not None else "not validated"
    say(
        f"{run.name}: {name} trained at L = {config.train.length} on {config.data['name']}, "
        f"{status['tokens']:,} tokens, {status['epochs']:.2f} epochs, {loss}"
    )
    say(f"It is in {run.path}")
    lengths = ",".join(str(config.train.length * factor) for factor in (1, 2, 4, 8))
    word = run.name if run.path.parent == root().resolve() else str(run.path)
    print(f"posbench eval {word} --lengths {lengths}")


def _show_plan(plan: dict[str, Any], form: Format) -> None:
    from posbench.progress import duration
    from posbench.report.tables import Cell, Column, table

    words = {
        "epochs": f"{plan['epochs']:.2f}",
        "seconds": duration(plan["seconds"]),
        "memory": f"{plan['memory'] / 2**20:,.0f} MiB",
        "parameters": ", ".join(f"{count:,} {what}" for what, count in plan["parameters"].items()),
        "decisions": "; ".join(plan["decisions"]),
    }
    rows = [{"what": key, "value": Cell(value, words[key]) if key in words else value} for key, value in plan.items()]
    show(
        table("What it would take", [Column("what", "what", right=False), Column("value", "", right=False)], rows), form
    )
