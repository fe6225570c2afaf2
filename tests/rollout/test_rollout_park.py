"""Releases to devices that are real processes, by real brokers: canaries, refusals, kills, two people at once."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedfloor.base.errors import SettingError
from fedfloor.deploy.authority import found, now
from fedfloor.deploy.mqtt import topic
from fedfloor.deploy.processes import resident_mb
from fedfloor.rollout import delivery, registry
from fedfloor.rollout.statement import CHUNK_BYTES, sealed
from parks import needs_mosquitto, until
from rollouts import TOP, Park, model, provisioned, registered, running

pytestmark = [pytest.mark.slow, needs_mosquitto]
NOT_AUTHORISED = 135
WAIT_S = 60.0
MEMORY_MB = 100 * 1.048576  # 100 MiB


@pytest.fixture
def park(tmp_path: Path) -> Iterator[Park]:
    """Four devices; two versions are registered."""
    out = provisioned(tmp_path)
    registered(registered(registry.read(out), model(1)), model(2))
    with running(out) as made:
        made.start("d0", "d1", "d2", "d3")
        yield made


def released(park: Park, version: int, *to: str, canary: tuple[str, ...] = ()) -> dict[str, Any]:
    """What each device reports of a release."""
    return _delivered(park, registry.release(park.registry, version, to, canary))


def _delivered(park: Park, now_: registry.Registry, wait_s: float = WAIT_S) -> dict[str, Any]:
    rows = delivery.deliver(now_, list(now_.entries[-1].about["devices"]), wait_s)
    return {row["device"]: (row["state"], row["runs"], row["why"]) for row in rows}


def seen(park: Park, *devices: str, wait_s: float = WAIT_S) -> dict[str, Any]:
    """What devices report, without anything being sent to them; waits until all use what they shall."""
    known = park.registry
    return {row["device"]: row for row in delivery.deliver(known, devices or [*known.devices], wait_s, send=False)}


def test_a_release_goes_to_a_canary_to_the_rest_and_back(park: Park) -> None:
    assert released(park, 1) == dict.fromkeys(("d0", "d1", "d2", "d3"), ("serving", 1, None))
    assert released(park, 2, "north", canary=("d2",)) == {"d2": ("serving", 2, None)}
    assert {name: row["runs"] for name, row in seen(park).items()} == {"d0": 1, "d1": 1, "d2": 2, "d3": 1}
    assert _delivered(park, registry.promote(park.registry)) == {"d0": ("serving", 2, None)}
    with pytest.raises(SettingError, match="nothing to promote: its whole target has version 2"):
        registry.promote(park.registry)
    back = _delivered(park, registry.rollback(park.registry))
    assert back == dict.fromkeys(("d0", "d2"), ("serving", 1, None))
    with pytest.raises(SettingError, match="have no earlier version"):
        registry.rollback(park.registry)
    for name in park.agents:
        assert (resident_mb(park.agents[name].pid) or 0) < MEMORY_MB


def test_a_device_that_was_away_gets_its_release_when_it_returns(park: Park) -> None:
    assert park.connected()
    park.kill("d0")
    now_ = registry.release(park.registry, 1, ["d0"])
    assert _delivered(park, now_, 1.0)["d0"][0] in ("waiting", "gone")
    park.start("d0")
    assert seen(park, "d0")["d0"]["state"] == "serving"


def test_another_network_is_refused_by_name(park: Park) -> None:
    assert released(park, 1)["d1"] == ("serving", 1, None)
    registered(park.registry, model(3, network="lenet"), network="lenet")
    why = "network: version 3 is network 'lenet'; the experiment of this device has 'logistic'."
    assert released(park, 3) == dict.fromkeys(("d0", "d1", "d2", "d3"), ("refused", 1, why))


def test_what_was_corrupted_or_not_signed_is_refused_by_every_device_and_named(park: Park) -> None:
    """The pieces of a signed model are changed on their way; then a stranger, who got into brokers, releases."""
    assert released(park, 1)["d0"] == ("serving", 1, None)
    now_ = registry.release(park.registry, 2)
    whole = now_.data(now_.statement("d0").sha256)
    bad = bytes([whole[0] ^ 1]) + whole[1:]
    object.__setattr__(now_, "data", lambda _: bad)
    why = "hash: version 2: the model's bytes differ from the signed ones."
    assert _delivered(park, now_) == dict.fromkeys(("d0", "d1", "d2", "d3"), ("refused", 1, why))
    stranger = found("trial", now())
    with delivery.stations(now_.floor, now_.ca, now_.place) as stations:
        for one in stations:
            for name in (device.name for device in one.edge.devices):
                one.link.publish(topic("trial", "release", name), sealed(now_.statement(name), stranger), retain=True)
        refused = (1, "signature: it was not signed by the park's authority.")

        def all_refuse() -> bool:
            reports = {name: one for station in stations for name, one in station.reports.items()}
            return {name: (one.version, one.why) for name, one in reports.items()} == dict.fromkeys(
                now_.devices, refused
            )

        assert until(all_refuse, WAIT_S)
    assert "signature: it was not signed by the park's authority." in park.log("d3")
    # the whole model, sent again, mends it
    again = park.registry

    def mended() -> bool:  # brokers keep the refusals until devices report anew
        return {row["runs"] for row in delivery.deliver(again, [*again.devices], WAIT_S)} == {2}

    assert until(mended, WAIT_S)


def test_an_older_release_that_is_sent_again_is_refused(park: Park) -> None:
    first = registry.release(park.registry, 1, ["d0"])
    assert _delivered(park, first)["d0"] == ("serving", 1, None)
    assert released(park, 2, "d0")["d0"] == ("serving", 2, None)
    delivery.deliver(first, ["d0"], 1.0)
    assert until(lambda: "replayed: it is entry 4 of the journal, not after 5." in park.log("d0"), WAIT_S)
    assert seen(park, "d0", wait_s=1)["d0"]["runs"] == 2


@pytest.mark.parametrize("lost", ["the disk, and installed again", "its models, and an old copy of its settings"])
def test_a_device_without_a_model_takes_no_old_release(park: Park, lost: str) -> None:
    first = registry.release(park.registry, 1, ["d0"])
    assert _delivered(park, first)["d0"] == ("serving", 1, None)
    assert released(park, 2, "d0")["d0"] == ("serving", 2, None)
    park.kill("d0")
    place = park.out / "devices" / "d0"
    if lost.startswith("its models"):
        shutil.rmtree(place / "state" / "models")
        (place / "released").unlink()
    else:
        shutil.rmtree(place / "state")
    park.start("d0")
    delivery.deliver(first, ["d0"], 1.0)
    assert until(lambda: "replayed: it is entry 4 of the journal, not after 5." in park.log("d0"), WAIT_S)
    assert not [*(place / "state").rglob("*.onnx")]
    again = park.registry
    assert until(lambda: {row["runs"] for row in delivery.deliver(again, ["d0"], WAIT_S)} == {2}, WAIT_S)


def test_a_device_killed_while_it_switches_comes_back_with_one_of_the_two(park: Park) -> None:
    """Killed at six moments around a switch."""
    released(park, 1, "d0")
    runs = set()
    for i in range(6):
        version = 2 - i % 2
        now_ = registry.release(park.registry, version, ["d0"])
        delivery.deliver(now_, ["d0"], 0.02 * i)
        park.kill("d0")
        known = {path.stem for path in (park.out / "devices/d0/state/models").glob("*.onnx")}
        assert known <= {one.file("d0")[0] for one in now_.versions.values()}
        kept = json.loads((park.out / "devices/d0/state/models/serving.json").read_text())
        runs.add(json.loads(json.loads(kept[0])["statement"])["version"])
        park.start("d0")
        back = seen(park, "d0")["d0"]
        assert (back["state"], back["runs"]) == ("serving", version)
    assert runs <= {1, 2}


def test_of_two_people_who_promote_at_once_one_gets_a_clear_error(park: Park) -> None:
    released(park, 1, "north", canary=("d0",))
    both = [park.command("model", "promote", "--park", str(park.out), "--json") for _ in range(2)]
    ends = sorted((one.wait(180), *one.communicate()) for one in both)
    assert [code for code, _, _ in ends] == [0, 2]
    assert json.loads(ends[0][1])["rows"][0]["runs"] == 1
    error = ends[1][2].strip().splitlines()[-1]
    assert "the park was changed meanwhile: promote by" in error or "nothing to promote: its whole target" in error
    assert [one.action for one in park.registry.entries].count("promote") == 1


def test_a_registry_edited_by_hand_is_refused_by_the_command(park: Park) -> None:
    path = park.out / "registry/journal/2.json"
    path.write_text(path.read_text().replace("logistic", "lenet"))
    done = park.command("model", "release", "2", "--park", str(park.out))
    _, error = done.communicate(timeout=180)
    assert done.returncode == 2
    assert error.startswith(f"error: {path} does not match its signature: it was edited")


def test_predictions_and_alarms_are_heard_by_the_edge_also_across_a_switch(park: Park) -> None:
    """Rows grow while versions change: each has one answer, in order."""
    edge = park.client("north")
    edge.subscribe(f"{TOP}/predictions/+")
    edge.subscribe(f"{TOP}/alarms/+")
    table = park.out.parent / "rows-d0" / "press.csv"
    table.write_text("heat,load,speed\n")
    released(park, 1, "d0")
    for version in (2, 1, 2):
        with table.open("a") as file:
            file.writelines(f"{i},{-i},0.5\n" for i in range(40))
        released(park, version, "d0")
    answers: list[dict[str, Any]] = []
    alarms: list[dict[str, Any]] = []
    end = time.monotonic() + WAIT_S
    while len(answers) < 120 and time.monotonic() < end:
        where, payload = edge.hears()
        (answers if where.endswith("predictions/d0") else alarms).append(json.loads(payload))
    assert [one["rows"][0] for one in answers] == list(range(1, 121))
    assert {one["version"] for one in answers} <= {1, 2}
    assert [one for one in answers if one["alarm"]][: len(alarms)] == alarms
    assert alarms
    edge.close()


def test_a_device_may_release_nothing(park: Park) -> None:
    park.kill("d0")
    device = park.client("d0")
    for forbidden in (
        topic("trial", "release", "d1"),
        topic("trial", "release", "d0"),
        topic("trial", "model", "0" * 64, 0),
    ):
        assert device.publish(forbidden, b"x") == NOT_AUTHORISED
    for kind in ("serving", "predictions", "alarms"):
        assert device.publish(f"{TOP}/{kind}/d1", b"x") == NOT_AUTHORISED
    device.close()


def test_a_model_of_many_pieces_is_put_together(park: Park) -> None:
    data = model(4, padding=["x" * (5 * CHUNK_BYTES)])
    registered(park.registry, data)
    assert released(park, 3) == dict.fromkeys(("d0", "d1", "d2", "d3"), ("serving", 3, None))


def test_twenty_devices_roll_back_within_ten_seconds(tmp_path: Path) -> None:
    out = provisioned(tmp_path, devices=20)
    registered(registered(registry.read(out), model(1)), model(2))
    with running(out) as park:
        park.start(*(f"d{k}" for k in range(20)))
        for version in (1, 2):
            got = released(park, version)
            assert {state for state, _, _ in got.values()} == {"serving"}
        began = time.monotonic()
        back = _delivered(park, registry.rollback(park.registry))
        seconds = time.monotonic() - began
        assert back == {f"d{k}": ("serving", 1, None) for k in range(20)}
        print(f"rollback of 20 devices: {seconds:.2f} s")
        assert seconds <= 10


def test_a_broker_of_an_earlier_version_is_named(park: Park) -> None:
    acl = park.out / "factories/north/acl"
    acl.write_text(acl.read_text().replace("user releases", "user nobody"))
    park.brokers["north"].process.send_signal(1)
    assert until(lambda: "Reloading config" in park.brokers["north"].log())
    done = park.command("model", "release", "1", "--park", str(park.out), "--wait", "5")
    _, error = done.communicate(timeout=180)
    assert done.returncode == 1
    assert "the broker of north does not let 'releases' publish: provision the park again" in error
