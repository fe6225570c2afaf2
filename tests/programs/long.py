"""The tests that ``make test`` leaves to ``make test-long``: those that take half a second and more.

    .venv/bin/pytest -m 'not slow and not live' -n 2 --durations 0 --durations-min 0.01 > LOG
    python tests/programs/long.py LOG    # writes tests/long.txt

A test of many cases is long if its cases are on average. Both suites together hold every law, and ``make check`` runs
both; a test that is not in the list yet counts as short.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

FILE = Path(__file__).parents[1] / "long.txt"
LEAST = 0.5  # seconds of a case
HEAD = """\
# Tests that take half a second and more, which make test leaves to make test-long: written by tests/programs/long.py.
"""
LINE = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown) +tests/(\S+?::[^\[\n]+)(\[.*)?$")


def names() -> set[str]:
    """Return the long tests as ``ROOM/FILE::TEST``, without their cases."""
    return {line for line in FILE.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"}


def measured(log: str) -> list[str]:
    """Return the long tests by the durations that pytest wrote.

    >>> measured("0.90s call tests/a/test_b.py::test_c[1]\\n0.20s call tests/a/test_b.py::test_c[2]\\n")
    ['a/test_b.py::test_c']
    """
    seconds = defaultdict[str, float](float)
    cases = defaultdict[str, set[str]](set)
    for line in log.splitlines():
        if match := LINE.match(line):
            name = match[2].strip()
            seconds[name] += float(match[1])
            cases[name].add(match[3] or "")
    return sorted(name for name, total in seconds.items() if total / len(cases[name]) >= LEAST)


def main() -> None:
    """Write the list."""
    log = Path(sys.argv[1]).read_text(encoding="utf-8")
    found = measured(log)
    if not found:
        sys.exit(f"{sys.argv[1]}: holds no durations. Run pytest with --durations 0.")
    FILE.write_text(HEAD + "\n".join(found) + "\n", encoding="utf-8")
    print(f"{len(found)} tests: {FILE}")


if __name__ == "__main__":
    main()
