"""A hostile edge asks every question in every kind of experiment: devices answer only those of their own experiment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_anomalies import written

from fedfloor import config
from fedfloor.deploy import facts
from fedfloor.deploy.device import Agent
from fedfloor.deploy.message import Message, decode, encode
from fedfloor.engine.engine import Engine
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.plan.questions import FACTS
from fedfloor.runs.parks import build_park
from live_park import experiment, live

DISTRIBUTED = """method.mix = { kind = "private", clip = 0.5, noise = 1.0, delta = 1e-2, distributed = true }
method.travel = { kind = "secure-sum", across = true }
deploy.norm_limit = false"""
PRIVATE = """method.mix = { kind = "private", clip = 0.5, noise = 1.0, delta = 1e-2 }
method.selection = { kind = "poisson", share = 0.5 }
deploy.norm_limit = false"""
NOISY = "methods.{}.work = {{ epochs = 1, sample_clip = 1.0, sample_noise = 50.0 }}"


SECURE = 'method.travel = "secure-sum"\ndeploy.norm_limit = false\n'


@dataclass(frozen=True)
class Kind:
    """A kind of experiment, and the questions that its devices answer."""

    method: str
    asks: frozenset[str] = frozenset()
    more: str = ""
    model: str = "logistic"


def kind(method: str, *asks: str, more: str = "", model: str = "logistic") -> Kind:
    return Kind(method, frozenset(asks), more, model)


KINDS = {
    "plain": kind("fedavg"),
    "secure sums": kind("fedavg", more='method.travel = "secure-sum"\ndeploy.norm_limit = false'),
    "noise of devices": kind("fedavg", more=DISTRIBUTED),
    "noise of the cloud": kind("fedavg", more=PRIVATE),
    "noise on samples": kind("fedavg", more=NOISY.format("fedavg")),
    "noise on samples, in rings": kind("fedsr", more=NOISY.format("fedsr")),
    "the census": kind("fedgs", "census", "classes", more="methods.fedgs = { devices = 1, random = 0 }"),
    "class weights": kind("fedavg", "classes", more='method.objective = { kind = "weighted", weights = "census" }'),
    "features": kind("fldg", "features", more="methods.fldg.groups = 2"),
    "features again": kind("fldg", "features", "census", more="methods.fldg = { groups = 2, refresh = 0.5 }"),
    "hashes": kind("fldgl", "hash", more="methods.fldgl.groups = 2"),
    "profiles": kind("kcenter", "profile", more="methods.kcenter.centers = 2"),
    "losses of a rule": kind("fedavg", "loss", more='method.mix = { kind = "q_fair", q = 1.0 }'),
    "a rule that asks nothing": kind("qffl", more='method.mix = "equal"'),
    "gradients": kind("fedl", "gradient"),
    "no gradients": kind("fedl", more="methods.fedl.weight = 0.0"),
    "moments": kind("pca", "moments", "scores", model="monitor"),
    "thresholds": kind("fedavg", "scores", model="mlp-sensor"),
    "parts of devices": kind("fedper", "outputs"),
}


def asked(agent: Agent, what: str, settings: dict[str, Any], arrays: dict[str, Any]) -> tuple[str, str, Any]:
    """Return the kind of the answer to a hostile edge, the reason of a refusal, and the arrays."""
    about = {"device": agent.settings.device, "held": None, "trained": 0, "tick": 0, "what": what, "settings": settings}
    name = "census" if what == "census request" else "probe"
    message = Message(name, agent.settings.edge, session=1, number=1, about=about, arrays=arrays)
    got, said, vectors = agent.reply(agent.settings.edge, decode(encode(message)))
    return got, said.get("reason", ""), vectors


def own_settings(method: ConfiguredMethod, what: str) -> dict[str, Any]:
    """Return the settings with which the method asks a question, and for evaluations those of an honest edge."""
    own: dict[str, Any] = {"scores": {"low": -40.0, "width": 80.0}, "outputs": {"scored": -1}}
    own |= {question.what: dict(question.settings) for question in method.questions}
    return dict(own.get(what, {}))


def hostile_settings(what: str, own: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield other settings of a question than those of its experiment."""
    extractor = {"extractor": "raw", "hashes": 4096, "width": 1e-9, "models": 1}
    yield from ({}, extractor, {"extractor": "raw"}, {"models": 1}, {"low": -40.0, "width": 80.0}, {"scored": 0})
    yield {"objective": "plain", "epochs": 1, "batch_size": 1, "rate": 1e-9}
    for name, value in own.items():
        more = value + 1 if isinstance(value, (int, float)) else "raw"
        yield own | {name: more}
        yield {key: kept for key, kept in own.items() if key != name}


