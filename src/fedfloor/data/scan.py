"""Reading JSON as a stream: what is in a large object, a member at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

SPACE = re.compile(r"[ \t\n\r]*")
TOKEN = 32  # characters; what is cut in the middle fails this close to the end of the text, unless it is a string


class Scan:
    """A place in a JSON text, of which only the next pieces are in memory.

    Whoever is given a name or an item must read it, before the next one is asked for.

    >>> scan = Scan([b'{"a": [1, 2', b'3], "b": {}}'])
    >>> {key: [scan.value() for _ in scan.items()] if key == "a" else scan.value() for key in scan.members()}
    {'a': [1, 23], 'b': {}}
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._read = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0
        self._before = 0  # characters that were dropped
        self._ended = False

    def peek(self) -> str:
        """Return the next character that is no space; nothing at the end."""
        while True:
            found = SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._more()

    def members(self) -> Iterator[str]:
        """Yield the name of each member of the object that begins here.

        Raises:
            ValueError: not JSON, or no object.
        """
        for _ in self._each("{", "}"):
            if self.peek() != '"':
                raise self._wrong("expecting a name in double quotes")
            key = self.value()
            self._take(":")
            yield key

    def items(self) -> Iterator[None]:
        """Yield once for each item of the array that begins here.

        Raises:
            ValueError: not JSON, or no array.
        """
        return self._each("[", "]")

    def value(self) -> Any:
        """Return the whole value that begins here.

        Raises:
            ValueError: not JSON.
            RecursionError: nested too deep.
        """
        self.peek()
        while True:
            try:
                found, end = self._read(self._text, self._at)
                if end < len(self._text) or self._ended:  # at the very end, a number may go on
                    self._at = end
                    return found
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self._text) - TOKEN or error.msg.startswith("Unterminated")
                if self._ended or not cut:
                    raise self._wrong(error.msg, error.pos) from error
            wanted = 2 * (len(self._text) - self._at)  # doubled, so that a long value is not read over and over
            while not self._ended and len(self._text) - self._at <= wanted:
                self._more()

    def end(self) -> None:
        """Check that nothing follows.

        Raises:
            ValueError: something does.
        """
        if self.peek():
            raise self._wrong("extra data")

    def _each(self, first: str, last: str) -> Iterator[None]:
        self._take(first)
        if self.peek() == last:
            self._at += 1
            return
        while True:
            yield
            if self.peek() == last:
                self._at += 1
                return
            self._take(",")

    def _take(self, character: str) -> None:
        if self.peek() != character:
            raise self._wrong(f"expecting '{character}'")
        self._at += 1

    def _more(self) -> None:
        piece = next(self._pieces, None)
        self._ended = piece is None
        self._before += self._at
        self._text = self._text[self._at :] + self._decoder.decode(piece or b"", final=self._ended)
        self._at = 0

    def _wrong(self, problem: str, at: int | None = None) -> ValueError:
        place = self._before + (self._at if at is None else at)
        return ValueError(f"{problem} at character {place:,}" if self.peek() else f"{problem}, but the text ends")
