"""What a run is made from: the typed settings, how they are composed, and which of them decide the weights.

`compose` reads configs/ through Hydra; `from_hydra` turns what Hydra composed into a checked `Config` of plain data;
`identity` is the part of it that decides the weights, and so names the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from posbench.errors import UserError, explain

FORMAT = 1
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
    lr: float = 3e-3
    """Peak rate of AdamW."""
    matrix_lr: float = 2e-2
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
    """linear | cosine, to zero at the last step."""
    clip: float = 1.0
    """Largest norm of the gradient."""


@dataclass
class Train:
    """Budget and machinery of a training run (group `train`). Budgets are in tokens, never in steps."""

    length: int = 512
    tokens: int = 1_500_000
    batch_tokens: int = 4096
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


@dataclass
class Config:
    """Everything one run needs. Groups that vary by choice (encoding, data, tokenizer) are plain mappings."""

    encoding: dict[str, Any] = field(default_factory=dict)
    model: Model = field(default_factory=Model)
    data: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, Any] = field(default_factory=dict)
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    seed: int = 1
    study: str | None = None
    device: str = "auto"
    """auto | cpu | cuda | cuda:N | mps"""


GROUPS = ("encoding", "model", "data", "tokenizer", "optim", "train", "eval")

# Settings that change how a run is carried out or looked at, never its weights.
_INERT = {
    "train": {"micro_tokens", "compile", "threads", "validate_tokens", "checkpoint_seconds"},
    "model": {"name"},
    "optim": {"name"},
    "data": {"name", "note"},
    "tokenizer": {"name"},
}


def config_dir() -> Path:
    """The folder of the shipped YAMLs: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError("posbench was installed without its configs folder")
