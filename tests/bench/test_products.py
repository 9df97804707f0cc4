"""The matrix products of a step are those that a calculator says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import works

from posbench.bench import cells, products
from posbench.config import Config

CPU = torch.device("cpu")


def test_products_are_recorded_with_both_passes_and_in_their_order():
    """x (5, 3) W (3, 2): forward 5 x 3 x 2, then the gradient of W, 3 x 5 x 2, and none of x, which asks for none."""
    x, weight = torch.rand(5, 3), torch.rand(3, 2, requires_grad=True)
    found = products.record(lambda: (x @ weight).sum().backward())
    assert [(one.left.shape, one.right.shape) for one in found] == [((5, 3), (3, 2)), ((3, 5), (5, 2))]
    assert [one.flops for one in found] == [60, 60]


def test_every_form_of_a_product_is_one():
    a, b, c = torch.rand(2, 4, 3), torch.rand(2, 3, 5), torch.rand(2, 4, 5)
    bias = torch.rand(5)

    def step() -> None:
        torch.baddbmm(c, a, b)
        torch.bmm(a, b)
        torch.addmm(bias, a[0], b[0])
        torch.nn.functional.linear(a, torch.rand(5, 3), bias)
        c[0].addmm_(a[0], b[0])
        torch.rand(4, 3) * torch.rand(4, 3)  # none
        torch.ones(1, 4) @ a[0]  # the sum of its rows

    assert [one.flops for one in products.record(step)] == [240, 240, 120, 240, 120]


def expected(config: Config, tokens: int) -> int:
    """Forward, and twice that in the backward pass: query, key, value, out; gate, up, down; the head."""
    m = config.model
    weights = m.layers * (4 * m.width**2 + 3 * m.width * m.hidden) + works.VOCAB * m.width
    return 3 * 2 * tokens * weights


@pytest.mark.parametrize("encoding", ["none", "rope", "alibi"])
def test_the_products_of_a_step_are_three_times_its_weights_times_its_tokens(encoding: str):
    """2 layers of 4 x 64 x 64 + 3 x 64 x 176 and a head of 64 x 64, 32 tokens: 20 million."""
    config = works.config(encoding)
    found = products.record(cells.prepare(works.cell(config)).eager)
    assert sum(one.flops for one in found) == expected(config, 32) == 20_054_016


def test_parts_that_are_computed_at_once_are_in_the_list_too():
    """1,024 tokens are two parts for two threads, each computed by a thread of its own."""
    config = works.config()
    config = replace(config, train=replace(config.train, batch_tokens=1024, tokens=1024, threads=2))
    found = products.record(cells.prepare(replace(works.cell(config), windows=64)).eager)
    assert sum(one.flops for one in found) == expected(config, 1024)


def test_muons_products_are_products_of_the_step():
    """How many they are is the optimizer's own matter; AdamW has none."""
    config = works.config(method="muon")
    found = products.record(cells.prepare(works.cell(config)).eager)
    assert sum(one.flops for one in found) > expected(config, 32)


def test_a_product_is_run_again_in_the_layout_it_had():
    weight = torch.rand(3, 5)
    [found] = products.record(lambda: torch.rand(4, 5) @ weight.T)
    assert (found.right.shape, found.right.stride) == ((5, 3), (1, 5))
    made = found.right.make(CPU)
    assert (made.shape, made.stride(), made.dtype) == ((5, 3), (1, 5), torch.float32)


def test_the_bound_runs_every_product_of_the_list():
    found = products.record(cells.prepare(works.cell()).eager)
    again = products.record(products.alone(found, CPU))
    assert [(one.left, one.right) for one in again] == [(one.left, one.right) for one in found]
