"""The tensors alive at once in a call, counted by hand."""

from __future__ import annotations

import torch

from posbench.bench.tensors import most_alive


def test_what_was_given_back_before_the_rest_was_made_is_not_counted():
    """`first` and `second` of 400 kB are alive together; `last` of 600 kB is made when only `second` is left:
    1,000 kB, where all that is ever made is 1,400 kB."""

    def call() -> None:
        first = torch.empty(100_000)
        second = torch.empty(100_000)
        del first
        last = torch.empty(150_000)
        del second, last

    assert most_alive(call) == 1_000_000


def test_what_was_there_before_is_not_counted():
    """The sum of 1,000 x 1,000 numbers along rows has 1,000 of 4 bytes."""
    there = torch.ones(1000, 1000)
    assert most_alive(lambda: there.sum(1)) == 4000


def test_what_was_there_before_and_is_given_back_is_not_taken_off():
    """400 kB go and 600 kB come."""
    there = [torch.empty(100_000)]

    def call() -> None:
        there.clear()
        there.append(torch.empty(150_000))

    assert most_alive(call) == 600_000


def test_what_outlives_the_call_counts():
    kept: list[torch.Tensor] = []
    assert most_alive(lambda: kept.append(torch.empty(250))) == 1000


def test_a_call_that_makes_nothing_takes_nothing():
    assert most_alive(lambda: None) == 0
