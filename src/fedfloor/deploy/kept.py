"""The files of a park's alarms: finding and reading them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, SettingError, shown
from fedfloor.deploy import settings
from fedfloor.deploy.settings import ALARMS, SPAN, UNITS_S, AlarmSettings

LINES = "alarms.jsonl"
OLDER = "alarms.1.jsonl"
NOW = "devices.json"
MOST_BYTES = 16_000_000  # size of each of the two log files: a full one replaces the older one
BEAT_S = 5.0  # longest interval between two versions of devices.json
PLACES = ("", ALARMS, f"park/{ALARMS}")  # of the settings in the folder of a machine, a provisioned or a trial park


def find(folder: Path) -> Path | None:
    """Return the settings file of the process that keeps a park's alarms, or None if there is none.

    Args:
        folder: a folder that ``fedfloor park provision`` wrote, its part ``alarms``, or the folder of a trial park.
    """
    return next((path for place in PLACES if (path := folder / place / f"{ALARMS}.toml").is_file()), None)


def read(folder: Path) -> AlarmSettings:
    """Return the settings of the process that keeps a park's alarms, from the park's folder.

    Raises:
        SettingError: the file is missing or cannot be read.
    """
    path = find(folder)
    if path is None:
        raise SettingError(
            f"{folder}: has no {ALARMS}.toml. Name the folder that fedfloor park provision wrote, or its part "
            f"'{ALARMS}'; a park that an earlier version provisioned is provisioned again first."
        )
    return settings.read(AlarmSettings, path)


def lines(state: Path, since: dt.datetime | None = None) -> Iterator[dict[str, Any]]:
    """Yield the alarms stored in a folder, the oldest first; damaged lines are skipped.

    Args:
        since: earliest time of an alarm; None: all.
    """
    least = "" if since is None else stamp(since)
    for name in (OLDER, LINES):
        with contextlib.suppress(FileNotFoundError), regular.opened(state / name) as file:
            for text in file:
                with contextlib.suppress(*MALFORMED):
                    row = json.loads(text)
                    if str(row["at"]) >= least:
                        yield row


def words(alarm: Mapping[str, Any]) -> str:
    """Return a short description of an alarm.

    >>> words({"kind": "drift", "drift": []}), words({"kind": "decision", "class": "bad", "probability": 0.9712})
    ('no drift any more', 'class bad (0.971)')
    """
    if alarm["kind"] == "drift":
        return f"drift: {', '.join(alarm['drift'])}" if alarm["drift"] else "no drift any more"
    if "class" in alarm:
        return f"class {alarm['class']} ({alarm['probability']:.3g})"
    return "score is not finite" if alarm["score"] is None else f"score {alarm['score']:.4g}"


def stamp(at: dt.datetime) -> str:
    """Return a time as text in UTC to the second; the texts sort in the order of time."""
    return at.astimezone(dt.UTC).isoformat(timespec="seconds")


def moment(text: str, now: dt.datetime) -> dt.datetime:
    """Return the time of a ``--since`` value: a span before now, or a date and time, local if without a zone.

    >>> moment("2h", dt.datetime(2030, 5, 1, 12, tzinfo=dt.UTC)).hour
    10

    Raises:
        SettingError: the text is neither.
    """
    span = SPAN.fullmatch(text)
    with contextlib.suppress(ValueError, OverflowError):
        return now - dt.timedelta(seconds=int(span[1]) * UNITS_S[span[2]]) if span else dt.datetime.fromisoformat(text)
    raise SettingError(f"--since {shown(text)}: must be a span, such as 30m, 12h or 7d, or a time, 2030-05-01T12:00.")
