"""What a device tells of its mean features in the place of them: a few integers."""

from __future__ import annotations

import numpy as np

from fedfloor.machine import require_memory


def told(vector: np.ndarray, hashes: int, width: float, seed: int) -> list[int]:
    """Return h integers ⌊(a_i·v + b_i)/r⌋; see :mod:`fedfloor.solvers.clustering`.

    Args:
        vector: v [D].

    >>> len(told(np.zeros(4), hashes=3, width=2.0, seed=0))
    3
    """
    from fedfloor.solvers.clustering import hash_functions, hash_vectors

    require_memory(f"hashes = {hashes}", 16 * hashes * len(vector), "Set fewer hashes.")
    family = hash_functions(len(vector), hashes, width, seed)
    return [int(one) for one in hash_vectors(family, vector[None])[0]]
