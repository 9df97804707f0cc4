"""What a run is made from: the typed settings, how they are composed, and which of them decide the weights.

`compose` reads configs/ through Hydra; `from_hydra` turns what Hydra composed into a checked `Config` of plain data;
`identity` is the part of it that decides the weights, and so names the run.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench.errors import UserError, explain, no_setting, unknown
from posbench.search_path import choices, config_dir, files, user_dirs

if TYPE_CHECKING:
    from posbench.encodings.base import Encoding, Shape

FORMAT = 2
"""Raised whenever the same config would give other weights."""


@dataclass
class Model:
    """The decoder's shape (group `model`). The default block is Llama's."""

    name: str = "nano"
    layers: int = 4
    width: int = 128
    heads: int = 4
    hidden: int = 344
    """Width of the feed-forward layer."""
    norm: str = "rmsnorm"
    """rmsnorm | layernorm"""
    activation: str = "swiglu"
    """swiglu | relu"""


@dataclass
class Optim:
    """The recipe (group `optim`), one for all encodings."""

    name: str = "muon"
    method: str = "muon"
    """muon: Muon on the matrices of attention and feed-forward, AdamW elsewhere; adamw: AdamW everywhere."""
    lr: float = 2e-2
    """Peak rate of AdamW."""
    matrix_lr: float = 3e-2
    """Peak rate of Muon (method muon)."""
    weight_decay: float = 0.1
    """On the matrices of attention and feed-forward only."""
    beta1: float = 0.9
    beta2: float = 0.95
    momentum: float = 0.95
    """Muon's momentum."""
    warmup: float = 0.05
    """Share of the steps in which the rate rises."""
    schedule: str = "linear"
    """linear | cosine, down to where the step after the last would be at zero."""
    clip: float = 1.0
    """Largest norm of the gradient."""


@dataclass
class Train:
    """Budget and machinery of a training run (group `train`). Budgets are in tokens, never in steps."""

    length: int = 512
    tokens: int = 1_500_000
    batch_tokens: int = 2048
    dropout: float = 0.0
    precision: str = "auto"
    """auto (bf16 autocast on CUDA, fp32 elsewhere) | fp32 | bf16"""
    micro_tokens: int = 0
    """Tokens of one forward pass; 0: the whole batch, or what fits. Not part of the run's name."""
    compile: str = "auto"
    """auto | on | off. Not part of the run's name."""
    threads: int = 0
    """0: the machine's cores. Not part of the run's name."""
    validate_tokens: int = 250_000
    """Training tokens between two validations."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints."""


@dataclass
class Eval:
    """What `posbench eval` measures (group `eval`)."""

    lengths: list[int] = field(default_factory=list)
    """Window lengths; each run's own training length is always added."""
    protocol: str = "nonoverlapping"
    """nonoverlapping | sliding | same-targets"""
    stride: int | None = None
    """sliding: targets a window adds; None: half of each length."""
    block: int = 32
    """same-targets: consecutive targets scored by one window."""
    targets: int | None = None
    """The first so many targets of the split; None: all (same-targets: 4,096)."""
    min_context: int | None = None
    """same-targets: ids of its document before any target; None: the longest length."""
    split: str = "test"
    extensions: list[str] = field(default_factory=list)
    """Changes to the trained encoding, each measured at every length; `none` is one of them. Empty: as trained."""


@dataclass
class Config:
    """Everything one run needs. Groups that vary by choice (encoding, data, tokenizer) are plain mappings."""

    encoding: dict[str, Any] = field(default_factory=dict)
    model: Model = field(default_factory=Model)
    data: dict[str, Any] = field(default_factory=lambda: {"attend": "stream"})
    """`attend`: stream (a token sees all before it in its window, as in the paper) | document (its own alone)."""
    tokenizer: dict[str, Any] = field(default_factory=dict)
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    extension: dict[str, Any] = field(default_factory=dict)
    """A change to a trained encoding for longer input; without a class: none."""
    init_from: Any = None
    """The run whose weights this one starts from: its name, hash, the beginning of one, or path. Once settled by
    posbench/initial.py: what has to be known of that run."""
    seed: int = 1
    study: str | None = None
    device: str = "auto"
    """auto | cpu | cuda | cuda:N | mps"""


