"""Delivery of releases: statements and models to the base stations' brokers, and the reports of devices."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from filelock import FileLock, Timeout

from fedfloor.base.errors import MALFORMED, RunError, shown
from fedfloor.base.ranges import COUNT, RefusedError
from fedfloor.deploy import authority
from fedfloor.deploy.authority import Authority, Holder
from fedfloor.deploy.checks import printable
from fedfloor.deploy.mqtt import MqttConnection, topic, topic_parts
from fedfloor.deploy.park_file import RELEASES
from fedfloor.deploy.settings import EdgeSettings, Tls
from fedfloor.deploy.signing import REVOKED, Signer
from fedfloor.rollout.registry import Registry
from fedfloor.rollout.statement import CHUNK_BYTES, judgement, sealed

LOCK = Path("registry/.lock")
TURN_S = 60.0  # longest wait for another command's release
SENT_S = 10.0  # shortest wait for a broker to answer and acknowledge, however short the wait for reports
REPORT_BYTES = 1 << 14
STATES = ("serving", "fetching", "refused", "empty", "gone")


@dataclass(frozen=True)
class Report:
    """A device's last report: its state for entry ``number`` of the journal, the version in use, drifting quantities,
    and the number of rows in its sensor buffer, if there is one; ``judged`` is the received judgement of a model, if
    there is one, whose signature is not checked yet."""

    state: str
    number: int | None
    version: int | None
    why: str
    after_s: float
    drift: tuple[str, ...] = ()
    rows: int | None = None
    judged: Mapping[str, Any] | None = None


@dataclass
class Station:
    """A command's connection to the broker of a base station.

    Args:
        signer: the command's signer, which checks the devices' signatures.

    Attributes:
        judged: device → its signed judgement of a model.
        refused: device → reason for the refusal of its judgement.
    """

    edge: EdgeSettings
    link: MqttConnection
    signer: Signer
    reports: dict[str, Report] = field(default_factory=dict)
    judged: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    there: Event = field(default_factory=Event)
    began: float = field(default_factory=time.monotonic)

    def heard(self, topic: str, payload: bytes) -> None:
        """Store the report of a device of this station; ignore other messages."""
        kind, names = topic_parts(topic)
        report = read_report(payload, time.monotonic() - self.began)
        known = any(names == (one.name,) for one in self.edge.devices)
        if kind == "serving" and known and report is not None:
            self.reports[names[0]] = report
            if report.judged is not None:
                try:
                    self.judged[names[0]] = judgement(report.judged, names[0], self.signer)
                except RefusedError as error:
                    self.refused[names[0]] = printable(f"refused: {error}")

    def publish(self, sha256: str, data: bytes) -> None:
        """Publish the pieces of a model as retained messages."""
        for i in range(0, len(data), CHUNK_BYTES):
            piece = topic(self.edge.park, "model", sha256, i // CHUNK_BYTES)
            self.link.publish(piece, data[i : i + CHUNK_BYTES], retain=True)

    def withdraw(self, sha256: str, pieces: int) -> None:
        """Delete the retained pieces of a model from the broker."""
        for i in range(pieces):
            self.link.publish(topic(self.edge.park, "model", sha256, i), b"", retain=True)


def read_report(payload: bytes, after_s: float = 0.0) -> Report | None:
    """Return the report in a device's message, received ``after_s``; None if it is malformed."""
    if len(payload) > REPORT_BYTES:
        return None
    try:
        body = json.loads(payload)
        state, number, version, why = (body[key] for key in ("state", "number", "version", "why"))
        drift = body.get("drift", [])
        rows = body.get("rows")
        judged = body.get("judged")
    except MALFORMED:
        return None
    texts = isinstance(drift, list) and all(isinstance(text, str) for text in (why, *drift))
    counts = all(x is None or (type(x) is int and 0 <= x <= COUNT) for x in (number, version, rows))
    fits = state in STATES and texts and counts and isinstance(judged, dict | None)
    return Report(state, number, version, why, after_s, tuple(drift), rows, judged) if fits else None


