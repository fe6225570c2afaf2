"""A park's brokers as real processes: who gets in, who may say and hear what, and what crosses the bridge."""

from __future__ import annotations

import dataclasses
import getpass
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedfloor import config
from fedfloor.deploy import authority, live, machines, mqtt, provision, settings
from fedfloor.deploy import broker as broker_of
from fedfloor.deploy.edge import Edge
from fedfloor.deploy.mqtt import MqttConnection
from fedfloor.deploy.park_file import ParkFile
from fedfloor.deploy.processes import Crew, resident_mb
from fedfloor.deploy.settings import EdgeSettings, Endpoint, Tls
from parks import MOSQUITTO, TOP, Broker, Client, broker, free_port, listening, needs_mosquitto, plant, until

pytestmark = [pytest.mark.slow, needs_mosquitto]
NOT_AUTHORISED = 135
QUIET_S = 0.5
MANY = 300
Join = Callable[..., Client]


def running(folder: Path) -> ParkFile:
    """The plant on ports that are free, provisioned into ``folder/out``."""
    park = plant(folder)
    factories = tuple(dataclasses.replace(one, port=free_port()) for one in park.factory)
    park = dataclasses.replace(park, factory=factories, cloud=dataclasses.replace(park.cloud, port=free_port()))
    provision.provision(park, folder / "out", user=getpass.getuser())
    return park


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("park")


@pytest.fixture(scope="module")
def park(place: Path) -> ParkFile:
    return running(place)


@pytest.fixture(scope="module")
def brokers(place: Path, park: ParkFile) -> Iterator[dict[str, Broker]]:
    with ExitStack() as stack:
        yield {
            one.name: stack.enter_context(broker(place / "out" / folder, one.port))
            for folder, one in provision.hubs(park)
        }


@pytest.fixture
def join(place: Path, park: ParkFile, brokers: dict[str, Broker]) -> Iterator[Join]:
    """``join("n0")``, ``join("north")`` and ``join("cloud")`` connect each to its own broker."""
    clients = []

    def connect(name: str, at: str = "", folder: Path = place / "out", **more: object) -> Client:
        edge = name in brokers
        home = at or (name if edge else next(d.factory for d in park.device if d.name == name))
        where = folder / ("cloud" if name == "cloud" else f"factories/{name}" if edge else f"devices/{name}")
        stem = "cloud" if name == "cloud" else "edge" if edge else "device"
        clients.append(Client(brokers[home].port, where, stem, **more))  # type: ignore[arg-type]
        return clients[-1]

    yield connect
    for one in clients:
        one.close()


def test_a_broker_listens_on_its_port_only(brokers: dict[str, Broker]) -> None:
    for one in brokers.values():
        assert listening(one.process.pid) == {one.port}


def test_a_device_and_its_edge_talk(join: Join) -> None:
    edge = join("north")
    device = join("n0")
    device.subscribe(f"{TOP}/in/+/n0")
    edge.subscribe(f"{TOP}/out/+/north")
    assert edge.says(f"{TOP}/in/north/n0", b"visit")
    assert device.hears() == (f"{TOP}/in/north/n0", b"visit")
    assert device.says(f"{TOP}/out/n0/north", b"done")
    assert edge.hears() == (f"{TOP}/out/n0/north", b"done")


def test_who_has_no_certificate_stays_out(place: Path, brokers: dict[str, Broker]) -> None:
    got = Client(brokers["north"].port, place / "out" / "devices" / "n0", None)
    assert until(lambda: got.gone)
    assert not got.up
    assert until(lambda: "peer did not return a certificate" in brokers["north"].log())


def test_another_authoritys_certificate_stays_out(place: Path, brokers: dict[str, Broker], tmp_path: Path) -> None:
    provision.provision(plant(tmp_path), tmp_path / "other")  # same park, same names, another key
    got = Client(
        brokers["north"].port,
        tmp_path / "other" / "devices" / "n0",
        "device",
        ca=place / "out" / "authority" / "ca.crt",
    )
    assert until(lambda: got.gone)
    assert not got.up


def test_a_device_does_not_trust_another_authoritys_broker(
    place: Path, brokers: dict[str, Broker], tmp_path: Path
) -> None:
    provision.provision(plant(tmp_path), tmp_path / "other")
    other = tmp_path / "other" / "authority" / "ca.crt"
    assert Client(brokers["north"].port, place / "out" / "devices" / "n0", "device", ca=other).gone


