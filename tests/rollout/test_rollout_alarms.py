"""Alarms that are kept: which messages are taken, how often a line is written, how large files grow."""

from __future__ import annotations

import datetime as dt
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from commands import Command
from fedfloor.base.errors import RunError
from fedfloor.base.ranges import RefusedError
from fedfloor.cli import releasing
from fedfloor.deploy import kept
from fedfloor.deploy.mqtt import Connection
from fedfloor.deploy.settings import AlarmSettings, AlarmSource, Endpoint, Tls
from fedfloor.rollout import alarms
from fedfloor.rollout.alarms import EVERY_S, AlarmKeeper, FloodGate, read_alarm
from parks import needs_mosquitto, until
from refusals import refused
from rollouts import model, provisioned, registered, running

BEGAN = dt.datetime(2030, 5, 1, 12, tzinfo=dt.UTC)
DECISION = {"version": 3, "file": "press.csv", "rows": [7, 7], "class": "bad", "probability": 0.97, "alarm": True}
DRIFT = {"version": 3, "file": "press.csv", "rows": [541, 541], "drift": ["temperature"]}
REPORT = {"state": "serving", "number": 4, "version": 3, "why": "", "drift": []}
REACHED = {"north": True}


class Trial:
    """A keeper whose clock is set by hand, with devices d0 and d1 in north and d2 in south."""

    def __init__(self, folder: Path) -> None:
        self.clock = 0.0
        sources = (
            AlarmSource("north", Endpoint("10.0.0.2", 8883), ("d0", "d1")),
            AlarmSource("south", Endpoint("10.0.0.3", 8883), ("d2",)),
        )
        tls = Tls(folder / "ca.crt", folder / "alarms.crt", folder / "alarms.key")
        self.settings = AlarmSettings("trial", folder / "state", tls, sources)
        self.told: list[dict[str, Any]] = []
        self.keeper = self.restart()

    def restart(self) -> AlarmKeeper:
        now = lambda: BEGAN + dt.timedelta(seconds=self.clock)  # noqa: E731
        self.keeper = AlarmKeeper(self.settings, self.told.append, lambda: self.clock, now)
        return self.keeper

    def send(self, device: str, body: object, kind: str = "alarms", factory: str = "north") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.keeper.take(factory, f"fedfloor/trial/{kind}/{device}", data)

    def wait(self, seconds: float) -> None:
        self.clock += seconds
        self.keeper.tick(REACHED)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return list(kept.lines(self.settings.state))

    def now(self, device: str = "d0") -> dict[str, Any]:
        known = json.loads((self.settings.state / kept.NOW).read_text())
        row: dict[str, Any] = next(one for one in known["devices"] if one["device"] == device)
        return row


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def test_an_alarm_is_a_line_at_once(trial: Trial) -> None:
    trial.send("d0", DRIFT)
    trial.send("d1", DECISION)
    common = {"at": "2030-05-01T12:00:00+00:00", "factory": "north", "version": 3, "file": "press.csv", "messages": 1}
    assert trial.lines == trial.told == [
        {**common, "device": "d0", "kind": "drift", "rows": [541, 541], "drift": ["temperature"]},
        {**common, "device": "d1", "kind": "decision", "rows": [7, 7], "class": "bad", "probability": 0.97},
    ]  # fmt: skip
    assert [kept.words(one) for one in trial.lines] == ["drift: temperature", "class bad (0.97)"]


def test_a_device_that_floods_writes_a_line_a_minute_of_each_kind(trial: Trial) -> None:
    for i in range(3000):  # ten minutes
        trial.send("d0", DECISION | {"rows": [i + 1, i + 1]})
        trial.send("d1", DRIFT | {"drift": ["heat"] if i % 2 else []})
        trial.wait(0.2)
    trial.keeper.tick(REACHED, last=True)
    for device in ("d0", "d1"):
        mine = [one for one in trial.lines if one["device"] == device]
        assert 11 <= len(mine) <= 12
        assert sum(one["messages"] for one in mine) == 3000  # none is lost from the count
    assert trial.lines[-2]["rows"] == [3000, 3000]  # the newest