@contextmanager
def stations(edges: Sequence[EdgeSettings], ca: Authority, place: Path) -> Iterator[list[Station]]:
    """Connect to the brokers of base stations, with a certificate that the authority issues for this command.

    A broker keeps one connection per name, so that commands take turns. Brokers that do not answer are not ``there``.
    """
    with ExitStack() as stack:
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / LOCK).parent.mkdir(exist_ok=True)
        try:
            stack.enter_context(FileLock(place / LOCK, timeout=TURN_S))
        except Timeout:
            raise RunError(f"another command still releases models after {TURN_S:.0f} s: retry later.") from None
        cert, key = authority.issue(ca, Holder(RELEASES), 1, authority.now())
        tls = Tls(keys / "ca.crt", keys / "releases.crt", keys / "releases.key")
        for path, text in zip((tls.ca, tls.cert, tls.key), (ca.pem()[0], cert, key), strict=True):
            path.touch(0o600)
            path.write_bytes(text)
        for revoked in [path for edge in edges if (path := place / "factories" / edge.name / REVOKED).exists()]:
            shutil.copy(revoked, keys / REVOKED)  # the same for all stations
        signer = Signer(tls, RELEASES)
        made = [Station(edge, MqttConnection(RELEASES, edge.broker, tls), signer) for edge in edges]
        for one in made:
            one.link.start([topic(one.edge.park, "serving", "+")], one.heard, one.there.set)
            stack.callback(one.link.stop)
        until = time.monotonic() + SENT_S
        for one in made:
            one.there.wait(max(0.0, until - time.monotonic()))
        yield made


def deliver(
    registry: Registry, devices: Sequence[str], wait_s: float, before: Registry | None = None, *, send: bool = True
) -> list[dict[str, Any]]:
    """Send devices their releases, and return a row with the report of each device.

    Args:
        wait_s: longest wait for reports.
        before: the registry before the release; models that a factory no longer uses are withdrawn.
        send: whether releases are sent; if not, reports are only read.

    Raises:
        RunError: a broker does not allow the publication of models.
    """
    edges = [edge for edge in registry.floor if any(one.name in devices for one in edge.devices)]
    with stations(edges, registry.ca, registry.place) as all_of_them:
        for station in all_of_them:
            if send and station.there.is_set():
                _send(registry, station, [one.name for one in station.edge.devices if one.name in devices], before)
        began = time.monotonic()
        while not all(_done(registry, one, devices, time.monotonic() - began - wait_s) for one in all_of_them):
            time.sleep(0.02)
        if refusing := [one.edge.name for one in all_of_them if one.link.forbidden]:
            raise RunError(
                f"the broker of {', '.join(refusing)} does not let '{RELEASES}' publish: provision the park again with "
                "this version, copy acl there, and systemctl reload fedfloor-broker. Then fedfloor model list --send."
            )
        return [_row(registry, station, device) for station in all_of_them
                for device in (one.name for one in station.edge.devices) if device in devices]  # fmt: skip


def _send(registry: Registry, station: Station, devices: Sequence[str], before: Registry | None) -> None:
    """Publish statements and models of a factory's devices as retained messages, and withdraw unused models."""
    station.began = time.monotonic()
    statements = {device: registry.statement(device) for device in devices if device in registry.used}
    for device, statement in statements.items():
        station.link.publish(topic(registry.park, "release", device), sealed(statement, registry.ca), retain=True)
    for sha256 in dict.fromkeys(one.sha256 for one in statements.values()):
        station.publish(sha256, registry.data(sha256))
    used = files(registry, station.edge)
    for sha256, pieces in ({} if before is None else files(before, station.edge)).items():
        if sha256 not in used:
            station.withdraw(sha256, pieces)


def files(registry: Registry, edge: EdgeSettings) -> Mapping[str, int]:
    """Return the models assigned to the devices of a factory: digest → number of pieces."""
    statements = [registry.statement(one.name) for one in edge.devices if one.name in registry.used]
    return {one.sha256: one.pieces for one in statements}


def _done(registry: Registry, station: Station, devices: Sequence[str], late_s: float) -> bool:
    """Return whether the wait for a station is over, ``late_s`` after the wait for reports."""
    if station.link.unacknowledged and late_s < SENT_S:
        return False
    mine = [one.name for one in station.edge.devices if one.name in devices and one.name in registry.used]
    final = all(_row(registry, station, one)["state"] in ("serving", "refused") for one in mine)
    return late_s >= 0 or final or not station.there.is_set()


def _row(registry: Registry, station: Station, device: str) -> dict[str, Any]:
    """Return a device's row; its state is for its assigned release, ``waiting`` without a report on that release."""
    use = registry.used.get(device)
    report = station.reports.get(device)
    row: dict[str, Any] = {"device": device, "factory": station.edge.name, "version": use and use.version}
    row |= {"state": "waiting", "runs": report and report.version, "seconds": None, "why": None, "drift": None}
    if report is not None and report.drift:
        row["drift"] = shown(", ".join(report.drift), 400)[1:-1]
    if not station.there.is_set():
        return row | {"state": "unreachable", "why": f"broker {station.edge.broker} did not answer"}
    if use is None:
        return row | {"state": "none" if report is None else report.state}
    if report is not None and (report.state == "gone" or report.number == use.number):
        row |= {"state": report.state, "seconds": round(report.after_s, 2), "why": shown(report.why)[1:-1] or None}
    return row
