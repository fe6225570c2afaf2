"""The settings in ``[data]`` for reading the user's files."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np

from fedfloor.base.checking import settle
from fedfloor.base.errors import SettingError, require, require_once
from fedfloor.data.dataset import Missing
from fedfloor.data.ended import ANY, several
from fedfloor.data.files.clocks import check_zone
from fedfloor.data.files.spellings import check as check_spellings
from fedfloor.data.files.times import check_format, moment
from fedfloor.tasks.classification import Classification
from fedfloor.tasks.forecasting import Forecasting
from fedfloor.tasks.kinds import TASKS
from fedfloor.tasks.reconstruction import Reconstruction
from fedfloor.tasks.regression import Regression
from fedfloor.tasks.survival import Survival
from fedfloor.tasks.task import Task


@dataclass(frozen=True)
class OneHot:
    """One-hot coding of a column of texts: a column per value, 1 where the text has this value, else 0."""

    values: tuple[str, ...]
    kind: Literal["one-hot"] = field(default="one-hot", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        _check_values(self.values)


def _check_values(values: tuple[str, ...]) -> None:
    require(bool(values), "data.columns.categories", list(values), "at least one value")
    require_once("data.columns.categories", values, "values, each given once")


MOST_SKIPPED = 1 << 20  # rows of a sheet, of which all but the data may be skipped
OPTIONAL = ("run", "life", "entry")  # roles without a column by default
Categories = Mapping[str, Literal["one-hot"] | OneHot | tuple[str, ...]]


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns, by role.

    Args:
        device: the device that recorded the row.
        factory: the device's factory.
        time: the time of the row: numbers, or dates and times in ISO 8601 or a common format.
        label: the class.
        id: the identity of the row; no value occurs twice.
        values: the sensors; by default all other columns.
        ignore: columns that are not read.
        categories: columns of texts that become sensors → their coding: ``one-hot``, a column per value that occurs;
            the same with its values listed; or a list of values, whose positions are the numbers.
        run: the recording of the row; by default the rows of a device in one file are a recording.
        life: for ``task = "survival"``, the time from the start of a machine's life to its failure or to the last
            observation, a life per row; two dates, such as ``installed + removed``, give a time in days. In a table to
            predict, it is the machine's present age.
        entry: the age at which the observation of a life began, 0 by default, or two dates.

    A device, factory, time or id of ``""`` means that the table has no such column, regardless of its columns' names;
    so does another role of a column ``factory``, ``time`` or ``id``.
    Several columns can share a role, with names joined by ``+``: their texts are joined by a blank, such as a date and
    a time of day. If the label consists of columns of 0 and 1 (flags), it is the name of the column that is 1, or
    ``none``.
    """

    device: str = "device"
    factory: str = "factory"
    time: str = "time"
    label: str = "label"
    id: str = "id"
    values: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    # left out of recipes if unset, so that recipes from before these settings stay valid
    run: str | None = field(default=None, repr=False)
    life: str | None = field(default=None, repr=False)
    entry: str | None = field(default=None, repr=False)
    categories: Categories | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "ignore", tuple(self.ignore))
        if self.categories is not None:
            encodings = {
                key: tuple(item) if isinstance(item, list | tuple) else item for key, item in self.categories.items()
            }
            object.__setattr__(self, "categories", encodings or None)
            for values in encodings.values():
                if isinstance(values, tuple):
                    _check_values(values)
        sensors = [name for name in self.values if name != self.life]  # which is the age in tables to predict
        listed = (*sensors, *self.ignore, *(self.categories or ()))
        for role in NONE[1:]:  # a column `id` that names the devices is no identity of rows
            others = [name for other, name in self.roles().items() if other != role]
            if self.roles()[role] == role and role in (*others, *listed):
                object.__setattr__(self, role, "")
        named = (*self.roles().values(), *listed)
        require_once("data.columns", [name for name in named if name], "unique names")

    def optional(self) -> list[tuple[str, object]]:
        """Return the settings that a recipe contains only if they are set, as (name, value)."""
        return [(key, value) for key in (*OPTIONAL, "categories") if (value := getattr(self, key))]

    def roles(self) -> dict[str, str]:
        """Return the columns that are no sensors, as role → column name."""
        usual = {"device": self.device, "factory": self.factory, "time": self.time, "label": self.label, "id": self.id}
        return usual | {role: name for role in OPTIONAL if (name := getattr(self, role))}


