"""A folder per device with pictures: what its folders say, and files in the wrong place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import pictures
from fedfloor.data.files.own import load
from fedfloor.data.files.pictures import read_picture
from fedfloor.data.reading import DeviceSplit, RandomSplit, Reading, TimeSplit, Window
from fedfloor.park.build import build
from own_data import park_of, picture, table
from refusals import refused


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))


def everything(data: Dataset) -> list[tuple[int, str, int]]:
    """(grey value, label, device's name) of each training sample."""
    x = data.take(np.arange(len(data.y)), 0)[:, 0, 0, 0]
    assert data.owner is not None
    names = [data.owned.names[k] for k in data.owner]
    return list(zip(x.tolist(), [data.classes[c] for c in data.y], names, strict=True))


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_the_last_two_folders_are_device_and_label(tmp_path: Path) -> None:
    data = load(park_of(tmp_path / "data"), Reading(), 0)
    assert (data.name, data.shape, data.classes, data.scale) == ("data", (1, 4, 5), ("bad", "ok"), 1 / 255)
    assert data.owned.names == ("press 2", "press 10")  # as people count
    assert data.inputs.kind == "image"
    assert (len(data.y), len(data.y_test)) == (16, 4)
    for value, label, device in everything(data):
        assert (value // 100, value % 100 // 50) == (int(device == "press 2"), int(label == "ok"))
    assert data.owner_test is not None
    assert data.owner_test.tolist() == [0, 0, 1, 1]


def test_folders_of_devices_are_not_taken_for_labels(tmp_path: Path) -> None:
    for number in range(6):
        picture(tmp_path / "data" / f"hall {number % 2}" / f"press {number}" / "1.png", number)
    with refused("meaning-of-folders"):
        load(tmp_path / "data", Reading(), 0)
    told = Reading(layout="device/label/file", split=DeviceSplit())
    assert len(load(tmp_path / "data", told, 0).classes) == 6
    with refused("data.layout"):
        load(tmp_path / "data", Reading(layout="factory/device/file"), 0)


def test_a_factory_is_the_folder_around_its_devices(tmp_path: Path) -> None:
    for factory in ("south", "north"):
        park_of(tmp_path / "data" / factory, ("press", f"mill {factory}"))
    park = build(load(tmp_path / "data", Reading(), 0))
    assert park.names == ("north/mill north", "north/press", "south/mill south", "south/press")
    assert park.factory_names == ("north", "south")
    assert park.factory_of.tolist() == [0, 0, 1, 1]


def test_names_stand_alone_where_they_are_unique(tmp_path: Path) -> None:
    park_of(tmp_path / "data" / "north", ("a",))
    park_of(tmp_path / "data" / "south", ("b",))
    assert load(tmp_path / "data", Reading(), 0).owned.names == ("a", "b")


def test_train_and_test_are_a_split(tmp_path: Path) -> None:
    park_of(tmp_path / "data" / "train")
    picture(tmp_path / "data" / "test" / "press 2" / "ok" / "new.png", 7)
    picture(tmp_path / "data" / "test" / "visitor" / "bad" / "new.png", 8)
    data = load(tmp_path / "data", Reading(), 0)
    assert (len(data.y), data.take_test(np.arange(2))[:, 0, 0, 0].tolist()) == (20, [7, 8])
    assert data.owner_test is not None
    assert [data.owned.names[k] for k in data.owner_test] == ["press 2", "visitor"]
    assert build(data).names == ("press 2", "press 10")  # who only tests is no device of the park
    with refused("data.split"):
        load(tmp_path / "data", Reading(split=RandomSplit()), 0)


def test_splits(tmp_path: Path) -> None:
    root = park_of(tmp_path / "data", ("a", "b", "c", "d", "e"))
    first, again, other = (everything(load(root, Reading(), seed)) for seed in (0, 0, 1))
    assert first == again != other
    data = load(root, Reading(split=DeviceSplit(test=0.4)), 0)
    assert data.owner is not None
    assert (len(set(data.owner.tolist())), len(data.y_test)) == (3, 20)
    with refused("data.split"):
        load(root, Reading(split=TimeSplit()), 0)


def test_small_devices(tmp_path: Path) -> None:
    root = park_of(park_of(tmp_path / "data"), ("tiny",), each=1)
    with refused("small"):
        load(root, Reading(), 0)
    data = load(root, Reading(small="drop"), 0)
    assert {device for _, _, device in everything(data)} == {"press 2", "press 10"}


def test_what_file_managers_leave_is_passed_over(tmp_path: Path) -> None:
    root = park_of(tmp_path / "data")
    (root / ".DS_Store").write_bytes(b"x")
    (root / "press 2" / "ok" / "Thumbs.db").write_bytes(b"x")
    (root / "__MACOSX").mkdir()
    (root / "press 2" / "never seen").mkdir()  # a label that a device has no sample of
    assert len(load(root, Reading(), 0).y) == 16


def test_classes_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    root = park_of(tmp_path / "data")
    assert load(root, Reading(classes=("ok", "bad", "unseen")), 0).classes == ("ok", "bad", "unseen")
    with refused("unknown-class"):
        load(root, Reading(classes=("okay", "bad")), 0)


def test_names_of_other_systems_are_put_together(tmp_path: Path) -> None:
    for label in ("Grobriss", "O\u0308l"):  # o with its dots as a letter of its own
        for i in range(5):
            picture(tmp_path / "data" / "press" / label / f"{i}.png")
    assert load(tmp_path / "data", Reading(classes=("Öl", "Grobriss")), 0).classes == ("Öl", "Grobriss")


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    park_of(tmp_path / "data")
    os.mkdir(os.fsencode(tmp_path / "data") + b"/\xff")
    with refused("not-unicode"):
        load(tmp_path / "data", Reading(), 0)


def test_size_scales(tmp_path: Path) -> None:
    root = park_of(tmp_path / "data")
    odd = picture(root / "press 2" / "ok" / "odd.png", 9, (8, 6))
    with refused("pictures-differ"):
        load(root, Reading(), 0)
    assert load(root, Reading(size=(2, 3)), 0).shape == (1, 2, 3)
    with refused("data.size"):
        load(root, Reading(size=(10_000, 5_001)), 0)
    x = np.zeros((1, 64), np.uint8)
    x[:, ::2] = 255
    Image.fromarray(x).save(odd)
    assert abs(int(read_picture(odd, "odd", (1, 8))[0, 0, 4]) - 127) <= 2  # antialiased: stripes become their mean


def test_grey_and_colour_do_not_mix(tmp_path: Path) -> None:
    root = park_of(tmp_path / "data")
    picture(root / "press 2" / "ok" / "c.png", 9, (4, 5, 3))
    with refused("pictures-differ"):
        load(root, Reading(size=(4, 5)), 0)


def test_the_cache_knows_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = park_of(tmp_path / "data")
    first = load(root, Reading(), 0)
    monkeypatch.setattr(pictures, "_parse", None)
    again = load(root, Reading(split=DeviceSplit()), 0)  # how they are split comes after
    assert again.digest == first.digest
    monkeypatch.undo()
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))
    (root / "press 2" / "bad").rename(root / "press 2" / "worse")  # same bytes, another label
    moved = load(root, Reading(), 0)
    assert moved.classes == ("bad", "ok", "worse")
    assert moved.digest != first.digest


