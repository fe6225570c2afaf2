from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Dataset, SamplePool, pooled
from fedfloor.park.build import build
from fedfloor.park.described import describe, device_accuracy, digest_tests
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.park.park import Park
from fedfloor.park.partition import Dirichlet, Iid, Shards
from fedfloor.park.stream import Static
from refusals import refused


def tiny() -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (12, 2, 3, 3), dtype=np.uint8)
    x[:, 1] //= 2
    y = np.arange(12) % 3
    return pooled("tiny", ("a", "b", "c"), SamplePool(x, y), SamplePool(x[:5], y[:5]), "digest")


def tiny_park(dataset: Dataset | None = None, **settings: object) -> Park:
    parts = (np.array([0, 3, 6, 9, 1]), np.array([2, 4]), np.array([5, 7, 8, 10, 11]))
    return Park(dataset or tiny(), parts, np.array([1, 0, 1], np.int32), **settings)  # type: ignore[arg-type]


def test_numbers_by_hand() -> None:
    park = tiny_park()
    assert (park.devices, park.factories) == (3, 2)
    assert park.sizes.tolist() == [5, 2, 5]
    assert park.members(0) == (1,)
    assert park.members(1) == (0, 2)
    assert park.counts().tolist() == [[4, 1, 0], [0, 1, 1], [0, 2, 3]]
    assert park.counts() is park.counts()
    with refused("factory"):
        park.members(2)


def test_samples_and_test() -> None:
    park = tiny_park()
    x, y = park.samples(1)
    np.testing.assert_array_equal(x, park.dataset.take(np.array([2, 4]), 1))
    assert y.tolist() == [2, 1]
    x, y = park.test()
    assert (len(x), y.tolist()) == (5, [0, 1, 2, 0, 1])
    x, y = park.test(np.array([4, 2]))
    assert (len(x), y.tolist()) == (2, [1, 2])


@dataclass(frozen=True)
class Sliding:
    """A test's stream: two samples from the position on, so that both clocks can be seen in the census."""

    by_visits: bool
    kind: str = "sliding"

    def position(self, tick: int, visits: int) -> int:
        return visits if self.by_visits else tick

    def holds(self, size: int) -> int:
        return 2

    def held(self, labels: np.ndarray, seed: int, device: int, position: int, least: int = 1) -> np.ndarray:
        return (np.arange(least)[:, None] + np.arange(2) + position) % len(labels)


def test_census() -> None:
    assert tiny_park().census([2, 0], 5, [1, 1]).tolist() == [[0, 2, 3], [4, 1, 0]]
    assert tiny_park().census([], 0, []).shape == (0, 3)
    by_tick = tiny_park(stream=Sliding(by_visits=False))
    assert by_tick.census([0], 3, [0]).tolist() == [[1, 1, 0]]  # local samples 3 and 4: numbers 9 and 1
    by_visits = tiny_park(stream=Sliding(by_visits=True))
    assert by_visits.census([0, 2], 3, [0, 4]).tolist() == [[2, 0, 0], [0, 0, 2]]
    with refused("visits-and-devices"):
        by_visits.census([0, 2], 3, [0])


def test_sums_per_device_give_the_pooled_statistics() -> None:
    park = tiny_park()
    mean, std = mean_and_deviation(park, "standard")
    pool = park.dataset.take(np.concatenate(park.indices), 0) / 255
    np.testing.assert_allclose(mean, pool.mean(axis=(0, 2, 3)), rtol=1e-12)  # float64 rounding of a few sums
    np.testing.assert_allclose(std, pool.std(axis=(0, 2, 3)), rtol=1e-12)
    mean, std = mean_and_deviation(park, "unit")
    assert (mean.tolist(), std.tolist()) == ([0, 0], [1, 1])
    mean, std = mean_and_deviation(park, "symmetric")
    assert [((value - mean) / std).tolist() for value in (0.0, 1.0)] == [[-1, -1], [1, 1]]
    with refused("unknown normalisation"):
        mean_and_deviation(park, "standart")  # type: ignore[arg-type]


def test_a_constant_channel_is_not_divided_by_zero() -> None:
    x = np.full((12, 1, 2, 2), 7, np.uint8)
    y = np.arange(12) % 3
    park = tiny_park(pooled("flat", ("a", "b", "c"), SamplePool(x, y), SamplePool(x, y), ""))
    mean, std = mean_and_deviation(park, "standard")
    assert mean[0] == pytest.approx(7 / 255)
    assert std.tolist() == [1.0]


def test_made_images_are_kept_up_to_the_limit() -> None:
    dataset = tiny()
    made: list[int] = []

    def take(indices: np.ndarray, device: int) -> np.ndarray:
        made.append(device)
        return dataset.take(indices, device)

    per_image = 2 * 3 * 3
    park = tiny_park(replace(dataset, take=take, rendered=True), cache_bytes=7 * per_image)  # devices hold 5, 2, 5
    for device in (0, 1, 0, 1):
        park.samples(device)
    assert made == [0, 1]  # 5 + 2 images fit
    park.samples(2)  # drives out device 0, the least recently used; with device 1 that makes 7 again
    park.samples(1)
    assert made == [0, 1, 2]
    park.samples(0)
    assert made == [0, 1, 2, 0]
    np.testing.assert_array_equal(park.samples(2)[0], dataset.take(park.indices[2], 2))
    none = tiny_park(replace(dataset, take=take, rendered=True), cache_bytes=0)
    made.clear()
    none.samples(0)
    none.samples(0)
    assert made == [0, 0]


