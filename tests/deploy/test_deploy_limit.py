"""The limit on the length of updates: the rule by hand, the same visits refused in simulation and on real machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_deploy_faults import model
from test_deploy_network import pictures

import refusals
from fedfloor import config
from fedfloor.base.errors import DivergedError, SettingError
from fedfloor.deploy.message import Message
from fedfloor.engine import executor, ranks
from fedfloor.engine.directions import AGAINST
from fedfloor.engine.limit import BOUND, Limit, Part, from_json, to_json
from fedfloor.parts.mixing.mix import BySamples
from fedfloor.parts.travel.limits import NormLimit
from fedfloor.plan.nodes import Work
from fedfloor.runs import launch, ledger
from fedfloor.runs.orders import Limits, Orders
from live_park import Live, experiment, figures, live, simulated

BAD = 3  # the device whose updates are made longer
SIMULATE = "deploy.simulate = true\n"


def part(length: float, own: float = 0.0, weights: bool = True) -> list[Part]:
    """A part of four numbers that a visit moved by ``length``."""
    start = torch.full((4,), own / 2)
    return [Part(weights, start, start + torch.tensor([length, 0, 0, 0]))]


def judged(limit: Limit, device: int, length: float, effort: float = 1.0, own: float = 0.0) -> str:
    changed = part(length, own)
    return limit.judge("all", device, (effort, changed[0].length), changed)


def test_an_update_more_than_factor_medians_long_is_refused() -> None:
    limit = Limit(NormLimit(10.0))
    assert [judged(limit, k, 1.0) for k in range(3)] == ["", "", ""]
    assert judged(limit, 3, 10.0) == ""
    assert "10.1 times as long as the median of 5 devices" in judged(limit, 4, 10.1)


def test_before_three_devices_are_known_an_absolute_bound_holds() -> None:
    """Weights (3, 4, 0, 0)-like of length 5, four of them: at most 10·(5 + √4) = 70."""
    most = BOUND * (5 + 2)
    for length, refused in ((most * 0.999, False), (most * 1.001, True), (1e30, True), (float("nan"), True)):
        assert bool(judged(Limit(NormLimit(10.0)), 0, length, own=5.0)) is refused


def test_a_device_that_takes_more_steps_or_that_has_converged_is_judged_fairly() -> None:
    for length, effort in ((50.0, 50.0), (1.0, 0.02)):  # as fast as others but for longer; as far, in fewer steps
        limit = Limit(NormLimit(10.0))
        for k in range(3):
            judged(limit, k, 1.0)
        assert judged(limit, 3, length, effort) == ""
    assert judged(limit, 3, 50.0, 2.0)


def test_lengths_and_lengths_per_step_fade_each_by_itself() -> None:
    """The rate falls 1000-fold: a length of before over a rate of now would be 900 a step, where 1 is usual."""
    limit = Limit(NormLimit(10.0))
    for effort in (1.0, 1e-3):
        for k in range(5):
            assert judged(limit, k, effort, effort) == ""
    assert judged(limit, 5, 9.5, 2e-3)


def test_what_is_known_of_a_device_by_hand() -> None:
    """3 with rate · steps = ½, 6 a step; then 1 with a tenth, 10 a step: 0.9 · 3 is above 1, and 10 above 0.9 · 6."""
    limit = Limit(NormLimit(10.0))
    judged(limit, 7, 3.0, 0.5)
    assert limit.known == {"all": {7: (3.0, 6.0)}}
    judged(limit, 7, 1.0, 0.1)
    assert limit.known["all"][7] == pytest.approx((2.7, 10.0))


def test_the_greatest_accepted_lengths_by_hand() -> None:
    """Medians of 1 and of 2 a step: ten times the greater of 1 and of twice rate · steps, or a hundredth of 5,000."""
    weights, statistics = (part(0.0, own=3.0, weights=trained)[0] for trained in (True, False))
    limit = Limit(NormLimit(10.0))
    assert limit.most("all", 1, (0.25, 1.0), weights) == weights.bound == 10 * (3 + 2)
    assert statistics.bound == 1e6 * (3 + 2)
    for k in range(3):
        judged(limit, k, 1.0, 0.5)
    assert limit.most("all", 1, (0.25, 1.0), weights) == 10.0
    assert limit.most("all", 1, (4.0, 1.0), weights) == 80.0
    assert limit.most("all", 1, (0.25, 1.0), part(0.0, own=5000.0)[0]) == 50.0


def test_a_change_of_a_hundredth_of_the_weights_is_never_refused() -> None:
    limit = Limit(NormLimit(10.0))
    for k in range(4):
        judged(limit, k, 1e-3, own=100.0)
    assert judged(limit, 4, 0.99, own=100.0) == ""
    assert judged(limit, 4, 1.01, own=100.0)


def test_a_minority_does_not_move_the_median_and_all_together_do() -> None:
    limit = Limit(NormLimit(10.0))
    for k in range(5):
        judged(limit, k, 1.0)
    for _ in range(20):  # however often two of five try
        assert all(judged(limit, k, 1000.0) for k in (3, 4))
    refused = [bool(judged(limit, k, 1000.0)) for k in (0, 1, 2)]  # the stream brings something new to all
    assert refused == [False, False, False]  # from the third device on it is the usual length
    limit = Limit(NormLimit(10.0))
    for k in range(5):
        judged(limit, k, 1.0)
    assert [bool(judged(limit, k, 1000.0)) for k in range(5)] == [True, True, False, False, False]


def test_updates_are_checkpointed_as_json() -> None:
    known = {"all": {3: (0.5, 1.25)}, "classifier": {0: (1.0, 2.0, 3.0)}}
    assert from_json(json.loads(json.dumps(to_json(known)))) == known


def longer(by: float, when: Callable[[int, int], bool]) -> Callable[..., Any]:
    """A device's visit whose update is ``by`` times as long where ``when(device, round)``."""
    usual = executor.local_update

    def local_update(engine: Any, work: Work, packet: Any, key: Any, extractor: Any, acting: Any = None) -> Any:
        start = {name: one.clone() for name, one in packet.items()}
        sent, receipt = usual(engine, work, packet, key, extractor, acting)
        if when(key.device, key.round):
            sent = {name: start[name] + by * (one - start[name]) for name, one in sent.items()}
        return sent, receipt

    return local_update