@pytest.mark.parametrize("name", KINDS)
def test_devices_answer_only_the_questions_of_their_own_experiment(tmp_path: Path, name: str) -> None:
    of = KINDS[name]
    if "scores" in of.asks:
        what = written(tmp_path, of.method, of.model)
    else:
        what = experiment(tmp_path, of.method, rounds=2, devices=6, factories=3, model=of.model, more=of.more)
    method = config.read(what, []).configured
    with live(tmp_path, what) as park:
        agent = park.agents[0]
        network = agent.worker().engine.network
        whole = {"w": network.flat.numpy().copy()}
        shared = {"w": network.parcel("all but head").cut(network.flat).numpy().copy()} if of.method == "fedper" else {}
        for question in FACTS:
            own = own_settings(method, question)
            vary = FACTS[question].varies
            models = [{}, whole, shared] if shared else [{}, whole]
            honest = [asked(agent, question, own, model)[0] for model in models]
            assert ("answer" in honest) == (question in of.asks), (question, honest)
            for settings in hostile_settings(question, own):
                fixed = {key: value for key, value in settings.items() if key not in vary}
                if question in of.asks and fixed == {key: own[key] for key in own if key not in vary}:
                    continue
                for model in models:
                    got, why, vectors = asked(agent, question, settings, model)
                    assert (got, bool(vectors)) == ("refused", False), (question, settings)
                    assert why in ("question", "header", "foreign code"), (question, settings, why)
        census = asked(agent, "census request", {}, {})
        assert census[0] == ("answer" if "census" in of.asks else "refused")


def reconstructed(gradient: np.ndarray[Any, Any], engine: Engine, device: int) -> int:
    """Return the number of a device's samples that a trap's gradient reveals, to six digits.

    The gradient of the mean loss of a linear model with weights 0 is Σ_i (p − e_{y_i}) x_iᵀ/n with p = 1/F: for a class
    with a single sample its row, minus the mean of all rows, is −x_i/n.
    """
    samples = engine.samples(device, 0)
    x = samples.values(slice(None)).flatten(1).double().numpy()
    y = samples.y.numpy()
    classes = len(engine.park.dataset.classes)
    rows = gradient[: classes * x.shape[1]].reshape(classes, -1).astype(np.float64)
    shared = rows.sum(0) / classes  # 0, as the p − e of a sample sum to 0
    mean = rows[np.setdiff1d(np.arange(classes), y)[0]]  # of a class without samples: Σ_i x_i/(F·n)
    found = 0
    for label in np.flatnonzero(np.bincount(y, minlength=classes) == 1):
        guess = (mean - rows[label] - shared) * len(x)
        found += bool(np.abs(guess - x[y == label][0]).max() < 1e-4)
    return found


TRAPPED = ("plain", "secure sums", "noise of devices", "noise of the cloud", "noise on samples")


def test_the_trap_reads_samples_where_a_method_asks_for_gradients(tmp_path: Path) -> None:
    """The trap works where the experiment asks for gradients, which the statement of privacy lists."""
    with live(tmp_path, experiment(tmp_path, "fedl", rounds=1, devices=4)) as park:
        agent = park.agents[0]
        engine = agent.worker().engine
        got, _, vectors = asked(agent, "gradient", {}, {"w": np.zeros(engine.network.flat.numel(), np.float32)})
        assert got == "answer"
        assert reconstructed(vectors["answer"], engine, 0) > 5


