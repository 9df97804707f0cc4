"""T5's relative bias: BIAS-5 of the known faults, and Hugging Face's buckets as the oracle."""

import math

import pytest
import torch
from tiny import decoder, described, ids, logits
from transformers.models.t5.modeling_t5 import T5Attention

from posbench import encodings
from posbench.encodings.base import Shape
from posbench.encodings.t5 import T5

SHAPE = Shape(layers=2, width=32, heads=4, train_length=256)


def test_the_default_buckets():
    """16 exact ones; then 16 equal steps of the logarithm from 16 to 128, the last starting at 113."""
    bucket = T5(SHAPE).bucket
    assert bucket(torch.arange(16)).tolist() == list(range(16))
    asked = torch.tensor([16, 17, 18, 19, 20, 32, 64, 112, 113, 4095])
    assert bucket(asked).tolist() == [16, 16, 16, 17, 17, 21, 26, 30, 31, 31]


@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (32, 100), (64, 300), (16, 50), (8, 17)])
def test_buckets_equal_hugging_faces(buckets, far):
    """Their relative position is key - query, ours the distance query - key."""
    distance = torch.arange(5000)
    theirs = T5Attention._relative_position_bucket(-distance, False, buckets, far)
    assert torch.equal(T5(SHAPE, buckets, far).bucket(distance), theirs)


def test_a_bucket_that_starts_at_a_whole_number_starts_there():
    """32 buckets to 256: 16 steps of 2^(1/4) from 16, so 32, 64 and 128 open buckets 20, 24 and 28 exactly.

    24 buckets to 96: 12 steps of 2^(1/4) from 12, where the floats of Python say 47.99999999999999 for 48.
    """
    bucket = T5(SHAPE, 32, 256).bucket
    assert bucket(torch.tensor([31, 32, 63, 64, 127, 128])).tolist() == [19, 20, 23, 24, 27, 28]
    assert 47.9 < T5(SHAPE, 24, 96).starts[19] < 48
    assert T5(SHAPE, 24, 96).bucket(torch.tensor([47, 48])).tolist() == [19, 20]


def test_the_bias_equals_a_double_loop():
    """Per head and pair of positions: the table at the formula's bucket, logarithm and all."""
    t5 = T5(SHAPE, buckets=8, max_distance=20)
    with torch.no_grad():
        t5.table.copy_(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    bias = t5.bias((torch.arange(40)[:, None] - torch.arange(40)[None, :]).clamp(min=0))
    for i in range(40):
        for j in range(i + 1):
            r = i - j
            b = r if r < 4 else min(7, 4 + math.floor(4 * math.log(r / 4) / math.log(20 / 4)))
            assert torch.equal(bias[:, i, j], t5.table[b])


def test_one_table_for_all_layers():
    """32 x heads numbers however deep the model is."""
    deep = T5(Shape(layers=12, width=96, heads=12, train_length=8))
    assert sum(p.numel() for p in deep.parameters()) == 384
    assert deep.for_layer(0) is deep.for_layer(11)


def test_at_step_0_the_model_is_none():
    """The table starts at zero and everything else is drawn alike, so the logits are those of `none`."""
    t5, none, tokens = decoder(("t5", {})), decoder(("none", {})), ids(20)
    t5.encoding = encodings.build(described("t5"), SHAPE)
    assert torch.allclose(logits(t5, tokens), logits(none, tokens), atol=1e-5)


@pytest.mark.parametrize(("length", "trained"), [(64, 27), (112, 31), (113, 31), (114, 32), (512, 32)])
def test_short_training_lengths_leave_buckets_untrained(length, trained):
    """Length L holds distances to L - 1: bucket 31 opens at 113, and at L = 64 none of 27-31 gets a gradient."""
    t5 = T5(SHAPE)
    assert t5.trained_buckets(length) == trained
    t5.bias(torch.arange(length)).sum().backward()
    assert (t5.table.grad.abs().sum(1) > 0).sum() == trained


@pytest.mark.parametrize(
    ("length", "said"),
    [(64, "buckets 27-31 are never trained"), (113, "bucket 31 is never trained"), (114, ""), (128, "")],
)
def test_t5_says_which_buckets_its_training_length_never_reaches(length, said):
    caveat = T5(Shape(layers=2, width=32, heads=4, train_length=length)).caveat
    assert caveat.startswith(said)
    assert bool(caveat) == bool(said)


@pytest.mark.parametrize("name", ["none", "sinusoidal", "learned", "rope", "alibi", "shaw"])
def test_encodings_that_leave_nothing_untrained_say_nothing(name):
    assert encodings.build(described(name), Shape(layers=2, width=32, heads=4, train_length=64)).caveat == ""


def test_impossible_buckets_are_refused():
    with pytest.raises(ValueError, match="even number from 2 on, not 7"):
        T5(SHAPE, buckets=7)
    with pytest.raises(ValueError, match="above buckets / 2 = 16, not 16"):
        T5(SHAPE, max_distance=16)
