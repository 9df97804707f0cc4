"""One number worked out by hand for each oracle that the list of known faults has none for."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from oracles import data_dependent as data
from oracles import distance_biases as bias
from oracles import rotations as rot
from oracles import temperatures as temp
from oracles import token_vectors as tok
from oracles.draws import HEADS, HERE, TOKENS, WIDTH, K, Q, drawn, flat, same
from oracles.scoring import Scores, mixed, weights


def test_learned_adds_the_row_of_the_position_and_stops_at_the_tables_end() -> None:
    """Row 1 for position 1; nothing for position 2 of a table of 2."""
    assert tok.learned([[1.0, 2.0]], positions=[1], table=[[9.0, 9.0], [0.5, 0.25]]) == [[1.5, 2.25]]
    with pytest.raises(IndexError):
        tok.learned([[1.0, 2.0]], positions=[2], table=[[9.0, 9.0], [0.5, 0.25]])


def test_randomized_draws_are_told_from_others_by_form_and_by_mean() -> None:
    """Of 0 .. 9, three: means 1.75, 4.5, 7.25 (k * 11/4 - 1); 2,000 sorted samples agree within 5 standard errors."""
    assert tok.randomized_problems([0, 4, 9], length=3, maximum=10) == []
    for wrong in ([0, 4], [0, 4, 10], [0, 4, 4], [4, 0, 9], [0, 0.5, 1], [-1, 0, 1]):
        assert tok.randomized_problems(wrong, length=3, maximum=10)
    assert [tok.randomized_mean(n, length=3, maximum=10) for n in range(3)] == [1.75, 4.5, 7.25]
    generator = random.Random(0)
    draws = [sorted(generator.sample(range(10), 3)) for _ in range(2000)]
    for n in range(3):
        spread = math.sqrt(tok.randomized_variance(n, length=3, maximum=10) / 2000)
        assert sum(draw[n] for draw in draws) / 2000 == pytest.approx(
            tok.randomized_mean(n, length=3, maximum=10), abs=5 * spread
        )


def test_randomized_hands_the_draw_to_another_method() -> None:
    """ALiBi between positions 0 and 5: -5/16 at two heads' first slope."""
    draw = [0, 5, 6, 9, 12, 14, 20, 21, 22, 30, 38, 39]
    zero = [[[0.0] * WIDTH] * TOKENS] * HEADS
    got = tok.randomized(zero, K, positions=draw, maximum=40, inner=bias.alibi)
    assert got[0][1][0] == -5 / 16


def test_prope_keeps_the_fastest_pairs() -> None:
    """Width 8, p = 0.75: three of four pairs; p = 1 is RoPE, p = 0 NoPE."""
    assert rot.prope_frequencies(8, p=0.75) == pytest.approx([1, 0.1, 0.01, 0])
    assert rot.prope_frequencies(8, p=0.7) == pytest.approx([1, 0.1, 0, 0])
    assert same(rot.prope(Q, K, positions=HERE, p=1), rot.rope(Q, K, positions=HERE))
    assert same(rot.prope(Q, K, positions=HERE, p=0), tok.none(Q, K, positions=HERE))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_xpos_is_its_closed_form_wherever_the_powers_are_counted_from(layout: str) -> None:
    """Pair 0 of width 2 decays by (0.4/1.4)^(r/512)."""
    got = rot.xpos(Q, K, positions=HERE, layout=layout)
    assert got[1][9][2] == pytest.approx(rot.xpos_by_distance(Q[1][9], K[1][2], 7, layout=layout))
    assert same(got, rot.xpos(Q, K, positions=HERE, layout=layout, middle=6), 1e-12)
    flat_q = rot.xpos([[[1.0, 0.0]] * 2], [[[1.0, 0.0]] * 2], positions=[0, 512], base=1e300)
    assert flat_q[0][1][0] == pytest.approx(0.4 / 1.4 * math.cos(512) / math.sqrt(2))


