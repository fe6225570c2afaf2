"""Real agents and edges in one process, and what goes wrong: the run goes on, as a simulation that loses the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor import __version__, config
from fedfloor.base.errors import SettingError
from fedfloor.deploy import mqtt
from fedfloor.deploy.edge import Edge
from fedfloor.deploy.message import Message, decode, encode
from fedfloor.deploy.settings import Deadlines
from fedfloor.experiment import ModelSettings
from fedfloor.plan import schedule
from fedfloor.plan.schedule import Key
from fedfloor.runs import ledger
from fedfloor.runs.orders import Limits
from fedfloor.runs.parks import build_park
from live_park import Broker, InMemory, Live, edge_settings, experiment, figures, live, simulated
from parks import until

# the device that fails, and the round
WHO = 3
WHEN = 2
Fails = Callable[[Live, Any], Any]


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@contextmanager
def losing(lost: Callable[[Key], bool]) -> Iterator[None]:
    """Let simulated visits be lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "is_lost", lambda key, chance: lost(key))
        yield


def failing(park: Live, answer: Callable[[Any], Any]) -> None:
    """Let the device do something else when it is asked to train in that round."""
    agent = park.agents[WHO]
    usual = agent.serve

    def attend(edge: str, payload: bytes) -> None:
        message = decode(payload)
        if (message.kind, message.round) != ("visit", WHEN):
            usual(edge, payload)
        elif (said := answer(message)) is not None:
            park.broker.deliver(mqtt.topic("trial", "out", agent.settings.name, edge), said, False)

    agent.serve = attend  # type: ignore[method-assign]


def wrong(park: Live, **arrays: np.ndarray) -> Callable[[Any], bytes]:
    def say(message: Any) -> bytes:
        receipt = [WHO, message.about["visit"], message.about["tick"], 1, 24, 1.0, 1.0, 0.5, 0, False, None, 0.0]
        return park.agents[WHO].next_message("update", message, {"receipt": receipt}, arrays)

    return say


def numbers(message: Any) -> np.ndarray:
    return np.array(message.arrays["w"])


@pytest.mark.parametrize("method", ["fedavg", "fedsr", "hierfavg"])
def test_a_device_that_dies_mid_visit_is_lost_from_there_on(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=3)
    with losing(lambda key: key.device == WHO and key.round >= WHEN):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        failing(park, lambda message: park.links[WHO].die())
        got = park.run()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    assert [line.lost > 0 for line in got] == [False, True, True]


def test_a_device_that_hangs_is_lost_at_its_deadline(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3)
    with losing(lambda key: key.device == WHO and key.round == WHEN):
        simulated(what, tmp_path / "simulated")
    with live(tmp_path, what, Deadlines(3.0, 60, 20, 120)) as park:
        failing(park, lambda message: None)
        got = park.run()
        assert park.edges[0].channel.filter.counts() | park.edges[1].channel.filter.counts() == {f"d{WHO}": {"late": 1}}
    assert [line.lost for line in got] == [0, 1, 0]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda w: w * np.float32("nan"), "not finite"),
        (lambda w: w + np.float32("inf"), "not finite"),
        (lambda w: w.reshape(2, -1), "shape"),
        (lambda w: w[:-1], "shape"),
        (lambda w: w.astype(np.float64), "shape"),
    ],
)
def test_an_update_that_cannot_be_is_refused_counted_and_lost(
    tmp_path: Path, spoil: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2)
    with losing(lambda key: key.device == WHO and key.round == WHEN):
        simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        failing(park, lambda message: wrong(park, w=spoil(numbers(message)))(message))
        got = park.run()
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    refused = got[-1].measured["refused"]  # type: ignore[index]
    assert [counts for of in refused.values() for counts in of.values()] == [{reason: 1}]


