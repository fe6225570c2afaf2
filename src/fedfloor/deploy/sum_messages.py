"""The messages of a secure sum: signed public keys, texts of shares, and the digest of inputs that must be the same."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import ranges
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import authority, checks
from fedfloor.deploy.signing import Signer
from fedfloor.parts.protection import masking
from fedfloor.parts.protection.masking import LEAST, MOST_CREW, DeviceKeys, PublicKeys
from fedfloor.parts.protection.shares import KEY_BYTES
from fedfloor.plan.nodes import Scalar, Work
from fedfloor.plan.schedule import Key

T = TypeVar("T")
HELD = re.compile(r"([0-9a-f]{48})?")
OWNER = 16  # first digits of a keyed digest of samples, which tell its device from another one in its place
PURPOSE = b"fedfloor sum\0"  # separates signatures of keys from those of messages
SEAL_BYTES = 4096  # most bytes of a certificate and a signature
Spec = tuple[str, Mapping[str, Scalar]]  # a mixing rule's name and settings


def common(
    work: Work, arrived: NDArray[np.floating], place: Key, facts: str, rule: Spec, fraction: int, ring: Sequence[int],
    crews: Sequence[int] = (),
) -> bytes:  # fmt: skip
    """Return a digest of the inputs that must be the same for all devices of a sum.

    An edge could send all devices but one a model, rate, normalisation, weight or unit with which their changes are
    zero, and so obtain the change of the last device from the sum (Pasquini, Francati, Ateniese, CCS 2022). Pairwise
    masks therefore depend on this digest.

    Args:
        arrived: the received model, with the part that does not travel.
        place: a visit's place in the run, of which round and tick count, and with crews the number of the visit.
        facts: digest of the facts by which devices read and normalise their samples; "" without such facts.
        rule: the mixing rule that weights the devices.
        fraction: bits after the binary point.
        ring: the devices that are to take part, in the order from which their neighbours follow.
        crews: the sizes of the crews that follow each other in the ring, if devices are in a sum by crews.
    """
    body = {**asdict(work), "settings": dict(work.settings)}
    together = [list(crews), place.visit] if crews else []
    about = json.dumps([body, place.round, place.tick, facts, rule, fraction, list(ring), *together], sort_keys=True)
    return hashlib.sha256(about.encode() + arrived.tobytes()).digest()


@dataclass(frozen=True)
class Advertisement:
    """The public keys of a device for one sum, signed with the key of its certificate.

    A server could otherwise give devices keys of its own in place of other devices', and remove their masks.

    Args:
        public: the keys.
        factory: number of the device's factory.
        seal: the device's certificate and signature; empty in a park without certificates.
        held: keyed digest of the device's samples, by which the others notice that these have changed; "" without one.
        crew: :func:`crew_id` of the device's crew; "" if it has none yet.
    """

    public: PublicKeys
    factory: int
    seal: bytes = b""
    held: str = ""
    crew: str = ""

    @classmethod
    def made(
        cls, keys: DeviceKeys, factory: int, signer: Signer | None, held: str = "", crew: str = ""
    ) -> Advertisement:
        """Return the advertisement of a device's keys; without a signer it is not signed."""
        bare = cls(keys.public, factory, held=held, crew=crew)
        if signer is None:
            return bare
        return replace(bare, seal=signer.sign(bare.signed(keys.device, keys.context), PURPOSE))

    def signed(self, device: int, context: bytes) -> bytes:
        """Return the bytes that are signed: the device's number, the sum, factory, keys, samples' digest, and crew."""
        keys = self.public.channel.hex(), self.public.mask.hex()
        return json.dumps([device, context.hex(), self.factory, *keys, self.held, self.crew]).encode()

    def signatory(self, device: int, context: bytes, signer: Signer) -> str:
        """Return the name of the device that signed.

        Raises:
            RefusedError: the signature is not that of a device of the park.
        """
        cert = signer.signatory(self.seal, self.signed(device, context), PURPOSE)
        if not authority.of_device(cert):
            name = authority.common_name(cert)
            why = f"'{name}' is not a device by its certificate; run fedfloor park provision again."
            raise RefusedError("signature", why)
        return authority.common_name(cert)

    def to_json(self) -> list[Any]:
        """Return the inverse of :func:`read_keys`."""
        return [self.public.channel.hex(), self.public.mask.hex(), self.factory, self.seal.hex(), self.held, self.crew]


