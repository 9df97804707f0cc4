"""Holm's correction by hand, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest

from posbench.statistics import holm


def test_six_by_hand():
    """Sorted 0.001 x 6, 0.008 x 5, 0.012 x 4 = 0.048, 0.02 x 3 = 0.06, 0.025 x 2 = 0.05, raised to 0.06, 0.5 x 1."""
    found = holm([0.02, 0.001, 0.5, 0.008, 0.025, 0.012])
    assert found == pytest.approx([0.06, 0.006, 0.5, 0.04, 0.06, 0.048])


def test_nothing_is_above_one_and_one_alone_is_itself():
    assert holm([0.7, 0.6]) == [1, 1]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


def test_of_six_true_null_hypotheses_one_is_rejected_in_at_most_one_family_of_twenty():
    rng = np.random.default_rng(0)
    families = rng.random((2000, 6))
    assert np.mean([min(holm(family.tolist())) <= 0.05 for family in families]) <= 0.06
    assert np.mean(families.min(axis=1) <= 0.05) > 0.2, "uncorrected"
