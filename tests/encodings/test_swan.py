"""SWAN: which layers are global, what the local ones see, and the factor past the training length."""

import math
from dataclasses import replace

import pytest
import torch
from oracles.draws import HEADS, HERE, WIDTH, K, Q, same
from oracles.temperatures import swan, swan_layers
from tiny import SHAPE, decoder, ids, layer_scores, logits

from posbench.encodings.base import Encoding, Shape
from posbench.encodings.rope import Rope
from posbench.encodings.swan import Swan
from posbench.encodings.window import Sliding
from posbench.encodings.wrapper import Wrapper
from posbench.errors import UserError
from posbench.extensions.pi import Pi
from posbench.model import Cache

ORACLES = Shape(layers=8, width=HEADS * WIDTH, heads=HEADS, train_length=12)


def kinds(e: Swan) -> list[str]:
    return ["local" if isinstance(e.for_layer(i), Rope) else "global" for i in range(e.shape.layers)]


@pytest.mark.parametrize("period", [1, 2, 3, 4, 9])
def test_one_layer_in_a_period_is_global_the_first_one_first(period):
    assert kinds(Swan(ORACLES, period=period)) == swan_layers(8, period=period)
    assert kinds(Swan(ORACLES)) == ["global", "local", "local", "local"] * 2


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("window", [1, 4, 12])
def test_the_scores_of_both_kinds_equal_the_oracles(window, layout):
    """Of a window of 1 the query sees its own key alone."""
    e = Swan(ORACLES, window=window, layout=layout)
    for layer, kind in enumerate(["global", "local"]):
        expected = swan(Q, K, positions=HERE, kind=kind, window=window, layout=layout)
        got = layer_scores(e.for_layer(layer), Q, K, HERE)
        assert same(got, expected, 1e-5)
        seen = [sum(x is not None for x in row) for row in got[0]]
        assert seen == [min(i + 1, window) if kind == "local" else i + 1 for i in HERE]


def test_past_the_training_length_the_scores_of_global_layers_grow_with_the_logarithm():
    """Trained at 4: the query that sees 8 keys by ln 8 / ln 4 = 1.5, those up to 4 not at all."""
    e = Swan(replace(ORACLES, train_length=4))
    expected = swan(Q, K, positions=HERE, kind="global", window=2)
    factors = [max(1, math.log(i + 1) / math.log(4)) for i in HERE]
    assert factors[:4] == [1] * 4
    assert factors[7] == pytest.approx(1.5)
    expected = [[[factors[i] * x for x in row[: i + 1]] for i, row in enumerate(head)] for head in expected]
    assert same(layer_scores(e.for_layer(0), Q, K, HERE), expected, 1e-5)
    off = Swan(replace(ORACLES, train_length=4), scaling=False).for_layer(0)
    assert same(layer_scores(off, Q, K, HERE), swan(Q, K, positions=HERE, kind="global", window=2), 1e-5)


def test_up_to_the_training_length_the_factor_is_1_and_reaches_the_model_past_it():
    shape = replace(SHAPE, train_length=24)
    with_factor, without = (decoder(("swan", {"scaling": on}), shape) for on in (True, False))
    apart = (logits(with_factor, ids(40)) - logits(without, ids(40))).abs().amax(-1)[0]
    assert (apart[:24] < 1e-5).all()
    assert (apart[24:] > 1e-4).all()


@pytest.mark.parametrize(("length", "size"), [(4096, 512), (1024, 512), (128, 64), (3, 1), (1, 1)])
def test_the_default_window_was_seen_in_training(length, size):
    assert Swan(replace(ORACLES, train_length=length)).for_layer(1).window(1) == Sliding(size)


class NoneThenRope(Encoding):
    """Its first layer is none's, the second rope's."""

    def __init__(self, shape):
        super().__init__(shape)
        self.rope, self.none = Rope(shape), Encoding(shape)

    def for_layer(self, layer):
        return self.rope if layer else self.none


def test_the_parts_are_none_and_rope():
    """All layers global: none. Of two layers one of each, and a window that hides nothing: none's and rope's."""
    tokens = ids(40)
    assert torch.equal(logits(decoder(("swan", {"period": 1})), tokens), logits(decoder(("none", {})), tokens))
    mixed = decoder(("none", {}))
    mixed.encoding = NoneThenRope(SHAPE)
    assert (logits(decoder(("swan", {})), tokens) - logits(mixed, tokens)).abs().max() < 1e-5
    narrow = logits(decoder(("swan", {"window": 39})), tokens)
    assert (narrow - logits(mixed, tokens))[:, 39].abs().max() > 1e-5


def test_decoding_past_window_and_training_length_equals_one_pass():
    model, tokens = decoder(("swan", {"window": 5}), replace(SHAPE, train_length=16)), ids(40)
    cache = Cache(SHAPE.layers)
    parts = [logits(model, piece, cache=cache) for piece in tokens.split([12, 1, 1, 20, 6], dim=1)]
    assert (torch.cat(parts, dim=1) - logits(model, tokens)).abs().max() < 1e-5


def test_what_extends_rope_leaves_windows_that_were_trained_as_they_are():
    """Their distances never grow, by itself and in a wrapper; a window wider than the training has much to stretch."""
    for held in (Swan(ORACLES, window=12), Wrapper(ORACLES, lambda shape: Swan(shape, window=12))):
        assert not Pi().applies_to(held)
        (local,) = (part for part in Pi().extend(held, 12, 48).modules() if isinstance(part, Rope))
        assert local.angles(48)[0][0] == 1
    wide = Swan(ORACLES, window=13)
    assert Pi().applies_to(wide)
    new = Pi().extend(wide, 12, 48)
    expected = swan(Q, K, positions=[i / 4 for i in HERE], kind="local", window=13)
    assert same(layer_scores(new.for_layer(1), Q, K, HERE), expected, 1e-5)
    assert kinds(new) == kinds(wide)


def test_a_checkpoint_of_the_other_layout_is_refused():
    weights = Swan(ORACLES, layout="interleaved").state_dict()
    with pytest.raises(UserError, match="layout 'interleaved' and cannot be read as 'half'"):
        Swan(ORACLES).load_state_dict(weights)


def test_settings_that_cannot_be_are_refused():
    for own, said in (({"period": 0}, "period must be 1 or more"), ({"window": 0}, "window must be 1 or more")):
        with pytest.raises(ValueError, match=said):
            Swan(ORACLES, **own)
