"""What is asked of every extension of configs/extension: a new file is held to it without an edit here."""

import doctest
import importlib
import inspect
import pkgutil
from dataclasses import replace

import pytest
import torch
from tiny import FILES, SHAPE, decoder, ids, logits

from posbench import classes, extensions
from posbench.compose import load_group
from posbench.encodings.base import Encoding
from posbench.encodings.wrapper import Wrapper
from posbench.errors import UserError
from posbench.model import Cache
from posbench.search_path import choices

LENGTH = 16
SMALL = replace(SHAPE, train_length=LENGTH)
FACTORS = [1.0, 1.5, 2.0, 4.0]
"""One for each pair of a head of SMALL."""

NAMES = [name for name in choices("extension") if name != "none"]
ENCODINGS = ("rope", "alibi", "none", "shaw", "t5")
"""One of each kind an extension asks for; `EVERYWHERE` has them all."""


def described(name, **own):
    """An extension as YAML, its factors given where they would be searched."""
    found = load_group("extension", name)
    return found | ({"factors": FACTORS} if found.get("factors") == "search" else {}) | own


def applying(encodings):
    """(extension, encoding) for every pair that belongs together."""
    for encoding in encodings:
        held = decoder((encoding, {}), SMALL).encoding
        for name in NAMES:
            if extensions.build(described(name)).applies_to(held):
                yield pytest.param(name, encoding, id=f"{name}-{encoding}")


APPLYING = list(applying(ENCODINGS))
EVERYWHERE = list(applying([name for name in FILES if decoder((name, {}), SMALL).encoding.max_length is None]))


def extended(name, encoding, length=4 * LENGTH, wrap=False, **own):
    """A model, and a copy of it under the extension."""
    model, other = decoder((encoding, {}), SMALL), decoder((encoding, {}), SMALL)
    inner = other.encoding
    held = Wrapper(SMALL, lambda shape: inner) if wrap else inner
    other.encoding = extensions.extend(described(name, **own), held, encoding, LENGTH, length)
    return model, other


def test_every_extension_has_an_encoding_here():
    assert {param.values[0] for param in APPLYING} == set(NAMES)


@pytest.mark.parametrize(("name", "encoding"), EVERYWHERE)
def test_no_knob_is_inert(name, encoding):
    """At four times the trained length the logits are others than the trained encoding's, by more than 1e-3."""
    model, other = extended(name, encoding)
    tokens = ids(4 * LENGTH)
    before, after = logits(model, tokens), logits(other, tokens)
    assert (before - after).abs().max() > 1e-3
    assert after.isfinite().all()


@pytest.mark.parametrize(("name", "encoding"), EVERYWHERE)
def test_factor_1_is_the_trained_encoding(name, encoding):
    """Of abf, that is the trained base; of log-n, windows up to the trained length, as of dynamic NTK beyond which
    factor 1 multiplies by length / trained length; of longrope with the short list."""
    neutral = {"abf": {"base": 10000}, "logn": {}}.get(name, {"factor": 1})
    model, other = extended(name, encoding, **neutral)
    for length in (LENGTH // 2, LENGTH):
        assert torch.allclose(logits(model, ids(length)), logits(other, ids(length)), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "encoding"), [one for one in APPLYING if extensions.build(described(one.values[0])).takes_factor]
)
def test_auto_is_the_length_over_the_trained_one(name, encoding):
    built = extensions.build(described(name))
    auto = extended(name, encoding)[1]
    given = extended(name, encoding, factor=built.resolve("auto", LENGTH, 4 * LENGTH))[1]
    assert torch.equal(logits(auto, ids(40)), logits(given, ids(40)))


@pytest.mark.parametrize(("name", "encoding"), EVERYWHERE)
def test_the_trained_encoding_stays_as_it_was_and_the_parameters_are_shared(name, encoding):
    model = decoder((encoding, {}), SMALL)
    trained, tokens = model.encoding, ids(4 * LENGTH)
    before, state = logits(model, tokens), list(model.state_dict())
    model.encoding = extensions.extend(described(name), trained, encoding, LENGTH, 4 * LENGTH)
    logits(model, tokens)
    assert list(model.state_dict()) == state
    shared = list(zip(model.encoding.parameters(), trained.parameters(), strict=True))
    assert all(one is other for one, other in shared)
    model.encoding = trained
    assert torch.equal(logits(model, tokens), before)