NONE = ("device", "factory", "time", "id")  # roles that "" leaves without a column


def placed(columns: dict[str, Any], role: str) -> None:
    """Take the columns that were given a role out of all other roles of ``[data] columns``, as each has one.

    >>> columns = {"label": "state", "ignore": ["note", "state"], "factory": "hall", "device": "hall"}
    >>> placed(columns, "label"); placed(columns, "device"); columns
    {'label': 'state', 'ignore': ['note'], 'factory': '', 'device': 'hall'}
    """
    given = columns.get(role)
    several = [*given] if isinstance(given, Mapping | list | tuple) else [given]
    mine = {name for name in several if isinstance(name, str)}
    for other in [key for key in columns if key != role and {role, key} != {"values", "life"}]:
        got = columns[other]
        if isinstance(got, Mapping):
            columns[other] = {name: how for name, how in got.items() if name not in mine}
        elif isinstance(got, list | tuple):
            columns[other] = [name for name in got if name not in mine]
        elif got and got in mine and other in NONE:
            columns[other] = ""
        elif got and got in mine:
            del columns[other]


@dataclass(frozen=True)
class Window:
    """Windows as samples: ``length`` consecutive rows of a recording, with the label of the last row.

    Args:
        length: L, rows.
        step: the distance between two windows, in rows; by default ``length``, so that no windows share a row.
    """

    length: int
    step: int | None = None

    def __post_init__(self) -> None:
        require(self.length >= 1, "data.window.length", self.length, "a whole number of at least 1")
        ok = self.step is None or self.step >= 1
        require(ok, "data.window.step", self.step, "a whole number of at least 1")

    @property
    def stride(self) -> int:
        """The distance between two windows, in rows: ``step``, by default ``length``."""
        return self.length if self.step is None else self.step


@dataclass(frozen=True)
class ShareSplit:
    """A split that holds out a share ``test`` of each device's samples, or of the devices, for testing."""

    kind: str
    test: float = 0.2

    def __post_init__(self) -> None:
        require(0 < self.test < 1, "data.split.test", self.test, "a share above 0 and below 1")


@dataclass(frozen=True)
class TimeSplit(ShareSplit):
    """A split that holds out the last share ``test`` of each device's rows in the order of time."""

    kind: Literal["time"] = field(default="time", kw_only=True)


@dataclass(frozen=True)
class RandomSplit(ShareSplit):
    """A split that holds out a random share ``test`` of each device's samples."""

    kind: Literal["random"] = field(default="random", kw_only=True)


@dataclass(frozen=True)
class WholeSplit(ShareSplit):
    """A split that holds out whole devices or recordings; with ``by_class``, a share of those of each class."""

    # left out of experiments if unset, as in those from before this setting
    by_class: Literal[True] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class DeviceSplit(WholeSplit):
    """A split that holds out a random share ``test`` of the devices, which do not train."""

    kind: Literal["device"] = field(default="device", kw_only=True)


@dataclass(frozen=True)
class RunSplit(WholeSplit):
    """A split that holds out a random share ``test`` of the recordings of each device with several."""

    kind: Literal["run"] = field(default="run", kw_only=True)


@dataclass(frozen=True)
class StratifiedSplit(ShareSplit):
    """A split that holds out a random share ``test`` of each device's samples per class: one or more, but never all."""

    kind: Literal["stratified"] = field(default="stratified", kw_only=True)


@dataclass(frozen=True)
class LastSplit:
    """A split that holds out the last ``rows`` of each device, or of each of its recordings."""

    rows: int
    kind: Literal["last"] = field(default="last", kw_only=True)
    of: Literal["device", "run"] = "device"

    def __post_init__(self) -> None:
        require(self.rows >= 1, "data.split.rows", self.rows, "a whole number of at least 1")


