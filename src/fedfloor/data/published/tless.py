"""T-LESS in the BOP format: 30 textureless industrial parts in photographed scenes, cut out by their visible boxes.

Hodaň, Haluza, Obdržálek, Matas, Lourakis and Zabulis, T-LESS: An RGB-D Dataset for 6D Pose Estimation of Texture-less
Objects, WACV 2017; the format: Hodaň et al., BOP: Benchmark for 6D Object Pose Estimation, ECCV 2018.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.data.cache import Writer, remember
from fedfloor.data.dataset import Dataset, Images, Owned, SamplePool, pooled
from fedfloor.data.files import content, damaged
from fedfloor.data.files.pictures import read_picture

OBJECTS = 30
CLASSES = tuple(f"object {number}" for number in range(1, OBJECTS + 1))
SCENE = re.compile(r"\d{6}", re.ASCII)
TRUTH = "scene_gt.json"
ABOUT = "scene_gt_info.json"
SUFFIXES = (".png", ".jpg")
MOST_SIDE = 1024


@dataclass(frozen=True)
class Tless:
    """The parts of T-LESS to read, and what becomes of a picture.

    Args:
        train, test: the folders of the scenes for training and for testing, as BOP names them.
        visible: the least visible share of an object, in (0, 1]; others are left out.
        side: the height and width in pixels to which each crop is scaled.
    """

    train: str = "train_primesense"
    test: str = "test_primesense"
    visible: float = 0.1
    side: int = 64

    def __post_init__(self) -> None:
        for key in ("train", "test"):
            name = getattr(self, key)
            require(name not in ("", ".", "..") and "/" not in name and "\\" not in name, f"data.tless.{key}", name,
                    "the name of a folder, such as train_primesense")  # fmt: skip
        require(self.train != self.test, "data.tless.test", self.test, "another folder than train")
        require(0 < self.visible <= 1, "data.tless.visible", self.visible, "a share above 0 and at most 1")
        require(1 <= self.side <= MOST_SIDE, "data.tless.side", self.side, f"a whole number from 1 to {MOST_SIDE}")


@dataclass(frozen=True)
class _Part:
    """A visible object of a picture: its class 0 … 29 and the box x, y, width, height of its visible pixels."""

    label: int
    box: tuple[int, int, int, int]


def load(name: str, folder: Path, like: Tless | None = None) -> Dataset:
    """Read the visible objects of all scenes: uint8 [N, 3, side, side] and the objects' numbers less one.

    A crop is the box of an object's visible pixels (``bbox_visib``), scaled to a square. The scenes are the natural
    owners, those for training first; nobody owns scenes of both parts.

    Args:
        name: the data set's name.
        folder: the folder of ``train_primesense`` and ``test_primesense``, with a folder ``NNNNNN`` for each scene.
        like: the parts to read; None for the defaults.

    Raises:
        SettingError: a folder or a file is missing, or a file is damaged or contradicts another one.
    """
    like = like or Tless()
    parts = {"": _scenes(folder / like.train), "_test": _scenes(folder / like.test)}
    files = [path for scenes in parts.values() for scene in scenes for path in _files(scene)]
    recipe = f"tless 1, {len(parts[''])} scenes for training, {like.visible:g}, {like.side}"
    entry = remember(recipe, files, lambda writer: _parse(parts, like, writer))
    train, test = (SamplePool(*(entry.arrays[f"{one}{part}"] for one in ("x", "y", "owner"))) for part in parts)
    return pooled(name, CLASSES, train, test, entry.facts["digest"], Owned(tuple(entry.facts["scenes"])))


def counted(folder: Path) -> None:
    """Check that the default parts hold scenes; the number of samples depends on the settings."""
    for part in (Tless.train, Tless.test):
        for scene in _scenes(folder / part):
            _files(scene)


def _scenes(folder: Path) -> list[Path]:
    """Return the folders of a part's scenes, in the order of their numbers."""
    found = sorted(path for path in folder.glob("*") if SCENE.fullmatch(path.name) and path.is_dir())
    if not found:
        raise SettingError(
            f"{folder} holds no scene such as 000001. Put the scenes of BOP's T-LESS there, or set FEDFLOOR_DATA.",
            key="published-file-missing",
        )
    return found


def _files(scene: Path) -> list[Path]:
    """Return the files of a scene that are read: both descriptions, and the pictures in the order of their names."""
    for name in (TRUTH, ABOUT):
        if not (scene / name).is_file():
            raise SettingError(
                f"{scene / name} is missing. Put the whole scene there, or set FEDFLOOR_DATA.",
                key="published-file-missing",
            )
    pictures = sorted(path for path in (scene / "rgb").glob("*") if path.suffix in SUFFIXES)
    return [scene / TRUTH, scene / ABOUT, *pictures]


