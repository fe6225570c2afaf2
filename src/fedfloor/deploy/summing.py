"""The four stages of a secure sum between an edge and its devices: :mod:`fedfloor.parts.masking` in messages."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from fedfloor import ranges
from fedfloor.deploy.channel import side_by_side
from fedfloor.deploy.message import Message
from fedfloor.engine import travel
from fedfloor.engine.summing import FactorySum, SecureAggregation
from fedfloor.engine.team import Blob
from fedfloor.models.network import Network
from fedfloor.parts import masking
from fedfloor.parts.codecs import SecureSum
from fedfloor.parts.masking import KEY_BYTES, SEALED_BYTES, DeviceKeys, FixedPoint, LostSumError, PublicKeys
from fedfloor.parts.mix import Mix
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt
from fedfloor.ranges import RefusedError

log = logging.getLogger(__name__)

T = TypeVar("T")
STAGES = ("sum-keys", "sum-shares", "sum-unmask")  # requests beside the visit
MOST_FRACTION = 128  # bits behind or before the point
Ask = Callable[[int, str, Mapping[str, Any]], Message | None]  # device, kind, about
Refuse = Callable[[int, str, RefusedError], None]


@dataclass
class EdgeSum:
    """An edge's part in the sum of its factory.

    Args:
        aggregation: where its devices' vectors meet.
        ask: sends a request to a device and waits for the answer; None where none comes.
        refuse: notes a device whose answer is refused.

    Attributes:
        identity: of this sum, which all of its keys hang on.
        public: the keys of the devices that sent shares.
        sealed: receiver → sender → shares that only the receiver can read.
    """

    aggregation: SecureAggregation
    one: FactorySum
    ask: Ask
    refuse: Refuse
    identity: str = field(default_factory=lambda: secrets.token_hex(KEY_BYTES))
    public: dict[int, PublicKeys] = field(default_factory=dict)
    sealed: dict[int, dict[int, str]] = field(default_factory=dict)

    @property
    def devices(self) -> list[int]:
        """The devices of the factory that are to take part."""
        return [self.aggregation.devices[index] for index in self.one.planned]

    def begin(self) -> None:
        """Collect keys and shares: the first two stages. A sum of too few devices is lost before they train."""
        devices = self.devices
        advertised = self._stage("sum-keys", devices, lambda _: {}, _public)
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
                raise RefusedError("sum", "its shares are not for the devices whose keys it got.")
            return {int(v): _hex(text, SEALED_BYTES).hex() for v, text in given.items()}

        shared = self._stage("sum-shares", enough, keys, shares)
        self.public = {k: advertised[k] for k in shared}
        for sender, some in shared.items():
            for receiver, text in some.items():
                self.sealed.setdefault(receiver, {})[sender] = text
        needed = masking.threshold(self.aggregation.codec.threshold, len(devices))
        if len(self.public) < needed:
            self.one.lost = f"{len(self.public)} of {len(devices)} devices exchanged keys; a secure sum needs {needed}."
            log.warning("round lost: %s", self.one.lost)

    def about(self, device: int) -> dict[str, Any] | None:
        """Return what a visit's message says of the sum; None where the device is not in it."""
        if self.one.lost or device not in self.public:
            return None
        index = self.aggregation.devices.index(device)
        sealed = {str(v): text for v, text in self.sealed.get(device, {}).items() if v in self.public}
        weight, fraction = self.aggregation.weights[index], self.aggregation.fixed.fraction
        return {"sum": {"identity": self.identity, "weight": weight, "fraction": fraction, "shares": sealed}}

    def end(self) -> None:
        """Unmask the sum of the survivors: the last stage; it is lost where too few devices are left."""
        one, codec = self.one, self.aggregation.codec
        if one.lost or one.total is None or len(one.members) < masking.threshold(codec.threshold, len(one.planned)):
            return
        survivors = sorted(self.aggregation.devices[index] for index in one.members)
        beside = {k: [v for v in self._around[k] if v in self.public] for k in self.public}

        def shares(answer: Any, k: int) -> dict[int, bytes]:
            given = ranges.table(answer, 1 + len(beside[k]), "its shares")
            if set(given) != {str(v) for v in (k, *beside[k])}:
                raise RefusedError("sum", "it reveals shares of other devices than those around it.")
            return {int(v): _hex(text, KEY_BYTES) for v, text in given.items()}

        revealed = self._stage("sum-unmask", survivors, lambda _: {"survivors": survivors}, shares)
        context, ring = bytes.fromhex(self.identity), self.aggregation.fixed.ring
        try:
            one.total = masking.unmasked(
                one.total, ring, self.public, beside, survivors, revealed, self._least.__getitem__, context
            )
            _, weight, _ = self.aggregation.fixed.decoded(one.total)
            due = sum(self.aggregation.weights[index] for index in one.members)
            if abs(weight - due) > len(survivors) * 2.0**-masking.FIGURE_BITS:  # a mask is left, or a device lied
                raise LostSumError(f"its weight is {weight:g}; that of its devices is {due:g}")
        except LostSumError as error:
            one.lost = f"the sum of {len(survivors)} devices cannot be unmasked: {error}."
            log.warning("%s", one.lost)

    def _stage(
        self, kind: str, devices: Sequence[int], about: Callable[[int], dict[str, Any]], read: Callable[[Any, int], T]
    ) -> dict[int, T]:
        """Send each device its request at the same time; return what is read of the answers that come."""
        found: dict[int, T] = {}

        def go(k: int) -> None:
            answer = self.ask(k, kind, {"sum": {"identity": self.identity, **about(k)}})
            try:
                if answer is not None:
                    found[k] = read(answer.about.get("answer"), k)
            except RefusedError as error:
                self.refuse(k, "visit", error)

        side_by_side(go, devices)
        return {k: found[k] for k in devices if k in found}


