"""The same shape in transformers and x-transformers: what a user would do instead of posbench.

Each peer is built with posbench's layers, width, heads and vocabulary, tied embeddings and no dropout, its own block
and its library's defaults otherwise. Where the width of its feed-forward can be set it is set so that the number of
parameters comes out as posbench's, those of the encoding among them on both sides; Bloom's is always four times the
width.

Its attention is tried in every implementation that its library has for it, each eager and compiled, and the fastest is
timed. Packages are imported when a peer is built; `missing` says which are not there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.config import Config, Model, build_encoding
from posbench.errors import UserError, unknown

TOLERANCE = 0.02
"""Parameters may differ from posbench's by this share."""

INSTALL = {"transformers": "transformers", "x_transformers": "x-transformers"}
"""Module: package."""


class Logits(nn.Module):
    """A causal model of transformers that gives logits (B, T, V) and keeps no cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids, use_cache=False).logits


Build = Callable[[Model, int, int, int, str], nn.Module]
"""(shape, vocabulary, training length, width of the feed-forward, attention) -> ids (B, T) to logits (B, T, V)."""


@dataclass(frozen=True)
class Peer:
    name: str
    module: str
    """The module it needs."""
    encoding: str
    """posbench's name of what it does."""
    attentions: tuple[str, ...]
    build: Build
    max_length: Callable[[Config], int | None] = field(default=lambda config: None)
    """The longest window it can read."""
    fixed: int | None = None
    """Its feed-forward in widths of the model, where that cannot be set."""
    block: Mapping[str, Any] = field(default_factory=dict)
    """The settings of `model` under which posbench's block is this one; empty: any block of posbench's stands for
    it."""

    @property
    def missing(self) -> str | None:
        """Why it cannot be built here; None: it can."""
        if importlib.util.find_spec(self.module) is None:
            return f"{INSTALL[self.module]} is not installed (pip install 'posbench[peers]')"
        return None

    def ours(self, config: Config, vocab: int) -> Config:
        """posbench's settings for the same work."""
        if not self.block:
            return config
        return replace(config, model=replace(config.model, **self.block, hidden=self.hidden(config, vocab)))

    def model(self, config: Config, vocab: int, attention: str) -> nn.Module:
        """Built for the shape of `config`, with random weights. Raises UserError when it has another number of
        parameters."""
        hidden = self.hidden(config, vocab)
        count, wanted = self._count(config, vocab, hidden), wanted_parameters(config, vocab)
        if abs(count / wanted - 1) > TOLERANCE:
            raise UserError(f"{self.name} has {count:,} parameters at this shape, and posbench {wanted:,}.")
        return self.build(config.model, vocab, config.train.length, hidden, attention)

    def hidden(self, config: Config, vocab: int) -> int:
        """The width of its feed-forward, in eights, at which it has as many parameters as posbench, as near as can be.

        Parameters are a line in that width, drawn through two models without storage.
        """
        if self.fixed is not None:
            return self.fixed * config.model.width
        low, high = (self._count(config, vocab, hidden) for hidden in (8, 16))
        return max(8, 8 * round(1 + (wanted_parameters(config, vocab) - low) / (high - low)))

    def _count(self, config: Config, vocab: int, hidden: int) -> int:
        with torch.device("meta"):
            built = self.build(config.model, vocab, config.train.length, hidden, self.attentions[0])
        return sum(p.numel() for p in built.parameters())


def wanted_parameters(config: Config, vocab: int) -> int:
    """Parameters of posbench's model, its encoding included: a table of positions that a peer has is not paid for with
    its feed-forward."""
    from posbench.encodings.base import Shape
    from posbench.model import Decoder

    shape = Shape(config.model.layers, config.model.width, config.model.heads, config.train.length)
    with torch.device("cpu"):  # whatever is said around it: an encoding may look at the numbers of its tables
        encoding = build_encoding(config.encoding, shape)
    with torch.device("meta"):
        built = Decoder(config.model, vocab, encoding)
    return sum(p.numel() for p in built.parameters())


