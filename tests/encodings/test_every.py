"""What is asked of every encoding of configs/encoding: a new file is held to it without an edit here."""

import copy
import doctest
import importlib
import inspect
import pkgutil
from dataclasses import replace

import pytest
import torch
from tiny import CASES, FILES, SHAPE, attention, decoder, described, encoding, ids, logits

from posbench import encodings


def no_mask(case, layer, x, weights):
    """One layer of attention without a causal mask: (1, T, C) -> (1, T, C)."""
    e = encoding(case).for_layer(layer)
    at = torch.arange(x.shape[1])[None]
    x = encoding(case).embed(x, at)
    q, k, v = ((x @ w).unflatten(2, (4, -1)).transpose(1, 2) for w in weights)
    q, k = e.rotate(q, k, e.begin(at, x.shape[1]))
    out = attention(e, q, k, v, at, at, e.state(x), mask=False)
    return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("case", CASES)
def test_plain_attention_is_permutation_equivariant_and_an_encoding_ends_that(case):
    """Attention(PX) = P Attention(X) exactly when nothing tells order; an encoding that leaves it so in each layer does
    nothing."""
    generator = torch.Generator().manual_seed(0)
    x, weights = torch.randn(1, 12, 32, generator=generator), torch.randn(3, 32, 32, generator=generator) * 32**-0.5
    order = torch.randperm(12, generator=generator)
    blind = [
        torch.allclose(no_mask(case, i, x[:, order], weights), no_mask(case, i, x, weights)[:, order], atol=1e-5)
        for i in range(SHAPE.layers)
    ]
    assert all(blind) == (not encoding(case).hooks)


@pytest.mark.parametrize("case", CASES)
def test_no_stored_tensor_depends_on_a_length_unless_it_says_so(case):
    """Weights trained at 64 load at 128, strictly; a table of positions (learned) is the exception."""
    stored = [
        {n: t.shape for n, t in encoding(case, replace(SHAPE, train_length=L)).state_dict().items()} for L in (64, 128)
    ]
    assert (stored[0] == stored[1]) == (not encoding(case).length_sized)


@pytest.mark.parametrize("case", [case for case in CASES if "bias" in encoding(case.values[0]).hooks])
def test_a_bias_after_a_long_one_equals_a_fresh_one_and_is_zero_or_learned_at_the_diagonal(case):
    used, fresh = encoding(case), encoding(case)
    used.bias(torch.arange(4096))
    assert torch.equal(used.bias(torch.arange(64)), fresh.bias(torch.arange(64)))
    assert (used.bias(torch.tensor(0)) == 0).all() or list(used.parameters())


@pytest.mark.parametrize("case", CASES)
def test_positions_are_read_anew_at_every_pass(case):
    """Same length at offsets 0 and 107, in turn and back: an encoding that tells absolute order tells the difference.

    One may count from a threshold on (fire), so the second offset is not among the first positions."""
    model, tokens = decoder(case), ids(10)
    at = [logits(model, tokens, positions=torch.arange(p, p + 10)[None]) for p in (0, 107, 0)]
    assert torch.equal(at[0], at[2])
    assert torch.allclose(at[0], at[1], atol=1e-4) == model.encoding.shift_invariant


@pytest.mark.parametrize("case", CASES)
def test_position_ids_play_a_role_where_it_says_so(case):
    """Gaps between the tokens change the logits, or no bit of them beside what the kernels round."""
    model, tokens = decoder(case), ids(20)
    near, far = (logits(model, tokens, positions=step * torch.arange(20)[None]) for step in (1, 3))
    assert torch.allclose(near, far, atol=1e-4) != model.encoding.reads_positions


@pytest.mark.parametrize("case", CASES)
def test_a_copy_is_a_whole_one(case):
    """Extensions change a copy: it works alone, and what is done to it does not reach the original."""
    model, tokens = decoder(case), ids(20)
    before, original = logits(model, tokens), model.encoding
    model.encoding = copy.deepcopy(original)
    assert model.encoding.hooks == original.hooks
    assert torch.equal(logits(model, tokens), before)
    with torch.no_grad():
        for parameter in model.encoding.parameters():
            parameter += 1
    model.encoding = original
    assert torch.equal(logits(model, tokens), before)


@pytest.mark.parametrize("name", FILES)
def test_the_yaml_states_every_parameter_with_the_default_of_the_class(name):
    """The YAML is what a user reads; the signature is what a caller from Python gets. They must say the same."""
    own = {key: value for key, value in described(name).items() if key not in ("name", "class")}
    signature = list(inspect.signature(encodings.find_class(described(name)["class"])).parameters.values())[1:]
    held = own.pop("inner", None)
    assert held is None or held["name"] in FILES
    assert own == {parameter.name: parameter.default for parameter in signature if parameter.name != "inner"}


@pytest.mark.parametrize("name", FILES)
def test_its_docstring_says_what_it_does_and_where_it_differs_from_the_paper(name):
    cls = encodings.find_class(described(name)["class"])
    assert cls.__doc__ is not None
    for word in ("Formula: ", "Paper: ", "Differences from the paper: ", "parameters", ">>> "):
        assert word in cls.__doc__
    built = encoding((name, {}))
    assert built.paper.startswith("https://arxiv.org/abs/")
    assert built.paper in cls.__doc__
    assert built.acts_on


@pytest.mark.parametrize("module", [m.name for m in pkgutil.iter_modules(encodings.__path__)])
def test_its_worked_number_is_true(module):
    """Doctests, so that no sentence with a number in it can rot."""
    failed, tried = doctest.testmod(importlib.import_module(f"posbench.encodings.{module}"))
    assert failed == 0
    assert tried > 0 or module in ("base", "wrapper")
