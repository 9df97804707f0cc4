"""Shaw's relative vectors: both terms against loops, the key term against Hugging Face's `relative_key`."""

import math

import pytest
import torch
from transformers.models.wav2vec2_bert.configuration_wav2vec2_bert import Wav2Vec2BertConfig
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from posbench import attention
from posbench.encodings.base import Shape
from posbench.encodings.shaw import Shaw

SHAPE = Shape(layers=3, width=8, heads=2, train_length=16)


def drawn(values: bool, clip: int = 3, shape: Shape = SHAPE) -> Shaw:
    shaw = Shaw(shape, clip=clip, values=values)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in shaw.parameters():
            parameter.normal_(generator=generator)
    return shaw


def qkv(length: int, heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = torch.randn(3, 1, heads, length, head_dim, generator=torch.Generator().manual_seed(1))
    return q, k, v


@pytest.mark.parametrize("values", [False, True])
def test_attention_equals_a_double_loop(values):
    """The paper's equations 3 and 4 as they stand, one pair of positions at a time, causal."""
    layer = drawn(values).for_layer(1)
    q, k, v = qkv(9, 2, 4)
    at = torch.arange(9)[None]
    out = attention.attend(q, k, v, {}, attention.begin(layer, at, at, consecutive=True))
    a_key = layer.key_table
    a_value = layer.value_table if values else torch.zeros(4, 4)
    for h in range(2):
        for i in range(9):
            scores = [(q[0, h, i] @ (k[0, h, j] + a_key[min(i - j, 3)])).item() / 2 for j in range(i + 1)]
            total = sum(math.exp(s) for s in scores)
            expected = sum(math.exp(s) / total * (v[0, h, j] + a_value[min(i - j, 3)]) for j, s in enumerate(scores))
            assert torch.allclose(out[0, h, i], expected, atol=1e-5)


def test_the_key_term_equals_hugging_faces_relative_key():
    """Their table holds clip + 1 rows for key - query = -clip ... 0, ours for query - key = 0 ... clip."""
    config = Wav2Vec2BertConfig(
        hidden_size=8,
        num_attention_heads=2,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=3,
        right_max_position_embeddings=0,
        attention_dropout=0.0,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    theirs = Wav2Vec2BertSelfAttention(config).eval()
    layer = drawn(False).for_layer(0)
    x = torch.randn(1, 9, 8)
    mask = torch.full((9, 9), -math.inf).triu(1)[None, None]
    with torch.no_grad():
        layer.key_table.copy_(theirs.distance_embedding.weight.flip(0))
        expected = theirs(x, attention_mask=mask)[0]
        split = [
            linear(x).view(1, 9, 2, 4).transpose(1, 2) for linear in (theirs.linear_q, theirs.linear_k, theirs.linear_v)
        ]
        at = torch.arange(9)[None]
        out = attention.attend(*split, {}, attention.begin(layer, at, at, consecutive=True))
        assert torch.allclose(theirs.linear_out(out.transpose(1, 2).flatten(2)), expected, atol=1e-5)


def test_every_layer_has_vectors_of_its_own_and_shares_them_between_heads():
    """3 layers x (3 + 1) distances x head width 4 a term."""
    shaw = drawn(True)
    assert sum(p.numel() for p in shaw.parameters()) == 2 * 3 * 4 * 4
    assert shaw.for_layer(0) is not shaw.for_layer(1)


def test_distances_past_the_clip_share_one_vector():
    """With the query fixed, keys 3, 4 and 5 back get the same term; the key 2 back another."""
    layer = drawn(False).for_layer(0)
    q = qkv(1, 2, 4)[0]
    term = layer.scores(torch.zeros(1, 2, 1, 6), q, q, torch.tensor([[5]]), torch.arange(6)[None], {}, slice(5, 6))
    assert torch.equal(term[..., 0], term[..., 1])
    assert torch.equal(term[..., 0], term[..., 2])
    assert not torch.allclose(term[..., 2], term[..., 3])


def test_the_value_term_is_an_option():
    assert "values" not in Shaw(SHAPE).hooks
    assert "values" in Shaw(SHAPE, values=True).hooks


def test_the_vectors_start_small():
    """N(0, 0.02^2) like the other matrices: of 3 x 17 x 64 numbers the sample deviation is within 6%."""
    torch.manual_seed(0)
    table = torch.cat([p.flatten() for p in Shaw(Shape(3, 128, 2, 16)).parameters()])
    assert table.std().item() == pytest.approx(0.02, rel=0.06)


def test_a_clip_below_one_is_refused():
    with pytest.raises(ValueError, match="clip must be 1 or more, not 0"):
        Shaw(SHAPE, clip=0)
