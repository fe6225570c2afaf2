"""Devices that answer that they failed, or questions with nonsense or not at all: the run goes on without them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_deploy_faults import WHEN, WHO, losing, model

from fedfloor import config
from fedfloor.base.errors import DivergedError, FedfloorError, RunError, SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import checks, mqtt, names, subtasks
from fedfloor.deploy.cloud_executor import CloudExecutor
from fedfloor.deploy.factory_executor import FactoryExecutor
from fedfloor.deploy.message import Message, encode
from fedfloor.deploy.settings import CloudEdge, CloudSettings, Deadlines, Named
from fedfloor.engine.executor import ask
from fedfloor.engine.team import Alone
from fedfloor.parts.mixing.mix import Branch, Meeting, QFair
from fedfloor.plan.nodes import Probe
from fedfloor.runs import ledger
from live_park import NOWHERE, Inside, Live, experiment, figures, live, simulated
from parks import until
from refusals import refused

NAME = f"d{WHO}"
Reply = Callable[[Message], Any]


def replies(park: Live, kind: str, number: int, reply: Reply, who: int = WHO) -> None:
    """Let a device do something else when it is asked that in that round."""
    agent = park.agents[who]
    usual = agent.worker

    def work() -> Any:
        worker = usual()
        return SimpleNamespace(
            reply=lambda one: reply(one) if (one.kind, one.round) == (kind, number) else worker.reply(one)
        )

    agent.worker = work  # type: ignore[method-assign, assignment]


def raises(error: Exception) -> Reply:
    def reply(_: Message) -> Any:
        raise error

    return reply


@pytest.mark.parametrize("method", ["fedavg", "fedsr"])
@pytest.mark.parametrize("error", [DivergedError("its loss\nis nan"), SettingError("no weights"), RunError("no light")])
def test_who_cannot_train_is_lost_and_named_and_the_round_goes_on(
    tmp_path: Path, method: str, error: FedfloorError
) -> None:
    what = experiment(tmp_path, method, rounds=3)
    with losing(lambda key: key.device == WHO and key.round == WHEN):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        replies(park, "visit", WHEN, raises(error))
        got = park.run()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    failed = {NAME: str(error).replace("\n", "\\n")}
    assert [line.measured["failed"] for line in got] == [{}, failed, {}]  # type: ignore[index]


def test_a_rate_at_which_everybody_diverges_ends_the_run_as_in_the_simulation(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg")
    what.write_text(what.read_text().replace("lr = 0.05", "lr = 3e38"))
    with refused("diverged", DivergedError):
        simulated(what, tmp_path / "simulated")
    said = r"round 1: no device's training succeeded. d0: the loss of device 0 became .*; 7 more failed likewise."
    with live(tmp_path, what) as park, pytest.raises(DivergedError, match=said):
        park.run()


def test_devices_that_fail_for_several_reasons_end_the_run_with_neither_of_them(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", devices=2)
    with live(tmp_path, what) as park:
        replies(park, "visit", 1, raises(DivergedError("its loss is nan")), who=0)
        replies(park, "visit", 1, raises(SettingError("no weights")), who=1)
        with pytest.raises(RunError, match="d0: its loss is nan; 1 more failed likewise") as told:
            park.run()
    assert type(told.value) is RunError


@pytest.mark.parametrize(("devices", "needed"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 5), (100, 20)])
def test_a_minority_that_fails_whenever_it_is_drawn_ends_no_run(tmp_path: Path, devices: int, needed: int) -> None:
    """One device is drawn in each round, and fails; only more than half of the devices (or 20) end the run."""
    what = experiment(tmp_path, "fedavg", devices=max(2, devices))
    edges = (CloudEdge("e0", 0, (Named("d0", 0),)),)
    way = Inside({})
    settings = CloudSettings("trial", what, tmp_path / "run", edges, NOWHERE)
    one = CloudExecutor(settings, way, [0] * devices, names.table(config.read(what, [])))
    one.edges.attendance.present = {0: set(range(devices))}
    for number in range(1, needed + 1):
        failed = {f"d{number}": checks.Failure("visit", "RunError", "why")}
        one.edges.measurements.add("e0", checks.Measured(0.0, 0.0, {}, frozenset(), {}, failed, 1), 0, 0)
        if number < needed:
            one.no_success(number)
            one.measured()
    with pytest.raises(RunError, match="no device's training succeeded"):
        one.no_success(needed)


def test_one_device_that_diverges_does_not_end_a_run_that_others_can_carry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In round 1 it is the only one that is there, in round 2 all are, in round 3 it is alone again."""
    what = experiment(tmp_path, "fedavg", rounds=3, devices=4)
    with live(tmp_path, what) as park:
        for number in (1, 2, 3):
            replies(park, "visit", number, raises(DivergedError("its loss is nan")), who=0)
        away(park, 1, 2, 3)

        def come_and_go(line: ledger.Line) -> None:
            if line.round == 1:
                for k in (1, 2, 3):
                    park.join(k)
                assert until(lambda: all(len(edge.channel.connected) == 4 for edge in park.edges.values()))
            else:
                away(park, 1, 2, 3)

        got = park.run(report=come_and_go)
    assert [line.lost for line in got] == [4, 1, 4]
    assert "round 1: every visit was lost. d0: its loss is nan" in caplog.text


