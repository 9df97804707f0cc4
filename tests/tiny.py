"""Small models of every encoding, and attention written down once more without any of posbench's kernels.

`CASES` holds every YAML of configs/encoding with its defaults, and the options that change a formula; a new YAML is
tested by every test that takes `CASES`, with no edit.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from posbench import encodings
from posbench.compose import load_group
from posbench.config import Model
from posbench.data.windows import generators
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.window import Window
from posbench.model import Decoder
from posbench.search_path import config_dir

FILES = {file.stem: file for file in sorted((config_dir() / "encoding").glob("*.yaml"))}

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cable": [{"slopes": False}, {"kernelized": True}],
    "cope": [{"npos": 8}],
    "fire": [{"shared": True, "threshold": 16}],
    "kerple": [{"variant": "power"}],
    "prope": [{"layout": "interleaved", "p": 0.25}],
    "randomized": [{"inner": "learned"}, {"inner": "rope"}],
    "rope": [{"layout": "interleaved"}, {"embed_scale": True}],
    "shaw": [{"values": True}],
    "swan": [{"period": 2, "window": 7, "layout": "interleaved"}],
    "xpos": [{"layout": "interleaved", "blockwise": False}],
    "ssmax": [{"inner": "alibi"}, {"inner": "shaw"}],
    "wavelet": [{"scales": 2, "mother": "gaussian"}],
}

Case = tuple[str, dict[str, Any]]
CASES = [
    pytest.param((name, own), id="-".join([name, *(f"{k}={v}" for k, v in own.items())]))
    for name in FILES
    for own in [{}, *OPTIONS.get(name, [])]
]

DEFAULTS = [case for case in CASES if not case.values[0][1]]
"""Each encoding once, for what takes long."""

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

SHAPE = Shape(layers=2, width=32, heads=4, train_length=256)


def described(name: str, **own: Any) -> dict[str, Any]:
    """What Hydra would hand over for encoding=name and these settings."""
    found = load_group("encoding", name) | own
    if isinstance(own.get("inner"), str):
        found["inner"] = load_group("encoding", own["inner"])
    return found


def encoding(case: Case, shape: Shape = SHAPE, seed: int = 0) -> Encoding:
    """The encoding with its learned parameters drawn wide, so that no term hides behind a zero start."""
    name, own = case
    built = encodings.build(described(name, **own), shape)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
        for module in built.modules():
            if isinstance(module, Encoding):
                module.constrain()
    return built


def decoder(case: Case, shape: Shape = SHAPE, vocab: int = 64, dropout: float = 0.0, seed: int = 0) -> Decoder:
    """A model in evaluation mode whose matrices are drawn wide: attention is far from uniform."""
    model = Model(layers=shape.layers, width=shape.width, heads=shape.heads, hidden=48)
    built = Decoder(model, vocab, encoding(case, shape, seed), dropout)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if not name.startswith("encoding.") and parameter.ndim > 1:
                parameter.normal_(0.0, shape.width**-0.5, generator=generator)
    return built.eval()


def ids(length: int, batch: int = 1, vocab: int = 64, seed: int = 2) -> Tensor:
    """Token ids (batch, length)."""
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def chosen(model: Decoder, tokens: Tensor) -> Tensor | None:
    """Position ids (1 or B, T) of windows 0, 1, ... where the encoding chooses its own; None where they count."""
    windows = range(len(tokens))
    return model.positions(list(windows), tokens.shape[1], generators(1, "test", windows))


def part(positions: Tensor | None, rows: slice, columns: slice) -> Tensor | None:
    """The part of chosen position ids that belongs to a part of the tokens."""
    return None if positions is None else positions[rows if len(positions) > 1 else slice(None), columns]


def logits(model: Decoder, tokens: Tensor, **how: Any) -> Tensor:
    """Logits (B, T, V) without a gradient; an encoding that draws its positions draws those of windows 0, 1, ..."""
    if "positions" not in how:
        how["positions"] = chosen(model, tokens)
    with torch.no_grad():
        return model.logits(model.hidden(tokens, **how))


def attention(
    e: Encoding,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    state: dict[str, Tensor] | None = None,
    mask: bool = True,
    window: Window | None = None,
) -> Tensor:
    """The reference: base.py's recipe on whole matrices, float32, explicit softmax. q and k are already rotated."""
    s = scores(e, q, k, q_pos, k_pos, state, mask, window)
    w = s.exp() / s.exp().sum(-1, keepdim=True)
    out = torch.einsum("bhqk,bhkd->bhqd", w, v)
    return out + e.values(w, q_pos, k_pos) if "values" in e.hooks else out


def scores(
    e: Encoding,
    q: Tensor,
    k: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    state: dict[str, Tensor] | None = None,
    mask: bool = True,
    window: Window | None = None,
) -> Tensor:
    """The scores (B, H, Q, S) before the softmax, -inf where a query may not look. q and k are already rotated."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    rows = torch.arange(n_keys - n_queries, n_keys, device=q.device)
    first = torch.zeros_like(rows) if window is None else window.first(rows)
    factor = e.scale((rows - first + 1)[None], n_keys)
    if isinstance(factor, Tensor):
        factor = factor.transpose(0, 1)[..., None]
    q = q * factor
    s = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    distance = (q_pos[:, :, None] - k_pos[:, None, :]).clamp(min=0)
    if "bias" in e.hooks:
        s = s + e.bias(distance).transpose(0, 1)
    if "scores" in e.hooks:
        s = e.scores(s, q, k, q_pos, k_pos, state or {}, slice(n_keys - n_queries, n_keys))
    gap = rows[:, None] - torch.arange(n_keys, device=q.device)[None, :]
    if mask:
        s = s.masked_fill(gap < 0, -math.inf)
    if window is not None:
        s = s.masked_fill(torch.arange(n_keys, device=q.device) < first[:, None], -math.inf)
    return s


def layer_scores(e: Encoding, q: Any, k: Any, positions: Any, x: Any = None) -> list[Any]:
    """The scores of one layer in the form of the oracles: nested lists q, k (H, T, D) that are not yet rotated, T
    positions and, where the tokens are asked, x (T, C) give (H, T, T), None where a query may not look."""
    at = torch.tensor(positions)[None]
    queries, keys = e.rotate(torch.tensor(q)[None], torch.tensor(k)[None], e.begin(at, len(positions)))
    state = {} if x is None else e.state(torch.tensor(x)[None])
    s = scores(e, queries, keys, at, at, state, window=e.window(0))[0]
    return [[[None if x == -math.inf else x for x in row] for row in head] for head in s.tolist()]
