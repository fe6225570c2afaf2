"""The user's arrays: an .npz file with samples, labels and owners.

The file is not trusted: pickles are refused, and memory is allocated only after sizes agree with the archive.
"""

from __future__ import annotations

import logging
import lzma
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedfloor.base import regular
from fedfloor.base.arrays import read_again
from fedfloor.base.errors import SettingError, nearest
from fedfloor.base.names import count
from fedfloor.data.cache import Writer, remember
from fedfloor.data.dataset import Dataset, Inputs, Values
from fedfloor.data.files import unreadable
from fedfloor.data.files.encode import binned, check_no_measure, names_of
from fedfloor.data.files.layout import LARGEST
from fedfloor.data.files.packed import check_ratio
from fedfloor.data.files.rows import check_columns
from fedfloor.data.files.sheet import Sheet
from fedfloor.data.files.spellings import respelt
from fedfloor.data.files.table import of_entry, write
from fedfloor.data.reading import Columns, Problem, Reading

CHANNELS = (1, 3)
BLOCK = 1 << 22  # numbers examined at a time


def samples(file: str, name: str, x: NDArray[Any]) -> Values:
    """Return samples in the stored format.

    Images are uint8: [N, H, W], or [N, C, H, W] with C = 1 or 3; where the second axis is neither and the last one is,
    they are [N, H, W, C] and transposed. Floats are sensors: rows [N, C], or ready-made windows [N, C, L].

    Returns:
        uint8 [N, C, H, W], float32 [N, C] or float32 [N, C, L]; NaN where a value is missing.
    """
    where = f"{file}, array '{name}'"
    if x.ndim and not x.size:
        raise SettingError(f"{where}: shape {x.shape}, without samples. Store at least one.", key="shape-of-samples")
    if x.dtype == np.uint8:
        if x.ndim == 3:
            return x[:, None]
        if x.ndim == 4 and x.shape[1] in CHANNELS:
            return x
        if x.ndim == 4 and x.shape[3] in CHANNELS:
            return x.transpose(0, 3, 1, 2)
        raise SettingError(
            f"{where}: uint8 {x.shape}. Images are [N, H, W], [N, C, H, W] or [N, H, W, C], with C = 1 (grey) or 3 "
            "(colour); sensors are floats: x.astype('float32').",
            key="shape-of-samples",
        )
    if x.dtype.kind != "f":
        hint = "Images are uint8, and sensors float32 or float64."
        if x.dtype.kind in "iu" and x.ndim > 2:
            hint = "Images are uint8: scale them to 0..255 and use x.astype('uint8'). Windows are x.astype('float32')."
        elif x.dtype.kind in "iub":
            hint = "Sensors are floats: x.astype('float32'). Images are uint8."
        raise SettingError(f"{where}: {x.dtype}. {hint}", key="type-of-samples")
    if x.ndim not in (2, 3):
        more = " Images are uint8: (255 * x).round().astype('uint8') if x is in 0..1." if x.ndim == 4 else ""
        raise SettingError(
            f"{where}: {x.dtype} {x.shape}. Sensors are rows [N, C] or windows [N, C, L].{more}", key="shape-of-samples"
        )
    many = max(1, BLOCK * len(x) // x.size)
    for start in range(0, len(x), many):
        wrong = np.argwhere(np.abs(x[start : start + many].astype(np.float64)) > LARGEST)
        if len(wrong):
            place = (int(wrong[0][0]) + start, *wrong[0][1:].tolist())
            raise SettingError(
                f"{where}: {x[place]} at {list(place)} is not a finite number of 32 bits.", key="not-finite"
            )
    return x.astype(np.float32, copy=False)


HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path, choose: Callable[[Sequence[str]], Collection[str]]) -> dict[str, NDArray[Any]]:
    """Return arrays of an .npz file by name; ``choose`` maps the names in the file to those to read.

    Nothing is executed (pickles are refused), and memory is allocated only after sizes agree with the archive.

    Raises:
        SettingError: not an .npz file, a damaged or hostile one, or an array of Python objects.
    """
    with _opened(path) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if info.flag_bits & 1:
                raise SettingError(
                    f"{path}: '{info.filename}' has a password. Write the file again with np.savez.", key="password"
                )
            if name in members:
                raise SettingError(
                    f"{path}: contains the array '{name}' twice. Write it again with np.savez.", key="repeated-array"
                )
            members[name] = info
        chosen = {name: members[name] for name in choose(list(members))}
        stated = sum(info.file_size for info in chosen.values())
        check_ratio(path, path.stat().st_size, stated, "write them with np.savez, which does not compress")
        return {name: read_again(partial(_array, path, archive, info, name)) for name, info in chosen.items()}


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(regular.check(path)) as archive:
            yield archive
    except OSError as error:
        raise unreadable(path, error) from error
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, SystemError, ValueError) as error:
        raise SettingError(
            f"{path}: not a complete .npz file ({error}). Write it again with np.savez or np.savez_compressed.",
            key="damaged-npz",
        ) from error


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    with archive.open(info) as stream:
        version = npy.read_magic(stream)
        if version not in HEADERS:
            raise ValueError(f"NPY version {version}")
        try:
            shape, _, dtype = HEADERS[version](stream)
        except SystemError:
            raise  # no statement about the file: see read_again
        except Exception as error:  # headers are parsed as Python, so that damaged text may raise anything
            raise ValueError(f"a header that cannot be read: {str(error) or type(error).__name__}") from error
        if dtype.hasobject:
            raise SettingError(
                f"{path}, array '{name}': Python objects, which are not read because they could execute code. Write "
                "texts as np.array(…, dtype=str), and lists of unequal length as arrays of one shape.",
                key="python-objects",
            )
        if not dtype.itemsize:
            raise ValueError(f"array '{name}' has elements of no length")  # any number of elements would fit
        stated = math.prod(shape) * dtype.itemsize
        available = info.file_size - stream.tell()
        if stated != available:
            raise ValueError(f"array '{name}' {shape} needs {stated:,} bytes, but there are {available:,}")
    with archive.open(info) as stream:
        return np.asarray(npy.read_array(stream, allow_pickle=False))


