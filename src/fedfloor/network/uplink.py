"""The allocation problem of a park's radio uplink, and what each device's transfers take alone on the links."""

from __future__ import annotations

import numpy as np

from fedfloor.network import radio
from fedfloor.network.radio import Floats
from fedfloor.network.sites import Sites
from fedfloor.plan.nodes import CLOUD, device
from fedfloor.solvers.allocation.problem import AllocationProblem


def problem(sites: Sites, payload_bytes: float) -> AllocationProblem | None:
    """Return who could upload on which channel with how much power, or None where the uplink is no radio.

    Args:
        sites: the devices; a visit is one pass over a device's data.
        payload_bytes: size of a packet, where the radio does not fix it.
    """
    physics = sites.network.radio
    if sites.network.uplink.sharing != "sinr" or physics is None:
        return None
    return AllocationProblem(
        compute_s=sites.pass_s,
        airtime_s=radio.airtime_s(physics, sites.received_w, payload_bytes),
        received_w=sites.received_w,
        noise_w=radio.noise_w(physics),
        threshold=physics.threshold,
        channels=physics.channels,
        reception=physics.reception,
        iterations_scale=physics.iterations_scale,
        iterations_offset=physics.iterations_offset,
        usable=radio.usable(physics, sites.received_w),
    )


def alone_s(sites: Sites, payload_bytes: float) -> tuple[Floats, Floats]:
    """Return the seconds that a packet takes from the cloud to each device and back, nobody else being served.

    Args:
        sites: the devices.
        payload_bytes: size of the packet.

    Returns:
        download and upload, float64 [K] each; over a radio once, at full power.
    """
    physics, count = sites.network.radio, len(sites.samples)
    ways = np.zeros((2, count))
    clear = None if physics is None else radio.airtime_s(physics, sites.received_w, payload_bytes)
    for k in range(count):
        there = device(k)
        for way, route in enumerate((sites.routes.route(CLOUD, there), sites.routes.route(there, CLOUD))):
            for hop in route.hops:
                on_air = hop.radio and clear is not None
                ways[way, k] += clear[k, -1] if on_air else payload_bytes * hop.s_per_byte  # type: ignore[index]
                ways[way, k] += hop.latency_s
    return ways[0], ways[1]
