from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import loading
from fedfloor.data.published import leaf
from refusals import refused

PIXELS = 28 * 28


def image(value: float) -> list[float]:
    return [value] * PIXELS


def content(**writers: tuple[list[Any], list[Any]]) -> dict[str, Any]:
    return {
        "users": list(writers),
        "num_samples": [len(y) for _, y in writers.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in writers.items()},
    }


def good() -> dict[str, Any]:
    return content(zoe=([image(0.0), image(1.0)], [0, 61]), anna=([image(0.5020)], [10]))


def write(folder: Path, train: object, test: object | None = None, *, packed: bool = True) -> Path:
    for part, what in (("train", train), ("test", good() if test is None else test)):
        (folder / part).mkdir(exist_ok=True)
        data = what if isinstance(what, bytes) else json.dumps(what).encode()
        path = folder / part / (f"all_data_0.json{'.gz' if packed else ''}")
        path.write_bytes(gzip.compress(data) if packed else data)
    return folder


def test_writers_are_owners_in_the_order_of_their_names(tmp_path: Path) -> None:
    data = leaf.load("femnist", write(tmp_path, good()))
    assert data.owner is not None
    assert data.owner_test is not None
    assert data.owner.tolist() == [0, 1, 1]  # anna, zoe, zoe
    assert data.owner_test.tolist() == [0, 1, 1]
    assert data.y.tolist() == [10, 0, 61]
    assert [data.classes[label] for label in data.y] == ["A", "0", "z"]
    x = data.take(np.arange(3), 0)
    assert x.shape == (3, 1, 28, 28)
    assert x[:, 0, 5, 5].tolist() == [128, 0, 255]  # round(255 · 0.502) = round(128.01)
    assert leaf.samples(tmp_path) == (3, 3)


def test_every_grey_value_survives_leafs_four_digits(tmp_path: Path) -> None:
    values = [round(v / 255, 4) for v in range(256)]
    writer = (values * 4)[:PIXELS]
    data = leaf.load("femnist", write(tmp_path, content(a=([writer], [1]))))
    assert data.take(np.array([0]), 0).reshape(-1)[:256].tolist() == list(range(256))


def test_plain_and_packed_have_one_digest(tmp_path: Path) -> None:
    for name in ("plain", "packed"):
        (tmp_path / name).mkdir()
    plain = leaf.load("femnist", write(tmp_path / "plain", good(), packed=False))
    packed = leaf.load("femnist", write(tmp_path / "packed", good(), packed=True))
    assert plain.digest == packed.digest


def test_how_many_a_damaged_file_holds_is_unknown(tmp_path: Path) -> None:
    path = write(tmp_path, good()) / "train" / "all_data_0.json.gz"
    data = path.read_bytes()
    path.write_bytes(data[:10] + b"\xff" * 20 + data[30:])
    assert leaf.samples(tmp_path) is None


def test_the_same_files_divided_otherwise_are_other_data(tmp_path: Path) -> None:
    digests = set()
    for middle in ("train", "test"):
        for number, part in enumerate(("train", middle, "test")):
            path = tmp_path / middle / part / f"{number}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content(**{f"w{number}": ([image(0.5)], [number])})))
        digests.add(leaf.load("femnist", tmp_path / middle).digest)
    assert len(digests) == 2


def test_writers_of_the_test_part_only_come_last(tmp_path: Path) -> None:
    test = content(adam=([image(1.0)], [2]), zoe=([image(1.0)], [3]))
    data = leaf.load("femnist", write(tmp_path, good(), test))
    assert data.owner is not None
    assert data.owner_test is not None
    assert sorted(set(data.owner.tolist())) == [0, 1]
    assert dict(zip(data.y_test.tolist(), data.owner_test.tolist(), strict=True)) == {2: 2, 3: 1}


def test_keys_come_in_any_order_and_writers_too(tmp_path: Path) -> None:
    for name in ("usual", "other"):
        (tmp_path / name).mkdir()
    test = content(zoe=([image(0.2)], [3]), adam=([image(0.4)], [2]))
    usual = leaf.load("femnist", write(tmp_path / "usual", good(), test))
    turned = {
        "hierarchies": [{"x": [1]}],
        "user_data": {name: {"y": one["y"], "x": one["x"]} for name, one in good()["user_data"].items()},
        "num_samples": [1, 2],
        "users": ["anna", "zoe"],
    }
    other = leaf.load("femnist", write(tmp_path / "other", turned, test))
    assert usual.y.tolist() == other.y.tolist()
    assert usual.take(np.arange(3), 0).tobytes() == other.take(np.arange(3), 0).tobytes()
    assert other.take(np.arange(3), 0)[:, 0, 0, 0].tolist() == [128, 0, 255]  # anna's, then zoe's two
    assert other.y_test.tolist() == [3, 2]
    assert other.take_test(np.array([0, 1]))[:, 0, 0, 0].tolist() == [51, 102]


