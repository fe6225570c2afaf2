"""Networks: links, radio and devices; profiles in TOML files, and the ``[network]`` table that overrides them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedfloor.base.checking import checked, settle, toml
from fedfloor.base.errors import SettingError, require, unknown

FACTOR = 1000  # the greatest: a few devices are then a billion times slower than others


@dataclass(frozen=True)
class Spread:
    """Log-normal values of devices, median · factor^z with z standard normal: two of three are within one factor.

    Args:
        median: the median value.
        factor: the ratio of a value one standard deviation above the median to the median, at least 1.
    """

    median: float
    factor: float = 1.0


# one number for all devices, [low, high] for uniform draws, or { median, factor } for log-normal ones
Number = float | tuple[float, float] | Spread
LINKS = ("device_edge", "edge_cloud", "device_cloud", "device_device")


@dataclass(frozen=True)
class LinkClass:
    """A class of links; without a rate there is no limit: bytes count, but take no time.

    Args:
        up_bps, down_bps: bits per second towards the cloud, and away from it.
        latency_s: seconds added to each transfer, during which the link is free.
        sharing: ``serial``: one transfer at a time, first come first served; ``dedicated``: each has the whole rate;
            ``sinr``: uplinks interfere according to ``[radio]``, downlinks are dedicated.
        over: the scope of sharing of a serial link, and of interference of a ``sinr`` link: each factory's ``cell``, or
            the whole ``park``.
        duplex: whether uplink and downlink of a serial link take turns (``half``) or not (``full``).
        downlink: ``unicast``: a transfer per receiver; ``multicast``: one for all receivers of a cell; from the cloud
            one for the whole park, unless each cell has its own serial link.
        source: the source of the numbers.
    """

    up_bps: float | None = None
    down_bps: float | None = None
    latency_s: float = 0.0
    sharing: Literal["serial", "dedicated", "sinr"] = "dedicated"
    over: Literal["cell", "park"] = "cell"
    duplex: Literal["half", "full"] = "half"
    downlink: Literal["unicast", "multicast"] = "unicast"
    source: str = ""


@dataclass(frozen=True)
class Devices:
    """Properties of devices: one number for all devices, or a random value per device.

    Random values are uniform in [low, high], or log-normal with { median = m, factor = s }: :class:`Spread`.

    A visit takes cycles_per_bit · bits · passes / clock_hz seconds and (capacitance/2) · cycles · clock_hz² joules.

    Args:
        cycles_per_bit: y, processor cycles per bit of training data; 0: training takes no time.
        clock_hz: f, cycles per second.
        data_bits: bits of a device's data; default: its samples as stored.
        distance_m: d, metres to the base station, for ``sinr``.
        capacitance: α, effective switched capacitance in farad.
        transmit_w, receive_w, idle_w: power in W while sending, receiving, and otherwise without training. ``sinr``
            links use the allocated power for sending.
        seconds_per_sample: measured time instead of cycles and clock; the energy of training is then its product with
            ``compute_w``.
        compute_w: power in W while training, with ``seconds_per_sample``.
        seconds_per_visit: duration of a visit without training and transfers: starting the agent, encoding and checking
            models.
        source: the source of the numbers.
    """

    cycles_per_bit: Number = 0.0
    clock_hz: Number = 1e9
    data_bits: Number | None = None
    distance_m: Number | None = None
    capacitance: Number = 0.0
    transmit_w: Number = 0.0
    receive_w: Number = 0.0
    idle_w: Number = 0.0
    seconds_per_sample: Number | None = None
    compute_w: Number = 0.0
    seconds_per_visit: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.name != "source"):
            given = getattr(self, name)
            positive = name in ("clock_hz", "data_bits", "distance_m", "seconds_per_sample")
            if isinstance(given, Spread):
                fits = 0 < given.median < math.inf and 1 <= given.factor <= FACTOR
                wanted = f"a median above 0 and a factor from 1 to {FACTOR}"
                _require(fits, f"devices.{name}", [given.median, given.factor], wanted)
                continue
            low, high = given if isinstance(given, tuple) else (given, given)
            ok = given is None or (low <= high < math.inf and (low > 0 if positive else low >= 0))
            bounds = "above 0, or [low, high] with 0 < low" if positive else "at least 0, or [low, high] with 0 <= low"
            _require(ok, f"devices.{name}", given, f"{bounds} <= high")


@dataclass(frozen=True)
class RadioModel:
    """The interference model of a cell's uplink (RaFed, Eqs. 7-11).

    Args:
        channels: C, numbered from 0.
        powers_dbm: the possible transmit powers, ascending.
        bandwidth_hz: B, bandwidth of a channel.
        noise_dbm_per_mhz: power spectral density of the noise.
        carrier_hz: f_c.
        path_loss_exponent: α.
        path_loss: the interpretation of Eq. 11; ``"A"``: a = v/(4π f_c d^α), as printed; ``"B"``: a = (v/(4π f_c d))^α,
            as in the cited papers.
        threshold: γ, the smallest ratio of signal to interference and noise at which a packet is received.
        reception: ``"mean"``: Eq. 10, interferers' gains at their mean; ``"exact"``: averaged over their fading.
        attempts: largest number of transmissions of a packet, after which the update is lost.
        outage: ζ, the bound of Eq. 9 on the probability of a signal below γ without interference; other power levels
            are not usable. Default: no bound.
        payload_nats: D_up, the size of a packet regardless of the model; default: its true size.
        iterations_scale, iterations_offset: μ and λ of Eq. 12, iterations n(k) = μ(λ + 1/k) with k active devices.
        source: the source of the numbers.
    """

    channels: int = 4
    powers_dbm: tuple[float, ...] = tuple(float(p) for p in range(21))
    bandwidth_hz: float = 250e3
    noise_dbm_per_mhz: float = -114.0
    carrier_hz: float = 868e6
    path_loss_exponent: float = 3.76
    path_loss: Literal["A", "B"] = "A"
    threshold: float = 1.0
    reception: Literal["mean", "exact"] = "mean"
    attempts: int = 8
    outage: float | None = None
    payload_nats: float | None = None
    iterations_scale: float = 89.154
    iterations_offset: float = 0.00934
    source: str = ""

    def __post_init__(self) -> None:
        _require(self.channels >= 1, "radio.channels", self.channels, "a whole number of at least 1")
        _require(self.attempts >= 1, "radio.attempts", self.attempts, "a whole number of at least 1")
        for name in ("bandwidth_hz", "carrier_hz", "path_loss_exponent", "threshold", "payload_nats"):
            given = getattr(self, name)
            _require(given is None or 0 < given < math.inf, f"radio.{name}", given, "above 0")
        powers = self.powers_dbm
        rising = bool(powers) and list(powers) == sorted(set(powers)) and all(map(math.isfinite, powers))
        _require(rising, "radio.powers_dbm", powers, "ascending powers in dBm")
        noise = self.noise_dbm_per_mhz
        _require(math.isfinite(noise), "radio.noise_dbm_per_mhz", noise, "a power in dBm")
        share = self.outage
        _require(share is None or 0 < share < 1, "radio.outage", share, "a chance, above 0 and below 1")
        _require(self.iterations_scale > 0, "radio.iterations_scale", self.iterations_scale, "above 0")
        _require(self.iterations_offset >= 0, "radio.iterations_offset", self.iterations_offset, "at least 0")


@dataclass(frozen=True)
class NetworkProfile:
    """A network on which plans are priced.

    Args:
        name: name of the profile.
        about: description in one sentence.
        route: the route of devices to the cloud: ``via_edge``, or ``direct`` over ``device_cloud``.
        device_edge, edge_cloud, device_cloud, device_device: the links; without ``device_device``, the base station
            relays between devices of a factory.
        devices: properties of the devices.
        radio: required if a link's sharing is ``sinr``.
        cloud_clock_hz: clock rate of the cloud for training; default: its training takes no time.
    """

    name: str = ""
    about: str = ""
    route: Literal["via_edge", "direct"] = "via_edge"
    device_edge: LinkClass = field(default_factory=LinkClass)
    edge_cloud: LinkClass = field(default_factory=LinkClass)
    device_cloud: LinkClass | None = None
    device_device: LinkClass | None = None
    devices: Devices = field(default_factory=Devices)
    radio: RadioModel | None = None
    cloud_clock_hz: float | None = None

    def __post_init__(self) -> None:
        if self.route == "direct" and self.device_cloud is None:
            raise SettingError(
                "network.route = 'direct' needs a [network.device_cloud] table with the rates of that link."
            )
        for name, link in self.links().items():
            for key in ("up_bps", "down_bps"):
                rate = getattr(link, key)
                ok = rate is None or 0 < rate < math.inf
                _require(ok, f"{name}.{key}", rate, "above 0, in bits per second, or left out: no limit")
            _require(0 <= link.latency_s < math.inf, f"{name}.latency_s", link.latency_s, "seconds, at least 0")
            if link.sharing == "serial" and link.up_bps is None and link.down_bps is None:
                need = "transfers that take turns need up_bps or down_bps"
                raise SettingError(f"network.{name}.sharing = 'serial': {need}.")
            if link.sharing != "sinr":
                continue
            if name == "device_edge" and self.route == "direct":
                raise SettingError(
                    "network.device_edge.sharing = 'sinr': with route = 'direct' devices send on device_cloud; make "
                    "that link 'sinr' and this one 'serial' or 'dedicated'."
                )
            if name not in ("device_edge", "device_cloud"):
                raise SettingError(f"network.{name}.sharing = 'sinr': only device_edge and device_cloud can interfere.")
            if self.radio is None or self.devices.distance_m is None:
                lacks = "[network.radio]" if self.radio is None else "[network.devices] distance_m, metres"
                raise SettingError(f"network.{name}.sharing = 'sinr' needs {lacks}. Profile 'rafed' has both.")
        clock = self.cloud_clock_hz
        _require(clock is None or 0 < clock < math.inf, "cloud_clock_hz", clock, "cycles per second, above 0")

    def links(self) -> Mapping[str, LinkClass]:
        """Return the links by class."""
        return {name: link for name in LINKS if (link := getattr(self, name)) is not None}

    @property
    def uplink(self) -> LinkClass:
        """The link over which devices send."""
        return self.device_cloud if self.route == "direct" and self.device_cloud else self.device_edge


def _require(ok: bool, key: str, got: object, allowed: str) -> None:
    require(ok, f"network.{key}", got, allowed)


FOLDER = Path(__file__).parent / "profiles"


@dataclass(frozen=True)
class NetworkSettings:
    """The ``[network]`` table. Without a profile runs are not priced.

    Args:
        profile: name of a profile, or path of a TOML file.
        route, cloud_clock_hz: values that replace the profile's.
        device_edge, edge_cloud, device_cloud, device_device, devices, radio: keys that replace the profile's.
    """

    profile: str | None = None
    _: KW_ONLY
    route: str | None = None
    device_edge: Mapping[str, Any] | None = None
    edge_cloud: Mapping[str, Any] | None = None
    device_cloud: Mapping[str, Any] | None = None
    device_device: Mapping[str, Any] | None = None
    devices: Mapping[str, Any] | None = None
    radio: Mapping[str, Any] | None = None
    cloud_clock_hz: float | None = None

    def __post_init__(self) -> None:
        settle(self, "network")

    @cached_property
    def built(self) -> NetworkProfile | None:
        """The network, which is built once; None without one. See :func:`build`."""
        return build(self)

    def changes(self) -> dict[str, Any]:
        """Return the entries other than the profile."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "profile"}
        return {name: value for name, value in own.items() if value is not None}


