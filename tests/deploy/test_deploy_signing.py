"""A broker in wrong hands between cloud, edges and devices: it may drop and delay, and nothing else."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_uplink import trained, uplinks

from fedfloor.base.errors import DivergedError
from fedfloor.base.version import __version__
from fedfloor.deploy import authority, mqtt
from fedfloor.deploy.checks import MessageFilter
from fedfloor.deploy.message import MAGIC, START, VERSION, Message, decode, encode, split
from fedfloor.deploy.settings import CLOUD
from fedfloor.deploy.signing import PURPOSE, Signer
from live_park import Broker, experiment, figures, live, member, simulated
from parks import until
from refusals import refused

CA, OTHERS = (authority.found(name, authority.now()) for name in ("trial", "others"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("members")


def signer(folder: Path, name: str, ca: authority.Authority = CA) -> Signer:
    return Signer(member(folder / str(id(ca)), ca, name), name)


def joined(header: bytes, seal: bytes, body: bytes = b"") -> bytes:
    """A message by hand."""
    return START.pack(MAGIC, VERSION, len(header), len(seal)) + header + seal + body


def rewritten(frame: bytes, seal: Callable[[bytes], bytes] | None = None, **changed: object) -> bytes:
    """A message with other words in its header, under its old seal or one made for it."""
    parts = split(frame)
    text = json.dumps(parts.header | changed).encode()
    return joined(text, parts.seal if seal is None else seal(text), bytes(parts.body))


SENT = Message("walked", "e0", "live", 1, 5, 7, answers="3-4", about={"here": [1]}, receiver=CLOUD,
               arrays={"w": np.ones(4, np.float32)})  # fmt: skip


def test_a_message_is_taken_by_the_one_it_is_for(folder: Path) -> None:
    cloud = signer(folder, CLOUD)
    frame = encode(SENT, signer(folder, "e0"))
    taken = MessageFilter(signer=cloud).take(frame, "e0")
    assert taken is not None
    assert (taken.about, taken.receiver) == ({"here": [1]}, CLOUD)
    assert 400 < len(frame) - len(encode(SENT)) < 550  # docs/deploy-security.md


def hostile_frames(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield what a broker could make of a message of e0 to the cloud: a name, the reason of refusal, the bytes."""
    own = signer(folder, "e0")
    frame = encode(SENT, signer(folder, "e0"))
    parts = split(frame)
    yield "no seal", "signature", encode(SENT)
    yield "a seal of no bytes that are a certificate", "signature", joined(parts.text, b"\0\1x" + b"y" * 70)
    yield "a seal of one byte", "signature", joined(parts.text, b"\0")
    yield "another member's", "signature", encode(SENT, signer(folder, "e1"))
    yield "the broker's", "signature", encode(SENT, signer(folder, "broker-cloud"))
    yield "another park's e0", "signature", encode(SENT, signer(folder, "e0", OTHERS))
    yield "the authority's certificate", "signature", joined(parts.text, forged_by_root(folder)(parts.text))
    for name, there, instead in (
        ("another version of X.509", b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x37"),
        ("an unknown kind of signature", b"\x2a\x86\x48\xce\x3d\x04\x03\x02", b"\x2a\x86\x48\xce\x3d\x04\x03\x7f"),
    ):
        assert there in parts.seal
        yield f"a certificate of {name}", "signature", joined(parts.text, parts.seal.replace(there, instead))
    yield "other fields", "signature", rewritten(frame, about={"here": [1, 2]})
    for key, value in (("number", 8), ("session", 6), ("round", 2), ("run", "x"), ("answers", "3-5"), ("kind", "x")):
        yield f"another {key}", "signature", rewritten(frame, **{key: value})
    yield "other blanks", "signature", joined(json.dumps(parts.header).encode(), parts.seal, bytes(parts.body))
    yield "for another", "receiver", encode(replace(SENT, receiver="e1"), own)
    yield "for all", "receiver", encode(replace(SENT, receiver=""), own)
    yield "redirected", "signature", rewritten(encode(replace(SENT, receiver="e1"), own), receiver=CLOUD)
    yield "a header that nobody signed and that is none", "signature", joined(b"[" * 10_000, parts.seal)
    yield "e1's as e0's", "signature", encode(replace(SENT, sender="e1"), signer(folder, "e1"))
    yield "a signed header that is none", "header", joined(b"[", own.sign(b"["))
    yield "another name under e0's key", "sender", encode(replace(SENT, sender="e1"), own)
    yield "other arrays", "digest", joined(parts.text, parts.seal, encode(SENT)[-16:])
    body = bytes(split(encode(replace(SENT, arrays={"w": np.zeros(4, np.float32)}))).body)
    yield "a model of zeros", "digest", joined(parts.text, parts.seal, body)
    yield "a signature for another purpose", "signature", joined(parts.text, own.sign(PURPOSE + parts.text))


def forged_by_root(folder: Path) -> Callable[[bytes], bytes]:
    """The seal of whoever has the authority's certificate, and a key of his own."""
    own = member(folder / "root", CA, "root")
    own.cert.write_bytes(CA.pem()[0])
    return Signer(own, "root").sign


def test_what_a_broker_makes_of_a_message_is_refused(folder: Path) -> None:
    for name, reason, frame in hostile_frames(folder):
        gate = MessageFilter(signer=signer(folder, CLOUD))
        assert gate.take(frame, "e0") is None, name
        assert gate.counts() == {"e0": {reason: 1}}, name
        assert (reason == "digest") or gate.take(encode(SENT, signer(folder, "e0")), "e0") is not None, name


def test_replayed_and_reordered_messages_are_refused(folder: Path) -> None:
    gate = MessageFilter(signer=signer(folder, CLOUD))
    own = signer(folder, "e0")
    frames = [encode(replace(SENT, number=number), own) for number in (1, 2, 3)]
    assert [gate.take(frames[i], "e0") is not None for i in (0, 2, 1, 0, 2)] == [True, True, False, False, False]
    assert gate.counts() == {"e0": {"replayed": 3}}


def test_a_revoked_or_expired_certificate_signs_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = member(folder / "hub", CA, CLOUD)
    gate = MessageFilter(signer=Signer(files, CLOUD))
    own = signer(folder, "e0")
    assert gate.take(encode(SENT, own), "e0") is not None
    crl = files.ca.with_name("revoked.crl")
    serial = authority.certificate(folder / str(id(CA)) / "e0.crt").serial_number
    crl.write_bytes(authority.revocations(CA, [(serial, authority.now())], authority.now()))
    for number, text in ((8, None), (9, b"nothing"), (10, authority.revocations(OTHERS, [], authority.now()))):
        if text is not None:
            crl.write_bytes(text)
            os.utime(crl, ns=(number, number))
        with refused("signature", Exception):
            gate.admit(encode(replace(SENT, number=number), own), "e0")
    crl.write_bytes(authority.revocations(CA, [], authority.now()))
    assert gate.take(encode(replace(SENT, number=11), own), "e0") is not None
    later = authority.now() + dt.timedelta(days=31)
    monkeypatch.setattr(authority, "now", lambda: later)
    with refused("signature", Exception):
        gate.admit(encode(replace(SENT, number=12), own), "e0")


@dataclass
class HostileBroker(Broker):
    """A broker that makes up messages before each that it passes on, repeats some, and passes some on to others.

    It has a member's certificate, its own, and all that it saw.
    """

    member: Signer | None = None
    recorded: list[tuple[str, bytes]] = field(default_factory=list)
    tried: int = 0

    def deliver(self, topic: str, payload: bytes, retain: bool) -> None:
        made = list(self.forged(topic, payload))
        for _ in range(3):  # one after the other: who sends many more is not listened to any more
            self.tried += 1
            super().deliver(*made[self.tried % len(made)], False)
        super().deliver(topic, payload, retain)
        self.recorded.append((topic, payload))

    def forged(self, topic: str, payload: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield topics and messages."""
        kind, names = mqtt.topic_parts(topic)
        header = split(payload).header
        sign = self.member.sign if self.member else None
        about: dict[str, Any] = header["about"]
        if kind == "status":
            yield topic, rewritten(payload, sign, session=header["session"] + 1)
            yield topic, rewritten(payload, None, about=about | {"device": 1 - about.get("device", 0)})
            yield topic, rewritten(payload, sign, kind="gone", about={"why": "the broker wants it so"})
            return
        yield topic, rewritten(payload, sign, about={"text": "nothing works", "error": "DivergedError"}, kind="failed")
        yield topic, rewritten(payload, None, about=about | {"measured": {"seconds": 9.0}})
        yield topic, rewritten(payload, sign, number=header["number"] + 1000)
        for other in ("e0", "e1", "d0", "d7"):  # what is meant for one, or came from one, to or from another
            place = "/".join(other if part in names and part[0] == other[0] and part != CLOUD else part
                             for part in topic.split("/"))  # fmt: skip
            if place != topic:
                yield place, payload
                yield place, rewritten(payload, sign, sender=other, receiver=other)
        yield from self.recorded[-2:]


@pytest.mark.parametrize("method", ["fedavg", "fedsr"])
def test_a_park_trains_on_under_brokers_in_wrong_hands(tmp_path: Path, method: str) -> None:
    """To the bit, without a lost visit and without a failure: every made-up message is refused and counted."""
    what = experiment(tmp_path, method, rounds=2, more="methods.fedsr.ring_size = 4" if method == "fedsr" else "")
    _, wanted = simulated(what, tmp_path / "simulated")
    hub = HostileBroker(member=signer(tmp_path, "broker-cloud"))
    with live(tmp_path, what, ca=CA) as park, uplinks(park, hub):
        floor = HostileBroker(member=signer(tmp_path, "broker-e0"))
        park.broker.deliver = floor.deliver  # type: ignore[method-assign]
        floor.links = park.broker.links
        lines = trained(park, hub)
    assert [figures(line) for line in lines] == [figures(line) for line in wanted]
    for line in lines:
        assert line.measured is not None
        assert (line.measured["absent"], line.measured["failed"]) == ([], {})
    assert hub.tried > 20
    assert floor.tried > 100


class Slanderer(Broker):
    """A broker that lets each edge fail, in the edge's name, before its answer."""

    def deliver(self, topic: str, payload: bytes, retain: bool) -> None:
        if mqtt.topic_parts(topic)[0] == "out":
            about = {"text": "nothing works", "error": "DivergedError"}
            super().deliver(topic, rewritten(payload, kind="failed", about=about), retain)
        super().deliver(topic, payload, retain)


def test_only_signatures_keep_a_broker_from_ending_a_run(tmp_path: Path) -> None:
    """The attack is one: what is refused of members ends a run where nothing is signed."""
    what = experiment(tmp_path, "fedavg", rounds=1)
    for ca in (None, CA):
        hub = Slanderer()
        with live(tmp_path, what, ca=ca) as park, uplinks(park, hub):
            if ca is None:
                with refused("diverged", DivergedError):
                    trained(park, hub)
            else:
                (line,) = trained(park, hub, resume=False)
    assert line.measured is not None
    assert (line.measured["absent"], line.measured["failed"]) == ([], {})


def test_a_hello_of_the_brokers_own_making_introduces_nobody(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1)
    broker = signer(tmp_path, "broker-e0")
    with live(tmp_path, what, ca=CA) as park:
        edge = park.edges[0]
        number = park.edges[0].own[0]
        name = f"d{number}"
        assert until(lambda: edge.channel.session(number) is not None)
        known = edge.channel.session(number)
        said = Message("hello", name, session=known + 1, about={"device": number, "version": __version__})
        for signed in (None, broker, signer(tmp_path, name, OTHERS)):
            edge.channel.receive(mqtt.topic("trial", "status", name), encode(said, signed))
        assert edge.channel.session(number) == known
        assert edge.channel.filter.counts() == {name: {"signature": 3}}


def test_flowers_messages_are_signed_by_cloud_and_edge_as_well(tmp_path: Path) -> None:
    """What a SuperLink makes up gets an answer that answers none of the cloud's requests."""
    what = experiment(tmp_path, "fedavg", rounds=1)
    with live(tmp_path, what, ca=CA) as park:
        edge = park.edges[0]
        forged = Message("census", CLOUD, "live", 1, 5, 1, about={"devices": [0], "tick": 0}, receiver="e0")
        for signed in (None, signer(tmp_path, "n0")):
            answer = decode(edge.answer(encode(forged, signed)))
            assert (answer.kind, answer.answers) == ("refused", "")
        assert edge.filter.counts() == {CLOUD: {"signature": 2}}
        assert [line.lost for line in park.run()] == [0]


def test_a_stolen_device_key_speaks_for_that_device_alone(tmp_path: Path) -> None:
    """The thief signs with d0's key; all but answers of d0 is refused, under the sender that is claimed."""
    what = experiment(tmp_path, "fedavg", rounds=1)
    session = 5
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what, ca=CA) as park:
        home = next(edge for edge in park.edges.values() if 0 in edge.own)
        stolen = signer(tmp_path, "d0")
        station = home.settings.name
        other = park.agents[1]
        assert until(lambda: all(edge.channel.session(k) is not None for edge in park.edges.values() for k in (0, 1)))
        outbox = mqtt.topic("trial", "out", "d0", station)
        update = Message("update", "d0", "live", 1, session, 1, answers=f"{station}-1", receiver=station,
                         arrays={"w": np.zeros(4, np.float32)})  # fmt: skip
        home.channel.receive(outbox, encode(update, stolen))
        home.channel.receive(outbox, encode(replace(update, number=2, receiver="e9"), stolen))
        foreign = encode(replace(update, sender="d1"), stolen)
        home.channel.receive(outbox, foreign)
        home.channel.receive(mqtt.topic("trial", "out", "d1", station), foreign)
        gone = Message("gone", "d1", session=home.channel.session(1) or 0, about={"why": "the thief wants it so"})
        home.channel.receive(mqtt.topic("trial", "status", "d1"), encode(gone, stolen))
        assert home.channel.filter.counts() == {
            "d0": {"receiver": 1, "sender": 1, "unasked": 1}, "d1": {"signature": 2}
        }  # fmt: skip
        request = Message("visit", station, "live", 1, session, 1, receiver="d1", about={"to": other._session})
        other.receive(mqtt.topic("trial", "in", station, "d1"), encode(request, stolen))
        assert other.filter.counts() == {station: {"signature": 1}}
        order = Message("census", CLOUD, "live", 1, session, 1, about={"devices": [0], "tick": 0}, receiver=station)
        assert decode(home.answer(encode(order, stolen))).kind == "refused"
        assert home.filter.counts() == {CLOUD: {"signature": 1}}
        result = encode(replace(SENT, sender=station), stolen)
        assert MessageFilter(signer=signer(tmp_path, CLOUD)).take(result, station) is None
        got = park.run()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]


def test_an_update_under_a_stolen_key_is_bounded_as_any_of_that_device(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1)
    with live(tmp_path, what, ca=CA) as park:
        home = next(edge for edge in park.edges.values() if 0 in edge.own)
        usual = park.agents[0].reply

        def poisoned(edge: str, message: Message) -> Any:
            kind, about, arrays = usual(edge, message)
            return kind, about, {name: array + np.float32(1e20) for name, array in arrays.items()}

        park.agents[0].reply = poisoned  # type: ignore[method-assign]
        (line,) = park.run()
        assert home.channel.filter.counts() == {"d0": {"length": 1}}
    assert line.measured is not None
    assert (line.lost, set(line.measured["failed"])) == (1, {"d0"})
