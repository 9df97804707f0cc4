"""What is checked: one encoding, in models small enough to run hundreds of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posbench import model
from posbench.config import Config, Model, Train, build_encoding
from posbench.data.windows import generators
from posbench.encodings.base import Encoding, Shape

SHAPE = Shape(layers=2, width=32, heads=4, train_length=320)

VOCABULARY = 64

WIDE = (0.5, 0.5)
"""How far learned matrices, and learned vectors and numbers, are drawn from 0, so that no term hides behind a zero."""

NARROWER = ((0.05, 5.0), (0.005, 5.0))
"""The same where a key far back then counts for nothing, as under gates that are drawn shut: hardly moved by the
tokens, and for some heads open."""

FAR = 200
"""Tokens between a key and a query that are far apart."""

LEAST = 1e-3
"""What a far key must at least change to count."""


@dataclass(frozen=True)
class Subject:
    """An encoding as its YAML describes it (`class`, its parameters, `name`)."""

    described: Mapping[str, Any]
    spread: tuple[float, float] = WIDE

    @cached_property
    def draws(self) -> list[Subject]:
        """Itself, and where its far keys count for nothing a draw at which they do, if there is one: what is wrong with
        them would show at none."""
        try:
            if not self.reach() <= LEAST:
                return [self]
        except Exception:  # what it raises is said by each property that it breaks
            return [self]
        narrower = [replace(self, spread=spread) for spread in NARROWER]
        return [self, *[one for one in narrower if one.reach() > LEAST][:1]]

    def reach(self) -> float:
        """How much the first token changes the logits of one that comes `FAR` tokens later."""
        decoder = self.model()
        tokens = ids(min(FAR, decoder.encoding.max_length or FAR))
        other = tokens.clone()
        other[0, 0] = (other[0, 0] + 1) % VOCABULARY
        at = positions(decoder.encoding, tokens.shape[1])
        return float((logits(decoder, tokens, at) - logits(decoder, other, at))[0, -1].abs().max())

    def encoding(self, shape: Shape = SHAPE, seed: int = 0) -> Encoding:
        """With its learned parameters drawn anew (`spread`), so that no term hides behind a zero start."""
        built = build_encoding(self.described, shape)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in built.parameters():
                parameter.normal_(0.0, self.spread[parameter.ndim < 2], generator=generator)
            for module in built.modules():
                if isinstance(module, Encoding):
                    module.constrain()
        return built

    def model(self, shape: Shape = SHAPE, seed: int = 0, wide: bool = True) -> model.Decoder:
        """In evaluation mode. `wide`: the encoding's parameters as in `encoding` and matrices at N(0, 1/width), so that
        attention is far from uniform; otherwise as a training begins."""
        sizes = Model("check", shape.layers, shape.width, shape.heads, hidden=48)
        config = Config(encoding=dict(self.described), model=sizes, train=Train(length=shape.train_length), seed=seed)
        built = model.build(config, VOCABULARY, 0)
        if wide:
            built.encoding = self.encoding(shape, seed)
            generator = torch.Generator().manual_seed(seed + 1)
            with torch.no_grad():
                for name, parameter in built.named_parameters():
                    if not name.startswith("encoding.") and parameter.ndim > 1:
                        parameter.normal_(0.0, shape.width**-0.5, generator=generator)
        return built.eval()

    def other(self, **changes: Any) -> Subject:
        return replace(self, described={**self.described, **changes})


def ids(length: int, batch: int = 1, seed: int = 2) -> Tensor:
    """Token ids (batch, length)."""
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def positions(encoding: Encoding, length: int, batch: int = 1) -> Tensor:
    """Positions (1 or batch, length) of windows 0, 1, ...: as they are drawn, or counted."""
    windows = range(batch)
    return encoding.positions(list(windows), length, generators(1, "check", windows))


@torch.no_grad()
def logits(decoder: model.Decoder, tokens: Tensor, at: Tensor | None = None, **how: Any) -> Tensor:
    """Logits (B, T, V). An encoding that chooses its positions is asked for them where `at` does not give them."""
    if at is None and "positions" in decoder.encoding.hooks:
        at = positions(decoder.encoding, tokens.shape[1], len(tokens))
    return decoder.logits(decoder.hidden(tokens, at, **how))