def test_replayed_reordered_and_foreign_updates_harm_nobody(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3)
    simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:

        def again(line: ledger.Line) -> None:
            for topic, payload in {one for one in park.broker.said if "/out/" in one[0]}:
                park.broker.deliver(topic, payload, False)
            stolen = next(payload for topic, payload in park.broker.said if f"/out/d{WHO}/" in topic)
            for m in park.edges:
                park.broker.deliver(mqtt.topic("trial", "out", "d0", f"e{m}"), stolen, False)

        got = park.run(report=again)
        counts = [park.edges[m].channel.filter.counts() for m in sorted(park.edges)]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    assert [line.lost for line in got] == [0, 0, 0]
    assert all(one["d0"]["sender"] >= 2 for one in counts)  # the last round's may come when all is over
    assert {reason for one in counts for of in one.values() for reason in of} == {"sender", "replayed"}


def test_a_factory_whose_edge_is_gone_sits_out_and_comes_back(tmp_path: Path) -> None:
    what = experiment(tmp_path, "hierfavg", rounds=3)
    with live(tmp_path, what) as park:
        theirs = {one.device for one in park.edges[1].settings.devices}
        with losing(lambda key: key.device in theirs and key.round == WHEN):
            _, wanted = simulated(what, tmp_path / "simulated")
        edge = park.edges[1]

        def absent(line: ledger.Line) -> None:
            if line.round == WHEN - 1:
                del park.edges[1]
            else:
                park.edges[1] = edge

        known = park.settings()
        park.settings = lambda out="live": known  # type: ignore[method-assign]
        got = park.run(report=absent)
    assert [line.measured["absent"] for line in got] == [[], ["e1"], []]  # type: ignore[index]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    assert [line.lost for line in got] == [line.lost for line in wanted] == [0, 2 * len(theirs), 0]


@pytest.mark.parametrize(("about", "reason"), [({"version": "0.0.1"}, "release"), ({"device": 5}, "device")])
def test_a_device_of_another_release_or_number_is_not_visited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, about: dict[str, object], reason: str
) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1)
    with live(tmp_path, what) as park:
        agent = park.agents[WHO]
        park.links[WHO].die()
        until(lambda: all(WHO not in edge.channel.connected for edge in park.edges.values()))
        told = {"device": WHO, "version": __version__} | about
        hello = encode(Message("hello", f"d{WHO}", session=agent._session + 1, number=1, about=told))
        park.broker.deliver(mqtt.topic("trial", "status", f"d{WHO}"), hello, True)
        got = park.run()
        counts = [edge.channel.filter.counts() for edge in park.edges.values()]
    assert counts == [{f"d{WHO}": {reason: 1}}] * 2
    advice = {"release": "runs fedfloor 0.0.1; this is", "device": "it is device 5; this side lists it as 3. Copy"}
    assert advice[reason] in caplog.text
    assert got[0].lost == 1


def test_a_device_does_not_do_again_what_it_was_asked_before_it_was_started(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2)
    simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:

        def again(line: ledger.Line) -> None:
            if line.round > 1:
                return
            recorded = [one for one in park.broker.said if one[0].endswith(f"/d{WHO}") and "/in/" in one[0]]
            park.links[WHO].die()
            assert until(lambda: all(WHO not in edge.channel.connected for edge in park.edges.values()))
            park.join(WHO)
            assert until(lambda: all(WHO in edge.channel.connected for edge in park.edges.values()))
            for topic, payload in recorded:
                park.broker.deliver(topic, payload, False)

        got = park.run(report=again)
        assert until(lambda: park.agents[WHO].filter.counts() == {f"e{edge_of(park, WHO)}": {"stale": 1}})
    assert [line.lost for line in got] == [0, 0]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


def edge_of(park: Live, device: int) -> int:
    return next(m for m, edge in park.edges.items() if device in {one.device for one in edge.settings.devices})