def profiles() -> dict[str, Path]:
    """Return name → path of the package's profiles."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def build(settings: NetworkSettings) -> NetworkProfile | None:
    """Return the network of an experiment, or None without one.

    Raises:
        SettingError: a profile, file or key is unknown, or a value is out of range; the message names the file.
    """
    changes = settings.changes()
    if settings.profile is None and not changes:
        return None
    base: dict[str, Any] = {} if settings.profile is None else read_tables(settings.profile)
    try:
        return from_table(merged(base, changes))
    except SettingError as error:
        if settings.profile in (None, *profiles()):
            raise
        if changes:
            build(NetworkSettings(settings.profile))  # raises the error of the file if that is invalid by itself
            raise
        raise SettingError(f"network.profile: {settings.profile}: {error}", key=error.key) from error


def read_tables(profile: str) -> dict[str, Any]:
    """Return a profile's tables.

    Raises:
        SettingError: the name is unknown, or the file is missing or not TOML.
    """
    known = profiles()
    path = known.get(profile, Path(profile))
    if profile not in known and not profile.endswith(".toml"):
        raise SettingError(f"network.profile: {unknown('network profile', profile, known)}")
    return {"name": path.stem} | toml(path, "network.profile:")


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with the keys of other ones replaced.

    >>> merged({"radio": {"channels": 4, "attempts": 8}}, {"radio": {"channels": 1}})
    {'radio': {'channels': 1, 'attempts': 8}}
    """
    both = dict(base)
    for name, value in changes.items():
        below = both.get(name)
        both[name] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return both


def from_table(table: dict[str, Any]) -> NetworkProfile:
    """Return a network from its tables.

    Raises:
        SettingError: a key is unknown, a type is wrong, or a value is out of range.
    """
    return checked(NetworkProfile, table, "network")