@pytest.mark.parametrize(
    "topic", ["out/n1/north", "in/north/n1", "in/n0/n1", "status/n1", "announce", "out/n0/north/more", "other"]
)
def test_a_device_writes_only_under_its_own_name(join: Join, topic: str) -> None:
    edge = join("north")
    device = join("n0")
    edge.subscribe(f"{TOP}/#")
    assert device.publish(f"{TOP}/{topic}", b"forged") == NOT_AUTHORISED
    assert device.says(f"{TOP}/out/n0/north", b"own")
    assert edge.hears() == (f"{TOP}/out/n0/north", b"own")  # and nothing before it


@pytest.mark.parametrize("topic", ["in/+/n1", "in/#", "out/+/north", "status/n1", "#"])
def test_a_device_reads_no_inbox_but_its_own(join: Join, topic: str) -> None:
    edge = join("north")
    nosy = join("n0")
    other = join("n1")
    nosy.subscribe(f"{TOP}/{topic}")
    assert edge.says(f"{TOP}/in/north/n1", b"secret")
    assert other.says(f"{TOP}/status/n1", b"here", retain=True)
    assert other.says(f"{TOP}/out/n1/north", b"update")
    assert nosy.hears(QUIET_S) is None


def test_nobody_pushes_another_off_with_his_client_id(join: Join) -> None:
    one = join("n0")
    other = join("n1", client_id="n0")
    one.subscribe(f"{TOP}/in/+/n0")
    assert other.up
    assert join("north").publish(f"{TOP}/in/north/n0", b"still there") == 0
    assert one.hears() == (f"{TOP}/in/north/n0", b"still there")
    assert not one.gone


def test_two_devices_with_one_name_are_told_so(
    place: Path, park: ParkFile, brokers: dict[str, Broker], caplog: pytest.LogCaptureFixture
) -> None:
    """They push each other off, ever more slowly."""
    where = Endpoint("127.0.0.1", park.factory[0].port)
    files = _tls(place / "out" / "devices" / "n0", "device")
    both = [MqttConnection("n0", where, files) for _ in range(2)]
    for one in both:
        one.start([], lambda *_: None, lambda: None)
    try:
        assert until(lambda: "n0: broker 127.0.0.1" in caplog.text)
        assert "If two devices have this name" in caplog.text
        assert all(one.connections < 8 for one in both)
    finally:
        for one in both:
            one.stop()


@pytest.mark.parametrize(("edge", "device"), [("north", "s0"), ("south", "n0")])
def test_an_edge_reaches_the_other_factorys_device(join: Join, edge: str, device: str) -> None:
    caller = join(edge)
    answers = join(device)
    answers.subscribe(f"{TOP}/in/+/{device}")
    caller.subscribe(f"{TOP}/out/+/{edge}")
    caller.subscribe(f"{TOP}/status/{device}")
    assert until(lambda: caller.says(f"{TOP}/in/{edge}/{device}", b"visit") and answers.hears(1) is not None)
    assert answers.says(f"{TOP}/out/{device}/{edge}", b"done" * 60_000)
    assert caller.hears() == (f"{TOP}/out/{device}/{edge}", b"done" * 60_000)
    assert answers.says(f"{TOP}/status/{device}", b"here")
    assert caller.hears() == (f"{TOP}/status/{device}", b"here")
    assert caller.hears(QUIET_S) is None  # once, without a loop


def test_a_factorys_own_talk_does_not_cross(join: Join, place: Path, brokers: dict[str, Broker]) -> None:
    """The bridge's certificate, in the hands of somebody at the other factory."""
    south = join("south")
    s0 = join("s0")
    spy = Client(brokers["cloud"].port, place / "out" / "factories" / "north", "bridge")
    spy.subscribe("#")
    assert south.says(f"{TOP}/in/south/s0", b"secret")
    assert s0.says(f"{TOP}/out/s0/south", b"secret")
    assert spy.hears(QUIET_S) is None
    for topic in ("out/s0/south", "out/s0/north", "status/s0", "in/south/n0", "in/cloud/north", "out/north/cloud",
                  "status/north"):  # fmt: skip
        assert spy.publish(f"{TOP}/{topic}", b"forged") == NOT_AUTHORISED
    spy.close()


def test_a_brokers_certificate_is_no_clients(place: Path, brokers: dict[str, Broker]) -> None:
    got = Client(brokers["north"].port, place / "out" / "cloud", "broker")
    assert until(lambda: got.gone)
    assert not got.up


