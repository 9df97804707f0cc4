"""A run that starts from the weights of another one: `init_from=RUN`.

    init_from=RUN extension=pi train.length=...   the brief fine-tuning that an extension is meant for
    init_from=RUN train.length=...                the same without one: its control
    init_from=RUN encoding=none                   another encoding from here on (DroPE)

Model, data and tokenizer are that run's, its encoding, extension and seed too unless others are named. Length, tokens
and recipe are the new run's own. `settled` writes into the config what has to be known of that run, so that a trained
one can be read without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from posbench import checkpoint, extensions
from posbench.config import Config, build_encoding, built_length, trained_length
from posbench.data.tokenizer import Tokenizer
from posbench.encodings.base import Encoding
from posbench.errors import UserError
from posbench.identity import encoding_identity, hash8
from posbench.model import Decoder
from posbench.run import Run, find

BROUGHT = ("model", "data", "tokenizer")
"""Groups that come from the run, always."""


def settled(config: Config, overrides: Sequence[str]) -> Config:
    """The config with what comes from the run that `init_from` names; `overrides` tell what was asked for.

    Its `init_from` becomes plain data: `name`, `hash`, `path`; `built_length`, the training length the encoding was
    built for (None where another one takes its place); `trained_length`, from which an extension stretches; `recipe`
    and `setup`, as in the rows of that run. The factor of an extension becomes a number.

    Raises UserError for a run that does not exist or is not finished, and for another model, data or tokenizer than it
    has; with an extension, for another encoding.
    """
    run = find(str(config.init_from))
    run.refuse_unfinished()
    source, named = run.config, _named(overrides)
    for group in BROUGHT:
        own, theirs = getattr(config, group), getattr(source, group)
        if group in named and _plain(own) != _plain(theirs):
            raise UserError(
                f"{run.name} brings its own {group}, and another one was asked for.", f"Leave out {named[group]}."
            )
    encoding = config.encoding if "encoding" in named else source.encoding
    carried = encoding_identity(encoding) == encoding_identity(source.encoding)
    extension, start = config.extension, trained_length(source)
    if "class" not in extension:
        # Unless something was asked for: `extension=none` takes the run's own away.
        extension = source.extension if carried and "extension" not in named else extension
    elif not carried:
        raise UserError(
            f"extension={extension['name']} changes the encoding of {run.name}, and another one was asked for.",
            f"Leave out {named['encoding']}.",
        )
    else:
        extension = _with_factor(extension, run.name, start, config.train.length)
    return replace(
        config,
        **{group: getattr(source, group) for group in BROUGHT},
        encoding=encoding,
        extension=extension,
        seed=config.seed if "seed" in named else source.seed,
        init_from={
            "name": run.name,
            "hash": run.hash,
            "path": str(run.path),
            "built_length": built_length(source) if carried else None,
            "trained_length": start,
            "recipe": recipe(source, run.record["identity"]),
            "setup": setup(source, run.record["identity"]),
        },
    )


def _named(overrides: Iterable[str]) -> dict[str, str]:
    """What each group or setting at the top was asked for by: the first word that names it or a setting of it."""
    named: dict[str, str] = {}
    for word in overrides:
        key = word.partition("=")[0].lstrip("+~")
        named.setdefault(key.split("@")[0].split(".")[0], word)
    return named


def _plain(group: Any) -> Any:
    """What of a group can be asked for, without what is at its default: null, and `stream` of `data.attend`."""
    if not isinstance(group, dict):
        return group
    given = {key: value for key, value in group.items() if value is not None and (key, value) != ("attend", "stream")}
    return {key: value for key, value in given.items() if key not in ("fingerprint", "note", "size")}


def _with_factor(extension: Mapping[str, Any], name: str, trained_length: int, length: int) -> dict[str, Any]:
    """The extension with its factor as a number: what `auto` is at this length, whatever is read with it later.

    Raises UserError where `auto` would be 1 for good, because no window is longer.
    """
    built = extensions.build(extension)
    assert built is not None
    if built.searches:
        raise UserError(
            f"In a training the factors of '{extension['name']}' must be given.",
            "A search finds them in an evaluation: posbench eval RUN --extension longrope",
        )
    if not built.takes_factor:
        return dict(extension)
    factor = extension.get("factor", "auto")
    grows = built.resolve("auto", trained_length, 2 * trained_length) > 1  # that of a rule by the current length is 1
    if factor == "auto" and grows and length <= trained_length:
        raise UserError(
            f"extension={extension['name']} has nothing to stretch at train.length={length}: {name} was trained at "
            f"{trained_length}.",
            f"Write a train.length above {trained_length}, or extension.factor=...",
        )
    return {**extension, "factor": built.resolve(factor, trained_length, length)}


def recipe(config: Config, identity: Mapping[str, Any]) -> str:
    """8 hex digits of a run's identity without its seed: its seeds have equal ones, where they start from seeds of one
    recipe."""
    return hash8(_without(config, identity, "recipe", ("seed",)))


def setup(config: Config, identity: Mapping[str, Any]) -> str:
    """The same without its encoding either: equal for all encodings trained alike."""
    return hash8(_without(config, identity, "setup", ("seed", "encoding", "extension")))


def _without(config: Config, identity: Mapping[str, Any], kind: str, left_out: Sequence[str]) -> dict[str, Any]:
    kept = {key: value for key, value in identity.items() if key not in left_out}
    return kept if config.init_from is None else kept | {"init_from": config.init_from[kind]}


def source(config: Config) -> Run:
    """The run that a settled config starts from. Raises UserError when it is no longer there."""
    assert config.init_from is not None
    there = Run(Path(config.init_from["path"]))
    return there if there.started and there.hash == config.init_from["hash"] else find(config.init_from["hash"])


def tokenizer(config: Config) -> Tokenizer | Mapping[str, Any]:
    """What a training reads its text with: the config's choice, or the very tokenizer of the run it starts from."""
    return config.tokenizer if config.init_from is None else source(config).tokenizer()


def caveat(config: Config, encoding: Encoding) -> str:
    """What the encoding of a run says of itself at the longest length that it has been trained at, here or before.

    (`encoding` is built for the length of the first of these trainings.)
    """
    before = config.init_from["trained_length"] if config.init_from is not None else 0
    longest = max(config.train.length, built_length(config), before)
    if longest == encoding.shape.train_length:
        return encoding.caveat
    with torch.random.fork_rng(devices=[]):
        return build_encoding(config.encoding, replace(encoding.shape, train_length=longest)).caveat


def take_over(config: Config, decoder: Decoder) -> None:
    """Fill `decoder` with the weights its training starts from, if they are another run's.

    An encoding that takes the place of the run's own keeps its fresh ones. Raises UserError when they do not fit.
    """
    if config.init_from is None:
        return
    run, carried = source(config), config.init_from["built_length"] is not None
    checkpoint.load_weights(run.weights, run.hash, decoder, but=() if carried else ("encoding.",))
