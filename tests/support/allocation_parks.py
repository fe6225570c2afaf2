"""Parks for the allocation tests, with RaFed's settings (its Section IV-A); independent of the package's own radio."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedfloor.solvers.allocation.problem import AllocationProblem

LIGHT = 299_792_458.0  # m/s
CARRIER_HZ = 868e6
EXPONENT = 3.76
BAND_HZ = 250e3
NOISE_W = 1e-3 * 10 ** (-11.4) * BAND_HZ / 1e6  # −114 dBm/MHz over the band
UPLOAD_NATS = 25_000.0


def park(
    devices: int, seed: int, *, channels: int = 4, levels: int = 21, gamma: float = 1.0, **more: Any
) -> AllocationProblem:
    """Devices at 2 … 50 m, power levels spread over 0 … 20 dBm."""
    rng = np.random.default_rng(seed)
    distance = rng.uniform(2, 50, devices)
    cycles = rng.uniform(10, 30, devices)
    frequency = rng.uniform(1e9, 2e9, devices)
    bits = 8e6 * rng.uniform(5, 10, devices)
    watts = 1e-3 * 10 ** (np.linspace(0, 20, levels) / 10)
    received = watts[None, :] * (LIGHT / (4 * np.pi * CARRIER_HZ * distance**EXPONENT))[:, None]
    airtime = UPLOAD_NATS / (BAND_HZ * np.log(1 + received / NOISE_W))
    return AllocationProblem(cycles * bits / frequency, airtime, received, NOISE_W, gamma, channels, **more)


def tiny(
    seed: int, *, devices: int, channels: int = 2, levels: int = 4, gamma: float | None = None, **more: Any
) -> AllocationProblem:
    """Few devices, and every other quantity drawn widely, so that each kind of trade-off occurs."""
    rng = np.random.default_rng(seed)
    received = np.exp(rng.uniform(-4, 6, (devices, 1)) + np.sort(rng.uniform(0, 4, (devices, levels)), axis=1))
    airtime = rng.uniform(0.1, 2) / np.log1p(received)
    compute = rng.uniform(0.0, 3.0, devices)
    gamma = float(np.exp(rng.uniform(-3, 1))) if gamma is None else gamma
    return AllocationProblem(compute, airtime, 1e-12 * received, 1e-12, gamma, channels, **more)


RAFED = """
[network.device_edge]
sharing = "sinr"
[network.radio]
payload_nats = 25000
[network.devices]
cycles_per_bit = [10, 30]
clock_hz = [1e9, 2e9]
data_bits = [4e7, 8e7]
distance_m = [2, 50]
"""
