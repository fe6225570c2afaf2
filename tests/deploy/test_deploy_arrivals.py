"""Real agents and edges in one process whose results are taken as they come, and simulations that repeat such runs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_deploy_failures import away, raises, replies

import fedfloor
from fedfloor import config
from fedfloor.base.errors import DivergedError, RunError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.arrivals import ArrivingVisits, Flight, Landed
from fedfloor.deploy.message import Message
from fedfloor.deploy.own_work import OwnWork
from fedfloor.deploy.settings import Deadlines
from fedfloor.deploy.visits import EdgeVisits, read_spent
from fedfloor.methods.asynchronous import FedBuff
from fedfloor.models import parcel
from fedfloor.network.profile import NetworkSettings
from fedfloor.plan.flow import Arrival
from fedfloor.plan.nodes import Node, Parallel, Probe, Work
from fedfloor.runs import launch, ledger, replay
from fedfloor.runs.forecast import reprice
from fedfloor.runs.orders import Limits, Orders
from fedfloor.runs.replay import Recording
from live_park import Live, experiment, live
from refusals import refused
from replays import replayed

BUFFER = "methods.fedbuff = { buffer = 2, concurrency = 3 }"
FALLING = "methods.fedbuff = { buffer = 2, work = { lr = { kind = 'exponential', start = 0.1, factor = 0.5 } } }"


@contextmanager
def slow(park: Live, who: int, delay_s: float) -> Iterator[None]:
    """Let a device take longer for its visits."""
    agent = park.agents[who]
    usual = agent.worker

    def work() -> Any:
        worker = usual()

        def reply(message: Message) -> Any:
            time.sleep(delay_s * (message.kind == "visit"))
            return worker.reply(message)

        return SimpleNamespace(reply=reply)

    agent.worker = work  # type: ignore[method-assign, assignment]
    yield
    agent.worker = usual  # type: ignore[method-assign]


def repriced(folder: Path, network: str) -> list[dict[str, Any]]:
    """Return the prices of the run on another network."""
    (copy,) = reprice([folder / "live"], NetworkSettings(network), folder / f"on {network}", lambda _: None)
    return [line.priced or {} for line in ledger.read(copy / "ledger.jsonl")]


@pytest.mark.parametrize(
    ("method", "more", "ranks"),
    [
        ("fedbuff", BUFFER, 2),
        ("fedbuff", f"{FALLING}\nmethod.travel = 'int8'", 1),
        ("fedbuff", f"{BUFFER}\nmethod.objective = {{ kind = 'contrastive' }}\nmethod.server = 'adam'", 1),
        ("fedbuff", f"{BUFFER}\ndata.stream = {{ kind = 'recycle', window = 10 }}\nnetwork.profile = 'wifi'", 1),
        ("fedasync", "methods.fedasync.concurrency = 3", 1),
        ("fedavg", "round.close = { first = 2 }", 2),
        ("fedavg", "round.close = { first = 3, deadline_s = 60 }\nnetwork.profile = 'wifi'", 1),
        ("fedavg", "faults.visit = 0.3", 1),
        ("fedsr", "faults.visit = 0.2", 1),
        ("fedgs", "", 1),
    ],
)
def test_a_run_on_real_machines_is_repeated_to_the_bit(tmp_path: Path, method: str, more: str, ranks: int) -> None:
    what = experiment(tmp_path, method, rounds=5, devices=4, more=more)
    with live(tmp_path, what) as park:
        lines = park.run()
    assert len(lines) == 5
    if method == "fedbuff":
        assert all(len(line.arrivals or ()) == 2 for line in lines)
        times = [row[3] for line in lines for row in line.arrivals or ()]
        assert times == sorted(times)
    for _, _, departed, landed, received, trained in (row for line in lines for row in line.arrivals or ()):
        assert departed < received < trained < landed
    if method == "fedbuff" and "network" in more:  # measured seconds, and the bytes of two visits in a round
        spent = [line.priced or {} for line in lines]
        assert spent[-1]["total"]["seconds"] == pytest.approx(times[-1])
        assert all(one["joules"] > 0 and one["bytes"] == spent[0]["bytes"] for one in spent)
        per_visit = 4 * 2 * (784 * 62 + 62)
        links = ("device_edge_down", "device_edge_up", "edge_cloud_down", "edge_cloud_up")
        assert spent[0]["bytes"] == dict.fromkeys(links, per_visit)
        with refused("network"):
            reprice([tmp_path / "live"], NetworkSettings("lte-cat-m2"), tmp_path / "copies", print)
    if "close" in more and "network" in more:
        same = repriced(tmp_path, "wifi")
        assert same == [line.priced for line in lines]
        for there, here in zip(repriced(tmp_path, "lte-cat-m2"), same, strict=True):
            assert there["bytes"] == here["bytes"]
            assert there["seconds"] > 10 * here["seconds"]
    if "first = 2" in more:
        assert all(line.participants == 2 and len(line.info["late"]) == 2 for line in lines)
        assert all(len(line.arrivals or ()) == 2 for line in lines)
        page = fedfloor.write_report(tmp_path / "live").read_text()
        assert '"late, in vain"' in page
        assert "time of the machines (s)" in page
    replayed(tmp_path / "live", tmp_path / "again", ranks)


def test_a_slow_device_counts_later_with_the_model_it_departed_with(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedbuff", rounds=30, devices=4, more="methods.fedbuff = { buffer = 2 }")
    with live(tmp_path, what) as park, slow(park, 3, 1.0):
        lines = park.run()
    ages = [line.round - 1 - version for line in lines for device, version, *_ in line.arrivals or () if device == 3]
    assert ages
    assert max(ages) >= 2
    replayed(tmp_path / "live", tmp_path / "again")


def test_a_deadline_drops_who_is_late(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3, devices=4, more="round.close = { deadline_s = 1.5 }")
    with live(tmp_path, what) as park:
        for agent in park.agents.values():
            agent.worker()  # the import of PyTorch is not part of the first round
        with slow(park, 2, 4.0):
            lines = park.run()
    assert all(2 in line.info["late"] for line in lines)
    assert max(line.participants for line in lines) == 3
    replayed(tmp_path / "live", tmp_path / "again")


def test_who_fails_or_is_away_is_named_and_the_others_fill_the_buffer(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedbuff", rounds=6, devices=6, more="methods.fedbuff = { buffer = 2 }")
    with live(tmp_path, what) as park:
        away(park, 1)
        for number in range(1, 7):
            replies(park, "visit", number, raises(RunError("no light")), who=3)
        lines = park.run()
    assert {device for line in lines for device, *_ in line.arrivals or ()} <= {0, 2, 4, 5}
    assert [len(line.arrivals or ()) for line in lines] == [2] * 6
    failed: dict[str, str] = {}
    for line in lines:
        failed |= (line.measured or {})["failed"]
    assert failed["d3"] == "no light"
    replayed(tmp_path / "live", tmp_path / "again")


def test_the_model_of_a_visit_that_never_arrives_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[set[int]] = []
    begin = ArrivingVisits.begin

    def note(self: ArrivingVisits, *args: Any) -> None:
        begin(self, *args)
        kept.append(set(self._versions))

    monkeypatch.setattr(ArrivingVisits, "begin", note)
    what = experiment(tmp_path, "fedbuff", rounds=24, devices=4, more="methods.fedbuff = { buffer = 2 }")
    deadlines = Deadlines(visit_s=4.0, probe_s=60, join_s=20, round_s=120)
    with live(tmp_path, what, deadlines) as park, slow(park, 3, 30.0):
        park.run()
    assert any(0 in versions for versions in kept[1:4])  # device 3 is on its way
    assert len(kept[-1]) <= 3
    assert all(min(versions) > number - 24 for number, versions in enumerate(kept))


def test_a_run_that_stops_goes_on_with_the_visits_on_their_way(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedbuff", rounds=12, devices=4, more=BUFFER)
    with live(tmp_path, what) as park, slow(park, 2, 0.7):
        for last in (4, 8):
            park.run(limits=Limits(stop_after=last), resume=last != 4)
            checkpoint = json.loads((tmp_path / f"live/checkpoint/round-{last:08d}/state.json").read_text())
            assert checkpoint["departures"]
        lines = park.run(resume=True)
    assert [line.round for line in lines] == list(range(1, 13))
    times = [row[3] for line in lines for row in line.arrivals or ()]
    assert times == sorted(times)
    replayed(tmp_path / "live", tmp_path / "again")


def test_an_edge_that_returns_goes_on_with_its_visits(tmp_path: Path) -> None:
    """Its visits are stated to it again, and none is lost."""
    what = experiment(tmp_path, "fedbuff", rounds=14, devices=4, more=BUFFER)
    with live(tmp_path, what) as park, slow(park, 0, 0.5):
        edge = park.edges[0]
        forget = threading.Timer(3.0, lambda: edge.begin(edge.engine.park))  # as after a restart
        forget.start()
        lines = park.run()
        forget.join()
    assert not any(line.lost for line in lines)
    replayed(tmp_path / "live", tmp_path / "again")


def test_a_run_in_which_nobody_can_train_ends_with_the_reason(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedbuff", rounds=3, devices=4, more="methods.fedbuff = { buffer = 2 }")
    with live(tmp_path, what) as park:
        for k in range(4):
            replies(park, "visit", 1, raises(DivergedError("its loss is nan")), who=k)
        with refused("diverged", DivergedError):
            park.run()


def test_a_buffer_that_the_connected_devices_cannot_fill_ends_a_round_early(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    what = experiment(tmp_path, "fedbuff", rounds=2, devices=4, more="methods.fedbuff = { buffer = 4 }")
    with live(tmp_path, what) as park:
        away(park, 1, 2)
        park.deadlines = Deadlines(join_s=1.0, round_s=120)
        lines = park.run()
    assert [len(line.arrivals or ()) for line in lines] == [2, 2]
    assert "round 1 ends with 2 of 4 results: no other device can arrive" in caplog.text
    replayed(tmp_path / "live", tmp_path / "again")


@dataclass(frozen=True)
class Forgetful(FedBuff):
    """A method whose late results are trained with the work of the round in which they arrive."""

    buffer: int | None = 1
    concurrency: int | None = 3

    def visit(self, arrival: Arrival, work: Work, number: int) -> Node:
        return super().visit(arrival, replace(work, rate=work.rate / number), number)


def test_a_plan_with_another_visit_than_the_one_that_departed_is_refused(tmp_path: Path) -> None:
    what = experiment(tmp_path, f"{__name__}:Forgetful", rounds=6, devices=4)
    with live(tmp_path, what) as park, refused("work-changed", varies=r"device \d"):
        park.run()


# -- what comes over a wire -------------------------------------------------------------------------------------------


def edge_visits(park: Live) -> tuple[EdgeVisits, Any]:
    edge = park.edges[0]
    packet = {"w": edge.engine.network.flat.clone()}
    return edge.visits, packet


def asked(rows: object, packet: Any = None, **more: object) -> Message:
    about = {"visits": rows, "wait_s": 0.0, **more}
    return Message("fly", "cloud", about=about, arrays={} if packet is None else parcel.pack(packet))


def row(park: Live, **changes: object) -> list[object]:
    work = park.edges[0].names.refer({**vars(Work(epochs=1)), "settings": {}})
    fields = {
        "number": 0,
        "round": 1,
        "tick": 0,
        "device": park.edges[0].own[0],
        "model": "x",
        "frozen": False,
        "work": work,
        **changes,
    }
    return list(fields.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"number": -1}, {"round": 0}, {"round": 3}, {"round": 1.5}, {"tick": -1}, {"device": 99}, {"device": "0"},
        {"model": 7}, {"frozen": "yes"}, {"work": {"epochs": -1}}, {"work": None}, {"number": 2**60},
    ],
    ids=str,
)  # fmt: skip
def test_an_edge_refuses_visits_out_of_range(tmp_path: Path, changes: dict[str, object]) -> None:
    with live(tmp_path, experiment(tmp_path, "fedbuff", devices=4, more="methods.fedbuff.buffer = 2")) as park:
        visits, packet = edge_visits(park)
        stranger = row(park, device=park.edges[1].own[0])
        for rows in ([row(park, **changes)], [row(park)] * 2, [stranger], "none", [[1, 2]], [row(park)] * 9):
            with pytest.raises(RefusedError):
                visits.reply(asked(rows, packet))
        with refused("shape", RefusedError):
            visits.reply(asked([row(park)], {"w": packet["w"][:-1]}))
        with refused("header", RefusedError):
            visits.reply(asked([row(park)], packet, wait_s=1e9))
        assert visits.reply(asked([row(park)]))[1] == {"lost": [], "models": []}  # its model has not arrived


@pytest.mark.parametrize(
    "about", [{"lost": ["7-1-x"]}, {"lost": 3}, {"lost": [[]]}, {"models": 1}, {"arrived": "7-1-x"}, {"arrived": 3}]
)
def test_the_cloud_refuses_results_of_visits_that_are_not_on_their_way(about: dict[str, object]) -> None:
    visits = object.__new__(ArrivingVisits)
    visits._held = {}
    visits._changed = threading.Condition()
    with refused("header", RefusedError):
        visits._take(0, Message("flown", "e0", about={"lost": [], "models": [], **about}), {})


STATED = [[-1.0, 0.0], [0.0, float("nan")], [float("inf"), 0.0], [1.0], [1.0, 2.0, 3.0], ["1", 0.0], [True, 0.0], 3, {}]


@pytest.mark.parametrize("stated", STATED)
def test_times_of_a_visit_that_are_no_durations_are_refused(stated: object) -> None:
    with refused("header", RefusedError):
        read_spent(Message("flown", "e0", about={"spent_s": stated}), 10.0)


def test_a_visit_is_divided_by_what_its_device_has_counted() -> None:
    """From 10 to 20 s: of 5 s that nobody counted one half precedes 2 s of receiving, one follows 3 s of training."""
    flight = Flight(SimpleNamespace(device=4), 6, 10.0, {})  # type: ignore[arg-type]

    def landed(*stated: float) -> Arrival:
        answer = Message("flown", "e0", about={"spent_s": list(stated)} if stated else {})
        return Landed(flight, {}, None, 20.0, read_spent(answer, 10.0)).arrival  # type: ignore[arg-type]

    assert landed(2.0, 3.0) == Arrival(4, 6, 10.0, 20.0, 14.5, 17.5)
    assert landed(0.0, 10.0) == Arrival(4, 6, 10.0, 20.0, 10.0, 20.0)
    assert landed(0, 0) == Arrival(4, 6, 10.0, 20.0, 15.0, 15.0)
    assert landed() == landed(7.0, 3.1) == Arrival(4, 6, 10.0, 20.0)  # longer than the visit: not drawn
    assert len(landed(7.0, 3.1).row()) == 4


def test_what_a_device_waits_before_it_trains_is_no_training(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=2, devices=4, more="round.close = { first = 4 }")
    with live(tmp_path, what) as park, slow(park, 3, 0.5):
        lines = park.run()
    rows = [row for line in lines for row in line.arrivals or ()]
    waited = {row[0]: row[4] - row[2] for row in rows}
    trained = {row[0]: row[5] - row[4] for row in rows}
    assert waited[3] > 0.5
    assert trained[3] < 0.4


@pytest.mark.parametrize("change", ["device", "long", "receipt", "steps", "nan", "times"])
def test_a_result_that_an_edge_makes_up_loses_its_visit_alone(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edge of device 0 falsifies every result of it, and the run goes on with the others."""
    taken = ArrivingVisits._take

    def falsified(self: ArrivingVisits, factory: int, answer: Message, flights: Any) -> None:
        about = dict(answer.about)
        arrays = dict(answer.arrays)
        flight = flights.get(about.get("arrived"))
        if flight is not None and flight.visit.device == 0:
            if change == "long":
                arrays = {"w": arrays["w"][:-1]}
            elif change == "device":
                about["receipt"] = [1, *about["receipt"][1:]]
            elif change == "steps":
                about["receipt"] = [*about["receipt"][:3], 10**6, *about["receipt"][4:]]
            elif change == "times":
                about["spent_s"] = [0.0, -1.0]
            elif change == "nan":
                about["receipt"] = [*about["receipt"][:5], float("nan"), *about["receipt"][6:]]
            else:
                about["receipt"] = "well done"
        taken(self, factory, replace(answer, about=about, arrays=arrays), flights)

    monkeypatch.setattr(ArrivingVisits, "_take", falsified)
    what = experiment(tmp_path, "fedbuff", rounds=4, devices=4, more="methods.fedbuff = { buffer = 2 }")
    with live(tmp_path, what) as park:
        lines = park.run()
    assert {device for line in lines for device, *_ in line.arrivals or ()} <= {1, 2, 3}
    assert f"e{park.agents[0].settings.factory}" in {name for line in lines for name in (line.measured or {})["failed"]}
    replayed(tmp_path / "live", tmp_path / "again")


