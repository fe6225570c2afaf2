"""Queries to a database, again and again: the rows that are newer than those before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedfloor.data.query import address
from fedfloor.errors import SettingError, nearest, require
from fedfloor.sensors.events import Event, Signal, Update, seconds

log = logging.getLogger(__name__)

ROWS = 10_000  # of an answer that are read at once


@dataclass(frozen=True)
class SqlSource:
    """A query with ``:after``, which stands for the time of the last row that was read.

    Such as ``SELECT time, speed, load FROM readings WHERE time > :after ORDER BY time``; an address is a column.

    Args:
        url: as SQLAlchemy has it; ``$NAME`` stands for an environment variable.
        query: in SQL.
        begin: ``:after`` of the first query: a number or a text.
        time: the column of times.
        unit: of times that are numbers.
        every_s: between two queries.
    """

    url: str
    query: str
    begin: float | str = 0.0
    time: str = "time"
    unit: Literal["s", "ms", "us", "ns"] = "s"
    every_s: float = 5.0
    kind: Literal["sql"] = "sql"

    def __post_init__(self) -> None:
        require(":after" in self.query, "source.query", self.query, "a query with :after, the time of the last row")
        require(0.1 <= self.every_s <= 86400, "source.every_s", self.every_s, "from 0.1 to 86,400")

    def events(self, addresses: Sequence[str], stop: threading.Event, position: str | None) -> Iterator[Event]:
        """Yield the rows of each answer."""
        try:
            import sqlalchemy
            from sqlalchemy import exc
        except ModuleNotFoundError as error:
            raise SettingError("queries to databases need SQLAlchemy: pip install 'fedfloor[sql]'.") from error
        where = address(self.url)
        try:
            engine = sqlalchemy.create_engine(where.url, poolclass=sqlalchemy.NullPool)
        except (exc.ArgumentError, ModuleNotFoundError, ValueError) as error:
            raise SettingError(f"source.url {where.shown}: {where.clean(error)}.") from None
        text, after = sqlalchemy.text(self.query), _after(position, self.begin)
        while not stop.is_set():
            try:
                with engine.connect() as connection:  # and leave without a commit
                    rows = connection.execution_options(yield_per=ROWS).execute(text, {"after": after}).mappings()
                    for row in rows:
                        after = row[self._time(row)]
                        yield self._update(row, addresses, after)
            except exc.OperationalError as error:
                log.warning("%s: %s. It is tried again and again.", where.shown, where.clean(error.orig or error))
            except exc.SQLAlchemyError as error:
                raise SettingError(f"{where.shown}: {where.clean(getattr(error, 'orig', None) or error)}.") from None
            yield Signal.IDLE
            stop.wait(self.every_s)

    def _time(self, row: Any) -> str:
        if self.time not in row:
            raise SettingError(f"source.query: its answer has no column '{self.time}'.{nearest(self.time, row)}")
        return self.time

    def _update(self, row: Any, addresses: Sequence[str], after: object) -> Update:
        for name in addresses:
            if name not in row:
                raise SettingError(f"tags: the query's answer has no column '{name}'.{nearest(name, row)}")
        moment = seconds(after if isinstance(after, int | float) else str(after), self.unit)
        if moment is None:
            raise SettingError(f"source.query: '{str(after)[:60]}' in column '{self.time}' is no time.")
        values = {name: row[name] for name in addresses or row if name != self.time}
        position = f"{'n' if isinstance(after, int | float) else 's'}{after}"
        return Update(moment, values, position=position)


def _after(position: str | None, begin: float | str) -> float | str:
    if not position:
        return begin
    return float(position[1:]) if position[0] == "n" else position[1:]
