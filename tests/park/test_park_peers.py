"""Sensors that differ from those of all other devices: every made fault is named, and machines of their own are not."""

from __future__ import annotations

import gzip
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedfloor.config import from_table
from fedfloor.park.peers import among, beside, differing, sentences
from fedfloor.park.statistics import RemoteStatistics, device_sums
from fedfloor.park.summaries import Summaries, summarised
from fedfloor.park.survey import RegimeNormaliser, RobustNormaliser, RowQuestion, RowSurvey, rows_of, sums_of_each
from fedfloor.runs.parks import build_park, warn_of_gaps

SENSORS = ("temperature", "pressure", "current", "flow")
LEVEL = np.array([70.0, 4.0, 12.0, 300.0])
DEVIATION = np.array([2.0, 0.1, 0.8, 9.0])
Plant = dict[str, NDArray[np.float32]]


def plant(devices: int = 8, apart: float = 0.5, rows: int = 300, seed: int = 0) -> Plant:
    """Return rows [rows, 4] of devices whose levels differ by ``apart`` deviations; pressure and flow are related."""
    rng = np.random.default_rng(seed)
    machines = {}
    for k in range(devices):
        z = rng.normal(size=(rows, 4))
        z[:, 3] = 0.9 * z[:, 1] + 0.44 * z[:, 3]
        level = LEVEL + apart * DEVIATION * rng.normal(size=4)
        machines[f"m{k}"] = (level + DEVIATION * z).astype(np.float32)
    return machines


def summaries(machines: Plant, factory: list[int] | None = None) -> Summaries:
    return Summaries.of_rows(SENSORS, [*machines], factory or [0] * len(machines), machines.values())


def broken(x: NDArray[np.float32], fault: str, sensor: int = 0) -> NDArray[np.float32]:
    y = x.copy()
    column = x[:, sensor]
    changed = {
        "°F": 1.8 * column + 32, "K": column + 273.15, "×10": 10 * column, "/10": column / 10, "×1000": 1000 * column,
        "sign": -column, "constant": np.full_like(column, column[0]), "missing": np.full_like(column, np.nan),
        "offset": column + 60,
    }  # fmt: skip
    if fault == "swapped":
        y[:, [0, 2]] = x[:, [2, 0]]
    else:
        y[:, sensor] = changed[fault]
    return y


FAULTS = {
    "°F": "unit", "K": "unit", "×10": "unit", "/10": "unit", "×1000": "unit", "sign": "sign", "constant": "constant",
    "missing": "missing", "offset": "level", "swapped": "swapped",
}  # fmt: skip


@pytest.mark.parametrize(("fault", "kind"), FAULTS.items())
@pytest.mark.parametrize("devices", [4, 8, 30])
def test_a_fault_of_one_device_is_named_with_its_kind(fault: str, kind: str, devices: int) -> None:
    machines = plant(devices)
    assert among(summaries(machines)) == []
    machines["m2"] = broken(machines["m2"], fault)
    found = among(summaries(machines))
    if fault == "offset" and devices < 6:  # three others do not show which levels are possible
        assert found == []
        return
    wanted = ("temperature", "current") if kind == "swapped" else ("temperature",)
    assert [(f.devices, f.sensors, f.kind) for f in found] == [(("m2",), wanted, kind)]


@pytest.mark.parametrize("fault", ["×1000", "°F", "K", "×10"])
@pytest.mark.parametrize("many", [3, 4])
def test_up_to_half_of_the_devices_may_be_in_another_unit(fault: str, many: int) -> None:
    machines = plant(8)
    wrong = [f"m{k}" for k in (1, 4, 6, 7)[:many]]
    for name in wrong:
        machines[name] = broken(machines[name], fault)
    found = among(summaries(machines))
    assert [(f.devices, f.sensors, f.kind) for f in found] == [((name,), ("temperature",), "unit") for name in wrong]


def test_two_sizes_of_machines_and_mirrored_ones_are_no_units() -> None:
    rng = np.random.default_rng(3)
    machines = plant(8)
    for k in range(4):
        machines[f"m{k}"][:, 3] *= rng.uniform(7, 14)  # flow
        machines[f"m{k}"][:, 2] *= -1
    assert among(summaries(machines)) == []


def test_the_unit_is_named() -> None:
    units = {"°F": "in °F", "K": "in K", "×10": "10 times", "/10": "1/10", "×1000": "1,000 times"}
    for fault, words in units.items():
        machines = plant()
        machines["m0"] = broken(machines["m0"], fault)
        assert words in among(summaries(machines))[0].evidence


