"""Holm's correction: of several statements that are tested, none is to be taken for shown by chance alone."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number, in the same order: at most one in twenty such families has a true null
    hypothesis with a corrected value of 0.05 or less, whatever depends on what.

    The smallest of m is multiplied by m, the next by m - 1, ..., none above 1 nor below one before it (Holm 1979, A
    Simple Sequentially Rejective Multiple Test Procedure, https://www.jstor.org/stable/4615733).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected
