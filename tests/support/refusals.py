"""Errors that tests expect: by key in the tests, word for word in ``tests/messages.txt``.

``with refused("work.lr"):`` expects an error whose key is ``work.lr``. Its message is compared with what
``tests/messages.txt`` says of this test, where all sentences stand once. A rewording changes that file and no test:

    pytest --approve-messages tests/ROOM    # or all tests; then read the difference, as with code

Folders and words of other libraries, which differ between machines, are left out of that file. Tests with random cases
(Hypothesis) are not in it.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import hypothesis
import pytest

import fedfloor
from fedfloor.base.errors import FedfloorError, SettingError
from fedfloor.base.ranges import RefusedError

TESTS = Path(__file__).parents[1]
MESSAGES = TESTS / "messages.txt"
SOURCES = str(Path(fedfloor.__file__).parents[1])  # of the tree, or of a wheel
HEAD = """\
# The messages of all errors that tests expect, by test: approved sentences. Changed ones fail their test until they are
# approved with `pytest --approve-messages tests/ROOM`, which writes this file. {…} differs between machines.
"""
met: dict[str, list[str]] = {}  # of the tests of this process: the messages, in order


class refused(AbstractContextManager["refused"]):  # noqa: N801 (it reads as pytest.raises)
    """Expect an error with a key, and note down its message.

    Args:
        key: the error's key; of a ``RefusedError`` its reason.
        kind: the class of the error.
        varies: a pattern of what differs from run to run in the message.
    """

    def __init__(
        self,
        key: str,
        kind: type[Exception] | tuple[type[Exception], ...] = SettingError,
        varies: str = "",
    ) -> None:
        self.key = key
        self.varies = varies
        self.inner = pytest.raises(kind)

    def __enter__(self) -> refused:
        self.caught = self.inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        expected = self.inner.__exit__(kind, error, trace)
        if expected and error is not None:
            assert key_of(error) == self.key, f"the key is {key_of(error)!r}, not {self.key!r}: {error}"
            note(key_of(error), plain(error, self.varies))
        return expected

    @property
    def value(self) -> BaseException:
        """The error."""
        return self.caught.value

    def __str__(self) -> str:
        return str(self.caught.value)


def key_of(error: BaseException) -> str:
    """Return an error's key, "" if it has none."""
    if isinstance(error, RefusedError):
        return error.reason
    return error.key if isinstance(error, FedfloorError) else ""


def note(key: str, message: str) -> None:
    """Note down a message of the test that runs; of equal ones the first."""
    line = f"{key}: {message}"
    if not hypothesis.currently_in_test_context() and line not in met.setdefault(running(), []):
        met[running()].append(line)


def running() -> str:
    """Return the test that runs, with its file below ``tests/``."""
    return os.environ["PYTEST_CURRENT_TEST"].rsplit(" ", 1)[0].removeprefix("tests/")


def plain(error: BaseException, varies: str = "") -> str:
    """Return an error's message without folders, without the words of other libraries, and without what varies."""
    text = str(error)
    for cause in causes(error):
        if not isinstance(cause, FedfloorError | RefusedError) and (words := str(cause).strip()):
            for part in (words, words.splitlines()[0].strip(), getattr(cause, "strerror", None) or words):
                text = text.replace(part.rstrip("."), "{…}") if len(part) > 3 else text
    return without_places(re.sub(varies, "{…}", text) if varies else text)


def causes(error: BaseException) -> list[BaseException]:
    """Return the errors from which an error was raised, each once: a chain may come back to itself."""
    found: list[BaseException] = []
    cause = error.__cause__
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__
    return found