def test_blockwise_xpos_sees_its_own_block_and_the_one_before() -> None:
    """Blocks of 2 in 6 tokens:

    x.....  xx....  xxx...  xxxx..  ..xxx.  ..xxxx
    """
    got = rot.xpos([head[:6] for head in Q], [head[:6] for head in K], positions=range(6), block=2)
    seen = ["".join("." if score is None else "x" for score in row) for row in got[0]]
    assert seen == ["x.....", "xx....", "xxx...", "xxxx..", "..xxx.", "..xxxx"]


def test_kerple_by_hand() -> None:
    """p = 2, a = 1, r = 3: -2 ln 4; a = 0.5, p = 2, r = 4: -8; nothing below 0.01 or (power) above 2."""
    zero = [[[0.0, 0.0]] * 5]
    assert bias.kerple_log(zero, zero, positions=range(5), p=[2], a=[1])[0][3][0] == pytest.approx(-2 * math.log(4))
    assert bias.kerple_power(zero, zero, positions=range(5), p=[2], a=[0.5])[0][4][0] == -8
    assert bias.kerple_power(zero, zero, positions=range(5), p=[3], a=[0])[0][4][0] == pytest.approx(-0.16)
    assert bias.kerple_log3(zero, zero, positions=range(5), p=[2], a=[1], power=[2])[0][3][0] == pytest.approx(
        -2 * math.log(10)
    )


def test_sandwich_by_hand() -> None:
    """Width 4, 8 heads, r = 1: cos 0.01 + cos 0.0001 - 2, over h; 0 on the diagonal."""
    want = math.cos(0.01) + math.cos(0.0001) - 2
    assert bias.sandwich_bias(1, head=1, heads=8, width=4) == pytest.approx(want, rel=1e-9)
    assert bias.sandwich_bias(1, head=4, heads=8, width=4) == pytest.approx(want / 4, rel=1e-9)
    assert bias.sandwich_bias(0, head=1, heads=8, width=4) == 0


def test_fire_by_hand() -> None:
    """c = 1, T = 3, an MLP that is the identity: ln(r + 1) over ln 4 up to i = 3, over ln(i + 1) beyond."""
    zero = [[[0.0, 0.0]] * 8]
    own = {"w1": [1.0], "b1": [0.0], "w2": [[1.0]], "b2": [0.0], "c": -1.0, "threshold": 3.0, "eps": 0.0}
    got = bias.fire(zero, zero, positions=range(8), **own)
    assert [got[0][1][0], got[0][3][0], got[0][7][0], got[0][7][6]] == pytest.approx([0.5, 1, 1, 1 / 3])


def test_shaw_by_hand() -> None:
    """Keys 0, table 0, 10, 20: q . a of the clipped distance over sqrt(1); values follow the weights."""
    got = data.shaw([[[1.0]] * 4], [[[0.0]] * 4], positions=range(4), keys=[[0.0], [10.0], [20.0]])
    assert got[0][3] == [20, 20, 10, 0]
    even = [[[1 / (i + 1) if j <= i else 0.0 for j in range(4)] for i in range(4)]]
    added = data.shaw_values(even, positions=range(4), values=[[0.0], [10.0], [20.0]])
    assert added[0] == [[0], [5], [10], [pytest.approx(12.5)]]


def test_transformer_xl_by_hand() -> None:
    """Zero queries and keys, v = (1, 0), W_r the identity: sin(r) over sqrt(2); u . k alone without W_r."""
    zero, one = [[[0.0, 0.0]] * 4], [[1.0, 0.0]]
    identity = [[1.0, 0.0], [0.0, 1.0]]
    got = data.transformer_xl(zero, zero, positions=range(4), u=[[0.0, 0.0]], v=one, w_r=identity)
    assert got[0][3][1] == pytest.approx(math.sin(2) / math.sqrt(2))
    still = data.transformer_xl(zero, [[[3.0, 0.0]] * 4], positions=range(4), u=one, v=one, w_r=[[0.0] * 2] * 2)
    assert still[0][3][1] == pytest.approx(3 / math.sqrt(2))


