"""Attacks on a running park with real brokers: each is refused and named, and the model has the simulation's bits."""

from __future__ import annotations

import datetime as dt
import getpass
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from test_deploy_faults import losing

from fedfloor.deploy import authority, mqtt, provision
from fedfloor.deploy.message import Message, encode
from fedfloor.deploy.mqtt import MqttConnection
from fedfloor.deploy.settings import Deadlines, Endpoint, Tls
from fedfloor.runs import ledger
from live_park import Live, experiment, figures, simulated
from parks import Client, needs_mosquitto, until
from tls_park import HERE, Secured, secured

pytestmark = [pytest.mark.slow, needs_mosquitto]
WHO = 3  # whose certificate was stolen
SHORT = Deadlines(4.0, 60, 60, 120)


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@contextmanager
def caller(park: Secured, files: Path, wait: Callable[[float], object] | None = None) -> Iterator[MqttConnection]:
    """Somebody who calls the broker of device ``WHO`` with the certificate that lies in a folder."""
    port = park.park.factory[park.home(WHO)].port
    tls = Tls(files / "ca.crt", files / "device.crt", files / "device.key")
    made = MqttConnection(f"d{WHO}", Endpoint(HERE, port), tls, wait=wait)
    made.start([], lambda *_: None, lambda: None)
    try:
        yield made
    finally:
        made.stop()


def refused(park: Live) -> dict[str, set[str]]:
    """Who was refused by edges, and why."""
    found: dict[str, set[str]] = {}
    for edge in park.edges.values():
        for who, why in edge.channel.filter.counts().items():
            found.setdefault(who, set()).update(why)
    return found


def test_rings_that_cross_factories_over_bridged_brokers_have_the_simulations_bits(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedsr", rounds=3, more="methods.fedsr = { laps = 2, ring_size = 4 }")
    _, wanted = simulated(what, tmp_path / "simulated")
    with secured(tmp_path, what) as park:
        abroad: set[int] = set()
        for m, edge in park.live.edges.items():
            ask = edge.channel.request

            def asks(
                device: int, *words: object, m: int = m, ask: Callable[..., object] = ask, **more: object
            ) -> object:
                abroad.update({device} if park.home(device) != m else ())
                return ask(device, *words, **more)

            edge.channel.request = asks  # type: ignore[method-assign, assignment]
        got = park.live.run()
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert {park.home(k) for k in abroad} == {0, 1}  # over the bridge both ways


def certified(place: Path, by: authority.Authority, days: int, at: dt.datetime, trusts: Path) -> Path:
    """Write a certificate for device ``WHO`` into a folder."""
    place.mkdir()
    cert, key = authority.issue(by, authority.Holder(f"d{WHO}"), days, at)
    (place / "device.crt").write_bytes(cert)
    (place / "device.key").write_bytes(key)
    shutil.copy(trusts, place / "ca.crt")
    return place


def test_who_has_no_good_certificate_stays_out_and_is_told_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3)
    now = authority.now()
    simulated(what, tmp_path / "simulated")
    with secured(tmp_path, what) as park:
        root = park.out / "authority" / "ca.crt"
        other = authority.found("another", now)
        past = certified(tmp_path / "past", authority.load(root.parent), 1, now - dt.timedelta(days=3), root)
        foreign = certified(tmp_path / "foreign", other, 9, now, root)
        blind = certified(tmp_path / "blind", authority.load(root.parent), 9, now, root)
        (blind / "ca.crt").write_bytes(other.pem()[0])

        def called(line: ledger.Line) -> None:
            if line.round > 1:
                return
            nobody = Client(park.brokers[0].port, park.out / "devices" / "d0", None)
            assert until(lambda: nobody.gone)
            for files, said in (
                (past, "refuses this certificate: it has expired"),
                (foreign, "refuses this certificate: another authority signed it"),
                (blind, "shows a certificate that ca.crt did not sign"),
            ):
                with caller(park, files) as link:
                    assert until(lambda: said in caplog.text), caplog.text  # noqa: B023
                    assert until(lambda: f"{files}/device.crt is the certificate of 'd{WHO}', valid" in caplog.text)  # noqa: B023
                assert link.connections == 0

        got = park.live.run(report=called)
        assert "peer did not return a certificate" in park.brokers[0].log()
    ends = f"{now - dt.timedelta(days=2):until %Y-%m-%d %H:%M UTC}"
    assert f"{ends}; this machine's clock shows" in caplog.text
    assert [line.lost for line in got] == [0, 0, 0]
    assert model(tmp_path / "live") == model(tmp_path / "simulated")


