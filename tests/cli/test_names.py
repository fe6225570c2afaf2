"""Devices and factories that the data name are called by these names wherever people read of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commands import Command
from fedfloor.report import charts
from fedfloor.report.ledger import read_run

NUMBERED = re.compile(r"\b(factory|factories|edge|edges|device|devices) \d")
PLANT = """
name = "plant"
rounds = 1
[data]
path = "plant.csv"
columns = { device = "machine", label = "state", FACTORY }
[model]
name = "mlp-sensor"
[method]
name = "METHOD"
[work]
epochs = 1
batch_size = 8
[network]
profile = "wifi"
"""


def plant(folder: Path, *, factories: bool = True, method: str = "fedsr") -> None:
    """Write a table of four machines in two halls, and an experiment for it."""
    lines = ["hall,machine,a,b,state"]
    for k, machine in enumerate(("pump-7", "pump-9", "press & line north 4", "saw-1")):
        hall = "Halle Süd" if k < 2 else "Halle Nord"
        lines += [f"{hall},{machine},{r * (k + 1)},{r % 7},{'ok' if r % 3 else 'fault'}" for r in range(60)]
    (folder / "plant.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = 'factory = "hall"' if factories else 'ignore = ["hall"]'
    (folder / "plant.toml").write_text(PLANT.replace("FACTORY", columns).replace("METHOD", method), encoding="utf-8")


@pytest.mark.parametrize("factories", [True, False])
@pytest.mark.parametrize("method", ["fedsr", "hierfavg", "fedgs"])
def test_a_report_of_named_devices_and_factories_numbers_none(factories: bool, method: str, command: Command) -> None:
    """Nor the factory that all machines are in where the data name no factory."""
    plant(command.folder, factories=factories, method=method)
    assert command("run", "plant.toml", "--out", "done").code == 0
    page = (command.folder / "done" / "report.html").read_text(encoding="utf-8")
    text = re.sub(r"<script>.*?</script>", "", page, flags=re.S)  # Plotly's own words
    assert "factory 0" not in page
    assert "edge 0" not in page
    assert not NUMBERED.findall(text)
    for name in ("pump-7", "saw-1", "press &amp; line north 4", *(["Halle Süd"] if factories else [])):
        assert name in text


def test_names_below_bubbles_need_no_title_and_bubbles_do_not_touch(command: Command) -> None:
    plant(command.folder)
    assert command("run", "plant.toml", "--out", "done").code == 0
    park = read_run(command.folder / "done").park
    drawn = charts.holdings_figure(park)
    assert not drawn.layout.xaxis.title.text
    assert list(drawn.layout.xaxis.ticktext) == ["press & line north 4", "saw-1", "pump-7", "pump-9"]
    page = (command.folder / "done" / "report.html").read_text(encoding="utf-8")
    width = re.search(r'id="holdings-0"', page) and re.search(r'class="wide" style="min-width:(\d+)px"', page)
    assert width
    assert int(width[1]) - 80 >= charts.bubble_px(park) * len(park.devices)


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_errors_of_a_run_name_the_device(command: Command, ranks: str) -> None:
    plant(command.folder, method="fedavg")
    said = command("run", "plant.toml", "--set", "work.lr=1e12", "--ranks", ranks)
    assert said.code == 1
    assert re.search(r"device '(pump-7|pump-9|press & line north 4|saw-1)'", said.err)
    assert not NUMBERED.findall(said.err)


def test_commands_name_devices_and_json_has_numbers_with_a_table_of_names(command: Command) -> None:
    plant(command.folder)
    for words in (("draw", "plant.toml"), ("price", "plant.toml")):
        said = command(*words)
        assert said.code == 0
        assert "pump-7" in said.out or "saw-1" in said.out
        assert not NUMBERED.findall(said.out)
        names = command(*words, "--json").document["names"]
        assert names["devices"] == {"0": "press & line north 4", "1": "pump-7", "2": "pump-9", "3": "saw-1"}
        assert names["factories"] == {"0": "Halle Nord", "1": "Halle Süd"}
    assert command("draw", "plant.toml", "--svg", "plan.svg").code == 0
    picture = (command.folder / "plan.svg").read_text(encoding="utf-8")
    assert "Halle Süd" in picture
    assert "press &amp;…north 4" in picture  # a long name keeps its two ends, and is whole in the tooltip
    assert "<title>press &amp; line north 4: " in picture
