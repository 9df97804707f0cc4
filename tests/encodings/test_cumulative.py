"""Sums between a key and a query stay exact far out."""

import numpy as np
import pytest
import torch

from posbench.encodings.cumulative import between


@pytest.mark.parametrize("size", [1e-4, 1.0])
def test_sums_at_token_100000_are_as_exact_as_at_the_first(size):
    """Against float64, of neighbours and of the whole window; in a float32 total a step loses four digits."""
    steps = size * torch.rand(1, 100_000, 2, generator=torch.Generator().manual_seed(0))
    near = between(steps, slice(99_996, 100_000))
    exact = steps[0].double().numpy()
    for back in (1, 2, 50, 1000, 99_999):
        expected = exact[100_000 - back :].sum(0)
        assert near[0, :, -1, -1 - back].tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    total = steps.cumsum(1)[0].numpy().astype(np.float32)
    assert np.abs((total[-1] - total[-2]) / exact[-1] - 1).max() > 1e-4


def test_a_query_on_itself_gets_zero_and_the_order_of_rows_is_that_of_queries():
    """Steps 1, 2, 4, 8: from key 1 to query 3 are 4 + 8."""
    sums = between(torch.tensor([1.0, 2, 4, 8]).view(1, 4, 1), slice(2, 4))[0, 0]
    assert sums.tolist() == [[6, 4, 0, -8], [14, 12, 8, 0]]


def test_later_steps_reach_no_bit_of_an_earlier_query():
    steps = torch.randn(1, 300, 2, generator=torch.Generator().manual_seed(1))
    before = between(steps, slice(0, 300))
    steps[:, 200:] += 3.3
    assert torch.equal(before[:, :, :200, :200], between(steps, slice(0, 300))[:, :, :200, :200])
