"""One thing to time: a training step, or one call of an evaluation, of posbench or of a peer.

A `Cell` is plain data, so that it can be sent to a process of its own and be built there; `prepare` builds it. The text
is random ids, so that no corpus is needed. What a training step costs does not depend on them, nor on the weights. In
evaluation it may: a bias that falls with the distance is read only as far as scores can make up for it
(posbench/strided.py), and products of numbers below 1e-38 are slow. So weights are drawn wide there, on both sides.

    B windows of one call, T tokens of a window, V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posbench import flex, identity, model, optim, system
from posbench.batches import parts
from posbench.bench.products import Step, record
from posbench.config import Config
from posbench.data.windows import generators
from posbench.decisions import decide, precision_of
from posbench.model import Decoder
from posbench.train import compiled, gradient

OURS = "posbench"

SCHEDULE = 1_000_000
"""Steps of the recipe that is timed, of which the first is made again and again: its rate is so low that the weights
stay what they were, and random ids cannot make the loss run away."""


@dataclass(frozen=True)
class Variant:
    """A way to run one model; the fastest is timed."""

    attention: str = ""
    """A peer's implementation of attention; posbench picks its own."""
    compiled: bool = False

    def __str__(self) -> str:
        mode = "compiled" if self.compiled else "eager"
        return f"{mode}, {self.attention} attention" if self.attention else mode


@dataclass(frozen=True)
class Cell:
    maker: str
    """`OURS`, or the name of a peer."""
    config: Config = field(hash=False)
    """Shape, recipe, precision and device; the encoding where posbench is the maker."""
    vocab: int
    task: str
    """train | eval"""
    length: int
    windows: int
    """Windows of one call."""
    variant: Variant = Variant()

    @property
    def tokens(self) -> int:
        """Tokens of one call."""
        return self.windows * self.length

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


def from_dict(stored: dict[str, Any]) -> Cell:
    """The cell that `Cell.to_dict` gave."""
    config, variant = identity.from_dict(stored["config"]), Variant(**stored["variant"])
    return Cell(**{**stored, "config": config, "variant": variant})


@dataclass
class Prepared:
    """A cell that is ready to run."""

    call: Callable[[], object]
    parameters: int
    short: Callable[[], object] | None = None
    """The same call with one short window, eager; None in training, whose step has one size."""
    products: Callable[[], Step] | None = None
    """Of posbench's training step: makes one, nothing in it compiled, and looks at its operations."""
    kernel: Callable[[], str] = lambda: ""
    """posbench's attention kernel of the last call."""


SHORT = 128
"""Tokens of a short call, whose memory is that of the model itself."""


def prepare(cell: Cell) -> Prepared:
    """Build the model of a cell, its optimizer and its ids.

    Raises `UserError` where a peer cannot be had, and whatever a model raises that does not fit in memory.
    """
    system.set_threads(cell.config.train.threads)
    device = system.device(cell.config.device)
    if cell.maker == OURS:
        return _ours_train(cell, device) if cell.task == "train" else _ours_eval(cell, device)
    return _peer_train(cell, device) if cell.task == "train" else _peer_eval(cell, device)


def text(cell: Cell, device: torch.device, windows: int | None = None, length: int | None = None) -> Tensor:
    """Random ids (B, T + 1)."""
    shape = (windows or cell.windows, (length or cell.length) + 1)
    return torch.randint(cell.vocab, shape, generator=torch.Generator().manual_seed(0)).to(device)


@torch.no_grad()
def widen(built: nn.Module) -> None:
    """Linear maps N(0, 1 / inputs): queries and keys of variance 1, whose scores lie a little farther apart than those
    of a trained model (docs/performance-log.md); at initialization they are all near 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for module in built.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(torch.randn(module.weight.shape) * module.in_features**-0.5)


def half(cell: Cell, device: torch.device) -> bool:
    """Whether passes run under bf16 autocast: posbench's rule, also for its peers."""
    if cell.task == "eval" and device.type != "cuda":
        return False
    return precision_of(cell.config, device) == "bf16"


# posbench -------------------------------------------------------------------------------------------------------------