def test_the_cloud_and_its_edges_talk_and_nobody_else_does(join: Join, brokers: dict[str, Broker]) -> None:
    cloud = join("cloud")
    north = join("north", at="cloud")
    south = join("south", at="cloud")
    stranger = join("n0", at="cloud")  # a device's certificate is good, and has no rights here
    for one, topic in ((north, "in/cloud/north"), (south, "in/cloud/north"), (south, "out/#"), (stranger, "#")):
        one.subscribe(f"{TOP}/{topic}")
    cloud.subscribe(f"{TOP}/out/+/cloud")
    cloud.subscribe(f"{TOP}/status/north")
    assert cloud.says(f"{TOP}/in/cloud/north", b"walk")
    assert north.hears() == (f"{TOP}/in/cloud/north", b"walk")
    assert north.says(f"{TOP}/status/north", b"here")
    assert cloud.hears() == (f"{TOP}/status/north", b"here")
    assert north.says(f"{TOP}/out/north/cloud", b"walked")
    assert cloud.hears() == (f"{TOP}/out/north/cloud", b"walked")
    for topic in ("out/north/cloud", "status/north", "in/cloud/north", "in/cloud/south", "in/north/s0"):
        assert south.publish(f"{TOP}/{topic}", b"forged") == NOT_AUTHORISED
        assert stranger.publish(f"{TOP}/{topic}", b"forged") == NOT_AUTHORISED
    for topic in ("in/north/n0", "out/n0/north", "status/n0", "status/north"):  # the floor's: the cloud has no rights
        assert cloud.publish(f"{TOP}/{topic}", b"forged") == NOT_AUTHORISED
    assert south.hears(QUIET_S) is None
    assert stranger.hears(QUIET_S) is None


def test_the_clouds_certificate_is_no_key_to_the_floor(join: Join) -> None:
    cloud = join("cloud", at="north")
    n0 = join("n0")
    n0.subscribe(f"{TOP}/in/+/n0")
    for topic in ("in/north/n0", "in/cloud/n0", "out/n0/north", "status/n0"):
        assert cloud.publish(f"{TOP}/{topic}", b"forged") == NOT_AUTHORISED
    assert n0.hears(QUIET_S) is None


def test_an_edge_that_is_revoked_is_refused_by_the_clouds_broker_after_the_reload(tmp_path: Path) -> None:
    park = running(tmp_path)
    out = tmp_path / "out"
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("ca.crt", "edge.crt", "edge.key"):
        (kept / name).write_bytes((out / "factories" / "north" / name).read_bytes())
    with broker(out / "cloud", park.cloud.port) as there:
        inside = Client(there.port, kept, "edge")
        other = Client(there.port, out / "factories" / "south", "edge")
        assert inside.says(f"{TOP}/out/north/cloud", b"good")
        done = provision.provision(park, out, revoke=["north"], user=getpass.getuser())
        assert any("acl and revoked.crl of cloud" in note for note in done.notes)
        there.process.send_signal(signal.SIGHUP)
        assert until(lambda: "Reloading config" in there.log())
        assert inside.publish(f"{TOP}/out/north/cloud", b"still inside") == NOT_AUTHORISED
        late = Client(there.port, kept, "edge")
        assert until(lambda: late.gone)
        assert not late.up
        assert other.says(f"{TOP}/out/south/cloud", b"others go on")
        for one in (inside, other):
            one.close()


def test_a_message_that_is_too_large_is_not_taken(tmp_path: Path) -> None:
    park = plant(tmp_path)
    one = dataclasses.replace(park.factory[0], port=free_port())
    park = dataclasses.replace(park, factory=(one,), device=park.device[:2])
    provision.provision(park, tmp_path / "out", user=getpass.getuser())
    with broker(tmp_path / "out" / "factories" / "north", one.port) as there:
        device = Client(there.port, tmp_path / "out" / "devices" / "n0", "device")
        assert device.says(f"{TOP}/out/n0/north", b"x" * mqtt.PACKET_BYTES)
        device.mqtt.publish(f"{TOP}/out/n0/north", b"x" * (mqtt.PACKET_BYTES + broker_of.ENVELOPE + 1), qos=1)
        assert until(lambda: device.gone)
        device.close()


def test_a_large_message_passes_a_broker_that_takes_small_packets(place: Path, park: ParkFile, join: Join) -> None:
    sent = os.urandom(5_000_000)
    came = queue.SimpleQueue[bytes]()
    links = [
        MqttConnection(name, Endpoint("127.0.0.1", park.factory[0].port), _tls(place / "out" / where / name, stem))
        for name, where, stem in (("north", "factories", "edge"), ("n0", "devices", "device"))
    ]
    up = threading.Semaphore(0)
    assembler = mqtt.Assembler()

    def heard(topic: str, packet: bytes) -> None:
        assert len(packet) < mqtt.PACKET_BYTES
        if whole := assembler.add(topic, packet, len(sent)):
            came.put(whole)

    links[0].start([f"{TOP}/out/+/north"], heard, up.release)
    links[1].start([], lambda *_: None, up.release)
    try:
        assert up.acquire(timeout=10)
        assert up.acquire(timeout=10)
        for _ in range(2):
            links[1].publish(f"{TOP}/out/n0/north", sent)
        assert [came.get(timeout=10) == sent for _ in range(2)] == [True, True]
    finally:
        for one in links:
            one.stop()


