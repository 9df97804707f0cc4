"""Which rows are a study's pilot: those of its recipes, whatever their seed."""

from __future__ import annotations

from pathlib import Path

import made
import pytest

from posbench import initial, pilot, records
from posbench.compose import compose
from posbench.evaluate import Request
from posbench.identity import identity
from posbench.job import Job


def test_all_seeds_of_a_recipe_and_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path))
    configs = {words: compose(words.split()) for words in ("encoding=rope", "encoding=rope seed=2", "encoding=alibi")}
    arrays = made.arrays([256.0])
    for number, (words, config) in enumerate(configs.items()):
        for split in ("test", "validation"):
            own = {"run": words, "run_hash": str(number), "recipe": initial.recipe(config, identity(config))}
            records.write(tmp_path / str(number) / "rows", made.row(arrays, split=split, **own), arrays)
    job = Job(configs["encoding=rope"], "posbench train encoding=rope", "rope")
    found = {(row.run, row.split) for row in pilot.rows([job])}
    assert found == {(words, split) for split in ("validation", "test") for words in list(configs)[:2]}


def test_what_a_study_asks_for_is_all_seeds_of_its_readings_on_its_largest_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No other protocol, no more targets than asked for, no first try on fewer; of the same targets also references,
    and what was trained on from one of these runs."""
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path))
    configs = {words: compose(words.split()) for words in ("encoding=rope", "encoding=rope seed=2")}
    readings = {
        "asked": {"targets": 128, "targets_digest": "a"},
        "a first try": {"targets": 64, "targets_digest": "b"},
        "more": {"targets": 256, "targets_digest": "c"},
        "sliding": {"targets": 128, "protocol": "sliding", "stride": 8, "targets_digest": "a"},
        "under yarn": {"targets": 128, "extension": '{"name": "yarn"}', "targets_digest": "a"},
    }
    arrays = made.arrays([256.0])
    for number, (words, config) in enumerate(configs.items()):
        for name, reading in readings.items():
            own = {"run": f"{words}, {name}", "run_hash": str(number)}
            own["recipe"] = initial.recipe(config, identity(config))
            records.write(tmp_path / str(number) / "rows", made.row(arrays, **own, **reading), arrays)
    for digest in ("a", "c"):
        counted = {"kind": "reference", "run": f"bigram {digest}", "recipe": None, "targets_digest": digest}
        records.write(tmp_path / "bigram" / "rows", made.row(arrays, **counted), arrays)
        tuned = {"run": f"tuned {digest}", "run_hash": "t", "recipe": "t", "init_from": "encoding=rope, asked"}
        for own in (tuned, tuned | {"run": "of another", "init_from": "encoding=none"}):
            records.write(tmp_path / own["run"] / "rows", made.row(arrays, **own, targets_digest=digest), arrays)
    request = Request("nonoverlapping", 512, targets=200)
    job = Job(configs["encoding=rope"], "posbench train encoding=rope", "rope", [request])
    found = [row.run for row in pilot.asked([job])]
    assert found == ["encoding=rope, asked", "encoding=rope seed=2, asked", "tuned a", "bigram a"]
