"""Learned positions: the table, its start, and its end (LEN-1)."""

import pytest
import torch
from tiny import DEVICES

from posbench.encodings.base import Shape
from posbench.encodings.learned import Learned

SHAPE = Shape(layers=1, width=8, heads=2, train_length=4)


def test_gpt2_small_spends_786432_parameters():
    """1,024 positions x width 768."""
    assert Learned(Shape(12, 768, 12, 1024)).table.numel() == 786_432


def test_row_p_is_added_to_the_token_at_p():
    """With zero token vectors the rows themselves come out, in the order of the positions asked for."""
    learned = Learned(SHAPE)
    out = learned.embed(torch.zeros(2, 3, 8), torch.tensor([[2, 0, 3]]))
    assert torch.equal(out, learned.table[[2, 0, 3]].expand(2, 3, 8))


def test_the_table_starts_at_a_variance_of_one_over_the_width():
    """fairseq's N(0, 1/C). 256 x 64 draws: the sample deviation is within 3% of 1/8 (five standard errors)."""
    torch.manual_seed(0)
    assert Learned(Shape(1, 64, 2, 256)).table.std().item() == pytest.approx(1 / 8, rel=0.03)


@pytest.mark.parametrize("device", DEVICES)
def test_no_position_past_the_table(device):
    """The same plain words on every device, before the lookup; and the process goes on."""
    learned = Learned(SHAPE).to(device)
    assert learned.max_length == 4
    with pytest.raises(ValueError, match="learned positions end at length 4; asked for 5"):
        learned.embed(torch.zeros(1, 5, 8, device=device), torch.arange(5, device=device)[None])
    with pytest.raises(ValueError, match="asked for 5"):  # one cached step past the end
        learned.embed(torch.zeros(1, 1, 8, device=device), torch.tensor([[4]], device=device))
    assert learned.embed(torch.zeros(1, 4, 8, device=device), torch.arange(4, device=device)[None]).isfinite().all()


def test_the_table_may_be_longer_than_the_training_length_but_not_shorter():
    assert Learned(SHAPE, length=6).table.shape == (6, 8)
    assert Learned(SHAPE, length=6).max_length == 6
    with pytest.raises(ValueError, match="length 3 is too short for the training length 4"):
        Learned(SHAPE, length=3)
