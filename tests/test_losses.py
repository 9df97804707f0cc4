"""Token accounting, by the numbers: what is counted, and how it is averaged."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from posbench.data.tokens import Stream
from posbench.data.windows import nonoverlapping, same_targets, sliding
from posbench.evaluate import summary
from posbench.losses import measure, positions


def stream(ids: np.ndarray, ends: list[int] | None = None) -> Stream:
    """Ids with the leading end token at 0; `ends` are the ids one past each document (None: one document)."""
    documents = np.array([1, *(ends or [len(ids)])])
    nbytes = np.full(len(ids), 3, np.uint8)
    nbytes[documents - 1] = 0
    names = [str(number) for number in range(len(documents) - 1)]
    return Stream(ids=ids, nbytes=nbytes, documents=documents, names=names, digest="d" * 64)


def from_logits(logits_of) -> object:
    """A `Score` whose logits are given for each input id: (B, n) -> (B, n, V)."""

    def score(inputs, targets, numbers):
        logits = logits_of(torch.from_numpy(inputs[:, -targets.shape[1] :].copy()))
        flat = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.from_numpy(targets).flatten(), reduction="none"
        )
        return flat.view(targets.shape).numpy()

    return score


def constant(inputs, targets, numbers):
    return np.full(targets.shape, 1.5, np.float32)


def perplexity(arrays) -> float:
    return summary(arrays, words=None)["perplexity"]


def test_windows_are_weighted_by_their_targets():
    """PPL-1: 100 tokens at 2 nats and 10 at 4 give exp(240/110) = 8.8624; the mean of means would give 20.0855."""

    def score(inputs, targets, numbers):
        return np.full(targets.shape, 2.0 if targets.shape[1] == 100 else 4.0, np.float32)

    arrays = measure(stream(np.zeros(111, int)), nonoverlapping(111, 100), score, 1000)
    assert perplexity(arrays) == pytest.approx(8.8624, abs=1e-4)


@pytest.mark.parametrize(
    "windows", [nonoverlapping(1000, 512), nonoverlapping(1000, 64), sliding(1000, 512, 256), sliding(1000, 64, 1)]
)
def test_uniform_logits_give_the_vocabulary_size(windows):
    """PPL-2: over 256 ids, 256.000 at every length, protocol and stride, on all 999 targets."""
    arrays = measure(
        stream(np.arange(1000) % 256), windows, from_logits(lambda ids: torch.zeros(*ids.shape, 256)), 4096
    )
    assert perplexity(arrays) == pytest.approx(256.0, abs=1e-3)
    assert arrays.count.sum() == arrays.position_count.sum() == 999


@pytest.mark.parametrize("windows", [nonoverlapping(200, 16), sliding(200, 16, 4)])
def test_the_target_is_the_next_id_and_not_the_one_after(windows):
    """PPL-3: ids count up modulo 8. All mass on current + 1 gives 1.00; on current or current + 2, a huge number."""
    counting = stream(np.arange(200) % 8)

    def shifted(by: int):
        return from_logits(lambda ids: 50.0 * torch.nn.functional.one_hot((ids + by) % 8, 8).float())

    assert perplexity(measure(counting, windows, shifted(1), 64)) == pytest.approx(1.0, abs=1e-6)
    assert perplexity(measure(counting, windows, shifted(0), 64)) > 1e20
    assert perplexity(measure(counting, windows, shifted(2), 64)) > 1e20


def test_the_leading_end_token_is_read_and_never_scored():
    """PPL-5: id 9 stands only at 0. It is an input once and a target never."""
    ids = np.append(9, np.arange(99) % 8)
    met = []

    def score(inputs, targets, numbers):
        met.append(((inputs == 9).sum(), (targets == 9).sum()))
        return constant(inputs, targets, numbers)

    measure(stream(ids), nonoverlapping(100, 16), score, 32)
    assert np.sum(met, axis=0).tolist() == [1, 0]


def context(inputs, targets, numbers):
    """A `Score` that returns the number of inputs each target sees, as its loss."""
    n, length = targets.shape[1], inputs.shape[1]
    return np.broadcast_to(np.arange(length - n + 1, length + 1, dtype=np.float32), targets.shape)


@pytest.mark.parametrize(
    ("windows", "least", "most"),
    [(nonoverlapping(1025, 128), 1, 128), (sliding(1025, 128, 32), 1, 128), (sliding(1025, 128, 1), 1, 128)],
)
def test_losses_are_binned_by_the_context_they_had(windows, least, most):
    """PPL-4: with the context as loss, the mean of each bin lies inside the bin."""
    arrays = measure(stream(np.zeros(1025, int)), windows, context, 512)
    mean, upper = arrays.position_nats / arrays.position_count, arrays.position
    assert (mean <= upper).all()
    assert (mean[1:] > upper[:-1]).all()
    assert (upper[0], upper[-1]) == (least, most)
    assert arrays.position_nats.sum() == pytest.approx(arrays.nats.sum())


def test_every_position_has_a_bin_to_64_then_24_an_octave():
    edges = positions(4096).tolist()
    assert edges[:64] == list(range(1, 65))
    assert [edges.index(64 * 2**octave) - 63 for octave in range(7)] == [24 * octave for octave in range(7)]
    assert edges == sorted(set(edges))
    assert edges[-1] == 4096


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 100, 1000])
def test_bins_of_a_short_window_are_the_first_of_a_long_ones(length):
    """So that a context is in the same bin at every length."""
    edges = positions(length)
    assert edges.tolist() == positions(8192)[: len(edges)].tolist()
    assert edges[-1] >= length
    assert len(edges) == 1 or edges[-2] < length


def test_blocks_are_128_targets_cut_at_the_ends_of_documents():
    """Documents of 300 and 100 ids: blocks of 128, 128, 44 | 100."""
    text = stream(np.zeros(401, int), ends=[301, 401])
    arrays = measure(text, nonoverlapping(401, 64), constant, 256)
    assert arrays.first.tolist() == [1, 129, 257, 301]
    assert arrays.count.tolist() == [128, 128, 44, 100]
    assert arrays.document.tolist() == [0, 0, 0, 1]
    assert arrays.nats.tolist() == [192.0, 192.0, 66.0, 150.0]


def test_bytes_are_those_of_the_targets_and_an_end_token_has_none():
    """3 bytes an id but for the end token of each document: bits per byte is nats / ln 2 / bytes."""
    text = stream(np.zeros(401, int), ends=[301, 401])
    arrays = measure(text, nonoverlapping(401, 64), constant, 256)
    assert arrays.bytes.tolist() == [384, 384, 43 * 3, 99 * 3]
    found = summary(arrays, words=None)
    assert found["bytes"] == 398 * 3
    assert found["bits_per_byte"] == pytest.approx(400 * 1.5 / math.log(2) / (398 * 3))


def test_blocks_hold_the_targets_of_a_protocol_and_no_others():
    """Blocks of statistics begin at ids 1, 129, 257; targets 101-132, 197-228 and 293-324 are scored."""
    text = stream(np.zeros(401, int))
    windows = same_targets(text.documents, 64, 100, 32, targets=96)
    assert windows.spans().tolist() == [[101, 133], [197, 229], [293, 325]]
    arrays = measure(text, windows, constant, 256)
    assert arrays.first.tolist() == [101, 129, 293]
    assert arrays.count.tolist() == [28, 4 + 32, 32]


@pytest.mark.parametrize("windows", [nonoverlapping(3000, 256), nonoverlapping(3000, 37), sliding(3000, 100, 9)])
def test_blocks_are_the_same_however_the_text_is_cut(windows):
    """So that two rows can be paired block by block."""
    text = stream(np.zeros(3000, int), ends=[1100, 1101, 3000])
    arrays, other = (measure(text, one, constant, 512) for one in (windows, nonoverlapping(3000, 512)))
    assert arrays.first.tolist() == other.first.tolist()
    assert arrays.count.tolist() == other.count.tolist()


@pytest.mark.parametrize("budget", [1, 100, 512, 10**6])
def test_sums_do_not_depend_on_the_batch(budget):
    """Added one after the other in the order of the text: equal to the last bit."""
    rng = np.random.default_rng(0)
    table = rng.gamma(2.0, 2.0, 3000).astype(np.float32)
    text = stream(np.arange(3000), ends=[1100, 3000])

    def score(inputs, targets, numbers):
        return table[targets]

    arrays, other = (measure(text, sliding(3000, 64, 7), score, b) for b in (budget, 333))
    assert arrays.nats.tolist() == other.nats.tolist()
    assert arrays.position_nats.tolist() == other.position_nats.tolist()
    assert arrays.nats[0] == math.fsum(table[1:129].astype(float))


def test_a_score_is_told_the_numbers_of_its_windows():
    """What is drawn for a window follows from its number, so that it does not depend on the batch."""
    told = []

    def score(inputs, targets, numbers):
        told.extend(numbers.tolist())
        return constant(inputs, targets, numbers)

    measure(stream(np.zeros(100, int)), sliding(100, 16, 5), score, 40)
    assert told == list(range(20))


def test_progress_counts_inputs():
    read: list[int] = []
    windows = nonoverlapping(100, 16)
    measure(stream(np.zeros(100, int)), windows, constant, 32, read.append)
    assert read == [32, 64, 96, 99]
    assert read[-1] == windows.lengths.sum()


def test_many_targets_of_a_sliding_window_need_no_loop_over_targets():
    """Stride 1 is one window a target: the windows and their sums are arrays throughout, so only batches are a loop."""
    windows = sliding(200_001, 8, 1)
    calls = []

    def score(inputs, targets, numbers):
        calls.append(len(numbers))
        return constant(inputs, targets, numbers)

    arrays = measure(stream(np.zeros(200_001, np.uint16)), windows, score, 8 * 100_000)
    assert arrays.count.sum() == 200_000
    assert calls == [1] * 7 + [100_000, 99_993]
