from __future__ import annotations

from pathlib import Path

import pytest

from fedfloor.base.errors import SettingError
from fedfloor.data.sources import CATALOG, SOURCES, data_root, load, looked_in
from refusals import refused


def test_root_is_the_variable_or_the_users_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.setenv("FEDFLOOR_DATA", "")
    assert data_root().name == "fedfloor"


def test_unknown_names_are_answered_with_the_nearest() -> None:
    for ask in (load, lambda name: looked_in([name])):
        with pytest.raises(SettingError, match=r"unknown data set 'mnits'\. Did you mean 'mnist'"):
            ask("mnits")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10", "cifar-100", "femnist"])
def test_missing_data_say_where_which_and_how(tmp_path: Path, name: str) -> None:
    with refused("published-file-missing") as caught:
        load(name, root=tmp_path)
    message = str(caught.value)
    for words in (
        str(tmp_path / name),
        CATALOG[name]["files"][0],
        CATALOG[name]["authors"],
        "FEDFLOOR_DATA",
        "'labels'",
    ):
        assert words in message


def test_labels_need_a_number_of_devices() -> None:
    with refused("park.devices"):
        load("labels")


def test_table_of_an_empty_root(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in looked_in(root=tmp_path)}
    assert list(rows) == list(SOURCES)
    assert rows["labels"]["found"] is True
    assert rows["mnist"]["found"] is False
    assert "train-images-idx3-ubyte.gz" in str(rows["mnist"]["how"])


def test_table_reports_a_folder_without_its_files(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "cifar-100").mkdir()
    (tmp_path / "femnist").mkdir()
    for row in looked_in(["mnist", "cifar-100", "femnist"], tmp_path):
        assert row["found"] is False
        assert row["samples"] is None
        assert "Put" in str(row["how"])
        assert "http" in str(row["how"])


@pytest.mark.slow
def test_table_of_the_real_data(data_root: Path) -> None:
    sizes = {row["name"]: (row["samples"], row["test_samples"]) for row in looked_in(root=data_root)}
    assert sizes == {
        "labels": (None, None),
        "procedural": (None, None),
        "machines": (None, None),
        "mnist": (60_000, 10_000),
        "fashion-mnist": (60_000, 10_000),
        "cifar-10": (50_000, 10_000),
        "cifar-100": (None, None),  # not there
        "femnist": (41_257, 4_701),
        "tless": (None, None),  # not there
        "tep": (500 + 21 * 480, 22 * 960),
        "cmapss": (None, None),  # windows decide
        "skab": (None, None),
    }
