"""Tables that do not fit the task: each is refused with what, got, allowed, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor import config
from fedfloor.base.checking import checked
from fedfloor.base.errors import SettingError
from fedfloor.drafting.guess import guess
from fedfloor.drafting.profile import TableProfile
from fedfloor.experiment import Experiment
from fedfloor.runs.parks import load_data
from fedfloor.runs.references import of_run
from fedfloor.tasks.reconstruction import Reconstruction
from refusals import refused

Row = dict[str, Any]
LIFE = {"kind": "regression"}
FORECAST = {"kind": "forecasting", "horizon": 5}


def data(folder: Path, change: Callable[[int, Row], Row], **settings: Any) -> Any:
    """Load a table of four machines that run to failure, of which each row was changed."""
    rng = np.random.default_rng(0)
    rows = list[Row]()
    for m in range(4):
        for t in range(60 + 5 * m):
            temp, vib = (round(float(one), 3) for one in rng.normal(t / 60, 1, 2))
            row = {"machine": f"m{m}", "cycle": t, "temp": temp, "vib": vib, "label": 59 + 5 * m - t}
            rows.append(change(len(rows), row))
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "life.csv").write_text("\n".join(lines) + "\n")
    table = {
        "path": str(folder / "life.csv"), "columns": {"device": "machine", "time": "cycle"},
        "window": {"length": 10, "step": 2}, **settings,
    }  # fmt: skip
    return load_data(checked(Experiment, {"data": table}, ""))


def put(**values: Any) -> Callable[[int, Row], Row]:
    return lambda _, row: row | {key: one(row) if callable(one) else one for key, one in values.items()}


def at(place: int, **values: Any) -> Callable[[int, Row], Row]:
    return lambda i, row: row | values if i == place else row


CASES: dict[str, tuple[Callable[[int, Row], Row], Row, str]] = {
    "classes where a number is declared": (
        put(label=lambda row: "ok" if row["label"] > 9 else "worn"), {"task": LIFE},
        "row 2, column 'label': 'ok' is not a finite number, but data.task = 'regression' needs numbers as labels",
    ),
    "a number where classes are declared": (
        put(label=lambda row: row["label"] + 0.5), {"task": {"kind": "classification"}},
        "such as 0.5: measured values and no classes. To predict the number itself: --set data.task=regression",
    ),
    "a life that rises": (
        put(label=lambda row: row["cycle"]), {"task": {**LIFE, "cap": 50}},
        "its label rises along the recordings, from 0 in the first row, and never falls; with data.task.cap it is "
        "taken for a remaining life, which falls until the failure. If it counts the past rows, leave it out",
    ),
    "sensors that never change": (
        put(temp=5, vib=2.5), {"task": LIFE},
        "no sensor ever changes (temp = 5, vib = 2.5), so that a model cannot learn anything. Check which columns",
    ),
    "a horizon longer than recordings": (
        put(), {"task": {"kind": "forecasting", "horizon": 70}},
        "a window of 10 rows and the 70 rows ahead of it (data.task.horizon) are longer than every recording; the "
        "longest has 75 rows. Shorten one of them.",
    ),
    "recordings too short to be tested on their last rows": (
        put(), {"task": LIFE, "window": {"length": 20}},
        'test on whole devices ([data] split = { kind = "device" }), or leave such devices out with [data] small =',
    ),
    "a horizon longer than what is for testing": (
        put(), {"task": {"kind": "forecasting", "horizon": 15}},
        "0 test windows of 25 rows (and 3 more devices: m1, m2, m3): too few to be split into training and test. Add "
        "data, shorten the window or data.task.horizon (15 of these rows, together at most 12 rows for this device)",
    ),
    "a sensor to forecast that never changes": (
        put(vib=2), {"task": {"kind": "forecasting", "horizon": 2, "sensors": ["vib"]}},
        "sensor 'vib' never changes within the recordings' training rows: nothing to forecast. Name the sensors",
    ),
    "ranges that are empty everywhere": (
        put(), {"task": LIFE, "bins": [30, 500]},
        "data.bins = [30.0, 500.0]: no sample is in '>=500'; the targets range from 0 to 65. Give edges between",
    ),
    "classes of ranges that are empty everywhere": (
        put(), {"bins": [30, 500], "split": {"kind": "device"}},
        "no sample is in '>=500'. Give edges between the label's values",
    ),
    "classes listed where a number is declared": (
        put(), {"task": LIFE, "classes": ["ok", "worn"]},
        "data.classes: data.task = 'regression' predicts numbers and has no classes: data.bins set their ranges",
    ),
    "classes listed for a forecast": (
        put(), {"task": FORECAST, "bins": [30]},
        "data.bins: data.task = 'forecasting' predicts numbers and has no classes",
    ),
    "a sensor to forecast that is named twice": (
        put(), {"task": {**FORECAST, "sensors": ["temp", "temp"]}},
        "data.task.sensors = 'temp': must be unique names",
    ),
    "a life of few numbers where classes are declared": (
        put(life=lambda row: row["label"] // 20, label="x"),
        {"columns": {"device": "machine", "time": "cycle", "label": "life", "ignore": ["label"]}},
        "column 'life': 4 different numbers, such as 0: measured values and no classes",
    ),
    "windows longer than every recording": (
        put(), {"task": LIFE, "window": {"length": 80}, "split": {"kind": "device"}},
        "no training samples are left (windows of 80 rows). A window may have at most 75 rows: set [data] window",
    ),
    "an empty target": (
        at(3, label=""), {"task": LIFE}, "row 5, column 'label': empty. Every row needs a label",
    ),
    "a target that is NaN": (
        at(3, label="nan"), {"task": LIFE}, "row 5, column 'label': 'nan' is no label. Every row needs a label",
    ),
    "an infinite target": (
        at(3, label="inf"), {"task": LIFE}, "row 5, column 'label': 'inf' is not a finite number",
    ),
    "a target that is always the same": (
        put(label=7), {"task": LIFE}, "every training sample has the target 7: a model cannot learn anything",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_the_task_is_refused_with_what_to_do(case: str, tmp_path: Path) -> None:
    change, settings, message = CASES[case]
    with pytest.raises(SettingError, match=re.escape(message)):
        data(tmp_path, change, **settings)


def test_a_life_may_rise_where_a_machine_was_repaired(tmp_path: Path) -> None:
    found = data(tmp_path, put(label=lambda row: row["label"] % 30), task={**LIFE, "cap": 50})
    assert found.target_test is not None


def test_a_life_that_rises_in_some_recordings_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change = put(label=lambda row: row["cycle"] if row["machine"] == "m1" else row["label"])
    data(tmp_path, change, task={**LIFE, "cap": 50})
    assert (
        "life.csv, row 63: the label rises from 0 to 1, and in 1 of 4 recordings in total; a remaining" in caplog.text
    )


def test_a_number_without_a_cap_may_rise(tmp_path: Path) -> None:
    assert data(tmp_path, put(label=lambda row: row["cycle"]), task=LIFE).target_test is not None


def test_labels_in_training_of_the_anomaly_task_are_left_out_or_used_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    change = put(label=lambda row: "gut" if row["label"] > 15 else "Störung")
    with refused("normal-class"):
        data(tmp_path, change, task="reconstruction")
    split = {"split": {"kind": "device"}}
    out = data(tmp_path, change, task={"kind": "reconstruction", "normal": "gut"}, **split)
    assert "training samples have an abnormal row by their labels, and are left out" in caplog.text
    used = data(tmp_path, change, task={"kind": "reconstruction", "normal": "gut", "abnormal": "used"}, **split)
    assert "training samples have an abnormal row, and are used (data.task.abnormal)" in caplog.text
    assert len(used.y) > len(out.y)


def test_a_table_of_one_class_offers_the_anomaly_task(tmp_path: Path) -> None:
    with refused("single-class"):
        data(tmp_path, put(label="gut"))
    task = data(tmp_path, put(label="gut"), task="reconstruction").task
    assert isinstance(task, Reconstruction)
    assert task.spelled(["gut", "Störung", ""]) == ["normal", "anomaly", ""]


def test_rows_without_a_label_are_neither_normal_nor_anomalies_of_a_detector(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # each third row has no label; of windows of two rows two of three have such a row, one of three ends with one
    split = {"split": {"kind": "device"}, "window": {"length": 2, "step": 1}, "task": "reconstruction"}
    words = ("NA", "", "-")
    found = data(tmp_path, put(label="ok"), **split)
    change = put(label=lambda row: words[row["cycle"] % 9 // 3] if row["cycle"] % 3 == 0 else "ok")
    known = data(tmp_path, change, **split)
    told = re.search(r"([\d]+) of 270 rows have no label \(empty, '-', 'NA'\): (.*) are left out", caplog.text)
    assert told is not None
    assert int(told[1]) == sum(-(-(60 + 5 * m) // 3) for m in range(4))
    assert len(known.y) == pytest.approx(len(found.y) / 3, abs=3)  # windows of rows 1 and 2 of each three
    assert len(known.y_test) == pytest.approx(2 * len(found.y_test) / 3, abs=1)
    assert not known.y_test.any()
    assert known.task.spelled(["n/a", "-", "?", "NaN", "worn"]) == ["", "", "", "", "anomaly"]


def test_rows_without_a_label_beside_faults_alone_are_not_taken_for_normal_operation(tmp_path: Path) -> None:
    with refused("normal-class"):
        data(tmp_path, put(label=lambda row: "" if row["label"] > 15 else "Störung"), task="reconstruction")


def test_a_detector_takes_the_labels_of_its_training_table(tmp_path: Path) -> None:
    task = data(tmp_path, put(label=lambda row: int(row["label"] < 5)), task="reconstruction").task
    assert list(task.spelled(["0", "1", "2", ""])) == ["normal", "anomaly", "anomaly", ""]


def test_a_method_that_trains_nothing_has_references_that_train_nothing() -> None:
    what = checked(Experiment, {"data": {"name": "machines", "task": "reconstruction"}, "park": {"devices": 4},
                                "model": {"name": "monitor"}, "method": {"name": "pca"}}, "")  # fmt: skip
    assert [run.experiment.method.name for run in of_run(what, Path("run"))] == ["mean-abs-z"]


def test_a_task_by_its_name_takes_more_settings() -> None:
    document: Row = {"data": {"task": "regression"}}
    config.apply(document, "data.task.cap=125")
    assert document == {"data": {"task": {"kind": "regression", "cap": 125}}}


def test_a_minute_that_rises_is_the_time_and_one_of_a_clock_is_not(tmp_path: Path) -> None:
    for rows, time in ((90, {"time": "minute"}), (None, {})):
        lines = ["minute,a,b", *(f"{t % (rows or 60)},{t % 7},{t % 5}" for t in range(90))]
        (tmp_path / "wide.csv").write_text("\n".join(lines))
        assert guess(TableProfile.of(tmp_path / "wide.csv", {}), {}, ()).settings.get("columns", {}) == time
