"""The windows of every protocol, against lists written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from posbench.data.windows import (
    Windows,
    batches,
    gather,
    generators,
    nonoverlapping,
    same_targets,
    sliding,
    training,
)
from posbench.errors import UserError


def triples(windows: Windows) -> list[tuple[int, int, int]]:
    return list(zip(windows.begin.tolist(), windows.end.tolist(), windows.scored.tolist(), strict=True))


def scored(windows: Windows) -> list[int]:
    """Target numbers in the order in which they are scored."""
    return [t for _, end, n in triples(windows) for t in range(end - n + 1, end + 1)]


def contexts(windows: Windows) -> list[int]:
    """Inputs that each scored target sees."""
    return [t - begin for begin, end, n in triples(windows) for t in range(end - n + 1, end + 1)]


def test_nonoverlapping_by_hand():
    """23 ids hold targets 1 ... 22: two windows of 10 inputs and a last one of 2, which is kept."""
    assert triples(nonoverlapping(23, 10)) == [(0, 10, 10), (10, 20, 10), (20, 22, 2)]
    assert contexts(nonoverlapping(23, 10)) == [*range(1, 11), *range(1, 11), 1, 2]


def test_nonoverlapping_without_a_rest_has_no_empty_window():
    assert triples(nonoverlapping(21, 10)) == [(0, 10, 10), (10, 20, 10)]


def test_sliding_by_hand():
    """Groups of 5 targets, each read with the 10 inputs before its last target, or with all there are at the start."""
    assert triples(sliding(23, 10, 5)) == [(0, 5, 5), (0, 10, 5), (5, 15, 5), (10, 20, 5), (12, 22, 2)]


def test_sliding_by_a_whole_window_fills_its_last_window_up():
    """The one difference from nonoverlapping: the last two targets see 9 and 10 inputs, not 1 and 2."""
    assert triples(sliding(23, 10, 10)) == [(0, 10, 10), (10, 20, 10), (12, 22, 2)]


@pytest.mark.parametrize(
    ("windows", "targets"),
    [
        (nonoverlapping(1000, 512), 999),
        (sliding(1000, 512, 256), 999),
        (sliding(1000, 512, 1), 999),
        (sliding(23, 10, 5), 22),
        (nonoverlapping(20, 10), 19),
        (nonoverlapping(2, 10), 1),
        (nonoverlapping(1, 10), 0),
    ],
)
def test_every_target_is_scored_once(windows, targets):
    """PPL-2: N ids hold N - 1 targets. Target 0, the leading end token, is in nobody's list (PPL-5)."""
    assert scored(windows) == list(range(1, targets + 1))
    assert windows.targets == targets


@pytest.mark.parametrize("cut", [nonoverlapping(100, 16, 40), sliding(100, 16, 6, 40), sliding(100, 16, 1, 40)])
def test_targets_takes_the_first_so_many(cut):
    assert scored(cut) == list(range(1, 41))


def test_asking_for_more_targets_than_there_are_takes_all():
    assert triples(nonoverlapping(23, 10, 500)) == triples(nonoverlapping(23, 10))


@pytest.mark.parametrize("stride", [1, 7, 64, 128])
def test_context_of_sliding_windows(stride):
    """PPL-4: past the first L targets the context is never below L - S + 1, and exactly L for stride 1."""
    length = 128
    later = contexts(sliding(1000, length, stride))[length:]
    assert min(later) == length - stride + 1
    assert max(later) == length


def test_context_of_nonoverlapping_windows_spans_one_to_the_length():
    seen = contexts(nonoverlapping(1025, 128))
    assert np.bincount(seen).tolist() == [0] + [8] * 128


# same-targets ---------------------------------------------------------------------------------------------------------
#
# Documents of 10, 3 and 13 ids: ids 1 ... 10, 11 ... 13, 14 ... 26; the last id of each is its end token.
# After the first 4 ids of each, blocks of 2: 5-6 7-8 9-10 | none | 18-19 20-21 22-23 24-25 (26 is an incomplete block).

