"""Labels for a table of measurements from a table of events, such as failures that a maintenance system records."""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.base.names import count
from fedfloor.data.files import check_new, expanded, new_file
from fedfloor.data.files.clocks import check_zone, universal
from fedfloor.data.files.excerpt import Excerpt, head
from fedfloor.data.files.rows import place
from fedfloor.data.files.times import NUMBERS, NUMERALS, Form, TimeError, check_format, decide, numeral, read
from fedfloor.data.kinds import CALLED, is_number, is_time, word_of
from fedfloor.data.roles import LOOKED_AT, roles_of

log = logging.getLogger(__name__)

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
EVERY = 1 << 62  # rows
SHARED = ("device", "time")  # roles of columns in both tables
LABEL = "label"
REMAINING = "remaining"
RUN = "run"
NONE = "none"  # the label of rows without an event within the time span
MANY = 5  # events, of which several are likely to be of a kind
NAMED = 5  # rows listed in a message
ENDS = (
    "end",
    "ended",
    "ende",
    "stop",
    "until",
    "finish",
    "bis",
)  # words in the name of a column with the end of an event


@dataclass(frozen=True)
class _Table:
    """A table with devices and times.

    Args:
        path: the path of the file.
        cells: its cells.
        device: the device of each row.
        time: the time of each row, in seconds since 1970, or in the units of its numbers, [n].
        form: the format of the times.
        absolute: whether times are moments, in seconds since 1970.
        zoned: whether these are universal times: by their zone, as numbers, or by the given zone.
        used: the columns of device, time and end.
        end: the end of each event, [n], in the units of ``time``; None for moments.
    """

    path: Path
    cells: Excerpt
    device: list[str]
    time: NDArray[np.float64]
    form: Form
    absolute: bool
    zoned: bool
    used: frozenset[str]
    end: NDArray[np.float64] | None = None


def span(text: str, *, absolute: bool) -> float:
    """Return a duration in seconds where times are moments, otherwise in the unit of the times' numbers.

    Raises:
        SettingError: the text is no duration above 0, has a unit although times are numbers of an unknown unit, or has
            none although they are moments.

    >>> span("24h", absolute=True), span("1.5 d", absolute=True), span("30", absolute=False)
    (86400.0, 129600.0, 30.0)
    """
    match = re.fullmatch(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})?\s*", text)
    if match is None or not float(match[1]):
        raise SettingError(
            f"--within {text}: must be a duration above 0, such as 24h, 30min, 7d or 90s; a number where times are "
            "numbers."
        )
    if absolute and match[2] is None:
        raise SettingError(f"--within {text}: has no unit, but times are moments. Write 24h, 30min, 7d or 90s.")
    if match[2] and not absolute:
        raise SettingError(
            f"--within {text}: has a unit, but times are numbers of an unknown unit, such as cycles. Give a number in "
            "the unit of the times, or name their format, such as --time-format s."
        )
    return float(match[1]) * UNITS.get(match[2], 1.0)


