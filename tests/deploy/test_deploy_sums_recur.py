"""Models that are sums, behind masks: no two sums over the same rows, about whichever centre, give a device's own."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_deploy_faults import model

from fedfloor import config
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.device_sum import DeviceSum, OpenSum
from fedfloor.deploy.message import Message
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.revealed_sums import RevealedSums
from fedfloor.engine.summing import GroupSum, SecureAggregation
from fedfloor.methods.catalog import EXACT
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.parts import fitting
from fedfloor.parts.mixing.mix import BySamples
from fedfloor.parts.protection import masking
from fedfloor.parts.travel.codecs import SecureSum
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key
from live_park import Live, experiment, figures, live, simulated
from refusals import refused

DEVICES = 9
LATE = 4  # the device that is late in the second round
FAR = 1e5  # the sensors' level, which takes a second round
ROWS = 24
SENSORS = 3


def rows(k: int, level: float = FAR) -> np.ndarray:
    """Return the rows of a device."""
    return level + np.random.default_rng(k).normal(0, 1 + k, (ROWS, SENSORS))


def asked(folder: Path, *, together: bool, bound: float = 1e11, far: Container[int] = range(DEVICES)) -> Path:
    """Write a table of all devices' rows, some at a far level, and an experiment of Hotelling's chart over them."""
    levels = {k: FAR if k in far else 0.0 for k in range(DEVICES)}
    lines = [
        ",".join([f"m{k}", *map(repr, map(float, row)), "fine"]) for k in range(DEVICES) for row in rows(k, levels[k])
    ]
    tests = [",".join(["m0", *["100000.5"] * SENSORS, state]) for state in ("fine", "bad")]
    for name, body in (("train.csv", lines), ("test.csv", tests)):
        (folder / name).write_text("\n".join(["machine,a,b,c,state", *body]) + "\n")
    more = (
        f"data.path = '{folder}/train.csv'\ndata.test = '{folder}/test.csv'\ndata.normalise = 'unit'\n"
        "data.columns = { device = 'machine', label = 'state' }\n"
        "data.task = { kind = 'reconstruction', normal = 'fine' }\n"
        f"method.travel = {{ kind = 'secure-sum', bits = 64, bound = {bound}, together = {str(together).lower()} }}\n"
        "deploy.norm_limit = false\n"
    )
    path = experiment(folder, "hotelling", rounds=3, devices=DEVICES, factories=1, model="linear", more=more)
    path.write_text(path.read_text().replace("data.samples_per_device = 24\n", ""))
    return path


class Edge:
    """What an edge reads: the centre that it sent, and the sum that it unmasked, of each round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
        usual = SecureAggregation.flaw

        def flaw(made: SecureAggregation, group: GroupSum) -> str:
            numbers, *_ = made.fixed.decoded(group.total)  # type: ignore[arg-type]
            first, last = made.network.layout["theta.center"]
            center = made.start["w"][first:last].numpy().copy()
            self.read[center.tobytes()] = center, numbers
            return usual(made, group)

        monkeypatch.setattr(SecureAggregation, "flaw", flaw)

    def moved(self, at: int) -> np.ndarray:
        """Return the sums [1 + C + C·C] of a round, about 0."""
        center, numbers = [*self.read.values()][at]
        count = numbers[0]
        first, second = numbers[1 : 1 + SENSORS], numbers[1 + SENSORS :].reshape(SENSORS, SENSORS)
        cross = np.outer(first, center)
        level = first + count * center
        return np.concatenate([[count], level, (second + cross + cross.T + count * np.outer(center, center)).ravel()])


def own(park: Live, *devices: int) -> np.ndarray:
    """Return the sums of devices about 0, over the rows that are not held out."""
    held = {k: park.agents[k].own_park() for k in devices}
    x = np.concatenate([held[k].held(k, 0, 0)[0] for k in devices]).astype(np.float64)
    return np.concatenate([[len(x)], x.sum(0), (x.T @ x).ravel()])


