"""Damaged and strange run folders: every command that reads one works, or ends with a message that names the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedfloor
from commands import Command
from damage import damaged
from fedfloor.experiment import DataSettings, Experiment, MethodSettings, ModelSettings, ParkSettings
from fedfloor.network.profile import NetworkSettings, profiles
from fedfloor.park.stream import Recycle
from fedfloor.parts.work import WorkSettings

RECORDS = ("ledger.jsonl", "park.json", "plan.json", "evaluation.json", "privacy.json", "experiment.toml")
NETWORK = "hall.toml"
# the files that are damaged, how many folders, and what is typed
COMMANDS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "report": (RECORDS, 240, "report run whole --out page.html --json"),
    "track": (RECORDS, 60, "track run --to csv --out all.csv"),
    "draw": (("experiment.toml",), 100, "draw run/experiment.toml --svg plan.svg"),
    "predict": (("model.safetensors",), 100, "predict run dark.png"),
    "price": (("experiment.toml",), 200, "price run/experiment.toml --rounds 1"),
    "price-on": ((NETWORK,), 200, f"price run/experiment.toml --rounds 1 --set network.profile=run/{NETWORK}"),
    "price-runs": ((*RECORDS, NETWORK, NETWORK), 300, f"price run --network run/{NETWORK} --out copies"),
}
UNNAMED = ("draw", "predict", "price")  # one file is typed, and it is not always the file that is at fault


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    what = Experiment(
        rounds=3, data=DataSettings(samples_per_device=40, stream=Recycle(window=10)), model=ModelSettings("logistic"),
        park=ParkSettings(devices=4, factories=2, census_epsilon=5.0), method=MethodSettings("fedgs"),
        work=WorkSettings(short_batches=True), network=NetworkSettings("5g-edge"),
    )  # fmt: skip
    folder = fedfloor.run(what, tmp_path_factory.mktemp("runs") / "whole", ranks=1).folder
    shutil.copy(profiles()["wifi"], folder / NETWORK)
    return folder


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
        said = command(*words.split())
        codes.append(said.code)
        assert said.code in (0, 2), (seed, file, said.err)
        if said.code:
            assert "error: " in said.err, (seed, file)
            assert name in UNNAMED or Path(file).stem in said.err or "run, round" in said.err, (seed, file, said.err)
        shutil.rmtree(command.folder / "copies", ignore_errors=True)
    assert codes.count(2) > count / 3  # the damage is damage
    assert codes.count(0) > count / 20  # and not every one is
