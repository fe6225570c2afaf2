"""The files in which a park's alarms are kept: where they lie, and reading them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedfloor.deploy import settings
from fedfloor.deploy.settings import ALARMS, SPAN, UNITS_S, AlarmSettings
from fedfloor.errors import SettingError, shown

LINES, OLDER, NOW = "alarms.jsonl", "alarms.1.jsonl", "devices.json"
MOST_BYTES = 16_000_000  # of each of the two files of lines: the full one takes the older one's place
BEAT_S = 5.0  # between two versions of devices.json, at most
PLACES = ("", ALARMS, f"park/{ALARMS}")  # of settings: in a machine's folder, a provisioned park's, a trial park's


def find(folder: Path) -> Path | None:
    """Return the settings of the process that keeps the alarms of a park, by the park's folder; None if none lie there.

    Args:
        folder: what ``fedfloor provision`` wrote, its part ``alarms``, or the folder of a park on this machine.
    """
    return next((path for place in PLACES if (path := folder / place / f"{ALARMS}.toml").is_file()), None)


def read(folder: Path) -> AlarmSettings:
    """Return the settings in a park's folder.

    Raises:
        SettingError: none lie there, or they cannot be read.
    """
    path = find(folder)
    if path is None:
        raise SettingError(
            f"{folder}: holds no {ALARMS}.toml. Name the folder that fedfloor provision wrote, or its part '{ALARMS}'; "
            "a park that an earlier version provisioned is provisioned again first."
        )
    return settings.read(AlarmSettings, path)


def lines(state: Path, since: dt.datetime | None = None) -> Iterator[dict[str, Any]]:
    """Yield the alarms that are kept in a folder, the oldest first; a damaged line is passed over.

    Args:
        since: those from then on.
    """
    least = "" if since is None else stamp(since)
    for name in (OLDER, LINES):
        with contextlib.suppress(FileNotFoundError), (state / name).open("rb") as file:
            for text in file:
                with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                    row = json.loads(text)
                    if str(row["at"]) >= least:
                        yield row


def words(alarm: Mapping[str, Any]) -> str:
    """Return what an alarm is about.

    >>> words({"kind": "drift", "drift": []}), words({"kind": "decision", "class": "bad", "probability": 0.9712})
    ('no drift any more', 'class bad (0.971)')
    """
    if alarm["kind"] == "drift":
        return f"drift: {', '.join(alarm['drift'])}" if alarm["drift"] else "no drift any more"
    if "class" in alarm:
        return f"class {alarm['class']} ({alarm['probability']:.3g})"
    return "score is not finite" if alarm["score"] is None else f"score {alarm['score']:.4g}"


def stamp(at: dt.datetime) -> str:
    """Return a time as files hold it: in UTC, to the second, so that texts are in the order of times."""
    return at.astimezone(dt.UTC).isoformat(timespec="seconds")


def moment(text: str, now: dt.datetime) -> dt.datetime:
    """Return the time that ``--since`` names: a span before now, or a date and time, local without a zone.

    >>> moment("2h", dt.datetime(2030, 5, 1, 12, tzinfo=dt.UTC)).hour
    10

    Raises:
        SettingError: it is neither.
    """
    span = SPAN.fullmatch(text)
    with contextlib.suppress(ValueError, OverflowError):
        return now - dt.timedelta(seconds=int(span[1]) * UNITS_S[span[2]]) if span else dt.datetime.fromisoformat(text)
    raise SettingError(f"--since {shown(text)}: must be a span, such as 30m, 12h or 7d, or a time, 2030-05-01T12:00.")