def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean nats a token of targets (B, T), a scalar."""
    return F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())


def token_losses(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Nats of each target (B * T,)."""
    return F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten(), reduction="none")


# transformers ---------------------------------------------------------------------------------------------------------


def _transformers(config: Any, attention: str) -> nn.Module:
    from transformers import AutoModelForCausalLM

    return Logits(AutoModelForCausalLM.from_config(config, attn_implementation=attention))


def _gpt2(shape: Model, vocab: int, length: int, hidden: int, attention: str) -> nn.Module:
    from transformers import GPT2Config

    config = GPT2Config(
        vocab_size=vocab,
        n_positions=length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_inner=hidden,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _transformers(config, attention)


def _gpt_neox(shape: Model, vocab: int, length: int, hidden: int, attention: str) -> nn.Module:
    from transformers import GPTNeoXConfig

    config = GPTNeoXConfig(
        vocab_size=vocab,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=hidden,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        # All of each head is rotated, as in posbench; the library's default is a quarter.
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
        bos_token_id=0,
        eos_token_id=0,
    )
    return _transformers(config, attention)


def _llama(shape: Model, vocab: int, length: int, hidden: int, attention: str) -> nn.Module:
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=shape.width,
        intermediate_size=hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=length,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=0,
        eos_token_id=0,
    )
    return _transformers(config, attention)


def _bloom(shape: Model, vocab: int, length: int, hidden: int, attention: str) -> nn.Module:
    """With ReLU, which posbench has, in place of its GELU, which takes Bloom longer: so that the same work is timed."""
    from transformers import BloomConfig

    config = BloomConfig(
        vocab_size=vocab,
        hidden_size=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        layer_norm_epsilon=1e-6,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    built = _transformers(config, attention)
    for block in built.model.transformer.h:  # type: ignore[union-attr]
        block.mlp.gelu_impl = nn.ReLU()
    return built


# x-transformers -------------------------------------------------------------------------------------------------------


def _x_transformers(**encoding: Any) -> Build:
    def build(shape: Model, vocab: int, length: int, hidden: int, attention: str) -> nn.Module:
        from x_transformers import Decoder, TransformerWrapper

        head_dim = shape.width // shape.heads
        own = {"rotary_emb_dim": head_dim} if "rotary_pos_emb" in encoding else {}
        layers = Decoder(
            dim=shape.width,
            depth=shape.layers,
            heads=shape.heads,
            attn_dim_head=head_dim,
            attn_flash=attention == "flash",
            ff_mult=hidden / shape.width,
            **encoding,
            **own,
        )
        return TransformerWrapper(
            num_tokens=vocab, max_seq_len=length, attn_layers=layers, tie_embedding=True, use_abs_pos_emb=False
        )

    return build


PEERS = (
    Peer("x-transformers none", "x_transformers", "none", ("flash", "explicit"), _x_transformers()),
    Peer("gpt-2", "transformers", "learned", ("sdpa", "eager"), _gpt2, max_length=lambda config: config.train.length),
    Peer("gpt-neox", "transformers", "rope", ("sdpa", "eager"), _gpt_neox),
    Peer(
        "llama",
        "transformers",
        "rope",
        ("sdpa", "eager"),
        _llama,
        block={"norm": "rmsnorm", "activation": "swiglu"},
    ),
    Peer("x-transformers rope", "x_transformers", "rope", ("flash", "explicit"), _x_transformers(rotary_pos_emb=True)),
    Peer(
        "bloom", "transformers", "alibi", ("eager",), _bloom, fixed=4, block={"norm": "layernorm", "activation": "relu"}
    ),
    Peer(
        "x-transformers alibi", "x_transformers", "alibi", ("flash", "explicit"), _x_transformers(alibi_pos_bias=True)
    ),
    # Its flash attention refuses this bias.
    Peer("x-transformers t5", "x_transformers", "t5", ("explicit",), _x_transformers(rel_pos_bias=True)),
)


def find(name: str) -> Peer:
    """The peer of that name; UserError for one that does not exist."""
    for peer in PEERS:
        if peer.name == name:
            return peer
    raise unknown("peer", name, [peer.name for peer in PEERS])
