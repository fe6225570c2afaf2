"""Tables of a made plant with faults, for ``benchmarks.fault_cases``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

MACHINES = 6
ROWS = 120
SENSORS = ("temp", "vib", "flow", "load")
START = datetime(2026, 3, 2, 6, tzinfo=UTC)
Columns = dict[str, list[str]]
Floats = NDArray[np.float64]


def stamp(row: int, seconds: float = 60) -> str:
    """Return the time of a row, in ISO 8601 without a zone."""
    return f"{START + timedelta(seconds=seconds * row):%Y-%m-%d %H:%M:%S}"


def values(machine: int, rows: int = ROWS, *, seed: int = 0, level: float = 0.3) -> dict[str, Floats]:
    """Return a machine's sensors [rows]: levels that differ a little between machines, noise, and wear in ``vib``."""
    draw = np.random.default_rng([seed, machine])
    own = np.random.default_rng([7, machine])
    worn = (np.arange(rows) * 7 + machine) % 3 == 0
    load = 50 + 10 * draw.normal(size=rows)
    temp = 40 + 0.3 * load + 2 * draw.normal(size=rows)
    x = {"temp": temp, "vib": 2 + 1.5 * worn + 0.5 * draw.normal(size=rows), "flow": 12 - 0.05 * load, "load": load}
    x["flow"] = x["flow"] + 0.8 * draw.normal(size=rows)
    return {name: column + level * own.normal() * column.std() for name, column in x.items()}


def plant(
    machines: Sequence[int] = range(MACHINES),
    rows: int = ROWS,
    *,
    seed: int = 0,
    level: float = 0.3,
    begin: int = 0,
    change: Callable[[int, dict[str, Floats]], None] | None = None,
) -> Columns:
    """Return the columns of a table, device after device; ``change`` alters the sensors of a machine in place."""
    table: Columns = {name: [] for name in ("timestamp", "machine", *SENSORS, "state")}
    for machine in machines:
        x = values(machine, rows, seed=seed, level=level)
        worn = (np.arange(rows) * 7 + machine) % 3 == 0
        if change is not None:
            change(machine, x)
        table["timestamp"] += [stamp(begin + row) for row in range(rows)]
        table["machine"] += [f"M{machine}"] * rows
        for name in SENSORS:
            table[name] += ["" if np.isnan(each) else f"{each:.3f}" for each in x[name]]
        table["state"] += ["worn" if each else "ok" for each in worn]
    return table


def lines(table: Columns, delimiter: str = ",") -> list[str]:
    """Return the lines of a table, its header first."""
    return [delimiter.join(table), *(delimiter.join(row) for row in zip(*table.values(), strict=True))]


def write(folder: Path, text: Sequence[str], name: str = "t.csv") -> str:
    """Write lines of a table; return its name."""
    (folder / name).write_text("\n".join(text) + "\n", encoding="utf-8")
    return name


def altered(change: Callable[[Columns], object] = lambda _: None, **more: object) -> Callable[[Path], str]:
    """Return a maker of the plant's table with columns altered in place."""

    def make(folder: Path) -> str:
        table = plant(**more)  # type: ignore[arg-type]
        change(table)
        return write(folder, lines(table))

    return make


def edited(edit: Callable[[list[str]], list[str]]) -> Callable[[Path], str]:
    """Return a maker of the plant's table with its lines edited."""
    return lambda folder: write(folder, edit(lines(plant())))


def timed(form: Callable[[datetime], str]) -> Callable[[Path], str]:
    """Return a maker of a table with times of another form."""

    def change(table: Columns) -> None:
        table["timestamp"] = [form(datetime.fromisoformat(text).replace(tzinfo=UTC)) for text in table["timestamp"]]

    return altered(change)


def moved(move: Callable[[int], str]) -> Callable[[Path], str]:
    """Return a maker of a table whose times are a function of the row of a machine."""

    def change(table: Columns) -> None:
        table["timestamp"] = [move(row) for _ in range(MACHINES) for row in range(ROWS)]

    return altered(change)


def of_machine(number: int, alter: Callable[[dict[str, Floats]], object]) -> Callable[[int, dict[str, Floats]], None]:
    """Return a change of the sensors of one machine."""

    def change(machine: int, x: dict[str, Floats]) -> None:
        if machine == number:
            alter(x)

    return change


def at(machine: int, alter: Callable[[dict[str, Floats]], object]) -> Callable[[Path], str]:
    """Return a maker of the plant's table with the sensors of one machine altered."""
    return lambda folder: write(folder, lines(plant(change=of_machine(machine, alter))))


def predicted(make: Callable[[Path], str] | None = None, **more: object) -> Callable[[Path], str]:
    """Return a maker of the plant's table, and of later rows with a fault, to predict."""

    def both(folder: Path) -> str:
        later = plant(begin=ROWS, seed=1, **more)  # type: ignore[arg-type]
        write(folder, lines(later), "u.csv")
        if make is not None:
            make(folder)
        return write(folder, lines(plant()))

    return both


def renamed(text: str, by: str) -> Callable[[Path], str]:
    """Return a maker that replaces text in the table to predict."""

    def make(folder: Path) -> str:
        path = folder / "u.csv"
        path.write_text(path.read_text(encoding="utf-8").replace(text, by), encoding="utf-8")
        return path.name

    return make