def test_subscriptions_fill_no_more_memory_than_the_broker_may_have(tmp_path: Path) -> None:
    """The access list grants every subscription, of whatever length; a device takes 10 MiB a second without a limit."""
    park = dataclasses.replace(plant(tmp_path), message_mb=4)
    one = dataclasses.replace(park.factory[0], port=free_port())
    park = dataclasses.replace(park, factory=(one,), device=park.device[:2])
    provision.provision(park, tmp_path / "out", user=getpass.getuser())
    assert "memory_limit 40000000\n" in (tmp_path / "out" / "factories" / "north" / "mosquitto.conf").read_text()
    with broker(tmp_path / "out" / "factories" / "north", one.port) as there:
        greedy = Client(there.port, tmp_path / "out" / "devices" / "n0", "device")
        for i in range(40):  # 48 MB
            greedy.mqtt.subscribe([(f"{i}-{j}/" + "x" * 60_000, 0) for j in range(20)])
        time.sleep(3)
        assert (resident_mb(there.process.pid) or 0) < 60
        member = Client(there.port, tmp_path / "out" / "devices" / "n1", "device")
        assert member.up
        member.close()
        greedy.close()


CONNECTIONS = 1_100  # more than the 1,024 files that a process may open by default
BARE = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2 * int(sys.argv[2]),) * 2)
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("limited", [False, True])
def test_bare_connections_shut_no_member_out(tmp_path: Path, limited: bool) -> None:
    """With the files that units, compose files and live parks grant a broker."""
    park = running(tmp_path)
    default = resource.getrlimit(resource.RLIMIT_NOFILE)
    if default[1] != resource.RLIM_INFINITY and default[1] < 2 * CONNECTIONS:
        pytest.skip(f"this machine grants a process {default[1]} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, default[1]))
    out = tmp_path / "out"
    crew = Crew(tmp_path)
    try:
        service = machines.factory_services(park.factory[1])[0]
        where = out / "factories" / "south"
        port = park.factory[1].port
        (where / "state").mkdir()
        words = [str(MOSQUITTO), *service.words[1:]]
        one = crew.start("broker", "broker", words, where, {}, 0 if limited else service.files)
        crew.wait("broker", lambda: live.listens(port), [one], 10)
        held = [sys.executable, "-c", BARE, str(port), str(CONNECTIONS)]
        with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bare:
            assert bare.stdout is not None
            assert bare.stdout.readline() == b"up\n"
            member = Client(port, out / "devices" / "s0", "device")
            assert member.up != limited
            if not limited:
                assert member.says(f"{TOP}/out/s0/south", b"served")
                assert (resident_mb(one.pid) or 0) < 200
            member.close()
            bare.communicate()
    finally:
        crew.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, default)


def test_a_revoked_device_is_refused_after_the_reload(tmp_path: Path) -> None:
    park = running(tmp_path)
    out = tmp_path / "out"
    north = park.factory[0]
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("ca.crt", "device.crt", "device.key"):
        (kept / name).write_bytes((out / "devices" / "n0" / name).read_bytes())
    with broker(out / "factories" / "north", north.port) as there:
        inside = Client(there.port, kept, "device")
        edge = Client(there.port, out / "factories" / "north", "edge")
        edge.subscribe(f"{TOP}/out/+/north")
        assert inside.says(f"{TOP}/out/n0/north", b"good")
        assert edge.hears() == (f"{TOP}/out/n0/north", b"good")
        provision.provision(park, out, revoke=["n0"], user=getpass.getuser())
        there.process.send_signal(signal.SIGHUP)
        assert until(lambda: "Reloading config" in there.log())
        assert inside.publish(f"{TOP}/out/n0/north", b"still inside") == NOT_AUTHORISED
        late = Client(there.port, kept, "device")
        assert until(lambda: late.gone)
        assert not late.up
        other = Client(there.port, out / "devices" / "n1", "device")
        assert other.says(f"{TOP}/out/n1/north", b"others go on")
        assert edge.hears() == (f"{TOP}/out/n1/north", b"others go on")
        for one in (inside, edge, other):
            one.close()