@contextmanager
def poisoned(by: float, when: Callable[[int, int], bool]) -> Iterator[None]:
    """Let simulated devices send longer updates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "local_update", longer(by, when))
        yield


def poison(park: Live, by: float, when: Callable[[int, int], bool], devices: tuple[int, ...] = (BAD,)) -> None:
    """Let real devices send longer updates."""
    for k in devices:
        agent = park.agents[k]
        usual = agent.worker

        def work(k: int = k, usual: Any = usual) -> Any:
            def reply(message: Message) -> Any:
                kind, about, arrays = usual().reply(message)
                if kind == "update" and when(k, message.round):
                    start = message.arrays
                    arrays = {
                        name: start[name] + (one - start[name]) * one.dtype.type(by) for name, one in arrays.items()
                    }
                return kind, about, arrays

            return SimpleNamespace(reply=reply)

        agent.worker = work  # type: ignore[method-assign, assignment]


STREAM = "data.stream = { kind = 'fifo', window = 10 }\n"
CASES = {
    "fedavg": "",
    "fedsr": "methods.fedsr = { laps = 2, ring_size = 4 }\n",
    "hierfavg": "",
    "fedgs": STREAM + "methods.fedgs = { iterations = 4, devices = 3, random = 1, work.batch_size = 5 }\n",
    "hfedms": STREAM + "methods.hfedms = { period = 2, share = 1.0, memory = 5 }\n",
    "scaffold": "",
    "fedl": "",
}


@pytest.mark.parametrize("by", [100.0, 1e30])
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "fedsr", "hierfavg", "fedgs", "scaffold"])
def test_a_device_cannot_poison_by_size_and_the_simulation_refuses_the_same(
    tmp_path: Path, method: str, first: int, by: float
) -> None:
    what = experiment(tmp_path, method, rounds=3, more=CASES[method] + SIMULATE)

    def when(device: int, number: int) -> bool:
        return device == BAD and number >= first

    with poisoned(by, when):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        poison(park, by, when)
        got = park.run()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    visited = [line for line in got if line.round >= first and line.info.get("refused")]
    assert visited, "the device was never refused"
    for line in visited:
        assert str(BAD) in line.info["refused"]
        assert (
            "norm_limit = 4" in line.info["refused"][str(BAD)] or "devices are known" in line.info["refused"][str(BAD)]
        )
        assert line.measured["failed"][f"d{BAD}"]  # type: ignore[index]
    assert all(line.loss is not None and line.loss < 10 for line in got)


@pytest.mark.parametrize("method", CASES)
def test_honest_devices_are_never_refused_and_the_limit_changes_no_bit(tmp_path: Path, method: str) -> None:
    more = CASES[method]
    simulated(experiment(tmp_path, method, rounds=6, more=more), tmp_path / "without")
    _, lines = simulated(experiment(tmp_path, method, rounds=6, more=more + SIMULATE), tmp_path / "with")
    assert [line.info.get("refused") for line in lines] == [None] * 6
    assert [figures(line) for line in ledger.read(tmp_path / "without/ledger.jsonl")] == [
        figures(line) for line in lines
    ]
    assert model(tmp_path / "with") == model(tmp_path / "without")


@pytest.mark.parametrize("method", ["fedavg", "fedsr", "fedgs"])
def test_several_ranks_and_a_resume_refuse_the_same(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=4, more=CASES[method] + SIMULATE)
    with poisoned(100.0, lambda device, number: device == BAD):
        _, wanted = simulated(what, tmp_path / "one")
        read = config.read(what, [])
        launch.start(read, Orders(tmp_path / "two"), 2, launch.ignore)
        launch.start(read, Orders(tmp_path / "again", limits=Limits(stop_after=2)), 1, launch.ignore)
        launch.start(read, Orders(tmp_path / "again", resume=True), 1, launch.ignore)
    assert any(line.info.get("refused") for line in wanted)
    for other in ("two", "again"):
        assert [figures(line) for line in ledger.read(tmp_path / other / "ledger.jsonl")] == list(map(figures, wanted))
        assert model(tmp_path / other) == model(tmp_path / "one")


@pytest.mark.parametrize("given", ["1", "0.5", "true", "inf", "-3"])
def test_a_limit_is_a_number_above_1_or_false(tmp_path: Path, given: str) -> None:
    for name in ("norm_limit", "samples_limit"):
        with pytest.raises(SettingError, match=f"deploy.{name}|inf|finite|JSON"):
            config.read(experiment(tmp_path, "fedavg", more=f"deploy.{name} = {given}"), [])
    assert config.read(experiment(tmp_path, "fedavg", more="deploy.norm_limit = false"), []).deploy.norm_limit is False


def test_a_cohort_and_a_limit_exclude_each_other(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", more=SIMULATE + "engine.kind = 'cohort'\nengine.device = 'cpu'")
    with refusals.refused("engine.kind"):
        simulated(what, tmp_path / "out")


def test_the_first_round_holds_few_models_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three branches of a factory are judged together, the fourth against them, in simulation and on real machines."""
    held = list[int]()
    usual = ranks.Trainer._judged_together

    def judged_together(job: Any, done: Any, *more: Any) -> Any:
        held.append(len(done))
        return usual(job, done, *more)

    monkeypatch.setattr(ranks, "FIRST", 3, raising=False)
    monkeypatch.setattr(ranks.Trainer, "_judged_together", judged_together)
    what = experiment(tmp_path, "fedavg", more=SIMULATE)
    with poisoned(100.0, lambda device, number: device == BAD):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        poison(park, 100.0, lambda device, number: device == BAD)
        got = park.run()
    assert held == [3] * 4
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert all(list(line.info["refused"]) == [str(BAD)] for line in got)


