"""Writing on: a trained model continues a text, one token at a time through its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from posbench.data import windows
from posbench.errors import UserError
from posbench.model import Cache, Decoder


def generate(
    decoder: Decoder,
    ids: list[int],
    count: int,
    *,
    end: int,
    temperature: float = 1.0,
    seed: int = 1,
    device: torch.device | None = None,
) -> Iterator[int]:
    """Up to `count` ids that follow `ids`, as they are written, stopping before the id `end`.

    Temperature 0 takes the likeliest id each time; otherwise ids are drawn from softmax(logits / temperature) with a
    generator seeded by `seed`, on the CPU, so that a device changes no draw. Each token is read once, its keys and
    values kept. Raises `UserError` for an encoding that cannot be cached, and past the encoding's longest length.
    """
    encoding = decoder.encoding
    if not encoding.cacheable:
        raise UserError(
            "This encoding cannot write through a cache: keys once computed change as later tokens come.",
            "posbench encodings says which can.",
        )
    longest = encoding.max_length
    if longest is not None and len(ids) + count - 1 > longest:
        raise UserError(
            f"{len(ids)} tokens of text and {count} more do not fit: this encoding ends at {longest} positions.",
            f"Ask for --tokens {max(longest - len(ids) + 1, 0)} or fewer." if len(ids) <= longest else None,
        )
    generator = torch.Generator().manual_seed(seed)
    start = torch.tensor([ids], device=device)
    total = len(ids) + max(count - 1, 0)  # the last token written is not read
    positions = decoder.positions([0], total, windows.generators(seed, "generate", [0]))
    return _write(decoder, start, positions, count, end, lambda logits_V: _draw(logits_V, temperature, generator))


@torch.no_grad()
def _write(
    decoder: Decoder, new: Tensor, positions: Tensor | None, count: int, end: int, draw: Callable[[Tensor], int]
) -> Iterator[int]:
    cache = Cache(len(decoder.blocks))
    for _ in range(count):
        own = None if positions is None else positions[:, cache.length : cache.length + new.shape[1]]
        token = draw(decoder.logits(decoder.hidden(new, own, cache, last=1))[0, -1].cpu())
        if token == end:
            return
        yield token
        new = torch.tensor([[token]], device=new.device)


def _draw(logits_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    # Below the greatest and in float64, so that no temperature is too small to divide by.
    below_V = (logits_V - logits_V.max()).double()
    return int(torch.multinomial((below_V / temperature).softmax(-1), 1, generator=generator))
