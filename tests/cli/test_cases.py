"""Inputs of plants and users that failed once, ``../shared/cases``, each with what comes of it now.

A case is a folder; ``case.md`` in it states its source. What a case's own processes need (brokers, servers, parks) is
made by the tests of :data:`ELSEWHERE`, for the same input.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from commands import Command, Said
from fedfloor.sensors.settings import read

pytestmark = pytest.mark.slow

ROOM = Path(__file__).parents[1]
BLOCKS = ("--set", "data.columns.device=", "--set", "park.devices=3", "--set", 'data.partition={kind="blocks"}')
QUICK = ("--set", "data.window.length=1", "--set", "methods.boosting.trees=2")
NO_TIME = ("--set", "data.columns.time=", "--set", 'data.columns.ignore=["Time"]')
IN_ORDER = "training: 2026-03-02 06:00:00 to 2026-03-02 09:59:00"
BACK = "The clock goes back an hour, as at the end of summer time. Name the time zone"
RESET = "more than a year away from its other rows"
SEVERAL = ("--set", "data.window={length=20,step=1}")
SHORT = "work.short_batches=true"
OWN_HEADS = ("--set", "method.name=fedper", "--set", "methods.fedper.own=head", "--set", "work.batch_size=31")

# A case's table and words of `fedfloor new` → what is stated; "-" before what must not be stated.
DRAFTED: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("A02-grafana-thousands/panel.csv", QUICK, (
        "read as milliseconds since 1970", "',' stands between thousands", IN_ORDER, "2 sensors: bytes, temp",
        "'column 6' holds no value in any row and is ignored",
    )),
    ("A04-lvm/m.lvm", ("--set", "data.format=table", "--task", "forecasting", *BLOCKS), (
        "'X_Value' is taken for the time", "fractions are written with commas", "training: 0.029 to 0.479",
        "2 sensors: Acc x, Acc y", "- values recur",
    )),
    ("A07-sentinel/plant.csv", QUICK, (
        "'temp' is -9999 in 30 of", "'press' is -999.9 in 31 of", "'vib' is 9.9e+37 in 17 of",
        "'speed' is 65535 in 29 of",
    )),
    ("A07-sentinel/plant.csv", (
        *QUICK, "--set", 'data.missing_texts=["-9999","-999.9","9.9e+37","65535"]',
    ), ("129 of 7,200 values are missing", "- far from all its other values")),
    ("A08-wadi/WADI_attackdataLABLE.csv", ("--task", "reconstruction", *BLOCKS, *NO_TIME, "--set",
                                           'data.task.normal="1"'), (
        "2 rows without any value, the first of which is row 3003: left out", "300 of 2,400 training samples have an",
        "'Attack LABLE (1:No Attack, -1:Attack)' is taken for the label", "4 sensors", "600 test samples",
    )),
    ("A08-wadi/attack-without-empty-rows.csv", ("--task", "reconstruction", *BLOCKS, *NO_TIME, "--set",
                                                'data.task.normal="1"'), (
        "- rows without any value", "'Attack LABLE (1:No Attack, -1:Attack)' is taken for the label", "4 sensors",
    )),
    ("A08-wadi/WADI_14days.csv", ("--task", "reconstruction", *BLOCKS, "--set", "data.columns.time=", "--set",
                                  'data.columns.ignore=["Time","Date"]'), (
        "'Row' counts the rows and is ignored", "2,400 training and 600 test samples: 4 sensors",
    )),
    ("A12-mdf-units/meta.txt", QUICK, (
        "rows 1, 2, 3, 4, 6 are no data", "3 sensors: EngSpeed, OilTemp, Pressure", "training: 0 to 2.39",
    )),
    ("A12-mdf-units/units.txt", QUICK, ("rows 2 are no data", "3 sensors: EngSpeed, OilTemp, Pressure")),
    ("A12-mdf-units/s-only.csv", QUICK, ("rows 2 are no data", "3 sensors: a, b, c", "training: 0 to 2.39")),
    ("A15-quality/opc.csv", QUICK, (
        "'Temp.Quality' states the quality of 'Temp.Value' (5.2 % are not good)",
        "'Press.Quality' states the quality of 'Press.Value' (4.8 % are not good)",
        "180 of 5,400 values are missing", "3 sensors: Temp.Value, Press.Value, Vib.Value",
    )),
    *((f"A16-epochs/{name}.csv", QUICK, (f"read as {unit}", IN_ORDER)) for name, unit in (
        ("ms", "milliseconds since 1970"), ("us", "microseconds since 1970"), ("ns", "nanoseconds since 1970"),
        ("excel", "days of a spreadsheet"), ("yyyymmddhhmmss", "YYYYMMDDhhmmss"),
    )),
    ("A16-epochs/s.csv", QUICK, (IN_ORDER,)),
    ("A16-epochs/yyyymmdd.csv", QUICK, ("read as YYYYMMDD (", "training: 2026-03-02 00:00:00 to 2026-10-27")),
    ("A17-wincc/wide.csv", QUICK, (
        "fractions are written with commas", "'Maschine' is taken for the device", IN_ORDER,
        "2 sensors: Temperatur, Druck",
    )),
    ("A22-chiller/chiller.csv", ("--task", "forecasting", *BLOCKS), (
        "'segment_id' is taken for the run", "4 sensors: Chiller 9 Return Temperature,", "2020-01-01 18:45:00",
    )),
    ("A30-battery/cells.csv", ("--task", "regression", "--set", "data.columns.device=cell", "--set",
                               "data.columns.label=cycle_life", *QUICK), (
        "split: by device (whole devices, excluded from training), because each device has a single label",
    )),
    ("A31-retrofit/late.csv", ("--set", "data.window.length=1"), (
        "1,320 of 7,200 values are missing (18 %; of 'vib' the most, 73 %)", "4 sensors: temp, press, vib, speed",
    )),
    ("A31-retrofit/lacking.csv", QUICK, ("600 of 7,200 values are missing (8.3 %; of 'vib' the most, 33 %)",)),
    ("A31-retrofit/after-split.csv", QUICK, (
        "'vib' holds no value in any row examined", "left out: 'vib'", "3 sensors",
    )),
    ("A32-parquet/bool.parquet", QUICK, ("0 for 'False', 1 for 'True'", "36 of 3,600 values are missing")),
    ("A32-parquet/bool-full.parquet", QUICK, ("0 for 'False', 1 for 'True'", "2 sensors: temp, valve")),
    ("A32-parquet/bool-label.parquet", QUICK, ("label is 'fault'",)),
    ("A32-parquet/date.parquet", QUICK, ("training: 2026-03-02 00:00:00 to 2026-10-27",)),
    ("A32-parquet/decimal.parquet", QUICK, ("2 sensors: temp, power",)),
    ("A32-parquet/duration.parquet", QUICK, ("training: 0 to 239)",)),
    ("A32-parquet/floatdev.parquet", QUICK, ("'unit' is read as a sensor",)),
    ("A32-parquet/half.parquet", QUICK, ("2 sensors: temp, h",)),
    ("A32-parquet/index.parquet", QUICK, ("'__index_level_0__' counts the rows and is ignored",)),
    ("A32-parquet/int.parquet", QUICK, ("column 'big': values from 1.15", "36 of 5,400 values are missing")),
    ("A32-parquet/list.parquet", QUICK, ("'wave' holds no numbers and is ignored",)),
    ("A32-parquet/naive.parquet", QUICK, (IN_ORDER,)),
    ("A32-parquet/nan.parquet", QUICK, ("72 of 3,600 values are missing (2 %; of 'n' the most, 4 %)",)),
    ("A32-parquet/struct.parquet", QUICK, ("'s' holds no numbers and is ignored",)),
    ("A32-parquet/tz.parquet", QUICK, (IN_ORDER,)),
    ("A37-qos1/dup.csv", (*QUICK, "--set", "data.copies=drop"), ("47 of 1,847 rows are exact copies of earlier ones",)),
    ("A38-nab/machine_temperature.csv", ("--task", "reconstruction", *BLOCKS), (
        "'timestamp' is taken for the time", "1 sensor: value", "2,400 training and 600 test samples",
    )),
    ("A43-gaps/gaps.csv", (*SEVERAL, *QUICK[2:]), ("steps above 300 s: 42, the longest 216060 s",)),
    ("A46-trailing-empty/excel.csv", QUICK, (
        "40 rows without any value, the first of which is row 1802: left out", "1,440 training and 360 test samples",
    )),
    ("A46-trailing-empty/columns.csv", QUICK, (
        "'column 8', 'column 9', 'column 10' hold no value", "4 sensors: temp, press, vib, speed",
    )),
    ("A46-trailing-empty/no-device.csv", (*BLOCKS, *QUICK), (
        "40 rows without any value", "1,440 training and 360 test samples",
    )),
    ("A46-trailing-empty/unlabelled.csv", ("--task", "reconstruction", *BLOCKS), (
        "400 rows without any value, the first of which is row 902: left out", "720 training and 180 test samples",
    )),
    ("P09-dst/offsets.csv", ("--task", "forecasting"), (
        "training: 2026-10-24 20:29:00 to 2026-10-25 03:59:00", "values recur after 60 rows", "- goes back",
    )),
    ("P09-dst/naive.csv", ("--task", "forecasting", "--set", "data.zone=Europe/Berlin"), (
        "training: 2026-10-24 20:29:00 to 2026-10-25 03:59:00", "- goes back",
    )),
    ("P09-dst/odd.csv", ("--task", "forecasting", "--set", "data.sort=true"), (
        "sorting by time mixes rows that follow each other in the table, as if a clock was set back",
    )),
    ("P10-clocks/rates.csv", (*SEVERAL, *QUICK[2:]), ("rates differ: rows of 'A' every 1 s, but of 'B' every 10 s",)),
    ("P10-clocks/gap.csv", (*SEVERAL, *QUICK[2:]), ("2, the longest 86401 s", "which windows do not cross")),
    ("P11-misfit/celsius.csv", QUICK, ("- in °F",)),
    ("P11-misfit/fahrenheit.csv", QUICK, ("'b', sensor 'temp'", "in °F, where the others have °C")),
    ("P05-disjoint/disjoint.csv", QUICK, ("label skew 0.500, strong", "- count as two")),
    ("P05-disjoint/blank.csv", QUICK, ("classes 'Worn' and 'worn' count as two",)),
    ("P05-disjoint/num.csv", QUICK, ("0 26 %, 1 24 %, 2 26 %, 3 24 %",)),
    ("P05-disjoint/trail.csv", QUICK, ("ok 52 %, worn 48 %", "- count as two")),
    ("P11-misfit/onef.csv", QUICK, ("'b', sensor 'temp'", "in °F, where the others have °C")),
]  # fmt: skip
# The same where the draft is refused: what the error states.
REFUSED: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("A03-twincat-scope/scope.csv", (), ("3 channels, each with a column of times of its own",)),
    ("A08-wadi/WADI_14days.csv", ("--task", "reconstruction", *BLOCKS), ("'00:00.0' is no time",)),
    ("A16-epochs/noheader.csv", (), ("it holds values ('1772431200', 'P-100', '54.19', …), no names",)),
    ("A17-wincc/log.csv", (), ("'VarName' names the sensor, and 'VarValue' holds the values of all sensors",)),
    ("A29-rtc-reset/rtc.csv", (), ("row 122", "at 2000-01-01T00:00:00", RESET, "240 such rows", "- sort=true")),
    ("A29-rtc-reset/future.csv", (), ("row 292", "at 2126-02-06T10:50:00", RESET, "6 such rows", "- sort=true")),
    ("A32-parquet/inf.parquet", (), ("row 51, column 'n': 'inf' is not a finite number",)),
    ("A37-qos1/dup.csv", (), ("47 rows are exact copies of earlier ones. Leave them out: --set data.copies=drop",)),
    ("A38-nab/machine_temperature.csv", ("--task", "reconstruction"), ('partition={kind="blocks"}', "- dirichlet")),
    ("P09-dst/naive.csv", ("--task", "forecasting"), ("row 302", BACK, "- remove")),
    ("P09-dst/odd.csv", ("--task", "forecasting"), ("row 114", BACK, "- sort")),
    ("P09-dst/mixed.csv", ("--task", "forecasting"), ("row 602", "without a time zone")),
    ("P09-dst/mixed-silent.csv", ("--task", "forecasting"), ("device 'B'", BACK)),
    ("P09-dst/zcet.csv", ("--task", "forecasting"), ("'2026-10-24 22:00:00 CEST' is no time",)),
]  # fmt: skip
# A table of events and one of measurements, further words of `datasets label` → the rows of each label.
WITHIN = {"Air leak": 602, "Oil leak": 361, "none": 3037}  # 6 h of rows each minute before three events, both ends
DURING = {"Air leak": 602 + 270 + 130, "Oil leak": 361 + 120, "none": 3037 - 520}  # and the rows until their ends
LABELLED: list[tuple[str, str, tuple[str, ...], dict[str, int]]] = [
    *((f"e-{kind}", f"t-{kind}", ("--within", "6h"), WITHIN) for kind in ("iso", "s", "ms", "num14")),
    ("e-us", "t-us", ("--within", "6h", "--time-format", "%m/%d/%Y %H:%M"), WITHIN),
    ("e-cycle", "t-cycle", ("--within", "360"), WITHIN),
    ("e-local", "t-utc", ("--within", "6h", "--zone", "Europe/Berlin"), WITHIN),
    ("failures", "telemetry", ("--within", "6h"), DURING),
]
UNLABELLED = [
    ("e-us", "t-us", ("--within", "6h"), "Choose one: --time-format day-first"),
    ("e-cycle", "t-cycle", ("--within", "6h"), "numbers of an unknown unit, such as cycles"),
    ("e-local", "t-utc", ("--within", "6h"), "times have no time zone, but those of t-utc.csv have one"),
]
OWN = {  # cases with a test of their own below
    "A11-failure-intervals", "B01-bf16", "B06-reseeding-network", "B12-personal-predict", "C04-broker-paths",
    "C08-folder-endless", "C11-message-mb", "P02-batch-of-one", "P05-disjoint", "P08-certs", "P16-above-one",
}  # fmt: skip
ELSEWHERE = {  # cases whose processes other tests make → their functions
    "C01-retained": "sensors/test_sensors_account.py::test_what_a_broker_retained_is_no_new_row",
    "C02-partial-json": "sensors/test_sensors_account.py::test_a_field_that_a_message_lacks_holds_and_a_null_does_not",
    "C03-check-typo":
        "sensors/test_sensors_account.py::test_check_suggests_an_address_for_one_that_never_occurs_and_ends",
    "C06-opcua-nodeid": "sensors/test_sensors_account.py::test_a_node_is_the_same_in_every_spelling",
    "C19-cloud-out":
        "deploy/test_deploy_joining.py::test_a_second_run_in_a_folder_is_refused_before_edges_are_asked",
    "C20-uint64": "sensors/test_sensors_account.py::test_large_whole_numbers_keep_their_variation",
    "P03-one-participant":
        "deploy/test_deploy_lost.py::test_devices_without_training_are_counted_and_named_everywhere",
    "P04-failed-run":
        "deploy/test_deploy_outages_live.py::test_restarts_of_brokers_and_of_edges_use_up_no_round_and_cost_no_bit",
}  # fmt: skip


def taken(cases_root: Path, case: str, command: Command) -> Path:
    """Return a copy of a case's folder or file, in the folder of a command."""
    source = cases_root / case
    to = command.folder / Path(case).name
    if source.is_dir():
        return Path(shutil.copytree(source, to, copy_function=shutil.copyfile, dirs_exist_ok=True))
    return Path(shutil.copyfile(source, to))