GROUPS = ("encoding", "model", "data", "tokenizer", "optim", "train", "eval", "extension")

# Settings that change how a run is carried out or looked at, never its weights.
_INERT = {
    "train": {"micro_tokens", "compile", "threads", "validate_tokens", "checkpoint_seconds"},
    "model": {"name"},
    "optim": {"name"},
    "data": {"name", "note", "size"},
    "tokenizer": {"name", "note"},
}

_OWN = {"data": "files", "tokenizer": "file"}
"""Kinds that are the user's own always, so that a run of theirs has a fingerprint."""


# --- Composing -----------------------------------------------------------------------------------------------------


def register() -> None:
    """Tell Hydra the typed settings and the user's folders."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    ConfigStore.instance().store("base_config", Config)
    folders = [folder.as_uri() for folder in user_dirs()]  # here, since Hydra would wrap what this raises
    OmegaConf.register_new_resolver("posbench.user_dirs", lambda: folders, replace=True)


def compose(overrides: Sequence[str] = ()) -> Config:
    """The checked config of a command line such as ["encoding=alibi", "seed=2"]; `UserError` for a bad one."""
    with _composed(overrides) as cfg:
        return from_hydra(cfg, cfg.hydra.runtime.choices, cfg.hydra.runtime.config_sources, overrides)


def load_group(group: str, name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """One choice of a group as plain data with its `name`; what the user must still give reads "???".

    `overrides` are settings of that group, such as "extension.factor=8".
    """
    from omegaconf import OmegaConf

    file = files(group).get(name)
    if file is None:
        raise unknown(group, name, choices(group))
    value: Any = None if overrides else _read_plain(group, file)
    if value is None:
        with _composed([f"{group}={name}", *overrides]) as cfg:
            value = OmegaConf.to_container(cfg[group], resolve=True)
    return _named(group, name, {str(key): entry for key, entry in value.items()}, file)


def _read_plain(group: str, file: Path) -> Any:
    """What Hydra would compose from one file, in a hundredth of its time; None where there is something to compose: a
    list of defaults, a package, an interpolation, a group with typed settings, a file that Hydra has to complain of.
    """
    from omegaconf import OmegaConf
    from yaml import YAMLError

    try:
        text = file.read_text(encoding="utf-8")
        typed = getattr(Config(), group, None)
        if not isinstance(typed, dict) or "${" in text or "@package" in text:
            return None
        value = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, ValueError, YAMLError):
        return None
    return {**typed, **value} if isinstance(value, dict) and "defaults" not in value else None


def corpus(word: str, split: str) -> dict[str, Any]:
    """The settings of another text to read: a choice of the group `data`, or the user's own file, folder or glob, all
    of which is then that split."""
    if word in choices("data"):
        return load_group("data", word)
    path = Path(word).expanduser()
    if word and (path.exists() or any(mark in word for mark in "*?[")):
        return {"name": "files", "kind": "files", split: str(path)}
    raise unknown("corpus", word, choices("data"))


@contextmanager
def _composed(overrides: Sequence[str]) -> Iterator[Any]:
    """What Hydra composes, its own settings under `hydra`; its errors as `UserError`."""
    import hydra

    register()
    try:
        with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
            yield hydra.compose("config", overrides=list(overrides), return_hydra_config=True)
    except Exception as error:
        explained = explain(error, overrides)
        if explained is None or explained is error:
            raise
        raise explained from error


def from_hydra(cfg: Any, chosen: Mapping[str, Any], sources: Sequence[Any], overrides: Sequence[str] = ()) -> Config:
    """A composed DictConfig as plain typed data, each group with the name of its choice, checked and settled.

    `chosen` and `sources` are Hydra's `runtime.choices` and `runtime.config_sources`: a class given as `mine.py:Mine`
    is looked for beside the YAML that names it. `overrides` tell what was asked for from what is a default. Raises
    `UserError` for a setting that does not exist.
    """
    from omegaconf import OmegaConf, open_dict

    with open_dict(cfg):
        if "hydra" in cfg:
            del cfg["hydra"]
    _refuse_dead_keys(cfg, chosen, sources)
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    for group in GROUPS:
        if chosen.get(group) is None:  # taken away, or a list, which Hydra would merge
            raise UserError(f"The group {group} needs one choice.", f"{group}: {', '.join(choices(group))}")
        value, name = getattr(config, group), str(chosen[group]).removesuffix(".yaml")
        if "/" in name:  # Hydra takes a path as well, but it makes no run's name
            raise unknown(group, name, choices(group))
        if isinstance(value, dict):
            setattr(config, group, _named(group, name, value, _yaml(group, name, sources)))
        elif hasattr(value, "name"):
            if value.name not in (name, type(value).name):
                raise UserError(f"{group}.name={value.name} has no effect.", f"Choose a {group} by {group}=NAME.")
            value.name = name
    if config.init_from is not None:
        from posbench import initial

        config = initial.settled(config, overrides)
    check(config)
    return settled(config)


def settled(config: Config) -> Config:
    """The config with the fingerprints of the text and the tokenizer that are the user's own: from now on it is of
    these, whatever comes to lie at their paths. `UserError` when they cannot be read."""
    from posbench.data import corpus, tokenizer

    data, own = corpus.with_fingerprint(config.data), tokenizer.with_fingerprint(config.tokenizer)
    return replace(config, data=data, tokenizer=own)


def _refuse_dead_keys(cfg: Any, chosen: Mapping[str, Any], sources: Sequence[Any]) -> None:
    """Hydra lets "+key=value" add anything anywhere: a key that nothing reads must not pass for a setting.

    (The parameters of an encoding are held against its class's signature, in `check`.)
    """
    from omegaconf import OmegaConf

    schema = OmegaConf.structured(Config)
    known = {"": schema} | {group: schema[group] for group in GROUPS if schema[group]}
    for group in ("data", "tokenizer"):
        file = _yaml(group, str(chosen.get(group)), sources)
        if file is not None:
            known[group] = dict.fromkeys([*OmegaConf.load(file), *schema[group]])
    for group, allowed in known.items():
        for key in cfg[group] if group else cfg:
            if key not in allowed:
                raise no_setting(f"{group}.{key}" if group else str(key), allowed)


def _yaml(group: str, name: str, sources: Sequence[Any]) -> Path | None:
    """The file Hydra read for a choice: the first on its search path. None: the choice is of another kind."""
    files = (Path(source.path, group, f"{name}.yaml") for source in sources if source.schema == "file")
    return next((file for file in files if file.is_file()), None)


def _named(group: str, name: str, value: dict[str, Any], yaml: Path | None) -> dict[str, Any]:
    """A free group with its choice's name, and a class of the user's own with the absolute path of its file, which is
    looked for beside the YAML."""
    path, _, cls = str(value.get("class", "")).rpartition(":")
    if path.endswith(".py"):
        beside = [yaml.parent] if yaml is not None else []
        # On the command line a path is relative to the current folder.
        found = [folder / path for folder in (*beside, Path.cwd()) if (folder / path).is_file()]
        if not found:
            raise UserError(
                f"{group}={name} names the class {path}:{cls}, but there is no such file.",
                f"Looked in {', '.join(map(str, (*beside, Path.cwd())))}.",
            )
        value = value | {"class": f"{found[0].resolve()}:{cls}"}
    if isinstance(value.get("inner"), str | Mapping):
        value = value | {"inner": _inner(value["inner"])}
    return value | {"name": name}


def _inner(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """What a wrapper holds, from its name or from its name and the parameters that are to differ from its YAML."""
    own = {"name": given} if isinstance(given, str) else dict(given)
    if "name" not in own:
        raise UserError("encoding.inner names no encoding.", "As in encoding.inner='{name: rope, base: 500}'")
    try:
        found = load_group("encoding", own["name"]) | own
    except RecursionError:
        raise UserError(f"The encoding '{own['name']}' holds itself.", "Its inner must be another one.") from None
    if isinstance(own.get("inner"), str | Mapping):
        found["inner"] = _inner(own["inner"])
    return found


# --- Checking ------------------------------------------------------------------------------------------------------

_AT_LEAST = {
    "model.layers": 1, "model.width": 1, "model.heads": 1, "model.hidden": 1,
    "optim.lr": 0, "optim.matrix_lr": 0, "optim.weight_decay": 0, "optim.beta1": 0, "optim.beta2": 0,
    "optim.momentum": 0, "optim.warmup": 0, "optim.clip": 0,
    "train.length": 1, "train.tokens": 1, "train.batch_tokens": 1, "train.dropout": 0, "train.micro_tokens": 0,
    "train.threads": 0, "train.validate_tokens": 1, "train.checkpoint_seconds": 0,
    "eval.stride": 1, "eval.block": 1, "eval.targets": 1, "eval.min_context": 1, "seed": 0,
}  # fmt: skip
_AT_MOST = {
    # More text than there is, and far from the end of 64-bit numbers.
    "train.length": 2**40, "eval.stride": 2**40, "eval.block": 2**40, "eval.targets": 2**40, "eval.min_context": 2**40,
    "optim.warmup": 1,
    "seed": 2**63 - 1,  # what torch takes
    "train.threads": 1024,  # OpenMP ends the process at some number above
}  # fmt: skip
_FINITE = ("optim.lr", "optim.matrix_lr", "optim.weight_decay")
_BELOW_ONE = ("optim.beta1", "optim.beta2", "optim.momentum", "train.dropout")
_ONE_OF = {
    "data.attend": ("stream", "document"),
    "model.norm": ("rmsnorm", "layernorm"),
    "model.activation": ("swiglu", "relu"),
    "optim.method": ("muon", "adamw"),
    "optim.schedule": ("linear", "cosine"),
    "train.precision": ("auto", "fp32", "bf16"),
    "train.compile": ("auto", "on", "off"),
    "eval.protocol": ("nonoverlapping", "sliding", "same-targets"),
    "eval.split": ("train", "validation", "test"),
}


def check(config: Config) -> None:
    """Refuse, with a `UserError`, a config that could not be trained or evaluated."""
    settings: dict[str, Any] = {"seed": config.seed, "device": config.device}
    for group in GROUPS:
        value = getattr(config, group)
        settings |= {
            f"{group}.{key}": entry for key, entry in (value if isinstance(value, dict) else asdict(value)).items()
        }
    for key, least in _AT_LEAST.items():
        # `not >=` also refuses nan.
        if settings[key] is not None and not settings[key] >= least:
            raise UserError(f"{key}={settings[key]} must be {least} or more.")
    for key, most in _AT_MOST.items():
        if settings[key] is not None and not settings[key] <= most:
            raise UserError(f"{key}={settings[key]} must be {most:,} or less.")
    for key in _FINITE:
        if not math.isfinite(settings[key]):
            raise UserError(f"{key}={settings[key]} must be a finite number.")
    for key in _BELOW_ONE:
        if not settings[key] < 1:
            raise UserError(f"{key}={settings[key]} must be below 1.")
    for key, allowed in _ONE_OF.items():
        if settings.get(key, allowed[0]) not in allowed:
            raise unknown(key, settings[key], allowed)
    for length in config.eval.lengths:
        if length < 1:
            raise UserError(
                f"eval.lengths: {length} is not a positive whole number.", "Write for example --lengths 512,1024."
            )
        if length > (most := _AT_MOST["train.length"]):
            raise UserError(f"eval.lengths: {length} must be {most:,} or less.")
    check_device(config.device)

    model, train = config.model, config.train
    if model.width % model.heads:
        near = min((n for n in range(1, model.width + 1) if model.width % n == 0), key=lambda n: abs(n - model.heads))
        raise UserError(
            f"model.heads={model.heads} does not divide model.width={model.width}.", f"model.heads={near} does."
        )
    for key in ("batch_tokens", "micro_tokens"):
        tokens = getattr(train, key)
        if tokens % train.length:
            below = tokens - tokens % train.length
            nearest = " or ".join(str(n) for n in (below, below + train.length) if n)
            raise UserError(
                f"train.{key}={tokens} is not a whole number of windows of train.length={train.length}.",
                f"Write train.{key}={nearest}.",
            )
    if train.tokens < train.batch_tokens:
        raise UserError(f"train.tokens={train.tokens} is less than one batch, train.batch_tokens={train.batch_tokens}.")
    if "class" in config.extension and config.init_from is None:
        raise UserError(f"extension={config.extension['name']} changes a trained run.", "Name it: init_from=RUN")
    _build_encoding(config)


def check_device(word: str) -> None:
    """Refuse, with a `UserError`, what no machine has for a device."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", word):
        raise unknown("device", word, ("auto", "cpu", "cuda", "cuda:0", "mps"))


