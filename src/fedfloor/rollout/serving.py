"""The device's side of releases: it receives models, switches to them, predicts, and reports the version in use."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from fedfloor.base.checking import toml
from fedfloor.base.errors import SettingError, shown
from fedfloor.base.ranges import RefusedError
from fedfloor.base.strict import json_text
from fedfloor.deploy import released
from fedfloor.deploy.authority import certificate
from fedfloor.deploy.mqtt import MqttConnection, topic, topic_parts
from fedfloor.deploy.settings import DeviceSettings
from fedfloor.deploy.signing import Signer
from fedfloor.rollout import drift
from fedfloor.rollout.drift import Watch
from fedfloor.rollout.model import Model
from fedfloor.rollout.rows import Batch, InputRows
from fedfloor.rollout.slots import Download, Slots, move
from fedfloor.rollout.statement import TRIAL, Statement, attested, is_trial

log = logging.getLogger(__name__)
WAITING = 256  # messages in the queue of the thread for releases; a full queue blocks the connection
POLL_S = 0.2  # interval between two checks for new rows
UNACKNOWLEDGED = 256  # predictions not acknowledged by the broker, beyond which further rows wait
COUNT_S = 60.0  # interval between two counts of the sensors' rows
NO_LABELS = {"why": "it only predicts, and has no samples with labels."}
JUDGED = 16  # last trials whose judgements are kept
TOLD = 20  # refusals that are logged one by one; later only the 32nd, 64th, 128th, …


class Serving:
    """The releases received over ``link`` and the predictions of a device.

    Args:
        written: returns the number of rows in its sensor buffer so far; None if there is no buffer.
        judge: returns the metrics of a model and of the one in use on the device's samples, or ``why`` it cannot.
    """

    def __init__(
        self, settings: DeviceSettings, link: MqttConnection, written: Callable[[], int | None] = lambda: None,
        judge: Callable[[Model, Model | None], dict[str, Any]] = lambda *_: NO_LABELS,
    ) -> None:  # fmt: skip
        if settings.tls is None:
            raise SettingError("releases are signed by the park's authority: set ca, cert and key in [tls].")
        folder = settings.models
        self._tls = settings.tls
        folder.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self._link = link
        self._ended = Event()
        network = _network(settings.experiment)
        slots = Slots(folder, certificate(settings.tls.ca), settings.park, settings.name, network)
        self._slots, self._model = slots.read()
        self._released = settings.state / released.NAME
        self._least = max(released.read(settings.released), released.read(self._released))
        if self._model is not None:
            self._least = max(self._least, self._model.statement.number)
        self._kept = folder / "drift.json"
        self._watch = None if self._model is None else self._watching(self._model)
        self._download: Download | None = None
        self._judge = judge
        self._judgements: dict[Statement, Mapping[str, Any]] = {}  # of the last trials
        self._then: Callable[[bytes, Statement], None] = self._switch  # called when a download is complete
        self._rows = None if settings.predict is None else InputRows(settings.predict, folder / "rows.json")
        self._queue: queue.Queue[Callable[[], None]] = queue.Queue(WAITING)
        self._lacking: tuple[bytes, frozenset[str]] | None = None  # a release without its part; the parts then
        self._refusals = 0
        self._written = written
        self._rows_written = written()
        self._count_at = time.monotonic() + COUNT_S
        self._said: tuple[str, str, int | None] = ("empty", "", None)  # the last report
        self.topics = (topic(settings.park, "release", settings.name),)

    def heard(self, topic: str, payload: bytes) -> None:
        """Queue a message about releases; called in the connection's thread."""
        kind, names = topic_parts(topic)
        if kind == "release" and names == (self.settings.name,) and payload:
            self._queue.put(lambda: self._release(payload))
        elif kind == "model" and len(names) == 2:
            self._queue.put(lambda: self._piece(*names, payload))

    def joined(self) -> None:
        """Report the version in use; called after each connection."""
        self._queue.put(lambda: self._report("serving" if self._model else "empty"))

    def run(self) -> None:
        """Process releases and predict until :meth:`end` is called."""
        busy = False
        while not self._ended.is_set():
            try:
                busy = self._step(0.0 if busy else POLL_S)
            except OSError as error:  # a full disk: the model remains in use, and rows wait
                busy = False
                log.error("nothing can be written in %s: %s", self.settings.state, error)
                self._report("refused", f"disk: {error.strerror or error}")
                self._ended.wait(POLL_S)

    def _step(self, wait_s: float) -> bool:
        """Process a message, or predict if there is none; return whether there may be more rows."""
        self._count()
        self._repeat()
        try:
            self._queue.get(timeout=wait_s)()
        except queue.Empty:
            return self._predict()
        return True

    def _count(self) -> None:
        """Repeat the report at intervals if the sensors have written rows."""
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + COUNT_S
            before = self._rows_written
            self._rows_written = self._written()
            if self._rows_written != before:
                self._report(*self._said)

    def _repeat(self) -> None:
        """Retry a release that was refused for lack of a personal part after training has written one."""
        if self._lacking is not None and self._lacking[1] != self._parts():
            self._release(self._lacking[0])

    def _parts(self) -> frozenset[str]:
        """Return the names of the files of personal parts, each with the time of its last change."""
        found = set[str]()
        for path in self._slots.folder.glob("own-*.npy"):
            with contextlib.suppress(FileNotFoundError):  # training deletes the files of old runs
                found.add(f"{path.name} {path.stat().st_mtime_ns}")
        return frozenset(found)

    def end(self) -> None:
        """End :meth:`run`."""
        self._ended.set()

    def _release(self, envelope: bytes) -> None:
        number = 0
        try:
            if is_trial(envelope):
                self._try(envelope)
                return
            statement = self._slots.opened(envelope)
            self._lacking = None
            number = statement.number
            current = None if self._model is None else self._model.statement
            if number < self._least:
                raise RefusedError("replayed", f"it is entry {number} of the journal, not after {self._least}.")
            if statement == current:
                self._report("serving")
            elif self._download is None or self._download.statement != statement:
                self._take(envelope, statement)
        except RefusedError as error:
            self._refuse(error, number)

    def _take(self, envelope: bytes, statement: Statement) -> None:
        """Switch to a release, at once if its model is stored here, otherwise after a download."""
        self._slots.check_network(statement)
        self._forget()
        if self._slots.has(statement):
            self._switch(envelope, statement)
            return
        self._report("fetching", number=statement.number)
        self._fetch(envelope, statement, self._switch)

    def _fetch(self, envelope: bytes, statement: Statement, then: Callable[[bytes, Statement], None]) -> None:
        self._download = Download(self._slots, envelope, statement)
        self._then = then
        self._link.subscribe([self._pieces(statement)])

    def _try(self, envelope: bytes) -> None:
        """Judge an unreleased model after its download; a release takes precedence."""
        statement = self._slots.opened(envelope, TRIAL)
        newest = max((one.number for one in self._judgements), default=0)
        if statement.number < max(self._least, newest):
            self._warn(f"a trial of version {statement.version} is older than the last release or trial: ignored")
            return
        if statement in self._judgements:  # a broker may repeat it any number of times
            self._say_judged(statement, self._judgements[statement])
            return
        if self._download is not None and self._then == self._switch:
            self._say_judged(statement, {"why": "it is receiving a release."})
            return
        self._forget()
        self._slots.tidy(statement)
        if self._slots.has(statement):
            self._judged(envelope, statement)
        else:
            self._fetch(envelope, statement, self._judged)

    def _judged(self, envelope: bytes, statement: Statement) -> None:
        """Publish the metrics of a stored model and of the one in use."""
        del envelope
        try:
            found = self._judge(self._slots.model(statement), self._model)
        except RefusedError as error:
            found = {"why": str(error)[:200]}
        log.info("version %d was judged: %s", statement.version, found)
        self._judgements[statement] = found
        if len(self._judgements) > JUDGED:
            del self._judgements[next(iter(self._judgements))]
        self._say_judged(statement, found)

    def _say_judged(self, statement: Statement, found: Mapping[str, Any]) -> None:
        try:
            signer = Signer(self._tls, self.settings.name)
        except SettingError as error:  # the key is missing: predictions continue
            log.error("no judgement can be signed: %s", error)
            return
        about = {"sha256": statement.sha256, "number": statement.number, **found}
        about["used"] = None if self._model is None else self._model.statement.version
        body = json.loads(self._body()) | {"judged": attested(about, signer)}
        self._link.publish(topic(self.settings.park, "serving", self.settings.name), json_text(body).encode())

    def _piece(self, sha256: str, piece: str, data: bytes) -> None:
        download = self._download
        if download is None or download.statement.sha256 != sha256:
            return
        try:
            if download.add(piece, data):
                self._forget()
                self._then(download.envelope, download.statement)
        except RefusedError as error:
            self._forget()
            if self._then == self._switch:
                self._refuse(error, download.statement.number)
            else:
                self._say_judged(download.statement, {"why": str(error)[:200]})

    def _switch(self, envelope: bytes, statement: Statement) -> None:
        """Use a stored model: load it, run it on a trial, then switch between two rows by renaming a file."""
        parts = self._parts()  # before the switch
        try:
            model = self._slots.model(statement)
        except RefusedError as error:
            self._lacking = (envelope, parts) if error.reason == "own" else None
            raise
        self._slots = self._slots.switched(envelope)
        self._least = max(self._least, statement.number)
        part = self._released.with_name(f".{released.NAME}.part")
        part.write_bytes(released.text(self._least))
        move(part, self._released)
        self._model, self._watch = model, self._watching(model)
        log.info("version %d is in use: network '%s'", statement.version, statement.network)
        self._report("serving")

    def _watching(self, model: Model) -> Watch:
        """Return the drift detector of a model's inputs, stored or new."""
        training = drift.reference(model.levels, model.shape[0])
        return drift.load(self._kept, model.statement.version, training)

    def _forget(self) -> None:
        """Abandon the current download."""
        if self._download is not None:
            self._link.unsubscribe([self._pieces(self._download.statement)])
            self._download = None

    def _pieces(self, statement: Statement) -> str:
        return topic(self.settings.park, "model", statement.sha256, "+")

    def _refuse(self, error: RefusedError, number: int) -> None:
        self._warn(f"refused a release: {error}")
        self._report("refused", str(error), number)

    def _warn(self, text: str) -> None:
        """Log a line about a message, unless there are so many that they could fill the disk."""
        self._refusals += 1
        if self._refusals <= TOLD or self._refusals.bit_count() == 1:
            log.warning("%s (%d so far)", shown(text, 400), self._refusals)

    def _report(self, state: str, why: str = "", number: int | None = None) -> None:
        """Publish the version in use, and the number of the fetched or refused release; 0 for an unsigned release."""
        self._said = state, why, number
        self._link.publish(topic(self.settings.park, "serving", self.settings.name), self._body(), retain=True)

    def _body(self) -> bytes:
        state, why, number = self._said
        used = None if self._model is None else self._model.statement
        return report(self.settings.name, state, used, why, number, self._drifted(), self._rows_written)

    def _predict(self) -> bool:
        """Publish the answers for the next rows; return False if there were none."""
        model = self._model
        rows = self._rows
        if model is None or rows is None or self._link.unacknowledged > UNACKNOWLEDGED:
            return False
        batch = rows.next(model)
        if batch is not None:
            bodies = _answers(model, batch)
            for body in bodies:
                data = json_text(body).encode()
                self._link.publish(topic(self.settings.park, "predictions", self.settings.name), data)
                if body.get("alarm"):
                    self._link.publish(topic(self.settings.park, "alarms", self.settings.name), data)
            self._look(batch, bodies)
            rows.commit(batch)
        return batch is not None

    def _look(self, batch: Batch, bodies: Sequence[Mapping[str, Any]]) -> None:
        """Update the drift detector with predictions; report and publish an alarm that begins or ends."""
        if self._watch is None or self._model is None:
            return
        before = self._drifted()
        blocks = self._watch.inputs.blocks
        self._watch = self._watch.after(batch.x, [drift.doubt(body) for body in bodies])
        if self._watch.inputs.blocks > blocks:
            drift.keep(self._watch, self._kept)
        now = self._drifted()
        if now != before:
            log.warning("drift: %s", ", ".join(now) or "ended")
            about = {"version": self._watch.version, "file": batch.file, "rows": list(batch.rows[-1]), "drift": now}
            self._link.publish(topic(self.settings.park, "alarms", self.settings.name), json_text(about).encode())
            self._report("serving")

    def _drifted(self) -> list[str]:
        if self._watch is None or self._model is None:
            return []
        return self._watch.words(self._model.about.get("columns", ()))


