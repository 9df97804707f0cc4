"""RoPE: PAIR-1 of the known faults; Llama, GPT-NeoX and GPT-J as the oracles; a checkpoint that knows its layout."""

import cmath

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox
from transformers.models.gpt_neox.configuration_gpt_neox import GPTNeoXConfig
from transformers.models.gptj import modeling_gptj as gpt_j
from transformers.models.gptj.configuration_gptj import GPTJConfig
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from posbench.encodings.angles import cos_sin
from posbench.encodings.base import Shape
from posbench.encodings.rope import Rope
from posbench.encodings.rotation import LAYOUTS, _Turn, _written_out, tables, turn
from posbench.errors import UserError

SHAPE = Shape(layers=1, width=64, heads=2, train_length=16)


def turned(rope: Rope, x: torch.Tensor, position: int) -> torch.Tensor:
    """A vector (D,) turned as the query at `position`."""
    at = torch.tensor([[position]])
    x = x.expand(1, rope.shape.heads, 1, -1)
    return rope.rotate(x, x, rope.begin(at, position + 1))[0][0, 0].flatten()


def draw(seed: int) -> torch.Tensor:
    return torch.randn(32, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shift", [100, 99_995])
def test_the_score_depends_on_the_offset_alone(layout, shift):
    """R_m^T R_n = R_(n-m): positions 5 and 2 score like 5 and 2 shifted, up to position 100,000."""
    rope, q, k = Rope(SHAPE, layout=layout), draw(0), draw(1)
    near = turned(rope, q, 5) @ turned(rope, k, 2)
    far = turned(rope, q, 5 + shift) @ turned(rope, k, 2 + shift)
    assert far.item() == pytest.approx(near.item(), abs=1e-5)
    assert (turned(rope, q, 5) @ turned(rope, k, 3)).item() != pytest.approx(near.item(), abs=1e-2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_positions_score_as_without_rope_and_norms_stay(layout):
    rope, q, k = Rope(SHAPE, layout=layout), draw(0), draw(1)
    assert (turned(rope, q, 777) @ turned(rope, k, 777)).item() == pytest.approx((q @ k).item(), abs=1e-5)
    assert turned(rope, q, 777).norm().item() == pytest.approx(q.norm().item(), abs=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_of_the_head_is_turned(layout):
    """A quarter or a half of the head would also train, and also be called RoPE in tables."""
    assert (turned(Rope(SHAPE, layout=layout), torch.ones(32), 3) != 1).all()


def test_one_layout_is_the_other_under_a_fixed_permutation():
    """Evens first, then odds: the interleaved pair (2m, 2m + 1) becomes (m, m + D/2)."""
    order = torch.cat((torch.arange(0, 32, 2), torch.arange(1, 32, 2)))
    q = draw(0)
    interleaved = turned(Rope(SHAPE, layout="interleaved"), q, 9)
    assert torch.equal(turned(Rope(SHAPE), q[order], 9), interleaved[order])


def test_the_wrong_mix_is_no_longer_relative():
    """Half-split turning with each angle laid out for neighbours: the fault the tests above must be able to see."""
    cos, sin = cos_sin(torch.arange(200), Rope(SHAPE).frequencies)
    cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    q, k = draw(0), draw(1)

    def wrong(x, p):
        return x * cos[p] + torch.cat((-x[16:], x[:16])) * sin[p]

    assert (wrong(q, 5) @ wrong(k, 2)).item() != pytest.approx((wrong(q, 105) @ wrong(k, 102)).item(), abs=1e-2)


@pytest.mark.parametrize("base", [10_000, 500_000])
def test_half_equals_llamas_own_rotation(base):
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": float(base)},
    )
    positions = torch.arange(64)[None]
    q, k = torch.randn(2, 2, 2, 64, 32, generator=torch.Generator().manual_seed(0))
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    ours = Rope(SHAPE, base=base)
    ctx = ours.begin(positions, 64)
    assert torch.allclose(ctx[0][0, 0], cos[0], atol=1e-5)
    assert torch.allclose(ctx[1][0, 0], sin[0, :, :16], atol=1e-5)
    for mine, theirs in zip(ours.rotate(q, k, ctx), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_interleaved_equals_gpt_js_own_rotation():
    """Its heads of 32 are turned whole; its tensors are (B, T, H, D)."""
    positions = torch.arange(64)[None]
    q, k = torch.randn(2, 2, 2, 64, 32, generator=torch.Generator().manual_seed(0))
    theirs = gpt_j.GPTJRotaryEmbedding(GPTJConfig(n_embd=64, n_head=2, rotary_dim=32, n_positions=64))
    sin, cos = theirs(q, positions)
    ours = Rope(SHAPE, layout="interleaved")
    for mine, x in zip(ours.rotate(q, k, ours.begin(positions, 64)), (q, k), strict=True):
        assert torch.allclose(mine, gpt_j.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2), atol=1e-5)


@pytest.mark.parametrize("base", [10_000, 500_000])
def test_half_equals_gpt_neoxs_own_rotation(base):
    """Which by default turns a quarter of the head."""
    rope = {"rope_type": "default", "rope_theta": float(base), "partial_rotary_factor": 1.0}
    config = GPTNeoXConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=64, rope_parameters=rope)
    positions = torch.arange(64)[None]
    q, k = torch.randn(2, 2, 2, 64, 32, generator=torch.Generator().manual_seed(0))
    turned_by_them = gpt_neox.apply_rotary_pos_emb(q, k, *gpt_neox.GPTNeoXRotaryEmbedding(config)(q, positions))
    ours = Rope(SHAPE, base=base)
    for mine, theirs in zip(ours.rotate(q, k, ours.begin(positions, 64)), turned_by_them, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_interleaved_is_a_product_of_complex_numbers():
    """The paper's form: x_2m + i x_(2m+1) times exp(i p theta_m), in Python's complex numbers."""
    x, p = draw(3), 21
    ours = turned(Rope(SHAPE, layout="interleaved"), x, p)
    for m in range(16):
        z = complex(x[2 * m], x[2 * m + 1]) * cmath.exp(1j * p * 10000 ** (-2 * m / 32))
        assert ours[2 * m].item() == pytest.approx(z.real, abs=1e-5)
        assert ours[2 * m + 1].item() == pytest.approx(z.imag, abs=1e-5)


@pytest.mark.parametrize(("layout", "turned"), [("half", [-3, -4, 1, 2]), ("interleaved", [-2, 1, -4, 3])])
def test_a_quarter_turn_by_hand(layout, turned):
    """cos 0 and sin 1 send each pair (a, b) to (-b, a)."""
    quarter = torch.tensor([1.0, 2, 3, 4]), torch.zeros(4), torch.ones(2), layout
    assert turn(*quarter).tolist() == _written_out(*quarter).tolist() == turned


@pytest.mark.parametrize("turned", [_Turn.apply, _written_out])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_of_a_turn_is_that_of_finite_differences(layout, turned):
    """Of the queries, and of the angles, which an encoding of one's own may learn; also of what is compiled."""
    x = torch.randn(2, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    angles = torch.linspace(0.1, 2.0, 6, dtype=torch.float64).view(1, 3, 2).requires_grad_()

    def rotated(x, angles):
        return turned(x, *tables(angles.cos(), angles.sin(), 2, layout), layout)

    assert torch.autograd.gradcheck(rotated, (x, angles))


def test_no_parameters_values_untouched_and_the_first_frequency_is_one():
    rope = Rope(SHAPE)
    assert not list(rope.parameters())
    assert not rope.hooks & {"values", "state", "bias", "scores"}
    rope.load_state_dict(Rope(SHAPE).state_dict())
    assert rope.frequencies[0] == 1.0
    assert rope.frequencies.tolist() == pytest.approx([10000 ** (-2 * m / 32) for m in range(16)])


def test_the_control_multiplies_token_vectors_by_the_root_of_the_width():
    """Width 64: by 8. Without it they stay as they are."""
    x = torch.ones(1, 1, 64)
    assert torch.equal(Rope(SHAPE, embed_scale=True).embed(x, torch.zeros(1, 1)), 8 * x)
    assert torch.equal(Rope(SHAPE).embed(x, torch.zeros(1, 1)), x)


def test_an_odd_head_width_and_an_unknown_layout_are_refused():
    with pytest.raises(ValueError, match="even head width, not width / heads = 3"):
        Rope(Shape(layers=1, width=6, heads=2, train_length=8))
    with pytest.raises(ValueError, match="half, interleaved, not halves"):
        Rope(SHAPE, layout="halves")
    with pytest.raises(ValueError, match="above 0"):
        Rope(SHAPE, base=-1)


@pytest.mark.parametrize(("stored", "asked"), [("half", "interleaved"), ("interleaved", "half")])
def test_a_checkpoint_of_one_layout_is_refused_by_the_other(tmp_path, stored, asked):
    """The weights would load without a word and mean something else: shapes and names are the same."""
    save_file(Rope(SHAPE, layout=stored).state_dict(), tmp_path / "weights.safetensors")
    weights = load_file(tmp_path / "weights.safetensors")
    Rope(SHAPE, layout=stored).load_state_dict(weights)
    with pytest.raises(UserError, match=f"layout '{stored}' and cannot be read as '{asked}'"):
        Rope(SHAPE, layout=asked).load_state_dict(weights)
