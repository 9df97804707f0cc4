"""Rounds and their statistics, with numbers that a hand can check. Nothing here reads a clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest

from posbench.bench.rounds import Turn, interleave, median_rank, ratio, seed_ratio, spread


class Clock:
    """Time that passes only when a cell works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def cell(self, name: str, seconds: float, calls: int = 1) -> Turn:
        def work() -> None:
            self.now += seconds
            self.log.append(name)

        return Turn(work, calls)


def test_every_round_gives_each_cell_one_turn_in_an_order_of_its_own():
    clock = Clock()
    turns = {name: clock.cell(name, 1.0) for name in "abcd"}
    interleave(turns, 20, clock=clock)
    rounds = [tuple(clock.log[start : start + 4]) for start in range(0, 80, 4)]
    assert all(sorted(order) == ["a", "b", "c", "d"] for order in rounds)
    assert len(set(rounds)) > 10  # of 24 orders
    for first, second in itertools.permutations("abcd", 2):  # no cell always comes before another
        assert any(order.index(first) < order.index(second) for order in rounds)


def test_a_turn_of_several_calls_gives_the_seconds_of_one():
    clock = Clock()
    found = interleave({"a": clock.cell("a", 2.0), "b": clock.cell("b", 0.5, calls=4)}, 2, clock=clock)
    assert found == {"a": [2.0, 2.0], "b": [0.5, 0.5]}
    assert clock.log.count("b") == 8


def test_work_that_a_device_still_has_to_do_counts():
    """A GPU's call returns at once: its time passes in `settle`, and belongs to the cell before it."""
    clock, queued = Clock(), []

    def settle() -> None:
        while queued:
            clock.now += queued.pop()

    turns = {"a": Turn(lambda: queued.append(3.0)), "b": Turn(lambda: queued.append(5.0))}
    assert interleave(turns, 3, clock=clock, settle=settle) == {"a": [3.0] * 3, "b": [5.0] * 3}


@pytest.mark.parametrize("wish", [KeyboardInterrupt, SystemExit(143)])
def test_ctrl_c_and_sigterm_leave_the_rounds_that_are_whole(wish: BaseException):
    """The fifth call of two cells is in the third round; before the end of the first there is nothing to keep."""
    for calls, whole in ((5, 2), (2, None)):
        left = iter(range(1, calls))

        def call(left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise wish

        turns = {name: Turn(call) for name in "ab"}
        if whole is None:
            with pytest.raises((KeyboardInterrupt, SystemExit)):
                interleave(turns, 5)
        else:
            assert [len(times) for times in interleave(turns, 5).values()] == [whole] * 2


def test_a_cell_that_raises_is_dropped_and_the_others_go_on():
    """b fails in its third round; of the others every round is there, and of b nothing."""
    clock, left, dropped = Clock(), iter([1.0, 1.0]), []

    def fails() -> None:
        clock.now += next(left)

    turns = {"a": clock.cell("a", 1.0), "b": Turn(fails), "c": clock.cell("c", 2.0)}
    found = interleave(turns, 6, clock=clock, drop=lambda key, error: dropped.append((key, type(error))))
    assert found == {"a": [1.0] * 6, "c": [2.0] * 6}
    assert dropped == [("b", StopIteration)]


def test_nothing_is_left_to_time_where_every_cell_raises():
    dropped: list[str] = []
    assert interleave({"a": Turn(lambda: 1 // 0)}, 6, drop=lambda key, error: dropped.append(key)) == {}
    assert dropped == ["a"]
    with pytest.raises(ZeroDivisionError):
        interleave({"a": Turn(lambda: 1 // 0)}, 6)


def test_no_round_begins_after_the_limit_and_the_first_always_does():
    """A round takes 2 s: the second begins at 2, the third would at 4."""
    for limit, rounds in ((0.0, 1), (3.0, 2), (100.0, 5)):
        clock, done = Clock(), list[int]()
        turns = {"a": clock.cell("a", 1.0), "b": clock.cell("b", 1.0)}
        found = interleave(turns, 5, clock=clock, limit=limit, tick=lambda n, _, done=done: done.append(n))
        assert len(found["a"]) == len(found["b"]) == rounds
        assert done == list(range(1, rounds + 1))


def test_a_ratio_is_taken_within_each_round():
    """Ratios 2, 2, 2, 1, 4, 3: the median is 2, while that of the times would be 7 / 3.5."""
    over, under = [2.0, 20.0, 8.0, 5.0, 12.0, 6.0], [1.0, 10.0, 4.0, 5.0, 3.0, 2.0]
    found = ratio(over, under)
    assert (found.median, found.low, found.high, found.rounds) == (2.0, 1.0, 4.0, 6)


def test_the_interval_of_twenty_rounds_is_from_the_sixth_to_the_fifteenth():
    """Fewer than 6 of 20 lie below the median with (1 + 20 + 190 + 1140 + 4845 + 15504) / 2^20 = 2.07 %; fewer than 7
    with 5.77 %."""
    assert sum(math.comb(20, k) for k in range(6)) / 2**20 == pytest.approx(0.0207, abs=1e-4)
    found = ratio([float(n) for n in range(20, 0, -1)], [1.0] * 20)
    assert (found.median, found.low, found.high) == (10.5, 6.0, 15.0)


@pytest.mark.parametrize("count", range(1, 40))
def test_the_rank_of_the_interval_is_the_largest_that_holds(count: int):
    def missed(rank: int) -> float:
        return 2 * sum(math.comb(count, k) for k in range(rank)) / 2**count

    rank = median_rank(count)
    assert missed(rank) <= 0.05 < missed(rank + 1)


def test_of_too_few_rounds_there_is_no_interval():
    found = ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert (found.median, found.low, found.high) == (3.0, None, None)


def test_a_spread_is_the_median_with_the_extremes():
    found = spread([30.0, 10.0, 20.0, 1000.0])
    assert (found.median, found.low, found.high, found.rounds) == (25.0, 10.0, 1000.0, 4)


def test_the_interval_over_three_seeds_is_students():
    """Ratios 1/2, 1, 2 have logarithms -ln 2, 0, ln 2 with standard deviation ln 2: the interval reaches to
    exp(4.303 ln 2 / sqrt 3) = 5.596."""
    found = seed_ratio([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    assert found.median == pytest.approx(1.0)
    assert found.high == pytest.approx(5.595, abs=1e-3)
    assert found.low == pytest.approx(1 / 5.595, abs=1e-3)


def test_one_seed_has_no_interval():
    found = seed_ratio([3.0], [2.0])
    assert (found.median, found.low, found.high) == (pytest.approx(1.5), None, None)
