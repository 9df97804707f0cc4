"""FIRE against the oracle and against its network run as one; what depends on the query's position, and the cost."""

import pytest
import torch
from oracles.distance_biases import fire
from oracles.draws import HEADS, HERE, WIDTH, K, Q, same
from tiny import decoder, ids, layer_scores, logits
from torch.utils._python_dispatch import TorchDispatchMode

from posbench.encodings.base import Shape
from posbench.encodings.fire import Fire

SHAPE = Shape(layers=3, width=HEADS * WIDTH, heads=HEADS, train_length=16)


def drawn(seed=0, shape=SHAPE, **own):
    """With a network whose ReLUs switch all over the place, some of them never."""
    e = Fire(shape, **own)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in e.layers:
            for parameter in (*layer.into.parameters(), *layer.out.parameters()):
                parameter.normal_(generator=generator)
    return e


def bias(layer, q_pos, k_pos):
    """The bias alone (H, Q, S)."""
    return layer.scores(torch.zeros(()), None, None, q_pos[None], k_pos[None], {}, slice(0))[0]


@pytest.mark.parametrize(("c", "multiplier", "threshold"), [(0.1, 1.0, 256), (-2.0, -0.5, 8), (0.7, 1.5, 4)])
def test_the_scores_equal_the_oracles(c, multiplier, threshold):
    """Queries before and behind the threshold, signs that the formula drops, gaps and floats in the positions."""
    layer = drawn(threshold=threshold).for_layer(1)
    with torch.no_grad():
        layer.c.fill_(c)
        layer.multiplier.fill_(multiplier)
    own = {"w1": layer.into.weight[:, 0].tolist(), "b1": layer.into.bias.tolist()}
    own |= {"w2": layer.out.weight.tolist(), "b2": layer.out.bias.tolist()}
    for positions in (HERE, [3 * i + i % 2 for i in HERE], [i / 4 for i in HERE]):
        expected = fire(Q, K, positions=positions, c=c, multiplier=multiplier, threshold=threshold, **own)
        assert same(layer_scores(layer, Q, K, positions), expected, 1e-5)


def run(layer, q_pos, k_pos):
    """The network run for every pair, hidden layer and all: (H, Q, S)."""
    distance = (q_pos[:, None] - k_pos).clamp(min=0).float()
    whole = torch.maximum(q_pos.float(), layer.multiplier.abs() * layer.threshold)[:, None]
    share = (layer.c.abs() * distance + 1).log() / ((layer.c.abs() * whole + 1).log() + 1e-6)
    return layer.out(layer.into(share[..., None]).relu()).movedim(-1, 0)


@pytest.mark.parametrize("weights", [None, 0.0, -3.0])
def test_looking_up_lines_equals_running_the_network_with_its_gradients(weights):
    """Also where two input weights are 0 (no knot) and where knots coincide."""
    layer = drawn(threshold=20).for_layer(0)
    if weights is not None:
        with torch.no_grad():
            layer.into.weight[:2] = weights
            layer.into.bias[:2] = 1.0
            layer.into.weight[2:4] = -weights
            layer.into.bias[2:4] = -1.0
    at = torch.arange(60)
    weight = torch.randn(HEADS, 60, 60, generator=torch.Generator().manual_seed(1)).tril()
    results = []
    for form in (bias, run):
        out = form(layer, at, at)
        results.append([out.tril(), *torch.autograd.grad((out * weight).sum(), list(layer.parameters()))])
    for ours, network in zip(*results, strict=True):
        assert torch.allclose(ours, network, rtol=1e-4, atol=1e-4 * network.abs().max().item())


def test_before_the_threshold_only_the_distance_counts_and_behind_it_the_share():
    """T = 16: queries 5 and 9 see one bias at distance 3, query 40 another; 40 and 400 the same at their first key."""
    layer = drawn(threshold=16).for_layer(0)
    at = [bias(layer, torch.tensor([i]), torch.tensor([i - 3]))[:, 0, 0] for i in (5, 9, 40)]
    assert torch.allclose(at[0], at[1], atol=1e-6)
    assert (at[0] - at[2]).abs().max() > 1e-2
    first = [bias(layer, torch.tensor([i]), torch.tensor([0]))[:, 0, 0] for i in (40, 400)]
    assert torch.allclose(first[0], first[1], atol=1e-4)


