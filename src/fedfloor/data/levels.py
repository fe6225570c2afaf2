"""What the folders of data of one's own are taken for, in words, and what else they might be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor.data.dataset import Dataset
from fedfloor.data.layout import named
from fedfloor.data.names import natural_order
from fedfloor.data.naming import stem_of
from fedfloor.data.reading import DEVICE
from fedfloor.data.sheet import looks_like_time
from fedfloor.data.tree import Found, walk
from fedfloor.errors import SettingError

OTHERS = {
    "device/file": "each file may be a device of its own (--set data.device=file), in its factory's folder",
    "device/label/file": "the folders may be factories and devices, if the tables hold a column of labels",
    "factory/device/file": "the folders may be devices and labels, days or parts of them",
    "factory/device/label/file": "",
}


def dated(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the form of file names that are a device's name and a date, and the devices; None where they are not.

    >>> dated(["P-1_2026-01.csv", "P-1_2026-02.csv", "P-2_2026-01.csv"])
    ('DEVICE_*', ['P-1', 'P-2'])
    >>> dated(["pump_1_2026-01.csv", "pump_1_2026-02.csv"]), dated(["a.csv", "b.csv"])
    (('DEVICE_20*', ['pump_1']), None)
    """
    found = [re.fullmatch(r"(.+?)([_ .-]+)(?:19|20)\d\d(?:\D?\d\d?){0,2}(?:\D.*)?", stem_of(name)) for name in names]
    known = [match for match in found if match]
    devices = natural_order([match[1] for match in known])
    signs = {match[2] for match in known}
    if len(known) < len(names) or len(signs) != 1 or len(devices) == len(names):
        return None
    sign = signs.pop()
    return f"{DEVICE}{sign}{'20' if any(sign in name for name in devices) else ''}*", devices


def check(files: Sequence[Found], told: Mapping[str, Any]) -> None:
    """Check that files in a folder each are recordings of that device, where nothing else may be read from them.

    Raises:
        SettingError: several folders hold several files, no name of which stands in two: each may be a device.
    """
    folders = [one.folders for one in files]
    names = [one.path.name for one in files]
    if told.get("device") or told.get("layout") or any(len(one) != 1 for one in folders):
        return
    days = all(looks_like_time(name.split(".")[0].replace("_", "-")) for name in names)
    if len({*folders}) < 2 or len({*folders}) == len(folders) or len({*names}) < len(names) or days:
        return
    where = natural_order([one[0] for one in folders])
    by_date = dated(names)
    several = ""
    if by_date is not None:
        several = (
            f" Devices with a file per date ({named(by_date[1])}): --set data.device=file --set data.factory=folder "
            f"--set 'data.file_name={by_date[0]}'."
        )
    raise SettingError(
        f"{files[0].name}: its folder may be a device and the file one of its recordings, or the folder a factory and "
        f"the file a device: folders {named(where)}; files {named(natural_order(names))}. Recordings: --set "
        f"data.device=folder. Devices: --set data.device=file --set data.factory=folder.{several}"
    )


def layout_of(data: Dataset, files: Sequence[Found], told: Mapping[str, Any]) -> str:
    """Return the layout that a folder was read with."""
    if told.get("device", "folder") != "folder":
        return ""
    depth, factories = len(files[0].folders), bool(data.owned.factories)
    if told.get("layout"):
        return str(told["layout"])
    if depth == 1:
        return "device/file"
    if depth == 2:
        return "factory/device/file" if factories else "device/label/file"
    return "factory/device/label/file"


def words(data: Dataset, path: Path, told: Mapping[str, Any]) -> list[str]:
    """Return a sentence per level of a folder, and one on what it might be instead.

    Args:
        data: as it was read.
        path: the folder.
        told: keys of ``[data]``.
    """
    files = [one for one in walk(path) if not one.empty]
    if told.get("device", "folder") != "folder":
        each = "files of one name are a device" if told.get("file_name") else "each file is a device"
        where = {"file": each, "column": "a column names the devices"}[told["device"]]
        above = ", its folder is its factory" if told.get("factory") == "folder" else ""
        said = [f"layout: {where}{above}, as given; devices {named(data.owned.names)}"]
        by_date = dated([one.path.name for one in files])
        if told["device"] == "file" and by_date is not None and not told.get("file_name"):
            said.append(
                f"if these files are several of each device ({named(by_date[1])}): --set 'data.file_name={by_date[0]}'"
            )
        return said
    if not files or not files[0].folders:
        return []
    layout, given = layout_of(data, files, told), "layout" in told
    said = [f"layout: folders are read as {layout}{', as given' if given else ''}"]
    for level, role in enumerate(layout.split("/")[: len(files[0].folders)]):
        names = natural_order([one.folders[level] for one in files])
        plural = {"factory": "factories", "device": "devices", "label": "labels"}[role]
        said[0] += f"; {plural} {named(names)}"
    if OTHERS.get(layout) and not given:
        said.append(f"layout alternatives: {OTHERS[layout]}; --layout LAYOUT is one of {', '.join(OTHERS)}")
    return said