def decoder(cell: Cell, device: torch.device) -> Decoder:
    """posbench's model of a cell with its initial weights; id 0 ends a document."""
    return model.build(cell.config, cell.vocab, end=0).to(device)


def _ours_train(cell: Cell, device: torch.device) -> Prepared:
    built = decoder(cell, device).train()
    decisions = decide(cell.config, built, device)
    optimizer = optim.build(built, cell.config.optim, SCHEDULE)
    ids = text(cell, device)
    numbers = list(range(cell.windows))
    positions = built.positions(numbers, cell.length, generators(cell.config.seed, "train", numbers))

    def update() -> None:
        optimizer.step(0)
        built.constrain()

    def step(loss_of: Callable[..., Tensor]) -> None:
        gradient(built, loss_of, ids, positions, decisions)
        update()

    def products() -> Step:
        # Operations are seen by their own thread alone: here each part is computed by this one.
        alone, found = replace(decisions, at_once=1), []
        with flex.without():
            for part in parts(ids, positions, max(1, decisions.micro_tokens // cell.length), cell.windows, 0):
                of_part = partial(gradient, built, built.loss, part.ids, part.positions, alone, cell.windows)
                found.append(record(of_part))
            return Step(tuple(found), record(update), decisions.at_once)

    loss_of = compiled(built.loss) if cell.variant.compiled else built.loss
    return Prepared(partial(step, loss_of), _count(built), products=products, kernel=lambda: decisions.kernel)


def _ours_eval(cell: Cell, device: torch.device) -> Prepared:
    built = decoder(cell, device).eval()
    widen(built)

    def call(ids: Tensor) -> None:
        numbers = list(range(len(ids)))
        positions = built.positions(numbers, ids.shape[1] - 1, generators(cell.config.seed, "test", numbers))
        with torch.autocast(device.type, torch.bfloat16, enabled=half(cell, device)):
            built.token_losses(ids[:, :-1], ids[:, 1:], positions)

    ids, short = text(cell, device), text(cell, device, 1, min(SHORT, cell.length))

    def kernel() -> str:
        """With what its reason says beyond what it is."""
        return "; ".join((built.kernel, *built.kernel_reason.split("; ")[1:]))

    return Prepared(partial(call, ids), _count(built), partial(call, short), kernel=kernel)


# Peers ----------------------------------------------------------------------------------------------------------------


def _peer_train(cell: Cell, device: torch.device) -> Prepared:
    """A plain training loop: AdamW, fused, with the gradient clipped, as in posbench's recipe and transformers' own."""
    from posbench.bench import peers

    built = peers.find(cell.maker).model(cell.config, cell.vocab, cell.variant.attention).to(device).train()
    settings = cell.config.optim
    betas = (settings.beta1, settings.beta2)
    optimizer = torch.optim.AdamW(built.parameters(), 1e-8, betas, weight_decay=settings.weight_decay, fused=True)
    ids = text(cell, device)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return peers.loss(built, inputs, targets)

    loss_of = compiled(loss) if cell.variant.compiled else loss

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=half(cell, device)):
            loss = loss_of(ids[:, :-1], ids[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(built.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad()

    return Prepared(step, _count(built))


def _peer_eval(cell: Cell, device: torch.device) -> Prepared:
    from posbench.bench import peers

    built = peers.find(cell.maker).model(cell.config, cell.vocab, cell.variant.attention).to(device).eval()
    widen(built)

    def losses(inputs: Tensor, targets: Tensor) -> Tensor:
        return peers.token_losses(built, inputs, targets)

    losses_of = compiled(losses) if cell.variant.compiled else losses

    @torch.no_grad()
    def call(ids: Tensor, losses_of: Callable[..., Tensor]) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=half(cell, device)):
            losses_of(ids[:, :-1], ids[:, 1:])

    ids, short = text(cell, device), text(cell, device, 1, min(SHORT, cell.length))
    return Prepared(partial(call, ids, losses_of), _count(built), partial(call, short, losses))


def _count(built: nn.Module) -> int:
    return sum(p.numel() for p in built.parameters())
