"""Damaged and strange run folders: every command that reads one works, or ends with a message that names the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedfloor
from commands import Command
from damage import damaged
from fedfloor.experiment import DataSettings, Experiment, MethodSettings, ModelSettings, ParkSettings
from fedfloor.network.settings import NetworkSettings
from fedfloor.park.stream import Recycle
from fedfloor.parts.work import WorkSettings

RECORDS = ("ledger.jsonl", "park.json", "plan.json", "evaluation.json", "privacy.json", "experiment.toml")
# command → the files that are damaged, how many folders, and what is typed behind the folder
COMMANDS: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "report": (RECORDS, 240, ("whole", "--out", "page.html", "--json")),
    "track": (RECORDS, 60, ("--to", "csv", "--out", "all.csv")),
    "draw": (("experiment.toml",), 100, ("--svg", "plan.svg")),
    "predict": (("model.safetensors",), 100, ("dark.png",)),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    what = Experiment(
        rounds=3, data=DataSettings(samples_per_device=40, stream=Recycle(window=10)), model=ModelSettings("logistic"),
        park=ParkSettings(devices=4, factories=2, census_epsilon=5.0), method=MethodSettings("fedgs"),
        work=WorkSettings(short_batches=True), network=NetworkSettings("5g-edge"),
    )  # fmt: skip
    return fedfloor.run(what, tmp_path_factory.mktemp("runs") / "whole", ranks=1).folder


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_no_damage_is_a_traceback(name: str, whole: Path, command: Command) -> None:
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(command.folder / "dark.png")
    (command.folder / "whole").symlink_to(whole)
    files, count, words = COMMANDS[name]
    codes = []
    for seed in range(count):
        file = damaged(seed, whole, command.folder / "run", files)
        (command.folder / "run" / "model.safetensors.sha256").unlink(missing_ok=True)  # it would refuse all damage
        said = command(name, "run/experiment.toml" if name == "draw" else "run", *words)
        codes.append(said.code)
        assert said.code in (0, 1, 2), (seed, file)
        if said.code:
            assert "error: " in said.err, (seed, file)
            assert name in ("draw", "predict") or file in said.err, (seed, file, said.err)
    assert codes.count(2) > count / 3  # the damage is damage
    assert codes.count(0) > count / 20  # and not every one is