def late(park: Live) -> None:
    """Let a device miss the second round, as one that is late does."""
    agent = park.agents[LATE]
    usual = agent.worker

    def reply(message: Message) -> Any:
        if message.kind == "visit" and message.round == 2:
            raise RefusedError("visit", "this device is late.")
        return usual().reply(message)

    agent.worker = lambda: SimpleNamespace(reply=reply)  # type: ignore[method-assign, assignment, return-value]


def test_sums_about_two_centres_the_second_without_a_device_are_those_of_its_crew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without crews their difference was the sums of the device that was late, to ten digits."""
    edge = Edge(monkeypatch)
    with live(tmp_path, asked(tmp_path, together=True)) as park:
        late(park)
        lines = park.run()
        crew = own(park, 3, LATE, 5)
    assert [line.lost for line in lines] == [0, 3]
    np.testing.assert_allclose(edge.moved(0) - edge.moved(1), crew, rtol=1e-9)


def test_a_device_beyond_the_bound_withdraws_with_its_crew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With zeros in place of its sums, a centre that all devices but one exceed would give the sums of that one."""
    edge = Edge(monkeypatch)
    what = asked(tmp_path, together=True, bound=1e6, far=[LATE])
    with live(tmp_path, what) as park:
        lines = park.run()
        others = own(park, 0, 1, 2, 6, 7, 8)
    told = {record.name for record in caplog.records if "beyond travel.secure-sum.bound" in record.getMessage()}
    assert told == {"fedfloor.deploy.sums_worker"}  # what depends on samples stays in the device's own log
    assert {line.lost for line in lines} == {3}
    np.testing.assert_allclose(edge.moved(0), others, rtol=1e-9)
    _, wanted = simulated(what, tmp_path / "simulated")
    assert [figures(line) for line in lines] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


def test_a_round_brings_one_answer_to_whether_a_device_is_within_the_bound(tmp_path: Path) -> None:
    """Recorded before it sums up: an edge that moves the centre in the same round, in any run, learns nothing more."""
    work = Work(epochs=1, rate=1.0, objective="hotelling", travel="secure-sum bits=64 together=true")
    path = tmp_path / "revealed.sqlite"

    def device(facts: str = "facts") -> DeviceSum:
        sums = DeviceSum(0, 24, SecureSum(together=True), BySamples(), RevealedSums(RevealRecord(path)), facts=facts)
        sums._sum = OpenSum(masking.advertise(0, bytes(32)))
        return sums

    centre, moved = np.zeros(4), np.ones(4)
    device().attempt(work, centre, Key(0, 1, 0, 0, 0))
    device().attempt(work, centre, Key(0, 1, 3, 0, 1))  # the same round again, after a crash
    for sums, model_of, tick in ((device(), moved, 0), (device(), moved, 5), (device("scaled"), centre, 0)):
        with refused("sum", RefusedError):
            sums.attempt(work, model_of, Key(0, 1, tick, 0, 0))
    device().attempt(work, moved, Key(0, 2, 1, 0, 0))


def test_a_device_refuses_an_experiment_whose_sums_would_have_no_crews(tmp_path: Path) -> None:
    what = asked(tmp_path, together=False)
    with refused("combination"), live(tmp_path, what) as park:
        park.run()


def method(name: str, **more: Any) -> ConfiguredMethod:
    travel = {"kind": "secure-sum", **more}
    return config.from_table({"data": {"name": "labels"}, "method": {"name": name, "travel": travel}}).configured


@pytest.mark.parametrize("name", ["boosting", "kaplanmeier", "percentiles"])
def test_models_that_are_sums_go_with_masks_only_in_crews(name: str) -> None:
    with refused("combination"):
        method(name)


@pytest.mark.parametrize("name", [*EXACT, "boosting"])
def test_every_model_that_is_sums_says_that_its_sums_recur(name: str) -> None:
    assert fitting.RECURS in method(name, together=True).choices[0].traits


def test_noise_of_devices_stands_for_crews() -> None:
    noise = {"kind": "private", "clip": 1.0, "noise": 1.0, "delta": 1e-3, "distributed": True}
    about = {"name": "boosting", "mix": noise, "travel": "secure-sum"}
    assert config.from_table({"data": {"name": "labels"}, "method": about}).configured.name == "boosting"
