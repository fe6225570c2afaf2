"""Uploads that interfere: who sends on whose channel, how often a packet is sent, and whether it is given up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedfloor.chance import generator
from fedfloor.network import radio as physics
from fedfloor.network.profile import Radio
from fedfloor.network.sites import Sites
from fedfloor.plan import nodes
from fedfloor.plan.nodes import Train

VisitPlace = tuple[int, int, int, int]  # round, tick, device, visit


class Sent(NamedTuple):
    """How a visit's result is sent: seconds of one transmission, how many, with how much power, and if in vain."""

    airtime_s: float
    attempts: int
    watt: float
    lost: bool


class Air:
    """The radio of a park's uplink, over which the results of visits go.

    A visit interferes with those that stand at the same place in the other branches of its ``Parallel``, on the same
    channel, in the same cell (or anywhere, where the link is shared over the park): all of them are taken to be on the
    air for as long as it is, as in RaFed's Eq. 10. A packet is sent until it is received, with chance q each time, and
    given up after ``radio.attempts``. Every visit's result is taken to go over the air, even where the packet stays at
    the device for its next visit or goes on over a link of another class.

    Args:
        sites: the devices.
        radio: that of their network.
        seed: chance is keyed by it.
    """

    def __init__(self, sites: Sites, radio: Radio, seed: int) -> None:
        self.sites, self.radio, self.seed = sites, radio, seed
        full_w = float(physics.watts(radio.powers_dbm[-1]))
        self.gain: list[float] = (sites.received_w[:, -1] / full_w).tolist()
        self._drawn: dict[tuple[int, int], nodes.Radio] = {}
        one = sites.network.uplink.over == "park" or sites.network.route == "direct"
        self.cells = [0] * len(sites.samples) if one else sites.factory_of.tolist()

    def given(self, visit: Train, round_number: int) -> nodes.Radio:
        """Return the channel and power of a visit: the plan's; or a channel drawn for the round and all the power."""
        if visit.radio is not None:
            return visit.radio
        place = (round_number, visit.site.index)
        if place not in self._drawn:  # everybody beside a visit is asked for theirs
            if len(self._drawn) >= len(self.gain):
                self._drawn.clear()
            channel = int(generator(self.seed, "channel", *place).integers(self.radio.channels))
            self._drawn[place] = nodes.Radio(channel, self.radio.powers_dbm[-1])
        return self._drawn[place]

    def signal_w(self, device: int, power_dbm: float) -> float:
        """Return the mean received power of a device that sends with so much power."""
        return self.gain[device] * math.pow(10.0, (power_dbm - 30.0) / 10.0)  # arrays of one number are slow

    def send(self, visit: Train, concurrent: Sequence[Train], place: VisitPlace, payload_bytes: float) -> Sent:
        """Say how a visit's result is sent.

        Args:
            visit: whose result.
            concurrent: the visits that stand at its place in the other branches.
            place: (round, tick, device, visit), which keys how often it is sent.
            payload_bytes: size of the packet.
        """
        mine = self.given(visit, place[0])
        cell = self.cells[visit.site.index]
        near = [one for one in concurrent if one.site.kind == "device" and self.cells[one.site.index] == cell]
        others = [(one.site.index, self.given(one, place[0])) for one in near]
        signal = self.signal_w(visit.site.index, mine.power_dbm)
        noise = [self.signal_w(k, their.power_dbm) for k, their in others if their.channel == mine.channel]
        chance = physics.reception(self.radio, signal, np.array(noise))
        attempts, lost = self._attempts(chance, place)
        one = float(physics.airtime_s(self.radio, np.array(signal), payload_bytes))
        return Sent(one, attempts, float(physics.watts(mine.power_dbm)), lost)

    def clear(self, device: int, payload_bytes: float) -> Sent:
        """Say how a device sends something else than a visit's result: once, on a channel of its own, at full power.

        Its size is the one given here, whatever ``payload_nats`` says of results.
        """
        power = self.radio.powers_dbm[-1]
        radio = replace(self.radio, payload_nats=None)
        one = float(physics.airtime_s(radio, np.array(self.signal_w(device, power)), payload_bytes))
        return Sent(one, 1, float(physics.watts(power)), lost=False)

    def lost(self, visit: Train, concurrent: Sequence[Train], place: VisitPlace) -> bool:
        """Return whether a visit's result is given up; it does not depend on the packet's size."""
        return self.send(visit, concurrent, place, 1.0).lost

    def _attempts(self, chance: float, place: VisitPlace) -> tuple[int, bool]:
        """Draw the number of transmissions, P(n) = q(1 − q)^(n−1), cut at the limit."""
        most = self.radio.attempts
        u = float(generator(self.seed, "air", *place).random())
        if chance >= 1:
            return 1, False
        if chance <= 0 or u >= 1 - (1 - chance) ** most:  # P(n <= limit) = 1 − (1 − q)^limit
            return most, True
        return min(most, max(1, math.ceil(math.log1p(-u) / math.log1p(-chance)))), False


def over(sites: Sites | None, seed: int) -> Air | None:
    """Return the air that a park's results go through, or None where its uplink is no radio."""
    if sites is None or sites.network.radio is None or sites.network.uplink.sharing != "sinr":
        return None
    return Air(sites, sites.network.radio, seed)