@pytest.mark.parametrize(
    ("method", "more"),
    [("fedbuff", "methods.fedbuff = { buffer = 2, concurrency = 2 }"), ("fedavg", "round.close = { first = 3 }")],
)
def test_an_edge_that_answers_but_ends_no_visit_stops_no_run(tmp_path: Path, method: str, more: str) -> None:
    """It states that it has the models, and its devices took all places on the way for ever."""

    def silent(message: Message) -> Any:
        time.sleep(0.05)
        return "flown", {"lost": [], "models": [visit[4] for visit in message.about["visits"]]}, {}

    what = experiment(tmp_path, method, rounds=3, devices=4, more=more)
    lines = []
    with live(tmp_path, what) as park:
        park.deadlines = Deadlines(join_s=20, round_s=3)
        park.edges[1].visits.reply = silent  # type: ignore[method-assign]
        run = threading.Thread(target=lambda: lines.extend(park.run()), daemon=True)
        run.start()
        run.join(60)
    assert [line.participants for line in lines] == [2] * 3
    replayed(tmp_path / "live", tmp_path / "again")


def test_a_device_trains_only_the_work_of_its_own_plan_of_the_round_of_departure(tmp_path: Path) -> None:
    with live(tmp_path, experiment(tmp_path, "fedbuff", rounds=3, devices=4, more=FALLING)) as park:
        own = park.agents[0].worker()._own_work
        assert isinstance(own, OwnWork)
        first, third = (own.planned(number, ())[0] for number in (1, 3))
        assert (first.rate, third.rate) == (0.1, 0.025)
        own.check(first, 1)
        for work, number in ((third, 1), (first, 2), (replace(first, epochs=2), 1), (first, 0), (first, 4)):
            with refused("work", RefusedError):
                own.check(work, number)


