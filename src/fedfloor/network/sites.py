"""The devices of a park on a network: their routes, speeds and powers, and the radio of their uplink."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.network import radio
from fedfloor.network.profile import LinkClass, NetworkProfile, Number, RadioModel, Spread
from fedfloor.network.radio import Floats
from fedfloor.plan import nodes
from fedfloor.plan.nodes import CLOUD, Site, Train, Work, device, edge, forward_cost
from fedfloor.solvers.allocation.problem import AllocationProblem


@dataclass(frozen=True, slots=True)
class Hop:
    """One transfer of a route.

    Attributes:
        counter: link class and direction, such as ``"device_edge_up"``.
        resource: number of the occupied resource, or −1.
        s_per_byte: seconds per byte; 0 without a limit.
        latency_s: seconds added after the transfer.
        sender, receiver: numbers of devices, or −1.
        device: number of its device, the sender if both ends are devices, or −1.
        radio: whether its duration depends on interference.
        cast: whether one transmission serves all receivers.
        to: the receiving site.
        cell: the factory of the hop, or of the base station at one of its ends.
    """

    counter: str
    resource: int
    s_per_byte: float
    latency_s: float
    sender: int
    receiver: int
    device: int
    radio: bool
    cast: bool
    to: Site
    cell: int


class Route(NamedTuple):
    """The hops from one site to another, and whether any of them serves several receivers at once."""

    hops: tuple[Hop, ...]
    cast: bool


class Routes:
    """The routes over a park's network; ``factory_of`` [K] is the factory of each device."""

    def __init__(self, network: NetworkProfile, factory_of: NDArray[np.integer]) -> None:
        self.network = network
        self._cells: list[int] = factory_of.tolist()
        self._known: dict[tuple[int, int], Route] = {}  # by number, as hash and equality of a Site are slow
        self._resources: dict[tuple[str, str, int], int] = {}

    def route(self, start: Site, end: Site) -> Route:
        """Return the hops from one site to another; empty if they are the same."""
        a = start.index if start.kind == "device" else _number(start)
        b = end.index if end.kind == "device" else _number(end)
        route = self._known.get((a, b))
        if route is None:
            hops = self._hops(start, end) if start != end else ()
            route = self._known[a, b] = Route(hops, any(hop.cast for hop in hops))
        return route

    def cell(self, site: Site) -> int:
        """Return the factory of a site; the cloud's is −1."""
        if site.kind == "device":
            return self._cells[site.index]
        return site.index if site.kind == "edge" else -1

    def _hops(self, start: Site, end: Site) -> tuple[Hop, ...]:
        """Return the hops between two sites in the tree cloud – edges – devices."""
        first, last = self.cell(start), self.cell(end)
        if first == last:
            both = start.kind == end.kind == "device"
            if both and self.network.device_device is not None:
                return (self._hop("device_device", "up", first, start, end),)
            between = [edge(first)] if both else []
        else:
            direct = self.network.route == "direct"
            between = [edge(first)] if start.kind == "device" and not direct else []
            between += [CLOUD] if CLOUD not in (start, end) else []
            between += [edge(last)] if end.kind == "device" and not direct else []
        hops = []
        for a, b in pairwise([start, *between, end]):
            lower, upper = (a, b) if a.kind == "device" or (a.kind == "edge" and b == CLOUD) else (b, a)
            link = "edge_cloud" if lower.kind == "edge" else "device_cloud" if upper == CLOUD else "device_edge"
            hops.append(self._hop(link, "up" if lower is a else "down", self.cell(lower), a, b))
        return tuple(hops)

    def _hop(self, name: str, way: str, cell: int, start: Site, end: Site) -> Hop:
        link: LinkClass = getattr(self.network, name)
        rate = link.up_bps if way == "up" else link.down_bps
        radio = link.sharing == "sinr" and way == "up"
        free = rate is None or radio or link.sharing != "serial"
        sender = start.index if start.kind == "device" else -1
        receiver = end.index if end.kind == "device" else -1
        shared = (name, way if link.duplex == "full" else "", cell if link.over == "cell" else -1)
        return Hop(
            f"{name}_{way}", -1 if free else self._resources.setdefault(shared, len(self._resources)),
            0.0 if rate is None else 8.0 / rate, link.latency_s, sender, receiver,
            sender if sender >= 0 else receiver, radio, way == "down" and link.downlink == "multicast", end, cell,
        )  # fmt: skip