def test_a_device_that_floods_loses_its_rights_at_the_running_broker(tmp_path: Path) -> None:
    """A real edge beside a real broker: what is said under n0's name is refused from then on; n1 is served."""
    park = running(tmp_path)
    out = tmp_path / "out"
    north = park.factory[0]
    cloud = out / "cloud"
    home = out / "factories" / "north"
    far = out / "factories" / "south"
    what = config.from_table({"data": {"samples_per_device": 4}, "park": {"devices": 4, "factories": 2}})
    with broker(cloud, park.cloud.port), broker(far, park.factory[1].port), broker(home, north.port) as here:
        edges = []
        for name, place in (("north", home), ("south", far)):
            read = settings.read(EdgeSettings, place / f"edge-{name}.toml")
            assert read.acl == place / "acl"
            edges.append(Edge(read, what, None, MqttConnection(name, read.broker, read.tls)))
            edges[-1].channel.start()
        flooder, other = (Client(north.port, out / "devices" / name, "device") for name in ("n0", "n1"))
        before = (home / "acl").read_text()
        assert until(lambda: flooder.publish(f"{TOP}/status/n0", b"x" * 100) == NOT_AUTHORISED, 60)
        assert flooder.publish(f"{TOP}/out/n0/north", b"x") == NOT_AUTHORISED
        assert edges[0].channel.filter.refused["n0", "flood"] >= 1
        rules = [one for one in before.splitlines() if one not in (home / "acl").read_text().splitlines()]
        assert rules
        assert all("n0" in one for one in rules)
        assert other.says(f"{TOP}/status/n1", b"x" * 100)
        assert until(
            lambda: edges[1].channel.filter.refused["n0", "flood"] >= 1, 30
        )  # which the cloud's broker relayed
        assert until(lambda: "Reloading config" in here.log())
        for one in (flooder, other):
            one.close()
        for edge in edges:
            edge.stop()


def test_a_renewed_device_is_let_in_again(tmp_path: Path) -> None:
    park = running(tmp_path)
    out = tmp_path / "out"
    north = park.factory[0]
    provision.provision(park, out, revoke=["n0"], user=getpass.getuser())
    provision.provision(park, out, renew=["n0"], user=getpass.getuser())
    with broker(out / "factories" / "north", north.port) as there:
        back = Client(there.port, out / "devices" / "n0", "device")
        assert back.says(f"{TOP}/out/n0/north")
        back.close()


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    park = running(tmp_path)
    out = tmp_path / "out"
    north = park.factory[0]
    ca = authority.load(out / "authority")
    past = authority.now() - authority.dt.timedelta(days=3)
    cert, key = authority.issue(ca, authority.Holder("n0"), 1, past)
    (out / "devices" / "n0" / "device.crt").write_bytes(cert)
    (out / "devices" / "n0" / "device.key").write_bytes(key)
    with broker(out / "factories" / "north", north.port) as there:
        got = Client(there.port, out / "devices" / "n0", "device")
        assert until(lambda: got.gone)
        assert not got.up


def test_two_threads_do_not_garble_a_connection(place: Path, park: ParkFile, brokers: dict[str, Broker]) -> None:
    """What a process says comes from another thread than the one that listens; TLS bears only one at a time."""
    where = place / "out" / "devices"
    own = park.factory[0]
    edge = MqttConnection("north", Endpoint(own.address, own.port), _tls(place / "out" / "factories" / "north", "edge"))
    device = MqttConnection("n0", Endpoint(own.address, own.port), _tls(where / "n0", "device"))
    heard: list[int] = []
    ready = threading.Barrier(3, timeout=10)
    edge.start([f"{TOP}/out/+/north"], lambda _, payload: heard.append(len(payload)), ready.wait)
    device.start([f"{TOP}/in/+/n0"], lambda _, payload: heard.append(len(payload)), ready.wait)
    ready.wait()

    def talk(link: MqttConnection, topic: str) -> None:
        for _ in range(MANY):
            until(lambda: link.unacknowledged < mqtt.MOST_KEPT // 2)  # older ones would be dropped
            link.publish(topic, b"x" * 50_000)

    both = [threading.Thread(target=talk, args=(edge, f"{TOP}/in/north/n0")),
            threading.Thread(target=talk, args=(device, f"{TOP}/out/n0/north"))]  # fmt: skip
    for one in both:
        one.start()
    assert until(lambda: len(heard) >= 2 * MANY, 60)
    assert (edge.connections, device.connections) == (1, 1)
    assert heard == [50_000] * (2 * MANY)
    for link in (edge, device):
        link.stop()


def _tls(folder: Path, stem: str) -> Tls:
    return Tls(folder / "ca.crt", folder / f"{stem}.crt", folder / f"{stem}.key")
