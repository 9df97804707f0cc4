"""Cells small enough for a test."""

from __future__ import annotations

from typing import Any

import tiny

from posbench.bench.cells import OURS, Cell, Variant
from posbench.config import Config, Model, Optim, Train

VOCAB = 64


def config(encoding: str = "none", width: int = 64, method: str = "adamw", **model: Any) -> Config:
    shape = {"layers": 2, "width": width, "heads": 4, "hidden": 176, **model}
    return Config(
        encoding=tiny.described(encoding),
        model=Model("toy", **shape),
        data={"name": "toy", "attend": "stream"},
        tokenizer={"name": "toy"},
        optim=Optim(name=method, method=method, lr=4e-3),
        train=Train(length=16, tokens=64, batch_tokens=32),
        device="cpu",
    )


def cell(own: Config | None = None, maker: str = OURS, task: str = "train", length: int = 16, **more: Any) -> Cell:
    return Cell(maker, own or config(), more.pop("vocab", VOCAB), task, length, 2, more.pop("variant", Variant()))
