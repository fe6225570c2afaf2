"""Federations that do not wait: laws, and a plain event loop beside them."""

from __future__ import annotations

import heapq
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedfloor
from fedfloor import config
from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.engine import ranks
from fedfloor.engine.engine import Engine
from fedfloor.methods.contract import State
from fedfloor.network.arrivals import Arrivals
from fedfloor.park.stream import batch_order
from fedfloor.plan import text
from fedfloor.plan.flow import VisitFlow
from fedfloor.plan.nodes import Since, Train, Work, device
from fedfloor.runs import checkpoint, forecast, launch, ledger, loop
from fedfloor.runs.orders import Limits, Orders
from fedfloor.runs.pricing import StepSites
from fedfloor.runs.round import Position, step, training
from floor import bits, park
from refusals import refused
from rounds import method
from softmax import loss_and_gradient, regression

EQUAL = (6, 6, 6, 6, 6)
UNEQUAL = (3, 14, 5, 9, 22, 7, 4, 11)
Vector = np.ndarray


def trained(name: str, sizes: tuple[int, ...], rounds: int, **settings: object) -> list[torch.Tensor]:
    """Return the model after each round of a method on softmax regression in float64."""
    of = method(name, **settings)
    setup = training(of, regression(park(sizes)), rounds)
    point = Position(state=of.init(setup.view(0), {}, generator(0, "init")))
    models = []
    for _ in range(rounds):
        point, _ = step(setup, point)
        models.append(point.state.packet["w"])
    return models