@pytest.mark.parametrize("fault", ["°F", "×10", "constant", "missing"])
def test_a_fault_of_a_whole_factory_is_named(fault: str) -> None:
    machines = plant(8)
    for name in ("m5", "m6", "m7"):
        machines[name] = broken(machines[name], fault)
    found = among(summaries(machines, [0] * 5 + [1] * 3))
    assert {name for f in found for name in f.devices} == {"m5", "m6", "m7"}
    assert {f.kind for f in found} == {FAULTS[fault]}


@pytest.mark.parametrize("fault", ["sign", "swapped"])
def test_signs_and_columns_show_in_relations_where_levels_do_not(fault: str) -> None:
    rng = np.random.default_rng(1)
    mix = np.array([[1, 0.0], [1, 0.1], [0.0, 1], [-0.1, 1]])  # the first two and the last two sensors are related
    machines = {}
    for k in range(8):
        z = rng.normal(size=(300, 2)) @ mix.T + 0.3 * rng.normal(size=(300, 4))
        machines[f"m{k}"] = (5 * rng.normal(size=4) + z).astype(np.float32)  # levels are each machine's own
    assert among(summaries(machines)) == []
    x = machines["m3"]
    if fault == "sign":
        x[:, 0] *= -1
    else:
        x[:, [0, 2]] = x[:, [2, 0]]
    (found,) = among(summaries(machines))
    assert (found.devices, found.kind) == (("m3",), fault)
    assert {SENSORS[0]} <= {*found.sensors}


@pytest.mark.parametrize("levels", ["normal", "uniform", "lognormal", "two types"])
@pytest.mark.parametrize("devices", [3, 5, 9, 25])
def test_machines_with_levels_of_their_own_are_hardly_ever_named(levels: str, devices: int) -> None:
    rng = np.random.default_rng(2)
    named = 0
    plants = 40
    for seed in range(plants):
        machines = plant(devices, apart=0, rows=60, seed=seed)
        for k, x in enumerate(machines.values()):
            draws = {
                "normal": 0.3 * rng.normal(size=4),
                "uniform": rng.uniform(-0.4, 0.4, 4),
                "lognormal": np.exp(0.4 * rng.normal(size=4)) - 1,
                "two types": np.full(4, 0.4 * (k % 2)),
            }
            x += (LEVEL * draws[levels]).astype(np.float32)
        named += len(among(summaries(machines))) > 0
    assert named <= 2  # of 40 plants with four sensors


def test_another_kind_of_machine_is_a_single_note() -> None:
    machines = plant(8)
    machines["m4"] = (machines["m4"] * 3 + 50).astype(np.float32)
    (found,) = among(summaries(machines))
    assert (found.devices, found.sensors, found.kind) == (("m4",), (), "machine")


def test_sums_suffice_but_for_relations() -> None:
    """What real machines send, (n, S, D), gives the findings of the rows."""
    for fault in FAULTS:
        machines = plant(9)
        machines["m2"] = broken(machines["m2"], fault)
        sums = np.array([device_sums(x) for x in machines.values()])
        of_sums = Summaries.of_sums(SENSORS, [*machines], [0] * 9, [300] * 9, sums)
        assert among(of_sums) == among(summaries(machines))


def test_flags_and_few_levels_may_be_constant() -> None:
    machines = {name: np.c_[x[:, :3], x[:, 3] > 300].astype(np.float32) for name, x in plant().items()}
    machines["m1"][:, 3] = 0
    assert among(summaries(machines)) == []
    sums = np.array([device_sums(x) for x in machines.values()])  # as real machines send them
    assert among(Summaries.of_sums(SENSORS, [*machines], [0] * 8, [300] * 8, sums)) == []


def test_two_devices_do_not_show_which_is_wrong() -> None:
    machines = plant(2)
    machines["m1"] = broken(machines["m1"], "°F")
    assert among(summaries(machines)) == []


def test_the_order_of_devices_changes_no_finding() -> None:
    machines = plant(10)
    machines["m2"] = broken(machines["m2"], "°F")
    machines["m7"] = broken(machines["m7"], "constant", 3)
    turned = dict(reversed(machines.items()))
    assert {*among(summaries(machines))} == {*among(summaries(turned))}
    assert len(sentences(among(summaries(machines)))) == 2