@pytest.mark.parametrize("name", TRAPPED)
def test_no_trap_reads_samples_or_their_moments(tmp_path: Path, name: str) -> None:
    of = KINDS[name]
    what = experiment(tmp_path, of.method, rounds=1, devices=6, factories=3, more=of.more)
    with live(tmp_path, what) as park:
        agent = park.agents[0]
        zeros = {"w": np.zeros(agent.worker().engine.network.flat.numel(), np.float32)}
        for question, arrays in (("gradient", zeros), ("loss", zeros), ("losses", zeros), ("moments", {})):
            settings = {"models": 1} if question == "losses" else {}
            assert asked(agent, question, settings, arrays) == ("refused", "question", {})


@pytest.mark.parametrize(("more", "most"), [(SECURE, 3 * (2 + 2)), ("", 40)], ids=["masks", "in the clear"])
def test_an_edge_has_few_models_for_outputs_where_updates_are_protected(more: str, most: int, tmp_path: Path) -> None:
    """It could read a device's samples by models of its choice, as many as it liked."""
    what = experiment(tmp_path, "fedper", rounds=2, devices=6, factories=2, model="mlp-2nn", more=more)
    with live(tmp_path, what) as park:
        agent = park.agents[0]
        kinds = list[str]()
        network = agent.worker().engine.network
        start = network.parcel("all but head").cut(network.flat).numpy().copy()
        for n in range(40):
            kinds.append(asked(agent, "outputs", {"scored": -1}, {"w": start + n})[0])
        assert kinds == ["answer"] * most + ["refused"] * (40 - most)
        assert asked(agent, "outputs", {"scored": -1}, {"w": start})[0] == "answer"  # once more, the same


def test_an_edge_has_few_counts_of_scores_where_updates_are_protected(tmp_path: Path) -> None:
    """By models and bins of its choice it could read the scores of held-out samples one by one."""
    what = written(tmp_path, "fedavg", "mlp-sensor")
    what.write_text(what.read_text().replace("factories = 2", "factories = 1") + 'method.travel = "secure-sum"\n')
    with live(tmp_path, what) as park:
        agent = park.agents[0]
        kinds = list[str]()
        start = agent.worker().engine.network.flat.numpy().copy()
        most = 3 * 4 * (2 + 2)
        bins = own_settings(config.read(what, []).configured, "scores")
        for n in range(most + 5):
            kinds.append(asked(agent, "scores", bins, {"w": start + n * np.float32(1e-3)})[0])
        assert kinds == ["answer"] * most + ["refused"] * 5
        assert asked(agent, "scores", bins, {"w": start})[0] == "answer"  # once more, the same


def test_visits_with_noise_on_samples_state_neither_losses_nor_accuracy(tmp_path: Path) -> None:
    work = {"epochs": 1, "batch_size": 10, "rate": 0.05, "momentum": 0.5, "sample_clip": 1.0, "sample_noise": 50.0}
    with live(tmp_path, experiment(tmp_path, "fedavg", rounds=1, devices=4, more=NOISY.format("fedavg"))) as park:
        agent = park.agents[0]
        about = {"device": 0, "held": None, "trained": 0, "tick": 0, "visit": 0, "work": work}
        arrays = {"w": agent.worker().engine.network.flat.numpy().copy()}
        message = Message("visit", agent.settings.edge, round=1, session=1, number=1, about=about, arrays=arrays)
        got, said, _ = agent.reply(agent.settings.edge, decode(encode(message)))
        lines = park.run()
    assert got == "update"
    assert said["receipt"][5:8] == [None, None, None]
    assert all(line.train_loss is None and math.isfinite(line.loss or math.nan) for line in lines)
    assert not any(line.lost for line in lines)


def test_a_device_sends_sums_of_its_values_only_for_its_own_normalisation(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1, devices=4)
    read = config.read(what, [])
    true = facts.of(read, build_park(read).dataset).to_dict()
    assert true["sums"] is False
    with live(tmp_path, what) as park:
        agent = park.agents[0]
        for given, wanted in ((true | {"sums": True}, "refused"), (true, "answer")):
            message = Message("facts", agent.settings.edge, session=1, number=1, about={"facts": given})
            assert agent.reply(agent.settings.edge, decode(encode(message)))[0] == wanted
