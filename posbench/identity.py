"""What a run is: the part of its config that decides its weights, in plain data, and the name made from it."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posbench import classes
from posbench.config import GROUPS, Config
from posbench.errors import UserError, explain

FORMAT = 5
"""Raised whenever the same config would give other weights."""

# Settings that change how a run is carried out or looked at, never its weights.
_INERT = {
    "train": {"micro_tokens", "compile", "shard", "threads", "validate_tokens", "checkpoint_seconds"},
    "model": {"name"},
    "optim": {"name"},
    "data": {"name", "note", "size"},
    "tokenizer": {"name", "note"},
}

_OWN = {"data": "files", "tokenizer": "file"}
"""Kinds that are the user's own always, so that a run of theirs has a fingerprint."""


def newer_format(stored: Any) -> bool:
    """Whether a record's format is one that this posbench is too old for."""
    return isinstance(stored, int) and stored > FORMAT


def to_dict(config: Config) -> dict[str, Any]:
    """The whole config as plain data, for run.json and config.yaml."""
    return asdict(config)


def from_dict(stored: Mapping[str, Any]) -> Config:
    """The config of a stored run. What an older posbench did not store has its default; `UserError` for anything odd.

    (Whoever reads a run holds the identity of the result against the stored one.)
    """
    from omegaconf import OmegaConf

    schema = OmegaConf.structured(Config)
    later = ("extension", "tracker")
    missing = [group for group in GROUPS if group not in stored and group not in later]
    if missing:
        raise UserError(f"The stored config has no '{missing[0]}'.")
    try:
        config = OmegaConf.to_object(OmegaConf.merge(schema, dict(stored)))
    except Exception as error:
        raise UserError("The stored config cannot be read.", str(explain(error) or error).splitlines()[0]) from error
    assert isinstance(config, Config)
    needed = [("encoding", "class"), ("encoding", "name"), ("data", "name"), ("tokenizer", "name")]
    needed += [(group, "fingerprint") for group, kind in _OWN.items() if getattr(config, group).get("kind") == kind]
    for group, key in needed:
        if not isinstance(getattr(config, group).get(key), str):
            raise UserError(f"The stored config has no {group}.{key}.")
    if config.init_from is not None and not isinstance(config.init_from, dict):
        raise UserError("The stored config has no init_from.hash.")
    return config


def label(encoding: Mapping[str, Any], extension: Mapping[str, Any] | None = None) -> str:
    """An encoding's name in tables: "rope", or with what a wrapper holds, "randomized(alibi)"; trained under an
    extension, "rope+pi"."""
    if extension is not None and "class" in extension:
        return f"{label(encoding)}+{extension['name']}"
    inner = encoding.get("inner")
    if inner is None:
        return str(encoding["name"])
    return f"{encoding['name']}({label(inner) if isinstance(inner, Mapping) else inner})"


def identity(config: Config) -> dict[str, Any]:
    """What decides the weights, in plain data: the name and hash of a run are made from it. `config` is settled.

    A setting at its default is left out, so that a new setting renames no run. An encoding is its class and the
    parameters that differ from the defaults of its signature, and the SHA-256 of its source unless posbench ships it.
    Of a corpus and a tokenizer null is the default, and `stream` of `data.attend`; where there is a fingerprint, it
    stands for the paths. No file but an encoding's source is read.
    """
    found: dict[str, Any] = {"format": FORMAT, "seed": config.seed, "encoding": encoding_identity(config.encoding)}
    if "class" in config.extension:
        found["extension"] = extension_identity(config.extension)
    if config.init_from is not None:
        found["init_from"] = config.init_from["hash"]
    for group in ("model", "optim", "train"):
        value = getattr(config, group)
        changed = {key: entry for key, entry in asdict(value).items() if entry != getattr(type(value), key)}
        found[group] = {key: entry for key, entry in changed.items() if key not in _INERT[group]}
    for group in ("data", "tokenizer"):
        settings = getattr(config, group)
        assert settings.get("kind") != _OWN[group] or "fingerprint" in settings, "the config is not settled"
        left_out = _INERT[group] | set(_places(group, settings) if "fingerprint" in settings else ())
        given = {key: entry for key, entry in settings.items() if entry is not None}
        found[group] = {key: entry for key, entry in given.items() if key not in left_out}
    if found["data"].get("attend") == "stream":
        del found["data"]["attend"]
    return found


def _places(group: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings of a group that say where something lies."""
    if group == "tokenizer":
        from posbench.data.tokenizer import PLACES

        return PLACES
    from posbench.data.corpus import kind_of

    return kind_of(settings).places


def encoding_identity(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """What decides an encoding: its class, its source unless posbench ships it, what differs from the defaults."""
    from posbench import encodings

    cls = encodings.find_class(encoding["class"])
    return _class_identity(encoding, cls, *classes.signature(cls))


def extension_identity(extension: Mapping[str, Any]) -> dict[str, Any]:
    """The same of an extension; a factor that is `auto` is left out."""
    from posbench import extensions

    cls = extensions.find_class(extension["class"])
    return _class_identity(extension, cls, *extensions.signature(cls))


def _class_identity(
    described: Mapping[str, Any], cls: type, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {"class": described["class"]}
    if not cls.__module__.startswith("posbench."):
        source = Path(inspect.getsourcefile(cls) or "")
        found = {"class": f"{source.name}:{cls.__name__}", "source": hashlib.sha256(source.read_bytes()).hexdigest()}
    for key, value in classes.typed(described, parameters, hints).items():  # base=500 and base=500.0 are one run
        default = parameters[key].default if key in parameters else inspect.Parameter.empty
        if isinstance(value, Mapping) and "class" in value:
            found[key] = encoding_identity(value)
        elif key not in ("name", "class") and value != default:
            found[key] = value
    return found


def settings(identity: Mapping[str, Any]) -> str:
    """What of a run's encoding, recipe and windows is not the default, as one would type it; what its label, its
    training length and its number of tokens say is left out.

    >>> settings({"encoding": {"class": "a.B", "embed_scale": True}, "optim": {"lr": 0.01}, "train": {"length": 128}})
    'encoding.embed_scale=true optim.lr=0.01'
    """
    named = ("train.length", "train.tokens")
    groups = {key: identity.get(key, {}) for key in ("encoding", "extension", "optim", "train")}
    groups["data"] = {"attend": attend} if (attend := identity.get("data", {}).get("attend")) else {}
    found = {
        key: value
        for key, value in flat(groups).items()
        if key not in named and key.rpartition(".")[2] not in ("class", "source")
    }
    return " ".join(f"{key}={_typed(value)}" for key, value in found.items())


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys.

    >>> flat({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    found: dict[str, Any] = {}
    for key, entry in value.items():
        found |= flat(entry, f"{prefix}{key}.") if isinstance(entry, Mapping) else {prefix + key: entry}
    return found


def edited_sources(config: Config, stored: Mapping[str, Any]) -> list[str]:
    """The files of the user's own classes that are no longer what `stored`, an identity of `config`, was made from."""
    now, then, found = flat(identity(config)), flat(stored), []
    for key, digest in now.items():
        if key.endswith(".source") and then.get(key, digest) != digest:
            described = to_dict(config)
            for part in key.split(".")[:-1]:
                described = described[part]
            found.append(described["class"].rpartition(":")[0] or described["class"])
    return found


def hash8(identity: Mapping[str, Any]) -> str:
    """The first 8 hex digits of the SHA-256 of an identity's JSON."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