log = logging.getLogger(__name__)

RECIPE = "npz 7"
PER_SAMPLE = ("y", "device", "factory", "time")  # arrays with a value per sample
KNOWN = ("x", *PER_SAMPLE, "classes", "sensors", "x_test", "y_test", "device_test")
COLUMNS = Columns(label="y")
IMAGES = ("classes", "spellings", "split", "small", "sort", "task")
WINDOWS = (*IMAGES, "missing", "bins", "task")
ROWS = (*WINDOWS, "window")
Arrays = Mapping[str, NDArray[Any]]


def load(path: Path, reading: Reading, seed: int) -> Dataset:
    """Read ``x`` (see :func:`samples`), ``y`` and all other arrays of :data:`KNOWN` in the file.

    Raises:
        SettingError: a mistake in the file; the message names the array, and the row counted from 0.
    """
    recipe = f"{RECIPE} {reading.recipe()}"
    entry = remember(recipe, [path], lambda writer: _parse(path, reading, writer))
    x = entry.arrays["x"]
    image = x.dtype == np.uint8
    ready = x.ndim == 3
    kind = IMAGES if image else WINDOWS if ready else ROWS
    reading.only(kind, f"{path.name}, whose x are {'images' if image else 'windows' if ready else 'rows'}")
    inputs = Inputs("image")
    if not image:
        length = x.shape[2] if ready else None
        if ready and x.shape[1] > x.shape[2]:
            log.warning(
                "%s: x is read as [samples, sensors, times]: %s over %s. If sensors are the last axis: x.transpose(0, "
                "2, 1).",
                path.name, count(x.shape[1], "sensor"), count(x.shape[2], "time"),
            )  # fmt: skip
        inputs = Inputs("table", tuple(entry.facts["columns"]), length, length, reading.missing, COLUMNS.roles())
    return of_entry(
        path.name, entry, replace(reading, columns=COLUMNS), seed, inputs,
        noun="samples", ordered=not image and not ready and reading.window is not None,
    )  # fmt: skip


def _parse(path: Path, reading: Reading, writer: Writer) -> Mapping[str, Any]:
    def known(names: Sequence[str]) -> Sequence[str]:
        for name in names:
            if name not in KNOWN:
                raise SettingError(
                    f"{path.name}: unknown array '{name}'.{nearest(name.casefold(), KNOWN)} Known arrays: "
                    f"{', '.join(KNOWN)}. Write it again with these names, such as np.savez(FILE, x=…, y=…, device=…): "
                    "y is the label of each sample, and device its owner, such as a machine or a writer.",
                    key="unknown-array",
                )
        return names

    arrays = read_arrays(path, known)
    _check_there(path, arrays, reading)
    parts = ["", "_test"] if "x_test" in arrays else [""]
    sheets = [_sheet(path, arrays, part) for part in parts]
    if len(sheets) == 2 and (sheets[0].x.shape[1:], sheets[0].x.dtype) != (sheets[1].x.shape[1:], sheets[1].x.dtype):
        a, b = (f"{arrays[name].dtype} {arrays[name].shape}" for name in ("x", "x_test"))
        raise SettingError(
            f"{path.name}: 'x' is {a}, but 'x_test' is {b}. Samples must have the same shape and type.",
            key="shape-of-samples",
        )
    label: NDArray[np.float32] | list[str] | None = None
    classes: tuple[str, ...] = ()
    if "y" in arrays and reading.number:
        label = _numbers(path, arrays, parts)
    elif "y" in arrays:
        label, classes = _labels(path, arrays, parts, reading)
    device = [text for part in parts for text in texts(path, arrays, f"device{part}")] if "device" in arrays else None
    factory = texts(path, arrays, "factory") if "factory" in arrays else None
    split = np.repeat(np.arange(len(parts), dtype=np.int8), [len(sheet.line) for sheet in sheets])
    if factory is not None and device is not None and len(parts) == 2:
        factory_by_device = dict(zip(device, factory, strict=False))
        strange = next((name for name in device[len(factory) :] if name not in factory_by_device), None)
        if strange is not None:
            raise SettingError(
                f"{path.name}, array 'device_test': '{strange}' is not in 'device', so that its factory is unknown. "
                "Correct its name.",
                key="unknown-device",
            )
        factory += [factory_by_device[name] for name in device[len(factory) :]]
    own_reading = replace(reading, columns=COLUMNS, classes=classes)
    return write(writer, sheets, device, factory, label, own_reading, split if len(parts) == 2 else None)


