"""A plugin of pytest that writes down which tests run which lines of the package, and runs the tests that a file names.

    pytest tests/plan -p reached --reached FILE --reached-within 120
    pytest tests/plan -p reached --chosen FILE
    pytest tests/plan -p reached --no-test-after 60

``tests/programs/mutate.py`` uses both: a changed line is tried against the tests that run it. Of a function that a test
calls more than ``CALLS`` times the later calls are not followed line by line; what other processes run is not seen.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

CALLS = 40
KEPT = 80  # tests that are written down for a line


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--reached", type=Path, help="JSON file of tests and the lines they run, written at the end")
    parser.addoption("--reached-within", type=float, default=float("inf"), help="seconds after which no test begins")
    parser.addoption("--no-test-after", type=float, help="seconds after which the other tests are left out")
    parser.addoption("--chosen", type=Path, help="JSON file with a list of tests; these alone run, in this order")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to follow the tests where that is asked for."""
    if config.getoption("--reached"):
        config.pluginmanager.register(Lines(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the chosen tests; or begin with one test of each function, for what is followed for a limited time."""
    if chosen := config.getoption("--chosen"):
        place = {name: i for i, name in enumerate(json.loads(chosen.read_text(encoding="utf-8")))}
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])
    elif config.getoption("--reached"):
        seen: Counter[str] = Counter()
        first = []
        for item in items:
            function = item.nodeid.partition("[")[0]
            first.append(seen[function] == 0)
            seen[function] += 1
        items[:] = [item for item, one in zip(items, first, strict=True) if one] + [
            item for item, one in zip(items, first, strict=True) if not one
        ]


_began = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leave a test out when the time is over."""
    limit = item.config.getoption("--no-test-after")
    return True if limit is not None and time.monotonic() - _began > limit else None


class Lines:
    """Follows tests and remembers, for each line of the package, tests that run it and pass."""

    def __init__(self, config: pytest.Config):
        self.root = str(config.rootpath / "src") + "/"
        self.out: Path = config.getoption("--reached")
        self.end = time.monotonic() + config.getoption("--reached-within")
        self.tests: list[tuple[str, float]] = []
        self.lines: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.seen: set[tuple[str, int]] = set()
        self.calls: Counter[int] = Counter()
        self.passed = True
        self.seconds = 0.0

    def called(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Follow the line by line run of the package's own functions."""
        code = frame.f_code
        if not code.co_filename.startswith(self.root):
            return None
        self.calls[id(code)] += 1
        return self.stepped if self.calls[id(code)] <= CALLS else None

    def stepped(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Remember a line."""
        if event == "line":
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self.stepped

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        """Follow a test with its fixtures."""
        self.seen = set()
        self.calls = Counter()
        self.passed = True
        self.seconds = 0.0
        threading.settrace(self.called)
        sys.settrace(self.called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            if self.passed:
                for place in self.seen:
                    self.lines[place].append(len(self.tests))
                self.tests.append((item.nodeid, self.seconds))
            if time.monotonic() > self.end:
                item.session.shouldstop = "the time to follow tests is over"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether the test passes, and how long it takes."""
        self.passed = self.passed and report.passed
        self.seconds += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the file: of each line the fastest tests, those of different functions first."""
        count: Counter[str] = Counter()
        place = []
        for name, seconds in self.tests:
            function = name.partition("[")[0]
            place.append((count[function], seconds))
            count[function] += 1
        files: defaultdict[str, dict[str, list[int]]] = defaultdict(dict)
        for (file, line), tests in sorted(self.lines.items()):
            files[file.removeprefix(self.root)][str(line)] = sorted(tests, key=place.__getitem__)[:KEPT]
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps({"tests": self.tests, "files": files}), encoding="utf-8")
