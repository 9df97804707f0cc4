"""A run small enough for a test: a text of a few hundred words, a model of 2 x 16, byte tokens."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny

from posbench import train as training
from posbench.config import Config, Model, Optim, Train
from posbench.run import Run

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "the", "dog", "ran", "far", "away", "then", "it", "slept"]


def words(count: int, seed: int = 0) -> str:
    """That many words with some order in them, so that a model has something to learn."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(count))


def text(folder: Path, size: int = 640, seed: int = 0) -> dict[str, Any]:
    """`config.data` of a text whose training stream has size + 1 ids: one document and two end tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"train": size - 1, "validation": 200, "test": 200}
    for number, (split, characters) in enumerate(sizes.items()):
        (folder / f"{split}.txt").write_text(words(size, seed + number)[:characters])
    files = {split: str(folder / f"{split}.txt") for split in sizes}
    return {"name": "files", "kind": "files", "attend": "stream", **files}


def config(data: dict[str, Any], encoding: str = "rope", steps: int = 60, **train: Any) -> Config:
    """`steps` batches of two windows of 16: an epoch of 640 ids is 20 of them. Every step writes a checkpoint."""
    settings = Train(length=16, tokens=32 * steps, batch_tokens=32, validate_tokens=32 * 15, checkpoint_seconds=0)
    return Config(
        encoding=tiny.described(encoding),
        model=Model("toy", layers=2, width=16, heads=2, hidden=24),
        data=data,
        tokenizer={"name": "bytes", "kind": "bytes"},
        optim=Optim(),
        train=replace(settings, **train),
        device="cpu",
    )


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def undisturbed(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same config trained in one go, in this process and elsewhere."""
    with monkeypatch.context() as patch:
        patch.setenv("POSBENCH_RUNS", str(tmp_path / "undisturbed"))
        return training.train(config)


def interrupted_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in that step, of all steps of all runs, from 1."""
    real, count = training.gradient, iter(range(1, 1000))

    def gradient(*how: Any) -> Any:
        if next(count) == step:
            raise KeyboardInterrupt
        return real(*how)

    patch.setattr(training, "gradient", gradient)