def test_an_edge_that_fails_sits_out_and_the_other_factory_carries_the_run(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2)
    with live(tmp_path, what) as park:

        def fails(_: Message) -> Any:
            raise SettingError("no\x1b[2J disk")

        park.edges[0].walk = fails  # type: ignore[method-assign]
        got = park.run()
        assert [line.lost for line in got] == [4, 4]
        assert [line.measured["failed"] for line in got] == [{"e0": "no\\x1b[2J disk"}] * 2  # type: ignore[index]
        park.edges[1].walk = fails  # type: ignore[method-assign]
        with refused("e0"):
            park.run("again")


@pytest.mark.parametrize("answers", [RefusedError("header", "it holds no subtask."), ("walked", {"shown": []}, {})])
def test_a_run_whose_edges_all_refuse_or_are_refused_ends(tmp_path: Path, answers: Any) -> None:
    def answer(_: Message) -> Any:
        if isinstance(answers, Exception):
            raise answers
        return answers

    with live(tmp_path, experiment(tmp_path, "fedavg", rounds=3)) as park:
        for edge in park.edges.values():
            edge.walk = answer  # type: ignore[method-assign]
        with pytest.raises(RunError, match=r"round 1: no device's training succeeded\..* e0: .*header"):
            park.run()


def away(park: Live, *who: int) -> None:
    for k in who:
        park.links[k].die()
    assert until(lambda: not any(k in edge.channel.connected for edge in park.edges.values() for k in who))


GROUPS = "methods.{0}.groups = 4"
ASKED = {
    "fldg": GROUPS.format("fldg"), "fldgl": GROUPS.format("fldgl"), "kcenter": "methods.kcenter.centers = 3",
    "fedl": "", "qffl": "", "astraea": "methods.astraea.devices = 2",
    "fedgs": "methods.fedgs = { iterations = 3, devices = 2, random = 1 }",
}  # fmt: skip


