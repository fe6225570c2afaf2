"""Pictures in ``[FACTORY/]DEVICE/LABEL/`` become a data set, one at a time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.data.cache import Writer, remember
from fedfloor.data.dataset import Dataset, Images, Inputs
from fedfloor.data.names import classes_of, codes, natural_order, qualified
from fedfloor.data.picture import COLOUR, DARK, MOST_PIXELS, decode
from fedfloor.data.reading import Reading
from fedfloor.data.table import of_entry
from fedfloor.data.tree import Found
from fedfloor.errors import SettingError, require

RECIPE = "pictures 2"
MEANT = ("classes", "split", "small", "size", "layout", "test")


def load(root: Path, files: Sequence[Found], reading: Reading, seed: int) -> Dataset:
    """Read pictures: their devices are the natural owners, in the order of their names.

    Args:
        root: the data folder.
        files: the pictures, all in two folders (device, label) or in three (factory, device, label).
        reading: classes, split, size.
        seed: of random splits.

    Raises:
        SettingError: a file is no picture, pictures differ in size or colour, or a setting does not fit.
    """
    reading.only(MEANT, "pictures")
    fits = reading.size is None or math.prod(reading.size) <= MOST_PIXELS
    require(fits, "data.size", reading.size, f"[height, width] of at most {MOST_PIXELS:,} pixels in all")
    if reading.split is not None and reading.split.kind in ("time", "run", "last") and files[0].part is None:
        lacking = "recordings" if reading.split.kind == "run" else "times"
        raise SettingError(
            f"[data] split = {reading.split.kind}: pictures have no {lacking}. Use "
            '{ kind = "random" }, { kind = "stratified" } or { kind = "device" }, or put the '
            "pictures into the folders train and test."
        )
    paths, recipe = [one.path for one in files], f"{RECIPE} {reading.recipe()}"
    entry = remember(recipe, paths, lambda writer: _parse(files, reading, writer), root)
    return of_entry(
        root.name or root.resolve().name,
        entry.arrays,
        entry.facts,
        reading,
        seed,
        Inputs("image", scaled=reading.size is not None),
        noun="pictures",
        ordered=False,
    )


def _parse(files: Sequence[Found], reading: Reading, writer: Writer) -> Mapping[str, Any]:
    factory = [one.folders[0] for one in files] if len(files[0].folders) == 3 else None
    device = qualified([one.folders[-2] for one in files], factory)
    label = [one.folders[-1] for one in files]
    classes = classes_of(label, reading.classes, lambda i: files[i].name, 1 if reading.whole else 2)
    devices = natural_order(device)
    owner = codes(device, devices)
    order = np.argsort(owner, kind="stable")
    digest = _write_pixels([files[i] for i in order], reading, writer)
    digest.update("\0".join([*classes, *(one.name for one in files)]).encode())
    writer.append("y", codes(label, classes)[order].astype(np.int64))
    for name in ("owner", "segment", "file"):
        writer.append(name, owner[order])
    if files[0].part is not None:
        writer.append("part", np.array([one.part for one in files], np.int8)[order])
    _, first = np.unique(owner, return_index=True)
    factories = [] if factory is None else natural_order(factory)
    return {
        "columns": [], "classes": classes, "devices": devices, "factories": factories,
        "factory": None if factory is None else codes([factory[i] for i in first], factories).tolist(),
        "files": ["/".join(files[i].folders[:-1]) for i in first], "missing": 0, "digest": digest.hexdigest(),
    }  # fmt: skip


def _write_pixels(files: Sequence[Found], reading: Reading, writer: Writer) -> hashlib._Hash:
    """Write x, a picture at a time, and return the hash of the pixels.

    Raises:
        SettingError: a picture cannot be read, differs from the first one, or 16 bits are used badly.
    """
    digest, first = hashlib.sha256(), None
    wide, brightest = "", 0
    for one in files:
        x, is_wide = decode(one.path, one.name, reading.size)
        if first is None:
            first = one.name, x.shape
            digest.update(repr(x.shape).encode())
        _check_alike(*first, one.name, x)
        if is_wide:
            wide, brightest = wide or one.name, max(brightest, int(x.max()))
        writer.append("x", x[None])
        digest.update(x.data)
    if wide and brightest < DARK:
        raise SettingError(
            f"{wide}: 16 bits per pixel, and in all such pictures the largest value is about {257 * brightest:,} of "
            "65,535. As 8 bits hardly anything would be left: scale them to your camera's range, and save 8 bits."
        )
    return digest


def _check_alike(other: str, shape: tuple[int, ...], name: str, x: Images) -> None:
    if x.shape == shape:
        return
    if x.shape[0] != shape[0]:
        raise SettingError(
            f"{name} is {COLOUR[x.shape[0]]}, but {other} is {COLOUR[shape[0]]}. Make all pictures grey, or all colour."
        )
    raise SettingError(
        f"{name} has {x.shape[1]} × {x.shape[2]} pixels (height × width), but {other} has {shape[1]} × {shape[2]}. "
        f"Scale them all with [data] size = [height, width], such as --set 'data.size=[{shape[1]},{shape[2]}]'."
    )
