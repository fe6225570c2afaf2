r"""Secure sums: the server learns the sum Σ_k x_k of masked vectors, and nothing else about any of them.

Whole numbers modulo 2^b. Device u sends, for its neighbours v,

.. math:: y_u = x_u + PRG(b_u) + \sum_{v > u} PRG(s_{uv}) - \sum_{v < u} PRG(s_{uv}) \mod 2^b,

with s_uv from an X25519 exchange and u's own seed b_u. Pairwise masks cancel in the sum. The neighbours of u hold
encrypted shares (Shamir 1979) of b_u and of u's private key. Once the survivors are known, the server gets the shares
of b_u if u sent y_u, or those of u's private key if it did not, never both. Five stages:

1. :func:`advertise`: a device draws its keys and sends the public ones.
2. :func:`share`: it gets its neighbours' keys, and sends them its shares, each encrypted for its receiver.
3. :func:`opened`: it gets the shares of the remaining neighbours, and names the senders of those it cannot decrypt.
4. :func:`masked`: it gets the list of neighbours in the sum, and sends y_u.
5. :func:`reveal`: it gets the list of survivors, and sends one share per neighbour; :func:`unmasked` ends the sum.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017, for a server that
follows the protocol; with neighbours in a graph instead of all pairs: Bell et al., "Secure single-server aggregation
with (poly)logarithmic overhead", CCS 2020.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.parts.protection.shares import KEY_BYTES, PRIME, LostSumError, joined, split

Bytes = NDArray[np.uint8]
LEAST = 3  # least survivors of a sum: of two devices, each would know the other's vector
SEALED_BYTES = 2 * KEY_BYTES + 16  # size of two shares, encrypted and authenticated
FIGURES = 4  # numbers beside a vector: its weight, and weighted figures of a receipt
FIGURE_BITS = 20  # fractional bits of these numbers, modulo 2^64
FIGURE_MOST = 2.0**20  # greatest value of a receipt's number before it is weighted
MOST_CREW = 3 * LEAST - 2  # most devices of a crew: a home's last one, with those of homes that have too few
ALL_PAIRS = 64  # up to so many devices all are neighbours of each other; among more, each has so many neighbours


@dataclass(frozen=True)
class Residues:
    """Residues as bytes: vectors [numbers] modulo 2^bits, followed by receipt figures [FIGURES] modulo 2^64.

    >>> ring = Residues(2, 16)
    >>> total = ring.zeros()
    >>> for value in (1, 2, -5): ring.add(total, ring.packed(np.array([value, 70000]), np.zeros(FIGURES)))
    >>> ring.signed(total)[0].tolist()
    [-2, 13392]
    """

    numbers: int
    bits: int

    @property
    def bytes(self) -> int:
        """The size of a vector with its figures in bytes."""
        return self.numbers * self.bits // 8 + 8 * FIGURES

    def zeros(self) -> Bytes:
        """Return a vector of zeros with zero figures."""
        return np.zeros(self.bytes, np.uint8)

    def packed(self, vector: NDArray[np.int64], figures: NDArray[np.float64]) -> Bytes:
        """Return a vector and its figures as bytes, the figures in fixed point."""
        whole = np.rint(figures * 2.0**FIGURE_BITS).astype(np.int64)
        return np.concatenate([vector.astype(self._kind()).view(np.uint8), whole.view(np.uint8)])

    def signed(self, total: Bytes) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return a sum's numbers, as signed whole numbers between ±2^(bits − 1), and its figures."""
        cut = self.bytes - 8 * FIGURES
        figures = total[cut:].copy().view(np.int64) / 2.0**FIGURE_BITS
        return total[:cut].copy().view(f"<i{self.bits // 8}").astype(np.int64), figures

    def add(self, total: Bytes, other: Bytes, sign: int = 1) -> None:
        """Add a vector to a sum, or subtract it, in place."""
        if other.shape != total.shape:
            raise RefusedError("payload", f"{other.size} bytes arrived; {total.size} are expected.")
        cut = self.bytes - 8 * FIGURES
        for part, kind in ((slice(0, cut), self._kind()), (slice(cut, None), "<u8")):
            into = total[part].view(kind)
            more = other[part].view(kind)
            _ = np.add(into, more, out=into) if sign > 0 else np.subtract(into, more, out=into)

    def _kind(self) -> str:
        return f"<u{self.bits // 8}"


