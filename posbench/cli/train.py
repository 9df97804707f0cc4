"""`posbench train`: one run, or with -m one for each combination. `posbench sweep` is the latter."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posbench.cli import bridge, completion
from posbench.cli.options import ConfigDirOption, Format, FormatOption, say, show
from posbench.errors import UserError

if TYPE_CHECKING:
    from posbench.job import Job, Result
    from posbench.launch import Settings
    from posbench.run import Run


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


OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GROUP=CHOICE|KEY=VALUE",
        help="Such as encoding=alibi model=micro train.length=256 seed=2.",
        autocompletion=completion.overrides,
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what it would take: tokens, time, memory.")]


def train(
    overrides: OverridesArgument = None,
    multirun: Annotated[bool, typer.Option("--multirun", "-m", help="One job for each of a=1,2 b=3,4: four.")] = False,
    dry_run: DryRunOption = False,
    cfg: Annotated[Cfg | None, typer.Option("--cfg", "-c", help="Only print the composed config.")] = None,
    package: Annotated[str | None, typer.Option("--package", "-p", help="With --cfg: the part to print.")] = None,
    resolve: Annotated[bool, typer.Option("--resolve", help="With --cfg: fill in what refers elsewhere.")] = False,
    info: Annotated[Info | None, typer.Option("--info", "-i", help="Only print Hydra's account of itself.")] = None,
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Train a model. A finished run is not trained again, an interrupted one goes on where it was.

    posbench train encoding=rope

    posbench train encoding=rope model=base nproc=8

    posbench train -m encoding=rope,alibi seed=1,2,3 workers=2 on_error=retry=1
    """
    if cfg is None and (package or resolve):
        raise UserError("--package and --resolve say how --cfg prints.", "Add --cfg job.")
    if sum((cfg is not None, info is not None, multirun)) > 1:
        raise UserError("Only one of --cfg, --info and -m can be given.")
    flags = ["--cfg", cfg.value] if cfg else []
    flags += ["--package", package] if package else []
    flags += ["--resolve"] if resolve else []
    flags += ["--info", info.value] if info else []
    _launch(overrides, multirun, dry_run, flags, config_dir, format)


def sweep(
    overrides: OverridesArgument = None,
    dry_run: DryRunOption = False,
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Train one model for each of a=1,2 b=3,4: the same as train -m.

    posbench sweep encoding=rope,alibi 'seed=range(1,4)'

    Beside the settings: workers=N at a time; on_error=continue, stop or retry=N after a failure; nproc=N processes for
    each; hydra/launcher=slurm or ray for a cluster.
    """
    _launch(overrides, True, dry_run, [], config_dir, format)


def _launch(
    overrides: list[str] | None, multirun: bool, dry_run: bool, flags: list[str], folder: str | None, form: Format
) -> None:
    def estimate(config: Any, command: str) -> None:
        from posbench.plan import plan

        _show_plan(plan(config), form)

    def estimate_all(jobs: list[Job], how: Settings) -> list[Result | None]:
        from dataclasses import replace

        from posbench.job import Result
        from posbench.launch import Settings

        if replace(how, engine=None) != Settings():
            raise UserError("workers= and on_error= have no effect on --dry-run.", "Leave them out.")
        results: list[Result | None] = []
        for number, job in enumerate(jobs, start=1):
            say(f"[{number}/{len(jobs)}] {job.label}")
            try:
                estimate(job.config, job.command)
                results.append(Result("estimated"))
            except UserError as error:
                results.append(Result("failed", error.message, [error.hint] if error.hint else []))
        return results

    work, sweep = (estimate, estimate_all) if dry_run else (_train, _train_all)
    bridge.launch(work, "train", overrides, sweep=sweep if multirun else None, flags=flags, folder=folder)


def _train(config: Any, command: str) -> None:
    from posbench.train import train

    _report(train(config, command, say), config)


def _train_all(jobs: list[Job], how: Settings) -> list[Result | None]:
    from posbench import launch

    return launch.run(jobs, how, say, report=_report_job)


def _report_job(job: Job) -> None:
    """Of a job that is done, and may have been done on another machine."""
    with suppress(UserError):
        if job.run.done:
            _report(job.run, job.config)
            return
    say(f"{job.run.name} is trained, and its folder is not seen here yet: {job.run.path}")


def _report(run: Run, config: Any) -> None:
    """What was trained, where it is, and what to type next."""
    from posbench.identity import label
    from posbench.run import root

    status, name = run.status(), label(config.encoding, config.extension)
    loss = f"validation {status['valid']:.4f} nats a token" if status.get("valid") is not None else "not validated"
    memory = f", {status['peak_memory'] / 2**20:,.0f} MiB at most" if status.get("peak_memory") else ""
    say(
        f"{run.name}: {name} trained at L = {config.train.length} on {config.data['name']}, "
        f"{status['tokens']:,} tokens, {status['epochs']:.2f} epochs, {loss}{memory}"
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
        "memory": f"{plan['memory'] / 2**20:,.0f} MiB beside what Python and torch take",
        "parameters": ", ".join(f"{count:,} {what}" for what, count in plan["parameters"].items()),
        "decisions": "; ".join(plan["decisions"]),
    }
    rows = [{"what": key, "value": Cell(value, words[key]) if key in words else value} for key, value in plan.items()]
    show(
        table("What it would take", [Column("what", "what", right=False), Column("value", "", right=False)], rows), form
    )