def test_which_part_a_file_is_of_is_not_forgotten(tmp_path: Path) -> None:
    parts = [content(**{name: ([image(0.0)], [label])}) for label, name in enumerate("abc")]
    files = [gzip.compress(json.dumps(part).encode()) for part in parts]
    for number, train in enumerate((1, 2)):
        for i, data in enumerate(files):
            place = tmp_path / str(number) / ("train" if i < train else "test")
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{i}.json.gz").write_bytes(data)
    assert [len(leaf.load("femnist", tmp_path / str(number)).y) for number in range(2)] == [1, 2]


def test_a_writer_without_characters_is_no_error(tmp_path: Path) -> None:
    data = leaf.load("femnist", write(tmp_path, content(a=([], []), b=([image(0.0)], [1]))))
    assert data.owner is not None
    assert data.owner.tolist() == [1]


def changed(**fields: object) -> dict[str, Any]:
    return {**good(), **fields}


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (b'{"users": ["a"], "num_sam', "published-file"),
        (b"\xff\xfe\xff", "published-file"),
        ([1, 2], "published-file"),
        ({"users": ["a"]}, "published-file"),
        (changed(users=["zoe", "anna", "bob"]), "published-file"),
        (changed(users=["zoe", "zoe", "anna"], num_samples=[2, 2, 1]), "published-file"),
        (changed(users=["zoe"], num_samples=[2]), "published-file"),
        (changed(num_samples=[2, 2]), "published-file"),
        (changed(user_data={"zoe": {"x": []}, "anna": {}}), "published-file"),
        (changed(user_data={"zoe": {}, "anna": {}}), "published-file"),
        (changed(user_data={"zoe": 3, "anna": 4}), "published-file"),
        (content(a=([image(0.0)], [1, 2])), "published-file"),
        (content(a=([image(0.0)[:-1]], [1])), "published-file"),
        (content(a=([image(0.0), [0.0]], [1, 2])), "published-file"),
        (content(a=([["ink"] * PIXELS], [1])), "published-file"),
        (content(a=([image(0.0)], [62])), "published-file"),
        (content(a=([image(0.0)], [-1])), "published-file"),
        (content(a=([image(0.0)], [1.5])), "published-file"),
        (content(a=([image(1.01)], [1])), "published-file"),
        (content(a=([image(-0.01)], [1])), "published-file"),
        (content(a=([image(float("nan"))], [1])), "published-file"),
        (content(a=([image(float("inf"))], [1])), "published-file"),
        (content(a=([], [])), "published-file"),
        (json.dumps(good()).encode() + b" {}", "published-file"),
        (b'{"users": [], "user_data": {"a": {"x": [], "y": []}, "a": {"x": [], "y": []}}}', "published-file"),
        (b"", "published-file"),
        (b"[" * 100_000, "published-file"),
        (b'{"users": ' + b"[" * 100_000, "published-file"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, train: object, words: str) -> None:
    with refused(words):
        leaf.load("femnist", write(tmp_path, train))


def test_packed_and_plain_copies_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path, good(), packed=True)
    write(tmp_path, good(), packed=False)
    with refused("repeated-writer"):
        leaf.load("femnist", tmp_path)


def test_missing_and_truncated_files(tmp_path: Path) -> None:
    with refused("published-file-missing"):
        leaf.load("femnist", tmp_path)
    path = write(tmp_path, good()) / "train" / "all_data_0.json.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with refused("published-file"):
        leaf.load("femnist", tmp_path)


def test_samples_are_unknown_where_the_head_is_silent(tmp_path: Path) -> None:
    assert leaf.samples(write(tmp_path, b"{}")) is None
    (tmp_path / "train" / "all_data_0.json.gz").write_bytes(b"no gzip")
    assert leaf.samples(tmp_path) is None


@pytest.mark.slow
def test_the_300_writers(data_root: Path) -> None:
    folder = data_root / "femnist"
    data = leaf.load("femnist", folder)
    assert data.owner is not None
    assert (len(data.y), len(data.y_test)) == (41_257, 4_701) == leaf.samples(folder)
    assert len(np.unique(data.owner)) == 300
    assert data.owner_test is not None
    assert set(data.owner_test) <= set(data.owner)
    every = np.concatenate([data.y, data.y_test])
    assert np.mean(every < 10) == pytest.approx(0.71, abs=0.005)  # as the data's README says
    sizes = np.bincount(data.owner) + np.bincount(data.owner_test, minlength=300)
    assert np.sum(sizes < 30) == 11  # likewise


@pytest.mark.slow
def test_femnist_needs_little_more_memory_than_its_arrays(data_root: Path) -> None:
    (row,) = loading.measure(["femnist"], print)
    arrays = (41_257 + 4_701) * (PIXELS + 8 + 4) / 2**20  # bytes; int64 labels, int32 owners
    assert row["arrays_mib"] == pytest.approx(arrays, abs=0.06)
    assert isinstance(row["ratio"], float)
    assert 0.9 < row["ratio"] < 1.5  # below 1 they were not looked at
