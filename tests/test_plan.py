"""The plan of a dry run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import toys

from posbench import run as runs
from posbench.config import Model
from posbench.plan import plan

pytestmark = pytest.mark.usefixtures("folders")


def test_a_plan_counts_and_leaves_no_trace(data: dict):
    """Nano by hand: 4 blocks of 4 x 128^2 + 3 x 128 x 344 + 2 x 128 and a norm of 128; 257 ids x 128. 100 tokens in
    batches of 32 are 4 steps, 128 tokens."""
    config = replace(toys.config(data, tokens=100), model=Model())
    found = plan(config)
    assert found["parameters"] == {
        "blocks": 4 * (4 * 128**2 + 3 * 128 * 344 + 2 * 128) + 128,
        "embedding": 257 * 128,
        "encoding": 0,
        "total": 791_680 + 257 * 128,
    }
    assert (found["steps"], found["tokens"]) == (4, 128)
    assert found["epochs"] == pytest.approx(128 / 640)
    assert found["seconds"] > 0
    assert found["memory"] > 12 * 791_680
    assert found["name"] == runs.name(config)
    assert not runs.root().exists()


def test_a_plan_of_several_processes_is_of_one_of_them(data: dict):
    """4 windows a step, of which each of two computes 2: as many steps, and half the activations. In pieces, half of
    what is stored too."""
    config = replace(toys.config(data, batch_tokens=64), model=Model())
    one = plan(config)
    two, pieces = (plan(replace(config, nproc=2, train=replace(config.train, shard=shard))) for shard in ("off", "on"))
    assert one["steps"] == two["steps"] == pieces["steps"] == 30
    assert pieces["memory"] < two["memory"] < one["memory"]
    assert "nproc 2" in two["decisions"]
    assert not any(word.startswith("nproc") for word in one["decisions"])
