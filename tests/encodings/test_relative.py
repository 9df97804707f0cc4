"""Products of queries with vectors of the distance: one answer whichever way, for any positions, in bounded memory."""

import math

import pytest
import torch

from posbench.encodings.angles import frequencies
from posbench.encodings.relative import products, sinusoid_products

POSITIONS = {
    "counted": torch.arange(20)[None],
    "shifted": torch.arange(1000, 1020)[None],
    "gaps": torch.arange(20)[None] * 3 + torch.arange(20) % 2,
    "wide gaps": torch.arange(20)[None] ** 3,
    "floats": torch.arange(20)[None] / 4,
    "rows of their own": torch.stack([torch.arange(20), torch.arange(20) * 2, torch.arange(20) + 5]),
}


def bumps(distance):
    """Four vectors' worth of a function of the distance: (*distance.shape, 4)."""
    return 1 / (1 + distance[..., None].float() / torch.arange(1, 5))


def queries(n, width=4):
    return torch.randn(3, 2, n, width, generator=torch.Generator().manual_seed(0))


def by_loop(q, q_pos, k_pos, vector):
    """One pair at a time; vector(distance) is a list of floats."""
    out = torch.zeros(*q.shape[:3], k_pos.shape[1])
    for b in range(q.shape[0]):
        for i in range(q.shape[2]):
            for j in range(k_pos.shape[1]):
                i_pos, j_pos = (x[b if len(x) > 1 else 0] for x in (q_pos, k_pos))
                out[b, :, i, j] = q[b, :, i] @ torch.tensor(vector(max(i_pos[i].item() - j_pos[j].item(), 0)))
    return out


def causal(x):
    """Keys later than the query set to zero: what stands there is nobody's."""
    return x.tril(x.shape[3] - x.shape[2])


@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("n", [20, 3, 1])
@pytest.mark.parametrize("grad", [False, True])
def test_products_equal_a_loop(positions, n, grad):
    """In evaluation and with a gradient, all queries or the last few of the keys."""
    q, q_pos = queries(n), positions[:, -n:]
    with torch.set_grad_enabled(grad):
        out = products(q, q_pos, positions, bumps)
    expected = by_loop(q, q_pos, positions, lambda r: [1 / (1 + r / m) for m in range(1, 5)])
    assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("n", [20, 3, 1])
def test_products_with_sinusoids_equal_a_loop(positions, n):
    """Sines first, then cosines."""
    w = frequencies(4, 100.0)
    q, q_pos = queries(n), positions[:, -n:]
    expected = by_loop(q, q_pos, positions, lambda r: [f(r * x) for f in (math.sin, math.cos) for x in w.tolist()])
    assert torch.allclose(causal(sinusoid_products(q, q_pos, positions, w)), causal(expected), atol=1e-5)


@pytest.mark.parametrize("start", [10_000, 100_000, 1_000_000])
def test_sinusoids_of_a_distance_do_not_depend_on_where_it_lies(start):
    """The angles of both ends are large, that of their difference is not: float32 angles would be off by 1e-3."""
    q, at, w = queries(50, 8), torch.arange(50)[None], frequencies(8, 10_000.0)
    here, there = sinusoid_products(q, at, at, w), sinusoid_products(q, at + start, at + start, w)
    assert (causal(here) - causal(there)).abs().max() < 1e-5


@pytest.mark.parametrize("piece", [1, 1000])
@pytest.mark.parametrize("name", ["floats", "rows of their own"])
def test_queries_in_pieces_equal_queries_at_once(monkeypatch, piece, name):
    """One query at a time, and a few: what is left over at the end is not lost."""
    q, at = queries(20), POSITIONS[name]
    with torch.enable_grad():
        whole = products(q, at, at, bumps)
        monkeypatch.setattr("posbench.encodings.relative.PIECE", piece)
        assert torch.allclose(products(q, at, at, bumps), whole, atol=1e-6)


def asked(positions, n, grad=False):
    """How many vectors are formed at a time for the last n queries of these positions."""
    sizes = []

    def counted(distance):
        sizes.append(distance.numel())
        return bumps(distance)

    with torch.set_grad_enabled(grad):
        products(queries(n), positions[:, -n:], positions, counted)
    return sizes


def test_in_evaluation_a_distance_has_one_vector_however_many_queries():
    """256 queries of 4,096 counted keys: 4,096 vectors, not a million; with one gap of 5 in 20: 25."""
    assert asked(torch.arange(4096)[None], 256) == [4096]
    assert asked(torch.arange(4096)[None] + 70_000, 256) == [4096]
    assert asked(torch.cat((torch.arange(10), torch.arange(15, 25)))[None], 20) == [25]


def test_positions_with_wide_gaps_do_not_ask_for_every_distance_between():
    """0, 1, 8, ... 6,859: a table would hold 6,860 vectors for 400 pairs."""
    assert asked(POSITIONS["wide gaps"], 20) == [400]


def test_vectors_of_pairs_are_formed_a_few_queries_at_a_time():
    """2,000 float positions, width 4: 4 million numbers at a time, where all pairs would be 16 million."""
    sizes = asked(torch.arange(2000)[None] / 2, 2000)
    assert sum(sizes) == 2000 * 2000
    assert max(sizes) * 4 <= 1 << 22
    assert len(sizes) < 10


@pytest.mark.parametrize("grad", [False, True])
def test_the_gradient_of_the_query_is_its_vectors(grad):
    """d(q . p)/dq = p, and nothing else of the block is touched."""
    q, at = queries(20).requires_grad_(), POSITIONS["counted"]
    out = products(q, at, at, bumps)
    (gradient,) = torch.autograd.grad(out[1, 0, 7, 4], q)
    assert torch.allclose(gradient[1, 0, 7], bumps(torch.tensor(3)))
    assert gradient.count_nonzero() == 4