@dataclass(frozen=True)
class FixedPoint:
    """Weighted changes w·Δ as whole numbers round(w·Δ·2^fraction).

    Args:
        ring: the residues of the sum.
        bound: the greatest |Δ|; larger changes are clipped to it.
        fraction: the number of fractional bits; negative for steps larger than 1.
    """

    ring: Residues
    bound: float
    fraction: int

    @classmethod
    def sized(
        cls, numbers: int, bits: int, bound: float, weight: float, devices: int, noise: float = 0.0
    ) -> FixedPoint:
        """Return the finest scale with which the sum of ``devices`` devices of a total weight fits the modulus.

        Args:
            noise: the greatest amount that all devices add to a number of the sum for privacy.

        >>> FixedPoint.sized(10, 16, bound=1.0, weight=100.0, devices=3).fraction
        8
        """
        # each number may be rounded by half a step, and float64 knows 64-bit numbers to 2^−53
        room = 2.0 ** (bits - 1) - max(1 + devices / 2, 2.0 ** (bits - 41))
        if room <= 0:
            raise SettingError(f"travel.secure-sum.bits = {bits}: too few for {devices} devices. Set bits = 32.")
        return cls(Residues(numbers, bits), bound, math.floor(math.log2(room / (bound * weight + noise))))

    def excess(self, change: NDArray[np.floating]) -> str:
        """Return by how much :meth:`encoded` cuts a change; "" if it does not."""
        greatest = float(np.abs(change).max(initial=0.0))
        if not greatest > self.bound:
            return ""
        return (
            f"its update changes a number by {greatest:.3g}, which the secure sum cuts to {self.bound:.3g}: the model "
            "is another one than without. Raise travel.secure-sum.bound, lower work.lr, or set data.normalise = "
            '"standard".'
        )

    def encoded(
        self, change: NDArray[np.floating], weight: float, figures: Sequence[float] = (),
        noise: NDArray[np.int64] | int = 0,
    ) -> Bytes:  # fmt: skip
        """Return the bytes of w·Δ and of (w, w·figures…); ``noise`` is in steps."""
        scaled = np.clip(change.astype(np.float64), -self.bound, self.bound)
        scaled *= weight * 2.0**self.fraction
        beside = np.zeros(FIGURES)
        beside[0] = weight
        beside[1 : 1 + len(figures)] = np.clip(np.nan_to_num(figures), -FIGURE_MOST, FIGURE_MOST) * weight
        return self.ring.packed(np.rint(scaled).astype(np.int64) + noise, beside)

    def decoded(self, total: Bytes) -> tuple[NDArray[np.float64], float, tuple[float, ...]]:
        """Return Σ w·Δ, Σ w, and the figures' weighted means, from the bytes of a sum."""
        whole, figures = self.ring.signed(total)
        weight = float(figures[0])
        means = tuple((figures[1:] / figures[0]).tolist())
        return np.multiply(whole, 2.0**-self.fraction, dtype=np.float64), weight, means


# -- neighbours -------------------------------------------------------------------------------------------------------


def ring(devices: Sequence[int]) -> tuple[int, ...]:
    """Return the devices of a sum in the order from which their neighbours follow: random, if there are many."""
    many = len(devices) > ALL_PAIRS + 1
    return tuple(secrets.SystemRandom().sample(list(devices), len(devices)) if many else devices)


