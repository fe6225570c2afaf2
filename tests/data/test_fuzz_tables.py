"""Mutated tables end in what they mean or in a message, never in a traceback; see ``fuzz_tables.py``."""

from __future__ import annotations

import pytest

import fuzz_tables


def _check(first: int, count: int) -> None:
    outcomes = fuzz_tables.fuzz(first, count)
    bad = [one for one in outcomes if one.verdict not in fuzz_tables.GOOD]
    assert not bad
    read = sum(one.verdict == "as meant" for one in outcomes)
    assert count / 8 < read < count / 2  # neither is nearly everything refused, nor are defects too rare


def test_mutated_tables() -> None:
    _check(0, 60)


@pytest.mark.slow
def test_many_mutated_tables() -> None:
    _check(60, 500)


def test_a_changed_value_and_a_changed_time_are_seen() -> None:
    """The check of the checks: other values, labels, times and devices than were meant are differences."""
    import random
    import tempfile
    from datetime import timedelta
    from pathlib import Path

    from fedfloor import config
    from fedfloor.runs.parks import load_data

    rng = random.Random(1)
    table = fuzz_tables.plant(rng)
    assert table.truth is not None
    for row, record in zip(table.rows, table.truth.records, strict=True):
        row[2] = record[2].isoformat()  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as place, fuzz_tables._at(place):
        fuzz_tables.write(table, Path(place), rng)
        assert fuzz_tables.call("new", "plant.csv", "--out", "e.toml").code == 0
        data = load_data(config.read(Path("e.toml"), []))
    assert not fuzz_tables.differs(data, table.truth)
    device, factory, time, label, x = table.truth.records[3]
    for odd in (
        ("press 9", factory, time, label, x), (device, "west", time, label, x),
        (device, factory, time + timedelta(hours=1), label, x),  # type: ignore[operator]
        (device, factory, time, "broken", x), (device, factory, time, label, (x[0] + 0.001, *x[1:])),
    ):  # fmt: skip
        records = [*table.truth.records[:3], odd, *table.truth.records[4:]]
        assert fuzz_tables.differs(data, fuzz_tables.Truth(table.truth.sensors, records))
