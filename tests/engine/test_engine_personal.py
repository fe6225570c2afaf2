"""Evaluation with each device's own numbers: by hand, and the same on every team."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedfloor
from commands import Command, lines
from fedfloor import config
from fedfloor.data.dataset import SamplePool, pooled
from fedfloor.engine import evaluate as evaluation
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import evaluate
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone, Team
from fedfloor.models.network import Network
from fedfloor.park.park import Park
from fedfloor.parts.objectives.layers import Gated
from fedfloor.parts.objectives.objective import Plain
from fedfloor.plan.nodes import Parallel, Work
from fedfloor.runs import launch
from floor import bits, everywhere, park, start, visits, walk

OWNERS = (0, 0, 1, 2, 3)


def owned(owner_test: tuple[int, ...] = OWNERS, pixels: int = 0) -> Park:
    """Devices 0, 1, 2 with two samples each; test samples of theirs and of owner 3, who is not a device."""
    rng = np.random.default_rng(0)
    n = len(owner_test)
    train = SamplePool(rng.integers(0, 1 + pixels, (8, 1, 2, 2), dtype=np.uint8), np.array([0, 1] * 4),
                 np.repeat(np.arange(4, dtype=np.int32), 2))  # fmt: skip
    test = SamplePool(rng.integers(0, 1 + pixels, (n, 1, 2, 2), dtype=np.uint8), np.arange(n) % 2,
                np.array(owner_test, np.int32))  # fmt: skip
    data = pooled("tiny", ("x", "y"), train, test, "")
    return Park(data, tuple(np.array([2 * k, 2 * k + 1]) for k in range(3)), np.zeros(3, np.int32))


@dataclass(frozen=True)
class OwnBias(Plain):
    """A device's own numbers are the biases, which are the model's last two."""

    @property
    def personal(self) -> bool:
        return True

    def arrive(self, model: Tensor, memory: Mapping[str, Tensor], network: Network) -> None:
        if "bias" in memory:
            model[-2:] = memory["bias"]


def biased(here: Park, folder: Path, team: Team | None = None) -> tuple[Engine, Tensor]:
    """Logistic regression with the biases (1, 0); device 0's are (0, 1) and device 2's (0, 3)."""
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    of = Engine(here, network, team or Alone(), DeviceMemory(folder), seed=0)
    of.memory.commit(0, {"bias": torch.tensor([0.0, 1.0])})
    of.memory.commit(2, {"bias": torch.tensor([0.0, 3.0])})
    return of, torch.tensor([0.5] * 8 + [1.0, 0.0])


def test_test_samples_belong_to_devices() -> None:
    assert owned().test_devices.tolist() == [0, 0, 1, 2, -1]
    assert park(tests=3).test_devices.tolist() == [-1, -1, -1]
    two = replace(owned(), indices=(np.array([2]), np.array([0]), np.array([3])))  # two devices of owner 1
    assert two.test_devices.tolist() == [1, 1, 0, -1, -1]
    assert two.roster.weights[:3].tolist() == [1, 2, 1]


def test_devices_are_evaluated_with_their_own_numbers(tmp_path: Path) -> None:
    # Pictures are black, so that logits are biases. The classes are 0, 1, 0, 1, 0. Device 0 says 1, 1: wrong, right;
    # device 1 has no numbers of its own and says 0: right; device 2 says 1: right; nobody's sample is called 0: right.
    # log(e^0 + e^1) minus the class's logit: losses L, L − 1, L − 1, then log(1 + e^3) − 3, and L − 1 again.
    of, model = biased(owned(), tmp_path)
    got = evaluate(of, model, OwnBias())
    assert got.accuracy == 0.8
    high = math.log(1 + math.e)
    assert got.loss == pytest.approx((4 * high - 3 + math.log(1 + math.e**3) - 3) / 5, rel=1e-6)
    assert [one["accuracy"] for one in got.details["devices"]] == [0.5, 1.0, 1.0]
    assert got.details["confusion"] == [[2, 1], [0, 2]]
    # and as it is the model says 0 to everybody: L − 1, L, L − 1, L, L − 1
    plain = evaluate(of, model, Plain())
    assert plain.accuracy == 0.6
    assert plain.loss == pytest.approx(high - 3 / 5, rel=1e-6)
    assert plain == evaluate(of, model)


def test_data_without_owners_are_evaluated_with_the_model_as_it_is(tmp_path: Path) -> None:
    here = owned(pixels=255)
    of, model = biased(replace(here, dataset=replace(here.dataset, owner_test=None)), tmp_path)
    assert evaluate(of, model, OwnBias()) == evaluate(of, model)


def test_where_blocks_are_cut_makes_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, model = biased(owned((2, 0, 0, 3, 0, 2, 1, 0, 3), pixels=255), tmp_path)
    whole = evaluate(of, model, OwnBias())
    monkeypatch.setattr(evaluation, "BLOCK", 2)
    cut = evaluate(of, model, OwnBias())
    assert (cut.details, cut.by_class) == (whole.details, whole.by_class)
    assert cut.loss == pytest.approx(whole.loss, rel=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_it_is_the_same_on_every_team(ranks: int, tmp_path: Path) -> None:
    here = owned((2, 0, 0, 3, 0, 2, 1, 0, 3), pixels=255)
    work = Work(objective="gated", settings={"layers": 1, "units": 4}, epochs=3, batch_size=2, rate=0.5)

    def body(team: Team, folder: Path = tmp_path / "team") -> list[object]:
        torch.manual_seed(0)
        module, path = Gated(1, 4).adapt(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "1", 2, (4,))
        of = Engine(here, Network(module, path), team, DeviceMemory(folder), seed=0)
        packet = start(of)
        for number, chosen in ((1, (0, 1)), (2, (0, 2)), (3, (1, 2))):
            packet = dict(walk(of, Parallel(visits(chosen, work)), packet, number).packet)
        got = evaluate(of, packet["w"], Gated(1, 4))
        held = sorted(of.memory.held.items())
        return [bits(packet["w"]).hex(), held, got.loss, got.accuracy, got.details, got.by_device]

    one = [[*row] if isinstance(row, tuple) else row for row in body(Alone(), tmp_path / "alone")]
    one[1] = [list(pair) for pair in one[1]]  # type: ignore[attr-defined]
    assert everywhere(ranks, body) == [one] * ranks


def test_a_run_with_own_numbers_is_the_same_on_every_team_and_when_resumed(command: Command) -> None:
    settings = ("method.name=cgau", "methods.cgau={warm_up=1, layers=1, units=8}", "data.partition={kind='natural'}",
                "model.name=mlp-2nn", "work.lr=0.1", "work.epochs=2")  # fmt: skip
    run = ("run", "tiny.toml", *(word for one in settings for word in ("--set", one)))
    assert command(*run, "--ranks", "1", "--out", "one").code == 0
    assert command(*run, "--ranks", "2", "--out", "two").code == 0
    assert command(*run, "--ranks", "2", "--out", "part", "--stop-after", "2").code == 0
    assert command(*run, "--ranks", "1", "--out", "part", "--resume").code == 0
    one, two, part = (command.folder / name for name in ("one", "two", "part"))
    assert lines(one) == lines(two) == lines(part)
    for name in ("model.safetensors", "evaluation.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes() == (part / name).read_bytes()
    assert len(list((one / "memory").iterdir())) >= 4  # of every device
    # the model in the file has the mean columns: asked as it is, it says other things than the devices' own models
    park = launch.build_park(config.read(one / "experiment.toml"))
    x, y = park.test()
    alone = (fedfloor.load_model(one).predict(x).argmax(1) == y).mean()
    assert alone != lines(one)[-1]["accuracy"]
