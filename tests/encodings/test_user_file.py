"""A user's own encoding: one Python file and one YAML in their own folder, no edit in posbench."""

import os
import py_compile
import textwrap

import pytest
import torch
from tiny import SHAPE

from posbench import config, encodings
from posbench.compose import compose
from posbench.errors import UserError
from posbench.identity import label
from posbench.model import Decoder
from posbench.search_path import choices

MINE = '''
from __future__ import annotations

import torch

from posbench.encodings.base import Encoding, Shape


class Mine(Encoding):
    """A bias that falls with the logarithm of the distance."""

    acts_on = "scores"
    shift_invariant = True

    def __init__(self, shape: Shape, strength: float, start: int = 1) -> None:
        super().__init__(shape)
        if strength < 0:
            raise ValueError("strength must not be negative")
        self.log_strength = torch.nn.Parameter(torch.full((shape.heads,), strength))
        self.start = start

    def bias(self, distance):
        return -self.log_strength.view(-1, *[1] * distance.ndim) * (self.start + distance.float()).log()
'''


@pytest.fixture
def folder(tmp_path):
    """configs of the user's: mine/encoding/{mine.py, log.yaml}."""
    folder = tmp_path / "mine" / "encoding"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(MINE)
    (folder / "log.yaml").write_text("class: mine.py:Mine\nstrength: 0.5\nstart: 1\n")
    return tmp_path / "mine"


def described(folder, **change):
    return {"name": "log", "class": f"{folder}/encoding/mine.py:Mine", "strength": 0.5} | change


def test_a_class_that_takes_no_shape_is_told_so(folder):
    (folder / "encoding" / "mine.py").write_text(
        MINE.replace("self, shape: Shape, strength: float, start: int = 1", "self")
    )
    with pytest.raises(UserError) as error:
        encodings.build({"name": "log", "class": f"{folder}/encoding/mine.py:Mine"}, SHAPE)
    assert str(error.value) == "The encoding 'log' cannot be built.\nMine.__init__ must take (self, shape)."


def test_it_is_built_trained_and_evaluated(folder):
    """One step of plain gradient descent moves its parameter; the kernels find it by its hook."""
    torch.manual_seed(0)
    encoding = encodings.build(described(folder), SHAPE)
    assert encoding.hooks == {"bias"}
    model = Decoder(config.Model(layers=2, width=32, heads=4, hidden=48), 16, encoding)
    tokens = torch.randint(16, (2, 21))
    before = model.loss(tokens[:, :-1], tokens[:, 1:])
    before.backward()
    assert (encoding.log_strength.grad != 0).all()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    assert model.loss(tokens[:, :-1], tokens[:, 1:]) < before
    assert model.token_losses(tokens[:, :-1], tokens[:, 1:]).isfinite().all()


def test_it_is_chosen_on_the_command_line_like_any_other(folder, monkeypatch):
    """Hydra finds the YAML in the user's folder, and the class in the file beside the YAML, wherever posbench runs."""
    monkeypatch.setenv("POSBENCH_CONFIGS", str(folder))
    composed = compose(["encoding=log", "encoding.strength=0.25"])
    built = encodings.build(composed.encoding, SHAPE)
    assert built.log_strength.tolist() == [0.25] * 4
    assert "log" in choices("encoding")
    assert label(composed.encoding) == "log"


def test_its_parameters_are_checked_like_any_other(folder):
    with pytest.raises(UserError, match=r"no setting 'encoding\.strenght'\. Did you mean 'encoding\.strength'"):
        encodings.build(described(folder, strenght=1), SHAPE)
    with pytest.raises(UserError, match="cannot be built: strength must not be negative"):
        encodings.build(described(folder, strength=-1.0), SHAPE)
    without = described(folder)
    del without["strength"]
    with pytest.raises(UserError, match="The encoding 'log' needs a value for 'strength'"):
        encodings.build(without, SHAPE)


def test_a_whole_number_for_a_float_is_a_float(folder):
    """Of `strength=2` torch.full would make a tensor of integers, which has no gradient."""
    assert encodings.build(described(folder, strength=2), SHAPE).log_strength.tolist() == [2.0] * 4


def test_a_missing_file_and_a_missing_class_name_the_nearest(folder):
    with pytest.raises(UserError, match=r"no file '.*/mne.py'.\nDid you mean 'mine.py'"):
        encodings.build({"name": "log", "class": f"{folder}/encoding/mne.py:Mine"}, SHAPE)
    with pytest.raises(UserError, match=r"There is no class '.*mine.py:Mien'\. Did you mean '.*mine.py:Mine'"):
        encodings.build({"name": "log", "class": f"{folder}/encoding/mine.py:Mien"}, SHAPE)


def test_a_fault_inside_the_file_keeps_its_traceback(folder):
    """The author of the file has to find the line: it must not become one sentence about a class not found."""
    (folder / "encoding" / "mine.py").write_text("import a_module_nobody_has\n")
    with pytest.raises(ModuleNotFoundError, match="a_module_nobody_has"):
        encodings.build(described(folder), SHAPE)


def test_a_file_that_is_not_python_is_told_where(folder):
    """In a sentence with the line: there is no traceback to follow."""
    file = folder / "encoding" / "mine.py"
    file.write_text("x = 1\ndef bias(self\n")
    with pytest.raises(UserError) as error:
        encodings.build(described(folder), SHAPE)
    assert str(error.value) == f"Line 2 of {file} is not Python: '(' was never closed.\ndef bias(self"


def test_two_files_of_one_name_are_two_encodings(folder, tmp_path):
    """Both are called mine.py: the second must not come out of a cache of the first."""
    other = tmp_path / "mine.py"
    other.write_text(textwrap.dedent(MINE).replace('acts_on = "scores"', 'acts_on = "other scores"'))
    first = encodings.build(described(folder), SHAPE)
    second = encodings.build({"name": "log", "class": f"{other}:Mine", "strength": 0.5}, SHAPE)
    assert (first.acts_on, second.acts_on) == ("scores", "other scores")


def test_a_file_is_run_once_and_again_when_it_was_edited(folder, capsys):
    """However often its encoding is built: what it prints comes once, and an edit is never missed."""
    file = folder / "encoding" / "mine.py"
    file.write_text(f'{MINE}\nprint("run")\n')
    first, second = (type(encodings.build(described(folder), SHAPE)) for _ in range(2))
    assert first is second
    assert capsys.readouterr().out == "run\n"
    file.write_text(MINE.replace('acts_on = "scores"', 'acts_on = "other scores"'))
    assert encodings.build(described(folder), SHAPE).acts_on == "other scores"


def test_bytecode_of_an_older_content_is_never_run(folder):
    """Python takes a .pyc for current when size and mtime (in whole seconds) agree, and here both do."""
    file = folder / "encoding" / "mine.py"
    other = MINE.replace('acts_on = "scores"', 'acts_on = "values"')
    assert len(other) == len(MINE)
    for content in (MINE, other):
        file.write_text(content)
        os.utime(file, (10**9, 10**9))
        built = encodings.build(described(folder), SHAPE)
        assert f'acts_on = "{built.acts_on}"' in content
        py_compile.compile(str(file))
