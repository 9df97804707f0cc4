"""A batch that several processes share is the batch of one: the same windows, once each, and the same gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch
import toys

from posbench import model, train
from posbench.batches import Batches, parts
from posbench.checkpoint import State
from posbench.config import Config
from posbench.data import tokens
from posbench.decisions import Decisions
from posbench.group import Group, most

pytestmark = pytest.mark.usefixtures("folders")

CPU = torch.device("cpu")


def of(rank: int, count: int) -> Group:
    group = Group()
    group.rank, group.count = rank, count
    return group


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shares_are_the_batch_also_across_the_end_of_an_epoch(data: dict, count: int):
    """39 windows an epoch, 5 a batch: the eighth crosses its end. Each process reads its own windows, in their order,
    with the positions of their numbers, and counts the whole batch."""
    config = toys.config(data, "randomized", batch_tokens=80)
    stream = tokens.prepare(config.data, config.tokenizer).stream("train")
    decoder = model.build(config, 257, 256)
    whole, state = Batches(stream, config), State()
    shared = [Batches(stream, config) for _ in range(count)]
    states = [State() for _ in range(count)]
    for rank, batches in enumerate(shared):
        batches.own = of(rank, count).share(batches.rows)
    for _ in range(17):
        ids, positions = whole.next(state, decoder, CPU)
        found = [one.next(own, decoder, CPU) for one, own in zip(shared, states, strict=True)]
        assert torch.equal(torch.cat([part for part, _ in found]), ids)
        assert positions is not None
        assert torch.equal(torch.cat([at for _, at in found if at is not None]), positions)
        assert states == [state] * count
    assert state.epoch == 2


def test_shares_differ_by_one_window_at_most():
    for rows in range(1, 12):
        for count in range(1, rows + 1):
            shares = [of(rank, count).share(rows) for rank in range(count)]
            assert [row for share in shares for row in share] == list(range(rows))
            assert {len(share) for share in shares} <= {rows // count, most(rows, count)}


def test_a_share_of_fewer_passes_reads_a_window_again_with_no_weight():
    """5 windows in two processes, one a pass: 3 passes, of which that with 2 windows makes one that counts nothing."""
    batch = tiny.ids(17, batch=2, vocab=257)
    found = list(parts(batch, None, rows=1, whole=5, passes=3))
    assert [part.weight for part in found] == [1 / 5, 1 / 5, 0.0]
    assert torch.equal(found[2].ids, batch[:1])
    assert [part.weight for part in parts(batch, None, rows=1, whole=5, passes=0)] == [1 / 5, 1 / 5]


def gradients(config: Config, batch: torch.Tensor, rows: int, decisions: Decisions) -> tuple[float, torch.Tensor]:
    decoder = model.build(config, 257, 256)
    loss = train.gradient(decoder, decoder.loss, batch, None, decisions, rows).item()
    return loss, torch.cat([p.grad.flatten() for p in decoder.parameters() if p.grad is not None])


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("micro_windows", [1, 2, 8])
def test_the_gradients_of_unequal_shares_add_up_to_that_of_the_batch(data: dict, micro_windows: int, shard: bool):
    """TRAIN-1 across processes: 8 windows in three of 2, 3 and 3, each in passes of its own."""
    config, batch = toys.config(data), tiny.ids(17, batch=8, vocab=257)
    alone = Decisions("cpu", 1, "fp32", False, "causal", 128)
    loss, whole = gradients(config, batch, 8, alone)
    several = replace(alone, micro_tokens=16 * micro_windows, nproc=3, shard=shard)
    found = [gradients(config, batch[list(of(rank, 3).share(8))], 8, several) for rank in range(3)]
    assert sum(part for part, _ in found) == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(sum(part for _, part in found), whole, rtol=0, atol=1e-6)