def label_rows(
    data: Path, events: Path, out: Path, *, within: str = "", remaining: bool = False, kind: str = "",
    columns: Mapping[str, str] | None = None, time_format: str | None = None, zone: str | None = None,
    force: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Write a table with a column for the kind of the event that follows each row, or for the time until this event.

    The row of device k at time t gets the kind of the first event of k at a time t' with t ≤ t' ≤ t + ``within``, else
    ``none``. With ``remaining`` it gets min t' − t, in hours where times are moments, and the number of events of k
    before t as its run, so that no window crosses a repair; rows without a later event are left out. If events have an
    end e, rows with t' ≤ t ≤ e get the kind, too, and are left out with ``remaining``.

    Args:
        data: the table of measurements, with columns for device and time, and sensors.
        events: the table of events, with columns for device and time, and for the kind if it becomes the label.
        out: the table to write, as CSV.
        within: the time span before an event in which rows get its label, such as ``24h``; may be empty where events
            have an end.
        remaining: whether to write the time until the next event instead.
        kind: the column of ``events`` with the kind; by default a column with a common name, or the only one left.
        columns: names of the columns ``device`` and ``time`` of both tables, where these are unusual;
            ``event-device`` and ``event-time`` of ``events``, where these differ; and ``end``, the end of events, by
            default a column of times with a usual name.
        time_format: the format of the times in both tables, as ``[data] time_format``; by default it is recognised.
        zone: the time zone of times without one, as ``[data] zone``.
        force: whether to overwrite ``out``.

    Returns:
        The facts: file, rows, the number of ``events`` that rows precede and, by reason, of those ``without rows``; the
        number of rows per label, or of rows left out.

    Raises:
        SettingError: a column is missing, times cannot be read or compared, or no event concerns any row.
        RunError: the file cannot be written.
    """
    out = expanded(out)
    check_new(out, (".csv",), force=force)
    named = {role: name for role, name in (columns or {}).items() if name}
    table = _read(expanded(data), {role: named[role] for role in SHARED if role in named}, time_format, zone)
    own = {role: f"event-{role}" if f"event-{role}" in named else role for role in SHARED}
    options = {option: named[option] for option in (*own.values(), "end") if option in named}
    marks = _read(expanded(events), options, time_format, zone, ends=True)
    if bool(within) == remaining and (remaining or marks.end is None):
        raise SettingError(
            "give either --within SPAN, for labels, or --remaining, for the time until the next event.",
            key="label-or-remaining",
        )
    _check_pair(table, marks)
    if zone and table.form.zone and marks.form.zone:
        raise SettingError(f"--zone {zone}: the times of both tables have a time zone. Leave it out.")
    added = [REMAINING, RUN] if remaining else [LABEL]
    taken = next((name for name in added if name in table.cells.names), None)
    if taken is not None:
        raise SettingError(f"{table.path.name} has a column '{taken}' already. Rename it, or remove it.")
    kinds = [""] * len(marks.device) if remaining else _kinds(marks, kind)
    length = np.inf if remaining else span(within, absolute=table.absolute) if within else -1.0
    following, before, current = _next(table, marks)
    near = (following >= 0) & (marks.time[following] - table.time <= length)
    unused = _unused(table, marks, np.concatenate([following[near], current[current >= 0]]), length)
    _name_unused(marks, unused)
    if remaining:
        cells = _remaining(table, marks, np.where((current >= 0) & (current != following), -1, following), before)
    else:
        event_of = np.where(current >= 0, current, np.where(near, following, -1))
        cells = [[kinds[event] if event >= 0 else NONE] for event in event_of.tolist()]
    kept = [row + more for row, more in zip(table.cells.rows, cells, strict=True) if more]
    if not kept or (not remaining and all(row[-1] == NONE for row in kept)):
        raise SettingError(
            f"{marks.path.name}: no event follows any row of {table.path.name}: compare their times.", key="no-event"
        )
    with new_file(out) as part, part.open("w", newline="", encoding="utf-8") as file:
        # cells of the user's own table, which fedfloor reads again: unchanged, unlike those of csv_text
        csv.writer(file).writerows([table.cells.names + added, *kept])
    without = {reason: len(rows) for reason, rows in unused.items()}
    facts: dict[str, Any] = {"file": str(out), "rows": len(kept), "events": len(marks.device) - sum(without.values())}
    facts |= {"without rows": without} if without else {}
    if remaining:
        return facts | {"left out": len(table.device) - len(kept), "unit": "h" if table.absolute else "as time"}
    labels = [row[-1] for row in kept]
    return facts | {"labels": {label: labels.count(label) for label in sorted({*labels})}}


def _check_pair(table: _Table, marks: _Table) -> None:
    """Refuse times that cannot be compared: moments with counts, and local times with universal ones."""
    if table.absolute != marks.absolute:
        raise SettingError(
            f"{marks.path.name}: times are {marks.form}, but {table.path.name} has {table.form}. Write "
            "both in one format.",
            key="forms-of-times",
        )
    if table.absolute and table.zoned != marks.zoned and NUMBERS not in (table.form, marks.form):
        with_zone, local = (table, marks) if table.zoned else (marks, table)
        raise SettingError(
            f"{local.path.name}: times have no time zone, but those of {with_zone.path.name} have one, so that they "
            "may be hours apart. Name the zone of the others, such as --zone Europe/Berlin, or write both with a zone.",
            key="forms-of-times",
        )


def _read(path: Path, given: Mapping[str, str], form: str | None, zone: str | None, *, ends: bool = False) -> _Table:
    """Return a table.

    Args:
        given: option → column, such as ``event-time`` → ``begin``.
        ends: whether its rows are events, which may have an end.

    Raises:
        SettingError: a column is missing, or a time cannot be read.
    """
    if not path.is_file():
        raise SettingError(f"{path}: no such file. Give a table: CSV, Parquet or a workbook.")
    table = head(path, EVERY, {})
    names = table.names
    rows = table.rows
    short = next((number for number, row in enumerate(rows, start=2) if len(row) != len(names)), None)
    if short is not None:
        raise SettingError(
            f"{place(path, short)}: {len(rows[short - 2])} cells, but the header has {len(names)}.", key="length-of-row"
        )
    for option, name in given.items():
        if name not in names:
            other = f", or name the column of EVENTS with --event-{option} NAME" if ends and option in SHARED else ""
            raise SettingError(
                f"--{option} {name}: {path.name} has no such column. Available: {', '.join(names)}. Choose one{other}."
            )
    known = {option.removeprefix("event-"): name for option, name in given.items()}
    last = known.pop("end", None) or next(
        (name for name in names if ends and {*re.split(r"[\W_]+", name.casefold())} & {*ENDS}), None
    )
    roles = roles_of(table.top(LOOKED_AT), {**known, "ignore": [last] if last else []})
    unread = next((name for name in names if word_of(name) in CALLED["time"]), "")
    roles = {"time": unread} | roles  # the cells of the column are then read, and refused one by one
    for role in ("device", "time"):
        if roles.get(role) not in names:
            raise SettingError(
                f"{path.name}: no column for the {role}. Available: {', '.join(names)}. Name it with "
                f"--{'event-' * ends}{role} NAME."
            )
    try:
        written, time, moments = _times(table.cells(roles["time"]), form)
    except TimeError as error:
        message = error.message.replace("--set data.time_format=", "--time-format ")
        raise SettingError(f"{place(path, error.row + 2, roles['time'])}: {message}", key="no-time") from error
    if moments and not form:
        log.info("%s: times are numbers, read as %s; for another format: --time-format.", path.name, NUMERALS[moments])
    device = table.cells(roles["device"])
    zoned = written == NUMBERS or written.zone or zone is not None
    if zone and written != NUMBERS and not written.zone:
        time = _universal(path, time, device, zone, roles["time"])
    used = frozenset([roles["device"], roles["time"], *([last] if last else [])])
    absolute = written != NUMBERS or moments is not None
    read_table = _Table(path, table, device, time, written, absolute, zoned, used)
    return replace(read_table, end=_ends(read_table, last, form, zone)) if last else read_table


def _universal(
    path: Path, time: NDArray[np.float64], device: Sequence[str], zone: str, column: str
) -> NDArray[np.float64]:
    """Return the universal times of local ones."""
    check_zone(zone)
    machine = np.unique(np.array(device), return_inverse=True)[1].ravel()
    try:
        moments, unsure = universal(time, machine, machine, zone)
    except TimeError as error:
        raise SettingError(f"{place(path, error.row + 2, column)}: {error.message}") from error
    if unsure.any():
        log.warning(
            "%s: this time occurs twice in %s, and the order of rows does not show which of both hours this is; %s in "
            "total, which may be an hour off. Write the offset beside such times: 02:30+01:00.",
            place(path, int(unsure.argmax()) + 2, column), zone, count(int(unsure.sum()), "such row"),
        )  # fmt: skip
    return moments


def _ends(events: _Table, column: str, given: str | None, zone: str | None) -> NDArray[np.float64]:
    """Return the end of each event, which is its time where the cell is empty.

    Raises:
        SettingError: a cell is no time of the form of the others, or an end precedes its event.
    """
    cells = events.cells.cells(column)
    filled = [row for row, cell in enumerate(cells) if cell]
    end = events.time.copy()
    try:
        form, time, _ = _times([cells[row] for row in filled], given)
    except TimeError as error:
        row = filled[error.row] + 2
        raise SettingError(f"{place(events.path, row, column)}: {error.message} Or name the end: --end.") from error
    if form != events.form:
        raise SettingError(f"{events.path.name}, column '{column}': ends are {form}, but times {events.form}.")
    if zone and form != NUMBERS and not form.zone:
        time = _universal(events.path, time, [events.device[row] for row in filled], zone, column)
    end[filled] = time
    if (end < events.time).any():
        row = int((end < events.time).argmax())
        raise SettingError(
            f"{place(events.path, row + 2, column)}: this end is before the time of the event.", key="end-before-event"
        )
    log.info("%s: '%s' is taken for the end of events; rows until then belong to them.", events.path.name, column)
    return end


def _times(cells: Sequence[str], given: str | None) -> tuple[Form, NDArray[np.float64], str | None]:
    """Return the format of times, their values, and the format of numbers that are moments."""
    check_format(given)
    form, moments = read(cells, None, given, ".")
    known = given or (numeral(moments[:, 0]) if form == NUMBERS else None)
    if known and "%" in known and not given:
        form, moments = read(cells, None, known, ".")
    return form, decide(moments, form, known)[0], known


Unused = dict[str, list[int]]  # reason → the events


def _unused(table: _Table, events: _Table, used: NDArray[np.int64], length: float) -> Unused:
    """Return the events that no row precedes within the span and before any other event, by reason."""
    names, whose = np.unique(table.device, return_inverse=True)
    order = np.lexsort((table.time, whose))
    rows = dict(zip(names.tolist(), np.split(table.time[order], np.cumsum(np.bincount(whose))[:-1]), strict=True))
    unused: Unused = {}
    seen: set[tuple[str, float]] = set()
    taken = set(used.tolist())
    for event in np.argsort(events.time, kind="stable").tolist():
        device = events.device[event]
        time = float(events.time[event])
        mine = rows.get(device)
        if mine is None:
            reason = f"of devices that {table.path.name} has no rows of"
        elif (device, time) in seen:
            reason = "at the time of another event of the device"
        elif mine[0] > time:
            reason = "before the first row of the device"
        elif np.searchsorted(mine, time, "right") == np.searchsorted(mine, time - length, "left"):
            reason = "without a row in the time span before them"
        else:
            reason = "right after another event, with no row in between"
        seen.add((device, time))
        if event not in taken:
            unused.setdefault(reason, []).append(event)
    return unused


def _name_unused(events: _Table, unused: Unused) -> None:
    """Warn of events that change no row."""
    for reason, which in unused.items():
        named = ", ".join(f"row {event + 2} ('{events.device[event]}')" for event in sorted(which)[:NAMED])
        more = ", …" if len(which) > NAMED else ""
        log.warning("%s: %s %s: %s%s.", events.path.name, count(len(which), "event"), reason, named, more)


def _kinds(events: _Table, given: str) -> list[str]:
    """Return the kind of each event.

    Raises:
        SettingError: no column has the kind, a cell of it is empty, or its cells are times.
    """
    table = events.cells
    names = events.cells.names
    free = [name for name in names if name not in events.used and not _is_time(table.cells(name))]
    roles = roles_of(table.top(LOOKED_AT), {"ignore": [name for name in names if name not in free]})
    usual = roles.get("label", "")
    column = given or (usual if usual in free else free[0] if len(free) == 1 else "")
    if column not in names:
        problem = f"no column '{column}'" if column else "no column for the kind of event"
        raise SettingError(
            f"{events.path.name}: {problem}. Available: {', '.join(names)}. Name it with --kind NAME.",
            key="kinds-of-events",
        )
    kinds = table.cells(column)
    if _is_time(kinds):
        raise SettingError(
            f"{events.path.name}, column '{column}': holds times, such as '{kinds[0]}', and not kinds of events. Name "
            "another column with --kind NAME.",
            key="kinds-of-events",
        )
    if not given and len(kinds) >= MANY and len({*kinds}) == len(kinds):
        raise SettingError(
            f"{events.path.name}, column '{column}': differs from event to event, as a number of an order does, and is "
            f"the only column left for the kind of event. Add a column with the kind, or take it by --kind {column}.",
            key="kinds-of-events",
        )
    if "" in kinds or NONE in kinds:
        row = 2 + next(i for i, each in enumerate(kinds) if each in ("", NONE))
        raise SettingError(
            f"{place(events.path, row, column)}: an event needs a kind other than '{NONE}', the label of rows without "
            "a following event.",
            key="kinds-of-events",
        )
    return kinds


def _is_time(cells: Sequence[str]) -> bool:
    """Return whether all filled cells of a column are dates, or numbers such as milliseconds since 1970."""
    known = [cell for cell in cells if cell]
    if is_time(known, None, numbers=False):
        return True
    return bool(known) and all(map(is_number, known)) and numeral(np.array([*map(float, known)])) is not None


def _next(table: _Table, events: _Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return for each row its device's next event, the number of its earlier events, and the event that it is in.

    Events are given by index, −1 if there is none; a row is in the latest event that has begun and not ended.
    """
    order = np.argsort(events.time, kind="stable")
    of_device: dict[str, list[int]] = {}
    for event in order.tolist():
        of_device.setdefault(events.device[event], []).append(event)
    following, current = (np.full(len(table.device), -1, np.int64) for _ in range(2))
    before = np.zeros(len(table.device), np.int64)
    devices = np.array(table.device)
    ends = events.end
    for device, mine in of_device.items():
        rows = np.flatnonzero(devices == device)
        before[rows] = np.searchsorted(events.time[mine], table.time[rows])
        has_next = before[rows] < len(mine)
        following[rows[has_next]] = np.array(mine)[before[rows[has_next]]]
        if ends is None:
            continue
        for event in mine:
            time = table.time[rows]
            end = float(ends[event])
            current[rows[(time >= events.time[event]) & (time <= end)]] = event
    return following, before, current


def _remaining(
    table: _Table, events: _Table, following: NDArray[np.int64], before: NDArray[np.int64]
) -> list[list[str]]:
    """Return the cells of each row: the time until its next event and the number of earlier ones; [] without one."""
    left = (events.time[following] - table.time) / (UNITS["h"] if table.absolute else 1.0)
    return [
        [f"{hours:.10g}", str(run)] if event >= 0 else []
        for event, hours, run in zip(following, left, before, strict=True)
    ]
