"""The privacy loss of a run whose cloud, edge and device are killed, beside that of the updates on the wire."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fedfloor import config
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.message import decode
from fedfloor.deploy.settings import Deadlines
from fedfloor.runs.parks import build_park
from fedfloor.runs.privacy import epsilon
from live_park import experiment
from live_processes import Processes, needs_broker, processes, rounds

ROUNDS = 14
Z = 1.0
PRIVATE = f"work = {{ sample_clip = 1.0, sample_noise = {Z}, batch_size = 8, epochs = 4 }}\ndeploy.quorum = 0.5\n"


def private(folder: Path) -> Path:
    path = experiment(folder, "fedavg", rounds=ROUNDS, devices=4)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("work =")]
    path.write_text("\n".join(lines) + "\n" + PRIVATE)
    return path


@contextmanager
def listening(park: Processes, found: dict[int, set[tuple[int, str]]]) -> Iterator[None]:
    """Note the round and the digest of each update that leaves a device, as a broker in wrong hands does."""
    from paho.mqtt import client as mqtt

    def hear(_client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        try:
            update = decode(message.payload)
        except RefusedError:
            return
        if update.kind == "update":
            arrays = {name: array.tobytes() for name, array in update.arrays.items()}
            found.setdefault(int(update.sender[1:]), set()).add((update.round, str(hash(tuple(arrays.items())))))

    ear = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="ear", protocol=mqtt.MQTTv5)
    ear.on_message = hear
    ear.on_connect = lambda client, *_: client.subscribe("fedfloor/trial/out/#", qos=1)
    ear.connect("127.0.0.1", park.port)
    ear.loop_start()
    try:
        yield
    finally:
        ear.disconnect()
        ear.loop_stop()


@pytest.mark.live
@needs_broker
def test_epsilon_covers_all_that_left_the_devices_whoever_was_killed(tmp_path: Path) -> None:
    """Cloud, edge and device are each killed twice, within rounds; ε is that of the updates on the wire or more."""
    what = private(tmp_path)
    found = dict[int, set[tuple[int, str]]]()
    with processes(tmp_path, what, Deadlines(20, 20, 60, 60)) as park, listening(park, found):
        cloud = park.cloud()
        for number, whom in enumerate(("device", "edge", "cloud") * 2, start=1):
            rounds(park, lambda lines, least=2 * number: len(lines) >= least, 150)
            one = {"device": park.devices[0], "edge": park.edges[0], "cloud": cloud}[whom]
            assert one.poll() is None, park.logs()
            one.kill()
            one.wait()
            if whom == "device":
                park.start_device(0)
            elif whom == "edge":
                park.start_edge(0)
            else:
                cloud = park.cloud("--resume")
        assert cloud.wait(200) == 0, park.logs()
    told = json.loads((tmp_path / "live" / "privacy.json").read_text())["samples"]
    held = build_park(config.read(what, [])).sizes
    lost = {}
    for k, updates in found.items():
        with closing(sqlite3.connect(tmp_path / f"device-{k}" / "revealed.sqlite")) as base:
            ((recorded,),) = base.execute("SELECT COUNT(*) FROM released").fetchall()
        assert recorded >= len(updates)
        assert max(Counter(number for number, _ in updates).values()) == 1  # no round has two updates of a device
        share = 8 / int(held[k])
        lost[k] = epsilon(Z, share, 4 * -(-int(held[k]) // 8) * len(updates), 1e-5)
    assert set(lost) == {0, 1, 2, 3}
    assert max(lost.values()) <= told["epsilon"] * (1 + 1e-9)
