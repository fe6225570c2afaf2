"""The four stages of a secure sum between devices and a server: :mod:`fedfloor.parts.masking` in messages.

The server is the edge of a factory, or the cloud for a sum across factories, whose stages the edges relay.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedfloor import ranges
from fedfloor.chance import secret
from fedfloor.engine import travel
from fedfloor.engine.summing import GroupSum, SecureAggregation, device_noise
from fedfloor.engine.team import Blob
from fedfloor.models.network import Network
from fedfloor.parts import masking, mix
from fedfloor.parts.codecs import SecureSum
from fedfloor.parts.discrete import discrete_gaussian
from fedfloor.parts.masking import KEY_BYTES, SEALED_BYTES, DeviceKeys, FixedPoint, LostSumError, PublicKeys
from fedfloor.plan.nodes import Scalar, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.ranges import RefusedError

log = logging.getLogger(__name__)

T = TypeVar("T")
STAGES = ("sum-keys", "sum-shares", "sum-unmask")  # requests in addition to the visit
MOST_FRACTION = 128  # most bits after or before the binary point
MOST_SETTINGS = 16  # most settings of a mixing rule
Spec = tuple[str, Mapping[str, Scalar]]  # a mixing rule's name and settings
StageRequest = Callable[[str, Mapping[int, Mapping[str, Any]]], Mapping[int, Any]]  # (stage, device → about) → answers
Refuse = Callable[[int, str, RefusedError], None]


def common(network: Network, work: Work, arrived: Tensor, rule: Spec, fraction: int, devices: int) -> bytes:
    """Return a digest of the inputs that must be the same for all devices of a sum.

    An edge could send all devices but one a model, rate, weight or unit with which their changes are zero, and so
    obtain the change of the last device from the sum (Pasquini, Francati, Ateniese, CCS 2022). Pairwise masks
    therefore depend on this digest.

    Args:
        arrived: the received model; personal tensors are left out.
        rule: the mixing rule that weights the devices.
        fraction: bits after the binary point.
        devices: number of devices that are to take part.
    """
    model = arrived if work.borrows else travel.up(network, work).cut(arrived)
    about = json.dumps([{**asdict(work), "settings": dict(work.settings)}, rule, fraction, devices], sort_keys=True)
    return hashlib.sha256(about.encode() + model.cpu().numpy().tobytes()).digest()


@dataclass
class ServerSum:
    """The server's part in the sum of a group of devices.

    Args:
        aggregation: the aggregation of the devices' vectors.
        group: the group and its sum.
        request: sends a stage's request to each device, and returns the answers received in time.
        refuse: records a device whose answer is refused.

    Attributes:
    identity: id of this sum, on which all its keys depend.
    public: public keys of the devices that sent shares.
    sealed: receiver → sender → shares, encrypted for the receiver.
    common: the digest of :func:`common`; empty before the first visit.
    """

    aggregation: SecureAggregation
    group: GroupSum
    request: StageRequest
    refuse: Refuse
    identity: str = field(default_factory=lambda: secrets.token_hex(KEY_BYTES))
    public: dict[int, PublicKeys] = field(default_factory=dict)
    sealed: dict[int, dict[int, str]] = field(default_factory=dict)
    common: bytes = b""

    @property
    def devices(self) -> list[int]:
        """The devices of the group that are to take part."""
        return [self.aggregation.devices[index] for index in self.group.planned]

    def begin(self) -> None:
        """Collect keys and shares, the first two stages; a sum of too few devices is lost before they train."""
        devices = self.devices
        advertised = self.stage("sum-keys", devices, lambda _: {}, read_keys)
        self._around = masking.neighbours(devices)

        def near(k: int) -> list[int]:
            return [v for v in self._around[k] if v in advertised]

        self._least = {k: masking.threshold(self.aggregation.codec.threshold, 1 + len(near(k))) for k in advertised}
        enough = [k for k in advertised if 1 + len(near(k)) >= self._least[k]]

        def keys(k: int) -> dict[str, Any]:
            return {"keys": {str(v): [advertised[v].channel.hex(), advertised[v].mask.hex()] for v in near(k)}}

        def shares(answer: Any, k: int) -> dict[int, str]:
            given = ranges.table(answer, len(near(k)), "its shares")
            if set(given) != {str(v) for v in near(k)}:
                raise RefusedError("sum", "its shares are not for the devices whose keys it received.")
            return {int(v): from_hex(text, SEALED_BYTES).hex() for v, text in given.items()}

        shared = self.stage("sum-shares", enough, keys, shares)
        self.public = {k: advertised[k] for k in shared}
        for sender, some in shared.items():
            for receiver, text in some.items():
                self.sealed.setdefault(receiver, {})[sender] = text
        self.group.lost = self.aggregation.shortfall(self.group, self.public)
        if self.group.lost:
            log.warning("no keys for a secure sum: %s", self.group.lost)

    def hang(self, network: Network, work: Work, arrived: Tensor) -> None:
        """Set the digest of the devices' common inputs, on which pairwise masks depend; see :func:`common`."""
        sums, devices = self.aggregation, len(self.group.planned)
        self.common = common(network, work, arrived, sums.rule, sums.fixed.fraction, devices)

    def about(self, device: int) -> dict[str, Any] | None:
        """Return the fields of a visit's message about the sum; None for a device that takes no part."""
        if self.group.lost or device not in self.public:
            return None
        sealed = {str(v): text for v, text in self.sealed.get(device, {}).items() if v in self.public}
        (name, settings), fraction = self.aggregation.rule, self.aggregation.fixed.fraction
        about = {"identity": self.identity, "devices": len(self.group.planned), "fraction": fraction, "shares": sealed}
        return {**about, "mix": name, "settings": settings}

    def end(self) -> None:
        """Unmask the sum of the remaining devices, the last stage; with too few devices the sum is lost."""
        group, aggregation = self.group, self.aggregation
        survivors = sorted(aggregation.devices[index] for index in group.members)
        group.lost = group.lost or aggregation.shortfall(group, survivors)
        if group.lost or group.total is None:
            return
        beside = {k: [v for v in self._around[k] if v in self.public] for k in self.public}

        def shares(answer: Any, k: int) -> dict[int, bytes]:
            given = ranges.table(answer, 1 + len(beside[k]), "its shares")
            if set(given) != {str(v) for v in (k, *beside[k])}:
                raise RefusedError("sum", "it reveals shares of devices that are not its neighbours.")
            return {int(v): from_hex(text, KEY_BYTES) for v, text in given.items()}

        revealed = self.stage("sum-unmask", survivors, lambda _: {"survivors": survivors}, shares)
        context, ring = bytes.fromhex(self.identity), aggregation.fixed.ring
        try:
            group.total = masking.unmasked(
                group.total, ring, self.public, beside, survivors, revealed, self._least.__getitem__, context,
                self.common,
            )  # fmt: skip
            flaw = aggregation.flaw(group)
        except (LostSumError, RefusedError) as error:
            flaw = str(error)
        if flaw:
            group.lost = f"the sum of {len(survivors)} devices cannot be unmasked: {flaw}."
            log.warning("%s", group.lost)

    def stage(
        self, kind: str, devices: Sequence[int], about: Callable[[int], dict[str, Any]], read: Callable[[Any, int], T]
    ) -> dict[int, T]:
        """Send each device its request in parallel; return the valid answers as parsed by ``read``, refuse others."""
        answers: dict[int, T] = {}

        for k, answer in self.request(kind, {k: {"identity": self.identity, **about(k)} for k in devices}).items():
            try:
                answers[k] = read(answer, k)
            except RefusedError as error:
                self.refuse(k, "visit", error)
        return {k: answers[k] for k in devices if k in answers}


