"""Two references that use next to no context: what a trained run must beat to have learned anything of order.

Both are counted on the training split and read the same targets as a run, through the same code (posbench/losses.py).

    unigram   p(w)     = (c(w) + 1) / (N + V)
    bigram    p(w | u) = a c(u, w) / c(u) + (1 - a) p(w)        a in [0, 1), p(w) alone after a u never seen

The second is Jelinek & Mercer's interpolation with one weight a, the one of highest likelihood on the validation
split. Adding one to every count keeps both finite on any text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from posbench.config import Config
from posbench.data import tokens
from posbench.errors import unknown
from posbench.evaluate import Request, rows, texts
from posbench.reader import Reader
from posbench.records import About, Row
from posbench.run import root

NAMES = ("unigram", "bigram")


@dataclass(frozen=True)
class Unigram:
    """How often each id occurs, whatever stands before it."""

    log_p: np.ndarray
    """(V,) float64, finite."""

    @classmethod
    def count(cls, ids: np.ndarray, vocab_size: int) -> Unigram:
        """Counted over the targets ids[1:] of a stream: like every model it never predicts the leading end token."""
        counts = np.bincount(ids[1:], minlength=vocab_size) + 1
        return cls(np.log(counts / counts.sum()))

    def losses(self, previous: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Nats of each target, in the shape of `targets`; `previous` does not matter."""
        return -self.log_p[targets]


@dataclass(frozen=True)
class Bigram:
    """How often each id follows the one before it, interpolated with the unigram."""

    unigram: Unigram
    pairs: np.ndarray
    """Pairs (u, w) of the training split as u V + w, sorted, int64."""
    conditional: np.ndarray
    """c(u, w) / c(u) of each."""
    seen: np.ndarray
    """(V,) whether anything follows u in the training split."""
    weight: float
    """a, of the conditional."""

    @classmethod
    def count(cls, ids: np.ndarray, vocab_size: int, validation: np.ndarray) -> Bigram:
        """Counted over a training stream, the weight chosen on a validation stream."""
        pairs, count = np.unique(ids[:-1].astype(np.int64) * vocab_size + ids[1:], return_counts=True)
        follows = np.bincount(ids[:-1], minlength=vocab_size)
        conditional = count / follows[pairs // vocab_size]
        bigram = cls(Unigram.count(ids, vocab_size), pairs, conditional, follows > 0, weight=0.0)
        return replace(bigram, weight=bigram.best_weight(validation))

    def best_weight(self, ids: np.ndarray) -> float:
        """The weight of highest likelihood on a stream, to 1e-9, below 1 so that no target is impossible.

        The likelihood is concave in the weight, so its slope is followed to zero by halving.
        """
        conditional, alone = self._parts(ids[:-1], ids[1:])
        gain = conditional - alone
        low, high = 0.0, 1.0 - 1e-9
        while high - low > 1e-9:
            middle = (low + high) / 2
            rising = float((gain / (alone + middle * gain)).sum()) > 0
            low, high = (middle, high) if rising else (low, middle)
        return low

    def losses(self, previous: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Nats of each target after the id before it, in the shape of `targets`."""
        conditional, alone = self._parts(previous, targets)
        return -np.log(alone + self.weight * (conditional - alone))

    def _parts(self, previous: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """c(u, w) / c(u) and p(w); after a u never seen both are p(w)."""
        alone = np.exp(self.unigram.log_p[targets])
        pair = previous.astype(np.int64) * len(self.seen) + targets
        at = np.searchsorted(self.pairs, pair).clip(max=len(self.pairs) - 1)
        found = np.where(self.pairs[at] == pair, self.conditional[at], 0.0)
        return np.where(self.seen[previous], found, alone), alone


def evaluate(
    name: str,
    config: Config,
    requests: Sequence[Request],
    force: bool = False,
    on_row: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """The rows of a reference counted on the corpus and tokenizer of `config`, as `evaluate.evaluate` gives a run's.

    They are kept in a folder beside the runs. Raises `UserError` for a name other than unigram and bigram.
    """
    if name not in NAMES:
        raise unknown("reference", name, NAMES)
    prepared = tokens.prepare(config.data, config.tokenizer)
    train, validation = prepared.stream("train"), prepared.stream("validation")
    vocab_size = prepared.tokenizer.vocab_size

    @cache
    def counted() -> Unigram | Bigram:
        if name == "unigram":
            return Unigram.count(train.ids, vocab_size)
        return Bigram.count(train.ids, vocab_size, validation.ids)

    def score(inputs_BT: np.ndarray, targets_Bn: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        # Inputs are the targets one further back, so the last n inputs are what stands before each target.
        return counted().losses(inputs_BT[:, -targets_Bn.shape[1] :], targets_Bn)

    what = f"{name} {train.digest} {validation.digest} {vocab_size}"
    run_hash = hashlib.sha256(what.encode()).hexdigest()[:8]
    run = f"{name}-{prepared.corpus}-{config.tokenizer['name']}-{run_hash}"
    about = About(
        kind="reference",
        run=run,
        encoding=name,
        model=None,
        seed=None,
        train_length=None,
        train_tokens=None,
        trained_on=prepared.corpus,
        corpus=prepared.corpus,
        tokenizer=config.tokenizer["name"],
        vocab_size=vocab_size,
    )
    reader = Reader(about, run_hash, 0, root() / run / "rows", lambda split: score, dtype="float64")
    # What counts words has no encoding to extend.
    plain = list(dict.fromkeys(replace(request, extension=None) for request in requests))
    return rows(reader, texts(lambda: prepared, prepared.tokenizer, plain), force, on_row)


def by_text(jobs: Iterable[tuple[Config, Sequence[Request]]]) -> list[tuple[Config, list[Request]]]:
    """Each text that runs were trained on, once, by the config of one of them, with all that is asked of any of them:
    what a reference is counted on, and where it is read."""
    texts: dict[str, tuple[Config, dict[Request, None]]] = {}
    for config, requests in jobs:
        texts.setdefault(repr((config.data, config.tokenizer)), (config, {}))[1].update(dict.fromkeys(requests))
    return [(config, list(asked)) for config, asked in texts.values()]
