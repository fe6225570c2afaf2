"""Samples from matrices, one file per sensor: a row is a sample, and its columns are the sensor's values over time.

Examples are UCI's human activity recognition and condition monitoring of hydraulic systems, with labels and subjects in
separate files. They are converted to arrays that ``[data]`` reads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.data.files import check_new, expanded, loaded, new_file, unreadable
from fedfloor.data.files.layout import LARGEST
from fedfloor.data.kinds import is_number

log = logging.getLogger(__name__)

ENDINGS = (".txt", ".csv", ".dat", ".asc", ".tsv")
Matrix = NDArray[np.float64]


def convert(
    sensors: Sequence[Path],
    out: Path,
    *,
    label: str = "",
    device: str = "",
    length: int | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write an ``.npz`` file of windows from matrices, and return its contents.

    Args:
        sensors: matrices [N, n], where n may differ between sensors; a folder means all matrices in it except ``label``
            and ``device``. Other text files in it, such as a description, are logged and left out.
        label, device: a file of N rows; ``FILE:3`` for its third column. Samples for predictions need no label.
        length: L, the number of values of a sensor in a sample, each a mean over n/L values; by default the smallest n.
        force: whether an existing file is overwritten.

    Raises:
        SettingError: no matrices, matrices with different numbers of rows, or values that are not finite.
        RunError: the file cannot be written.
    """
    out = expanded(out)
    check_new(out, (".npz",), force=force)
    arrays: dict[str, Any] = {name: _column(text) for name, text in (("y", label), ("device", device)) if text}
    aside = {_parsed(text)[0].resolve() for text in (label, device) if text}
    matrices = {path: matrix(path) for path in _files(sensors) if path.resolve() not in aside}
    if not matrices:
        raise SettingError(
            f"{', '.join(map(str, sensors))}: no matrices ({', '.join(ENDINGS)}) apart from labels and "
            "devices. Give the sensors' files."
        )
    rows = {text: len(arrays[name]) for name, text in (("y", label), ("device", device)) if text}
    rows |= {path.name: len(x) for path, x in matrices.items()}
    first, samples = next(iter(rows.items()))
    for name, many in rows.items():
        if many != samples:
            raise SettingError(
                f"{name}: {many:,} rows, but {first} has {samples:,}. Give files with the same number of rows, one per "
                "sample.",
                key="lengths-differ",
            )
    sizes = {path.stem: x.shape[1] for path, x in matrices.items()}
    length = length or min(sizes.values())
    if length < 1:
        raise SettingError(f"--length {length}: must be at least 1.")
    arrays["x"] = np.stack([resampled(x, length) for x in matrices.values()], axis=1).astype(np.float32)
    arrays["sensors"] = np.array([path.stem for path in matrices])
    with new_file(out) as part, part.open("wb") as file:
        np.savez(file, **arrays)
    return {"file": str(out), "samples": samples, "length": length, "sensors": sizes}


def resampled(x: Matrix, length: int) -> Matrix:
    """Return the means of rows [N, n] over ``length`` equal time spans, [N, length]; each value covers 1/n of the time.

    >>> resampled(np.array([[1.0, 3.0, 5.0, 7.0]]), 2).tolist(), resampled(np.array([[1.0, 4.0]]), 3).tolist()
    ([[2.0, 6.0]], [[1.0, 2.5, 4.0]])
    """
    sums = np.concatenate([np.zeros((len(x), 1)), np.cumsum(x, axis=1)], axis=1)
    edges = np.linspace(0, x.shape[1], length + 1)
    left = np.minimum(edges.astype(np.int64), x.shape[1] - 1)
    at = sums[:, left] + (edges - left) * x[:, left]
    means: Matrix = np.diff(at, axis=1) * (length / x.shape[1])
    return means


def matrix(path: Path, column: int | None = None) -> Matrix:
    """Return numbers in rows, separated by blanks, commas, semicolons or tabs; or only ``column``, counted from 0.

    Raises:
        SettingError: the file is not a matrix of finite numbers.
    """
    lines = _lines(path)
    try:
        x = loaded(lines, column)
    except ValueError as error:
        raise SettingError(f"{path.name}: not a matrix of numbers ({error}).", key="no-matrix") from error
    if not (np.abs(x) <= LARGEST).all():
        row, column = np.argwhere(~(np.abs(x) <= LARGEST))[0]
        raise SettingError(f"{path.name}, row {row + 1}, column {column + 1}: not a finite number.", key="not-finite")
    return x


def _lines(path: Path) -> list[str]:
    try:
        lines = regular.read_text(path, encoding="utf-8-sig").splitlines(keepends=True)
        return [line.replace(",", " ").replace(";", " ") for line in lines]
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path.name}: not a matrix of numbers ({error}).") from error


def _is_row(line: str) -> bool:
    """Return whether a line holds only numbers."""
    return bool(cells := line.split()) and all(map(is_number, cells))


def _files(paths: Sequence[Path]) -> list[Path]:
    files = []
    for path in map(expanded, paths):
        if not path.exists():
            raise SettingError(f"{path}: no such file or folder.")
        if path.is_file():
            files.append(path)
            continue
        inside = sorted(each for each in path.iterdir() if each.suffix in ENDINGS)
        texts = [each for each in inside if not any(map(_is_row, _lines(each)))]
        for each in texts:
            log.info("%s: left out, because it is a text and no matrix.", each.name)
        files += [each for each in inside if each not in texts]
    return files


def _parsed(text: str) -> tuple[Path, int | None]:
    """Return a file and, for ``FILE:NUMBER``, the number of its column."""
    name, _, number = text.rpartition(":")
    if name and number.isdecimal() and not expanded(Path(text)).exists():
        return expanded(Path(name)), int(number)
    return expanded(Path(text)), None


def _column(text: str) -> NDArray[Any]:
    """Return a column of a matrix, as whole numbers where all of its values are."""
    path, number = _parsed(text)
    columns = len(next(filter(None, map(str.split, _lines(path))), []))
    if number is None and columns > 1:
        raise SettingError(f"{text}: {columns} columns. Choose one of them, such as {text}:1.", key="choice-of-column")
    if number is not None and not 1 <= number <= columns:
        raise SettingError(f"{text}: {path.name} has columns 1 to {columns}. Choose one of them.")
    values = matrix(path, (number or 1) - 1)[:, 0]
    whole: NDArray[Any] = values.astype(np.int64)
    return whole if (whole == values).all() else values.astype(np.float32)
