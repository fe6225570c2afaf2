"""Groups of devices whose classes are mixed alike, in which a model goes from device to device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def formed(
    solver: str, devices: Sequence[int], groups: int, counts: np.ndarray | None, rng: np.random.Generator
) -> list[list[int]]:
    """Return M groups of ⌊K/M⌋ devices each, in random order within a group; K − M·⌊K/M⌋ devices are in none.

    Args:
        solver: how they are formed, a name of :data:`fedfloor.solvers.grouping.solve.SOLVERS`.
        devices: the K devices to be grouped.
        groups: M.
        counts: samples per class of all the park's devices, [devices of the park, F]; None where nobody was asked, and
            all are taken for alike.
        rng: keys what is drawn.

    Raises:
        SettingError: no such solver, more groups than devices, or nobody holds a sample.

    >>> formed("random", (4, 7, 9), 2, None, np.random.default_rng(0))
    [[9], [4]]
    """
    from fedfloor.solvers.grouping.problem import Problem
    from fedfloor.solvers.grouping.solve import solve

    here = np.asarray(devices)
    known = np.ones((len(here), 1)) if counts is None else counts[here]
    choice = solve(solver, Problem(known, groups), seed=int(rng.integers(2**32))).choice
    return [here[rng.permutation(row)].tolist() for row in choice]