def read_keys(value: object) -> Advertisement:
    """Return a device's advertisement, of which the signature is not checked.

    Raises:
        RefusedError: the value is malformed, or no secret can be agreed with a key.
    """
    channel, mask, factory, seal, held, crew = ranges.rows(value, 6, "its keys")
    keys = PublicKeys(from_hex(channel, KEY_BYTES), from_hex(mask, KEY_BYTES))
    masking.check(keys)
    if not isinstance(seal, str) or len(seal) > 2 * SEAL_BYTES:
        raise RefusedError("sum", "its keys are not signed.")
    if not isinstance(held, str) or not HELD.fullmatch(held):
        raise RefusedError("sum", "its digest of samples is malformed.")
    if not isinstance(crew, str) or not checks.CREW.fullmatch(crew):
        raise RefusedError("sum", "its crew is malformed.")
    number = ranges.whole(factory, 0, ranges.DEVICES, "its factory")
    return Advertisement(keys, number, from_hex(seal, len(seal) // 2), held, crew)


def identity(device: int, name: str, held: str) -> str:
    """Return by what a device is known in its crew for ever: its certificate's name, and whose samples it has.

    Args:
        name: of its certificate; "" in a park without certificates.
        held: keyed digest of its samples.
    """
    return f"{name or device} {held[:OWNER]}"


def crew_id(identities: Iterable[str]) -> str:
    """Return the digest of a crew, given the :func:`identity` of each of its devices."""
    return hashlib.sha256(json.dumps(sorted(identities)).encode()).hexdigest()[:32]


def read_crews(value: object, ring: Sequence[int]) -> tuple[frozenset[int], ...]:
    """Return the crews of a ring, given the size of each.

    Raises:
        RefusedError: they are not crews of the whole ring, or too small.
    """
    sizes = [ranges.whole(n, LEAST, MOST_CREW, "the size of a crew") for n in ranges.rows(value, None, "its crews")]
    if sum(sizes) != len(ring):
        raise RefusedError("sum", f"crews of {sum(sizes)} devices in a sum of {len(ring)}.")
    ends = [*accumulate(sizes)]
    return tuple(frozenset(ring[end - size : end]) for end, size in zip(ends, sizes, strict=True))


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


def by_device(value: object, read: Callable[[Any], T]) -> dict[int, T]:
    """Return a table with device numbers as keys and values parsed by ``read``."""
    given = ranges.table(value, masking.ALL_PAIRS, "its devices")
    if not all(name.isascii() and name.isdecimal() and len(name) < 8 for name in given):
        raise RefusedError("sum", "a key is not the number of a device.")
    return {int(name): read(entry) for name, entry in given.items()}


def packed(sums: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return messages about a sum for an edge's devices as one, with equal values and each device's keys once.

    Args:
        sums: device → message.
    """
    first = next(iter(sums.values()), {})
    shared = {name: value for name, value in first.items() if all(about.get(name) == value for about in sums.values())}
    bare = {k: {name: value for name, value in about.items() if name not in shared} for k, about in sums.items()}
    keys = {v: entry for about in bare.values() for v, entry in about.get("keys", {}).items()}
    for about in bare.values():
        if "keys" in about:
            about["keys"] = list(about["keys"])
    return {"sums": bare, "shared": shared, "keys": keys}


def unpacked(about: Mapping[str, Any], most: int) -> dict[str, dict[str, Any]]:
    """Return the inverse of :func:`packed`.

    Args:
        most: number of devices.

    Raises:
        RefusedError: the message has another form.
    """
    sums = ranges.table(about.get("sums", {}), most, "its sums")
    shared = about.get("shared", {})
    keys = about.get("keys", {})
    try:
        return {
            k: {**shared, **given, **({"keys": {v: keys[v] for v in given["keys"]}} if "keys" in given else {})}
            for k, given in sums.items()
        }
    except (KeyError, TypeError) as error:
        raise RefusedError("header", "it does not hold all fields of its sums.") from error