# the format of tables, recorded in a model's file
DIALECT = (
    "time_format",
    "zone",
    "gap_s",
    "header",
    "thousands",
    "encoding",
    "sheet",
    "delimiter",
    "skip",
    "missing_texts",
    "quality",
    "good",
    "until",
    "spellings",
)
# keys that a recipe contains only if they are set
LATER = ("layout", "test", "bins", "remaining", "ended", "device", "factory", "file_name", "task", "copies", *DIALECT)
DEVICE = "DEVICE"  # the placeholder of the device's name in data.file_name
SKEWED = 'kind="dirichlet",alpha=1.0'  # a partition
Layout = Literal["label/file", "device/file", "device/label/file", "factory/device/file", "factory/device/label/file"]
Split = TimeSplit | RandomSplit | DeviceSplit | RunSplit | StratifiedSplit | LastSplit


@dataclass(frozen=True)
class Problem:
    """A problem of data that a setting solves: refused by an experiment, solved by a draft.

    Args:
        kind: the problem. ``measure``: labels are measured values, but the task needs classes. ``unlisted``: a column
            of categories holds a text that is not listed. ``times``: the times of a device do not ascend, or occur
            twice. ``empty``: sensors have no value in any row. ``missing``: values are missing. ``short``: no recording
            is as long as a window. ``small``: devices have too few rows for a training and a test sample. ``one
            class``: all training samples have the same class.
        text: the message of the refusal, with place and remedy.
        columns: the columns that it concerns.
        count: the number of missing values, or the rows of the longest possible window.
        carried: whether missing values can be carried on: rows have times, and are not parts that most lack a sensor.
    """

    kind: Literal["measure", "unlisted", "times", "empty", "missing", "short", "small", "one class"]
    text: str
    columns: tuple[str, ...] = ()
    count: int = 0
    carried: bool = False


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The settings of the conversion of the user's files to samples.

    Args:
        format: ``table`` (one CSV file), ``folder`` (a folder per device), ``npz`` or ``buffer`` (what ``fedfloor park
            sense`` fills); by default implied by the path.
        layout: the roles of the folders above a file, for a ``folder``, such as ``device/label/file``; only needed if
            their names are ambiguous. ``label/file``: pictures without devices, dealt to made-up ones.
        columns: the names of a table's columns.
        classes: the labels in their order; by default the sorted labels of the data.
        window: windows as samples; by default each row is a sample.
        missing: the treatment of missing values: ``refuse``; ``previous``: the device's last value;
            ``mean``: the sensor's mean over all devices; ``drop``: samples with missing values are left out.
        split: the choice of test samples; by default by time where times are known, otherwise at random.
        sort: whether rows are sorted by time; by default an unsorted table is refused.
        small: whether a device with too few rows for both training and testing is refused or left out.
        decimal: the decimal mark, ``.`` or ``,``.
        size: (height, width) in pixels to which pictures are scaled; by default all must have the same size.
        time_format: the format of times, where it is ambiguous: a format of ``strptime``, ``day-first``,
            ``month-first`` or ``year-first``, or the unit of numbers: ``s``, ``ms``, ``us``, ``ns``,
            or ``excel`` for days of a spreadsheet.
        zone: the time zone of times without one, by its IANA name, such as ``Europe/Berlin``; by default they count as
            UTC. The second of two equal hours, at the end of summer time, is recognised by the order of rows.
        copies: ``drop`` leaves out rows that equal an earlier one in all columns that are read, also in another file
            of the device; by default such rows are refused where they have times, and named in another file.
        gap_s: the longest step of time, in s (or in the unit of times that are other numbers), that a window or a
            forecast may cross; by default any within a recording.
        test: a table or folder of the same format with the test samples; devices are matched by name, and devices that
            are only in it never train.
        device: the source of the devices' names for tables in a folder: ``column``, ``folder`` or ``file`` (its name);
            by default the folder, or the column for tables that are not in one.
        file_name: the pattern of file names (without ending) where a device has several files: ``DEVICE`` for its name,
            ``*`` for any text, as in ``DEVICE_*`` for a file per month.
        factory: the source of the factories' names where ``device`` is ``column`` or ``file``: ``column`` or
            ``folder``.
        header: the columns of tables whose first row holds no names.
        thousands: the mark between groups of three digits.
        encoding: Python's name of the tables' encoding; by default UTF-8 or UTF-16, otherwise Windows-1252 with a note.
        bins: edges that turn a numeric label into classes, such as ``[30, 80]``: below 30, 30 to 80, 80 or more;
            ``classes`` names them.
        remaining: whether the label is the number of rows left in the recording, for recordings that run to failure;
            needs ``bins``, ``task = "regression"`` or ``task = "survival"``.
        ended: the label of a failure, for ``remaining`` and lives: recordings whose last row has another label still
            run, and give no samples, unless ``task = "survival"``; by default all end in failure, and there are no
            labels. Of lives also a list of such labels, or ``"*"`` for any but an empty cell; empty cells then still
            run.
        sheet: the sheet of a workbook with several non-empty sheets.
        delimiter: the character between the cells of CSV; by default recognised from the first row.
        skip: rows that are no data, such as titles above the header and units below it: their numbers, counted from 1,
            or the number of first rows.
        missing_texts: texts that stand for missing values in all columns, such as ``Bad Input``, in any case.
        quality: column of values → column of their quality; values whose quality is not good are missing.
        good: the good qualities, such as ``valid``, in any case; by default those of OPC: ``Good…`` and 192 to 255.
        spellings: text of a label → the class that it denotes, such as ``{"nok": "NOK"}``.
        until: the date of the last observation of lives without a date of their end, for ``columns.life`` of two dates.
        task: the task of a model: ``classification`` by default; ``regression`` of a numeric label; ``reconstruction``,
            which finds anomalies after training on normal operation without labels; ``forecasting`` of the next rows of
            sensors; ``survival``, how long machines live, also from lives that are not over. A table with its
            ``kind`` and settings, see :mod:`fedfloor.tasks`.
    """

    format: Literal["table", "folder", "npz", "buffer"] | None = None
    columns: Columns = field(default_factory=Columns)
    classes: tuple[str, ...] = ()
    window: Window | None = None
    missing: Missing = "refuse"
    split: Split | None = None
    sort: bool = False
    small: Literal["refuse", "drop"] = "refuse"
    decimal: Literal[".", ","] = "."
    size: tuple[int, int] | None = None
    layout: Layout | None = None
    time_format: str | None = None
    zone: str | None = None
    copies: Literal["drop"] | None = None
    gap_s: float | None = None
    test: str | None = None
    device: Literal["column", "folder", "file"] | None = None
    factory: Literal["column", "folder"] | None = None
    file_name: str | None = None
    header: tuple[str, ...] | None = None
    thousands: Literal[",", ".", "'", " "] | None = None
    encoding: str | None = None
    bins: tuple[float, ...] | None = None
    remaining: Literal[True] | None = None
    ended: str | tuple[str, ...] | None = None
    sheet: str | None = None
    delimiter: Literal[",", ";", "|", "tab", "blanks"] | None = None
    skip: int | tuple[int, ...] | None = None
    missing_texts: tuple[str, ...] | None = None
    quality: Mapping[str, str] | None = None
    good: tuple[str, ...] | None = None
    spellings: Mapping[str, str] | None = None
    until: str | None = None
    task: (
        Literal["classification", "regression", "reconstruction", "forecasting", "survival"]
        | Classification | Regression | Reconstruction | Forecasting | Survival | None
    ) = None  # fmt: skip
    whole: ClassVar[bool] = False
    named: ClassVar[bool] = False
    told: ClassVar[Sequence[Problem]] = ()

    def __post_init__(self) -> None:
        settle(self, "data")
        check_format(self.time_format)
        check_zone(self.zone)
        require(self.gap_s is None or self.gap_s > 0, "data.gap_s", self.gap_s, "above 0")
        if self.header is not None:
            require(bool(self.header), "data.header", list(self.header), "the names of all columns")
        if self.good is not None and not self.quality:
            raise SettingError("[data] good is for [data] quality, which is not set. Set it, or leave good out.")
        if self.skip is not None:
            allowed = f"numbers of rows, or a number of first rows, at most {MOST_SKIPPED:,}"
            few = not isinstance(self.skip, int) or self.skip <= MOST_SKIPPED
            require(few, "data.skip", self.skip, allowed)
            rows = skipped(self.skip)
            require(bool(rows) and min(rows) >= 1, "data.skip", self.skip, allowed)
            object.__setattr__(self, "skip", rows)
        require(self.thousands != self.decimal, "data.thousands", self.thousands, "another mark than data.decimal")
        try:
            known = self.encoding is None or "1,2".encode(self.encoding).decode(self.encoding) == "1,2"
        except (LookupError, UnicodeError):
            known = False
        require(known, "data.encoding", self.encoding, "an encoding, such as 'cp1252' or 'utf-16'")
        if self.factory is not None and self.device not in ("column", "file"):
            raise SettingError(
                f'[data] factory = "{self.factory}" needs [data] device = "file" or "column". Where devices are '
                'folders, the folder above is the factory: [data] layout = "factory/device/file".'
            )
        if self.file_name is not None:
            fits = self.device == "file" and self.file_name.count(DEVICE) == 1
            wanted = f'a pattern with {DEVICE} once, such as "{DEVICE}_*", together with data.device = "file"'
            require(fits, "data.file_name", self.file_name, wanted)
        if self.bins is not None:
            check_bins(self.bins, self.classes)
        self._check_task()
        if self.size is not None:
            fits = len(self.size) == 2 and min(self.size) >= 1
            require(fits, "data.size", self.size, "[height, width], each at least 1")
        if self.layout is not None and self.device in ("column", "file"):
            raise SettingError(
                f'[data] layout requires devices that are folders, but device = "{self.device}". Leave one of them out.'
            )
        require_once("data.classes", self.classes, "unique names")
        check_spellings(self.spellings, self.classes)

    def _check_task(self) -> None:
        """Refuse keys that the task cannot use."""
        self._check_lives()
        has_ranges = self.bins is not None or self.number is not None
        if self.remaining and not has_ranges and not self.lasting:
            raise SettingError("data.remaining = true: set data.bins, too, or data.task = 'regression' or 'survival'.")
        if self.ended is not None and not self.remaining and not self.lasting:
            raise SettingError(f"data.ended = '{self.ended}' needs data.remaining = true. Leave one out.")
        if several(self.ended) and (self.remaining or not self.lasting):
            raise SettingError(
                f"data.ended: several labels, and '{ANY}', are for data.task = 'survival' with a life per row. Name "
                "one label, that of a failure."
            )
        if isinstance(self.split, WholeSplit) and self.split.by_class and (self.asked.ahead or self.number is not None):
            raise SettingError(
                f"data.split.by_class: data.task = '{self.asked.kind}' predicts numbers and has no classes. Leave "
                "by_class out."
            )
        for key in ("classes", "bins"):
            idle = self.asked.ahead or self.lasting or (self.number is not None and self.bins is None)
            if getattr(self, key) and idle:
                predicted = "lives" if self.lasting else "sensors"
                advice = "data.bins set their ranges" if self.number is not None else f"{predicted} are predicted"
                raise SettingError(
                    f"data.{key}: data.task = '{self.asked.kind}' predicts numbers and has no classes: {advice}. "
                    f"Leave data.{key} out."
                )

    def _check_lives(self) -> None:
        """Refuse lives without a survival."""
        columns = self.columns
        if not self.lasting:
            key = next((f"columns.{role}" for role in ("life", "entry") if getattr(columns, role)), None)
            if (key or self.until) and not self.whole:
                raise SettingError(
                    f"data.{key or 'until'} is for data.task = 'survival'. Set it, or leave the key out."
                )
        elif self.remaining and columns.life:
            raise SettingError(
                "data.columns.life is for a life per row, and data.remaining = true for recordings. Leave one out."
            )
        if self.until is not None and self.ended is None and self.lasting:
            end = (columns.life or "").rsplit(" + ", 1)[-1]
            raise SettingError(
                "data.until is the date until which machines that still run were observed, and nothing says which do: "
                f"set data.ended, the label of a failure. Where '{end}' is empty for them: --set "
                f"'data.columns.label={end}' --set 'data.ended={ANY}'.",
                key="data.until",
            )
        if self.until is not None:
            require(moment(self.until, None) is not None, "data.until", self.until, "a date, such as '2026-11-29'")

    def recipe(self) -> str:
        """Return the settings that determine the parsed data, as text; windows and splits are applied later."""
        after = ("format", "window", "split", "small")
        named = [(name, value) for name, value in self.settings().items() if name not in after]
        kept = [(name, value) for name, value in named if name not in LATER or value is not None]
        short = {"test": True, "task": self.number is not None or self.asked.kind}
        return repr([(name, short.get(name, value)) for name, value in kept] + self.columns.optional())

    @property
    def asked(self) -> Task:
        """The task of a model, classification by default."""
        return self.task if isinstance(self.task, Task) else TASKS[self.task or "classification"]()

    @property
    def labelled(self) -> bool:
        """Whether tables need a column of labels."""
        return self.asked.labelled and (not (self.remaining or self.lasting) or self.ended is not None)

    @property
    def lasting(self) -> bool:
        """Whether the task is a survival."""
        return isinstance(self.asked, Survival)

    @property
    def number(self) -> Regression | None:
        """The task if it is a regression, otherwise None."""
        return self.asked if isinstance(self.asked, Regression) else None

    def settings(self) -> dict[str, Any]:
        """Return the keys of this class and their values, without those of subclasses."""
        return {key.name: getattr(self, key.name) for key in fields(Reading)}

    def dialect(self) -> dict[str, Any]:
        """Return the settings of the tables' format that are set."""
        return {key: getattr(self, key) for key in DIALECT if getattr(self, key) is not None}

    def tell(self, problem: Problem) -> None:
        """Refuse data with a problem.

        Raises:
            SettingError: always, unless the reading is a :class:`DraftReading`.
        """
        raise SettingError(problem.text, key=problem.kind)

    def refuse(self, problem: Problem) -> NoReturn:
        """Refuse data with a problem after which nothing more can be read."""
        self.tell(problem)
        raise SettingError(problem.text, key=problem.kind)

    def only(self, keys: Collection[str], noun: str) -> None:
        """Refuse settings other than ``keys``, which have no effect on data of this kind (``noun``)."""
        for (key, got), usual in zip(self.settings().items(), Reading().settings().values(), strict=True):
            if key not in (*keys, "format") and got != usual:
                raise SettingError(f"[data] {key} has no effect on {noun}. Leave it out.")