def states(text: str, sentences: tuple[str, ...]) -> None:
    """Check that a text has sentences, and lacks those with "- " before them."""
    plain = " ".join(text.split())
    for sentence in sentences:
        assert (sentence.removeprefix("- ") in plain) != sentence.startswith("- "), (sentence, plain)


def test_each_case_has_a_test(cases_root: Path) -> None:
    drafted = {file.split("/")[0] for file, *_ in (*DRAFTED, *REFUSED)}
    there = {path.name for path in cases_root.iterdir() if path.is_dir()}
    assert there <= drafted | OWN | {*ELSEWHERE}
    for place in ELSEWHERE.values():
        file, _, function = place.partition("::")
        assert f"def {function}(" in (ROOM / file).read_text()


@pytest.mark.parametrize(("case", "words", "sentences"), DRAFTED, ids=lambda one: one if isinstance(one, str) else "")
def test_a_table_is_drafted(
    cases_root: Path, command: Command, case: str, words: tuple[str, ...], sentences: tuple[str, ...]
) -> None:
    table = taken(cases_root, case, command)
    said = command("new", table.name, "--out", "e.toml", *words)
    assert said.code == 0, said.err
    states(said.err + said.out, sentences)


@pytest.mark.parametrize(("case", "words", "sentences"), REFUSED, ids=lambda one: one if isinstance(one, str) else "")
def test_a_table_is_refused(
    cases_root: Path, command: Command, case: str, words: tuple[str, ...], sentences: tuple[str, ...]
) -> None:
    table = taken(cases_root, case, command)
    said = command("new", table.name, "--out", "e.toml", *words)
    assert said.code == 2
    states(said.err, ("error: ", "- Traceback", *sentences))


