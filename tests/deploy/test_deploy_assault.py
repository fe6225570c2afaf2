"""A second attack on a deployment, from its documents and its code: what was tried, by class, and what came of it.

``PYTHONPATH=.:tests/support python tests/deploy/test_deploy_assault.py`` writes ``results/attacks.md``.
"""

from __future__ import annotations

import getpass
import hashlib
import io
import json
import logging
import math
import os
import queue
import random
import resource
import shutil
import socket
import ssl
import struct
import sys
import tempfile
import time
import tomllib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomlkit
import torch
from PIL import Image
from test_deploy_crews import CREWS, Crewed
from test_deploy_hostile import DEEP, GONE, forged, forgeries, places
from test_deploy_own_work import HOSTILE as FIELDS
from test_deploy_own_work import KINDS, order, own_work, worker
from test_deploy_sums_across import VISIT
from test_deploy_sums_active import FORGED, NoisyProtocol, advertised, signer
from test_deploy_sums_active import again as second_sum
from test_deploy_sums_attacks import DEVICES, FALSE, Attacked, false_shares
from test_deploy_survey import written as survey_of

import fedfloor
from fedfloor import __version__, cli, config
from fedfloor.base.errors import FedfloorError, RunError
from fedfloor.base.ranges import RefusedError
from fedfloor.data.dataset import Inputs
from fedfloor.deploy import authority, broker, checks, device, facts, joining, machines, mqtt, provision, subtasks
from fedfloor.deploy.channel import REPEATS, DeviceChannel, OpenRequest
from fedfloor.deploy.checks import STRANGER, MessageFilter
from fedfloor.deploy.cloud_executor import CloudExecutor
from fedfloor.deploy.device_sum import DeviceSum
from fedfloor.deploy.edge_requests import limits_of_answer
from fedfloor.deploy.flow import BURST, Flow
from fedfloor.deploy.message import FEW_ARRAYS, MAGIC, SHORT_HEADER, START, VERSION, Message, decode, encode
from fedfloor.deploy.names import table
from fedfloor.deploy.park_file import from_document
from fedfloor.deploy.settings import CloudEdge, CloudSettings, DataSource, Named
from fedfloor.deploy.signing import Signer
from fedfloor.deploy.waits import LEAST_S, Waits
from fedfloor.deploy.worker import Worker
from fedfloor.engine.engine import FrozenExtractor
from fedfloor.engine.limit import Limit
from fedfloor.experiment import Experiment, ModelSettings
from fedfloor.inference.trained import load_model
from fedfloor.models import saved
from fedfloor.park.survey import RowClusters, RowQuestion
from fedfloor.parts.mixing.mix import BySamples
from fedfloor.parts.travel.codecs import SecureSum
from fedfloor.parts.travel.limits import NormLimit
from fedfloor.plan.nodes import Probe, Work
from fedfloor.plan.schedule import Key
from fedfloor.rollout import gate
from fedfloor.runs import launch, replay
from fedfloor.runs.orders import Limits, Orders
from fedfloor.runs.parks import load_data
from fedfloor.runs.prepare import begin
from fedfloor.tasks.figures import named
from live_park import NOWHERE, Broker, InMemory, Live, device_settings, experiment, member
from live_park import live as park_of
from model_files import write_model
from networks import build
from papers import documents
from parks import MOSQUITTO, TOP, Client, free_port, plant, until

# known: not prevented, as docs/deploy-security.md states
REFUSED = "refused"
HARMLESS = "harmless"
KNOWN = "known"
TEXT = "\x1b[2J</script><script>alert(1)</script>\n\u202eERROR" * 30
HOSTILE: list[Any] = [
    None, True, -1, 0, 1 << 63, 10**400, 1e308, -1e308, math.nan, math.inf, "", "os:system", "../" * 21 + "etc/passwd",
    TEXT, [], {}, DEEP, ["x"] * 5000, {"name": 0, "digest": "0" * 16},
]  # fmt: skip
DENIED = 135  # MQTT's answer to who has no right
# of one attempt
SLOWEST_S = 30.0
GROWN_MB = 400.0
PLANTED = ("antigravity", "this", "idlelib", "turtledemo")  # modules that nothing of ours imports


class ThroughError(AssertionError):
    """An attempt that got through."""


@dataclass
class Tally:
    """What came of a class of attempts."""

    title: str
    aim: str
    by_hand: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    through: list[str] = field(default_factory=list)
    connects: bool = False  # whether the attempts themselves open connections

    def attempt(self, name: str, do: Callable[[], str], *, by_hand: bool = True) -> None:
        """Make an attempt: whatever it starts, opens, imports, raises or takes beyond its share got through."""
        self.by_hand += by_hand
        with watched() as seen:
            began = time.process_time()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                came = do()
            except Exception as error:
                came = f"{type(error).__name__}: {error}"
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
            seen += [f"{grown:.0f} MB"] if grown > GROWN_MB else []
            took = time.process_time() - began
            seen += [f"{took:.0f} s"] if took > SLOWEST_S else []
        seen = [one for one in seen if not (self.connects and one.startswith("socket.connect"))]
        if came in (REFUSED, HARMLESS, KNOWN) and not seen:
            self.counts[came] += 1
        else:
            self.through.append(f"{name}: {came[:200]} {seen}")


_seen: list[str] | None = None