def event_loop(
    engine: Engine, buffer: int, concurrency: int, rounds: int, weight: Callable[[int], float], *, whole: bool
) -> list[Vector]:
    """Return the models of a federation that does not wait, by a loop over events without plans or clocks.

    A visit takes as long as its number of mini-batches of four samples; the learning rate is 0.05.
    """
    sizes = engine.park.sizes.tolist()
    model = engine.network.flat.clone().double().numpy()
    models = [model]
    resting = set(range(len(sizes)))
    heap = []
    arrived = []
    departures = 0

    def fill(now: float) -> None:
        nonlocal departures
        while len(heap) < concurrency and resting:
            ready = sorted(resting)
            k = ready[int(generator(engine.seed, "departs", departures).integers(len(ready)))]
            departures += 1
            resting.remove(k)
            heapq.heappush(heap, (now + -(-sizes[k] // 4), k, len(models) - 1))

    def visit(k: int, version: int) -> Vector:
        x, y = (np.asarray(v) for v in (engine.samples(k).values(slice(None)).flatten(1), engine.samples(k).y))
        x = np.hstack([x, np.ones((len(x), 1))])
        w = models[version].copy()
        rng = generator(engine.seed, "batches", version + 1, version, k, 0)
        for order, count in batch_order(len(y), 4, 1, None, rng):
            for i in range(count):
                rows = order[4 * i : 4 * (i + 1)]
                w -= 0.05 * loss_and_gradient(w, x[rows], y[rows])[1]
        return w

    fill(0.0)
    while len(models) <= rounds:
        now, k, version = heapq.heappop(heap)
        arrived.append((k, version))
        if len(arrived) == buffer:
            steps = []
            for number, start in arrived:
                base = models[-1] if whole else models[start]
                steps.append(weight(len(models) - 1 - start) * (visit(number, start) - base))
            models.append(models[-1] + np.mean(steps, axis=0))
            resting.update(number for number, _ in arrived)
            arrived.clear()
        fill(now)
    return models[1:]


@pytest.mark.parametrize("concurrency", [3, 6, 8])
def test_fedbuff_is_an_event_loop_over_two_hundred_updates(concurrency: int) -> None:
    mine = trained("fedbuff", UNEQUAL, 67, buffer=3, concurrency=concurrency)
    plain = event_loop(regression(park(UNEQUAL)), 3, concurrency, 67, lambda age: (1 + age) ** -0.5, whole=False)
    assert max(float(np.abs(a.numpy() - b).max()) for a, b in zip(mine, plain, strict=True)) < 1e-6


def test_fedasync_is_an_event_loop_over_two_hundred_updates() -> None:
    hinge = {"kind": "hinge", "slope": 2.0, "bound": 1}
    mine = trained("fedasync", UNEQUAL, 200, concurrency=5, rate=0.6, staleness=hinge)

    def weight(age: int) -> float:
        return 0.6 * (1.0 if age <= 1 else 1 / (2 * (age - 1) + 1))

    plain = event_loop(regression(park(UNEQUAL)), 1, 5, 200, weight, whole=True)
    assert max(float(np.abs(a.numpy() - b).max()) for a, b in zip(mine, plain, strict=True)) < 1e-6


def test_fedbuff_that_waits_for_all_devices_is_fedavg() -> None:
    mine = trained("fedbuff", EQUAL, 4, buffer=5, concurrency=5)
    theirs = trained("fedavg", EQUAL, 4, parts={"mix": "equal"})
    assert [bits(one) for one in mine] == [bits(one) for one in theirs]


def test_fedasync_with_one_device_and_whole_models_is_sgd_on_it() -> None:
    mine = trained("fedasync", (11,), 5, rate=1.0)
    theirs = trained("fedavg", (11,), 5)
    assert [bits(one) for one in mine] == [bits(one) for one in theirs]


def test_the_server_rate_scales_the_buffers_step() -> None:
    (whole,) = trained("fedbuff", UNEQUAL, 1, buffer=3, concurrency=3)
    (half,) = trained("fedbuff", UNEQUAL, 1, buffer=3, concurrency=3, server_rate=0.5)
    start = regression(park(UNEQUAL)).network.flat
    torch.testing.assert_close(half - start, (whole - start) / 2)


def test_arrivals_are_in_the_order_of_their_times_and_name_the_model_they_left_with() -> None:
    flow = VisitFlow(Work(epochs=1, batch_size=1), (0, 1, 2, 3), 3, 1)
    rounds = Arrivals(flow, 0, StepSites.of(park((1, 10, 100, 1000))), priced=False)
    arrivals = [rounds.round(number).arrivals[0] for number in range(1, 200)]
    assert [one.arrived_s for one in arrivals] == sorted(one.arrived_s for one in arrivals)
    for number, one in enumerate(arrivals, 1):
        left = sum(before.arrived_s <= one.departed_s for before in arrivals[: number - 1])
        assert one.version <= left  # of simultaneous arrivals some may come after the departure
        assert one.arrived_s - one.departed_s == (1, 10, 100, 1000)[one.device]
    number, slow = next((number, one) for number, one in enumerate(arrivals, 1) if one.device == 2)
    assert slow.age(number) > 0


def test_a_visit_since_an_earlier_model_survives_json() -> None:
    plan = Since(3, Train(device(1), Work(steps=2)), 0.25, "model", tick=3)
    assert text.from_json(text.to_json(plan)) == plan


# -- runs --------------------------------------------------------------------------------------------------------------

TABLE = {
    "name": "flow",
    "rounds": 12,
    "data": {"name": "labels", "samples_per_device": 12},
    "park": {"devices": 8, "factories": 2},
    "model": {"name": "mlp-2nn"},
    "work": {"batch_size": 4, "lr": 0.05},
    "network": {"profile": "lte-cat-m2"},
    "method": {"name": "fedbuff"},
    "methods": {"fedbuff": {"buffer": 2, "concurrency": 5}},
}


def lines(out: Path) -> list[tuple[object, ...]]:
    return [(one.round, one.loss, one.plan_hash, one.priced) for one in ledger.read(out / "ledger.jsonl")]


def run(out: Path, ranks: int = 1, last: int | None = None, *, resume: bool = False, **changes: object) -> None:
    what = config.from_table({**TABLE, **changes})
    orders = Orders(out, resume=resume, limits=Limits(last))
    launch.start(what, orders, ranks, lambda line: None, launch.build_park(what))


@pytest.mark.parametrize("profile", ["ethernet", "wifi", "lte-cat-m2", "5g-edge", "nb-iot"])
def test_fedbuff_that_waits_for_all_devices_has_the_price_of_fedavg(profile: str) -> None:
    devices = {"seconds_per_sample": {"median": 0.1, "factor": 3.0}, "idle_w": 1.0, "compute_w": 2.0}
    prices = []
    for name, own in (("fedavg", {}), ("fedbuff", {"buffer": 8, "concurrency": 8})):
        methods = {name: {**own, "work": {"epochs": 1}}}
        network = {"profile": profile, "devices": devices}
        what = config.from_table({**TABLE, "network": network, "method": {"name": name}, "methods": methods})
        prices.append([planned.price for planned in forecast.rounds(what, launch.build_park(what), 3)])
    for theirs, mine in zip(*prices, strict=True):
        assert mine.bytes == theirs.bytes
        assert [mine.seconds, mine.joules] == pytest.approx([theirs.seconds, theirs.joules], rel=1e-9)


@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
def test_ranks_a_resume_and_a_forecast_agree_to_the_bit(tmp_path: Path, name: str) -> None:
    chosen = {"method": {"name": name}, "faults": {"visit": 0.1}}
    run(tmp_path / "one", **chosen)
    run(tmp_path / "two", ranks=2, **chosen)
    run(tmp_path / "three", ranks=3, **chosen)
    for last in (5, 9, None):
        run(tmp_path / "parts", last=last, resume=last != 5, **chosen)
    whole = lines(tmp_path / "one")
    assert lines(tmp_path / "two") == lines(tmp_path / "three") == lines(tmp_path / "parts") == whole
    assert len({model(tmp_path / out) for out in ("one", "two", "three", "parts")}) == 1

    what = config.from_table({**TABLE, **chosen})
    planned = list(forecast.rounds(what, launch.build_park(what), 12))
    assert [one.price.seconds for one in planned] == [row["seconds"] for *_, row in whole]


def model(out: Path) -> object:
    point = checkpoint.latest(out / "checkpoint")
    assert point is not None
    return bits(point.state.packet["w"])


def killed(at: str, call: int, out: Path, *, resume: bool, **changes: object) -> int:
    """Carry out a run in a process that kills itself within a function's n-th call; return its wait status."""
    child = os.fork()
    if child == 0:
        module, name = {"visits": (ranks, "run"), "checkpoint": (checkpoint, "save_to"), "line": (ledger, "append")}[at]
        whole = getattr(module, name)
        calls = itertools.count(1)

        def one(*given: object, **named: object) -> object:
            if next(calls) == call:
                if at == "checkpoint":
                    whole(*given, **named)  # written, but the ledger lacks its line
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*given, **named)

        setattr(module, name, one)
        loop.CHECKPOINT_S = 0.0
        try:
            run(out, resume=resume, **changes)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
def test_a_run_killed_with_visits_on_their_way_goes_on_to_the_same_bits(tmp_path: Path, name: str) -> None:
    chosen = {"method": {"name": name}, "faults": {"visit": 0.1}}
    run(tmp_path / "calm", **chosen)
    began = False
    for at, call in (("visits", 4), ("line", 2), ("checkpoint", 3), ("visits", 1)):
        assert killed(at, call, tmp_path / "killed", resume=began, **chosen) == signal.SIGKILL
        began = True
        point = checkpoint.latest(tmp_path / "killed" / "checkpoint")
        assert point is not None
        assert point.versions
    run(tmp_path / "killed", resume=True, **chosen)
    assert lines(tmp_path / "killed") == lines(tmp_path / "calm")
    assert model(tmp_path / "killed") == model(tmp_path / "calm")


STREAM = {"kind": "recycle", "window": 12}


@pytest.mark.parametrize(
    "changes",
    [
        {"deploy": {"simulate": True}},
        {"faults": {"attackers": {"share": 0.25, "kind": "sign-flip"}}},
        {"method": {"name": "fedbuff", "travel": [{"kind": "top-k", "share": 0.1}, "int8"], "travel_down": "int8"}},
        {"method": {"name": "fedbuff", "server": "adam", "mix": "median", "objective": {"kind": "prox", "mu": 0.1}}},
        {"data": {"name": "labels", "samples_per_device": 30, "stream": STREAM}},
    ],
    ids=["limit", "attackers", "codecs", "parts", "stream"],
)
def test_what_else_happens_in_a_round_is_the_same_on_two_ranks_and_resumed(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    run(tmp_path / "one", **changes)
    run(tmp_path / "two", ranks=2, last=5, **changes)
    run(tmp_path / "two", ranks=2, resume=True, **changes)
    assert lines(tmp_path / "two") == lines(tmp_path / "one")


def test_a_cohort_trains_visits_from_several_models_at_once(tmp_path: Path) -> None:
    run(tmp_path / "ranks")
    run(tmp_path / "cohort", engine={"kind": "cohort", "device": "cpu"})
    points = [checkpoint.latest(tmp_path / out / "checkpoint") for out in ("ranks", "cohort")]
    models = [point.state.packet["w"] for point in points if point is not None]
    torch.testing.assert_close(*models, rtol=1e-5, atol=1e-6)


def test_the_ledger_and_the_report_show_visits_in_time(tmp_path: Path) -> None:
    run(tmp_path / "run", **{"network": {"profile": "wifi", "devices": {"seconds_per_sample": [0.1, 2.0]}}})
    recorded = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert [len(line.arrivals or ()) for line in recorded] == [2] * 12
    ends = [row[3] for line in recorded for row in line.arrivals or ()]
    assert ends == sorted(ends)
    assert recorded[-1].priced is not None
    assert recorded[-1].priced["total"]["seconds"] == pytest.approx(ends[-1])
    for _, _, departed, arrived, received, trained in (row for line in recorded for row in line.arrivals or ()):
        assert departed < received < trained < arrived
    assert 'id="timeline-0"' in fedfloor.write_report(tmp_path / "run").read_text()


def test_visits_on_their_way_are_in_the_checkpoint(tmp_path: Path) -> None:
    run(tmp_path / "run", last=6)
    point = checkpoint.latest(tmp_path / "run" / "checkpoint")
    assert point is not None
    assert set(point.versions) <= set(range(6))
    assert point.versions
    assert all(model.shape == point.state.packet["w"].shape for model in point.versions.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"methods": {"fedbuff": {"buffer": 6, "concurrency": 5}}},
        {"methods": {"fedbuff": {"buffer": 2, "concurrency": 9}}},
        {"methods": {"fedbuff": {"buffer": 0}}},
        {"methods": {"fedasync": {"rate": 0.0}}, "method": {"name": "fedasync"}},
        {"method": {"name": "fedbuff", "travel": "secure-sum"}},
        {"method": {"name": "fedbuff", "mix": {"kind": "private", "clip": 1.0, "noise": 1.0}}},
        {"method": {"name": "fedbuff", "selection": {"kind": "uniform", "devices": 4}}},
    ],
)
def test_impossible_flows_are_refused_before_anything_trains(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        run(tmp_path / "run", **changes)


def test_states_of_unknown_versions_are_refused() -> None:
    of = method("fedbuff", buffer=1, concurrency=2)
    setup = training(of, regression(park((4, 40))), 5)
    state = State(setup.start, {"trained": setup.trained})
    flow = VisitFlow(of.method.work.at(1, 5, of.objective), (0, 1), 2, 1)
    late = next(n for n in range(1, 30) if setup.flight(flow).round(n).arrivals[0].age(n) > 0)
    with refused("model-not-kept"):
        step(setup, Position(round=late - 1, state=state))