def _number(site: Site) -> int:
    """Return a site's number: −1 for the cloud, −2, −3, … for edges, and a device's own number."""
    return -1 if site.kind == "cloud" else -2 - site.index


DRAWN = ("cycles_per_bit", "clock_hz", "data_bits", "distance_m", "capacitance", "transmit_w", "receive_w", "idle_w",
         "seconds_per_sample", "compute_w")  # fmt: skip


def equivalent_passes(work: Work, samples: float) -> float:
    """Return the computation of a visit as a number of passes over ``samples``.

    For the whole model this is the number of epochs, or steps · batch size / samples. For the classifier alone it is
    one forward pass through the data of the visit, as the features are fixed; training on features is neglected (the
    classifier has 0.1 % of the parameters of HFedMS's network).
    """
    passes = work.passes(samples)
    return forward_cost(passes) if work.borrows else passes


class Lists(NamedTuple):
    """Python numbers per device: seconds and joules of a pass over its data, its powers in W, its number of samples."""

    pass_s: list[float]
    pass_j: list[float]
    transmit_w: list[float]
    receive_w: list[float]
    idle_w: list[float]
    samples: list[float]


@dataclass(frozen=True, eq=False)
class Sites:
    """K devices on a network; every array is float64 [K] unless stated otherwise.

    Args:
        network: the links, and the radio.
        factory_of: int [K], the factory of each device.
        samples: number of training samples of each device at a time.
        data_bits: D, bits of a device's data at a time.
        cycles_per_bit, clock_hz, capacitance, transmit_w, receive_w, idle_w, compute_w: see
            :class:`~fedfloor.network.profile.Devices`.
        distance_m: metres to the base station; None if the network does not define it.
        seconds_per_sample: measured time; None if the network does not define it.
        effort: (work, samples) → computation of a visit as a number of passes over the samples.
    """

    network: NetworkProfile
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
    effort: Callable[[Work, float], float] = equivalent_passes

    @cached_property
    def pass_s(self) -> Floats:
        """Seconds of a pass over each device's data: y·D/f, or measured."""
        if self.seconds_per_sample is not None:
            return np.asarray(self.seconds_per_sample * self.samples)
        return np.asarray(self.cycles_per_bit * self.data_bits / self.clock_hz)

    @cached_property
    def pass_j(self) -> Floats:
        """Joules of a pass over each device's data: (α/2)·y·D·f², or power times the measured seconds."""
        if self.seconds_per_sample is not None:
            return np.asarray(self.compute_w * self.pass_s)
        return np.asarray(self.capacitance / 2 * self.cycles_per_bit * self.data_bits * self.clock_hz**2)

    @cached_property
    def routes(self) -> Routes:
        """The routes between sites, each computed once."""
        return Routes(self.network, self.factory_of)

    @cached_property
    def lists(self) -> Lists:
        """The values that each visit needs as Python numbers, which are faster to access one by one."""
        arrays = (self.pass_s, self.pass_j, self.transmit_w, self.receive_w, self.idle_w, self.samples)
        return Lists(*(values.tolist() for values in arrays))

    @cached_property
    def received_w(self) -> Floats:
        """Mean received power in W, [K, levels]; empty without a radio."""
        if self.network.radio is None or self.distance_m is None:
            return np.zeros((len(self.samples), 0))
        return radio.received(self.network.radio, self.distance_m)

    def passes(self, device: int, work: Work) -> float:
        """Return the computation of a visit as a number of passes over the device's data."""
        return self.effort(work, self.lists.samples[device])

    def cloud_s(self, work: Work) -> float:
        """Return the seconds of a visit to the cloud, which holds all data; 0 if its clock rate is unknown."""
        if self.network.cloud_clock_hz is None:
            return 0.0
        pass_cycles = float((self.cycles_per_bit * self.data_bits).sum())
        return self.effort(work, float(self.samples.sum())) * pass_cycles / self.network.cloud_clock_hz