def _audited(event: str, words: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    ran = event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect", "pickle.find_class")
    if ran or (event == "import" and words[0] in PLANTED):
        _seen.append(f"{event} {words!r:.80}")
    elif event == "open" and isinstance(words[0], str) and words[0].startswith("/etc/"):
        _seen.append(f"{event} {words[0]}")


sys.addaudithook(_audited)


@contextmanager
def watched() -> Iterator[list[str]]:
    """What an attempt runs, imports or opens that it must not."""
    global _seen
    _seen = found = list[str]()
    try:
        yield found
    finally:
        _seen = None


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise ThroughError(what)


# -- a taken-over edge against devices --------------------------------------------------------------------------------


@dataclass
class Device:
    """A device's agent, and how it is asked as its own edge or another one does."""

    park: Live
    number: int = 0

    def __post_init__(self) -> None:
        self.agent = self.park.agents[self.number]
        self.near = self.agent.settings.edge
        (self.far,) = {"e0", "e1"} - {self.near}
        self.network = self.agent.worker().engine.network
        self.w = self.network.flat.numpy().copy()

    def ask(self, kind: str, about: Mapping[str, Any], edge: str = "", **more: Any) -> tuple[str, dict[str, Any], Any]:
        edge = edge or self.near
        said = encode(Message(kind, edge, session=1, number=1, about=about, **more))
        return self.agent.reply(edge, decode(said, header=SHORT_HEADER, arrays=FEW_ARRAYS))

    def about(self, kind: str) -> dict[str, Any]:
        """What an honest request holds."""
        base = {"device": self.number, "layout": None, "held": None, "trained": 0, "tick": 0}
        work = {"objective": "plain", "epochs": None, "steps": 1, "batch_size": 8, "rate": 0.01, "momentum": 0.0,
                "weight_decay": 0.0, "scope": "all", "settings": {}}  # fmt: skip
        return base | {
            "visit": {"visit": 0, "work": work, "frozen": False, "rest": "", "kept": []},
            "probe": {"what": "profile", "settings": {k: v for k, v in work.items() if k != "settings"}},
            "loss": {"what": "loss", "settings": {}},
        }.get(kind, {})

    def honest(self) -> tuple[bytes, Any]:
        """An honest visit: its update's bits and its receipt."""
        kind, about, arrays = self.ask("visit", self.about("visit"), arrays={"w": self.w})
        expect(kind == "update", f"an honest visit is answered with {kind}: {about}")
        return arrays["w"].tobytes(), about["receipt"]

    def outcome(self, kind: str, about: Mapping[str, Any], edge: str = "", **more: Any) -> str:
        got, said, arrays = self.ask(kind, about, edge, **more)
        if got in ("refused", "failed"):
            expect(bool(said.get("text")), "nothing is said of why")
            return REFUSED
        expect(got in ("update", "answer", "kept", "lacks"), f"it answers {got}")
        size = sum(one.nbytes for one in arrays.values())
        expect(size <= 2 * self.w.nbytes + 4096, f"it answers {size} bytes")
        return HARMLESS

    def refuses(self, kind: str, about: Mapping[str, Any], edge: str = "", **more: Any) -> Callable[[], str]:
        def do() -> str:
            came = self.outcome(kind, about, edge, **more)
            expect(came == REFUSED, "it does what it must refuse")
            return came

        return do


SPECS = (
    "subprocess:call", "os:system", "builtins:eval", "builtins:exec", "builtins:__import__", "antigravity:geohash",
    "this:s", "idlelib:x", "torch.hub:load", "torch:load", "pickle:loads", "numpy:load", "fedfloor.base.outside:load",
    "fedfloor.deploy.broker:withdraw", "fedfloor.parts.objectives.proximal:Prox", "live_park:Abroad", ":", "a:",
    "os:system\0",
    "mobilenet", "onnx", "../../evil.py:Run", "__class__", "google/mobilenet_v2_1.0_224", "/etc/passwd",
)  # fmt: skip
REFERENCES: list[Any] = [
    {"name": 0, "digest": ""}, {"name": -1, "digest": ""}, {"name": True, "digest": ""},
    {"name": 1 << 63, "digest": ""},
    {"name": "os:system", "digest": ""}, {"name": 0}, {"name": 0, "digest": "", "x": 1}, {"name": [0], "digest": {}},
    {"name": None, "digest": None}, {"os:system": {"name": 0, "digest": ""}},
]  # fmt: skip


def code_on_a_device(tally: Tally, folder: Path) -> None:
    with park_of(folder, experiment(folder, "fedavg", rounds=1, devices=4)) as park:
        one = Device(park)
        before = one.honest()
        for value in (*SPECS, *REFERENCES):
            for field_of in ("objective", "mix"):
                about = one.about("visit")
                about["work"] = {**about["work"], field_of: value}
                tally.attempt(f"work.{field_of} = {value}", one.refuses("visit", about, arrays={"w": one.w}))
            about = one.about("visit")
            about["work"] = {**about["work"], "settings": {"kind": value, "args": "touch x", "shell": True}}
            tally.attempt(f"settings = {value}", one.refuses("visit", about, arrays={"w": one.w}))
            for what in ("features", "hash"):
                settings = {"extractor": value, "args": "touch x", "shell": True, "weights": "/etc/passwd"}
                asked = one.about("loss") | {"what": what, "settings": settings}
                tally.attempt(f"{what} by {value}", one.refuses("probe", asked, arrays={"w": one.w}))
            asked = one.about("loss") | {"what": value}
            tally.attempt(f"question {value}", one.refuses("probe", asked, arrays={"w": one.w}))
        tally.attempt("the device trains as before", lambda: HARMLESS if one.honest() == before else "other bits")


def fields_of_requests(tally: Tally, folder: Path) -> None:
    with park_of(folder, experiment(folder, "fedavg", rounds=1, devices=4)) as park:
        one = Device(park)
        before = one.honest()
        for kind in ("visit", "probe", "loss", "census", "keep", "facts"):
            true = one.about(kind)
            name = "probe" if kind == "loss" else kind
            for at in places(true):
                for new in [*HOSTILE, GONE] if at else [{}]:
                    changed = forged(true, at, new)
                    tally.attempt(
                        f"{kind} {at} = {str(new)[:40]}",
                        partial(one.outcome, name, changed, arrays={"w": one.w}),
                        by_hand=False,
                    )
            for new in HOSTILE:
                if isinstance(new, int) and not isinstance(new, bool):
                    tally.attempt(
                        f"{kind} of round {str(new)[:20]}",
                        partial(one.outcome, name, true, round=new, arrays={"w": one.w}),
                        by_hand=False,
                    )
        tally.attempt("the device trains as before", lambda: HARMLESS if one.honest() == before else "other bits")


def device_starved(tally: Tally, folder: Path) -> None:
    """Work, memory, disk and the queue of a device."""
    more = "data.samples_per_device = 3000"
    what = experiment(folder, "fedavg", rounds=1, devices=4)
    what.write_text(what.read_text().replace("data.samples_per_device = 24", more))
    with park_of(folder, what) as park:
        one = Device(park)

        def visit(**work: Any) -> dict[str, Any]:
            about = one.about("visit")
            return {**about, "work": {**about["work"], **work}}

        for work in (
            {"steps": 1 << 30}, {"epochs": 1 << 30, "steps": None}, {"epochs": 200, "steps": None, "batch_size": 1},
            {"steps": 1, "batch_size": 1 << 30}, {"steps": 1, "batch_size": 2000},
            {"epochs": 1, "batch_size": 3000, "steps": None},
            {"epochs": 1}, {"steps": None}, {"steps": 0}, {"steps": -1}, {"batch_size": 0},
            {"objective": "variates"}, {"objective": "contrastive", "settings": {"dim": 1 << 40}},
            {"objective": "gated", "settings": {"layers": 1 << 40}},
            {"objective": "replay", "scope": "classifier", "settings": {"keep": 1 << 40, "raw": True}},
        ):  # fmt: skip
            tally.attempt(f"work {work}", one.refuses("visit", visit(**work), arrays={"w": one.w, "c": one.w}))
        for settings in (
            {"extractor": "random-conv", "filters": 16384, "hashes": 4096, "width": 1.0},
            {"extractor": "random-conv", "filters": 16384, "size": 1024}, {"extractor": "hog", "orientations": 360},
            {"extractor": "raw", "hashes": 4096, "width": 1e-300},
        ):  # fmt: skip
            for what_ in ("features", "hash"):
                asked = one.about("loss") | {"what": what_, "settings": settings}
                tally.attempt(f"{what_} {settings}", one.refuses("probe", asked))
    tally.attempt("another edge fills the queue", partial(_queue, folder))
    tally.attempt("another edge's visits wait in front", partial(_front, folder))
    for name, change in (
        ("keeps every memory", {"kept": [f"{n:064x}" for n in range(1000)]}),
        ("keeps a memory that grew too large", {"held": "a" * 64}),
    ):
        tally.attempt(name, partial(_memories, folder, change))


def _agent(folder: Path) -> device.Agent:
    what = experiment(folder, "fedavg", rounds=1, devices=4)
    return device.Agent(
        device_settings(folder, what, 0, 0),
        config.read(what, []),
        None,
        lambda will: InMemory(Broker(), will),
    )


def _say(agent: device.Agent, edge: str, number: int, size: int = 10) -> None:
    said = Message("visit", edge, session=1, number=number, about={"to": agent._session, "filling": "x" * size})
    agent.receive(mqtt.topic("trial", "in", edge, "d0"), encode(said))


def _queue(folder: Path) -> str:
    agent = _agent(folder)
    for number in range(1, 200):
        _say(agent, "e1", number)
    _say(agent, "e0", 1)
    expect(agent._waiting["e0"] == 1, "the own edge's request finds no room")
    expect(agent.filter.refused["e1", "busy"] == 199 - device.WAITING, "what is too much is not refused")
    return REFUSED


def _front(folder: Path) -> str:
    agent = _agent(folder)
    for number in range(1, 10):
        _say(agent, "e1", number)
    _say(agent, "e0", 1)
    got = agent.next_request()
    expect(got is not None and got[0] == "e0", "the own edge's request waits behind another's")
    return HARMLESS


def _memories(folder: Path, change: Mapping[str, Any]) -> str:
    place = Path(tempfile.mkdtemp(dir=folder))
    with park_of(place, experiment(place, "hfedms", rounds=2)) as park:
        one = Device(park)
        work = {"objective": "replay", "epochs": 1, "batch_size": 5, "scope": "classifier", "settings": {"keep": 5}}
        worker = one.agent.worker()
        size = 1 + worker._most
        one.agent.settings.memory.mkdir(parents=True, exist_ok=True)
        with (one.agent.settings.memory / f"{one.number}-{'a' * 32}.safetensors").open("wb") as file:
            file.truncate(size)
        sent = {"w": one.w[one.network.part("classifier")]}
        about = one.about("visit") | {"work": work, "frozen": 1} | dict(change)
        return one.refuses("visit", about, scope="classifier", arrays=sent)()


def what_a_device_holds(tally: Tally, folder: Path) -> None:
    """Reading what belongs to others, and other meanings of what a device holds."""
    with park_of(folder, experiment(folder, "fedavg", rounds=1, devices=4)) as park:
        one = Device(park)
        for extractor in ("raw", "penultimate", "random-conv", "hog"):
            for what in ("features", "hash"):
                asked = one.about("loss") | {
                    "what": what,
                    "settings": {"extractor": extractor, "hashes": 4, "width": 1.0},
                }
                tally.attempt(f"{what} by {extractor} that the method does not ask", one.refuses("probe", asked))
        for settings in (
            {"low": -40.0, "width": 80.0}, {"low": -40.0, "width": 1e-9}, {"low": math.nan, "width": 80.0},
            {"low": 0.1, "width": 1.25}, {},
        ):  # fmt: skip
            asked = one.about("loss") | {"what": "scores", "settings": settings}
            tally.attempt(f"scores in bins {settings}", one.refuses("probe", asked, arrays={"w": one.w}))
        for held in (
            "../" * 10 + "etc/passwd",
            "/etc/passwd",
            "\0",
            "0" * 64,
            "+" + "0" * 64,
            "0" * 64 + "+../x",
            "~",
            "*",
        ):
            about = one.about("visit") | {"held": held}
            about["work"] = {**about["work"], "objective": "variates"}
            tally.attempt(f"held = {held!r}", one.refuses("visit", about, arrays={"w": one.w, "c": one.w}))
        for kind in ("visit", "probe", "census", "keep", "facts", "leave", "hello", "", "walk", "gather"):
            tally.attempt(f"{kind} of another edge", one.refuses(kind, one.about(kind), one.far, arrays={"w": one.w}))
        for number in (1, 2, 3, -1):
            about = one.about("loss") | {"device": number}
            tally.attempt(f"a question to device {number}", one.refuses("probe", about, arrays={"w": one.w}))
        tally.attempt("an answer that another edge was given", partial(_cached, one))
        for sums, crosses in product((True, False), repeat=2):
            tally.attempt("what other factories' devices hold", partial(_elsewhere, sums, crosses))
    known = Path(tempfile.mkdtemp(dir=folder))
    with park_of(known, experiment(known, "fedavg", rounds=1, devices=4)) as park:
        one = Device(park)
        true = facts.of(one.agent.experiment, one.agent.own_park().dataset).to_dict()
        tally.attempt("what a sample is", lambda: one.outcome("facts", one.about("facts") | {"facts": true}))
        for name, value in (
            ("classes", true["classes"][::-1]), ("scale", 1e9), ("shape", [1, 1 << 40, 28]),
            ("name", "x"), ("sums", True),
            ("inputs", {**true["inputs"], "kind": "table"}), ("classes", ["x"] * 9000),
        ):  # fmt: skip
            about = one.about("facts") | {"facts": {**true, name: value}}
            tally.attempt(f"then {name} = {str(value)[:40]}", one.refuses("facts", about))
    abroad = Path(tempfile.mkdtemp(dir=folder))
    with park_of(abroad, experiment(abroad, "astraea", rounds=1, devices=4)) as park:
        one = Device(park)
        true = facts.of(one.agent.experiment, one.agent.own_park().dataset).to_dict()
        asked = one.about("facts") | {"facts": true}
        tally.attempt("another edge states first what a sample is", one.refuses("facts", asked, one.far))
        tally.attempt("its own edge states it", lambda: one.outcome("facts", asked))
        tally.attempt("another edge asks what it holds", partial(_bare, one, asked))
        for name, value in (("classes", true["classes"][::-1]), ("scale", 1e9), ("sums", True), ("standard", None)):
            about = one.about("facts") | {"facts": {**true, name: value}}
            tally.attempt(f"another edge states {name} = {str(value)[:40]}", partial(_relabelled, one, about))


def _bare(one: Device, about: Mapping[str, Any]) -> str:
    """An edge of another factory asks what a device holds, whose rounds cross factories."""
    kind, told, _ = one.ask("facts", about, one.far)
    expect(kind == "answer" and not any(told["answer"]["counts"]), "it reads the class counts")
    return HARMLESS


def _relabelled(one: Device, about: Mapping[str, Any]) -> str:
    before = one.agent._facts
    one.ask("facts", about, one.far)
    expect(one.agent._facts == before, "it decides what the device's samples are")
    return REFUSED


def _elsewhere(sums: bool, crosses: bool) -> str:
    """An edge looks for what other factories' devices hold in what the cloud tells it."""
    about = facts.Facts("own", ("a", "b"), (1, 2, 2), Inputs("image"), 1 / 255, sums=sums)
    rows = ((36.0,), (90.0,), (30.0,)) if sums else ()
    held = [facts.Holding(9, (4, 5), rows, "ab" * 32), facts.Holding(9, (9, 0), rows, "cd" * 32)]
    park = facts.park(Experiment(), about, [0, 1], held)
    told = json.loads(
        json.dumps(joining.holdings_for(facts.with_statistics(about, park), ([0, 1], held), 0, crosses=crosses))
    )
    first, other = told["held"]
    expect(first == json.loads(json.dumps(asdict(held[0]))), "it does not know its own")
    expect(
        not any(other["counts"]) and not any(map(any, other["sums"])) and ("cd" in other["digest"]) == crosses,
        "it reads more",
    )
    read = facts.read(told["facts"])
    again = facts.park(Experiment(), read, *joining.read_holdings(told, read))
    expect(
        str(facts.with_statistics(read, again)) == str(facts.with_statistics(about, park)),
        "its samples are scaled otherwise",
    )
    return HARMLESS


def _cached(one: Device) -> str:
    said = encode(Message("census", one.near, session=1, number=1, about={}))
    one.agent._last = f"{one.near} 1-1", b"the answer"
    expect(not one.agent.repeat_answer(one.far, said), "another edge is given the last answer")
    return HARMLESS


def what_surveys_reveal(tally: Tally, folder: Path) -> None:
    """Normalisation over the wire: what edges ask and state, and what devices answer."""
    for kind in ("robust", "regime"):
        place = Path(tempfile.mkdtemp(dir=folder))
        what = survey_of(place, kind)
        with park_of(place, what, data=lambda k, at=place: DataSource("folder", at / f"{k}.csv")) as park:
            agent = park.agents[0]
            read = config.read(what, [])
            near = agent.settings.edge
            (far,) = {"e0", "e1"} - {near}
            true = facts.of(read, load_data(read))
            ask = partial(_states, agent, near)
            tally.attempt(f"{kind}: what a sample is", partial(ask, true.to_dict(), HARMLESS))
            honest, others = _questions(kind)
            for question in honest:
                asked = {**true.to_dict(), "question": question.to_dict()}
                tally.attempt(f"{kind}: '{question.kind}' is asked", partial(ask, asked, HARMLESS))
                tally.attempt(f"{kind}: by another edge", partial(_states, agent, far, asked, REFUSED))
                tally.attempt(
                    f"{kind}: before the first", partial(_answers, replace(true, question=question.to_dict()))
                )
            for question in others:
                changed = {**true.to_dict(), "question": question.to_dict()}
                tally.attempt(f"{kind}: '{question.kind}', which it never asks", partial(ask, changed, REFUSED))
            one_row = np.array([[float(agent._raw.samples(0)[0][0][0])]])  # type: ignore[union-attr]
            if kind == "regime":
                near_it = RowQuestion(
                    "sums", None, RowClusters(PLACES, ZERO, ONE, np.concatenate([one_row, one_row + 99]))
                )
                single = {**true.to_dict(), "question": near_it.to_dict()}
                tally.attempt("regime: the sums of few rows alone", partial(_few, agent, near, single))
            for question in honest:
                for at in places(question.to_dict()):
                    for new in [*HOSTILE, GONE] if at else [{}]:
                        changed = {**true.to_dict(), "question": forged(question.to_dict(), at, new)}
                        name = f"{kind}: {question.kind} {at} = {str(new)[:30]}"
                        tally.attempt(name, partial(ask, changed, ""), by_hand=False)
            found = _found(kind)
            tally.attempt(f"{kind}: what was found", partial(ask, {**true.to_dict(), "found": found}, HARMLESS))
            before = agent.own_park().samples(0)[0].copy()
            for at in places(found):
                for new in [*HOSTILE, GONE] if at else [{}]:
                    changed = {**true.to_dict(), "found": forged(found, at, new)}
                    tally.attempt(f"{kind}: found {at} = {str(new)[:30]}", partial(ask, changed, ""), by_hand=False)
            for standard in (
                [[math.nan] * 3, [1.0] * 3], [[0.0] * 3, [0.0] * 3], [[0.0] * 2, [1.0] * 2], [[0.0] * 3], TEXT,
                [[0.0] * 3, [math.inf] * 3], [[0.0] * 3, [-1.0] * 3], [[0.0] * 9000, [1.0] * 9000],
            ):  # fmt: skip
                changed = {**true.to_dict(), "standard": standard}
                tally.attempt(f"{kind}: standard = {str(standard)[:30]}", partial(ask, changed, REFUSED))
            for scale in (math.nan, math.inf, 0.0, -1.0, 1e300, 1e-300, "1", None):
                tally.attempt(f"{kind}: scale = {scale}", partial(ask, {**true.to_dict(), "scale": scale}, REFUSED))
            tally.attempt(f"{kind}: then what was found", partial(ask, {**true.to_dict(), "found": found}, HARMLESS))
            same = partial(_same, lambda a=agent, b=before: np.array_equal(a.own_park().samples(0)[0], b))
            tally.attempt(f"{kind}: its samples are as before", same)


# by the first sensor
PLACES = np.array([0])
ZERO = np.zeros(1)
ONE = np.ones(1)


def _questions(kind: str) -> tuple[list[RowQuestion], list[RowQuestion]]:
    """Questions that a survey has, and those that it has not."""
    three, other = (RowClusters(at, ZERO, ONE, np.array([[0.0], [1.0], [2.0]])) for at in (PLACES, PLACES + 1))
    whole = [RowQuestion("sums"), RowQuestion("spread", np.zeros((1, 3)))]
    below = RowQuestion("below", np.zeros((3, 45)))
    apart = [
        RowQuestion("sums", None, three),
        RowQuestion("spread", np.zeros((3, 3)), three),
        RowQuestion("clusters", None, three),
    ]
    elsewhere = [replace(one, clusters=other) for one in apart]
    large = (
        RowQuestion("below", np.zeros((3, 46))),
        RowQuestion("clusters", None, replace(three, centres=np.zeros((13, 1)))),
    )
    if kind == "robust":
        return [*whole, below], [*apart, *elsewhere, *large]
    return [*whole, *apart], [below, *elsewhere, *large]


def _found(kind: str) -> dict[str, Any]:
    if kind == "robust":
        return {"median": [0.0, 0.5, 1.0], "scale": [1.0, 2.0, 3.0]}
    return {"columns": [0], "centre": [0.0], "spread": [1.0], "regimes": [[0.0], [1.0]], "means": [[0.0] * 3] * 2,
            "deviations": [[1.0] * 3] * 2}  # fmt: skip


def _states(agent: device.Agent, edge: str, about: Mapping[str, Any], wanted: str) -> str:
    """An edge states what a sample is, with a question, or with what was found."""
    known = agent._facts
    said = {"device": 0, "facts": about}
    message = decode(encode(Message("facts", edge, session=1, number=1, about=json.loads(json.dumps(said)))))
    kind, told, _ = agent.reply(edge, message)
    came = HARMLESS if kind == "answer" else REFUSED
    expect(kind in ("answer", "refused", "failed"), f"it answers {kind}")
    expect(came != REFUSED or bool(told.get("text")), "nothing is said of why")
    expect(came != REFUSED or agent._facts == known, "a refused request changes what it knows")
    expect(len(json.dumps(told, allow_nan=False)) < 100_000, "its answer is long")
    samples = agent.own_park().samples(0)[0]
    expect(bool(np.isfinite(samples).all()), "its samples are no numbers any more")
    expect(wanted in ("", came), f"it is {came}")
    return came


def _few(agent: device.Agent, edge: str, about: Mapping[str, Any]) -> str:
    """Clusters of an edge's own choosing have few rows; ``docs/deploy-security.md`` states that it is not prevented."""
    _states(agent, edge, about, HARMLESS)
    return KNOWN


def _answers(about: facts.Facts) -> str:
    """A device answers a survey's question, with every number of the answer replaced."""
    question = RowQuestion.from_dict(about.question or {})
    size = int(np.prod(question.shape(about.shape[0])))
    true = {"samples": 9, "counts": [4, 5], "sums": [], "digest": "0" * 64, "answer": [0.0] * size}
    for at in places(true):
        for new in [*HOSTILE, -1e-9, 1e31]:
            try:
                held = facts.read_holding(forged(true, at, new), about)
            except RefusedError:
                continue
            expect(
                all(map(math.isfinite, held.answer)) and len(held.answer) == size, f"{at} = {str(new)[:30]} is taken"
            )
    return REFUSED


def _same(check: Callable[[], bool]) -> str:
    expect(check(), "they differ")
    return HARMLESS


def secure_sums(tally: Tally, folder: Path) -> None:
    """A device that spoils a secure sum, and a server that takes a second one."""
    numbers = count()

    def spoilt(stage: str, change: Callable[[Any], Any], due: set[int]) -> str:
        sum_ = Attacked(folder / str(next(numbers)), stage, change)
        members = sum_.summed()  # raises if the others have no sum
        left_out = members == set(DEVICES) - {FALSE}
        return REFUSED if set(sum_.refused) == due and (left_out or stage == "sum-unmask") else HARMLESS

    for stage in checks.STAGES:
        for new in [*HOSTILE, ["00" * 32, "00" * 32], {str(k): "00" * 80 for k in DEVICES}]:
            honest = stage == "sum-check" and new == []
            due = set() if honest else {FALSE}
            name = f"{stage} answered by {str(new)[:30]}"
            tally.attempt(name, partial(spoilt, stage, lambda _, new=new: new, due), by_hand=False)
    for name, (stage, change) in FALSE_ANSWERS.items():
        tally.attempt(name, partial(spoilt, stage, change, {FALSE}))

    def stages(kind: str, about: Any) -> str:
        sum_ = Attacked(folder / str(next(numbers)))
        sum_.server.end = lambda: None  # type: ignore[method-assign]
        sum_.run()
        try:
            sum_.devices[FALSE].reply(kind, about(sum_))
        except RefusedError:
            return REFUSED
        return f"the device answered {kind}"

    def identity(sum_: Attacked, **more: Any) -> dict[str, Any]:
        return {"identity": sum_.server.identity, **more}

    for name, kind, about in (
        ("shares are asked twice", "sum-shares", lambda s: identity(s, keys={})),
        ("shares are sent twice", "sum-check", lambda s: identity(s, shares={})),
        ("two survivors", "sum-unmask", lambda s: identity(s, survivors=[FALSE, 0])),
        ("without itself", "sum-unmask", lambda s: identity(s, survivors=[0, 1, 2, 4, 5, 6, 7, 8])),
        ("invented survivors", "sum-unmask", lambda s: identity(s, survivors=[*DEVICES, 77])),
        ("another sum", "sum-unmask", lambda s: {"identity": "00" * 32, "survivors": list(DEVICES)}),
    ):
        tally.attempt(name, partial(stages, kind, about))
    for new in HOSTILE:
        for at in ("identity", "survivors"):
            asked = lambda s, at=at, new=new: {**identity(s, survivors=list(DEVICES)), at: new}  # noqa: E731
            tally.attempt(f"unmasking with {at} = {str(new)[:30]}", partial(stages, "sum-unmask", asked), by_hand=False)

    def twice(gone: list[set[int]]) -> str:
        first, second = (Attacked(folder / str(next(numbers))) for _ in range(2))
        second.devices = first.devices
        first.summed()
        second.gone = gone
        second.tolerant = True
        second.run()
        return REFUSED if second.made.sums[0].lost else "a second sum of the same visits"

    for k in DEVICES:
        tally.attempt(f"once more without {k}", partial(twice, [{k}, set(), set(), set()]))
        tally.attempt(f"once more, {k} drops out", partial(twice, [set(), set(), {k}, set()]))

    def other_model(round_: int) -> str:
        first = Attacked(folder / str(next(numbers)))
        second = second_sum(first, folder / str(next(numbers)), VISIT, "by_samples", round_)
        second.start["w"] += 1e-7
        second.changes = {k: change * (1 + 1e-6) for k, change in second.changes.items()}  # as by training from it
        second.gone = [{0}, set(), set(), set()]
        second.tolerant = True
        first.summed()
        second.run()
        return KNOWN if not second.made.sums[0].lost else REFUSED

    for round_ in (1, 2):
        tally.attempt(f"with nearly the same model in round {round_}", partial(other_model, round_))
    sums_of_crews(tally, folder)


def sums_of_crews(tally: Tally, folder: Path) -> None:
    """A server that takes a sum of another round, with nearly the same model, without one device of a crew."""
    numbers = count()

    def without(k: int, change: Callable[[Crewed], None]) -> str:
        first = Crewed(folder / f"crews {next(numbers)}")
        first.summed()
        second = first.later(folder / f"crews {next(numbers)}")
        second.gone = [{k}, set(), set(), set()]
        change(second)
        try:
            members = second.members()
        except RefusedError:
            return REFUSED
        alone = [crew for crew in CREWS if members & crew and not members >= crew]
        return "a sum without one device" if alone else REFUSED

    def others(k: int, sums: Crewed, crews: Sequence[Sequence[int]]) -> None:
        names = [v for v in DEVICES if v != k]
        sums.server.recognised = lambda _: [tuple(names[i] for i in crew) for crew in crews]  # type: ignore[method-assign]

    def survivors(k: int, sums: Crewed) -> None:
        sums.gone = [set(), set(), {k}, set()]
        usual = sums.server.hang
        group = sums.made.sums[0]

        def hang(*given: Any) -> None:
            usual(*given)
            group.crews = [frozenset({v}) for v in DEVICES]

        sums.server.hang = hang  # type: ignore[method-assign]

    def told(k: int, sums: Crewed, sizes: object) -> None:
        sums.told = {v: {"ring": [v for v in DEVICES if v != k], "crews": sizes} for v in DEVICES}

    for k in DEVICES:
        tally.attempt(f"crews, without {k}", partial(without, k, lambda _: None))
        tally.attempt(f"crews, {k} is no survivor", partial(without, k, partial(survivors, k)))
        for crews in (
            [(0, 1, 2), (3, 4, 5, 6, 7)],
            [(0, 1, 2, 3, 4), (5, 6, 7)],
            [range(8)],
            [(0, 3, 6, 7), (1, 2, 4, 5)],
        ):
            tally.attempt(f"other crews, without {k}", partial(without, k, lambda s, k=k, c=crews: others(k, s, c)))
        for sizes in ([3, 5], [8], [2, 6], [1] * 8, [4, 4]):
            tally.attempt(f"told {sizes}, without {k}", partial(without, k, lambda s, k=k, n=sizes: told(k, s, n)))
    for new in HOSTILE:
        name = f"told crews = {str(new)[:30]}"
        tally.attempt(name, partial(without, 0, lambda s, n=new: told(0, s, n)), by_hand=False)


def servers_of_sums(tally: Tally, folder: Path) -> None:
    """An edge or a cloud that breaks the protocol of secure sums to read an update."""
    numbers = count()

    def attacked() -> Attacked:
        return Attacked(folder / str(next(numbers)))

    def repeated(visit: Work, mix: str, round_: int, gone: set[int]) -> str:
        first = attacked()
        first.summed()
        second = second_sum(first, folder / str(next(numbers)), visit, mix, round_)
        second.gone = [gone, set(), set(), set()]
        second.run()
        return REFUSED if second.made.sums[0].lost else "a second sum of the same updates"

    for k in DEVICES:
        tally.attempt(f"by another rule, without {k}", partial(repeated, VISIT, "equal", 1, {k}))
        tally.attempt(f"in another round, without {k}", partial(repeated, VISIT, "by_samples", 2, {k}))
    tally.attempt("by another rule", partial(repeated, VISIT, "equal", 1, set()))
    for setting in ({"beta1": 0.5}, {"beta2": 0.5}, {"eps": 1e-3}):
        visit = Work(**{**asdict(VISIT), **setting})
        tally.attempt(f"with {setting}, without 0", partial(repeated, visit, "by_samples", 1, {0}))

    def silenced(target: int, what: str) -> str:
        sum_ = attacked()
        for k in set(DEVICES) - {target}:
            device_sum = sum_.devices[k]
            if what == "samples":
                device_sum.facts = "a normalisation to zero"
            else:
                zeros = 0 * sum_.start["w"].numpy()
                other = {"model": {"arrived": zeros}, "rate": {"work": replace(VISIT, rate=1e-30)}}[what]
                device_sum.masked = _with(device_sum.masked, other)  # type: ignore[method-assign]
        try:
            sum_.run()
        except RefusedError:  # by a device that is to round its update to zero
            return REFUSED
        return REFUSED if sum_.made.sums[0].lost else f"a sum of devices with another {what}"

    def keys(name: str) -> str:
        place = folder / str(next(numbers))
        identity = "11" * 32
        device_sum = DeviceSum(0, 24, SecureSum(bound=8.0), BySamples(), signer=signer(place, "d0"))
        device_sum.reply("sum-keys", {"identity": identity})
        others = {k: advertised(place, k, f"d{k}", identity) for k in (1, 2, 3)}
        others[1] = FORGED[name](place, identity, others[1])
        about = {"identity": identity, "keys": {str(k): keys.to_json() for k, keys in others.items()}}
        try:
            device_sum.reply("sum-shares", about)
        except RefusedError:
            return REFUSED
        return "the device shares its secrets with them"

    for k in DEVICES:
        for what in ("samples", "model", "rate"):
            tally.attempt(f"others than {k} have another {what}", partial(silenced, k, what))
    for name in FORGED:
        tally.attempt(f"keys: {name}", partial(keys, name))


def orders_past_protection(tally: Tally, folder: Path) -> None:
    """An edge or a cloud that chooses work, models and sums with which a device, or a sample, stands alone."""
    numbers = count()

    def ordered(of: Worker, honest: Work, name: str, value: Any) -> str:
        message = replace(order(of, honest), run=f"run-{next(numbers)}")  # a visit has one update with noise in a run
        message.about["work"][name] = value
        same = value == getattr(honest, name) or (name == "sends" and value is True)  # as in older plans
        try:
            answer = of.reply(message)[0]
        except RefusedError as error:
            return HARMLESS if "its sum is not" in str(error) and same else REFUSED
        return HARMLESS if same else f"the device answers '{answer}'"

    for kind, more in KINDS.items():
        of = worker(folder / str(next(numbers)), more)
        honest = own_work(of)
        for name, chosen in FIELDS.items():
            tally.attempt(f"{kind}: {name} = {chosen}", partial(ordered, of, honest, name, chosen))
            for new in HOSTILE:
                what = f"{kind}: {name} = {str(new)[:30]}"
                tally.attempt(what, partial(ordered, of, honest, name, new), by_hand=False)
        for number in (0, -1, 99):
            other = replace(honest, rate=honest.rate * (1 + number))
            tally.attempt(f"{kind}: {1 + number} times the rate", partial(ordered, of, honest, "rate", other.rate))

    def trapped(of: Worker, pixel: int) -> str:
        network = of.engine.network
        message = replace(order(of, own_work(of)), run=f"pixel-{pixel}")
        model = np.zeros_like(message.arrays["w"])
        (first, last), *_ = network.layout.values()
        model[first + pixel : last : 784] = 3e38  # the scores of all classes are 3e38·x + 1e38
        model[last:] = 1e38
        message.arrays["w"] = model
        answer, about, _ = of.reply(message)
        expect(answer == "update" and about["receipt"][5:8] == [None] * 3, f"the device answers '{answer}' {about}")
        message.arrays["w"] = -model
        try:
            return f"the device answers '{of.reply(message)[0]}' to a second model"
        except RefusedError as error:
            return HARMLESS if "has left this device before" in str(error) else f"refused otherwise: {error}"

    noisy = worker(folder / str(next(numbers)), KINDS["noise on samples"])
    for pixel in range(200, 600, 10):
        tally.attempt(f"a model that fails if pixel {pixel} is bright", partial(trapped, noisy, pixel))

    def summed_again(number: int, run: str, tick: int) -> str:
        place = folder / str(next(numbers))
        first, second = (NoisyProtocol(place / name, place, number, run) for name in ("first", "second"))
        first.server.end = lambda: None  # type: ignore[method-assign]
        first.run()
        second.place = replace(second.place, tick=tick, visit=tick)
        second.tolerant = True
        second.run()
        return f"devices {second.left} sent updates for two sums" if second.left else REFUSED

    for number, run, tick in ((1, "a", 0), (1, "a", 1), (3, "a", 7), (2, "b", 0)):
        tally.attempt(f"a second sum with noise, at tick {tick}", partial(summed_again, number, run, tick))

    def placed(sum_: Attacked, change: Mapping[str, Any]) -> str:
        about = {**(sum_.server.about(0) or {}), **change}
        try:
            place = sum_.devices[0].standing(sum_.engine.network.size, VISIT, about, sum_.place)
        except RefusedError:
            return REFUSED
        return HARMLESS if place.noise and "fraction" in change else "the device masks its update for it"

    for made in (Attacked(folder / str(next(numbers))), NoisyProtocol(folder / str(next(numbers)), folder)):
        made.server.begin()
        changes: list[dict[str, Any]] = [{"fraction": f} for f in (-128, -64, -16, -8, 128)]
        changes += [{"around": []}, {"around": [1, 1]}, {"identity": "00" * 32}, {"mix": "median"}]
        changes += [{"ring": list(range(many))} for many in (3, 20, 1000)]
        for change in changes:
            tally.attempt(f"a sum with {str(change)[:40]}", partial(placed, made, change))


def _with(masked: Callable[..., Any], other: Mapping[str, Any]) -> Callable[..., Any]:
    def changed(work: Any, arrived: Any, *rest: Any) -> Any:
        return masked(other.get("work", work), other.get("arrived", arrived), *rest)

    return changed


FALSE_ANSWERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "one key twice": ("sum-keys", lambda pair: [pair[0], pair[0], *pair[2:]]),
    "a key of low order": ("sum-keys", lambda pair: [pair[0], "01" + "00" * 31, *pair[2:]]),
    "false shares for all": ("sum-shares", lambda answer: false_shares(answer, set(DEVICES))),
    "false shares for two": ("sum-shares", lambda answer: false_shares(answer, {0, 7})),
    "it rejects all shares": ("sum-check", lambda _: [k for k in DEVICES if k != FALSE]),
    "it reveals false shares": ("sum-unmask", lambda answer: dict.fromkeys(answer, "07" * 32)),
    "it reveals one false share": ("sum-unmask", lambda answer: {**answer, "8": "07" * 32}),
}


