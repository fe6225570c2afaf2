"""Tables in memory: training on them, and predictions of the same kind and index."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import fedfloor
from fedfloor import SettingError
from fedfloor.data import frames
from refusals import refused

N = 240


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plant() -> dict[str, Any]:
    """A table of four machines whose state is the sign of temperature − 50, with a gap of 5 on both sides."""
    rng = np.random.default_rng(0)
    hot = rng.random(N) < 0.5
    return {
        "machine": np.repeat(["m1", "m2", "m3", "m4"], N // 4),
        "temp": 50 + np.where(hot, 1, -1) * rng.uniform(5, 15, N),
        "noise": rng.normal(size=N),
        "state": np.where(hot, "hot", "cold"),
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> fedfloor.Run:
    folder = tmp_path_factory.mktemp("trained") / "plant"
    return fedfloor.train(plant(), device="machine", label="state", rounds=5, name="plant", out=folder, ranks=1)


def test_training_shows_alone_federated_and_pooled_and_the_worst_machine(trained: fedfloor.Run) -> None:
    assert [row["training"] for row in trained.rows][:3] == [
        "each device alone", "federated (FedAvg)", "all data in one place"
    ]  # fmt: skip
    assert trained.devices[0]["device"] in {"m1", "m2", "m3", "m4"}
    assert "worst device: m" in repr(trained)
    assert any("machine" in note for note in trained.notes)
    assert not any("--" in note for note in trained.notes)
    assert (trained.folder / "plant.toml").read_text().startswith("# 4 devices")
    assert fedfloor.load_run(trained.folder).rows == trained.rows


def test_the_drafted_file_is_the_command_lines(trained: fedfloor.Run) -> None:
    from fedfloor.drafting.draft import draft

    table = trained.folder / "table.parquet"
    changes = ['data.columns.device="machine"', 'data.columns.label="state"', "rounds=5"]
    assert draft(table, trained.folder / "plant.toml", changes).text == (trained.folder / "plant.toml").read_text()


def test_a_dictionary_is_predicted_as_an_array(trained: fedfloor.Run) -> None:
    table = plant()
    predicted = trained.model.predict({key: table[key] for key in ("noise", "temp")})  # in another order
    assert isinstance(predicted, np.ndarray)
    assert (predicted == table["state"]).mean() > 0.95
    answers = trained.model.answers(table)
    assert (answers["predicted"] == predicted).all()
    assert ((answers["probability"] >= 0.5) & (answers["probability"] <= 1)).all()


def test_a_data_frame_gives_a_series_of_its_index(trained: fedfloor.Run) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(plant()).set_index(np.arange(N) * 10 + 7)
    table["machine"] = table["machine"].astype("category")
    predicted = trained.model.predict(table.drop(columns="state"))
    assert isinstance(predicted, pandas.Series)
    assert predicted.index.equals(table.index)
    assert list(predicted) == trained.model.predict(plant()).tolist()
    shuffled = table.sample(frac=1, random_state=0)
    assert trained.model.predict(shuffled).sort_index().equals(predicted)
    assert trained.to_pandas().index.tolist() == [1, 2, 3, 4, 5]


def test_named_levels_of_an_index_are_columns(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(plant())
    for index in (["machine"], ["machine", "state"]):
        frames.write(table.set_index(index), tmp_path / "x.parquet")
        assert sorted(parquet.read_schema(tmp_path / "x.parquet").names) == sorted(table.columns)
    frames.write(table.set_index(np.arange(N) + 0.5), tmp_path / "x.parquet")
    assert parquet.read_schema(tmp_path / "x.parquet").names == list(table.columns)


def test_a_files_path_is_trained_where_it_lies() -> None:
    frames.write(plant(), Path("plant.parquet"))
    done = fedfloor.train("plant.parquet", label="state", rounds=1, ranks=1, references=False, name="there")
    assert (done.folder / "there.toml").is_file()
    assert not (done.folder / "table.parquet").exists()
    assert len(done.model.predict(plant())) == N


def test_a_polars_frame_gives_a_polars_series(trained: fedfloor.Run) -> None:
    polars = pytest.importorskip("polars")
    predicted = trained.model.predict(polars.DataFrame(plant()))
    assert isinstance(predicted, polars.Series)
    assert predicted.to_list() == trained.model.predict(plant()).tolist()


def test_rows_without_a_whole_window_have_no_answer() -> None:
    changes = {"data.window": {"length": 4, "step": 1}, "method.name": "fedavg"}
    done = fedfloor.train(
        plant(), device="machine", label="state", rounds=1, ranks=1, references=False, changes=changes
    )
    predicted = done.model.predict(plant())
    assert [i for i in range(N) if predicted[i] is None] == [60 * k + i for k in range(4) for i in range(3)]


def test_numbers_are_predicted_as_numbers() -> None:
    table = plant() | {"life": np.linspace(0, 1, N)}
    del table["state"]
    done = fedfloor.train(table, device="machine", label="life", task="regression", rounds=1, ranks=1, references=False)
    predicted = done.model.predict(table)
    assert predicted.dtype == np.float64
    assert predicted.shape == (N,)


def test_lives_are_predicted_as_chances_to_fail() -> None:
    rng = np.random.default_rng(0)
    table = {"machine": np.repeat(["a", "b"], 60), "load": rng.random(120), "failed": rng.random(120) < 0.7}
    table["age"] = rng.exponential(100 - 60 * table["load"])
    run = fedfloor.train(
        table, device="machine", label="failed", task="survival", references=False, name="lives",
        changes={"data.columns.life": "age"},
    )  # fmt: skip
    chances = run.model.predict(table)
    assert [chance is None for chance in chances] == [bool(failed) for failed in table["failed"]]  # nothing is left
    assert all(0 <= chance <= 1 for chance in chances if chance is not None)


def test_a_mistake_names_the_column_in_the_words_of_python() -> None:
    with refused("no-column") as error:
        fedfloor.train(plant(), device="machines", label="state")
    assert "--" not in str(error.value)
    assert not Path("runs").exists()  # nothing is left behind


def test_a_missing_column_is_named(trained: fedfloor.Run) -> None:
    with refused("no-column"):
        trained.model.predict({"noise": plant()["noise"]})


@pytest.mark.parametrize(
    "given",
    [
        [1, 2, 3],
        {"a": [1, 2], "b": [1]},
        {"a": np.array([1, "x", None], object)},
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
    ],
)
def test_what_is_no_table_is_refused(given: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingError):
        frames.write(given, tmp_path / "x.parquet")


def test_tables_of_every_kind_are_written_alike(tmp_path: Path) -> None:
    columns = {"n": [1.5, None, 3.0], "t": ["a", None, "b"]}
    kinds: list[Any] = [pa.table(columns)]
    for name in ("pandas", "polars"):
        try:
            kinds.append(__import__(name).DataFrame(columns))
        except ModuleNotFoundError:
            continue

    class Interchanged:
        """A table with the dataframe interchange protocol alone."""

        def __dataframe__(self, **more: Any) -> Any:
            return pa.table(columns).__dataframe__(**more)

    for kind in (*kinds, Interchanged()):
        assert frames.is_frame(kind)
        frames.write(kind, tmp_path / "x.parquet")
        assert parquet.read_table(tmp_path / "x.parquet").to_pydict() == columns


def test_a_sensor_in_another_unit_is_named_everywhere_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The finding is in the notes, each once and in the words of Python, in the draft, the run, and the report."""
    table = plant()
    oil = 40 + np.random.default_rng(1).normal(size=N)
    table["oil"] = np.where(table["machine"] == "m2", 32 + 1.8 * oil, oil)
    done = fedfloor.train(table, device="machine", label="state", rounds=1, out=tmp_path / "plant", ranks=1)
    (finding,) = done.findings
    assert "'m2', sensor 'oil'" in finding
    assert "°F" in finding
    assert "changes={'data.normalise': 'device'}" in finding
    assert finding in done.notes
    logged = [record.getMessage() for record in caplog.records]
    assert sum("°F" in text for text in logged) == 1
    assert len(set(logged)) == len(logged)
    assert not any("--" in text for text in logged)
    drafted = next((tmp_path / "plant").glob("*.toml")).parent / "table.toml"
    assert any("°F" in line for line in drafted.read_text().splitlines() if line.startswith("#"))
    assert fedfloor.load_run(tmp_path / "plant").findings == done.findings
    assert "in °F" in done.report().read_text()
    assert "in °F" in repr(done)
    assert "in °F" in done._repr_html_()


