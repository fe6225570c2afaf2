"""A device that hangs costs its own visits only, and ends when it is told to; its function may even call sys.exit."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_deploy_failures import replies
from test_deploy_faults import losing, model

from fedfloor.base.outside import blamed, load
from fedfloor.deploy import waits
from fedfloor.deploy.checks import MessageFilter
from fedfloor.deploy.message import Message, decode, encode
from fedfloor.deploy.settings import DataSource, Deadlines
from fedfloor.deploy.waits import Waits
from live_park import experiment, figures, live, simulated
from live_processes import needs_broker, processes
from parks import until
from refusals import refused

HUNG = 1


def test_a_device_that_hangs_costs_its_own_visits_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five visits a round of 3 s each would exceed the round's 12 s: the factory would be absent in every round."""
    monkeypatch.setattr(waits, "LEAST_S", 0.2)
    what = experiment(tmp_path, "hierfavg", rounds=4, devices=4)
    what.write_text(what.read_text().replace("edge_rounds = 2", "edge_rounds = 5"))
    with losing(lambda key: key.device == HUNG and key.round >= 2):
        _, wanted = simulated(what, tmp_path / "simulated")
    woken = threading.Event()

    def hang(_: Message) -> Any:
        woken.wait(60)
        return "update", {}, {}

    with live(tmp_path, what, Deadlines(3.0, 60.0, 20.0, 12.0)) as park:
        park.deadlines = Deadlines(round_s=12.0)
        replies(park, "visit", 2, hang, who=HUNG)
        got = park.run()
        woken.set()
    assert [line.lost for line in got] == [0, 5, 5, 5]
    assert [(line.measured or {})["absent"] for line in got] == [[], ["d1"], ["d1"], ["d1"]]
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    assert got[2].wall_s < 3.0  # not even one whole deadline


def test_a_device_that_wakes_up_trains_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "LEAST_S", 0.2)
    what = experiment(tmp_path, "fedavg", rounds=200, devices=4)
    woken = threading.Event()

    def hang(_: Message) -> Any:
        woken.wait(60)
        return "update", {}, {}

    lost = list[int]()

    def report(line: Any) -> None:
        lost.append(line.lost)
        if len(lost) == 3:
            woken.set()

    with live(tmp_path, what, Deadlines(1.0, 60.0, 20.0, 60.0)) as park:
        replies(park, "visit", 2, hang, who=HUNG)
        park.run(report=report, interrupted=lambda: len(lost) > 3 and lost[-1] == 0)
    assert lost[:3] == [0, 1, 1]
    assert lost[-1] == 0


def test_waits_are_whole_again_after_an_answer_and_a_deadline() -> None:
    """Deadline 60 s: 60, 6, 2, 2 … s; an answer at 30 s counts from 60 s after the first expired wait on."""
    now = [0.0]
    some = Waits(lambda: now[0])
    expired = []
    for _ in range(4):
        expired.append(some.wait_s("a", 60))
        some.expired("a", 60)
    assert expired == [60, 6, 2, 2]
    assert some.wait_s("b", 60) == 60
    assert some.wait_s("a", 1) == 1  # never beyond the deadline
    now[0] = 1000.0
    assert some.wait_s("a", 60) == 2  # it has not answered
    some.alive("a")
    assert some.wait_s("a", 60) == 60
    some.expired("a", 60)
    some.alive("a")
    now[0] = 1059.0
    assert some.wait_s("a", 60) == 6
    now[0] = 1060.0
    assert some.wait_s("a", 60) == 60
    some.expired("a", 5.0)  # it left after 5 s
    some.alive("a")
    assert some.wait_s("a", 60) == 6
    now[0] = 1065.0
    assert some.wait_s("a", 60) == 60


def test_a_device_that_is_restarted_has_the_time_that_its_visits_take() -> None:
    """Visits of 200 s: after a restart 60 s would lose them for as long as the last wait took."""
    now = [0.0]
    some = Waits(lambda: now[0])
    some.answered("a", 200.0)
    some.answered("a", 3.0)  # a question
    some.expired("a", 150.0)
    some.alive("a")
    assert some.wait_s("a", 600) == 300.0
    assert some.wait_s("a", 100) == 100.0
    some.expired("a", 300.0)
    assert some.wait_s("a", 600) == 6.0
    some.alive("a")
    now[0] = 449.0
    assert some.wait_s("a", 600) == 6.0
    now[0] = 450.0
    assert some.wait_s("a", 600) == 600


def test_a_device_that_hangs_for_ever_is_waited_for_shortly_for_ever() -> None:
    """10ⁿ is beyond a float from n = 309 on, so that the edge of a device that hung for ten minutes failed."""
    some = Waits(lambda: 0.0)
    for _ in range(2000):
        some.expired("a", 86_400.0)
        assert 2.0 <= some.wait_s("a", 86_400.0) <= 8640.0
    assert some.wait_s("a", 86_400.0) == 2.0