DOCUMENTS = np.array([1, 11, 14, 27])


def blocks(windows: Windows) -> list[int]:
    """The last target of each block."""
    return windows.end.tolist()


def test_same_targets_by_hand():
    """All seven blocks, each scored by the 4 ids before its last target, the end token 10 among the targets."""
    windows = same_targets(DOCUMENTS, length=4, min_context=4, block=2, targets=100)
    assert blocks(windows) == [6, 8, 10, 19, 21, 23, 25]
    assert triples(windows)[0] == (2, 6, 2)
    assert scored(windows) == [5, 6, 7, 8, 9, 10, *range(18, 26)]


def test_same_targets_spreads_over_all_eligible_blocks():
    """7 eligible, 3 wanted: blocks floor(0), floor(7/3), floor(14/3) = 0, 2, 4."""
    assert blocks(same_targets(DOCUMENTS, 4, 4, block=2, targets=6)) == [6, 10, 21]


def test_same_targets_floors_targets_to_whole_blocks():
    assert blocks(same_targets(DOCUMENTS, 4, 4, block=2, targets=7)) == [6, 10, 21]


def test_same_targets_takes_all_when_there_are_fewer_than_asked():
    assert same_targets(DOCUMENTS, 4, 4, block=2, targets=16).targets == 14


def test_a_document_of_no_more_than_min_context_ids_gives_no_target():
    """A document of M ids has no target after them; with M + 1 and K = 1 it has one, its end token."""
    assert len(same_targets(np.array([1, 5]), 4, min_context=4, block=1, targets=9)) == 0
    assert triples(same_targets(np.array([1, 6]), 4, min_context=4, block=1, targets=9)) == [(1, 5, 1)]


@pytest.mark.parametrize("length", [2, 3, 4])
def test_same_targets_is_the_same_set_at_every_length(length):
    """PPL-6: the set depends on min_context; the length only moves where the reading begins."""
    windows = same_targets(DOCUMENTS, length, min_context=4, block=2, targets=100)
    assert scored(windows) == [5, 6, 7, 8, 9, 10, *range(18, 26)]
    assert set(contexts(windows)) == {length - 1, length}


def test_the_context_of_same_targets_lies_in_the_targets_own_document():
    windows = same_targets(DOCUMENTS, length=4, min_context=4, block=2, targets=100)
    document = np.searchsorted(DOCUMENTS, windows.end, side="right") - 1
    assert (windows.begin >= DOCUMENTS[document]).all()


# training -------------------------------------------------------------------------------------------------------------


def test_an_epoch_of_training_is_a_shuffle_of_disjoint_windows():
    windows = training(1001, 64, seed=1, epoch=0)
    offset = int(windows.begin.min())
    assert 0 <= offset < 64
    assert sorted(windows.begin.tolist()) == list(range(offset, 1000 - 63, 64))
    assert windows.begin.tolist() != sorted(windows.begin.tolist())
    assert set(windows.lengths.tolist()) == {64}
    assert windows.end.max() <= 1000


def test_training_windows_are_a_function_of_seed_and_epoch():
    again = training(1001, 64, seed=1, epoch=0)
    assert triples(training(1001, 64, seed=1, epoch=0)) == triples(again)
    assert triples(training(1001, 64, seed=1, epoch=1)) != triples(again)
    assert triples(training(1001, 64, seed=2, epoch=0)) != triples(again)


def test_training_offsets_reach_every_id():
    """Offsets 0 ... 7 all occur, so no id is always the first of its window."""
    assert {int(training(100, 8, 1, epoch).begin.min()) for epoch in range(100)} == set(range(8))


@pytest.mark.parametrize("n_ids", [9, 10, 15, 16])
def test_short_training_text_still_gives_a_window(n_ids):
    """With 9 ids and windows of 8 the only possible offset is 0."""
    assert {len(training(n_ids, 8, 1, epoch)) for epoch in range(50)} == {1}


