"""No position signal: what is left is the causal mask."""

import torch
from tiny import SHAPE, decoder, encoding, ids, logits

NONE = ("none", {})


def test_no_hook_no_parameter_no_stored_tensor():
    """`none` is the base line: it must not touch the model anywhere."""
    none = encoding(NONE, SHAPE)
    assert none.hooks == frozenset()
    assert not none.state_dict()


def test_the_mask_alone_tells_that_a_token_came_earlier_but_not_in_which_order():
    """Swapping tokens 0 and 1 of three must not move what one layer says at token 2: its keys are the same set."""
    from dataclasses import replace

    model = decoder(NONE, replace(SHAPE, layers=1))
    tokens = ids(3)
    swapped = logits(model, tokens[:, [1, 0, 2]])
    assert torch.allclose(logits(model, tokens)[:, 2], swapped[:, 2], atol=1e-6)
    # Two layers do tell: the second reads vectors that the first made from different sets of keys.
    deeper = decoder(NONE)
    assert not torch.allclose(logits(deeper, tokens)[:, 2], logits(deeper, tokens[:, [1, 0, 2]])[:, 2], atol=1e-3)