def draw_sites(
    network: NetworkProfile, seed: int, factory_of: NDArray[np.integer], samples: NDArray[np.int64], sample_bits: int
) -> Sites:
    """Return devices with properties drawn from a network's ranges, independently of the number of devices.

    Args:
        seed: key of the draws, together with the name of the property.
        sample_bits: bits of a stored sample.

    Raises:
        SettingError: a device is out of the radio's reach.
    """
    drawn: dict[str, Floats | None] = {}
    for name in DRAWN:
        given: Number | None = getattr(network.devices, name)
        if isinstance(given, tuple):
            drawn[name] = generator(seed, f"network {name}").uniform(given[0], given[1], len(samples))
        elif isinstance(given, Spread):
            z = generator(seed, f"network {name}").standard_normal(len(samples))
            drawn[name] = given.median * given.factor**z
        else:
            drawn[name] = None if given is None else np.full(len(samples), float(given))
    bits = drawn.pop("data_bits")
    held = np.asarray(samples, np.float64)
    placed = Sites(
        network=network, factory_of=factory_of, samples=held, data_bits=held * sample_bits if bits is None else bits,
        **drawn,  # type: ignore[arg-type]
    )  # fmt: skip
    if network.radio is not None and placed.distance_m is not None:
        radio.check_reach(network.radio, radio.usable(network.radio, placed.received_w), placed.distance_m)
    return placed


def allocation_problem(sites: Sites, payload_bytes: float) -> AllocationProblem | None:
    """Return the allocation problem of a park's radio uplink, or None if the uplink is not a radio.

    A visit is one pass over a device's data; ``payload_bytes`` is a packet's size, unless the radio sets it.
    """
    physics = sites.network.radio
    if sites.network.uplink.sharing != "sinr" or physics is None:
        return None
    return AllocationProblem(
        compute_s=sites.pass_s, airtime_s=radio.airtime_s(physics, sites.received_w, payload_bytes),
        received_w=sites.received_w, noise_w=radio.noise_w(physics), threshold=physics.threshold,
        channels=physics.channels, reception=physics.reception, iterations_scale=physics.iterations_scale,
        iterations_offset=physics.iterations_offset, usable=radio.usable(physics, sites.received_w),
    )  # fmt: skip


def transfer_s_alone(sites: Sites, payload_bytes: float) -> tuple[Floats, Floats]:
    """Return the seconds [K] of a packet to each device and back on idle links, by radio at full power."""
    physics = sites.network.radio
    ways = np.zeros((2, len(sites.samples)))
    clear = None if physics is None else radio.airtime_s(physics, sites.received_w, payload_bytes)
    for k in range(len(sites.samples)):
        site = device(k)
        for way, route in enumerate((sites.routes.route(CLOUD, site), sites.routes.route(site, CLOUD))):
            for hop in route.hops:
                on_air = hop.radio and clear is not None
                ways[way, k] += clear[k, -1] if on_air else payload_bytes * hop.s_per_byte  # type: ignore[index]
                ways[way, k] += hop.latency_s
    return ways[0], ways[1]


VisitPlace = tuple[int, int, int, int]  # round, tick, device, visit


class Transmission(NamedTuple):
    """The transmission of a visit's result: seconds of an attempt, attempts, power, and whether it is lost."""

    airtime_s: float
    attempts: int
    watt: float
    lost: bool


