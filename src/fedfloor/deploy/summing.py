"""The five stages of a secure sum between devices and a server: :mod:`fedfloor.parts.masking` in messages.

The server is the edge of a factory, or the cloud for a sum across factories, whose stages the edges relay.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from fedfloor import ranges
from fedfloor.deploy.signing import Signer
from fedfloor.deploy.sum_messages import Advertisement, common, from_hex, listed, read_keys
from fedfloor.engine.summing import GroupSum, SecureAggregation
from fedfloor.engine.team import Blob
from fedfloor.parts import masking
from fedfloor.parts.masking import KEY_BYTES, SEALED_BYTES, LostSumError, PublicKeys
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key
from fedfloor.ranges import RefusedError

log = logging.getLogger(__name__)

T = TypeVar("T")
StageRequest = Callable[[str, Mapping[int, Mapping[str, Any]]], Mapping[int, Any]]  # (stage, device → about) → answers
Refuse = Callable[[int, str, RefusedError], None]


@dataclass
class ServerSum:
    """The server's part in the sum of a group of devices.

    Args:
        aggregation: the aggregation of the devices' vectors.
        group: the group and its sum.
        request: sends a stage's request to each device, and returns the answers received in time.
        refuse: records a device whose answer is refused.
        facts: digest of the facts by which devices read and normalise their samples.
        signer: checks the devices' signatures; None in a park without certificates.
        names: device → its name, as far as the server knows it.

    Attributes:
    ring: the devices of the group in the order from which their neighbours follow.
    identity: id of this sum, on which all its keys depend.
    public: public keys of the devices that sent shares and received those of others.
    lacking: device → the senders whose shares it could not decrypt.
    common: the digest of :func:`common`; empty before the first visit.
    """

    aggregation: SecureAggregation
    group: GroupSum
    request: StageRequest
    refuse: Refuse
    facts: str = ""
    signer: Signer | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    identity: str = field(default_factory=lambda: secrets.token_hex(KEY_BYTES))
    public: dict[int, PublicKeys] = field(default_factory=dict)
    lacking: dict[int, set[int]] = field(default_factory=dict)
    common: bytes = b""
    _signatories: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ring = masking.ring(self.devices)
        self._around = {k: masking.neighbours(self.ring, k) for k in self.ring}

    @property
    def devices(self) -> list[int]:
        """The devices of the group that are to take part."""
        return [self.aggregation.devices[index] for index in self.group.planned]

    def begin(self) -> None:
        """Exchange keys and shares, the first three stages; a sum of too few devices is lost before they train."""
        devices = self.devices
        advertised = self.distinct(self.stage("sum-keys", devices, lambda _: {}, self.checked_keys))

        def near(k: int) -> list[int]:
            return [v for v in self._around[k] if v in advertised]

        self._least = {k: masking.threshold(self.aggregation.codec.threshold, 1 + len(near(k))) for k in advertised}
        enough = [k for k in advertised if 1 + len(near(k)) >= self._least[k]]

        def keys(k: int) -> dict[str, Any]:
            return {"keys": {str(v): advertised[v].to_json() for v in near(k)}}

        def shares(answer: Any, k: int) -> dict[int, str]:
            given = ranges.table(answer, len(near(k)), "its shares")
            if set(given) != {str(v) for v in near(k)}:
                raise RefusedError("sum", "its shares are not for the devices whose keys it received.")
            return {int(v): from_hex(text, SEALED_BYTES).hex() for v, text in given.items()}

        shared = self.stage("sum-shares", enough, keys, shares)

        def sealed(k: int) -> dict[str, Any]:
            return {"shares": {str(v): shared[v][k] for v in near(k) if v in shared}}

        def rejected(answer: Any, k: int) -> set[int]:
            senders = {v for v in near(k) if v in shared}
            given = ranges.rows(answer, None, "the senders that it rejects")
            return {listed(v, senders) for v in given}

        checked = self.stage("sum-check", list(shared), sealed, rejected)
        self.public = {k: advertised[k].public for k in self.agreed(checked)}
        self.group.lost = self.aggregation.shortfall(self.group, self.public)
        if self.group.lost:
            log.warning("no keys for a secure sum: %s", self.group.lost)

    def checked_keys(self, answer: Any, k: int) -> Advertisement:
        """Return a device's keys, with all checks of the devices that receive them.

        Raises:
            RefusedError: the keys are malformed, not signed by the device, or for another factory.
        """
        advertised = read_keys(answer)
        if advertised.factory != self.aggregation.factory_of[k]:
            raise RefusedError("sum", f"its keys are for a device of factory {advertised.factory}.")
        if self.signer is not None:
            name = advertised.signatory(k, bytes.fromhex(self.identity), self.signer)
            if name != self.names.get(k, name):
                raise RefusedError("signature", f"'{name}' signed its keys.")
            self._signatories[k] = name
        return advertised

    def distinct(self, advertised: Mapping[int, Advertisement]) -> dict[int, Advertisement]:
        """Return the devices whose keys and signatures differ from all others'; refuse the rest.

        No device shares with devices of equal keys or signatures.
        """
        public = {k: entry.public for k, entry in advertised.items()}
        owners = Counter(key for keys in public.values() for key in (keys.channel, keys.mask))
        signers = Counter(self._signatories.get(k, str(k)) for k in advertised)
        equal = {k for k, keys in public.items() if owners[keys.channel] > 1 or owners[keys.mask] > 1}
        equal |= {k for k in advertised if signers[self._signatories.get(k, str(k))] > 1}
        for k in equal:
            once = public[k].channel != public[k].mask
            why = "its keys or its signature are those of another device, too." if once else "its two keys are equal."
            self.refuse(k, "sum-keys", RefusedError("sum", why))
        return {k: entry for k, entry in advertised.items() if k not in equal}

    def agreed(self, checked: Mapping[int, set[int]]) -> list[int]:
        """Return the devices whose shares others accept, and which accept those of others.

        A rejection says that its sender or its receiver is false, but not which. A device in several rejections is
        left out, the one with the most first, so that a false device leaves no other one out. A single rejection leaves
        both in, with a share less of one secret.

        Args:
            checked: receiver → the senders whose shares it rejects.
        """
        disputes = {(k, v) for k, senders in checked.items() for v in senders if v in checked}
        left = list(checked)
        while disputes:
            counts = Counter(k for pair in disputes for k in pair)
            worst = max(sorted(counts), key=counts.__getitem__)
            if counts[worst] == 1:
                break
            why = f"{counts[worst]} devices cannot open its shares, or it cannot open theirs."
            self.refuse(worst, "sum-check", RefusedError("sum", why))
            left.remove(worst)
            disputes = {pair for pair in disputes if worst not in pair}
        for k, v in sorted(disputes):
            log.warning("device %d cannot open the share of device %d: one of them is false.", k, v)
        self.lacking = {k: {v for receiver, v in disputes if receiver == k} for k in left}
        return left

    def hang(self, work: Work, arrived: Tensor, place: Key) -> None:
        """Set the digest of the devices' common inputs, on which pairwise masks depend; see :func:`common`."""
        sums = self.aggregation
        self.common = common(work, arrived, place, self.facts, sums.rule, sums.fixed.fraction, self.ring)

    def about(self, device: int) -> dict[str, Any] | None:
        """Return the fields of a visit's message about the sum; None for a device that takes no part."""
        if self.group.lost or device not in self.public:
            return None
        around = [v for v in self._around[device] if v in self.public]
        (name, settings), fraction = self.aggregation.rule, self.aggregation.fixed.fraction
        about = {"identity": self.identity, "ring": list(self.ring), "fraction": fraction, "around": around}
        return {**about, "mix": name, "settings": settings}

    def end(self) -> None:
        """Unmask the sum of the remaining devices, the last stage; with too few devices the sum is lost."""
        group, aggregation = self.group, self.aggregation
        survivors = sorted(aggregation.devices[index] for index in group.members)
        group.lost = group.lost or aggregation.shortfall(group, survivors)
        if not set(survivors) <= self.public.keys():  # an edge states its members of a sum across factories
            group.lost = "it holds vectors of devices that did not share their secrets."
        if group.lost or group.total is None:
            return
        beside = {k: [v for v in self._around[k] if v in self.public] for k in self.public}

        def shares(answer: Any, k: int) -> dict[int, bytes]:
            given = ranges.table(answer, 1 + len(beside[k]), "its shares")
            due = {k, *beside[k]}
            if not {str(v) for v in due - self.lacking[k]} <= set(given) <= {str(v) for v in due}:
                raise RefusedError("sum", "it does not reveal the shares of its neighbours.")
            return {int(v): from_hex(text, KEY_BYTES) for v, text in given.items()}

        revealed = self.stage("sum-unmask", survivors, lambda _: {"survivors": survivors}, shares)
        context, ring, total = bytes.fromhex(self.identity), aggregation.fixed.ring, group.total

        def flaw(revealed: Mapping[int, Mapping[int, bytes]]) -> str:
            """Unmask the sum with these shares; return the reason why it cannot be unmasked, or ""."""
            least = self._least.__getitem__
            try:
                group.total = masking.unmasked(
                    total, ring, self.public, beside, survivors, revealed, least, context, self.common
                )
            except (LostSumError, RefusedError) as error:
                return str(error)
            return aggregation.flaw(group)

        why = flaw(revealed)
        if why and not self.without_false_shares(revealed, flaw):
            group.lost = f"the sum of {len(survivors)} devices cannot be unmasked: {why}."
            log.warning("%s", group.lost)

    def without_false_shares(
        self, revealed: Mapping[int, Mapping[int, bytes]], flaw: Callable[[Mapping[int, Mapping[int, bytes]]], str]
    ) -> bool:
        """Unmask the sum without the shares of the device that revealed false ones, and refuse it; return whether this
        is possible.

        A device whose share of a single secret does not fit may have received it so: the device that dealt it is
        refused, too, as one of the two is false. If the sum cannot be unmasked, and the shares of a single secret do
        not fit each other, the device that dealt them is refused.
        """
        strange = masking.misfits(revealed, self._least.__getitem__)
        for k in sorted(set.intersection(*strange.values())) if strange else ():
            if not flaw({holder: some for holder, some in revealed.items() if holder != k}):
                if len(strange) > 1:
                    self.refuse(k, "sum-unmask", RefusedError("sum", "it revealed false shares of others' secrets."))
                    return True
                (dealer,) = strange
                why = f"device {k} revealed a false share of device {dealer}'s secret, or received it so."
                for either in sorted({k, dealer}):
                    self.refuse(either, "sum-unmask", RefusedError("sum", why))
                return True
        if len(strange) == 1:
            (k,) = strange
            self.refuse(k, "sum-unmask", RefusedError("sum", "the shares of its secrets do not fit each other."))
        return False

    def stage(
        self, kind: str, devices: Sequence[int], about: Callable[[int], dict[str, Any]], read: Callable[[Any, int], T]
    ) -> dict[int, T]:
        """Send each device its request in parallel; return the valid answers as parsed by ``read``, refuse others."""
        answers: dict[int, T] = {}

        for k, answer in self.request(kind, {k: {"identity": self.identity, **about(k)} for k in devices}).items():
            try:
                answers[k] = read(answer, k)
            except RefusedError as error:
                self.refuse(k, kind, error)
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
