"""The roles of the folders above files: factories, devices and labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Dataset
from fedfloor.data.files.encode import natural_order
from fedfloor.data.files.layout import looks_like_time
from fedfloor.data.files.tree import DataFile, dated, files_in, named, of_file

OTHERS = {
    "device/file": "each file may be a separate device (--set data.device=file), in its factory's folder",
    "device/label/file": "the folders may be factories and devices, if the tables hold a column of labels",
    "factory/device/file": "the folders may be devices and labels, days or parts of them",
    "factory/device/label/file": "",
}


def check_levels(files: Sequence[DataFile], given: Mapping[str, Any]) -> None:
    """Refuse a folder of files that may be recordings of one device or separate devices."""
    folders = [file.folders for file in files]
    names = [file.path.name for file in files]
    if given.get("device") or given.get("layout") or any(len(levels) != 1 for levels in folders):
        return
    days = all(looks_like_time(name.split(".")[0].replace("_", "-")) for name in names)
    if len({*folders}) < 2 or len({*folders}) == len(folders) or len({*names}) < len(names) or days:
        return
    where = natural_order([levels[0] for levels in folders])
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


def layout_of(data: Dataset, files: Sequence[DataFile], given: Mapping[str, Any]) -> str:
    """Return the layout with which a folder was read; empty if a layout has no effect."""
    if given.get("device", "folder") != "folder":
        return ""
    depth = len(files[0].folders)
    factories = bool(data.owned.factories)
    if given.get("layout"):
        return str(given["layout"])
    if depth == 1:
        return "device/file"
    if depth == 2:
        return "factory/device/file" if factories else "device/label/file"
    return "factory/device/label/file"


def folder_words(data: Dataset, path: Path, settings: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each level of a folder, and one on other possible layouts."""
    files = files_in(path)
    if settings.get("device", "folder") != "folder":
        each = "files with the same device name are a device" if settings.get("file_name") else "each file is a device"
        where = {"file": each, "column": "a column names the devices"}[settings["device"]]
        above = ", its folder is its factory" if settings.get("factory") == "folder" else ""
        sentences = [f"layout: {where}{above}, as set; devices {named(data.owned.names)}"]
        by_date = dated([file.path.name for file in files])
        if settings["device"] == "file" and by_date is not None and not settings.get("file_name"):
            sentences.append(
                f"if each device has several of these files ({named(by_date[1])}): --set 'data.file_name={by_date[0]}'"
            )
        return sentences
    if not files or not files[0].folders:
        return []
    layout = layout_of(data, files, settings)
    given = "layout" in settings
    sentences = [f"layout: folders are read as {layout}{', as given' if given else ''}"]
    for level, role in enumerate(layout.split("/")[: len(files[0].folders)]):
        names = natural_order([file.folders[level] for file in files])
        plural = {"factory": "factories", "device": "devices", "label": "labels"}[role]
        sentences[0] += f"; {plural} {named(names)}"
    if OTHERS.get(layout) and not given:
        sentences.append(f"layout alternatives: {OTHERS[layout]}; --layout LAYOUT is one of {', '.join(OTHERS)}")
    return sentences


def recordings(given: Mapping[str, Any], path: Path) -> str:
    """Return a clause if devices, or their folders of labels, have several recordings; empty where few do."""
    run = given.get("columns", {}).get("run")
    if run:
        return f"column '{run}' names recordings"
    way = given.get("device", "folder")
    form = given.get("file_name")
    if not path.is_dir() or way == "column":
        return ""
    files = Counter(
        (*file.folders, of_file(file.path.name, form)) if way == "file" else file.folders for file in files_in(path)
    )
    if () in files:  # tables without a folder: a column names their devices
        return ""
    many = sum(count > 1 for count in files.values())
    noun = "folders of a label" if "label" in given.get("layout", "") else "devices"
    return f"{many} of {len(files)} {noun} have several files" if 2 * many >= len(files) else ""
