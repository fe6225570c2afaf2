"""Tables with columns for each machine, such as ``pump1.temp`` and ``pump2.temp``, which have no column of machines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor.data.files.recipes import ConversionError, code_of, converted, then

MARKS = "._-/: "  # between a machine and its sensor
NUMBERED = re.compile(r"(.*?)[ _-]?(?<!\d)\d+")
BESIDE = 3  # columns of no machine, at most


def check_wide(path: Path, given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse a table whose columns are those of several machines, with the lines of code that give each its rows.

    Machines are numbered, and have the same sensors, so that the axes of one machine's sensor are none.

    Raises:
        ConversionError: the columns are those of machines.
    """
    for mark in MARKS:
        own = [name for name in names if NUMBERED.fullmatch(name.partition(mark)[0]) and name.partition(mark)[2]]
        sensors: dict[str, set[str]] = {}
        for name in own:
            machine, _, sensor = name.partition(mark)
            sensors.setdefault(machine, set()).add(sensor)
        alike = len({*map(frozenset, sensors.values())}) == 1
        stems = {match[1] for machine in sensors if (match := NUMBERED.fullmatch(machine))}
        if len(sensors) < 2 or not alike or len(stems) > 1 or len(names) - len(own) > BESIDE:
            continue
        beside = [name for name in names if name not in own]
        read, write, out = converted(path, given, "rows")
        machines = [*sensors]
        raise ConversionError(
            "wide", name=path.name, many=len(machines), first=machines[0], last=machines[-1], column=own[0], read=read,
            beside=code_of(beside), mark=code_of(mark), index=code_of([*beside, "device"]), write=write,
            then=then(out),
        )  # fmt: skip