class RadioUplink:
    """The radio uplink of a park, which transmits the results of visits.

    A visit interferes with the visits at the same place in the other branches of its ``Parallel`` on the same channel
    and in the same cell (or in the park, if it shares the link): they count as sending for its whole transmission, as
    in RaFed's Eq. 10. A packet is repeated until it is received, with probability q each time, and given up after
    ``radio.attempts``. Every visit's result counts as sent by radio, even if the packet stays at the device for its
    next visit or is forwarded over a link of another class.
    """

    def __init__(self, sites: Sites, model: RadioModel, seed: int) -> None:
        self.sites = sites
        self.radio = model
        self.seed = seed
        full_w = float(radio.watts(model.powers_dbm[-1]))
        self.gain: list[float] = (sites.received_w[:, -1] / full_w).tolist()
        self._drawn: dict[tuple[int, int], nodes.Radio] = {}
        whole_park = sites.network.uplink.over == "park" or sites.network.route == "direct"
        self.cells = [0] * len(sites.samples) if whole_park else sites.factory_of.tolist()

    def given(self, visit: Train, round_number: int) -> nodes.Radio:
        """Return the channel and power of a visit from the plan, or a channel drawn for the round and full power."""
        if visit.radio is not None:
            return visit.radio
        place = (round_number, visit.site.index)
        if place not in self._drawn:  # called for every concurrent visit
            if len(self._drawn) >= len(self.gain):
                self._drawn.clear()
            channel = int(generator(self.seed, "channel", *place).integers(self.radio.channels))
            self._drawn[place] = nodes.Radio(channel, self.radio.powers_dbm[-1])
        return self._drawn[place]

    def signal_w(self, device: int, power_dbm: float) -> float:
        """Return the mean received power in W of a device that sends with a given power."""
        return self.gain[device] * math.pow(10.0, (power_dbm - 30.0) / 10.0)  # arrays of a single number are slow

    def send(
        self, visit: Train, concurrent: Sequence[Train], place: VisitPlace, payload_bytes: float, share: float = 1.0
    ) -> Transmission:
        """Return the transmission of a visit's result.

        Args:
            concurrent: the visits at the same place in the other branches.
            place: (round, tick, device, visit), the key of the number of attempts.
            share: ratio of the payload after codecs.
        """
        mine = self.given(visit, place[0])
        cell = self.cells[visit.site.index]
        near = [v for v in concurrent if v.site.kind == "device" and self.cells[v.site.index] == cell]
        others = [(v.site.index, self.given(v, place[0])) for v in near]
        signal = self.signal_w(visit.site.index, mine.power_dbm)
        noise = [self.signal_w(k, their.power_dbm) for k, their in others if their.channel == mine.channel]
        chance = radio.reception(self.radio, signal, np.array(noise))
        seconds = share * float(radio.airtime_s(self.radio, np.array(signal), payload_bytes))
        # the number of transmissions n has P(n) = q(1 − q)^(n−1), truncated at the limit
        attempts = 1
        lost = False
        limit = self.radio.attempts
        u = float(generator(self.seed, "air", *place).random())
        if chance <= 0 or (chance < 1 and u >= 1 - (1 - chance) ** limit):  # P(n <= limit) = 1 − (1 − q)^limit
            attempts = limit
            lost = True
        elif chance < 1:
            attempts = min(limit, max(1, math.ceil(math.log1p(-u) / math.log1p(-chance))))
        return Transmission(seconds, attempts, float(radio.watts(mine.power_dbm)), lost)

    def clear(self, device: int, payload_bytes: float) -> Transmission:
        """Return the single transmission of anything other than a visit's result, without interference at full power.

        Its size is ``payload_bytes``, regardless of ``payload_nats``.
        """
        power = self.radio.powers_dbm[-1]
        model = replace(self.radio, payload_nats=None)
        seconds = float(radio.airtime_s(model, np.array(self.signal_w(device, power)), payload_bytes))
        return Transmission(seconds, 1, float(radio.watts(power)), lost=False)

    def lost(self, visit: Train, concurrent: Sequence[Train], place: VisitPlace) -> bool:
        """Return whether a visit's result is lost, which does not depend on the packet's size."""
        return self.send(visit, concurrent, place, 1.0).lost


def radio_uplink(sites: Sites | None, seed: int) -> RadioUplink | None:
    """Return the radio of a park's uplink, or None if the uplink is not a radio."""
    if sites is None or sites.network.radio is None or sites.network.uplink.sharing != "sinr":
        return None
    return RadioUplink(sites, sites.network.radio, seed)