def test_pooled_is_everybody_in_device_order() -> None:
    rendered = tiny_park(replace(tiny(), rendered=True))
    for park in (tiny_park(), rendered):
        x, y = park.pooled()
        order = [0, 3, 6, 9, 1, 2, 4, 5, 7, 8, 10, 11]
        np.testing.assert_array_equal(x, park.dataset.take(np.array(order), 0))
        assert y.tolist() == [number % 3 for number in order]
    assert tiny_park().test_samples == 5


def test_device_accuracy_by_hand() -> None:
    right = np.array([True, False, True, True, False])
    by_class = np.array([1.0, 0.5, np.nan])
    # Without owners: device 0 holds classes a, b as 4 : 1, so 0.8 · 1 + 0.2 · 0.5. The others hold b and c; c has no
    # test sample, so b alone is left.
    np.testing.assert_allclose(device_accuracy(tiny_park(), right, by_class), [0.9, 0.5, 0.5])
    # Device 1 holds nothing but b and c, device 2 likewise: without tests of either nothing is known of them.
    only_a = np.array([1.0, np.nan, np.nan])
    np.testing.assert_allclose(device_accuracy(tiny_park(), right, only_a), [1.0, np.nan, np.nan])
    # every class known: device 2 holds b, c as 2 : 3, so 0.4 · 0.5 + 0.6 · 0.25
    every = np.array([1.0, 0.5, 0.25])
    np.testing.assert_allclose(device_accuracy(tiny_park(), right, every), [0.9, 0.375, 0.35])
    owner = np.array([0, 0, 1, 0, 1, 2, 0, 2, 2, 0, 2, 2], np.int32)  # as the devices hold them
    owned = replace(tiny(), owner=owner, owner_test=np.array([0, 0, 0, 1, 1], np.int32))
    np.testing.assert_allclose(device_accuracy(tiny_park(owned), right, by_class), [2 / 3, 0.5, np.nan])


def test_describe_is_json() -> None:
    assert json.loads(json.dumps(describe(tiny_park()))) == {
        "dataset": "tiny",
        "classes": ["a", "b", "c"],
        "shape": [2, 3, 3],
        "devices": [
            {"factory": 1, "samples": 5, "counts": [4, 1, 0]},
            {"factory": 0, "samples": 2, "counts": [0, 1, 1]},
            {"factory": 1, "samples": 5, "counts": [0, 2, 3]},
        ],
        "factories": 2,
        "raw_bytes": 216,  # 12 samples of 18 pixels of a byte
        "test_samples": 5,
        "device_accuracy": "expected",
        "test_sha256": digest_tests(tiny_park().dataset),
    }


def test_build_is_a_function_of_its_seed() -> None:
    def make(seed: int) -> Park:
        return build("labels", devices=6, factories=3, partition=Dirichlet(alpha=1.0), samples_per_device=20, seed=seed)

    one = make(0)
    again = make(0)
    other = make(1)
    assert describe(one) == describe(again) != describe(other)
    np.testing.assert_array_equal(one.samples(2)[0], again.samples(2)[0])
    assert one.sizes.sum() == 120
    assert one.stream == Static()


def test_a_device_prints_in_its_own_style_whatever_it_was_dealt() -> None:
    park = build("labels", devices=2, partition=Iid(), samples_per_device=20)
    np.testing.assert_array_equal(park.samples(1)[0], park.dataset.take(park.indices[1], 1))


def test_devices_may_be_left_out_only_where_the_owners_say_how_many() -> None:
    with refused("park.devices"):
        build("labels", partition=Iid())


@pytest.mark.slow
def test_femnist_writers_are_devices(data_root: Path) -> None:
    park = build("femnist", root=data_root, factories=10)
    assert (park.devices, park.factories, int(park.sizes.sum())) == (300, 10, 41_257)
    assert np.array_equal(park.counts().sum(axis=0), np.bincount(park.dataset.y, minlength=62))
    fewer = build("femnist", root=data_root, devices=30, factories=3, assignment="equal")
    assert fewer.devices == 30
    assert set(fewer.sizes.tolist()) <= set(park.sizes.tolist())


@pytest.mark.slow
def test_mnist_in_fedsrs_shards(data_root: Path) -> None:
    # FedSR: K = 20, ξ = 2 → 40 shards of 1,500, so 3,000 digits per device
    park = build("mnist", root=data_root, devices=20, factories=5, assignment="equal", partition=Shards(per_device=2))
    assert park.sizes.tolist() == [3000] * 20
    # a shard of 1,500 of sorted classes of 5,421 and more touches at most two labels
    assert (park.counts() > 0).sum(axis=1).max() <= 4
    assert [len(park.members(m)) for m in range(5)] == [4] * 5
    mean, std = mean_and_deviation(park, "standard")
    assert (round(float(mean[0]), 4), round(float(std[0]), 4)) == (0.1307, 0.3081)
    with pytest.raises(SettingError, match="devices is not set"):
        build("mnist", root=data_root, partition=Shards(per_device=2))
    with pytest.raises(SettingError, match="no natural owners"):
        build("mnist", root=data_root, devices=5)
