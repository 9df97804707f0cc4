"""A pickle runs what it likes when it is read. Planted in place of a file of a run or of a text it is refused unread.

(What is cut short, foreign or garbage: tests/test_damaged.py, tests/test_checkpoint.py, tests/data/test_tokens.py.)
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toys

from posbench import train
from posbench.data import tokens
from posbench.errors import UserError
from posbench.run import Run

pytestmark = pytest.mark.faults


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def array(bomb: Bomb, file: Path) -> None:
    with file.open("wb") as stream:
        np.save(stream, np.array([bomb], dtype=object), allow_pickle=True)


PLANT: dict[str, Callable[[Bomb, Path], object]] = {
    "pickle": lambda bomb, file: file.write_bytes(pickle.dumps(bomb)),
    "torch.save": torch.save,
    "object array": array,
}


def weights(run: Run, config: Any) -> Path:
    return run.weights


def checkpoint(run: Run, config: Any) -> Path:
    """As of a run that was interrupted."""
    run.weights.unlink()
    run.write_status("stopped", step=1)
    return run.checkpoint


def token_file(run: Run, config: Any) -> Path:
    return tokens.prepare(config.data, config.tokenizer).path / "train.ids.npy"


@pytest.mark.parametrize("how", PLANT)
@pytest.mark.parametrize("place", [weights, checkpoint, token_file])
def test_a_planted_pickle_is_refused_and_does_not_run(
    folders: None, data: dict, tmp_path: Path, place: Callable[[Run, Any], Path], how: str
):
    """A pickle is planted in place of weights, a checkpoint or a token file: refused by name, and it does not run."""
    config, mark = toys.config(data, steps=2), tmp_path / "mark"
    run = train.train(config)
    file = place(run, config)
    PLANT[how](Bomb(mark), file)
    with pytest.raises(UserError, match=file.name):
        Run(run.path).model() if place is weights else train.train(config)
    assert not mark.exists()


@pytest.mark.parametrize("how", ["pickle", "object array"])
def test_the_bomb_is_live(tmp_path: Path, how: str):
    """The planted pickle does run where somebody unpickles it: the test above can fail."""
    mark, file = tmp_path / "mark", tmp_path / "file"
    PLANT[how](Bomb(mark), file)
    np.load(file, allow_pickle=True)
    assert mark.exists()
