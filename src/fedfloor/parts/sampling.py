"""Drawing devices: uniformly, by samples, or by the policy a ``Select`` node names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedfloor.chance import generator
from fedfloor.errors import SettingError, require
from fedfloor.park.park import Park
from fedfloor.parts import super_node
from fedfloor.plan.nodes import Select

Census = Callable[[Sequence[int], int], np.ndarray]
Policy = Callable[[Sequence[int], int, np.ndarray, np.random.Generator], list[int]]


def everyone(
    candidates: Sequence[int],
    how_many: int,  # noqa: ARG001
    census: np.ndarray,  # noqa: ARG001
    rng: np.random.Generator,  # noqa: ARG001
) -> list[int]:
    """Choose all candidates."""
    return list(candidates)


def uniform(
    candidates: Sequence[int],
    how_many: int,
    census: np.ndarray,  # noqa: ARG001
    rng: np.random.Generator,
) -> list[int]:
    """Choose ``how_many`` candidates uniformly without replacement, in ascending order."""
    return _draw(candidates, how_many, rng)


def _draw(devices: Sequence[int], how_many: int, rng: np.random.Generator) -> list[int]:
    places = rng.choice(len(devices), size=how_many, replace=False)  # not of an array, which a range would become
    return sorted(int(devices[i]) for i in places.tolist())


POLICIES: dict[str, Policy] = {"everyone": everyone, "uniform": uniform}


def choose(node: Select, census: np.ndarray, held: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Choose devices by a node's policy.

    Args:
        node: one of :data:`POLICIES`, or a solver of :mod:`fedfloor.solvers.selection`; see :mod:`.super_node`.
        census: class counts that each candidate reports, [candidates, F]; no rows for policies that ask for none.
        held: samples that each candidate holds, [candidates].
        rng: where chance comes from.

    Returns:
        Device numbers, ascending.

    Raises:
        SettingError: an unknown policy, or more devices wanted than there are.

    >>> from fedfloor.plan.nodes import Work
    >>> node = Select("everyone", (4, 7), 2, Work(steps=1))
    >>> choose(node, np.zeros((0, 10)), np.ones(2), np.random.default_rng(0))
    [4, 7]
    """
    if not 1 <= node.how_many <= len(node.candidates):
        raise SettingError(
            f"select how_many = {node.how_many}: there are {len(node.candidates)} candidates; choose 1 to that many."
        )
    require(0 <= node.random <= node.how_many, "select random", node.random, f"from 0 to how_many = {node.how_many}")
    if node.policy in POLICIES:
        return POLICIES[node.policy](node.candidates, node.how_many, census, rng)
    return super_node.chosen(node, census, held, rng, known=POLICIES)


def fraction(devices: Sequence[int], share: float, rng: np.random.Generator) -> list[int]:
    """Draw max(1, round(share · K)) of K devices uniformly without replacement, in ascending order.

    McMahan et al., AISTATS 2017: the fraction C of FedAvg.

    >>> fraction(range(4), 1.0, np.random.default_rng(0))
    [0, 1, 2, 3]
    """
    return _draw(devices, max(1, round(share * len(devices))), rng)


def by_samples(devices: Sequence[int], sizes: np.ndarray, share: float, rng: np.random.Generator) -> list[int]:
    """Draw max(1, round(share · K)) of K devices without replacement with chances p_k ∝ n_k, in ascending order.

    One device after the other is drawn, each in proportion to the samples of those that are left. Where all devices
    hold equally many it is the draw of :func:`fraction`, from the same numbers: a method that draws so can then be
    FedAvg to the bit.

    Args:
        devices: device numbers to choose from.
        sizes: n_k > 0, samples of every device of the park, [all devices].
        share: C in (0, 1].
        rng: where chance comes from.

    >>> by_samples([0, 2, 3], np.array([5, 0, 10**9, 5]), 0.4, np.random.default_rng(0))
    [2]
    """
    held = sizes if devices == range(len(sizes)) else sizes[np.asarray(devices)]
    how_many = max(1, round(share * len(devices)))
    if how_many == len(devices) or (held == held[0]).all():
        return fraction(devices, share, rng)
    places = rng.choice(len(devices), size=how_many, replace=False, p=held / held.sum())
    return sorted(int(devices[i]) for i in places.tolist())


def selected(
    node: Select, park: Park, seed: int, round_number: int, tick: int, visits: Mapping[int, int],
    trained: Mapping[int, int], census: Census | None = None,
) -> list[int]:  # fmt: skip
    """Return whom a ``Select`` chooses, ascending.

    Args:
        node: whom it chooses from, and by which policy.
        park: whose census it reads.
        seed: the experiment's.
        round_number, tick: when.
        visits: how often each device was visited so far in the round.
        trained: how often each device was trained so far in the run.
        census: asks devices for their class counts at a tick, int64 [devices, F]; the park is looked at if None.
    """
    asked = node.candidates if node.reads_census else ()
    counts = park.census(asked, tick, [trained.get(k, 0) for k in asked]) if census is None else census(asked, tick)
    seen = sum(visits.get(k, 0) for k in node.candidates)
    place = (round_number, tick, min(node.candidates, default=-1), seen)  # the next choice is another draw
    rng = generator(seed, f"select {node.policy} {node.at}", *place)
    return choose(node, counts, park.holdings[list(node.candidates)], rng)
