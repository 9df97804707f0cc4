"""The oracles against the numbers of the list of known faults, and against what every formula must obey."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from oracles import context_extensions as ext
from oracles import data_dependent as data
from oracles import distance_biases as bias
from oracles import rotations as rot
from oracles import temperatures as temp
from oracles import token_vectors as tok
from oracles.draws import HEADS, HERE, MODEL, TOKENS, WIDTH, K, Q, X, drawn, flat, same
from oracles.scoring import Scores, dot, softmax


def slowed(changed: list[float], width: int, base: float = 10000.0) -> list[float]:
    """By how much each pair turns slower than in plain RoPE."""
    return [before / after for before, after in zip(rot.frequencies(width, base=base), changed, strict=True)]


BY_DISTANCE: dict[str, Callable[..., Scores]] = {
    "none": tok.none,
    "rope": rot.rope,
    "rope interleaved": lambda q, k, positions: rot.rope(q, k, positions=positions, layout="interleaved"),
    "prope": lambda q, k, positions: rot.prope(q, k, positions=positions, p=0.75),
    "xpos": rot.xpos,
    "alibi": bias.alibi,
    "t5": lambda q, k, positions: bias.t5(q, k, positions=positions, table=drawn(32, HEADS)),
    "kerple log": lambda q, k, positions: bias.kerple_log(q, k, positions=positions, p=[0.5, 1.5], a=[0.1, 0.9]),
    "kerple power": lambda q, k, positions: bias.kerple_power(q, k, positions=positions, p=[0.5, 1.5], a=[0.1, 0.9]),
    "sandwich": bias.sandwich,
    "shaw": lambda q, k, positions: data.shaw(q, k, positions=positions, keys=drawn(5, WIDTH)),
    "transformer_xl": lambda q, k, positions: data.transformer_xl(
        q,
        k,
        positions=positions,
        u=drawn(HEADS, WIDTH, seed=4),
        v=drawn(HEADS, WIDTH, seed=5),
        w_r=drawn(HEADS * WIDTH, HEADS * WIDTH),
    ),
    "wavelet": data.wavelet,
    "scale_invariant": temp.scale_invariant,
    "pi": lambda q, k, positions: ext.pi(q, k, positions=positions, factor=4),
    "ntk": lambda q, k, positions: ext.ntk(q, k, positions=positions, factor=4),
    "yarn": lambda q, k, positions: ext.yarn(q, k, positions=positions, factor=4, trained_length=512),
    "alibi interpolation": lambda q, k, positions: ext.alibi_interpolation(q, k, positions=positions, factor=4),
}

BY_TOKENS: dict[str, Callable[..., Scores]] = {
    "fire": lambda q, k, positions: bias.fire(
        q, k, positions=positions, w1=drawn(4), b1=drawn(4, seed=1), w2=drawn(HEADS, 4), b2=drawn(HEADS), threshold=4
    ),
    "cope": lambda q, k, positions: data.cope(q, k, positions=positions, table=drawn(5, WIDTH)),
    "fox": lambda q, k, positions: data.fox(
        q, k, positions=positions, x=X, w_f=drawn(HEADS, MODEL, seed=6), b_f=drawn(HEADS)
    ),
    "cable": lambda q, k, positions: data.cable(
        q, k, positions=positions, x=X, w_c=drawn(HEADS, MODEL, seed=7), w_s=drawn(HEADS, MODEL, seed=8)
    ),
    "dape": lambda q, k, positions: data.dape(
        q,
        k,
        positions=positions,
        bias=drawn(HEADS, TOKENS, TOKENS),
        w1=drawn(5, 2 * HEADS),
        b1=drawn(5),
        w2=drawn(HEADS, 5),
        b2=drawn(HEADS),
    ),
    "ssmax": lambda q, k, positions: temp.ssmax(q, k, positions=positions, s=[0.4, 0.6]),
    "log_n": lambda q, k, positions: temp.log_n(q, k, positions=positions, trained_length=512),
    "drope": lambda q, k, positions: temp.drope(q, k, positions=positions, factor=4),
    "swan local": lambda q, k, positions: temp.swan(q, k, positions=positions, kind="local", window=3),
    "xpos blockwise": lambda q, k, positions: rot.xpos(q, k, positions=positions, block=3),
}


@pytest.mark.parametrize("name", [*BY_DISTANCE, *BY_TOKENS])
def test_a_prefix_scores_as_it_does_inside_the_whole_and_no_query_sees_a_later_key(name: str) -> None:
    """BIAS-6: 8 tokens alone have the rows of the first 8 of 12; None above the diagonal."""
    score = {**BY_DISTANCE, **BY_TOKENS}[name]
    whole = score(Q, K, positions=HERE)
    part = score([head[:8] for head in Q], [head[:8] for head in K], positions=HERE[:8])
    assert all(row[i + 1 :] == [None] * (TOKENS - i - 1) for head in whole for i, row in enumerate(head))
    assert all(row[i] is not None for head in whole for i, row in enumerate(head))
    assert same([[row[:8] for row in head[:8]] for head in whole], part)


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_what_depends_on_distance_alone_does_not_see_a_shift(name: str) -> None:
    """PAIR-1's m = 5, n = 2 against 105, 102, for all pairs."""
    score = BY_DISTANCE[name]
    assert same(score(Q, K, positions=HERE), score(Q, K, positions=[p + 100 for p in HERE]), 1e-9)


