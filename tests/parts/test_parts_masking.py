"""Secure sums: masks cancel for whoever drops out, and a sum of too few is refused."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.base.ranges import RefusedError
from fedfloor.parts.protection import masking, shares
from fedfloor.parts.protection.masking import FixedPoint, Residues
from fedfloor.parts.protection.shares import LostSumError
from refusals import refused

CONTEXT = b"run 1"


def protocol(
    vectors: dict[int, np.ndarray], ring: Residues, gone: tuple[Collection[int], ...], share: float
) -> tuple[np.ndarray, list[int]]:
    """Return the sum and its devices; ``gone`` drop out before keys, shares, vectors and unmasking."""
    order = masking.ring(list(vectors))
    around = {k: masking.neighbours(order, k) for k in vectors}
    keys = {k: masking.advertise(k, CONTEXT) for k in vectors if k not in gone[0]}
    public = {k: one.public for k, one in keys.items()}

    def near(k: int, of: Collection[int]) -> dict[int, masking.PublicKeys]:
        return {v: public[v] for v in around[k] if v in of}

    def least(k: int) -> int:
        return masking.threshold(share, 1 + len(near(k, public)))

    shared = {k: masking.share(keys[k], near(k, public), least(k)) for k in keys if k not in gone[1]}
    total = ring.zeros()
    survivors = [k for k in shared if k not in gone[2]]
    for k in survivors:
        ring.add(total, masking.masked(keys[k], near(k, shared), ring.packed(vectors[k], np.ones(4)), ring))

    def pairs(k: int) -> dict[int, bytes]:
        sealed = {v: shared[v][k] for v in shared if v != k and k in shared[v]}
        return {k: shared[k][k], **masking.opened(keys[k], public, sealed)}

    revealed = {
        k: masking.reveal(k, near(k, shared), pairs(k), survivors, least(k)) for k in survivors if k not in gone[3]
    }
    assert shares.corrected(revealed, least).revealed == revealed
    beside = {k: list(near(k, shared)) for k in shared}
    shared_keys = {k: public[k] for k in shared}
    return masking.unmasked(total, ring, shared_keys, beside, survivors, revealed, least, CONTEXT), survivors


@st.composite
def dropouts(draw: st.DrawFn, devices: int, share: float) -> tuple[set[int], ...]:
    left = list(range(devices))
    gone = []
    for _ in range(4):
        some = draw(st.sets(st.sampled_from(left), max_size=int(share * len(left)))) if left else set()
        left = [k for k in left if k not in some]
        gone.append(some)
    return tuple(gone)


@settings(max_examples=25, deadline=None)
@given(dropouts(20, 0.3), st.integers(0, 2**32 - 1), st.sampled_from([16, 32]), st.sampled_from([0.5, 2 / 3]))
def test_the_sum_is_the_plain_one_for_every_dropout_above_the_threshold(
    gone: tuple[set[int], ...], seed: int, bits: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    ring = Residues(7, bits)
    vectors = {k: rng.integers(-(2 ** (bits - 6)), 2 ** (bits - 6), 7) for k in range(20)}
    left = 20 - sum(map(len, gone))
    least = masking.threshold(share, 20 - len(gone[0]))
    if left < least:
        with pytest.raises((LostSumError, RefusedError)):
            protocol(vectors, ring, gone, share)
        return
    total, survivors = protocol(vectors, ring, gone, share)
    whole, figures = ring.signed(total)
    assert whole.tolist() == sum(vectors[k] for k in survivors).tolist()
    assert figures.tolist() == [len(survivors)] * 4


def test_many_devices_have_some_neighbours_and_the_same_sum() -> None:
    ring = Residues(3, 32)
    vectors = {k: np.full(3, k) for k in range(80)}
    total, survivors = protocol(vectors, ring, ({3}, {4, 5}, {6, 70}, {8}), 0.5)
    assert ring.signed(total)[0].tolist() == [sum(survivors)] * 3
    assert len(survivors) == 75


def test_a_sum_of_two_is_refused_and_so_is_one_below_the_threshold() -> None:
    ring = Residues(2, 32)
    vectors = {k: np.ones(2, np.int64) for k in range(4)}
    with refused("sum", RefusedError):
        protocol(vectors, ring, ((), (), (0, 1), ()), 0.5)
    with pytest.raises(LostSumError, match="2 shares of a secret arrived; 3 are needed"):
        protocol(vectors, ring, ((), (), (0,), (1,)), 0.5)
    with refused("sum", RefusedError):
        protocol({0: np.ones(2, np.int64), 1: np.ones(2, np.int64)}, ring, ((), (), (), ()), 0.5)


def test_a_masked_vector_alone_shows_nothing_of_the_vector() -> None:
    """Without the others' masks the numbers are spread over the whole modulus, whatever they were."""
    ring = Residues(20_000, 32)
    keys = {k: masking.advertise(k, CONTEXT) for k in range(3)}
    others = {k: keys[k].public for k in (1, 2)}
    sent = masking.masked(keys[0], others, ring.zeros(), ring)[:80_000].view("<u4")
    assert abs(sent.mean() / 2**31 - 1) < 0.02  # of uniform numbers: 0.004 standard deviations
    assert len(np.unique(sent)) > 19_990


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(3, 24), st.integers(0, 2**32 - 1))
def test_false_shares_up_to_the_radius_are_found_and_more_of_them_blame_no_true_one(
    data: st.DataObject, devices: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    least = masking.threshold(data.draw(st.sampled_from([0.51, 0.6, 0.9])), devices)
    true = shares.split(bytes(range(32)), range(devices), least)
    most = shares.radius(devices, least)
    false = set(rng.choice(devices, data.draw(st.integers(0, most)), replace=False).tolist())
    given_ = true | {holder: rng.bytes(31) + b"\0" for holder in false}
    assert shares.strangers(given_, least) == false
    if devices - least > most:  # one more: nothing is said, as whoever is named could be true
        more = true | {holder: rng.bytes(31) + b"\0" for holder in range(most + 1)}
        assert shares.strangers(more, least) in (None, set(range(most + 1)))


def test_a_polynomial_that_colluders_make_up_is_not_taken_for_that_of_the_secret() -> None:
    """Of nine shares of threshold 6 seven are on it, as on the true one: two true shares would be called false."""
    true = shares.split(bytes(range(32)), range(9), 6)
    points = {k: (k + 1, int.from_bytes(share, "little")) for k, share in true.items()}
    line = shares._through([points[k] for k in range(5)] + [(8, 12345)])
    forged = {k: shares._at(line, k + 1).to_bytes(32, "little") for k in (7, 8)}
    assert shares.strangers(true | forged, 6) is None
    assert shares.strangers(true | {7: forged[7]}, 6) == {7}


def test_false_shares_are_stated_with_their_owner_and_holder() -> None:
    held = {owner: shares.split(bytes([owner]) * 32, range(5), 2) for owner in (1, 2)}
    revealed = {holder: {owner: held[owner][holder] for owner in held} for holder in range(5)}
    assert shares.corrected(revealed, lambda _: 2) == shares.TrueShares(revealed, frozenset(), frozenset(), 0)
    for holder in range(5):
        got = shares.corrected({**revealed, holder: {**revealed[holder], 2: bytes(32)}}, lambda _: 2)
        assert (got.false, got.broken, got.radius) == ({(2, holder)}, set(), 2)
        assert got.revealed == {**revealed, holder: {1: revealed[holder][1]}}
    few = {holder: revealed[holder] for holder in (0, 1)}  # two shares always fit a line
    assert not shares.corrected(few | {0: {1: bytes(32)}}, lambda _: 2).false


def test_shares_of_another_sum_or_of_a_forger_are_not_opened() -> None:
    keys = {k: masking.advertise(k, CONTEXT) for k in range(3)}
    public = {k: one.public for k, one in keys.items()}
    others = {k: public[k] for k in (1, 2)}
    shares = {k: masking.share(keys[k], {v: public[v] for v in public if v != k}, 3)[0] for k in range(3)}
    sealed = {1: bytes(len(shares[1])), 2: shares[2]}
    assert set(masking.opened(keys[0], others, sealed)) == {2}
    other = masking.advertise(0, b"run 2")
    assert masking.opened(other, others, {2: shares[2]}) == {}
    with refused("sum", RefusedError):
        masking.share(keys[0], {1: public[1], 2: public[1]}, 3)


def test_fixed_point_sums_stay_within_the_modulus_and_are_as_near_as_their_step() -> None:
    fixed = FixedPoint.sized(4, 16, bound=2.0, weight=300.0, devices=3)
    changes = [np.array([2.0, -2.0, 0.013, 9.0]) for _ in range(3)]  # 9 is cut to 2
    total = fixed.ring.zeros()
    for change in changes:
        fixed.ring.add(total, fixed.encoded(change, 100.0, (0.5, 0.25, 1.0)))
    whole, weight, figures = fixed.decoded(total)
    assert weight == 300
    assert figures == (0.5, 0.25, 1.0)
    assert np.allclose(whole / weight, [2, -2, 0.013, 2], atol=2.0**-fixed.fraction / 100)
    with refused("travel.secure-sum.bits"):
        FixedPoint.sized(4, 16, 2.0, 300.0, 70_000)