def rubbish(seed: int, name: str) -> bytes:
    """Random bytes, a cut message, a wrong shape, undefined numbers, another's name, a greeting from far ahead."""
    rng = np.random.default_rng(seed)

    def update(sender: str, value: float) -> bytes:
        arrays = {"w": np.full(9, value, np.float32)}
        return encode(Message("update", sender, "live", 1, time.time_ns(), seed, answers=f"1-{seed}", arrays=arrays))

    return (
        rng.bytes(500), update(name, 0)[:40], update(name, 0), b"", bytes(3_000_000), update(name, np.nan),
        update("d0", np.inf), encode(Message("hello", name, session=1 << 62, about={"device": WHO})),
    )[seed % 8]  # fmt: skip


def test_a_thief_who_sends_rubbish_in_a_devices_name_harms_that_device_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3)
    with losing(lambda key: key.device == WHO and key.round >= 2):
        _, wanted = simulated(what, tmp_path / "simulated")
    name = f"d{WHO}"
    over = threading.Event()
    with secured(tmp_path, what, SHORT) as park:
        edge = f"e{park.home(WHO)}"

        def attack() -> None:
            with caller(park, park.out / "devices" / name) as thief:
                for seed in range(1, 1 << 30):
                    for of in (name, "d0"):  # what he says as d0 the broker keeps to itself
                        thief.publish(mqtt.topic("trial", "out", of, edge), rubbish(seed, name))
                        thief.publish(mqtt.topic("trial", "status", of), rubbish(seed, name))
                    if over.wait(0.05):
                        return

        def begins(line: ledger.Line) -> None:
            if line.round == 1:
                park.live.links[WHO].stop()  # a broker lets in one of each name
                threading.Thread(target=attack, daemon=True).start()
                assert until(
                    lambda: (
                        {"sender", "foreign", "truncated", "unasked", "future"} <= refused(park.live).get(name, set())
                    )
                )

        try:
            got = park.live.run(report=begins)
        finally:
            over.set()
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    assert [line.lost for line in got] == [line.lost for line in wanted] == [0, 1, 1]
    assert set(refused(park.live)) == {name}
    assert f"refused a message of {name}: foreign" in caplog.text
    assert name in got[-1].measured["refused"][edge]  # type: ignore[index]


def test_a_device_that_is_revoked_mid_run_is_lost_from_there_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3)
    with losing(lambda key: key.device == WHO and key.round >= 2):
        _, wanted = simulated(what, tmp_path / "simulated")
    with secured(tmp_path, what, SHORT) as park:
        kept = shutil.copytree(park.out / "devices" / f"d{WHO}", tmp_path / "kept")

        def revoke(line: ledger.Line) -> None:
            if line.round > 1:
                return
            provision.provision(park.park, park.out, revoke=[f"d{WHO}"], user=getpass.getuser())
            for one in park.brokers.values():
                one.process.send_signal(signal.SIGHUP)
                assert until(lambda: "Reloading config" in one.log())  # noqa: B023
            with caller(park, kept) as late:
                assert until(lambda: "refuses this certificate: it was revoked" in caplog.text), caplog.text
            assert late.connections == 0

        got = park.live.run(report=revoke)
    assert model(tmp_path / "live") == model(tmp_path / "simulated")
    assert [line.lost for line in got] == [line.lost for line in wanted] == [0, 1, 1]
    assert refused(park.live) == {f"d{WHO}": {"late"}}
    assert f"device d{WHO} did not answer in time: its visit is lost" in caplog.text