def test_lines_of_a_conversion_name_the_table_in_memory(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(plant()).astype({"state": object})
    table.loc[5:9, "state"] = None
    with refused("conversion") as error:
        fedfloor.train(table, device="machine", label="state")
    text = str(error.value)
    assert "parquet" not in text
    assert "Then give this table." in text
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    given = {"table": table}
    exec("\n".join(lines), given)
    assert len(given["table"]) == N - 5


def test_types_of_pandas_are_read_as_what_they_are(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(
        {
            0: [1.0, 2.0, 3.0],  # a name that is no text
            "month": pandas.period_range("2024-01", periods=3, freq="M"),
            "age": pandas.to_timedelta([1, 2, 3], unit="h"),
            "rare": pandas.arrays.SparseArray([0.0, 1.0, 0.0]),
            "kind": pandas.Categorical(["a", None, "b"]),
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frames.write(table, tmp_path / "table.parquet")
    read = parquet.read_table(tmp_path / "table.parquet").to_pydict()
    assert [str(month)[:7] for month in read["month"]] == ["2024-01", "2024-02", "2024-03"]
    assert read["age"] == [3600.0, 7200.0, 10800.0]
    assert (read["0"], read["rare"], read["kind"]) == ([1.0, 2.0, 3.0], [0.0, 1.0, 0.0], ["a", None, "b"])


def test_lists_of_a_dictionary_may_have_missing_values(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = {"state": ["a", float("nan"), "b"], "time": [pandas.Timestamp("2024-01-01"), pandas.NaT, None]}
    frames.write(table, tmp_path / "table.parquet")
    read = parquet.read_table(tmp_path / "table.parquet").to_pydict()
    assert read["state"] == ["a", None, "b"]
    assert read["time"][1:] == [None, None]


@pytest.mark.parametrize("cells", [[1j], [2**70], [np.zeros((2, 2))], [object()]])
def test_a_column_of_no_type_is_named(cells: list[Any], tmp_path: Path) -> None:
    with refused("not-a-table") as error:
        frames.write({"machine": ["a"], "odd": cells}, tmp_path / "table.parquet")
    assert "'odd'" in str(error.value)


def test_columns_of_several_levels_and_twice_the_same_are_refused(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(np.zeros((2, 2)), columns=pandas.MultiIndex.from_product([["a"], ["b", "c"]]))
    with refused("not-a-table"):
        frames.write(table, tmp_path / "table.parquet")
    table.columns = [" ".join(map(str, name)) for name in table.columns]
    frames.write(table, tmp_path / "table.parquet")
    table.columns = ["x", "x"]
    with refused("repeated-column"):
        frames.write(table, tmp_path / "table.parquet")


def test_columns_of_two_files_keep_their_own_decimal_marks(tmp_path: Path) -> None:
    """No mark of the whole table reads both; what may be thousands, or holds another word, stays as it is."""
    written = {
        "comma": ["20,13", "7", "", "-1,5e2"], "point": ["0.987", "3", "2.5", ""],
        "thousands": ["1,250", "2,000", "3,125", "4,500"], "words": ["20,13", "n/a", "1,5", "2"],
    }  # fmt: skip
    frames.write(pa.table(written), tmp_path / "t.parquet")
    read = parquet.read_table(tmp_path / "t.parquet").to_pydict()
    assert read["comma"] == [20.13, 7.0, None, -150.0]
    assert read["point"] == [0.987, 3.0, 2.5, None]
    assert (read["thousands"], read["words"]) == (written["thousands"], written["words"])
    alone = {name: written[name] for name in ("comma", "thousands", "words")}
    frames.write(pa.table(alone), tmp_path / "t.parquet")  # one mark: data.decimal is about all of them
    assert parquet.read_table(tmp_path / "t.parquet").to_pydict() == alone


def test_a_table_with_two_decimal_marks_trains() -> None:
    table = plant()
    table["temp"] = np.array([f"{value:.2f}".replace(".", ",") for value in table["temp"]])
    table["noise"] = np.array([f"{value:.2f}" for value in table["noise"]])
    run = fedfloor.train(table, device="machine", label="state", rounds=2, name="marks", ranks=1)
    assert run.lines[-1].accuracy is not None