@pytest.mark.parametrize(("name", "encoding"), APPLYING)
def test_inside_a_wrapper_it_changes_what_is_held(name, encoding):
    plain, wrapped = extended(name, encoding)[1], extended(name, encoding, wrap=True)[1]
    for length in (LENGTH, 4 * LENGTH):
        assert torch.equal(logits(plain, ids(length)), logits(wrapped, ids(length)))
    assert wrapped.encoding.cacheable == plain.encoding.cacheable


@pytest.mark.parametrize(("name", "encoding"), EVERYWHERE)
def test_a_long_window_leaves_no_trace(name, encoding):
    """STATE-1: short, long, short again; the same bits."""
    model = extended(name, encoding)[1]
    short, long = ids(10), ids(4 * LENGTH)
    first, there, again = (logits(model, tokens) for tokens in (short, long, short))
    assert torch.equal(first, again)
    assert torch.equal(logits(extended(name, encoding)[1], long), there)


@pytest.mark.parametrize(("name", "encoding"), APPLYING)
def test_shift_invariance_is_kept(name, encoding):
    model = extended(name, encoding)[1]
    here = logits(model, ids(24))
    there = logits(model, ids(24), positions=torch.arange(100, 124)[None])
    assert torch.allclose(here, there, atol=1e-4) == model.encoding.shift_invariant


@pytest.mark.parametrize(("name", "encoding"), APPLYING)
def test_a_cache_gives_what_one_pass_gives_or_is_refused(name, encoding):
    """STATE-3: keys that were turned for a shorter input would be read under frequencies of a longer one."""
    model, tokens = extended(name, encoding)[1], ids(4 * LENGTH)
    cache = Cache(SMALL.layers)
    if not model.encoding.cacheable:
        with pytest.raises(ValueError, match="cannot decode with a cache"):
            logits(model, tokens, positions=None, cache=cache)
        return
    whole = logits(model, tokens)
    parts = [logits(model, part, positions=None, cache=cache) for part in tokens.split([10, 30, 24], dim=1)]
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_where_it_does_not_apply_it_is_refused_with_those_that_do(name):
    built = extensions.build(described(name))
    held = {encoding: decoder((encoding, {}), SMALL).encoding for encoding in ENCODINGS}
    refused = [encoding for encoding in ENCODINGS if not built.applies_to(held[encoding])]
    assert bool(refused) == (name != "logn")
    for encoding in refused[:1]:
        with pytest.raises(UserError) as error:
            extensions.extend(described(name), held[encoding], encoding, LENGTH, 4 * LENGTH)
        assert error.value.message == f"The extension '{name}' does not apply to {encoding}."
        assert error.value.hint == f"extension: {', '.join(extensions.applicable(held[encoding]))}"


