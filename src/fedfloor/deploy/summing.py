"""The five stages of a secure sum between devices and a server: :mod:`fedfloor.parts.masking` in messages.

The server is the edge of a factory, or the cloud for a sum across factories, whose stages the edges relay.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedfloor import ranges
from fedfloor.chance import secret
from fedfloor.engine import travel
from fedfloor.engine.summing import GroupSum, SecureAggregation, bound, device_noise
from fedfloor.engine.team import Blob
from fedfloor.errors import SettingError
from fedfloor.models.network import Network
from fedfloor.parts import masking, mix
from fedfloor.parts.codecs import SecureSum
from fedfloor.parts.discrete import discrete_gaussian
from fedfloor.parts.masking import KEY_BYTES, SEALED_BYTES, DeviceKeys, FixedPoint, LostSumError, PublicKeys
from fedfloor.plan.nodes import Scalar, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.ranges import RefusedError

log = logging.getLogger(__name__)

T = TypeVar("T")
MOST_FRACTION = 128  # most bits after or before the binary point
MOST_SETTINGS = 16  # most settings of a mixing rule
Spec = tuple[str, Mapping[str, Scalar]]  # a mixing rule's name and settings
StageRequest = Callable[[str, Mapping[int, Mapping[str, Any]]], Mapping[int, Any]]  # (stage, device → about) → answers
Refuse = Callable[[int, str, RefusedError], None]


def digest(network: Network, work: Work, arrived: Tensor, *others: object) -> bytes:
    """Return a digest of a visit's work, of the model that it received, and of other values, JSON.

    Args:
        arrived: the received model; personal tensors are left out.
    """
    model = arrived if work.borrows else travel.up(network, work).cut(arrived)
    about = json.dumps([{**asdict(work), "settings": dict(work.settings)}, *others], sort_keys=True)
    return hashlib.sha256(about.encode() + model.cpu().numpy().tobytes()).digest()


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
    return digest(network, work, arrived, rule, fraction, devices)


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
    public: public keys of the devices that sent shares and received those of others.
    lacking: device → the senders whose shares it could not decrypt.
    common: the digest of :func:`common`; empty before the first visit.
    """

    aggregation: SecureAggregation
    group: GroupSum
    request: StageRequest
    refuse: Refuse
    identity: str = field(default_factory=lambda: secrets.token_hex(KEY_BYTES))
    public: dict[int, PublicKeys] = field(default_factory=dict)
    lacking: dict[int, set[int]] = field(default_factory=dict)
    common: bytes = b""

    @property
    def devices(self) -> list[int]:
        """The devices of the group that are to take part."""
        return [self.aggregation.devices[index] for index in self.group.planned]

    def begin(self) -> None:
        """Exchange keys and shares, the first three stages; a sum of too few devices is lost before they train."""
        devices = self.devices
        advertised = self.distinct(self.stage("sum-keys", devices, lambda _: {}, read_keys))
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

        def sealed(k: int) -> dict[str, Any]:
            return {"shares": {str(v): shared[v][k] for v in near(k) if v in shared}}

        def rejected(answer: Any, k: int) -> set[int]:
            senders = {v for v in near(k) if v in shared}
            given = ranges.rows(answer, None, "the senders that it rejects")
            return {listed(v, senders) for v in given}

        checked = self.stage("sum-check", list(shared), sealed, rejected)
        self.public = {k: advertised[k] for k in self.agreed(checked)}
        self.group.lost = self.aggregation.shortfall(self.group, self.public)
        if self.group.lost:
            log.warning("no keys for a secure sum: %s", self.group.lost)

    def distinct(self, advertised: Mapping[int, PublicKeys]) -> dict[int, PublicKeys]:
        """Return the devices whose public keys are all different; refuse the others, as no device shares with them."""
        owners = Counter(key for keys in advertised.values() for key in (keys.channel, keys.mask))
        equal = {k for k, keys in advertised.items() if owners[keys.channel] > 1 or owners[keys.mask] > 1}
        for k in equal:
            whose = "twice" if advertised[k].channel == advertised[k].mask else "that another device advertises, too"
            self.refuse(k, "sum-keys", RefusedError("sum", f"it advertises a key {whose}."))
        return {k: keys for k, keys in advertised.items() if k not in equal}

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

    def hang(self, network: Network, work: Work, arrived: Tensor) -> None:
        """Set the digest of the devices' common inputs, on which pairwise masks depend; see :func:`common`."""
        sums, devices = self.aggregation, len(self.group.planned)
        self.common = common(network, work, arrived, sums.rule, sums.fixed.fraction, devices)

    def about(self, device: int) -> dict[str, Any] | None:
        """Return the fields of a visit's message about the sum; None for a device that takes no part."""
        if self.group.lost or device not in self.public:
            return None
        around = [v for v in self._around[device] if v in self.public]
        (name, settings), fraction = self.aggregation.rule, self.aggregation.fixed.fraction
        about = {"identity": self.identity, "devices": len(self.group.planned), "fraction": fraction, "around": around}
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

        If not, and the shares of a single secret do not fit each other, the device that dealt them is refused.
        """
        strange = masking.misfits(revealed, self._least.__getitem__)
        for k in sorted(set.intersection(*strange.values())) if strange else ():
            if not flaw({holder: some for holder, some in revealed.items() if holder != k}):
                self.refuse(k, "sum-unmask", RefusedError("sum", "it revealed false shares of others' secrets."))
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


class RevealedSums:
    """The sums for which a device has revealed shares, kept on disk: an update is revealed in one sum alone.

    Two sums over the same visits with a device fewer in the second differ by that device's update, and training is the
    same to the bit whenever a visit is repeated. Unmasking takes shares of more than half of a sum's devices, so two
    sums would need a device that reveals shares for both; it does so only if both are of the same devices.

    Args:
        path: an SQLite file; by default nothing is kept beyond the process.

    Raises:
        SettingError: the file is damaged, or the disk is full.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._base = sqlite3.connect(path or ":memory:", check_same_thread=False)
        self._do("CREATE TABLE IF NOT EXISTS revealed (visit BLOB PRIMARY KEY, devices BLOB) WITHOUT ROWID")

    def admit(self, visit: bytes, devices: Collection[int]) -> None:
        """Record the devices of a sum on disk before this device reveals shares for it.

        Args:
            visit: a digest of all on which the update depends.

        Raises:
            RefusedError: the update is in a sum of other devices.
        """
        group = hashlib.sha256(json.dumps(sorted(devices)).encode()).digest()
        self._do("INSERT OR IGNORE INTO revealed VALUES (?, ?)", visit, group)
        ((before,),) = self._do("SELECT devices FROM revealed WHERE visit = ?", visit)
        if before != group:
            raise RefusedError(
                "sum", "this visit's update is in an earlier sum of other devices; the two would reveal single updates."
            )

    def _do(self, command: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            with self._base:
                return self._base.execute(command, values).fetchall()
        except sqlite3.Error as error:
            raise SettingError(
                f"{self._path}: {error}. Make room on the disk, or restore the file; without it, this device does not "
                "know for which sums it has revealed shares."
            ) from error


@dataclass
class OpenSum:
    """A device's state in a sum: what it has received and sent so far.

    Attributes:
        keys: its secrets.
        others: public keys of the neighbours.
        pairs: the shares of its own secrets that it keeps, and the decrypted ones of its neighbours.
        senders: the neighbours whose shares it has received; None before.
        around: the neighbours with whom it has masked its update; None before.
        complete: whether all devices of the sum are neighbours.
        visit: a digest of all on which its update depends.
    """

    keys: DeviceKeys
    others: dict[int, PublicKeys] = field(default_factory=dict)
    pairs: dict[int, bytes] = field(default_factory=dict)
    senders: set[int] | None = None
    around: set[int] | None = None
    complete: bool = False
    visit: bytes = b""


@dataclass
class DeviceSum:
    """A device's part in consecutive secure sums.

    Args:
        device: number of the device.
        samples: number of its samples.
        codec, rule: from the device's own copy of the experiment.
        revealed: the sums for which it has revealed shares.
    """

    device: int
    samples: int
    codec: SecureSum
    rule: mix.Mix
    revealed: RevealedSums = field(default_factory=RevealedSums)
    _sum: OpenSum | None = None

    def reply(self, kind: str, about: Any) -> dict[str, Any]:
        """Return the answer to a request of a stage other than the visit.

        Raises:
            RefusedError: the request is out of order, or would reveal more than a sum.
        """
        given = ranges.table(about, 3, "its sum")
        if kind == "sum-keys":
            self._sum = OpenSum(masking.advertise(self.device, from_hex(given.get("identity"), KEY_BYTES)))
            public = self._sum.keys.public
            return {"answer": [public.channel.hex(), public.mask.hex()]}
        stages = {"sum-shares": self._share, "sum-check": self._check, "sum-unmask": self._reveal}
        return {"answer": stages[kind](self.current(given), given)}

    def _share(self, open_sum: OpenSum, given: Mapping[str, Any]) -> dict[str, str]:
        if open_sum.pairs:
            raise RefusedError("sum", "this device has sent its shares already.")
        open_sum.others = by_device(given.get("keys"), lambda pair: read_keys(pair, 0))
        open_sum.others.pop(self.device, None)
        shares = masking.share(open_sum.keys, open_sum.others, self._least(open_sum))
        open_sum.pairs = {self.device: shares.pop(self.device)}
        return {str(v): text.hex() for v, text in shares.items()}

    def _check(self, open_sum: OpenSum, given: Mapping[str, Any]) -> list[int]:
        sealed = by_device(given.get("shares"), lambda text: from_hex(text, SEALED_BYTES))
        if not open_sum.pairs or open_sum.senders is not None or not set(sealed) <= set(open_sum.others):
            raise RefusedError("sum", "shares arrived out of order, or of devices that are not its neighbours.")
        pairs = masking.opened(open_sum.keys, open_sum.others, sealed)
        open_sum.senders = set(sealed)
        open_sum.pairs |= pairs
        return sorted(set(sealed) - set(pairs))

    def _reveal(self, open_sum: OpenSum, given: Mapping[str, Any]) -> dict[str, str]:
        if open_sum.around is None:
            raise RefusedError("sum", "it requests shares before this device has sent its vector.")
        survivors = ranges.rows(given.get("survivors"), None, "the survivors")
        devices = {ranges.whole(k, 0, ranges.DEVICES, "a device") for k in survivors}
        if open_sum.complete and not devices <= {self.device, *open_sum.around}:
            raise RefusedError("sum", "its survivors are not those with whom this device has masked its update.")
        shares = masking.reveal(self.device, open_sum.around, open_sum.pairs, devices, self._least(open_sum))
        self.revealed.admit(open_sum.visit, devices)
        self._sum = None  # shares of both a seed and a key of one device would unmask its vector
        return {str(v): text.hex() for v, text in shares.items()}

    def masked(
        self, network: Network, work: Work, arrived: Tensor, change: Tensor, receipt: Receipt, about: Any, key: Key
    ) -> tuple[Tensor, Receipt]:
        """Return the masked vector of a visit's change, and the receipt without its metrics.

        Args:
            arrived: the model before training.
            about: the visit's fields about the sum, with references resolved.
            key: the visit's place in the run, on which its training depends.
        """
        given = ranges.table(about, 6, "its sum")
        open_sum = self.current(given)
        senders = open_sum.senders or set()
        around = {listed(v, senders) for v in ranges.rows(given.get("around"), None, "its neighbours")}
        if open_sum.around is not None or 1 + len(around) < self._least(open_sum):
            raise RefusedError(
                "sum", f"a sum with {len(around)} neighbours, too few or out of order; no update is sent."
            )
        cut = travel.up(network, work)
        fraction = ranges.whole(given.get("fraction"), -MOST_FRACTION, MOST_FRACTION, "its fraction")
        name, settings = given.get("mix"), ranges.table(given.get("settings"), MOST_SETTINGS, "its rule's settings")
        rule = mix.rule(name, settings) if isinstance(name, str) else None
        if rule is None or not rule.additive:
            raise RefusedError("sum", "its mixing rule does not add weighted updates, which a secure sum requires.")
        devices = self.checked_devices(given.get("devices"), 1 + len(around))
        weight = mix.weigh(rule, self.samples)
        most = bound(self.codec, work, self.samples)
        if most * weight * 2.0**fraction >= 2.0 ** (self.codec.bits - 1):
            raise RefusedError("sum", f"{fraction} bits after the binary point are too many for this device's update.")
        fixed = FixedPoint(masking.Residues(cut.numbers, self.codec.bits), most, fraction)
        summand = self.rule.summand(change.cpu(), cut.among(network.trained)).numpy()
        noise = device_noise(self.rule, fixed, masking.threshold(self.codec.threshold, devices))
        if noise and weight != mix.weigh(self.rule, self.samples):
            raise RefusedError(
                "sum", f"the weight {weight:g} of its rule is too large for the noise on this device's update."
            )
        figures = (0.0, 0.0, 0.0) if noise else receipt.figures
        vector = fixed.encoded(summand, weight, figures, discrete_gaussian(noise, cut.numbers, secret()))
        alike = common(network, work, arrived, mix.to_spec(rule), fraction, devices)
        open_sum.around, open_sum.complete = around, devices <= masking.ALL_PAIRS + 1
        open_sum.visit = digest(network, work, arrived, key.seed, *key.place(), self.samples)
        public = {v: open_sum.others[v] for v in around}
        payload = masking.masked(open_sum.keys, public, vector, fixed.ring, alike)
        if receipt.loss_last is not None:
            receipt = replace(receipt, loss_first=0.0, loss_last=0.0, accuracy=0.0)
        return torch.from_numpy(payload), receipt

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

    def current(self, given: Mapping[str, Any]) -> OpenSum:
        """Return this device's state in the sum of a message."""
        if self._sum is None or given.get("identity") != self._sum.keys.context.hex():
            raise RefusedError("sum", "it belongs to a sum for which this device has no keys.")
        return self._sum

    def _least(self, open_sum: OpenSum) -> int:
        return masking.threshold(self.codec.threshold, 1 + len(open_sum.others))


def listed(value: object, among: Collection[int]) -> int:
    """Return a device of a list.

    Raises:
        RefusedError: another value.
    """
    if type(value) is int and value in among:
        return value
    raise RefusedError("device", "it names a device that it has no shares of.")


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
