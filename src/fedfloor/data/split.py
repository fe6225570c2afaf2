"""The choice of test samples: as supplied, by time, at random, by class, by device or by recording."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.base.names import count, some
from fedfloor.data.dataset import Dataset, Indices, Labels, Owned, Owners, Targets, Times, Values
from fedfloor.data.reading import (
    DeviceSplit,
    LastSplit,
    Problem,
    RandomSplit,
    Reading,
    RunSplit,
    Split,
    StratifiedSplit,
    TimeSplit,
    WholeSplit,
    dealt,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive recordings, each with its rows in the order of time; or samples in any order.

    Args:
        x: float32 [T, C], NaN where a value is missing; or ready-made samples, uint8 or float32 [T, …].
        y: int64 [T], the class of each row.
        segment: int32 [T], the recording of each row; equal numbers are adjacent, and no window crosses segments.
        owner: int32 [T], the device of each row; rows of a device are adjacent. None where there are no devices.
        part: int8 [T], 0 training, 1 test, where the data have test samples of their own; otherwise None.
        time: float64 [T], or None.
        line: int64 [T], the number of each row in its file, for messages; None where rows do not come from a table.
        file: int32 [T], the index in ``files`` of each row's file.
        files: their names.
        noun: the plural noun for rows in messages.
        ordered: whether adjacent rows are in the order of time even where ``time`` is None.
        apart: whether a device's recordings have no order: a split by time then divides each recording.
        run: int32 [T], the recording of each row, which may have several segments; None where segments are recordings.
        target: float32 [T, targets], the numbers to predict for each row; None where bins are predicted.
        whole: whether testing and validation use whole recordings, which are never divided.
    """

    x: Values
    y: Labels
    segment: Owners
    owner: Owners | None = None
    part: NDArray[np.int8] | None = None
    time: Times | None = None
    line: Indices | None = None
    file: Owners | None = None
    files: tuple[str, ...] = ()
    noun: str = "rows"
    ordered: bool = True
    apart: bool = False
    run: Owners | None = None
    target: Targets | None = None
    whole: bool = False

    @property
    def runs(self) -> Owners:
        """The recording of each row, int32 [T]."""
        return self.segment if self.run is None else self.run

    def parted(self, name: str, gap: float | None) -> Rows:
        """Return the rows with a new segment after each step of time above ``gap``; recordings stay the same.

        Raises:
            SettingError: rows have no times.
        """
        if gap is None:
            return self
        if self.time is None:
            raise SettingError(f"{name}: [data] gap_s = {gap:g} requires times of the rows. Leave it out.")
        return replace(self, segment=pieces(self.segment, self.time, gap), run=self.runs)

    def place(self, row: int) -> str:
        """Return the place of a row for an error message: its file and, if known, its row in the file."""
        file = self.files[int(self.file[row]) if self.file is not None else 0] if self.files else ""
        if self.line is None:
            return file or f"row {row}"
        return f"{file}, row {self.line[row]}"


@dataclass(frozen=True, eq=False)
class Cut:
    """Samples cut from rows: the first row of each [n], whether it is for testing [n], and the rows per sample."""

    start: Indices
    test: NDArray[np.bool_]
    length: int

    @property
    def last(self) -> Indices:
        """The last row of each sample [n], which determines its label, device and time."""
        return self.start + self.length - 1


def divided(name: str, rows: Rows, reading: Reading, owned: Owned, seed: int) -> Cut:
    """Return the samples of recordings, divided into training and test samples.

    Raises:
        SettingError: a device has too few rows, overlapping windows are to be split at random, or nothing is left.
    """
    window = reading.window
    length, stride = (1, 1) if window is None else (window.length, window.stride)
    split = split_of(rows, reading)
    part = _part_of(rows, split, length)
    if length > 1:
        _log_short(name, rows, length)
    start = np.arange(len(rows.y))
    if not length == stride == 1:
        starts = [np.arange(first, end - length + 1, stride) for first, end in runs(rows.segment, part)]
        start = np.concatenate([*starts, np.empty(0, np.int64)]).astype(np.int64)
    cut = Cut(start, np.zeros(len(start), np.bool_) if part is None else part[start + length - 1] == 1, length)
    # a forecast needs its targets, also where values have none before them
    if (
        reading.missing == "drop" or (reading.missing == "previous" and reading.asked.ahead)
    ) and rows.x.dtype.kind == "f":
        cut = _without_missing(name, rows, cut)
    if isinstance(split, WholeSplit) and not len(cut.start):
        _check_not_empty(name, rows, cut, part, reading)
    cut = _divide(rows, cut, split, stride, seed)
    if rows.owner is not None and split is not None:
        both = not isinstance(split, WholeSplit)
        cut = _large_enough(name, rows, rows.owner, cut, reading, owned, part, both=both)
    _check_not_empty(name, rows, cut, part, reading)
    return cut