def crews(devices: Sequence[int], homes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return devices in crews of at least :data:`LEAST`, which are in a sum together or not at all.

    A crew is of one home where that has as many devices; others are put together. Two sums of whole crews differ by
    the updates of at least :data:`LEAST` devices (So et al., "Securing secure aggregation: mitigating multi-round
    privacy leakage in federated learning", AAAI 2023).

    Args:
        homes: the home of each device, such as its factory.

    >>> crews(range(8), [0] * 8), crews([5, 7], [0, 0])
    ([(0, 1, 2), (3, 4, 5, 6, 7)], [])
    >>> crews(range(11), [0] * 11)
    [(0, 1, 2), (3, 4, 5, 6), (7, 8, 9, 10)]
    >>> crews(range(8), [0, 0, 1, 1, 1, 2, 2, 3])
    [(2, 3, 4), (0, 1, 5, 6, 7)]
    """
    made = list[tuple[int, ...]]()
    few = tuple[int, ...]()
    for home in sorted(set(homes)):
        here = tuple(k for k, at in zip(devices, homes, strict=True) if at == home)
        if len(here) < LEAST:
            few += here
            if len(few) < LEAST:
                continue
            here = few
            few = ()
        sizes = [LEAST] * (len(here) // LEAST)
        for more in range(len(here) % LEAST):
            sizes[-1 - more % max(1, len(sizes) - 1)] += 1
        made += [here[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]
    return [*made[:-1], made[-1] + few] if made else []


def crewed_ring(crews: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a :func:`ring` in which crews are next to each other, and the size of each crew in its order."""
    many = sum(map(len, crews)) > ALL_PAIRS + 1
    order = secrets.SystemRandom().sample(list(crews), len(crews)) if many else crews
    return tuple(k for crew in order for k in crew), tuple(map(len, order))


def neighbours(ring: Sequence[int], device: int) -> tuple[int, ...]:
    """Return a device's neighbours: all others, or with many devices the nearest in a ring.

    >>> len(neighbours(range(1000), 0)), neighbours([4, 7, 9], 7)
    (64, (4, 9))
    """
    if len(ring) <= ALL_PAIRS + 1:
        return tuple(v for v in ring if v != device)
    place = ring.index(device)
    half = ALL_PAIRS // 2
    return tuple(sorted(ring[(place + step) % len(ring)] for step in range(-half, half + 1) if step))


def exchanges(devices: int) -> tuple[tuple[int, int], ...]:
    """Return (bytes down, bytes up) of each stage for one of ``devices`` devices in a sum.

    Device numbers, message frames and the masked vector of the third stage are not counted.
    """
    near = min(devices - 1, ALL_PAIRS)
    keys = 2 * KEY_BYTES
    sealed = SEALED_BYTES
    return (0, keys), (near * keys, near * sealed), (near * sealed, 0), (-(-devices // 8), (near + 1) * KEY_BYTES)


def threshold(share: float, holders: int) -> int:
    """Return the number of holders that can restore a secret, which is the least number of survivors."""
    return max(LEAST, math.ceil(share * holders - 1e-9))


# -- a device's stages ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublicKeys:
    """A device's public keys: for the channel to its neighbours, and for its masks."""

    channel: bytes
    mask: bytes


@dataclass(frozen=True)
class DeviceKeys:
    """A device's secrets for one sum, drawn from the operating system.

    Args:
        device: the device's number.
        channel, mask: private X25519 keys.
        seed: the seed of the device's own mask.
        context: the identification of the sum, on which all derived keys depend.
    """

    device: int
    channel: bytes
    mask: bytes
    seed: bytes
    context: bytes

    @property
    def public(self) -> PublicKeys:
        """The keys that the device advertises."""
        return PublicKeys(_public(self.channel), _public(self.mask))


def advertise(device: int, context: bytes) -> DeviceKeys:
    """Return new secrets of a device, which then sends their ``public`` keys."""
    return DeviceKeys(device, _secret(), _secret(), _secret(), context)


def share(keys: DeviceKeys, others: Mapping[int, PublicKeys], least: int) -> dict[int, bytes]:
    """Return a device's shares for its neighbours, encrypted for each of them; its own shares are not encrypted.

    Args:
        others: the public keys of the neighbours that advertised keys.
        least: the threshold of shares.

    Raises:
        RefusedError: too few neighbours, or keys that are not distinct.
    """
    holders = sorted({keys.device, *others})
    public = [key for pair in (keys.public, *others.values()) for key in (pair.channel, pair.mask)]
    if len(holders) < least or len(set(public)) < len(public):
        raise RefusedError("sum", f"keys of {len(others)} neighbours, or equal keys; {least - 1} are needed.")
    ours = split(keys.mask, holders, least)
    seeds = split(keys.seed, holders, least)
    sealed = {v: _sealed(keys, v, others[v], ours[v] + seeds[v]) for v in others}
    return {**sealed, keys.device: ours[keys.device] + seeds[keys.device]}


def opened(keys: DeviceKeys, others: Mapping[int, PublicKeys], sealed: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return the neighbours' decrypted shares, without those that their senders did not encrypt for this device.

    Args:
        others: the public keys of the neighbours.
        sealed: sender → shares.
    """
    pairs = {v: _opened(keys, v, others[v], text) for v, text in sealed.items()}
    return {v: pair for v, pair in pairs.items() if pair is not None}


def masked(
    keys: DeviceKeys, others: Mapping[int, PublicKeys], summand: Bytes, ring: Residues, common: bytes = b"",
    mates: Collection[int] = (), place: bytes = b"",
) -> Bytes:  # fmt: skip
    """Return a device's summand with its masks added.

    Args:
        others: the public keys of the neighbours that sent shares.
        common: a digest of the input that must be the same on all devices of the sum, such as the model: the masks of
            two devices cancel only if their digests are equal.
        mates, place: the others of its crew, and bytes that must be the same for these: no mask with them is left
            where one of them is missing.
    """
    masked = summand.copy()
    ring.add(masked, _stream(keys.seed, keys.context + b"own", ring.bytes))
    for v, public in others.items():
        about = common + place if v in mates else common
        ring.add(masked, _pair_mask(keys, v, public, ring, about), 1 if v > keys.device else -1)
    return masked


def reveal(
    device: int, others: Collection[int], pairs: Mapping[int, bytes], survivors: Collection[int], least: int
) -> dict[int, bytes]:
    """Return one share per neighbour, and one of the device itself: of a survivor's seed, or of a lost device's key.

    Args:
        others: the neighbours in the sum.
        pairs: the neighbours' decrypted shares, and the device's own.
        survivors: the devices whose masked vectors are in the sum.

    Raises:
        RefusedError: the device is no survivor, or too few are left.
    """
    around = {device, *others}
    left = around & set(survivors)
    if device not in survivors or len(left) < least:
        raise RefusedError("sum", f"{len(left)} devices of the neighbourhood are left; {least} are needed.")
    return {v: pair[KEY_BYTES:] if v in left else pair[:KEY_BYTES] for v, pair in pairs.items() if v in around}


# -- the server's last stage ------------------------------------------------------------------------------------------


def unmasked(
    total: Bytes, ring: Residues, public: Mapping[int, PublicKeys], beside: Mapping[int, Collection[int]],
    survivors: Collection[int], revealed: Mapping[int, Mapping[int, bytes]], least: Callable[[int], int],
    context: bytes, common: bytes = b"",
) -> Bytes:  # fmt: skip
    """Return the sum of the survivors' vectors.

    Args:
        total: the sum of their masked vectors.
        public: the keys of all devices that sent shares.
        beside: each device's neighbours among these devices.
        survivors: the devices whose vectors are in the sum.
        revealed: revealing device → owner of the share → share.
        least: device → the threshold of its shares.
        common: the digest that is the same on all devices.

    Raises:
        LostSumError: fewer than three devices are left, or too few shares arrived, or shares do not fit.
    """
    if len(survivors) < LEAST:
        raise LostSumError(f"{len(survivors)} devices are left in a sum; {LEAST} are needed")
    total = total.copy()
    for u in public:
        known = {holder: some[u] for holder, some in revealed.items() if u in some and holder in {u, *beside[u]}}
        if u not in survivors and not set(beside[u]) & set(survivors):
            continue
        secret = joined(known, least(u))
        if u in survivors:
            ring.add(total, _stream(secret, context + b"own", ring.bytes), -1)
            continue
        keys = DeviceKeys(u, b"", secret, b"", context)
        if _public(secret) != public[u].mask:
            raise LostSumError(f"shares of device {u}'s key do not fit its public key")
        for v in set(beside[u]) & set(survivors):  # v's vector has the mask with u, whose own vector is missing
            ring.add(total, _pair_mask(keys, v, public[v], ring, common), 1 if v > u else -1)
    return total


# -- keys and streams -------------------------------------------------------------------------------------------------


def _secret() -> bytes:
    return secrets.randbelow(PRIME).to_bytes(KEY_BYTES, "little")


def _public(private: bytes) -> bytes:
    x25519 = _cryptography().x25519
    return bytes(x25519.X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def check(public: PublicKeys) -> None:
    """Check that secrets can be agreed with public keys, before they spoil the sum of all devices.

    Raises:
        RefusedError: a key is of low order.
    """
    for key in (public.channel, public.mask):
        _agreed(_secret(), key, b"")


def _agreed(private: bytes, public: bytes, about: bytes) -> bytes:
    crypto = _cryptography()
    try:
        other = crypto.x25519.X25519PublicKey.from_public_bytes(public)
        secret = crypto.x25519.X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError as error:
        raise RefusedError("sum", "a public key is not one of X25519.") from error
    return bytes(crypto.HKDF(crypto.hashes.SHA256(), KEY_BYTES, None, about).derive(secret))


def _pair_mask(keys: DeviceKeys, other: int, public: PublicKeys, ring: Residues, common: bytes) -> Bytes:
    low, high = sorted((keys.device, other))
    about = keys.context + b"mask" + _numbered(low) + _numbered(high) + common
    return _stream(_agreed(keys.mask, public.mask, about), b"", ring.bytes)


def _sealed(keys: DeviceKeys, to: int, public: PublicKeys, text: bytes) -> bytes:
    key = _agreed(keys.channel, public.channel, keys.context + b"share" + _numbered(keys.device) + _numbered(to))
    return bytes(_cryptography().ChaCha20Poly1305(key).encrypt(bytes(12), text, None))  # each key is used once


def _opened(keys: DeviceKeys, sender: int, public: PublicKeys, sealed: bytes) -> bytes | None:
    """Return a sender's decrypted shares; None if it did not encrypt them for this device."""
    crypto = _cryptography()
    key = _agreed(keys.channel, public.channel, keys.context + b"share" + _numbered(sender) + _numbered(keys.device))
    try:
        text = bytes(crypto.ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None))
    except crypto.InvalidTag:
        return None
    return text


def _stream(key: bytes, about: bytes, size: int) -> Bytes:
    """Return ``size`` bytes of the ChaCha20 stream of a key derived from ``key`` and ``about``."""
    crypto = _cryptography()
    key = bytes(crypto.HKDF(crypto.hashes.SHA256(), KEY_BYTES, None, about + b"stream").derive(key))
    cipher = crypto.Cipher(crypto.ChaCha20(key, bytes(16)), mode=None)
    return np.frombuffer(bytearray(cipher.encryptor().update(bytes(size))), np.uint8)


def _numbered(device: int) -> bytes:
    return device.to_bytes(8, "little")


@cache
def _cryptography() -> SimpleNamespace:
    """Return the parts of the package cryptography in use; simulations do not need it.

    Raises:
        SettingError: cryptography is not installed.
    """
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise SettingError("secure sums need cryptography: pip install 'fedfloor[deploy]'.") from error
    return SimpleNamespace(
        InvalidTag=InvalidTag, hashes=hashes, x25519=x25519, Cipher=Cipher, ChaCha20Poly1305=ChaCha20Poly1305,
        ChaCha20=ChaCha20, HKDF=HKDF,
    )  # fmt: skip
