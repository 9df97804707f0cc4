"""Parts of a task at the same time: order, errors and the threads they are given."""

import threading

import pytest
import torch

from posbench.side_by_side import each


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("at_once", [1, 2, 3, 8])
def test_results_come_in_the_order_of_the_items(at_once):
    assert list(each(lambda x: x * x, range(7), at_once)) == [0, 1, 4, 9, 16, 25, 36]


def test_as_many_are_at_work_at_once_as_were_asked_for():
    """Each waits until two others are there too: with fewer at once nobody would ever go on."""
    meeting = threading.Barrier(3, timeout=10)
    assert sorted(each(lambda _: meeting.wait(), range(3), 3)) == [0, 1, 2]


@pytest.mark.parametrize(("at_once", "share"), [(1, 4), (2, 2), (3, 1), (8, 1)])
def test_each_has_its_share_of_the_threads_and_all_are_given_back(four_threads, at_once, share):
    assert set(each(lambda _: torch.get_num_threads(), range(4), at_once)) == {share}
    assert torch.get_num_threads() == 4


def test_an_error_is_raised_in_its_turn_and_nothing_new_begins(four_threads):
    begun = []

    def work(number):
        begun.append(number)
        if number == 1:
            raise ValueError("the second")
        return number

    results = each(work, range(100), 2)
    assert next(results) == 0
    with pytest.raises(ValueError, match="the second"):
        list(results)
    assert len(begun) < 6
    assert torch.get_num_threads() == 4
