"""Positions and biases keep their meaning when the model runs in 16 bits (PREC-1, PREC-2, MASK-3)."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import CASES, DEVICES, SHAPE, attention, chosen, decoder, described, ids, logits

from posbench import attention as kernels
from posbench import encodings
from posbench.config import Model
from posbench.encodings.alibi import Alibi
from posbench.encodings.angles import cos_sin, frequencies
from posbench.model import Decoder, initialise

BF16 = torch.bfloat16


def test_16_bit_positions_are_not_distinct():
    """bf16 has 8 significant bits: odd integers end at 256. The counts show what the tests below guard against."""
    assert len(torch.arange(1024).to(BF16).unique()) == 513
    assert len(torch.arange(4096).to(BF16).unique()) == 769


def test_rope_keeps_every_position_apart_in_a_bf16_model():
    """4,096 distinct rows, 256 and 257 among them, in float32 whatever the dtype of the model."""
    rope = decoder(("rope", {})).to(BF16).encoding
    cos, sin = rope.begin(torch.arange(4096)[None], 4096)
    assert cos.dtype == sin.dtype == torch.float32
    rows = torch.cat((cos, sin), dim=-1)[0, 0]
    assert not torch.equal(rows[256], rows[257])
    assert len(rows.unique(dim=0)) == 4096


@pytest.mark.parametrize("start", [0, 100_000, 1_000_000])
def test_cosines_are_float64s_rounded_once(start):
    """Below 1e-6 of float64 at any position; formed in float32 they would be 1e-4 off at 4,000."""
    positions, w = torch.arange(start, start + 4096), frequencies(64, 10_000)
    cos, sin = cos_sin(positions, w)
    angle = positions.numpy()[:, None] * 10_000.0 ** (-np.arange(0, 64, 2) / 64)
    assert np.abs(cos.numpy() - np.cos(angle)).max() < 1e-6
    assert np.abs(sin.numpy() - np.sin(angle)).max() < 1e-6


def test_a_table_in_16_bits_would_be_wrong_by_up_to_2():
    """What the fault costs: only the last rounding errs by 0.002, the whole computation in bf16 by nearly 2."""
    positions, w = torch.arange(4096), frequencies(64, 10_000)
    exact = (positions[:, None].double() * w).cos()
    assert (exact.to(BF16).double() - exact).abs().max() < 0.002
    assert ((positions.to(BF16)[:, None] * w.to(BF16)).cos().double() - exact).abs().max() > 1.9


def test_sinusoidal_positions_stay_apart_in_a_bf16_model():
    """With zero token vectors a bf16 model gets the float32 table rounded once, at 0.002 or better."""
    encoding = decoder(("sinusoidal", {})).to(BF16).encoding
    positions = torch.arange(4096)[None]
    out = encoding.embed(torch.zeros(1, 4096, 32, dtype=BF16), positions)
    exact = encoding.embed(torch.zeros(1, 4096, 32), positions)
    assert out.dtype == BF16
    assert (out.float() - exact).abs().max() < 0.002


def test_alibi_keeps_every_distance_apart_in_a_bf16_model():
    """4,096 distinct values a head; a bias stored in bf16 has 769, in fp16 3,073."""
    alibi = decoder(("alibi", {})).to(BF16).encoding
    bias = alibi.bias(torch.arange(4096))
    assert bias.dtype == torch.float32
    for dtype, values in ((torch.float32, 4096), (BF16, 769), (torch.float16, 3073)):
        assert [len(head.to(dtype).unique()) for head in bias] == [values] * 4


def alibi_error(length: int, stored_in_bf16: bool) -> float:
    """Largest error, in bf16, of what the last 64 queries of a window read from one head of slope 1/256."""
    alibi = Alibi(replace(SHAPE, heads=1))
    q, k, v = torch.randn(3, 1, 1, length, 8, generator=torch.Generator().manual_seed(0))
    q, at = q[:, :, -64:], torch.arange(length)[None]
    exact = attention(alibi, q, k, v, at[:, -64:], at)
    if stored_in_bf16:
        # The form that many store: slope x key index, in the model's dtype.
        s = q @ k.mT / 8**0.5 + (at / 256).to(BF16).float()
        out = s.masked_fill(at > at[:, -64:, None], -math.inf).softmax(-1) @ v
    else:
        how = kernels.begin(alibi, at[:, -64:], at, consecutive=True)
        out = kernels.attend(q.to(BF16), k.to(BF16), v.to(BF16), {}, how)
    return (out - exact).abs().max().item()


def test_alibis_error_in_bf16_does_not_grow_with_length():
    """Stored in bf16 a bias of 1 to 2 (length 512) comes in steps of 1/128, one of 8 to 16 (4,096) in steps of 1/16.

    So there the error more than doubles; ours is that of q, k and v alone, at any length.
    """
    assert alibi_error(4096, stored_in_bf16=False) < 2 * alibi_error(512, stored_in_bf16=False)
    assert alibi_error(4096, stored_in_bf16=True) > 2 * alibi_error(512, stored_in_bf16=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "sinusoidal", "learned", "rope", "alibi", "t5", "shaw", "fox", "cope"])
def test_what_bf16_costs_does_not_grow_with_length(name):
    """PREC-2: the same 4,096 targets in windows of 512 and of 4,096. A loss is off by some hundredths of a nat in both,
    up and down, so that their mean is right to 0.002."""
    model, tokens = decoder((name, {}), replace(SHAPE, train_length=4096)), ids(4097)
    errors = []
    for length in (512, 4096):
        windows = tokens[:, :-1].reshape(-1, length), tokens[:, 1:].reshape(-1, length)
        at = chosen(model, windows[0])
        exact = model.token_losses(*windows, at).double()
        with torch.autocast("cpu", dtype=BF16):
            errors.append(model.token_losses(*windows, at).double() - exact)
    short, long = (error.abs().mean().item() for error in errors)
    assert 0 < long < 1.5 * short < 0.05
    assert all(abs(error.mean().item()) < 2e-3 for error in errors)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_two_steps_under_bf16_autocast_and_evaluation_near_fp32(case, device):
    """No dtype error, a finite loss, every learned tensor moved; logits within 2e-2 + rounding of float32."""
    name, own = case
    model = Decoder(Model(layers=2, width=32, heads=4, hidden=48), 64, encodings.build(described(name, **own), SHAPE))
    initialise(model, seed=1)
    model.to(device)
    tokens = ids(33, batch=2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = [parameter.clone() for parameter in model.encoding.parameters()]
    for _ in range(2):
        with torch.autocast(device, dtype=BF16):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:], chosen(model, tokens[:, :-1]))
        assert math.isfinite(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all((new != old).any() for new, old in zip(model.encoding.parameters(), before, strict=True))
    model.eval()
    exact = logits(model, tokens)
    with torch.autocast(device, dtype=BF16):
        near = logits(model, tokens)
    assert near.dtype == torch.float32
    assert torch.allclose(near, exact, atol=2e-2, rtol=2**-8)


@pytest.mark.parametrize("case", CASES)
def test_a_model_cast_to_bf16_runs(case):
    """Not how posbench trains, but how users load weights: no dtype error, and logits near those in float32."""
    model, tokens = decoder(case), ids(40)
    exact = logits(model, tokens)
    near = logits(model.to(BF16), tokens)
    assert near.dtype == torch.float32
    assert (near - exact).abs().mean() < 0.05 * exact.abs().mean()


def test_biases_of_alibi_are_float32_products():
    """Slope 1/256 times 65,537 needs 17 bits: exact in float32, gone in 16 bits."""
    assert Alibi(replace(SHAPE, heads=8)).bias(torch.tensor(65_537))[7].item() == -65_537 / 256
