"""A device's part in secure sums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import ranges
from fedfloor.base.chance import secret
from fedfloor.base.errors import SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.revealed_sums import RevealedSums, few
from fedfloor.deploy.settings import DeviceSettings
from fedfloor.deploy.signing import Signer, signer_of
from fedfloor.deploy.sum_messages import (
    Advertisement,
    by_device,
    common,
    from_hex,
    identity,
    listed,
    read_crews,
    read_keys,
)
from fedfloor.engine.summand import bound, device_noise, summand, withdraws
from fedfloor.experiment import Experiment
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.parts.mixing import mix
from fedfloor.parts.mixing import registry as mixing
from fedfloor.parts.protection import masking
from fedfloor.parts.protection.discrete import discrete_gaussian
from fedfloor.parts.protection.masking import SEALED_BYTES, Bytes, DeviceKeys, FixedPoint, PublicKeys
from fedfloor.parts.protection.shares import KEY_BYTES
from fedfloor.parts.travel import chains
from fedfloor.parts.travel.codecs import BOUND, SecureSum
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key

MOST_FRACTION = 128  # most bits after or before the binary point
MOST_SETTINGS = 16  # most settings of a mixing rule
# Coarsest step of a sum, in greatest changes of a number: with steps that round all updates but one to zero, the sum
# would be that one. With few bits it is that of a device with a sixteenth of the mean number of samples.
COARSEST = 2.0**-12
UNEVEN = 16


@dataclass
class OpenSum:
    """A device's state in a sum: what it has received and sent so far.

    Attributes:
        keys: its secrets.
        others: advertisements of the neighbours.
        pairs: the shares of its own secrets that it keeps, and the decrypted ones of its neighbours.
        senders: the neighbours whose shares it has received; None before.
        around: the neighbours with whom it has masked its update; None before.
        ring: the devices of the sum in the order from which their neighbours follow.
        crews: those of its devices that are in it together or not at all; none: each may be in it alone.
        names: the names by which the neighbours' keys are signed, in a park with certificates.
        updates: each of the bytes by which its update is recorded; none with noise.
        scale: the rule and the unit of its update in the sum.
        needed: the least number of devices in the sum, from which the noise of each follows; 0 without noise.
    """

    keys: DeviceKeys
    others: dict[int, Advertisement] = field(default_factory=dict)
    pairs: dict[int, bytes] = field(default_factory=dict)
    senders: set[int] | None = None
    around: set[int] | None = None
    ring: tuple[int, ...] = ()
    crews: tuple[frozenset[int], ...] = ()
    names: dict[int, str] = field(default_factory=dict)
    updates: tuple[bytes, ...] = ()
    scale: tuple[object, ...] = ()
    needed: int = 0

    @property
    def nonce(self) -> tuple[str]:
        """A value that no other sum has."""
        return (self.keys.public.mask.hex(),)

    @property
    def held(self) -> dict[int, str]:
        """The keyed digests of the neighbours' samples."""
        return {v: advertised.held for v, advertised in self.others.items()}

    @property
    def public(self) -> dict[int, PublicKeys]:
        """The public keys of the neighbours."""
        return {v: advertised.public for v, advertised in self.others.items()}


@dataclass(frozen=True)
class Standing:
    """A device's place in a sum, as far as it is known before the device trains.

    Attributes:
        around: the neighbours with whom it masks its update.
        ring: the devices of the sum in the order from which their neighbours follow.
        crews: those of its devices that are in it together or not at all.
        rule: the mixing rule, whose ``weight`` the update has.
        fixed: the fixed-point numbers of the update.
        noise: the standard deviation of this device's noise, in steps; 0: no noise.
        needed: the least number of devices in the sum.
    """

    around: set[int]
    ring: tuple[int, ...]
    crews: tuple[frozenset[int], ...]
    rule: mix.Mix
    weight: float
    fixed: FixedPoint
    noise: float
    needed: int