@pytest.mark.parametrize("method", ASKED)
def test_what_a_device_does_not_answer_is_decided_without_it(
    tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with live(tmp_path, experiment(tmp_path, method, rounds=2, more=ASKED[method])) as park:
        away(park, WHO)
        got = park.run()
    assert f"devices [{WHO}] did not answer" in caplog.text
    assert all(0 <= line.lost < line.participants for line in got)
    assert got[-1].accuracy is not None
    if method in ("fldg", "fldgl", "kcenter"):  # it is in no group
        assert [line.lost for line in got] == [0, 0]


def test_a_plan_that_cannot_do_without_an_answer_says_so(tmp_path: Path) -> None:
    what = experiment(tmp_path, "kcenter", more="methods.kcenter.centers = 8")
    with live(tmp_path, what) as park:
        away(park, WHO)
        with refused("no-answer", RunError):
            park.run()


def test_a_question_that_nobody_answers_ends_the_run(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedl", devices=2)
    with live(tmp_path, what) as park:
        away(park, 0, 1)
        park.deadlines = Deadlines(join_s=0.5)
        with refused("few-devices", RunError):
            park.run()


@pytest.mark.parametrize("method", ["qffl", "fedcs"])
def test_a_device_asked_alone_that_does_not_answer_ends_no_run_where_others_are_there(
    tmp_path: Path, method: str
) -> None:
    """These methods put a question to the drawn devices in every round; here one of three is drawn."""
    more = f"methods.{method}.fraction = 0.33\nnetwork.profile = 'lte-cat-m2'"
    with live(tmp_path, experiment(tmp_path, method, rounds=5, devices=3, more=more)) as park:
        for number in range(1, 6):
            replies(park, "probe", number, raises(SettingError("no losses")), who=0)
        got = park.run()
    assert [line.round for line in got] == [1, 2, 3, 4, 5]
    assert any("no losses" in str(line.measured) for line in got)
    assert got[-1].accuracy is not None


def test_a_question_that_nobody_can_answer_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    with live(tmp_path, experiment(tmp_path, "fedl", devices=2)) as park:
        for k in (0, 1):
            replies(park, "probe", 0, raises(SettingError("no room for a gradient.")), who=k)
        with refused("no-answer", RunError):
            park.run()


@pytest.mark.parametrize("answers", [RefusedError("header", "no table."), ("answers", {"answers": []}, {})])
def test_a_question_whose_answers_are_all_refused_ends_the_run_with_the_reason(tmp_path: Path, answers: Any) -> None:
    def answer(_: Message) -> Any:
        if isinstance(answers, Exception):
            raise answers
        return answers

    with live(tmp_path, experiment(tmp_path, "fedl", devices=2)) as park:
        for edge in park.edges.values():
            edge.answer_question = answer  # type: ignore[method-assign]
        with refused("no-answer", RunError):
            park.run()


def test_a_refused_answer_is_no_failed_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question in a branch is an edge's: its devices may all train while their answers are refused."""
    with live(tmp_path, experiment(tmp_path, "fedavg")) as park:
        edge = park.edges[0]
        own = tuple(one.device for one in edge.settings.devices)
        monkeypatch.setattr(FactoryExecutor, "answers", lambda *_: {k: 1e6 if k == own[0] else 1.0 for k in own})
        got = ask(edge.engine, Probe(own, "loss"), {}, 0, Alone())
    assert got.keys() == {*own[1:]}
    assert {name: one.kind for name, one in edge.factory.failed.items()} == {f"d{own[0]}": "probe"}


def vector(*numbers: float, kind: Any = np.float32) -> Reply:
    return lambda _: ("answer", {}, {"answer": np.array(numbers, kind)})


@pytest.mark.parametrize(
    ("method", "reply", "reason"),
    [
        ("fldg", vector(1, 2, 3), "shape"),  # others send more
        ("fldg", vector(1, 2, 3, kind=np.float64), "shape"),
        ("fldg", vector(np.nan), "not finite"),
        ("fldg", lambda _: ("answer", {}, {"answer": np.zeros((2, 2), np.float32)}), "shape"),
        ("fldg", lambda _: ("answer", {"answer": [1.0]}, {}), "names"),
        ("fldg", lambda _: ("update", {}, {}), "kind"),
        ("fldgl", vector(1), "kind"),
        ("fldgl", lambda _: ("answer", {"answer": [1, 2]}, {}), "answer"),
        ("fldgl", lambda _: ("answer", {"answer": [10**400] * 16}, {}), "answer"),
        ("fedl", vector(1, 2), "shape"),
        ("kcenter", vector(1, 2), "shape"),
        ("qffl", lambda _: ("answer", {"answer": -1.0}, {}), "answer"),
        ("qffl", lambda _: ("answer", {"answer": float("nan")}, {}), "answer"),
        ("qffl", lambda _: ("answer", {"answer": True}, {}), "answer"),
        ("qffl", lambda _: ("answer", {"answer": 1e308}, {}), "answer"),
        ("astraea", lambda _: ("answer", {"answer": [25, *[0] * 61]}, {}), "answer"),  # it holds 24
        ("astraea", lambda _: ("answer", {"answer": [0.5] * 62}, {}), "answer"),
        ("astraea", lambda _: ("answer", {"answer": "many"}, {}), "answer"),
    ],
)
def test_an_answer_that_cannot_be_is_refused_named_and_not_used(
    tmp_path: Path, method: str, reply: Reply, reason: str
) -> None:
    with live(tmp_path, experiment(tmp_path, method, rounds=1, more=ASKED[method])) as park:
        replies(park, "probe", 1 if method == "qffl" else 0, reply)
        got = park.run()
    measured = got[0].measured or {}
    assert [counts for of in measured["refused"].values() for counts in of.values()] == [{reason: 1}]
    assert set(measured["failed"]) == {NAME} or reason == "not finite"  # damaged before it is read


@pytest.mark.parametrize(
    "said",
    [
        {"answers": {"0": [1] * 62, "9": [1] * 62}},  # of a device that is another edge's
        {"answers": {"0": [1] * 61}},
        {"answers": []},
        {"answers": {"0": [1] * 62}, "failed": 7},
        {"answers": {"0": [1] * 62}, "measured": {"seconds": []}},
    ],
)
def test_an_edge_that_hands_over_nonsense_does_not_end_the_run(
    tmp_path: Path, said: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with live(tmp_path, experiment(tmp_path, "astraea", rounds=1, more=ASKED["astraea"])) as park:
        edge = park.edges[0]
        usual = edge.answer

        def answer(frame: bytes) -> bytes:
            from fedfloor.deploy.message import decode

            got = decode(usual(frame))
            if got.kind != "answers":
                return encode(got)
            return encode(Message(**{**vars(got), "about": {**got.about, **said}, "arrays": {}}))

        edge.answer = answer  # type: ignore[method-assign]
        assert park.run()[0].accuracy is not None
    assert "refused a message of e0" in caplog.text


def test_a_census_that_no_number_can_hold_costs_its_device_only(tmp_path: Path) -> None:
    what = experiment(tmp_path, "hfedms", rounds=1)
    with live(tmp_path, what) as park:
        agent = park.agents[WHO]
        agent.census = lambda _: [10**400] * 62  # type: ignore[method-assign]
        got = park.run()
    assert got[0].lost == 0
    assert set(got[0].measured["failed"]) == {NAME}  # type: ignore[index]


def test_resources_are_told_as_two_numbers() -> None:
    node = Probe((0,), "resources")
    engine: Any = None
    assert subtasks.read_answer(node, 0, {"pass_s": 1, "distance_m": 2.5}, {}, engine) == {
        "pass_s": 1.0, "distance_m": 2.5,
    }  # fmt: skip
    far = {"pass_s": 1.0, "distance_m": 1e10}
    slow = {"pass_s": 1e9}
    for wrong in ({}, {"distance_m": 1.0}, {"pass_s": 1.0, "more": 1.0}, {"pass_s": float("inf")}, [1.0], far, slow):
        with refused("answer", RefusedError):
            subtasks.read_answer(node, 0, wrong, {}, engine)


def test_q_fair_leaves_out_who_did_not_say_its_loss() -> None:
    """One model left: with one device the step is to its model, w − F^q·u/(q·F^(q−1)·‖u‖² + F^q/η), q = 0: to w_k."""
    start = torch.tensor([1.0])
    models = [torch.tensor([3.0]), torch.tensor([9.0])]
    told = [Branch(1, 0.5, 2.0), Branch(1, 0.5, None)]
    assert QFair(0.0).mixed(Meeting(start, models, told, 0.5, 2, 1)).tolist() == [3.0]
    assert QFair(0.0).mixed(Meeting(start, models[1:], told[1:], 0.5, 2, 1)).tolist() == [1.0]


def test_the_length_of_features_is_that_of_more_than_half_of_an_edges_devices_or_of_most_of_all() -> None:
    three = torch.zeros(3)
    four = torch.zeros(4)
    assert set(subtasks.length_refusals({5: three, 1: four})) == {1, 5}  # the lowest number must not decide for all
    assert set(subtasks.length_refusals({5: three, 1: four, 2: four})) == {5}
    assert not subtasks.length_refusals({5: three, 1: four}, some=True)
    assert set(subtasks.length_refusals({5: three, 1: four, 2: four}, some=True)) == {5}
    assert not subtasks.length_refusals({1: four, 2: four})


def test_the_second_answer_to_a_request_that_was_said_twice_is_no_attack(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2)
    simulated(what, tmp_path / "simulated")
    topic = mqtt.topic("trial", "status", f"d{WHO}")
    with live(tmp_path, what) as park:
        work = park.agents[WHO].worker()
        usual = work.reply
        asked = []

        def slow(message: Message) -> object:
            asked.append(message.identity)
            park.broker.deliver(topic, park.broker.retained[topic], False)  # its hello comes once more
            time.sleep(0.3)
            return usual(message)

        work.reply = slow  # type: ignore[method-assign]
        got = park.run()
        time.sleep(0.3)  # second answers come later
        counts = [park.edges[m].channel.filter.counts() for m in sorted(park.edges)]
        answered = [payload for one, payload in park.broker.said if f"/out/d{WHO}/" in one]
    assert len(answered) - len(set(answered)) >= len(asked) > 0  # there were second ones
    assert counts == [{}, {}]
    assert [line.lost for line in got] == [0, 0]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
