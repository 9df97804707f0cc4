"""Which rows are a study's pilot: those of its recipes, whatever their seed."""

from __future__ import annotations

from pathlib import Path

import made
import pytest

from posbench import initial, pilot, records
from posbench.compose import compose
from posbench.identity import identity
from posbench.job import Job


def test_all_seeds_of_a_recipe_and_no_other_run_validation_text_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path))
    configs = {words: compose(words.split()) for words in ("encoding=rope", "encoding=rope seed=2", "encoding=alibi")}
    arrays = made.arrays([256.0])
    for number, (words, config) in enumerate(configs.items()):
        for split in ("test", "validation"):
            own = {"run": words, "run_hash": str(number), "recipe": initial.recipe(config, identity(config))}
            records.write(tmp_path / str(number) / "rows", made.row(arrays, split=split, **own), arrays)
    job = Job(configs["encoding=rope"], "posbench train encoding=rope", "rope")
    found = [(row.run, row.split) for row in pilot.rows([job])]
    assert found == [(words, split) for split in ("validation", "test") for words in list(configs)[:2]]
