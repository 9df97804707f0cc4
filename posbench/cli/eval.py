"""`posbench eval`: measure runs at lengths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posbench.cli import bridge, completion
from posbench.cli.options import (
    ConfigDirOption,
    DeviceOption,
    Format,
    FormatOption,
    LengthsOption,
    say,
    say_row,
    settings,
    show,
)
from posbench.errors import UserError, unknown
from posbench.search_path import choices, extra_dir

if TYPE_CHECKING:
    from posbench.evaluate import Request
    from posbench.records import Row
    from posbench.run import Run


def evaluate(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Path, name, or the beginning of a name or hash; none: every finished run.",
            autocompletion=completion.runs_and_eval,
        ),
    ] = None,
    lengths: LengthsOption = None,
    protocol: Annotated[str | None, typer.Option(help="nonoverlapping (the default), sliding or same-targets.")] = None,
    stride: Annotated[int | None, typer.Option(help="sliding: targets a window adds; half of the length.")] = None,
    block: Annotated[int | None, typer.Option(help="same-targets: targets scored by one window; 32.")] = None,
    min_context: Annotated[
        int | None, typer.Option(help="same-targets: ids of its document before any target; the longest length.")
    ] = None,
    targets: Annotated[int | None, typer.Option(help="Only so many targets; same-targets: 4096.")] = None,
    split: Annotated[str | None, typer.Option(help="test (the default), validation or train.")] = None,
    extension: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help="Changes to the trained encoding, such as none,pi,yarn; extension.factor=4 sets one of theirs.",
            autocompletion=completion.choice("extension"),
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="CORPUS",
            help="Another text than the run's own: a corpus, or a file, folder or quoted glob.",
            autocompletion=completion.choice("data"),
        ),
    ] = None,
    references: Annotated[
        bool,
        typer.Option(help="Also what a unigram and a bigram of the training text give: a run has to beat the latter."),
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Compute again what is there already.")] = False,
    device: DeviceOption = "auto",
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Measure perplexity at lengths. What was measured before is not computed again.

    posbench eval --lengths 512,1024,4096

    posbench eval rope-L512 --lengths 512,4096 --protocol same-targets

    posbench eval rope-L512 --lengths 512,1024,2048 --extension none,pi,ntk,yarn
    """
    options = {
        "lengths": None if lengths is None else f"[{','.join(map(str, lengths.values))}]",
        "protocol": protocol,
        "stride": stride,
        "block": block,
        "min_context": min_context,
        "targets": targets,
        "split": split,
    }
    words = settings(words)
    # A path may hold a "=".
    names = [word for word in words if "=" not in word or Path(word).exists()]
    with extra_dir(config_dir):
        if on is not None:
            from posbench.compose import corpus

            corpus(on, split or "test")
        if extension is not None:
            options["extensions"] = f"[{','.join(_extensions(extension))}]"
        overrides = [word for word in words if word not in names]
        for word in overrides:
            if word.startswith("extension="):
                raise UserError(f"{word} is no setting of an evaluation.", f"Write --{word.replace('=', ' ')}.")
            if not word.startswith(("eval.", "eval=", "extension.")):
                raise UserError(
                    f"{word}: a run is evaluated as it was trained; only eval.* and extension.* can be set.",
                    "As in eval.block=16.",
                )
        for option, of in {"stride": "sliding", "block": "same-targets", "min_context": "same-targets"}.items():
            if options[option] is not None and protocol != of and f"eval.protocol={of}" not in overrides:
                flag = option.replace("_", "-")
                raise UserError(f"--{flag} has no effect here.", f"It belongs to --protocol {of}.")
        overrides += [f"eval.{key}={value}" for key, value in options.items() if value is not None]
        _evaluate(names, overrides, on, references, force, device, format)


