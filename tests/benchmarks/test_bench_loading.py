from __future__ import annotations

import pytest

from commands import Command, idx


def test_a_row_per_data_set_that_is_there(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(idx(command.folder)))
    said = command("bench", "loading", "--rows", "20000", "--json")
    assert [row["data_set"] for row in said.document["rows"]] == ["mnist", "table, 20,000 × 12"]
    table = said.document["rows"][1]
    assert table["arrays_mib"] == pytest.approx(20_000 * (9 * 4 + 8 + 4) / (1 << 20), abs=0.1)
    row = said.document["rows"][0]
    assert row["peak_mib"] > 0
    assert row["first_s"] > 0
    assert "femnist: not there" in said.err


def test_a_failing_load_is_an_error(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    root = idx(command.folder)
    path = root / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    monkeypatch.setenv("FEDFLOOR_DATA", str(root))
    said = command("bench", "loading", "--only", "mnist")
    assert said.code == 1
    assert "loading mnist failed" in said.err
    assert "cut short" in said.err


def test_too_few_rows_are_refused(command: Command) -> None:
    command.refused(command("bench", "loading", "--only", "table", "--rows", "30"), "--rows = 30: must be")
    command.refused(command("bench", "price", "--rows", "300"), "--rows belong to fedfloor bench loading")


def test_an_unknown_benchmark(command: Command) -> None:
    command.refused(command("bench", "lodaing"), "Did you mean 'loading'?")
