"""T-LESS in the BOP format, from scenes of that form made here; the real pictures are not at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedfloor.base.checking import checked
from fedfloor.data import sources
from fedfloor.data.dataset import Dataset
from fedfloor.data.published.tless import Tless
from fedfloor.experiment import DataSettings, Experiment
from fedfloor.runs.parks import build_park
from refusals import refused

Objects = list[tuple[int, float, list[int]]]  # obj_id, visible share, box of the visible pixels
WIDE = 40
HIGH = 30


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))


def colour(number: int) -> tuple[int, int, int]:
    """Return the colour in which an object is painted here."""
    return 8 * number, 100, 255 - 8 * number


def scene(place: Path, pictures: dict[int, Objects], suffix: str = ".png") -> None:
    """Write a scene: black pictures with a rectangle in each object's colour where it is visible."""
    (place / "rgb").mkdir(parents=True)
    for number, objects in pictures.items():
        pixels = np.zeros((HIGH, WIDE, 3), np.uint8)
        for label, _, (x, y, width, height) in objects:
            pixels[y : y + height, x : x + width] = colour(label)
        Image.fromarray(pixels).save(place / "rgb" / f"{number:06d}{suffix}")
    describe(place, pictures)


def describe(place: Path, pictures: dict[int, Objects]) -> None:
    """Write both descriptions; the poses, which are not read, are all alike."""
    pose = {"cam_R_m2c": [1, 0, 0, 0, 1, 0, 0, 0, 1], "cam_t_m2c": [0, 0, 700]}
    truth = {str(n): [{**pose, "obj_id": label} for label, _, _ in all_] for n, all_ in pictures.items()}
    about = {
        str(n): [{"bbox_obj": box, "bbox_visib": box, "px_count_all": 9, "px_count_visib": 9, "visib_fract": share}
                 for _, share, box in all_]
        for n, all_ in pictures.items()
    }  # fmt: skip
    (place / "scene_gt.json").write_text(json.dumps(truth))
    (place / "scene_gt_info.json").write_text(json.dumps(about))


