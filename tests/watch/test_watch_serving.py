"""Models in use and alarms on the page: files of the process that keeps alarms, and damage to them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from browsers import STICKS_OUT, chromium, needs_chromium
from commands import Command
from fedfloor.deploy import kept
from fedfloor.deploy.settings import AlarmSettings, AlarmSource, Endpoint, Tls, to_toml
from fedfloor.rollout.alarms import AlarmKeeper
from fedfloor.watch import files
from fedfloor.watch.files import CHARS
from fedfloor.watch.state import Watched
from refusals import refused
from run_folders import make_run

REACHED = {"north": True, "south": False}
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
DRIFT = {"version": 3, "file": "press.csv", "rows": [541, 541], "drift": ["temperature", "flow is missing"]}
DECISION = {"version": 3, "file": "a.npy", "rows": [7, 9], "class": "bad", "probability": 0.97, "alarm": True}
REPORT = {"state": "serving", "number": 4, "version": 3, "why": "", "drift": []}


class Kept:
    """A park's folder in which a keeper writes: d0 and d1 in north, d2 in south, whose broker is not connected."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sources = tuple(
            AlarmSource(name, Endpoint("10.0.0.2", 8883), devices)
            for name, devices in (("north", ("d0", "d1")), ("south", ("d2",)))
        )
        settings = AlarmSettings("plant", Path("state"), Tls(Path("ca.crt"), Path("a.crt"), Path("a.key")), sources)
        (folder / "alarms").mkdir(parents=True)
        (folder / "alarms" / "alarms.toml").write_text(to_toml(settings))
        self.state = folder / "alarms" / "state"
        self.clock = 0.0
        self.keeper = AlarmKeeper(kept.read(folder), clock=lambda: self.clock)

    def send(self, device: str, body: object, kind: str = "alarms") -> None:
        factory = "south" if device == "d2" else "north"
        self.keeper.take(factory, f"fedfloor/plant/{kind}/{device}", json.dumps(body).encode())

    def write(self) -> None:
        self.clock += 10
        self.keeper.tick(REACHED)


@pytest.fixture
def park(tmp_path: Path) -> Kept:
    made = Kept(tmp_path / "park")
    for device in ("d0", "d1", "d2"):
        made.send(device, REPORT, "serving")
    made.send("d1", DRIFT)
    made.send("d1", DECISION)
    made.write()
    return made


def test_versions_and_alarms_of_devices_on_all_machines(park: Kept) -> None:
    watched = Watched(park.folder)
    watched.poll()
    got = watched.document["serving"]
    assert {key: got[key] for key in ("park", "total", "alarming", "kept", "last")} == {
        "park": "plant", "total": 3, "alarming": 1, "kept": True, "last": None,
    }  # fmt: skip
    rows = [(one["device"], one["factory"], one["version"], one["state"], one["alarms"]) for one in got["devices"]]
    assert rows == [
        ("d1", "north", 3, "serving", 3), ("d0", "north", 3, "serving", 0), ("d2", "south", 3, "unreachable", 0),
    ]  # fmt: skip
    assert got["devices"][0]["alarm"] == "drift: temperature, flow is missing; class bad (0.97)"
    assert [(one["device"], one["alarm"], one["place"]) for one in watched.document["alarms"]] == [
        ("d1", "class bad (0.97)", "a.npy, row 7–9"),
        ("d1", "drift: temperature, flow is missing", "press.csv, row 541"),
    ]  # fmt: skip
    assert watched.poll() == {}
    park.send("d1", DRIFT | {"drift": []})
    park.send("d0", DRIFT)
    park.write()
    changes = watched.poll()
    assert set(changes) == {"serving", "alarms"}
    assert {one["device"]: one["alarms"] for one in changes["serving"]["devices"]} == {"d0": 2, "d1": 1, "d2": 0}
    assert changes["alarms"][0]["device"] == "d0"


def test_a_hostile_device_makes_no_long_row(park: Kept) -> None:
    park.send("d0", DRIFT | {"drift": ["x" * 100] * 20})
    park.write()
    watched = Watched(park.folder)
    watched.poll()
    assert max(len(one["alarm"]) for one in watched.document["serving"]["devices"]) <= CHARS + 1


def test_beside_a_run_of_another_folder(park: Kept, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.5])
    watched = Watched(run)
    watched.poll()
    assert "serving" not in watched.document
    for folder in (park.folder, park.folder / "alarms"):
        watched = Watched(run, alarms=folder)
        watched.poll()
        assert (watched.document["run"]["round"], watched.document["serving"]["total"]) == (1, 3)
    with refused("--park"):
        Watched(run, alarms=run)


