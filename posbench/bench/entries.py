"""The rows of a comparison before anything is measured: which cells, what each is compared with, what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from posbench import system
from posbench.bench import equal
from posbench.bench.cells import OURS, Cell, Variant
from posbench.bench.peers import Peer
from posbench.bench.trial import Trial, why
from posbench.config import Config, build_encoding
from posbench.decisions import compile_decision
from posbench.encodings.base import Shape
from posbench.errors import UserError
from posbench.identity import label

BASE = "none"
"""The encoding that all others are compared with."""


@dataclass(eq=False)
class Contender:
    """A variant of an entry that works, and may be its fastest."""

    cell: Cell
    trial: Trial
    kernel: str = ""
    """posbench's attention kernel; of a peer none is known."""
    reason: str | None = None
    """Why it is not timed after all."""


@dataclass(eq=False)
class Entry:
    """A row to be."""

    name: str
    encoding: str
    cells: list[Cell]
    """The same work in several variants, of which the fastest is timed."""
    against: Entry | None = None
    """The row it is compared with; None: it is that row."""
    reason: str | None = None
    """Why it cannot be measured."""
    loss_difference: float | None = None
    """Nats a token of a peer less those of posbench with the same weights, where that can be asked."""
    contenders: list[Contender] = field(default_factory=list)
    """Those variants that are timed in the rounds, the fastest by its trial first."""
    best: Contender | None = None
    """The one with the best median there."""

    @property
    def label(self) -> str:
        """Its name where rows of several encodings stand together."""
        return self.name if self.name == self.encoding else f"{self.name} ({self.encoding})"

    @property
    def task(self) -> str:
        return self.cells[0].task

    @property
    def length(self) -> int:
        return self.cells[0].length

    @property
    def windows(self) -> int:
        return self.cells[0].windows


@dataclass(frozen=True)
class Work:
    """What every row of a comparison does."""

    vocab: int
    lengths: Sequence[int]
    """Of evaluation."""
    eval_tokens: int | None = None
    """Tokens of one evaluation call, in whole windows and at least one; None: as many as a training step."""

    def tasks(self, config: Config) -> list[tuple[str, int, int]]:
        """(task, length, windows): the training, and the evaluation at each length."""
        length, batch = config.train.length, config.train.batch_tokens
        read = self.eval_tokens or batch
        return [("train", length, batch // length), *(("eval", n, max(1, read // n)) for n in self.lengths)]


def of_encodings(configs: Mapping[str, Config], work: Work) -> list[Entry]:
    """An entry for every task of every encoding, each compared with `BASE`, which is among them.

    posbench runs as it would: training is compiled where its rule says so, evaluation never is.
    """
    config = configs[BASE]
    compiled, _ = compile_decision(config, system.device(config.device))
    found = []
    for task, length, windows in work.tasks(config):
        variant = Variant(compiled=compiled and task == "train")
        base = None
        for name in [BASE, *(other for other in configs if other != BASE)]:
            cells = [Cell(OURS, configs[name], work.vocab, task, length, windows, variant)]
            entry = Entry(name, name, cells, base, _too_long(configs[name], length))
            base = base or entry
            found.append(entry)
    return found


def of_peers(configs: Mapping[str, Config], chosen: Sequence[Peer], work: Work, compile: bool) -> list[Entry]:
    """posbench and the chosen peers at every task of each encoding, each peer compared with posbench at its block."""
    checks = {peer.name: _check(peer, configs[peer.encoding], work.vocab) for peer in chosen}
    found: list[Entry] = []
    for name, config in configs.items():
        own = [peer for peer in chosen if peer.encoding == name]
        for task, length, windows in work.tasks(config):
            modes = [False, True] if compile else [False]
            base: dict[str, Entry] = {}
            for peer in own:
                ours = checks[peer.name].ours
                if repr(ours.model) not in base:
                    # posbench never compiles an evaluation.
                    variants = [Variant(compiled=mode) for mode in (modes if task == "train" else [False])]
                    cells = [Cell(OURS, ours, work.vocab, task, length, windows, variant) for variant in variants]
                    called = OURS if ours.model == config.model else f"{OURS}, {peer.name}'s block"
                    base[repr(ours.model)] = Entry(called, name, cells, reason=_too_long(config, length))
            found += base.values()
            for peer in own:
                variants = [Variant(attention, mode) for attention in peer.attentions for mode in modes]
                cells = [Cell(peer.name, config, work.vocab, task, length, windows, variant) for variant in variants]
                check = checks[peer.name]
                reason = check.reason
                longest = peer.max_length(config)
                if longest is not None and length > longest:
                    reason = reason or f"it has positions for {longest} inputs and no more"
                against = base[repr(check.ours.model)]
                found.append(Entry(peer.name, name, cells, against, reason, check.difference))
    return found


def _too_long(config: Config, length: int) -> str | None:
    shape = Shape(config.model.layers, config.model.width, config.model.heads, config.train.length)
    longest = build_encoding(config.encoding, shape).max_length
    if longest is None or length <= longest:
        return None
    return f"{label(config.encoding)} has positions for {longest} inputs and no more"


@dataclass(frozen=True)
class Check:
    """What is known of a peer before it is timed."""

    ours: Config
    """posbench's settings for the same work; of a peer that cannot be built, posbench as it is."""
    reason: str | None = None
    """Why it is not timed."""
    difference: float | None = None
    """How far its loss is from posbench's, where the two can have the same weights."""


def _check(peer: Peer, config: Config, vocab: int) -> Check:
    if peer.missing:
        return Check(config, peer.missing)
    ours = config
    try:
        ours = peer.ours(config, vocab)
        found = [equal.difference(peer, config, vocab, attention) for attention in peer.attentions]
    except Exception as error:  # its library may be of any version
        return Check(ours, why(error))
    differences = [difference for difference in found if difference is not None]
    worst = max(differences, key=abs) if differences else None
    if worst is not None and not abs(worst) <= equal.CLOSE:
        return Check(ours, f"with the same weights its loss differs by {worst:.1e} nats: it does other work", worst)
    return Check(ours, difference=worst)


def plain_adamw(config: Config) -> Config:
    """The recipe that peers have too. Raises UserError for Muon."""
    if config.optim.method != "adamw":
        raise UserError("Peers are timed with AdamW on both sides.", "Leave out optim=, or write optim=adamw.")
    return replace(config, extension={})