def local(row: int, start: str) -> str:
    """Return the local time of a row in Berlin, without its zone."""
    moment = datetime.fromisoformat(start).replace(tzinfo=UTC) + timedelta(minutes=5 * row)
    return f"{moment.astimezone(ZoneInfo('Europe/Berlin')):%Y-%m-%d %H:%M:%S}"


def marked(sensor: str, mark: str, every: int = 31) -> Callable[[Columns], None]:
    """Return a change that puts a text into every so manieth cell of a sensor."""

    def change(table: Columns) -> None:
        table[sensor] = [mark if row % every == 7 else cell for row, cell in enumerate(table[sensor])]

    return change


def added(name: str, cell: Callable[[int, Columns], object], before: str = "") -> Callable[[Columns], None]:
    """Return a change that adds a column; its cells are functions of the row and the table."""

    def change(table: Columns) -> None:
        column = [str(cell(row, table)) for row in range(MACHINES * ROWS)]
        rest = {key: table.pop(key) for key in [*table][[*table].index(before) if before else len(table) :]}
        table |= {name: column} | rest

    return change


def with_quality(good: str, bad: str) -> Callable[[Columns], None]:
    """Return a change that adds the quality of a sensor, whose value is 0 where it is bad."""

    def change(table: Columns) -> None:
        table["temp_quality"] = [bad if row % 20 == 3 else good for row in range(MACHINES * ROWS)]
        table["temp"] = ["0" if row % 20 == 3 else cell for row, cell in enumerate(table["temp"])]

    return change


def one_of(sensor: str, machine: int) -> str:
    """Return a pattern of a sentence on a sensor of a machine."""
    return rf"\bM{machine}\b[^\n]*\b{sensor}\b|\b{sensor}\b[^\n]*\bM{machine}\b"


def long_form(folder: Path) -> str:
    """Write a row per sensor and time."""
    table = plant()
    rows = [
        f"{table['timestamp'][i]},{table['machine'][i]},{name},{table[name][i]}"
        for i in range(MACHINES * ROWS)
        for name in SENSORS
    ]
    return write(folder, ["timestamp,machine,tag,value", *rows])


def channels(folder: Path) -> str:
    """Write channels with a column of times each, below their properties."""
    pairs = [("Name", SENSORS), ("Port", ["851"] * len(SENSORS))]
    above = ["\t".join(f"{key}\t{each}" for each in row) for key, row in pairs]
    x = values(0)
    body = ["\t".join(f"{row}\t{x[name][row]:.3f}" for name in SENSORS) for row in range(ROWS)]
    return write(folder, ["Name\tScope\t\t", "", *above, "", *body])


def rates(folder: Path) -> str:
    """Write three machines with a row per second, and three with one in ten seconds."""
    fast = plant(range(3))
    slow = plant(range(3, 6))
    fast["timestamp"] = [stamp(row % ROWS, 1) for row in range(3 * ROWS)]
    slow["timestamp"] = [stamp(row % ROWS, 10) for row in range(3 * ROWS)]
    return write(folder, [*lines(fast), *lines(slow)[1:]])


def pauses(folder: Path) -> str:
    """Write recordings with a pause of 2.5 days."""
    table = plant()
    table["timestamp"] = [stamp(row % ROWS + 3600 * (row % ROWS // 60)) for row in range(MACHINES * ROWS)]
    return write(folder, lines(table))


def fitted_late(first: int) -> Callable[[Columns], None]:
    """Return a change that empties the first rows of a sensor of each machine."""

    def change(table: Columns) -> None:
        table["vib"] = ["" if row % ROWS < first else cell for row, cell in enumerate(table["vib"])]

    return change


def parquet(folder: Path) -> str:
    """Write the plant as Parquet, with a Boolean switch."""
    import pyarrow as pa
    from pyarrow import parquet as file

    table = plant()
    columns = {name: pa.array([float(cell) for cell in table[name]]) for name in SENSORS}
    times = pa.array([datetime.fromisoformat(text) for text in table["timestamp"]], pa.timestamp("ms"))
    switch = pa.array([row % 5 < 2 for row in range(MACHINES * ROWS)])
    rest = {name: pa.array(table[name]) for name in ("machine", "state")}
    file.write_table(pa.table({"timestamp": times, **rest, **columns, "on": switch}), folder / "t.parquet")
    return "t.parquet"


def german(folder: Path) -> str:
    """Write the plant with decimal commas and semicolons."""
    table = plant()
    for name in SENSORS:
        table[name] = [cell.replace(".", ",") for cell in table[name]]
    return write(folder, lines(table, ";"))


def with_target(of: Callable[[int, Columns], object]) -> Callable[[Path], str]:
    """Return a maker of the plant's table with another label, a function of the row and the table."""

    def change(table: Columns) -> None:
        table["state"] = [str(of(row, table)) for row in range(MACHINES * ROWS)]

    return altered(change)


def measured(row: int, table: Columns) -> str:
    """Return a number that depends on two sensors."""
    return f"{float(table['temp'][row]) + 2 * float(table['vib'][row]) + (row * 37 % 11) / 11:.3f}"
