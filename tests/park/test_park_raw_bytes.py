"""The size of the raw data beside which training is priced."""

from __future__ import annotations

import json
from pathlib import Path

from commands import Command
from fedfloor import config
from fedfloor.park.described import raw_bytes
from fedfloor.report.numbers import amount
from fedfloor.runs.parks import build_park


def rows(folder: Path) -> Path:
    lines = [f"m{n % 2},{n // 2},{n % 7}.5,{n % 3},{'aab'[n // 2 % 3]}" for n in range(100)]
    path = folder / "rows.csv"
    path.write_text("\n".join(["device,time,x,y,label", *lines]) + "\n")
    return path


def of(path: Path, **data: object) -> int:
    return raw_bytes(build_park(config.from_table({"data": {"path": str(path), **data}})))


def test_raw_bytes_are_those_of_training_values_and_common_rows_count_once(tmp_path: Path) -> None:
    path = rows(tmp_path)
    assert of(path) == 2 * 40 * 2 * 4  # devices, training rows of 50, sensors, bytes
    window = {"length": 10, "step": 1}
    assert of(path, window=window) == 2 * 40 * 2 * 4  # 31 windows of ten in 40 rows
    apart = {"length": 10, "step": 10}
    assert of(path, window=apart) == 2 * 40 * 2 * 4
    pictures = config.from_table({"data": {"name": "labels", "samples_per_device": 40}, "park": {"devices": 3}})
    assert raw_bytes(build_park(pictures)) == 3 * 40 * 28 * 28


def test_price_draft_and_report_state_them(command: Command) -> None:
    rows(command.folder)
    said = command("new", "rows.csv", "--out", "e.toml", "--set", "network.profile=lte-cat-m2", "--set", "rounds=2")
    assert said.code == 0
    assert "the devices' training data have" in (command.folder / "e.toml").read_text()
    (priced,) = command("price", "e.toml", "--json").document["rows"]
    assert command("run", "e.toml", "--ranks", "1", "--out", "out").code == 0
    park = json.loads((command.folder / "out/park.json").read_text())
    assert park["raw_bytes"] == priced["raw_MB"] * 1e6
    assert command("report", "out", "--out", "r.html").code == 0
    assert f"{amount('bytes', park['raw_bytes'])}; training sent" in (command.folder / "r.html").read_text()
