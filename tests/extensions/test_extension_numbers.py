"""EXT-1 to EXT-7 of the known faults: numbers computed with another program, and the refusals."""

import pytest
import torch

from posbench import extensions
from posbench.compose import load_group
from posbench.encodings.angles import frequencies
from posbench.encodings.base import Shape
from posbench.encodings.rope import Rope
from posbench.errors import UserError
from posbench.extensions.abf import Abf
from posbench.extensions.base import Trained
from posbench.extensions.dynamic_ntk import DynamicNtk
from posbench.extensions.llama3 import Llama3
from posbench.extensions.longrope import LongRope
from posbench.extensions.ntk import Ntk
from posbench.extensions.ntk_by_parts import NtkByParts, pair_turning
from posbench.extensions.yarn import Yarn

TRAINED = Trained(frequencies(64, 10000), base=10000, length=512)
"""Head width 64, as in every number below."""


def slowed(extension, factor, trained=TRAINED, length=4096):
    """By how much each pair is slowed."""
    return (trained.frequencies / extension.angles(trained, factor, length)[0]).tolist()


def test_ext_1_llama_3_at_its_own_scale():
    trained = Trained(frequencies(64, 500000), base=500000, length=8192)
    found = slowed(Llama3(low=1, high=4), 32, trained)
    assert found[:15] == pytest.approx([1] * 15)
    assert found[15:18] == pytest.approx([1.65133, 3.29226, 9.66673], abs=1e-5)
    assert found[18:] == pytest.approx([32] * 14, abs=1e-9)


def test_ext_1_llama_3_at_the_scale_of_a_small_model():
    found = slowed(Llama3(), 8)
    assert found[:11] == pytest.approx([1] * 11)
    assert found[11:16] == pytest.approx([1.19677, 1.70965, 2.51927, 3.90656, 6.65455], abs=1e-5)
    assert found[16:] == pytest.approx([8] * 16, abs=1e-9)


def base_of(extension, factor, length):
    """The base whose slowest of 32 pairs turns as the extended one: theta_31 = base^(-62/64)."""
    return extension.angles(TRAINED, factor, length)[0][31].item() ** (-64 / 62)


def test_ext_2_dynamic_ntk_follows_the_current_length():
    """Factor 2: s = 2 x 1024/512 - 1 = 3, and 15 at 4,096; the base is 10000 s^(64/62)."""
    bases = [base_of(DynamicNtk(), 2, length) for length in (1, 511, 512, 1024, 4096)]
    assert bases == pytest.approx([10000, 10000, 10000, 31082.24, 163692.84], abs=0.01)


def test_ext_2_dynamic_ntk_with_factor_1_is_the_length_over_the_trained_one():
    assert slowed(DynamicNtk(), 1, length=512)[31] == pytest.approx(1)
    assert slowed(DynamicNtk(), 1, length=1024)[31] == pytest.approx(2)
    assert DynamicNtk().resolve("auto", trained_length=512, length=4096) == 1


def test_ext_2_static_ntk():
    """A base multiplied by 8 alone would slow the last pair by 7.497."""
    assert base_of(Ntk(), 8, 4096) == pytest.approx(85550.38, abs=0.01)
    found = slowed(Ntk(), 8)
    assert [found[0], found[1], found[31]] == pytest.approx([1, 1.06938, 8.0], abs=1e-5)


@pytest.mark.parametrize(
    ("factor", "magnitude"), [(1, 1), (4, 1.138629), (8, 1.207944), (16, 1.277259), (32, 1.346574)]
)
def test_ext_3_yarns_magnitude(factor, magnitude):
    assert Yarn().angles(TRAINED, factor, 4096)[1] == pytest.approx(magnitude, abs=1e-6)


def test_ext_3_scores_change_by_the_square_of_the_magnitude_once():
    """At one position for query and key the rotation cancels, and the magnitude is left: 1.207944^2 = 1.459129."""
    rope = Rope(Shape(layers=1, width=64, heads=1, train_length=512))
    yarn = Yarn().extend(rope, 512, 4096)
    q = torch.randn(1, 1, 1, 64, generator=torch.Generator().manual_seed(0))
    score = []
    for encoding in (rope, yarn):
        one, other = encoding.rotate(q, q, encoding.begin(torch.tensor([[700]]), 4096))
        score.append((one * other).sum().item() * encoding.scale(torch.tensor([[701]]), 4096))
    assert score[1] / score[0] == pytest.approx(1.459129, abs=1e-5)