def test_training_text_shorter_than_a_window_is_the_users_error():
    with pytest.raises(UserError, match="7 targets, fewer than one window of 8"):
        training(8, 8, seed=1, epoch=0)


# batches and gather ---------------------------------------------------------------------------------------------------


def test_a_batch_holds_one_shape_and_a_budget_of_tokens():
    """Lengths 10, 10, 10, 3: two windows fit 20 tokens, and the shorter last one is a batch of its own."""
    windows = nonoverlapping(34, 10)
    assert [batch.tolist() for batch in batches(windows, 20)] == [[0, 1], [2], [3]]


def test_a_window_longer_than_the_budget_is_read_alone():
    assert [batch.tolist() for batch in batches(nonoverlapping(21, 10), 4)] == [[0], [1]]


def test_batches_of_sliding_windows_differ_in_what_they_score():
    """Inputs 5, 10, 10, 10, 10 but scored 5, 5, 5, 5, 2: the last is of another kind than the three before it."""
    assert [batch.tolist() for batch in batches(sliding(23, 10, 5), 1000)] == [[0], [1, 2, 3], [4]]


def test_no_windows_no_batches():
    assert list(batches(nonoverlapping(1, 10), 100)) == []


@pytest.mark.parametrize("budget", [1, 30, 64, 10**9])
@pytest.mark.parametrize("windows", [nonoverlapping(200, 16), sliding(200, 16, 5), training(200, 16, 1, 0)])
def test_batches_keep_every_window_once_in_order(windows, budget):
    numbers = np.concatenate(list(batches(windows, budget)))
    assert numbers.tolist() == list(range(len(windows)))


def test_gather_shifts_targets_by_one():
    """PPL-3: ids 0, 10, 20, ...: the target of an input is the id after it, and only the last `scored` are returned."""
    ids = (np.arange(23) * 10).astype(np.uint16)
    inputs, targets = gather(ids, sliding(23, 10, 5), np.array([2, 3]))
    assert inputs.tolist() == [list(range(50, 150, 10)), list(range(100, 200, 10))]
    assert targets.tolist() == [[110, 120, 130, 140, 150], [160, 170, 180, 190, 200]]
    assert inputs.dtype == targets.dtype == np.int64


def test_gather_reads_to_the_last_id():
    inputs, targets = gather(np.arange(23), nonoverlapping(23, 10), np.array([2]))
    assert (inputs.tolist(), targets.tolist()) == ([[20, 21]], [[21, 22]])


# what is said of a set of targets -------------------------------------------------------------------------------------


def test_spans_join_neighbouring_targets():
    assert nonoverlapping(23, 10).spans().tolist() == [[1, 23]]
    assert same_targets(DOCUMENTS, 4, 4, 2, 100).spans().tolist() == [[5, 11], [18, 26]]
    assert Windows(np.array([4, 0]), np.array([8, 4]), np.array([4, 2])).spans().tolist() == [[3, 9]]
    assert nonoverlapping(1, 10).spans().shape == (0, 2)


def test_a_target_scored_twice_is_refused():
    twice = Windows(np.array([0, 4]), np.array([5, 9]), np.array([5, 5]))
    with pytest.raises(AssertionError, match="scored twice"):
        twice.spans()


def test_the_digest_names_the_set_and_not_the_cut():
    one = nonoverlapping(1000, 128).digest("ids")
    assert one == sliding(1000, 512, 64).digest("ids") == nonoverlapping(1000, 512).digest("ids")
    assert one != nonoverlapping(1000, 128, 998).digest("ids")
    assert one != nonoverlapping(1000, 128).digest("other ids")


def test_draws_depend_on_seed_split_and_window_alone():
    alone = generators(1, "test", [7])[0].random()
    assert generators(1, "test", [6, 7, 8])[1].random() == alone
    assert generators(2, "test", [7])[0].random() != alone
    assert generators(1, "train", [7])[0].random() != alone
    assert generators(1, "test", [8])[0].random() != alone
