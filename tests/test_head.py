"""The head's loss and gradient in chunks of rows."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from posbench import head


def drawn(n: int, vocab: int = 11, width: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    hidden = torch.randn(n, width, generator=generator, requires_grad=True)
    weight = torch.randn(vocab, width, generator=generator, requires_grad=True)
    return hidden, weight, torch.randint(vocab, (n,), generator=generator)


def rows_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """44 logits of 11 ids."""
    monkeypatch.setattr(head, "CHUNK", {"cpu": 44})
    monkeypatch.setattr(head, "LEAST_ROWS", 1)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 17])
def test_loss_and_gradients_are_those_of_cross_entropy(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of four rows: fewer than one, one, one and a part, several and a part."""
    rows_of_four(monkeypatch)
    hidden, weight, targets = drawn(n)
    found = torch.autograd.grad(3 * head.mean_nats(hidden, weight, targets), (hidden, weight))
    plain = torch.autograd.grad(3 * F.cross_entropy(hidden @ weight.T, targets), (hidden, weight))
    assert torch.allclose(
        head.mean_nats(hidden, weight, targets), F.cross_entropy(hidden @ weight.T, targets), atol=1e-6
    )
    for one, other in zip(found, plain, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("n", [1, 4, 17])
def test_the_nats_of_each_target_are_those_of_cross_entropy(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of_four(monkeypatch)
    hidden, weight, targets = drawn(n)
    plain = F.cross_entropy(hidden @ weight.T, targets, reduction="none")
    assert torch.allclose(head.token_nats(hidden, weight, targets), plain, atol=1e-6)


def test_equal_logits_cost_the_logarithm_of_the_vocabulary() -> None:
    """Without a preference each of 11 ids has probability 1/11."""
    _, weight, targets = drawn(5)
    assert head.mean_nats(torch.zeros(5, 6), weight, targets).item() == pytest.approx(math.log(11))


def test_large_logits_do_not_overflow() -> None:
    """exp(1000) is infinite in float32; the loss of the other id is 1000 all the same."""
    weight = torch.tensor([[1000.0], [0.0]])
    assert head.mean_nats(torch.ones(1, 1), weight, torch.tensor([1])).item() == pytest.approx(1000.0)


@pytest.mark.parametrize("n", [3, 300])
def test_a_large_vocabulary_gives_the_loss_and_gradients_of_cross_entropy(n: int) -> None:
    """50,304 ids: fewer rows than a chunk of 256 has, and a chunk and a part."""
    hidden, weight, targets = drawn(n, vocab=50_304, width=2)
    loss, plain = head.mean_nats(hidden, weight, targets), F.cross_entropy(hidden @ weight.T, targets)
    assert torch.allclose(loss, plain, atol=3e-6)
    expected = torch.autograd.grad(plain, (hidden, weight))
    for one, other in zip(torch.autograd.grad(loss, (hidden, weight)), expected, strict=True):
        assert torch.allclose(one, other, atol=3e-6)


@pytest.mark.parametrize(("vocab", "rows"), [(257, 4080), (2048, 512), (4096, 256), (50_304, 256)])
def test_a_chunk_is_a_million_logits_and_never_less_than_256_rows(vocab: int, rows: int) -> None:
    assert head.chunk_rows(vocab, "cpu") == rows


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_under_autocast_scores_are_not_rounded_to_bf16(device: str) -> None:
    """2 x 10 + 0.5 x 0.125 = 20.0625, and bf16 has steps of 1/8 between 16 and 32: it would make that 20."""
    hidden = torch.tensor([[2.0, 0.5]], device=device)
    weight = torch.tensor([[10.0, 0.125], [10.0, 0.25], [10.0, 0.5]], device=device)
    scores = torch.tensor([[20.0625, 20.125, 20.25]], device=device)
    targets = torch.tensor([0], device=device)
    exact = F.cross_entropy(scores, targets)
    with torch.autocast(device, torch.bfloat16):
        assert torch.equal(head.logits(hidden, weight), scores)
        losses = [head.token_nats(hidden, weight, targets)[0], head.mean_nats(hidden, weight, targets)]
        rounded = F.cross_entropy(F.linear(hidden, weight).float(), targets)
    for loss in losses:
        assert abs(loss - exact) < 1e-6
    assert abs(rounded - exact) > 0.01


@pytest.mark.parametrize("device", DEVICES)
def test_under_autocast_gradients_are_those_of_float32(device: str) -> None:
    """Of numbers that bf16 holds, up to what bf16 keeps of the softmax on a GPU."""
    hidden, weight, targets = (x.detach().bfloat16().float() if x.is_floating_point() else x for x in drawn(8))
    hidden, weight = hidden.to(device).requires_grad_(), weight.to(device).requires_grad_()
    targets = targets.to(device)
    expected = torch.autograd.grad(head.mean_nats(hidden, weight, targets), (hidden, weight))
    with torch.autocast(device, torch.bfloat16):
        loss = head.mean_nats(hidden, weight, targets)
    found = torch.autograd.grad(loss, (hidden, weight))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert torch.allclose(one, other, atol=1e-6 if device == "cpu" else 5e-3)


def test_a_model_held_in_bf16_has_float32_scores_and_gradients_of_its_own_dtype() -> None:
    hidden, weight, targets = (x.detach().bfloat16() if x.is_floating_point() else x for x in drawn(4))
    hidden.requires_grad_()
    loss = head.mean_nats(hidden, weight, targets)
    loss.backward()
    assert loss.dtype == head.logits(hidden, weight).dtype == torch.float32
    assert torch.allclose(loss, F.cross_entropy(hidden.float() @ weight.float().T, targets))
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16
