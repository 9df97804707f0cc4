"""Where YAMLs are looked for, and that none is passed over in silence."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from posbench.compose import compose
from posbench.errors import UserError
from posbench.search_path import choices, config_dir, extra_dir, files, user_dirs


def folder_of(path: Path, *names: str) -> Path:
    """A config folder with these files, such as "encoding/mine.yaml"."""
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("base: 2\n")
    return path


def given(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    monkeypatch.setenv("POSBENCH_CONFIGS", os.pathsep.join(map(str, folders)))


def test_each_name_of_a_group_has_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = folder_of(tmp_path / "my", "encoding/mine.yaml", "data/mine.yaml")
    given(monkeypatch, mine)
    assert files("encoding")["mine"] == mine / "encoding" / "mine.yaml"
    assert files("encoding")["rope"] == config_dir() / "encoding" / "rope.yaml"
    assert choices("encoding") == sorted(files("encoding"))
    assert choices("nothing") == []


@pytest.mark.parametrize("name", ["encoding/rope.yaml", "study/train_short_test_long.yaml", "config.yaml"])
def test_a_file_with_the_name_of_a_shipped_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Hydra would read the shipped one: the user's rope with base 2 would be trained with base 10,000."""
    mine = folder_of(tmp_path / "my", name, "encoding/mine.yaml")
    given(monkeypatch, mine)
    said = f"{mine / name} is never read, since {config_dir() / name} has the same name.\nGive it another name"
    for ask in (user_dirs, lambda: choices("encoding"), lambda: compose(["encoding=rope"])):
        with pytest.raises(UserError, match=re.escape(said)):
            ask()


def test_two_folders_of_the_user_may_not_have_one_name_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (folder_of(tmp_path / name, "encoding/mine.yaml") for name in ("one", "two"))
    given(monkeypatch, first, second)
    with pytest.raises(UserError, match=rf"{second}/encoding/mine.yaml is never read, since {first}/encoding/mine"):
        user_dirs()


def test_a_folder_named_twice_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = folder_of(tmp_path / "my", "encoding/mine.yaml")
    given(monkeypatch, mine, config_dir(), mine)
    assert user_dirs() == [mine, config_dir()]
    with extra_dir(str(mine)):
        assert "mine" in choices("encoding")
