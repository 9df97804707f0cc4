"""p-RoPE: which pairs turn, its two ends, and the extensions of RoPE on it."""

import pytest
import torch
from oracles.draws import HEADS, HERE, WIDTH, K, Q, same
from oracles.rotations import prope, prope_frequencies
from tiny import decoder, ids, layer_scores, logits

from posbench.encodings.base import Shape
from posbench.encodings.prope import PRope
from posbench.encodings.rope import Rope
from posbench.extensions.ntk_by_parts import NtkByParts
from posbench.extensions.pi import Pi

SHAPE = Shape(layers=1, width=HEADS * WIDTH, heads=HEADS, train_length=8)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("p", [0, 0.25, 0.3, 0.75, 1])
def test_the_scores_equal_the_oracles(p, layout):
    """0.3 of 8 pairs is 2.4, which is 2."""
    far = [1000 + 7 * i for i in HERE]
    for positions in (HERE, far):
        expected = prope(Q, K, positions=positions, p=p, layout=layout)
        assert same(layer_scores(PRope(SHAPE, p=p, layout=layout), Q, K, positions), expected, 1e-5)


@pytest.mark.parametrize(("p", "turning"), [(0, 0), (0.06, 0), (0.1, 1), (0.25, 4), (0.75, 12), (0.99, 15), (1, 16)])
def test_how_many_of_sixteen_pairs_turn(p, turning):
    """floor(16 p), the fastest ones, at the frequencies they have in RoPE."""
    kept = PRope(Shape(1, 32, 1, 8), p=p, base=500.0).frequencies
    assert kept.dtype == torch.float64
    assert kept.tolist() == pytest.approx(prope_frequencies(32, p=p, base=500.0), rel=1e-12)
    assert int((kept > 0).sum()) == turning


def test_its_ends_are_rope_and_none():
    """The same logits, bit for bit, up to and past the training length."""
    tokens = ids(300)
    for p, name in ((1, "rope"), (0, "none")):
        assert torch.equal(logits(decoder(("prope", {"p": p})), tokens), logits(decoder((name, {})), tokens))
    between = logits(decoder(("prope", {})), tokens)
    assert all((between - logits(decoder((name, {})), tokens)).abs().max() > 1e-2 for name in ("rope", "none"))


def test_partial_rotation_is_another_method():
    """Three pairs spread over the whole range (partial) are not the three fastest of four."""
    partial = 10000.0 ** (-torch.arange(3) / 3)
    assert not torch.allclose(PRope(Shape(1, 8, 1, 8)).frequencies[:3], partial.double())


@pytest.mark.parametrize("extension", [Pi(), NtkByParts()])
def test_what_extends_rope_extends_the_pairs_that_turn(extension):
    """Four times longer: each turning pair changes as in RoPE, and a pair at rest stays at rest."""
    rope, kept = Rope(Shape(1, 64, 1, 512)), PRope(Shape(1, 64, 1, 512))
    as_rope, ours = (extension.extend(e, 512, 2048).angles(2048)[0] for e in (rope, kept))
    assert torch.equal(ours[:24], as_rope[:24])
    assert (ours[24:] == 0).all()
    assert (kept.angles(2048)[0] == kept.frequencies).all()


def test_a_share_outside_of_0_to_1_is_refused():
    for p in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="p must be from 0 to 1"):
            PRope(SHAPE, p=p)
