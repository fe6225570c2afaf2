"""Censuses with noise: discrete Laplace on every count, and the ε of a run's reports together."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfloor.chance import generator
from fedfloor.errors import SettingError, require

LEAST_EPSILON = 1e-6  # below, the noise of a count runs to millions
SECRET_BYTES = 32


def check_epsilon(epsilon: float | None) -> None:
    """Check a census's ε; None and infinity mean no noise.

    Raises:
        SettingError: ε is too small, or not a number.
    """
    if epsilon is not None:
        require(epsilon >= LEAST_EPSILON, "park.census_epsilon", epsilon, f"at least {LEAST_EPSILON:g}, or left out")


def noise(epsilon: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    r"""Draw discrete Laplace noise, P(X = x) = (1 − q)/(1 + q)·q^|x| with q = e^(−ε).

    It is the difference of two geometric numbers. Added to each count of a census it makes the census ε-differentially
    private: one sample more or less changes one count by 1. (One sample in another's place changes two: 2ε.)

    Ghosh, Roughgarden and Sundararajan, "Universally utility-maximizing privacy mechanisms", SIAM J. Comput. 2012,
    arXiv 0811.2841, where it is the geometric mechanism. The numbers are drawn by inversion in double precision: their
    frequencies are exact to about 2^−53. An exact sampler is that of Canonne, Kamath and Steinke, "The discrete
    Gaussian for differential privacy", NeurIPS 2020, arXiv 2004.00010.

    Args:
        epsilon: ε; infinity is no noise.

    >>> noise(float("inf"), 3, np.random.default_rng(0)).tolist()
    [0, 0, 0]
    """
    if math.isinf(epsilon):
        return np.zeros(size, np.int64)
    heads = -math.expm1(-epsilon)
    return rng.geometric(heads, size) - rng.geometric(heads, size)


def noisy(
    counts: NDArray[np.int64], epsilon: float | None, seed: int, tick: int, device: int, position: int,
    secret: int | None = None,
) -> NDArray[np.int64]:  # fmt: skip
    """Return the counts that a device reports, int64 [F]; they may be negative.

    The same samples in one tick give the same report, so that repetition averages nothing out. With the public ``seed``
    the noise can be computed and subtracted, and protects nothing; a ``secret`` of the device does. The counts
    are then part of its key: the same noise on the counts of two data sets would reveal their difference.

    Args:
        counts: int64 [F].
        epsilon: ε of one report, or None for the counts as they are.
        seed, tick, device, position: key the noise.
        secret: the secret of a real device, used instead of the seed; see :func:`secret_key`.
    """
    if epsilon is None or math.isinf(epsilon):
        return counts
    key = (seed, ()) if secret is None else (secret, counts.tolist())
    return counts + noise(epsilon, len(counts), generator(key[0], "census noise", tick, device, position, *key[1]))


def secret_key(path: Path) -> int:
    """Return the secret that keys a real device's noise: 256 bits of the operating system's randomness.

    It is drawn once and kept, so that a restarted device gives the same answer to the same question.

    Raises:
        SettingError: the file has other content, or cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            kept = path.read_bytes()
        else:
            kept = os.urandom(SECRET_BYTES)
            with open(opened, "wb") as file:
                file.write(kept)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror or error}: the census's noise is keyed by it.") from error
    if len(kept) != SECRET_BYTES:
        raise SettingError(f"{path}: {len(kept)} bytes; must be {SECRET_BYTES}. Delete it: a new one is drawn.")
    return int.from_bytes(kept, "big")


def shares(reports: Iterable[Sequence[int] | NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return float64 [F]: the class shares of devices' reports [F], P = Σ_k n_k P_k / Σ_k n_k (FedGS, Eq. 2).

    Noise is added up with the counts; sums below 0 count as 0; where nothing is left, all classes are equal.

    >>> shares([[3, 0], [3, 2]]).tolist()
    [0.75, 0.25]
    """
    total = np.sum([np.asarray(row) for row in reports], axis=0).clip(0)
    result: NDArray[np.float64] = total / total.sum() if total.any() else np.full(len(total), 1 / len(total))
    return result


def composed(epsilon: float, reports: int, delta: float | None = None) -> float:
    """Return the ε of k reports of a device together: k·ε, or, with δ, advanced composition where it is less.

    ε' = ε·√(2k ln(1/δ)) + kε(e^ε − 1), with which the run is (ε', δ)-differentially private.

    Dwork, Rothblum and Vadhan, "Boosting and differential privacy", FOCS 2010, Theorem III.3.

    Args:
        epsilon: ε of one report.
        reports: k.
        delta: δ in (0, 1), or None for pure differential privacy.

    Raises:
        SettingError: δ out of range.

    >>> composed(0.1, 500), round(composed(0.1, 500, delta=1e-5), 2)
    (50.0, 15.99)
    """
    plain = epsilon * reports if reports else 0.0
    if delta is None:
        return plain
    require(0 < delta < 1, "delta", delta, "above 0 and below 1")
    if epsilon > 1:  # e^ε − 1 > ε: never less, and e^ε may be no number
        return plain
    advanced = epsilon * math.sqrt(2 * reports * math.log(1 / delta)) + reports * epsilon * math.expm1(epsilon)
    return min(plain, advanced)
