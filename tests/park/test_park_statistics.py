"""Normalisation: what devices tell gives the pooled mean and deviation, also where rounding is hard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.data.reading import Reading, Window
from fedfloor.engine.engine import Samples
from fedfloor.park import statistics
from fedfloor.park.build import build
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.park.statistics import device_sums, standard
from tables import load, plant, put

NUMBER = st.floats(-1e4, 1e4, width=32) | st.just(float("nan"))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=7), min_size=1, max_size=5))
def test_devices_tell_the_pooled_statistics(devices: list[list[tuple[float, float]]]) -> None:
    parts = [np.array(rows, np.float32) for rows in devices]
    mean, std = standard(map(device_sums, parts))
    every = np.concatenate(parts).astype(np.float64)
    for channel in range(2):
        known = every[~np.isnan(every[:, channel]), channel]
        wanted = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
        assert mean[channel] == pytest.approx(wanted[0], rel=1e-12, abs=1e-11)
        if len(known) and np.ptp(known) > 1e-6:
            assert std[channel] == pytest.approx(wanted[1], rel=1e-9)
        elif not len(known) or np.ptp(known) == 0:
            assert std[channel] == 1


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_small_deviations_of_large_values(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Σv²/n − mean² would leave nothing of a deviation of 0.01 at 1e6: 1e12 times 2⁻⁵³ is 1e-4, its square too."""
    monkeypatch.setattr(statistics, "CHUNK", 100)
    rng = np.random.default_rng(0)
    parts = [offset + rng.normal(0, 0.01, (n, 1)) for n in (1, 999, 3000)]
    mean, std = standard(device_sums(part) for part in parts)  # type: ignore[arg-type]
    every = np.concatenate(parts)
    assert mean[0] == pytest.approx(every.mean(), rel=1e-13, abs=1e-13)
    assert std[0] == pytest.approx(every.std(), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 / 3, -1e30, 1e-40])
def test_a_constant_channel_has_deviation_one(value: float) -> None:
    parts = [np.full((n, 1), value, np.float32) for n in (7, 1, 5000)]
    mean, std = standard(map(device_sums, parts))
    assert std[0] == 1
    assert mean[0] == np.float64(np.float32(value))


def test_bytes_are_summed_exactly() -> None:
    x = np.random.default_rng(0).integers(0, 256, (3000, 2, 3, 3), np.uint8)
    count, total, squares = device_sums(x)
    flat = x.transpose(1, 0, 2, 3).reshape(2, -1).astype(object)
    assert count.tolist() == [27000] * 2
    assert total.tolist() == flat.sum(axis=1).tolist()
    wanted = [float((channel**2).sum() - channel.sum() ** 2 / 27000) for channel in flat]
    assert squares == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("window", [None, Window(4, 3)])
def test_normalisation_of_a_table_with_holes_is_that_of_all_training_values(
    tmp_path: Path, window: Window | None
) -> None:
    rows = plant(lambda rows: (put(9, "speed", "")(rows), put(17, "temp", "")(rows), put(120, "temp", "")(rows)))
    park = build(load(tmp_path, rows, Reading(missing="mean", window=window)))
    mean, std = mean_and_deviation(park, "auto")
    x = park.pooled()[0].astype(np.float64)
    assert np.isnan(x).any()
    axes = (0,) if window is None else (0, 2)
    assert mean == pytest.approx(np.nanmean(x, axis=axes), rel=1e-12)
    assert std == pytest.approx(np.nanstd(x, axis=axes), rel=1e-12)


@pytest.mark.parametrize("shape", [(3,), (3, 4)])
def test_a_missing_value_is_the_mean_and_what_is_held_stays(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(5, 2, (6, *shape)).astype(np.float32)
    x[2, 1] = np.nan
    kept = x.copy()
    mean = torch.tensor([5.0, 4.0, 6.0])
    std = torch.tensor([2.0, 1.0, 3.0])
    samples = Samples(x, np.zeros(6, np.int64), mean, std, scale=1.0, channels_last=True, missing=True)
    side = (1,) * (len(shape) - 1)
    wanted = (x - mean.numpy().reshape(-1, *side)) / std.numpy().reshape(-1, *side)
    for rows in (slice(None), torch.tensor([2, 0])):
        got = samples.values(rows).numpy()
        assert (got[np.isnan(wanted[rows if isinstance(rows, slice) else rows.numpy()])] == 0).all()
        assert not np.isnan(got).any()
    assert np.array_equal(x, kept, equal_nan=True)
    assert np.allclose(samples.values(slice(0, 2)), wanted[:2], rtol=1e-6, atol=1e-6)
    strict = Samples(x, np.zeros(6, np.int64), mean, std, scale=1.0, channels_last=False)
    assert bool(strict.values(slice(None)).isnan().any())


def test_large_values_keep_what_tells_them_apart() -> None:
    """Neighbours in single precision at 1e6 lie 0.0625 apart: after normalisation they are whole numbers apart."""
    x = (1e6 + 0.0625 * np.arange(5, dtype=np.float32))[:, None].astype(np.float32)
    samples = Samples(
        x, np.zeros(5, np.int64), torch.tensor([1e6]), torch.tensor([0.0625]), scale=1.0, channels_last=False
    )
    assert samples.values(slice(None)).flatten().tolist() == [0, 1, 2, 3, 4]