def report(
    device: str, state: str, used: Statement | None, why: str = "", number: int | None = None,
    drifted: Sequence[str] = (), written: int | None = None,
) -> bytes:  # fmt: skip
    """Return a device's report as JSON, on the release ``number`` or, by default, on that in ``used``."""
    known = None if used is None else used.number
    body: dict[str, Any] = {
        "device": device,
        "state": state,
        "why": why[:400],
        "number": known if number is None else number,
    }
    body |= {"version": None if used is None else used.version, "sha256": None if used is None else used.sha256}
    body |= {"drift": [text[:100] for text in drifted[:20]], "rows": written}
    return json_text(body).encode()


def _answers(model: Model, batch: Batch) -> list[dict[str, Any]]:
    """Return an answer for each sample: ``missing`` if it lacks values and the training samples did not."""
    whole = np.ones(len(batch.x), np.bool_)
    if model.kind is np.float32 and model.about.get("missing") != "mean":
        whole = ~np.isnan(batch.x.reshape(len(batch.x), -1)).any(axis=1)
    found = iter(model.answers(batch.x[whole]) if whole.any() else ())
    common = {"version": model.statement.version, "file": batch.file}
    return [
        common | {"rows": list(place)} | (next(found) if is_whole else {"missing": True})
        for place, is_whole in zip(batch.rows, whole, strict=True)
    ]


def _network(experiment: Path) -> str | None:
    """Return the name of the network in a device's experiment file; None without one."""
    model = toml(experiment, "experiment").get("model")
    name = model.get("name") if isinstance(model, dict) else None
    return name if isinstance(name, str) else None