def test_decisions_are_now_for_a_minute_and_drift_until_it_ends(trial: Trial) -> None:
    trial.send("d0", DECISION)
    trial.wait(30)
    trial.send("d0", DECISION | {"probability": 0.5})
    trial.send("d0", DRIFT)
    trial.wait(EVERY_S - 1)
    row = trial.now()
    assert (row["decision"], row["drift"], row["since"]) == (
        "class bad (0.5)",
        ["temperature"],
        "2030-05-01T12:00:30+00:00",
    )
    trial.wait(2)
    assert (trial.now()["decision"], trial.now()["drift"]) == (None, ["temperature"])
    trial.send("d0", DRIFT | {"drift": []})
    trial.wait(1)
    assert trial.now()["drift"] == []


def test_what_reports_tell(trial: Trial) -> None:
    trial.wait(1)
    assert (trial.now()["state"], trial.now()["version"]) == ("waiting", None)
    trial.send("d0", DRIFT)
    trial.send("d0", REPORT | {"drift": ["temperature"]}, "serving")  # of the same alarm
    trial.send("d1", REPORT | {"drift": ["flow is missing"], "why": "x\x1b[0m\n"}, "serving")  # of one that was missed
    trial.wait(1)
    assert [(one["device"], one["drift"], one["file"]) for one in trial.lines] == [
        ("d0", ["temperature"], "press.csv"), ("d1", ["flow is missing"], None),
    ]  # fmt: skip
    assert (trial.now("d1")["state"], trial.now("d1")["why"]) == ("serving", "x\\x1b[0m\\n")
    trial.send("d1", REPORT | {"state": "gone", "version": None, "number": None}, "serving")  # a last will
    trial.wait(1)
    assert (trial.now("d1")["state"], trial.now("d1")["version"], trial.now("d1")["drift"]) == (
        "gone", 3, ["flow is missing"],
    )  # fmt: skip
    factories = json.loads((trial.settings.state / kept.NOW).read_text())["factories"]
    assert [(one["factory"], one["broker"], one["reached"]) for one in factories] == [
        ("north", "10.0.0.2:8883", True), ("south", "10.0.0.3:8883", False),
    ]  # fmt: skip


def test_a_restart_forgets_nothing_and_repeats_nothing(trial: Trial) -> None:
    trial.send("d0", REPORT | {"drift": ["heat"]}, "serving")
    trial.send("d0", DECISION)
    trial.wait(1)
    trial.restart()
    trial.send("d0", REPORT | {"drift": ["heat"]}, "serving")  # the broker kept it
    trial.wait(1)
    assert len(trial.lines) == 2
    assert (trial.now()["drift"], trial.now()["decision"]) == (["heat"], None)
    (trial.settings.state / kept.NOW).write_text("[" * 10_000)
    assert trial.restart().devices["d0"]["state"] == "waiting"