def check_sums(aggregation: SecureAggregation, blobs: Sequence[Blob], kept: Collection[int]) -> None:
    """Refuse sums that an edge sends which are not of the branches ``kept``, or out of range.

    Raises:
        RefusedError: they are.
    """
    aggregation.take([memoryview(one) for one in blobs[1:]])
    known = [one for one in aggregation.sums.values() if one.total is not None]
    if sorted(index for one in known for index in one.members) != sorted(kept):
        raise RefusedError("header", "its sums are not those of the branches whose visits were not lost.")
    for one in known:
        total, weight, _ = aggregation.fixed.decoded(cast(masking.Bytes, one.total))
        due = sum(aggregation.weights[index] for index in one.members)
        step = len(one.members) * 2.0**-aggregation.fixed.fraction
        if abs(weight - due) > len(one.members) * 2.0**-masking.FIGURE_BITS:
            raise RefusedError("range", f"its sum has the weight {weight:g}; that of its devices is {due:g}.")
        if total.size and np.abs(total).max() > aggregation.codec.bound * due + step:
            raise RefusedError("range", "a number of its sum is more than its devices can have added.")


@dataclass
class DeviceSum:
    """A device's part in one sum after the other.

    Args:
        device: its number.
        samples: that it holds, the most of its weight.
        codec, rule: of its own experiment.
    """

    device: int
    samples: int
    codec: SecureSum
    rule: Mix
    _keys: DeviceKeys | None = None
    _others: dict[int, PublicKeys] = field(default_factory=dict)  # of the neighbours whose keys came
    _shares: dict[int, bytes] = field(default_factory=dict)  # of each neighbour that sent some, and its own
    _masked: bool = False

    def reply(self, kind: str, about: Any) -> dict[str, Any]:
        """Serve a request beside the visit.

        Raises:
            RefusedError: it is out of order, or would reveal more than a sum.
        """
        given = ranges.table(about, 3, "its sum")
        if kind == "sum-keys":
            context = _hex(given.get("identity"), KEY_BYTES)
            self._keys, self._others = masking.advertise(self.device, context), {}
            self._shares, self._masked = {}, False
            return {"answer": [self._keys.public.channel.hex(), self._keys.public.mask.hex()]}
        keys = self._current(given)
        if kind == "sum-shares":
            if self._shares:
                raise RefusedError("sum", "its shares were sent already.")
            self._others = _by_device(given.get("keys"), lambda pair: _public(pair, 0))
            self._others.pop(self.device, None)
            shares = masking.share(keys, self._others, self._least())
            self._shares = {self.device: shares.pop(self.device)}
            return {"answer": {str(v): text.hex() for v, text in shares.items()}}
        if not self._masked:
            raise RefusedError("sum", "it is to be unmasked before this device sent its vector.")
        survivors = ranges.rows(given.get("survivors"), None, "the survivors")
        others = {v: self._others[v] for v in self._shares if v != self.device}
        revealed = masking.reveal(keys, others, self._shares, survivors, self._least())
        self._keys = None  # shares of a seed and of a key of one device would unmask its vector
        return {"answer": {str(v): text.hex() for v, text in revealed.items()}}

    def masked(
        self, network: Network, work: Work, change: Tensor, receipt: Receipt, about: Any
    ) -> tuple[Tensor, Receipt]:
        """Return the masked vector of a visit's change, and the receipt without its figures."""
        given = ranges.table(about, 4, "its sum")
        keys, sealed = self._current(given), _by_device(given.get("shares"), lambda text: _hex(text, SEALED_BYTES))
        if self._masked or not self._shares or not set(sealed) <= set(self._others) or 1 + len(sealed) < self._least():
            raise RefusedError("sum", f"shares of {len(sealed)} devices came, or out of order: its update stays here.")
        self._shares, self._masked = {self.device: self._shares[self.device], **sealed}, True
        cut = travel.up(network, work)
        weight = ranges.number(given.get("weight"), 0, max(1, self.samples), "its weight")
        fraction = ranges.whole(given.get("fraction"), -MOST_FRACTION, MOST_FRACTION, "its fraction")
        fixed = FixedPoint(masking.Residues(cut.numbers, self.codec.bits), self.codec.bound, fraction)
        summand = self.rule.summand(change.cpu(), cut.among(network.trained)).numpy()
        vector = fixed.encoded(summand, weight, (receipt.loss_first, receipt.loss_last, receipt.accuracy))
        payload = masking.masked(keys, {v: self._others[v] for v in sealed}, vector, fixed.ring)
        return torch.from_numpy(payload), replace(receipt, loss_first=0.0, loss_last=0.0, accuracy=0.0)

    def _current(self, given: Mapping[str, Any]) -> DeviceKeys:
        keys = self._keys
        if keys is None or given.get("identity") != keys.context.hex():
            raise RefusedError("sum", "it is of a sum that this device has no keys of.")
        return keys

    def _least(self) -> int:
        return masking.threshold(self.codec.threshold, 1 + len(self._others))


def _hex(text: object, size: int) -> bytes:
    """Return bytes that are written in hexadecimal digits."""
    if isinstance(text, str) and len(text) == 2 * size:
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise RefusedError("sum", f"a key or share is not {2 * size} hexadecimal digits.")


def _public(pair: object, _: int) -> PublicKeys:
    channel, mask = ranges.rows(pair, 2, "its keys")
    return PublicKeys(_hex(channel, KEY_BYTES), _hex(mask, KEY_BYTES))


def _by_device(value: object, read: Callable[[Any], T]) -> dict[int, T]:
    """Return a table by device's number."""
    given = ranges.table(value, masking.ALL_PAIRS, "its devices")
    if not all(name.isascii() and name.isdecimal() and len(name) < 8 for name in given):
        raise RefusedError("sum", "its devices are no numbers.")
    return {int(name): read(one) for name, one in given.items()}
