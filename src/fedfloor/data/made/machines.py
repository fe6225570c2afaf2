"""A generated plant: machines in factories that wear until failure, with the causes of all sensor values recorded.

The same recordings serve every task: faults as classes, the remaining life as a number, normal operation only, and the
next rows of the sensors. The causes (:func:`recordings`) are known, for evaluation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError, require
from fedfloor.data.dataset import Dataset, Inputs, Owned
from fedfloor.data.reading import Reading
from fedfloor.data.series import assemble, fill, rows_left
from fedfloor.data.split import Rows
from fedfloor.tasks.regression import Regression

RECIPE = "machines 1"  # changes with the data
SENSORS = ("temperature", "vibration", "pressure", "current", "flow", "noise", "oil", "speed")
SETTINGS = ("load", "feed", "coolant")  # additional columns of a plant with several operating regimes
JITTER = 0.02  # standard deviation of a setting around its regime's value in [0, 1]
KINDS = ("press", "pump", "mill")
FAULTS = ("bearing", "leak", "blockage", "electric")
CLASSES = ("normal", *FAULTS)
STRIKES = ((1, 5), (2, 4), (0, 6), (3, 7))  # the sensors affected by each fault
EPISODE = (8, 16)  # rows that a fault lasts
STAY = 0.95  # probability that a machine stays in its operating regime from row to row
MOST_ROWS = 50_000_000
Floats = NDArray[np.float64]
Column = NDArray[Any]


@dataclass(frozen=True)
class Machines:
    """The properties of the generated plant.

    The value of sensor s of machine m in row t, in units of its noise, is

        b_s + h·r_{s,g(t)} + a_m·o_{m,s} + d·t/1000·u_s + w(t)·q_s·(1 + 3/4·r_{s,g(t)}) + f_s(t) + ε:

    with a level b, an offset of the operating regime g, r ~ N(0, 1), the machine's calibration offset, a drift shared
    by all machines of a factory, wear w = (t/L)^p, which rises from 0 to 1 at the failure after L rows (p depends on
    the kind of machine), the effect f of a present fault, and ε ~ N(0, 1).

    Args:
        runs: recordings to failure of each machine; the last quarter of them, but at least one, is for testing.
        life: mean of L in rows.
        spread: standard deviation of ln L.
        kinds: kinds of machines, 1 to 3.
        regimes: operating regimes, 1 to 6, each with an offset for every sensor. If there are several, three more
            columns hold the machine's settings, like altitude, Mach number and throttle in C-MAPSS.
        shift: h, standard deviation of the regimes' offsets, in standard deviations of the noise.
        wear: the effect of wear on the sensors just before the failure, in standard deviations of the noise.
        fault: probability that a fault begins in a row.
        strength: the effect of a fault, in standard deviations of the noise.
        skew: from 0 (every machine has all faults equally often) to 1 (each has a single kind of fault).
        calibration: standard deviation of the machines' offsets, in standard deviations of the noise.
        drift: the shift of a factory's sensors in a thousand rows, in standard deviations of the noise.
        missing: share of missing values, 0 to 0.9.
        factories: number of factories; by default one for every four machines.
    """

    runs: int = 4
    life: int = 150
    spread: float = 0.3
    kinds: int = 3
    regimes: int = 1
    shift: float = 6.0
    wear: float = 6.0
    fault: float = 0.01
    strength: float = 4.0
    skew: float = 0.5
    calibration: float = 1.0
    drift: float = 0.0
    missing: float = 0.0
    factories: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("runs", 2, 10_000), ("life", 20, 100_000), ("spread", 0, 1), ("kinds", 1, len(KINDS)), ("regimes", 1, 6),
            ("shift", 0, 1000), ("wear", 0, 100), ("fault", 0, 0.5), ("strength", 0, 100), ("skew", 0, 1),
            ("calibration", 0, 100), ("drift", -100, 100), ("missing", 0, 0.9),
            *((("factories", 1, 100_000),) if self.factories is not None else ()),
        ):  # fmt: skip
            given = getattr(self, name)
            require(low <= given <= high, f"data.machines.{name}", given, f"from {low} to {high}")


@dataclass(frozen=True, eq=False)
class Recordings:
    """Consecutive recordings of machines, with the causes of their values.

    Args:
        x: float32 [T, 8], the sensors, NaN where a value is missing; or [T, 11], followed by the settings.
        machine: int32 [T]; ``run``: int32 [T], counted over all machines; ``row``: int64 [T], from the run's first.
        left: int64 [T], the remaining rows until the failure.
        fault: int64 [T], the present fault, 0 for none.
        regime: int64 [T], the operating regime.
        wear: float64 [T], the wear from 0 to 1.
        offset: float64 [K, 8], the machines' calibration offsets.
        kind: int64 [K], the kind of each machine.
    """

    x: NDArray[np.float32]
    machine: NDArray[np.int32]
    run: NDArray[np.int32]
    row: NDArray[np.int64]
    left: NDArray[np.int64]
    fault: NDArray[np.int64]
    regime: NDArray[np.int64]
    wear: Floats
    offset: Floats
    kind: NDArray[np.int64]


def recordings(machines: int, factories: int, seed: int, like: Machines | None = None) -> Recordings:
    """Return recordings of machines, each a function of the seed, the machine's number and ``like`` only.

    Args:
        machines: K ≥ 1.
        factories: M ≥ 1; machine k belongs to factory k mod M.
        seed: the seed of all random draws.
        like: the properties of the plant; None for the defaults.

    >>> made = recordings(machines=2, factories=1, seed=0, like=Machines(runs=2, life=30))
    >>> made.x.shape[1], int(made.left[-1]), len(np.unique(made.run))
    (8, 0, 4)
    """
    like = like or Machines()
    rows = machines * like.runs * like.life
    require(rows <= MOST_ROWS, "machines × runs × life", rows, f"at most {MOST_ROWS:,} rows")
    plant = generator(seed, "machines")
    sensors = len(SENSORS)
    base = plant.normal(20, 5, sensors)
    moves = plant.normal(0, 1, (6, sensors)) * (like.regimes > 1)
    worn = plant.choice([-1.0, 1.0], (len(KINDS), sensors)) * plant.uniform(0.3, 1.0, (len(KINDS), sensors))
    ageing = plant.normal(0, 1, (factories, sensors))
    sign = plant.choice([-1.0, 1.0], (len(FAULTS), 2))
    points = plant.uniform(size=(6, len(SETTINGS)))
    made: dict[str, list[Column]] = {name: [] for name in ("x", "left", "fault", "regime", "wear", "row")}
    lengths = list[int]()
    offsets = list[Floats]()
    kinds = list[int]()
    for k in range(machines):
        rng = generator(seed, "machine", k)
        set_to = generator(seed, "settings", k)
        kind = int(rng.integers(like.kinds))
        offset = rng.normal(0, like.calibration, sensors)
        mix = np.full(len(FAULTS), (1 - like.skew) / len(FAULTS))
        mix[rng.integers(len(FAULTS))] += like.skew
        clock = 0
        for _ in range(like.runs):
            life = max(10, round(float(like.life * np.exp(rng.normal(0, like.spread) - like.spread**2 / 2))))
            t = np.arange(life)
            wear = ((t + 1) / life) ** (1.5 + 0.5 * kind)
            regime = _regimes(rng, t, like.regimes)
            fault, effect = _faults(rng, life, like, mix, sign)
            move = moves[regime]
            x = base + like.shift * move + offset + np.outer((clock + t) / 1000, like.drift * ageing[k % factories])
            x += like.wear * wear[:, None] * worn[kind] * (1 + 0.75 * move) + effect + rng.normal(size=(life, sensors))
            x[rng.random(x.shape) < like.missing] = np.nan
            if like.regimes > 1:
                x = np.column_stack([x, points[regime] + set_to.normal(0, JITTER, (life, len(SETTINGS)))])
            values: tuple[Column, ...] = (x.astype(np.float32), t[::-1].copy(), fault, regime, wear, t)
            for name, value in zip(made, values, strict=True):
                made[name].append(value)
            lengths.append(life)
            clock += life
        offsets.append(offset)
        kinds.append(kind)
    joined = {name: np.concatenate(parts) for name, parts in made.items()}
    run = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return Recordings(
        machine=(run // like.runs).astype(np.int32), run=run, offset=np.array(offsets), kind=np.array(kinds), **joined
    )


def _regimes(rng: np.random.Generator, t: NDArray[np.int64], regimes: int) -> NDArray[np.int64]:
    """Return the operating regime of each row, in which a machine stays for 1/(1 − STAY) rows on average."""
    changes = rng.random(len(t)) > STAY
    changes[0] = True
    drawn = rng.integers(regimes, size=len(t))
    return drawn[np.maximum.accumulate(np.where(changes, t, 0))]


def _faults(
    rng: np.random.Generator, rows: int, like: Machines, mix: Floats, sign: Floats
) -> tuple[NDArray[np.int64], Floats]:
    """Return the fault of each row [rows], and its effect on every sensor [rows, 8]."""
    fault = np.zeros(rows, np.int64)
    effect = np.zeros((rows, len(SENSORS)))
    t = 0
    while like.fault > 0:
        t += int(rng.geometric(like.fault))
        if t >= rows:
            break
        kind = int(rng.choice(len(FAULTS), p=mix))
        end = t + int(rng.integers(*EPISODE))
        fault[t:end] = kind + 1
        effect[t:end, STRIKES[kind]] = like.strength * sign[kind]
        t = end
    return fault, effect


def load(machines: int, seed: int, reading: Reading, like: Machines | None = None) -> Dataset:
    """Return a data set whose devices are machines in factories; the last recordings of each machine are for testing.

    Args:
        machines: K ≥ 1.
        seed: the seed of all random draws.
        reading: the settings of task, windows and missing values.
        like: the properties of the plant; None for the defaults.
    """
    like = like or Machines()
    require(machines >= 1, "[park] devices", machines, "a whole number of at least 1")
    halls = like.factories or max(1, machines // 4)
    require(halls <= machines, "data.machines.factories", halls, f"at most the {machines} machines")
    made = recordings(machines, halls, seed, like)
    if like.missing and reading.missing == "refuse":
        raise SettingError(
            f"data.machines.missing = {like.missing:g}, but [data] does not set their treatment. Set "
            '[data] missing = "previous", "mean" or "drop".'
        )
    last = made.run % like.runs >= like.runs - max(1, like.runs // 4)
    rows = Rows(
        fill(made.x, made.run) if reading.missing == "previous" else made.x, made.fault, made.run, made.machine,
        last.astype(np.int8), target=rows_left(reading, made.left, made.row), whole=True,
    )  # fmt: skip
    factory_of = np.arange(machines, dtype=np.int32) % halls
    names = tuple(f"{KINDS[kind]} {k + 1}" for k, kind in enumerate(made.kind.tolist()))
    owned = Owned(names, factory_of, tuple(f"hall {m + 1}" for m in range(halls)))
    recipe = f"{RECIPE} machines={machines} factories={halls} seed={seed} {like} task={reading.number is not None}"
    recipe += " lives" * reading.lasting
    inputs = Inputs("table", _names(made), missing=reading.missing)
    data = assemble(
        "machines", CLASSES, rows, reading, inputs, owned, hashlib.sha256(recipe.encode()).hexdigest(), seed
    )
    if isinstance(data.task, Regression) and not data.task.names:
        return replace(data, task=replace(data.task, names=("rows left",), unit=data.task.unit or "rows"))
    return data


def _names(made: Recordings) -> tuple[str, ...]:
    return (*SENSORS, *SETTINGS)[: made.x.shape[1]]


def columns(made: Recordings, factories: int) -> Mapping[str, Column]:
    """Return the recordings and their causes as the columns of a table.

    >>> made = recordings(machines=2, factories=1, seed=0, like=Machines(runs=2, life=30))
    >>> list(columns(made, 1))[:4]
    ['machine', 'hall', 'run', 'row']
    """
    sensors = dict(zip(_names(made), made.x.T, strict=True))
    return {
        "machine": made.machine, "hall": made.machine % factories, "run": made.run, "row": made.row, **sensors,
        "fault": np.array(CLASSES)[made.fault], "life": made.left, "regime": made.regime, "wear": made.wear,
    }  # fmt: skip
