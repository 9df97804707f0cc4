"""What is timed: that the numbers a cell computes with are such as a trained model's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import works
from torch import nn

from posbench.bench import cells


def test_weights_of_evaluation_are_drawn_wide_and_nothing_else_is_drawn_with_them():
    """Of 256 inputs of variance 1 the sum has variance 1 where each weight has 1 / 256: a deviation of 1 / 16."""
    built = nn.Sequential(nn.Linear(256, 512, bias=False), nn.LayerNorm(512), nn.Embedding(8, 4))
    kept = {name: weight.clone() for name, weight in built.state_dict().items()}
    torch.manual_seed(7)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    cells.widen(built)
    assert torch.equal(torch.rand(3), drawn)
    assert built[0].weight.std().item() == pytest.approx(1 / 16, rel=0.02)
    changed = [name for name, weight in built.state_dict().items() if not torch.equal(weight, kept[name])]
    assert changed == ["0.weight"]


@pytest.mark.parametrize(
    ("length", "kernel"),
    [(4095, "strided"), (4096, "strided; keys too far away to count are left out")],
)
def test_a_row_says_where_keys_were_left_out(length: int, kernel: str):
    prepared = cells.prepare(replace(works.cell(works.config("alibi"), task="eval", length=length), windows=1))
    prepared.call()
    assert prepared.kernel() == kernel
