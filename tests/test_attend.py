"""`data.attend=document`: a token sees the tokens of its own document alone."""

from __future__ import annotations

import pytest
import torch

from posbench import encodings, model
from posbench.compose import compose
from posbench.model import Cache

END = 9
IDS = torch.tensor([[END, 1, 2, 3, END, 4, 5, 6, 7, 8]])
"""Two documents; the end token before each opens it, as in training."""


def decoder(*overrides: str) -> model.Decoder:
    return model.build(compose(["model.layers=2", "model.width=32", "model.heads=2", *overrides]), 10, END)


def own_position_free() -> list[str]:
    """Encodings whose positions count, and for which a document late in its window reads as one that starts at 0."""
    shape = encodings.base.Shape(layers=2, width=32, heads=2, train_length=16)
    built = {name: encodings.build({**yaml, "name": name}, shape) for name, yaml in encodings.catalogue()}
    return [name for name, e in built.items() if e.shift_invariant and "positions" not in e.hooks]


@pytest.mark.parametrize("encoding", own_position_free())
def test_each_document_reads_as_if_it_were_alone(encoding: str) -> None:
    """Where only distances count, masking all other documents leaves exactly what the document alone would give."""
    apart = decoder("data.attend=document", f"encoding={encoding}").hidden(IDS)
    alone = decoder(f"encoding={encoding}")
    assert torch.allclose(apart[:, :4], alone.hidden(IDS[:, :4]), atol=1e-5)
    assert torch.allclose(apart[:, 4:], alone.hidden(IDS[:, 4:]), atol=1e-5)


def test_by_default_a_token_sees_the_document_before_its_own() -> None:
    """The paper's windows run across document ends without a mask."""
    model_ = decoder("encoding=rope")
    assert not torch.allclose(model_.hidden(IDS)[:, 4:], model_.hidden(IDS[:, 4:]), atol=1e-3)


@pytest.mark.parametrize("encoding", ["rope", "alibi", "shaw"])
def test_a_cache_keeps_documents_apart_too(encoding: str) -> None:
    """The second part starts inside the second document, whose number the cache has to remember."""
    model_ = decoder("data.attend=document", f"encoding={encoding}")
    cache = Cache(layers=2)
    parts = [model_.hidden(IDS[:, :6], cache=cache), model_.hidden(IDS[:, 6:], cache=cache)]
    assert torch.allclose(torch.cat(parts, dim=1), model_.hidden(IDS), atol=1e-5)
