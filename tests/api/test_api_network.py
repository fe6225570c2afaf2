"""Networks of one's own with settings: recorded with the run, so that resume and load build the same model."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedfloor
from fedfloor import ModelSettings, config
from fedfloor.experiment import Experiment
from fedfloor.models.network import builder
from refusals import refused

SMALL: dict[str, Any] = {"devices": 2, "rounds": 1, "changes": {"data.samples_per_device": 20}, "ranks": 1}


class Layers(nn.Sequential):
    """A network with hidden layers of given sizes."""

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (8,), *, drop: float = 0.0):
        sizes = (math.prod(shape), *hidden, classes)
        super().__init__(nn.Flatten(), nn.Dropout(drop), *(nn.Linear(*pair) for pair in pairwise(sizes)))
        assert isinstance(hidden, tuple)  # as its default is


def sized(shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
    return Layers(shape, classes, (hidden,))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_settings_are_part_of_the_experiment() -> None:
    one = fedfloor.load("labels", model=partial(Layers, hidden=(32, np.int64(16)), drop=np.float64(0.5)))
    same = Experiment("labels", model=ModelSettings(Layers, settings={"hidden": [32, 16], "drop": 0.5}), work=one.work)
    assert one.model.settings == {"hidden": [32, 16], "drop": 0.5}
    assert one == same
    assert one != fedfloor.load("labels", model=partial(Layers, hidden=(32, 17), drop=0.5))
    for text in (config.brief(one), config.resolved(one)):
        Path("again.toml").write_text(text)
        assert config.read(Path("again.toml")).model == one.model
    assert fedfloor.load("labels", model=ModelSettings(partial(Layers, drop=0.5)).name).model.settings is None


def test_another_network_inherits_no_settings() -> None:
    one = fedfloor.load("labels", model=partial(Layers, hidden=[4]))
    assert fedfloor.load(one, model=Layers).model.settings is None
    assert fedfloor.load(one, model="lenet").model.settings is None
    assert fedfloor.load(one, rounds=3).model.settings == {"hidden": [4]}
    assert fedfloor.load(one, changes={"model.settings.drop": 0.5}).model.settings == {"hidden": [4], "drop": 0.5}


def test_a_run_is_resumed_and_loaded_with_its_settings() -> None:
    run = fedfloor.run("labels", model=partial(Layers, hidden=(5, 3)), **SMALL)
    assert run.model.trained.raw.network[2].out_features == 5  # type: ignore[union-attr, index]
    again = fedfloor.run(run.folder / "experiment.toml", run.folder, resume=True, force=True, rounds=2, ranks=1)
    assert len(again.lines) == 2
    other = {"changes": {"model.settings.hidden": [6, 3]}, "resume": True, "ranks": 1}
    with refused("run-differs"):
        fedfloor.run(run.folder / "experiment.toml", run.folder, **other)
    on = fedfloor.run("labels", "on", model=partial(Layers, hidden=(5, 3)), **SMALL | {"changes": {
        "data.samples_per_device": 20, "model.init_from": str(run.folder)
    }})  # fmt: skip
    assert on.folder == Path("on")


def test_a_table_is_trained_by_a_network_with_settings() -> None:
    rng = np.random.default_rng(0)
    table = {"machine": np.repeat(["a", "b"], 40), "load": rng.random(80)}
    table["state"] = np.where(table["load"] > 0.5, "worn", "good")
    columns = {"device": "machine", "label": "state"}
    run = fedfloor.train(
        table, model=partial(Layers, hidden=(7,)), method="fedavg", rounds=1, references=False, ranks=1, **columns
    )  # fmt: skip
    assert run.model.trained.raw.network[2].out_features == 7  # type: ignore[union-attr, index]


def test_any_settings_reach_a_function_that_takes_any() -> None:
    def free(*_: object, **settings: object) -> nn.Module:
        return nn.Linear(int(str(settings["size"])), 1)

    made = builder(ModelSettings(partial(free, size=3)).name, {"size": 3})((1,), 1)
    assert isinstance(made, nn.Linear)
    assert torch.is_tensor(made.weight)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        (partial(Layers, 3), "model.name"),
        (partial(Layers, hiden=3), "model.settings"),
        (partial(Layers, drop=None), "model.settings.drop"),
        (partial(Layers, hidden=[object()]), "model.settings.hidden"),
        (sized, "model.settings"),
        (nn.Linear(3, 2), "model.name"),
    ],
)
def test_what_is_refused(model: object, key: str) -> None:
    with refused(key, varies=r"0x\w+"):
        fedfloor.run("labels", model=model, **SMALL)


def test_a_network_of_ours_has_no_settings() -> None:
    with refused("model.settings"):
        fedfloor.run("labels", model="lenet", **SMALL | {"changes": {"model.settings": {"hidden": 3}}})
