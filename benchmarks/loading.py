"""How long data sets take to load, the first time and then, and how much memory that needs.

Each load has a process of its own. The *arrays* are the samples with their labels and owners. The *peak* is the most
memory that was resident from the imports on, while the data were loaded and every sample was looked at once, above what
was resident after the imports. It counts pages that are mapped; those of the first load also hold what parsing took.

Beside the published data sets there is a made table, as CSV: rows of 50 devices with a time, 9 sensors and a label.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedfloor.base.errors import RunError
from fedfloor.data import sources
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import own
from fedfloor.data.reading import Reading

Row = dict[str, object]
TABLE = "table"
NAMES = ("femnist", "mnist", "cifar-10", "tep", TABLE)
ROWS = 5_000_000  # of the table
DEVICES = 50
SENSORS = 9
MIB = 1 << 20
CHUNK = 256  # samples looked at together
PIECE = 1 << 18  # rows written together


def measure(names: Sequence[str], said: Callable[[str], None], rows: int = ROWS) -> list[Row]:
    """Load data sets, each first with an empty cache and then once more; return a row for each.

    Args:
        names: which; those that are not there are left out.
        said: told what is being measured, and what is not there.
        rows: of the made table.

    Raises:
        RunError: a load failed.
    """
    found: list[Row] = []
    for name in names:
        if name != TABLE and not sources.looked_in([name])[0]["found"]:
            said(f"{name}: not there (fedfloor list datasets says where it is looked for)")
            continue
        with tempfile.TemporaryDirectory(prefix="fedfloor-bench-") as cache:
            place = name
            if name == TABLE:
                place = str(Path(cache, f"{TABLE}.csv"))
                said(f"{name}: writing {rows:,} rows of {SENSORS + 3} columns")
                _table(Path(place), rows)
            said(f"{name}: loading it twice")
            first, then = (_alone(place, cache) for _ in range(2))
        found.append({
            "data_set": name if name != TABLE else f"{TABLE}, {rows:,} × {SENSORS + 3}",
            "first_s": round(first["load_s"], 2),
            "then_s": round(then["load_s"], 3),
            "arrays_mib": round(first["arrays"] / MIB, 1),
            "peak_mib": round(first["peak"] / MIB, 1),
            "ratio": round(first["peak"] / first["arrays"], 2),
            "ratio_then": round(then["peak"] / then["arrays"], 2),
        })  # fmt: skip
    return found


def _table(path: Path, rows: int) -> None:
    """Write a table of devices that take turns, a second apart, in pieces."""
    import pyarrow as pa
    from pyarrow import csv

    rng = np.random.default_rng(0)
    sensors = [f"s{number}" for number in range(1, SENSORS + 1)]
    kinds = [("device", pa.string()), ("time", pa.timestamp("s")), *((one, pa.float64()) for one in sensors)]
    schema = pa.schema([*kinds, ("label", pa.string())])
    with csv.CSVWriter(path, schema, write_options=csv.WriteOptions(quoting_style="none")) as file:
        for first in range(0, rows, PIECE):
            number = np.arange(first, min(first + PIECE, rows))
            label = np.array(["ok", "worn"])[number // DEVICES % 2]
            file.write_table(pa.table([
                np.char.add("machine ", (number % DEVICES).astype(str)),
                pa.array(1_768_888_800 + number // DEVICES).cast(pa.timestamp("s")),
                *(rng.normal(10 * column, 3, len(number)).round(3) for column in range(SENSORS)), label,
            ], schema=schema))  # fmt: skip


def _alone(name: str, cache: str) -> dict[str, float]:
    """Load a data set, or the table at a path, in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, name],
        env=os.environ | {"FEDFLOOR_CACHE": cache}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RunError(f"loading {name} failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _resident(field: str) -> int:
    """Return this process's resident memory in bytes: VmRSS, now; or VmHWM, the most so far.

    Not ``ru_maxrss``: that also counts what the parent held when it started this process.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _look_at_all(data: Dataset) -> None:
    for start in range(0, len(data.y), CHUNK):
        data.take(np.arange(start, min(start + CHUNK, len(data.y))), 0)
    for start in range(0, len(data.y_test), CHUNK):
        data.take_test(np.arange(start, min(start + CHUNK, len(data.y_test))))


def _bytes(data: Dataset) -> int:
    labels = [data.y, data.y_test, data.owner, data.owner_test]
    sample = data.take_test(np.arange(1)).nbytes
    return sample * (len(data.y) + len(data.y_test)) + sum(one.nbytes for one in labels if one is not None)


def _main() -> None:
    before = _resident("VmRSS")
    began = time.perf_counter()
    name = sys.argv[1]
    data = own.load(Path(name), Reading(), 0) if name.endswith(".csv") else sources.load(name)
    load_s = time.perf_counter() - began
    _look_at_all(data)
    peak = _resident("VmHWM")
    figures = {"load_s": load_s, "arrays": _bytes(data), "peak": peak - before}
    print(json.dumps(figures))


if __name__ == "__main__":
    _main()