@pytest.mark.parametrize("name", ["fire"])
def test_what_depends_on_the_querys_own_position_sees_a_shift(name: str) -> None:
    """Otherwise the test above could not fail."""
    score = BY_TOKENS[name]
    assert not same(score(Q, K, positions=HERE), score(Q, K, positions=[p + 100 for p in HERE]), 1e-9)


# EXT


def test_ext_1_llama3_slows_the_published_pairs_by_the_published_factors() -> None:
    """Llama 3.2's numbers, then posbench's scale."""
    got = slowed(
        ext.llama3_frequencies(64, trained_length=8192, factor=32, low=1, high=4, base=500000), 64, base=500000
    )
    assert got[:15] == [1.0] * 15
    assert got[15:18] == pytest.approx([1.65133, 3.29226, 9.66673], abs=5e-6)
    assert got[18:] == pytest.approx([32.0] * 14, rel=1e-12)
    got = slowed(ext.llama3_frequencies(64, trained_length=512, factor=8), 64)
    assert got[:11] == [1.0] * 11
    assert got[11:16] == pytest.approx([1.19677, 1.70965, 2.51927, 3.90656, 6.65455], abs=5e-6)
    assert got[16:] == pytest.approx([8.0] * 16, rel=1e-12)


FACTORED: dict[str, Callable[..., Scores]] = {
    "pi": lambda factor: ext.pi(Q, K, positions=HERE, factor=factor),
    "ntk": lambda factor: ext.ntk(Q, K, positions=HERE, factor=factor),
    "dynamic_ntk": lambda factor: ext.dynamic_ntk(Q, K, positions=HERE, factor=factor, trained_length=3, length=12),
    "ntk_by_parts": lambda factor: ext.ntk_by_parts(Q, K, positions=HERE, factor=factor, trained_length=64),
    "by_parts_paper": lambda factor: ext.ntk_by_parts(
        Q, K, positions=HERE, factor=factor, trained_length=64, ramp="paper"
    ),
    "yarn": lambda factor: ext.yarn(Q, K, positions=HERE, factor=factor, trained_length=64),
    "llama3": lambda factor: ext.llama3(Q, K, positions=HERE, factor=factor, trained_length=64),
}


@pytest.mark.parametrize("name", FACTORED)
def test_ext_1_factor_4_acts_and_factor_1_is_plain_rope(name: str) -> None:
    """The inert-knob test; dynamic NTK's factor 1 still grows with the length, so it is plain only up to L."""
    plain = rot.rope(Q, K, positions=HERE)
    assert not same(FACTORED[name](4), plain, 1e-3)
    if name == "dynamic_ntk":
        within = ext.dynamic_ntk(Q, K, positions=HERE, factor=1, trained_length=12, length=12)
        assert same(within, plain)
        assert ext.dynamic_ntk_base(64, trained_length=512, length=1024) == pytest.approx(10000 * 2 ** (64 / 62))
    else:
        assert same(FACTORED[name](1), plain)