def _log_short(name: str, rows: Rows, length: int) -> None:
    """Log the number of recordings that are too short for a window."""
    sizes = np.array([end - first for first, end in runs(rows.segment, None)])
    short = int((sizes < length).sum())
    if short:
        log.info(
            "%s: %s of %s are shorter than a window of %d rows and give no sample; the shortest has %s. To use all "
            "recordings: [data] window = { length = %d }.",
            name, f"{short:,}", count(len(sizes), "recording"), length, count(int(sizes.min()), "row"), sizes.min(),
        )  # fmt: skip


def _longest(rows: Rows, part: NDArray[np.int8] | None, device: int | None) -> int:
    """Return the length of the longest window that fits into both training and testing, for a device or all data."""
    most: dict[int, int] = {}
    for first, end in runs(rows.segment, part):
        if device is None or rows.owner is None or rows.owner[first] == device:
            side = 0 if part is None else int(part[first])
            most[side] = max(most.get(side, 0), end - first)
    return min(most.values()) if part is None or len(most) == 2 else 0


def split_of(rows: Rows, reading: Reading) -> Split | None:
    """Return the split that is set, or the default; None for data with test samples or for training only."""
    if reading.whole:
        if rows.part is not None:
            raise SettingError("the data of a single device are only for training: remove the test samples.")
        return None
    if rows.part is not None:
        if reading.split is not None:
            raise SettingError("[data] split: these data have test samples of their own. Leave split out.")
        return None
    if isinstance(reading.split, TimeSplit | LastSplit) and not rows.ordered and rows.time is None:
        raise SettingError(
            f"[data] split = {reading.split.kind}: the times of these {rows.noun} are unknown. Use "
            '{ kind = "random" } or { kind = "device" }, or supply test samples.'
        )
    if reading.split is not None:
        return reading.split
    return TimeSplit() if rows.time is not None or reading.window is not None else RandomSplit()


def pieces(segment: Owners, time: Times | None, gap: float | None) -> Owners:
    """Return the piece of each row, int32 [T]: recordings are divided after each step of time above ``gap``."""
    if gap is None or time is None:
        return segment
    ends = (np.diff(segment) != 0) | (np.diff(time) > gap)
    return np.concatenate([[0], np.cumsum(ends)]).astype(np.int32)


def runs(segment: Owners, part: NDArray[np.int8] | None) -> list[tuple[int, int]]:
    """Return (first, end) of each run of adjacent rows in the same recording and part."""
    change = segment[1:] != segment[:-1]
    if part is not None:
        change = change | (part[1:] != part[:-1])
    edges = [0, *(np.flatnonzero(change) + 1).tolist(), len(segment)]
    return list(pairwise(edges)) if len(segment) else []


def _part_of(rows: Rows, split: Split | None, length: int) -> NDArray[np.int8] | None:
    """Return the part of each row (0 training, 1 test), as supplied or split by time; None for other splits."""
    device = rows.segment if rows.owner is None else rows.owner
    if isinstance(split, TimeSplit):
        return _last(rows.segment if rows.apart else device, lambda many: _share(split.test, many))
    if not isinstance(split, LastSplit):
        return rows.part
    if split.rows < length:
        raise SettingError(
            f"[data] split = last: {split.rows} rows for testing, but a window has {length}, and windows must not "
            f"cross the boundary of training and testing. Set rows = {length} or more, or a shorter window."
        )
    return _last(rows.runs if split.of == "run" else device, lambda _: split.rows)


def _last(course: Owners, tested: Callable[[int], int]) -> NDArray[np.int8]:
    """Return the part of each row: 1 for the last ``tested(n)`` of the n rows with the same ``course``, else 0."""
    order = np.argsort(course, kind="stable")  # a recording may continue in another file
    part = np.zeros(len(course), np.int8)
    for first, end in runs(course[order], None):
        part[order[max(first, end - tested(end - first)) : end]] = 1
    return part


