"""The same weights, the same loss: that a peer does posbench's work before it is timed against it.

Weights are drawn wide, so that attention is far from uniform and a wrong slope, angle or layout shows in the loss;
compared is the mean loss of some random ids in float32 on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from posbench import model
from posbench.bench import peers
from posbench.bench.peers import Peer
from posbench.config import Config
from posbench.model import Decoder

CLOSE = 1e-4
"""Nats a token."""

WINDOWS = 2


def difference(peer: Peer, config: Config, vocab: int, attention: str) -> float | None:
    """Nats a token of the peer less those of posbench, of the same weights; None: their blocks have not the same
    tensors, so that there is no such check. `config` holds the encoding."""
    if peer.name not in WEIGHTS:
        return None
    config = replace(peer.ours(config, vocab), device="cpu")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        ours = model.build(config, vocab, end=0).eval()
        _widen(ours)
        theirs = peer.model(config, vocab, attention).eval()
        ids = torch.randint(vocab, (WINDOWS, config.train.length + 1))
        weights = WEIGHTS[peer.name](ours)
        parameters = dict(theirs.named_parameters())
        assert parameters.keys() >= weights.keys(), f"{peer.name} names its weights otherwise"
        for name, parameter in parameters.items():
            # What posbench has no counterpart of is a bias, or the scale of a norm of normal vectors.
            parameter.copy_(weights.get(name, torch.tensor(0.0 if name.endswith("bias") else 1.0)))
        inputs, targets = ids[:, :-1], ids[:, 1:]
        return (peers.loss(theirs, inputs, targets) - ours.loss(inputs, targets)).item()


def _widen(ours: Decoder) -> None:
    """Token vectors of mean 0 and variance 1, so that a norm of them is the identity; matrices N(0, 1/C); norms about
    1, the last one smaller, so that the logits are of the size of 1."""
    width = ours.embed.embedding_dim
    for name, parameter in ours.named_parameters():
        if name == "embed.weight":
            rows = torch.randn_like(parameter)
            parameter.copy_((rows - rows.mean(1, keepdim=True)) / rows.std(1, correction=0, keepdim=True))
        elif parameter.ndim > 1:
            parameter.normal_(0.0, width**-0.5)
        elif name.endswith("norm.weight"):
            parameter.uniform_(0.5, 1.5)
            if name == "norm.weight":
                parameter.mul_(width**-0.5)


def _llama(ours: Decoder) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {"embed_tokens.weight": ours.embed.weight}
    found |= {f"norm.{name}": tensor for name, tensor in ours.norm.named_parameters()}
    for i, block in enumerate(ours.blocks):
        own: dict[str, Tensor] = dict(block.named_parameters())
        for theirs, name in {
            "self_attn.q_proj": "attention.query",
            "self_attn.k_proj": "attention.key",
            "self_attn.v_proj": "attention.value",
            "self_attn.o_proj": "attention.out",
            "mlp.gate_proj": "feed_forward.gate",
            "mlp.up_proj": "feed_forward.up",
            "mlp.down_proj": "feed_forward.down",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "feed_forward_norm",
        }.items():
            found[f"layers.{i}.{theirs}.weight"] = own[f"{name}.weight"]
    return {f"model.model.{name}": weight for name, weight in found.items()}


def _bloom(ours: Decoder) -> dict[str, Tensor]:
    """Bloom's projection holds query, key and value of one head after those of another."""
    found: dict[str, Tensor] = {"word_embeddings.weight": ours.embed.weight}
    found |= {f"ln_f.{name}": tensor for name, tensor in ours.norm.named_parameters()}
    for i, block in enumerate(ours.blocks):
        own: dict[str, Tensor] = dict(block.named_parameters())
        heads: int = block.attention.heads  # type: ignore[union-attr, assignment]
        qkv = [own[f"attention.{name}.weight"].unflatten(0, (heads, -1)) for name in ("query", "key", "value")]
        found[f"h.{i}.self_attention.query_key_value.weight"] = torch.stack(qkv, dim=1).flatten(0, 2)
        for theirs, name in {
            "self_attention.dense": "attention.out",
            "mlp.dense_h_to_4h": "feed_forward.up",
            "mlp.dense_4h_to_h": "feed_forward.down",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "feed_forward_norm",
        }.items():
            found[f"h.{i}.{theirs}.weight"] = own[f"{name}.weight"]
    return {f"model.transformer.{name}": weight for name, weight in found.items()}


WEIGHTS: Mapping[str, Callable[[Decoder], dict[str, Tensor]]] = {"llama": _llama, "bloom": _bloom}
"""posbench's weights under the names of the peer, where the two have the same tensors."""