def messages(tally: Tally, folder: Path) -> None:
    """Bytes that are no message, or too much of one."""

    def refused(data: bytes, **limits: Any) -> Callable[[], str]:
        def do() -> str:
            gate = MessageFilter(header=SHORT_HEADER, arrays=limits.get("arrays", FEW_ARRAYS))
            expect(gate.take(data, "e0") is None, "it is taken")
            expect(bool(gate.counts()), "it is not counted")
            return REFUSED

        return do

    true = Message("visit", "e0", session=1, number=1, about={}, arrays={"w": np.zeros(4, np.float32)})
    whole = encode(true)
    for cut in (0, 1, START.size, START.size + 1, len(whole) // 2, len(whole) - 1):
        tally.attempt(f"cut to {cut} bytes", refused(whole[:cut]))
    for place in range(0, len(whole), 5):
        spoilt = bytearray(whole)
        spoilt[place] ^= 0xFF
        tally.attempt(f"byte {place} flipped", refused(bytes(spoilt)), by_hand=False)

    def framed(header: bytes, body: bytes = b"") -> bytes:
        return START.pack(MAGIC, VERSION, len(header), 0) + header + body

    said = {**{k: v for k, v in vars(true).items() if k != "arrays"}, "digest": ""}
    for name in said:
        for new in HOSTILE:
            if type(new) is not type(said[name]):
                text = json.dumps({**said, name: new}).encode()
                tally.attempt(f"{name} = {str(new)[:40]}", refused(framed(text)), by_hand=False)
    for header in (
        b"[" * 400_000, b"null", b'{"kind": 1}', b"\xff\xfe", b'{"a":' * 1000 + b"1" + b"}" * 1000, b"1" * 10_000,
        json.dumps({**said, "x": 1}).encode(), b"{" + b",".join(b'"%d":0' % n for n in range(50_000)) + b"}",
        b"x" * (SHORT_HEADER + 1), b"",
    ):  # fmt: skip
        tally.attempt(f"header {header[:20]!r}", refused(framed(header)))
    for kind, extra in (
        (np.float16, {}), (np.int32, {}), (np.uint8, {}), (np.bool_, {}), (np.float32, {"n": FEW_ARRAYS}),
    ):  # fmt: skip
        arrays = {f"a{i}": np.zeros(1, kind) for i in range(1 + extra.get("n", 0))}
        tally.attempt(f"{len(arrays)} arrays of {kind.__name__}", refused(encode(replace(true, arrays=arrays))))
    for value in (math.nan, math.inf, -math.inf):
        tally.attempt(f"numbers {value}", refused(encode(replace(true, arrays={"w": np.full(4, value, np.float32)}))))
    for body in bodies():
        text = json.dumps({**said, "digest": hashlib.sha256(body).hexdigest()}).encode()
        tally.attempt(f"arrays {body[8:60]!r}", refused(framed(text, body)))
    for session, number in ((0, 0), (-1, 1), (time.time_ns() + 10**15, 1), (10**400, 1)):
        tally.attempt(
            f"session {str(session)[:20]}, number {number}",
            refused(encode(replace(true, session=session, number=number))),
        )

    def twice() -> str:
        gate = MessageFilter(header=SHORT_HEADER, arrays=FEW_ARRAYS)
        expect(gate.take(whole, "e0") is not None, "an honest one is refused")
        for again in (whole, encode(replace(true, number=0)), encode(replace(true, session=0, number=9))):
            expect(gate.take(again, "e0") is None, "it is taken twice, or out of order")
        return REFUSED

    tally.attempt("said again", twice)


def bodies() -> Iterator[bytes]:
    """Files of tensors that are none."""

    def body(header: Any, numbers: bytes = bytes(16), length: int | None = None) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + numbers

    one = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    yield from (
        b"x", bytes(8), body(b""), body(b"{}"), body(b"[]"), body(b"null"), body(b"{" * 100), body({"w": one}, b""),
        body({"w": one}, length=1 << 62), body({"w": one}, length=0), body({"w": {**one, "shape": [1 << 40]}}),
        body({"w": {**one, "shape": [-4]}}), body({"w": {**one, "shape": [1 << 63, 1 << 63]}}),
        body({"w": {**one, "data_offsets": [0, 1 << 40]}}), body({"w": {**one, "data_offsets": [16, 0]}}),
        body({"w": {**one, "data_offsets": [8, 24]}}, bytes(24)), body({"w": {**one, "dtype": "F8_E5M2"}}),
        body({"w": {**one, "dtype": "PICKLE"}}), body({"w": {**one, "dtype": 7}}), body({"w": one, "v": one}),
        body({"w": []}), body({"w": {}}), body({"__metadata__": {"a": 1}, "w": one}), body({"w": one}, bytes(1000)),
        body({"w": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}}),
    )  # fmt: skip


