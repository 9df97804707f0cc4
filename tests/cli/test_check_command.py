"""`posbench check` of a file of one's own: what is said of a class that cannot be built, and where it is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Posbench

MINE = """
import torch

from posbench.encodings.base import Encoding
from posbench.encodings.rope import Rope


class Falling(Encoding):
    def __init__(self, shape, strength: float):
        super().__init__(shape)
        if strength < 0:
            raise ValueError(f"strength must be 0 or more, not {strength}")
        self.strength = strength


class Turning(Rope):
    pass


class Hollow(Encoding):
    def __init__(self, shape):
        self.heads = shape.heads


class Eager(Encoding):
    def __init__(self, shape):
        self.table = torch.nn.Parameter(torch.zeros(shape.heads))
        super().__init__(shape)


class Shapeless(Encoding):
    def __init__(self, shape):
        super().__init__()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my" / "encoding" / "mine.py"
    path.parent.mkdir(parents=True)
    path.write_text(MINE)
    (path.parent / "falling.yaml").write_text("class: mine.py:Falling\nstrength: -1\n")
    return path


def said(posbench: Posbench, *words: str) -> str:
    done = posbench(*words)
    assert (done.status, done.out) == (2, "")
    assert len(done.err.splitlines()) <= 2
    return done.err.removeprefix("error: ").rstrip("\n")


def test_a_class_that_cannot_be_built_is_called_by_its_own_name(posbench: Posbench, file: Path):
    name = f"{file}:Falling"
    needs = f"The encoding '{name}' needs a value for 'strength'.\nWrite encoding.strength=..."
    assert said(posbench, "check", name) == needs
    refused = f"The encoding '{name}' cannot be built: strength must be 0 or more, not -2.0."
    assert said(posbench, "check", name, "encoding.strength=-2") == refused
    assert said(posbench, "check", name, "encoding.strenght=2").startswith("There is no setting 'encoding.strenght'.")


def test_a_file_alone_is_answered_with_the_classes_that_are_in_it(posbench: Posbench, file: Path):
    """Not with what it imports."""
    names = ("Falling", "Turning", "Hollow", "Eager", "Shapeless")
    listed = f"class: {', '.join(f'{file}:{name}' for name in names)}"
    assert said(posbench, "check", str(file)) == f"'{file}' names a file and no class.\n{listed}"
    assert (
        said(posbench, "check", f"{file}:Rising").splitlines()[1]
        == f"class: {', '.join(sorted(listed[7:].split(', ')))}"
    )


@pytest.mark.parametrize("cls", ["Hollow", "Eager", "Shapeless"])
def test_a_class_that_forgets_its_base_is_told_so(posbench: Posbench, file: Path, cls: str):
    """Whether what it does first needs the base or not."""
    sentence = f"The encoding '{file}:{cls}' cannot be built.\n{cls}.__init__ must first call super().__init__(shape)."
    assert said(posbench, "check", f"{file}:{cls}") == sentence


def test_a_name_that_is_in_no_folder_is_answered_with_how_to_name_the_folder(posbench: Posbench, file: Path):
    assert said(posbench, "check", "sqrt_bias").endswith("; those of your own: --config-dir DIR")
    folder = str(file.parent.parent)
    assert said(posbench, "check", "falling", "--config-dir", folder).startswith(
        "The encoding 'falling' cannot be built:"
    )
    assert "--config-dir" not in said(posbench, "check", "sqrt_bias", "--config-dir", folder)


def test_one_that_cannot_be_built_does_not_keep_the_others_from_being_checked(
    posbench: Posbench, file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("posbench.cli.check.choices", lambda group: ["falling", "none"])
    done = posbench("check", "all", "--config-dir", str(file.parent.parent))
    assert done.status == 1
    assert (
        "can be built           failed  The encoding 'falling' cannot be built: strength must be 0 or more" in done.out
    )
    assert "none             causal                 passed" in done.out
    assert "failed in falling" in done.err


@pytest.mark.parametrize("hidden", [10**18, 10**25])
def test_a_size_that_no_memory_holds_is_refused(posbench: Posbench, hidden: int):
    """Before any property is asked."""
    assert "does not fit in memory" in said(posbench, "check", "fire", f"encoding.hidden={hidden}")