HOSTILE: dict[str, object] = {
    "no JSON": b"\xff{", "nested": b"[" * 10_000, "a list": [1], "oversized": b" " * 20_000,
    "no alarm": DECISION | {"alarm": False}, "alarm as text": DECISION | {"alarm": "true"},
    "not finite": json.dumps(DECISION).replace("0.97", "NaN").encode(),
    "infinite": json.dumps({**DRIFT, "rows": [1, 2], "version": 1e999}).encode(),
    "probability": DECISION | {"probability": 1.5}, "score": {"version": 1, "file": "a", "rows": [1, 1], "alarm": True,
    "score": 1e300}, "version": DRIFT | {"version": True}, "huge version": DRIFT | {"version": 10**300},
    "rows": DRIFT | {"rows": [1]}, "row of text": DRIFT | {"rows": ["1", "2"]}, "file": DRIFT | {"file": "x" * 300},
    "no file": {k: v for k, v in DRIFT.items() if k != "file"}, "drift": DRIFT | {"drift": "heat"},
    "drift of numbers": DRIFT | {"drift": [1]}, "many keys": DRIFT | {str(i): i for i in range(30)},
    "class": DECISION | {"class": ["bad"]},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_alarm_is_refused_by_name(trial: Trial, name: str, caplog: pytest.LogCaptureFixture) -> None:
    body = HOSTILE[name]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(RefusedError):
        read_alarm(data)
    trial.send("d0", data)
    assert trial.lines == []
    assert "refused a message of d0: " in caplog.text


@pytest.mark.parametrize("body", [b"", b"{}", REPORT | {"drift": [1]}, REPORT | {"version": 10**400}, b"x" * 5000])
def test_what_is_no_report_changes_nothing(trial: Trial, body: object) -> None:
    before = json.dumps(trial.keeper.devices)
    trial.send("d0", body, "serving")
    assert json.dumps(trial.keeper.devices) == before


def test_messages_about_other_devices_are_passed_over(trial: Trial) -> None:
    for device, kind, factory in (
        ("d9", "alarms", "north"), ("d2", "alarms", "north"), ("d0/x", "alarms", "north"),
        ("d0", "predictions", "north"),
    ):  # fmt: skip
        trial.send(device, DRIFT, kind, factory)
    trial.keeper.take("north", "elsewhere/trial/alarms/d0", json.dumps(DRIFT).encode())
    assert trial.lines == []


def test_control_characters_and_long_lists_are_tamed(trial: Trial) -> None:
    trial.send("d0", DRIFT | {"drift": ["\x1b[2J" + "x" * 200] * 50, "file": "a\nb"})
    (line,) = trial.lines
    assert line["file"] == "a\\nb"
    assert len(line["drift"]) == 20
    assert line["drift"][0].startswith("\\x1b[2Jxxx")


def test_a_hostile_device_writes_no_long_lines(trial: Trial) -> None:
    for i, text in enumerate(("\U000e0001", "\U0001f600")):  # one that is escaped, and one of four bytes
        body = DRIFT | {"drift": [text * 100] * 35}
        trial.send(f"d{i}", json.dumps(body, ensure_ascii=False).encode())
    assert max(map(len, (trial.settings.state / kept.LINES).read_bytes().splitlines())) < 9000
    assert trial.lines[1]["drift"] == ["\U0001f600" * 100] * 20


def test_messages_are_cut_and_those_of_foreign_topics_dropped_before_they_wait() -> None:
    waiting: queue.Queue[tuple[str, str, bytes]] = queue.Queue()
    heard = alarms.receiver(waiting, "north", {"a"}, threading.Event())
    heard("b", b"x")
    heard("a", b"x" * 1_000_000)
    (message,) = waiting.queue
    assert message[:2] == ("north", "a")
    with refused("oversized", RefusedError):
        read_alarm(message[2])


def test_a_topic_that_floods_is_left_for_the_rest_of_a_minute() -> None:
    class Link:
        topics: ClassVar[set[str]] = {"a", "b"}

        def unsubscribe(self, topics: list[str]) -> None:
            self.topics.difference_update(topics)

        def subscribe(self, topics: list[str]) -> None:
            self.topics.update(topics)

    clock = [0.0]
    link = Link()
    gate = FloodGate({"north": cast("Connection", link)}, lambda: clock[0])
    for _ in range(2):
        for _ in range(alarms.FLOOD + 100):
            gate.count("north", "a")
        gate.count("north", "b")
        assert link.topics == {"b"}
        clock[0] += EVERY_S - 1
        gate.tick()
        assert link.topics == {"b"}
        clock[0] += 1
        gate.tick()
        assert link.topics == {"a", "b"}
    for _ in range(10):  # as many as are allowed, minute by minute
        for _ in range(alarms.FLOOD - 1):
            gate.count("north", "a")
        clock[0] += EVERY_S
        gate.tick()
    assert link.topics == {"a", "b"}


def test_files_stay_within_their_limit(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "MOST_BYTES", 2000)
    for i in range(100):
        trial.send("d0", DRIFT | {"rows": [i + 1, i + 1]})
        trial.wait(EVERY_S)
    sizes = [(trial.settings.state / name).stat().st_size for name in (kept.LINES, kept.OLDER)]
    assert max(sizes) <= 2000
    rows = [one["rows"][0] for one in trial.lines]
    assert rows == list(range(101 - len(rows), 101))  # the last ones, in order
    assert len(rows) > 8


def test_a_line_that_just_fits_stays_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alarms.append(tmp_path, {"row": 1})
    size = (tmp_path / kept.LINES).stat().st_size
    monkeypatch.setattr(alarms, "MOST_BYTES", 2 * size)
    alarms.append(tmp_path, {"row": 2})
    assert not (tmp_path / kept.OLDER).exists()
    alarms.append(tmp_path, {"row": 3})
    files = [(tmp_path / name).read_text().splitlines() for name in (kept.OLDER, kept.LINES)]
    assert [[json.loads(line)["row"] for line in lines] for lines in files] == [[1, 2], [3]]


def test_a_line_that_a_kill_cut_costs_no_other(trial: Trial) -> None:
    trial.send("d0", DRIFT)
    with (trial.settings.state / kept.LINES).open("a") as file:
        file.write('{"at": "2030')
    trial.restart().take("north", "fedfloor/trial/alarms/d1", json.dumps(DRIFT).encode())
    assert [one["device"] for one in trial.lines] == ["d0", "d1"]


def test_a_full_disk_loses_no_line(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(alarms, "append", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                trial.send("d0", DRIFT)
    trial.wait(1)
    assert [(one["device"], one["messages"]) for one in trial.lines] == [("d0", 2)]


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_lists_what_was_kept(tmp_path: Path, command: Command) -> None:
    out = provisioned(tmp_path)
    said = command("model", "alarms", "--park", str(out), "--json")
    assert (said.code, said.document) == (0, {"rows": []})
    assert f"no alarms were recorded here. To record them: fedfloor model alarms --park {out} --follow" in said.err
    state = out / "alarms" / "state"
    state.mkdir()
    old, new = (
        {"at": kept.stamp(at), "factory": "north", "device": device, "kind": "drift", "version": 3, "file": None,
         "rows": None, "drift": ["heat\x1b[2J"], "messages": 1}
        for at, device in ((BEGAN - dt.timedelta(days=9999), "d0"), (dt.datetime.now(dt.UTC), "d1"))
    )  # fmt: skip
    (state / kept.NOW).write_text("{}")
    (state / kept.LINES).write_text("".join(json.dumps(one) + "\n" for one in (old, new)))
    assert command("model", "alarms", "--park", str(out / "alarms"), "--json").document["rows"] == [old, new]
    assert command("model", "alarms", "--park", str(out), "--json", "--since", "1h").document["rows"] == [new]
    assert command("model", "alarms", "--park", str(out), "--json", "--device", "d0").document["rows"] == [old]
    table = command("model", "alarms", "--park", str(out)).out
    assert "drift: heat\\x1b[2J" in table
    command.refused(command("model", "alarms", "--park", str(out), "--device", "d9"), "unknown device of --device 'd9'")
    command.refused(
        command("model", "alarms", "--park", str(out), "--since", "yesterday"), "--since 'yesterday': must be a span"
    )
    command.refused(command("model", "alarms", "--park", str(out), "--since", "999999d"), "must be a span")
    command.refused(
        command("model", "alarms", "--park", str(out), "--since", "1h", "--follow"), "leave it out with --follow"
    )
    command.refused(command("model", "alarms", "--park", str(tmp_path)), "has no alarms.toml", "provisioned again")


def test_a_terminal_that_lacks_a_character_ends_no_command(tmp_path: Path) -> None:
    out = provisioned(tmp_path)
    line = {"at": kept.stamp(BEGAN), "factory": "north", "device": "d0", "messages": 1}
    (out / "alarms" / "state").mkdir()
    text = json.dumps({**line, **DECISION, "kind": "decision", "class": "b\u00e4d \u2620"})
    (out / "alarms" / "state" / kept.LINES).write_text(text + "\n")
    words = [sys.executable, "-m", "fedfloor", "model", "alarms", "--park", str(out)]
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    shown = subprocess.run(words, capture_output=True, check=True, env=env).stdout.decode("latin-1")
    assert "class b\u00e4d \\u2620 (0.97)" in shown


def test_what_reads_the_output_ends_nothing(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()

    class Closed:
        def write(self, text: str) -> int:
            tried.append(text)
            raise BrokenPipeError

        def flush(self) -> None: ...

    trial.send("d0", DECISION)
    monkeypatch.setattr("sys.stdout", Closed())
    releasing._print(trial.lines[0], {"d0"}, as_json=False)
    assert len(tried) == 1
    assert "d0" in tried[0]


def test_who_keeps_alarms_may_read_and_nothing_else(tmp_path: Path) -> None:
    out = provisioned(tmp_path)
    rules = (out / "factories/north/acl").read_text().split("\nuser alarms\n")[1].split("\nuser ")[0].split("\n")
    assert [one for one in rules if one] == [
        "topic read fedfloor/trial/serving/+", "topic read fedfloor/trial/alarms/+",
    ]  # fmt: skip
    assert "user alarms" not in (out / "cloud/acl").read_text()
    unit = (out / "alarms/fedfloor-alarms.service").read_text()
    assert "ExecStart=/opt/fedfloor/bin/fedfloor model alarms --park . --follow" in unit
    assert [one.devices for one in kept.read(out).factories] == [("d0", "d2"), ("d1", "d3")]


def following(settings: AlarmSettings, told: Callable[[dict[str, Any]], object]) -> tuple[threading.Event, Any]:
    ended = threading.Event()
    thread = threading.Thread(target=alarms.follow, args=(settings, ended, told))
    thread.start()
    return ended, thread


@pytest.mark.slow
@needs_mosquitto
def test_alarms_of_real_devices_on_several_brokers_are_kept(tmp_path: Path) -> None:
    """Agents predict rows, some of which are alarms; one broker ends; a device ends; a second process is refused."""
    from fedfloor.rollout import delivery, registry

    out = provisioned(tmp_path)
    registered(registry.read(out), model(1))
    settings = kept.read(out)
    told = list[dict[str, Any]]()

    def now() -> dict[str, Any]:
        known = json.loads((settings.state / kept.NOW).read_text())
        rows = {one["device"]: one for one in known["devices"]}
        return rows | {one["factory"]: one["reached"] for one in known["factories"]}

    with running(out) as park:
        park.start("d0", "d1", "d2", "d3")
        assert park.connected()
        ended, thread = following(settings, told.append)
        try:
            devices = [*park.registry.devices]
            delivery.deliver(registry.release(park.registry, 1), devices, 60)
            assert until(lambda: {now()[one]["version"] for one in devices} == {1}, 60)
            with pytest.raises(RunError, match="another process keeps the alarms in"):
                alarms.follow(settings, threading.Event())
            for name in ("d0", "d1"):
                rows = "".join(f"{i},{-i},0.5\n{-i},{i},0.5\n" for i in range(30))
                (tmp_path / f"rows-{name}" / "press.csv").write_text("heat,load,speed\n" + rows)
            assert until(lambda: {one["device"] for one in told} == {"d0", "d1"}, 60)
            assert {(one["factory"], one["kind"], one["class"]) for one in told} == {
                ("north", "decision", "bad"), ("south", "decision", "bad"),
            }  # fmt: skip
            assert until(lambda: (now()["d0"]["decision"] or "").startswith("class bad"), 10)
            assert now()["north"]
            park.kill("d3")
            assert until(lambda: now()["d3"]["state"] == "gone", 60)
            park.brokers["north"].process.terminate()
            assert until(lambda: not now()["north"] and now()["south"], 30)
        finally:
            ended.set()
            thread.join(60)
    assert not now()["south"]
    assert list(kept.lines(settings.state))[: len(told)] == told
    assert sum(one["messages"] for one in kept.lines(settings.state)) >= 60 - 4  # about half of 120 rows


def test_settings_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "alarms.toml").write_text('park = "trial"\nstate = "state"\n')
    with refused("missing-setting"):
        kept.read(tmp_path)