@pytest.mark.parametrize("method", ["hierfavg", "fedgs"])
def test_a_robust_rule_at_edges_holds_where_a_mean_gives_way(tmp_path: Path, method: str) -> None:
    """An update of eight times its length is within the limit; of a factory's four devices the median leaves it out."""

    def moved(rule: str) -> float:
        more = CASES[method].replace("devices = 3", "devices = 4") + rule
        folder = tmp_path / (rule[-8:-2] or "mean")
        folder.mkdir()
        what = experiment(folder, method, rounds=1, more=more)
        ends = []
        for by in (1.0, -8.0):
            with poisoned(by, lambda device, number: device == BAD):
                simulated(what, folder / str(by))
            ends.append(load_file(folder / str(by) / "model.safetensors"))
        return max(float((ends[0][name] - ends[1][name]).norm()) for name in ends[0])

    assert moved("method.edge_mix = 'median'\n") < 0.5 * moved("")


@pytest.mark.parametrize("method", ["hierfavg", "fedgs"])
def test_a_robust_rule_at_edges_has_the_simulations_bits_on_real_machines(tmp_path: Path, method: str) -> None:
    more = CASES[method] + "method.edge_mix = { kind = 'trimmed_mean', share = 0.3 }\n"
    what = experiment(tmp_path, method, rounds=2, more=more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        got = park.run()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


@pytest.mark.parametrize(
    ("method", "rule", "said"),
    [
        (
            "fedavg",
            "'median'",
            "method.edge_mix",
        ),
        ("hierfavg", "'q_fair'", "method.edge_mix"),
        ("hierfavg", "{ kind = 'krum', outliers = 1 }", "mix"),
    ],
)
def test_a_rule_that_cannot_stand_at_edges_is_refused(tmp_path: Path, method: str, rule: str, said: str) -> None:
    with refusals.refused(said):
        simulated(experiment(tmp_path, method, more=f"method.edge_mix = {rule}"), tmp_path / "out")


@dataclass(frozen=True)
class OwnMean(BySamples):
    """A rule of one's own, at the cloud alone."""


def test_the_models_of_edges_are_checked_where_the_cloud_mixes_by_a_rule_of_its_own(tmp_path: Path) -> None:
    more = "method.mix = { kind = 'test_deploy_limit:OwnMean' }"
    with live(tmp_path, experiment(tmp_path, "fedavg", rounds=1, more=more)) as park:
        usual = park.edges[0].walk

        def farther(message: Message) -> Any:
            kind, about, sums = usual(message)
            return kind, about, {name: one * one.dtype.type(100) for name, one in sums.items()}

        park.edges[0].walk = farther  # type: ignore[method-assign]
        got = park.run()
    assert got[0].lost == 4
    assert "farther from the start" in got[0].measured["failed"]["e0"]  # type: ignore[index]


HONEST = {
    "more steps on some devices": "data.partition = { kind = 'dirichlet', alpha = 0.3 }\nwork.short_batches = true\n",
    "many epochs and momentum": "methods.fedavg.work = { epochs = 20, momentum = 0.9 }\n",
    "a high rate at first": "methods.fedavg.work.lr = { kind = 'cosine', start = 0.5, end = 1e-4 }\n",
    "one device in each factory": "park = { devices = 2, factories = 2 }\n",
    "a stream that drifts": "data.stream = { kind = 'fifo', window = 10, drift = { kind = 'cycle', period = 2 } }\n",
    "one class to a device": "data.partition = { kind = 'shards', per_device = 1 }\n",
}


@pytest.mark.parametrize("case", HONEST)
@pytest.mark.parametrize("network", ["logistic", "mlp-2nn"])
def test_honest_devices_of_every_kind_are_taken(tmp_path: Path, case: str, network: str) -> None:
    what = experiment(tmp_path, "fedavg", rounds=8, model=network, more=HONEST[case] + SIMULATE)
    text = what.read_text()
    if "park = { devices = 2" in HONEST[case]:
        what.write_text(text.replace("park = { devices = 8, factories = 2 }\n", "", 1))
    if "work." in HONEST[case]:
        what.write_text(
            text.replace("work = { batch_size = 10, momentum = 0.5, lr = 0.05 }\n", "", 1) + "work.batch_size = 10\n"
        )
    _, lines = simulated(what, tmp_path / "out")
    assert [line.info.get("refused") for line in lines] == [None] * 8


def test_devices_whose_updates_go_up_and_down_are_taken(tmp_path: Path) -> None:
    """Bright and dark pictures, a rate that is too high: lengths of one device's updates differ by a factor of 40."""
    what = pictures(tmp_path)
    what.write_text(what.read_text().replace("rounds = 2", "rounds = 12") + SIMULATE + "deploy.norm_limit = 5\n")
    _, lines = simulated(what, tmp_path / "out")
    assert [line.info.get("refused") for line in lines] == [None] * 12


def test_a_classifier_that_travels_alone_is_judged_by_its_own_scope(tmp_path: Path) -> None:
    """HFedMS trains the classifier in round 2 and 4 of 4: the whole model's updates are no measure of these."""
    more = STREAM + "methods.hfedms = { period = 2, share = 1.0, memory = 5 }\n" + SIMULATE

    def when(device: int, number: int) -> bool:
        return device == BAD and number == 4

    what = experiment(tmp_path, "hfedms", rounds=4, model="mlp-2nn", more=more)
    with poisoned(100.0, when):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        poison(park, 100.0, when)
        got = park.run()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert [list(line.info.get("refused", {})) for line in got] == [[], [], [], [str(BAD)]]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


def flawed(park: Live, value: float) -> None:
    """Let a real device set one running variance of its model."""
    agent = park.agents[BAD]
    usual = agent.worker

    def reply(message: Message) -> Any:
        kind, about, arrays = usual().reply(message)
        if kind == "update":
            arrays = {**arrays, "w": arrays["w"].copy()}
            arrays["w"][-1] = value
        return kind, about, arrays

    agent.worker = lambda: SimpleNamespace(reply=reply)  # type: ignore[method-assign, assignment, return-value]


@pytest.mark.parametrize("factor", ["false", "10"])
def test_a_negative_variance_of_a_normalisation_layer_is_refused(tmp_path: Path, factor: str) -> None:
    what = experiment(tmp_path, "fedavg", model="floor:batch_norm", more=f"deploy.norm_limit = {factor}\n")
    with live(tmp_path, what) as park:
        flawed(park, -4.0)
        got = park.run()
    assert [line.lost for line in got] == [1, 1]
    assert "negative variance" in got[0].measured["failed"][f"d{BAD}"]  # type: ignore[index]
    assert all(line.loss < 10 for line in got)


def test_the_cloud_refuses_an_edge_whose_mean_holds_a_negative_variance(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", model="floor:batch_norm", more="deploy.norm_limit = false\n")
    with live(tmp_path, what) as park:
        edge = next(iter(park.edges.values()))
        usual = edge.walk

        def walk(message: Message) -> Any:
            kind, about, arrays = usual(message)
            sums = {name: one.copy() for name, one in arrays.items()}
            for one in sums.values():
                one[-1] = -400.0
            return kind, about, sums

        edge.walk = walk  # type: ignore[method-assign]
        got = park.run()
    assert [line.lost for line in got] == [4, 4]
    assert all(line.loss < 10 for line in got)


def test_a_simulation_with_the_limit_refuses_a_negative_variance(tmp_path: Path) -> None:
    usual = executor.local_update

    def local_update(engine: Any, work: Work, packet: Any, key: Any, extractor: Any, acting: Any = None) -> Any:
        sent, receipt = usual(engine, work, packet, key, extractor, acting)
        if key.device == BAD:
            sent["w"][-1] = -4.0
        return sent, receipt

    for more in (SIMULATE, ""):
        what = experiment(tmp_path, "fedavg", model="floor:batch_norm", more=more)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(executor, "local_update", local_update)
            if more:
                _, lines = simulated(what, tmp_path / "limited")
                assert all("negative variance" in line.info["refused"][str(BAD)] for line in lines)
            else:
                with refusals.refused("diverged", DivergedError):
                    simulated(what, tmp_path / "unlimited")


@pytest.mark.live
@pytest.mark.parametrize("attack", [False, True])
def test_a_device_that_turns_its_updates_round_is_named_by_its_edge_and_in_the_ledger_and_stays(
    tmp_path: Path, attack: bool
) -> None:
    """So is device 6, whose pictures are light on dark where others' are dark on light: nobody is refused for it."""
    more = "data.partition = { kind = 'iid' }\n"
    what = experiment(tmp_path, "fedavg", rounds=AGAINST + 1, devices=8, factories=1, more=more)
    what.write_text(what.read_text().replace("samples_per_device = 24", "samples_per_device = 300"))
    with live(tmp_path, what) as park:
        if attack:
            poison(park, -1.0, lambda _device, _round: True)
        lines = park.run()
    names = {"d6", f"d{BAD}"} if attack else {"d6"}
    named = [(line.measured or {}).get("against") for line in lines]
    wanted = [dict.fromkeys(names, times) for times in (AGAINST, AGAINST + 1)]
    assert named == [None] * (AGAINST - 1) + wanted
    assert not any(line.lost for line in lines)


@pytest.mark.live
def test_so_it_is_where_no_round_waits_for_it(tmp_path: Path) -> None:
    more = "data.partition = { kind = 'iid' }\nmethods.fedbuff = { buffer = 4, concurrency = 8 }\n"
    what = experiment(tmp_path, "fedbuff", rounds=4 * AGAINST, devices=8, factories=1, more=more)
    what.write_text(what.read_text().replace("samples_per_device = 24", "samples_per_device = 300"))
    with live(tmp_path, what) as park:
        poison(park, -1.0, lambda _device, _round: True)
        lines = park.run()
    named = {name for line in lines for name in (line.measured or {}).get("against", {})}
    assert f"d{BAD}" in named <= {"d6", f"d{BAD}"}


@pytest.mark.parametrize("limit", [True, 1.0, "norn", {"factor": 2.0}, [4.0]], ids=str)
def test_a_wrong_limit_is_refused(limit: object) -> None:
    with refusals.refused("deploy.norm_limit"):
        config.from_table({"deploy": {"norm_limit": limit}})