def dealt(setting: str, partition: str = SKEWED) -> str:
    """Return the options that deal samples to made-up devices."""
    return f"--set {setting} --set park.devices=10 --set 'data.partition={{{partition}}}'"


def ignoring(*names: str) -> str:
    """Return the option that leaves columns out."""
    return f"--set 'data.columns.ignore={json.dumps(names, ensure_ascii=False)}'"


def skipped(rows: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers of the rows in ``[data] skip``.

    >>> skipped(2), skipped([1, 4]), skipped(None)
    ((1, 2), (1, 4), ())
    """
    return tuple(range(1, rows + 1)) if isinstance(rows, int) else tuple(rows or ())


@dataclass(frozen=True, kw_only=True)
class DraftReading(Reading):
    """The reading of data for a draft: problems that settings solve are collected in ``told`` while reading goes on."""

    told: list[Problem] = field(default_factory=list)  # type: ignore[misc]  # of the class for other readings

    @classmethod
    def of(cls, reading: Reading) -> DraftReading:
        """Return the reading with the settings of another one."""
        return cls(**reading.settings())

    def tell(self, problem: Problem) -> None:
        """Note a problem."""
        self.told.append(problem)


@dataclass(frozen=True)
class DeviceReading(Reading):
    """The reading of a single device's data: all samples are for training, and a single class is allowed."""

    whole: ClassVar[bool] = True


@dataclass(frozen=True)
class ModelReading(DeviceReading):
    """The reading of a table for a model: the columns of numbers are those of ``columns.values``, even none."""

    named: ClassVar[bool] = True


def check_bins(edges: Sequence[float], classes: Sequence[str]) -> None:
    """Refuse edges that are not finite and ascending, and a number of class names that does not fit them."""
    if not edges or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
        raise SettingError(
            f"data.bins = {list(edges)}: must be ascending numbers, the edges between classes, such as [30, 80]."
        )
    if classes and len(classes) != len(edges) + 1:
        raise SettingError(
            f"data.classes: {len(classes)} names, but {len(edges)} edges (data.bins) make {len(edges) + 1} classes. "
            "Name each, the lowest first, or leave classes out."
        )
