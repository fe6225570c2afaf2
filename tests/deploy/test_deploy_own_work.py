"""An edge that chooses the order: where masks or noise protect updates, devices accept their method's work alone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_questions import DISTRIBUTED, NOISY
from test_deploy_sums import SECURE
from test_deploy_sums_active import requested

import refusals
from benchmarks.revealed import SETTINGS, table
from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import device_sum, names, own
from fedfloor.deploy.device import FAILED
from fedfloor.deploy.message import Message, decode
from fedfloor.deploy.own_work import OwnWork
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.worker import Worker
from fedfloor.engine import local_update
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.engine.visit import VisitStats, check_finite
from fedfloor.methods.catalog import METHODS
from fedfloor.parts.mixing import weighting
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Work
from fedfloor.plan.schedule import Key
from fedfloor.runs import forecast, prepare
from fedfloor.runs.parks import build_park
from live_park import device_settings, experiment, figures, live, simulated

SUMMED = DISTRIBUTED.replace('{ kind = "secure-sum", across = true }', '"secure-sum"')
KINDS = {
    "secure sums": SECURE,
    "noise of devices": SUMMED,
    "noise on samples": NOISY.format("fedavg"),
}


def worker(folder: Path, more: str, method: str = "fedavg", model: str = "logistic") -> Worker:
    folder.mkdir(parents=True, exist_ok=True)
    what = experiment(folder, method, devices=6, factories=2, model=model, more=more)
    read = config.read(what, [])
    park = own.alone(build_park(read), read, 1, tests=True)
    settings = device_settings(folder, what, 1, 0)
    sums = device_sum.made(settings, read, read.configured, int(park.holdings[1]))
    return Worker(settings, read, read.configured, names.table(read), park, sums)


def order(of: Worker, work: Work, number: int = 1, **about: object) -> Message:
    stated = {**asdict(work), "settings": dict(work.settings)}
    header = {
        "device": 1, "layout": of.layout, "held": None, "trained": 0, "tick": 0, "visit": 0, "work": stated,
        "frozen": False, "rest": "", "kept": [], **about,
    }  # fmt: skip
    arrays = {"w": of.engine.network.flat.numpy().copy()}
    return Message("visit", "e0", "run", number, 1, 1, "all", about=header, arrays=arrays)


def own_work(of: Worker, number: int = 1) -> Work:
    assert of._own_work is not None
    (work,) = of._own_work.planned(number, ())
    return work


# -- every field of an order -------------------------------------------------------------------------------------------

# what an edge could state instead; each lets one device's update, or a sample, count more than the experiment's
HOSTILE: dict[str, object] = {
    "objective": "weighted",  # with weight on a class of one device
    "epochs": 100,
    "steps": 1,  # beside epochs, and so malformed: see below
    "batch_size": 1,
    "rate": 1e-30,
    "momentum": 0.9,
    "weight_decay": 1e3,
    "trains": "classifier",
    "settings": {"weights": "1 0"},
    "optimizer": "adam",
    "beta1": 0.5,
    "beta2": 0.5,
    "eps": 1e9,
    "moments": "device",
    "clip_norm": 1e-9,
    "sends": "body",
    "sample_clip": 1e9,
    "sample_noise": 0.125,
    "travel": "",
    "travel_down": "int8",
    "factors": "all 0.0",
}


def test_a_device_that_adds_noise_answers_as_many_visits_as_its_own_file_allows(tmp_path: Path) -> None:
    of = worker(tmp_path, NOISY.format("fedavg") + "\ndeploy.visits_limit = 2")
    for run in ("a", "b"):
        of.visit(replace(order(of, own_work(of)), run=run))
    with refusals.refused("work", RefusedError):
        of.visit(replace(order(of, own_work(of)), run="c"))  # a run that the edge has invented
    assert of._record.count("visits") == 4


def test_the_same_order_again_has_the_same_noise(tmp_path: Path) -> None:
    """An edge that was restarted during a visit asks once more; the cloud counts one visit."""
    of = worker(tmp_path, NOISY.format("fedavg") + "\ndeploy.visits_limit = 2")
    asked = order(of, own_work(of))
    _, _, first = of.visit(asked)
    first = {name: array.copy() for name, array in first.items()}
    for again in (asked, replace(asked, session=2, number=7)):
        _, _, arrays = of.visit(again)
        assert all(np.array_equal(arrays[name], first[name]) for name in first)
    _, _, other = of.visit(replace(asked, run="another"))
    assert not np.array_equal(other["w"], first["w"])
    assert of._record.count("visits") == 3  # two, and this question


def test_a_visit_with_noise_has_one_update_also_after_the_device_was_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cloud counts one visit, whichever machine was restarted, and however often it is ordered."""

    def restarted() -> Worker:
        of = worker(tmp_path, NOISY.format("fedavg"))
        of._record = RevealRecord(tmp_path / "state" / "revealed.sqlite")
        return of

    of = restarted()
    asked = order(of, own_work(of))
    monkeypatch.setattr(of, "trained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        of.visit(asked)  # its process ends while it trains
    of = restarted()
    _, _, first = of.visit(asked)
    _, _, second = of.visit(replace(asked, about={**asked.about, "tick": 1}))  # the next one of this round
    assert not np.array_equal(first["w"], second["w"])
    with refusals.refused("work", RefusedError):
        of.visit(asked)
    of = restarted()
    moved = {name: array + 1 for name, array in asked.arrays.items()}
    for again in (asked, replace(asked, session=2), replace(asked, arrays=moved)):
        with refusals.refused("work", RefusedError):
            of.visit(again)
    of.visit(replace(asked, run="another"))


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_every_field_of_work_has_a_hostile_value() -> None:
    assert set(HOSTILE) == {field.name for field in fields(Work)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_an_order_that_differs_in_a_field_is_refused_before_training(
    tmp_path: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = worker(tmp_path, KINDS[kind])
    honest = own_work(of)
    changed = replace(honest, **{name: HOSTILE[name]})
    if name == "steps":
        changed = replace(changed, epochs=None)
    if changed == honest:  # an update with noise alone has no codec
        changed = replace(honest, travel="int8")
    assert changed != honest
    monkeypatch.setattr(of, "trained", None)
    with pytest.raises(RefusedError) as refused:
        of.reply(order(of, changed))
    assert refused.value.reason in ("work", "codec", "foreign code", "header")


@pytest.mark.parametrize("kind", KINDS)
def test_the_own_order_is_accepted_up_to_its_sum(tmp_path: Path, kind: str) -> None:
    of = worker(tmp_path, KINDS[kind])
    honest = order(of, own_work(of))
    if kind == "noise on samples":
        assert of.reply(honest)[0] == "update"
        return
    with refusals.refused("range", RefusedError):
        of.reply(honest)
    assert of.engine.memory.visits[1] == 0  # it has not trained


# Fields beside the work. "own": compared with what the device has; "common": equal for all devices of a sum, or the
# masks remain; "chosen": the edge's choice, which docs/secure-sums.md names among what is not covered.
ABOUT = {
    "to": "own", "device": "own", "layout": "own", "rest": "own", "work": "own", "sum": "own",
    "tick": "common",
    "held": "chosen", "trained": "chosen", "visit": "chosen",  # earlier state, the place in a stream, the draws
    "frozen": "no effect", "kept": "no effect", "wait_s": "no effect",  # on an update
}  # fmt: skip
SUM = {
    "identity": "own",
    "around": "own",
    "ring": "common",
    "fraction": "common",
    "mix": "common",
    "settings": "common",
}


@pytest.mark.live
def test_every_field_of_an_order_on_the_wire_is_classified(tmp_path: Path) -> None:
    with live(tmp_path, experiment(tmp_path, "fedavg", rounds=1, more=SECURE)) as park:
        park.run()
    messages = [decode(payload) for _, payload in park.broker.said if payload[:4] == b"FEDF"]
    visits = [message for message in messages if message.kind == "visit"]
    assert len(visits) == 8
    for visit in visits:
        assert set(visit.about) <= set(ABOUT)
        assert set(visit.about["sum"]) == set(SUM)
        assert set(visit.arrays) == {"w"}


# -- the own work of every method --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [name for name in SETTINGS if "secure" in name or "distr" in name or "_n" in name])
@pytest.mark.parametrize("name", METHODS)
def test_the_own_plan_has_the_work_of_every_methods_rounds(name: str, setting: str) -> None:
    plans = list[Node]()
    with suppress(SettingError):  # the combination is refused
        read = config.from_table(table(name, setting) | {"rounds": 3})
        method = read.configured
        park = build_park(read)
        plans = [forecast.plan_of(read, park, number) for number in (1, 3)]
    if not plans:
        return
    alone = own.alone(park, read, 1)
    engine, _ = prepare.engine(read, method, alone, Alone(), DeviceMemory(None), live=True)
    network = engine.network
    mine = OwnWork(method, read.rounds, alone, 1, lambda: {"w": network.flat.clone()}, network.trained, network.layout)
    for number, plan in zip((1, 3), plans, strict=True):
        for work in set_of(walk.works(plan, cloud=False)):
            mine.check(work, number)


def set_of(works: list[Work]) -> list[Work]:
    return [work for number, work in enumerate(works) if work not in works[:number]]


def test_a_method_that_asks_nothing_in_small_factories_is_planned_without_answers(tmp_path: Path) -> None:
    """FedGS with noise on samples visited no real machine: each looked for answers that are not asked for."""
    of = worker(tmp_path, NOISY.format("fedgs"), "fedgs")
    assert own_work(of).sample_noise > 0


def test_schedules_give_each_round_its_own_rate(tmp_path: Path) -> None:
    of = worker(tmp_path, SECURE + "methods.fedavg.work.lr = { kind = 'exponential', start = 0.1, factor = 0.5 }\n")
    assert of._own_work is not None
    first, second = (own_work(of, number) for number in (1, 2))
    assert (first.rate, second.rate) == (0.1, 0.05)
    of._own_work.check(replace(first, rate=0.1 * (1 + 1e-15)), 1)  # as another machine may compute it
    with refusals.refused("work", RefusedError):
        of._own_work.check(second, 1)


def test_a_visit_that_ends_well_is_not_in_the_devices_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    of = worker(tmp_path, KINDS["noise on samples"])
    assert of.reply(order(of, own_work(of)))[0] == "update"
    assert "this visit counts as no change" not in caplog.text


# -- class weights -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[970, 30], [1000, 0], [5, 5], [0, 0], [-3, 10]])
@pytest.mark.parametrize("smoothing", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("cap", [1.0, 7.0, 100.0])
def test_weights_of_any_counts_are_those_of_counts(counts: list[int], smoothing: float, cap: float) -> None:
    assert weighting.of_counts(weighting.from_counts(counts, smoothing, cap), cap, 1e-9)


@pytest.mark.parametrize(
    "weights", [(), (0.0, 1.0), (1e-6, 2.0), (100.0, 100.0), (0.4, 1.0), (-1.0, 3.0), (1.0, 101.0)]
)
def test_weights_that_hide_a_class_are_those_of_no_counts(weights: tuple[float, ...]) -> None:
    assert not weighting.of_counts(weights, 100.0, 1e-9)


CENSUS = 'method.objective = { kind = "weighted", weights = "census", cap = 10.0 }\n'


def test_with_class_weights_from_the_census_a_device_accepts_those_of_counts_alone(tmp_path: Path) -> None:
    of = worker(tmp_path, SECURE + CENSUS)
    assert of._own_work is not None
    classes = len(of.engine.park.dataset.classes)
    true = weighting.from_counts([3] * (classes - 1) + [40], 1.0, 10.0)
    (honest,) = of._own_work.planned(1, true)
    of._own_work.check(honest, 1)
    lies: list[str | None] = ["1 " + "0 " * (classes - 1), "1 1", "census", "x", "1e-9 " * classes]
    for text in lies:
        with refusals.refused("work", RefusedError):
            of._own_work.check(replace(honest, settings={**honest.settings, "weights": text}), 1)
    for change in ({"cap": 1e9}, {"smoothing": 0.0}):
        with refusals.refused("work", RefusedError):
            of._own_work.check(replace(honest, settings={**honest.settings, **change}), 1)


@pytest.mark.live
def test_class_weights_from_the_census_train_with_secure_sums_to_the_simulations_bits(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", more=SECURE + CENSUS)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        lines = park.run()
    assert [figures(line) for line in lines] == [figures(line) for line in wanted]
    assert [line.lost for line in lines] == [0, 0]


@pytest.mark.live
def test_an_edge_that_puts_all_weight_on_one_class_gets_no_sum(tmp_path: Path) -> None:
    """With weight on a class of one device, all other updates were zero, and the sum was that device's update."""
    what = experiment(tmp_path, "fedavg", rounds=1, more=SECURE)
    with live(tmp_path, what) as park:
        message = requested(park)
        edge = park.edges[0]
        usual = edge.factory.visit
        classes = len(park.agents[0].worker().engine.park.dataset.classes)
        weights = " ".join("1" if label == 3 else "0" for label in range(classes))

        def visit(engine: Any, work: Work, *others: Any) -> Any:
            return usual(engine, replace(work, objective="weighted", settings={"weights": weights}), *others)

        edge.factory.visit = visit  # type: ignore[method-assign]
        _, answer, _ = edge.walk(message)
    assert answer["shown"][1] == []  # no sum
    assert all("its objective is 'weighted'" in failure.text for failure in edge.factory.failed.values())


# -- a model that fails for a sample -----------------------------------------------------------------------------------


@pytest.fixture
def diverging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training of device 4 diverges, whichever machine it is on."""
    usual = local_update._trained

    def trained(engine: Any, work: Work, goal: Any, samples: Any, about: Any, key: Key, moments: Any) -> VisitStats:
        stats = usual(engine, work, goal, samples, about, key, moments)
        if key.device == 4:
            engine.network.flat[1] = float("nan")
            check_finite(float("nan"), key, work)
        return stats

    monkeypatch.setattr(local_update, "_trained", trained)


@pytest.mark.live
@pytest.mark.parametrize("kind", ["secure sums", "noise of devices", "noise on samples"])
def test_a_device_whose_training_diverges_takes_part_as_without_a_change_and_tells_nobody(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture, diverging: None
) -> None:
    what = experiment(tmp_path, "fedavg", devices=9, factories=3, more=KINDS[kind])
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        lines = park.run()
    assert [line.lost for line in lines] == [0, 0]
    assert not any((line.measured or {})["failed"] for line in lines)
    assert not any("unchanged" in line.info for line in lines)  # only a simulation knows
    assert [line.info["unchanged"] for line in wanted] == [1, 1]
    if kind == "secure sums":
        assert [figures(line) for line in lines] == [figures(replace(line, info={})) for line in wanted]
        here, there = (tmp_path / name / "model.safetensors" for name in ("live", "simulated"))
        assert here.read_bytes() == there.read_bytes()
    assert "this visit counts as no change (1 so far): the loss of device 4 became" in caplog.text
    said = b"".join(payload for _, payload in park.broker.said)
    assert b"became" not in said


def receipts(said: list[tuple[str, bytes]], name: str) -> list[Mapping[str, Any]]:
    messages = [decode(payload) for _, payload in said if payload[:4] == b"FEDF"]
    return [message.about for message in messages if message.kind == "update" and message.sender == name]


@pytest.mark.live
def test_what_returns_beside_a_masked_update_is_the_same_whether_training_diverges(
    tmp_path: Path, diverging: None
) -> None:
    with live(tmp_path, experiment(tmp_path, "fedavg", rounds=1, more=SECURE)) as park:
        park.run()
        ((bad,), (good,)) = (receipts(park.broker.said, name) for name in ("d4", "d5"))
    assert set(bad) == set(good) == {"receipt", "receiving", "seconds"}
    assert bad["receipt"][1:] == good["receipt"][1:]  # all but the device's number


@pytest.mark.live
@pytest.mark.parametrize("more", [SECURE, ""])
def test_reasons_of_failures_that_may_depend_on_samples_stay_in_the_devices_log(
    tmp_path: Path, more: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "the sample of row 17 has 4.25"
    for error in (SettingError(secret), RuntimeError(secret), KeyError(secret)):
        with live(tmp_path, experiment(tmp_path, "fedavg", rounds=1, devices=4, more=more)) as park:
            agent = park.agents[0]
            edge = park.agents[0].settings.edge

            def fails(*_: object, why: Exception = error, **__: object) -> None:
                raise why

            for kind, where in (("visit", agent.worker()), ("facts", agent), ("census", agent)):
                name = {"visit": "reply", "facts": "holding", "census": "census"}[kind]
                monkeypatch.setattr(where, name, fails)
                caplog.clear()
                answer = agent.reply(edge, Message(kind, edge, "run", 1, 1, 1))
                hidden = answer[:2] == ("failed", {"error": "RunError", "text": FAILED})
                assert hidden is bool(more)
                assert (secret in str(answer)) is not bool(more)
                assert secret in caplog.text or not more
                monkeypatch.undo()
