"""Rows of sensors become samples: split into training and test, cut into windows, missing values dealt with."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedfloor.chance import generator
from fedfloor.errors import SettingError
from fedfloor.park.dataset import Dataset, Indices, Inputs, Labels, Missing, Owned, Owners, Times, Values
from fedfloor.park.reading import DeviceSplit, RandomSplit, Reading, Split, TimeSplit

log = logging.getLogger(__name__)

Rows32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rows:
    """Recordings, one after the other: in each the rows are in the order of time.

    Args:
        x: float32 [T, C], NaN where a value is missing.
        y: int64 [T], the class of each row.
        segment: int32 [T], the recording of each row; equal numbers are neighbours, and no window crosses them.
        owner: int32 [T], the device of each row; devices are neighbours too. None where there are none.
        part: int8 [T], 0 training, 1 test, where the data come split; else None.
        time: float64 [T], or None.
        line: int64 [T], where each row stands in its file, for messages; None where rows come from no table.
        file: int32 [T], in which of ``files`` it stands.
        files: their names.
    """

    x: Rows32
    y: Labels
    segment: Owners
    owner: Owners | None = None
    part: NDArray[np.int8] | None = None
    time: Times | None = None
    line: Indices | None = None
    file: Owners | None = None
    files: tuple[str, ...] = ()

    def place(self, row: int) -> str:
        """Return where a row stands, as a reader would look for it."""
        if self.line is None:
            return f"row {row}"
        return f"{self.files[int(self.file[row]) if self.file is not None else 0]}, row {self.line[row]}"


@dataclass(frozen=True, eq=False)
class _Cut:
    """Samples: the first row of each, whether it is for testing, and how many rows it has."""

    start: Indices
    test: NDArray[np.bool_]
    length: int

    @property
    def last(self) -> Indices:
        """The last row of each sample, whose label, device and time are the sample's."""
        return self.start + self.length - 1


def assemble(
    name: str, classes: tuple[str, ...], rows: Rows, reading: Reading, inputs: Inputs, owned: Owned, digest: str,
    seed: int,
) -> Dataset:  # fmt: skip
    """Make a data set of recordings: float32 [N, C], or windows [N, C, L] that are cut out when they are asked for.

    Args:
        name: the data set's name.
        classes: F names.
        rows: the recordings.
        reading: window, split, what to do with missing values and with small devices.
        inputs: names of the columns.
        owned: names and factories of the devices.
        digest: of the content.
        seed: of random splits.

    Raises:
        SettingError: a device has too few rows, overlapping windows are to be split at random, or nothing is left.
    """
    window = reading.window
    length, stride = (1, 1) if window is None else (window.length, window.stride)
    split = _split_of(rows, reading)
    part = _parts_by_time(rows, split.test) if isinstance(split, TimeSplit) else rows.part
    start = _starts(_runs(rows.segment, part), length, stride)
    cut = _Cut(start, _is_test(start, part, length), length)
    if reading.missing == "drop":
        cut = _without_missing(name, rows, cut)
    cut = _divide(rows, cut, split, stride, seed)
    if rows.owner is not None:
        both = not isinstance(split, DeviceSplit)
        cut = _large_enough(name, rows, rows.owner, cut, reading, owned, both=both)
    _check_not_empty(name, cut, length)
    _check_classes(name, classes, rows.y[cut.last[~cut.test]])
    if window is not None:
        inputs = replace(inputs, length=length, step=stride)
    return _dataset(name, classes, rows, cut, inputs, owned, digest, split)


def fill(x: Rows32, segment: Owners) -> Rows32:
    """Return the rows with each missing value replaced by the last one before it in its recording, or else the next.

    What a recording never measured stays missing.

    >>> fill(np.array([[np.nan], [1], [np.nan], [np.nan]], np.float32), np.array([0, 0, 0, 1])).ravel()
    array([ 1.,  1.,  1., nan], dtype=float32)
    """
    x = x.copy()
    for first, last in _runs(segment, None):
        piece = x[first:last]
        known = ~np.isnan(piece)
        if known.all():
            continue
        row = np.arange(len(piece))[:, None]
        before = np.maximum.accumulate(np.where(known, row, -1), axis=0)
        after = np.minimum.accumulate(np.where(known, row, len(piece))[::-1], axis=0)[::-1]
        source = np.where(before >= 0, before, np.minimum(after, len(piece) - 1))
        x[first:last] = np.take_along_axis(piece, source, axis=0)
    return x


