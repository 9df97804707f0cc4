"""`posbench generate`: let a run write on."""

from __future__ import annotations

from typing import Annotated

import typer

from posbench.cli.options import DeviceOption, RunArgument
from posbench.errors import UserError


def generate(
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What it writes on from; in quotes.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest token.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 1,
    device: DeviceOption = "auto",
) -> None:
    """Write on from TEXT with a trained run.

    posbench generate rope-L512 "My fellow citizens"
    """
    from posbench import run as runs
    from posbench import system
    from posbench.generate import generate

    one, where = runs.find(run), system.device(device)
    tokenizer = one.tokenizer()
    ids = [tokenizer.end, *tokenizer.encode(text)[0].tolist()]
    decoder = one.model().to(where)
    written: list[int] = []
    shown = text
    print(text, end="", flush=True)
    for token in generate(decoder, ids, tokens, end=tokenizer.end, temperature=temperature, seed=seed, device=where):
        written.append(token)
        # A token may hold part of a character: show what is whole.
        whole = tokenizer.decode([*ids[1:], *written])
        if not whole.endswith("\N{REPLACEMENT CHARACTER}"):
            print(whole[len(shown) :], end="", flush=True)
            shown = whole
    print()
    if not written:
        raise UserError(f"{one.name} wrote nothing: the text is at its end for it.", "Try another --seed.")