ONE: dict[int, Objects] = {0: [(1, 1.0, [5, 6, 10, 8])], 12: [(1, 0.9, [0, 0, 40, 30])]}
TWO: dict[int, Objects] = {3: [(2, 1.0, [30, 20, 10, 10])]}
CLUTTER: dict[int, Objects] = {1: [(2, 0.5, [1, 1, 6, 3]), (30, 0.05, [20, 2, 9, 9]), (1, 0.1, [8, 10, 4, 4])]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two scenes for training with an object each, and a cluttered one for testing."""
    place = tmp_path / "tless"
    scene(place / "train_primesense" / "000001", ONE)
    scene(place / "train_primesense" / "000002", TWO, ".jpg")
    scene(place / "test_primesense" / "000001", CLUTTER)
    return place


def read(folder: Path, **like: Any) -> Dataset:
    return sources.load("tless", root=folder.parent, like=Tless(**{"side": 4} | like))


def test_crops_are_the_visible_boxes_of_the_objects(folder: Path) -> None:
    data = read(folder)
    assert (data.shape, len(data.classes), data.scale) == ((3, 4, 4), 30, 1 / 255)
    assert data.y.tolist() == [0, 0, 1]
    assert data.y_test.tolist() == [1, 0], "object 30 is visible by a twentieth"
    crops = data.take(np.array([0]), 0)
    assert (crops == np.array(colour(1)).reshape(1, 3, 1, 1)).all(), "no pixel beside the box"
    assert (data.take_test(np.array([0, 1])) == np.array([colour(2), colour(1)])[:, :, None, None]).all()
    assert data.owned.names == ("train_primesense/000001", "train_primesense/000002", "test_primesense/000001")
    assert data.owner is not None
    assert data.owner_test is not None
    assert data.owner.tolist() == [0, 0, 1]
    assert data.owner_test.tolist() == [2, 2]


def test_settings_choose_parts_shares_and_size(folder: Path) -> None:
    assert read(folder, visible=0.05).y_test.tolist() == [1, 29, 0]
    assert read(folder, side=7).shape == (3, 7, 7)
    assert read(folder).digest != read(folder, side=7).digest
    swapped = read(folder, train="test_primesense", test="train_primesense")
    assert swapped.y.tolist() == [1, 0]


def test_devices_are_scenes(folder: Path) -> None:
    table = {"data": {"name": "tless", "root": str(folder.parent), "tless": {"side": 4}}, "park": {"factories": 1}}
    park = build_park(checked(Experiment, table, ""))
    assert [indices.tolist() for indices in park.indices] == [[0, 1], [2]]
    assert park.dataset.owned.names[0] == "train_primesense/000001"


def removed(folder: Path, *parts: str) -> None:
    folder.joinpath("train_primesense", "000001", *parts).unlink()


def changed(folder: Path, pictures: dict[int, Objects], name: str = "") -> None:
    """Describe the first scene anew, in one of its files or in both; its pictures stay."""
    place = folder / "train_primesense" / "000001"
    kept = {path: path.read_text() for path in place.glob("*.json") if name and path.name != name}
    describe(place, pictures)
    for path, text in kept.items():
        path.write_text(text)


def test_scenes_that_lack_a_file_are_refused(folder: Path) -> None:
    removed(folder, "scene_gt_info.json")
    with refused("published-file-missing"):
        read(folder)
    assert "scene_gt_info.json is missing" in str(sources.looked_in(["tless"], folder.parent)[0]["how"])
    changed(folder, ONE)
    removed(folder, "rgb", "000012.png")
    with refused("published-file"):
        read(folder)


def test_parts_without_scenes_are_refused(folder: Path) -> None:
    with refused("published-file-missing"):
        read(folder, test="test_pbr")
    assert sources.looked_in(["tless"], folder.parent)[0]["found"]
    assert not sources.looked_in(["tless"], folder)[0]["found"]


@pytest.mark.parametrize(
    "box", [[31, 0, 10, 5], [0, 26, 4, 5], [-1, 0, 4, 4], [0, -2, 4, 4], [3, 3, 0, 4], [3, 3, 4, 0], [1.5, 0, 4, 4]]
)
def test_boxes_outside_the_picture_are_refused(folder: Path, box: list[int]) -> None:
    changed(folder, {0: [(1, 1.0, box)]})
    with refused("published-file"):
        read(folder)


@pytest.mark.parametrize(
    ("pictures", "name"),
    [
        ({0: [(31, 1.0, [0, 0, 4, 4])]}, ""),  # there are 30 objects
        ({0: [(0, 1.0, [0, 0, 4, 4])]}, ""),
        ({0: [(1, 1.5, [0, 0, 4, 4])]}, ""),
        ({0: [(1, 1.0, [0, 0, 4])]}, ""),
        ({0: ONE[0]}, "scene_gt.json"),  # picture 12 is in the other one
        ({0: [], 12: ONE[12]}, "scene_gt_info.json"),
    ],
)
def test_descriptions_that_contradict_are_refused(folder: Path, pictures: dict[int, Objects], name: str) -> None:
    changed(folder, pictures, name)
    with refused("published-file"):
        read(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"0": {}}', '{"first": []}', '{"0": [3]}'])
def test_what_is_no_description_is_refused(folder: Path, text: str) -> None:
    changed(folder, {0: ONE[0]})
    (folder / "train_primesense" / "000001" / "scene_gt_info.json").write_text(text)
    with refused("published-file"):
        read(folder)


def test_a_part_without_a_visible_object_is_refused(folder: Path) -> None:
    changed(folder, {0: [(1, 0.0, [0, 0, 1, 1])]})
    (folder / "train_primesense" / "000002" / "scene_gt.json").write_text("{}")
    (folder / "train_primesense" / "000002" / "scene_gt_info.json").write_text("{}")
    with refused("published-file"):
        read(folder)


def test_grey_pictures_are_refused(folder: Path) -> None:
    Image.new("L", (WIDE, HIGH)).save(folder / "train_primesense" / "000001" / "rgb" / "000000.png")
    with refused("published-file"):
        read(folder)


@pytest.mark.parametrize(
    "setting", [{"visible": 0.0}, {"visible": 1.1}, {"side": 0}, {"side": 5000}, {"train": "../x"}, {"test": ""},
                {"test": "train_primesense"}]
)  # fmt: skip
def test_settings_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with refused(f"data.tless.{next(iter(setting))}"):
        Tless(**setting)


def test_settings_of_another_data_set_are_refused() -> None:
    with refused("data"):
        DataSettings(name="mnist", tless=Tless())