@pytest.mark.parametrize(("fault", "kind"), [("constant", "constant"), ("missing", "missing"), ("swapped", "swapped")])
def test_a_new_device_is_compared_with_those_of_training(fault: str, kind: str) -> None:
    machines = plant(6)
    last = machines.pop("m5")
    stored = Summaries.from_dict(json.loads(json.dumps(summaries(machines).to_dict())))
    assert beside(summaries({"new": last}), stored) == []
    assert [f.kind for f in beside(summaries({"new": broken(last, fault)}), stored)] == [kind]


@pytest.mark.parametrize("change", [{"mean": [[1.0]]}, {"related": [[0, 9, 1]]}, {"devices": []}, {"rows": None}])
def test_damaged_summaries_are_refused(change: dict[str, object]) -> None:
    document = summaries(plant(5)).to_dict() | change
    with pytest.raises((ValueError, TypeError, KeyError)):
        Summaries.from_dict(document)


# -- real data without a fault -----------------------------------------------------------------------------------------


def columns(path: Path) -> NDArray[np.float32]:
    with gzip.open(path, "rt") as file:
        return np.loadtxt(file, dtype=np.float32)


DATA = Path(os.environ.get("FEDFLOOR_DATA", "/nowhere"))


@pytest.mark.skipif(not (DATA / "cmapss").is_dir(), reason="needs C-MAPSS")
@pytest.mark.parametrize("part", ["FD001", "FD003"])
def test_no_engine_of_cmapss_is_named(part: str) -> None:
    rows = columns(DATA / "cmapss" / f"train_{part}.txt.gz")
    engines = {f"{unit:g}": rows[rows[:, 0] == unit, 2:] for unit in np.unique(rows[:, 0])}
    every = Summaries.of_rows([f"c{i}" for i in range(24)], [*engines], [0] * len(engines), engines.values())
    assert among(every) == []


@pytest.mark.skipif(not (DATA / "skab").is_dir(), reason="needs SKAB")
@pytest.mark.parametrize("fault", [None, "°F", "sign", "/10", "constant", "missing"])
def test_recordings_of_skab_are_named_only_with_a_fault(fault: str | None) -> None:
    machines = {}
    for path in sorted((DATA / "skab" / "valve1").glob("*.csv*")):
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            head, *lines = [line.strip().split(";") for line in file]
        machines[path.name] = np.array([line[1:9] for line in lines], np.float32)
    place = head[1:9].index("Temperature")
    for name in [*machines][-4:] if fault else [*machines][:1]:
        changed = machines | ({name: broken(machines[name], fault, place)} if fault else {})
        found = among(Summaries.of_rows(head[1:9], [*changed], [0] * len(changed), changed.values()))
        wanted = [((name,), ("Temperature",), FAULTS[fault])] if fault else []
        assert [(f.devices, f.sensors, f.kind) for f in found] == wanted


# -- where users see them ----------------------------------------------------------------------------------------------


def experiment(path: Path, machines: Plant, **data: object) -> dict[str, object]:
    """Write a table of machines, and return an experiment with it."""
    lines = ["machine,t,state," + ",".join(SENSORS)]
    for name, x in machines.items():
        for t, row in enumerate(x.tolist()):
            cells = ["" if np.isnan(value) else repr(value) for value in row]
            lines.append(",".join([name, str(t), "ok" if t % 2 else "bad", *cells]))
    path.write_text("\n".join(lines) + "\n")
    table = {"path": str(path), "columns": {"device": "machine", "time": "t", "label": "state"}} | data
    return {"name": "own", "rounds": 1, "data": table, "model": {"name": "logistic"}, "method": {"name": "fedavg"}}


