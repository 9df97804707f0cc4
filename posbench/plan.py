"""What a training would be: its size, its steps, and from a few of them its time and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from posbench import head, initial, model, optim, processes, system
from posbench.batches import Batches
from posbench.checkpoint import State
from posbench.config import Config, check
from posbench.data import tokens
from posbench.decisions import activation_bytes, decide, refuse_oversized
from posbench.group import most
from posbench.run import directory
from posbench.train import VALIDATION_TARGETS, gradient, parameters, steps_of, validation

STEPS = 3
"""Real steps that are timed; the fastest counts."""

Say = Callable[[str], None]


def plan(config: Config, say: Say = lambda text: None) -> dict[str, Any]:
    """What training `config` would be, without a trace in the runs folder: parameters, steps, tokens, epochs; from a
    few timed steps of the real model the estimated `seconds`, and from its shape the estimated `memory` in bytes.

    With nproc, time and memory are of one process, without what they tell each other.
    """
    config = processes.counted(config)
    check(config)
    device = system.device(config.device)
    processes.refuse(config, device)
    prepared = tokens.prepare(config.data, initial.tokenizer(config), say=say)
    batches, valid = Batches(prepared.stream("train"), config), validation(prepared)
    refuse_oversized(config, prepared.tokenizer.vocab_size)
    decoder = model.build(config, prepared.tokenizer.vocab_size, prepared.tokenizer.end).to(device).train()
    decisions, steps = decide(config, decoder, device), steps_of(config)
    optimizer = optim.build(decoder, config.optim, steps)
    batches.own = range(most(batches.rows, config.nproc))
    state = State()
    times = []
    for step in range(STEPS):
        start = time.perf_counter()
        gradient(decoder, decoder.loss, *batches.next(state, decoder, device), decisions, batches.rows)
        optimizer.step(min(step, steps - 1))[0].item()
        times.append(time.perf_counter() - start)
    sizes, read = parameters(decoder), steps * config.train.batch_tokens
    # Weights and gradients in float32, the optimizer's state, what one pass keeps, and its head.
    stored = 8 * sizes["total"] + sum(t.numel() * t.element_size() for t in optimizer.tensors().values())
    if decisions.shard:
        stored //= config.nproc
    kept = decisions.micro_tokens * activation_bytes(config, decisions.kernel, decisions.precision)
    vocab_size, width = decoder.embed.weight.shape
    kept += head.peak_bytes(decisions.micro_tokens, vocab_size, width, device.type)
    if decisions.at_once > 1:  # each with a gradient of its own
        kept = decisions.at_once * (kept + 4 * sizes["total"])
    # A validation is forward passes alone: a third of a training step's work for each token.
    targets = min(VALIDATION_TARGETS, valid.targets) if valid else 0
    validations = 1 + (read - 1) // config.train.validate_tokens
    return {
        "name": directory(config).name,
        "parameters": sizes,
        "steps": steps,
        "tokens": read,
        "epochs": read / batches.stream.targets,
        "seconds": min(times) * (steps + validations * targets / config.train.batch_tokens / 3),
        "memory": stored + kept,
        "decisions": decisions.explained(),
    }