def _check_there(path: Path, arrays: Arrays, reading: Reading) -> None:
    """Check that the required arrays are present and agree in length with the samples."""
    always = ("x", "y") if reading.asked.labelled else ("x",)
    tests = ("y_test",) if "y" in arrays else ()
    for name, needs in (
        ("", always), ("x_test", tests), ("y_test", ("x_test",)), ("device_test", ("x_test", "device")),
        ("factory", ("device",)),
    ):  # fmt: skip
        for need in needs:
            if (not name or name in arrays) and need not in arrays:
                available = ", ".join(arrays) or "nothing"
                also = f", which '{name}' needs" if name else ""
                raise SettingError(f"{path.name}: no array '{need}'{also}. Available: {available}.", key="no-array")
    if "x_test" in arrays and "device" in arrays and "device_test" not in arrays:
        raise SettingError(
            f"{path.name}: no array 'device_test'. Add it, with the device of each test sample.", key="no-array"
        )
    if "x_test" in arrays and "time" in arrays:
        raise SettingError(
            f"{path.name}: 'time' is for a split by time, but 'x_test' holds test samples already. "
            "Leave one of them out.",
            key="test-samples-and-times",
        )
    for name, array in arrays.items():
        base = name.removesuffix("_test")
        owner = "x_test" if name != base else "x"
        if base in PER_SAMPLE and array.ndim != 1 and not (base == "y" and reading.number and array.ndim == 2):
            hint = " If it is one-hot, use y.argmax(1)." if base == "y" else ""
            raise SettingError(
                f"{path.name}, array '{name}': shape {array.shape}, must be [N], a value per sample.{hint}",
                key="shape-of-array",
            )
        if base in PER_SAMPLE and len(array) != (arrays[owner].shape or (0,))[0]:
            raise SettingError(
                f"{path.name}: '{name}' has {len(array):,} values, but '{owner}' has the shape {arrays[owner].shape}. "
                "Give a value for each sample.",
                key="length-of-array",
            )


def _sheet(path: Path, arrays: Arrays, part: str) -> Sheet:
    x: Values = samples(path.name, f"x{part}", arrays[f"x{part}"])
    pictures = x.dtype == np.uint8
    check_columns(f"{path.name}, array 'x{part}'", 0 if pictures else x.shape[1])
    columns = () if pictures else tuple(f"x{i}" for i in range(x.shape[1]))
    if "sensors" in arrays:
        names = tuple(map(str, arrays["sensors"].ravel().tolist()))
        if len(names) != len(columns) or len({*names}) < len(names) or not all(names):
            raise SettingError(
                f"{path.name}, array 'sensors': {len(names)} names for {len(columns)} sensors. Name each sensor once.",
                key="names-of-sensors",
            )
        columns = names
    time = _times(path, arrays["time"]) if "time" in arrays else None
    return Sheet(path, columns, x, np.arange(len(x)), {}, time, cell=f"'{{}}{part}'")


def _times(path: Path, array: NDArray[Any]) -> NDArray[np.float64]:
    if array.dtype.kind == "M":
        seconds = array.astype("datetime64[us]").astype(np.float64) / 1e6
        seconds[np.isnat(array)] = np.nan
    elif array.dtype.kind in "iuf":
        seconds = array.astype(np.float64)
    else:
        raise SettingError(f"{path.name}, array 'time': {array.dtype}. Give numbers or datetime64.", key="no-time")
    if not np.isfinite(seconds).all():
        row = int(np.flatnonzero(~np.isfinite(seconds))[0])
        raise SettingError(f"{path.name}, row {row}, array 'time': {array[row]} is no time. Correct it.", key="no-time")
    return seconds