def test_ext_4_an_explicit_magnitude_is_the_one_used():
    assert Yarn(magnitude=1.0).angles(TRAINED, 8, 4096)[1] == 1.0
    assert Yarn(magnitude=1.4).angles(TRAINED, 8, 4096)[1] == 1.4
    assert LongRope([2.0] * 32, magnitude=1.0).angles(TRAINED, 8, 4096)[1] == 1.0


def test_ext_5_the_ramp_is_computed_from_the_trained_length():
    assert pair_turning(32, TRAINED) == pytest.approx(3.2475, abs=1e-4)
    assert pair_turning(1, TRAINED) == pytest.approx(15.2887, abs=1e-4)
    for extension in (Yarn(), NtkByParts()):
        found = slowed(extension, 8)
        assert found[:4] == pytest.approx([1] * 4)
        assert [found[4], found[8], found[15]] == pytest.approx([1.0722, 1.5072, 5.2], abs=1e-4)
        assert found[16:] == pytest.approx([8] * 16, abs=1e-9)


def test_ext_5_the_papers_ramp_is_another_one():
    """Pair 4 turns 512 x 10000^(-8/64) / (2 pi) = 25.77 times: its share is (32 - 25.77)/31 = 0.2010, and it is slowed
    by 1 / (0.2010/8 + 0.7990) = 1.2134."""
    assert slowed(NtkByParts(ramp="paper"), 8)[4] == pytest.approx(1.2134, abs=1e-4)


def test_ext_6_longrope_switches_after_the_trained_length():
    long, short = [4.0] * 32, [2.0] * 32
    lengths = (1, 511, 512, 513, 4096)
    found = [slowed(LongRope(long, short), 8, length=length)[5] for length in lengths]
    assert found == pytest.approx([2, 2, 2, 4, 4])
    assert slowed(LongRope(long), 8, length=512) == [1] * 32


def test_ext_6_longropes_magnitude():
    """sqrt(1 + ln 8 / ln 512) = sqrt(4/3), whatever the length; 1 where nothing is stretched."""
    assert [LongRope([1.0] * 32).angles(TRAINED, 8, n)[1] for n in (512, 513)] == pytest.approx([(4 / 3) ** 0.5] * 2)
    assert LongRope([1.0] * 32).angles(TRAINED, 1, 513)[1] == 1


@pytest.mark.parametrize("key", ["mscale", "mscale_all_dim", "attention_factor"])
def test_ext_7_a_magnitude_of_the_other_convention_is_refused_with_what_to_write(key):
    with pytest.raises(UserError) as error:
        extensions.build(load_group("extension", "yarn") | {key: 1.0})
    assert error.value.message == f"The extension 'yarn' has no setting '{key}'."
    assert "extension.magnitude" in error.value.hint


def test_ext_7_the_ratio_of_two_equal_settings_is_a_magnitude_of_1():
    """(0.1 m ln s + 1) / (0.1 m ln s + 1), written as the refusal says."""
    yarn = extensions.build(load_group("extension", "yarn") | {"magnitude": 1})
    assert yarn.angles(TRAINED, 40, 4096)[1] == 1.0


def test_abf_turns_as_if_built_with_its_base():
    assert Abf(base=500000).angles(TRAINED, 1, 4096)[0].tolist() == pytest.approx(frequencies(64, 500000).tolist())


def test_frequencies_that_an_encoding_holds_at_zero_stay_there():
    """As p-RoPE's do: pairs that do not turn carry no position."""
    still = TRAINED.frequencies.clone()
    still[24:] = 0
    for extension in (Ntk(), DynamicNtk(), Yarn(), Yarn(ramp="paper"), Llama3(), LongRope([3.0] * 32), Abf()):
        found = extension.angles(Trained(still, 10000, 512), 8, 4096)[0]
        assert (found[24:] == 0).all()
        assert (found[:24] > 0).all()
