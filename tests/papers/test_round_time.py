"""Proposition 4 of FedGS: the published seconds are those of its formula."""

from __future__ import annotations

from papers import claims, round_time

BYTES = 4 * 6_603_710  # of FedGS's network


def test_seconds_are_those_of_the_formula() -> None:
    """T steps of L uploads and one transmission down in each cell, M uploads and one; FedAvg: M·L uploads and one.

    The last edge has the model after M transmissions from the cloud, and all edges send theirs when these have ended.
    """
    once = 8 * BYTES / round_time.EDGE_BPS
    edges = round_time.FACTORIES
    steps = round_time.ITERATIONS * (round_time.CHOSEN + 1)
    for ratio in round_time.RATIOS:
        fedgs = max(steps + ratio * (edges + 1), ratio * 2 * edges)
        fedavg = ratio * (edges * round_time.CHOSEN + 1)
        for column, transfers in (("FedGS, s", fedgs), ("FedAvg, s", fedavg)):
            shown = claims.cell("results/fedgs-round.md", str(ratio), column, "One transmission down")
            assert abs(claims.parsed(shown)[0] - transfers * once) < 1, (ratio, column)
        assert (round_time.bound(ratio, "multicast") >= round_time.ITERATIONS) == (fedgs <= fedavg)
