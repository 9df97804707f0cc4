"""`posbench bench`: what an encoding costs, and what others take for the same work."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posbench.cli import completion
from posbench.cli.options import (
    ConfigDirOption,
    Format,
    FormatOption,
    Lengths,
    command_line,
    lengths,
    say,
    settings,
    show,
)
from posbench.errors import UserError
from posbench.search_path import extra_dir

if TYPE_CHECKING:
    from posbench.bench.compare import Outcome
    from posbench.bench.entries import Entry
    from posbench.bench.variants import Budget
    from posbench.config import Config
    from posbench.report.tables import Table

    Rows = Sequence[Mapping[str, Any]]

app = typer.Typer(rich_markup_mode=None)

ENCODINGS = "none,sinusoidal,learned,rope,alibi,t5,shaw,kerple"
PEERS = "none,learned,rope,alibi,t5"


@app.callback()
def bench() -> None:
    """Speed and memory, also against other libraries."""


SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GROUP=CHOICE|KEY=VALUE",
        help="Such as model=micro train.length=128 train.batch_tokens=4096.",
        autocompletion=completion.overrides,
    ),
]
LengthsOption = Annotated[
    Lengths | None,
    typer.Option("--lengths", parser=lengths, metavar="L,L,...", help="Lengths of evaluation.", show_default=False),
]
RoundsOption = Annotated[int, typer.Option(min=1, help="Turns of each cell; 6 give an interval.")]
VocabOption = Annotated[int, typer.Option(min=2, help="Ids that there are.")]
EvalTokensOption = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of one evaluation call, in whole windows, at least one; as in a training step."),
]


def finite(value: float | None) -> float | None:
    """A number as given, unless it is infinite; nan is below every minimum."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number to measure with.")
    return value


MemoryOption = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        metavar="GIB",
        help="What a cell may take; default: three quarters of what is free.",
        callback=finite,
    ),
]
TrialOption = Annotated[
    float, typer.Option(min=1, metavar="S", help="Time of one trial, with compilation.", callback=finite)
]
SecondsOption = Annotated[
    float | None, typer.Option(min=0, metavar="S", help="No round begins later than that.", callback=finite)
]
WithinOption = Annotated[
    float | None,
    typer.Option(min=1, metavar="S", help="Time of it all: cells for which it is short are left out.", callback=finite),
]
OutOption = Annotated[
    Path | None, typer.Option(metavar="PREFIX", help="Also write PREFIX.md, PREFIX.csv and PREFIX.json.")
]


