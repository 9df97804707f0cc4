"""Every kernel against attention written down once more (tiny.attention), at lengths around the kernels' blocks.

MASK-1, MASK-4, TRAIN-2 and BIAS-6 of the known faults.
"""

import math
from dataclasses import replace

import pytest
import torch
from tiny import CASES, DEFAULTS, DEVICES, SHAPE, attention, encoding
from torch.nn.attention import SDPBackend, sdpa_kernel

from posbench import attention as kernels
from posbench import strided
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.window import Blockwise, Sliding

SMALL = Shape(layers=1, width=16, heads=2, train_length=1100)
NONE, ALIBI, T5 = ("none", {}), ("alibi", {}), ("t5", {})


def draw(n_queries, n_keys, shape=SMALL, batch=1, device="cpu", seed=0):
    """q, k, v that want a gradient, and the positions of the queries (the last of the keys) and keys."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (n_queries, n_keys, n_keys)
    qkv = [torch.randn(batch, shape.heads, n, shape.head_dim, generator=generator).to(device) for n in sizes]
    k_pos = torch.arange(n_keys, device=device)[None]
    return [x.requires_grad_() for x in qkv], k_pos[:, n_keys - n_queries :], k_pos


def grads(out, qkv, e):
    """Gradients of a fixed weighted sum of `out`: with the sum alone, dq and dk of causal attention nearly vanish."""
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.device)
    # Kept, because kernels share what one `begin` made.
    return torch.autograd.grad((out * weight).sum(), [*qkv, *e.parameters()], allow_unused=True, retain_graph=True)


def state_of(e, n_keys, batch=1, device="cpu"):
    """What an encoding keeps of tokens whose normed vectors were drawn."""
    x = torch.randn(batch, n_keys, e.shape.width, generator=torch.Generator().manual_seed(5))
    return e.state(x.to(device))


def passes(e, q_pos, k_pos):
    """(kernel, Pass) of every kernel that can serve this encoding over consecutive positions."""
    how = kernels.begin(e, q_pos, k_pos, consecutive=True)
    yield how.kernel, how
    if "bias" in e.hooks and how.kernel != "dense":
        yield "dense", replace(how, kernel="dense", vector=None)
    if how.kernel != "blocks":
        yield "blocks", replace(how, kernel="blocks", vector=None)
    if how.kernel == "causal":
        yield "strided", replace(how, kernel="strided", vector=None)


def compare(e, n_queries, n_keys, how_many=None, batch=1, device="cpu"):
    """Each kernel's output and gradients equal the reference's; the names of the kernels seen."""
    qkv, q_pos, k_pos = draw(n_queries, n_keys, Shape(1, e.shape.width, e.shape.heads, 8), batch, device)
    state = state_of(e, n_keys, batch, device)
    expected = attention(e, *qkv, q_pos, k_pos, state, window=e.window(0))
    wanted = grads(expected, qkv, e)
    seen = set()
    for name, how in passes(e, q_pos, k_pos):
        out = kernels.attend(*qkv, state, how)
        assert (out - expected).abs().max() < 1e-4, name
        for got, want in zip(grads(out, qkv, e), wanted, strict=True):
            if want is not None:
                assert got.isfinite().all(), name
                # As a whole: at a corner (cope's table) a rounding gives one number the slope of the other side.
                assert (got - want).norm() < 1e-4 * max(1, want.norm()), name
        seen.add(name)
    return seen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [1, 65, 129])
@pytest.mark.parametrize("case", CASES)
def test_every_kernel_equals_the_reference_with_its_gradients(case, length, device):
    """One token, and odd lengths around a block: outputs and gradients within 1e-4, none missing.

    More lengths, without gradients, are tried by `posbench check`.
    """
    e = encoding(case, SMALL).for_layer(0).to(device)
    compare(e, length, length, batch=2, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "case",
    [c for c in DEFAULTS if c.id == "none" or encoding(c.values[0], SMALL).for_layer(0).hooks & {"bias", "scores"}],
)
def test_every_kernel_over_more_than_one_block(case, device):
    """1,025 queries: the block of 1,024 and one more, and five blocks of 256."""
    e = encoding(case, SMALL).for_layer(0).to(device)
    compare(e, 1025, 1025, device=device)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        *((n, n) for n in (strided.SQUARE, strided.SQUARE + 1, 700, strided.QUERIES)),
        (1, strided.SQUARE),
        (1, strided.SQUARE + 1),
        (130, strided.SQUARE + 1),
    ],
)
@pytest.mark.parametrize("windowed", [False, True])
def test_a_strided_bias_at_the_border_of_one_small_tensor(queries, keys, windowed):
    """512 keys are one, turned as a whole; from 513 on keys and values are turned, here in one block of queries."""
    e = Toy(SMALL) if windowed else encoding(ALIBI, SMALL)
    assert "strided" in compare(e, queries, keys)


@pytest.mark.parametrize(
    ("case", "kernel"), [(NONE, "causal"), (ALIBI, "strided"), (T5, "strided"), (("shaw", {}), "blocks")]
)
def test_the_kernel_follows_from_the_hooks(case, kernel):
    """No bias; a fixed one; one that is being learned; scores of its own."""
    at = torch.arange(8)[None]
    how = kernels.begin(encoding(case, SMALL).for_layer(0), at, at, consecutive=True)
    assert how.kernel == kernel
    assert how.reason
    with torch.no_grad():  # in evaluation a learned bias is as fixed as any
        assert kernels.begin(encoding(T5, SMALL), at, at, consecutive=True).kernel == "strided"


def test_a_learned_bias_has_the_same_output_in_training_and_in_evaluation():
    """With a gradient of its own and without, one number, on both sides of 512 keys."""
    e = encoding(T5, SMALL)
    qkv, q_pos, k_pos = draw(600, 600)
    training = kernels.attend(*qkv, {}, kernels.begin(e, q_pos, k_pos, consecutive=True))
    with torch.no_grad():
        evaluation = kernels.attend(*qkv, {}, kernels.begin(e, q_pos, k_pos, consecutive=True))
    assert (training - evaluation).abs().max() < 1e-5


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (130, 300), (1, 1100)])
def test_fewer_queries_than_keys_are_the_last_of_them(case, queries, keys):
    """The mask hangs at the lower right corner, in every kernel."""
    compare(encoding(case, SMALL).for_layer(0), queries, keys)


@pytest.mark.parametrize("case", [NONE, ALIBI, ("shaw", {})])
def test_two_queries_against_five_keys_see_four_and_five(case):
    """With one-hot values the output is the weights: row 0 has 4 that are not zero, row 1 has 5; one query has all."""
    e = encoding(case, Shape(1, 10, 2, 8)).for_layer(0)
    (q, k, _), q_pos, k_pos = draw(2, 5, e.shape)
    v = torch.eye(5).expand(1, 2, 5, 5)
    for _, how in passes(e, q_pos, k_pos):
        weights = kernels.attend(q, k, v, {}, how)
        assert (weights > 0).sum(-1).tolist() == [[[4, 5], [4, 5]]]
        assert torch.allclose(weights.sum(-1), torch.ones(1, 2, 2), atol=1e-6)
        alone = kernels.attend(q[:, :, -1:], k, v, {}, how)
        assert torch.allclose(alone, weights[:, :, -1:], atol=1e-6)


def test_more_queries_than_keys_are_refused():
    """Their keys would have to lie in the future."""
    with pytest.raises(ValueError, match="3 queries cannot be the last of 2 keys"):
        kernels.begin(encoding(NONE, SMALL), torch.arange(3)[None], torch.arange(2)[None], consecutive=True)


@pytest.mark.parametrize("case", CASES)
def test_positions_that_do_not_count_by_one(case):
    """Gaps, and other positions in each row of the batch: a distance is a difference of positions, not of indices."""
    e = encoding(case, SMALL).for_layer(0)
    at = torch.tensor([[0, 2, 3, 7, 20, 21], [1, 4, 5, 6, 9, 40]])
    qkv, _, _ = draw(6, 6, batch=2)
    how = kernels.begin(e, at, at, consecutive=False)
    assert how.kernel != "strided" or "bias" not in e.hooks
    state = state_of(e, 6, batch=2)
    out, expected = kernels.attend(*qkv, state, how), attention(e, *qkv, at, at, state, window=e.window(0))
    assert (out - expected).abs().max() < 1e-5
    if "bias" in e.hooks:  # and they matter
        plain = torch.arange(6)[None].expand(2, 6)
        assert (expected - attention(e, *qkv, plain, plain)).abs().max() > 1e-3


class Toy(Encoding):
    """Hooks that no shipped encoding uses: a window, and a scale by the number of keys seen, beside a bias."""

    def bias(self, distance):
        return -0.1 * torch.arange(1, self.shape.heads + 1).view(-1, *[1] * distance.ndim) * distance.float().sqrt()

    def window(self, layer):
        return Sliding(3)

    def scale(self, n_keys, length):
        return (1 + n_keys.float().log()).expand(self.shape.heads, -1, -1)


class ToyScores(Toy):
    def scores(self, s, q, k, q_pos, k_pos, state, rows):
        cumulative = state["gate"].cumsum(1)  # (B, S)
        return s + (cumulative[:, rows, None] - cumulative[:, None, :])[:, None]


class Logarithm(Encoding):
    """A learned bias that exists at no distance below zero: keys past the query must not reach its gradient."""

    def __init__(self, shape):
        super().__init__(shape)
        self.strength = torch.nn.Parameter(torch.linspace(0.5, 1, shape.heads))

    def bias(self, distance):
        return -self.strength.view(-1, *[1] * distance.ndim) * distance.float().log1p()


class Shared(Encoding):
    """A learned bias that all heads share, beside a window."""

    def __init__(self, shape):
        super().__init__(shape)
        self.strength = torch.nn.Parameter(torch.tensor([0.7]))

    def bias(self, distance):
        return -self.strength.view(-1, *[1] * distance.ndim) * distance.float().sqrt()

    def window(self, layer):
        return Sliding(40)


class WindowOnly(Encoding):
    def window(self, layer):
        return Sliding(2)


class BlocksOnly(Encoding):
    def window(self, layer):
        return Blockwise(2)


class BlocksAndBias(Toy):
    def window(self, layer):
        return Blockwise(5)


@pytest.mark.parametrize("length", [1, 3, 70])
@pytest.mark.parametrize("toy", [Toy, Logarithm, Shared, WindowOnly, BlocksOnly, BlocksAndBias])
def test_biases_windows_and_scales_reach_every_kernel(toy, length):
    compare(toy(SMALL), length, length)
    if length > 3:
        compare(toy(SMALL), 3, length)


@pytest.mark.parametrize("toy", [Logarithm, Shared])
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (50, 70), (600, 600)])
def test_the_gradient_of_a_learned_bias_is_the_same_in_pieces(toy, queries, keys, monkeypatch):
    """Blocks of 32 queries, the last one shorter, and one window of three at a time."""
    monkeypatch.setattr(strided, "BACK", 32)
    monkeypatch.setattr(strided, "CACHED", 1)
    assert "strided" in compare(toy(SMALL), queries, keys, batch=3)


class Counts(Encoding):
    """Keeps what it is told of the keys that queries see."""

    def scale(self, n_keys, length):
        self.seen, self.length = n_keys.tolist(), length
        return n_keys.expand(self.shape.heads, *n_keys.shape).float()


@pytest.mark.parametrize(
    ("queries", "window", "documents", "seen"),
    [
        (5, None, None, [[1, 2, 3, 4, 5]]),
        (2, None, None, [[4, 5]]),
        (5, Sliding(2), None, [[1, 2, 2, 2, 2]]),
        (5, Blockwise(2), None, [[1, 2, 3, 4, 3]]),
        (1, Blockwise(1), None, [[2]]),
        (5, None, [[0, 0, 1, 1, 1], [1, 1, 1, 1, 2]], [[1, 2, 1, 2, 3], [1, 2, 3, 4, 1]]),
        (3, Sliding(2), [[0, 0, 1, 1, 1], [1, 1, 1, 1, 2]], [[1, 2, 2], [2, 2, 1]]),
    ],
)
def test_a_scale_is_told_how_many_keys_each_query_sees(queries, window, documents, seen):
    """By hand, of 5 keys: a window and the end of a document take keys away."""
    e, batch = Counts(SMALL), 2 if documents else 1
    e.window = lambda layer: window
    qkv, q_pos, k_pos = draw(queries, 5, batch=batch)
    how = kernels.begin(e, q_pos, k_pos, True, documents=None if documents is None else torch.tensor(documents))
    assert (e.seen, e.length) == (seen, 5)
    factor = torch.tensor(seen).float()[:, None, :, None]
    plain = replace(how, scale=1.0)
    assert torch.equal(kernels.attend(*qkv, {}, how), kernels.attend(qkv[0] * factor, *qkv[1:], {}, plain))


def test_a_scale_is_rounded_only_with_its_query():
    """In bf16 a factor of 1,001 keys is one of 1,000: the product must be rounded, not its parts."""
    at = torch.arange(1001)[None]
    how = kernels.begin(Counts(Shape(1, 1, 1, 8)), at[:, -1:], at, consecutive=True)
    q, v = torch.tensor([[[[0.3]]]]).bfloat16(), torch.arange(1001).remainder(2).view(1, 1, -1, 1).bfloat16()
    k = 1 - v / 64
    once, twice = (q.float() * 1001).bfloat16(), q * torch.tensor(1001.0).bfloat16()
    answers = [kernels.attend(each, k, v, {}, replace(how, scale=1.0)) for each in (once, twice)]
    assert not torch.equal(*answers)
    assert torch.equal(kernels.attend(q, k, v, {}, how), answers[0])


class Mixed(Encoding):
    """A bias through a matrix product, as a small network of the distance would have."""

    def __init__(self, shape):
        super().__init__(shape)
        self.weight = torch.nn.Parameter(torch.linspace(0.3, 1, shape.heads)[:, None])

    def bias(self, distance):
        return (-0.01 * distance.float()[..., None] @ self.weight.T).movedim(-1, 0)


def test_a_bias_is_formed_in_float32_by_every_kernel_under_autocast():
    """Autocast turns matrix products into bf16: neither the vector of one kernel nor the blocks of another may be."""
    e = Mixed(SMALL)
    qkv, q_pos, k_pos = draw(300, 300)
    expected = attention(e, *qkv, q_pos, k_pos)
    seen = set()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name, how in passes(e, q_pos, k_pos):
            assert (kernels.attend(*qkv, {}, how) - expected).abs().max() < 1e-5, name
            seen.add(name)
    assert seen == {"strided", "dense", "blocks"}


@pytest.mark.parametrize("keys", [strided.SQUARE, strided.SQUARE + 1])
def test_a_learned_bias_goes_through_the_fused_kernel_forwards(keys):
    """Which refuses a mask that wants a gradient: then the scores of all pairs are written out."""
    qkv, q_pos, k_pos = draw(keys, keys)
    how = kernels.begin(encoding(T5, SMALL), q_pos, k_pos, consecutive=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert kernels.attend(*qkv, {}, how).requires_grad


@pytest.mark.parametrize("toy", [Logarithm, Shared])
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (50, 70)])
def test_a_learned_bias_is_the_same_in_a_compiled_step(toy, queries, keys):
    """Where it is laid out pair by pair; as far as the graph that a compiler is given."""
    e = toy(SMALL)
    qkv, q_pos, k_pos = draw(queries, keys, batch=2)

    def out(q, k, v):
        return kernels.attend(q, k, v, {}, kernels.begin(e, q_pos, k_pos, consecutive=True))

    compiled = torch.compile(out, dynamic=False, backend="aot_eager")(*qkv)
    assert (compiled - out(*qkv)).abs().max() < 1e-5
    for got, want in zip(grads(compiled, qkv, e), grads(out(*qkv), qkv, e), strict=True):
        assert (got - want).norm() < 1e-5 * want.norm()


class View(Encoding):
    """A bias that is a part of its table itself, not a copy, beside a window."""

    def __init__(self, shape):
        super().__init__(shape)
        self.table = torch.nn.Parameter(torch.zeros(shape.heads, 16))

    def bias(self, distance):
        return self.table[:, : len(distance)]

    def window(self, layer):
        return Sliding(3)


@torch.no_grad()
def test_masking_a_bias_leaves_the_encodings_own_table_alone():
    """And a view of a parameter, which torch says wants a gradient even where none is kept, counts as fixed."""
    e, at = View(SMALL), torch.arange(8)[None]
    assert kernels.begin(e, at, at, consecutive=True).kernel == "strided"
    assert e.table.isfinite().all()


def test_a_window_of_one_reads_its_own_value_alone():
    """softmax over one key is 1: the output is v."""
    one = WindowOnly(SMALL)
    one.window = lambda layer: Sliding(1)
    qkv, q_pos, k_pos = draw(5, 5)
    for _, how in passes(one, q_pos, k_pos):
        assert torch.allclose(kernels.attend(*qkv, {}, how), qkv[2], atol=1e-6)


def test_state_of_the_keys_reaches_scores_in_blocks():
    """300 queries are two blocks: the second must see the state of all its keys, and its own rows of it."""
    e = ToyScores(SMALL)
    qkv, q_pos, k_pos = draw(300, 300)
    state = {"gate": torch.rand(1, 300, generator=torch.Generator().manual_seed(3)) * -0.1}
    out = kernels.attend(*qkv, state, kernels.begin(e, q_pos, k_pos, consecutive=True))
    expected = attention(e, *qkv, q_pos, k_pos, state, window=Sliding(3))
    assert (out - expected).abs().max() < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_16_bit_queries_get_16_bit_answers_near_the_exact_ones(case):
    """Scores and biases are float32 inside: the error is that of the rounded q, k and v."""
    e = encoding(case, SMALL).for_layer(0)
    qkv, q_pos, k_pos = draw(70, 70)
    how = kernels.begin(e, q_pos, k_pos, consecutive=True)
    rounded = [x.detach().bfloat16() for x in qkv]
    state = state_of(e, 70)
    out = kernels.attend(*rounded, state, how)
    assert out.dtype == torch.bfloat16
    exact = attention(e, *(x.float() for x in rounded), q_pos, k_pos, state, window=e.window(0))
    assert (out.float() - exact).abs().max() < 0.03


def test_the_strided_mask_holds_no_square():
    """8,192 tokens at 2 heads: a float mask would be 537 MB; what `begin` keeps is one vector a head."""
    at = torch.arange(8192)[None]
    how = kernels.begin(encoding(ALIBI, SMALL), at, at, consecutive=True)
    assert how.vector is not None
    assert how.vector.numel() == 2 * (8192 + strided.QUERIES - 1)
    assert how.vector[:, -strided.QUERIES + 1 :].eq(-math.inf).all()


@pytest.mark.parametrize("kernel", ["blocks", "dense"])
def test_scores_of_a_long_window_are_formed_for_few_queries_at_a_time(kernel, monkeypatch):
    """200 queries of 32,768 keys at 2 heads: 2^21 scores are those of 32 queries, so that there are six blocks of 32
    and a last one of 8. That of most keys comes first, and the queries come out in their own order."""
    e, blocks = encoding(ALIBI, SMALL), []
    qkv, q_pos, k_pos = draw(200, 32_768)
    how = replace(kernels.begin(e, q_pos, k_pos, consecutive=True), kernel=kernel, vector=None)
    expected = attention(e, *qkv, q_pos, k_pos, {})
    bias = e.bias

    def watched(distance):
        blocks.append(tuple(distance.shape[1:]))
        return bias(distance)

    monkeypatch.setattr(e, "bias", watched)
    with torch.no_grad():
        out = kernels.attend(*qkv, {}, how)
    assert blocks == [(8, 32_768)] + [(32, n) for n in range(32_760, 32_760 - 6 * 32, -32)]
    assert (out - expected).abs().max() < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_few_queries_at_a_time_read_as_many_do(case, monkeypatch):
    """70 queries of 75 keys, 3 windows, 7 queries at a time in every kernel that has blocks."""
    e = encoding(case, SMALL).for_layer(0)
    qkv, q_pos, k_pos = draw(70, 75, batch=3)
    state = state_of(e, 75, batch=3)
    expected = attention(e, *qkv, q_pos, k_pos, state, window=e.window(0))
    monkeypatch.setitem(kernels.SCORES, "cpu", 7 * 3 * SMALL.heads * 75)
    for name, how in passes(e, q_pos, k_pos):
        with torch.no_grad():
            out = kernels.attend(*qkv, state, how)
        assert (out - expected).abs().max() < 1e-5, name


def test_rope_and_others_need_their_context_once_a_pass():
    """`begin` hands over what the encoding made, untouched."""
    e, at = encoding(("rope", {}), SHAPE), torch.arange(4)[None]
    cos, sin = kernels.begin(e, at, at, consecutive=True).context
    assert cos.shape == (1, 4, 4, 8)
    assert sin.shape == (1, 4, 4, 4)
