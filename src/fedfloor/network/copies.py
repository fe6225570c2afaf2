"""Copies of a packet go out: one by one, or in a transmission that serves several receivers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fedfloor.network.account import Account
from fedfloor.network.events import NEVER, Clock, Join, Process, Steps
from fedfloor.network.routes import Hop, Routes
from fedfloor.plan.nodes import CLOUD, Site

Target = tuple[int, Site]  # number of a child, and the first site it goes to
Then = Callable[[int, "PacketState", Process], Steps]  # what a child does once it stands there; returns when it ends


class PacketState(NamedTuple):
    """Where a packet is and since when.

    Attributes:
        time: seconds.
        site: where.
        size: its bytes, as it goes on from here.
        visit: number of the visit whose result it is, or −1.
        since: when the model set out for that visit, or, before one, when this copy set out; −1: not yet.
        held: the devices that hold it as it is.
        whole: where the whole model is, should it be a part that travels.
    """

    time: float
    site: Site
    size: int
    visit: int = -1
    since: float = -1.0
    held: frozenset[int] = frozenset()
    whole: Site = CLOUD


class Copies:
    """How the copies of one walk set out."""

    def __init__(self, clock: Clock, routes: Routes, spent: Account) -> None:
        self.clock, self.routes, self.spent = clock, routes, spent

    def fan(self, state: PacketState, targets: Sequence[Target], size: int, process: Process, then: Then) -> Steps:
        """Send copies to the children's first sites, let each go on from there, wait for the latest."""
        if not targets:
            return state.time
        join = Join(process)
        copy = state._replace(visit=-1, since=-1.0)  # no visit's result: the packet stays
        self._spread(copy, targets, size, join, then)
        yield None  # until they have ended
        return join.end

    def _spread(
        self,
        state: PacketState,
        targets: Iterable[Target],
        size: int,
        join: Join,
        then: Then,
        after: Process | None = None,
    ) -> None:
        """Start a process for each child, or for each transmission that serves several of them."""
        shared: dict[tuple[str | int, ...], tuple[Hop, list[Target]]] = {}
        route, here, held = self.routes.route, state.site, state.held
        for i, site in targets:
            way = route(here, site)
            if not way.cast or (site.kind == "device" and site.index in held):
                own = self._new(state.time, site, join, after)
                own.steps = then(i, state, own)
                continue
            hop = way.hops[0]  # one copy goes over it for all that it, or a later transmission, serves
            key = (hop.counter, hop.resource) if hop.cast else (hop.counter, hop.to.kind, hop.to.index)
            shared.setdefault(key, (hop, []))[1].append((i, site))
        for hop, group in shared.values():
            own = self._new(state.time, min((site for _, site in group), key=_order), join, after)
            own.steps = self._carry(state, hop, group, size, own, join, then)

    def _carry(
        self, state: PacketState, hop: Hop, group: Sequence[Target], size: int, own: Process, join: Join, then: Then
    ) -> Steps:
        """One transmission to several receivers; from each place it reaches they go on."""
        time = state.time
        if hop.resource >= 0 and time > self.clock.now:
            yield time
        time = self.spent.take(hop, time, size, own)
        since = state.since if state.since >= 0 else state.time
        heard = {hop.receiver}
        beyond: dict[int, tuple[Site, list[Target]]] = {}
        for i, site in group:
            to = self.routes.route(state.site, site).hops[0].to
            if to.kind != "device":
                beyond.setdefault(to.index, (to, []))[1].append((i, site))
                continue
            if site.index not in heard:
                heard.add(site.index)
                self.spent.hear(site.index, size * hop.s_per_byte)
            one = self._new(time, site, join, own)
            one.steps = then(i, PacketState(time, site, state.size, -1, since, state.held, state.whole), one)
        for place, there in beyond.values():
            self._spread(state._replace(time=time, site=place, since=since), there, size, join, then, own)
        return NEVER

    def _new(self, time: float, site: Site, join: Join, after: Process | None) -> Process:
        """Return a new process, which begins at ``time``; it goes on from ``after``."""
        own = Process(site.index if site.kind == "device" else -1, join)
        if after is not None:
            own.add(after)
        join.left += 1
        self.clock.at(time, own)
        return own


def _order(site: Site) -> int:
    return site.index if site.kind == "device" else -1
