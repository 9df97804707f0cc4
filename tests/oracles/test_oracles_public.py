"""The oracles against transformers and x-transformers, where these have the method."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from oracles import context_extensions as ext
from oracles import data_dependent as data
from oracles import distance_biases as bias
from oracles import rotations as rot
from oracles import token_vectors as tok
from torch import Tensor
from transformers import LlamaConfig, T5Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers import x_transformers

HEADS, TOKENS, WIDTH = 2, 24, 16
HERE = list(range(TOKENS))
HEAD_COUNTS = [1, 4, 6, 8, 12, 20]


def normal(*shape: int, seed: int) -> Tensor:
    """Float64, so that what is compared is the formula."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Q, K = normal(HEADS, TOKENS, WIDTH, seed=1), normal(HEADS, TOKENS, WIDTH, seed=2)


def tensor(scores: Any) -> Tensor:
    """Scores with 0 for None, to compare lower triangles."""
    return torch.tensor([[[0.0 if s is None else s for s in row] for row in head] for head in scores]).double()


def lower(scores: Tensor) -> Tensor:
    """(H, T, T) with the keys after the query set to 0."""
    return torch.tril(scores.double())


def config(width: int, length: int, **rope: Any) -> LlamaConfig:
    """A Llama whose only head has `width` dimensions."""
    return LlamaConfig(
        hidden_size=width,
        num_attention_heads=1,
        head_dim=width,
        max_position_embeddings=length,
        rope_parameters={"rope_theta": 10000.0, **rope},
    )


def hf(kind: str, width: int, length: int, seq_len: int | None = None, **own: Any) -> tuple[list[float], float]:
    """Frequencies and magnitude of transformers; `length` is max_position_embeddings."""
    found, magnitude = ROPE_INIT_FUNCTIONS[kind](
        config(width, length, rope_type=kind, **own), torch.device("cpu"), seq_len=seq_len
    )
    return found.tolist(), magnitude


def close(got: list[float], want: list[float]) -> bool:
    """transformers works in float32."""
    return got == pytest.approx(want, rel=3e-6)


def test_rope_is_llamas() -> None:
    """Half layout, through LlamaRotaryEmbedding and apply_rotary_pos_emb."""
    embedding = LlamaRotaryEmbedding(config(WIDTH, 64, rope_type="default"))
    cos, sin = embedding(Q[None], torch.arange(TOKENS)[None])
    q, k = apply_rotary_pos_emb(Q[None], K[None], cos, sin)
    want = lower((q @ k.transpose(-1, -2))[0] / math.sqrt(WIDTH))
    torch.testing.assert_close(tensor(rot.rope(Q.tolist(), K.tolist(), positions=HERE)), want, atol=5e-6, rtol=0)
    assert close(rot.frequencies(WIDTH), embedding.inv_freq.tolist())


@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_frequencies_of_the_extensions(width: int) -> None:
    """linear, proportional, dynamic, yarn with and without truncate, llama3, at posbench's scale."""
    assert close(ext.pi_frequencies(width, factor=8), hf("linear", width, 512, factor=8.0)[0])
    for p in (0.25, 0.7, 0.75, 1.0):
        want = hf("proportional", width, 512, partial_rotary_factor=p)[0]
        assert rot.prope_frequencies(width, p=p) == pytest.approx(want, rel=3e-6)
    for factor in (1.0, 2.0, 8.0):
        for length in (1, 512, 513, 1024, 4096):
            base = ext.dynamic_ntk_base(width, trained_length=512, length=length, factor=factor)
            want = hf("dynamic", width, 512, seq_len=length, factor=factor)[0]
            assert rot.frequencies(width, base=base) == pytest.approx(want, rel=1e-5)
        for truncate in (True, False):
            own = {"factor": factor, "original_max_position_embeddings": 512, "truncate": truncate}
            want, magnitude = hf("yarn", width, 512, **own)
            got = ext.by_parts_frequencies(width, trained_length=512, factor=factor, truncate=truncate)
            assert got == pytest.approx(want, rel=1e-5)
            assert ext.yarn_magnitude(factor) == pytest.approx(magnitude, rel=1e-12)
        own = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
        want = hf("llama3", width, 512, factor=factor, **own)[0]
        assert ext.llama3_frequencies(width, trained_length=512, factor=factor) == pytest.approx(want, rel=1e-5)


