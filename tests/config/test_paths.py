"""Paths in experiment files: relative ones begin at the file, wherever a command is started."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from commands import Command, lines
from fedfloor import config
from own_arrays import rows

OWN = """
rounds = 2
[data]
path = "data/own.npz"
[model]
name = "logistic"
[work]
batch_size = 2
"""


@pytest.fixture
def plant(command: Command) -> Command:
    """``plant/own.toml`` with data beside it."""
    (command.folder / "plant" / "data").mkdir(parents=True)
    np.savez(command.folder / "plant" / "data" / "own.npz", **rows())
    (command.folder / "plant" / "own.toml").write_text(OWN)
    return command


def path_in(file: Path) -> str:
    return str(tomllib.loads(file.read_text())["data"]["path"])


def same(one: Path, other: Path) -> bool:
    return lines(one) == lines(other) and (one / "park.json").read_bytes() == (other / "park.json").read_bytes()


def test_a_run_says_its_data_from_its_own_folder(plant: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ("--ranks", "1")
    assert plant("run", "plant/own.toml", *run, "--out", "runs/a").code == 0
    first = plant.folder / "runs" / "a"
    assert path_in(first / "experiment.toml") == "../../plant/data/own.npz"
    assert plant("run", "runs/a/experiment.toml", *run, "--out", "b").code == 0
    assert path_in(plant.folder / "b" / "experiment.toml") == "../plant/data/own.npz"
    monkeypatch.chdir(first)
    assert plant("run", "experiment.toml", *run, "--out", "../c").code == 0
    for other in (plant.folder / "b", plant.folder / "runs" / "c"):
        assert same(first, other)


@pytest.mark.parametrize("start", [".", "plant", "runs/a"])
def test_a_resume_may_be_started_anywhere(start: str, plant: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    plant("run", "plant/own.toml", "--ranks", "1", "--out", "whole")
    plant("run", "plant/own.toml", "--ranks", "1", "--out", "runs/a", "--stop-after", "1")
    monkeypatch.chdir(plant.folder / start)
    for file in (plant.folder / "plant/own.toml", plant.folder / "runs/a/experiment.toml"):
        out = plant.folder / "runs" / "a"
        assert plant("run", str(file), "--ranks", "1", "--out", str(out), "--resume").code == 0
        assert same(out, plant.folder / "whole")


def test_best_settings_say_their_data_from_their_own_folder(plant: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = ("sweep", "plant/own.toml", "--ranks", "1", "--methods", "fedavg", "--grid", "work.lr=0.1,0.2")
    assert plant(*swept, "--set", "evaluate.validation=0.4", "--out", "all").code == 0
    monkeypatch.chdir(plant.folder / "all")
    assert path_in(Path("best.toml")) == "../plant/data/own.npz"
    assert plant("compare", "best.toml", "--ranks", "1", "--methods", "fedavg", "--stop-after", "1").code == 0


def test_a_link_is_left_by_where_it_leads_to(plant: Command) -> None:
    (plant.folder / "disk" / "deep" / "er").mkdir(parents=True)
    (plant.folder / "runs").symlink_to("disk/deep/er")
    (plant.folder / "own.npz").symlink_to("plant/data/own.npz")
    said = plant("run", "plant/own.toml", "--set", "data.path=own.npz", "--ranks", "1", "--out", "runs/a")
    assert said.code == 0
    assert path_in(plant.folder / "runs" / "a" / "experiment.toml") == "../../../../own.npz"  # the link, not its end
    assert plant("run", "runs/a/experiment.toml", "--ranks", "1", "--out", "again").code == 0


def test_absolute_paths_stay(plant: Command) -> None:
    there = str(plant.folder / "plant" / "data" / "own.npz")
    plant("run", "plant/own.toml", "--set", f"data.path={json.dumps(there)}", "--ranks", "1", "--out", "runs/a")
    assert path_in(plant.folder / "runs" / "a" / "experiment.toml") == there


def test_the_folder_of_data_sets_is_a_path_too(plant: Command) -> None:
    file = plant.folder / "plant" / "published.toml"
    file.write_text('[data]\nname = "mnist"\nroot = "data"\n')
    assert config.read(Path("plant/published.toml")).data.root == "plant/data"
    (plant.folder / "here").mkdir()
    assert config.read(Path("plant/published.toml"), ["data.root=here"]).data.root == "here"
    placed = config.placed(config.read(Path("plant/published.toml")), Path("runs/a"))
    assert placed.data.root == "../../plant/data"


HALL = """
[device_edge]
up_bps = 1e6
down_bps = 2e6
sharing = "serial"
"""


@pytest.fixture
def hall(plant: Command) -> Command:
    """``plant/priced.toml``, whose network stands beside it in ``plant/nets/hall.toml``."""
    (plant.folder / "plant" / "nets").mkdir()
    (plant.folder / "plant" / "nets" / "hall.toml").write_text(HALL)
    (plant.folder / "plant" / "priced.toml").write_text(OWN + '[network]\nprofile = "nets/hall.toml"\n')
    return plant


def profile_in(file: Path) -> str:
    return str(tomllib.loads(file.read_text())["network"]["profile"])


def test_a_run_says_its_network_from_its_own_folder(hall: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ("--ranks", "1")
    assert hall("run", "plant/priced.toml", *run, "--out", "runs/a").code == 0
    first = hall.folder / "runs" / "a"
    assert lines(first)[0]["priced"]["seconds"] > 0
    assert profile_in(first / "experiment.toml") == "../../plant/nets/hall.toml"
    assert hall("run", "runs/a/experiment.toml", *run, "--out", "b").code == 0
    assert profile_in(hall.folder / "b" / "experiment.toml") == "../plant/nets/hall.toml"
    monkeypatch.chdir(first)
    assert hall("run", "experiment.toml", *run, "--out", "../c").code == 0
    for other in (hall.folder / "b", hall.folder / "runs" / "c"):
        assert same(first, other)


@pytest.mark.parametrize("start", [".", "plant", "runs/a"])
def test_a_priced_run_may_be_resumed_anywhere(start: str, hall: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    hall("run", "plant/priced.toml", "--ranks", "1", "--out", "whole")
    hall("run", "plant/priced.toml", "--ranks", "1", "--out", "runs/a", "--stop-after", "1")
    monkeypatch.chdir(hall.folder / start)
    for file in (hall.folder / "plant/priced.toml", hall.folder / "runs/a/experiment.toml"):
        out = hall.folder / "runs" / "a"
        assert hall("run", str(file), "--ranks", "1", "--out", str(out), "--resume").code == 0
        assert same(out, hall.folder / "whole")


def test_a_run_goes_on_with_the_network_it_began_with(hall: Command) -> None:
    hall("run", "plant/priced.toml", "--ranks", "1", "--out", "whole")
    hall("run", "plant/priced.toml", "--ranks", "1", "--out", "a", "--stop-after", "1")
    (hall.folder / "plant" / "nets" / "hall.toml").write_text(HALL.replace("1e6", "5e6"))
    changed = hall("run", "plant/priced.toml", "--ranks", "1", "--out", "a", "--resume")
    hall.refused(changed, "network.device_edge.up_bps: 1000000.0 → 5000000.0")
    assert hall("run", "a/experiment.toml", "--ranks", "1", "--out", "a", "--resume").code == 0
    assert same(hall.folder / "a", hall.folder / "whole")


def test_a_source_told_in_other_words_is_no_other_network(hall: Command) -> None:
    hall("run", "plant/priced.toml", "--ranks", "1", "--out", "a", "--stop-after", "1")
    (hall.folder / "plant" / "nets" / "hall.toml").write_text(HALL + 'source = "measured"\n')
    assert hall("run", "plant/priced.toml", "--ranks", "1", "--out", "a", "--resume").code == 0


def test_a_network_is_looked_for_beside_the_file_and_then_here(hall: Command) -> None:
    (hall.folder / "here.toml").write_text(HALL)
    told = config.read(Path("plant/priced.toml"), ["network.profile=here.toml"])
    assert told.network.profile == "here.toml"
    assert config.read(Path("plant/priced.toml")).network.profile == "plant/nets/hall.toml"
    assert config.read(Path("plant/priced.toml"), ["network.profile=wifi"]).network.profile == "wifi"
    placed = config.placed(config.read(Path("plant/priced.toml")), Path("runs/a"))
    assert placed.network.profile == "../../plant/nets/hall.toml"


def test_a_network_that_is_not_there(hall: Command) -> None:
    said = hall("run", "plant/priced.toml", "--set", "network.profile=hal.toml", "--ranks", "1", "--out", "a")
    hall.refused(said, f"network.profile: {Path('plant') / 'hal.toml'}: No such file or directory.")


@pytest.mark.parametrize("words", [
    "run tiny.toml --set network.profile=~nobodyatall/hall.toml",
    "run tiny.toml --set data.path=~nobodyatall/x.csv",
    "run tiny.toml --set data.name=mnist --set data.root=~nobodyatall",
    "new ~nobodyatall/x.csv",
    "datasets get mnist --root ~nobodyatall",
])  # fmt: skip
def test_a_user_who_is_not_there(words: str, command: Command) -> None:
    command.refused(command(*words.split()), "~nobodyatall", "Give the full path.")
