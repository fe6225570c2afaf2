"""Shares of secrets (Shamir, "How to share a secret", 1979), of which false ones are found by decoding.

A secret is the value at 0 of a random polynomial modulo a prime; holder k has its value at k + 1.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest

Polynomial = list[int]
PRIME = 2**255 - 19  # modulus of the field of shares
KEY_BYTES = 32  # size of a key, a seed, a share
DROPPED = 500  # most sets of holders that are left out to find false shares


class LostSumError(Exception):
    """A failure to unmask a sum, as too few devices are left."""


def split(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Return a share of a secret < PRIME for each holder; ``threshold`` shares restore it, and fewer reveal nothing."""
    terms = [int.from_bytes(secret, "little"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]

    return {holder: _at(terms, holder + 1).to_bytes(KEY_BYTES, "little") for holder in holders}


def joined(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret from its shares: the polynomial's value at 0, by Lagrange's formula.

    Raises:
        LostSumError: fewer than ``threshold`` shares.

    >>> joined(dict(list(split(b"s" * 32, range(5), 3).items())[1:4]), 3) == b"s" * 32
    True
    """
    if len(shares) < threshold:
        raise LostSumError(f"{len(shares)} shares of a secret arrived; {threshold} are needed")
    points = [(holder + 1, int.from_bytes(share, "little")) for holder, share in sorted(shares.items())[:threshold]]
    value = 0
    for x, y in points:
        above = below = 1
        for other, _ in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        value = (value + y * above * pow(below, -1, PRIME)) % PRIME
    return value.to_bytes(KEY_BYTES, "little")


@dataclass(frozen=True)
class TrueShares:
    """Revealed shares without false ones.

    Args:
        revealed: holder → owner → share, without the false ones.
        false: (owner, holder) of each false share: one of the two is false.
        broken: owners whose shares are on no polynomial, whatever few of them are left out.
        radius: the least number of false shares of a secret that are always found, of the secrets that had any.
    """

    revealed: Mapping[int, Mapping[int, bytes]]
    false: frozenset[tuple[int, int]]
    broken: frozenset[int]
    radius: int


def corrected(revealed: Mapping[int, Mapping[int, bytes]], least: Callable[[int], int]) -> TrueShares:
    """Return the revealed shares without those that are not on the polynomial of their secret.

    Args:
        revealed: holder → owner → share.
        least: owner → the number of shares that restore its secret.
    """
    held: dict[int, dict[int, bytes]] = {}
    for holder, some in revealed.items():
        for owner, share in some.items():
            held.setdefault(owner, {})[holder] = share
    strange = {owner: strangers(shares, least(owner)) for owner, shares in held.items()}
    false = frozenset((owner, holder) for owner, holders in strange.items() for holder in holders or ())
    radii = [radius(len(held[owner]), least(owner)) for owner, holders in strange.items() if holders != set()]
    kept = {
        holder: {owner: share for owner, share in some.items() if (owner, holder) not in false}
        for holder, some in revealed.items()
    }
    broken = frozenset(owner for owner, holders in strange.items() if holders is None)
    return TrueShares(kept, false, broken, min(radii, default=0))


def radius(shares: int, threshold: int) -> int:
    """Return the number of false shares of a secret that :func:`strangers` always finds.

    >>> radius(9, 6), radius(65, 39), radius(5, 3), radius(3, 3)
    (2, 13, 1, 0)
    """
    most = max(0, shares - threshold) // 2
    while most + 1 < shares - threshold and math.comb(shares, most + 1) <= DROPPED:
        most += 1
    return most


def strangers(shares: Mapping[int, bytes], threshold: int) -> set[int] | None:
    """Return the holders of a secret's shares that are not on its polynomial; None if no polynomial has enough others.

    Up to half of the shares beyond the threshold are found by the decoder of Gao (2003) for codes of Reed and Solomon:
    with the polynomial g of all m shares, the remainder r and the cofactor v of Euclid's algorithm for Π(x − x_i) and
    g, stopped at 2·deg r < m + t, have the quotient r/v. Of few shares more are found by leaving out every set of
    holders.

    Args:
        shares: holder → share.
        threshold: t, the number of shares that restore the secret.

    >>> true = split(b"s" * 32, range(9), 6)
    >>> strangers(true, 6), strangers(true | {3: bytes(32)}, 6), strangers(true | {3: bytes(32), 8: bytes(32)}, 6)
    (set(), {3}, {8, 3})
    """
    points = {holder: (holder + 1, int.from_bytes(share, "little") % PRIME) for holder, share in shares.items()}
    if len(points) <= threshold:
        return set()
    found = _decoded(points, threshold)
    for size in range((len(points) - threshold) // 2 + 1, radius(len(points), threshold) + 1):
        if found is not None:
            break
        rests = (dict(rest) for rest in combinations(points.items(), len(points) - size))
        curves = {tuple(curve) for rest in rests if len(curve := _through([*rest.values()])) <= threshold}
        found = [*curves.pop()] if len(curves) == 1 else None
        if curves:  # several polynomials have as many shares
            return None
    return None if found is None else {holder for holder, (x, y) in points.items() if _at(found, x) != y}


def _decoded(points: Mapping[int, tuple[int, int]], threshold: int) -> Polynomial | None:
    """Return the polynomial of all but at most half of the points beyond the threshold, by Gao's decoder."""
    left, right = [1], _through([*points.values()])
    for x, _ in points.values():
        left = _product(left, [-x, 1])
    before = Polynomial()
    now = [1]
    while 2 * (len(right) - 1) >= len(points) + threshold:
        quotient, rest = _divided(left, right)
        left, right = right, rest
        before, now = now, _difference(before, _product(quotient, now))
    curve, rest = _divided(right, now)
    return None if rest or len(curve) > threshold else curve


# -- polynomials modulo PRIME, as coefficients in ascending order without zeros at the end ----------------------------


def _trimmed(terms: Iterable[int]) -> Polynomial:
    made = [term % PRIME for term in terms]
    while made and not made[-1]:
        made.pop()
    return made


def _at(curve: Polynomial, x: int) -> int:
    value = 0
    for term in reversed(curve):
        value = (value * x + term) % PRIME
    return value


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    made = [0] * (len(one) + len(other))
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            made[i + j] = (made[i + j] + a * b) % PRIME
    return _trimmed(made)


def _difference(one: Polynomial, other: Polynomial) -> Polynomial:
    return _trimmed(a - b for a, b in zip_longest(one, other, fillvalue=0))


def _divided(one: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return the quotient and the remainder of two polynomials."""
    rest = [*one]
    quotient = [0] * max(0, len(one) - len(by) + 1)
    inverse = pow(by[-1], -1, PRIME)
    for place in reversed(range(len(quotient))):
        factor = rest[place + len(by) - 1] * inverse % PRIME
        quotient[place] = factor
        for i, term in enumerate(by):
            rest[place + i] = (rest[place + i] - factor * term) % PRIME
    return _trimmed(quotient), _trimmed(rest)


def _through(points: Sequence[tuple[int, int]]) -> Polynomial:
    """Return the polynomial of the lowest degree through points, by Newton's divided differences."""
    xs = [x for x, _ in points]
    slopes = [y for _, y in points]
    for order in range(1, len(xs)):
        for i in reversed(range(order, len(xs))):
            slopes[i] = (slopes[i] - slopes[i - 1]) * pow(xs[i] - xs[i - order], -1, PRIME) % PRIME
    curve = Polynomial()
    for x, slope in zip(reversed(xs), reversed(slopes), strict=True):
        curve = _difference(_product(curve, [-x, 1]), [-slope])
    return curve
