"""KERPLE: both kernels against the oracles, and the range its parameters are kept in."""

import pytest
import torch
from oracles.distance_biases import kerple_log, kerple_power
from oracles.draws import HEADS, HERE, WIDTH, K, Q, same
from tiny import decoder, encoding, ids, layer_scores

from posbench.encodings.base import Shape
from posbench.encodings.kerple import Kerple

SHAPE = Shape(layers=3, width=HEADS * WIDTH, heads=HEADS, train_length=8)
ORACLES = {"log": kerple_log, "power": kerple_power}
VARIANTS = list(ORACLES)


def with_parameters(variant, p, a):
    kerple = Kerple(SHAPE, variant)
    with torch.no_grad():
        kerple.p.copy_(torch.tensor(p))
        kerple.a.copy_(torch.tensor(a))
    kerple.constrain()
    return kerple


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("p", "a"), [([0.7, 1.9], [0.3, 4.0]), ([2.5, -1.0], [0.001, -2.0])])
def test_the_scores_equal_the_oracles(variant, p, a):
    """The second set is out of range: the oracle clamps it in its formula, we before it is used."""
    for positions in (HERE, [5 * i + i % 3 for i in HERE], [i / 4 for i in HERE]):
        expected = ORACLES[variant](Q, K, positions=positions, p=p, a=a)
        assert same(layer_scores(with_parameters(variant, p, a), Q, K, positions), expected, 1e-4)


@pytest.mark.parametrize(("variant", "kept"), [("log", [0.01, 3.0]), ("power", [0.01, 2.0])])
def test_parameters_come_back_into_range_after_an_update(variant, kept):
    """Both at 0.01 or more; the power, not the factor of a logarithm, at 2 or less. What is inside stays."""
    kerple = with_parameters(variant, [-0.5, 3.0], [0.0, 5.0])
    assert kerple.p.tolist() == pytest.approx(kept)
    assert kerple.a.tolist() == pytest.approx([0.01, 5.0])
    assert with_parameters(variant, [0.5, 1.5], [0.25, 0.75]).p.tolist() == [0.5, 1.5]


def test_a_model_brings_them_back_too():
    """`Decoder.constrain`, which training calls after every update, reaches them."""
    model = decoder(("kerple", {}))
    with torch.no_grad():
        model.encoding.a.fill_(-1.0)
    model.constrain()
    assert model.encoding.a.tolist() == pytest.approx([0.01] * 4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_parameter_at_its_limit_can_leave_it(variant):
    """A clamp inside the formula would have no gradient there; ours pulls both away from 0.01 again."""
    kerple = with_parameters(variant, [0.0, 0.0], [0.0, 0.0])
    kerple.bias(torch.arange(9)).sum().backward()
    assert (kerple.p.grad != 0).all()
    assert (kerple.a.grad != 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_distance_zero_has_no_bias_and_finite_gradients(variant):
    """The derivative of 0^p holds a logarithm of zero."""
    kerple = encoding(("kerple", {"variant": variant}))
    bias = kerple.bias(torch.zeros(3, dtype=torch.long))
    assert (bias == 0).all()
    bias.sum().backward()
    assert kerple.p.grad.isfinite().all()
    assert kerple.a.grad.isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_numbers_a_head_for_all_layers_start_in_range(variant):
    """Uniform: p up to 2, a up to 1, neither at one value; of 1,000 heads the means are 1 and 0.5 within 0.1."""
    torch.manual_seed(0)
    kerple = Kerple(Shape(layers=7, width=1000, heads=1000, train_length=8), variant)
    assert sum(p.numel() for p in kerple.parameters()) == 2000
    assert kerple.for_layer(6) is kerple
    for parameter, top in ((kerple.p, 2), (kerple.a, 1)):
        assert 0.01 <= parameter.min() < 0.1
        assert 0.9 * top < parameter.max() <= top
        assert parameter.mean().item() == pytest.approx(top / 2, abs=0.1)


def test_the_kernels_differ():
    tokens = ids(40)
    log, power = (decoder(("kerple", {"variant": v})).token_losses(tokens[:, :-1], tokens[:, 1:]) for v in VARIANTS)
    assert (log - power).abs().max() > 0.1


def test_another_variant_is_refused():
    with pytest.raises(ValueError, match="variant must be log or power, not root"):
        Kerple(SHAPE, "root")
