"""The devices of a park as a network sees them: where they stand, how fast they compute, what they draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.chance import generator
from fedfloor.network import radio
from fedfloor.network.profile import Network, Number
from fedfloor.network.radio import Floats
from fedfloor.network.routes import Routes
from fedfloor.plan.nodes import Work, forward_cost

DRAWN = ("cycles_per_bit", "clock_hz", "data_bits", "distance_m", "capacitance", "transmit_w", "receive_w", "idle_w",
         "seconds_per_sample", "compute_w")  # fmt: skip


def trained(work: Work, samples: float) -> float:
    """Return how many passes over so many samples a visit computes as much as: its own.

    The whole model: its epochs, or steps · batch size / samples. The classifier alone: the way forward through what
    it sees of the data, once, for the features stay as they are during the visit; training on features is left out
    (0.1 % of the parameters of HFedMS's network are its classifier's).
    """
    passes = work.passes(samples)
    return forward_cost(passes) if work.borrows else passes


class Lists(NamedTuple):
    """Seconds and joules of one pass over each device's data, its powers in watt, and how many samples it holds."""

    pass_s: list[float]
    pass_j: list[float]
    transmit_w: list[float]
    receive_w: list[float]
    idle_w: list[float]
    samples: list[float]


@dataclass(frozen=True, eq=False)
class Sites:
    """K devices on a network; every array is float64 [K] unless it says otherwise.

    Args:
        network: the links, and the radio.
        factory_of: int [K], the factory that each stands in.
        samples: how many training samples each holds at a time.
        data_bits: D, bits of what a device holds at a time.
        cycles_per_bit, clock_hz, capacitance, transmit_w, receive_w, idle_w, compute_w: see
            :class:`~fedfloor.network.profile.Devices`.
        distance_m: metres to the base station, where the network knows them.
        seconds_per_sample: measured, where the network knows them.
        effort: (work, samples) → how many passes over them a visit computes as much as.
    """

    network: Network
    factory_of: NDArray[np.integer]
    samples: Floats
    data_bits: Floats
    cycles_per_bit: Floats
    clock_hz: Floats
    capacitance: Floats
    transmit_w: Floats
    receive_w: Floats
    idle_w: Floats
    compute_w: Floats
    distance_m: Floats | None = None
    seconds_per_sample: Floats | None = None
    effort: Callable[[Work, float], float] = trained

    @cached_property
    def pass_s(self) -> Floats:
        """Seconds of one pass over a device's data: y·D/f, or what was measured."""
        if self.seconds_per_sample is not None:
            return np.asarray(self.seconds_per_sample * self.samples)
        return np.asarray(self.cycles_per_bit * self.data_bits / self.clock_hz)

    @cached_property
    def pass_j(self) -> Floats:
        """Joules of one pass: (α/2)·y·D·f², or power times what was measured."""
        if self.seconds_per_sample is not None:
            return np.asarray(self.compute_w * self.pass_s)
        return np.asarray(self.capacitance / 2 * self.cycles_per_bit * self.data_bits * self.clock_hz**2)

    @cached_property
    def routes(self) -> Routes:
        """The links between sites; a route is worked out once."""
        return Routes(self.network, self.factory_of)

    @cached_property
    def lists(self) -> Lists:
        """The numbers that each visit needs, as Python's, which are quicker one by one."""
        arrays = (self.pass_s, self.pass_j, self.transmit_w, self.receive_w, self.idle_w, self.samples)
        return Lists(*(one.tolist() for one in arrays))

    @cached_property
    def received_w(self) -> Floats:
        """Mean received power, [K, levels]; empty without a radio."""
        if self.network.radio is None or self.distance_m is None:
            return np.zeros((len(self.samples), 0))
        return radio.received(self.network.radio, self.distance_m)

    def passes(self, device: int, work: Work) -> float:
        """Return how many passes over a device's data a visit computes as much as."""
        return self.effort(work, self.lists.samples[device])

    def cloud_s(self, work: Work) -> float:
        """Return the seconds of a visit to the cloud, which holds everybody's data; 0 where its clock is not known."""
        if self.network.cloud_clock_hz is None:
            return 0.0
        return (
            self.effort(work, float(self.samples.sum()))
            * float((self.cycles_per_bit * self.data_bits).sum())
            / self.network.cloud_clock_hz
        )


def sites(
    network: Network, seed: int, factory_of: NDArray[np.integer], samples: NDArray[np.int64], sample_bits: int
) -> Sites:
    """Draw what a network says of its devices.

    Args:
        network: one number for all devices, or a range of each quantity.
        seed: the draws are keyed by it and by the quantity; device k's does not depend on how many there are.
        factory_of: int [K].
        samples: int64 [K].
        sample_bits: bits of one sample as it is stored.

    Raises:
        SettingError: a device is out of the radio's reach.
    """
    count = len(samples)
    drawn = {name: _drawn(getattr(network.devices, name), seed, name, count) for name in DRAWN}
    bits = drawn.pop("data_bits")
    held = np.asarray(samples, np.float64)
    found = Sites(
        network=network, factory_of=factory_of, samples=held, data_bits=held * sample_bits if bits is None else bits,
        **drawn,  # type: ignore[arg-type]
    )  # fmt: skip
    if network.radio is not None and found.distance_m is not None:
        radio.check_reach(network.radio, radio.usable(network.radio, found.received_w), found.distance_m)
    return found


def _drawn(given: Number | None, seed: int, name: str, count: int) -> Floats | None:
    if given is None:
        return None
    if isinstance(given, tuple):
        return generator(seed, f"network {name}").uniform(given[0], given[1], count)
    return np.full(count, float(given))