@pytest.mark.parametrize(("case", "wide", "sensors"), [
    ("A03-twincat-scope/scope.csv", "scope-wide.csv", 3), ("A17-wincc/log.csv", "log-wide.csv", 3),
])  # fmt: skip
def test_a_proposed_conversion_runs(cases_root: Path, command: Command, case: str, wide: str, sensors: int) -> None:
    table = taken(cases_root, case, command)
    program = re.findall(r"^    (.*)$", command("new", table.name).err, re.MULTILINE)
    exec("\n".join(program), {})
    with (command.folder / wide).open() as file:
        head, *rows = csv.reader(file)
    assert len(head) == 1 + sensors
    assert len(rows) > 200
    assert all(cell for row in rows[:200] for cell in row)


def test_windows_do_not_cross_pauses(cases_root: Path, command: Command) -> None:
    """Counted by hand: stretches without a step above 300 s, of each machine's first four fifths of rows."""
    table = taken(cases_root, "A43-gaps/gaps.csv", command)
    with table.open() as file:
        rows = [(row["machine"], np.datetime64(row["timestamp"])) for row in csv.DictReader(file)]
    said = command("new", table.name, *SEVERAL, *QUICK[2:], "--out", "e.toml")
    wanted = 0
    for machine in {name for name, _ in rows}:
        times = np.array([time for name, time in rows if name == machine])
        times = times[: len(times) * 4 // 5]
        breaks = np.flatnonzero(np.diff(times) > np.timedelta64(300, "s")) + 1
        wanted += sum(max(0, len(part) - 19) for part in np.split(times, breaks))
    states(said.out, (f"{wanted:,} training and",))


@pytest.mark.parametrize(("events", "rows", "words", "wanted"), LABELLED)
def test_events_label_rows(
    cases_root: Path, command: Command, events: str, rows: str, words: tuple[str, ...], wanted: dict[str, int]
) -> None:
    taken(cases_root, "A11-failure-intervals", command)
    place = "A11-failure-intervals"
    said = command("datasets", "label", f"{place}/{rows}.csv", f"{place}/{events}.csv", *words, "--out", "o.csv")
    assert said.code == 0, said.err
    with (command.folder / "o.csv").open() as file:
        assert Counter(row["label"] for row in csv.DictReader(file)) == wanted


@pytest.mark.parametrize(("events", "rows", "words", "sentence"), UNLABELLED)
def test_events_whose_times_are_uncertain_are_refused(
    cases_root: Path, command: Command, events: str, rows: str, words: tuple[str, ...], sentence: str
) -> None:
    taken(cases_root, "A11-failure-intervals", command)
    place = "A11-failure-intervals"
    said = command("datasets", "label", f"{place}/{rows}.csv", f"{place}/{events}.csv", *words, "--out", "o.csv")
    command.refused(said, sentence)


def test_a_perfect_model_is_reported(cases_root: Path, command: Command) -> None:
    file = str(taken(cases_root, "P16-above-one", command) / "easy.toml")
    assert command("run", file, "--ranks", "1", "--out", "r").code == 0
    assert command("report", "r").code == 0
    assert command("run", file, "--ranks", "1", "--out", "r", "--resume").code == 0
    said = json.loads((command.folder / "r/evaluation.json").read_text())
    shares = [device["accuracy"] for device in said["devices"] if device["accuracy"] is not None]
    assert shares
    assert max(shares) == 1.0


def bent(cases_root: Path, command: Command, case: str, *words: str) -> Said:
    """Run a case's own networks, on the samples that they failed on."""
    place = taken(cases_root, case, command)
    exec((cases_root / "B01-bf16/mk2.py").read_text(), {})
    command.module("nets", (cases_root / "B01-bf16/nets.py").read_text())
    command.patch.delitem(sys.modules, "nets", raising=False)
    (experiment,) = place.glob("*.toml")
    shutil.copyfile(experiment, command.folder / experiment.name)
    return command("run", experiment.name, "--ranks", "1", "--out", "r", *words)


def test_a_network_whose_outputs_are_of_half_precision_predicts_as_it_was_judged(
    cases_root: Path, command: Command
) -> None:
    said = bent(cases_root, command, "B01-bf16", "--set", "model.name=nets:Half")
    assert said.code == 0, said.err
    predicted = command("predict", "r", "eqtest.npz", "--own-code", "--json")
    last = json.loads((command.folder / "r/ledger.jsonl").read_text().splitlines()[-1])
    rows = predicted.document["rows"]
    assert np.mean([row["predicted"] == row["label"] for row in rows]) == pytest.approx(last["accuracy"])
    command.refused(command("export", "r", "--own-code"), "needs enabled=self.training there")


def test_a_network_with_weights_of_half_precision_is_refused(cases_root: Path, command: Command) -> None:
    said = bent(cases_root, command, "B01-bf16", "--set", "model.name=nets:HalfModel")
    assert said.code == 2
    states(said.err, ("a.weight is torch.bfloat16. Leave them in float32", "- Traceback"))


def test_a_network_that_seeds_is_named(cases_root: Path, command: Command) -> None:
    said = bent(cases_root, command, "B06-reseeding-network", "--set", "model.name=nets:Seeded")
    states(said.err, ("nets:Seeded", "seed"))


def test_each_row_is_answered_by_the_model_of_its_device(cases_root: Path, command: Command) -> None:
    place = taken(cases_root, "B12-personal-predict", command)
    rng = np.random.default_rng(1)
    lines = ["machine,a,b,c,d,label"]
    for number in range(5 * 44):
        y = int(rng.integers(3))
        a, b, c, d = rng.normal([y, -y, 0, 0], 1)
        lines.append(f"M{number // 44},{a:.3f},{b:.3f},{c:.3f},{d:.3f},{['ok', 'worn', 'hot'][y]}")
    (command.folder / "one.csv").write_text("\n".join(lines) + "\n")
    exec((place / "newdev.py").read_text(), {})
    said = bent(cases_root, command, "B12-personal-predict", *OWN_HEADS)
    assert said.code == 0, said.err
    (command.folder / "m0.csv").write_text("".join(command.folder.joinpath("newdev.csv").open().readlines()[:31]))
    predicted = command("predict", "r", "newdev.csv", "--own-code", "--json")
    own = command("predict", "r", "m0.csv", "--own-code", "--device", "M0", "--json")
    chances = [row["probability"] for row in predicted.document["rows"]]
    assert chances[:30] == pytest.approx([row["probability"] for row in own.document["rows"]], abs=1e-6)
    states(predicted.err, ("M9",))


def test_certificates_lie_beside_the_file_that_names_them(cases_root: Path, command: Command) -> None:
    place = taken(cases_root, "C04-broker-paths", command)
    assert read(place / "tls.toml").source.broker.ca == place / "ca.crt"  # type: ignore[attr-defined]


def test_a_footer_is_left_out_once(cases_root: Path, command: Command) -> None:
    place = taken(cases_root, "C08-folder-endless", command)
    said = command("park", "sense", str(place / "fold5.toml"), "--into", "r.sqlite", "--seconds", "2")
    assert said.code == 0, said.err
    states(said.err + said.out, ("['# logger stopped']", "50 rows of 2 sensors", "100 numbers", "1 left out (row"))


def test_a_model_above_a_brokers_limit_is_refused(cases_root: Path, command: Command) -> None:
    place = taken(cases_root, "C11-message-mb", command)
    said = command("park", "provision", str(place / "lo.toml"), "--out", "lo")
    states(said.err, ("needs message_mb = 27, and the park's brokers have memory for message_mb = 1",))
    assert not (command.folder / "lo").exists()


def test_brokers_listen_on_the_kind_of_their_address(cases_root: Path, command: Command) -> None:
    place = taken(cases_root, "P08-certs", command)
    for file in ("plant", "plant6"):
        assert command("park", "provision", str(place / f"{file}.toml"), "--out", file).code == 0
        listener = f"listener 18886{' ::' if file == 'plant6' else ''}\n"  # without an address: of both kinds
        assert listener in (command.folder / file / "factories/six/mosquitto.conf").read_text()
    said = command("park", "provision", str(place / "plant7.toml"), "--out", "plant7")
    command.refused(said, "address = '[::1]': must be a host name or an IP address, without a port.")


@pytest.mark.parametrize(("words", "sentence"), [
    (("model.name=mynet:bn_mlp", "work.short_batches=true"), "leave out the 1 device with one sample"),
    ((), "Batch norm cannot be trained on one sample: use fewer devices"),
])  # fmt: skip
def test_batch_norm_of_a_device_with_one_sample(
    cases_root: Path, command: Command, words: tuple[str, ...], sentence: str
) -> None:
    place = taken(cases_root, "P02-batch-of-one", command)
    command.patch.chdir(place)
    changes = [part for word in ("data.path=one.npz", *words) for part in ("--set", word)]
    said = command("run", "exp-ranks.toml", *changes, "--ranks", "1")
    assert said.code != 0
    states(said.err, (sentence, "- Traceback"))


def test_both_engines_train_33_samples_alike(cases_root: Path, command: Command) -> None:
    command.patch.chdir(taken(cases_root, "P02-batch-of-one", command))
    runs = [
        command("run", f"exp-{kind}.toml", "--rounds", "2", "--ranks", "1", "--out", kind, "--set", SHORT)
        for kind in ("ranks", "cohort")
    ]
    assert [run.code for run in runs] == [0, 0], runs
    models = {Path(kind, "model.safetensors").read_bytes() for kind in ("ranks", "cohort")}
    assert len(models) == 1


@pytest.mark.parametrize(("case", "same"), [
    ("disjoint", ()), ("blank", ("'Worn ' and 'worn'",)), ("case", ("'OK' and 'ok'", "'Worn' and 'worn'")),
])  # fmt: skip
def test_folders_whose_labels_no_two_devices_share(
    cases_root: Path, command: Command, case: str, same: tuple[str, ...]
) -> None:
    command.patch.chdir(taken(cases_root, "P05-disjoint", command))
    if case != "blank":  # whose devices share one
        said = command("new", case, "--out", "e.toml")
        command.refused(said, "none of them occurs in two devices. If this is correct: --set data.layout=")
    said = command("new", case, "--out", "e.toml", "--set", "data.layout=device/label/file")
    assert said.code == 0, said.err
    states(said.err, tuple(f"classes {names} count as two" for names in same))


@pytest.mark.parametrize(("case", "sentence"), [
    ("renamed", "b/b.csv, row 1 (the header): other sensors than in a/a.csv: 'temp' missing, 'temperature' added"),
    ("permuted", "b/b.csv, row 1 (the header)"), ("upper", "b/b.csv, row 1 (the header)"),
])  # fmt: skip
def test_sensors_of_another_name_or_order_are_refused(
    cases_root: Path, command: Command, case: str, sentence: str
) -> None:
    command.patch.chdir(taken(cases_root, "P11-misfit", command))
    command.refused(command("new", case, "--out", "e.toml"), sentence)
