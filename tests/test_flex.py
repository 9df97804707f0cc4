"""FlexAttention's masks and biases where they can be looked at without a GPU: its plain implementation on the CPU.

What its kernels make of them is checked on a GPU alone (on_gpu.py). MASK-1, MASK-4, PREC-2 and TRAIN-2 of the known
faults.
"""

from functools import partial
from itertools import pairwise

import on_gpu
import pytest
import torch
from tiny import CASES, attention, encoding
from torch.nn.attention import flex_attention as theirs

from posbench import attention as kernels
from posbench import flex
from posbench.encodings.alibi import Alibi
from posbench.encodings.base import Encoding, Shape
from posbench.encodings.window import Blockwise, Sliding
from posbench.encodings.wrapper import Wrapper

SMALL = Shape(layers=1, width=32, heads=2, train_length=300)
LENGTHS = [1, 2, 63, 64, 65, 127, 128, 129]
ALIBI, T5, NONE = ("alibi", {}), ("t5", {}), ("none", {})


@pytest.fixture
def offered(monkeypatch):
    """The CPU passes for a GPU, and no number of queries is too small."""
    monkeypatch.setattr(flex, "offered", lambda device, n_queries: True)
    monkeypatch.setattr(flex, "_unavailable", "")
    monkeypatch.setattr(flex, "_compiled", lambda: theirs.flex_attention)


@pytest.fixture
def plain(offered, monkeypatch):
    """Without torch's own tracing around its plain implementation, which takes longer than the tests."""
    monkeypatch.setattr(theirs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def draw(n_queries, n_keys, batch=2, shape=SMALL):
    generator = torch.Generator().manual_seed(n_keys)
    sizes = (n_queries, n_keys, n_keys)
    qkv = [torch.randn(batch, shape.heads, n, shape.head_dim, generator=generator) for n in sizes]
    at = torch.arange(n_keys)[None]
    return qkv, at[:, n_keys - n_queries :], at


class Windowed(Encoding):
    """A bias in a window."""

    def bias(self, distance):
        return -0.1 * torch.arange(1, self.shape.heads + 1).view(-1, *[1] * distance.ndim) * distance.float().sqrt()

    def window(self, layer):
        return Sliding(70)


class Blocks(Windowed):
    def window(self, layer):
        return Blockwise(50)


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: encoding(ALIBI, SMALL), lambda: encoding(T5, SMALL),
                                  lambda: Windowed(SMALL), lambda: Blocks(SMALL)],
                         ids=["in proportion", "by distance", "sliding", "blockwise"])  # fmt: skip
def test_it_equals_the_reference_at_every_length(plain, make):
    e = make()
    for length in LENGTHS:
        qkv, q_pos, k_pos = draw(length, length)
        how = kernels.begin(e, q_pos, k_pos, consecutive=True)
        assert how.kernel == "flex"
        expected = attention(e, *qkv, q_pos, k_pos, window=e.window(0))
        assert (kernels.attend(*qkv, {}, how) - expected).abs().max() < 1e-5, length


@torch.no_grad()
@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (1, 129), (130, 300)])
@pytest.mark.parametrize("case", [ALIBI, T5, NONE])
def test_fewer_queries_than_keys_are_the_last_of_them(plain, case, queries, keys):
    """Told from the beginning, and in a last layer that computes fewer than the pass has."""
    e = encoding(case, SMALL)
    qkv, q_pos, k_pos = draw(queries, keys)
    expected = attention(e, *qkv, q_pos, k_pos)
    for told in (q_pos, k_pos):
        how = kernels.begin(e, told, k_pos, consecutive=True)
        assert (kernels.attend(*qkv, {}, how) - expected).abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("case", [ALIBI, T5, NONE])
