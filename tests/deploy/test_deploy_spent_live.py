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
from fedfloor.runs.privacy import epsilon, sums_composed
from live_park import experiment
from live_processes import Processes, needs_broker, processes, rounds

ROUNDS = 14
Z = 1.0
DELTA = {"samples": 1e-5, "models": 1e-4}
PRIVATE = {
    "samples": f"work = {{ sample_clip = 1.0, sample_noise = {Z}, batch_size = 8, epochs = 4 }}\n",
    "models": "work = { batch_size = 10, epochs = 4 }\nmethod.travel = 'secure-sum'\n"
    f"method.mix = {{ kind = 'private', clip = 1.0, noise = {Z}, delta = 1e-4, distributed = true }}\n",
}


def private(folder: Path, kind: str) -> Path:
    path = experiment(folder, "fedavg", rounds=ROUNDS, devices=8)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("work =")]
    path.write_text("\n".join(lines) + "\n" + PRIVATE[kind] + "deploy.quorum = 0.5\ndeploy.norm_limit = false\n")
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
@pytest.mark.parametrize("kind", PRIVATE)
def test_epsilon_covers_all_that_left_the_devices_whoever_was_killed(tmp_path: Path, kind: str) -> None:
    """Cloud, edge and device are each killed twice, within rounds; ε is that of the updates on the wire or more."""
    what = private(tmp_path, kind)
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
    told = json.loads((tmp_path / "live" / "privacy.json").read_text())[kind]
    held = build_park(config.read(what, [])).sizes
    lost = {}
    for k, updates in found.items():
        assert max(Counter(number for number, _ in updates).values()) == 1  # no round has two updates of a device
        if kind == "models":
            lost[k] = sums_composed(((Z, len(updates)),), DELTA[kind])
            continue
        with closing(sqlite3.connect(tmp_path / f"device-{k}" / "revealed.sqlite")) as base:
            ((recorded,),) = base.execute("SELECT COUNT(*) FROM released").fetchall()
        assert recorded >= len(updates)
        steps = 4 * -(-int(held[k]) // 8) * len(updates)
        lost[k] = epsilon(Z, 8 / int(held[k]), steps, DELTA[kind])
    assert set(lost) == set(range(8)), lost
    assert max(lost.values()) <= told["epsilon"] * (1 + 1e-9)
