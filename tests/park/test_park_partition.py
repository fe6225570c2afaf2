from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.park.partition import Dirichlet, Dominant, Iid, Natural, Partition, Shards
from refusals import refused

CLASSES = 5
y_lists = st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=80)


def deal(partition: Partition, y: list[int] | np.ndarray, devices: int, owner: object = None, seed: int = 0):
    owners = None if owner is None else np.asarray(owner, np.int32)
    return partition.split(np.asarray(y, np.int64), owners, CLASSES, devices, np.random.default_rng(seed))


def assert_lawful(parts: list[np.ndarray], devices: int, total: int | None) -> None:
    """K sorted int64 arrays, none empty, no sample twice; all samples dealt where ``total`` is given."""
    assert len(parts) == devices
    for part in parts:
        assert part.dtype == np.int64
        assert len(part) > 0
        assert np.all(np.diff(part) > 0)
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    if total is not None:
        assert sorted(together.tolist()) == list(range(total))


@given(y=y_lists, data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_iid_laws(y: list[int], data: st.DataObject, seed: int) -> None:
    devices = data.draw(st.integers(1, len(y)))
    parts = deal(Iid(), y, devices, seed=seed)
    assert_lawful(parts, devices, len(y))
    assert {len(part) for part in parts} <= {len(y) // devices, -(-len(y) // devices)}


@given(y=y_lists, data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_shards_laws(y: list[int], data: st.DataObject, seed: int) -> None:
    per_device = data.draw(st.integers(1, min(4, len(y))))
    devices = data.draw(st.integers(1, len(y) // per_device))
    parts = deal(Shards(per_device=per_device), y, devices, seed=seed)
    assert_lawful(parts, devices, len(y))
    low = len(y) // (devices * per_device)
    assert all(low * per_device <= len(part) <= (low + 1) * per_device for part in parts)


@given(y=st.lists(st.integers(0, CLASSES - 1), min_size=30, max_size=80), devices=st.integers(1, 5),
       alpha=st.floats(0.3, 1e6), seed=st.integers(0, 99))  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_dirichlet_laws(y: list[int], devices: int, alpha: float, seed: int) -> None:
    assert_lawful(deal(Dirichlet(alpha=alpha), y, devices, seed=seed), devices, len(y))


@given(case=st.sampled_from([1, 2, 3, 4]), samples=st.integers(1, 30), devices=st.integers(1, 12),
       seed=st.integers(0, 99))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_dominant_laws(case: int, samples: int, devices: int, seed: int) -> None:
    y = np.arange(CLASSES * 200) % CLASSES  # plenty
    parts = deal(Dominant(case=case, samples=samples), y, devices, seed=seed)  # type: ignore[arg-type]
    assert_lawful(parts, devices, None)
    percent = {1: 100, 2: 50, 3: 80, 4: 50}[case]
    for k, part in enumerate(parts):
        counts = np.bincount(y[part], minlength=CLASSES)
        assert counts.sum() == samples
        assert counts[k % CLASSES] == int(samples * percent / 100 + 0.5)  # halves are rounded up
        others = np.delete(counts, k % CLASSES)
        if case == 2:
            assert np.count_nonzero(others) <= 1
        else:
            assert others.max() - others.min() <= 1  # in equal numbers
    for start in range(0, devices - CLASSES + 1, CLASSES):  # F devices in a row want the same of each label
        row = np.concatenate(parts[start : start + CLASSES])
        assert np.bincount(y[row], minlength=CLASSES).tolist() == [samples] * CLASSES


@given(owner=st.lists(st.integers(0, 9), min_size=1, max_size=60), data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_natural_laws(owner: list[int], data: st.DataObject, seed: int) -> None:
    owners = sorted(set(owner))
    devices = data.draw(st.integers(1, len(owners)))
    parts = deal(Natural(), [0] * len(owner), devices, owner, seed)
    assert_lawful(parts, devices, len(owner) if devices == len(owners) else None)
    whose = [set(np.asarray(owner)[part].tolist()) for part in parts]
    assert all(len(one) == 1 for one in whose)
    order = [one.pop() for one in whose]
    assert order == sorted(order)  # each owner is a device, in the owners' order
    assert [len(part) for part in parts] == [owner.count(name) for name in order]


@pytest.mark.parametrize("partition", [Natural(), Iid(), Dirichlet(alpha=0.5), Shards(per_device=2), Dominant(case=2)])
def test_equal_seeds_give_equal_parts_and_others_differ(partition: Partition) -> None:
    y = np.arange(200) % CLASSES
    first, again, other = (deal(partition, y, 10, np.arange(200) // 10, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_shards_by_hand() -> None:
    # 12 samples, 3 of each of 4 labels; 3 devices × 2 shards of 2 samples: sorted by label (stable) the shards are
    # {0,4} {8,1} {5,9} {2,6} {10,3} {7,11}; each device gets two of them.
    y = np.arange(12) % 4
    shards = [{0, 4}, {8, 1}, {5, 9}, {2, 6}, {10, 3}, {7, 11}]
    for part in deal(Shards(per_device=2), y, 3):
        held = set(part.tolist())
        assert sum(shard <= held for shard in shards) == 2
        assert len(held) == 4


def test_fedsr_shards_have_at_most_per_device_labels_when_shards_divide_the_classes() -> None:
    # K = 20, ξ = 2 (FedSR, section IV) on 5 equal classes: 40 shards, 8 per class, so a shard has one label
    y = np.repeat(np.arange(5), 400)
    assert all(len(np.unique(y[part])) <= 2 for part in deal(Shards(per_device=2), y, 20))


@pytest.mark.parametrize("case", [1, 2, 3, 4])
def test_dominant_deals_all_equal_classes_where_the_devices_are_a_multiple_of_them(case: int) -> None:
    # FLDG on CIFAR-10: 100 devices × 500 = 50,000 samples; here 10 devices × 20 = 200 of 5 classes with 40 each
    parts = deal(Dominant(case=case), np.arange(200) % CLASSES, 10)  # type: ignore[arg-type]
    assert_lawful(parts, 10, 200)
    assert {len(part) for part in parts} == {20}


def test_dominant_by_hand() -> None:
    # case 3, n = 11 of 5 labels: ⌊(880 + 50)/100⌋ = 9 preferred, 2 left for 4 others: one each of the next two in the
    # cycle. Case 4: ⌊(550 + 50)/100⌋ = 6, then 5 = 2 + 1 + 1 + 1. Case 2: 6 and 5. The cycle of seed 3, as drawn first:
    y = np.arange(1000) % CLASSES
    cycle = np.random.default_rng(3).permutation(CLASSES)  # label → its place
    order = np.argsort(cycle).tolist()  # place → label
    for case, shares in ((1, [11, 0, 0, 0, 0]), (2, [6, 5, 0, 0, 0]), (3, [9, 1, 1, 0, 0]), (4, [6, 2, 1, 1, 1])):
        for k, part in enumerate(deal(Dominant(case=case, samples=11), y, 4, seed=3)):
            at = order.index(k)
            assert [int((y[part] == label).sum()) for label in order[at:] + order[:at]] == shares


def test_drawn_preferences_are_unequal_and_shares_are_those_of_the_case() -> None:
    y = np.arange(CLASSES * 2000) % CLASSES
    counts = np.array([np.bincount(y[part], minlength=CLASSES) for part in
                       deal(Dominant(case=3, samples=11, labels="drawn"), y, 200, seed=3)])  # fmt: skip
    assert np.sort(counts, axis=1).tolist() == [[0, 0, 1, 1, 9]] * 200
    preferred = np.bincount(counts.argmax(axis=1), minlength=CLASSES)
    # 40 devices a label on average, with a standard deviation of √(200·⅕·⅘) ≈ 5.7
    assert preferred.sum() == 200
    assert preferred.max() > preferred.min()
    np.testing.assert_allclose(preferred, 40, atol=4 * 5.7)


def test_second_labels_are_uniform() -> None:
    y = np.arange(1000) % CLASSES
    seconds = [np.bincount(y[deal(Dominant(case=2, samples=2), y, 1, seed=s)[0]], minlength=5) for s in range(400)]
    # device 0 prefers 0; the others come 100 times each on average, with a standard deviation of √(400·¼·¾) ≈ 8.7
    np.testing.assert_allclose(np.sum(seconds, axis=0)[1:], 100, atol=4 * 8.7)


def test_what_a_dominant_partition_recommends_fits_and_one_more_does_not() -> None:
    y = np.repeat(np.arange(5), [40, 60, 60, 25, 60])
    for case in (1, 2, 3, 4):
        with refused("partition") as caught:
            deal(Dominant(case=case, samples=20), y[y != 0].tolist() + [0] * 99, 10)  # type: ignore[arg-type]
        fit = int(str(caught.value).rsplit(" ", 1)[1].rstrip("."))
        assert fit == 12  # two devices per label: ⌊25/2⌋
        deal(Dominant(case=case, samples=fit), y, 10)  # type: ignore[arg-type]
        with refused("partition"):
            deal(Dominant(case=case, samples=fit + 1), y, 10)  # type: ignore[arg-type]


def test_dirichlet_shares_follow_the_law() -> None:
    # Of one class, device k's share is Beta(α, (K−1)α): mean 1/K, variance (1/K)(1−1/K)/(Kα+1).
    y = np.zeros(4000, np.int64)
    devices = 4
    alpha = 2.0
    shares = np.array([[len(p) / 4000 for p in deal(Dirichlet(alpha=alpha), y, devices, seed=s)] for s in range(300)])
    expected = 0.25 * 0.75 / (devices * alpha + 1)
    # 1200 dependent draws: the standard error of the variance is about 5 %; 4 of them
    assert shares.var() == pytest.approx(expected, rel=0.2)
    np.testing.assert_allclose(shares.mean(axis=0), 0.25, atol=4 * np.sqrt(expected / 300))


def test_large_alpha_is_nearly_equal() -> None:
    y = np.arange(1000) % CLASSES
    for part in deal(Dirichlet(alpha=1e6), y, 4):
        np.testing.assert_allclose(np.bincount(y[part], minlength=CLASSES), 50, atol=1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dirichlet(alpha=0.0), "partition alpha"),
        (lambda: Dirichlet(alpha=-1.0), "partition alpha"),
        (lambda: Dirichlet(alpha=float("nan")), "partition alpha"),
        (lambda: Dirichlet(alpha=float("inf")), "partition alpha"),
        (lambda: Dirichlet(alpha=2e6), "partition alpha"),
        (lambda: Shards(per_device=0), "partition per_device"),
        (lambda: deal(Natural(), [0, 1], 1), "partition"),
        (
            lambda: deal(Natural(), [0, 1, 2], 3, [0, 0, 1]),
            "park.devices",
        ),
        (lambda: deal(Natural(at_least=3), [0, 1, 2], 1, [0, 0, 1]), "park.devices"),
        (lambda: deal(Iid(), [0, 1], 3), "park.devices"),
        (lambda: deal(Iid(), [0, 1], 0), "park.devices"),
        (lambda: deal(Dirichlet(), [0, 1], 3), "park.devices"),
        (lambda: deal(Shards(per_device=2), [0, 1, 2], 2), "partition"),
        (lambda: Dominant(case=5), "partition case"),
        (lambda: Dominant(samples=0), "partition samples"),
        (lambda: Dominant(labels="some"), "partition labels"),  # type: ignore[arg-type]
        (lambda: Dominant(samples=10**30), "partition samples"),
        (lambda: deal(Dominant(), [0, 1], 3), "park.devices"),
        (lambda: deal(Dominant(samples=10**9), [0, 1], 2), "partition"),
        (lambda: deal(Dominant(), [0, 0, 0], 3), "partition"),
        (
            lambda: Dominant(case=2).split(np.zeros(4, int), None, 1, 2, np.random.default_rng(0)),
            "partition case",
        ),
        (lambda: deal(Dirichlet(alpha=1e-3), [0] * 50, 20), "partition"),
    ],
)
def test_impossible_partitions_are_refused(make, words: str) -> None:
    with refused(words):
        make()