# -- a malicious device against its edge and others -------------------------------------------------------------------

ROW: list[Any] = [3, 0, 0, 3, 24, 4.1, 3.9, 0.25, 0, False, None, 0.0]


def claims_of_devices(tally: Tally, folder: Path) -> None:
    """Every field of a receipt, of answers and of what a device says that it holds."""
    known = checks.Known(3, (0, 0), (0, 0), 24, Work(epochs=1, batch_size=10), 0)

    def receipt(row: Any) -> Callable[[], str]:
        def do() -> str:
            try:
                got = checks.receipt(row, known)
            except RefusedError:
                return REFUSED
            text = json.dumps(asdict(got), allow_nan=False)
            expect(
                len(text) < 1000 and (got.device, got.samples, got.steps) == (3, 24, 3), "the receipt counts for more"
            )
            return HARMLESS

        return do

    for place in range(len(ROW)):
        for new in HOSTILE:
            tally.attempt(
                f"receipt {place} = {str(new)[:40]}", receipt([*ROW[:place], new, *ROW[place + 1 :]]), by_hand=False
            )
    for row in (
        ROW[:-1],
        [*ROW, [1.0, 1.0], ""],
        [*ROW, 0],
        ROW[::-1],
        {"device": 3},
        "x" * 12,
        [ROW],
        [3.0, *ROW[1:]],
    ):
        tally.attempt(f"receipt {row!r:.40}", receipt(row))
    with park_of(folder, experiment(folder, "fedavg", rounds=1, devices=4)) as park:
        engine = next(iter(park.edges.values())).engine
        flat = engine.network.flat.numpy()
        for what in ("census", "classes", "loss", "resources", "hash", "features", "gradient", "profile", "moments",
                     "scores", "x"):  # fmt: skip
            node = Probe((0,), what, settings={"hashes": 4})
            wrong: list[tuple[Any, Any]] = [(new, {}) for new in HOSTILE]
            wrong += [
                ([10**9] * 62, {}),
                ([-1] * 62, {}),
                ([0.5] * 62, {}),
                ([10**9] * 66, {}),
                ([1] + [0] * 65, {}),
                ({"pass_s": -1}, {}),
                ({"pass_s": 1, "x": 1}, {}),
            ]
            wrong += [
                (None, {"answer": one}) for one in (flat[:0], flat[:-1] * 0 + 1e30, flat[None], flat.astype(np.float64))
            ]
            wrong += [(None, {"b": flat}), (1.0, {"answer": flat}), (None, {"answer": flat, "b": flat})]
            for answer, arrays in wrong:
                tally.attempt(
                    f"{what}: {str(answer)[:30]} {list(arrays)}",
                    partial(_read, node, answer, arrays, engine),
                    by_hand=False,
                )
    about = facts.Facts("own", ("a", "b"), (1, 2, 2), Inputs("image"), 1 / 255, sums=True)
    true = {"samples": 9, "counts": [4, 5], "sums": [[36.0], [9.0], [3.0]], "digest": "0" * 64}
    for at in places(true):
        for new in [*HOSTILE, GONE] if at else []:
            tally.attempt(
                f"holds {at} = {str(new)[:40]}",
                partial(_held, forged(true, at, new), about),
                by_hand=False,
            )


def _read(node: Probe, answer: Any, arrays: Any, engine: Any) -> str:
    try:
        got = subtasks.read_answer(node, 0, answer, arrays, engine)
    except RefusedError:
        return REFUSED
    text = str(got.tolist() if hasattr(got, "tolist") else json.dumps(got, allow_nan=False))
    expect("nan" not in text and "inf" not in text, "undefined numbers are accepted")
    return HARMLESS


def _held(claim: Any, about: facts.Facts) -> str:
    try:
        got = facts.read_holding(claim, about)
    except RefusedError:
        return REFUSED
    expect(1 <= got.samples <= checks.SAMPLES and len(got.digest) <= 129, "it holds what nothing holds")
    return HARMLESS


@dataclass
class Said:
    """An edge's channel whose device says what it likes."""

    channel: Any = None
    asked: Any = None

    def __post_init__(self) -> None:
        link: Any = SimpleNamespace(
            start=lambda *_: None, unsubscribe=lambda _: None, publish=lambda *_: None, confirm=lambda do: do()
        )
        self.channel = DeviceChannel(
            "p", "e0", link, {0: Named("d0", 0), 1: Named("d1", 1)}, flow=Flow(clock=lambda: 0.0)
        )
        self.status("d0", Message("hello", "d0", session=5, number=1, about={"device": 0, "version": __version__}))
        self.status("d1", Message("hello", "d1", session=5, number=1, about={"device": 1, "version": __version__}))
        self.asked = self.channel._open["1-1"] = OpenRequest("d1", b"", 1 << 20)

    def status(self, name: str, message: Message | bytes) -> None:
        self.channel.receive(
            mqtt.topic("p", "status", name), message if isinstance(message, bytes) else encode(message)
        )

    def out(self, name: str, message: Message | bytes) -> None:
        self.channel.receive(
            mqtt.topic("p", "out", name, "e0"), message if isinstance(message, bytes) else encode(message)
        )


def what_a_device_says(tally: Tally, folder: Path) -> None:
    """Order, sessions, numbers, names, retained messages, and floods."""
    about: dict[str, Any] = {"device": 0, "version": __version__}
    hello = Message("hello", "d0", session=6, number=2, about=about)
    gone = Message("gone", "d0", session=5, number=2)
    answer = Message("update", "d0", session=5, number=2, answers="1-1")

    def said(do: Callable[[Said], object], named: str = "d0") -> Callable[[], str]:
        def run() -> str:
            one = Said()
            do(one)
            expect(one.asked.answer.empty(), "it ends or answers another device's request")
            expect(1 in one.channel.connected, "it sends another device away")
            expect(set(one.channel.filter.counts()) <= {named}, "another is blamed")
            return REFUSED if one.channel.filter.counts() or 0 not in one.channel.connected else HARMLESS

        return run

    for name, do in (
        ("answers another's request", lambda s: s.out("d0", answer)),
        ("answers in another's name", lambda s: s.out("d0", replace(answer, sender="d1"))),
        ("answers what is not asked", lambda s: s.out("d0", replace(answer, answers="9-9"))),
        ("answers with a text as what it answers", lambda s: s.out("d0", replace(answer, answers=TEXT))),
        ("greets in another's name", lambda s: s.status("d0", replace(hello, sender="d1"))),
        ("greets with another's number", lambda s: s.status("d0", replace(hello, about={**about, "device": 1}))),
        ("greets with no number", lambda s: s.status("d0", replace(hello, about={}))),
        ("greets of another release", lambda s: s.status("d0", replace(hello, about={**about, "version": TEXT[:99]}))),
        ("greets from an earlier session", lambda s: s.status("d0", replace(hello, session=1))),
        ("greets from far ahead", lambda s: s.status("d0", replace(hello, session=1 << 62))),
        ("greets from beyond a float", lambda s: s.status("d0", replace(hello, session=10**400))),
        ("greets from before time", lambda s: s.status("d0", replace(hello, session=-(10**400)))),
        ("leaves for another", lambda s: s.status("d0", replace(gone, sender="d1"))),
        ("leaves with a text", lambda s: s.status("d0", replace(gone, about={"why": TEXT[:900]}))),
        ("leaves with a list", lambda s: s.status("d0", replace(gone, about={"why": DEEP}))),
        ("leaves a later session", lambda s: s.status("d0", replace(gone, session=9))),
        ("leaves 300 times", lambda s: [s.status("d0", gone) for _ in range(300)]),
        ("greets 300 times", lambda s: [s.status("d0", replace(hello, session=5)) for _ in range(300)]),
        ("300 sessions", lambda s: [s.status("d0", replace(hello, session=6 + n)) for n in range(300)]),
        ("300 answers", lambda s: [s.out("d0", replace(answer, number=2 + n)) for n in range(300)]),
        ("a status with arrays", lambda s: s.status("d0", replace(hello, arrays={"w": np.zeros(1, np.float32)}))),
        ("a status of 5 kB", lambda s: s.status("d0", replace(hello, about={"x": "x" * 5000}))),
        ("a status of 3 MB", lambda s: s.status("d0", bytes(3_000_000))),
        ("an answer of 300 MB in pieces", lambda s: [s.out("d0", bytes(1_000_000)) for _ in range(300)]),
        ("an empty status", lambda s: s.status("d0", b"")),
        ("an empty answer", lambda s: s.out("d0", b"")),
        ("another kind of status", lambda s: s.status("d0", replace(hello, kind=TEXT[:100]))),
        ("a topic that is none", lambda s: s.channel.receive("fedfloor/p/out/d0", encode(answer))),
        ("a topic without end", lambda s: s.channel.receive("fedfloor/p/out/d0/e0/" + "x/" * 1000, encode(answer))),
        ("a topic of a name that is not listed", lambda s: s.out("d9", replace(answer, sender="d9"))),
        ("a topic of the edge", lambda s: s.out("e0", replace(answer, sender="e0"))),
        ("its inbox", lambda s: s.channel.receive("fedfloor/p/in/e0/d1", encode(replace(answer, sender="e0")))),
        ("a broker's own topic", lambda s: s.channel.receive("$SYS/broker/uptime", b"1")),
    ):  # fmt: skip
        tally.attempt(name, said(do))
    place = Path(tempfile.mkdtemp(dir=folder))
    with park_of(place, experiment(place, "fedavg", rounds=1, devices=4)) as park:
        edge = next(iter(park.edges.values()))
        k = edge.settings.devices[0].device
        wrong: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = []
        flat = edge.engine.network.flat.numpy()
        row = [k, 0, 0, 1, 24, 4.1, 3.9, 0.25, 0, False, None, 0.0]
        true = {"receipt": row, "seconds": 0.1}
        for name, arrays in (
            ("no model", {}), ("another name", {"v": flat}), ("more arrays", {"w": flat, "b": flat}),
            ("fewer numbers", {"w": flat[:-1]}), ("no numbers", {"w": flat[:0]}), ("rows", {"w": flat[None]}),
            ("doubles", {"w": flat.astype(np.float64)}), ("whole numbers", {"w": flat.astype(np.int64)}),
        ):  # fmt: skip
            wrong.append((name, "update", true, arrays))
        for kind in ("lacks", "kept", "answer", "failed", "refused", "walked", "hello", ""):
            wrong.append(
                (f"answers '{kind}' to a visit", kind, {**true, "text": TEXT, "error": "SystemExit"}, {"w": flat})
            )
        for seconds in HOSTILE:
            if not isinstance(seconds, (int, float)) or not 0 <= seconds <= 60:
                wrong.append((f"seconds = {str(seconds)[:30]}", "update", {**true, "seconds": seconds}, {"w": flat}))
        for name, kind, about, arrays in wrong:
            tally.attempt(name, partial(_visit, edge, k, Message(kind, "d", about=about, arrays=arrays)))
        for by in (1e2, 1e10, 1e30, 3e37, -1e30):
            tally.attempt(f"an update {by:g} times as long", partial(_long, edge, by))
        for by in (1.0, 3.0):
            tally.attempt(
                f"an update of {by:g} times the usual length backwards", partial(_long, edge, -by, usual=True)
            )


