"""Locality-sensitive hashes: closed forms, laws, errors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from fedfloor.base.errors import SettingError
from fedfloor.solvers.clustering import HashFunctions, fewest_functions, hash_functions, hash_vectors
from refusals import refused

SEEDS = st.integers(0, 2**32 - 1)


def collision_probability(c: float, r: float) -> float:
    """1 − 2Φ(−r/c) − 2c/(√(2π) r)·(1 − e^{−r²/(2c²)}): the paper's probability of equal hashes at distance c."""
    t = r / c
    return math.erf(t / math.sqrt(2)) + math.sqrt(2 / math.pi) * math.expm1(-t * t / 2) / t


@pytest.mark.parametrize("width", [0.5, 3.0, 10.0])
@pytest.mark.parametrize("distance", [0.1, 0.7, 2.0, 6.0, 25.0])
def test_vectors_collide_as_often_as_the_formula_says(distance: float, width: float) -> None:
    h = 20_000
    dimension = 7
    rng = np.random.default_rng(1)
    v, step = rng.normal(size=(2, dimension))
    w = v + distance * step / np.linalg.norm(step)
    one, other = hash_vectors(hash_functions(dimension, h, width, seed=0), np.stack([v, w]))
    p = collision_probability(distance, width)
    # each function is a trial of its own; 4 standard deviations: one of 16,000 such tests would fail by chance
    assert abs((one == other).mean() - p) <= 4 * math.sqrt(p * (1 - p) / h)


@pytest.mark.parametrize(("distance", "width"), [(0.01, 3.0), (1.0, 3.0), (3.0, 3.0), (7.0, 2.0), (1e4, 1.0)])
def test_the_closed_form_is_the_papers_integral(distance: float, width: float) -> None:
    # two numbers t apart lie in one window with probability 1 − t/r, and t = c·|N(0, 1)|
    def density(t: float) -> float:
        return 2 / distance * float(norm.pdf(t / distance)) * (1 - t / width)

    # of a density that is 0 but near 0, quad has to be told where
    want = quad(density, 0, min(width, 10 * distance), epsabs=1e-14, epsrel=1e-12)[0]
    assert collision_probability(distance, width) == pytest.approx(want, rel=1e-9)


def family(seed: int) -> tuple[HashFunctions, np.ndarray]:
    """A family of hash functions and vectors for it."""
    rng = np.random.default_rng(seed)
    dimension = rng.integers(1, 40)
    h = rng.integers(1, 9)
    n = rng.integers(1, 12)
    made = hash_functions(int(dimension), int(h), float(rng.choice([0.25, 1.0, 3.0])), seed)
    return made, rng.normal(size=(n, dimension)) * 10.0 ** rng.integers(-2, 3)


@settings(deadline=None)
@given(SEEDS)
def test_a_hash_is_the_window_of_a_projection(seed: int) -> None:
    made, v = family(seed)
    projected = np.array([[math.fsum(a * x) + b for a, b in zip(made.a, made.b, strict=True)] for x in v])
    windows = hash_vectors(made, v)
    assert windows.dtype == np.int64
    assert windows.shape == (len(v), len(made.a))
    off = 1e-9 * (1 + np.abs(projected))  # the sums' rounding
    assert (made.r * windows <= projected + off).all()
    assert (projected < made.r * (windows + 1) + off).all()


@settings(deadline=None)
@given(SEEDS)
def test_equal_vectors_always_collide(seed: int) -> None:
    made, v = family(seed)
    together = hash_vectors(made, np.concatenate([v, v[::-1]]))
    assert (together[: len(v)] == together[len(v) :][::-1]).all()
    for at in range(len(v)):  # a device that hashes its own vector gets what the cloud gets from all of them
        assert (hash_vectors(made, v[at : at + 1]) == together[at]).all()
    single = v.astype(np.float32)
    assert (hash_vectors(made, single) == hash_vectors(made, single.astype(np.float64))).all()


