"""Settings made in Python: checked as in an experiment file, with parts, methods and networks as objects."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedfloor
from fedfloor import (
    DataSettings,
    Dirichlet,
    Experiment,
    FedAvg,
    FedProx,
    MethodSettings,
    Mix,
    ModelSettings,
    ParkSettings,
    SettingError,
    Shards,
    TimeSplit,
    Window,
    WorkSettings,
)
from fedfloor.base.outside import load, only_here
from fedfloor.config import from_table, resolved
from fedfloor.parts.attacks import SignFlip
from refusals import refused


@dataclass(frozen=True)
class Capped(Mix):
    """A mean in which no device counts for more than ``most`` samples."""

    most: int = 1000

    def weight(self, samples: int) -> float:
        return float(min(samples, self.most))


@dataclass(frozen=True)
class Lazy(FedAvg):
    """FedAvg with a setting of its own."""

    mu: float = 1.0


def small(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


def test_the_first_argument_of_data_is_the_data_sets_name() -> None:
    assert DataSettings("cifar-10") == DataSettings(name="cifar-10")
    assert DataSettings("cifar-10", partition=Dirichlet(0.1)).partition == Dirichlet(alpha=0.1)
    for call in (
        lambda: DataSettings("mnist", "table"),  # type: ignore[misc]
        lambda: ParkSettings(4),  # type: ignore[misc]
        lambda: WorkSettings(1),  # type: ignore[misc]
        lambda: Experiment("x", 1),  # type: ignore[misc]
        lambda: MethodSettings("fedavg", "plain"),  # type: ignore[misc]
    ):
        with pytest.raises(TypeError, match="positional"):
            call()


@pytest.mark.parametrize(("kind", "value"), [(Dirichlet, 0.2), (Shards, 3), (TimeSplit, 0.25), (Window, 20)])
def test_the_first_argument_of_a_kind_is_its_first_setting(kind: Callable[..., Any], value: float) -> None:
    got = kind(value)
    assert value in vars(got).values()
    assert vars(got).get("kind") != value


def test_names_and_tables_become_settings_as_in_a_file() -> None:
    got = Experiment(
        "x",
        data="mnist",
        method="fedsr",
        model="lenet",
        rounds=np.int64(3),  # type: ignore[arg-type]
        park={"devices": 4},
        work={"lr": 1, "epochs": 2},  # type: ignore[arg-type]
    )
    assert got == Experiment(
        "x",
        data=DataSettings("mnist"),
        method=MethodSettings("fedsr"),
        model=ModelSettings("lenet"),
        rounds=3,
        park=ParkSettings(devices=4),
        work=WorkSettings(lr=1.0, epochs=2),
    )
    assert type(got.rounds) is int
    assert DataSettings("mnist", partition={"kind": "shards"}) == DataSettings("mnist", partition=Shards())  # type: ignore[arg-type]
    assert DataSettings(path=Path("a.csv"), classes=["a", "b"]) == DataSettings(path="a.csv", classes=("a", "b"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Experiment(rounds="3"), "rounds"),
        (lambda: Experiment(rounds=True), "rounds"),
        (lambda: Experiment(data=3), "data"),
        (lambda: Experiment(method=3), "method"),
        (lambda: Experiment(data=ParkSettings()), "data"),
        (lambda: ParkSettings(devices=2.5), "park.devices"),
        (lambda: WorkSettings(lr="fast"), "work.lr"),
        (lambda: DataSettings(partition="dirichlet"), "data.partition"),
        (lambda: DataSettings(partition={"kind": "dirichlet", "beta": 1}), "data.partition"),
        (lambda: MethodSettings(mix=3), "method.mix"),
        (lambda: MethodSettings(mix=object()), "method.mix"),
        (lambda: ModelSettings(nn.Linear(2, 2)), "model.name"),
        (lambda: ModelSettings(lambda shape, classes: small(shape, classes)), "model.name"),
        (lambda: MethodSettings(FedProx(mu=0.5)), "method.name"),
        (lambda: fedfloor.EngineSettings(kind="gpu"), "engine.kind"),
        (lambda: fedfloor.NetworkSettings(5), "network.profile"),
        (lambda: fedfloor.DecideSettings(1), "decide.positive"),
        (lambda: fedfloor.EvaluateSettings(every=1.5), "evaluate.every"),
        (lambda: fedfloor.FaultSettings(visit="0.1"), "faults.visit"),
        (lambda: fedfloor.DeploySettings(quorum="half"), "deploy.quorum"),
        (lambda: fedfloor.DeploySettings(norm_limit="off"), "deploy.norm_limit"),
        (lambda: fedfloor.FaultSettings(attackers={"kind": "my-attacks:Sly", "count": 1}), "faults.attackers.kind"),
    ],
)
def test_a_wrong_value_is_refused_at_once_by_its_key(make: Callable[[], object], key: str) -> None:
    with pytest.raises(SettingError) as error:
        make()
    assert key in str(error.value)


def test_objects_are_recorded_by_name_and_settings() -> None:
    got = Experiment("x", model=small, method=Lazy(fraction=0.5, mu=0.1, work=WorkSettings(epochs=2)))  # type: ignore[arg-type]
    name = f"{__name__}:Lazy"
    assert (got.method.name, got.model.name) == (name, f"{__name__}:small")
    assert dict(got.methods) == {name: {"fraction": 0.5, "mu": 0.1, "work": {"epochs": 2}}}
    assert got.configured.method == Lazy(0.5, got.configured.method.work, 0.1)  # type: ignore[attr-defined]
    assert from_table(tomllib.loads(resolved(got))).methods[name]["mu"] == 0.1
    built_in = Experiment("x", method=FedProx(mu=0.5))  # type: ignore[arg-type]
    assert (built_in.method.name, dict(built_in.methods)) == ("fedprox", {"fedprox": {"mu": 0.5}})


def test_an_experiment_shows_what_differs_from_its_defaults() -> None:
    shown = repr(Experiment("x", rounds=3, method="fedsr", work=WorkSettings(lr=0.1)))
    assert shown == "Experiment(name='x', rounds=3, method=MethodSettings(name='fedsr'), work=WorkSettings(lr=0.1))"


def test_parts_are_recorded_by_name_and_settings() -> None:
    given = MethodSettings("fedavg", mix=Capped(500), server=fedfloor.Sgd(0.5), objective=fedfloor.Plain())
    assert given.mix == {"kind": f"{__name__}:Capped", "most": 500}
    assert (given.server, given.objective) == ({"kind": "sgd", "rate": 0.5}, {"kind": "plain"})
    parts = Experiment(method=given).configured.parts
    assert (parts.mix, parts.server) == (Capped(500), fedfloor.Sgd(0.5))


def test_built_in_codecs_limits_and_attacks_are_recorded_by_name() -> None:
    assert fedfloor.DeploySettings(norm_limit=fedfloor.NormLimit(3.0)).norm_limit == {"kind": "norm", "factor": 3.0}
    assert MethodSettings(travel=fedfloor.TopK(share=0.1)).travel == {"kind": "top-k", "share": 0.1}
    flipped = fedfloor.FaultSettings(attackers={"kind": SignFlip(2.0), "count": 1}).attackers
    assert flipped == {"kind": "sign-flip", "strength": 2.0, "count": 1}


def test_classes_of_one_name_in_functions_are_told_apart() -> None:
    def made(factor: float) -> type[Mix]:
        @dataclass(frozen=True)
        class Scaled(Mix):
            """A mean with weights multiplied by a factor that is no setting."""

            def weight(self, samples: int) -> float:
                return factor * samples

        return Scaled

    experiments = [Experiment(method=MethodSettings(mix=made(factor)())) for factor in (1.0, 2.0)]
    weights = [each.configured.parts.mix.weight(10) for each in experiments]  # type: ignore[union-attr]
    assert weights == [10.0, 20.0]
    names = [each.method.mix["kind"] for each in experiments]  # type: ignore[index, call-overload]
    assert all(map(only_here, names))
    assert len(set(names)) == 2


def test_a_name_of_another_notebook_names_the_cell_as_the_remedy() -> None:
    with refused("method"):
        load("__main__:NoSuchClass", "method")