def test_which_extensions_apply_to_which_encoding():
    lists = {encoding: extensions.applicable(decoder((encoding, {}), SMALL).encoding) for encoding in ENCODINGS}
    turning = ["abf", "dynamic_ntk", "llama3", "longrope", "ntk", "ntk_by_parts", "pi", "yarn"]
    assert lists == {
        "rope": sorted([*turning, "logn", "none"]),
        "alibi": ["logn", "none", "pi"],
        "none": ["logn", "none", "temperature"],
        "shaw": ["logn", "none"],
        "t5": ["logn", "none"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_yaml_states_every_parameter_with_the_default_of_the_class(name):
    own = {key: value for key, value in load_group("extension", name).items() if key not in ("name", "class")}
    cls = extensions.find_class(load_group("extension", name)["class"])
    assert own.pop("factor", None) == ("auto" if cls.takes_factor else None)
    assert own == {parameter.name: parameter.default for parameter in inspect.signature(cls).parameters.values()}


@pytest.mark.parametrize("name", NAMES)
def test_its_docstring_says_what_it_does_and_where_it_differs_from_the_paper(name):
    cls = extensions.find_class(load_group("extension", name)["class"])
    for word in ("Formula: ", "Paper: ", "Differences from the paper: ", "parameter", "Worked number: ", ">>> "):
        assert word in cls.__doc__
    assert cls.paper.startswith("https://arxiv.org/abs/")
    assert cls.paper in cls.__doc__
    assert cls.acts_on


@pytest.mark.parametrize("module", [m.name for m in pkgutil.iter_modules(extensions.__path__)])
def test_its_worked_number_is_true(module):
    failed, tried = doctest.testmod(importlib.import_module(f"posbench.extensions.{module}"))
    assert failed == 0
    assert tried > 0 or module == "base"


def test_the_words_of_an_annotation_are_true():
    assert doctest.testmod(classes) == doctest.TestResults(failed=0, attempted=4)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("yarn", {"rapm": 1}, "There is no setting 'extension.rapm'. Did you mean 'extension.ramp'?"),
        ("yarn", {"ramp": "steep"}, "extension.ramp=steep does not fit 'yarn'.\nIt must be code or paper."),
        ("yarn", {"factor": "much"}, "extension.factor=much does not fit 'yarn'.\nIt must be a number or auto."),
        ("yarn", {"magnitude": -1}, "The extension 'yarn' cannot be built: magnitude must be auto or a number above 0"),
        ("yarn", {"beta_fast": 1}, "The extension 'yarn' cannot be built: beta_fast=1 must be above beta_slow=1"),
        ("llama3", {"high": 1}, "The extension 'llama3' cannot be built: high=1 must be above low=1"),
        ("llama3", {"low_freq_factor": 1}, "The extension 'llama3' has no setting 'low_freq_factor'."),
        ("abf", {"factor": 4}, "There is no setting 'extension.factor'."),
        ("abf", {"base": 0}, "The extension 'abf' cannot be built: base must be above 0"),
        ("longrope", {"factors": [1, "a"]}, "extension.factors=[1, 'a'] does not fit 'longrope'."),
        ("longrope", {"factors": [1, 0]}, "The extension 'longrope' cannot be built: factors must be numbers above 0"),
        ("temperature", {"coefficient": -1}, "The extension 'temperature' cannot be built: coefficient must be 0"),
        ("none", {"factor": 4}, "There is no setting 'extension.factor'."),
    ],
)
def test_a_wrong_parameter_is_named(name, change, message):
    with pytest.raises(UserError) as error:
        extensions.build(load_group("extension", name) | change)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "own", "message"),
    [
        ("pi", {"factor": 0.5}, "cannot be built: factor must be auto or a number of 1 or more, not 0.5."),
        ("pi", {"factor": float("inf")}, "extension.factor=inf does not fit 'pi'."),
        ("longrope", {"factors": [2.0]}, "cannot extend rope: factors needs one number for each of 4 pairs, not 1."),
        ("longrope", {"factors": "search"}, "cannot extend rope: its factors must be given as a list"),
    ],
)
def test_what_does_not_fit_the_encoding_is_said_before_any_pass(name, own, message):
    with pytest.raises(UserError) as error:
        extended(name, "rope", **own)
    assert message in error.value.message


def test_a_changed_base_needs_more_than_one_pair():
    narrow = replace(SHAPE, width=2, heads=1)
    for name in ("ntk", "dynamic_ntk"):
        with pytest.raises(UserError, match="a changed base needs a head width above 2"):
            extensions.extend(described(name), decoder(("rope", {}), narrow).encoding, "rope", LENGTH, 32)


@pytest.mark.parametrize("name", ["logn", "longrope"])
def test_what_divides_by_a_logarithm_needs_one(name):
    """Of the trained length."""
    with pytest.raises(UserError, match="a trained length of 1 has no logarithm"):
        extensions.extend(described(name), decoder(("rope", {}), SMALL).encoding, "rope", 1, 32)


def test_a_class_of_the_users_own_extends(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from posbench.extensions.base import Frequencies\n"
        "class Mine(Frequencies):\n"
        "    def __init__(self, add: float = 0.0):\n"
        "        self.add = add\n"
        "    def angles(self, trained, factor, length):\n"
        "        return trained.frequencies + self.add, 1.0\n"
    )
    mine = {"name": "mine", "class": f"{tmp_path / 'mine.py'}:Mine", "factor": "auto", "add": 1.0}
    rope = decoder(("rope", {}), SMALL).encoding
    assert extensions.extend(mine, rope, "rope", 16, 64).angles(64)[0][0] == 2.0
    with pytest.raises(UserError, match="is not an extension"):
        extensions.build({"name": "x", "class": "posbench.encodings.rope.Rope"})


def test_a_layer_of_its_own_is_scaled_too():
    """Shaw has an instance for each layer; a wrapper around it makes one at each call."""
    shaw = decoder(("shaw", {}), SMALL).encoding
    for held in (shaw, Wrapper(SMALL, lambda shape: shaw)):
        new = extensions.extend(described("logn"), held, "shaw", 16, 256)
        for layer in range(SMALL.layers):
            own = new.for_layer(layer)
            assert "scale" in own.hooks
            assert own.scale(torch.tensor([[16, 256]]), 256)[0, 0].tolist() == [1.0, 2.0]
    assert not any("scale" in part.hooks for part in shaw.modules() if isinstance(part, Encoding))
