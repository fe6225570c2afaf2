"""What the folders above a file are: factories, devices, labels; refused where their names leave it open."""

from __future__ import annotations

from collections.abc import Sequence

from fedfloor.data.names import natural_order
from fedfloor.data.reading import Reading
from fedfloor.data.tree import Found
from fedfloor.errors import SettingError

EXAMPLES = 3  # folder names in a message


def check(files: Sequence[Found], reading: Reading, *, images: bool) -> None:
    """Check that the last folders of files are labels where nothing else may be read from them.

    Pictures, and tables in three folders, lie in folders that are named for labels. The names show it where one of
    them stands in several devices; otherwise they might as well be devices, parts or days. ``[data] classes`` and
    ``layout`` settle it.

    Args:
        files: all in equally many folders.
        reading: layout and classes.
        images: whether they are pictures.

    Raises:
        SettingError: ``layout`` has another number of levels, or nothing shows that the last ones are labels.
    """
    given, depth = reading.layout, len(files[0].folders)
    if given is not None:
        if given.count("/") != depth or (images and "label" not in given):
            raise SettingError(
                f"[data] layout = '{given}': {files[0].name} lies in {depth} folder{'s' if depth > 1 else ''}"
                f"{', and pictures need a label' if images else ''}. Known for {'pictures' if images else 'tables'} at "
                f"this depth: {', '.join(_known(depth, images=images))}."
            )
        return
    if (not images and depth < 3) or reading.classes or _repeats(files):
        return
    levels = "factory/device/label" if depth == 3 else "device/label"
    last = natural_order([one.folders[-1] for one in files])
    raise SettingError(
        f"{files[0].name}: read as {levels}/file the labels are {named(last)}, but none of them stands in two "
        f"devices. If that is right: --set data.layout={levels}/file. If these are devices (factory/device/file): "
        f"the files of each need a folder per label below it{'' if images else ', or a column for the label'}."
    )


def labelled(files: Sequence[Found], reading: Reading, columns: Sequence[str]) -> bool:
    """Return whether the last folders of tables without a column for the label are labels.

    Args:
        files: the tables, all in two folders.
        reading: layout and classes.
        columns: of the tables.

    Raises:
        SettingError: neither says so: the folders may be factories and devices.
    """
    first, last = (natural_order([one.folders[level] for one in files]) for level in (0, 1))
    if reading.layout is not None or (reading.classes and {*last} <= {*reading.classes}):
        return "label" in (reading.layout or "label")
    raise SettingError(
        f"{files[0].name}: two folders, and no column '{reading.columns.label}': they can be read in two ways. "
        f"device/label/file: devices {named(first)}; labels {named(last)}: --set data.layout=device/label/file. Or "
        f"factory/device/file: factories {named(first)}; devices {named(last)}; and the label is a column of the "
        f"tables ({', '.join(columns)}): --set data.layout=factory/device/file --set data.columns.label=NAME."
    )


def _known(depth: int, *, images: bool) -> list[str]:
    every = {1: ["device/file"], 2: ["device/label/file", "factory/device/file"], 3: ["factory/device/label/file"]}
    return [one for one in every[depth] if "label" in one or not images]


def _repeats(files: Sequence[Found]) -> bool:
    """Return whether a folder's name stands in several folders."""
    places = {one.folders for one in files}
    return len({folders[-1] for folders in places}) < len(places)


def named(names: Sequence[str]) -> str:
    """Return some names and how many there are.

    >>> named(["a", "b", "c", "d"])
    "'a', 'b', 'c', … (4)"
    """
    some = ", ".join(f"'{name}'" for name in names[:EXAMPLES])
    return some if len(names) <= EXAMPLES else f"{some}, … ({len(names)})"