def test_yarns_ramp_is_clamped_as_in_transformers() -> None:
    """Trained lengths of 4 and 16 put one end or both below pair 0, 2^20 and 2^40 past the last pair."""
    for length in (4, 16, 64, 2**20, 2**40):
        own = {"factor": 8.0, "original_max_position_embeddings": length}
        want = hf("yarn", 16, length, **own)[0]
        assert ext.by_parts_frequencies(16, trained_length=length, factor=8) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(("mscale", "all_dim"), [(1.0, 1.0), (0.707, 0.707), (1.0, 0.5)])
def test_ratio_magnitude_is_transformers(mscale: float, all_dim: float) -> None:
    """The keys of DeepSeek; transformers reads a 0 as not given."""
    own = {"original_max_position_embeddings": 512, "mscale": mscale, "mscale_all_dim": all_dim}
    want = hf("yarn", 64, 512, factor=40.0, **own)[1]
    assert ext.ratio_magnitude(40, mscale=mscale, mscale_all_dim=all_dim) == pytest.approx(want, rel=1e-12)


def test_longrope_is_transformers() -> None:
    """The switch at one past the trained length; the magnitude is there at every length once the factor is above 1."""
    generator = random.Random(0)
    short, long = ([1 + generator.random() * size for _ in range(8)] for size in (0.1, 8))
    for length in (1, 512, 513, 4096):
        own = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 512, "factor": 8.0}
        want, magnitude = hf("longrope", WIDTH, 4096, seq_len=length, **own)
        got = ext.longrope_frequencies(WIDTH, trained_length=512, length=length, short=short, long=long)
        assert got == pytest.approx(want, rel=1e-5)
        assert ext.longrope_magnitude(8, trained_length=512) == pytest.approx(magnitude, rel=1e-12)


@pytest.mark.parametrize("heads", HEAD_COUNTS)
def test_alibi_is_blooms_and_mpts_up_to_a_number_in_every_row(heads: int) -> None:
    """Bloom adds m j; MPT, whose queries are the last, m (j - T + 1): both differ from -m r by a constant a row."""
    zero = torch.zeros(heads, TOKENS, 4).tolist()
    ours = tensor(bias.alibi(zero, zero, positions=HERE))
    bloom = build_alibi_tensor(torch.ones(1, TOKENS), heads, torch.float32).view(heads, 1, TOKENS).double()
    mpt = build_mpt_alibi_tensor(heads, TOKENS).view(heads, 1, TOKENS).double()
    slopes = torch.tensor(bias.alibi_slopes(heads)).double()[:, None, None]
    queries = torch.arange(TOKENS)[None, :, None]
    torch.testing.assert_close(lower(bloom - slopes * queries), ours, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(lower(mpt + slopes * (TOKENS - 1 - queries)), ours, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (16, 64), (32, 256), (8, 64)])
def test_t5_buckets_are_transformers(buckets: int, far: int) -> None:
    """Every distance to 599; with 8 and 64 the logarithm is a whole number at 8, 16 and 32."""
    want = T5Attention._relative_position_bucket(
        -torch.arange(600), bidirectional=False, num_buckets=buckets, max_distance=far
    )
    assert [bias.t5_bucket(r, buckets=buckets, far=far) for r in range(600)] == want.tolist()


@pytest.mark.parametrize("heads", HEAD_COUNTS)
def test_t5_bias_is_transformers(heads: int) -> None:
    """T5Attention.compute_bias on its own table; scores undivided."""
    layer = T5Attention(
        T5Config(d_model=8, d_kv=4, num_heads=heads, is_decoder=True), has_relative_attention_bias=True, layer_idx=0
    )
    want = layer.compute_bias(TOKENS, TOKENS)[0].detach()
    table = layer.relative_attention_bias.weight.tolist()
    q, k = normal(heads, TOKENS, 4, seed=3), normal(heads, TOKENS, 4, seed=4)
    got = tensor(bias.t5(q.tolist(), k.tolist(), positions=HERE, table=table, divide=False))
    torch.testing.assert_close(got, lower(q @ k.transpose(-1, -2) + want), atol=1e-5, rtol=1e-6)