def test_wavelet_by_hand() -> None:
    """Width 16: two shifts a scale; w(0) = 1, w(1) = 0, w(1/2) = 0.75 e^(-1/8)."""
    vector = data.wavelet_vector(1, width=16)
    assert vector[:3] == pytest.approx([0, 1, 0.75 * math.exp(-1 / 8)])
    assert len(vector) == 16
    assert data.wavelet_vector(1, width=16, mother="gauss")[:2] == pytest.approx([math.exp(-1), 1])
    assert len(data.wavelet_vector(5, width=128)) == 128
    assert data.wavelet_vector(15, width=128)[15] == 1  # scale 1, shift 15


def test_cope_by_hand() -> None:
    """Zero keys: every gate is 1/2, so three keys are 1.5 away; E = 0, 1, 4: halfway between 1 and 4."""
    q, k = [[[1.0, 0.0]] * 6], [[[0.0, 0.0]] * 6]
    table = [[0.0, 0.0], [1.0, 0.0], [4.0, 0.0]]
    assert data.cope_positions(q, k, npos=3)[0][5] == [2, 2, 2, 1.5, 1, 0.5]
    got = data.cope(q, k, positions=range(6), table=table)[0][5]
    assert got == pytest.approx([z / math.sqrt(2) for z in (4, 4, 4, 2.5, 1, 0.5)])
    undivided = data.cope(q, k, positions=range(6), table=table, divide_position_term=False)[0][5]
    assert undivided == pytest.approx([4, 4, 4, 2.5, 1, 0.5])


def test_fox_by_hand() -> None:
    """Gates of 1/2 everywhere: -r ln 2, which is ALiBi with slope ln 2; the first gate is never used."""
    zero, x = [[[0.0, 0.0]] * 4], [[1.0], [0.0], [0.0], [0.0]]
    got = data.fox(zero, zero, positions=range(4), x=x, w_f=[[5.0]], b_f=[0.0])
    assert got[0][3] == pytest.approx([-3 * math.log(2), -2 * math.log(2), -math.log(2), 0])


def test_cable_by_hand() -> None:
    """Steps 1 for positive tokens, 0 for negative ones; ALiBi with slope 1 where all are 1; the gate and the kernel."""
    zero, x = [[[0.0, 0.0]] * 4], [[1.0], [1.0], [-1.0], [1.0]]
    assert data.cable(zero, zero, positions=range(4), x=x, w_c=[[1.0]])[0][3] == [-2, -1, -1, 0]
    ones = data.cable(zero, zero, positions=range(4), x=[[1.0]] * 4, w_c=[[1.0]])
    assert same(ones, bias.alibi(zero, zero, positions=range(4), slopes=[1.0]))
    gated = data.cable(zero, zero, positions=range(4), x=x, w_c=[[1.0]], w_s=[[0.0]])[0][3]
    assert gated == pytest.approx([-2 * math.log(2), -math.log(2), -math.log(2), 0])
    kernelized = data.cable(zero, zero, positions=range(4), x=x, w_c=[[1.0]], kernelized=True)[0][3]
    assert kernelized == pytest.approx([-math.log(5), -math.log(2), -math.log(2), 0])


def test_dape_by_hand() -> None:
    """One head, S = 1, B = -3, a hidden unit S + B = -2: LeakyReLU -0.02, times 10; -2 - 0.2 in all."""
    q, k, b = [[[1.0]] * 2], [[[1.0]] * 2], [[[-3.0] * 2] * 2]
    got = data.dape(q, k, positions=range(2), bias=b, w1=[[1.0, 1.0]], b1=[0.0], w2=[[10.0]], b2=[0.0])
    assert got[0][1][0] == pytest.approx(-2.2)
    silent = data.dape(q, k, positions=range(2), bias=b, w1=[[1.0, 1.0]], b1=[0.0], w2=[[0.0]], b2=[0.0])
    assert silent[0][1] == [-2, -2]


