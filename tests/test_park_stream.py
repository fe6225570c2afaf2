from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.errors import SettingError
from fedfloor.park.stream import Static, Stream, batch_order


def test_static_holds_everything_always() -> None:
    stream: Stream = Static()
    assert stream.kind == "static"
    assert [stream.position(tick, visits) for tick, visits in ((0, 0), (5, 2))] == [0, 0]
    assert stream.held(np.zeros(10, int), 0, 3, 0) is None
    assert stream.holds(10) == 10


def visited(size: int, batch_size: int, epochs: int | None, steps: int | None, seed: int = 0) -> list[list[list[int]]]:
    """Every pass as its list of mini-batches, sliced as the engine does."""
    rng = np.random.default_rng(seed)
    return [
        [order[i * batch_size : (i + 1) * batch_size].tolist() for i in range(batches)]
        for order, batches in batch_order(size, batch_size, epochs, steps, rng)
    ]


@given(size=st.integers(1, 30), batch_size=st.integers(1, 35), epochs=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_an_epoch_visits_each_sample_once(size: int, batch_size: int, epochs: int) -> None:
    passes = visited(size, batch_size, epochs, None)
    assert len(passes) == epochs
    for batches in passes:
        assert sorted(chain.from_iterable(batches)) == list(range(size))
        assert all(len(batch) == batch_size for batch in batches[:-1])


@given(size=st.integers(1, 30), batch_size=st.integers(1, 35), steps=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_steps_are_counted_over_endless_passes(size: int, batch_size: int, steps: int) -> None:
    passes = visited(size, batch_size, None, steps)
    assert sum(len(batches) for batches in passes) == steps
    assert all(batch for batches in passes for batch in batches)
    for batches in passes[:-1]:
        assert sorted(chain.from_iterable(batches)) == list(range(size))


def test_steps_of_whole_passes_are_epochs() -> None:
    assert visited(10, 4, 3, None) == visited(10, 4, None, 9)


def test_passes_are_reshuffled() -> None:
    first, second = visited(50, 50, 2, None)
    assert first != second
    assert visited(50, 50, 1, None, seed=1) != [first]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, 4, 1, None), "samples of a device = 0"),
        ((3, 0, 1, None), "batch_size = 0"),
        ((3, 4, 0, None), "epochs = 0"),
        ((3, 4, None, 0), "steps = 0"),
        ((3, 4, 1, 1), "set exactly one"),
        ((3, 4, None, None), "set exactly one"),
    ],
)
def test_errors_come_at_once_not_with_the_first_pass(numbers: tuple, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        batch_order(*numbers, np.random.default_rng(0))
