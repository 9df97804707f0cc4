"""The decoder: embedding -> encoding.embed -> blocks -> norm -> tied head. It names no encoding.

    B batch, T tokens of this call, S keys in sight, C width, H heads, D head width, V vocabulary.

The default block is Llama's (RMSNorm, SwiGLU, no biases), so that a RoPE run is a Llama checkpoint and can be checked
against Hugging Face's. Evaluation asks for `token_losses`, training for `loss`, decoding for `hidden` with a `Cache`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench import attention, encodings, extensions, head, system
from posbench.config import Config, Model, built_length, trained_length
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.window import Window
from posbench.identity import label

NORM_EPS = 1e-6

FEED_FORWARD_TOKENS = {"cpu": 2**10, "cuda": 2**16}
"""Tokens whose hidden features exist at once where no gradient is kept. Measured on a CPU at widths 128 and 256; on a
GPU it only bounds the memory of long windows."""


@dataclass
class LayerCache:
    """Keys (already rotated) and values (B, H, S, D) of one layer, and the encoding's per-token state (B, S, ...)."""

    k: Tensor | None = None
    v: Tensor | None = None
    state: dict[str, Tensor] = field(default_factory=dict)

    def extend(self, k: Tensor, v: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        if self.k is not None and self.v is not None:
            k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
            state = {name: torch.cat([self.state[name], new], dim=1) for name, new in state.items()}
        self.k, self.v, self.state = k, v, state
        return k, v, state


class Cache:
    """What a model remembers of the tokens it has read, for decoding step by step."""

    def __init__(self, layers: int) -> None:
        self.layers = [LayerCache() for _ in range(layers)]
        self.positions: Tensor | None = None
        self.consecutive = True
        """Whether the positions so far count up by one."""
        self.documents: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return 0 if self.positions is None else self.positions.shape[1]


def _norm(model: Model) -> nn.Module:
    if model.norm == "rmsnorm":
        return nn.RMSNorm(model.width, eps=NORM_EPS)
    return nn.LayerNorm(model.width, eps=NORM_EPS)


class Attention(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.heads = model.heads
        self.query = nn.Linear(model.width, model.width, bias=False)
        self.key = nn.Linear(model.width, model.width, bias=False)
        self.value = nn.Linear(model.width, model.width, bias=False)
        self.out = nn.Linear(model.width, model.width, bias=False)

    def forward(self, x_BTC: Tensor, how: attention.Pass, cache: LayerCache | None, last: int | None) -> Tensor:
        """What each of the last `last` tokens (None: every one) reads from all before it: (B, T or last, C)."""
        split = (*x_BTC.shape[:2], self.heads, -1)
        q, k, v = (linear(x_BTC).view(split).transpose(1, 2) for linear in (self.query, self.key, self.value))
        with torch.autocast(x_BTC.device.type, enabled=False):  # sums over thousands of tokens end in 16 bits
            state = how.encoding.state(x_BTC.float())
        q, k = how.encoding.rotate(q, k, how.context)
        if cache is not None:
            k, v, state = cache.extend(k, v, state)
        if last is not None:
            q = q[:, :, -last:]
        y_BHTD = attention.attend(q, k, v, state, how)
        del q, k, v, state  # of a long window a large part of what is alive
        return self.out(y_BHTD.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)); or ReLU: down(relu(up(x)))."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate = nn.Linear(model.width, model.hidden, bias=False) if model.activation == "swiglu" else None
        self.up = nn.Linear(model.width, model.hidden, bias=False)
        self.down = nn.Linear(model.hidden, model.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return self._at_once(x)
        size = FEED_FORWARD_TOKENS.get(x.device.type, FEED_FORWARD_TOKENS["cpu"])
        return torch.cat([self._at_once(part) for part in x.flatten(0, -2).split(size)]).view(x.shape)

    def _at_once(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(F.relu(self.up(x)))
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, model: Model, dropout: float) -> None:
        super().__init__()
        self.attention_norm = _norm(model)
        self.attention = Attention(model)
        self.feed_forward_norm = _norm(model)
        self.feed_forward = FeedForward(model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, how: attention.Pass, cache: LayerCache | None, last: int | None) -> Tensor:
        y = self.attention(self.attention_norm(x), how, cache, last)
        if last is not None:
            x = x[:, -last:]
        x = x + self.dropout(y)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class Decoder(nn.Module):
    """A decoder language model whose sense of order is `encoding`.

    `boundary` is the id that opens a document where documents do not see each other (`data.attend=document`); None:
    tokens see all before them in the window, as in the paper. `kernel` and `kernel_reason` tell how the first layer of
    the last pass attended.
    """

    def __init__(
        self, model: Model, vocab_size: int, encoding: Encoding, dropout: float = 0.0, boundary: int | None = None
    ) -> None:
        super().__init__()
        self.encoding = encoding
        self.boundary = boundary
        self.embed = nn.Embedding(vocab_size, model.width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(model, dropout) for _ in range(model.layers))
        self.norm = _norm(model)
        self.kernel = ""
        self.kernel_reason = ""
        for layer in range(model.layers):
            encoding.for_layer(layer)  # a wrapper makes these at the first call, which a compiled graph cannot

    def hidden(
        self, ids: Tensor, positions: Tensor | None = None, cache: Cache | None = None, last: int | None = None
    ) -> Tensor:
        """Vectors after the final norm: (B, T, C), or (B, last, C) of the last tokens alone.

        ids (B, T) int64; positions (1 or B, T) default to 0, 1, ... after what the cache holds. With `last` the final
        layer computes only those tokens, which changes no value. Raises ValueError for a cache with an encoding whose
        keys do not stay valid, and without positions for one that chooses its own.
        """
        if cache is not None and not self.encoding.cacheable:
            raise ValueError("this encoding changes earlier keys as later tokens come: it cannot decode with a cache")
        if positions is None and "positions" in self.encoding.hooks:
            raise ValueError("this encoding chooses its positions: they must be given (`Decoder.positions`)")
        past = 0 if cache is None else cache.length
        consecutive = positions is None
        if positions is None:
            positions = torch.arange(past, past + ids.shape[1], device=ids.device)[None]
        k_pos = positions
        if cache is not None:
            k_pos = positions if cache.positions is None else torch.cat([cache.positions, positions], dim=1)
            consecutive = cache.consecutive = consecutive and cache.consecutive
            cache.positions = k_pos
        documents = None if self.boundary is None else _documents(ids == self.boundary, cache)

        x = self.dropout(self.encoding.embed(self.embed(ids), positions))
        passes: dict[tuple[int, Window | None], attention.Pass] = {}
        for i, block in enumerate(self.blocks):
            encoding = self.encoding.for_layer(i)
            key = (id(encoding), encoding.window(i))
            if key not in passes:
                passes[key] = attention.begin(encoding, positions, k_pos, consecutive, i, documents)
            final = last if i == len(self.blocks) - 1 else None
            x = block(x, passes[key], None if cache is None else cache.layers[i], final)
        how = next(iter(passes.values()))
        self.kernel, self.kernel_reason = how.kernel, how.reason
        return self.norm(x)

    def picks(self, length: int, positions: Tensor | None) -> tuple[str, str]:
        """The attention kernel of a first layer over windows of `length`, and why; positions as in `hidden`."""
        device = self.embed.weight.device
        at = torch.arange(length, device=device)[None] if positions is None else positions
        documents = None if self.boundary is None else torch.zeros_like(at[:1])
        how = attention.begin(self.encoding.for_layer(0), at, at, positions is None, 0, documents)
        return how.kernel, how.reason

    def constrain(self) -> None:
        """Bring what the encoding has learned back into its range: call it after every update."""
        for module in self.encoding.modules():
            if isinstance(module, Encoding):
                module.constrain()

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 scores of the next token (..., V): the head is the embedding."""
        return head.logits(hidden, self.embed.weight)

    def loss(self, ids: Tensor, targets: Tensor, positions: Tensor | None = None) -> Tensor:
        """Mean nats a token of targets (B, T), a scalar."""
        hidden = self.hidden(ids, positions).flatten(0, 1)
        return head.mean_nats(hidden, self.embed.weight, targets.flatten())

    @torch.no_grad()
    def token_losses(
        self, ids: Tensor, targets: Tensor, positions: Tensor | None = None, last: int | None = None
    ) -> Tensor:
        """Float32 nats of each target: (B, T), or (B, last). targets (B, T or last).

        Logits exist for a few rows at a time, so that memory does not grow with length x vocabulary.
        """
        hidden = self.hidden(ids, positions, last=last).flatten(0, 1)
        return head.token_nats(hidden, self.embed.weight, targets.flatten()).view(targets.shape)

    def positions(self, windows: list[int], length: int, rng: list) -> Tensor | None:
        """Position ids for whole windows, on the model's device, or None where they simply count (see
        `Encoding.positions`)."""
        if "positions" not in self.encoding.hooks:
            return None
        return system.on_device(self.encoding.positions(windows, length, rng), self.embed.weight.device)


def _documents(opens: Tensor, cache: Cache | None) -> Tensor:
    """The number of each key's document (B, S), counted in its window; `opens` (B, T) marks their first tokens."""
    documents = opens.cumsum(1)
    if cache is not None:
        if cache.documents is not None:
            documents = torch.cat([cache.documents, documents + cache.documents[:, -1:]], dim=1)
        cache.documents = documents
    return documents


def build(config: Config, vocab_size: int, end: int, extended: bool = True) -> Decoder:
    """The decoder of a config with its initial weights, for a tokenizer of that many ids, `end` closing a document.

    Its encoding is under the extension it is trained with, unless `extended` is false.

    Each tensor is drawn from a generator of its own, seeded by (seed, its name): two encodings at one seed share every
    weight they both have. What an encoding owns is drawn by the encoding, from a generator seeded the same way.
    """
    model = config.model
    shape = Shape(model.layers, model.width, model.heads, built_length(config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(config.seed, "encoding"))
        encoding = encodings.build(config.encoding, shape)
        if extended:
            name, length = label(config.encoding), config.train.length
            encoding = extensions.extend(config.extension, encoding, name, trained_length(config), length)
        boundary = end if config.data.get("attend") == "document" else None
        decoder = Decoder(model, vocab_size, encoding, config.train.dropout, boundary)
    initialise(decoder, config.seed)
    return decoder


def initialise(decoder: Decoder, seed: int) -> None:
    """Draw the weights: token vectors N(0, 1/C), matrices N(0, 0.02), residual outputs that over sqrt(2 layers)."""
    width = decoder.embed.embedding_dim
    for name, tensor in decoder.named_parameters():
        if name.startswith("encoding.") or tensor.ndim < 2:
            continue
        std = 0.02
        if name == "embed.weight":
            std = width**-0.5
        elif name.endswith(("attention.out.weight", "feed_forward.down.weight")):
            std = 0.02 / (2 * len(decoder.blocks)) ** 0.5
        generator = torch.Generator().manual_seed(_seed(seed, name))
        with torch.no_grad():
            tensor.normal_(0.0, std, generator=generator)


def _seed(seed: int, name: str) -> int:
    """A 63-bit seed for one named thing."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8]) >> 1