def test_dape_v2_with_kernels_of_one_is_dape() -> None:
    """A 1 x 3 kernel whose outer numbers are 0."""
    w1, w2 = drawn(5, 2 * HEADS), drawn(HEADS, 5)
    own = {"positions": HERE, "bias": drawn(HEADS, TOKENS, TOKENS), "b1": drawn(5), "b2": drawn(HEADS)}
    wide = {name: [[[0.0, n, 0.0] for n in row] for row in w] for name, w in (("w1", w1), ("w2", w2))}
    assert same(data.dape_v2(Q, K, **wide, **own), data.dape(Q, K, w1=w1, w2=w2, **own))


def test_dape_v2_sees_where_the_window_ends() -> None:
    """The authors' padding: the last row alone is another when a token follows it."""
    own: dict[str, Any] = {"w1": drawn(3, 2 * HEADS, 3), "b1": drawn(3), "w2": drawn(HEADS, 3, 3), "b2": drawn(HEADS)}
    biases = drawn(HEADS, TOKENS, TOKENS)
    whole = data.dape_v2(Q, K, positions=HERE, bias=biases, **own)
    part = data.dape_v2([h[:8] for h in Q], [h[:8] for h in K], positions=HERE[:8], bias=biases, **own)
    assert same([[row[:8] for row in head[:7]] for head in whole], [head[:7] for head in part])
    assert not same(whole[0][7][7], part[0][7][7], 1e-6)


def test_temperatures_by_hand() -> None:
    """ln N of the keys seen; ln N / ln L is 1 at N = L; 1 + 0.412 ln s."""
    one = [[[1.0]] * 4]
    assert temp.ssmax(one, one, positions=range(4), s=[2.0])[0][2][0] == pytest.approx(2 * math.log(3))
    assert [row[0] for row in temp.log_n(one, one, positions=range(4), trained_length=2)[0]] == pytest.approx(
        [0, 1, math.log(3) / math.log(2), 2]
    )
    clipped = temp.log_n(one, one, positions=range(4), trained_length=2, at_least_one=True)[0]
    assert [row[0] for row in clipped] == pytest.approx([1, 1, math.log(3) / math.log(2), 2])
    assert [temp.drope_temperature(s) for s in (0.5, 1, 2)] == pytest.approx([1, 1, 1.285577], abs=5e-7)
    assert temp.drope(one, one, positions=range(4), factor=2)[0][2][0] == pytest.approx(1.285577, abs=5e-7)


def test_scale_invariant_gives_each_decade_the_same_mean_weight() -> None:
    """exp(m + a^2/2) = e^0.5/(1 + t/tau) for a unit Gaussian score; at t = tau (e - 1): a^2 = 3, m = -2."""
    for t in (0, 1, 10, 1000):
        a, m = temp.scale_invariant_terms(t)
        assert math.exp(m + a * a / 2) == pytest.approx(math.exp(0.5) / (1 + t / 10))
    assert temp.scale_invariant_terms(10 * (math.e - 1)) == pytest.approx((math.sqrt(3), -2))


def test_swan_interleaves_and_windows() -> None:
    """Period 4, first global 0; a window of 3 counts the query's own key."""
    assert temp.swan_layers(5, period=4) == ["global", "local", "local", "local", "global"]
    local = temp.swan(Q, K, positions=HERE, kind="local", window=3)
    assert [score is not None for score in local[0][5]] == [False] * 3 + [True] * 3 + [False] * 6
    assert local[0][5][3] == rot.rope(Q, K, positions=HERE)[0][5][3]
    assert same(temp.swan(Q, K, positions=HERE, kind="global", window=3), tok.none(Q, K, positions=HERE))


def test_weights_and_outputs_leave_masked_keys_out() -> None:
    """Scores 0 and ln 3: 1/4 and 3/4 of the values 4 and 8."""
    scores: Scores = [[[0.0, None], [0.0, math.log(3)]]]
    assert flat(weights(scores)) == pytest.approx([1, 0, 0.25, 0.75])
    assert flat(mixed(scores, [[[4.0], [8.0]]])) == pytest.approx([4, 7])
