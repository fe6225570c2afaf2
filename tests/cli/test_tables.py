"""Tables on terminals: no cell is cut, however narrow the terminal is."""

from __future__ import annotations

import pytest

from fedfloor.runs.terminal import show

ROWS = [
    {
        "method": name, "against": "scikit-learn", "seeds": [0, 1, 2], "rounds": 404, "difference": value,
        "low": value - 0.1234, "high": value + 0.1234, "over": "12 test recordings, each drawn again",
        "p": 0.0123, "p_holm": 0.0246, "accuracy": 0.9, "loss": 1.5, "wall_s": 1234.5,
    }
    for name, value in (("fedavg", -0.5073), ("fedsr", 0.25))
]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100, 300])
def test_no_cell_is_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show(ROWS, as_json=False, title="two methods")
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    cells = ["fedavg", "scikit-learn", "-0.5073", "-0.6307", "0.3734", "0.0123", "0.0246", "404", "1,234.5", "0, 1, 2"]
    assert all(cell in text for cell in cells)
    assert text.count("two methods") == 1
    tables = sum("──" in line for line in lines)
    assert (tables == 1) == (width == 300)
    assert all("against" in line for line in lines if "method " in line)  # each table says of whom it is
    assert sum(line.split()[:1] == ["fedsr"] for line in lines) == tables


def test_a_table_without_texts_has_nothing_to_repeat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    show([{"seconds": 1.5, "bytes": 12_345, "joules": 0.25}], as_json=False)
    text = capsys.readouterr().out
    assert [text.count(cell) for cell in ("1.5000", "12345", "0.2500")] == [1, 1, 1]


@pytest.mark.parametrize("name", ["Drehzahl [/min]", "Wirkarbeit [kWh]", "load [bold]"])
def test_a_heading_is_shown_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    show([{"row": 1, name: 2.5}], as_json=False)
    assert name in capsys.readouterr().out