def test_documents_do_not_see_each_other(plain, case):
    """Each reads as it would alone, although their numbers differ in the rows of the batch."""
    e, ends = encoding(case, SMALL), [[0, 70, 71, 200], [0, 1, 130, 200]]
    qkv, q_pos, k_pos = draw(200, 200)
    documents = torch.zeros(2, 200, dtype=torch.int64)
    for row, edges in enumerate(ends):
        for edge in edges[1:-1]:
            documents[row, edge:] += 1
    out = kernels.attend(*qkv, {}, kernels.begin(e, q_pos, k_pos, True, documents=documents))
    for row, edges in enumerate(ends):
        for a, b in pairwise(edges):
            alone = [x[row : row + 1, :, a:b] for x in qkv]
            expected = attention(e, *alone, q_pos[:, a:b], k_pos[:, a:b])
            assert (out[row, :, a:b] - expected[0]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (64, 64), (128, 128), (129, 129), (300, 300), (130, 300), (256, 1025)]
)
@pytest.mark.parametrize("window", [None, Sliding(1), Sliding(200), Blockwise(50)])
def test_the_blocks_are_those_that_torch_finds_by_looking_at_every_pair(queries, keys, window):
    for documents in (None, (torch.rand(2, keys, generator=torch.Generator().manual_seed(1)) < 0.01).cumsum(1)):
        mask = flex.block_mask(queries, keys, window, documents, torch.device("cpu"))
        batch = None if documents is None else 2
        full = theirs.create_block_mask(mask.mask_mod, batch, None, queries, keys, device="cpu")
        for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks",
                     "q_indices", "full_q_num_blocks", "full_q_indices"):  # fmt: skip
            assert torch.equal(getattr(mask, name), getattr(full, name)), name


def test_a_mask_of_a_long_text_is_small():
    """32,768 tokens: 256 x 256 blocks in four tables of 4 bytes each, where a byte for each pair of tokens is 1 GiB."""
    mask = flex.block_mask(2**15, 2**15, None, None, torch.device("cpu"))
    assert mask.kv_indices.shape == mask.full_q_indices.shape == (1, 1, 256, 256)
    assert mask.kv_num_blocks.unique().tolist() == [1]  # the diagonal
    assert mask.full_kv_num_blocks[0, 0].tolist() == list(range(256))


@pytest.mark.parametrize("case", [T5, ("kerple", {})])
def test_a_learned_bias_has_its_gradient(offered, monkeypatch, case):
    """Through the vector that the kernel captures. (Torch refuses gradients on a CPU: its kernel there has none, its
    plain implementation does.)"""
    monkeypatch.setattr(theirs, "_validate_device", lambda *tensors: None)
    e = encoding(case, SMALL)
    qkv, q_pos, k_pos = draw(70, 70)
    wants = [*(x.requires_grad_() for x in qkv), *e.parameters()]
    how = kernels.begin(e, q_pos, k_pos, consecutive=True)
    assert (how.kernel, how.reason) == ("flex", "a learned bias by distance")
    weight = torch.randn(2, 2, 70, 16, generator=torch.Generator().manual_seed(9))
    found = torch.autograd.grad((kernels.attend(*qkv, {}, how) * weight).sum(), wants)
    wanted = torch.autograd.grad((attention(e, *qkv, q_pos, k_pos) * weight).sum(), wants)
    for got, want in zip(found, wanted, strict=True):
        assert want.any()
        assert (got - want).norm() < 1e-5 * want.norm()


@torch.no_grad()
def test_a_bias_is_added_in_float32_to_16_bit_queries(plain):
    on_gpu.bias_stays_exact(torch.device("cpu"), length=300)


@pytest.mark.parametrize("case", [case for case in CASES if "bias" in encoding(case.values[0], SMALL).hooks])
def test_a_bias_says_whether_it_grows_in_proportion(case):
    """bias(r) = r bias(1) to the last bit: the kernel forms it from bias(1) then."""
    e, distance = encoding(case, SMALL), torch.arange(300)
    bias, one = e.bias(distance).float(), e.bias(torch.ones(1, dtype=torch.int64)).float()
    assert torch.equal(bias, one * distance) == e.proportional


class Upon(Alibi):
    """All distances from 64 on are one."""

    def bias(self, distance):
        return super().bias(distance.clamp(max=64))


class Around(Wrapper):
    """The same around what it holds."""

    def bias(self, distance):
        return self.inner.bias(distance.clamp(max=64))


class AroundAround(Around):
    """With nothing of its own."""


class Cap:
    def bias(self, distance):
        return super().bias(distance.clamp(max=64))


class MixedIn(Cap, Alibi):
    """Its bias is of a class that is no encoding."""


