"""Which links a packet takes from one site to another, and how fast each is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.network.profile import Link, Network
from fedfloor.plan.nodes import CLOUD, Site, edge


@dataclass(frozen=True, slots=True)
class Hop:
    """One transfer of a route.

    Attributes:
        counter: link class and direction, such as ``"device_edge_up"``.
        resource: number of what it occupies while it lasts, or −1.
        s_per_byte: seconds a byte takes; 0 where the link does not limit.
        latency_s: added after it.
        sender, receiver: numbers of devices, or −1.
        device: the one of the two that is a device, the sender if both are, or −1.
        radio: whether interference decides how long it takes.
        cast: whether one transmission serves all receivers.
        to: where it leads.
        cell: the factory in which it takes place, or whose base station it leads to or from.
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
    """The routes over a park's network.

    Args:
        network: the links.
        factory_of: int [K], the factory of each device.
    """

    def __init__(self, network: Network, factory_of: NDArray[np.integer]) -> None:
        self.network = network
        self._cells: list[int] = factory_of.tolist()
        self._known: dict[tuple[int, int], Route] = {}  # by number: a Site's hash and equality are Python, and slow
        self._resources: dict[tuple[str, str, int], int] = {}

    def route(self, start: Site, end: Site) -> Route:
        """Return the hops from one site to another; none where they are the same."""
        a = start.index if start.kind == "device" else _number(start)
        b = end.index if end.kind == "device" else _number(end)
        found = self._known.get((a, b))
        if found is None:
            hops = tuple(self._hops(start, end))
            found = self._known[a, b] = Route(hops, any(hop.cast for hop in hops))
        return found

    def cell(self, site: Site) -> int:
        """Return the factory a site belongs to; the cloud's is −1."""
        if site.kind == "device":
            return self._cells[site.index]
        return site.index if site.kind == "edge" else -1

    def _hops(self, start: Site, end: Site) -> list[Hop]:
        if start == end:
            return []
        here, there = self.cell(start), self.cell(end)
        if start.kind == end.kind == "device" and here == there and self.network.device_device is not None:
            return [self._hop("device_device", "up", here, start, end)]
        stops = [start, *(self._out(start, end)), end]
        return [self._step(a, b) for a, b in pairwise(stops)]

    def _out(self, start: Site, end: Site) -> list[Site]:
        """Return the stops between two sites, on the tree cloud – edges – devices."""
        here, there = self.cell(start), self.cell(end)
        direct = self.network.route == "direct"
        if here == there:
            return [edge(here)] if start.kind == end.kind == "device" else []
        up = [edge(here)] if start.kind == "device" and not direct else []
        down = [edge(there)] if end.kind == "device" and not direct else []
        return up + ([CLOUD] if CLOUD not in (start, end) else []) + down

    def _step(self, start: Site, end: Site) -> Hop:
        lower = start if start.kind == "device" or (start.kind == "edge" and end == CLOUD) else end
        upper = end if lower is start else start
        link = "edge_cloud" if lower.kind == "edge" else "device_cloud" if upper == CLOUD else "device_edge"
        return self._hop(link, "up" if lower is start else "down", self.cell(lower), start, end)

    def _hop(self, name: str, way: str, cell: int, start: Site, end: Site) -> Hop:
        link: Link = getattr(self.network, name)
        rate = link.up_bps if way == "up" else link.down_bps
        radio = link.sharing == "sinr" and way == "up"
        free = rate is None or radio or link.sharing != "serial"
        sender = start.index if start.kind == "device" else -1
        receiver = end.index if end.kind == "device" else -1
        return Hop(
            f"{name}_{way}", -1 if free else self._resource(name, link, way, cell), 0.0 if rate is None else 8.0 / rate,
            link.latency_s, sender, receiver, sender if sender >= 0 else receiver, radio,
            way == "down" and link.downlink == "multicast", end, cell,
        )  # fmt: skip

    def _resource(self, name: str, link: Link, way: str, cell: int) -> int:
        place = (name, way if link.duplex == "full" else "", cell if link.over == "cell" else -1)
        return self._resources.setdefault(place, len(self._resources))


def _number(site: Site) -> int:
    """Return −1 for the cloud and −2, −3, … for edges: numbers that no device has."""
    return -1 if site.kind == "cloud" else -2 - site.index
