"""Outages: a round without devices waits and is not counted, and a broker that is stopped sends no device away."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_faults import losing, model

from fedfloor import __version__
from fedfloor.base.errors import RunError
from fedfloor.deploy import authority, mqtt, waits
from fedfloor.deploy.attendance import ATTEMPTS, Attendance
from fedfloor.deploy.channel import DeviceChannel
from fedfloor.deploy.device import Agent
from fedfloor.deploy.message import Message, decode, encode
from fedfloor.deploy.settings import Deadlines, Named
from fedfloor.deploy.signing import Signer
from fedfloor.deploy.waits import Waits
from fedfloor.experiment import DeploySettings
from fedfloor.runs import ledger
from fedfloor.runs.results import Wait
from live_park import Live, experiment, figures, live, member, simulated
from parks import until
from refusals import refused


def everywhere(park: Live, count: int) -> None:
    """Wait until every edge knows of so many devices."""
    assert until(lambda: all(len(edge.channel.connected) == count for edge in park.edges.values()))


def away(park: Live, *devices: int) -> None:
    everywhere(park, len(park.links))  # they may still be on their way
    for k in devices:
        park.links[k].die()
    everywhere(park, len(park.links) - len(devices))


# -- the quorum --------------------------------------------------------------------------------------------------------


def test_a_number_counts_the_parks_devices_and_a_share_those_of_each_factory_rounded_up() -> None:
    factory_of = [0] * 10 + [1] * 3
    for quorum, needed in (
        (1, {None: 1}),
        (13, {None: 13}),
        (0.5, {0: 5, 1: 2}),
        (0.7, {0: 7, 1: 3}),  # 0.7 · 10 is above 7 in floating point
        (0.01, {0: 1, 1: 1}),
    ):
        assert DeploySettings(quorum=quorum).needed(factory_of) == needed


def test_a_quorum_that_can_never_be_met_is_refused_before_the_run(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", devices=4, more="deploy.quorum = 5")
    with live(tmp_path, what) as park, refused("deploy.quorum"):
        park.run()
    assert not (tmp_path / "live").exists()
    with refused("deploy.quorum"):
        simulated(what, tmp_path / "simulated")


@pytest.mark.parametrize("given", [0, -1, 1.5, float("nan"), float("inf")])
def test_a_quorum_is_a_share_below_one_or_a_whole_number(given: float) -> None:
    with refused("deploy.quorum"):
        DeploySettings(quorum=given)


def test_a_round_begins_once_the_quorum_is_met_and_ends_the_run_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedfloor.deploy.attendance.LOOK_S", 0.01)
    seen = iter([{0: [0, 1]}, {0: [0, 1], 1: []}, {0: [0, 1], 1: [3]}, {0: [], 1: []}, {0: [0, 1], 1: [2]}])
    seen = iter([*seen, {0: [0, 1], 1: [3]}])
    shown: list[Wait | None] = []
    edges = {0: "north", 1: "south"}
    meeting = Attendance(DeploySettings(quorum=0.5), 60.0, edges, lambda: next(seen), shown.append)
    meeting.assign([0, 0, 1, 1])
    meeting.begin(1)
    assert meeting.present == {0: {0, 1}, 1: {3}}
    said = [one.getMessage() for one in caplog.records if "waits" in one.getMessage()]
    assert ["edge south" in one for one in said] == [True, False]
    assert "device 2, 3" in said[1]
    assert [wait and wait.round for wait in shown] == [1, 1, None]
    assert [wait.why.rstrip(".") in line for wait, line in zip(shown, said, strict=False) if wait] == [True, True]
    assert {wait.until - wait.since for wait in shown if wait} == {60.0}
    meeting.begin(1)  # the same round does not ask again
    assert next(seen) == {0: [], 1: []}
    assert meeting.returned(1, {0})  # the quorum is met
    assert not meeting.returned(1, {2})
    assert list(seen) == []

    shown.clear()
    never = Attendance(DeploySettings(quorum=3), 0.05, edges, lambda: {0: [0, 1]}, shown.append)
    never.assign([0, 0, 1, 1])
    with refused("few-devices", RunError):
        never.begin(2)
    assert [wait and wait.round for wait in shown] == [2, None]


def test_a_round_that_crosses_factories_waits_for_devices_at_other_edges_and_once_only_for_those_that_never_arrive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedfloor.deploy.attendance.LOOK_S", 0.01)
    seen: list[dict[int, set[int]]] = [{0: {2}, 1: set()}, {0: {2, 3}, 1: {0}}, {0: {2, 3}, 1: {0, 1}}]
    looks: list[int] = []

    def look() -> dict[int, list[int]]:
        looks.append(1)
        meeting.visiting = seen[min(len(looks), len(seen)) - 1]
        return {0: [0, 1], 1: [2, 3]}

    meeting = Attendance(DeploySettings(), 60.0, {0: "north", 1: "south"}, look, crosses=True)
    meeting.assign([0, 0, 1, 1])
    meeting.begin(1)
    assert len(looks) == 3  # until the last arrival was passed on
    said = [one.getMessage() for one in caplog.records if "waits" in one.getMessage()]
    assert "north does not see device 3; edge south does not see device 0, 1" in said[0]
    meeting.begin(2)
    assert len(looks) == 3  # nothing is missing

    seen[:] = [{0: {2}, 1: {0, 1}}]
    meeting._wait_s = 0.05
    meeting.begin(3)  # begun with the answers of round 2
    assert len(looks) == 3
    meeting.visiting = seen[0]
    meeting.begin(4)
    waited = len(looks)
    assert waited > 3
    assert "goes on" in caplog.records[-1].getMessage()
    assert "north does not see device 3" in caplog.records[-1].getMessage()
    meeting.begin(5)
    assert len(looks) == waited  # it is not waited for again
    meeting.visiting = {0: {2, 3}, 1: {0, 1}}
    meeting.begin(6)
    meeting.visiting = {0: {2, 3}, 1: {1}}
    meeting.begin(7)
    assert len(looks) > waited  # another one
    within = Attendance(DeploySettings(), 60.0, {0: "north", 1: "south"}, lambda: {0: [0, 1], 1: [2, 3]})
    within.assign([0, 0, 1, 1])
    within.begin(1)  # rounds within factories wait for no other edge


def test_an_edge_waits_for_its_own_devices_whatever_others_are_connected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    what = experiment(tmp_path, "fedsr", rounds=1, devices=4)
    with live(tmp_path, what) as park:
        channel = park.edges[0].channel
        own = park.edges[0].own
        everywhere(park, 4)
        park.links[own[0]].die()
        assert until(lambda: len(channel.connected) == 3)
        assert channel.wait_for(own, 0.05) == [f"d{own[0]}"]
        threading.Timer(0.2, park.join, (own[0],)).start()
        assert channel.wait_for(own, 30) == []


def test_round_1_waits_for_devices_that_reach_a_foreign_edge_late(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedsr", rounds=2, devices=4, more="methods.fedsr.ring_size = 4")
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        for m, edge in park.edges.items():
            everywhere(park, 4)
            for k in {0, 1, 2, 3} - set(edge.own):
                edge.channel.connected.pop(k)
                hello = park.broker.retained[mqtt.topic("trial", "status", f"d{k}")]
                back = edge.channel.receive, (mqtt.topic("trial", "status", f"d{k}"), hello)
                threading.Timer(0.7 + 0.3 * m, *back).start()
        got = park.run()
    assert [line.lost for line in got] == [0, 0]
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


# -- rounds without devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "hierfavg", "fedsr"])
def test_a_round_without_devices_waits_for_their_return_and_costs_no_bit(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=3, devices=4)
    what.write_text(what.read_text().replace("lr = 0.05", "lr = { kind = 'cosine', start = 0.05 }"))
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:

        def leave(line: ledger.Line) -> None:
            if line.round != 1:
                return
            away(park, 0, 1, 2, 3)
            for k in range(4):
                threading.Timer(0.5 + 0.4 * k, park.join, (k,)).start()

        got = park.run(report=leave)
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


def test_a_round_that_waits_is_written_down_while_it_does(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2, devices=2)
    file = tmp_path / "live/waiting.json"
    with live(tmp_path, what) as park:
        seen: list[str] = []

        def back() -> None:
            assert until(file.exists, 60)
            seen.append(json.loads(file.read_text())["why"])
            for k in (0, 1):
                park.join(k)

        def leave(line: ledger.Line) -> None:
            if line.round == 1:
                away(park, 0, 1)
                threading.Thread(target=back, daemon=True).start()

        park.run(report=leave)
    assert "0 of 2 devices" in seen[0]
    assert not file.exists()


def test_devices_that_all_leave_during_their_visits_get_the_round_again(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2, devices=2, more="deploy.quorum = 2")
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        left: list[int] = []

        def dying(k: int) -> Callable[[str, bytes], None]:
            def serve(edge: str, payload: bytes) -> None:
                left.append(k)
                park.links[k].die()
                threading.Timer(0.5, park.join, (k,)).start()

            return serve

        for k in (0, 1):
            park.agents[k].serve = dying(k)  # type: ignore[method-assign]
        got = park.run()
    assert sorted(left) == [0, 1]
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


@contextmanager
def flapping(park: Live, *devices: int) -> Iterator[list[int]]:
    """Let devices begin a new session instead of answering a request; yield the rounds of these requests."""
    usual = Agent.serve
    rounds = list[int]()

    def serve(agent: Agent, edge: str, payload: bytes) -> None:
        device = agent.settings.device
        if device not in devices:
            usual(agent, edge, payload)
            return
        rounds.append(decode(payload).round)
        park.links[device].stop()
        park.join(device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agent, "serve", serve)
        yield rounds


def test_a_device_drawn_alone_that_begins_a_session_at_each_request_is_lost_and_others_train(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=4, devices=3, more="methods.fedavg.fraction = 0.33")
    with losing(lambda key: key.device == 0):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park, flapping(park, 0) as rounds:
        got = park.run()
    assert rounds
    assert Counter(rounds) == dict.fromkeys(set(rounds), ATTEMPTS)
    assert [line.round for line in got if line.lost] == sorted(set(rounds))
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


def test_a_run_ends_if_all_connected_devices_begin_sessions_instead_of_answering(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2, devices=2)
    with live(tmp_path, what) as park, flapping(park, 0, 1), refused("few-devices", RunError):
        park.run()


def test_a_run_without_devices_ends_after_join_s_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3, devices=4, more="deploy.quorum = 4")
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        park.deadlines = Deadlines(join_s=1.0, round_s=120)
        with refused("few-devices", RunError):
            park.run(report=lambda line: away(park, 0, 1, 2, 3))
        assert len(ledger.read(tmp_path / "live/ledger.jsonl")) == 1
        for k in range(4):
            park.join(k)
        everywhere(park, 4)
        got = park.run(resume=True)
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


def test_after_an_outage_whoever_does_not_return_in_time_is_lost_if_the_quorum_is_met(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2, devices=4)
    with losing(lambda key: key.device == 3 and key.round == 2):
        _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        park.deadlines = Deadlines(join_s=3.0, round_s=120)

        def leave(line: ledger.Line) -> None:
            if line.round == 1:
                away(park, 0, 1, 2, 3)
                for k in range(3):
                    threading.Timer(0.5, park.join, (k,)).start()

        got = park.run(report=leave)
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


@pytest.mark.parametrize("quorum", [1, 0.5])
def test_a_factory_alone_is_waited_for_only_if_the_quorum_asks_for_it(tmp_path: Path, quorum: float) -> None:
    what = experiment(tmp_path, "hierfavg", rounds=3, devices=4, more=f"deploy.quorum = {quorum}")
    with live(tmp_path, what) as park:
        edge = park.edges[1]
        known = park.settings()
        theirs = {one.device for one in edge.settings.devices}
        with losing(lambda key: quorum == 1 and key.device in theirs and key.round == 2):
            _, wanted = simulated(what, tmp_path / "simulated")
        park.settings = lambda out="live": known  # type: ignore[method-assign]

        def absent(line: ledger.Line) -> None:
            if line.round == 1:
                del park.edges[1]
                if quorum < 1:
                    threading.Timer(1.0, lambda: park.edges.update({1: edge})).start()
            else:
                park.edges[1] = edge

        got = park.run(report=absent)
    assert [line.lost > 0 for line in got] == [False, quorum == 1, False]
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


def test_questions_wait_as_well(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fldg", rounds=2, devices=4, more="methods.fldg.groups = 2")
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        away(park, 0, 1, 2, 3)
        what.write_text(what.read_text() + "deploy.quorum = 4\n")
        for k in range(4):
            threading.Timer(0.5 + 0.2 * k, park.join, (k,)).start()
        got = park.run()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]


# -- wills -------------------------------------------------------------------------------------------------------------


class Link:
    """A connection whose broker answers when the test lets it."""

    def __init__(self) -> None:
        self.unconfirmed: list[Callable[[], None]] = []
        self.sent: list[bytes] = []

    def start(self, topics: object, receive: object, connected: object, lost: Callable[[], None]) -> None:
        self.lost = lost

    def confirm(self, do: Callable[[], None]) -> None:
        self.unconfirmed.append(do)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.sent.append(payload)

    def answer(self) -> None:
        for do in self.unconfirmed:
            do()
        self.unconfirmed.clear()

    def stop(self) -> None:
        pass


def channel(return_s: float = 60.0) -> tuple[Link, DeviceChannel]:
    link = Link()
    made = DeviceChannel("p", "e", link, {0: Named("d0", 0), 1: Named("d1", 1)}, return_s=return_s)  # type: ignore[arg-type]
    made.start()
    for k in (0, 1):
        tell(made, k, "hello")
    return link, made


def tell(made: DeviceChannel, k: int, kind: str, session: int = 5, why: str = mqtt.LOST) -> None:
    about: dict[str, Any] = {"device": k, "version": __version__} if kind == "hello" else {"why": why}
    status = Message(kind, f"d{k}", session=session, number=1, about=about)
    made.receive(mqtt.topic("p", "status", f"d{k}"), encode(status))


def test_a_will_counts_once_the_broker_has_answered_and_never_if_its_connection_ends() -> None:
    link, made = channel()
    tell(made, 0, "gone")
    assert made.present() == [0, 1]
    link.answer()
    assert made.present() == [1]
    tell(made, 1, "gone")
    link.unconfirmed.clear()  # as at the end of a connection
    link.lost()
    assert (made.present(), set(made.connected)) == ([], {1})  # awaited, and sent requests
    tell(made, 1, "gone")  # the will that the restarted broker has kept
    link.answer()
    assert set(made.connected) == {1}
    tell(made, 1, "hello")
    assert made.present() == [1]
    tell(made, 1, "gone")
    tell(made, 1, "hello")  # it is back before the broker answers
    link.answer()
    assert made.present() == [1]
    tell(made, 1, "gone")
    tell(made, 1, "gone")  # once more
    link.answer()
    assert not made.connected
    made.stop()


def test_a_will_that_a_started_broker_has_kept_does_not_send_away_who_is_back_before_it_is_confirmed() -> None:
    link, made = channel()
    link.lost()
    tell(made, 1, "gone")
    tell(made, 1, "hello")
    link.answer()
    assert made.present() == [1]
    made.stop()


def test_a_goodbye_counts_while_the_return_is_awaited_and_a_will_of_an_earlier_session_never() -> None:
    link, made = channel()
    link.lost()
    tell(made, 0, "gone", why=mqtt.LEFT)
    tell(made, 1, "gone", session=4, why=mqtt.LEFT)
    link.answer()
    assert set(made.connected) == {1}
    tell(made, 1, "gone", why=mqtt.LEFT)
    tell(made, 1, "hello", session=6)  # restarted before the broker answers
    link.answer()
    assert made.present() == [1]
    made.stop()


def test_who_does_not_return_in_time_is_gone_and_its_request_is_lost() -> None:
    link, made = channel(return_s=0.3)
    link.lost()
    tell(made, 0, "hello")
    answers: list[object] = []
    about: dict[str, Any] = {}
    asking = threading.Thread(
        target=lambda: answers.append(made.request(1, "visit", 60.0, run="r", number=1, about=about))
    )
    asking.start()
    asking.join(5.0)
    assert answers == [None]
    assert made.present() == [0]
    made.stop()


@pytest.mark.parametrize("ends", ["restart", "goodbye", "will"])
def test_what_a_device_that_leaves_let_the_edge_wait_shortens_its_next_wait(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "LEAST_S", 0.0)  # these waits are short
    link, made = channel()
    made.waits = Waits(lambda: 0.0)  # no time passes, so that short waits do not end

    def ask() -> threading.Thread:
        asking = threading.Thread(
            target=made.request, args=(0, "visit", 60.0), kwargs={"run": "r", "number": 1, "about": {}}
        )
        asking.start()
        assert until(lambda: made.open_requests("d0"))
        return asking

    def wait_s() -> float:
        return float(decode(link.sent[-1]).about["wait_s"])

    for number, expected in enumerate((60.0, 6.0, 0.6)):
        asking = ask()
        assert wait_s() == expected
        if ends != "restart":
            tell(made, 0, "gone", session=5 + number, why=mqtt.LEFT if ends == "goodbye" else mqtt.LOST)
            link.answer()
        tell(made, 0, "hello", session=6 + number)
        asking.join(5.0)
    asking = ask()
    made.abandon("the cloud sent another request")  # which is not the device's fault
    asking.join(5.0)
    made.resume()
    assert made.waits.wait_s("d1", 60) == 60
    made.stop()


def test_only_signed_answers_in_order_are_signs_of_life_also_those_in_pieces(tmp_path: Path) -> None:
    ca = authority.found("trial", authority.now())
    signers = {name: Signer(member(tmp_path, ca, name), name) for name in ("e", "d0", "d1")}
    link = Link()
    made = DeviceChannel("p", "e", link, {0: Named("d0", 0)}, signer=signers["e"])  # type: ignore[arg-type]
    made.start()
    made.waits = Waits(lambda: 0.0)

    def answer(by: str, number: int, size: int = 1) -> list[bytes]:
        arrays = {"w": np.zeros(size, np.float32)}
        told = Message("update", "d0", session=5, number=number, answers="1-1", arrays=arrays, receiver="e")
        return list(mqtt.pieces(encode(told, signers[by])))

    def alive(*packets: bytes) -> bool:
        made.waits = Waits(lambda: 0.0)
        made.waits.expired("d0", 0.0)
        for packet in packets:
            made.receive(mqtt.topic("p", "out", "d0", "e"), packet)
        return made.waits.wait_s("d0", 60) == 60

    large = answer("d0", 2, 200_000)
    assert len(large) > 2
    assert alive(*answer("d0", 1))
    assert not alive(*answer("d0", 1))  # repeated
    assert not alive(*answer("d1", 2))
    assert not alive(b"x")
    assert not alive(*large[1:])
    assert alive(large[0])
    assert not alive(*large)
    assert not alive(*answer("d1", 3, 200_000))
    made.stop()


def test_a_connection_that_ends_again_gives_all_devices_the_whole_time() -> None:
    link, made = channel(return_s=0.6)
    link.lost()
    threading.Event().wait(0.4)
    link.lost()
    threading.Event().wait(0.4)
    assert set(made.connected) == {0, 1}
    assert until(lambda: not made.connected, 2)
    made.stop()


def test_the_wait_of_a_quorum_does_not_count_in_the_measurements(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1, devices=4, more="deploy.quorum = 4")
    plain = experiment(tmp_path, "fedavg", rounds=1, devices=4).read_text()
    what.write_text(plain)
    with live(tmp_path, what) as park:
        first = park.run("first")[0].measured
        what.write_text(plain + "\ndeploy.quorum = 4\n")
        second = park.run("second")[0].measured
    assert first is not None
    assert second is not None
    assert first["bytes"] == pytest.approx(second["bytes"], abs=1000)  # headers tell times of other lengths
