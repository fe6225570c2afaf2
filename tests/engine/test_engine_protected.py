"""Visits whose update is masked or has noise: training that fails counts as no change, and states nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedfloor
from fedfloor.base.errors import DivergedError, FedfloorError, SettingError
from fedfloor.base.outside import load
from fedfloor.config import read
from fedfloor.data.dataset import SamplePool, pooled
from fedfloor.engine import local_update as module
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.local_update import local_update
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.visit import VisitStats, check_finite
from fedfloor.park.park import Park
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from floor import engine
from live_park import experiment
from refusals import refused

SECURE = "secure-sum bits=32 bound=8.0 threshold=0.6 across=false"
SECURE_RUN = "method.travel = 'secure-sum'\ndeploy.norm_limit = false\n"
KEY = Key(0, 1, 0, 0, 0)
PROTECTED = {
    "secure sum": Work(epochs=2, batch_size=4, rate=0.1, travel=SECURE),
    "secure sum, momentum kept": Work(steps=3, batch_size=4, rate=0.1, momentum=0.5, moments="device", travel=SECURE),
    "secure sum, Adam": Work(steps=3, batch_size=4, optimizer="adam", travel=SECURE),
    "own part": Work(epochs=1, batch_size=4, rate=0.1, sends="all but head", travel=SECURE),
    "noise on samples": Work(epochs=2, batch_size=4, rate=0.1, sample_clip=0.5, sample_noise=1.0),
    "both": Work(epochs=2, batch_size=4, rate=0.1, sample_clip=0.5, sample_noise=1.0, travel=SECURE),
}


def pictures(*, bright: bool) -> Park:
    """Return the samples of one device: a pixel of one picture of eight is bright, or is not."""
    x = np.random.default_rng(0).integers(0, 100, (8, 1, 3, 3), dtype=np.uint8)
    x[5, 0, 1, 1] = 255 if bright else 90
    y = np.arange(8) % 3
    return Park(
        pooled("pictures", ("a", "b", "c"), SamplePool(x, y), SamplePool(x, y), "no digest"),
        (np.arange(8),),
        np.zeros(1, np.int32),
    )


def trap(of: Engine) -> torch.Tensor:
    """Return a model whose loss is undefined exactly if that pixel of a picture is bright.

    The scores of all classes are 3e38·x + 1e38: equal numbers with the loss ln 3, or ∞, whose differences are none.
    """
    model = torch.zeros_like(of.network.flat)
    model[[4, 13, 22]] = 3e38
    model[27:30] = 1e38
    return model


def visited(work: Work, folder: Path, *, bright: bool) -> tuple[torch.Tensor, Receipt, Engine]:
    """Return what a visit sends, its receipt, and the engine."""
    of = engine(pictures(bright=bright), "logistic", folder=folder)
    packet, receipt = local_update(of, work, {"w": trap(of)}, KEY, FrozenExtractor(frozen=False))
    return packet["w"].clone(), receipt, of


def test_the_trap_states_a_property_of_one_sample_where_nothing_protects_updates(tmp_path: Path) -> None:
    plain = Work(epochs=2, batch_size=4, rate=0.1)
    visited(plain, tmp_path, bright=False)
    with refused("diverged", DivergedError):
        visited(plain, tmp_path, bright=True)


@pytest.mark.parametrize("name", PROTECTED)
def test_the_trap_states_nothing_where_masks_or_noise_protect_updates(name: str, tmp_path: Path) -> None:
    work = PROTECTED[name]
    (sent, receipt, of), (_, other, quiet) = (visited(work, tmp_path, bright=bright) for bright in (True, False))
    assert quiet.unchanged.visits == 0
    assert bool(sent.isfinite().all())
    by_samples = work.sample_clip is not None
    assert replace(receipt, memory=None, **FIGURES) == replace(other, memory=None, **FIGURES)
    if by_samples:
        assert receipt.loss_last is None
        assert of.unchanged.visits == 0  # the sample counts as a gradient of 0, and the noise is added as always
        return
    assert not sent.any()  # the change in the sum
    assert receipt.figures == (0.0, 0.0, 0.0)
    assert (of.unchanged.visits, "became nan" in of.unchanged.why) == (1, True)
    if receipt.memory is not None:
        kept = of.memory.load(0)
        assert all(bool(tensor.isfinite().all()) for tensor in kept.values())


FIGURES: dict[str, Any] = {"loss_first": None, "loss_last": None, "accuracy": None}


def test_a_model_that_ends_infinite_after_a_finite_loss_is_no_change(tmp_path: Path) -> None:
    of = engine(pictures(bright=True), "logistic", folder=tmp_path)
    start = of.network.flat.clone()
    work = Work(steps=1, batch_size=8, rate=3e38, weight_decay=10.0, travel=SECURE)
    packet, _ = local_update(of, work, {"w": start}, KEY, FrozenExtractor(frozen=False))
    assert not packet["w"].any()
    assert "became infinite or undefined" in of.unchanged.why
    assert bool(of.network.flat.isfinite().all())


def test_a_change_that_is_infinite_between_finite_models_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clipped to a norm it would be undefined, and spoil the sum of all devices."""
    of = engine(pictures(bright=True), "logistic", folder=tmp_path)
    start = torch.full_like(of.network.flat, 3e38)

    def far(of: Engine, *_: Any) -> VisitStats:
        of.network.flat.fill_(-3e38)
        return VisitStats(1, 1.0, 1.0, 0.5)

    monkeypatch.setattr(module, "_trained", far)
    packet, receipt = local_update(of, PROTECTED["secure sum"], {"w": start}, KEY, FrozenExtractor(frozen=False))
    assert not packet["w"].any()
    assert receipt.figures == (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Particular(Objective):
    """An objective of one's own that fails for some samples."""

    error: str = "ValueError"

    def loss(
        self, module: nn.Module, x: torch.Tensor, y: torch.Tensor, visit: Visit
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if float(x.max()) > 0.9:
            raise ERRORS[self.error](f"the sample has {float(x.max())}")
        return Plain().loss(module, x, y, visit)


@dataclass(frozen=True)
class Forgetful(Plain):
    """An objective of one's own that fails for some trained models, where it remembers or receives them."""

    remembers = True

    def arrive(self, flat: torch.Tensor, kept: Mapping[str, torch.Tensor], network: Any) -> None:
        flat.zero_()
        raise SettingError("what this device keeps does not fit")

    def remember(self, flat: torch.Tensor, visit: Visit) -> Mapping[str, torch.Tensor]:
        raise RuntimeError("the trained model cannot be kept")


ERRORS = {error.__name__: error for error in (ValueError, SettingError, SystemExit, FedfloorError)}


@pytest.mark.parametrize("error", ERRORS)
def test_an_objective_that_fails_for_a_sample_is_no_change(error: str, tmp_path: Path) -> None:
    """Errors of its own, and words to leave, did not count: the visit failed where a sample had the property."""
    name = f"{__name__}:Particular"
    load(name, "objective")
    work = replace(PROTECTED["secure sum"], objective=name, settings={"error": error})
    of = engine(pictures(bright=True), "logistic", folder=tmp_path)
    packet, _ = local_update(of, work, {"w": of.network.flat.clone()}, KEY, FrozenExtractor(frozen=False))
    assert not packet["w"].any()
    assert "the sample has 1.0" in of.unchanged.why
    with pytest.raises((FedfloorError, SystemExit)):
        local_update(of, replace(work, travel=""), {"w": of.network.flat.clone()}, KEY, FrozenExtractor(frozen=False))


def test_an_objective_that_fails_before_or_after_training_tells_nothing_either(tmp_path: Path) -> None:
    name = f"{__name__}:Forgetful"
    load(name, "objective")
    work = replace(PROTECTED["secure sum"], objective=name)
    of = engine(pictures(bright=False), "logistic", folder=tmp_path)
    packet, receipt = local_update(of, work, {"w": of.network.flat.clone()}, KEY, FrozenExtractor(frozen=False))
    assert packet["w"].any()  # the model that arrived, trained
    assert receipt.memory is not None
    assert of.unchanged.visits == 2
    with pytest.raises(SettingError):
        local_update(of, replace(work, travel=""), {"w": of.network.flat.clone()}, KEY, FrozenExtractor(frozen=False))


def test_digests_of_a_devices_memory_confirm_no_guess_where_they_are_salted(tmp_path: Path) -> None:
    numbers = {"own head": torch.arange(3.0)}
    plain, salted = (DeviceMemory(tmp_path, salted=salted) for salted in (False, True))
    assert len({plain.commit(0, numbers) for _ in range(2)}) == 1
    digests = {salted.commit(0, numbers) for _ in range(3)}
    assert len(digests) == 3
    for digest in digests:
        salted.held[0] = digest
        assert torch.equal(salted.load(0)["own head"], numbers["own head"])


@pytest.mark.parametrize("rate", [0.05, 1e38])
def test_a_simulation_ends_with_the_reason_if_every_visit_of_a_round_failed(tmp_path: Path, rate: float) -> None:
    more = f"method.travel = 'secure-sum'\ndeploy.norm_limit = false\nmethods.fedavg.work.lr = {rate}\n"
    what = experiment(tmp_path, "fedavg", rounds=1, more=more)
    if rate < 1:
        assert len(fedfloor.run(read(what), tmp_path / "run", ranks=1).lines) == 1
        return
    with refused("diverged", DivergedError):
        fedfloor.run(read(what), tmp_path / "run", ranks=1)


def test_a_simulation_counts_visits_of_which_training_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = module._trained

    def trained(engine: Engine, work: Work, goal: Any, samples: Any, about: Any, key: Key, moments: Any) -> VisitStats:
        if key.device == 4:
            check_finite(float("inf"), key, work)
        return usual(engine, work, goal, samples, about, key, moments)

    monkeypatch.setattr(module, "_trained", trained)
    what = experiment(tmp_path, "fedavg", rounds=2, devices=6, more=SECURE_RUN)
    lines = fedfloor.run(read(what), tmp_path / "run", ranks=1).lines
    assert [line.info["unchanged"] for line in lines] == [1, 1]
    assert [line.lost for line in lines] == [0, 0]
    assert caplog.text.count("training failed in 1 of 6 visits") == 1