def test_a_device_that_restarts_instead_of_answering_stalls_half_of_the_time_at_most() -> None:
    """It hangs for the whole wait, and is restarted just before its end; the edge sends one request after the other."""
    now = [0.0]
    stalled = 0.0
    some = Waits(lambda: now[0])
    while now[0] < 100_000:
        wait_s = some.wait_s("a", 600)
        now[0] += wait_s - 0.01
        stalled += wait_s * (wait_s == 600)
        some.expired("a", wait_s - 0.01)
        some.alive("a")
        now[0] += 1.0  # the visits of others
    assert 0.4 < stalled / now[0] < 0.51


def test_a_device_that_answers_just_in_time_takes_three_quarters_of_a_round_at_most(tmp_path: Path) -> None:
    """Visits of at most 600 s in rounds of 3600 s: 600 · 4 + 300 s, then 2 s; the next round begins anew."""
    now = [0.0]
    deadlines_s = list[float]()
    with live(tmp_path, experiment(tmp_path, "fedavg", devices=2)) as park:
        (edge,) = (edge for edge in park.edges.values() if 0 in edge.own)
        factory = replace(edge.factory, deadlines=Deadlines(), clock=lambda: now[0])

        def just_in_time(device: int, kind: str, deadline_s: float, **_: object) -> Message:
            now[0] += deadline_s
            deadlines_s.append(deadline_s)
            return Message("update", f"d{device}")

        factory.channel.request = just_in_time  # type: ignore[method-assign, assignment]
        for _ in range(7):
            assert factory.request(0, "visit", 600.0, {}) is not None
        assert factory.request(1, "visit", 600.0, {}) is not None
        factory.waited_s.clear()
        assert factory.request(0, "visit", 600.0, {}) is not None
    assert deadlines_s == [600, 600, 600, 600, 300, 2, 2, 600, 600]


def test_a_request_that_expired_in_the_queue_is_refused_and_not_carried_out(tmp_path: Path) -> None:
    with live(tmp_path, experiment(tmp_path, "fedavg", devices=2)) as park:
        agent = park.agents[0]
        edge = agent.settings.edge
        session = agent._session
        answers = []
        for number, queued_s in ((1, 9.0), (2, 1.0)):
            agent._queued_s = queued_s
            about = {"to": session, "wait_s": 5.0, "device": 0, "tick": 0, "trained": 0}
            request = Message("census", edge, "run", 1, 1, number, about=about, receiver="d0")
            agent.serve(edge, encode(request))
            answers.append(decode(agent._last[1]))
    assert [answer.about.get("reason") == "late" for answer in answers] == [True, False]


def test_an_edge_that_stops_waits_for_no_answer(tmp_path: Path) -> None:
    woken = threading.Event()
    with live(tmp_path, experiment(tmp_path, "fedavg", devices=2)) as park:

        def hang(_: Message) -> Any:
            woken.wait(60)
            return "answer", {}, {}

        replies(park, "probe", 1, hang, who=0)
        (channel,) = (edge.channel for edge in park.edges.values() if 0 in edge.own)
        answers: list[Any] = []
        asks = threading.Thread(
            target=lambda: answers.append(channel.request(0, "probe", 50.0, run="run", number=1, about={})), daemon=True
        )
        asks.start()
        assert until(lambda: channel.open_requests("d0"))
        channel.stop()
        asks.join(10)
        woken.set()
    assert answers == [None]
    assert "stops" in channel.lost["d0"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("no light")])
def test_what_user_code_raises_is_an_answer_with_its_name(error: BaseException) -> None:
    def serve() -> Any:
        raise error

    kind, about, _ = MessageFilter().reply("e0", serve)
    assert kind == "refused"
    assert type(error).__name__ in about["text"]


def test_a_module_that_exits_is_an_error_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exits_at_once.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "exits_later.py").write_text("import sys\ndef see():\n    sys.exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with refused("model"):
        load("exits_at_once:see", "model")
    see = load("exits_later:see", "model")
    with pytest.raises(SystemExit) as ended:
        see()
    own = blamed(ended.value)
    assert own is not None
    assert "exits_later.py, line 3" in str(own)


SEES = """
import sys, time
import numpy as np

def see(device, tick):
    if device == 0:
        time.sleep(600)
    if device == 1 and tick == 0:
        sys.exit(3)
    return np.zeros((3, 1, 28, 28), np.uint8), np.array([0, 1, 2])
"""


@pytest.mark.live
@pytest.mark.slow
@needs_broker
def test_an_agent_whose_function_sleeps_ends_and_one_whose_function_exits_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sees.py").write_text(SEES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    what = experiment(tmp_path, "fedavg", devices=2, factories=1)
    with processes(tmp_path, what, data=lambda _: DataSource("function", name="sees:see")) as park:
        cloud = park.cloud()
        error = "SystemExit: 3"
        assert until(lambda: error in (tmp_path / "d1.log").read_text(), 120), park.logs()
        assert until(lambda: "is connected" in (tmp_path / "e0.log").read_text(), 60), park.logs()
        time.sleep(2)  # the other device sleeps in its function
        began = time.monotonic()
        park.devices[0].send_signal(signal.SIGTERM)
        assert park.devices[0].wait(20) == 0
        assert time.monotonic() - began < 15
        assert until(lambda: "gone: left" in (tmp_path / "e0.log").read_text(), 20), park.logs()
        assert park.devices[1].poll() is None
        assert cloud.wait(120) == 2  # its holding is wrong
        assert error in (tmp_path / "cloud.log").read_text()
