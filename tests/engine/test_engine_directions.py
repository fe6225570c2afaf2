"""Devices whose updates point against the others': who is named, and who is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.engine.directions import AGAINST, BUCKETS, LEAST, ROUNDS, Directions, opposed, sketch

SIZE = 20_000


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-1, 1))
def test_cosines_of_sketches_are_those_of_the_changes(seed: int, share: float) -> None:
    """A count sketch's cosine has a standard deviation of about 1/√1024 = 0.031: five of them."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, SIZE))
    b = share * a + (1 - abs(share)) * b
    got = cosine(sketch(torch.from_numpy(a)), sketch(torch.from_numpy(b)))
    assert got == pytest.approx(cosine(a, b), abs=5 / BUCKETS**0.5)


def test_a_sketch_is_linear_and_the_same_on_every_machine() -> None:
    a, b = torch.randn(2, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert np.allclose(sketch(a - 2 * b), sketch(a) - 2 * sketch(b))
    wanted = np.zeros(BUCKETS)
    for place in range(3000):  # the hash in whole numbers without end
        mixed = place * 0x9E3779B97F4A7C15 % 2**64
        mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 % 2**64
        wanted[(mixed >> 32) % BUCKETS] += -1 if mixed >> 63 else 1
    assert sketch(torch.ones(3000)).tolist() == wanted.tolist()


def updates(rng: np.random.Generator, devices: int, common: float) -> dict[int, np.ndarray]:
    """Return updates that share a direction, to a degree."""
    shared = rng.normal(size=SIZE)
    return {k: common * shared + rng.normal(size=SIZE) for k in range(devices)}


def test_the_device_with_a_reversed_update_is_against_the_others_and_no_other_is() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        some = updates(rng, 8, 1.0)
        assert opposed({k: sketch(torch.from_numpy(v)) for k, v in some.items()}) == set()
        some[3] = -some[3]
        assert opposed({k: sketch(torch.from_numpy(v)) for k, v in some.items()}) == {3}


def test_updates_that_cancel_as_late_in_training_are_against_nobody() -> None:
    """Each is the negative of the sum of the rest."""
    rng = np.random.default_rng(0)
    some = updates(rng, 8, 0.0)
    mean = np.mean(list(some.values()), axis=0)
    sketches = {k: sketch(torch.from_numpy(v - mean)) for k, v in some.items()}
    assert all(cosine(own, sum(sketches.values()) - own) < -0.9 for own in sketches.values())
    assert opposed(sketches) == set()


def test_a_device_is_named_after_several_rounds_and_no_longer_when_it_turns() -> None:
    rng = np.random.default_rng(0)
    directions = Directions()
    named = []
    for number in range(2 * ROUNDS + AGAINST):
        for k, update in updates(rng, 6, 1.0).items():
            sign = -1 if k == 2 and number < ROUNDS else 1
            directions.add(k, torch.zeros(SIZE), torch.from_numpy(sign * update).float())
        named.append(directions.close())
    assert [number for number, devices in enumerate(named) if devices] == list(range(AGAINST - 1, 2 * ROUNDS - AGAINST))
    assert named[AGAINST - 1] == {2: AGAINST}
    assert named[ROUNDS - 1] == {2: ROUNDS}


def test_few_devices_and_strange_numbers_name_nobody() -> None:
    few = {k: sketch(torch.full((SIZE,), float((-1) ** k))) for k in range(LEAST - 1)}
    assert opposed(few) == set()
    for odd in (0.0, 1e38, float("nan"), float("inf")):
        some = {k: sketch(torch.ones(SIZE)) for k in range(5)} | {5: sketch(torch.full((SIZE,), odd))}
        assert opposed(some) <= {5}
