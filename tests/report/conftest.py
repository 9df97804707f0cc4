"""Rows built by hand: a loss each, and everything else alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from posbench.records import Row

ALIKE: dict[str, Any] = {
    "step": 240,
    "protocol": "nonoverlapping",
    "split": "test",
    "targets_digest": "5e70f7a46e75",
    "corpus_hash": "c0",
    "tokenizer_hash": "b1",
    "dtype": "float32",
    "kind": "run",
    "setup": "5e",
    "heads": 4,
    "head_dim": 32,
    "model": "nano",
    "seed": 1,
    "train_length": 128,
    "train_tokens": 1_000_000,
    "trained_on": "sotu",
    "corpus": "sotu",
    "tokenizer": "bpe",
    "vocab_size": 2048,
    "status": "ok",
    "targets": 98_304,
    "documents": 5,
    "device": "cpu",
    "threads": 1,
    "time": "2026-11-29T12:00:00+00:00",
}

REFERENCE = {"kind": "reference", "step": 0} | dict.fromkeys(
    ("recipe", "setup", "model", "heads", "head_dim", "seed", "train_length", "train_tokens")
)


@pytest.fixture
def make() -> Callable[..., Row]:
    """make("rope", 256, 50.0) is rope's row at 256 with perplexity 50; other fields by name."""

    def build(encoding: str, length: int, perplexity: float | None, **other: Any) -> Row:
        fields = ALIKE | {"encoding": encoding, "length": length} | other
        fields.setdefault("recipe", f"{encoding}{fields['train_length']}")
        fields.setdefault("run", f"{encoding}-L{fields['train_length']}-s{fields['seed']}")
        fields.setdefault("run_hash", f"{fields['recipe']}s{fields['seed']}")
        if perplexity is None:
            return Row(**fields | {"status": "n/a", "reason": other.get("reason", "it does not fit")})
        loss = math.log(perplexity)
        return Row(
            **{"standard_error": 0.01, "loss": loss, "perplexity": perplexity, "bits_per_byte": loss / 2} | fields
        )

    return build


@pytest.fixture
def reference(make: Callable[..., Row]) -> Callable[..., Row]:
    """reference("bigram", 128, 68.0): a row that was counted, not trained."""

    def build(name: str, length: int, perplexity: float, **other: Any) -> Row:
        return make(name, length, perplexity, **REFERENCE | {"run": f"{name}-sotu-bpe", "run_hash": name} | other)

    return build