def test_equal_vectors_collide_at_the_edge_of_a_window() -> None:
    # a_i·v + b_i = r·m_i up to rounding, so the order of summation decides which window it is
    made = hash_functions(300, 5, 3.0, 0)
    v = (np.linalg.pinv(made.a) @ (3 * np.random.default_rng(0).integers(-9, 10, (5, 200)) - made.b[:, None])).T
    together = hash_vectors(made, v)
    assert 0.1 < ((v @ made.a.T + made.b) / 3 < np.rint(v @ made.a.T / 3 + made.b / 3)).mean() < 0.9  # both occur
    assert all((hash_vectors(made, one[None]) == row).all() for one, row in zip(v, together, strict=True))


@settings(deadline=None)
@given(SEEDS)
def test_a_step_of_whole_windows_moves_the_hash_by_as_many(seed: int) -> None:
    rng = np.random.default_rng(seed)
    h = int(rng.integers(1, 6))
    made = hash_functions(h + 20, h, 3.0, seed)
    windows = rng.integers(-50, 51, h)
    step = np.linalg.pinv(made.a) @ (made.r * windows)  # a_i·s = r·m_i for every i
    v = rng.normal(size=(4, h + 20))
    # none of these stands within 10⁻⁹ of the edge of a window, where rounding would decide
    edge = (v @ made.a.T + made.b) / made.r % 1
    clear = (np.minimum(edge, 1 - edge) > 1e-9).all(1)
    assert (hash_vectors(made, v + step) == hash_vectors(made, v) + windows)[clear].all()


@settings(deadline=None)
@given(SEEDS)
def test_vectors_and_windows_scale_together(seed: int) -> None:
    made, v = family(seed)
    wide = hash_functions(made.a.shape[1], len(made.b), 2 * made.r, seed)
    assert (hash_vectors(wide, 2 * v) == hash_vectors(made, v)).all()  # powers of two: exact


def test_functions_come_from_the_seed_alone() -> None:
    one, again, other = (hash_functions(1280, 5, 3.0, seed) for seed in (4, 4, 5))
    assert (one.a == again.a).all()
    assert (one.b == again.b).all()
    assert not (one.a == other.a).any()
    assert not (one.b == other.b).any()
    many = hash_functions(50, 4000, 3.0, 4)
    assert (many.b >= 0).all()
    assert (many.b < 3).all()
    # 200,000 numbers of N(0, 1), 4000 of U[0, 3): means and variances to 4 standard deviations
    assert abs(many.a.mean()) <= 4 / math.sqrt(200_000)
    assert abs(many.a.var() - 1) <= 4 * math.sqrt(2 / 200_000)
    assert abs(many.b.mean() - 1.5) <= 4 * math.sqrt(9 / 12 / 4000)


def test_the_least_number_of_functions() -> None:
    assert [fewest_functions(k, 3.0) for k in (1, 2, 3, 4, 9, 10, 27, 28, 50, 81, 82)] == [
        0,
        1,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        4,
        5,
    ]
    for r, h in itertools.product(range(2, 12), range(1, 9)):  # log(r^h)/log(r) is not always h in floating point
        assert (
            fewest_functions(r**h, float(r)),
            fewest_functions(r**h + 1, float(r)),
            fewest_functions(r**h - 1, float(r)),
        ) == (
            h,
            h + 1,
            h - (r**h == 2),
        )
    assert fewest_functions(10, math.sqrt(10)) == 2
    assert fewest_functions(2, 1.01) == 70  # ln 2/ln 1.01 = 69.66


def test_bad_hashes_are_refused() -> None:
    for h, dimension, width, said in (
        (0, 3, 3.0, "h = 0: must be a whole number of at least 1"),
        (1, 0, 3.0, "dimension = 0"),
        (1, 3, 0.0, "width = 0.0: must be above 0"),
        (1, 3, math.inf, "width = inf"),
    ):
        with pytest.raises(SettingError, match=said):
            hash_functions(dimension, h, width, 0)
    made = hash_functions(3, 2, 3.0, 0)
    with refused("shape of v"):
        hash_vectors(made, np.zeros((2, 4)))
    for bad in (math.nan, math.inf, 1e300):
        with refused("hash"):
            hash_vectors(made, np.full((1, 3), bad))
    for width in (1.0, 0.5, math.nan):
        with refused("width"):
            fewest_functions(10, width)
    with refused("groups"):
        fewest_functions(0, 3.0)
