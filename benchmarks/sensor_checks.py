"""Sensors that differ on one device: how many made faults are named, and how many sensors without one.

    FEDFLOOR_DATA=… python -m benchmarks.sensor_checks && python -m benchmarks.pages

Real devices are recordings of SKAB, engines of C-MAPSS and runs of the Tennessee Eastman process. Made plants have
twelve sensors and levels of their own, drawn for each device. A made fault changes one sensor of one device.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfloor.inference.unlike import beyond
from fedfloor.park.peers import among, beside
from fedfloor.park.summaries import Summaries
from papers import documents

PAGE = Path(__file__).parents[1] / "results/sensor-checks.md"
DATA = Path(os.environ.get("FEDFLOOR_DATA", "data"))
Machines = dict[str, NDArray[np.float32]]
DRAWS = 4
PLANTS = 8
ROWS = 120
SENSORS = 12
FAULTS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "°F": lambda v: 1.8 * v + 32, "K": lambda v: v + 273.15, "×10": lambda v: 10 * v, "/10": lambda v: v / 10,
    "×1000": lambda v: 1000 * v, "sign": lambda v: -v, "constant": lambda v: np.full_like(v, v[0]),
    "absent": lambda v: np.full_like(v, np.nan),
}  # fmt: skip
LEVELS: dict[
    str, Callable[[np.random.Generator], NDArray[np.float64]]
] = {  # of each sensor, in shares of its usual one
    "alike": lambda rng: np.zeros(SENSORS),  # noqa: ARG005
    "normal, ±15 %": lambda rng: 0.15 * rng.normal(size=SENSORS),
    "uniform, ±30 %": lambda rng: rng.uniform(-0.3, 0.3, SENSORS),
    "normal, ±50 %": lambda rng: 0.5 * rng.normal(size=SENSORS),
    "log-normal, 0.6": lambda rng: np.exp(0.6 * rng.normal(size=SENSORS)) - 1,
    "Student's t (3), ±15 %": lambda rng: 0.15 * rng.standard_t(3, SENSORS),
    "sizes, 0.5": lambda rng: np.full(SENSORS, np.exp(0.5 * rng.normal()) - 1),
}


def matrix(path: Path, separator: str | None = None, skip: int = 0) -> NDArray[np.float32]:
    """Return the numbers of a file, below a header those of SKAB's sensors."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return np.loadtxt(
            file, np.float32, delimiter=separator, skiprows=skip, ndmin=2, usecols=None if skip == 0 else range(1, 9)
        )


def cmapss(name: str) -> Machines:
    """Return the engines of a file."""
    rows = matrix(DATA / "cmapss" / f"{name}.txt.gz")
    return {f"{unit:g}": rows[rows[:, 0] == unit, 2:] for unit in np.unique(rows[:, 0])}


def tep(pattern: str) -> Machines:
    """Return the runs of the Tennessee Eastman process in files of a pattern."""
    files = {path.name: matrix(path) for path in sorted((DATA / "tep").glob(pattern))}
    return {name: x.T if len(x) == 52 else x for name, x in files.items()}


def skab() -> Machines:
    """Return the recordings of valve1."""
    paths = sorted((DATA / "skab" / "valve1").glob("*.csv*"))
    return {path.name: matrix(path, ";", skip=1) for path in paths}


REAL: dict[str, Callable[[], Machines]] = {
    "SKAB valve1, 16 recordings": skab, "C-MAPSS FD001, 100 engines": lambda: cmapss("train_FD001"),
    "C-MAPSS FD003, 100 engines": lambda: cmapss("train_FD003"), "TEP, 22 runs": lambda: tep("d??.dat.gz"),
}  # fmt: skip


def made(levels: str, devices: int, seed: int) -> Machines:
    """Return a made plant."""
    rng = np.random.default_rng(seed)
    usual = np.exp(rng.normal(3, 1.2, SENSORS)) * rng.choice([1, 1, 1, 1, -1], SENSORS)
    noise = np.abs(usual) * np.exp(rng.normal(-3, 0.7, SENSORS))
    mix = rng.normal(size=(SENSORS, 2))
    machines = {}
    for k in range(devices):
        z = rng.normal(size=(ROWS, 2)) @ mix.T + 0.7 * rng.normal(size=(ROWS, SENSORS))
        level = usual * (1 + LEVELS[levels](rng))
        machines[f"m{k}"] = (level + noise * np.exp(0.25 * rng.normal(size=SENSORS)) * z).astype(np.float32)
    return machines


