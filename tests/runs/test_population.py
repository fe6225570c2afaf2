"""Very large parks: local sets as two arrays, procedural data, and what is left out of a run's files."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedfloor.park.local
import fedfloor.park.park
from commands import Command, lines
from fedfloor.data.dataset import SamplePool, pooled
from fedfloor.data.made.procedural import Procedural, labels, procedural
from fedfloor.park.build import build
from fedfloor.park.described import describe, device_accuracy
from fedfloor.park.local import LocalSets, owner_of
from fedfloor.park.park import Park
from fedfloor.park.stream import Fifo
from fedfloor.parts.selection.selection import by_samples, fraction
from fedfloor.report import ledger
from refusals import refused

K, N = 20_000, 12
DATA = procedural(K, N, seed=3, like=Procedural(classes=4, shape=(1, 5, 6), skew=0.7))
PARK = build(DATA, factories=7, assignment="equal", seed=3)
RUN = """
rounds = 2
data = { name = "procedural", samples_per_device = 12, procedural = { classes = 4, shape = [1, 6, 6] } }
park = { devices = 20_000, factories = 10 }
model.name = "logistic"
work.batch_size = 6
methods.fedavg.fraction = 0.001
methods.fedsr = { fraction = 0.001, ring_size = 5, laps = 1 }
"""


# -- two arrays --------------------------------------------------------------------------------------------------------

sets = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=12)


@given(parts=sets, data=st.data())
def test_local_sets_are_the_arrays_they_were_made_of(parts: list[list[int]], data: st.DataObject) -> None:
    made = LocalSets.of([np.array(part) for part in parts])
    assert [part.tolist() for part in made] == parts
    assert made.sizes.tolist() == [len(part) for part in parts]
    assert made[-1].tolist() == parts[-1]
    asked = data.draw(st.lists(st.integers(0, len(parts) - 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedfloor.park.local, "CHUNK", data.draw(st.integers(1, 20)))
        found: list[list[int]] = []
        for which, samples, whose in made.chunks(np.array(asked, np.int64)):
            found += [samples[whose == i].tolist() for i in range(which.stop - which.start)]
    assert found == [parts[k] for k in asked]


def test_local_sets_that_lie_in_order_keep_no_samples() -> None:
    ordered = LocalSets(np.array([0, 3, 4]))
    assert [part.tolist() for part in ordered] == [[0, 1, 2], [3]]
    (chunk,) = ordered.chunks()
    assert chunk[1].tolist() == [0, 1, 2, 3]
    with pytest.raises(IndexError):
        ordered[2]


@given(parts=sets, owners=st.lists(st.integers(0, 2), min_size=51, max_size=51))
def test_owners_and_counts_are_those_of_each_device_by_itself(parts: list[list[int]], owners: list[int]) -> None:
    owner = np.array(owners, np.int32)
    y = np.arange(51) % 4
    pool = SamplePool(np.zeros((51, 1, 1, 1), np.uint8), y, owner)
    park = Park(
        pooled("x", tuple("abcd"), pool, pool, ""), [np.array(p) for p in parts], np.zeros(len(parts), np.int32)
    )
    by_hand = [{int(owner[i]) for i in part} for part in parts]
    found = owner_of(park.dataset, park.indices)
    if any(len(one) > 1 for one in by_hand):
        assert found is None
    else:
        assert found is not None
        assert [{int(k)} for k in found] == by_hand
    assert park.counts().tolist() == [np.bincount(y[part], minlength=4).tolist() for part in parts]


# -- chance ------------------------------------------------------------------------------------------------------------


@given(devices=st.lists(st.integers(0, 99), min_size=1, max_size=40, unique=True), seed=st.integers(0, 9))
def test_draws_are_those_of_numpys_choice_of_an_array(devices: list[int], seed: int) -> None:
    devices = sorted(devices)
    many = max(1, round(0.3 * len(devices)))
    rng = np.random.default_rng
    assert fraction(devices, 0.3, rng(seed)) == sorted(
        rng(seed).choice(np.array(devices), many, replace=False).tolist()
    )
    sizes = np.arange(1, 101)
    held = sizes[devices]
    drawn = rng(seed).choice(np.array(devices), many, replace=False, p=held / held.sum())
    uneven = many < len(devices)
    assert not uneven or by_samples(devices, sizes, 0.3, rng(seed)) == sorted(drawn.tolist())


# -- procedural data ---------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, K - 1), min_size=1, max_size=8))
def test_data_are_the_same_whatever_was_visited_before(order: list[int]) -> None:
    fresh = build(procedural(K, N, 3, Procedural(classes=4, shape=(1, 5, 6), skew=0.7)), seed=3)
    for k in order:
        x, y = PARK.samples(k)
        again, labels_ = fresh.samples(k)
        assert np.array_equal(x, again)
        assert np.array_equal(y, labels_)
    x, y, sizes = fresh.together(order, 0, [0] * len(order))
    assert np.array_equal(x, np.concatenate([PARK.samples(k)[0] for k in order]))
    assert np.array_equal(y, np.concatenate([PARK.samples(k)[1] for k in order]))
    assert sizes.tolist() == [N] * len(order)


@given(st.lists(st.integers(0, K * N - 1), max_size=9), st.integers(0, K - 1))
def test_a_sample_is_the_same_whoever_asks_and_with_whatever_others(samples: list[int], device: int) -> None:
    asked = np.array(samples, np.int64)
    whole = DATA.take(asked, device)
    assert whole.shape == (len(samples), 1, 5, 6)
    for i, sample in zip(range(len(samples)), samples, strict=True):
        assert np.array_equal(whole[i], DATA.take(np.array([sample]), -1)[0])


def test_other_seeds_devices_and_samples_are_other_data() -> None:
    x = PARK.samples(5)[0]
    assert not np.array_equal(x, PARK.samples(6)[0])
    assert not np.array_equal(x[0], x[1])
    other = procedural(K, N, seed=4, like=Procedural(classes=4, shape=(1, 5, 6), skew=0.7))
    assert not np.array_equal(x, other.take(PARK.indices[5], 5))
    assert other.digest != DATA.digest


def test_the_census_counts_the_datas_classes() -> None:
    devices = np.random.default_rng(0).choice(K, 200, replace=False).tolist()
    census = PARK.census(devices, 0, [0] * 200)
    assert census.tolist() == [np.bincount(PARK.samples(k)[1], minlength=4).tolist() for k in devices]
    every = PARK.census(range(K), 0, [0] * K)
    assert np.array_equal(every[devices], census)
    assert np.array_equal(every, PARK.counts())
    assert (every.sum(axis=1) == N).all()
    assert PARK.classes(devices[0]).tolist() == census[0].tolist()
    assert PARK.distribution.tolist() == (every.sum(axis=0) / (K * N)).tolist()
    streamed = replace(PARK, stream=Fifo(5))
    assert (streamed.census(devices, 3, [0] * 200).sum(axis=1) == 5).all()


def test_a_device_prefers_a_class_as_often_as_the_skew_says() -> None:
    # P(y = c_k) = s + (1 − s)/F = 0.7 + 0.3/4 = 0.775, and c_k is the most frequent of many samples
    like = Procedural(classes=4, skew=0.7)
    y = labels(0, 2000, like, np.arange(2000 * 300)).reshape(300, 2000)
    counts = np.array([np.bincount(row, minlength=4) for row in y])
    share = counts.max(axis=1).mean() / 2000
    own = counts.argmax(axis=1)
    assert share == pytest.approx(0.775, abs=5 * np.sqrt(0.775 * 0.225 / 600_000))
    assert np.bincount(own, minlength=4) == pytest.approx(75, abs=5 * np.sqrt(300 * 0.25 * 0.75))
    even = labels(0, 2000, replace(like, skew=0.0), np.arange(40_000))
    assert np.bincount(even, minlength=4) == pytest.approx(10_000, abs=5 * np.sqrt(40_000 * 0.25 * 0.75))
    alone = labels(0, 2000, replace(like, skew=1.0), np.arange(40_000)).reshape(20, 2000)
    assert all(len(set(row.tolist())) == 1 for row in alone)


def test_pictures_are_prototypes_and_noise_of_the_deviation_asked_for() -> None:
    like = Procedural(classes=2, shape=(1, 40, 40), noise=0.25)
    data = procedural(1, 4000, 0, like)
    x = data.take(np.arange(4000), 0).astype(float)
    y = data.labels(np.arange(4000))
    for c in (0, 1):
        of = x[y == c]
        inside = (of.min(axis=0) > 0) & (of.max(axis=0) < 255)  # where nothing was cut off
        assert inside.mean() > 0.8
        assert of.std(axis=0)[inside].mean() == pytest.approx(40 * 0.25, rel=0.01)
    assert abs(x[y == 0].mean(axis=0) - x[y == 1].mean(axis=0)).max() > 40
    assert np.bincount(data.y_test).tolist() == [500, 500]


def test_a_million_devices_take_little_memory_until_they_are_looked_at() -> None:
    tracemalloc.start()
    park = build("procedural", devices=10**6, factories=100, assignment="equal", samples_per_device=20)
    park.samples(999_999)
    park.holdings.argmin()
    device_accuracy(park, np.zeros(1000, bool), np.ones(10))
    json.dumps(describe(park))
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now < 40e6  # offsets 8 MB, sizes 8 MB, factories 4 MB, and 5,000 devices' counts
    assert peak < 120e6


# -- what files and figures speak of -----------------------------------------------------------------------------------


def test_figures_of_large_parks_are_those_of_some_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PARK.listed.tolist() == list(range(0, K, 4))  # 5,000 of 20,000
    by_class = np.array([0.1, 0.5, np.nan, 0.9])
    right = np.zeros(PARK.test_samples, bool)
    some = device_accuracy(PARK, right, by_class)
    told = describe(PARK)
    monkeypatch.setattr(fedfloor.park.local, "LISTED", K)
    whole = replace(PARK)
    assert np.array_equal(some, device_accuracy(whole, right, by_class)[::4], equal_nan=True)
    assert told["of_devices"] == K
    assert [one["device"] for one in told["devices"]] == PARK.listed.tolist()
    every = describe(whole)
    assert "of_devices" not in every
    assert [{**one, "device": 4 * i} for i, one in enumerate(every["devices"][::4])] == told["devices"]


@pytest.mark.parametrize("method", ["fedavg", "fedsr"])
def test_a_run_is_the_same_on_two_ranks_and_leaves_small_files(command: Command, method: str) -> None:
    (command.folder / "many.toml").write_text(RUN)
    for ranks in "12":
        command("run", "many.toml", "--set", f"method.name={method}", "--ranks", ranks, "--out", ranks)
    one = command.folder / "1"
    two = command.folder / "2"
    assert lines(one) == lines(two)
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert (one / "evaluation.json").read_bytes() == (two / "evaluation.json").read_bytes()
    assert lines(one)[-1]["participants"] == 20
    assert sum((one / name).stat().st_size for name in ("park.json", "evaluation.json", "plan.json")) < 1e6
    park = ledger.read_run(one).park
    assert (len(park.devices), park.size, park.numbers[1]) == (5000, K, 4)
    page = (one / "report.html").read_text()
    assert "20,000 devices in 10 factories" in page
    assert "evenly spread" in page


def test_a_large_park_is_priced_and_drawn(command: Command) -> None:
    (command.folder / "many.toml").write_text(RUN)
    rows = command("price", "many.toml", "--set", "network.profile=wifi", "--json").document
    assert rows
    assert "18 more like this" in command("draw", "many.toml").out


# -- refused -----------------------------------------------------------------------------------------------------------


def test_what_procedural_data_refuse(command: Command) -> None:
    (command.folder / "many.toml").write_text(RUN)
    for change, words in {
        'data.partition={kind="iid"}': "generated device by device",
        "data.name=labels": 'procedural has the settings of name = "procedural"',
        "data.procedural={skew=1.5}": "data.procedural.skew = 1.5: must be from 0 to 1",
        "data.procedural={classes=1}": "data.procedural.classes = 1",
        "data.procedural={shape=[1,0,3]}": "data.procedural.shape",
        "data.procedural={noise=-1}": "data.procedural.noise",
        "data.procedural={test_samples=0}": "data.procedural.test_samples",
    }.items():
        command.refused(command("run", "many.toml", "--set", change, "--out", "refused"), words)
    with refused("park.devices"):
        build(DATA, devices=5)


# -- the benchmark -----------------------------------------------------------------------------------------------------


def test_the_benchmark_keeps_no_model_per_device(command: Command) -> None:
    asked = ("--devices", "500", "--active", "4", "--rounds", "2", "--json")
    rows = command("bench", "population", *asked).document["rows"]
    names = ("FedAvg, 4 of 500 devices", "FedSR, 4 of 500 devices", "FedAvg, 500 of 500 devices, one round")
    assert [(row["run"], row["rounds"]) for row in rows] == list(zip(names, (2, 2, 1), strict=True))
    few, _, many = rows
    assert many["peak_mib"] - few["peak_mib"] < 150  # 500 models of 199,210 numbers would be 380 MiB
    assert all(row["train_s"] > 0 and row["worst_other_ms"] >= row["other_ms"] > 0 for row in rows)
    command.refused(command("bench", "price", "--rounds", "3"), "belong to fedfloor bench population")
    command.refused(command("bench", "population", "--devices", "3", "--active", "4"), "at most 3")