def check_sums(aggregation: SecureAggregation, blobs: Sequence[Blob], kept: Collection[int]) -> None:
    """Check the groups and lengths of an edge's sums.

    Args:
        kept: indices of the branches whose visits were not lost.

    Raises:
        RefusedError: the sums are of other branches, or out of range.
    """
    aggregation.take([memoryview(blob) for blob in blobs[1:]])
    known = [group for group in aggregation.sums.values() if group.total is not None]
    astray = any(not group.members <= set(group.planned) for group in known)
    if astray or sorted(index for group in known for index in group.members) != sorted(kept):
        raise RefusedError("header", "its sums are not those of the branches whose visits were not lost.")
    for group in [] if aggregation.codec.across else known:  # a sum over all factories is still masked
        if flaw := aggregation.flaw(group):
            raise RefusedError("range", f"{flaw}.")


@dataclass
class DeviceSum:
    """A device's part in consecutive secure sums.

    Args:
        device: number of the device.
        samples: number of its samples.
        codec, rule: from the device's own copy of the experiment.
    """

    device: int
    samples: int
    codec: SecureSum
    rule: mix.Mix
    _keys: DeviceKeys | None = None
    _others: dict[int, PublicKeys] = field(default_factory=dict)  # public keys received from neighbours
    _shares: dict[int, bytes] = field(default_factory=dict)  # shares received from neighbours, and its own
    _masked: bool = False

    def reply(self, kind: str, about: Any) -> dict[str, Any]:
        """Return the answer to a request of a stage other than the visit.

        Raises:
            RefusedError: the request is out of order, or would reveal more than a sum.
        """
        given = ranges.table(about, 3, "its sum")
        if kind == "sum-keys":
            context = from_hex(given.get("identity"), KEY_BYTES)
            self._keys, self._others = masking.advertise(self.device, context), {}
            self._shares, self._masked = {}, False
            return {"answer": [self._keys.public.channel.hex(), self._keys.public.mask.hex()]}
        keys = self.current_keys(given)
        if kind == "sum-shares":
            if self._shares:
                raise RefusedError("sum", "this device has sent its shares already.")
            self._others = by_device(given.get("keys"), lambda pair: read_keys(pair, 0))
            self._others.pop(self.device, None)
            shares = masking.share(keys, self._others, self._least())
            self._shares = {self.device: shares.pop(self.device)}
            return {"answer": {str(v): text.hex() for v, text in shares.items()}}
        if not self._masked:
            raise RefusedError("sum", "it requests shares before this device has sent its vector.")
        survivors = ranges.rows(given.get("survivors"), None, "the survivors")
        others = {v: self._others[v] for v in self._shares if v != self.device}
        revealed = masking.reveal(keys, others, self._shares, survivors, self._least())
        self._keys = None  # shares of both a seed and a key of one device would unmask its vector
        return {"answer": {str(v): text.hex() for v, text in revealed.items()}}

    def masked(
        self, network: Network, work: Work, arrived: Tensor, change: Tensor, receipt: Receipt, about: Any
    ) -> tuple[Tensor, Receipt]:
        """Return the masked vector of a visit's change, and the receipt without its metrics.

        Args:
            arrived: the model before training.
            about: the visit's fields about the sum, with references resolved.
        """
        given = ranges.table(about, 6, "its sum")
        keys = self.current_keys(given)
        sealed = by_device(given.get("shares"), lambda text: from_hex(text, SEALED_BYTES))
        if self._masked or not self._shares or not set(sealed) <= set(self._others) or 1 + len(sealed) < self._least():
            raise RefusedError(
                "sum", f"received shares of {len(sealed)} devices, too few or out of order; no update is sent."
            )
        self._shares, self._masked = {self.device: self._shares[self.device], **sealed}, True
        cut = travel.up(network, work)
        fraction = ranges.whole(given.get("fraction"), -MOST_FRACTION, MOST_FRACTION, "its fraction")
        name, settings = given.get("mix"), ranges.table(given.get("settings"), MOST_SETTINGS, "its rule's settings")
        rule = mix.rule(name, settings) if isinstance(name, str) else None
        if rule is None or not rule.additive:
            raise RefusedError("sum", "its mixing rule does not add weighted updates, which a secure sum requires.")
        devices = self.checked_devices(given.get("devices"), 1 + len(sealed))
        weight = mix.weigh(rule, self.samples)
        if self.codec.bound * weight * 2.0**fraction >= 2.0 ** (self.codec.bits - 1):
            raise RefusedError("sum", f"{fraction} bits after the binary point are too many for this device's update.")
        fixed = FixedPoint(masking.Residues(cut.numbers, self.codec.bits), self.codec.bound, fraction)
        summand = self.rule.summand(change.cpu(), cut.among(network.trained)).numpy()
        figures = receipt.loss_first, receipt.loss_last, receipt.accuracy
        noise = device_noise(self.rule, fixed, masking.threshold(self.codec.threshold, devices))
        if noise and weight != mix.weigh(self.rule, self.samples):
            raise RefusedError(
                "sum", f"the weight {weight:g} of its rule is too large for the noise on this device's update."
            )
        vector = fixed.encoded(summand, weight, figures, discrete_gaussian(noise, cut.numbers, secret()))
        around = {v: self._others[v] for v in sealed}
        alike = common(network, work, arrived, mix.to_spec(rule), fraction, devices)
        payload = masking.masked(keys, around, vector, fixed.ring, alike)
        return torch.from_numpy(payload), replace(receipt, loss_first=0.0, loss_last=0.0, accuracy=0.0)

    def checked_devices(self, value: object, around: int) -> int:
        """Return the checked number of devices in a sum, which determines each device's noise.

        Args:
            around: number of devices that share keys with this one, including itself.

        Raises:
            RefusedError: a sum of this size needs more devices that share keys.
        """
        devices = ranges.whole(value, around, ranges.DEVICES, "its number of devices")
        due = masking.threshold(self.codec.threshold, min(devices, masking.ALL_PAIRS + 1))
        if around < due:
            raise RefusedError("sum", f"a sum of {devices} devices needs {due} of them to share keys; {around} do.")
        return devices

    def current_keys(self, given: Mapping[str, Any]) -> DeviceKeys:
        """Return this device's keys for the sum of a message."""
        keys = self._keys
        if keys is None or given.get("identity") != keys.context.hex():
            raise RefusedError("sum", "it belongs to a sum for which this device has no keys.")
        return keys

    def _least(self) -> int:
        return masking.threshold(self.codec.threshold, 1 + len(self._others))


def from_hex(text: object, size: int) -> bytes:
    """Return the bytes of a hexadecimal text."""
    if isinstance(text, str) and len(text) == 2 * size:
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise RefusedError("sum", f"a key or share is not {2 * size} hexadecimal digits.")


def read_keys(pair: object, _: int) -> PublicKeys:
    """Return a device's checked public keys."""
    channel, mask = ranges.rows(pair, 2, "its keys")
    keys = PublicKeys(from_hex(channel, KEY_BYTES), from_hex(mask, KEY_BYTES))
    masking.check(keys)
    return keys


def by_device(value: object, read: Callable[[Any], T]) -> dict[int, T]:
    """Return a table with device numbers as keys and values parsed by ``read``."""
    given = ranges.table(value, masking.ALL_PAIRS, "its devices")
    if not all(name.isascii() and name.isdecimal() and len(name) < 8 for name in given):
        raise RefusedError("sum", "a key is not the number of a device.")
    return {int(name): read(entry) for name, entry in given.items()}
