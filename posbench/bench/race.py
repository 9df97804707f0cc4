"""Seconds until a validation loss is reached: posbench's recipe against plain AdamW at the best of several rates.

    1. rates    AdamW at each rate, one seed, the whole budget of tokens; the lowest validation loss at the end is best
    2. race     for each seed, AdamW at that rate over the whole budget, and posbench's recipe over shares of it: a
                recipe that learns faster needs fewer steps, and its schedule must end where they do
    3. target   the loss that AdamW ends with at its worst seed: one that every one of its runs reaches
    4. times    of each run, the seconds of training up to its first validation at or below the target; of a recipe,
                that of the share at which every seed reaches it, the first one soonest

Every run has the same shape, batches, validation text and schedule form. The runs of a seed go in turns from one
validation to the next, in an order drawn anew each time. All have as many validations, over however many steps, so
that they begin and end together and a noisy machine hits all alike; a time is known to the steps between two of them.
Compilation counts, and is done anew for each run; validation does not count: how often it happens is the measurement's
own doing.

Rate and share are chosen on the first seed. So its ratio is the best of several, and that of the other seeds alone is
given beside that of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from posbench import model, optim, system
from posbench.batches import Batches
from posbench.bench.rounds import Ratio, seed_ratio
from posbench.bench.trial import settle
from posbench.checkpoint import State
from posbench.config import Config
from posbench.data.tokens import Prepared
from posbench.decisions import decide
from posbench.errors import UserError
from posbench.train import compiled, gradient, steps_of, validate, validation

Say = Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """Of a run at one validation."""

    tokens: int
    seconds: float
    """Of training so far."""
    valid: float
    """Nats a token."""


@dataclass
class Racer:
    """One run. It leaves nothing on disk."""

    name: str
    config: Config
    validations: int
    """Evenly spread over its steps, the last one at its end; of a run with fewer steps one after each."""
    points: list[Point] = field(default_factory=list)

    def run(self, prepared: Prepared) -> Iterator[None]:
        """A generator that trains up to the next validation each time it is asked."""
        config, device, steps = self.config, system.device(self.config.device), steps_of(self.config)
        decoder = model.build(config, prepared.tokenizer.vocab_size, prepared.tokenizer.end).to(device)
        decisions = decide(config, decoder, device)
        torch.manual_seed(config.seed)
        optimizer = optim.build(decoder.train(), config.optim, steps)
        batches, valid = Batches(prepared.stream("train"), config), prepared.stream("validation")
        loss_of = compiled(decoder.loss) if decisions.compile else decoder.loss
        state, seconds = State(), 0.0
        start = time.perf_counter()
        while state.step < steps:
            with _nothing_compiled(decisions.compile and state.step == 0):
                gradient(decoder, loss_of, *batches.next(state, decoder, device), decisions)
            optimizer.step(state.step)
            decoder.constrain()
            state.step += 1
            if state.step * self.validations // steps > (state.step - 1) * self.validations // steps:
                settle(device)
                seconds += time.perf_counter() - start
                loss = validate(decoder, valid, config, decisions)
                self.points.append(Point(state.step * config.train.batch_tokens, seconds, loss))
                yield
                start = time.perf_counter()

    @property
    def final(self) -> float:
        """Its last loss on validation text."""
        return self.points[-1].valid

    def seconds_to(self, target: float) -> float | None:
        """Seconds of training up to the first validation at or below `target`; None: there is none."""
        return next((point.seconds for point in self.points if point.valid <= target), None)


@contextmanager
def _nothing_compiled(wanted: bool) -> Iterator[None]:
    """Within it, with `wanted`, the compiler finds nothing of what it made before."""
    if not wanted:
        yield
        return
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        yield


def together(racers: Sequence[Racer], prepared: Prepared, seed: int = 0) -> None:
    """Run all of them to their ends, in turns whose order is drawn anew for each."""
    rng = np.random.default_rng(seed)
    going = [racer.run(prepared) for racer in racers]
    while going:
        going = [going[number] for number in rng.permutation(len(going)) if next(going[number], DONE) is not DONE]


DONE = object()


@dataclass
class Race:
    """All runs, and what follows from them."""

    rates: dict[float, Racer]
    """AdamW at each rate, of the first seed."""
    adamw: dict[int, Racer]
    """At the best rate, by seed."""
    ours: dict[float, dict[int, Racer]]
    """posbench's recipe by share of the budget, by seed."""

    @property
    def best_rate(self) -> float:
        return best_rate({rate: racer.final for rate, racer in self.rates.items()})

    @property
    def target(self) -> float:
        """Nats a token."""
        return max(racer.final for racer in self.adamw.values())

    def seconds(self, racers: dict[int, Racer]) -> list[float] | None:
        """To the target, seed by seed; None where one does not reach it."""
        found = [racer.seconds_to(self.target) for _, racer in sorted(racers.items())]
        reached = [seconds for seconds in found if seconds is not None]
        return reached if len(reached) == len(found) else None

    @property
    def chosen_on(self) -> int:
        """The seed on which rate and share are chosen."""
        return next(iter(self.adamw))

    def ratio(self, share: float, others: bool = False) -> Ratio | None:
        """Time of posbench's recipe over AdamW's, of all seeds, or of the `others` than the one on which rate and share
        are chosen; None where a seed does not reach the target, or there are none."""
        ours, theirs = self.seconds(self.ours[share]), self.seconds(self.adamw)
        if not ours or not theirs:
            return None
        kept = [i for i, seed in enumerate(sorted(self.adamw)) if not others or seed != self.chosen_on]
        return seed_ratio([ours[i] for i in kept], [theirs[i] for i in kept]) if kept else None

    @property
    def best_share(self) -> float | None:
        """Of the shares of the budget at which every seed reaches the target, the soonest of the first seed: what is
        chosen on all of them would make their interval too good."""
        times = {share: racers[self.chosen_on].seconds_to(self.target) for share, racers in self.ours.items()}
        reached = {share: one for share, one in times.items() if one is not None and self.seconds(self.ours[share])}
        return min(reached, key=lambda share: reached[share]) if reached else None