def _visit(edge: Any, k: int, message: Message) -> str:
    usual = edge.channel.request
    edge.channel.request = lambda *_, **__: message
    before = edge.channel.filter.refused.total()
    try:
        engine = edge.engine
        work = Work(steps=1, batch_size=8)
        key = Key(0, 1, 0, k, 0)
        got = edge.factory.visit(engine, work, {"w": engine.network.flat.clone()}, key, FrozenExtractor(frozen=False))
    finally:
        edge.channel.request = usual
    expect(got is None, "it is taken as an update")
    named = edge.settings.devices[0].name
    expect(edge.channel.filter.refused.total() > before or named in edge.factory.failed, "nobody is named")
    for one in edge.factory.failed.values():
        expect(one.text.isprintable() and len(one.text) < 1000, "a text reaches the log")
    edge.factory.failed.clear()
    return REFUSED


def _long(edge: Any, by: float, *, usual: bool = False) -> str:
    from fedfloor.engine import limit

    network = edge.engine.network
    start = {"w": network.flat.clone()}
    work = Work(steps=1, batch_size=8)
    known = Limit(NormLimit(10.0))
    honest = start["w"] + 0.01
    for k in range(4):
        changed = known.parts(network, "all", start, {"w": honest})
        expect(not known.judge("all", k, limit.update(work, 24, changed), changed), "an honest update is refused")
    end = {"w": start["w"] + (honest - start["w"]) * by}
    changed = known.parts(network, "all", start, end)
    why = known.judge("all", 4, limit.update(work, 24, changed), changed)
    if usual:
        expect(not why, "one of ordinary length is refused")
        return KNOWN
    expect(bool(why), "it is accepted")
    return REFUSED


# -- a taken-over edge against the cloud ------------------------------------------------------------------------------


def answers_of_edges(tally: Tally, folder: Path) -> None:
    """Every field of an edge's answer, its arrays, and what it states of itself."""
    seen: list[tuple[Any, ...]] = []
    usual = subtasks.read_results

    def taken(*words: Any) -> Any:
        message, subtask, mine, engine = words
        then = replace(subtask, visits=Counter(subtask.visits), heard=dict(subtask.heard))  # as it is now
        seen.append((message, then, mine, engine))
        return usual(*words)

    subtasks.read_results = taken
    logging.disable(logging.CRITICAL)
    try:
        for method, more in (("fedavg", ""), ("fedsr", "methods.fedsr = { laps = 2, ring_size = 2 }")):
            seen.clear()
            place = Path(tempfile.mkdtemp(dir=folder))
            with park_of(place, experiment(place, method, rounds=1, more=more)) as park:
                park.run()
                message, subtask, mine, engine = seen[0]
                honest = usual(message, subtask, mine, engine)
                start = subtask.start["w"]
                far = max(float((one.packet(subtask.start)["w"] - start).norm()) for one in honest.merged)
                every = list(forgeries(message))
                for name, one in every if method == "fedavg" else every[::4]:
                    tally.attempt(
                        f"{method} {name}",
                        partial(_taken, usual, one, subtask, mine, engine, far),
                        by_hand=False,
                    )
                first, *rest = message.about["shown"]
                for name, shown in (
                    ("another factory's branches", seen[1][0].about["shown"]),
                    ("its branches in another order", [first[::-1], *rest]), ("its branches twice", [first * 2, *rest]),
                ):  # fmt: skip
                    forgery = replace(message, about={**message.about, "shown": shown})
                    tally.attempt(f"{method} {name}", partial(_taken, usual, forgery, subtask, mine, engine, far))
                for by, known in ((1.05, KNOWN), (-1.0, KNOWN), (50.0, REFUSED), (1e20, REFUSED)):
                    arrays = {k: _moved(v, start.numpy(), by) for k, v in message.arrays.items()}
                    tally.attempt(
                        f"{method} every model {by:g} times as far",
                        partial(_moving, usual, replace(message, arrays=arrays), subtask, mine, engine, known),
                    )
    finally:
        subtasks.read_results = usual
        logging.disable(logging.NOTSET)
    true = {"measured": {"seconds": 1.0, "training": 1.0, "bytes": {"up": 1, "down": 1}}, "here": [0, 1],
            "refused": {"d0": {"late": 1}}, "failed": {"d0": ["visit", "RunError", "why"]}}  # fmt: skip
    for at in places(true):
        for new in [*HOSTILE, GONE] if at else []:
            tally.attempt(
                f"of itself {at} = {str(new)[:40]}",
                partial(_measured, forged(true, at, new)),
                by_hand=False,
            )
    large = encode(Message("walked", "e0", session=1, number=1, arrays={"w": np.zeros(75_000_000, np.float32)}))
    several = {str(i): np.zeros(1, np.float32) for i in range(5000)}
    many = encode(Message("walked", "e0", session=1, number=1, arrays=several))
    for kind, sent in (("gather", {}), ("park", {}), ("keep", {"w": np.zeros(100, np.float32)}), ("census", {}),
                       ("walk", {"w": np.zeros(100, np.float32)})):  # fmt: skip
        tally.attempt(f"an answer of 300 MB to '{kind}'", partial(_large, large, kind, sent))
        tally.attempt(f"5,000 arrays to '{kind}'", partial(_large, many, kind, sent))
    tally.attempt("another edge's name", partial(_named, folder, "e1"))
    tally.attempt("the cloud's name", partial(_named, folder, "cloud"))
    tally.attempt("an answer to an earlier question", partial(_named, folder, "e0", answers="1-1"))
    for name, who in (("that are not listed", "x"), ("of another factory", "d1")):
        tally.attempt(f"failures of devices {name}", partial(_strangers_failed, folder, who))


def _moved(values: Any, start: Any, by: float) -> Any:
    """Sums of models (of one branch, or weighted) whose mean lies ``by`` times as far from the start."""
    weight = float(np.dot(values, start) / np.dot(start, start)) if values.size == start.size else 1.0
    return (start * weight + (values - start * weight) * by).astype(values.dtype)


def _taken(usual: Any, one: Message, subtask: Any, mine: Any, engine: Any, far: float) -> str:
    try:
        got = usual(one, subtask, mine, engine)
        known = engine.limit.knowing(subtask.updates)
        for branch in got.branches:
            known.note(branch.resolved, branch.receipts)
        subtasks.check_lengths(got, subtask, known, engine)
    except RefusedError as error:
        expect(str(error).isprintable() or checks.short_line(str(error)).isprintable(), "a text reaches the log")
        return REFUSED
    for end in got.merged:
        off = float((end.packet(subtask.start)["w"] - subtask.start["w"]).norm())
        expect(off <= 20 * far, f"the model moves by {off:.3g}, honest ones by {far:.3g}")
    return HARMLESS


def _moving(usual: Any, one: Message, subtask: Any, mine: Any, engine: Any, known: str) -> str:
    came = _taken(usual, one, subtask, mine, engine, 1e30 if known == REFUSED else 1e9)
    expect(known == KNOWN or came == REFUSED, "it is accepted")
    return KNOWN if came == HARMLESS else REFUSED


def _measured(about: Any) -> str:
    try:
        got = checks.measured(about, [0, 1], 4)
    except RefusedError:
        return REFUSED
    rows = asdict(replace(got, present=frozenset(), flaws=()))
    text = json.dumps([rows["refused"], rows["failed"]], allow_nan=False)
    expect(len(text) < 5000 and "\\u001b" not in text and got.present <= {0, 1}, "it reaches the ledger")
    return HARMLESS


def _large(frame: bytes, kind: str, sent: Any) -> str:
    gate = MessageFilter()
    about = {"mine": [0, 1], "devices": [0, 1]}
    expect(
        gate.take(frame, "e0", *limits_of_answer(kind, about, sent, sum(array.nbytes for array in sent.values())))
        is None,
        "it is decoded",
    )
    return REFUSED


def _named(folder: Path, sender: str, answers: str = "") -> str:
    said = Message("walked", sender, session=1, number=1, about={})
    taken, _ = _exchanged(folder, said, answers)
    expect(not taken, "it is taken")
    return REFUSED


def _strangers_failed(folder: Path, who: str) -> str:
    failed = {name: ["visit", "RunError", "why"] for name in ("d0", who)}
    said = Message("walked", "e0", session=1, number=1, about={"failed": failed, "against": {who: 5}})
    _, cloud = _exchanged(folder, said)
    measured = cloud.measured()
    expect(set(measured["failed"]) == {"d0", "e0"} and "against" not in measured, "another's device is blamed")
    return REFUSED


def _exchanged(folder: Path, said: Message, answers: str = "") -> tuple[Mapping[int, Message], CloudExecutor]:
    """What a cloud takes of an edge's message in answer to a request, and the cloud."""
    what = experiment(folder, "fedavg", rounds=1)
    edges = (
        CloudEdge("e0", 0, devices=(Named("d0", 0),)),
        CloudEdge("e1", 1, devices=(Named("d1", 1),)),
    )

    def ask(messages: dict[int, bytes], *_: object) -> dict[int, bytes]:
        return {0: encode(replace(said, answers=answers or decode(messages[0]).identity))}

    way: Any = SimpleNamespace(request=ask)
    one = CloudExecutor(
        CloudSettings("trial", what, folder / "run", edges, NOWHERE), way, [0, 1], table(config.read(what, []))
    )
    return one.edges.exchange({0: ("walk", {"mine": [0]}, {})}), one


# -- the time of others ----------------------------------------------------------------------------------------------

STALLS = ("hang", "restart", "leave", "late", "unasked", "restart at once")


def time_of_others(tally: Tally, folder: Path) -> None:
    """Devices and edges that let others wait, leave and return, and fill logs and lines."""
    for how in STALLS:
        tally.attempt(f"a device that does nothing but {how}", partial(_stalls, [how]))
    for seed in range(30):
        tally.attempt(f"a device that chooses, {seed}", partial(_stalls, STALLS, seed), by_hand=False)
    for deadline_s in (20.0, 3600.0):
        for how in STALLS:
            tally.attempt(f"{how}, {deadline_s:g} s", partial(_stalls, [how, "late"], 0, deadline_s))
    for present, ends in (({0: [0], 1: [1]}, False), ({0: [0]}, True)):
        tally.attempt(f"a device drawn alone flaps beside {present}", partial(_flaps, folder, present, ends=ends))
    with park_of(folder, experiment(folder, "fedsr", rounds=1, devices=4, more=CROSSING)) as park:
        for edge in park.edges.values():
            for k in edge.own:
                tally.attempt(f"device {k} begins sessions", partial(_begins_sessions, edge, k))
    ca = authority.found("trial", authority.now())
    with park_of(folder, experiment(folder, "fedsr", rounds=1, devices=4, more=CROSSING), ca=ca) as park:
        agent = park.agents[0]
        for name in ("d1", "d3", "cloud", "alarms", "releases", "bridge-e0", "broker-e0", "e77"):
            for kind in ("visit", "facts", "refused"):
                tally.attempt(f"{name} requests a {kind}", partial(_poses, agent, ca, folder, name, kind))
        for kind in ("refused", "census", "expired"):
            tally.attempt(f"an edge fills the log by '{kind}'", partial(_fills_log, agent, ca, folder, kind))
        tally.attempt("a broker fetches an answer again", partial(_fetches, park, agent, ca, folder))