def without_places(text: str) -> str:
    """Return a text without the folders, ports and processes of this machine, addresses in memory and digests."""
    temporary = re.escape(os.path.realpath(tempfile.gettempdir()))
    base = rf"{temporary}/pytest-of-[^/\s]+/pytest-\d+(?:/popen-gw\d+)?"
    text = re.sub(rf"{base}(?:/\w+?\d+\b)?", "{tmp}", text)
    folder = re.sub(r"\W", "_", running().split("::", 1)[-1])[:30]  # as pytest calls a test's folder, with a number
    text = re.sub(rf"\b{folder}\d+\b", "{tmp}", text)
    for place, name in (
        (os.environ.get("FEDFLOOR_DATA", ""), "{data}"),
        (SOURCES, "{here}/src"),
        (str(TESTS.parent), "{here}"),
    ):
        text = text.replace(place, name) if place else text
    text = text.replace(", varied", "")  # the policy of tests/support/streaming.py, known once a test has imported it
    text = re.sub(r"\b0x[0-9a-f]{7,}\b|\b[0-9a-f]{32,}\b", "{…}", text)
    text = re.sub(r"(?<=by ')[^']+(?=' \(process )", "{…}", text)  # python, python3 or python3.11
    text = re.sub(r"(127\.0\.0\.1|localhost):\d+|\b(process|port) \d+\b", hidden_number, text)
    text = re.sub(r"\S+@\S+ at \d{4}-\d\d-\d\dT[\d:+.]+|\b[\d.,]+(?= GB are free)", "{…}", text)
    text = re.sub(r"\b\d+(?= of \d+ devices are connected)|(?<=must be; missing: )[^.]+", "{…}", text)
    return re.sub(r"[^\S \n]|[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: ascii(found[0])[1:-1], text)


def hidden_number(found: re.Match[str]) -> str:
    """Return a host, or the word before a number, without the number."""
    host, word = found.groups()
    return f"{host}:{{…}}" if host else f"{word} {{…}}"


@functools.cache
def approved() -> Mapping[str, list[str]]:
    """Return the approved messages by test."""
    return parsed(MESSAGES.read_text(encoding="utf-8")) if MESSAGES.exists() else {}


def parsed(text: str) -> dict[str, list[str]]:
    """Return the messages in a text that :func:`written` made."""
    found: dict[str, list[str]] = {}
    file = test = ""
    for line in text.split("\n"):
        if line.startswith("    "):
            found[test][-1] += "\n" + line[4:].removeprefix("|")
        elif line.startswith("  - "):
            found[test].append(line[4:])
        elif line.startswith("  "):
            test = f"{file}::{line[2:]}"
            found[test] = []
        elif line and not line.startswith("#"):
            file = line
    return found


def written(messages: Mapping[str, Iterable[str]]) -> str:
    """Return the text of a file of messages: files, their tests, and the messages of each, further lines with ``|``."""
    lines = [HEAD]
    last = ""
    for test in sorted(messages):
        file, name = test.split("::", 1)
        if file != last:
            lines.append(f"\n{file}\n" if last else f"{file}\n")
            last = file
        lines.append(f"  {name}\n")
        for message in messages[test]:
            first, *more = message.split("\n")
            lines += [f"  - {first}\n", *(f"    |{line}\n" for line in more)]
    return "".join(lines)


def difference(test: str) -> str:
    """Return how the messages of a test differ from the approved ones, "" if they do not."""
    now = met.get(test, [])
    before = list(approved().get(test, []))
    if now == before:
        return ""
    lines = [line for message in before for line in message.split("\n")]
    new = [line for message in now for line in message.split("\n")]
    changes = list(difflib.unified_diff(lines, new, "approved", "now", lineterm="", n=0))[2:]
    shown = "\n".join(line for line in changes if not line.startswith("@@"))
    return f"messages differ from tests/messages.txt (-: approved, +: now). If they are right, approve them with\n\
    pytest --approve-messages tests/{test}\n{shown}"


def approve(messages: Mapping[str, list[str]], ran: Iterable[str]) -> None:
    """Write the approved messages anew for the tests that ran, without tests that are gone."""
    kept = {test: lines for test, lines in approved().items() if exists(test)}
    for test in ran:
        kept.pop(test, None)
    MESSAGES.write_text(written(kept | dict(messages)), encoding="utf-8")


def exists(test: str) -> bool:
    """Return whether a test's file has a function of its name."""
    file, name = test.split("::", 1)
    path = TESTS / file
    function = name.split("[")[0]
    return path.exists() and f"def {function}(" in path.read_text(encoding="utf-8")
