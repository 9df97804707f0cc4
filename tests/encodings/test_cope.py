"""Contextual positions: the oracle's loops, x-transformers', counts, the clamp, nothing from the future."""

import math

import pytest
import torch
from oracles.data_dependent import cope, cope_positions
from oracles.draws import HEADS, HERE, TOKENS, WIDTH, K, Q, drawn, flat, same
from tiny import decoder, ids, layer_scores, logits
from x_transformers.x_transformers import CoPE as Theirs

from posbench import attention
from posbench.encodings.base import Shape
from posbench.encodings.cope import Cope, counts

SHAPE = Shape(layers=2, width=HEADS * WIDTH, heads=HEADS, train_length=20)


def layer(table, shape=SHAPE):
    own = Cope(shape, npos=len(table)).for_layer(1)
    own.load_state_dict({"table": torch.as_tensor(table)})
    return own


@pytest.mark.parametrize("npos", [2, 5, 20])
def test_the_scores_equal_the_oracles(npos):
    """2 and 5 rows clamp most counts of 12 keys, 20 none. Position ids play no role."""
    table = drawn(npos, WIDTH, seed=5)
    expected = cope(Q, K, positions=HERE, table=table)
    assert same(layer_scores(layer(table), Q, K, HERE), expected, 1e-5)
    assert same(layer_scores(layer(table), Q, K, [7 * i for i in HERE]), expected, 1e-5)


def test_the_counts_equal_the_oracles():
    s = torch.tensor(Q)[None] @ torch.tensor(K)[None].mT / math.sqrt(WIDTH)
    for npos in (4, 20):
        ours = counts(s, slice(0, TOKENS), npos - 1)[0].tolist()
        seen = [[row[: i + 1] for i, row in enumerate(head)] for head in ours]
        assert flat(seen) == pytest.approx(flat(cope_positions(Q, K, npos=npos)), abs=1e-5)


def test_the_term_equals_that_of_x_transformers_with_a_table_times_the_root_of_the_head_width():
    """They leave z undivided, and their gates run over whatever scores they are given: later keys must be masked."""
    table = torch.tensor(drawn(6, WIDTH, seed=5))
    theirs = Theirs(WIDTH, HEADS, max_pos=6)
    with torch.no_grad():
        theirs.pos_emb.copy_(table)
    q = torch.tensor(Q)[None]
    s = q @ torch.tensor(K)[None].mT / math.sqrt(WIDTH)
    later = torch.ones(TOKENS, TOKENS).triu(1).bool()
    at = torch.arange(TOKENS)[None]
    ours = layer(table * math.sqrt(WIDTH)).scores(s, q, q, at, at, {}, slice(0, TOKENS)) - s
    assert torch.allclose(ours.tril(), theirs(q, s.masked_fill(later, -1e9)).tril(), atol=1e-5)


def test_closed_gates_count_nothing_and_open_ones_count_keys():
    """Scores of -100: count 0 everywhere. Of 100: the query itself is 1, the key before it 2, clamped at 3."""
    assert counts(torch.full((1, 1, 5, 5), -100.0), slice(0, 5), 3).max() < 1e-6
    opened = counts(torch.full((1, 1, 5, 5), 100.0), slice(0, 5), 3)
    assert opened[0, 0, 4].tolist() == [3, 3, 3, 2, 1]


def test_keys_after_the_query_are_not_counted():
    """The published trap: a reverse sum over all columns would count the future."""
    s = torch.randn(1, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    before = counts(s, slice(0, 9), 100)
    s[..., 5:] = 7.0
    after = counts(s, slice(0, 9), 100)
    assert torch.equal(before[:, :, :5, :5], after[:, :, :5, :5])
    assert (before.triu(1) == 0).all()


def test_blocks_of_queries_equal_one_piece():
    """300 queries are two blocks of attention, and the counts of the second reach back into the first."""
    own = layer(drawn(40, WIDTH, seed=5))
    generator = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(3, 1, HEADS, 300, WIDTH, generator=generator)
    at = torch.arange(300)[None]
    out = attention.attend(q, k, v, {}, attention.begin(own, at, at, consecutive=True))
    s = own.scores(q @ k.mT / math.sqrt(WIDTH), q, k, at, at, {}, slice(0, 300))
    expected = s.masked_fill(torch.ones(300, 300).triu(1).bool(), -math.inf).softmax(-1) @ v
    assert torch.allclose(out, expected, atol=1e-5)


def test_at_step_0_it_is_no_encoding():
    """E starts at zero."""
    model, tokens = decoder(("cope", {})), ids(100)
    fresh = Cope(model.encoding.shape)
    assert all((own.table == 0).all() for own in fresh.layers)
    model.encoding = fresh
    assert torch.allclose(logits(model, tokens), logits(decoder(("none", {})), tokens), atol=1e-5)


def test_the_table_has_a_row_for_each_token_of_the_training_length_unless_told():
    shape = Shape(layers=3, width=128, heads=4, train_length=64)
    assert [own.table.shape for own in Cope(shape).layers] == [(64, 32)] * 3
    assert [own.table.shape for own in Cope(shape, npos=9).layers] == [(9, 32)] * 3
    assert Cope(shape).length_sized
    assert not Cope(shape, npos=9).length_sized
    with pytest.raises(ValueError, match="npos must be 2 or more, not 1"):
        Cope(shape, npos=1)
