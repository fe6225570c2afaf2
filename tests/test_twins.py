from __future__ import annotations

from pathlib import Path

import pytest

from twins import METHODS, Pair, compare, table


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_engine_is_its_plain_twin(method: str, data_root: Path) -> None:
    rounds = 2 if method == "fedavg" else 1  # that the second begins where the first ended is the same for all
    pair = compare(method, seed=0, rounds=rounds, root=str(data_root))
    assert len(pair.engine) == len(pair.twin) == rounds
    assert pair.points <= 2  # what was promised
    # Same data, weights, rings and batches: what is left is rounding (pixels times 1/255 or divided by 255, the order
    # in which models are added), some 10^-7 of a weight: enough for pictures on the very border, of which 10,000 that
    # share a range of scores of about 1 hold next to none; 0.1 points are ten of them.
    assert pair.points <= 0.1


def test_the_table_has_two_rows_for_each_pair() -> None:
    text = table([Pair("fedavg", 0, (0.5, 0.75), (0.5, 0.7475))])
    assert text.splitlines()[2:] == [
        "| fedavg | 0 | engine | 50.00 | 75.00 | 0.25 |",
        "|  |  | twin | 50.00 | 74.75 |  |",
    ]