def _build_encoding(config: Config) -> None:
    """The class itself knows which parameters it takes and which model it fits."""
    import torch

    from posbench import extensions
    from posbench.encodings.base import Shape

    if "class" not in config.encoding:
        raise UserError(
            f"encoding={config.encoding.get('name')} names no class.", f"encoding: {', '.join(choices('encoding'))}"
        )
    with torch.random.fork_rng(devices=[]):
        encoding = build_encoding(
            config.encoding,
            Shape(config.model.layers, config.model.width, config.model.heads, built_length(config)),
        )
    extensions.extend(config.extension, encoding, label(config.encoding), trained_length(config), config.train.length)
    if encoding.max_length is not None and encoding.max_length < config.train.length:
        raise UserError(
            f"{label(config.encoding)} has positions for {encoding.max_length} inputs and no more, and "
            f"train.length={config.train.length} asks for longer ones."
        )


def built_length(config: Config) -> int:
    """The training length an encoding is built for: of one that another run has trained, that run's."""
    return (config.init_from or {}).get("built_length") or config.train.length


def trained_length(config: Config) -> int:
    """The length from which an extension stretches the encoding of a run: its own training length, or where it was
    trained with an extension, the one before that."""
    return config.init_from["trained_length"] if "class" in config.extension else config.train.length