@pytest.mark.parametrize("fault", ["°F", "sign", "constant", "missing", "swapped"])
@pytest.mark.parametrize("normalise", ["standard", "device"])
def test_before_round_1_of_a_run(fault: str, normalise: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machines = plant(8)
    machines["m2"] = broken(machines["m2"], fault)
    filled = {"missing": "mean"} if fault == "missing" else {}
    park = build_park(from_table(experiment(tmp_path / "a.csv", machines, normalise=normalise, **filled)))
    with caplog.at_level(logging.WARNING):
        warn_of_gaps(park)
    named = [text for text in caplog.messages if "'m2', sensor" in text]
    assert len(named) == 1
    assert ("normalise=device" in named[0]) == (fault == "°F" and normalise != "device")  # not what is set already
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == len(named)


def test_samples_dealt_to_made_up_devices_are_not_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = experiment(tmp_path / "a.csv", plant(8), partition={"kind": "shards", "per_device": 1})
    with caplog.at_level(logging.WARNING):
        warn_of_gaps(build_park(from_table(table | {"park": {"devices": 8}})))
    assert [text for text in caplog.messages if "sensor" in text] == []


def test_the_cloud_compares_the_sums_that_devices_send(tmp_path: Path) -> None:
    machines = plant(8)
    machines["m2"] = broken(machines["m2"], "°F")
    park = build_park(from_table(experiment(tmp_path / "a.csv", machines)))
    sums = np.array([device_sums(park.samples(k)[0]) for k in range(park.devices)])
    at_cloud = replace(park, remote=RemoteStatistics(None, None, sums))
    found = among(summarised(at_cloud))  # type: ignore[arg-type]
    assert [(f.devices, f.sensors, f.kind) for f in found] == [(("m2",), ("temperature",), "unit")]
    assert summarised(replace(park, remote=RemoteStatistics())) is None  # no sums are asked for


def test_the_cloud_keeps_the_sums_of_holdings(tmp_path: Path) -> None:
    from fedfloor.deploy import facts

    machines = plant(8)
    machines["m2"] = broken(machines["m2"], "×10")
    wanted = from_table(experiment(tmp_path / "a.csv", machines))
    park = build_park(wanted)
    asked = facts.of(wanted, park.dataset)
    held = [facts.holding(park, k, asked) for k in range(8)]
    (sentence,) = differing(facts.park(wanted, asked, [0] * 8, held))
    assert sentence.startswith("'device 2', sensor 'temperature' has a mean of ")
    own = from_table(experiment(tmp_path / "a.csv", machines, normalise="device"))
    asked = facts.of(own, park.dataset)  # asks for no sums
    assert differing(facts.park(own, asked, [0] * 8, [facts.holding(park, k, asked) for k in range(8)])) == []


def asked_of(held: Sequence[np.ndarray]) -> tuple[list[tuple[RowQuestion, np.ndarray]], RowSurvey]:
    """Return the list of questions with each device's answers, and the survey of devices' rows that fills it."""
    answers: list[tuple[RowQuestion, np.ndarray]] = []

    def ask(question: RowQuestion) -> np.ndarray:
        answers.append((question, np.array([question.answer(rows) for rows in held])))
        return answers[-1][1].sum(axis=0)

    return answers, RowSurvey(ask)


def test_a_survey_for_regimes_gives_the_sums_of_each_device_normalised(tmp_path: Path) -> None:
    """Machines run at three loads for different shares of their time, which their means as stored would show as odd."""
    machines = plant(8)
    machines["m2"] = broken(machines["m2"], "°F")
    for k, rows in enumerate(machines.values()):
        rows[:, -1] = np.random.default_rng(k).choice(3, len(rows), p=np.roll([0.8, 0.1, 0.1], k))
        rows[:, :-1] += 100 * rows[:, -1:]
    park = build_park(from_table(experiment(tmp_path / "a.csv", machines)))
    held = [rows_of(park, k) for k in range(park.devices)]
    answers, survey = asked_of(held)
    columns = park.dataset.inputs.columns
    regimes = RegimeNormaliser((columns[-1],), 3).learn(survey, columns, 0)
    sums = sums_of_each(answers, regimes)
    assert sums == pytest.approx(np.array([device_sums(regimes.apply(rows)) for rows in held]), rel=1e-3, abs=0.05)
    found = among(summarised(replace(park, remote=RemoteStatistics(None, None, sums))))  # type: ignore[arg-type]
    assert [(f.devices, f.sensors) for f in found] == [(("m2",), ("temperature",))]


def test_a_survey_for_medians_gives_the_sums_of_each_device(tmp_path: Path) -> None:
    """Σ (v − m)² around the mean of all devices, less n·(m_k − m)², is that around a device's own mean."""
    machines = plant(8)
    machines["m2"] = broken(machines["m2"], "°F")
    park = build_park(from_table(experiment(tmp_path / "a.csv", machines)))
    held = [rows_of(park, k) for k in range(park.devices)]
    answers, survey = asked_of(held)
    RobustNormaliser().learn(survey, park.dataset.inputs.columns, 0)
    sums = sums_of_each(answers)
    assert sums == pytest.approx(np.array([device_sums(rows) for rows in held]), rel=1e-6)
    found = among(summarised(replace(park, remote=RemoteStatistics(None, None, sums))))  # type: ignore[arg-type]
    assert [(f.devices, f.sensors, f.kind) for f in found] == [(("m2",), ("temperature",), "unit")]
    assert sums_of_each(answers[2:]) is None
