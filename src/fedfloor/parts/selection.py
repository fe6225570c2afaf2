"""Whom to visit: the policies a ``Select`` node names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedfloor.errors import SettingError, unknown

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
    return sorted(int(k) for k in rng.choice(np.asarray(devices), size=how_many, replace=False))


POLICIES: dict[str, Policy] = {"everyone": everyone, "uniform": uniform}


def choose(
    policy: str, candidates: Sequence[int], how_many: int, census: np.ndarray, rng: np.random.Generator
) -> list[int]:
    """Choose devices by a policy's name.

    Args:
        policy: one of :data:`POLICIES`.
        candidates: device numbers to choose from.
        how_many: devices wanted, at least 1 and at most the number of candidates.
        census: class counts of what each candidate holds now, [candidates, classes].
        rng: where chance comes from.

    Raises:
        SettingError: an unknown policy, or more devices wanted than there are.

    >>> choose("everyone", [4, 7], 2, np.zeros((2, 10)), np.random.default_rng(0))
    [4, 7]
    """
    if policy not in POLICIES:
        raise unknown("selection policy", policy, POLICIES)
    if not 1 <= how_many <= len(candidates):
        raise SettingError(
            f"select how_many = {how_many}: there are {len(candidates)} candidates; choose 1 to that many."
        )
    return POLICIES[policy](candidates, how_many, census, rng)


def fraction(devices: Sequence[int], share: float, rng: np.random.Generator) -> list[int]:
    """Draw max(1, round(share · K)) of K devices uniformly without replacement, in ascending order.

    McMahan et al., AISTATS 2017: the fraction C of FedAvg.

    >>> fraction(range(4), 1.0, np.random.default_rng(0))
    [0, 1, 2, 3]
    """
    return _draw(devices, max(1, round(share * len(devices))), rng)


def by_samples(devices: Sequence[int], sizes: np.ndarray, share: float, rng: np.random.Generator) -> list[int]:
    """Draw max(1, round(share · K)) of K devices without replacement, each draw in proportion to n_k; ascending.

    Args:
        devices: their numbers.
        sizes: n_k, samples of every device of the park, int64.
        share: C, in (0, 1].
        rng: where chance comes from.

    >>> by_samples([0, 1, 2], np.array([0, 5, 5]), 0.6, np.random.default_rng(0))
    [1, 2]
    """
    weight = sizes[np.asarray(devices)] / sizes[np.asarray(devices)].sum()
    how_many = max(1, round(share * len(devices)))
    return sorted(int(k) for k in rng.choice(np.asarray(devices), size=how_many, replace=False, p=weight))
