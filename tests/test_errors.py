"""One way to say that something does not exist, and Hydra's many ways turned into it."""

from __future__ import annotations

import pytest
from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posbench.errors import UserError, closest, explain, no_setting, unknown


def test_an_unknown_name_is_said_with_its_nearest_choice_and_all_of_them():
    error = unknown("encoding", "ropee", ["rope", "alibi"])
    assert error.message == "There is no encoding 'ropee'. Did you mean 'rope'?"
    assert error.hint == "encoding: alibi, rope"
    assert str(unknown("run", "x", [])) == "There is no run 'x'.\nrun: (none)"


def test_nothing_is_offered_when_nothing_comes_near():
    assert closest("rotary", ["alibi", "none"]) is None
    assert closest("lenght", ["length", "layers"]) == "length"


def test_a_setting_is_looked_for_beside_its_siblings_and_then_one_level_down():
    tree = {"train": {"length": 512, "tokens": 1}, "seed": 1}
    assert no_setting("train.lenght", tree["train"]).message.endswith("Did you mean 'train.length'?")
    assert no_setting("sed", tree).message.endswith("Did you mean 'seed'?")
    assert no_setting("tokens", tree).message.endswith("Did you mean 'train.tokens'?")
    assert no_setting("colour", tree).message == "There is no setting 'colour'."
    assert no_setting("train.lenght", tree["train"]).hint == "train: length, tokens"


def test_an_error_that_is_no_users_mistake_is_left_alone():
    assert explain(RuntimeError("ours")) is None
    assert explain(KeyError("ours")) is None


def test_a_users_error_explains_itself():
    error = UserError("so", "and so")
    assert explain(error) is error


def caught(word: str, value: object) -> Exception:
    cfg = OmegaConf.structured({"a": {"b": 1}})
    OmegaConf.set_struct(cfg, True)
    try:
        OmegaConf.update(cfg, word, value)
    except Exception as error:
        return error
    raise AssertionError("OmegaConf took it")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            MissingConfigException("nine lines", "encoding/ropee", ["alibi", "rope"]),
            "There is no encoding 'ropee'. Did you mean 'rope'?\nencoding: alibi, rope",
        ),
        (
            MissingConfigException("nine lines", "hydra/launcher/jobli", ["basic", "joblib"]),
            "There is no hydra/launcher 'jobli'. Did you mean 'joblib'?\nhydra/launcher: basic, joblib",
        ),
        (
            OverrideParseException("rope", "missing EQUAL at '<EOF>'"),
            "'rope' is no setting. Did you mean 'encoding=rope'?\n"
            "Write group=choice or group.setting=value, as in encoding=rope.",
        ),
        (
            OverrideParseException("eval.lengths=[512,", "no viable alternative at input '[512,'"),
            "The list in eval.lengths=[512, is cut short or not readable.\nQuote it whole, as in 'eval.lengths=[1,2]'.",
        ),
        (
            OverrideParseException("data.path=été.txt", "token recognition error"),
            "The value in data.path=été.txt is not readable as it stands.\nQuote it twice: 'data.path=\"été.txt\"'.",
        ),
        (
            ConfigCompositionException("Ambiguous value for argument 'encoding=rope,alibi'\n1. To use it as a list"),
            "encoding=rope,alibi gives several values.\nposbench train -m runs one job for each.",
        ),
        (
            ConfigCompositionException("Ambiguous value for argument 'eval.lengths=512,1024'\n1. To use it as a list"),
            "eval.lengths=512,1024 gives several values.\n"
            "posbench train -m runs one job for each; for one setting that is a list write 'eval.lengths=[512,1024]'.",
        ),
        (
            ConfigCompositionException("Could not append to config. An item is already at 'seed'.\nmore"),
            "An item is already at 'seed'.\nLeave out the '+' to change it.",
        ),
        (caught("a.c", 1), "There is no setting 'a.c'.\na: b"),
        (OmegaConfBaseException("Interpolation key 'foo' not found"), "Interpolation key 'foo' not found."),
        (ConfigCompositionException("Something else\nwith a story"), "Something else"),
    ],
)
def test_what_hydra_raises_becomes_one_or_two_lines(error: Exception, said: str):
    assert str(explain(error)) == said