@dataclass
class DeviceSum:
    """A device's part in consecutive secure sums.

    Args:
        device: number of the device.
        samples: number of its samples.
        codec, rule: from the device's own copy of the experiment.
        revealed: the sums for which it has revealed shares.
        rounds: number of rounds of the experiment.
        facts: digest of the facts by which it reads and normalises its samples.
        factory: number of its factory.
        signer: signs its keys and checks those of others; None in a park without certificates.
        devices: most devices of a sum, as far as this device's own settings and experiment state it.
        held: keyed digest of its samples; "": none is stated.
        at_once: most visits in one tick of a round.
        state: all that an edge chooses for a visit of this device alone, beside the key of its draws.
        beyond: by how much the last update was cut to the sum's bound; "" if it was not.
        at: the device's place in a stream, which is that of its crew.
    """

    device: int
    samples: int
    codec: SecureSum
    rule: mix.Mix
    revealed: RevealedSums = field(default_factory=RevealedSums)
    rounds: int = ranges.COUNT
    facts: str = ""
    factory: int = 0
    signer: Signer | None = None
    devices: int = ranges.DEVICES
    held: str = ""
    state: tuple[object, ...] = ()
    at_once: int = 1
    beyond: str = ""
    at: object = None
    _sum: OpenSum | None = None

    def reply(self, kind: str, about: Any) -> dict[str, Any]:
        """Return the answer to a request of a stage other than the visit.

        Raises:
            RefusedError: the request is out of order, or would reveal more than a sum.
        """
        given = ranges.table(about, 3, "its sum")
        if kind == "sum-keys":
            self._sum = OpenSum(masking.advertise(self.device, from_hex(given.get("identity"), KEY_BYTES)))
            return {"answer": self._advertised(self._sum.keys).to_json()}
        stages = {"sum-shares": self._share, "sum-check": self._check, "sum-unmask": self._reveal}
        return {"answer": stages[kind](self.current(given), given)}

    def _advertised(self, keys: DeviceKeys) -> Advertisement:
        crew = self.revealed.crew if self.codec.together else ""
        return Advertisement.made(keys, self.factory, self.signer, self.held, crew)

    def _share(self, open_sum: OpenSum, given: Mapping[str, Any]) -> dict[str, str]:
        if open_sum.pairs:
            raise RefusedError("sum", "this device has sent its shares already.")
        open_sum.others = by_device(given.get("keys"), read_keys)
        open_sum.others.pop(self.device, None)
        if self.signer is not None:
            context = open_sum.keys.context
            signer = self.signer
            open_sum.names = {v: one.signatory(v, context, signer) for v, one in open_sum.others.items()}
            if len({signer.name, *open_sum.names.values()}) <= len(open_sum.others):
                raise RefusedError("sum", "keys of two devices are signed by one of them.")
        held = open_sum.held | {self.device: self.held}
        if self.device in few(self.revealed.renewed(held), self.stated(open_sum)):  # the others go on without it
            self.revealed.check_samples(held, self.stated(open_sum))
        shares = masking.share(open_sum.keys, open_sum.public, self._least(open_sum))
        open_sum.pairs = {self.device: shares.pop(self.device)}
        return {str(v): text.hex() for v, text in shares.items()}

    def _check(self, open_sum: OpenSum, given: Mapping[str, Any]) -> list[int]:
        sealed = by_device(given.get("shares"), lambda text: from_hex(text, SEALED_BYTES))
        if not open_sum.pairs or open_sum.senders is not None or not set(sealed) <= set(open_sum.others):
            raise RefusedError("sum", "shares arrived out of order, or of devices that are not its neighbours.")
        pairs = masking.opened(open_sum.keys, open_sum.public, sealed)
        open_sum.senders = set(sealed)
        open_sum.pairs |= pairs
        new = self.revealed.renewed(open_sum.held | {self.device: self.held})
        alone = few(new, self.stated(open_sum))  # those who do not stay away by themselves are left out
        return sorted(set(sealed) - (set(pairs) - alone))

    def _reveal(self, open_sum: OpenSum, given: Mapping[str, Any]) -> dict[str, str]:
        if open_sum.around is None:
            raise RefusedError("sum", "it requests shares before this device has sent its vector.")
        survivors = ranges.rows(given.get("survivors"), None, "the survivors")
        devices = {ranges.whole(k, 0, ranges.DEVICES, "a device") for k in survivors}
        self._check_survivors(open_sum, devices)
        shares = masking.reveal(self.device, open_sum.around, open_sum.pairs, devices, self._least(open_sum))
        if not open_sum.needed:  # with noise it is recorded already
            known = open_sum.held | {self.device: self.held}
            held = {v: known.get(v, "") for v in devices}
            self.revealed.admit(open_sum.updates, open_sum.scale, held, self.stated(open_sum))
        self._sum = None  # shares of both a seed and a key of one device would unmask its vector
        return {str(v): text.hex() for v, text in shares.items()}

    def _check_survivors(self, open_sum: OpenSum, devices: set[int]) -> None:
        """Check the survivors of a sum.

        All devices know the same ring, so that a survivor that did not share secrets is noticed by its neighbours.

        Raises:
            RefusedError: one is not of the sum, or is a neighbour without masks with this device; or a sum across
                factories, whose devices are all neighbours, is of too few.
        """
        near = set(masking.neighbours(open_sum.ring, self.device))
        around = open_sum.around or set()
        seen = devices & {self.device, *around}
        due = self._due(open_sum.ring)
        if len(devices) < open_sum.needed or (open_sum.needed and len(seen) < due):
            raise RefusedError(
                "sum",
                f"{len(devices)} devices survived, {len(seen)} of them with masks with this one; its noise is for "
                f"{open_sum.needed} and {due} or more.",
            )
        if not devices <= set(open_sum.ring) or not devices & near <= around:
            raise RefusedError("sum", "its survivors are not those with whom this device has masked its update.")
        for crew in open_sum.crews:
            if crew & devices and not crew <= devices:
                raise RefusedError("sum", f"its survivors lack devices of the crew {sorted(crew)}, but not all.")
        factories = {self.factory, *(open_sum.others[v].factory for v in devices & around)}
        if self.codec.across and len(open_sum.ring) == 1 + len(near) and len(factories) < masking.LEAST:
            raise RefusedError("sum", f"its survivors are of {len(factories)} factories; at least {masking.LEAST}.")

    def standing(self, numbers: int, work: Work, about: Any, key: Key, run: str = "") -> Standing:
        """Return this device's place in the sum of a visit, after all checks that do not need its update.

        A refusal after training could depend on samples.

        Args:
            numbers: the length of the update.
            about: the visit's fields about the sum, with references resolved.
            key, run: the visit's place in the run, on which its training depends, and the run's name.

        Raises:
            RefusedError: the visit is not of the open sum, or its update could be read from that sum.
            SettingError: the noise is so small that the published bound does not cover it.
        """
        given = ranges.table(about, 7, "its sum")
        open_sum = self.current(given)
        senders = open_sum.senders or set()
        around = {listed(v, senders) for v in ranges.rows(given.get("around"), None, "its neighbours")}
        if open_sum.around is not None or 1 + len(around) < self._least(open_sum):
            raise RefusedError(
                "sum", f"a sum with {len(around)} neighbours, too few or out of order; no update is sent."
            )
        ring = self.checked_ring(given.get("ring"), around)
        crews = self.checked_crews(open_sum, given.get("crews"), ring, around)
        rule, fraction = self.checked_scale(given, work)
        weight = mix.weigh(rule, self.samples)
        residues = masking.Residues(numbers, self.codec.bits)
        fixed = FixedPoint(residues, bound(self.codec, work, self.samples), fraction)
        needed = masking.threshold(self.codec.threshold, len(ring))
        noise = device_noise(self.rule, fixed, needed)
        if noise:
            if weight != mix.weigh(self.rule, self.samples):
                raise RefusedError(
                    "sum", f"the weight {weight:g} of its rule is too large for the noise on this device's update."
                )
            if not 1 <= key.round <= self.rounds:
                raise RefusedError(
                    "sum", f"the sum is of round {key.round}; this device's experiment has {self.rounds}."
                )
            self.revealed.check_round(run, key.round, open_sum.nonce)
        else:
            held = open_sum.held | {self.device: self.held}
            self.revealed.check_place(*self.placed(key), held, self.stated(open_sum))
            if 2.0**-fraction > self.coarsest(fixed.bound, len(ring)) * weight:
                raise RefusedError(
                    "sum", f"{fraction} bits after the binary point would round this device's update away."
                )
        return Standing(around, ring, crews, rule, weight, fixed, noise, needed)

    def attempt(self, work: Work, arrived: NDArray[np.floating], key: Key) -> None:
        """Record the model of a round at which this device sums up, before it does.

        Whether it withdraws depends on its samples: a round answers that once, for one model and one scale of samples.

        Raises:
            RefusedError: it has summed up in this round at another model.
        """
        open_sum = self._sum
        if open_sum is None or not withdraws(work):
            return
        held = open_sum.held | {self.device: self.held}
        part = json.dumps(["attempt", key.seed, key.round]).encode()
        model = hashlib.sha256(arrived.tobytes()).hexdigest()
        self.revealed.admit_place(part, (model, self.facts), held, self.stated(open_sum))

    def masked(
        self, work: Work, arrived: NDArray[np.floating], change: NDArray[np.floating], trained: int, receipt: Receipt,
        about: Any, key: Key, run: str = "",
    ) -> tuple[Bytes, Receipt]:  # fmt: skip
        """Return the masked vector of a visit's change, and the receipt without its metrics.

        Args:
            arrived: the model before training.
            change, trained: the update, the numbers that travel, of which so many are trained; statistics follow.
            about, key, run: as for :meth:`standing`.
        """
        place = self.standing(len(change), work, about, key, run)
        open_sum = self.current(about)
        rule = mixing.to_spec(place.rule)
        numbers = summand(self.rule, change, trained, key.seed, receipt)  # in the sum's unit
        self.beyond = place.fixed.excess(numbers)
        figures = (0.0, 0.0, 0.0) if place.noise else receipt.figures
        noise = discrete_gaussian(place.noise, len(change), secret())
        vector = place.fixed.encoded(numbers, place.weight, figures, noise)
        # the record of the update, and its masks
        if place.crews:
            self.revealed.admit_crew(self.identities(open_sum, place.crews))
        if place.noise:  # a single sum for each round of a run: noise of several would average out, and ε is of one
            open_sum.needed = place.needed
            self.revealed.admit_round(run, key.round, open_sum.nonce)
        else:  # updates of zeros recur, and are known by their round alone, as others are, too: no refusal tells them
            held = open_sum.held | {self.device: self.held}
            part, state = self.placed(key)
            self.revealed.admit_place(part, state, held, self.stated(open_sum))
            open_sum.updates = (part, numbers.tobytes()) if numbers.any() else (part,)
            open_sum.scale = rule, place.fixed.fraction
        open_sum.around = place.around
        open_sum.ring = place.ring
        open_sum.crews = place.crews
        sizes = tuple(map(len, place.crews))
        alike = common(work, arrived, key, self.facts, rule, place.fixed.fraction, place.ring, sizes)
        public = {v: open_sum.others[v].public for v in place.around}
        mates = self.crew_of(place.crews) - {self.device}
        at = json.dumps(self.at).encode()
        if receipt.loss_last is not None:
            receipt = replace(receipt, loss_first=0.0, loss_last=0.0, accuracy=0.0)
        return masking.masked(open_sum.keys, public, vector, place.fixed.ring, alike, mates, at), receipt

    def placed(self, key: Key) -> tuple[bytes, tuple[object, ...]]:
        """Return the bytes by which a sum's round is known, whatever its run and model, and what an edge chooses there.

        Raises:
            RefusedError: it is a later visit than a round of the experiment has.
        """
        place = ["round", key.seed, key.round, key.tick]
        state = (key.visit, *self.state)
        if self.at_once == 1:
            return json.dumps(place).encode(), state
        if key.visit >= self.at_once:
            raise RefusedError("sum", f"it is visit {key.visit} of a round; the experiment has {self.at_once} at once.")
        return json.dumps([*place, key.visit]).encode(), state

    def coarsest(self, most: float, devices: int) -> float:
        """Return the greatest step of a sum of so many devices, for an update of weight 1 that is at most ``most``."""
        return max(min(most, BOUND) * COARSEST, most * UNEVEN * devices * 2.0 ** (1 - self.codec.bits))

    def checked_scale(self, given: Mapping[str, Any], work: Work) -> tuple[mix.Mix, int]:
        """Return the checked mixing rule and number of bits after the binary point of a sum.

        Raises:
            RefusedError: the rule is not a mean, or the update does not fit the modulus.
        """
        fraction = ranges.whole(given.get("fraction"), -MOST_FRACTION, MOST_FRACTION, "its fraction")
        name = given.get("mix")
        settings = ranges.table(given.get("settings"), MOST_SETTINGS, "its rule's settings")
        rule = None
        with suppress(SettingError):
            rule = mixing.rule(name, settings) if isinstance(name, str) else None
        if rule is None or not rule.additive:
            raise RefusedError("sum", "its mixing rule does not add weighted updates, which a secure sum requires.")
        most = bound(self.codec, work, self.samples) * mix.weigh(rule, self.samples)
        if most * 2.0**fraction >= 2.0 ** (self.codec.bits - 1):
            raise RefusedError("sum", f"{fraction} bits after the binary point are too many for this device's update.")
        return rule, fraction

    def checked_ring(self, value: object, around: set[int]) -> tuple[int, ...]:
        """Return the checked devices of a sum, whose number determines each device's noise.

        Args:
            around: the devices that share keys with this one.

        Raises:
            RefusedError: devices are listed twice, or others than its neighbours share keys, or too few.
        """
        ring = tuple(ranges.whole(k, 0, ranges.DEVICES, "a device") for k in ranges.rows(value, None, "its devices"))
        if self.device not in ring or len(set(ring)) < len(ring):
            raise RefusedError("sum", "it lists a device twice, or not this one.")
        if len(ring) > self.devices:
            raise RefusedError(
                "sum",
                f"it lists {len(ring)} devices; by this device's settings and experiment there are {self.devices}. "
                "After devices were added, provision again and copy the settings of all.",
            )
        if not around <= set(masking.neighbours(ring, self.device)):
            raise RefusedError("sum", "devices that are not its neighbours share keys with it.")
        due = self._due(ring)
        if 1 + len(around) < due:
            raise RefusedError(
                "sum", f"a sum of {len(ring)} devices needs {due} of them to share keys; {1 + len(around)} do."
            )
        return ring

    def checked_crews(
        self, open_sum: OpenSum, sizes: object, ring: Sequence[int], around: Set[int]
    ) -> tuple[frozenset[int], ...]:
        """Return the checked crews of a sum; none where this device's experiment has none.

        All devices with masks know the same crews, as masks depend on them.

        Raises:
            RefusedError: they are not those of the ring, or a device of this one's crew is missing, or it is another
                crew than in earlier sums.
        """
        if not self.codec.together:
            if sizes is not None:
                raise RefusedError("sum", "it has crews; this device's experiment has not.")
            return ()
        crews = read_crews(sizes, ring)
        if missing := self.crew_of(crews) - {self.device, *around}:
            raise RefusedError("sum", f"{sorted(missing)} of this device's crew share no keys; no update is sent.")
        self.revealed.check_crew(self.identities(open_sum, crews))
        return crews

    def crew_of(self, crews: Sequence[frozenset[int]]) -> frozenset[int]:
        """Return this device's crew; none without crews."""
        return next((crew for crew in crews if self.device in crew), frozenset())

    def identities(self, open_sum: OpenSum, crews: Sequence[frozenset[int]]) -> list[str]:
        """Return the identities of the devices of this one's crew."""
        held = open_sum.held | {self.device: self.held}
        names = open_sum.names | ({} if self.signer is None else {self.device: self.signer.name})
        return [identity(v, names.get(v, ""), held[v]) for v in sorted(self.crew_of(crews))]

    def stated(self, open_sum: OpenSum) -> dict[int, str] | None:
        """Return the crew that each device states, "" for none; None where this device's experiment has no crews."""
        if not self.codec.together:
            return None
        return {v: one.crew for v, one in open_sum.others.items()} | {self.device: self.revealed.crew}

    def current(self, given: Mapping[str, Any]) -> OpenSum:
        """Return this device's state in the sum of a message."""
        if self._sum is None or given.get("identity") != self._sum.keys.context.hex():
            raise RefusedError("sum", "it belongs to a sum for which this device has no keys.")
        return self._sum

    def _due(self, ring: Sequence[int]) -> int:
        """Return the least number of devices of a ring that this one, which is among them, knows by their keys."""
        return masking.threshold(self.codec.threshold, min(len(ring), masking.ALL_PAIRS + 1))

    def _least(self, open_sum: OpenSum) -> int:
        return masking.threshold(self.codec.threshold, 1 + len(open_sum.others))


