"""p-stable locality-sensitive hashing: vectors that lie close together often get the same whole number.

Datar, Immorlica, Indyk, Mirrokni, "Locality-sensitive hashing scheme based on p-stable distributions", SCG 2004.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfloor import chance
from fedfloor.errors import require

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
SAME = 1e-12  # relative: a quotient of two logarithms that is a whole number but for rounding
LARGEST = 2.0**63  # from here on a hash does not fit into 64 bits


@dataclass(frozen=True, eq=False)
class Functions:
    """F_i(v) = ⌊(a_i·v + b_i)/r⌋, i = 1 … h.

    Args:
        a: [h, D], each number from N(0, 1).
        b: [h], each from U[0, r).
        r: the width of a window, in units of v.
    """

    a: Floats
    b: Floats
    r: float


def functions(dimension: int, h: int, width: float, seed: int) -> Functions:
    """Return h hash functions of vectors [D]; equal arguments give equal functions, so devices need only the seed.

    A smaller family is the beginning of a larger one, and a wider window keeps the directions.

    Args:
        dimension: D.
        h: how many functions.
        width: r.
        seed: of the draw.

    Raises:
        SettingError: no dimension, no function, or a width that is not above 0.

    >>> few, many = functions(4, 2, 3.0, seed=0), functions(4, 5, 3.0, seed=0)
    >>> bool((few.a == many.a[:2]).all() and (few.b == many.b[:2]).all())
    True
    """
    require(dimension >= 1, "dimension", dimension, "a whole number of at least 1")
    require(h >= 1, "h", h, "a whole number of at least 1: how many hash functions")
    require(0 < width < math.inf, "width", width, "above 0 and finite")
    a = chance.generator(seed, "lsh directions").standard_normal((h, dimension))
    b = chance.generator(seed, "lsh offsets").random(h) * width
    return Functions(a, b, float(width))


def hashed(functions: Functions, v: NDArray[np.floating]) -> Integers:
    """Return F_i(v) [n, h]; the hash of a vector does not depend on what is hashed beside it.

    Args:
        functions: a [h, D], b [h] and r.
        v: [n, D].

    Raises:
        SettingError: v is not [n, D], not finite, or too large for hashes of 64 bits.

    >>> one = Functions(np.array([[1.0, 2.0]]), np.array([0.5]), 3.0)
    >>> hashed(one, np.array([[1.0, 1.0], [1.0, 0.7], [-1.0, 0.0]])).tolist()  # 3.5/3, 2.9/3, −0.5/3
    [[1], [0], [-1]]
    """
    h, dimension = functions.a.shape
    v = np.asarray(v)
    require(v.ndim == 2 and v.shape[1] == dimension, "shape of v", v.shape, f"(n, {dimension})")
    found = np.empty((len(v), h))
    with np.errstate(over="ignore", invalid="ignore"):  # said below
        for row, vector in enumerate(v):
            # No matrix product: it adds up in an order that depends on the library, the processor and the other rows,
            # and two devices with the same vector would then now and then differ at the edge of a window.
            found[row] = np.floor(((functions.a * vector).sum(1) + functions.b) / functions.r)
    bad = found[~(np.abs(found) < LARGEST)]
    require(bad.size == 0, "hash", float(bad[0]) if bad.size else None, "finite and of 64 bits: v is not, or too large")
    return found.astype(np.int64)


def collision(distance: float, width: float) -> float:
    """Return Pr[F(v) = F(w)] with c = ‖v − w‖₂: p(c) = 1 − 2Φ(−r/c) − 2c/(√(2π) r)·(1 − e^{−r²/(2c²)}).

    Args:
        distance: c ≥ 0.
        width: r > 0, in the same unit.

    Raises:
        SettingError: a negative or infinite distance, or a width that is not above 0.

    >>> collision(0.0, 3.0), round(collision(3.0, 3.0), 6)  # 1 − 2·0.158655 − 0.797885·0.393469
    (1.0, 0.368746)
    """
    require(0 <= distance < math.inf, "distance", distance, "at least 0 and finite")
    require(0 < width < math.inf, "width", width, "above 0 and finite")
    if distance == 0:
        return 1.0
    t = width / distance  # 1 − 2Φ(−t) = erf(t/√2); expm1 keeps the digits where the two terms all but cancel
    return math.erf(t / math.sqrt(2)) + math.sqrt(2 / math.pi) * math.expm1(-t * t / 2) / t


def least(groups: int, width: float) -> int:
    """Return ⌈log_r K⌉, how many hash functions FLDG-L wants at least for K groups.

    The paper counts r values for a function. How many there are depends on how far the vectors are spread, of which r
    is only the unit: more windows lie in the same spread where r is smaller.

    Args:
        groups: K ≥ 1.
        width: r > 1.

    Raises:
        SettingError: no group, or a width of at most 1.

    >>> least(10, 3.0), least(50, 3.0), least(9, 3.0)
    (3, 4, 2)
    """
    require(groups >= 1, "groups", groups, "a whole number of at least 1")
    allowed = "above 1 and finite: the bound takes every function to have r values, and with one value none tells apart"
    require(1 < width < math.inf, "width", width, allowed)
    h = math.log(groups) / math.log(width)
    return round(h) if math.isclose(h, round(h), rel_tol=SAME) else math.ceil(h)
