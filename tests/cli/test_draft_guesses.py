"""`fedfloor new` names what it took columns, folders and the split for, and refuses what can be read in two ways."""

from __future__ import annotations

import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refusals
from commands import Command
from fedfloor import config
from fedfloor.data.files import own
from fedfloor.data.files.encode import labelled
from fedfloor.data.reading import Columns, Reading
from fedfloor.runs.launch import build_park
from own_data import table as recording

DEALT = ("data.columns.device=", "park.devices=4", 'data.partition={kind="dirichlet",alpha=1.0}')
DEAL = tuple(word for setting in DEALT for word in ("--set", setting))


def engines(path: Path, devices: int = 10, life: int = 60) -> Path:
    """Write engines that run to failure: a sensor falls with the remaining life, which is the label."""
    rng = random.Random(0)
    lines = ["engine,cycle,heat,noise,rul"]
    for k in range(devices):
        for left in range(life + k, -1, -1):
            lines.append(f"{k},{life + k - left},{left + rng.gauss(0, 2):.2f},{rng.gauss(0, 1):.2f},{left}")
    path.write_text("\n".join(lines) + "\n")
    return path


def machines(path: Path, rows: int = 600) -> Path:
    """Write a table of machine failures with a row number, a constant, a copy and a consequence of the label."""
    rng = random.Random(1)
    lines = ["number,machine,air,kelvin,empty,spare,worn,cause,torque,status"]
    for n in range(rows):
        air = rng.gauss(20, 2)
        fails = rng.random() < 0.2
        cause = "heat" if fails and n % 2 else "none"
        cells = [n, f"m{n % 6}", f"{air:.2f}", f"{air + 273.15:.2f}", "", 7, int(fails), int(cause == "heat")]
        lines.append(",".join(map(str, [*cells, f"{rng.gauss(40, 9):.1f}", "failure" if fails else "ok"])))
    path.write_text("\n".join(lines) + "\n")
    return path


def written(command: Command, name: str) -> tuple[dict[str, Any], str]:
    text = (command.folder / name).read_text()
    return tomllib.loads(text), "\n".join(line for line in text.splitlines() if line.startswith("#"))


