"""Frequencies and magnitudes against Hugging Face's, over head widths, bases, factors and lengths."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from posbench.encodings.angles import frequencies
from posbench.extensions.base import Trained
from posbench.extensions.dynamic_ntk import DynamicNtk
from posbench.extensions.llama3 import Llama3
from posbench.extensions.longrope import LongRope
from posbench.extensions.pi import Pi
from posbench.extensions.yarn import Yarn

ORIGINAL = 512
LENGTHS = (64, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 8 * ORIGINAL)


def lists(dim):
    """Two lists of factors with nothing in common."""
    pairs = torch.arange(dim // 2) + 1.0
    return {"long_factor": (1 + pairs).tolist(), "short_factor": (1 + 1 / pairs).tolist()}


KINDS = {
    "linear": lambda dim: (Pi(), {}),
    "dynamic": lambda dim: (DynamicNtk(), {}),
    "yarn": lambda dim: (Yarn(), {}),
    "yarn-betas": lambda dim: (Yarn(beta_fast=16, beta_slow=2), {"beta_fast": 16.0, "beta_slow": 2.0}),
    "yarn-magnitude": lambda dim: (Yarn(magnitude=1.3), {"attention_factor": 1.3}),
    "llama3": lambda dim: (Llama3(), {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    "longrope": lambda dim: (LongRope(lists(dim)["long_factor"], lists(dim)["short_factor"]), lists(dim)),
}


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0, 8.0, 32.0])
@pytest.mark.parametrize("base", [1e4, 5e5])
@pytest.mark.parametrize("dim", [32, 64, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_that_of_hugging_face(kind, dim, base, factor):
    """Relative to 1e-6: theirs are formed in float32, whose own steps are 1e-7."""
    extension, own = KINDS[kind](dim)
    rope_type = kind.partition("-")[0]
    settings = {"rope_type": rope_type, "rope_theta": base, "factor": factor, **own}
    config = LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        max_position_embeddings=ORIGINAL,
        rope_parameters=settings | {"original_max_position_embeddings": ORIGINAL},
    )
    trained = Trained(frequencies(dim, base), base, ORIGINAL)
    for length in LENGTHS:
        theirs, magnitude = ROPE_INIT_FUNCTIONS[rope_type](config, seq_len=length)
        ours, our_magnitude = extension.angles(trained, factor, length)
        assert ours.tolist() == pytest.approx(theirs.tolist(), rel=1e-6, abs=1e-12)
        assert our_magnitude == pytest.approx(magnitude, rel=1e-6)