CROSSING = "methods.fedsr = { laps = 1, ring_size = 4 }"


def _stalls(choices: Sequence[str], seed: int = 0, deadline_s: float = 600.0) -> str:
    """Let an edge wait for a device in 1,000 requests; others train for a second in between."""
    now = [0.0]
    short = 0.0
    whole = 0.0
    rng = random.Random(seed)
    waits = Waits(lambda: now[0])
    for _ in range(1000):
        how = rng.choice(choices)
        wait_s = waits.wait_s("a", deadline_s)
        waited_s = 0.0 if how == "restart at once" else wait_s
        now[0] += waited_s
        waits.expired("a", waited_s)
        if how != "hang":
            waits.alive("a")
        short, whole = (short, whole + waited_s) if wait_s == deadline_s else (short + waited_s, whole)
        now[0] += 1.0
    expect(whole <= now[0] - whole + deadline_s, f"{whole:.0f} of {now[0]:.0f} s are lost")
    expect(short <= 0.12 * whole + LEAST_S * 1000, f"{short:.0f} s of short waits")  # a tenth, a hundredth, then 2 s
    return HARMLESS


def _flaps(folder: Path, present: Mapping[int, Sequence[int]], *, ends: bool) -> str:
    """Let the only device of a request disconnect whenever it is sent one, and be back at once."""
    what = experiment(folder, "fedavg", rounds=1, devices=2)
    edges = (CloudEdge("e0", 0), CloudEdge("e1", 1))
    said = Message("walked", "e0", session=1, about={"reached": 0, "here": present[0]})
    number = iter(range(1, 1000))

    def ask(messages: dict[int, bytes], *_: object) -> dict[int, bytes]:
        return {
            m: encode(replace(said, sender=f"e{m}", number=next(number), answers=decode(frame).identity,
                              about={**said.about, "here": present[m]}))
            for m, frame in messages.items() if m in present
        }  # fmt: skip

    way: Any = SimpleNamespace(request=ask)
    settings = CloudSettings("trial", what, folder / "run", edges, NOWHERE)
    one = CloudExecutor(settings, way, [0, 1], table(config.read(what, [])))
    one.begin(1)
    one.edges.send({0: ("walk", {"mine": [0]}, {})}, [0])
    try:
        one.no_success(1)
    except RunError:
        expect(ends, "the run ends although others are connected")
        return HARMLESS
    expect(not ends, "a run without devices goes on")
    return HARMLESS


def _begins_sessions(edge: Any, k: int) -> str:
    name = edge.channel.name_of(k)
    for _ in range(BURST // 2):
        about = {"device": k, "version": __version__}
        hello = Message("hello", name, session=time.time_ns(), number=1, about=about)
        edge.channel.receive(mqtt.topic("trial", "status", name), encode(hello))
    expect(edge.channel.filter.refused[name, "flood"] > 0, "it is not cut off")
    return REFUSED


def _poses(agent: device.Agent, ca: authority.Authority, folder: Path, name: str, kind: str) -> str:
    before = agent.filter.refused[STRANGER, "edge"]
    waiting = agent._requests.qsize()
    _send(agent, ca, folder, name, kind, 1)
    expect(agent.filter.refused[STRANGER, "edge"] == before + 1, "its message is taken")
    expect(agent._requests.qsize() == waiting, "its message is queued")
    return REFUSED


def _send(
    agent: device.Agent, ca: authority.Authority, folder: Path, name: str, kind: str, number: int, **more: Any
) -> bytes:
    signer = Signer(member(folder / "stolen", ca, name), name)
    about = {"to": agent._session, "device": 0, "tick": 0, "trained": 0, **more}
    frame = encode(Message(kind, name, "run", 1, time.time_ns(), number, about=about, receiver="d0"), signer)
    agent.receive(mqtt.topic("trial", "in", name, "d0"), frame)
    return frame


def _fills_log(agent: device.Agent, ca: authority.Authority, folder: Path, kind: str) -> str:
    lines = Lines()
    edge = agent.settings.edge
    before = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    logging.getLogger("fedfloor").addHandler(lines)
    try:
        wait_s = -1 if kind == "expired" else 60
        signer = Signer(member(folder / "stolen", ca, edge), edge)
        for _ in range(200):
            about = {"to": agent._session, "text": TEXT, "wait_s": wait_s}
            sent = Message("census" if kind == "expired" else kind, edge, "run", 1, time.time_ns(), 1, about=about,
                           receiver="d0")  # fmt: skip
            agent.serve(edge, encode(sent, signer))
    finally:
        logging.getLogger("fedfloor").removeHandler(lines)
        logging.disable(before)
    expect(lines.count < 100, f"{lines.count} lines")
    return HARMLESS


class Lines(logging.Handler):
    """The number of lines that a device writes to its log; those of edges in this process do not count."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.name == checks.__name__ and "message of d" not in record.getMessage()


def _fetches(park: Live, agent: device.Agent, ca: authority.Authority, folder: Path) -> str:
    edge = agent.settings.edge
    before = len(park.broker.said)
    frame = _send(agent, ca, folder, edge, "census", 1)
    for _ in range(100):
        agent.receive(mqtt.topic("trial", "in", edge, "d0"), frame)
    expect(until(lambda: agent._requests.empty()), "it is still busy")
    time.sleep(0.2)
    sent = [where for where, _ in park.broker.said[before:] if "/out/d0/" in where]
    expect(len(sent) <= 1 + REPEATS, f"{len(sent)} answers")
    return HARMLESS


# -- network reach only -----------------------------------------------------------------------------------------------


def at_the_brokers_gates(tally: Tally, folder: Path) -> None:
    park = _park(folder)
    for hub in (park.cloud, *park.factory):
        rules = broker.conf(park, hub)
        for line in ("allow_anonymous false", "require_certificate true", "use_identity_as_username true",
                     "use_username_as_clientid true", "tls_version tlsv1.3", "crlfile revoked.crl", "acl_file acl",
                     "max_packet_size", "memory_limit", "max_connections"):  # fmt: skip
            tally.attempt(f"a broker without '{line}'", partial(_has, rules, line))


def _has(rules: str, line: str) -> str:
    expect(line in rules, "it is open")
    return REFUSED


# -- a member against real brokers -------------------------------------------------------------------------------------

FILTERS = (
    "#", "+/#", "+/+/#", "fedfloor/#", f"{TOP}/#", f"{TOP}/+/+", f"{TOP}/+/+/+", f"{TOP}/in/#", f"{TOP}/in/+/+",
    f"{TOP}/in/+/n1", f"{TOP}/in/north/n1", f"{TOP}/in/north/+", f"{TOP}/in/south/+", f"{TOP}/out/#",
    f"{TOP}/out/+/north",
    f"{TOP}/out/n1/+", f"{TOP}/out/n1/north", f"{TOP}/status/#", f"{TOP}/status/+", f"{TOP}/status/n1", "/#", "+",
    "fedfloor/+/in/north/n1", "+/+/in/+/n1", "$SYS/#", "$SYS/broker/clients/#", "$SYS/broker/log/#", "$CONTROL/#",
    "$CONTROL/dynamic-security/v1", "$share/g/#", f"$share/g/{TOP}/#", f"$share/g/{TOP}/in/+/n1",
    f"$share/g/{TOP}/in/north/n1", f"$share/n1/{TOP}/out/n1/north", f"$share/g/{TOP}/status/+", "$share/g/$SYS/#",
)  # fmt: skip
TOPICS = (
    f"{TOP}/in/north/n1", f"{TOP}/in/south/n1", f"{TOP}/in/n0/n1", f"{TOP}/in/north/n0", f"{TOP}/in//n1",
    f"{TOP}/out/n1/north",
    f"{TOP}/out/n1/south", f"{TOP}/out/n0/nowhere", f"{TOP}/out/n0/north/", f"{TOP}/out/n0", f"{TOP}/out//north",
    f"{TOP}/out/n0/n1", f"/{TOP}/out/n0/north", f"{TOP}//out/n0/north", f"{TOP}/OUT/n0/north", f"{TOP}/status/n1",
    f"{TOP}/status/n0/n1", f"{TOP}/status/", f"{TOP}/status", f"{TOP}/status/north", f"{TOP}/status/n0 ", TOP,
    "fedfloor",
    "fedfloor/other/in/north/n1", "fedfloor/other/status/n0", "a", "a/" * 200, "x" * 60_000, "$SYS/broker/uptime",
    "$SYS/broker/clients/total", "$CONTROL/dynamic-security/v1", f"$share/g/{TOP}/in/north/n1", "$share/g/x", "$x",
)  # fmt: skip
OWN = {f"{TOP}/in/north/n0", f"{TOP}/in/south/n0"}  # what a device may read
ABROAD = (f"{TOP}/in/south/n0", f"{TOP}/out/n0/north", f"{TOP}/status/n0", f"{TOP}/in/north/n1", f"{TOP}/out/s1/south")


OF_THE_CLOUD = (
    "out/s1/south", "in/south/s1", "in/south/n1", "status/s1", "out/s1/north", "in/cloud/north", "in/cloud/south",
    "out/south/cloud", "status/south", "status/cloud", "out/cloud/north",
)  # fmt: skip


@dataclass
class Plant:
    """A park's brokers as real processes, and the clients of its members."""

    folder: Path
    ports: Mapping[str, int]
    made: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)  # paho clients that still run

    def client(self, name: str, at: str = "", stem: str = "", **more: Any) -> Client:
        kind = name if name == "cloud" else "edge" if name in self.ports else "device"
        home = at or (name if name in self.ports else "north" if name.startswith("n") else "south")
        where = self.folder / "out" / {"cloud": "cloud", "edge": f"factories/{name}"}.get(kind, f"devices/{name}")
        one = Client(self.ports[home], where, stem or kind, **more)
        self.made.add(one.mqtt)
        return one

    @contextmanager
    def talk(self, *names: str) -> Iterator[list[Client]]:
        clients = [self.client(name) for name in names]
        try:
            yield clients
        finally:
            for one in clients:
                one.close()


@contextmanager
def plant_of(folder: Path) -> Iterator[Plant]:
    """The cloud's broker and two factories', which it bridges."""
    from parks import broker as started

    made = plant(folder)
    factories = tuple(replace(one, port=free_port()) for one in made.factory)
    made = replace(made, factory=factories, cloud=replace(made.cloud, port=free_port()))
    provision.provision(made, folder / "out", user=getpass.getuser())
    with ExitStack() as stack:
        for place, one in provision.hubs(made):
            stack.enter_context(started(folder / "out" / place, one.port))
        at = Plant(folder, {one.name: one.port for _, one in provision.hubs(made)})
        try:
            yield at
        finally:
            for one in list(at.made):  # none of them tries to connect again
                one.disconnect()
                one.loop_stop()


def members_at_brokers(tally: Tally, folder: Path) -> None:
    """What a device's, another factory's and a bridge's certificate reach at running brokers, and nobody's."""
    tally.connects = True
    with plant_of(folder) as at:
        for pattern in FILTERS:
            tally.attempt(f"a device reads {pattern}", partial(_nosy, at, pattern))
        for topic, retain in product(TOPICS, (False, True)):
            name = f"a device writes {topic[:60]}{', retained' * retain}"
            tally.attempt(name, partial(_forges, at, "n0", topic, retain))
        for topic in ABROAD:
            for name in ("s0", "south"):
                tally.attempt(
                    f"{name} writes {topic} at north's broker", partial(_forges, at, name, topic, False, "north")
                )
        for topic, retain in product(OF_THE_CLOUD, (False, True)):
            for stem in ("bridge", "edge"):
                attempt = partial(_forges_at_the_cloud, at, stem, topic, retain)
                tally.attempt(f"the {stem} of north writes {topic} at the cloud's broker", attempt)
        for pattern in ("#", f"{TOP}/in/cloud/+", f"{TOP}/in/cloud/south", f"{TOP}/out/+/cloud", "$share/g/#"):
            for name, stem in (("north", "bridge"), ("north", "edge"), ("n0", "device")):
                tally.attempt(
                    f"the {stem} of {name} reads {pattern}", partial(_nosy_at_the_cloud, at, name, stem, pattern)
                )
        for topic in (f"{TOP}/out/n1/north", f"{TOP}/in/north/n1", f"{TOP}/status/n1"):
            tally.attempt(f"a last will on {topic}", partial(_wills, at, topic))
        for kind in (
            "wiped",
            "taken over",
            "answers for another",
            "old protocol",
            "as another user",
            "of an old session",
        ):
            tally.attempt(f"another's session: {kind}", partial(_sessions, at, kind))
        for kind in ("plain", "no certificate", "TLS 1.2", "cloud", "authority"):
            tally.attempt(f"who is no member: {kind}", partial(_strangers, at, kind))


def _nosy(at: Plant, pattern: str) -> str:
    """A device subscribes to more than its own; then others talk."""
    with at.talk("n0", "n1", "north", "s1") as (nosy, other, edge, far):
        nosy.subscribe(pattern)
        nosy.subscribe(f"{TOP}/in/+/n0")
        other.subscribe(f"{TOP}/in/+/n1")
        edge.subscribe(f"{TOP}/out/+/north")
        expect(edge.says(f"{TOP}/in/north/n1", b"secret") and other.hears() is not None, "another gets no message")
        expect(other.says(f"{TOP}/out/n1/north", b"update") and edge.hears() is not None, "an edge gets no message")
        expect(other.says(f"{TOP}/status/n1", b"here", retain=True), "it may not state that it is there")
        far.says(f"{TOP}/out/s1/north", b"update")
        expect(edge.says(f"{TOP}/in/north/n0", b"the last"), "its own edge may not write to it")
        while (got := nosy.hears()) is not None and got[1] != b"the last":
            expect(got[0] in OWN, f"it reads {got[0]}")
        expect(got is not None, "its own message does not come")
        nosy.mqtt.unsubscribe(pattern)
    return REFUSED


