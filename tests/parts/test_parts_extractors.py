"""Feature extractors: what they make of samples of every kind, and of what they cannot take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedfloor.base.errors import RunError
from fedfloor.base.outside import load
from fedfloor.park.build import build
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.park.partition import Dominant
from fedfloor.parts.named import to_spec
from fedfloor.parts.objectives.extractors import (
    EXTRACTORS,
    FeatureExtractor,
    Hog,
    MobileNet,
    RandomConv,
    Raw,
    Scaling,
    block_rows,
    extractor,
    mean_features,
)
from refusals import refused

PICTURES = [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 9, 17), (2, 16, 11)]
SENSORS = [(52,), (1,), (52, 20), (2, 3), (3, 1)]
TINY = [(1, 1, 1), (3, 2, 7)]
BYTES = Scaling(1 / 255, np.zeros(3), np.ones(3))


def shown(shape: tuple[int, ...], n: int = 5, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    drawn = rng.random((n, *shape)) if len(shape) == 3 else rng.standard_normal((n, *shape))
    return drawn.astype(np.float32)


def stored(n: int, shape: tuple[int, ...] = (1, 28, 28)) -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 256, (n, *shape), np.uint8)


FITTING = [
    *((name, shape) for name in ("raw", "random-conv") for shape in (*PICTURES, *SENSORS, *TINY)),
    *(("hog", shape) for shape in PICTURES),
]


@pytest.mark.parametrize(("name", "shape"), FITTING)
def test_every_extractor_makes_what_its_dimension_says_and_the_same_each_time(
    name: str, shape: tuple[int, ...]
) -> None:
    if name == "hog":
        pytest.importorskip("skimage")
    x = shown(shape)
    before = x.copy()
    found = extractor(name, {}).features(x)
    assert found.dtype == np.float32
    assert found.shape == (5, extractor(name, {}).dimension(shape))
    np.random.seed(7)
    torch.manual_seed(7)
    np.testing.assert_array_equal(extractor(name, {}).features(x), found)
    np.testing.assert_array_equal(x, before)  # and it was not changed
    one_by_one = np.concatenate([extractor(name, {}).features(x[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(one_by_one, found, rtol=1e-5, atol=1e-6)
    for constant in (0.0, 1.0):
        assert np.isfinite(extractor(name, {}).features(np.full_like(x, constant))).all()


# -- what an extractor is shown ----------------------------------------------------------------------------------------


def test_pictures_are_shown_from_0_to_1_whatever_the_networks_normalisation() -> None:
    x = np.array([0, 51, 255], np.uint8).reshape(1, 1, 1, 3)
    got = Scaling(1 / 255, np.array([0.5]), np.array([0.1])).values(x)
    np.testing.assert_allclose(got.ravel(), [0, 0.2, 1], rtol=1e-6)


def test_sensors_are_shown_standardised_and_missing_ones_as_the_mean() -> None:
    """(2·1000.1 − 2000)/0.01 = 20 within the float32 of 1000.1, whose spacing of 6e-5 is 0.006 deviations."""
    scaling = Scaling(2.0, np.array([2000.0, -1.0]), np.array([0.01, 4.0]))
    x = np.array([[1000.1, 3.5], [np.nan, -0.5]], np.float32)
    np.testing.assert_allclose(scaling.values(x), [[20, 2], [0, 0]], atol=0.01)
    windows = np.stack([x, x], axis=2)  # the same at two times
    np.testing.assert_array_equal(scaling.values(windows)[..., 1], scaling.values(x))


def test_the_parks_own_scaling_standardises_its_rows() -> None:
    """Two devices of 2 and 1 rows: of all rows, the mean of standardised values is 0 and that of squares is 1."""
    rows = np.array([[1.0, 5.0], [3.0, 9.0], [8.0, 1.0]], np.float32)
    scaling = Scaling(1.0, rows.mean(0).astype(float), rows.std(0).astype(float))
    means = [mean_features(Raw(), part, scaling) for part in (rows[:2], rows[2:])]
    np.testing.assert_allclose((2 * means[0] + means[1]) / 3, 0, atol=1e-6)
    np.testing.assert_allclose((scaling.values(rows) ** 2).mean(0), 1, rtol=1e-5)


# -- the mean that leaves a device -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_the_mean_does_not_depend_on_blocks(n: int) -> None:
    x = stored(n)
    together = RandomConv().features(BYTES.values(x)).mean(0, dtype=np.float64)
    np.testing.assert_allclose(mean_features(RandomConv(), x, BYTES), together, rtol=1e-5, atol=1e-6)


def test_the_mean_of_raw_pictures_is_the_mean_picture() -> None:
    x = stored(150, (3, 5, 4))
    got = mean_features(Raw(), x, BYTES)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, (x.mean(axis=0) / 255).ravel(), rtol=1e-6)


@given(cut=st.integers(1, 129))
def test_two_devices_together_have_the_weighted_mean_of_theirs(cut: int) -> None:
    x = stored(130, (1, 6, 6))
    apart = [mean_features(RandomConv(), part, BYTES).astype(float) for part in (x[:cut], x[cut:])]
    together = mean_features(RandomConv(), x, BYTES)
    np.testing.assert_allclose((cut * apart[0] + (130 - cut) * apart[1]) / 130, together, rtol=1e-4, atol=1e-6)


def test_large_pictures_come_in_smaller_blocks() -> None:
    """A block holds 32 MiB of floats: 2²³ numbers, 42 pictures of 3·256·256 and none of 4·2048·2048, so one."""
    assert [block_rows(shape) for shape in ((52,), (3, 256, 256), (4, 2048, 2048))] == [64, 42, 1]


def test_what_an_own_extractor_makes_is_checked() -> None:
    class Wrong(Raw):
        def __init__(self, made: NDArray[np.float32]) -> None:
            object.__setattr__(self, "made", made)

        def features(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
            return self.made  # type: ignore[attr-defined,no-any-return]

    x = stored(2, (1, 2, 2))
    with refused("own-extractor", RunError):
        mean_features(Wrong(np.zeros((2, 3), np.float32)), x, BYTES)
    with refused("own-extractor", RunError):
        mean_features(Wrong(np.full((2, 4), np.nan, np.float32)), x, BYTES)
    with refused("samples of a device"):
        mean_features(Raw(), x[:0], BYTES)


# -- random convolutions -----------------------------------------------------------------------------------------------


def test_a_picture_is_convolved_and_averaged_by_hand() -> None:
    """8×8 with 5×5 filters leaves 4×4 responses, one for each of the 4×4 averages; written out as sums of products."""
    one = RandomConv(filters=3, seed=4)
    x = shown((2, 8, 8), n=1)
    w = one.weights((2, 8, 8))
    wanted = [
        max(0.0, float((w[m] * x[0, :, i : i + 5, j : j + 5]).sum()))
        for m in range(3)
        for i in range(4)
        for j in range(4)
    ]
    np.testing.assert_allclose(one.features(x)[0], wanted, rtol=1e-4, atol=1e-6)


def test_a_window_is_convolved_in_time_and_averaged_by_hand() -> None:
    """12 rows with filters over 5 leave 8 responses; each of the 4 averages is over 2 in a row."""
    one = RandomConv(filters=1)
    x = shown((3, 12), n=1)
    w = one.weights((3, 12))
    assert w.shape == (4, 3, 5)
    said = np.array([[max(0.0, float((w[m] * x[0, :, t : t + 5]).sum())) for t in range(8)] for m in range(4)])
    np.testing.assert_allclose(one.features(x)[0], said.reshape(4, 4, 2).mean(2).ravel(), rtol=1e-4, atol=1e-6)


def test_rows_meet_random_directions() -> None:
    one = RandomConv(filters=2)
    x = shown((7,))
    np.testing.assert_allclose(one.features(x), np.maximum(0, x @ one.weights((7,)).T), rtol=1e-5, atol=1e-6)


@given(a=st.floats(0, 100, width=32), shape=st.sampled_from([(1, 9, 9), (4, 6), (5,)]))
def test_random_features_grow_with_their_sample(a: float, shape: tuple[int, ...]) -> None:
    x = shown(shape, n=2)
    grown = RandomConv().features(np.float32(a) * x)
    wanted = a * RandomConv().features(x)
    np.testing.assert_allclose(grown, wanted, rtol=0, atol=1e-5 * (a + 1e-30))  # sums of numbers of about a round so


def test_an_even_picture_says_nothing_and_power_is_kept() -> None:
    """Filters have mean 0. Their numbers have variance 2/fan-in, so that E[max(0, w·x)²] = |x|²/fan-in for rows."""
    assert RandomConv().features(np.full((1, 1, 28, 28), 0.7, np.float32)).max() < 1e-5
    x = np.ones((1, 50), np.float32)
    power = float((RandomConv(filters=1000).features(x) ** 2).mean())  # of 16,000, each with a deviation of √5
    assert power == pytest.approx(1, abs=5 * np.sqrt(5 / 16000))


def test_another_seed_is_another_extractor() -> None:
    x = shown((1, 28, 28))
    assert not np.allclose(RandomConv(seed=1).features(x), RandomConv(seed=2).features(x))


# -- histograms of gradients -------------------------------------------------------------------------------------------


def test_a_ramp_has_gradients_in_one_direction() -> None:
    """Brightness rises from left to right: all gradients have angle 0, the first of 9 bins; blocks have length 1."""
    pytest.importorskip("skimage")
    ramp = np.broadcast_to(np.linspace(0, 1, 28, dtype=np.float32), (1, 1, 28, 28))
    bins = Hog().features(ramp).reshape(9, 4, 9)  # blocks, cells, orientations
    assert (bins[..., 1:] == 0).all()
    np.testing.assert_allclose((bins**2).sum(axis=(1, 2)), 1, rtol=1e-3)
    assert (Hog().features(np.full((1, 3, 32, 32), 0.4, np.float32)) == 0).all()


def test_a_grey_picture_in_three_equal_colours_has_the_same_gradients() -> None:
    pytest.importorskip("skimage")
    grey = shown((1, 28, 28))
    np.testing.assert_array_equal(Hog().features(grey), Hog().features(np.repeat(grey, 3, axis=1)))


def test_hog_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("extractor"):
        Hog().dimension((52,))
    with refused("extractor"):
        Hog().features(shown((1, 7, 20)))
    monkeypatch.setitem(sys.modules, "skimage.feature", None)
    with refused("extractor"):
        Hog().features(shown((1, 8, 8)))


# -- by name -----------------------------------------------------------------------------------------------------------


def test_extractors_by_name() -> None:
    for name in set(EXTRACTORS) - {"onnx"}:
        made = extractor(name, {})
        assert extractor(*to_spec(made, EXTRACTORS)) == made
        assert made.needs_model is (name == "penultimate")
    assert to_spec(extractor("onnx", {"weights": "a.onnx"}), EXTRACTORS) == ("onnx", {"weights": "a.onnx"})


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("mobilnet", {}, "unknown extractor"),
        ("random-conv", {"filter": 3}, "unknown setting of extractor 'random-conv'"),
        ("random-conv", {"filters": 0}, "random-conv filters"),
        ("random-conv", {"size": 0}, "random-conv size"),
        ("random-conv", {"seed": 0.5}, "part-settings"),
        ("hog", {"cells": 1}, "hog cells"),
        ("hog", {"orientations": 0}, "hog orientations"),
        ("mobilenet", {"side": 31}, "mobilenet side"),
        ("onnx", {}, "part-settings"),
        ("raw", {"scale": 1}, "part-settings"),
    ],
)
def test_wrong_names_and_settings(name: str, settings: dict[str, int], said: str) -> None:
    with refused(said):
        extractor(name, settings)


OWN = """
from dataclasses import dataclass
from fedfloor.parts.objectives.extractors import FeatureExtractor