def best_rate(finals: dict[float, float]) -> float:
    """The rate with the lowest loss; one that is not finite never is.

    >>> best_rate({0.001: 3.5, 0.002: 3.2, 0.1: float("nan")})
    0.002
    """
    return min(finals, key=lambda rate: (not finals[rate] < float("inf"), finals[rate]))


def race(
    config: Config,
    adamw: Config,
    prepared: Prepared,
    rates: Sequence[float],
    seeds: Sequence[int],
    shares: Sequence[float],
    validations: int,
    say: Say = lambda text: None,
) -> Race:
    """Hold the recipe of `config` against that of `adamw`, which differs in the recipe alone.

    Raises UserError before the first step when there is no validation text, or a share of the budget is less than a
    batch.
    """
    if validation(prepared) is None:
        raise UserError(f"{prepared.corpus} has no validation text to read the loss of.")
    whole = steps_of(config)
    for share in shares:
        if not round(share * whole):
            raise UserError(f"A share of {share} is less than one of {whole} batches.")

    def racer(name: str, recipe: Config, seed: int, share: float = 1.0) -> Racer:
        train = replace(recipe.train, tokens=round(share * whole) * recipe.train.batch_tokens)
        return Racer(name, replace(recipe, seed=seed, train=train), validations)

    def at(rate: float) -> Config:
        return replace(adamw, optim=replace(adamw.optim, lr=rate))

    finding = {rate: racer(f"adamw {rate:g}", at(rate), seeds[0]) for rate in rates}
    say(f"AdamW at {len(rates)} rates, {whole:,} steps each, seed {seeds[0]}")
    together(list(finding.values()), prepared)
    found = Race(finding, {}, {share: {} for share in shares})
    best = found.best_rate
    say(f"best at {best:g}: {finding[best].final:.4f} nats a token of validation text")
    for seed in seeds:
        found.adamw[seed] = racer(f"adamw {best:g}", at(best), seed)
        for share in shares:
            found.ours[share][seed] = racer(config.optim.name, config, seed, share)
        say(f"seed {seed}: AdamW, and {config.optim.name} over {len(shares)} shares of its steps")
        together([found.adamw[seed], *(found.ours[share][seed] for share in shares)], prepared, seed)
    return found
