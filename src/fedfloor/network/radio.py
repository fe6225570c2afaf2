"""The radio model of RaFed: path loss, rate, reception and outage, as arrays over devices and power levels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.network.profile import RadioModel

LIGHT_M_PER_S = 299_792_458.0
Floats = NDArray[np.float64]


def watts(dbm: Floats | float) -> Floats:
    """Return power in watt: 10^((dBm − 30)/10).

    >>> float(watts(0.0)), float(watts(20.0))
    (0.001, 0.1)
    """
    return np.asarray(10.0 ** ((np.asarray(dbm, np.float64) - 30.0) / 10.0))


def noise_w(radio: RadioModel) -> float:
    """Return N0, the noise over one channel's band, in watt.

    −114 dBm/MHz over 250 kHz are −120.02 dBm.

    >>> f"{noise_w(RadioModel()):.3e}"
    '9.953e-16'
    """
    return float(watts(radio.noise_dbm_per_mhz)) * radio.bandwidth_hz / 1e6


def attenuation(radio: RadioModel, distance_m: Floats) -> Floats:
    """Return a(d) of Eq. 11, d > 0 in metres; ``path_loss`` A: v/(4π f_c d^α); B: (v/(4π f_c d))^α."""
    wave = LIGHT_M_PER_S / (4 * math.pi * radio.carrier_hz)
    if radio.path_loss == "A":
        return np.asarray(wave / distance_m**radio.path_loss_exponent)
    return np.asarray((wave / distance_m) ** radio.path_loss_exponent)


def received(radio: RadioModel, distance_m: Floats) -> Floats:
    """Return p·a(d)·E[h], h ~ Exp(1): mean received power in watt, [devices, levels]."""
    powers = watts(np.array(radio.powers_dbm))
    return np.asarray(attenuation(radio, distance_m)[:, None] * powers)


def airtime_s(radio: RadioModel, signal_w: Floats, payload_bytes: float) -> Floats:
    """Return the seconds of one transmission, D_up / (B·ln(1 + s/N0)), with D_up in nats.

    A packet of b bytes has 8·b·ln 2 nats, which corresponds to 8·b bits at a rate of B·log2(1 + s/N0).

    Args:
        signal_w: s, mean received power in W, any shape.
        payload_bytes: size of the packet, unless ``payload_nats`` is set.
    """
    nats = radio.payload_nats if radio.payload_nats is not None else 8 * payload_bytes * math.log(2)
    return np.asarray(nats / (radio.bandwidth_hz * np.log1p(signal_w / noise_w(radio))))


def reception(radio: RadioModel, signal_w: float, others_w: Floats) -> float:
    """Return q, the probability that a packet is received.

    ``mean`` (Eq. 10): exp(−γ(Σ_j s_j + N0)/s). ``exact``, averaged over the interferers' fading, h_j ~ Exp(1):
    exp(−γN0/s)·Π_j 1/(1 + γ s_j/s).

    Args:
        radio: γ, noise and the model of reception.
        signal_w: s, mean received power of the sender, W.
        others_w: s_j, mean received powers of the other senders on the same channel, W.
    """
    ratio = radio.threshold / signal_w
    clean = -ratio * noise_w(radio)
    if radio.reception == "mean":
        return math.exp(clean - ratio * float(np.sum(others_w)))
    return math.exp(clean - float(np.sum(np.log1p(ratio * np.asarray(others_w)))))


def usable(radio: RadioModel, signal_w: Floats) -> NDArray[np.bool_]:
    """Return which levels satisfy Eq. 9, P(h·s/N0 < γ) < ζ ⇔ s > −γN0/ln(1 − ζ); all without ζ.

    Eq. 9 omits the path loss; here the power is the received one, as in Eq. 10.
    """
    if radio.outage is None:
        return np.ones(signal_w.shape, bool)
    least = -radio.threshold * noise_w(radio) / math.log1p(-radio.outage)
    return np.asarray(signal_w > least)


def check_reach(radio: RadioModel, ok: NDArray[np.bool_], distance_m: Floats, names: Sequence[str] = ()) -> None:
    """Check that every device has a usable level, ``ok`` [K, levels].

    Raises:
        SettingError: a device is out of reach; the message names it and possible remedies.
    """
    out = np.flatnonzero(~ok.any(axis=1))
    if len(out):
        k = int(out[0])
        d = float(distance_m[out[0]])
        more = f" and {len(out) - 1} more" if len(out) > 1 else ""
        raise SettingError(
            f"device {names[k] if names else k}{more} out of reach: at {d:.0f} m even {radio.powers_dbm[-1]:g} dBm "
            f"violate the outage bound radio.outage = {radio.outage}. Allow more power, a larger outage, or a smaller "
            "radio.threshold.",
            key="out-of-reach",
        )
