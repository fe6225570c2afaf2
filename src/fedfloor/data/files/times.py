"""Times in common formats; a column has a single format, and ambiguous formats are refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError

Moments = NDArray[np.float64]

ORDERS = ("day-first", "month-first", "year-first")
EPOCHS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # unit → units per second
EXCEL = "excel"  # days since 1899-12-30, as spreadsheets number them
UNITS = (*EPOCHS, EXCEL)  # formats of numbers
NUMERALS = {  # time_format → its description, for numbers that are recognised as moments
    "s": "seconds since 1970", "ms": "milliseconds since 1970", "us": "microseconds since 1970",
    "ns": "nanoseconds since 1970", EXCEL: "days of a spreadsheet", "%Y%m%d": "YYYYMMDD", "%Y%m%d%H%M": "YYYYMMDDhhmm",
    "%Y%m%d%H%M%S": "YYYYMMDDhhmmss", "%Y%m": "YYYYMM",
}  # fmt: skip
MONTHLY = 3  # different months of numbers that are recognised as YYYYMM, at least
LOOKED_AT = 1000  # numbers whose digits are examined
RECOGNISED = (946_684_800.0, 3_155_760_000.0)  # moments recognised by their size: the years 2000 to 2069
READ = (
    "Times must be numbers, or dates and times such as 2026-03-01T06:30:00, 2026-03-01 06:30+01:00, 01.03.2026 06:30, "
    "3/20/2026 6:30 AM, 20260301T0630 or 1 Mar 2026 06:30, or months such as 2026-03. For another format set [data] "
    "time_format, such as --set 'data.time_format=%d.%m.%y %Hh%M'."
)
FORMATS = f"a format of strptime, such as '%d.%m.%Y %H:%M', or {', '.join((*ORDERS, *UNITS))}"
EPOCH = date(1970, 1, 1).toordinal()
SPREADSHEET = EPOCH - date(1899, 12, 30).toordinal()  # days of a spreadsheet before 1970
QUARTER = re.compile(
    r"\bQ([1-4])(?!\d)|\b([1-4])\.?\s*(?:Quartal|quarter|Q\b)|\bQuart(?:al|er)\s*([1-4])\b", re.IGNORECASE
)
YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
MIDNIGHT = re.compile(r"(?<!\d)24:00(?::00)?(?!\d)")
SECOND = 0.05  # of which days with six decimals and more differ from whole seconds, at most
PIVOT = 69  # two-digit years from here on are in the last century, as in POSIX

_ENGLISH = "january february march april may june july august september october november december"
_GERMAN = "januar februar märz april mai juni juli august september oktober november dezember"
_OTHER = "jänner feber maerz _ _ _ _ _ sept okt _ dez"  # and mrz
MONTHS = {
    name[:length]: number
    for names in (_ENGLISH, _GERMAN, _OTHER)
    for number, name in enumerate(names.split(), start=1)
    for length in range(3, len(name) + 1)
} | {"mrz": 3}
_WORD = r"[a-zäÄ]{3,9}"
_DATE = (
    r"(?P<y>\d{4})(?P<s>[-/. ])(?P<m>\d{1,2})(?P=s)(?P<d>\d{1,2})"
    r"|(?P<a>\d{1,2})(?P<t>[-/.]|[ ](?=\d{1,2}[ ]\d{4}))(?P<b>\d{1,2})(?P=t)(?P<c>\d{4}|\d{2})"
    rf"|(?P<d1>\d{{1,2}})(?:\.\s*|[\s-])(?P<n1>{_WORD})\.?[\s,-]\s*(?P<y1>\d{{4}}|\d{{2}})"
    rf"|(?P<n2>{_WORD})\.?\s+(?P<d2>\d{{1,2}}),?\s+(?P<y2>\d{{4}})"
    r"|(?P<y3>(?:19|20)\d\d)(?P<s3>[-/])(?P<m3>0[1-9]|1[0-2])|(?P<m4>0[1-9]|1[0-2])(?P<s4>[-/])(?P<y4>(?:19|20)\d\d)"
    rf"|(?P<n5>{_WORD})\.?[\s-](?P<y5>(?:19|20)\d\d)"
)
DATE = re.compile(_DATE, re.IGNORECASE | re.ASCII)
CELL = re.compile(
    rf"(?:(?:mo|tu|we|th|fr|sa|su|di|mi|do|so)[a-z]*\.?,?\s+)?(?P<date>{_DATE})"  # with an optional day of the week
    r"(?:(?:T|,?\s+)(?P<H>\d{1,2})(?::(?P<M>\d{2})(?::(?P<S>\d{2})(?:[.,](?P<f>\d{1,9}))?)?)?"
    r"(?:\s*(?P<half>[ap])\.?m\.?)?(?:\s*Uhr)?(?:\s*(?P<z>Z|UTC|GMT|[+-]\d{2}:?\d{2}|[+-]\d{2}))?)?",
    re.IGNORECASE | re.ASCII,
)
PLAIN = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d:\d\d(?:\.\d{3}|\.\d{6})?Z?)?", re.ASCII)
EXACT = 1 << 53  # microseconds that float64 represents exactly


class Form(NamedTuple):
    """The format of a column's times.

    Args:
        kind: ``numbers``, ``ISO``, or an example of the date.
        zone: whether times have a time zone.
        half: whether hours are counted to twelve; None without hours.
        orders: the possible orders of day, month and year; empty if the format determines the order.
    """

    kind: str
    zone: bool = False
    half: bool | None = None
    orders: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "numbers":
            return self.kind
        such = f"such as {'2026-01-20' if self.kind == 'ISO' else self.kind} "
        clock = ", AM or PM" if self.half else ""
        return f"dates {such}with{'' if self.zone else 'out'} a time zone{clock}"


NUMBERS = Form("numbers")
ISO = {zone: Form("ISO", zone) for zone in (False, True)}


@dataclass(frozen=True, eq=False)
class TimeColumn:
    """A column of times whose order of day, month and year is not determined yet.

    Args:
        form: the format.
        values: float64 [T, orders or 1], NaN where a time cannot be read in this order.
    """

    form: Form
    values: Moments


class TimeError(ValueError):
    """An error: a cell is no time or has another format than the cells above, or a column has no unique order of dates.

    Args:
        row: the index of the cell, or of an example.
        message: the problem.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
        self.message = message