def say_missing(name: str, count: int, total: int, missing: Missing) -> None:
    """Say on standard error how many values were missing and what was done about it."""
    if count and missing != "refuse":
        done = {
            "previous": "each was given its recording's last value before it",
            "mean": "each counts as its sensor's mean over all devices",
            "drop": "samples with one are left out",
        }[missing]
        log.info("%s: %s of %s values are missing (%.2g %%): %s.", name, f"{count:,}", f"{total:,}",
                 100 * count / total, done)  # fmt: skip


def _split_of(rows: Rows, reading: Reading) -> Split | None:
    """Return the split asked for, or the one that fits; None for data that come split."""
    if rows.part is not None:
        if reading.split is not None:
            raise SettingError("[data] split: these data come with test samples of their own. Leave split out.")
        return None
    if reading.split is not None:
        return reading.split
    return TimeSplit() if rows.time is not None or reading.window is not None else RandomSplit()


def _runs(segment: Owners, part: NDArray[np.int8] | None) -> list[tuple[int, int]]:
    """Return (first, end) of each run of neighbours in one recording and one part."""
    change = segment[1:] != segment[:-1]
    if part is not None:
        change = change | (part[1:] != part[:-1])
    edges = [0, *(np.flatnonzero(change) + 1).tolist(), len(segment)]
    return list(pairwise(edges)) if len(segment) else []


def _starts(runs: Sequence[tuple[int, int]], length: int, stride: int) -> Indices:
    pieces = [np.arange(first, end - length + 1, stride) for first, end in runs]
    return np.concatenate([*pieces, np.empty(0, np.int64)]).astype(np.int64)


def _parts_by_time(rows: Rows, share: float) -> NDArray[np.int8]:
    """Return the part of each row where the last ``share`` of each device's rows is for testing."""
    owner = rows.segment if rows.owner is None else rows.owner
    part = np.zeros(len(owner), np.int8)
    for first, end in _runs(owner, None):
        part[end - _share(share, end - first) : end] = 1
    return part


def _share(share: float, many: int) -> int:
    """Return ⌊share·many⌋, 0.29 of 100 being 29 in spite of rounding."""
    return int(share * many + 1e-9)


def _is_test(start: Indices, part: NDArray[np.int8] | None, length: int) -> NDArray[np.bool_]:
    if part is None:
        return np.zeros(len(start), np.bool_)
    chosen: NDArray[np.bool_] = part[start + length - 1] == 1
    return chosen


def _divide(rows: Rows, cut: _Cut, split: Split | None, stride: int, seed: int) -> _Cut:
    """Choose test samples, or test devices, at random where that is the split."""
    if not isinstance(split, RandomSplit | DeviceSplit):
        return cut
    if isinstance(split, RandomSplit) and stride < cut.length:
        raise SettingError(
            f"[data] split = random with windows of {cut.length} rows every {stride}: they overlap, so that test "
            "windows would share rows with training windows. Split by time or by device, or let step be the length."
        )
    owner = np.zeros(len(cut.start), np.int32) if rows.owner is None else rows.owner[cut.last]
    test = np.zeros(len(cut.start), np.bool_)
    devices = np.unique(owner)
    if isinstance(split, DeviceSplit):
        if len(devices) < 2:
            raise SettingError(
                f"[data] split = device: needs two devices with a sample, but {len(devices)} has one. Split by time or "
                "at random, or shorten the window."
            )
        many = min(max(1, round(split.test * len(devices))), len(devices) - 1)
        chosen = generator(seed, "test devices").choice(devices, many, replace=False)
        return replace(cut, test=np.isin(owner, chosen))
    by_owner = np.argsort(owner, kind="stable")
    first, end = (np.searchsorted(owner[by_owner], devices, side) for side in ("left", "right"))
    for row, device in enumerate(devices.tolist()):
        mine = by_owner[first[row] : end[row]]
        rng = generator(seed, "test samples", device)
        test[rng.choice(mine, _share(split.test, len(mine)), replace=False)] = True
    return replace(cut, test=test)