def _parse(parts: Mapping[str, Sequence[Path]], like: Tless, writer: Writer) -> Mapping[str, Any]:
    digest = hashlib.sha256()
    names: list[str] = []
    for part, scenes in parts.items():
        labels: list[int] = []
        owners: list[int] = []
        for scene in scenes:
            for label, x in _crops(scene, like):
                writer.append(f"x{part}", x[None])
                digest.update(x.data)
                labels.append(label)
                owners.append(len(names))
            names.append(f"{scene.parent.name}/{scene.name}")
        if not labels:
            raise damaged(scenes[0].parent, f"none of its objects is visible by a share of {like.visible:g}")
        y = np.array(labels, np.int64)
        writer.append(f"y{part}", y)
        writer.append(f"owner{part}", np.array(owners, np.int32))
        digest.update(y.tobytes())
    return {"digest": digest.hexdigest(), "scenes": names}


def _crops(scene: Path, like: Tless) -> Iterator[tuple[int, Images]]:
    """Yield the class and the crop of each object of a scene that is visible enough, picture by picture."""
    truth = _described(scene / TRUTH)
    about = _described(scene / ABOUT)
    if truth.keys() != about.keys():
        odd = min(truth.keys() ^ about.keys())
        raise damaged(scene / ABOUT, f"picture {odd} is in one of {TRUTH} and {ABOUT} alone")
    for number in sorted(truth):
        wanted = list(_visible(scene, number, truth[number], about[number], like.visible))
        if wanted:
            path = _picture(scene, number)
            x = read_picture(path, str(path))
            if len(x) != 3:
                raise damaged(path, "is grey; the pictures in rgb are colour")
            yield from ((one.label, _crop(path, x, one.box, like.side)) for one in wanted)


def _described(path: Path) -> dict[int, list[Any]]:
    """Return what a description says of each picture's objects."""
    try:
        found = json.loads(content(path))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"not valid JSON ({error})") from error
    numbered = isinstance(found, dict) and all(key.isascii() and key.isdecimal() for key in found)
    if not numbered or not all(isinstance(objects, list) for objects in found.values()):
        raise damaged(path, "must be an object with a list of objects for each picture's number")
    return {int(key): objects for key, objects in found.items()}


def _visible(scene: Path, number: int, truth: Sequence[Any], about: Sequence[Any], least: float) -> Iterator[_Part]:
    """Yield the objects of a picture of which at least this share is visible."""
    if len(truth) != len(about):
        raise damaged(scene / ABOUT, f"picture {number}: {len(about)} objects, but {len(truth)} in {TRUTH}")
    for one, seen in zip(truth, about, strict=True):
        try:
            label = one["obj_id"]
            share = float(seen["visib_fract"])
            x, y, width, height = seen["bbox_visib"]
        except (KeyError, TypeError, ValueError) as error:
            where = "obj_id, visib_fract and bbox_visib of four numbers"
            raise damaged(scene / ABOUT, f"picture {number}: an object lacks {where}") from error
        if type(label) is not int or not 1 <= label <= OBJECTS:
            raise damaged(scene / TRUTH, f"picture {number}: obj_id {label!r}: objects are 1 to {OBJECTS}")
        if not 0 <= share <= 1:
            raise damaged(scene / ABOUT, f"picture {number}: visib_fract {share:g} is no share")
        if any(type(value) is not int for value in (x, y, width, height)):
            raise damaged(scene / ABOUT, f"picture {number}: bbox_visib {seen['bbox_visib']} is no box of whole pixels")
        if share >= least:
            yield _Part(label - 1, (x, y, width, height))


def _picture(scene: Path, number: int) -> Path:
    for suffix in SUFFIXES:
        path = scene / "rgb" / f"{number:06d}{suffix}"
        if path.is_file():
            return path
    raise damaged(scene / TRUTH, f"picture {number} is described, but rgb/{number:06d}.png is missing")


def _crop(path: Path, image: Images, box: tuple[int, int, int, int], side: int) -> Images:
    """Return a box of a picture [3, H, W], scaled to [3, side, side]."""
    from PIL import Image

    x, y, width, height = box
    _, high, wide = image.shape
    if width < 1 or height < 1 or x < 0 or y < 0 or x + width > wide or y + height > high:
        raise damaged(path, f"the box {list(box)} (x, y, width, height) is not inside its {wide} × {high} pixels")
    part = Image.fromarray(np.ascontiguousarray(image[:, y : y + height, x : x + width].transpose(1, 2, 0)))
    scaled = part.resize((side, side), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(scaled, np.uint8).transpose(2, 0, 1))