def _evaluate(
    names: list[str], overrides: list[str], on: str | None, references: bool, force: bool, device: str, form: Format
) -> None:
    from posbench import evaluate, records, run
    from posbench.compose import compose
    from posbench.report.lengths import length_tables

    changes = [word for word in overrides if word.startswith("extension.")]
    eval = compose([word for word in overrides if word not in changes]).eval
    extended = _extended(eval.extensions, changes)
    failed: list[str] = []
    runs: list[Run] = []
    for one in [run.find(name) for name in names] or run.all_runs():
        try:
            if (names or one.done) and one.config:
                runs.append(one)
        except Exception as error:  # a damaged run, or the source of its encoding: the others are evaluated
            if len(names) == 1:
                raise
            if names or not isinstance(error, UserError):
                bridge.tell(error, bridge.debugging())
                failed.append(one.name)
            else:
                say(f"warning: {error.message} It is left out.")
    if not runs and not failed:
        hint = "Rows without a model are not measured anew; posbench table shows them." if records.read() else None
        raise UserError(f"There is no finished run in {run.root()}.", hint or "Train one: posbench train encoding=rope")
    evaluate.share_targets(eval, [one.config for one in runs])
    jobs = [(one, evaluate.requests(one.config, eval, on, extended)) for one in runs]
    if len(names) == 1:
        evaluate.refuse_inapplicable(*jobs[0])
    if not names and not force:
        _announce(jobs, device)
    rows: list[Row] = []
    for one, requests in jobs:
        try:
            rows += evaluate.evaluate(one, requests, force, device, on_row=say_row)
        except Exception as error:
            if len(jobs) == 1 and not failed:
                raise
            bridge.tell(error, bridge.debugging())
            failed.append(one.name)
    if rows and references:
        rows += _references(jobs, force)
    if rows:
        show(length_tables(rows), form)
    if failed:
        say(f"{len(failed)} of {len(names) or len(jobs)} runs could not be evaluated: {', '.join(failed)}")
        raise typer.Exit(1)


def _references(jobs: list[tuple[Run, list[Request]]], force: bool) -> list[Row]:
    """Those of each text that these runs were trained on; one that is not at hand is said, and its runs stand alone."""
    from posbench import baselines

    rows: list[Row] = []
    for config, requests in baselines.by_text((one.config, requests) for one, requests in jobs):
        try:
            for name in baselines.NAMES:
                rows += baselines.evaluate(name, config, requests, force, on_row=say_row)
        except UserError as error:
            say(f"warning: {error.message} No unigram and bigram stand beside what was trained on it.")
    return rows


def _extensions(text: str) -> list[str]:
    """The names given to --extension, in brackets or not."""
    names = [name.strip() for name in text.strip().removeprefix("[").removesuffix("]").split(",")]
    for name in names:
        if name not in choices("extension"):
            raise unknown("extension", name, choices("extension"))
    return names


def _extended(names: list[str], changes: list[str]) -> list[dict[str, Any]]:
    """The extensions of those names, described, with `changes` to the settings of each that is one."""
    from posbench import extensions
    from posbench.compose import load_group

    if changes and not {*names} - {"none"}:
        raise UserError(f"{changes[0]} has no effect here.", "Name the extension: --extension yarn")
    described = []
    for name in names:
        one = load_group("extension", name)
        if "class" in one and changes:
            # "++" adds what is not there: the class itself says best what it has no setting for.
            one = load_group("extension", name, [f"++{word}" for word in changes])
        extensions.build(one)  # a bad setting is said before anything is measured
        described.append(one)
    return described


def _announce(jobs: list[tuple[Run, list[Request]]], device: str) -> None:
    """How much there is to do, before it is begun."""
    from posbench import evaluate
    from posbench.progress import duration

    cells, todo, seconds = sum(len(requests) for _, requests in jobs), 0, 0.0
    for one, requests in jobs:
        try:
            missing = evaluate.missing(one, requests, device)
        except UserError:
            continue  # said when its turn comes
        todo += len(missing)
        seconds += sum(_seconds(one, request.length, inputs) for request, inputs in missing)
    about = f"{todo} of them to be measured, about {duration(seconds)}" if todo else "all of them measured before"
    say(f"{len(jobs)} finished run(s) x lengths: {cells} results, {about}.")


def _seconds(one: Run, length: int, inputs: int) -> float:
    """From the speed it was trained at: a forward pass is a third of a step, and its attention grows with the window
    (12 C + L multiplications a layer and channel)."""
    status, width, trained = one.status(), one.config.model.width, one.config.train.length
    if not status.get("seconds") or not status.get("tokens"):
        return 0.0
    return inputs * status["seconds"] / status["tokens"] / 3 * (12 * width + length) / (12 * width + trained)