def texts(path: Path, arrays: Arrays, name: str) -> list[str]:
    """Return the names in an array of texts or whole numbers."""
    array = arrays[name]
    if array.dtype.kind not in "iuU":
        raise SettingError(
            f"{path.name}, array '{name}': {array.dtype}. Give whole numbers, or texts (dtype=str).",
            key="type-of-labels",
        )
    try:
        texts = [str(value).strip() for value in array.tolist()]
        "".join(texts).encode()
    except (ValueError, SystemError) as error:  # code points that are no characters
        raise SettingError(
            f"{path.name}, array '{name}': text that is not Unicode. Write the array again.", key="not-unicode"
        ) from error
    if "" in texts:
        raise SettingError(
            f"{path.name}, row {texts.index('')}, array '{name}': empty. Every sample needs a {name}.", key="empty-cell"
        )
    return texts


def _numbers(path: Path, arrays: Arrays, parts: list[str]) -> NDArray[np.float32]:
    """Return the targets of a regression, float32 [N, T], of training samples followed by test samples."""
    targets = []
    for part in parts:
        name = f"y{part}"
        y = arrays[f"y{part}"]
        if y.dtype.kind not in "iuf":
            raise SettingError(
                f"{path.name}, array '{name}': {y.dtype}, but data.task = 'regression' predicts numbers. Write numbers."
            )
        rows = y.reshape(len(y), -1).astype(np.float32)
        odd = np.argwhere(~np.isfinite(rows))
        if len(odd):
            raise SettingError(
                f"{path.name}, row {odd[0][0]}, array '{name}': {y[odd[0][0]]} is not finite. Correct it."
            )
        targets.append(rows)
    if len({rows.shape[1] for rows in targets}) > 1:
        raise SettingError(
            f"{path.name}: 'y' and 'y_test' have different numbers of columns. Give both the same targets."
        )
    return np.concatenate(targets)


def _labels(path: Path, arrays: Arrays, parts: list[str], reading: Reading) -> tuple[list[str], tuple[str, ...]]:
    """Return the label of each sample, and the classes if they are given, of which whole numbers are indices."""
    given = tuple(texts(path, arrays, "classes")) if "classes" in arrays and arrays["classes"].ndim == 1 else ()
    if "classes" in arrays and (not given or len(set(given)) < len(given)):
        raise SettingError(f"{path.name}, array 'classes': must be [F], unique names.", key="names-of-classes")
    if given and reading.classes and given != reading.classes:
        raise SettingError(
            f"{path.name}: its array 'classes' differs from [data] classes. Leave one of them out.",
            key="names-of-classes",
        )
    classes = given or reading.classes
    labels = list[str]()
    kinds = {arrays[f"y{part}"].dtype.kind in "iub" for part in parts}
    if len(kinds) == 2:
        raise SettingError(
            f"{path.name}: one of 'y' and 'y_test' has numbers, the other texts. Use the same type for both.",
            key="type-of-labels",
        )
    for part in parts:
        name = f"y{part}"
        y = arrays[f"y{part}"]
        y = y.astype(np.int64) if y.dtype.kind == "b" else y
        if reading.bins is not None and y.dtype.kind in "iuf":
            place = f"{path.name}, array '{name}', row "
            classes = names_of(reading.bins, reading.classes)
            labels += binned([str(v) for v in y.tolist()], reading.bins, classes, lambda row: f"{place}{row}")  # noqa: B023
            continue
        if y.dtype.kind == "f":
            more = "" if (y % 1).any() else "; if they are classes: y.astype('int64')"
            text = (
                f"{path.name}, array '{name}': {y.dtype}. Labels are whole numbers or texts. To predict numbers, set "
                f"data.task = 'regression'{more}."
            )
            reading.refuse(Problem("measure", text))
        if y.dtype.kind not in "iu":
            labels += respelt(texts(path, arrays, name), reading.spellings)
            continue
        wrong = np.flatnonzero((y < 0) | ((y >= len(classes)) if classes else np.zeros(len(y), np.bool_)))
        if len(wrong):
            most = f"0 to {len(classes) - 1}, the indices of the {len(classes)} classes" if classes else "0 or more"
            raise SettingError(
                f"{path.name}, row {wrong[0]}, array '{name}': {y[wrong[0]]}. Labels are {most}.", key="labels"
            )
        labels += [classes[label] if classes else str(label) for label in y.tolist()]
    if not classes and not reading.whole and reading.asked.labelled:
        check_no_measure(labels, f"{path.name}, array 'y'", reading)
    return labels, classes
