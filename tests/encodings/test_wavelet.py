"""Wavelets of the distance against the oracle, and what the choice of scales and shifts means."""

import pytest
import torch
from oracles.data_dependent import wavelet, wavelet_vector
from oracles.draws import HEADS, HERE, WIDTH, K, Q, same
from tiny import layer_scores

from posbench.encodings.base import Shape
from posbench.encodings.wavelet import Wavelet

SHAPE = Shape(layers=2, width=HEADS * WIDTH, heads=HEADS, train_length=8)


@pytest.mark.parametrize(("mother", "name"), [("ricker", "ricker"), ("gaussian", "gauss")])
@pytest.mark.parametrize("scales", [8, 2])
def test_the_scores_equal_the_oracles(mother, name, scales):
    for positions in (HERE, [40 * i + i % 3 for i in HERE], [i / 4 for i in HERE]):
        expected = wavelet(Q, K, positions=positions, scales=scales, mother=name)
        assert same(layer_scores(Wavelet(SHAPE, scales, mother), Q, K, positions), expected, 1e-5)


@pytest.mark.parametrize("distance", [0, 1, 15, 16, 127, 600, 100_000])
def test_the_papers_128_numbers(distance):
    """Eight scales 1 ... 128 times sixteen shifts 0 ... 15, finite and right at any distance."""
    vector = Wavelet(Shape(1, 256, 2, 8)).vectors(torch.tensor(distance))
    assert vector.shape == (128,)
    assert vector.tolist() == pytest.approx(wavelet_vector(distance, width=128), abs=1e-5)


def test_narrow_heads_have_the_same_scales_and_fewer_shifts():
    """A head of 32 holds, of every scale, the first 4 of the 16 shifts."""
    wide, narrow = (Wavelet(Shape(1, width, 1, 8)).vectors(torch.arange(300)) for width in (128, 32))
    assert torch.equal(narrow.unflatten(-1, (8, 4)), wide.unflatten(-1, (8, 16))[..., :4])


def test_each_number_peaks_at_its_shift():
    """w(0) = 1 where the distance is the shift, at every scale, and nowhere more."""
    vectors = Wavelet(Shape(1, 32, 1, 8)).vectors(torch.arange(300)).unflatten(-1, (8, 4))
    for shift in range(4):
        assert (vectors[shift, :, shift] == 1).all()
    assert vectors.max() == 1


def test_far_distances_have_no_vector_left():
    """The widest scale is 128: at 600 it has faded to 1e-3, at 1,000 to 1e-11."""
    vectors = Wavelet(Shape(1, 32, 1, 8)).vectors(torch.tensor([300, 600, 1000]))
    assert vectors[0].abs().max() > 0.1
    assert vectors[1].abs().max() < 1e-3
    assert vectors[2].abs().max() < 1e-10


def test_no_parameters_and_nothing_stored():
    assert not Wavelet(SHAPE).state_dict()


@pytest.mark.parametrize("scales", [0, 3, 32])
def test_scales_that_do_not_divide_the_head_are_refused(scales):
    with pytest.raises(ValueError, match=f"scales must divide the head width 16, which {scales} does not"):
        Wavelet(SHAPE, scales)
    with pytest.raises(ValueError, match="mother must be one of ricker, gaussian, not haar"):
        Wavelet(SHAPE, mother="haar")
