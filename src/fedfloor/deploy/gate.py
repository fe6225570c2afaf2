"""What comes in: whose it is, that it is whole, new and in order; what is refused is counted and named."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import Any

from fedfloor.deploy.message import MOST_ARRAYS, MOST_BYTES, MOST_HEADER, Message, decode, split
from fedfloor.errors import SettingError
from fedfloor.ranges import RefusedError

log = logging.getLogger(__name__)

TOLD = 20  # refusals of one sender and reason that are all logged; of later ones the 32nd, 64th, 128th, …
AHEAD_S = 86_400  # of a sender's clock: whoever stole its key must not use up all sessions to come
LONGEST = 400  # letters of what somebody else said, in a log


def shown(text: str) -> str:
    """Return what somebody else said as one short line, so that nobody writes another's lines into a log.

    >>> print(shown("no\\nWARNING all is well"))
    no\\nWARNING all is well
    """
    line = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[: LONGEST + 1])
    return line if len(line) <= LONGEST else line[:LONGEST] + " …"


def timely(session: int) -> None:
    """Refuse a session that begins in the future: no later one, of the rightful sender, would be taken any more.

    Args:
        session: when it began by its sender's clock, ns.

    Raises:
        RefusedError: it is more than a day ahead.
    """
    ahead_s = (session - time.time_ns()) // 10**9  # of whole numbers: a thief's need not fit a float
    if ahead_s > AHEAD_S:
        raise RefusedError("future", f"its session begins {ahead_s // 3600} h from now. Is its clock right, or ours?")


class MessageFilter:
    """Admits messages of known senders, each once, and counts those it refuses.

    Args:
        run: the run they must belong to; "" takes any.
        most: the most bytes of one.
        header: the most bytes of its header.
        arrays: the most arrays of one.
        seen: file in which each sender's last message is noted, so that a restart does not take an old one again.
    """

    def __init__(
        self, run: str = "", most: int = MOST_BYTES, seen: Path | None = None, header: int = MOST_HEADER,
        arrays: int = MOST_ARRAYS,
    ) -> None:  # fmt: skip
        self.run, self.most, self.header, self.arrays, self._seen = run, most, header, arrays, seen
        self.refused: Counter[tuple[str, str]] = Counter()  # by sender and reason
        self._last: dict[str, tuple[int, int]] = _noted(seen)
        self._lock = Lock()

    def take(self, data: bytes, sender: str, most: int = MOST_BYTES, arrays: int = MOST_ARRAYS) -> Message | None:
        """Return a message, or None where it is refused.

        Args:
            data: what arrived.
            sender: whose it must be, by the topic it came on.
            most, arrays: the most bytes and arrays that this one may have, where that is less than any may have.
        """
        try:
            self.look(data, sender)
            return decode(data, min(most, self.most), self.header, min(arrays, self.arrays))
        except RefusedError as error:
            self.refuse(sender, error)
            return None

    def look(self, data: bytes, sender: str) -> dict[str, Any]:
        """Return a message's header: whose it is and that it is new and in order; its arrays are not looked at.

        Raises:
            RefusedError: it is not.
        """
        said, _ = split(data, self.most, self.header)
        if said["sender"] != sender:
            raise RefusedError("sender", f"it says it is of '{said['sender']}'.")
        if self.run and said["run"] != self.run:
            raise RefusedError("run", f"it belongs to run '{said['run']}'; this is '{self.run}'.")
        timely(said["session"])
        place = (said["session"], said["number"])
        with self._lock:
            if place <= self._last.get(sender, (0, 0)):
                raise RefusedError("replayed", f"message {place[1]} of session {place[0]} is no new one.")
            self._last[sender] = place
            if self._seen is not None:
                _note(self._seen, self._last)
        return said

    def refuse(self, sender: str, error: RefusedError) -> None:
        """Count and name what is refused."""
        self.refused[sender, error.reason] += 1
        count = self.refused[sender, error.reason]
        if count <= TOLD or count.bit_count() == 1:  # a flood of them fills no disk
            log.warning("refused a message of %s: %s (%d so far)", sender, shown(str(error)), count)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many were refused: sender → reason → number."""
        found: dict[str, dict[str, int]] = {}
        for (sender, reason), number in sorted(self.refused.items()):
            found.setdefault(sender, {})[reason] = number
        return found


def _noted(path: Path | None) -> dict[str, tuple[int, int]]:
    """Return what was noted before a restart.

    Raises:
        SettingError: the file holds something else.
    """
    if path is None or not path.exists():
        return {}
    try:
        said = json.loads(path.read_text())
        return {str(who): (int(session), int(number)) for who, (session, number) in said.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingError(f"{path} is damaged: delete it; an old message may be taken once.") from error


def _note(path: Path, last: dict[str, tuple[int, int]]) -> None:
    """Replace the file as a whole; a kill leaves the old one or the new one, a power cut may lose the last message."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(last))
    part.replace(path)
