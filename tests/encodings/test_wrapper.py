"""A wrapper that changes nothing is what it holds; one that changes a hook changes that hook alone."""

from dataclasses import replace

import pytest
import torch
from tiny import CASES, SHAPE, decoder, described, encoding, ids, logits

from posbench import config, encodings
from posbench.compose import compose
from posbench.encodings.base import Encoding
from posbench.encodings.wrapper import Inner, Wrapper
from posbench.errors import UserError
from posbench.identity import from_dict, identity, label, to_dict
from posbench.model import Decoder

WRAPPER = "posbench.encodings.wrapper.Wrapper"


@pytest.mark.parametrize("case", CASES)
def test_a_wrapper_that_changes_nothing_is_what_it_holds(case):
    """Every hook and every fact passes through: the same logits, bit for bit."""
    model, tokens = decoder(case), ids(20)
    expected, inner = logits(model, tokens), model.encoding
    model.encoding = Wrapper(SHAPE, lambda shape: inner)
    assert torch.equal(logits(model, tokens), expected)
    assert model.encoding.hooks == inner.hooks
    for fact in ("max_length", "shift_invariant", "cacheable", "length_sized", "reads_positions", "bounded", "widest",
                 "proportional"):  # fmt: skip
        assert getattr(model.encoding, fact) == getattr(inner, fact)


class Half(Wrapper):
    """Halves the bias of what it holds."""

    def __init__(self, shape, inner: Inner, factor: float = 0.5):
        super().__init__(shape, inner)
        self.factor = factor
        self.own = torch.nn.Parameter(torch.ones(()))

    def bias(self, distance):
        return self.factor * self.inner.bias(distance)


def test_a_wrapper_changes_a_hook_of_the_instance_of_each_layer():
    """shaw has an encoding for each layer: each is wrapped, with its own weights inside and the wrapper's shared."""
    half = Half(SHAPE, lambda shape: encoding(("shaw", {}), shape))
    layers = [half.for_layer(i) for i in range(2)]
    assert all(isinstance(layer, Half) for layer in layers)
    assert layers[0].inner is half.inner.for_layer(0)
    assert layers[1].inner is half.inner.for_layer(1)
    assert layers[0].own is half.own
    assert "bias" in layers[0].hooks


def test_the_instance_of_a_layer_is_made_once_for_what_it_holds():
    """A compiled graph cannot make one, and compiles anew when it meets another; but not for what it held before."""
    half = Half(SHAPE, lambda shape: encoding(("shaw", {}), shape))
    assert half.for_layer(1) is half.for_layer(1)
    assert (half.for_layer(0).layer, half.for_layer(1).layer) == (0, 1)
    before = half.for_layer(1)
    half.inner = encoding(("shaw", {}), seed=1)
    assert half.for_layer(1) is not before
    assert half.for_layer(1).inner is half.inner.for_layer(1)


def test_a_tensor_that_what_it_holds_excuses_is_excused_by_its_new_name():
    inner = Clamped(SHAPE)
    inner.without_gradient = {"strength": "it waits"}
    twice = Wrapper(SHAPE, lambda shape: Wrapper(shape, lambda shape: inner))
    assert twice.without_gradient == {"inner.inner.strength": "it waits"}
    assert twice.without_gradient.keys() == dict(twice.named_parameters()).keys()


class Careful(Wrapper):
    """With facts of its own: some on the class, one from when it is built."""

    cacheable = False
    shift_invariant = False
    caveat = "one."

    def __init__(self, shape, inner):
        super().__init__(shape, inner)
        self.max_length = 77


def test_facts_of_its_own_go_before_those_of_what_it_holds_in_every_layer():
    """And where it has none they are those, caveats one after the other."""
    t5 = replace(SHAPE, train_length=64)
    held = encoding(("t5", {}), t5)
    careful = Careful(t5, lambda shape: held)
    assert (careful.cacheable, careful.shift_invariant, careful.max_length) == (False, False, 77)
    assert careful.caveat == f"one. {held.caveat}"
    assert careful.caveat.startswith("one. buckets 27-31 are")
    around = Wrapper(SHAPE, lambda shape: Careful(shape, lambda shape: encoding(("shaw", {}), shape)))
    for layer in (around, around.for_layer(1), around.for_layer(1).inner):
        assert (layer.cacheable, layer.shift_invariant, layer.max_length, layer.caveat) == (False, False, 77, "one.")


@pytest.mark.parametrize(("name", "length"), [("ssmax", 64), ("scale_invariant", 64), ("dape", 64), ("randomized", 4)])
def test_what_must_be_known_of_an_encoding_must_be_known_of_every_wrapper_of_it(name, length):
    """T5 at 64 leaves buckets alone; randomized positions reach 16 times as far as the window."""
    shape = replace(SHAPE, train_length=length)
    for inner in ("t5", described("ssmax", inner="t5")):
        assert "buckets 27-31 are never trained" in encoding((name, {"inner": inner}), shape).caveat


def test_around_leaves_the_wrapper_as_it_was():
    half = Half(SHAPE, lambda shape: encoding(("alibi", {}), shape))
    other = half.around(encoding(("learned", {})))
    assert other.inner.max_length == 256
    assert type(half.inner) is type(encoding(("alibi", {})))
    assert other.own is half.own


def test_what_it_holds_is_described_by_name_or_by_name_and_parameters(tmp_path, monkeypatch):
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "around.yaml").write_text(f"class: {WRAPPER}\ninner: alibi\n")
    (tmp_path / "encoding" / "itself.yaml").write_text(f"class: {WRAPPER}\ninner: itself\n")
    monkeypatch.setenv("POSBENCH_CONFIGS", str(tmp_path))
    default = compose(["encoding=around"])
    assert label(default.encoding) == "around(alibi)"
    rope = compose(["encoding=around", "encoding.inner={name: rope, base: 500}"])
    assert label(rope.encoding) == "around(rope)"
    built = encodings.build(rope.encoding, SHAPE)
    assert built.hooks == {"embed", "begin", "rotate"}
    # The inner parameters decide the weights: they are in the identity, at their defaults left out.
    inner = identity(rope)["encoding"]["inner"]
    assert inner == {"class": "posbench.encodings.rope.Rope", "base": 500.0}
    twice = compose(["encoding=around", "encoding.inner={name: around, inner: rope}"])
    assert label(twice.encoding) == "around(around(rope))"
    assert from_dict(to_dict(rope)) == rope
    for word, said in [
        ("encoding.inner=ropee", "Did you mean 'rope'"),
        ("encoding.inner={name: rope, bas: 500}", "encoding.bas"),
        ("encoding.inner={base: 500}", "names no encoding"),
        ("encoding.inner=3", "the name of an encoding"),
    ]:
        with pytest.raises(UserError, match=said):
            compose(["encoding=around", word])
    with pytest.raises(UserError, match="holds itself"):
        compose(["encoding=itself"])


class Clamped(Encoding):
    def __init__(self, shape):
        super().__init__(shape)
        self.strength = torch.nn.Parameter(torch.full((shape.heads,), 0.5))

    def constrain(self):
        with torch.no_grad():
            self.strength.clamp_(min=0.01)


def test_constrain_reaches_what_a_wrapper_holds():
    model = Decoder(config.Model(layers=2, width=32, heads=4, hidden=48), 16, Wrapper(SHAPE, Clamped))
    with torch.no_grad():
        model.encoding.inner.strength.fill_(-1.0)
    model.constrain()
    assert (model.encoding.inner.strength == 0.01).all()