def test_ext_1_position_interpolation_is_one_thing_on_positions_and_on_frequencies() -> None:
    """p/s times theta is p times theta/s."""
    by_frequency = rot.rope(Q, K, positions=HERE, theta=ext.pi_frequencies(WIDTH, factor=3))
    assert same(ext.pi(Q, K, positions=HERE, factor=3), by_frequency)


def test_ext_2_the_base_of_dynamic_ntk_moves_with_the_length() -> None:
    """Dim 64, original 512, factor 2."""
    base = [ext.dynamic_ntk_base(64, trained_length=512, length=n, factor=2) for n in (1, 512, 1024, 4096)]
    assert base == pytest.approx([10000, 10000, 31082.24, 163692.84], abs=5e-3)


def test_ext_2_static_ntk_slows_the_slowest_pair_by_the_factor_exactly() -> None:
    """Factor 8; multiplying the base by 8 would give 7.497."""
    base = ext.ntk_base(64, factor=8)
    assert base == pytest.approx(85550.38, abs=5e-3)
    got = slowed(rot.frequencies(64, base=base), 64)
    assert [got[0], got[1], got[31]] == pytest.approx([1, 1.06938, 8], abs=5e-6)
    assert slowed(rot.frequencies(64, base=80000), 64)[31] == pytest.approx(7.497, abs=5e-4)


def test_ext_3_yarns_magnitude_changes_scores_by_its_square_once() -> None:
    """0.1 ln s + 1; 1.459129 at 8, 2.1291 would be twice."""
    got = [ext.yarn_magnitude(s) for s in (0.5, 1, 4, 8, 16, 32)]
    assert got == pytest.approx([1, 1, 1.138629, 1.207944, 1.277259, 1.346574], abs=5e-7)
    with_it = ext.yarn(Q, K, positions=HERE, trained_length=512, factor=8)
    without = ext.ntk_by_parts(Q, K, positions=HERE, trained_length=512, factor=8)
    assert [a / b for a, b in zip(flat(with_it), flat(without), strict=True)] == pytest.approx(
        [1.459129] * len(flat(without)), abs=1e-6
    )


def test_ext_4_a_magnitude_of_1_is_obeyed() -> None:
    """Factor 8 with the magnitude set: no change but the frequencies."""
    set_to_1 = ext.yarn(Q, K, positions=HERE, trained_length=512, factor=8, magnitude=1.0)
    assert same(set_to_1, ext.ntk_by_parts(Q, K, positions=HERE, trained_length=512, factor=8), 0.0)


def test_ext_5_yarns_ramp_is_laid_out_by_the_trained_length() -> None:
    """Raw 3.2475 to 15.2887, rounded 3 to 16; with 4096 for 512 the pairs 4 to 10 would be unchanged."""
    assert ext.yarn_range(64, trained_length=512) == pytest.approx((3.2475, 15.2887), abs=5e-5)
    got = slowed(ext.by_parts_frequencies(64, trained_length=512, factor=8), 64)
    assert got[:4] == [1.0] * 4
    assert [got[4], got[8], got[15]] == pytest.approx([1.0722, 1.5072, 5.2], abs=5e-5)
    assert got[16:] == pytest.approx([8.0] * 16, rel=1e-12)
    assert slowed(ext.by_parts_frequencies(64, trained_length=4096, factor=8), 64)[4:10] == [1.0] * 6


def test_ext_5_the_papers_ramp_is_another_one() -> None:
    """Dim 64, L 512, s 8, pair 4: 1.213 where the code has 1.072."""
    paper = slowed(ext.by_parts_frequencies(64, trained_length=512, factor=8, ramp="paper"), 64)
    assert paper[4] == pytest.approx(1.213, abs=5e-4)
    turns = [512 * theta / (2 * math.pi) for theta in rot.frequencies(64)]
    assert all(slow == 1 for slow, r in zip(paper, turns, strict=True) if r > 32)
    assert all(slow == pytest.approx(8) for slow, r in zip(paper, turns, strict=True) if r < 1)


