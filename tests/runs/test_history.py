"""``devices.jsonl``: the headline of every device over the rounds, which a resumed run continues."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commands import Command
from fedfloor.report.devices import device_section
from fedfloor.report.groups import groups
from fedfloor.report.ledger import collect, over_rounds
from fedfloor.runs import history
from run_folders import make_run

pytestmark = pytest.mark.filterwarnings("ignore")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (path / history.FILE).read_text().splitlines()]


def score(*values: float | None) -> Any:
    return cast(Any, SimpleNamespace(devices=values))


def test_rounds_after_the_checkpoint_and_a_torn_line_are_removed(tmp_path: Path) -> None:
    history.cut(tmp_path, 3)  # nothing there
    for number in (2, 4, 6):
        history.append(tmp_path, number, "accuracy", [0, 7], score(0.123456789, None))
    with (tmp_path / history.FILE).open("a") as file:
        file.write('{"round": 8, "dev')
    history.cut(tmp_path, 5)
    assert read(tmp_path) == [{"round": k, "headline": "accuracy", "devices": {"0": 0.12346}} for k in (2, 4)]


@pytest.mark.parametrize("damage", ["\0\0", "null", '{"round": "x"}', "[]"])
def test_a_damaged_line_ends_what_is_kept(tmp_path: Path, damage: str) -> None:
    history.append(tmp_path, 2, "accuracy", [0], score(0.5))
    with (tmp_path / history.FILE).open("a") as file:
        file.write(f"{damage}\n")
    history.append(tmp_path, 3, "accuracy", [0], score(0.5))
    history.cut(tmp_path, 5)
    assert [line["round"] for line in read(tmp_path)] == [2]


def test_large_parks_and_undefined_values_are_left_out(tmp_path: Path) -> None:
    history.append(tmp_path, 1, "loss", [0, 1], score(None, None))
    history.append(tmp_path, 1, "accuracy", list(range(501)), score(*[0.5] * 501))
    assert not (tmp_path / history.FILE).exists()


def test_a_killed_run_continues_its_history_and_the_report_draws_it(command: Command) -> None:
    words = ("run", "tiny.toml", "--set", "method.name=fedavg", "--ranks", "1")
    command(*words, "--out", "whole")
    command(*words, "--out", "cut", "--stop-after", "1")
    command(*words, "--out", "cut", "--resume")
    whole = read(command.folder / "whole")
    assert whole == read(command.folder / "cut")
    evaluation = json.loads((command.folder / "whole" / "evaluation.json").read_text())
    last = {str(place["device"]): history.short(place["accuracy"]) for place in evaluation["devices"]}
    assert whole[-1] == {"round": evaluation["round"], "headline": "accuracy", "devices": last}
    (run,) = collect([command.folder / "whole"])
    assert [number for number, _ in over_rounds(run)[0]] == [line["round"] for line in whole]
    assert "over the rounds" in device_section(groups([run]), {})


def test_a_run_without_a_history_has_no_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [0.5, 0.6])
    places = [{"device": k, "factory": 0, "accuracy": 0.5 + k / 10} for k in range(3)]
    body = {"round": 2, "classes": ["0", "1", "</script>"], "confusion": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}
    (run / "evaluation.json").write_text(json.dumps(body | {"devices": places, "device_accuracy": "measured"}))
    assert "over the rounds" not in device_section(groups(collect([run])), {})
    rows = [{"round": k, "headline": "accuracy", "devices": {"0": k / 10, "1": 0.2}} for k in (1, 2, 3)]
    (run / history.FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = device_section(groups(collect([run])), {})
    assert "round 1: 10.0\xa0%, round 2: 20.0\xa0%" in drawn  # round 3 is not in the ledger
    assert drawn.count("<polyline") == 2