def _without_missing(name: str, rows: Rows, cut: _Cut) -> _Cut:
    holes = np.concatenate([[0], np.cumsum(np.isnan(rows.x).any(axis=1))])
    whole = holes[cut.start + cut.length] == holes[cut.start]
    if not whole.all():
        log.info("%s: %s of %s samples are left out.", name, f"{(~whole).sum():,}", f"{len(whole):,}")
    return replace(cut, start=cut.start[whole], test=cut.test[whole])


def _large_enough(
    name: str, rows: Rows, owner: Owners, cut: _Cut, reading: Reading, owned: Owned, *, both: bool
) -> _Cut:
    """Refuse, or leave out, devices that have no sample, or have not both a training and a test sample."""
    most = int(owner.max()) + 1
    mine = owner[cut.last]
    train = np.bincount(mine[~cut.test], minlength=most)
    test = np.bincount(mine[cut.test], minlength=most)
    there = np.unique(owner)
    small = there[((train == 0) | (test == 0) if both else train + test == 0)[there]]
    if not len(small):
        return cut
    names = [owned.names[k] if owned.names else str(k) for k in small]
    if reading.small == "drop":
        told = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        log.info("%s: devices that have too few rows and are left out, %d in all: %s.", name, len(small), told)
        keep = ~np.isin(mine, small)
        return replace(cut, start=cut.start[keep], test=cut.test[keep])
    first, count = int(np.flatnonzero(owner == small[0])[0]), int((owner == small[0]).sum())
    role = reading.columns.device
    sample, shorten = (f"windows of {cut.length} rows", "shorten the window, ") if reading.window else ("rows", "")
    more = f" There are {len(small) - 1:,} more such devices: {', '.join(names[1:4])}{', …' if len(small) > 4 else ''}."
    raise SettingError(
        f"{rows.place(first)}, column '{role}': device '{names[0]}' has {count} row{'s' * (count > 1)}. That makes "
        f"{train[small[0]]} training and {test[small[0]]} test {sample}, and {'each' if both else 'one'} must be at "
        f"least 1.{more if len(small) > 1 else ''} Give it more rows, {shorten}let [data] split test be another share, "
        'or leave such devices out with [data] small = "drop".'
    )


def _check_not_empty(name: str, cut: _Cut, length: int) -> None:
    for what, count in (("training", int((~cut.test).sum())), ("test", int(cut.test.sum()))):
        if not count:
            raise SettingError(
                f"{name}: no {what} samples are left{f' (windows of {length} rows)' if length > 1 else ''}. Look at "
                "[data] window, missing, split and small."
            )


def _check_classes(name: str, classes: tuple[str, ...], y: Labels) -> None:
    if (y == y[0]).all():
        raise SettingError(
            f"{name}: every training sample is '{classes[y[0]]}'. Other classes are in the table, but no training "
            'sample is one of them: try [data] split = { kind = "random" }, another share for testing, other windows.'
        )


def _dataset(
    name: str, classes: tuple[str, ...], rows: Rows, cut: _Cut, inputs: Inputs, owned: Owned, digest: str,
    split: Split | None,
) -> Dataset:  # fmt: skip
    start, start_test = cut.start[~cut.test], cut.start[cut.test]
    last, last_test = cut.last[~cut.test], cut.last[cut.test]
    x, length = rows.x, cut.length if inputs.length is not None else None
    owner = None if rows.owner is None else rows.owner[last].astype(np.int32)
    tested = None if rows.owner is None or isinstance(split, DeviceSplit) else rows.owner[last_test].astype(np.int32)
    channels = x.shape[1]
    return Dataset(
        name, classes, (channels,) if length is None else (channels, length),
        rows.y[last].astype(np.int64), rows.y[last_test].astype(np.int64), owner, tested, digest,
        lambda indices, device: _gather(x, start[indices], length),  # noqa: ARG005
        lambda indices: _gather(x, start_test[indices], length),
        scale=1.0, time=None if rows.time is None else rows.time[last], owned=owned, inputs=inputs,
    )  # fmt: skip


def _gather(x: Rows32, start: Indices, length: int | None) -> Values:
    """Return rows [n, C], or windows [n, C, L], as arrays of their own."""
    if length is None:
        return x[start]
    return np.ascontiguousarray(x[start[:, None] + np.arange(length)].transpose(0, 2, 1))
