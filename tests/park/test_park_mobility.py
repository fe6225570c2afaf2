"""Devices that are guests in other factories for a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.park.partition import Mobility
from fedfloor.plan import walk
from floor import park
from refusals import refused
from rounds import Job, method


@given(devices=st.integers(1, 30), factories=st.integers(1, 5), share=st.floats(0.01, 1), tick=st.integers(0, 500))
@settings(max_examples=60, deadline=None)
def test_factories_keep_their_sizes(devices: int, factories: int, share: float, tick: int) -> None:
    home = (np.arange(devices) % factories).astype(np.int32)
    now = Mobility(7, share).factory_of(home, 3, tick)
    assert np.bincount(now, minlength=5).tolist() == np.bincount(home, minlength=5).tolist()
    assert (now != home).sum() <= max(2, round(share * devices))
    assert now.dtype == np.int32
    if tick < 7:
        np.testing.assert_array_equal(now, home)
    # a function of seed and turn, whatever was asked before
    np.testing.assert_array_equal(now, Mobility(7, share).factory_of(home, 3, tick // 7 * 7))


def test_who_moves_is_drawn_by_turn_and_seed() -> None:
    home = np.arange(40, dtype=np.int32)  # every place is another factory: each guest is seen
    moving = Mobility(5, 0.1)
    turns = [moving.factory_of(home, 0, tick) for tick in (5, 10, 15)]
    assert [int((now != home).sum()) for now in turns] == [4, 4, 4]
    assert len({tuple(now) for now in turns} | {tuple(moving.factory_of(home, 1, 5))}) == 4
    # in a ring: followed from guest to guest, one comes back after all four
    now = turns[0]
    guest = int(np.flatnonzero(turns[0] != home)[0])
    path = [guest]
    while int(now[path[-1]]) != guest:
        path.append(int(now[path[-1]]))
    assert sorted(path) == np.flatnonzero(now != home).tolist()


def test_a_park_knows_where_its_devices_are() -> None:
    still = park(factory_of=(0, 1, 2, 0, 1))
    moving = replace(still, mobility=Mobility(2, 1.0))
    assert still.factory_at(9).tolist() == [0, 1, 2, 0, 1] == moving.factory_at(1).tolist()
    assert sum(moving.factory_at(tick).tolist() != [0, 1, 2, 0, 1] for tick in range(2, 20)) > 10
    assert moving.members(0) == (0, 3)  # at home


def test_mobility_that_cannot_be() -> None:
    with refused("park.mobility.every"):
        Mobility(0)
    for share in (0.0, 1.1):
        with refused("park.mobility.share"):
            Mobility(1, share)


@pytest.mark.parametrize("name", ["fedsr", "hierfavg"])
def test_edges_are_drawn_anew_in_every_round(name: str) -> None:
    """With every = 1 and share = 1 all devices choose an edge in each round, and edges keep their sizes."""
    here = replace(park([8] * 6, factory_of=(0, 1, 2, 0, 1, 2)), mobility=Mobility(1, 1.0))
    job = Job(method(name), here, rounds=4)
    job.run()
    edges = [{frozenset(walk.devices(branch)) for branch in one.resolved.children} for one in job.outcomes]  # type: ignore[attr-defined]
    assert edges[0] == {frozenset({0, 3}), frozenset({1, 4}), frozenset({2, 5})}
    assert all(sorted(map(len, one)) == [2, 2, 2] for one in edges)
    assert len(set(map(frozenset, edges))) == 4
