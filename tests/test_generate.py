"""Writing on through the cache is what whole passes would write."""

from __future__ import annotations

import pytest
import torch
from tiny import Shape, decoder, encoding, logits

from posbench.encodings.base import Encoding
from posbench.errors import UserError
from posbench.generate import generate

END = 0
NEVER = 64
"""An end token outside the vocabulary of 64."""


def written(model, start: list[int], count: int, **how) -> list[int]:
    return list(generate(model, start, count, **({"end": NEVER} | how)))


@pytest.mark.parametrize("name", ["rope", "alibi", "sinusoidal", "t5", "shaw", "none"])
def test_the_likeliest_tokens_are_those_of_whole_passes(name: str):
    """Each token again from a pass over all before it, without a cache."""
    model = decoder((name, {}))
    ids = [5, 9, 2]
    for _ in range(12):
        ids.append(int(logits(model, torch.tensor([ids]))[0, -1].argmax()))
    assert written(model, [5, 9, 2], 12, temperature=0) == ids[3:]


def test_a_seed_gives_a_text_and_another_seed_another():
    model = decoder(("rope", {}))
    first = written(model, [1, 2], 20, seed=1)
    torch.rand(100)  # what the global generator did before must not matter
    assert written(model, [1, 2], 20, seed=1) == first
    assert written(model, [1, 2], 20, seed=2) != first


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-320])
def test_a_low_temperature_approaches_the_likeliest(temperature: float):
    """The last is 0 in float32, and the one before makes every logit infinite."""
    model = decoder(("rope", {}))
    assert written(model, [1, 2], 10, temperature=temperature) == written(model, [1, 2], 10, temperature=0)


def test_writing_stops_before_the_end_token():
    model = decoder(("rope", {}))
    whole = written(model, [1, 2], 12, temperature=0)
    end = whole[5]
    assert written(model, [1, 2], 12, temperature=0, end=end) == whole[: whole.index(end)]


def test_past_the_last_position_writing_is_refused_before_it_begins():
    """A learned table of 8 rows reads 8 tokens: 3 given and 6 more need 3 + 5, since the last one is not read."""
    model = decoder(("learned", {}), Shape(2, 32, 4, train_length=8))
    assert len(written(model, [1, 2, 3], 6)) == 6
    with pytest.raises(UserError, match="ends at 8 positions") as caught:
        written(model, [1, 2, 3], 7)
    assert caught.value.hint == "Ask for --tokens 6 or fewer."
    with pytest.raises(UserError, match="ends at 8 positions"):
        written(model, [1] * 9, 1)


def test_an_encoding_whose_keys_do_not_stay_valid_is_refused(monkeypatch: pytest.MonkeyPatch):
    model = decoder(("rope", {}))
    monkeypatch.setattr(type(model.encoding), "cacheable", False)
    with pytest.raises(UserError, match="cannot write through a cache"):
        written(model, [1], 1)


class Doubled(Encoding):
    """Chooses positions 0, 2, 4, ... and rotates by them."""

    def __init__(self, shape):
        super().__init__(shape)
        self.rope = encoding(("rope", {}), shape)

    def positions(self, windows, length, rng):
        return 2 * torch.arange(length)[None]

    def begin(self, positions, length):
        return self.rope.begin(positions, length)

    def rotate(self, q, k, ctx):
        return self.rope.rotate(q, k, ctx)


def test_an_encoding_that_chooses_its_positions_is_asked_once_for_the_whole_text():
    """Each token again from a pass over all before it at positions 0, 2, 4, ...; without them it is refused."""
    model = decoder(("rope", {}))
    model.encoding = Doubled(model.encoding.shape)
    ids = [5, 9, 2]
    for _ in range(8):
        at = 2 * torch.arange(len(ids))[None]
        ids.append(int(logits(model, torch.tensor([ids]), positions=at)[0, -1].argmax()))
    assert written(model, [5, 9, 2], 8, temperature=0) == ids[3:]
    with pytest.raises(ValueError, match="chooses its positions"):
        model.hidden(torch.tensor([ids]))