def plain() -> Tensor:
    """q.k / sqrt(d), all pairs."""
    return Q @ K.transpose(-1, -2) / math.sqrt(WIDTH)


@pytest.mark.parametrize("heads", HEAD_COUNTS)
def test_alibi_and_t5_are_x_transformers(heads: int) -> None:
    """x-transformers multiplies the T5 bias by a `scale` (sqrt(d) in its Attention layers): 1 here."""
    zero = torch.zeros(heads, TOKENS, 4).tolist()
    torch.testing.assert_close(
        tensor(bias.alibi(zero, zero, positions=HERE)),
        lower(x_transformers.AlibiPositionalBias(heads)(TOKENS, TOKENS)),
        atol=1e-5,
        rtol=1e-6,
    )
    t5 = x_transformers.RelativePositionBias(scale=1.0, causal=True, heads=heads)
    got = tensor(bias.t5(zero, zero, positions=HERE, table=t5.relative_attention_bias.weight.tolist()))
    torch.testing.assert_close(got, lower(t5(TOKENS, TOKENS).detach()), atol=1e-6, rtol=1e-6)


def test_interleaved_rope_and_xpos_are_x_transformers() -> None:
    """Neighbouring pairs; powers counted from the middle; a scale on q, its inverse on k."""
    for xpos in (False, True):
        freqs, scale = x_transformers.RotaryEmbedding(WIDTH, use_xpos=xpos)(torch.arange(TOKENS))
        inverse = scale**-1.0
        q = x_transformers.apply_rotary_pos_emb(Q[None], freqs, scale)
        k = x_transformers.apply_rotary_pos_emb(K[None], freqs, inverse)
        want = lower((q @ k.transpose(-1, -2))[0] / math.sqrt(WIDTH))
        oracle = rot.xpos if xpos else rot.rope
        got = tensor(oracle(Q.tolist(), K.tolist(), positions=HERE, layout="interleaved"))
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def test_cope_is_x_transformers_with_its_position_term_undivided() -> None:
    """Causal logits masked before the gates; their position term is not divided by sqrt(d)."""
    theirs = x_transformers.CoPE(WIDTH, HEADS, max_pos=6).double()
    torch.nn.init.normal_(theirs.pos_emb)
    logits = plain().masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -torch.inf)
    want = lower(plain() + theirs(Q[None], logits[None])[0].detach())
    table = theirs.pos_emb.tolist()
    got = data.cope(Q.tolist(), K.tolist(), positions=HERE, table=table, divide_position_term=False)
    torch.testing.assert_close(tensor(got), want, atol=1e-5, rtol=1e-6)


def test_fox_is_x_transformers_data_dependent_alibi() -> None:
    """logsigmoid, cumulated, differences."""
    theirs = x_transformers.DataDependentAlibi(5, HEADS).double()
    x = normal(1, TOKENS, 5, seed=5)
    linear = theirs.to_forget_gates[0]
    got = data.fox(
        Q.tolist(), K.tolist(), positions=HERE, x=x[0].tolist(), w_f=linear.weight.tolist(), b_f=linear.bias.tolist()
    )
    torch.testing.assert_close(tensor(got), lower(plain() + theirs(x)[0].detach()), atol=1e-5, rtol=1e-6)


def test_sinusoid_is_x_transformers_up_to_its_factor_and_order() -> None:
    """ScaledSinusoidalEmbedding: all sines, then all cosines, times 1/sqrt(width) at first."""
    theirs = x_transformers.ScaledSinusoidalEmbedding(WIDTH)
    want = theirs(torch.zeros(1, TOKENS, WIDTH)).detach().view(TOKENS, WIDTH) * math.sqrt(WIDTH)
    got = torch.tensor([tok.sinusoid(WIDTH, p, form="halves") for p in HERE])
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
