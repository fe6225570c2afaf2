"""Augmented streams in parks and runs: who holds what, settings, and who gets to see the same."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedfloor
import floor
from commands import lines
from fedfloor import config
from fedfloor.data.dataset import Dataset, Inputs
from fedfloor.experiment import Experiment
from fedfloor.park.augment import Augmented
from fedfloor.park.build import build
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.park.park import Park
from fedfloor.park.partition import Iid
from fedfloor.park.stream import Altering, Fifo, Recycle, Static
from refusals import refused

SIZES = (6, 10, 4, 9, 5)


def streamed(stream: Augmented, sizes: tuple[int, ...] = SIZES, shape: tuple[int, int, int] = (1, 9, 7)) -> Park:
    return replace(floor.park(sizes, shape=shape), stream=stream)


# -- in a park ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rendered", [False, True], ids=["stored", "rendered"])
@pytest.mark.parametrize("shape", [(1, 9, 7), (3, 8, 8)], ids=["grey", "colour"])
def test_devices_hold_altered_pictures_of_their_draws(shape: tuple[int, int, int], rendered: bool) -> None:
    stream = Augmented(7)
    here = streamed(stream, shape=shape)
    here = replace(here, dataset=replace(here.dataset, rendered=rendered))
    for device, tick in ((1, 0), (3, 8), (1, 1), (4, 2), (1, 0)):  # in any order; of 10, 9, 10 and 5 samples
        drawn = here.indices[device][stream.held(here.samples(device)[1], 0, device, tick)[0]]
        x, y = here.held(device, tick, visits=5)
        stored = here.dataset.take(drawn, device)
        np.testing.assert_array_equal(x, stream.altered(stored, 0, device, tick))
        assert (x != stored).any()
        np.testing.assert_array_equal(y, here.dataset.y[drawn])
        assert here.census([device], tick, [5])[0].tolist() == np.bincount(y, minlength=3).tolist()
        again = here.held(device, tick, visits=6)
        np.testing.assert_array_equal(x, again[0])
    assert here.holdings.tolist() == [7] * 5


def test_stored_pictures_stay_as_they_are() -> None:
    here = streamed(Augmented(7))
    before = [here.samples(k)[0].copy() for k in range(5)]
    test = here.test()[0].copy()
    here.held(-1, 3, 0)
    for k in range(5):
        np.testing.assert_array_equal(here.samples(k)[0], before[k])
    np.testing.assert_array_equal(here.test()[0], test)
    np.testing.assert_array_equal(
        mean_and_deviation(here, "standard"), mean_and_deviation(replace(here, stream=Static()), "standard")
    )


def test_the_cloud_holds_what_the_devices_hold() -> None:
    here = streamed(Augmented(7))
    each = [here.held(k, 3, 0) for k in range(5)]
    for i, together in enumerate(here.held(-1, 3, 0)):
        np.testing.assert_array_equal(together, np.concatenate([one[i] for one in each]))
    x, y, sizes = here.together((4, 1), 3, (0, 2))
    np.testing.assert_array_equal(x, np.concatenate([each[4][0], each[1][0]]))
    np.testing.assert_array_equal(y, np.concatenate([each[4][1], each[1][1]]))
    assert sizes.tolist() == [7, 7]


def test_who_alters_pictures() -> None:
    assert isinstance(Augmented(), Altering)
    assert not any(isinstance(one, Altering) for one in (Static(), Fifo(3), Recycle(3)))


PRINT = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
from test_runs_augmented import seen
print(seen())
"""


def seen() -> str:
    """What a few devices hold, as a hash."""
    here = streamed(Augmented(7))
    told = [here.held(device, tick, 0)[0].tobytes() for device, tick in ((2, 1), (-1, 4), (0, 0))]
    return hashlib.sha256(b"".join(told)).hexdigest()


def test_another_process_sees_the_same() -> None:
    words = [sys.executable, "-c", PRINT, str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
    got = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert got.stdout.strip() == seen(), got.stderr


# -- in an experiment --------------------------------------------------------------------------------------------------


def experiment(stream: dict[str, object], **changes: object) -> Experiment:
    table = {
        "rounds": 2, "data": {"samples_per_device": 12, "stream": {"kind": "augmented", **stream}},
        "park": {"devices": 4, "factories": 2}, "model": {"name": "logistic"}, "work": {"batch_size": 4},
    }  # fmt: skip
    return config.from_table(table | changes)


def test_settings_are_read_and_written_again(tmp_path: Path) -> None:
    assert experiment({}).data.stream == Augmented(50, 0.1, (0.8, 1.0), (0.8, 1.2))
    read = experiment({"window": 8, "brightness": 0, "scale": [1, 1], "ratio": [0.9, 1.1], "every": 3})
    assert read.data.stream == Augmented(8, 0.0, (1.0, 1.0), (0.9, 1.1), every=3)
    for said in (config.resolved(read), config.brief(read)):
        (tmp_path / "one.toml").write_text(said)
        assert config.read(tmp_path / "one.toml").data.stream == read.data.stream


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ({"window": 0}, "data.stream.window"),
        ({"brightness": 1.5}, "data.stream.brightness"),
        ({"every": 0}, "data.stream.every"),
        ({"brightness": -0.1}, "data.stream.brightness"),
        (
            {"scale": [0, 1]},
            "data.stream.scale",
        ),
        ({"scale": [0.8, 1.1]}, "data.stream.scale"),
        ({"scale": [1.0, 0.8]}, "data.stream.scale"),
        ({"scale": [0.8]}, "data.stream.scale"),
        ({"scale": 0.8}, "data.stream.scale"),
        ({"ratio": [0.8, 1, 1.2]}, "data.stream.ratio"),
        ({"ratio": [0, 1]}, "data.stream.ratio"),
        ({"ratio": [float("nan"), 1]}, "data.stream.ratio"),
        ({"ratio": [1, float("inf")]}, "data.stream.ratio"),
        ({"ratio": [1.5, 2]}, "data.stream.ratio"),
        ({"ratio": [0.5, 0.7]}, "data.stream.ratio"),
        ({"brightnes": 0.1}, "unknown-key"),
        ({"drift": {"kind": "cycle"}}, "unknown-key"),
    ],
)
def test_settings_that_cannot_be(stream: dict[str, object], words: str) -> None:
    with refused(words):
        experiment(stream)


def rows() -> Dataset:
    return replace(floor.park().dataset, name="press", shape=(4,), inputs=Inputs("table", tuple("abcd")))


def test_sensors_are_refused() -> None:
    with refused("data.stream"):
        build(rows(), devices=2, partition=Iid(), stream=Augmented())
    assert build(rows(), devices=2, partition=Iid(), stream=Fifo(3)).devices == 2


@pytest.mark.parametrize("method", ["fedavg", "centralized", "fedsr"])
def test_runs_are_the_same_on_any_number_of_ranks(tmp_path: Path, method: str) -> None:
    what = experiment({"window": 8}, method={"name": method})
    for ranks in (1, 2):
        fedfloor.run(what, tmp_path / str(ranks), ranks=ranks)
    one, two = (
        (lines(tmp_path / str(ranks)), (tmp_path / str(ranks) / "model.safetensors").read_bytes()) for ranks in (1, 2)
    )
    assert one == two
    off = experiment({"window": 8, "brightness": 0, "scale": [1, 1]}, method={"name": method})
    fedfloor.run(off, tmp_path / "off", ranks=1)
    assert lines(tmp_path / "off") != one[0]
