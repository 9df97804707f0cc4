"""Transformer-XL's positions against the oracle and against Hugging Face's XLNet, which took them over."""

import pytest
import torch
from oracles.data_dependent import transformer_xl
from oracles.draws import HEADS, HERE, WIDTH, K, Q, same
from tiny import decoder, ids, layer_scores, logits
from transformers import XLNetConfig, XLNetModel
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

from posbench import attention
from posbench.encodings.base import Shape
from posbench.encodings.transformer_xl import TransformerXL

SHAPE = Shape(layers=3, width=HEADS * WIDTH, heads=HEADS, train_length=8)


def drawn(seed=0):
    e = TransformerXL(SHAPE)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in e.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return e


def test_the_scores_equal_the_oracles():
    layer = drawn().for_layer(1)
    own = {"u": layer.u.tolist(), "v": layer.v.tolist(), "w_r": layer.relative.tolist()}
    for positions in (HERE, [5 * i + i % 3 for i in HERE], [i / 4 for i in HERE], [50_000 + i for i in HERE]):
        expected = transformer_xl(Q, K, positions=positions, **own)
        assert same(layer_scores(layer, Q, K, positions), expected, 1e-4)


@torch.no_grad()
def test_attention_equals_xlnets():
    """Their r_w_bias is u, their r_r_bias v, and r (C, H, D) our W_r on its side; R in the same order. Causal by mask.

    Their distances run from T down to -T and are shifted into place, ours are never formed.
    """
    length, width = 9, HEADS * WIDTH
    config = XLNetConfig(d_model=width, n_head=HEADS, d_inner=8, n_layer=1, vocab_size=8, dropout=0.0, clamp_len=-1)
    theirs, model = XLNetRelativeAttention(config).eval(), XLNetModel(config)
    layer = drawn().for_layer(0)
    theirs.r_w_bias.copy_(layer.u)
    theirs.r_r_bias.copy_(layer.v)
    theirs.r.copy_(layer.relative.T.unflatten(1, (HEADS, WIDTH)))
    q, k, v = torch.randn(3, 1, HEADS, length, WIDTH, generator=torch.Generator().manual_seed(2))
    r = torch.einsum("ibh,hnd->ibnd", model.relative_positional_encoding(length, length, bsz=1), theirs.r)
    mask = torch.ones(length, length).triu(1)[:, :, None, None]
    expected = theirs.rel_attn_core(*(x.permute(2, 0, 1, 3) for x in (q, k, v)), r, attn_mask=mask)
    at = torch.arange(length)[None]
    out = attention.attend(q, k, v, {}, attention.begin(layer, at, at, consecutive=True))
    assert torch.allclose(out.permute(2, 0, 1, 3), expected, atol=1e-5)


def test_each_layer_has_a_matrix_and_two_vectors_of_its_own():
    """3 layers x (32^2 + 2 x 32), starting at N(0, 0.02^2)."""
    e = TransformerXL(SHAPE)
    assert sum(p.numel() for p in e.parameters()) == 3 * (32**2 + 2 * 32)
    assert e.for_layer(0) is not e.for_layer(2)
    torch.manual_seed(0)
    start = torch.cat([p.flatten() for p in TransformerXL(Shape(2, 128, 4, 8)).parameters()])
    assert start.std().item() == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize("name", ["u", "v", "relative"])
def test_every_part_has_a_say(name):
    """Without u, without v, without W_r: other logits each time."""
    model, tokens = decoder(("transformer_xl", {})), ids(30)
    whole = logits(model, tokens)
    with torch.no_grad():
        for layer in model.encoding.layers:
            getattr(layer, name).zero_()
    assert (logits(model, tokens) - whole).abs().max() > 1e-2


def test_what_has_no_formula_is_refused():
    with pytest.raises(ValueError, match="the width must be even, not 5"):
        TransformerXL(Shape(1, 5, 1, 8))
    with pytest.raises(ValueError, match="base must be above 0, not 0"):
        TransformerXL(SHAPE, base=0)
