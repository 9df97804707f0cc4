"""What a run is made from: the typed settings, and which of them could be trained or evaluated.

posbench/compose.py fills them from configs/ and a command line; posbench/identity.py says which of them decide the
weights, and so name the run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from posbench import trackers
from posbench.errors import UserError, unknown
from posbench.search_path import choices

if TYPE_CHECKING:
    from posbench.encodings.base import Encoding, Shape


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
    shard: str = "auto"
    """With nproc: auto (large models) | on | off: each process keeps a piece of the weights. Not part of the name."""
    threads: int = 0
    """Of each process; 0: the machine's cores, shared out. Not part of the run's name."""
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
    tracker: dict[str, Any] = field(default_factory=dict)
    """Where else the numbers of a training go (posbench/trackers.py). Not part of the run's name."""
    seed: int = 1
    study: str | None = None
    device: str = "auto"
    """auto | cpu | cuda | cuda:N | mps"""
    nproc: int = 1
    """Processes that train one run together, each on a device of its own. Not part of the run's name."""


GROUPS = ("encoding", "model", "data", "tokenizer", "optim", "train", "eval", "extension", "tracker")


_AT_LEAST = {
    "model.layers": 1, "model.width": 1, "model.heads": 1, "model.hidden": 1,
    "optim.lr": 0, "optim.matrix_lr": 0, "optim.weight_decay": 0, "optim.beta1": 0, "optim.beta2": 0,
    "optim.momentum": 0, "optim.warmup": 0, "optim.clip": 0,
    "train.length": 1, "train.tokens": 1, "train.batch_tokens": 1, "train.dropout": 0, "train.micro_tokens": 0,
    "train.threads": 0, "train.validate_tokens": 1, "train.checkpoint_seconds": 0,
    "eval.stride": 1, "eval.block": 1, "eval.targets": 1, "eval.min_context": 1, "seed": 0,
    "nproc": 1,
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
    "train.shard": ("auto", "on", "off"),
    "eval.protocol": ("nonoverlapping", "sliding", "same-targets"),
    "eval.split": ("train", "validation", "test"),
}


def check(config: Config) -> None:
    """Refuse, with a `UserError`, a config that could not be trained or evaluated."""
    settings: dict[str, Any] = {"seed": config.seed, "nproc": config.nproc}
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
    if config.nproc > (rows := train.batch_tokens // train.length):
        raise UserError(
            f"nproc={config.nproc} is more than the windows of a batch, of which there are {rows}: "
            f"train.batch_tokens={train.batch_tokens} of train.length={train.length}.",
            f"nproc={rows} is the most.",
        )
    if train.tokens < train.batch_tokens:
        raise UserError(f"train.tokens={train.tokens} is less than one batch, train.batch_tokens={train.batch_tokens}.")
    if "class" in config.extension and config.init_from is None:
        raise UserError(f"extension={config.extension['name']} changes a trained run.", "Name it: init_from=RUN")
    _build_encoding(config)
    trackers.build(config.tracker)


def check_device(word: str) -> None:
    """Refuse, with a `UserError`, what no machine has for a device."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", word):
        raise unknown("device", word, ("auto", "cpu", "cuda", "cuda:0", "mps"))


def _build_encoding(config: Config) -> None:
    """The class itself knows which parameters it takes and which model it fits."""
    import torch

    from posbench import extensions
    from posbench.encodings.base import Shape
    from posbench.identity import label

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
    except (MemoryError, OverflowError, RuntimeError, TypeError) as error:
        # torch has no class for it on the CPU, and none for a size past its numbers.
        if isinstance(error, RuntimeError | TypeError) and not re.search("memory|[Oo]verflow", str(error)):
            raise
        raise UserError(
            f"The encoding '{encoding['name']}' does not fit in memory at a training length of {shape.train_length} "
            f"and a width of {shape.width}.",
            "Choose a shorter length, a smaller model or smaller settings.",
        ) from error