def _forges(at: Plant, name: str, topic: str, retain: bool, broker: str = "", stem: str = "") -> str:
    """A member writes where it has no right; those who could read it hear nothing of it."""
    forger = at.client(name, broker, stem)
    home = broker or "north"
    other = f"{home[0]}1"
    with at.talk(home, other) as (edge, device):
        edge.subscribe(f"{TOP}/#")
        edge.subscribe("#")
        device.subscribe(f"{TOP}/in/+/{other}")
        try:
            if forger.up:
                taken = forger.publish(topic, b"forged", retain=retain)
                expect(taken == DENIED or topic.startswith("$"), f"the broker takes it: {taken}")
            forger.close()
        except (ValueError, queue.Empty):  # the client refuses the topic, or the broker ends the connection
            forger.mqtt.loop_stop()
        expect(device.says(f"{TOP}/out/{other}/{home}", b"own"), "another may not write any more")
        expect(edge.says(f"{TOP}/in/{home}/{other}", b"own"), "the edge may not write any more")
        for one in (edge, device):
            while (got := one.hears()) is not None and got[1] != b"own":
                expect(got[1] != b"forged", f"{got[0]} is heard")
            expect(got is not None, "nothing comes any more")
    with at.talk(home) as (late,):
        late.subscribe("#")
        late.subscribe(f"{TOP}/status/+")
        while (got := late.hears(0.1)) is not None:
            expect(got[1] != b"forged", f"{got[0]} is retained")
    return REFUSED


def _forges_at_the_cloud(at: Plant, stem: str, topic: str, retain: bool) -> str:
    """A factory writes at the cloud's broker what is another's, or the cloud's; neither receives anything of it."""
    forger = at.client("north", "cloud", stem)
    cloud = at.client("cloud")
    with at.talk("south") as (south,):
        cloud.subscribe(f"{TOP}/#")
        south.subscribe("#")
        with suppress(queue.Empty):  # the factory's own bridge connects again, and ends this connection of its name
            expect(forger.publish(f"{TOP}/{topic}", b"forged", retain=retain) == DENIED, "the broker takes it")
        for one in (cloud, south):
            while (got := one.hears(0.05)) is not None:  # what is retained is received, too
                expect(got[1] != b"forged", f"{got[0]} is received")
    for one in (forger, cloud):
        one.close()
    return REFUSED


def _nosy_at_the_cloud(at: Plant, name: str, stem: str, pattern: str) -> str:
    """A member subscribes to more than its own at the cloud's broker; then the cloud and another edge talk."""
    nosy = at.client(name, "cloud", stem)
    cloud = at.client("cloud")
    south = at.client("south", "cloud")
    with suppress(queue.Empty):
        nosy.subscribe(pattern)
    south.subscribe(f"{TOP}/in/cloud/south")
    expect(cloud.says(f"{TOP}/in/cloud/south", b"secret") and south.hears() is not None, "the edge gets no message")
    expect(south.says(f"{TOP}/out/south/cloud", b"secret"), "it may not answer")
    while (got := nosy.hears(0.05)) is not None:
        expect(got[1] != b"secret", f"it reads {got[0]}")
    for one in (nosy, cloud, south):
        one.close()
    return REFUSED


def _wills(at: Plant, topic: str) -> str:
    """A device leaves a last will in another's name, retained, and vanishes."""
    from paho.mqtt import client as mqtt

    forger = at.client("n0")
    forger.mqtt.disconnect()
    forger.mqtt.loop_stop()
    again = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="n0", protocol=mqtt.MQTTv5)
    where = at.folder / "out/devices/n0"
    at.made.add(again)
    again.tls_set(str(where / "ca.crt"), str(where / "device.crt"), str(where / "device.key"))
    again.will_set(topic, b"forged", qos=1, retain=True)
    with at.talk("north", "n1") as (edge, device):
        edge.subscribe("#")
        device.subscribe(f"{TOP}/in/+/n1")
        again.connect("127.0.0.1", at.ports["north"])
        again.loop_start()
        until(again.is_connected, 1)
        socket_of = again.socket()
        if socket_of is not None:
            socket_of.close()  # without a word: the broker states the will
        again.loop_stop()
        time.sleep(0.3)
        expect(edge.says(f"{TOP}/in/north/n1", b"own") and device.says(f"{TOP}/out/n1/north", b"own"), "all is silent")
        for one in (edge, device):
            while (got := one.hears()) is not None and got[1] != b"own":
                expect(got[1] != b"forged", f"{got[0]} is heard")
    return REFUSED


def _sessions(at: Plant, kind: str) -> str:
    from paho.mqtt import client as mqtt

    with at.talk("north", "n1") as (edge, other):
        other.subscribe(f"{TOP}/in/+/n1")
        edge.subscribe(f"{TOP}/status/+")
        expect(other.says(f"{TOP}/status/n1", b"here", retain=True), "it may not state that it is there")
        more = {"client_id": "n1"} if kind in ("taken over", "of an old session") else {}
        forger = at.client("n0", **more)
        if kind == "wiped":
            expect(forger.publish(f"{TOP}/status/n1", b"", retain=True) == DENIED, "the broker takes it")
        elif kind == "answers for another":
            forger.mqtt.publish(f"{TOP}/in/north/n1", b"forged", qos=2)
        elif kind in ("old protocol", "as another user"):
            forger.close()
            version = mqtt.MQTTv31 if kind == "old protocol" else mqtt.MQTTv5
            old = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="n0", protocol=version)
            where = at.folder / "out/devices/n0"
            at.made.add(old)
            old.tls_set(str(where / "ca.crt"), str(where / "device.crt"), str(where / "device.key"))
            old.username_pw_set("north", "north")
            old.connect("127.0.0.1", at.ports["north"])
            old.loop_start()
            until(old.is_connected, 1)
            for topic in (f"{TOP}/in/north/n1", f"{TOP}/status/n1"):
                old.publish(topic, b"forged", qos=1, retain=True)
            time.sleep(0.3)
            old.disconnect()
            old.loop_stop()
        expect(edge.says(f"{TOP}/in/north/n1", b"own"), "the edge may not write any more")
        expect(other.hears() == (f"{TOP}/in/north/n1", b"own") and not other.gone, "another is pushed off")
        if forger.up:
            expect(forger.hears(0.1) is None, "it reads another's message")
            forger.close()
    with at.talk("north") as (late,):
        late.subscribe(f"{TOP}/status/n1")
        expect(late.hears() == (f"{TOP}/status/n1", b"here"), "what a device stated is lost")
    return REFUSED