def test_no_layer_is_asked_for_more_than_it_saw():
    """Shares lie in 0 ... 1 at any length: a bias at 32,768 is one that some pair within 64 has, to 0.1."""
    layer = drawn(threshold=16).for_layer(0)
    near, far = (
        bias(layer, torch.tensor([64]), torch.arange(65)),
        bias(layer, torch.tensor([32768]), torch.arange(32769)),
    )
    assert far.max() < near.max() + 0.1
    assert far.min() > near.min() - 0.1


def test_the_threshold_is_half_the_training_length_and_goes_with_the_weights():
    """A model trained at 16 and built anew for 512 must keep its threshold of 8: it is part of what was learned."""
    trained, built = Fire(SHAPE), Fire(Shape(3, 32, 2, 512))
    assert [layer.threshold for layer in (trained.layers[0], built.layers[0])] == [8, 256]
    built.load_state_dict(trained.state_dict())
    assert built.layers[2].threshold == 8
    assert Fire(SHAPE, threshold=100).layers[0].threshold == 100


def test_the_threshold_does_not_follow_the_model_into_16_bits():
    """256.5 is not a bfloat16 number: a buffer of it would be 256 from then on."""
    half = Fire(Shape(3, 32, 2, 513)).bfloat16()
    assert half.layers[0].threshold == 256.5
    back = Fire(Shape(3, 32, 2, 16))
    back.load_state_dict(half.state_dict())
    assert back.layers[0].threshold == 256.5


def test_queries_before_the_threshold_teach_it_and_those_behind_do_not():
    """A threshold below every position has no say."""
    layer = drawn(threshold=16).for_layer(0)
    gradients = []
    for at in (torch.arange(10), torch.arange(20, 30)):
        (gradient,) = torch.autograd.grad(bias(layer, at, at).tril().sum(), layer.multiplier)
        gradients.append(gradient.item())
    assert gradients[0] != 0
    assert gradients[1] == 0


def test_each_layer_has_a_network_of_its_own_unless_shared():
    """2 x 32 + 33 x 2 + 2 = 132 numbers for two heads."""
    apart, shared = Fire(SHAPE), Fire(SHAPE, shared=True)
    assert sum(p.numel() for p in apart.parameters()) == 3 * 132
    assert sum(p.numel() for p in shared.parameters()) == 132
    assert apart.for_layer(0) is not apart.for_layer(2)
    assert shared.for_layer(0) is shared.for_layer(2)
    assert apart.layers[0].c.item() == pytest.approx(0.1)
    assert apart.layers[0].multiplier.item() == 1


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation gives."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor._base is None:
                self.size = max(self.size, tensor.numel())
        return out


def test_a_block_never_holds_its_hidden_layer():
    """Nothing larger than the scores of the block, H x Q x S; the hidden layer would be 64 / H times that."""
    layer = drawn(hidden=64).for_layer(0)
    q_pos, k_pos = torch.arange(900, 1000), torch.arange(1000)
    with torch.no_grad(), Largest() as largest:
        bias(layer, q_pos, k_pos)
    assert largest.size == HEADS * 100 * 1000


def test_a_threshold_before_the_window_makes_another_model_of_longer_input():
    """Behind the training length the position of the query reaches the logits."""
    model, tokens = decoder(("fire", {"threshold": 16})), ids(60)
    here, there = logits(model, tokens), logits(model, tokens, positions=torch.arange(500, 560)[None])
    assert (here - there).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"hidden": 0}, "hidden must be 1 or more, not 0"),
        ({"threshold": 0}, "threshold must be above 0, not 0"),
        ({"c": 0}, "c must not be 0"),
    ],
)
def test_what_has_no_formula_is_refused(own, message):
    with pytest.raises(ValueError, match=message):
        Fire(SHAPE, **own)