def _share(share: float, many: int) -> int:
    """Return ⌊share·many⌋, corrected for rounding, so that 0.29 of 100 is 29."""
    return int(share * many + 1e-9)


def _some_of(share: float, many: int) -> int:
    """Return share·many, rounded to an integer from 1 to many − 1."""
    return min(max(1, round(share * many)), many - 1)


def _divide(rows: Rows, cut: Cut, split: Split | None, stride: int, seed: int) -> Cut:
    """Return samples with test samples drawn at random, by sample, class, recording or device; others unchanged."""
    if split is None or isinstance(split, TimeSplit | LastSplit):
        return cut
    if isinstance(split, RunSplit):
        return replace(cut, test=_whole_runs(rows, cut, split, seed))
    if isinstance(split, RandomSplit | StratifiedSplit) and stride < cut.length:
        raise SettingError(
            f"[data] split = {split.kind} with windows of {cut.length} rows every {stride}: they overlap, so that test "
            "windows would share rows with training windows. Split by time, run or device, or set step to the length."
        )
    owner = np.zeros(len(cut.start), np.int32) if rows.owner is None else rows.owner[cut.last]
    test = np.zeros(len(cut.start), np.bool_)
    devices = np.unique(owner)
    if isinstance(split, DeviceSplit):
        if rows.owner is None:
            raise SettingError("[data] split = device: the samples' devices are unknown. Split by time or at random.")
        if len(devices) < 2:
            raise SettingError(
                f"[data] split = device: needs two devices with a sample; devices with a sample: {len(devices)}. Split "
                "by time or at random, or shorten the window."
            )
        if split.by_class:
            return replace(cut, test=_by_class(rows, cut, owner, np.zeros_like(owner), split, seed))
        many = _some_of(split.test, len(devices))
        chosen = generator(seed, "test devices").choice(devices, many, replace=False)
        return replace(cut, test=np.isin(owner, chosen))
    by_owner = np.argsort(owner, kind="stable")
    shares = np.split(by_owner, np.flatnonzero(np.diff(owner[by_owner])) + 1)
    for device, mine in zip(devices.tolist(), shares, strict=False):
        rng = generator(seed, "test samples", device)
        if isinstance(split, StratifiedSplit):
            test[_of_each_class(mine, rows.y[cut.last[mine]], split.test, rng)] = True
            continue
        test[rng.choice(mine, _share(split.test, len(mine)), replace=False)] = True
    return replace(cut, test=test)