def test_pictures_of_another_shape_are_other_data(tmp_path: Path) -> None:
    digests = set()
    for shape in ((4, 6), (6, 4)):
        root = tmp_path / str(shape[0]) / "data"
        for label in ("bad", "ok"):
            for i in range(5):
                picture(root / "press" / label / f"{i}.png", i, shape)
        digests.add(load(root, Reading(layout="device/label/file"), 0).digest)
    assert len(digests) == 2


# -- what lies in the wrong place --------------------------------------------------------------------------------------


def nothing(root: Path) -> None:
    root.mkdir()


def one_class(root: Path) -> None:
    for i in range(10):
        picture(root / f"a{i // 5}" / "ok" / f"{i}.png")


def add(name: str) -> Callable[[Path], object]:
    return lambda root: picture(park_of(root) / name)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (nothing, "contains no files"),
    "one class": (one_class, "a0/ok/0.png: 'ok', as in all other rows: the data have a single class"),
    "no label": (
        add("press 3/1.png"),
        "press 3/1.png: in the wrong place. Pictures must be in [FACTORY/]DEVICE/LABEL/FILE.",
    ),
    "no device": (add("1.png"), "1.png: in the wrong place"),
    "too deep": (add("a/b/c/d/1.png"), "a/b/c/d/1.png: in the wrong place"),
    "much too deep": (add("a/b/c/d/e/f/1.png"), "a/b/c/d/e/f: too many levels of folders"),
    "mixed depths": (
        add("north/press/ok/1.png"),
        "north/press/ok/1.png and press 10/bad/0.png: in folders of different depth",
    ),
    "an empty device": (lambda root: (park_of(root) / "press 3").mkdir(), "press 3: an empty folder"),
    "another file": (lambda root: (park_of(root) / "notes.pdf").write_text(""), "notes.pdf: neither a picture (.png"),
    "both": (lambda root: table(park_of(root) / "press 3" / "a.csv"), "pictures and tables in one folder"),
    "a pipe": (lambda root: os.mkfifo(park_of(root) / "press 2" / "ok" / "9.png"), "ok/9.png: neither a file nor"),
    "a lost link": (lambda root: (park_of(root) / "x").symlink_to("gone"), "x: a link that leads nowhere (gone)"),
    "a circle": (lambda root: (park_of(root) / "x").symlink_to("x"), "x: a link that leads nowhere (x)"),
    "a link up": (lambda root: (park_of(root) / "x").symlink_to(".."), "x: a link to "),
    "a link in a circle": (lambda root: (park_of(root) / "x").symlink_to("."), "x: a link to a folder above itself"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_place_is_named(name: str, tmp_path: Path) -> None:
    make, message = WRONG[name]
    make(tmp_path / "data")
    with pytest.raises(SettingError) as caught:
        load(tmp_path / "data", Reading(), 0)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_nothing_outside_is_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = park_of(tmp_path / "data")
    outside = park_of(tmp_path / "private")
    link = root / "press 2" / "ok" / "9.png" if kind == "file" else root / "press 3"
    link.symlink_to(outside / "press 2" / "ok" / "0.png" if kind == "file" else outside / "press 2")
    with refused("link"):
        load(root, Reading(), 0)
    link.unlink()
    (tmp_path / "alias").symlink_to(root)
    assert len(load(tmp_path / "alias", Reading(), 0).y) == 16  # the folder itself may be a link


@pytest.mark.parametrize(
    ("reading", "key"),
    [(Reading(window=Window(3)), "window"), (Reading(missing="mean"), "missing"), (Reading(decimal=","), "decimal")],
)
def test_settings_that_say_nothing_about_pictures(reading: Reading, key: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=rf"\[data\] {key} has no effect on pictures"):
        load(park_of(tmp_path / "data"), reading, 0)


def test_a_format_that_the_path_is_not(tmp_path: Path) -> None:
    with refused("data.format"):
        load(park_of(tmp_path / "data"), Reading(format="table"), 0)
