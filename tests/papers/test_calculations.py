"""Statements of the papers that a calculation confirms; those that one contradicts are in test_errata.py."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedfloor.parts.selection.grouping import Log
from papers import fedsr, hfedms_training


def test_rounds_and_bytes_of_hfedms_at_the_paper_s_interval() -> None:
    rounds, *_ = hfedms_training.TABLE4[hfedms_training.PERIOD]
    full = math.ceil(rounds / hfedms_training.PERIOD)
    assert (full, rounds - full) == (7, 27)
    model, classifier = 6_687_834, 6_262  # tests/network/test_network_papers.py
    assert math.floor(100 * (1 - 2 * classifier / (3 * model))) == 99  # Eq. 20: the factors of both kinds of rounds


def test_groups_of_hfedms_are_small_soon() -> None:
    _, alpha, beta = hfedms_training.BEST
    sizes = [hfedms_training.PAPERS_DEVICES // Log(alpha=alpha, beta=beta).groups(period) for period in range(1, 101)]
    assert sizes[:5] == [36, 18, 12, 12, 9]
    assert sizes[-1] == 3
    assert sum(2 <= one <= 10 for one in sizes) == 96


@pytest.mark.parametrize("alpha", [0.3, 0.1])
def test_dirichlet_partitions_of_fedsr_meet_its_condition(alpha: float) -> None:
    """|E| = Σ (|Dₘ|/|D|)² of five edges with four of twenty devices each; ten classes of 6,000 samples."""
    draws = np.random.default_rng(0).dirichlet([alpha] * 20, size=(1000, 10)).mean(axis=1)
    weights = draws.reshape(1000, 5, 4).sum(axis=2)
    assert weights.sum(axis=1) == pytest.approx(1)
    assert (weights**2).sum(axis=1).max() < 0.36


def test_cells_of_table_ii_of_fedsr_in_which_it_leads() -> None:
    others = ("fedavg", "fedprox", "moon", "hierfavg")
    cells = [(table, at) for table in fedsr.ACCURACY.values() for at in range(5)]
    best = [max(table[one][at] for one in others) for table, at in cells]
    lost = [round(top - table["fedsr"][at], 2) for top, (table, at) in zip(best, cells, strict=True)]
    assert [one for one in lost if one >= 0] == [0.03, 0.01]
    assert sum(table["ring"][at] > table["fedsr"][at] for table, at in cells) == 14
    assert not any(table["ring"][at] > table["fedsr"][at] for table, at in cells[:5])  # MNIST
