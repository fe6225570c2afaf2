"""The folders of tests that a change in a room may concern: ``make test ROOM=report``.

    python tests/programs/affected.py ROOM

A change may concern the room itself and all rooms that may import it, directly or through others, by the table of
imports in ``docs/rooms.toml``. What belongs to no room, the tests of the documentation, of the package as a whole and
of the evidence beside it, always runs. Without a room it is all tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS.parent))

from docs import rooms  # noqa: E402 (the line above finds it)

ALWAYS = ("benchmarks", "docs", "package", "papers")
ELSEWHERE = {"base": "package", "experiment": "config", "drafting": "cli"}  # rooms whose tests are in another's folder


def affected(room: str) -> list[str]:
    """Return a room and all that may import it, directly or through others.

    >>> affected("watch"), affected("report")
    (['cli', 'watch'], ['api', 'cli', 'report', 'watch'])
    """
    may = rooms.imports()
    found = {room}
    while more := {name for name, others in may.items() if others & found} - found:
        found |= more
    return sorted(found)


def folders(room: str) -> list[str]:
    """Return the folders of tests that a change in a room may concern."""
    names = {ELSEWHERE.get(name, name) for name in affected(room)} | set(ALWAYS)
    return [f"tests/{name}" for name in sorted(names)]


def main() -> int:
    """Print the folders; refuse an unknown room with the list of rooms."""
    room = "".join(sys.argv[1:])
    if not room:
        print("tests")
        return 0
    known = sorted(rooms.imports())
    if room not in known:
        print(f"ROOM={room}: no such room. Rooms: {', '.join(known)}.", file=sys.stderr)
        return 2
    print(*folders(room))
    return 0


if __name__ == "__main__":
    sys.exit(main())