@app.command()
def encodings(
    overrides: SettingsArgument = None,
    names: Annotated[str, typer.Option("--encodings", metavar="E,E,...", help="Or all.")] = ENCODINGS,
    at: LengthsOption = None,
    rounds: RoundsOption = 20,
    vocab: VocabOption = 2048,
    eval_tokens: EvalTokensOption = None,
    memory: MemoryOption = None,
    trial_seconds: TrialOption = 300.0,
    seconds: SecondsOption = None,
    within: WithinOption = None,
    out: OutOption = None,
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Training and evaluation speed and memory of each encoding, against none.

    posbench bench encodings model=nano train.length=128 train.batch_tokens=4096 --lengths 1024,8192
    """
    with extra_dir(config_dir):
        from posbench.bench import entries, tables
        from posbench.search_path import choices

        wanted = choices("encoding") if names == "all" else names.split(",")
        configs = {name: _config(overrides, f"encoding={name}") for name in dict.fromkeys([entries.BASE, *wanted])}
        config = configs[entries.BASE]
        work = entries.Work(vocab, _lengths(at, config), eval_tokens)
        budget = _budget(config, rounds, memory, trial_seconds, seconds, within)
        command = command_line(
            "bench", "encodings", overrides=overrides, encodings=names, lengths=_joined(work.lengths), rounds=rounds,
            vocab=vocab, eval_tokens=eval_tokens, memory=memory, config_dir=config_dir,
        )  # fmt: skip
        facts = _facts(config, vocab, command)

        def table(rows: Rows) -> Table:
            return tables.comparison("What encodings cost", tables.ENCODINGS, rows, facts)

        _compare(entries.of_encodings(configs, work), budget, table, facts, out, format)


@app.command()
def peers(
    overrides: SettingsArgument = None,
    names: Annotated[
        str | None, typer.Option("--peers", metavar="P,P,...", help="Such as llama,bloom; default: all.")
    ] = None,
    of: Annotated[str, typer.Option("--encodings", metavar="E,E,...", help="Those whose peers are timed.")] = PEERS,
    at: LengthsOption = None,
    rounds: RoundsOption = 20,
    vocab: VocabOption = 2048,
    eval_tokens: EvalTokensOption = None,
    compile: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Try everything compiled too, where a compiler is there.")
    ] = True,
    memory: MemoryOption = None,
    trial_seconds: TrialOption = 300.0,
    seconds: SecondsOption = None,
    within: WithinOption = None,
    out: OutOption = None,
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """posbench against transformers and x-transformers at the same shape.

    Each in its best of eager and compiled, its fastest attention, with fused AdamW. Llama and Bloom must first give
    posbench's loss with its weights. They come with pip install 'posbench[peers]'.

    posbench bench peers model=micro train.length=128 train.batch_tokens=2048 --lengths 4096,8192
    """
    with extra_dir(config_dir):
        from posbench import system
        from posbench.bench import entries, tables
        from posbench.bench.peers import PEERS, find

        wanted = of.split(",")
        configs = {name: entries.plain_adamw(_config(overrides, "optim=adamw", f"encoding={name}")) for name in wanted}
        chosen = [peer for peer in (map(find, names.split(",")) if names else PEERS) if peer.encoding in wanted]
        if not chosen:
            hint = f"Peers: {', '.join(f'{peer.name} ({peer.encoding})' for peer in PEERS)}"
            raise UserError(f"None of these peers has an encoding of {of}.", hint)
        config = configs[wanted[0]]
        work = entries.Work(vocab, _lengths(at, config), eval_tokens)
        budget = _budget(config, rounds, memory, trial_seconds, seconds, within)
        command = command_line(
            "bench", "peers", overrides=overrides, peers=names, encodings=of, lengths=_joined(work.lengths),
            rounds=rounds, vocab=vocab, eval_tokens=eval_tokens, no_compile=not compile, memory=memory,
            config_dir=config_dir,
        )  # fmt: skip
        facts = _facts(config, vocab, command, "transformers", "x-transformers")

        def table(rows: Rows) -> Table:
            title = "posbench and its peers at the same shape"
            return tables.comparison(title, tables.PEERS, rows, facts, by_encoding=True)

        found = entries.of_peers(configs, chosen, work, compile and system.has_compiler())
        _compare(found, budget, table, facts, out, format)


@app.command("time-to-loss")
def time_to_loss(
    overrides: SettingsArgument = None,
    rates: Annotated[str, typer.Option(metavar="R,R,...", help="AdamW's peak rates.")] = "1e-3,2e-3,4e-3,8e-3,1.6e-2",
    seeds: Annotated[
        str, typer.Option(metavar="S,S,...", help="Three or more give an interval worth having.")
    ] = "1,2,3",
    shares: Annotated[
        str, typer.Option(metavar="F,F,...", help="Of AdamW's steps, over which posbench's recipe is run.")
    ] = "0.3,0.4,0.5,0.6,0.8,1",
    validations: Annotated[int, typer.Option(min=1, help="Of a run over all steps.")] = 25,
    out: OutOption = None,
    config_dir: ConfigDirOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Seconds to a loss: posbench's recipe against tuned AdamW.

    AdamW is run at each rate with the first seed, then at the best one with every seed; the loss to reach is the one it
    ends with at its worst. Compilation counts.

    posbench bench time-to-loss model=nano train.length=128 train.tokens=800_000
    """
    with extra_dir(config_dir):
        from posbench import system
        from posbench.bench import tables
        from posbench.bench.race import race
        from posbench.data import tokens

        config, adamw = _config(overrides), _config(_without(overrides, "optim"), "optim=adamw")
        if config.optim.method == "adamw":
            raise UserError("AdamW is what the recipe is held against.", "Leave out optim=adamw.")
        numbers = _seeds(seeds)
        if len(set(numbers)) < len(numbers):
            raise UserError(f"--seeds {seeds} names one twice.", "As in --seeds 1,2,3")
        peaks, parts = _numbers("rates", rates), _numbers("shares", shares)
        system.set_threads(config.train.threads)
        prepared = tokens.prepare(config.data, config.tokenizer, say=say)
        found = race(config, adamw, prepared, peaks, numbers, parts, validations, say)
        command = command_line(
            "bench", "time-to-loss", overrides=overrides, rates=rates, seeds=seeds, shares=shares,
            validations=validations, config_dir=config_dir,
        )  # fmt: skip
        facts = _facts(config, prepared.tokenizer.vocab_size, command)
        _print([tables.rates(found, facts), tables.times(found, config.optim.name, facts)], out, format)


def _config(overrides: Sequence[str] | None, *first: str) -> Config:
    """The config of `first` and then the user's own settings; a group that the command chooses is not the user's."""
    from posbench.compose import compose

    words = settings(overrides)
    for group in ("encoding", "extension", "init_from"):
        if any(word.startswith(f"{group}=") for word in words):
            raise UserError(f"{group}= has no place here.", "Encodings are chosen by --encodings none,alibi.")
    if any(word.startswith("nproc=") for word in words):
        raise UserError(
            "nproc= has no place here.", "One process is timed; train.threads=N says with how many threads."
        )
    given = [word for word in first if not any(own.startswith(word.split("=")[0] + "=") for own in words)]
    return compose([*given, *words])


def _without(overrides: Sequence[str] | None, group: str) -> list[str]:
    """The settings of other groups."""
    return [word for word in overrides or [] if not word.startswith((f"{group}=", f"{group}."))]


def _lengths(at: Lengths | None, config: Config) -> list[int]:
    return at.values if at is not None else [config.train.length]


def _joined(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _numbers(name: str, text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number < math.inf for number in found):
        raise UserError(f"--{name} {text} is not a list of positive numbers.", f"As in --{name} 1,2")
    return found


def _seeds(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) < 2**63 for word in words):
        raise UserError(f"--seeds {text} is not a list of whole numbers from 0 to 2^63 - 1.", "As in --seeds 1,2,3")
    return [int(word) for word in words]


def _budget(
    config: Config,
    rounds: int,
    memory: float | None,
    trial_seconds: float,
    seconds: float | None,
    within: float | None,
) -> Budget:
    from posbench import system
    from posbench.bench.machine import free_memory
    from posbench.bench.variants import Budget

    limit = int(memory * 2**30) if memory else free_memory(system.device(config.device)) * 3 // 4
    times = (float("inf") if limited is None else limited for limited in (seconds, within))
    return Budget(rounds, limit, trial_seconds, *times)


def _compare(
    entries: list[Entry],
    budget: Budget,
    table: Callable[[Rows], Table],
    facts: dict[str, Any],
    out: Path | None,
    format: Format,
) -> None:
    """Measure and print; what is found meanwhile is written too."""
    from posbench.bench import rows, tables
    from posbench.bench.compare import compare

    def made(outcome: Outcome) -> list[Table]:
        return [table(rows.records(outcome)), tables.machine(rows.limit_records(outcome), facts)]

    def keep(outcome: Outcome) -> None:
        if out is not None:
            tables.save(made(outcome), out)

    if out is not None:  # rather now than when all is measured
        out.parent.mkdir(parents=True, exist_ok=True)
    say(f"{len(entries)} cells, each tried alone within {budget.memory / 2**30:.3g} GiB")
    _print(made(compare(entries, budget, say, keep)), out, format)


def _facts(config: Config, vocab: int, command: str, *packages: str) -> dict[str, Any]:
    from posbench.bench.machine import facts, version_of

    return facts(config, vocab, command, **{package: version_of(package) for package in packages})


def _print(tables: Sequence[Table], out: Path | None, format: Format) -> None:
    show(tables, format)
    if out is not None:
        from posbench.bench.tables import save

        for file in save(tables, out):
            say(f"wrote {file}")