def of_alibi(make, *between):
    """`make` around ALiBi, with other wrappers between, the innermost last."""
    held = Alibi
    for cls in reversed(between):
        held = partial(cls, inner=held)
    return make(SMALL, held)


@torch.no_grad()
@pytest.mark.parametrize(
    "make",
    [
        lambda: Upon(SMALL),
        lambda: MixedIn(SMALL),
        lambda: of_alibi(Around),
        lambda: of_alibi(AroundAround),
        lambda: of_alibi(Wrapper, Around),
    ],
    ids=["upon", "mixed in", "around", "inherited", "held"],
)
def test_another_bias_around_or_upon_alibi_is_the_one_computed(plain, make):
    """Of ALiBi alone the kernel takes the bias of distance 1 for all: here it would be off past 64."""
    e = make()
    qkv, q_pos, k_pos = draw(200, 200)
    how = kernels.begin(e, q_pos, k_pos, consecutive=True)
    assert (how.kernel, how.bias.shape, e.proportional) == ("flex", (2, 200), False)
    expected = attention(e, *qkv, q_pos, k_pos)
    assert (kernels.attend(*qkv, {}, how) - expected).abs().max() < 1e-5
    assert (attention(Alibi(SMALL), *qkv, q_pos, k_pos) - expected).abs().max() > 1e-2


class Steeper(Around):
    """Another bias in proportion, and says so."""

    proportional = True

    def bias(self, distance):
        return 2 * self.inner.bias(distance)


class ByLayer(Encoding):
    """ALiBi in the first layer, a capped one in the others."""

    proportional = True

    def __init__(self, shape):
        super().__init__(shape)
        self.first, self.others = Alibi(shape), Upon(shape)

    def bias(self, distance):
        return self.first.bias(distance)

    def for_layer(self, layer):
        return self.others if layer else self.first


def test_a_bias_in_proportion_is_so_for_whom_says_it_of_its_own_bias():
    assert of_alibi(Steeper).proportional
    assert of_alibi(Wrapper).proportional
    assert of_alibi(Wrapper, Wrapper).proportional
    around = Wrapper(SMALL, ByLayer)
    assert [around.for_layer(layer).proportional for layer in (0, 1)] == [True, False]


def test_what_it_cannot_do_goes_to_another_kernel_with_the_reason(offered, monkeypatch):
    at = torch.arange(200)[None]

    def pick(case, shape=SMALL, n_queries=200, consecutive=True):
        how = kernels.begin(encoding(case, shape).for_layer(0), at[:, -n_queries:], at, consecutive)
        return how.kernel, how.reason

    assert pick(ALIBI) == ("flex", "a fixed bias by distance")
    assert pick(NONE) == ("causal", "no bias")
    assert pick(NONE, n_queries=130) == ("flex", "fewer queries than keys")
    assert pick(("shaw", {}))[0] == "blocks"
    assert pick(ALIBI, consecutive=False) == ("dense", "a bias over positions that are not consecutive")
    narrow = "; no FlexAttention: heads are 8 wide, and it takes 16 or more"
    assert pick(ALIBI, Shape(1, 16, 2, 300)) == ("strided", "a fixed bias by distance" + narrow)
    with flex.without():
        assert pick(T5) == ("strided", "a learned bias by distance; no FlexAttention: left aside")
    monkeypatch.undo()  # a CPU is a CPU again, and has nothing to be sorry for
    assert pick(ALIBI) == ("strided", "a fixed bias by distance")
    assert not flex.offered(torch.device("cuda"), flex.LEAST - 1)
    assert flex.offered(torch.device("cuda"), flex.LEAST)


@pytest.mark.parametrize(
    ("setting", "triton", "compiler", "said"),
    [
        ("off", True, True, "POSBENCH_FLEX=off"),
        (None, False, True, "triton is not installed"),
        (None, True, False, "triton needs a C compiler and Python's headers"),
        (None, True, True, ""),
    ],
)
def test_what_a_machine_lacks_is_named(monkeypatch, setting, triton, compiler, said):
    monkeypatch.setattr(flex.importlib.util, "find_spec", lambda name: triton or None)
    monkeypatch.setattr(flex.system, "has_compiler", lambda: compiler)
    monkeypatch.setenv("POSBENCH_FLEX", setting or "")
    assert flex._lacking() == said