def made(
    settings: DeviceSettings, experiment: Experiment, method: ConfiguredMethod, samples: int,
    record: RevealRecord | None = None, facts: str = "", held: str = "",
) -> DeviceSum | None:  # fmt: skip
    """Return the device's part in the sums of an experiment; None where updates do not leave in sums.

    Args:
        settings, experiment, method: the device's own.
        samples: number of its samples.
        record: of what the device has revealed; by default nothing is kept beyond the process.
        facts, held: digests of the facts by which it reads its samples, and of these, as of :class:`DeviceSum`.
    """
    codec = chains.summed(method.parts.travel or "")
    if codec is None:
        return None
    rule = method.parts.mix or mix.Equal()
    return DeviceSum(
        settings.device, samples, codec, rule, RevealedSums(record), experiment.rounds, facts, settings.factory,
        signer_of(settings.tls, settings.name), most_devices(settings, experiment, codec), held,
    )  # fmt: skip


def most_devices(settings: DeviceSettings, experiment: Experiment, secure: SecureSum) -> int:
    """Return the largest accepted number of devices in a secure sum, by the device's own settings and experiment."""
    listed = settings.devices[int(secure.across)] if settings.devices else ranges.DEVICES
    return min(listed, experiment.park.devices or ranges.DEVICES)
