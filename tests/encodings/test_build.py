"""From a YAML's words to an encoding; and what is said when the words are wrong."""

import ast
import math
from pathlib import Path

import pytest
import torch
from tiny import CASES, FILES, SHAPE, described

import posbench
from posbench import encodings
from posbench.encodings.base import HOOKS, Encoding
from posbench.errors import UserError


@pytest.mark.parametrize("case", CASES)
def test_every_yaml_builds_with_its_options(case):
    name, own = case
    assert isinstance(encodings.build(described(name, **own), SHAPE), Encoding)


def test_the_catalogue_is_the_folder():
    assert dict(encodings.catalogue()) == {name: described(name) for name in FILES}


def test_the_base_class_says_nothing_and_hooks_are_what_a_class_overrides():
    class Two(Encoding):
        def bias(self, distance):
            return -distance.float()[None]

        def window(self, layer):
            return 3

    assert Encoding(SHAPE).hooks == frozenset()
    assert Two(SHAPE).hooks == {"bias", "window"}
    assert all(callable(getattr(Encoding, hook)) for hook in HOOKS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bsae": 1}, "There is no setting 'encoding.bsae'. Did you mean 'encoding.base'?"),
        ({"layout": "halves"}, "encoding.layout=halves does not fit 'rope'.\nIt must be half or interleaved."),
        ({"base": "fast"}, "encoding.base=fast does not fit 'rope'.\nIt must be a number."),
        ({"base": True}, "encoding.base=True does not fit 'rope'.\nIt must be a number."),
        ({"embed_scale": 1}, "encoding.embed_scale=1 does not fit 'rope'.\nIt must be true or false."),
        ({"base": math.nan}, "encoding.base=nan does not fit 'rope'.\nIt must be a number."),
        ({"base": math.inf}, "encoding.base=inf does not fit 'rope'.\nIt must be a number."),
        ({"base": 10**400}, "encoding.base=1000000"),
        ({"base": -1}, "The encoding 'rope' cannot be built: base must be above 0, not -1."),
    ],
)
def test_a_wrong_parameter_is_named_with_what_would_fit(change, message):
    with pytest.raises(UserError) as error:
        encodings.build(described("rope", **change), SHAPE)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "change", "hint"),
    [
        ("t5", {"buckets": 1.5}, "It must be a whole number."),
        ("learned", {"length": "long"}, "It must be a whole number or null."),
    ],
)
def test_a_wrong_kind_of_value_is_refused_before_the_class_sees_it(name, change, hint):
    with pytest.raises(UserError) as error:
        encodings.build(described(name, **change), SHAPE)
    assert error.value.hint == hint


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            "posbench.encodings.rope.Roop",
            "There is no class 'posbench.encodings.rope.Roop'. Did you mean 'posbench.encodings.rope.Rope'?",
        ),
        ("posbench.encodings.ropee.Rope", "There is no class 'posbench.encodings.ropee.Rope'."),
        ("Rope", "There is no class 'Rope'."),
        ("posbench.encodings.base.Shape", "'posbench.encodings.base.Shape' is not an encoding."),
    ],
)
def test_a_class_that_is_not_there_is_said_in_one_sentence(where, message):
    with pytest.raises(UserError) as error:
        encodings.build({"name": "x", "class": where}, SHAPE)
    assert error.value.message == message


def test_a_yaml_without_a_class_is_said_in_one_sentence():
    with pytest.raises(UserError, match="The encoding 'x' names no class"):
        encodings.build({"name": "x", "base": 1}, SHAPE)


def test_no_line_of_posbench_asks_for_an_encoding_by_name():
    """A comparison with "rope", "alibi", ... anywhere would be a registry in disguise."""
    names = set(FILES) - {"none"}  # "none" is also a word of other settings
    for file in Path(posbench.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Compare | ast.MatchValue):
                constants = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                assert not constants & names, f"{file}:{node.lineno}"


def test_building_draws_from_the_global_generator_only():
    """Same seed, same weights: model.build forks that generator around this call."""
    tables = []
    for _ in range(2):
        torch.manual_seed(5)
        tables.append(encodings.build(described("learned"), SHAPE).table)
    assert torch.equal(*tables)