def test_ext_6_longrope_takes_the_long_list_one_token_past_the_trained_length() -> None:
    """The short one at the trained length itself."""
    lists = {"short": [1.0] * 8, "long": [float(m + 2) for m in range(8)], "trained_length": 512}
    assert slowed(ext.longrope_frequencies(16, length=512, **lists), 16) == pytest.approx([1.0] * 8)
    assert slowed(ext.longrope_frequencies(16, length=513, **lists), 16) == pytest.approx(lists["long"])
    assert ext.longrope_magnitude(1, trained_length=512) == 1
    assert ext.longrope_magnitude(8, trained_length=512) == pytest.approx(math.sqrt(4 / 3))  # ln 8 / ln 512 = 1/3


def test_ext_7_the_ratio_convention_with_equal_numbers_is_1() -> None:
    """And with mscale_all_dim 0 it is YaRN's."""
    assert ext.ratio_magnitude(40, mscale=0.707, mscale_all_dim=0.707) == 1.0
    assert ext.ratio_magnitude(40, mscale=1, mscale_all_dim=0) == ext.yarn_magnitude(40)


def test_alibi_interpolation_gives_distance_8_the_weight_of_distance_2_at_factor_4() -> None:
    """-m/4 * 8 = -m * 2."""
    zero = [[[0.0] * WIDTH] * TOKENS] * HEADS
    stretched = ext.alibi_interpolation(zero, K, positions=HERE, factor=4)
    assert stretched[0][8][0] == bias.alibi(zero, K, positions=HERE)[0][2][0]


# BIAS


