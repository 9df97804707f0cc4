"""The matrix products of a step are those that a calculator says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import works

from posbench.bench import cells, products
from posbench.bench.products import Product, Step
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


def of_step(config: Config, tokens: int = 32) -> Step:
    found = cells.prepare(replace(works.cell(config), windows=tokens // config.train.length)).products
    assert found is not None
    return found()


@pytest.mark.parametrize("encoding", ["none", "rope", "alibi"])
def test_the_products_of_a_step_are_three_times_its_weights_times_its_tokens(encoding: str):
    """2 layers of 4 x 64 x 64 + 3 x 64 x 176 and a head of 64 x 64, 32 tokens: 20 million."""
    config = works.config(encoding)
    assert of_step(config).flops == expected(config, 32) == 20_054_016


def in_parts() -> Config:
    """1,024 tokens are two parts for two threads."""
    config = works.config()
    return replace(config, train=replace(config.train, batch_tokens=1024, tokens=1024, threads=2))


def test_the_products_of_parts_that_are_computed_at_once_have_the_shapes_of_the_parts():
    """The gradient of the head is 64 x 512 times 512 x 64 twice, never 64 x 1,024 times 1,024 x 64."""
    config = in_parts()
    found = of_step(config, 1024)
    assert (len(found.parts), found.at_once, found.parts[0] == found.parts[1]) == (2, 2, True)
    assert found.flops == expected(config, 1024)
    sizes = [size for one in found.products for size in (*one.left.shape, *one.right.shape)]
    assert max(sizes) == 512


def test_a_batch_that_is_one_part_is_recorded_whole():
    found = of_step(works.config())
    assert (len(found.parts), found.at_once) == (1, 1)


def test_muons_products_are_products_of_the_update():
    """How many they are is the optimizer's own matter; AdamW has none."""
    muon, adamw = of_step(works.config(method="muon")), of_step(works.config())
    assert muon.parts == adamw.parts
    assert muon.update
    assert not adamw.update


def test_a_product_is_run_again_in_the_layout_it_had():
    weight = torch.rand(3, 5)
    [found] = products.record(lambda: torch.rand(4, 5) @ weight.T)
    assert (found.right.shape, found.right.stride) == ((5, 3), (1, 5))
    made = found.right.make(CPU)
    assert (made.shape, made.stride(), made.dtype) == ((5, 3), (1, 5), torch.float32)


def test_the_bound_runs_every_product_of_the_list():
    found = of_step(works.config(method="muon"))
    again = products.record(found.run(CPU))
    assert [(one.left, one.right) for one in again] == [(one.left, one.right) for one in found.products]


def test_parts_at_once_run_every_product_too_and_the_update_after_them(monkeypatch: pytest.MonkeyPatch):
    """Each thread sees its own products; a part's are all done by one."""
    step, done = of_step(in_parts(), 1024), []

    def prepare(product: Product, device: torch.device) -> Callable[[], None]:
        return lambda: done.append((product, threading.get_ident()))

    monkeypatch.setattr(Product, "prepare", prepare)
    replace(step, update=step.parts[0][:1]).run(CPU, at_once=2)()
    assert Counter(product for product, _ in done) == Counter([*step.products, step.parts[0][0]])
    assert done[-1] == (step.parts[0][0], threading.get_ident())
    assert threading.get_ident() not in {thread for _, thread in done[:-1]}