def check_format(given: str | None) -> None:
    """Refuse a ``[data] time_format`` that is neither a known name nor a format of strptime."""
    if given is None or given in ORDERS or given in UNITS:
        return
    try:
        fits = "%" in given and bool(datetime.strptime(datetime(2026, 1, 20, 8, tzinfo=UTC).strftime(given), given))
    except ValueError:
        fits = False
    if not fits:
        raise SettingError(f"data.time_format is '{given}': must be {FORMATS}.")


def moment(text: str, given: str | None = None) -> tuple[Form, tuple[float, ...]] | None:
    """Return a date's format and its seconds since 1970 for each order of day and month; None for other texts.

    Times without a zone are treated as UTC.

    >>> moment("1970-01-02T00:00+01:00")
    (Form(kind='ISO', zone=True, half=None, orders=()), (82800.0,))
    >>> moment("3/1/1970 12:00 AM")[1], moment("1. Februar 1970")[1], moment("noon")
    ((172800.0, 5097600.0), (2678400.0,), None)
    """
    if given is not None and "%" in given:
        try:
            when = datetime.strptime(text, given)
        except ValueError:
            return None
        value = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        return Form(given, when.tzinfo is not None), (value - _origin(given),)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return _written(text)
    return ISO[when.tzinfo is not None], ((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp(),)


def read(cells: Sequence[str], form: Form | None, given: str | None, decimal: str) -> tuple[Form, Moments]:
    """Return the format of times and their values, float64 [rows, orders or 1]."""
    if "%" not in (given or "") and (quick := _iso(cells)) is not None and form in (None, quick[0]):
        return quick
    values: list[tuple[float, ...]] = []
    for row, text in enumerate(cells):
        each = _moment(text, given, decimal)
        if each is None:
            wanted = (
                f"not written as [data] time_format = '{given}'."
                if given and "%" in given
                else f"no time. {_instead(text)}{READ}"
            )
            raise TimeError(row, f"'{text}' is {wanted}")
        if each[0] != form:
            both = _same(form or each[0], each[0])
            if both is None:
                raise TimeError(
                    row,
                    f"'{text}' belongs to {each[0]}, but the first row to {form}. Write all times in the same format.",
                )
            form = both
        values.append(each[1])
    return form or NUMBERS, np.array(values, np.float64)


def _instead(text: str) -> str:
    """Return how to write quarters, and the hour at the end of a day, as a sentence before others; "" for other texts.

    >>> [_instead(text)[-9:-2] for text in ("Q3/2026", "2026-Q1", "2. Quartal 2026", "noon", "Q5/2026")]
    ['2026-07', '2026-01', '2026-04', '', '']
    >>> _instead("01.03.2026 24:00")
    '24:00 is 00:00 of the next day: write it so. '
    """
    if MIDNIGHT.search(text):
        return "24:00 is 00:00 of the next day: write it so. "
    if not (quarter := QUARTER.search(text)) or not (year := YEAR.search(text)):
        return ""
    number = next(int(digit) for digit in quarter.groups() if digit)
    return f"Of a quarter write the first month: {year[0]}-{3 * number - 2:02}. "


def shared(forms: Sequence[Form]) -> Form | int:
    """Return the common format of several tables, or the index of the first table with another format."""
    form = forms[0]
    for number, each in enumerate(forms):
        both = _same(form, each)
        if both is None:
            return number
        form = both
    return form


def decide(values: Moments, form: Form, given: str | None) -> tuple[Moments, str | None]:
    """Return the times of a column in seconds, with the order of day, month and year chosen, or numbers converted.

    An order in which a row cannot be read is excluded. Dates with points begin with the day if possible. A two-digit
    year is the number that does not change while the other does, unless times run backwards then.

    Args:
        values: float64 [T, orders or 1].
        form: the format.
        given: ``[data] time_format``.

    Returns:
        float64 [T], and the chosen order, or None if no choice was needed.

    Raises:
        TimeError: no order fits all rows, or several orders fit and give different times.
    """
    if given in UNITS or given in ORDERS:
        if (given in UNITS) != (form == NUMBERS):
            raise TimeError(0, f"[data] time_format = '{given}', but these are {form}. Correct it, or leave it out.")
        if form == NUMBERS:
            return in_seconds(values[:, 0], given), None
    if not form.orders:
        return values[:, 0], None
    bad = np.isnan(values)
    fit = [order for order, column in zip(form.orders, bad.T, strict=True) if not column.any()]
    if given is not None:
        if given not in fit:
            row = int(bad[:, form.orders.index(given)].argmax()) if given in form.orders else 0
            raise TimeError(row, f"cannot be read with [data] time_format = '{given}'.")
        fit = [given]
    if not fit:
        rows = [int(column.argmax()) for column in bad.T]
        raise TimeError(
            max(rows), "not in the same order of day and month as the rows before. Write all dates in the same order."
        )
    columns = {order: values[:, form.orders.index(order)] for order in fit}
    if len(fit) > 1 and "." in form.kind and "day-first" in fit:
        fit = ["day-first"]
    if len(fit) > 1 and "year-first" in fit:
        fit = _steady(columns)
    differ = [order for order in fit[1:] if (columns[order] != columns[fit[0]]).any()]
    if differ:
        row = int((columns[differ[0]] != columns[fit[0]]).argmax())
        ways = ", ".join(f"{day(columns[order][row])} ({order})" for order in (fit[0], *differ))
        raise TimeError(
            row, f"an ambiguous date, which no other row resolves: {ways}. Choose one: --set data.time_format={fit[0]}",
        )  # fmt: skip
    return columns[fit[0]], fit[0]


def in_seconds(numbers: Moments, unit: str) -> Moments:
    """Return seconds since 1970 of numbers in one of :data:`UNITS`; days of spreadsheets to the millisecond.

    >>> in_seconds(np.array([46083.25069444]), "excel") - in_seconds(np.array([1772431260000.0]), "ms")
    array([0.])
    """
    if unit == EXCEL:
        return np.round((numbers - SPREADSHEET) * 86_400, 3)
    return numbers / EPOCHS[unit]


def numeral(numbers: Moments) -> str | None:
    """Return the format of numbers that are moments of the years 2000 to 2069 by their size and digits, otherwise None.

    Dates written as numbers must all exist. Days of a spreadsheet have fractions that are whole seconds, so that counts
    and running times of the same size are not taken for them.

    >>> numeral(np.array([1772431200000.0])), numeral(np.array([20260302.0, 20260303])), numeral(np.arange(9.0))
    ('ms', '%Y%m%d', None)
    >>> numeral(np.array([202511.0, 202512, 202601])), numeral(np.array([202511.0, 202512, 202513]))
    ('%Y%m', None)
    >>> numeral(np.array([46083.25, 46083.25069444])), numeral(np.array([46083.25, 46083.5])), numeral(np.empty(0))
    ('excel', None, None)
    """
    if not len(numbers):
        return None
    first, last = RECOGNISED
    for unit, per_second in EPOCHS.items():
        if first * per_second <= numbers.min() and numbers.max() < last * per_second:
            return unit
    some = numbers[:: math.ceil(len(numbers) / LOOKED_AT)]
    if (some == np.floor(some)).all():
        texts = [f"{number:.0f}" for number in some.tolist()]
        form = {6: "%Y%m", 8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}.get(len(texts[0]))
        if form == "%Y%m" and len({text[4:] for text in texts}) < MONTHLY:
            return None  # numbers such as 200100, 200200
        moments = [moment(text, form) if form and len(text) == len(texts[0]) else None for text in texts]
        return form if all(each is not None and first <= each[1][0] < last for each in moments) else None
    seconds = (some - SPREADSHEET) * 86_400
    whole = np.abs(seconds - np.round(seconds)) < SECOND
    fine = np.abs(some * 1e4 - np.round(some * 1e4)) > SECOND  # no running time in steps of 0.25
    return EXCEL if whole.all() and fine.any() and first <= seconds.min() and seconds.max() < last else None


def _steady(columns: dict[str, Moments]) -> list[str]:
    """Return the orders whose year never changes while the other number does; otherwise all orders.

    Such an order must run backwards no more often than the others: of the months 01/01/20 to 01/12/21 the first number
    never changes, and is the day.
    """
    years = {order: len(np.unique(times.astype("M8[s]").astype("M8[Y]"))) for order, times in columns.items()}
    back = {order: int((np.diff(times) < 0).sum()) for order, times in columns.items()}
    last = [order for order in columns if order != "year-first"]
    if not last:
        return list(columns)
    if years["year-first"] == 1 and min(years[order] for order in last) > 1:
        steady = ["year-first"]
    elif years["year-first"] > 1 and max(years[order] for order in last) == 1:
        steady = last
    else:
        return list(columns)
    others = [order for order in columns if order not in steady]
    return list(columns) if min(back[order] for order in steady) > min(back[order] for order in others) else steady


def day(moment: float) -> str:
    """Return the date of a time in seconds since 1970.

    >>> day(86400.5)
    '1970-01-02'
    """
    return str(np.datetime64(int(moment // 86400), "D"))


def written(moment: float, *, dated: bool) -> str:
    """Return a time as a text for tables: a number, or date and time in ISO 8601.

    >>> written(86400.5, dated=True), written(86400.0, dated=True), written(12.0, dated=False)
    ('1970-01-02T00:00:00.500', '1970-01-02T00:00:00', '12')
    """
    if not dated:
        return f"{moment:.15g}"
    return str(np.datetime64(round(moment * 1000), "ms")).removesuffix(".000")


def _moment(text: str, given: str | None, decimal: str) -> tuple[Form, tuple[float, ...]] | None:
    if given is None or "%" not in given:
        with suppress(ValueError):
            value = float(text if decimal == "." else text.replace(",", ".", 1))
            return (NUMBERS, (value,)) if np.isfinite(value) and "_" not in text else None
    return moment(text, given)


def _iso(cells: Sequence[str]) -> tuple[Form, Moments] | None:
    """Return format and values of plain dates in ISO 8601, all with a Z or all without a zone; None for others."""
    if not all(map(PLAIN.fullmatch, cells)) or len({cell[-1] == "Z" for cell in cells}) != 1:
        return None
    try:
        moments = np.array([cell.removesuffix("Z") for cell in cells], "M8[us]").astype(np.int64)
    except ValueError:  # no such day or time of day
        return None
    return (ISO[cells[0][-1] == "Z"], moments[:, None] / 1e6) if (np.abs(moments) < EXACT).all() else None


def _same(form: Form, other: Form) -> Form | None:
    """Return the common format of two, of which one may omit the time of day; None if they differ."""
    if form._replace(half=None) != other._replace(half=None):
        return None
    if form.half is None or other.half is None:
        return other if form.half is None else form
    return form if form.half == other.half else None


@lru_cache
def _origin(given: str) -> float:
    """Return the offset of a format without a date, in seconds, otherwise 0."""
    dated = re.search(r"%[cdDFxjuUVwWbBmyYG]", given.replace("%%", "")) is not None
    return 0.0 if dated else datetime(1900, 1, 1, tzinfo=UTC).timestamp()


def _written(text: str) -> tuple[Form, tuple[float, ...]] | None:
    """Return format and possible times of a date that is not in ISO 8601; None for other texts."""
    match = CELL.fullmatch(text)
    if match is None:
        return None
    written, *clock, half, zone = match.group("date", "H", "M", "S", "f", "half", "z")
    time = _time_of_day(clock, half)
    kind, orders, days = _dates(written)
    if time is None or not any(day is not None for day in days):
        return None
    shift = time - 1_000_000 * _offset(zone)
    values = tuple(np.nan if day is None else (86_400_000_000 * day + shift) / 1e6 for day in days)
    hours = None if kind == "ISO" or clock[0] is None else half is not None
    return Form(kind, zone is not None, hours, orders), values


@lru_cache(1 << 14)  # cached, because a day has many rows
def _dates(text: str) -> tuple[str, tuple[str, ...], list[int | None]]:
    """Return an example of a date's format, the possible orders of its numbers, and the day since 1970 for each.

    A day is None if the date does not exist.
    """
    match = DATE.fullmatch(text)
    part = {} if match is None else match.groupdict()
    if part["y"]:
        kind = "ISO" if part["s"] == "-" else "2026{0}01{0}20".format(part["s"])
        return kind, (), [_day(int(part["y"]), int(part["m"]), int(part["d"]))]
    if part["a"]:
        (a, b, c) = (int(part[key]) for key in "abc")
        mark = part["t"]
        year = _year(part["c"])
        short = len(part["c"]) == 2
        days = [_day(year, b, a), _day(year, a, b)]
        if short and mark != ".":
            days.append(_day(_year(part["a"]), b, c) if len(part["a"]) == 2 else None)
        return f"20{mark}01{mark}{'26' if short else '2026'}", ORDERS[: len(days)], days
    if part["y3"] or part["y4"] or part["y5"]:
        return _month(part)
    name, day, year_text = (part[key + ("1" if part["n1"] else "2")] for key in "ndy")
    return "20 Jan 2026", (), [_day(_year(year_text), MONTHS.get(name.casefold(), 0), int(day))]


def _month(part: Mapping[str, Any]) -> tuple[str, tuple[str, ...], list[int | None]]:
    """Return an example of a month's format, no orders, and its first day."""
    if part["n5"]:
        return "Jan 2026", (), [_day(int(part["y5"]), MONTHS.get(part["n5"].casefold(), 0), 1)]
    if part["y3"]:
        return f"2026{part['s3']}01", (), [_day(int(part["y3"]), int(part["m3"]), 1)]
    return f"01{part['s4']}2026", (), [_day(int(part["y4"]), int(part["m4"]), 1)]


def _year(text: str) -> int:
    year = int(text)
    return year if len(text) > 2 else year + (1900 if year >= PIVOT else 2000)


def _day(year: int, month: int, day: int) -> int | None:
    try:
        return date(year, month, day).toordinal() - EPOCH
    except ValueError:
        return None


def _time_of_day(clock: Sequence[str | None], half: str | None) -> int | None:
    """Return microseconds since midnight; None if the time does not exist."""
    if clock[0] is None:
        return 0
    hour, minute, second = (int(text or 0) for text in clock[:3])
    if minute > 59 or second > 59 or (half is None and (clock[1] is None or hour > 23)):
        return None
    if half is not None:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half in "pP" else 0)
    return 1_000_000 * (3600 * hour + 60 * minute + second) + int((clock[3] or "").ljust(6, "0")[:6])


@lru_cache
def _offset(zone: str | None) -> int:
    """Return the offset of a zone from UTC, in seconds."""
    if zone is None or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    return (-1 if zone[0] == "-" else 1) * (3600 * int(digits[:2]) + 60 * int(digits[2:]))
