"""Values of bad quality, and numbers that mark missing values: both become missing before they are rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fedfloor.base.errors import shown
from fedfloor.data.files.quality import is_good
from fedfloor.data.kinds import is_number
from fedfloor.sensors.events import Event, Missing, Signal, Update
from fedfloor.sensors.settings import SenseSettings

UNKNOWN = Missing("quality unknown")


def judged(events: Iterable[Event], settings: SenseSettings) -> Iterator[Event]:
    """Yield a source's events with :class:`Missing` in place of values that are not good.

    A value and its quality may come in one update or apart: whichever comes, the last value counts with the last
    quality. After a lost connection both are unknown. Qualities themselves are no values of the updates.
    """
    of = {settings.tags.get(name, name): address for name, address in settings.quality.items()}
    marks = {mark.casefold() for mark in settings.missing_texts}
    numbers = {float(mark) for mark in marks if is_number(mark)}
    good = {text.casefold() for text in settings.good}
    last = dict[str, object]()  # address of a value or of a quality → what came last
    for event in events:
        if event is Signal.LOST:
            last.clear()
        if not isinstance(event, Update):
            yield event
            continue
        last |= {address: event.values[address] for pair in of.items() for address in pair if address in event.values}
        values = {address: value for address, value in event.values.items() if address not in {*of.values()}}
        for address, quality in of.items():
            if address in last and not event.values.keys().isdisjoint({address, quality}):
                values[address] = _bad(last.get(quality, UNKNOWN), good) or last[address]
        for address, value in values.items():
            if _marks(value, marks, numbers):
                values[address] = Missing(f"mark {shown(value, 40)}")
        yield replace(event, values=values)


def _bad(quality: object, good: set[str]) -> Missing | None:
    """Return the reason for which a value is missing; None if its quality is good.

    >>> [_bad(quality, set()) for quality in (192, "Good", 24)], _bad("ok", {"ok"}), _bad("ok", set())
    ([None, None, Missing(reason='quality 24')], None, Missing(reason="quality 'ok', which is none of OPC"))
    """
    text = "" if isinstance(quality, Missing) or quality is None else str(quality).strip()
    if not text:
        return UNKNOWN
    fine = text.casefold() in good if good else is_good(text)
    return None if fine else Missing(f"quality {shown(quality, 40)}{', which is none of OPC' * (fine is None)}")


def _marks(value: object, marks: set[str], numbers: set[float]) -> bool:
    """Return whether a value is one of those that stand for missing ones."""
    if isinstance(value, str):
        return value.strip().casefold() in marks
    return isinstance(value, int | float) and not isinstance(value, bool) and value in numbers