def summaries(machines: Machines) -> Summaries:
    """Return the summaries of devices."""
    sensors = [f"x{i}" for i in range(next(iter(machines.values())).shape[1])]
    return Summaries.of_rows(sensors, [*machines], [0] * len(machines), machines.values())


def broken(machines: Machines, fault: str, seed: int) -> tuple[Machines, str, set[str]]:
    """Return machines with a fault, the device that has it, and its sensors."""
    rng = np.random.default_rng(seed)
    changed = dict(machines)
    who = [*machines][rng.integers(len(machines))]
    varying = [i for i in range(machines[who].shape[1]) if all(np.ptp(x[:, i]) > 0 for x in machines.values())]
    one, other = rng.choice(varying, 2, replace=False).tolist()
    x = changed[who] = machines[who].copy()
    if fault == "exchanged":
        x[:, [one, other]] = x[:, [other, one]]
        return changed, who, {f"x{one}", f"x{other}"}
    x[:, one] = FAULTS[fault](x[:, one])
    return changed, who, {f"x{one}"}


def hits(plants: list[Machines], draws: int) -> Iterator[str]:
    """Yield how many of ``draws`` faults of each kind are named on their device and sensor."""
    for fault in (*FAULTS, "exchanged"):
        named = 0
        for draw in range(draws):
            changed, who, sensors = broken(plants[draw % len(plants)], fault, draw)
            found = among(summaries(changed))
            named += any(who in oddity.devices and {*oddity.sensors} & sensors for oddity in found)
        yield f"{named} of {draws}"


def alarms(plants: list[Machines]) -> str:
    """Return how many sensors of devices without a fault are named, and how many devices as other machines."""
    found = [oddity for machines in plants for oddity in among(summaries(machines))]
    sensors = sum(next(iter(machines.values())).shape[1] * len(machines) for machines in plants)
    machines = sum(oddity.kind == "machine" for oddity in found)
    return f"{len(found) - machines} of {sensors:,}" + (f", {machines} other machines" if machines else "")


def predicted(trained: Machines, new: Machines) -> str:
    """Return how many sensors of new devices ``predict`` names, each device in a file of its own."""
    s = summaries(trained)
    named = sum(len(beyond(x, s)) + len(beside(summaries({name: x}), s)) for name, x in new.items())
    return f"{named} of {len(new) * len(s.sensors):,}"


def main() -> None:
    """Measure all, and write the page."""
    columns = ["devices", "named without a fault", *FAULTS, "exchanged"]
    rows = []
    for name, load in REAL.items():
        machines = load()
        rows.append([name, alarms([machines]), *hits([machines], DRAWS)])
        print(rows[-1], flush=True)
    for levels in LEVELS:
        for devices in (3, 5, 8, 20):
            plants = [made(levels, devices, seed) for seed in range(PLANTS)]
            rows.append([f"made, {levels}, {devices}", alarms(plants), *hits(plants, PLANTS)])
            print(rows[-1], flush=True)
    skab_runs = skab()
    held = {name: x for i, (name, x) in enumerate(skab_runs.items()) if i % 3 == 0}
    tests = {
        "SKAB valve1: 10 recordings, 6 others": ({k: x for k, x in skab_runs.items() if k not in held}, held),
        "C-MAPSS FD001: training, official test": (cmapss("train_FD001"), cmapss("test_FD001")),
        "C-MAPSS FD003: training, official test": (cmapss("train_FD003"), cmapss("test_FD003")),
        "TEP: training, official test": (tep("d??.dat.gz"), tep("d??_te.dat.gz")),
    }
    later = [[name, predicted(*both)] for name, both in tests.items()]
    blocks = [
        "# Sensors that differ on one device",
        " ".join((__doc__ or "").split("\n\n")[2].split()),
        "```bash\npython -m benchmarks.sensor_checks && python -m benchmarks.pages\n```",
        "Faults are named where [`new` and `run`](../docs/data-reference.md#sensors-that-differ-on-one-device) name "
        f"the sensor on its device, of {DRAWS} draws of device and sensor, on made plants of {PLANTS}. Without a fault "
        "the first column counts sensors of devices, over all plants; other machines are devices with a single line on "
        "more than a quarter of their sensors. The runs of TEP have process faults of their own, most of which show in "
        "a sensor.",
        {"columns": columns, "rows": rows},
        "Sensors that `predict` names on devices that were not in training, without a made fault:",
        {"columns": ["training, new devices", "sensors named"], "rows": later},
    ]
    documents.publish(PAGE, blocks)


if __name__ == "__main__":
    main()
