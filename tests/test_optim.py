"""Which tensor is updated by what, how fast at which step, and Muon against torch's own."""

from __future__ import annotations

import math

import pytest
import torch

from posbench import optim
from posbench.config import Model, Optim
from posbench.encodings.base import Shape
from posbench.encodings.learned import Learned
from posbench.model import Decoder, initialise

MODEL = Model(layers=2, width=16, heads=2, hidden=24)


def tiny(method: str = "muon", steps: int = 10, **settings) -> tuple[Decoder, optim.Optimizer]:
    torch.manual_seed(0)
    encoding = Learned(Shape(MODEL.layers, MODEL.width, MODEL.heads, train_length=8))
    decoder = Decoder(MODEL, 32, encoding)
    initialise(decoder, seed=1)
    return decoder, optim.build(decoder, Optim(method=method, **settings), steps)


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(32, (3, 9), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


def test_the_rate_rises_in_equal_parts_and_falls_to_zero_after_the_last_step():
    """10 steps, 20 % of warm-up: halves of the peak for 2 updates, then 8 equal parts down; update 10 is never made."""
    line = [optim.rate_factor(i, 10, 0.2, "linear") for i in range(10)]
    assert line == pytest.approx([0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
    assert optim.rate_factor(10, 10, 0.2, "linear") == 0


def test_the_cosine_is_at_half_height_half_way():
    """(1 + cos(pi x)) / 2 at x = 0, 1/2 and 3/4: 1, 0.5 and (1 - sqrt(1/2)) / 2."""
    curve = [optim.rate_factor(i, 10, 0.2, "cosine") for i in (2, 6, 8)]
    assert curve == pytest.approx([1, 0.5, (1 - math.sqrt(0.5)) / 2])


@pytest.mark.parametrize(("warmup", "first"), [(0.0, 1.0), (1.0, 0.25)])
def test_the_rate_at_the_ends_of_warm_up(warmup: float, first: float):
    """No warm-up starts at the peak; all warm-up rises in quarters over 4 steps."""
    assert optim.rate_factor(0, 4, warmup, "linear") == first
    assert optim.rate_factor(3, 4, warmup, "linear") == (0.25 if warmup == 0 else 1.0)


@pytest.mark.parametrize("method", ["adamw", "muon"])
def test_decay_acts_on_the_matrices_of_attention_and_feed_forward_only(method: str):
    """With zero gradients a step at rate 1 leaves (1 - rate x decay) of a tensor that decays, and all of another."""
    decoder, optimizer = tiny(method, warmup=0.0, lr=0.5, matrix_lr=0.5, weight_decay=0.1)
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    for p in decoder.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step(0)
    for name, p in decoder.named_parameters():
        matrix = name.startswith("blocks.") and name.endswith(
            ("query.weight", "key.weight", "value.weight", "out.weight", "gate.weight", "up.weight", "down.weight")
        )
        torch.testing.assert_close(p.detach(), before[name] * (0.95 if matrix else 1.0), rtol=1e-6, atol=0)


def test_what_an_encoding_owns_goes_to_adamw():
    """A first AdamW step moves every element by the rate, whatever its gradient: by +-lr for the table of positions."""
    decoder, optimizer = tiny("muon", warmup=0.0, lr=1e-3, clip=1e9)
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    decoder.loss(*batch(1)).backward()
    optimizer.step(0)
    moved = {name: (p.detach() - before[name]).abs() for name, p in decoder.named_parameters()}
    owned = [name for name in moved if name.startswith("encoding.")]
    assert owned
    for name in [*owned, "embed.weight", "norm.weight", "blocks.0.attention_norm.weight"]:
        torch.testing.assert_close(moved[name], torch.full_like(moved[name], 1e-3), rtol=0.02, atol=0)
    assert moved["blocks.0.attention.query.weight"].std() > 1e-4


def test_muon_is_torchs_muon(monkeypatch: pytest.MonkeyPatch):
    """The oracle is torch.optim.Muon, kept in float32 by making its cast to bfloat16 a copy: square, wide and tall
    matrices over three steps, rate and decay and Nesterov momentum included."""
    torch.manual_seed(3)
    shapes = [(8, 8), (8, 20), (20, 8), (8, 8)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    mine = optim.Muon(ours, lr=0.1, momentum=0.9, weight_decay=0.2)
    oracle = torch.optim.Muon(theirs, lr=0.1, momentum=0.9, weight_decay=0.2)
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        mine.step()
        oracle.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def test_muon_orthogonalises():
    """Five Newton-Schulz steps with Jordan's coefficients bring singular values from 0.05 ... 1 between 0.6 and 1.3."""
    torch.manual_seed(0)
    u, _, vh = torch.linalg.svd(torch.randn(2, 8, 12), full_matrices=False)
    x = u @ torch.diag_embed(torch.linspace(0.05, 1, 8).expand(2, 8)) @ vh
    singular = torch.linalg.svdvals(optim.orthogonal(x))
    assert singular.min() > 0.6
    assert singular.max() < 1.3


@pytest.mark.parametrize("columns", [8, 12, 13, 40])
def test_muon_gives_the_same_by_either_way_of_multiplying(columns: int):
    """Up to a ratio of 3 : 2 step by step, beyond it through the gram matrix alone: in float64 no digit differs, nor in
    float32 one that counts, where half of the singular values are nearly zero."""
    torch.manual_seed(1)
    x = torch.randn(3, 8, 4) @ torch.randn(3, 4, columns) + 1e-4 * torch.randn(3, 8, columns)

    def by_steps(x: torch.Tensor) -> torch.Tensor:
        a, b, c = optim.NEWTON_SCHULZ
        x = x / x.norm(dim=(1, 2), keepdim=True)
        for _ in range(optim.NEWTON_SCHULZ_STEPS):
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x

    torch.testing.assert_close(optim.orthogonal(x.double()), by_steps(x.double()), rtol=0, atol=1e-10)
    torch.testing.assert_close(optim.orthogonal(x.clone()), by_steps(x), rtol=0, atol=1e-4)


def test_the_gradient_is_clipped_at_the_norm_of_all_parameters_together():
    """Above the limit the length of the gradient no longer counts: 100 and 200 times it give one first moment."""
    updates = []
    for factor in (100.0, 200.0):
        decoder, optimizer = tiny("adamw", clip=1.0)
        decoder.loss(*batch(1)).mul(factor).backward()
        norm, _ = optimizer.step(0)
        assert norm > 1
        updates.append(optimizer.tensors()["embed.weight.exp_avg"])
    torch.testing.assert_close(updates[0], updates[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("method", ["adamw", "muon"])
def test_the_state_survives_a_round_trip_bit_for_bit(method: str):
    """3 steps and 3 more against 3 steps, state and weights carried to a new optimizer, and 3 more: equal bits."""
    straight, optimizer = tiny(method)
    resumed, later = tiny(method)
    for step in range(6):
        straight.loss(*batch(step)).backward()
        optimizer.step(step)
        if step == 2:
            resumed.load_state_dict(straight.state_dict())
            later.load({name: tensor.clone() for name, tensor in optimizer.tensors().items()})
        if step > 2:
            resumed.loss(*batch(step)).backward()
            later.step(step)
    assert {name for name in optimizer.tensors() if "momentum" in name} or method == "adamw"
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    for name, tensor in optimizer.tensors().items():
        assert torch.equal(tensor, later.tensors()[name]), name