def build_encoding(encoding: Mapping[str, Any], shape: Shape) -> Encoding:
    """`encodings.build`, with a `UserError` for one that does not fit in memory."""
    from posbench import encodings

    try:
        return encodings.build(encoding, shape)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):  # torch has no class for it on the CPU
            raise
        raise UserError(
            f"The encoding '{encoding['name']}' does not fit in memory at a training length of {shape.train_length} "
            f"and a width of {shape.width}.",
            "Choose a shorter length or a smaller model.",
        ) from error


# --- What a run is ---------------------------------------------------------------------------------------------------


def to_dict(config: Config) -> dict[str, Any]:
    """The whole config as plain data, for run.json and config.yaml."""
    return asdict(config)


def from_dict(stored: Mapping[str, Any]) -> Config:
    """The config of a stored run. What an older posbench did not store has its default; `UserError` for anything odd.

    (Whoever reads a run holds the identity of the result against the stored one.)
    """
    from omegaconf import OmegaConf

    schema = OmegaConf.structured(Config)
    missing = [group for group in GROUPS if group not in stored and group != "extension"]  # that came later
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

    return _class_identity(encoding, encodings.find_class(encoding["class"]))


def extension_identity(extension: Mapping[str, Any]) -> dict[str, Any]:
    """The same of an extension; a factor that is `auto` is left out."""
    from posbench import extensions

    given = {key: value for key, value in extension.items() if (key, value) != ("factor", "auto")}
    return _class_identity(given, extensions.find_class(extension["class"]))


def _class_identity(described: Mapping[str, Any], cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {"class": described["class"]}
    if not cls.__module__.startswith("posbench."):
        source = Path(inspect.getsourcefile(cls) or "")
        found = {"class": f"{source.name}:{cls.__name__}", "source": hashlib.sha256(source.read_bytes()).hexdigest()}
    defaults = {name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()}
    for key, value in described.items():
        default = defaults.get(key, inspect.Parameter.empty)
        if isinstance(default, float) and isinstance(value, int):
            value = float(value)  # encoding.base=500000 and 500000.0 are one run
        if isinstance(value, Mapping) and "class" in value:
            found[key] = encoding_identity(value)
        elif key not in ("name", "class") and value != default:
            found[key] = value
    return found


def hash8(identity: Mapping[str, Any]) -> str:
    """The first 8 hex digits of the SHA-256 of an identity's JSON."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