@dataclass(frozen=True)
class Brightness(FeatureExtractor):
    times: float = 1.0

    def dimension(self, shape):
        return 1

    def features(self, x):
        return self.times * x.reshape(len(x), -1).mean(1, keepdims=True)

@dataclass(frozen=True)
class Half(FeatureExtractor):
    def dimension(self, shape):
        return 1
"""


def test_one_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_extractor.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    load("own_extractor:Brightness", "extractor")
    load("own_extractor:Half", "extractor")
    made = extractor("own_extractor:Brightness", {"times": 2.0})
    x = stored(3)
    np.testing.assert_allclose(mean_features(made, x, BYTES), [2 * x.mean() / 255], rtol=1e-5)
    assert to_spec(made, EXTRACTORS) == ("own_extractor:Brightness", {"times": 2.0})
    with refused("own-part"):
        extractor("own_extractor:Half", {})
    load("os:system", "extractor")
    with refused("own-part"):
        extractor("os:system", {"command": "true"})


def test_penultimate_is_the_engines() -> None:
    made: FeatureExtractor = extractor("penultimate", {})
    for ask in (lambda: made.dimension((1, 8, 8)), lambda: made.features(shown((1, 8, 8)))):
        with refused("extractor", RunError):
            ask()


def test_sensors_and_four_channels_are_not_for_mobilenet() -> None:
    for shape in ((52,), (52, 20)):
        with refused("extractor"):
            MobileNet().dimension(shape)
    with refused("extractor"):
        MobileNet().features(shown((4, 32, 32)))


def test_looking_at_extractors_does_not_wait_for_their_libraries() -> None:
    program = (
        "import sys, fedfloor.parts.objectives.extractors; "
        "print({'torch', 'transformers', 'skimage', 'onnxruntime', 'scipy'} & set(sys.modules))"
    )
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert got.stdout == "set()\n", got.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raw", "random-conv", "hog"])
def test_devices_of_one_label_are_nearest_to_each_other(data_root: Path, name: str) -> None:
    """FLDG's case 1 on MNIST, 100 devices of 100 samples: almost each one's nearest other device has its label."""
    if name == "hog":
        pytest.importorskip("skimage")
    park = build("mnist", root=data_root, devices=100, partition=Dominant(case=1, samples=100))
    scaling = Scaling(park.dataset.scale, *mean_and_deviation(park, "auto"))
    means = np.array([mean_features(extractor(name, {}), park.samples(k)[0], scaling) for k in range(100)])
    apart = np.linalg.norm(means[:, None] - means[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    label = park.counts().argmax(axis=1)
    assert (label[apart.argmin(axis=1)] == label).mean() > 0.97
