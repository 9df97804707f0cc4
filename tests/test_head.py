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


@pytest.mark.parametrize("n", [1, 3, 4, 5, 17])
def test_loss_and_gradients_are_those_of_cross_entropy(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of four rows (44 logits of 11): fewer than one, one, one and a part, several and a part."""
    monkeypatch.setattr(head, "CHUNK", 44)
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
    monkeypatch.setattr(head, "CHUNK", 44)
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


def test_under_autocast_the_product_is_bf16_and_the_loss_float32() -> None:
    hidden, weight, targets = drawn(8)
    with torch.autocast("cpu", torch.bfloat16):
        loss = head.mean_nats(hidden, weight, targets)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, F.cross_entropy((hidden.bfloat16() @ weight.bfloat16().T).float(), targets))
