"""Interfaces that others rely on change only on purpose."""

from __future__ import annotations

import json

from tests.programs import stable


def test_the_interfaces_are_those_that_are_recorded() -> None:
    recorded = json.loads(stable.FILE.read_text())
    own = json.loads(json.dumps(stable.interfaces()))
    changed = [name for name in sorted({*recorded, *own}) if recorded.get(name) != own.get(name)]
    assert not changed, (
        f"{changed}: a stable interface has changed. Run `python tests/programs/stable.py write`, add a line to "
        "CHANGELOG.md under [Unreleased], and see docs/stability.md for what a removal needs."
    )