def test_bias_1_and_2_slopes() -> None:
    """1, 4, 6, 8 and 12 heads; exact powers of two, so equality."""
    assert bias.alibi_slopes(1) == [2**-8]
    assert bias.alibi_slopes(4) == [2**-2, 2**-4, 2**-6, 2**-8]
    assert bias.alibi_slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    assert bias.alibi_slopes(8) == [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    assert bias.alibi_slopes(12) == [2.0**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]


def test_bias_3_slopes_of_0_are_another_model() -> None:
    """A bias that is lost shows."""
    without = bias.alibi(Q, K, positions=HERE, slopes=[0.0, 0.0])
    assert same(without, tok.none(Q, K, positions=HERE))
    assert not same(without, bias.alibi(Q, K, positions=HERE), 1e-3)


@pytest.mark.parametrize("width", [2, 16, 64])
def test_bias_4_the_bias_is_not_divided(width: int) -> None:
    """Zero queries, slope 0.5, third row: e^-1, e^-0.5, 1 over their sum, whatever the head width."""
    scores = bias.alibi([[[0.0] * width] * 3], [drawn(3, width)], positions=[0, 1, 2], slopes=[0.5])
    assert softmax(scores[0][2]) == pytest.approx([0.186324, 0.307196, 0.506480], abs=5e-7)


def test_bias_5_t5_buckets() -> None:
    """Causal, 32 buckets, far distance 128."""
    assert [bias.t5_bucket(r) for r in range(21)] == [*range(16), 16, 16, 16, 17, 17]
    assert [bias.t5_bucket(r) for r in (32, 64, 112, 113, 128, 4095)] == [21, 26, 30, 31, 31, 31]


def test_bias_5_t5_buckets_are_exact_where_the_logarithm_is_whole() -> None:
    """8 buckets, far 64: (r/4)^4 >= 16^n, so 8, 16, 32 open buckets 5, 6, 7; one less does not."""
    assert [bias.t5_bucket(r, buckets=8, far=64) for r in (7, 8, 15, 16, 31, 32, 10**6)] == [4, 5, 5, 6, 6, 7, 7]


# PAIR


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_pair_1_rope_at_one_position_is_the_plain_product(layout: str) -> None:
    """m = n: turning both by one angle changes nothing."""
    at_7 = rot.rope(Q, K, positions=[7] * TOKENS, layout=layout)
    assert same(at_7, tok.none(Q, K, positions=HERE))


def test_pair_1_the_layouts_are_one_under_evens_then_odds_and_a_mix_fails() -> None:
    """Reordering dimensions turns interleaved into half; left as it is, the scores differ."""
    reordered_q, reordered_k = ([[row[0::2] + row[1::2] for row in head] for head in each] for each in (Q, K))
    half = rot.rope(reordered_q, reordered_k, positions=HERE, layout="half")
    interleaved = rot.rope(Q, K, positions=HERE, layout="interleaved")
    assert same(half, interleaved)
    assert not same(rot.rope(Q, K, positions=HERE, layout="half"), interleaved, 1e-3)


def test_pair_1_a_pair_turns_by_its_angle() -> None:
    """Width 4: frequencies 1 and 0.01; (1, 0) at position 1 goes to (cos, sin)."""
    assert rot.frequencies(4) == pytest.approx([1, 0.01])
    got = rot.rotated([1.0, 1.0, 0.0, 0.0], 1, theta=[1, 0.01], layout="half")
    assert got == pytest.approx([0.540302, 0.999950, 0.841471, 0.010000], abs=5e-7)


def test_pair_2_sinusoid() -> None:
    """Dim 4, position 1; squared norm dim/2; PE(p).PE(p + 3) does not depend on p."""
    assert tok.sinusoid(4, 1) == pytest.approx([0.841471, 0.540302, 0.010000, 0.999950], abs=5e-7)
    rows = [tok.sinusoid(32, p) for p in range(40)]
    assert [dot(row, row) for row in rows] == pytest.approx([16] * 40)
    assert [dot(rows[p], rows[p + 3]) for p in range(37)] == pytest.approx([dot(rows[0], rows[3])] * 37)
    for form in ("halves", "fairseq"):
        assert dot(*[tok.sinusoid(32, 5, form=form)] * 2) == pytest.approx(16)


def test_fairseqs_sinusoid_ends_at_the_base_and_starts_at_2() -> None:
    """Dim 4: frequencies 1 and 1/10000, all sines first; x is multiplied by sqrt(4)."""
    assert tok.sinusoid(4, 2, form="fairseq") == pytest.approx(
        [math.sin(2), math.sin(2e-4), math.cos(2), math.cos(2e-4)]
    )
    got = tok.sinusoidal([[1.0, 0.0, 0.0, 0.0]], positions=[0], form="fairseq", first=2)
    assert got[0] == pytest.approx([2 + math.sin(2), math.sin(2e-4), math.cos(2), math.cos(2e-4)])


# PREC


def test_prec_1_bf16_positions_collapse_above_256_and_float64_angles_do_not() -> None:
    """513 and 769 distinct bf16 values; a float32 angle is off by up to position * 2^-23: frequency and product round.

    Seen in the 300 positions before 4,000: above 5e-5; before 100,000: above 2e-3.
    """
    assert len(set(torch.arange(1024).bfloat16().tolist())) == 513
    assert len(set(torch.arange(4096).bfloat16().tolist())) == 769
    assert torch.tensor(257.0).bfloat16() == torch.tensor(256.0).bfloat16()
    table = {tuple(rot.rotated([1.0, 0.0], p, theta=[1.0], layout="half")) for p in range(4096)}
    assert len(table) == 4096
    theta = torch.tensor(rot.frequencies(64), dtype=torch.float64)
    for position, seen in ((4000, 5e-5), (100_000, 2e-3)):
        near = torch.arange(position - 300, position)[:, None]
        gap = ((near.float() * theta.float()).cos().double() - (near.double() * theta).cos()).abs().max().item()
        assert seen < gap < position * 2**-23


def test_prec_2_a_16_bit_alibi_bias_merges_neighbours() -> None:
    """4096 distances, slope 1/4: 769 values in bf16, 3073 in fp16, all in float64."""
    values = [0.25 * r for r in range(4096)]
    assert len(set(torch.tensor(values, dtype=torch.bfloat16).tolist())) == 769
    assert len(set(torch.tensor(values, dtype=torch.float16).tolist())) == 3073
    assert len(set(values)) == 4096