def test_labels_that_return_are_of_no_machines_that_run_to_failure(command: Command) -> None:
    """Three machines stop at the end, which training lacks; before that they were on and off by turns."""
    lines = ["machine,time,a,state"]
    for k in range(6):
        states = ["stopped" if t > 92 and k > 2 else ("on", "off")[t // 5 % 2] for t in range(100)]
        lines += [f"m{k},{60 * t},{t * k % 7},{state}" for t, state in enumerate(states)]
    (command.folder / "plant.csv").write_text("\n".join(lines) + "\n")
    said = command("new", "plant.csv")
    assert "because by time no training sample is 'stopped', but 21 test samples are." in said.err.replace("\n", " ")
    assert "run to failure" not in said.err


def test_machines_that_run_to_failure_are_split_by_device(command: Command) -> None:
    engines(command.folder / "wear.csv")
    number = command("new", "wear.csv", "--out", "number.toml")
    assert "the label is a number and is predicted as a number" in number.err
    assert written(command, "number.toml")[0]["data"]["task"] == {"kind": "regression"}
    said = command("new", "wear.csv", "--set", "data.bins=[15,40]")
    assert said.code == 0, said.err
    assert "split: by device (whole devices, excluded from training), because by time" in said.err
    assert "training samples are '<15' for" in said.err
    assert "this is usual where machines run to failure" in said.err
    document, comments = written(command, "wear.toml")
    assert document["data"]["split"] == {"kind": "device"}
    assert document["data"]["columns"] == {"device": "engine", "time": "cycle", "label": "rul"}
    assert "split alternatives" in comments
    assert "time is 'cycle' (training: 0 to 69), label is 'rul'" in comments
    park = build_park(config.read(command.folder / "wear.toml"))
    assert park.dataset.classes == ("<15", "15-40", ">=40")
    assert (park.counts().sum(axis=0) > 0).all()
    ran = command("run", "wear.toml", "--ranks", "1", "--out", "out", "--set", "rounds=2")
    assert ran.code == 0, ran.err
    answer = command("predict", "out", "wear.csv", "--json")
    assert answer.code == 0, answer.err
    assert {one["label"] for one in answer.document["rows"]} == {"<15", "15-40", ">=40"}


def test_what_is_given_is_kept(command: Command) -> None:
    engines(command.folder / "wear.csv")
    said = command("new", "wear.csv", "--set", "data.bins=[15,40]", "--set", 'data.split={kind="time"}')
    assert "split: by time, as given" in said.err
    assert "cannot be predicted" in said.err or "very few training samples" in said.err
    assert written(command, "wear.toml")[0]["data"]["split"] == {"kind": "time"}


def test_columns_that_are_no_sensors_are_named(command: Command) -> None:
    machines(command.folder / "m.csv")
    said = command("new", "m.csv")
    assert said.code == 0, said.err
    for text in (
        "'empty' holds no value in any row and is ignored",
        "'number' counts up from row to row",
        "'kelvin' is a multiple of (and perhaps a constant more than) 'air'",
        "'spare' is 7 in every row examined",
        "'worn' reveals the class: each of its 2 values occurs with one class only",
        "'cause' is 1 for 'failure' only",
        "no column holds the times of rows",
    ):
        assert text in said.err, text
    assert "'torque'" not in said.err
    left = ["empty", "number", "kelvin", "spare", "worn", "cause"]
    assert written(command, "m.toml")[0]["data"]["columns"]["ignore"] == left
    assert "to keep them: --set 'data.columns.ignore=[\"empty\"]'" in said.err
    again = command("new", "m.csv", "--force", "--set", 'data.columns.ignore=["empty"]', "--json")
    assert again.code == 0, again.err
    assert written(command, "m.toml")[0]["data"]["columns"]["ignore"] == ["empty"]
    proposed = next(note for note in again.document["notes"] if "proposed" in note)
    assert f"leave them out, --set 'data.columns.ignore={json.dumps(left)}'" in proposed


def test_what_gives_the_label_away_is_left_out(command: Command) -> None:
    """As in AI4I 2020: one flag per kind of failure beside the failure, and the failure beside its kinds."""
    draw = random.Random(1)
    lines = ["row,heat,failure,worn,hot,lamp"]
    for n in range(2000):
        worn = draw.random() < 0.03
        hot = draw.random() < 0.03
        failure = (worn or hot) != (draw.random() < 0.001)
        lines.append(f"{n + 1},{draw.gauss(50 + 9 * hot, 3):.2f},{failure:d},{worn:d},{hot:d},{draw.random() < 0.1:d}")
    (command.folder / "f.csv").write_text("\n".join(lines) + "\n")
    dealt = ("data.columns.device=", "park.devices=4", 'data.partition={kind="dirichlet",alpha=1.0}')
    words = [word for one in dealt for word in ("--set", one)]
    for label, left in (("failure", ["row", "worn", "hot"]), ("worn + hot", ["row", "failure"])):
        said = command("new", "f.csv", "--force", *words, "--set", f"data.columns.label={label}")
        assert said.code == 0, said.err
        document = written(command, "f.toml")[0]
        assert document["data"]["columns"]["ignore"] == left, said.err
        assert document["work"]["short_batches"] is True


@pytest.mark.parametrize(("kept", "split"), [(0.98, "time"), (0.0, "random")])
def test_rows_that_resemble_their_neighbours_are_split_in_their_order(
    command: Command, kept: float, split: str
) -> None:
    draw = random.Random(3)
    lines = ["heat,flow,label"]
    heat = 0.0
    flow = 0.0
    for n in range(800):
        heat, flow = (kept * one + draw.gauss(0, 1) for one in (heat, flow))
        lines.append(f"{heat:.3f},{flow:.3f},{'ok' if n // 20 % 2 else 'worn'}")
    (command.folder / "t.csv").write_text("\n".join(lines) + "\n")
    dealt = ("data.columns.device=", "park.devices=4", 'data.partition={kind="dirichlet",alpha=1.0}')
    said = command("new", "t.csv", *(word for one in dealt for word in ("--set", one)))
    assert written(command, "t.toml")[0]["data"]["split"] == {"kind": split}, said.err
    assert ("rows resemble their neighbours" in said.err) == (split == "time")


def test_heavy_tails_get_a_network_of_their_own(command: Command) -> None:
    draw = random.Random(1)
    rows = [f"{draw.lognormvariate(n % 2, 2):.4f},{draw.lognormvariate(3, 2):.4f},{n % 2}" for n in range(400)]
    (command.folder / "t.csv").write_text("\n".join(["count,energy,label", *rows]) + "\n")
    dealt = ("data.columns.device=", "park.devices=4", 'data.partition={kind="dirichlet",alpha=1.0}')
    said = command("new", "t.csv", *(word for one in dealt for word in ("--set", one)))
    assert "heavy tails (values far beyond most others) of 'count', 'energy'" in said.err
    assert written(command, "t.toml")[0]["model"]["name"] == "mlp-sensor-asinh"
    assert command("run", "t.toml", "--ranks", "1", "--out", "out", "--set", "rounds=2").code == 0
    assert command("export", "out", "--out", "t.onnx").code == 0
    assert command("predict", "out", "t.csv").code == 0


def test_missing_values_are_no_heavy_tails(command: Command) -> None:
    """A line of stations: each part sees one of twelve, and the other cells are empty."""
    draw = np.random.default_rng(1)
    cells = np.full((1200, 12), "", object)
    cells[np.arange(1200), draw.integers(12, size=1200)] = [f"{value:.4f}" for value in draw.normal(size=1200)]
    rows = [",".join([*row, str(n % 2)]) for n, row in enumerate(cells)]
    (command.folder / "t.csv").write_text("\n".join([",".join([*(f"s{i}" for i in range(12)), "label"]), *rows]) + "\n")
    said = command("new", "t.csv", *DEAL)
    assert said.code == 0, said.err
    assert "heavy tails" not in said.err
    assert written(command, "t.toml")[0]["model"]["name"] == "mlp-sensor-soft"


@pytest.mark.parametrize(("share", "missing"), [(0.9, "mean"), (0.1, "previous")])
def test_values_that_most_parts_lack_are_not_carried_on(command: Command, share: float, missing: str) -> None:
    """As in SECOM: a row is a wafer, measured at a time, and one sensor is read of every tenth."""
    draw = random.Random(1)
    rows = [
        f"{n},{n % 2 + draw.random()},{'' if n > 0 and draw.random() < share else draw.random()},{n % 2}"
        for n in range(200)
    ]
    (command.folder / "t.csv").write_text("\n".join(["time,a,b,label", *rows]) + "\n")
    drafted = command("new", "t.csv", *DEAL)
    assert drafted.code == 0, drafted.err
    assert written(command, "t.toml")[0]["data"]["missing"] == missing


def test_a_flag_beside_consequences_of_the_label_is_left_out(command: Command) -> None:
    """As in AI4I, whose fifth kind of failure hardly ever counts as one."""
    draw = random.Random(1)
    lines = ["torque,kind,failed,TWF,HDF,PWF,RNF"]
    for n in range(900):
        fault = draw.randrange(3) if draw.random() < 0.2 else None
        flags = [int(fault == kind) for kind in range(3)]
        cells = [f"{draw.gauss(40, 9):.1f}", "LMH"[n % 3], int(fault is not None), *flags, int(draw.random() < 0.01)]
        lines.append(",".join(map(str, cells)))
    (command.folder / "t.csv").write_text("\n".join(lines) + "\n")
    drafted = command("new", "t.csv", *DEAL, "--set", "data.columns.label=failed")
    assert drafted.code == 0, drafted.err
    assert "'RNF' is a flag beside flags that follow from the label" in drafted.err
    columns = written(command, "t.toml")[0]["data"]["columns"]
    assert columns["ignore"] == ["TWF", "HDF", "PWF", "RNF"]
    assert columns["categories"] == {"kind": "one-hot"}


def test_a_measure_far_beyond_any_life_is_trained_on_and_reported(command: Command) -> None:
    """Kilowatts of a wind turbine, whose errors no exponential holds."""
    draw = random.Random(1)
    rows = [f"{(wind := draw.uniform(0, 9)):.3f},{5 * wind**3 + draw.gauss(0, 9):.2f}" for _ in range(200)]
    (command.folder / "t.csv").write_text("\n".join(["wind,power", *rows]) + "\n")
    assert command("new", "t.csv", *DEAL, "--set", "data.columns.label=power").code == 0
    ran = command("run", "t.toml", "--ranks", "1", "--out", "out", "--set", "rounds=2")
    assert ran.code == 0, ran.err
    assert command("report", "out").code == 0
    predicted = command("predict", "out", "t.csv", "--json")
    assert predicted.code == 0, predicted.err
    assert predicted.document["rows"]


def test_recordings_are_split_whole(command: Command) -> None:
    for device in "ab":
        for day in range(4):
            recording(command.folder / "days" / device / f"{day}.csv", start=100 * day)
    said = command("new", "days")
    assert said.code == 0, said.err
    assert "layout: folders are read as device/file; devices 'a', 'b'" in said.err
    assert "split: by run (whole recordings), because 2 of 2 devices have several files" in said.err
    assert written(command, "days.toml")[0]["data"]["split"] == {"kind": "run"}
    assert command("run", "days.toml", "--ranks", "1", "--set", "rounds=1").code == 0


@pytest.mark.parametrize("kind", ["run", "device"])
def test_recordings_and_devices_of_one_class_are_drawn_by_class(command: Command, kind: str) -> None:
    """Of 20, two failed: one of them is for testing with every seed, and the draft says that it is a single one."""
    rng = np.random.default_rng(0)
    lines = ["device,run,x,y,label"]
    for number in range(20):
        device = f"m{number}" if kind == "device" else f"m{number % 2}"
        label = "failed" if number < 2 else "ok"
        lines += [
            f"{device},{number},{x:.3f},{y:.3f},{label}"
            for x, y in rng.normal(2.0 * (number < 2), 1.0, (30, 2)).tolist()
        ]
    (command.folder / "t.csv").write_text("\n".join(lines) + "\n")
    for seed in range(3):
        said = command("new", "t.csv", "--force", "--set", f"seed={seed}",
                       *(("--set", 'data.columns.ignore=["run"]') if kind == "device" else ()))  # fmt: skip
        assert said.code == 0, said.err
        assert f"split: by {kind} (whole" in said.err
        assert ", of each class its share), because" in said.err
        assert f"a single {'recording' if kind == 'run' else kind} of 'failed' is for testing" in said.err
        document = written(command, "t.toml")[0]
        assert document["data"]["split"] == {"kind": kind, "by_class": True}
    ran = command("run", "t.toml", "--ranks", "1", "--set", "rounds=1")
    assert ran.code == 0, ran.err
    assert "of 'failed' is for testing" in ran.err


def test_a_class_of_few_recordings_is_never_left_out_of_testing(command: Command) -> None:
    """The last two of a machine's ten recordings fail: by time training has one class, so recordings are drawn."""
    rng = np.random.default_rng(0)
    lines = ["time,machine,run,x,label"]
    for row in range(400):
        failed = row >= 320
        lines.append(f"{row},a,{row // 40},{rng.normal(failed):.3f},{'failed' if failed else 'ok'}")
    (command.folder / "t.csv").write_text("\n".join(lines) + "\n")
    said = command("new", "t.csv", "--set", "data.columns={run='run',device='machine'}")
    assert said.code == 0, said.err
    assert written(command, "t.toml")[0]["data"]["split"] == {"kind": "run", "by_class": True}
    assert "of each class its share), because by time the training rows have one class" in said.err


def test_recordings_named_for_their_device_are_split_whole(command: Command) -> None:
    for device in "ab":
        for day in range(4):
            recording(command.folder / "days" / f"{device}_{day}.csv", start=100 * day)
    files = ("new", "days", "--set", "data.device=file")
    assert "split: by run" not in command(*files, "--out", "each.toml").err
    said = command(*files, "--set", "data.file_name=DEVICE_*")
    assert said.code == 0, said.err
    assert "split: by run (whole recordings), because 2 of 2 devices have several files" in said.err
    assert written(command, "days.toml")[0]["data"]["split"] == {"kind": "run"}


def test_folders_that_can_be_read_in_two_ways_are_asked_about(command: Command) -> None:
    for device in ("ok", "worn"):
        for label in ("north", "south"):
            recording(command.folder / "d" / label / device / "0.csv", head="time,a,b")
    command.refused(command("new", "d"), "the meaning of the folders is ambiguous", "layout=device/label/file")
    said = command("new", "d", "--layout", "device/label/file")
    assert said.code == 0, said.err
    assert "folders are read as device/label/file, as given; devices 'north', 'south'; labels 'ok', 'worn'" in said.err
    assert written(command, "d.toml")[0]["data"]["layout"] == "device/label/file"


def test_recordings_in_folders_of_labels_are_tested_as_a_whole(command: Command) -> None:
    for device in ("m1", "m2"):
        for label in ("ok", "worn"):
            for number in range(4):
                recording(command.folder / "d" / device / label / f"{number}.csv", head="a,b")
    said = command("new", "d", "--layout", "device/label/file")
    assert said.code == 0, said.err
    assert "because 4 of 4 folders of a label have several files" in said.err
    assert written(command, "d.toml")[0]["data"]["split"] == {"kind": "run", "by_class": True}


def test_tables_in_folders_of_labels_alone_are_told_where_they_belong(command: Command) -> None:
    for label in ("ok", "worn"):
        recording(command.folder / "d" / label / "0.csv", head="a,b")
    command.refused(command("new", "d"), "If the folder's name, 'ok', is the label", "--layout device/label/file")


def test_many_numbers_are_no_classes_unless_listed(command: Command) -> None:
    rows = "".join(f"m{n % 4},{n},{n % 9},{n % 40}\n" for n in range(800))
    (command.folder / "code.csv").write_text(f"device,time,a,label\n{rows}")
    command.refused(
        command("new", "code.csv"), "40 different numbers from 0 to 39: a measure, or codes?", "data.bins=[13, 26]"
    )
    assert command("new", "code.csv", "--set", f"data.classes={[str(n) for n in range(40)]}").code == 0


@pytest.mark.parametrize(
    ("reading", "text"),
    [
        ({"bins": (3, 1)}, "data.bins"),
        ({"bins": ()}, "data.bins"),
        ({"bins": (1, 2), "classes": ("a", "b")}, "data.classes"),
        ({"remaining": True}, "data.remaining"),
    ],
)
def test_edges_that_make_no_classes(reading: dict[str, Any], text: str) -> None:
    with refusals.refused(text):
        Reading(**reading)


def test_labels_that_are_no_numbers(tmp_path: Path) -> None:
    path = engines(tmp_path / "wear.csv", devices=3)
    path.write_text(path.read_text().replace(",59\n", ",soon\n", 1))
    columns = Columns(device="engine", time="cycle", label="rul")
    with refusals.refused("odd-text"):
        own.load(path, Reading(columns=columns, bins=(15,)), 0)


@pytest.mark.parametrize("sort", [False, True])
def test_remaining_rows_are_counted_to_the_end_of_each_recording(tmp_path: Path, sort: bool) -> None:
    path = engines(tmp_path / "wear.csv", devices=3)
    columns = Columns(device="engine", time="cycle", ignore=("rul",))
    if sort:
        head, *rows = path.read_text().splitlines()
        path.write_text("\n".join([head, *sorted(rows)]) + "\n")
    life = own.load(path, Reading(columns=columns, bins=(10, 20), remaining=True, sort=sort), 0)
    told = own.load(path, Reading(columns=Columns("engine", time="cycle", label="rul"), bins=(10, 20), sort=sort), 0)
    assert life.classes == told.classes == ("<10", "10-20", ">=20")
    np.testing.assert_array_equal(life.y, told.y)
    np.testing.assert_array_equal(life.y_test, told.y_test)


def test_bins_of_arrays(tmp_path: Path) -> None:
    y = np.arange(40) / 4
    np.savez(tmp_path / "a.npz", x=np.ones((40, 2)) * y[:, None], y=y, device=np.arange(40) % 2)
    data = own.load(tmp_path / "a.npz", Reading(bins=(2, 5), classes=("low", "middle", "high")), 0)
    assert data.classes == ("low", "middle", "high")
    assert ((data.take(np.arange(len(data.y)), 0)[:, 0] >= 5) == (data.y == 2)).all()


def test_nothing_changes_without_bins() -> None:
    assert labelled([], Reading())[1] == Reading()
    assert "bins" not in Reading().recipe()


def test_values_that_training_never_came_near_are_named_before_the_first_round(command: Command) -> None:
    """Two machines report bar, one millibar: tested on it, a model has never seen such values."""
    for name, machines, factor in (("train", "ab", 1.0), ("test", "c", 1000.0)):
        rows = [
            f"{m},{n},{factor * (3 + n % 5)},{n % 7},{'ok' if n % 5 < 3 else 'worn'}"
            for m in machines
            for n in range(60)
        ]
        (command.folder / f"{name}.csv").write_text("\n".join(["device,time,pressure,flow,label", *rows]) + "\n")
    said = command("new", "train.csv", "--set", "data.test=test.csv", "--set", "data.columns.ignore=[]")
    assert said.code == 0, said.err
    beyond = "many test samples have values far from all training samples: 'pressure' (100 % of them)."
    assert beyond in said.err
    ran = command("run", "train.toml", "--ranks", "1", "--out", "out", "--set", "rounds=1")
    assert ran.err.index(beyond) < ran.err.index("stopped") if "stopped" in ran.err else beyond in ran.err


def test_a_sensor_that_one_machine_lacks_does_not_make_those_of_others_strange(command: Command) -> None:
    """Values are compared as trained: those of b by b's own statistics, not by a's, whose pressure never changes."""
    rows = [
        f"{m},{n},{5 if m == 'a' else 5 + (n * 37) % 11 / 100},{n % 7},{'ok' if n % 5 < 3 else 'worn'}"
        for m in "abc"
        for n in range(60)
    ]
    (command.folder / "p.csv").write_text("\n".join(["device,time,pressure,flow,label", *rows]) + "\n")
    said = command("new", "p.csv", "--set", 'data.normalise={kind="device"}')
    assert said.code == 0, said.err
    assert "far from all training samples" not in said.err


def test_rows_of_no_machine_are_dealt(command: Command) -> None:
    rows = [f"{n % 5 + random.Random(n).random()},{'ok' if n % 5 < 3 else 'worn'}" for n in range(200)]
    (command.folder / "p.csv").write_text("\n".join(["pressure,label", *rows]) + "\n")
    command.refused(
        command("new", "p.csv"), "no column 'device'", "If no column names machines", "data.columns.device= "
    )
    dealt = ("data.columns.device=", "park.devices=4", 'data.partition={kind="dirichlet",alpha=1.0}')
    said = command("new", "p.csv", *(word for one in dealt for word in ("--set", one)))
    assert said.code == 0, said.err
    assert build_park(config.read(command.folder / "p.toml")).devices == 4


def test_files_that_may_be_machines_are_asked_about(command: Command) -> None:
    for hall in ("north", "south"):
        for number in range(2):
            recording(command.folder / "d" / hall / f"{hall} press {number}.csv")
    said = command("new", "d")
    command.refused(said, "its folder may be a device and the file one of its recordings", "--set data.device=folder")
    said = command("new", "d", "--set", "data.device=file", "--set", "data.factory=folder")
    assert said.code == 0, said.err
    assert "each file is a device, its folder is its factory, as set" in said.err
    assert "4 devices in 2 factories" in said.out
    assert command("new", "d", "--set", "data.device=folder", "--force").code == 0


def test_remaining_life_of_a_table_without_labels(command: Command) -> None:
    path = engines(command.folder / "wear.csv")
    path.write_text("\n".join(row.rpartition(",")[0] for row in path.read_text().splitlines()) + "\n")
    command.refused(command("new", "wear.csv"), "no column 'label'")
    said = command("new", "wear.csv", "--set", "data.remaining=true", "--set", "data.bins=[15,40]")
    assert said.code == 0, said.err
    assert "split: by device" in said.err
    assert command("run", "wear.toml", "--ranks", "1", "--out", "out", "--set", "rounds=1").code == 0
    assert command("predict", "out", "wear.csv").code == 0


@pytest.mark.parametrize(("one", "other"), [("ok", "OK"), ("n.i.O.", "NIO")])
def test_marks_for_missing_values_and_names_alike_are_named(command: Command, one: str, other: str) -> None:
    rng = random.Random(2)
    lines = ["device,time,heat,type,label"]
    for n in range(240):
        heat = -999 if n % 11 == 5 else rng.gauss(50, 3)
        label = "?" if n % 13 == 4 else (one, other, "worn")[n // 4 % 3]
        lines.append(f"press {n % 4},{n // 4},{heat:.2f},{rng.choice(('true', 'false'))},{label}")
    (command.folder / "t.csv").write_text("\n".join(lines) + "\n")
    said = command("new", "t.csv")
    assert said.code == 0, said.err
    assert "'heat' is -999 in" in said.err
    first, second = sorted((one, other))
    assert f"classes '{first}' and '{second}' count as two" in said.err
    assert "class '?' has 19 samples: if these were not judged" in said.err
    assert "proposed: leave" not in said.err  # neither the sensor with marks, nor type=true beside type=false
    notes = said.err.splitlines()
    assert len(notes) == len({*notes})  # though the table is read several times
    ran = command("run", "t.toml", "--ranks", "1", "--rounds", "1", "--out", "r")
    assert ran.err.count(f"'{first}' and '{second}' count as two: if they are the same, give them the same name") == 1
    option = re.search(r"or --set '(data.spellings=.*?)'\.", said.err)
    assert option is not None
    mapped = command("new", "t.csv", "--set", option[1], "--out", "mapped.toml")
    assert mapped.code == 0, mapped.err
    assert "count as two" not in mapped.err


def test_control_characters_of_a_table_do_not_reach_the_terminal(command: Command) -> None:
    (command.folder / "t.csv").write_text("device,heat,label\na,1,ok\na,\x1b[2J,ok\n")
    said = command("new", "t.csv")
    command.refused(said, r"'\x1b[2J' is not a number")


@pytest.mark.parametrize(("timed", "kind"), [(True, "time"), (False, "random")])
def test_the_split_is_a_key_that_changes_nothing(command: Command, timed: bool, kind: str) -> None:
    rng = random.Random(3)
    lines = [f"device,{'time,' * timed}heat,label"]
    for n in range(240):
        lines.append(f"p{n % 4},{f'{n // 4},' * timed}{rng.gauss(0, 1):.3f},{('ok', 'worn')[n // 4 % 2]}")
    (command.folder / "t.csv").write_text("\n".join(lines) + "\n")
    assert command("new", "t.csv").code == 0
    text = (command.folder / "t.toml").read_text()
    assert tomllib.loads(text)["data"]["split"] == {"kind": kind}
    others = [one for one in ("time", "random", "stratified", "device", "run", "last (rows = N)") if one != kind]
    assert f'split = {{kind = "{kind}"}} # or {", ".join(others)}' in text
    path = command.folder / "without.toml"
    path.write_text("\n".join(line for line in text.splitlines() if not line.startswith("split = ")))
    with_key, without = (build_park(config.read(one)).dataset for one in (command.folder / "t.toml", path))
    assert with_key.digest == without.digest
    assert np.array_equal(with_key.y_test, without.y_test)
    every = np.arange(len(without.y_test))
    assert np.array_equal(with_key.take_test(every), without.take_test(every))


def test_times_that_a_setting_puts_into_1970_are_seen(command: Command) -> None:
    rows = [f"p{n % 4},{1768888800 + 3600 * (n // 4)},{n % 7},{('ok', 'worn')[n // 4 % 2]}" for n in range(240)]
    (command.folder / "t.csv").write_text("\n".join(["device,time,heat,label", *rows]) + "\n")
    assert "time is 'time' (training: 2026-01-20 06:00:00 to " in (found := command("new", "t.csv").err)
    assert ", in UTC, or without a zone as written)" in found
    said = command("new", "t.csv", "--out", "ms.toml", "--set", "data.time_format=ms")
    assert "time is 'time' (training: 1970-01-21" in said.err


def regimes(path: Path, shift: float, at_once: bool = False) -> Path:
    """Write machines that change between three levels of speed and load, which move their sensors by ``shift``."""
    rng = np.random.default_rng(0)
    lines = ["machine,hour,speed,load,heat,noise,flow,life"]
    for machine in range(8):
        for hour in range(90):
            regime = machine % 3 if at_once else int(rng.integers(3))
            speed = (10, 20, 35)[regime] + rng.uniform(0, 0.02)
            load = (0.5, 0.7, 0.7)[regime]
            sensors = rng.normal([regime * shift, -regime * shift, hour / 30])
            lines.append(f"{machine},{hour},{speed:.3f},{load},{','.join(f'{x:.3f}' for x in sensors)},{90 - hour}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_operating_regimes_that_move_sensors_are_normalised_apart(command: Command) -> None:
    regimes(command.folder / "plant.csv", shift=20)
    drafted = command("new", "plant.csv", "--task", "regression")
    assert drafted.code == 0, drafted.err
    assert "operating regimes: 3, by the levels of speed." in drafted.err
    document, comments = written(command, "plant.toml")
    assert document["data"]["normalise"] == {"kind": "regime", "columns": ["speed"], "regimes": 3}
    assert "operating regimes: 3" in comments
    assert command("run", "plant.toml", "--ranks", "1", "--out", "out", "--set", "rounds=1").code == 0


@pytest.mark.parametrize(("shift", "at_once"), [(0.5, False), (20, True)])
def test_regimes_that_move_little_or_never_change_are_left(command: Command, shift: float, at_once: bool) -> None:
    regimes(command.folder / "plant.csv", shift, at_once)
    made = command("new", "plant.csv", "--task", "regression")
    assert made.code == 0, made.err
    assert "operating regimes" not in made.err
    normalise = written(command, "plant.toml")[0]["data"].get("normalise")
    assert normalise is None or (at_once and normalise["kind"] == "device")  # what never changes is a level


@pytest.mark.parametrize("name", ["cmapss", "tep"])
def test_published_data_are_read_by_name(command: Command, name: str) -> None:
    command.refused(command("new", name), f"fedfloor run {name}", "data.root")
    (command.folder / "turbofan").mkdir()
    file = {"cmapss": "train_FD003.txt", "tep": "d07_te.dat"}[name]
    (command.folder / "turbofan" / file).write_text("1 1 0.5\n")
    command.refused(command("new", f"turbofan/{file}"), f'[data] name = "{name}"')
    command.refused(command("new", "turbofan"), f'[data] name = "{name}"')
    assert not (command.folder / "turbofan.toml").exists()


def test_names_to_copy_where_a_table_has_none(command: Command) -> None:
    rows = [f"{k} {t} {t * 0.1:.1f}" for k in range(6) for t in range(120)]
    (command.folder / "wear.txt").write_text("\n".join(rows) + "\n")
    names = 'data.header=["c1", "c2", "c3"]'
    command.refused(command("new", "wear.txt"), names)
    roles = ("--set", "data.columns.device=c1", "--set", "data.columns.time=c2")
    drafted = command("new", "wear.txt", "--set", names, *roles, "--set", "data.remaining=true")
    assert drafted.code == 0, drafted.err
    assert written(command, "wear.toml")[0]["data"]["task"] == {"kind": "regression"}


@pytest.mark.parametrize(
    ("line", "factory"),
    [(lambda k, t: "north" if k < 3 else "south", "line"), (lambda k, t: t % 2, None), (lambda k, t: k, None)],
    ids=["two lines", "changes", "each its own"],
)
def test_a_line_that_groups_machines_is_the_factory(command: Command, line: Any, factory: str | None) -> None:
    rows = [f"m{k},{t},{line(k, t)},{k + t % 7},{'ok' if t % 3 else 'worn'}" for k in range(6) for t in range(60)]
    (command.folder / "plant.csv").write_text("machine,cycle,line,heat,state\n" + "\n".join(rows) + "\n")
    drafted = command("new", "plant.csv")
    assert drafted.code == 0, drafted.err
    assert written(command, "plant.toml")[0]["data"]["columns"].get("factory") == factory


def skab(folder: Path, *, marked: bool = True) -> None:
    """Write recordings of valves with marks of anomalies, and one of normal operation without them."""
    rng = np.random.default_rng(0)
    for name, count in (("valve1", 3), ("valve2", 3), ("free", 1)):
        (folder / name).mkdir(parents=True)
        own = marked and name != "free"
        for number in range(count):
            lines = ["time;pressure;flow" + ";anomaly;changepoint" * own]
            for second in range(200):
                odd = own and 120 <= second < 170
                x = rng.normal([1 + 5 * odd, 2], 0.1)
                marks = f";{float(odd)};{float(odd and second < 123)}" * own
                lines.append(f"2020-03-09 10:{second // 60:02}:{second % 60:02};{x[0]:.4f};{x[1]:.4f}{marks}")
            (folder / name / f"{number}.csv").write_text("\n".join(lines) + "\n")


def test_marks_of_anomalies_judge_and_are_no_sensors(command: Command) -> None:
    skab(command.folder / "bench")
    drafted = command("new", "bench", "--task", "reconstruction")
    assert drafted.code == 0, drafted.err
    assert "free/0.csv: no column 'anomaly': all rows count as normal" in drafted.err
    document, _ = written(command, "bench.toml")
    assert document["data"]["columns"] == {"label": "anomaly", "ignore": ["changepoint"]}
    assert "headline" not in document.get("evaluate", {})
    ran = command("run", "bench.toml", "--ranks", "1", "--out", "out", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["rows"][0]["AUROC"] > 0.99
    drafted = command("new", "bench", "--task", "forecasting", "--out", "next.toml")
    assert drafted.code == 0, drafted.err
    assert written(command, "next.toml")[0]["data"]["columns"]["ignore"] == ["anomaly", "changepoint"]
    wrong = ("--set", "data.columns.label=anomalous", "--out", "wrong.toml")
    command.refused(command("new", "bench", "--task", "reconstruction", *wrong), "no column 'anomalous'")


def test_without_marks_the_reconstruction_error_judges(command: Command) -> None:
    skab(command.folder / "bench", marked=False)
    drafted = command("new", "bench", "--task", "reconstruction")
    assert drafted.code == 0, drafted.err
    assert written(command, "bench.toml")[0]["evaluate"] == {"headline": "reconstruction error"}
    ran = command("run", "bench.toml", "--ranks", "1", "--out", "out")
    assert ran.code == 0, ran.err
    asked = command("run", "bench.toml", "--ranks", "1", "--out", "out2", "--set", "evaluate.headline=AUROC")
    command.refused(asked, "reconstruction error")


def test_serial_numbers_are_machines_where_they_come_again_and_parts_where_they_do_not(command: Command) -> None:
    rows = [f"{day},ZA{k},{k + day / 10},{int(k == 1 and day > 20)}" for day in range(30) for k in range(4)]
    (command.folder / "disks.csv").write_text("day,serial_number,smart_5,failure\n" + "\n".join(rows) + "\n")
    drafted = command("new", "disks.csv", "--set", "data.columns.time=day")
    assert drafted.code == 0, drafted.err
    assert "'serial_number' is taken for the device" in drafted.err
    parts = [f"P{i},{i % 7},{'ok' if i % 3 else 'bad'}" for i in range(60)]
    (command.folder / "parts.csv").write_text("serial_number,width,label\n" + "\n".join(parts) + "\n")
    refused = command("new", "parts.csv")
    assert "if 'serial_number' names parts and not machines, deal the rows to made-up ones" in refused.err
    deal = ("--set", "data.columns.device=", "--set", "park.devices=4", "--set", 'data.partition={kind="iid"}')
    assert command("new", "parts.csv", *deal).code == 0


def test_flags_of_faults_are_offered_as_one_label(command: Command) -> None:
    rows = [f"m{i % 3},{i},{int(i % 4 == 1)},{int(i % 4 == 2)},{int(i % 4 == 3)}" for i in range(80)]
    (command.folder / "steel.csv").write_text("machine,luminosity,Bumps,Stains,Scratch\n" + "\n".join(rows) + "\n")
    refused = command("new", "steel.csv")
    assert "It may be 'Bumps + Stains + Scratch' (3 flags)" in refused.err
    drafted = command("new", "steel.csv", "--set", "data.columns.label=Bumps + Stains + Scratch")
    assert drafted.code == 0, drafted.err
    assert "none" in drafted.out


def test_tables_of_no_machine_in_a_folder_are_dealt_as_the_message_has_it(command: Command) -> None:
    (command.folder / "years").mkdir()
    for year in (2011, 2012):
        rows = [f"{n % 5 + random.Random(n + year).random()},{'ok' if n % 5 < 3 else 'worn'}" for n in range(100)]
        (command.folder / "years" / f"gt_{year}.csv").write_text("\n".join(["pressure,label", *rows]) + "\n")
    command.refused(command("new", "years"), "deal the rows to made-up ones: --set data.columns.device= ")
    drafted = command("new", "years", *DEAL)
    assert drafted.code == 0, drafted.err
    park = build_park(config.read(command.folder / "years.toml"))
    assert (park.devices, int(park.sizes.sum())) == (4, 160)
    ran = command("run", "years.toml", "--ranks", "1", "--out", "out", "--set", "rounds=1")
    assert ran.code == 0, ran.err
    assert command("predict", "out", "years/gt_2012.csv").code == 0


def test_rows_that_are_dealt_belong_to_no_factory(command: Command) -> None:
    rows = [f"{n % 5 + random.Random(n).random()},plant{n % 3},{'ok' if n % 5 < 3 else 'worn'}" for n in range(200)]
    (command.folder / "p.csv").write_text("\n".join(["pressure,factory,label", *rows]) + "\n")
    drafted = command("new", "p.csv", *DEAL)
    assert drafted.code == 0, drafted.err
    assert "'factory' holds a few texts: a sensor for each" in drafted.err
    stated = command("new", "p.csv", *DEAL, "--set", "data.columns.factory=factory", "--out", "q.toml")
    command.refused(stated, "row 2, column 'factory': a factory, but rows dealt", "data.columns.factory=.")


def test_the_finer_of_two_columns_of_machines_is_the_device(command: Command) -> None:
    rows = [f"{n},{'Süd' if n % 6 < 3 else 'Nord'},P{n % 6},{n % 7},{'ja' if n % 5 else 'nein'}" for n in range(240)]
    (command.folder / "line.csv").write_text("Takt,Anlage,Presse,Druck,Ausschuss\n" + "\n".join(rows) + "\n")
    drafted = command("new", "line.csv")
    assert drafted.code == 0, drafted.err
    columns = written(command, "line.toml")[0]["data"]["columns"]
    assert {**columns, "ignore": []} == {"device": "Presse", "factory": "Anlage", "label": "Ausschuss", "ignore": []}
    parts = [f"m{n % 3},E{n},{n % 7},{'ok' if n % 5 else 'bad'}" for n in range(240)]  # each engine once: a product
    (command.folder / "parts.csv").write_text("machine,engine,heat,state\n" + "\n".join(parts) + "\n")
    assert command("new", "parts.csv").code == 0
    assert written(command, "parts.toml")[0]["data"]["columns"]["device"] == "machine"


def test_a_column_of_states_is_no_sensor_of_an_anomaly_detection(command: Command) -> None:
    rng = np.random.default_rng(0)
    lines = ["machine,time,level,state of plant"]
    for k in range(3):
        for t in range(200):
            odd = 160 < t < 190
            lines.append(f"m{k},{t},{rng.normal(5 * odd):.3f},{('A ttack', 'Attack')[t % 2] if odd else 'Normal'}")
    (command.folder / "water.csv").write_text("\n".join(lines) + "\n")
    drafted = command("new", "water.csv", "--task", "reconstruction")
    assert drafted.code == 0, drafted.err
    assert "'state of plant' is taken for the label, which is only used for evaluation" in drafted.err
    assert written(command, "water.toml")[0]["data"]["columns"] == {"device": "machine", "label": "state of plant"}


def test_folders_of_labels_hold_recordings_that_windows_suit(command: Command) -> None:
    for device in "ab":
        for label in ("ball", "normal"):
            folder = command.folder / "rig" / device / label
            folder.mkdir(parents=True)
            rows = "".join(f"{random.Random(n).random():.3f}\n" for n in range(40))
            (folder / "1.csv").write_text(f"DE_time\n{rows}")
    drafted = command("new", "rig", "--layout", "device/label/file")
    assert drafted.code == 0, drafted.err
    assert "a label lasts for 31 rows on average" in drafted.err


@pytest.mark.parametrize(("odd", "decimal", "said"), [
    ("18,73", ".", "'18,73' is not a number with the decimal mark '.', as '20.5' in row 2 is. One of the marks is"),
    ("20.52", ",", "'20.52' is not a number with the decimal mark ',', as '20,5' in row 2 is. One of the marks is"),
    ("1,200", ".", "as '20.5' in row 2 is. If ',' stands between thousands: --set 'data.thousands=,'. Otherwise write"),
])  # fmt: skip
def test_two_decimal_marks_in_a_column_are_named_together(command: Command, odd: str, decimal: str, said: str) -> None:
    """The usual mark's setting would be refused by the other cell, which would propose the first one again."""
    cells = [f"20{decimal}5", *[f"21{decimal}{t}" for t in range(40)]]
    cells[33] = odd
    rows = [f"m{k};{t};{cell};{'ok' if t % 7 else 'bad'}" for k in range(3) for t, cell in enumerate(cells)]
    (command.folder / "plant.csv").write_text("\n".join(["machine;time;temp;state", *rows]) + "\n")
    command.refused(command("new", "plant.csv", "--set", f"data.decimal={decimal}"), said)