def test_an_edge_whose_park_file_and_experiment_disagree_does_not_start(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg")
    right = config.read(what, ["park.assignment=[0,1,0,1,0,1,0,1]"])
    good = edge_settings(tmp_path, what, build_park(right), 0)
    Edge(good, right, build_park(right), InMemory(Broker()))
    for change, said in (
        ("park.assignment=[0,1,1,1,0,1,0,1]", r"'d2' \(number 2\) is in factory 0 \('e0'\).*in factory 1 by the"),
        ("park.assignment=[0,0,0,1,0,1,0,1]", r"'d1' \(number 1\) is not in factory 0 .*fedfloor park provision names"),
        ("park={devices=4,factories=2,assignment=[0,1,0,1]}", r"'d4' \(number 4\): the experiment has devices 0 to 3"),
    ):
        other = config.read(what, [change])
        with pytest.raises(SettingError, match=said):
            Edge(good, other, build_park(other), InMemory(Broker()))


def test_a_device_with_another_model_refuses_to_train(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1)
    with live(tmp_path, what) as park:
        agent = park.agents[WHO]
        agent.experiment = replace(agent.experiment, model=ModelSettings("mlp-2nn"))
        got = park.run()
        assert {reason for of in agent.filter.counts().values() for reason in of} == {"layout"}
    assert got[0].lost == 1


def test_devices_that_leave_and_join_in_every_round_do_not_stop_it(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=5, devices=10)
    rng = random.Random(0)
    with live(tmp_path, what) as park:
        gone: list[int] = []

        def change(line: ledger.Line) -> None:
            for k in gone:
                park.join(k)
            assert until(lambda: all(len(edge.channel.connected) == 10 for edge in park.edges.values()))
            gone[:] = rng.sample(range(10), 3)
            for k in gone:
                park.links[k].die()
            assert until(lambda: all(len(edge.channel.connected) == 7 for edge in park.edges.values()))

        got = park.run(report=change)
    assert [line.lost for line in got] == [0] + [3] * 4
    assert got[-1].accuracy is not None


@pytest.mark.parametrize("method", ["fedsr", "hfedms"])
def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=4)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        park.run(limits=Limits(stop_after=2))
        got = park.run(resume=True)
        memories = [len(list((tmp_path / f"device-{k}/memory").glob("*"))) for k in park.agents]
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    assert max(memories) <= 6  # two checkpoints and now, each with an extractor: nothing else stays on a device


def test_only_the_classifier_travels_once_a_device_holds_the_rest(tmp_path: Path) -> None:
    what = experiment(tmp_path, "hfedms", rounds=2, model="mlp-2nn")  # the second round trains the classifier alone
    with live(tmp_path, what) as park:
        got = park.run()
        said = [p for topic, p in park.broker.said if "/in/" in topic]
        assert not [p for topic, p in park.broker.said if "/out/" in topic and b'"lacks"' in p[:200]]
    sent = {kind: [len(p) for p in said if b'"round":%d' % number in p[:200] and b'"kind":"%s"' % kind in p[:200]]
            for kind, number in ((b"keep", 1), (b"visit", 2))}  # fmt: skip
    simulated(what, tmp_path / "simulated")
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    assert got[1].lost == 0
    whole = 4 * 199_210  # bytes of the 2NN with 10 classes; with 62 it is larger
    assert len(sent[b"keep"]) == len(sent[b"visit"]) == len(park.agents)  # handed out by the Broadcast of round 1
    assert min(sent[b"keep"]) > whole
    assert max(sent[b"visit"]) < whole / 4


def test_a_device_that_missed_a_tree_receives_the_forest_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        f"m{n % 4},{a:.3f},{b:.3f},{'high' if a * b > 0 else 'low'}"
        for n, (a, b) in enumerate(rng.normal(size=(80, 2)))
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["device,a,b,label", *rows]) + "\n")
    what = tmp_path / "experiment.toml"
    what.write_text(
        'rounds = 16\ndata = { path = "rows.csv", split = { kind = "random" } }\npark.factories = 2\n'
        'method.name = "boosting"\nmethods.boosting = { trees = 30, depth = 3 }\nengine.shortcuts = "off"\n'
    )
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:

        def change(line: ledger.Line) -> None:
            if line.round == 8:
                park.agents[1]._worker._held = None  # type: ignore[union-attr]

        got = park.run(report=change)
        lacks = [p for topic, p in park.broker.said if "/out/" in topic and b'"lacks"' in p[:200]]
        handed = [len(p) for topic, p in park.broker.said if "/in/" in topic and b'"kind":"keep"' in p[:200]]
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    assert len(lacks) == 1
    assert max(handed[4:]) < max(handed[:4]) / 3  # the whole model at first, then the newest of its trees
