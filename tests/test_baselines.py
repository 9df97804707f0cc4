"""Unigram and bigram by hand, and that they read what runs read."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import made
import numpy as np
import pytest

from posbench import baselines, evaluate, records
from posbench.baselines import Bigram, Unigram
from posbench.config import Eval
from posbench.errors import UserError

# The stream 0 | 1 1 2 0 over V = 4: targets 1, 1, 2, 0 after 0, 1, 1, 2. Id 3 never occurs.
IDS = np.array([0, 1, 1, 2, 0])


def test_the_unigram_by_hand():
    """(c + 1) / (4 + 4): id 1 twice, ids 0 and 2 once, id 3 never. The leading end token is no target."""
    losses = Unigram.count(IDS, 4).losses(np.zeros(4, int), np.array([0, 1, 2, 3]))
    assert np.exp(-losses) == pytest.approx([2 / 8, 3 / 8, 2 / 8, 1 / 8])


def test_the_bigram_by_hand():
    """After 1 came 1 and 2, once each. With weight 0.5: p(2 | 1) = 0.5 * 1/2 + 0.5 * 2/8 = 3/8."""
    bigram = replace(Bigram.count(IDS, 4, IDS), weight=0.5)
    losses = bigram.losses(np.array([1, 1, 1, 0]), np.array([2, 1, 3, 1]))
    assert np.exp(-losses) == pytest.approx([3 / 8, 7 / 16, 1 / 16, 11 / 16])


def test_after_an_id_never_seen_the_bigram_is_the_unigram():
    bigram = replace(Bigram.count(IDS, 4, IDS), weight=0.5)
    assert np.exp(-bigram.losses(np.array([3]), np.array([1]))) == pytest.approx([3 / 8])


@pytest.mark.parametrize("weight", [0.0, 0.3, 1 - 1e-9])
def test_the_probabilities_after_any_id_sum_to_one(weight):
    bigram = replace(Bigram.count(IDS, 4, IDS), weight=weight)
    for previous in range(4):
        assert np.exp(-bigram.losses(np.full(4, previous), np.arange(4))).sum() == pytest.approx(1)


def test_the_weight_is_the_likeliest_on_the_validation_text():
    """Against a grid: no weight gives a lower loss."""
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.full(12, 0.3), size=12)

    def chain(n: int) -> np.ndarray:
        ids = [0]
        for _ in range(n):
            ids.append(int(rng.choice(12, p=table[ids[-1]])))
        return np.array(ids)

    train, validation = chain(400), chain(300)
    bigram = Bigram.count(train, 12, validation)

    def loss(weight: float) -> float:
        return float(replace(bigram, weight=weight).losses(validation[:-1], validation[1:]).mean())

    assert 0.5 < bigram.weight < 1
    assert loss(bigram.weight) <= min(loss(weight) for weight in np.linspace(0, 0.999, 1000)) + 1e-9


def test_a_pair_that_training_never_saw_keeps_a_finite_loss():
    """Whatever the weight: trained on a strict alternation, validated on it, met with its opposite."""
    ids = np.arange(100) % 2
    bigram = Bigram.count(ids, 3, ids)
    assert bigram.weight > 0.99
    assert np.isfinite(bigram.losses(np.array([0, 1, 0]), np.array([0, 1, 2]))).all()


def test_ids_of_a_large_vocabulary_do_not_collide():
    """Pairs are numbered u V + w in 64 bits, though ids are stored in 16 or 32."""
    ids = np.array([0, 69_999, 1, 69_999, 2], np.uint32)
    bigram = replace(Bigram.count(ids, 70_000, ids), weight=0.5)
    (loss,) = bigram.losses(np.array([69_999]), np.array([2]))
    assert math.exp(-loss) == pytest.approx(0.5 * 1 / 2 + 0.5 * 2 / 70_004)


# rows -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("POSBENCH_DATA", str(tmp_path / "data"))


@pytest.fixture
def run(tmp_path: Path):
    return made.finished_run(made.text(tmp_path / "text"), "rope", length=16)


@pytest.mark.parametrize("protocol", evaluate.PROTOCOLS)
def test_a_reference_scores_the_targets_of_a_run(run, protocol):
    wanted = evaluate.requests(run.config, Eval(lengths=[64], protocol=protocol, block=8, targets=96))
    for row, of_run in zip(
        baselines.evaluate("bigram", run.config, wanted), evaluate.evaluate(run, wanted), strict=True
    ):
        assert (row.targets_digest, row.targets, row.bytes) == (of_run.targets_digest, 96, of_run.bytes)
        assert (row.corpus_hash, row.tokenizer_hash) == (of_run.corpus_hash, of_run.tokenizer_hash)


def test_a_reference_does_not_depend_on_length_or_protocol(run):
    """A bigram sees one id, and every target of every window has one before it."""
    nonoverlapping = evaluate.requests(run.config, Eval(lengths=[64]))
    sliding = evaluate.requests(run.config, Eval(lengths=[64], protocol="sliding", stride=3))
    rows = baselines.evaluate("bigram", run.config, [*nonoverlapping, *sliding])
    assert len({row.loss for row in rows}) == 1


def test_the_bigram_row_is_the_mean_over_the_test_stream(run):
    prepared = made.prepared(run)
    train, valid, test = (prepared.stream(split).ids for split in ("train", "validation", "test"))
    bigram = Bigram.count(train, prepared.tokenizer.vocab_size, valid)
    (row,) = baselines.evaluate("bigram", run.config, evaluate.requests(run.config, Eval()))
    assert row.loss == pytest.approx(bigram.losses(test[:-1], test[1:]).mean())
    (alone,) = baselines.evaluate("unigram", run.config, evaluate.requests(run.config, Eval()))
    assert row.loss < alone.loss < math.log(prepared.tokenizer.vocab_size)


def test_the_bigram_counted_with_dictionaries(run):
    """The same number from plain Python, pair after pair, with the weight that the bigram chose."""
    prepared = made.prepared(run)
    train, valid, test = (prepared.stream(split).ids.tolist() for split in ("train", "validation", "test"))
    vocab_size = prepared.tokenizer.vocab_size
    weight = Bigram.count(np.array(train), vocab_size, np.array(valid)).weight
    once, before, pairs = Counter(train[1:]), Counter(train[:-1]), Counter(pairwise(train))
    nats = 0.0
    for previous, target in pairwise(test):
        alone = (once[target] + 1) / (len(train) - 1 + vocab_size)
        conditional = pairs[previous, target] / before[previous] if before[previous] else alone
        nats -= math.log(weight * conditional + (1 - weight) * alone)
    (row,) = baselines.evaluate("bigram", run.config, evaluate.requests(run.config, Eval()))
    assert row.nats == pytest.approx(nats)


def test_a_reference_is_found_among_the_rows_of_all_runs(run, tmp_path):
    new: list[records.Row] = []
    (row,) = baselines.evaluate("unigram", run.config, evaluate.requests(run.config, Eval()), on_row=new.append)
    assert new == [row]
    assert (row.kind, row.encoding, row.train_length, row.seed, row.model) == ("reference", "unigram", None, None, None)
    assert row.run == f"unigram-{row.corpus}-bytes-{row.run_hash}"
    assert row.path.parent == tmp_path / "runs" / row.run / "rows"
    assert records.read() == [row]
    again = baselines.evaluate("unigram", run.config, evaluate.requests(run.config, Eval()), on_row=new.append)
    assert again == new


def test_references_of_other_text_or_vocabulary_have_another_name(run, tmp_path):
    other = replace(run.config, data=made.data(made.text(tmp_path / "other", first=50)))
    wanted = evaluate.requests(run.config, Eval())
    (one,), (two,) = (baselines.evaluate("unigram", config, wanted) for config in (run.config, other))
    assert one.run_hash != two.run_hash


def test_an_unknown_reference_is_the_users_error(run):
    with pytest.raises(UserError, match="Did you mean 'bigram'"):
        baselines.evaluate("bigramm", run.config, [])
