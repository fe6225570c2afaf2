"""The least number of a release that a device without a model accepts.

A device refuses releases older than the one it has. So that a new disk does not make it accept any, the number of its
last release stands in a file beside its settings as well, where ``fedfloor park provision`` and every release write it,
and in a file of its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.deploy.journal import Entry

NAME = "released"
ASSIGNING = ("release", "promote", "rollback")  # actions whose entries assign versions to devices


def numbers(entries: Sequence[Entry]) -> Mapping[str, int]:
    """Return device → the number of the last entry of a journal that assigned a version to it."""
    return {device: entry.number for entry in entries if entry.action in ASSIGNING for device in entry.about["devices"]}


def text(number: int) -> bytes:
    """Return the content of a file with a number."""
    return f"{number}\n".encode()


def read(path: Path) -> int:
    """Return the number in a file; 0 without the file.

    Raises:
        SettingError: the file cannot be read, or holds no number.
    """
    try:
        return int(regular.read_bytes(path))
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{path}: no number of a release ({error}). Copy it again from the park's folder devices."
        ) from error
