"""`posbench generate`: let a run write on."""

from __future__ import annotations

from typing import Annotated

import typer

from posbench.cli.options import DeviceOption, RunArgument


def generate(
    run: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What it writes on from; in quotes.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest token.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the draws.")] = 1,
    device: DeviceOption = "auto",
) -> None:
    """Write on from TEXT with a trained run.

    posbench generate rope-L512 "My fellow citizens"
    """
    from posbench import run as runs
    from posbench import system
    from posbench.generate import generate

    one, where = runs.find(run), system.device(device)
    decoder, tokenizer = one.model().to(where), one.tokenizer()
    ids = [tokenizer.end, *tokenizer.encode(text)[0].tolist()]
    tokens_to_come = generate(decoder, ids, tokens, end=tokenizer.end, temperature=temperature, seed=seed, device=where)
    written = ids[1:]
    shown = tokenizer.decode(written)
    print(shown, end="", flush=True)
    for token in tokens_to_come:
        written.append(token)
        whole = tokenizer.decode(written)
        # A token may hold part of a character: it is shown once it is whole.
        if not whole.endswith("\N{REPLACEMENT CHARACTER}"):
            print(whole[len(shown) :], end="", flush=True)
            shown = whole
    print()