def _strangers(at: Plant, kind: str) -> str:
    where = at.folder / "out/devices/n0"
    port = at.ports["north"]
    if kind == "plain":
        with socket.create_connection(("127.0.0.1", port), timeout=5) as bare:
            bare.sendall(b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03n0x")
            with suppress(ConnectionResetError):
                expect(not bare.recv(64).startswith(b"\x20"), "it is let in without TLS")
        return REFUSED
    if kind == "TLS 1.2":
        context = ssl.create_default_context(cafile=str(where / "ca.crt"))
        context.check_hostname = False
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(where / "device.crt", where / "device.key")
        with socket.create_connection(("127.0.0.1", port), timeout=5) as bare:
            try:
                context.wrap_socket(bare)
            except (ssl.SSLError, OSError):
                return REFUSED
        raise ThroughError("it is let in")
    folder, stem = {
        "no certificate": (where, None), "cloud": (at.folder / "out/cloud", "broker"),
        "authority": (at.folder / "out/authority", "ca"),
    }[kind]  # fmt: skip
    got = Client(port, folder, stem, ca=where / "ca.crt")
    at.made.add(got.mqtt)
    until(lambda: got.gone, 3)
    expect(not got.up, "it is let in")
    return REFUSED


# -- files of a stranger ----------------------------------------------------------------------------------------------


def _park(folder: Path) -> Any:
    return from_document(_document(folder), folder / "park.toml")


def _document(folder: Path) -> dict[str, Any]:
    (folder / "given.toml").write_text('name = "given"\n')
    return {
        "name": "plant", "experiment": "given.toml", "cloud": {"address": "10.0.0.1", "port": 8883, "bind": "0.0.0.0"},
        "folder": "/srv/fedfloor", "programs": "/opt/fedfloor/bin", "user": "fedfloor", "message_mb": 8,
        "valid_days": 9,
        "factory": [{"name": "north", "address": "10.0.0.2", "port": 8883, "bind": "0.0.0.0"}],
        "device": [{"name": "n0", "factory": "north", "number": 0, "x_m": 1.0, "y_m": 1.0, "clock_hz": 1e9,
                    "data": {"kind": "folder", "path": "samples"}}],
    }  # fmt: skip


LINES = ("x\nallow_anonymous true", "x\r\nuser root", "x\0y", "x y", "x\"'$(id)`id`", "%n", "../../etc",
"x/+/#", "$SYS",
         "-oProxyCommand=id",          "x\u2028y", "é" * 300, "user n1\ntopic readwrite #")  # fmt: skip


def files_of_strangers(tally: Tally, folder: Path) -> None:
    true = _document(folder)
    for at in places(true):
        for new in [*HOSTILE, *LINES] if at else []:
            tally.attempt(
                f"park file {at} = {str(new)[:30]!r}",
                partial(_written, forged(true, at, new), folder),
                by_hand=False,
            )
    for i, body in enumerate(bodies()):
        tally.attempt(f"a model file {body[8:50]!r}", partial(_model, folder / f"m{i}", body))
    for name, header in (
        ("a model 'os:system'", {"model": "os:system"}), ("a model 'this:s'", {"model": "this:s"}),
        ("an objective 'os:system'", {"made": {"objective": ["os:system", {}]}}),
        ("a head without end", {"made": {"objective": ["contrastive", {"dim": 1 << 28}]}}),
        ("layers without end", {"made": {"objective": ["gated", {"units": 100_000}]}}),
        ("a model that is a list", {"model": ["os:system"]}),
        ("a shape without end", {"shape": [1, 1 << 40, 1 << 40]}), ("a shape below 0", {"shape": [-1, 28, 28]}),
        ("classes without end", {"classes": ["x"] * 200_000}), ("another format", {"format": TEXT}),
        ("a scale that is a text", {"normalise": {"scale": "os:system", "mean": [0], "std": [0]}}),
        ("inputs of another kind", {"inputs": {"kind": "os:system"}}),
    ):  # fmt: skip
        tally.attempt(name, partial(_header, Path(tempfile.mkdtemp(dir=folder)), header))
    listed = broker.acl(_park(folder), _park(folder).factory[0])
    for name in ("north", "", "#", "+", "n0\nuser x", "n", "N0", "../n0"):
        tally.attempt(f"rights of {name!r} are taken", partial(_rights, listed, name))


MARKUP = '"><img src=x onerror=alert(1)><svg/onload=alert(1)>' + TEXT


def folders_of_strangers(tally: Tally, folder: Path) -> None:
    """A run folder and a model that somebody else made are reported, asked, and begun with."""
    whole = folder / "whole"
    set_up = {"rounds": 2, "data": {"name": "labels", "samples_per_device": 40}, "model": {"name": "logistic"},
              "park": {"devices": 4, "factories": 2, "census_epsilon": 5.0}, "method": {"name": "fedavg"},
              "network": {"profile": "5g-edge"}}  # fmt: skip
    fedfloor.run(config.from_table(set_up), whole, ranks=1)
    (whole / "model.safetensors.sha256").unlink()
    out = folder / "run"
    for path in sorted(one for one in whole.iterdir() if one.suffix in (".json", ".jsonl", ".toml")):
        true = _content(path)
        for at in places(true):
            leaf = _leaf(true, at)
            if isinstance(leaf, str):
                for new in (MARKUP, "this:s"):
                    attempt = partial(_reported, whole, out, path.name, forged(true, at, new))
                    tally.attempt(f"{path.name} {at} = {new[:20]!r}", attempt, by_hand=False)
            elif isinstance(leaf, dict) and leaf:
                renamed = {MARKUP if i == 0 else key: value for i, (key, value) in enumerate(leaf.items())}
                attempt = partial(_reported, whole, out, path.name, forged(true, at, renamed))
                tally.attempt(f"{path.name} {at}: a key is a text", attempt, by_hand=False)
    for name, target in product(
        ("ledger.jsonl", "park.json", "evaluation.json", "model.safetensors"), ("fifo", "loop", "folder")
    ):
        tally.attempt(f"{name} is a {target}", partial(_strange, whole, out, name, target))
    about, _ = saved.content(whole / "model.safetensors")
    for at in places(about):
        for new in [*HOSTILE, MARKUP, GONE] if at else [{}]:
            changed = forged(about, at, new)
            tally.attempt(f"a model with {at} = {str(new)[:30]}", partial(_begun, whole, out, changed), by_hand=False)
            if isinstance(_leaf(about, at), str) and isinstance(new, str):
                tally.attempt(f"asked: {at} = {new[:30]}", partial(_asked, whole, out, changed), by_hand=False)
    for value in (math.nan, math.inf, -math.inf):
        tally.attempt(f"weights {value}", partial(_begun, whole, out, about, lambda w, v=value: w.fill_(v)))
    for kind in (torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8):
        tally.attempt(f"weights of {kind}", partial(_begun, whole, out, about, lambda w, k=kind: w.to(k)))
    for shape in ((0,), (1,), (62, 784, 1), (784, 62), (1, 48_608)):
        change = partial(_resized, shape=shape)
        tally.attempt(f"weights of shape {shape}", partial(_begun, whole, out, about, change))
    for i, body in enumerate(bodies()):
        place = folder / f"b{i}"
        place.mkdir()
        (place / "model.safetensors").write_bytes(body)
        tally.attempt(f"begun with {body[8:50]!r}", partial(_begins, place))


def records_of_strangers(tally: Tally, folder: Path) -> None:
    """A record of a run on real machines, which somebody else made, is carried out again."""
    with park_of(folder, experiment(folder, "hierfavg", rounds=1, devices=4, factories=2)) as park:
        park.run()
    run = folder / "live"
    true = json.loads((run / replay.FILE).read_text())
    for name, change in RECORDS.items():
        tally.attempt(name, partial(_replayed, run, folder / "again", change(true)))
    for at in places(true):
        for new in (None, -1, 1 << 40, 1e308, "this:s", [], GONE) if at else [{}]:
            attempt = partial(_replayed, run, folder / "again", forged(true, at, new))
            tally.attempt(f"{at} = {str(new)[:30]}", attempt, by_hand=False)


def _asking(what: str, **settings: Any) -> Callable[[Any], Any]:
    plan = {"node": "probe", "devices": [0], "what": what, "settings": settings}
    return lambda true: {**true, "plan": plan, "answered": {what: [0]}}


RECORDS: Mapping[str, Callable[[Any], Any]] = {
    "as it was": lambda true: true,
    "endless steps": lambda true: {**true, "works": [{**true["works"][0], "epochs": None, "steps": 10**9}]},
    "endless turns": lambda true: {**true, "plan": {"node": "repeat", "times": 1 << 62, "child": true["plan"]}},
    "a file as an extractor": _asking("features", extractor="resnet18", weights="/etc/passwd"),
    "endless training for a question": _asking("profile", steps=10**9, batch_size=1),
    "code as an objective": lambda true: {**true, "works": [{**true["works"][0], "objective": "this:s"}]},
    "code as a rule": lambda true: {**true, "plan": {**true["plan"], "mix": "antigravity:fly"}},
}


def _replayed(run: Path, out: Path, row: Any) -> str:
    """Carry out a record; nothing but the true model is called the run's."""
    place = out.with_name("record")
    _copied(run, place)
    (place / replay.FILE).write_text(json.dumps(row) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    try:
        recording = replay.Recording(place)
        given = recording.simulated(config.read(place / "experiment.toml", []))
        launch.start(given, Orders(out, limits=Limits(1), replay=recording), 1, launch.ignore)
    except FedfloorError:
        return REFUSED
    same = (out / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    expect(same, "another model was called the run's")
    return HARMLESS


def judgements_of_devices(tally: Tally, folder: Path) -> None:
    """A minority of devices judges a model before its release, alone or together."""
    del folder
    values = (None, 0.0, 1e-300, 0.5, 1.0)
    for liars, honest, new, old in product((1, 2, 3), (0.47, 0.499, 0.501, 0.53), values, values[1:]):
        attempt = partial(_judged, liars, honest, new, old)
        tally.attempt(f"{liars} state {new} and {old} where others have {honest}", attempt)


def _judged(liars: int, honest: float, new: float | None, old: float) -> str:
    found = {f"d{k}": gate.Judgement(40, honest, 0.5) for k in range(2 * liars + 2)}
    found |= {f"liar{k}": gate.Judgement(1 << 50, new, old) for k in range(liars)}
    better = gate._weighed(found, named("accuracy"), [], 2).better
    expect(better is not (honest < 0.5), "a minority decides")
    return HARMLESS if better is not None else REFUSED


def _leaf(value: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        value = value[key]
    return value


def _content(path: Path) -> Any:
    text = path.read_text()
    if path.suffix == ".toml":
        return tomllib.loads(text)
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)


def _copied(whole: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(whole, out, ignore=shutil.ignore_patterns("checkpoint", "report.html"))


def _typed(*words: str) -> tuple[int, str]:
    """Call a command; return its code and what it printed."""
    printed = io.StringIO()
    code = 0
    before = sys.argv
    sys.argv = ["fedfloor", *words]
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = before
    expect("\x1b[2J" not in printed.getvalue() and "\u202e" not in printed.getvalue(), "it reaches the terminal")
    expect(code in (0, 2), f"it ends with {code}")
    return code, printed.getvalue()


def _reported(whole: Path, out: Path, name: str, value: Any) -> str:
    _copied(whole, out)
    text = (
        "\n".join(map(json.dumps, value)) + "\n"
        if name.endswith("l") and isinstance(value, list)
        else json.dumps(value)
    )
    (out / name).write_text(tomlkit.dumps(value) if name.endswith(".toml") else text)
    page = out / "page.html"
    code, _ = _typed("report", str(out), "--out", str(page))
    if code == 0:
        text = page.read_text()
        expect("<img src=x" not in text and "<svg/onload" not in text, "its page has another's markup")
        expect("<script>alert(1)" not in text.replace("\\u003c", "<!"), "its page has another's script")
    return REFUSED if code else HARMLESS


def _strange(whole: Path, out: Path, name: str, target: str) -> str:
    _copied(whole, out)
    (out / name).unlink()
    if target == "fifo":
        os.mkfifo(out / name)
    elif target == "loop":
        (out / name).symlink_to(out / name)
    else:
        (out / name).mkdir()
    code, _ = _typed("report", str(out), "--out", str(out / "page.html"))
    if name == "model.safetensors":
        code, _ = _typed("predict", str(out), str(out / "none.png"))
        expect(_begins(out) == REFUSED, "a run begins with it")
    return REFUSED if code else HARMLESS


def _model_of(whole: Path, out: Path, about: Any, change: Callable[[Any], Any] = lambda w: w) -> None:
    from safetensors.torch import save_file

    out.mkdir(exist_ok=True)
    tensors = {
        name: change(one.clone()).contiguous() for name, one in saved.content(whole / "model.safetensors")[1].items()
    }
    save_file(tensors, out / "model.safetensors", metadata={"fedfloor": json.dumps(about)})


def _resized(w: Any, shape: tuple[int, ...]) -> Any:
    return torch.zeros(shape)


def _begun(whole: Path, out: Path, about: Any, change: Callable[[Any], Any] = lambda w: w) -> str:
    _copied(whole, out)
    _model_of(whole, out, about, change)
    return _begins(out)


def _begins(folder: Path) -> str:
    """A run begins with a model."""
    data = load_data(config.from_table({"data": {"name": "labels", "samples_per_device": 4}, "park": {"devices": 2}}))
    network = build("logistic", data.shape, len(data.classes), seed=0)
    try:
        begin(network, ModelSettings("logistic", init_from=str(folder)), data, logged=True)
    except FedfloorError as error:
        expect(error.exit_code == 2 and "model.init_from" in str(error), f"no word of what is wrong: {error}")
        return REFUSED
    expect(bool(network.flat.isfinite().all()) and network.flat.dtype == torch.float32, "it begins with no numbers")
    return HARMLESS


def _asked(whole: Path, out: Path, about: Any) -> str:
    _copied(whole, out)
    _model_of(whole, out, about)
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(out / "dark.png")
    return REFUSED if _typed("predict", str(out), str(out / "dark.png"))[0] else HARMLESS


def _written(document: Any, folder: Path) -> str:
    try:
        park = from_document(json.loads(json.dumps(document)), folder / "park.toml")
    except FedfloorError as error:
        expect(bool(str(error)), "no word of why")
        return REFUSED
    first = park.factory[0]
    conf = broker.conf(park, first)
    acl = broker.acl(park, first)
    expect(
        conf.count("\n") == broker.conf(_park(folder), first).count("\n"), "a line is added to the broker's settings"
    )
    expect("allow_anonymous true" not in conf and acl.count("\nuser ") == 4, "a rule is added")
    expect("#" not in acl.split("\n", 1)[1] and "$" not in acl, "a rule for every topic is added")
    for service in (
        *machines.cloud_services(park),
        *machines.factory_services(first),
        *machines.device_services(park.device[0]),
    ):
        text = machines.unit(service, park)
        keys = {line.partition("=")[0] for line in text.splitlines()}
        expect(
            len([one for one in text.splitlines() if one.startswith("ExecStart=")]) == 1, "a command is added to a unit"
        )
        expect(keys <= KEYS and "\nUser=root" not in text, f"a line is added to a unit: {keys - KEYS}")
    return HARMLESS


def _model(folder: Path, body: bytes) -> str:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(body)
    try:
        load_model(folder)
    except FedfloorError:
        return REFUSED
    raise ThroughError("it is loaded")


def _header(folder: Path, header: Mapping[str, Any]) -> str:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = write_model(folder) / "model.safetensors"
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["fedfloor"])
    save_file(load_file(path), path, metadata={"fedfloor": json.dumps({**about, **header})})
    try:
        load_model(folder)
    except FedfloorError:
        return REFUSED
    return HARMLESS


def _rights(listed: str, name: str) -> str:
    left = broker.without(listed, name)
    expect(
        "topic read fedfloor/plant/in/+/n0" in left and len(left.splitlines()) <= len(listed.splitlines()),
        "others' rights are taken",
    )
    return HARMLESS


# -- all of them ------------------------------------------------------------------------------------------------------

KEYS = {
    "", "[Unit]", "Description", "Wants", "After", "[Service]", "User", "WorkingDirectory", "Environment", "ExecStart",
    "ExecStartPre", "ExecReload", "Restart", "RestartSec", "LimitNOFILE", "NoNewPrivileges", "PrivateTmp",
    "PrivateDevices", "ProtectSystem", "ProtectHome", "ReadWritePaths", "[Install]", "WantedBy", "UMask", "Type",
}  # fmt: skip

CLASSES: Mapping[str, tuple[str, str, Callable[[Tally, Path], None]]] = {
    "code": ("A taken-over edge, devices", "run code", code_on_a_device),
    "fields": ("A taken-over edge, devices", "any harm: every field of every request", fields_of_requests),
    "starved": ("A taken-over edge, devices", "take their time, memory, disk", device_starved),
    "holds": ("A taken-over edge, devices", "read or relabel what they hold", what_a_device_holds),
    "surveys": (
        "A taken-over edge, devices; a device",
        "read or spoil what they hold by normalisation",
        what_surveys_reveal,
    ),
    "sums": (
        "A device, the others' secure sum; a taken-over edge, devices",
        "stop the sums; reveal an update by two sums",
        secure_sums,
    ),
    "servers": ("A taken-over edge or cloud, a device", "read its update from secure sums", servers_of_sums),
    "orders": (
        "A taken-over edge or cloud, a device",
        "read it past masks and noise: work, models that fail, further sums",
        orders_past_protection,
    ),
    "bytes": ("Anybody who may send a message", "any harm: bytes that are none", messages),
    "claims": ("A device, its edge", "count for more, end a run: every field", claims_of_devices),
    "says": ("A device, its edge and other devices", "speak for others, poison, flood", what_a_device_says),
    "edges": ("A taken-over edge, the cloud", "poison, end a run, fill its memory", answers_of_edges),
    "time": (
        "A device, an edge or a broker",
        "take others' time, fill logs, pose as an edge",
        time_of_others,
    ),
    "network": ("Network reach only", "enter a broker, fill its memory", at_the_brokers_gates),
    "files": ("A stranger's park file, model file", "run code, add rules or units", files_of_strangers),
    "folders": ("A stranger's run folder, model", "run code, scripts in pages, begin a run", folders_of_strangers),
    "records": ("A stranger's record of a run", "run code, take time and memory", records_of_strangers),
    "judgements": ("A minority of devices, the gate", "release or stop a model", judgements_of_devices),
    "brokers": ("A device or another factory, real brokers", "read, write, end or pose as others", members_at_brokers),
}


HEAD = """\
# Attacks on a deployment

Written by `PYTHONPATH=.:tests/support python tests/deploy/test_deploy_assault.py`.

Attempts against the handlers of messages and files that real machines run, in one process, and against three Mosquitto
brokers as `fedfloor park provision` sets them up, with the certificates of a device, another factory, a bridge, and of
no member. An audit hook sees what is run, imported or opened; time and memory are measured. What a broker lets somebody
subscribe to and never delivers counts as refused. *By hand*: thought out one by one; the others replace every field
of a true message, answer or file by each of a list of hostile values. *Harmless*: done as it was said, within bounds,
and nothing of others is touched. *Not prevented, as stated*: updates of ordinary length in a harmful direction,
clusters of few rows in a survey for normalisation, and secure sums of two rounds over nearly the same model where
devices are not in crews (`together = true`), which `docs/deploy-security.md` and `docs/secure-sums.md` name among what
their checks do not protect against.

What got through at first is in the history of `CHANGELOG.md`, under Security; each of these is an attempt here, or in
`tests/deploy/test_deploy_provision.py`."""
HEADS = ["who attacks whom", "aim", "attempts", "of them by hand", "refused and named", "harmless",
         "not prevented, as stated", "got through"]  # fmt: skip
PAGE = Path(__file__).parents[2] / "results/attacks.md"


def attacked(name: str, folder: Path) -> Tally:
    who, aim, do = CLASSES[name]
    tally = Tally(who, aim)
    do(tally, folder)
    return tally


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_nothing_gets_through(name: str, tmp_path: Path) -> None:
    if name == "brokers" and MOSQUITTO is None:
        pytest.skip("Mosquitto is not installed")
    tally = attacked(name, tmp_path)
    assert not tally.through, f"{len(tally.through)}: " + "\n".join(tally.through[:40])
    assert tally.by_hand + tally.counts.total() > 20


def main(names: Sequence[str]) -> int:
    """Carry out attacks, by name or all, and print the table; all of them write the page as well."""
    logging.disable(logging.WARNING)
    rows = list[Tally]()
    through = 0
    for name in names or CLASSES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(attacked(name, Path(folder)))
        for line in rows[-1].through:
            print(f"THROUGH {name} {line}", file=sys.stderr)
        through += len(rows[-1].through)
    total = Tally("All", "")
    for one in rows:
        total.counts += one.counts
        total.by_hand += one.by_hand
        total.through += one.through
    cells = []
    for one in (*rows, total):
        counts = [one.counts[what] for what in (REFUSED, HARMLESS, KNOWN)]
        figures = (one.counts.total() + len(one.through), one.by_hand, *counts, len(one.through))
        cells.append([one.title, one.aim, *(f"{n:,}" for n in figures)])
    print(documents.table(HEADS, cells))
    if not names:
        documents.publish(PAGE, [HEAD, {"columns": HEADS, "rows": cells}])
    return int(bool(through))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