def test_files_that_are_old_gone_or_damaged(park: Kept) -> None:
    watched = Watched(park.folder)
    past = time.time() - 100
    os.utime(park.state / kept.NOW, (past, past))
    watched.poll()
    got = watched.document["serving"]
    assert (got["kept"], got["last"], got["total"]) == (False, pytest.approx(past), 3)
    for content in (
        "",
        "[" * 10_000,
        "[1]",
        '{"park": "p"}',
        '{"park": 1, "factories": [], "devices": [{"device": 1}]}',
    ):
        (park.state / kept.NOW).write_text(content)
        watched.poll()
        assert watched.document["serving"]["kept"] is False
    (park.state / kept.NOW).unlink()
    with (park.state / kept.LINES).open("a") as file:
        file.write('7\n{"at": 1}\n{"kind"\n')
    watched.poll()
    assert len(watched.document["alarms"]) == 2
    fresh = Watched(park.folder)
    fresh.poll()
    assert fresh.document["serving"] == {"kept": False, "last": None}


def test_of_many_devices_those_in_alarm_are_listed(park: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_SERVED", 1)
    watched = Watched(park.folder)
    watched.poll()
    got = watched.document["serving"]
    assert ([one["device"] for one in got["devices"]], got["total"]) == (["d1"], 3)


def test_metrics_have_what_is_known(park: Kept) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    from fedfloor.watch.app import exposition

    def samples(watched: Watched) -> dict[str, dict[str, float]]:
        watched.poll()
        families = parser.text_string_to_metric_families(exposition(watched.document).decode())
        return {one.name: {next(iter(row.labels.values()), ""): row.value for row in one.samples} for one in families}

    got = samples(Watched(park.folder))
    assert got["fedfloor_alarms"] == {"d0": 0, "d1": 3}  # of d2 nothing is known
    assert got["fedfloor_model_version"] == {"d0": 3, "d1": 3}
    assert got["fedfloor_broker_connected"] == {"north": 1, "south": 0}
    os.utime(park.state / kept.NOW, (0, 0))
    got = samples(Watched(park.folder))
    assert got["fedfloor_alarms"] == got["fedfloor_broker_connected"] == {}


def test_the_command_prints_them(park: Kept, command: Command) -> None:
    said = command("watch", str(park.folder), "--json")
    assert said.document["serving"]["alarming"] == 1
    command.refused(command("watch", str(park.folder), "--park", "nowhere"), "--park nowhere: has no alarms.toml")


# -- in a browser ------------------------------------------------------------------------------------------------------

browser = pytest.fixture(scope="module")(chromium)


@contextmanager
def page(browser: Any, words: list[str], **settings: Any) -> Iterator[tuple[Any, list[str]]]:
    """A page of ``fedfloor watch``, and its errors."""
    from test_watch_page import page as served

    made = browser.new_page(**settings)
    troubles = list[str]()
    made.on("pageerror", lambda error: troubles.append(str(error)))
    made.on("console", lambda told: troubles.append(told.text) if told.type in ("error", "warning") else None)
    with served(Path(words[0]), *words[1:]) as (_, port):
        made.goto(f"http://127.0.0.1:{port}/")
        made.wait_for_selector("#serving tbody")
        yield made, troubles
    made.close()


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_of_a_park_without_a_run(browser: Any, park: Kept, width: int, scheme: str) -> None:
    view = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with page(browser, [str(park.folder)], **view) as (made, troubles):
        assert made.title() == "plant – fedfloor"
        assert made.locator("#about").inner_text() == "3 devices in 2 factories"
        assert made.locator("#alarmed").inner_text() == "1 of 3 devices in alarm: d1"
        assert made.locator("#brokers").inner_text() == "Not connected: the broker of south (10.0.0.2:8883)."
        assert made.locator("#serving tbody tr").count() == 3
        assert made.locator("#alarms tbody tr").count() == 2
        assert not made.locator("#training").is_visible()
        assert made.evaluate("document.documentElement.scrollWidth") <= width
        assert made.evaluate(STICKS_OUT, width) == []
        for device in ("d0", "d1"):
            park.send(device, DRIFT | {"drift": []})
        park.clock += 60
        park.write()
        made.wait_for_selector("#alarmed", state="hidden", timeout=5000)
        assert troubles == []


@pytest.mark.slow
@needs_chromium
def test_beside_a_run_names_are_text(browser: Any, park: Kept, tmp_path: Path) -> None:
    park.send("d0", DRIFT | {"file": HOSTILE, "drift": [HOSTILE]})
    park.send("d0", REPORT | {"why": HOSTILE, "drift": [HOSTILE]}, "serving")
    park.write()
    words = [str(make_run(tmp_path / "run", [0.5])), "--park", str(park.folder)]
    with page(browser, words, viewport={"width": 390, "height": 900}) as (made, troubles):
        assert made.title() == "trial – fedfloor"
        assert made.locator("#training").is_visible()
        assert made.locator("#serving tbody").inner_text().count(HOSTILE) == 2
        assert made.locator("#alarms tbody").inner_text().count(HOSTILE) == 2
        assert made.locator("img").count() == 0
        assert made.evaluate(STICKS_OUT, 390) == []
        assert troubles == []
