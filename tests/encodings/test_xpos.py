"""xPos: the fading of each pair at any position, blocks past the training length, caches, extensions."""

from dataclasses import replace

import pytest
import torch
import x_transformers.x_transformers as theirs
from oracles.context_extensions import ntk_base
from oracles.draws import HEADS, HERE, WIDTH, K, Q, same
from oracles.rotations import xpos, xpos_by_distance
from tiny import SHAPE, decoder, ids, layer_scores, logits

from posbench import attention
from posbench.encodings.base import Shape
from posbench.encodings.window import Blockwise
from posbench.encodings.xpos import XPos
from posbench.extensions.abf import Abf
from posbench.extensions.ntk import Ntk
from posbench.extensions.pi import Pi
from posbench.model import Cache

ORACLES = Shape(layers=1, width=HEADS * WIDTH, heads=HEADS, train_length=64)
LAYOUTS = ["half", "interleaved"]


def whole(**own) -> XPos:
    return XPos(ORACLES, blockwise=False, **own)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("step", [1, 40, 2000])
def test_the_scores_equal_the_oracles(layout, step):
    """Neighbours, and one window spread over 22,000 positions, further than a block of queries reaches."""
    positions = [step * i for i in HERE]
    expected = xpos(Q, K, positions=positions, layout=layout)
    assert same(layer_scores(whole(layout=layout), Q, K, positions), expected, 1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_block_of_queries_may_span_as_many_positions_as_it_says(layout):
    """30,000 of them; some 6,000 more and the powers of its last keys are infinite, and 0 times that no number."""
    positions = [0, 1, 2, 15_000, 15_001, 20_000, 29_990, 29_991, 29_995, 29_997, 29_999, 30_000]
    assert 30_000 < whole().widest < 31_000
    got = layer_scores(whole(layout=layout), Q, K, positions)
    assert same(got, xpos(Q, K, positions=positions, layout=layout), 1e-5)


def test_its_numbers_reach_the_formula():
    expected = xpos(Q, K, positions=HERE, gamma=1.5, scale_base=20, base=300)
    assert same(layer_scores(whole(gamma=1.5, scale_base=20, base=300), Q, K, HERE), expected, 1e-5)
    assert not same(layer_scores(whole(), Q, K, HERE), expected, 1e-2)


def test_the_scores_equal_x_transformers():
    """Interleaved; there powers are counted from the middle of the window."""
    q, k = torch.tensor(Q)[None], torch.tensor(K)[None]
    freqs, scale = theirs.RotaryEmbedding(WIDTH, use_xpos=True)(torch.arange(12))
    q, k = theirs.apply_rotary_pos_emb(q, freqs, scale), theirs.apply_rotary_pos_emb(k, freqs, scale**-1)
    expected = [[row[: i + 1] for i, row in enumerate(head)] for head in (q @ k.mT / WIDTH**0.5)[0].tolist()]
    assert same(layer_scores(whole(layout="interleaved"), Q, K, HERE), expected, 1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("distance", [0, 1, 511, 4096, 50_000, 99_999])
def test_one_query_at_position_100_000(layout, distance):
    """The powers alone would be 0 and infinity; the score is that of the closed form, by distance, to 1e-5."""
    e, q, k = whole(layout=layout), torch.tensor(Q)[None, :, :1], torch.tensor(K)[None, :, :1]
    q_pos, k_pos = torch.tensor([[100_000]]), torch.tensor([[100_000 - distance]])
    (q, _), (_, k) = (e.rotate(q, k, e.begin(at, 1)) for at in (q_pos, k_pos))
    got = e.scores(q @ k.mT / WIDTH**0.5, q, k, q_pos, k_pos, {}, slice(0, 1))[0, :, 0, 0].tolist()
    expected = [xpos_by_distance(Q[h][0], K[h][0], distance, layout=layout) for h in range(HEADS)]
    assert got == pytest.approx(expected, abs=1e-5)


def test_the_last_queries_of_a_window_of_100_000_tokens():
    """The closed form in float64 and complex numbers, its softmax and values."""
    e, at, i = whole(), torch.arange(100_000)[None], 99_990
    k, v = torch.randn(2, 1, HEADS, 100_000, WIDTH, generator=torch.Generator().manual_seed(0))
    q = k[:, :, -20:].flip(2)
    how = attention.begin(e, at[:, -20:], at, consecutive=True)
    turned = e.rotate(q, q, how.context)[0], e.rotate(k, k, e.begin(at, 1))[0]
    out = attention.attend(*turned, v, {}, how)[0, :, i - 99_980]
    distance, share = i - torch.arange(i + 1)[:, None], torch.arange(0, 1, 1 / 8).double()
    turning = torch.polar(((share + 0.4) / 1.4) ** (distance / 512), distance * 10000.0**-share)
    pairs_q, pairs_k = (torch.complex(x[0, :, :, :8].double(), x[0, :, :, 8:].double()) for x in (q, k))
    s = (pairs_q[:, i - 99_980, None] * pairs_k[:, : i + 1].conj() * turning).real.sum(-1) / WIDTH**0.5
    assert (out - (s.softmax(-1)[:, None] @ v[0, :, : i + 1].double())[:, 0]).abs().max() < 1e-5


@pytest.mark.parametrize("shift", [100, 99_000])
def test_positions_further_on_change_nothing(shift):
    """Shift invariance to position 100,000, in the scores of a window of two blocks of queries."""
    e = whole()
    q, k, v = torch.randn(3, 1, HEADS, 400, WIDTH, generator=torch.Generator().manual_seed(0))
    out = []
    for start in (0, shift):
        at = torch.arange(start, start + 400)[None]
        how = attention.begin(e, at, at, consecutive=True)
        out.append(attention.attend(*e.rotate(q, k, how.context), v, {}, how))
    assert (out[0] - out[1]).abs().max() < 1e-5


def test_up_to_the_training_length_blocks_hide_nothing():
    """Even and odd lengths: the same logits with and without; past them, others."""
    for length in (63, 64):
        shape = replace(SHAPE, train_length=length)
        blocks, none = (decoder(("xpos", {"blockwise": on}), shape) for on in (True, False))
        for tokens, same_logits in ((ids(length), True), (ids(length + 20), False)):
            a, b = logits(blocks, tokens), logits(none, tokens)
            assert (a - b)[:, :length].abs().max() < 1e-5
            assert ((a - b).abs().max() < 1e-5) == same_logits


def test_past_it_a_query_sees_its_own_block_and_the_one_before():
    """Trained at 6, blocks of 3: the oracle's picture, and no distance above the largest trained, 5."""
    e = XPos(replace(ORACLES, train_length=6))
    expected = xpos(Q, K, positions=HERE, block=3)
    assert same(layer_scores(e, Q, K, HERE), expected, 1e-5)
    assert [[x is None for x in row] for row in layer_scores(e, Q, K, HERE)[0]] == [
        [x is None for x in row] for row in expected[0]
    ]
    assert XPos(replace(ORACLES, train_length=7)).window(0) == Blockwise(4)


def test_decoding_past_the_training_length_equals_one_pass():
    """Keys of a cache are only turned, so that they serve every later block."""
    model, tokens = decoder(("xpos", {}), replace(SHAPE, train_length=16)), ids(80)
    cache, parts = Cache(SHAPE.layers), []
    for piece in tokens.split([30, 1, 1, 17, 31], dim=1):
        parts.append(logits(model, piece, cache=cache))
    assert (torch.cat(parts, dim=1) - logits(model, tokens)).abs().max() < 1e-5


def test_what_is_added_to_the_scores_on_the_way_stays():
    """As from a wrapper that has a bias."""
    e, at = whole(), torch.tensor([HERE])
    q, k = e.rotate(torch.tensor(Q)[None], torch.tensor(K)[None], e.begin(at, 12))
    s, bias = q @ k.mT * WIDTH**-0.5, torch.linspace(-3, 3, 144).view(12, 12)
    plain, with_bias = (e.scores(x, q, k, at, at, {}, slice(0, 12)) for x in (s, s + bias))
    assert torch.allclose(with_bias, plain + bias, atol=1e-5)


def test_what_extends_rope_changes_its_turning_and_not_its_fading():
    """Four times longer. PI divides the positions of the turning alone: B shrinks with them; the others change b."""
    for extension, expected in (
        (Pi(), xpos(Q, K, positions=[i / 4 for i in HERE], scale_base=512 / 4)),
        (Ntk(), xpos(Q, K, positions=HERE, base=ntk_base(WIDTH, factor=4))),
        (Abf(base=1e6), xpos(Q, K, positions=HERE, base=1e6)),
    ):
        new = extension.extend(whole(), 64, 256)
        assert same(layer_scores(new, Q, K, HERE), expected, 1e-5)


def test_settings_that_cannot_be_are_refused():
    for own, said in (
        ({"gamma": 0}, "gamma must be above 0"),
        ({"scale_base": -1}, "scale_base must be above 0"),
        ({"scale_base": 1}, "pairs fade faster than float32 can tell; scale_base=18 is slow enough"),
    ):
        with pytest.raises(ValueError, match=said):
            XPos(ORACLES, **own)
