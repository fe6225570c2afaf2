"""A database or InfluxDB, to which a historian writes: a query repeated for the rows since the last one."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from fedfloor.base.errors import MALFORMED, RunError, SettingError, nearest, require, shown
from fedfloor.base.strict import json_text
from fedfloor.data.query import DatabaseAddress, address, answer, check_private, within
from fedfloor.sensors.events import MOST_WARNINGS, POLL_S, Event, Refusal, Signal, Update, seconds, warn_once

log = logging.getLogger(__name__)

Moment = int | float | str | datetime


@dataclass(frozen=True)
class QuerySource:
    """The rows of a query repeated every ``every_s``; an address is a column of the result.

    The query contains ``:since``, which is replaced by the time of the newest row read. Rows that are not later are
    left out, even if they are added afterwards. The result must be ordered by time.

    Args:
        url: the URL of a database (SQLAlchemy's form) or ``influxdb+http(s)://:$TOKEN@HOST:PORT/ORGANISATION``;
            secrets as ``$NAME`` of an environment variable.
        query: the query in SQL or Flux.
        start: the first value of ``:since``: a number or text, as in the column of times; for Flux a time in ISO 8601.
        time: the column of times. Dates without a zone are in UTC.
        unit: the unit of times that are numbers.
        every_s: the time between queries, in s.
        plain: accept that a password or token travels without verified TLS.
    """

    url: str
    query: str
    start: int | float | str
    time: str = "time"
    unit: Literal["s", "ms", "us", "ns"] = "s"
    every_s: float = 10.0
    plain: bool = False
    kind: Literal["query"] = "query"

    def __post_init__(self) -> None:
        require(":since" in self.query, "source.query", self.query, "a query with :since, such as WHERE time > :since")
        if not self.plain:
            check_private(self.url, "accept it with plain = true")
        require(0.1 <= self.every_s <= 86400, "source.every_s", self.every_s, "from 0.1 to 86,400")
        require(self._seconds(self.start) is not None, "source.start", self.start, "a time")

    def below(self, folder: Path) -> QuerySource:
        """Return the source with relative paths in its address as paths in a folder."""
        return replace(self, url=within(self.url, folder))

    def events(self, addresses: Sequence[str], stop: threading.Event, position: str | None) -> Iterator[Event]:
        """Yield the new rows of each query; a failed query is repeated, except the first one."""
        where = address(self.url)
        warned = set[str]()
        since = _moment(position, self.start)
        began = False
        refused = set[str]()
        while not stop.is_set():
            rows = self._rows(where, addresses, since, refused)
            try:
                for event, newest in rows:
                    since = newest
                    yield event
                    if stop.is_set():
                        return
                began = True
                warned.clear()
            except (RunError, SettingError) as error:
                if isinstance(error, SettingError) and not began:
                    raise
                warn_once(warned, "failed", "%s The query is repeated every %g s.", error, self.every_s)
            waited = 0.0
            while waited < self.every_s and not stop.is_set():
                yield Signal.IDLE
                stop.wait(min(POLL_S, self.every_s))
                waited += POLL_S

    def _rows(
        self, where: DatabaseAddress, addresses: Sequence[str], since: Moment, refused: set[str]
    ) -> Iterator[tuple[Event, Moment]]:
        """Yield the events of an answer, each with the next value of ``:since``; ``refused`` has rows named before."""
        first = last = self._seconds(since) or 0.0
        wanted = list(addresses)
        with answer(where, self.query, since) as records:
            for record in records:
                for name in (self.time, *wanted):
                    if name not in record:
                        known = f"Available: {', '.join(list(record)[:40])}."
                        raise SettingError(f"source.query: no column '{name}'.{nearest(name, record)} {known}")
                value: Any = _number(record[self.time])
                time = self._seconds(value)
                if time is None or first < time <= last:
                    reason = "no time" if time is None else "a time that is not later than the row before"
                    text = f"{where.shown}: a row with {reason}: {shown(dict(record))}"
                    if text not in refused and len(refused) < MOST_WARNINGS:
                        refused.add(text)
                        yield (
                            Refusal(reason, "", f"{text}. The query gives a row per time, in the order of time."),
                            since,
                        )
                if time is None or time <= last:  # rows up to :since were read before
                    continue
                last = time
                since = value
                names = wanted or [name for name in record if name != self.time]
                values = {name: _number(record[name]) for name in names}
                yield Update(time, values, position=_position(value)), value

    def _seconds(self, value: object) -> float | None:
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        return seconds(str(value) if isinstance(value, date) else value, self.unit)


def _number(value: object) -> object:
    """Return a decimal number as a whole number, if it is one, or with binary digits; other values as they are."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)


def _position(value: Moment) -> str:
    """Return a time with its type as a text, for the buffer.

    >>> _moment(_position(datetime(2026, 3, 1)), 0), _moment(_position(7), 0), _moment(None, 5), _moment("{", 5)
    (datetime.datetime(2026, 3, 1, 0, 0), 7, 5, 5)
    """
    return json_text({"date": value.isoformat()} if isinstance(value, date) else {"since": value})


def _moment(position: str | None, start: Moment) -> Moment:
    try:
        known = json.loads(position or "{}")
        if "date" in known:
            return datetime.fromisoformat(known["date"])
        since = known.get("since", start)
    except MALFORMED:
        return start
    return since if isinstance(since, int | float | str | datetime) else start