# -- what is not repeated ---------------------------------------------------------------------------------------------


def recorded(folder: Path) -> Path:
    what = experiment(folder, "fedbuff", rounds=2, devices=4, more="methods.fedbuff = { buffer = 2 }")
    with live(folder, what) as park:
        park.run()
    return folder / "live"


def test_a_replay_names_what_it_cannot_repeat(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    experiment(tmp_path, "fedbuff", rounds=1, devices=4, more="methods.fedbuff = { buffer = 2 }")
    given = config.read(run / "experiment.toml", [])

    launch.start(config.read(tmp_path / "experiment.toml", []), Orders(tmp_path / "simulated"), 1, launch.ignore)
    with refused("--replay"):
        Recording(tmp_path / "simulated")
    with refused("--replay"):
        Recording(tmp_path / "nothing")

    other = replace(given, data=replace(given.data, samples_per_device=25))
    recording = Recording(run)
    with refused("--replay"):
        launch.start(recording.simulated(other), Orders(tmp_path / "other", replay=recording), 1, launch.ignore)

    private = ["method.name=fedavg", "work.sample_clip=1.0", "work.sample_noise=1.0"]
    noisy = config.read(run / "experiment.toml", private)
    with refused("--replay"):
        recording.simulated(noisy)

    path = run / replay.FILE
    lines = path.read_text().splitlines()
    row = json.loads(lines[1])
    path.write_text("\n".join([lines[0], json.dumps({**row, "model": "0" * 64})]) + "\n")
    changed = Recording(run)
    with refused("replay-differs", RunError):
        launch.start(changed.simulated(given), Orders(tmp_path / "changed", replay=changed), 1, launch.ignore)
    for damage in ("{}", "[", json.dumps({**row, "round": 3}), json.dumps({**row, "plan": {"node": "leap"}})):
        path.write_text(f"{lines[0]}\n{damage}\n")
        with refused("record"):
            Recording(run)
    path.write_text("")
    with refused("record"):
        Recording(run)
    (run / "evaluation.json").unlink()
    with refused("record"):
        Recording(run)


def changed_work(**fields: Any) -> Callable[[dict[str, Any]], None]:
    def change(row: dict[str, Any]) -> None:
        for work in row["works"]:
            work.update(fields)

    return change


def asked_for(what: str, **settings: Any) -> Callable[[dict[str, Any]], None]:
    plan = {"node": "probe", "devices": [0], "what": what, "settings": settings}
    return lambda row: row.update(plan=plan, answered={what: [0]})


def repeated(row: dict[str, Any]) -> None:
    row["plan"] = {"node": "repeat", "times": 10**12, "child": row["plan"]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed_work(epochs=None, steps=10**9), "--replay"),
        (changed_work(epochs=1 << 40), "--replay"),
        (changed_work(batch_size=0), "--replay"),
        (changed_work(rate=1e308), "--replay"),
        (changed_work(momentum=5.0), "--replay"),
        (changed_work(objective="antigravity:fly"), "own-code"),
        (asked_for("profile", steps=10**9, batch_size=1), "--replay"),
        (asked_for("features", extractor="resnet18", weights="/etc/passwd"), "--replay"),
        (repeated, "plan"),
    ],
)
def test_the_record_of_a_stranger_takes_no_more_than_its_experiment(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1, devices=4)
    with live(tmp_path, what) as park:
        park.run()
    path = tmp_path / "live" / replay.FILE
    row = json.loads(path.read_text())
    change(row)
    path.write_text(json.dumps(row) + "\n")
    recording = Recording(tmp_path / "live")
    given = recording.simulated(config.read(tmp_path / "live" / "experiment.toml", []))
    with refused(why):
        launch.start(given, Orders(tmp_path / "again", replay=recording), 1, launch.ignore)


@pytest.mark.parametrize(("what", "settings"), [("scores", {"low": "x"}), ("outputs", {}), ("profile", {"rate": "x"})])
def test_a_question_of_a_record_has_settings_that_an_edge_may_send(what: str, settings: dict[str, Any]) -> None:
    now = replay.Round(1, Parallel(()), frozenset(), {what: [0]}, "")
    method = SimpleNamespace(questions=(Probe((), "profile"),), needs=SimpleNamespace(own="head"))
    engine = SimpleNamespace(task=SimpleNamespace(calibrates=True))
    executor = replay.ReplayExecutor(SimpleNamespace(now=now), method)  # type: ignore[arg-type]
    with refused("--replay"):
        executor.answers(engine, Probe((0,), what, settings=settings), {}, 0, (0,))  # type: ignore[arg-type]


def test_flower_cannot_carry_results_as_they_come(tmp_path: Path) -> None:
    with live(tmp_path, experiment(tmp_path, "fedbuff", devices=4, more="methods.fedbuff = { buffer = 2 }")) as park:
        usual = park.settings
        park.settings = lambda out="live": replace(usual(out), transport="flower")  # type: ignore[method-assign]
        with refused("waiting-over-flower"):
            park.run()
