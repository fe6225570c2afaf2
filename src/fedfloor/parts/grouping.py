"""Groups of devices whose classes are mixed alike, in which a model goes from device to device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def formed(
    solver: str, devices: Sequence[int], counts: np.ndarray | None, groups: int, rng: np.random.Generator, size: int = 0
) -> list[list[int]]:
    """Return M groups of L devices each, in random order within a group; the other devices are in none.

    Args:
        solver: how they are formed, a name of :data:`fedfloor.solvers.grouping.solve.SOLVERS`.
        devices: the K devices to be grouped.
        counts: V [K, F], samples of each class that they hold; None where nobody was asked, and all are alike.
        groups: M.
        rng: of what is drawn.
        size: L; left out, ⌊K/M⌋.

    Raises:
        SettingError: no such solver, more groups than devices, or nobody holds a sample.

    >>> formed("random", (4, 7, 9), None, 2, np.random.default_rng(0))
    [[9], [4]]
    """
    from fedfloor.solvers.grouping.problem import Problem
    from fedfloor.solvers.grouping.solve import solve

    here = np.asarray(devices)
    problem = Problem(np.ones((len(here), 1)) if counts is None else counts, groups, size)
    choice = solve(solver, problem, seed=int(rng.integers(2**32))).choice
    return [here[rng.permutation(row)].tolist() for row in choice]