def _whole_runs(rows: Rows, cut: Cut, split: RunSplit, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the samples in max(1, ⌊test·n⌉) recordings drawn from each device with n ≥ 2 recordings.

    With ``by_class``, recordings are drawn by :func:`by_class`.
    """
    run = rows.runs[cut.last]
    owner = np.zeros(len(run), np.int32) if rows.owner is None else rows.owner[cut.last]
    chosen: list[Owners] = []
    for device in np.unique(owner).tolist():
        every = np.unique(run[owner == device])
        if len(every) > 1:
            many = _some_of(split.test, len(every))
            chosen.append(generator(seed, "test runs", device).choice(every, many, replace=False))
    if not chosen:
        raise SettingError(
            f"[data] split = run: no device has two recordings with enough {rows.noun} for a sample. A recording is a "
            "device's rows in one file, or those with the same value in the column [data] columns.run (--set "
            "data.columns.run=NAME). Or split by device, or by time."
        )
    if split.by_class:
        return _by_class(rows, cut, run, owner, split, seed)
    return np.isin(run, np.concatenate(chosen))


def _by_class(rows: Rows, cut: Cut, unit: Owners, owner: Owners, split: WholeSplit, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the samples in whole units that are drawn by class for testing."""
    test = by_class(rows.y[cut.last], unit, owner, split.test, generator(seed, f"test {split.kind}s by class"))
    if not test.any():
        raise SettingError(
            "[data] split by_class = true: no class has two recordings or devices, of which one is held out. Leave "
            "by_class out."
        )
    return test


def by_class(y: Labels, unit: Owners, owner: Owners, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return a mask of the samples in whole units (recordings or devices) that are drawn by class.

    A unit u belongs to the class c of whose samples it has the largest share, argmax_c n_uc/n_c. Of a class with N
    units min(N − 1, max(1, ⌊share·N⌉)) are drawn, the rarest class first and each unit from the owner of which the
    smallest share is then drawn. Each owner of several units without a drawn one adds one, of a class that keeps
    another. No owner loses all its units. No unit may be left to draw.

    Args:
        y, unit, owner: [n], the class of each sample, its unit, and the unit's owner.

    >>> kinds = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1])
    >>> drawn = by_class(kinds, np.arange(10), np.zeros(10, np.int32), 0.2, np.random.default_rng(0))
    >>> np.bincount(kinds[drawn])
    array([2, 1])
    """
    first, code = np.unique(unit, return_index=True, return_inverse=True)[1:]
    whose = np.unique(owner[first], return_inverse=True)[1]
    table = np.zeros((len(first), int(y.max()) + 1))
    np.add.at(table, (code, y), 1)
    kind = (table / np.maximum(table.sum(axis=0), 1)).argmax(axis=1)
    units_of = np.bincount(whose)
    units_as = np.bincount(kind)
    order = rng.permutation(len(first))
    drawn = np.zeros(len(first), np.bool_)

    def draw(able: NDArray[np.bool_], group: NDArray[np.int64], size: NDArray[np.int64]) -> None:
        """Draw a unit from the group of which the smallest share is then drawn."""
        less = np.bincount(group[drawn], minlength=len(size)) + 1
        able = able & ~drawn & (np.bincount(whose[drawn], minlength=len(units_of)) + 1 < units_of)[whose]
        if able.any():
            places = order[able[order]]
            drawn[places[(less[group[places]] / size[group[places]]).argmin()]] = True

    for c in np.argsort(units_as, kind="stable").tolist():
        for _ in range(_some_of(share, int(units_as[c]))):
            draw(kind == c, whose, units_of)
    for k in np.flatnonzero(np.bincount(whose[drawn], minlength=len(units_of)) == 0).tolist():
        keeps = np.bincount(kind[drawn], minlength=len(units_as)) + 1 < units_as
        draw((whose == k) & keeps[kind], kind, units_as)
    mask: NDArray[np.bool_] = drawn[code]
    return mask


def few_tests(data: Dataset, rows: Rows, cut: Cut, split: Split | None) -> tuple[str, ...]:
    """Return a sentence on classes whose test samples are of a single recording or device; none for other splits."""
    if not isinstance(split, WholeSplit) or data.target is not None or len(data.classes) < 2:
        return ()
    noun = "recording" if isinstance(split, RunSplit) else "device"
    unit = rows.owner if noun == "device" and rows.owner is not None else rows.runs
    tested, trained = (
        np.bincount(np.unique(np.stack([y, unit[cut.last[part]]]), axis=1)[0], minlength=len(data.classes))
        for y, part in ((data.y_test, cut.test), (data.y, ~cut.test))
    )
    few = np.flatnonzero(tested == 1).tolist()
    if not few:
        return ()
    alone = len(np.unique(unit[cut.last[cut.test]])) == 1
    shown = "" if alone else f" of {some([repr(data.classes[c]) for c in few], 10)}"
    more = f"more {noun}s, or a larger share for testing ([data] split test), would tell more"
    if not split.by_class and any(_some_of(split.test, int(trained[c]) + 1) > 1 for c in few):
        more = f"split = {{ kind = '{split.kind}', by_class = true }} draws {noun}s of each class"
    return (f"a single {noun}{shown} is for testing, which hardly tells how well others are recognised: {more}.",)


def _of_each_class(mine: Indices, y: Labels, share: float, rng: np.random.Generator) -> Indices:
    """Return min(n − 1, max(1, ⌊share·n⌉)) samples drawn from the n samples of each class."""
    chosen = [np.empty(0, np.int64)]
    for label in np.unique(y).tolist():
        of_class = mine[y == label]
        chosen.append(rng.choice(of_class, _some_of(share, len(of_class)), replace=False))
    return np.concatenate(chosen)


def _without_missing(name: str, rows: Rows, cut: Cut) -> Cut:
    holes = np.concatenate([[0], np.cumsum(np.isnan(rows.x).reshape(len(rows.x), -1).any(axis=1))])
    whole = holes[cut.start + cut.length] == holes[cut.start]
    if not whole.all():
        log.info("%s: %s of %s samples have missing values and are left out.", name, f"{(~whole).sum():,}",
                 f"{len(whole):,}")  # fmt: skip
    return replace(cut, start=cut.start[whole], test=cut.test[whole])


def _large_enough(
    name: str, rows: Rows, owner: Owners, cut: Cut, reading: Reading, owned: Owned, part: NDArray[np.int8] | None, *,
    both: bool,
) -> Cut:  # fmt: skip
    """Return the samples without devices that lack samples, or training or test samples; or refuse such devices."""
    most = int(owner.max()) + 1
    mine = owner[cut.last]
    train = np.bincount(mine[~cut.test], minlength=most)
    test = np.bincount(mine[cut.test], minlength=most)
    present = np.unique(owner)
    small = present[((train == 0) | (test == 0) if both else train + test == 0)[present]]
    if not len(small):
        return cut
    names = [owned.names[k] if owned.names else str(k) for k in small]
    if reading.small == "drop":
        whose = some(names, 10)
        log.info("%s: devices left out because they have too few %s (%d): %s.", name, rows.noun, len(small), whose)
        keep = ~np.isin(mine, small)
        return replace(cut, start=cut.start[keep], test=cut.test[keep])
    longest = _longest(rows, part, int(small[0])) if cut.length > 1 else 0
    samples = (int(train[small[0]]), int(test[small[0]]))
    reading.refuse(Problem("small", _too_small(rows, owner, small, names, samples, reading, longest)))


def _too_small(
    rows: Rows, owner: Owners, small: Owners, names: list[str], samples: tuple[int, int], reading: Reading, longest: int
) -> str:
    """Return the message on devices with too few rows."""
    first = int(np.flatnonzero(owner == small[0])[0])
    many = int((owner == small[0]).sum())
    where = rows.place(first) + (f", column '{reading.columns.device}'" if rows.noun == "rows" else "")
    beside = f"{', '.join(names[1:4])}{'…' if len(small) > 4 else ''}"
    more = f" (and {count(len(small) - 1, 'more device')}: {beside})"
    kind = f"windows of {reading.window.length} rows" if reading.window else rows.noun
    made = f", which makes {samples[0]} training and {samples[1]} test {kind}"
    others = more if len(small) > 1 else ""
    shorten = "shorten the window, " if reading.window else ""
    if reading.asked.ahead and reading.window:
        both = f", together at most {longest} rows for this device" if longest > 1 else ""
        shorten = f"shorten the window or data.task.horizon ({reading.asked.ahead} of these rows{both}), "
    elif longest > 1:
        shorten = f"shorten the window ([data] window = {{ length = {longest} }} fits this device), "
    several = (reading.split is None or reading.split.kind != "device") and int(owner.max()) > 0
    whole = 'test on whole devices ([data] split = { kind = "device" }), ' if several else ""
    parts = ""
    if rows.noun == "rows" and len(owner) == len(np.unique(owner)) and reading.columns.device:
        parts = (
            f" Each row is a separate device: if '{reading.columns.device}' names parts and not machines, deal the "
            f"rows to made-up ones ({dealt('data.columns.device=')})."
        )
    return (
        f"{where}: device '{names[0]}' has {count(many, rows.noun.removesuffix('s'))}{made}{others}: too few to be "
        f"split into training and test. Add data, {shorten}set a larger share [data] split test, {whole}or leave such "
        f'devices out with [data] small = "drop" (--set data.small=drop).{parts}'
    )


def _check_not_empty(name: str, rows: Rows, cut: Cut, part: NDArray[np.int8] | None, reading: Reading) -> None:
    for part_name, test in (("training", False), ("test", True)):
        if (cut.test == test).any() or (reading.whole and test):
            continue
        made = f"windows of {cut.length} rows" if cut.length > 1 else rows.noun
        problem = f"{name}: no {part_name} samples are left ({made})."
        advice = "[data] window, split, missing and small."
        longest = _longest(rows, part, None) if cut.length > 1 else 0
        if not 0 < longest < cut.length:
            raise SettingError(f"{problem} Check {advice}")
        fits = f"A window may have at most {longest} rows: set [data] window length."
        reading.refuse(Problem("short", f"{problem} {fits} Check {advice}", count=longest))
