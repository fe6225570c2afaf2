"""A device or an edge that does anything in place of an answer costs its own visits; the others' bits are the same."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_faults import losing, model

from fedfloor.deploy import mqtt, waits
from fedfloor.deploy.device import Agent
from fedfloor.deploy.edge import Edge
from fedfloor.deploy.message import decode, encode
from fedfloor.deploy.settings import Deadlines
from fedfloor.engine import ranks
from fedfloor.runs import ledger
from live_park import Live, experiment, figures, live, simulated

BAD = 1
VISIT_S = ROUND_S = 6.0  # far more than honest answers take on a busy machine
MORE = {"fedsr": "methods.fedsr = { laps = 2, ring_size = 4 }"}
Served = Callable[[Agent, str, bytes], None]
Lost = set[tuple[int, int, int]]  # round, device, visit
pytestmark = pytest.mark.slow


@contextmanager
def losses(patch: pytest.MonkeyPatch) -> Iterator[Lost]:
    """Note the lost visits of a run."""
    usual = ranks.run
    lost = Lost()

    def run(*given: Any, **about: Any) -> Any:
        outcome = usual(*given, **about)
        lost.update((about["round_number"], one.device, one.visit) for one in outcome.receipts if one.lost)
        return outcome

    with patch.context() as own:
        own.setattr(ranks, "run", run)
        yield lost


def assert_simulated(folder: Path, what: Path, lost: Lost, got: list[ledger.Line]) -> None:
    """Compare a run with the simulation that loses the same visits."""
    with losing(lambda key: (key.round, key.device, key.visit) in lost):
        _, wanted = simulated(what, folder / "simulated")
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert model(folder / "live") == model(folder / "simulated")


class Devious:
    """What a device does with a request: one of its methods, chosen by a seed."""

    def __init__(self, park: Live, seed: int, usual: Served) -> None:
        self.park = park
        self.rng = random.Random(seed)
        self.usual = usual
        self.ways = (
            usual, usual, usual, self.hang, self.restart, self.die, self.leave, self.fail, self.lack, self.shout,
            self.repeat, self.late, self.stale, self.swamp,
        )  # fmt: skip
        self.done: set[str] = set()

    def serve(self, agent: Agent, edge: str, payload: bytes) -> None:
        if agent.settings.device != BAD:
            self.usual(agent, edge, payload)
            return
        way = self.rng.choice(self.ways)
        self.done.add(getattr(way, "__name__", "usual"))
        way(agent, edge, payload)

    def say(self, agent: Agent, edge: str, frame: bytes) -> None:
        agent._link.publish(mqtt.topic("trial", "out", agent.settings.name, edge), frame)

    def hang(self, agent: Agent, edge: str, payload: bytes) -> None:
        pass

    def restart(self, agent: Agent, edge: str, payload: bytes) -> None:
        self.park.links[BAD].stop()
        self.park.join(BAD)

    def die(self, agent: Agent, edge: str, payload: bytes) -> None:
        self.park.links[BAD].die()
        self.park.join(BAD)

    def leave(self, agent: Agent, edge: str, payload: bytes) -> None:
        agent._link.publish(agent._status, agent.next_message("gone", about={"why": mqtt.LEFT}), retain=True)
        agent.announce()

    def fail(self, agent: Agent, edge: str, payload: bytes) -> None:
        about = {"error": "SystemExit", "text": "\x1b[2J\n" * 99}
        self.say(agent, edge, agent.next_message("failed", decode(payload), about))

    def lack(self, agent: Agent, edge: str, payload: bytes) -> None:
        self.say(agent, edge, agent.next_message("lacks", decode(payload)))

    def shout(self, agent: Agent, edge: str, payload: bytes) -> None:
        for size in (0, 10, 5000):
            self.say(agent, edge, self.rng.randbytes(size))
        arrays = {"w": np.full(7, np.nan, np.float32)}
        self.say(agent, edge, agent.next_message("update", decode(payload), {"receipt": [0] * 12}, arrays))

    def repeat(self, agent: Agent, edge: str, payload: bytes) -> None:
        self.usual(agent, edge, payload)
        self.usual(agent, edge, payload)

    def late(self, agent: Agent, edge: str, payload: bytes) -> None:
        threading.Timer(1.5 * VISIT_S, self.usual, (agent, edge, payload)).start()

    def stale(self, agent: Agent, edge: str, payload: bytes) -> None:
        agent._session, session = agent._session - 1, agent._session
        self.usual(agent, edge, payload)
        agent.announce()
        agent._session = session

    def swamp(self, agent: Agent, edge: str, payload: bytes) -> None:
        for _ in range(20):
            agent.announce()


class DeviousEdge:
    """What an edge does with a request: one of its methods, chosen by a seed."""

    def __init__(self, edge: Edge, seed: int) -> None:
        self.edge = edge
        self.rng = random.Random(seed)
        self.usual = edge.answer
        self.ways = (
            self.usual, self.usual, self.hang, self.late, self.cut, self.old, self.lack, self.fail, self.refuse,
            self.claim, self.deny, self.blame,
        )  # fmt: skip
        self.before = b""
        self.done = set[str]()

    def answer(self, frame: bytes) -> bytes:
        way = self.rng.choice(self.ways)
        self.done.add(way.__name__)
        said = way(frame)
        self.before = said or self.before
        return said

    def hang(self, frame: bytes) -> bytes:
        time.sleep(1.5 * ROUND_S)
        return b""

    def late(self, frame: bytes) -> bytes:
        time.sleep(1.5 * ROUND_S)
        return self.usual(frame)

    def cut(self, frame: bytes) -> bytes:
        return self.usual(frame)[: self.rng.randrange(2000)]

    def old(self, frame: bytes) -> bytes:
        return self.before

    def say(self, frame: bytes, kind: str, **about: Any) -> bytes:
        return encode(self.edge.next_message(kind, decode(frame), {"here": self.edge.own, "reached": 1, **about}))

    def lack(self, frame: bytes) -> bytes:
        return self.say(frame, "lacks")

    def fail(self, frame: bytes) -> bytes:
        return self.say(frame, "failed", error="SystemExit", text="\x1b[2J" * 99)

    def refuse(self, frame: bytes) -> bytes:
        return self.say(frame, "refused", text="x" * 9999)

    def claim(self, frame: bytes) -> bytes:
        return self.changed(frame, here=[0, 1, 2, 3], reached=4)

    def deny(self, frame: bytes) -> bytes:
        return self.changed(frame, here=[], reached=0)

    def blame(self, frame: bytes) -> bytes:
        return self.changed(frame, failed={f"d{k}": ["visit", "RunError", "why"] for k in range(4)})

    def changed(self, frame: bytes, **about: Any) -> bytes:
        true = decode(self.usual(frame))
        return encode(replace(true, about={**true.about, **about}))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("method", ["fedavg", "hierfavg"])
def test_an_edge_that_does_anything_costs_its_own_factory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, seed: int
) -> None:
    what = experiment(tmp_path, method, rounds=15, devices=4)
    with live(tmp_path, what) as park, losses(monkeypatch) as lost:
        park.deadlines = Deadlines(join_s=20.0, round_s=ROUND_S)
        bad = DeviousEdge(park.edges[1], seed)
        park.edges[1].answer = bad.answer  # type: ignore[method-assign]
        got = park.run()
    assert {device for _, device, _ in lost} == set(bad.edge.own)
    assert len(bad.done) > 5
    assert_simulated(tmp_path, what, lost, got)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "hierfavg", "fedsr"])
def test_a_device_that_does_anything_costs_its_own_visits_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, seed: int
) -> None:
    monkeypatch.setattr(waits, "LEAST_S", 0.2)
    what = experiment(tmp_path, method, rounds=15, devices=4, more=MORE.get(method, ""))
    usual = Agent.serve
    deadlines = Deadlines(VISIT_S, VISIT_S, 20.0, 60.0)
    with live(tmp_path, what, deadlines) as park, losses(monkeypatch) as lost, pytest.MonkeyPatch.context() as patch:
        bad = Devious(park, seed, usual)
        patch.setattr(Agent, "serve", lambda agent, edge, payload: bad.serve(agent, edge, payload))
        got = park.run()
    assert {device for _, device, _ in lost} == {BAD}
    assert len(bad.done) > 5
    assert_simulated(tmp_path, what, lost, got)
