"""The last two models of a device on its disk, and which is in use: one renaming switches, whenever power goes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509

from fedfloor.errors import shown
from fedfloor.ranges import RefusedError
from fedfloor.rollout.model import Model, load
from fedfloor.rollout.statement import CHUNK_BYTES, PURPOSE, Statement, opened

log = logging.getLogger(__name__)
KEPT = 2


@dataclass(frozen=True)
class Slots:
    """The models of a device.

    Args:
        folder: where they lie, ``SHA256.onnx`` each, beside ``serving.json`` with their statements.
        network: of the device's experiment; None: it names none.
        statements: as they were received; the first is of the model in use, the second of the one before.
    """

    folder: Path
    root: x509.Certificate
    park: str
    device: str
    network: str | None
    statements: tuple[bytes, ...] = ()

    def read(self) -> tuple[Slots, Model | None]:
        """Return the slots as they lie on the disk, and the model in use: the one before where that one is damaged."""
        try:
            kept = tuple(str(one).encode() for one in json.loads((self.folder / "serving.json").read_bytes()))[:KEPT]
        except FileNotFoundError:
            return self, None
        except (ValueError, TypeError, RecursionError, OSError) as error:
            log.error("%s cannot be read (%s): waiting for a release.", self.folder / "serving.json", error)
            return self, None
        for i, envelope in enumerate(kept):
            try:
                return replace(self, statements=kept[i:]), self.model(self.opened(envelope))
            except RefusedError as error:
                log.error("a model that was kept is refused: %s", shown(str(error), 400))
        return self, None

    def opened(self, envelope: bytes, purpose: str = PURPOSE) -> Statement:
        """Return the statement in an envelope; see :func:`~fedfloor.rollout.statement.opened`."""
        return opened(envelope, self.root, self.park, self.device, purpose)

    def check_network(self, statement: Statement) -> None:
        """Raise a RefusedError for another network than that of this device."""
        if self.network is not None and statement.network != self.network:
            version = f"version {statement.version} is network '{statement.network}'"
            raise RefusedError("network", f"{version}; the experiment of this device has '{self.network}'.")

    def path(self, sha256: str) -> Path:
        """Return where a model lies."""
        return self.folder / f"{sha256}.onnx"

    def has(self, statement: Statement) -> bool:
        """Return whether a model lies here, as far as its size shows."""
        path = self.path(statement.sha256)
        return path.is_file() and path.stat().st_size == statement.size

    def model(self, statement: Statement) -> Model:
        """Return the model of a statement; a RefusedError if its bytes are not those that were signed, or no model."""
        self.check_network(statement)
        data = self.path(statement.sha256).read_bytes() if self.has(statement) else b""
        if hashlib.sha256(data).hexdigest() != statement.sha256:
            self.path(statement.sha256).unlink(missing_ok=True)
            which = f"version {statement.version}"
            raise RefusedError("hash", f"{which}: the model's bytes are not those that were signed.")
        return load(data, statement, self.folder)

    def switched(self, envelope: bytes) -> Slots:
        """Use another model from now on; a process that is killed here leaves the old state or the new one."""
        sha256 = self.opened(envelope).sha256
        others = [one for one in self.statements if self.opened(one).sha256 != sha256]
        made = replace(self, statements=(envelope, *others)[:KEPT])
        part = self.folder / ".serving.part"
        part.write_text(json.dumps([one.decode() for one in made.statements]), encoding="utf-8")
        _move(part, self.folder / "serving.json")
        made.tidy()
        return made

    def tidy(self, *more: Statement) -> None:
        """Delete the models of no statement that is kept, or given."""
        kept = {f"{one.sha256}.onnx" for one in (*map(self.opened, self.statements), *more)}
        for path in self.folder.glob("*.onnx"):
            if path.name not in kept:
                path.unlink(missing_ok=True)


class Download:
    """A model that arrives in pieces, in any order."""

    def __init__(self, slots: Slots, envelope: bytes, statement: Statement) -> None:
        self.envelope, self.statement, self._slots = envelope, statement, slots
        self.missing = set(range(statement.pieces))
        slots.folder.mkdir(parents=True, exist_ok=True)
        self._part = slots.folder / ".model.part"
        self._part.write_bytes(b"")

    def add(self, piece: str, data: bytes) -> bool:
        """Take a piece; return whether the file is complete, and lies where it belongs."""
        number = int(piece) if piece.isdecimal() and len(piece) < 8 else -1
        if number not in self.missing or not data:
            return False
        size = min(CHUNK_BYTES, self.statement.size - number * CHUNK_BYTES)
        if len(data) != size:
            raise RefusedError("hash", f"piece {number} has {len(data)} bytes; {size} were signed.")
        with self._part.open("r+b") as file:
            file.seek(number * CHUNK_BYTES)
            file.write(data)
        self.missing.discard(number)
        if not self.missing:
            _move(self._part, self._slots.path(self.statement.sha256))
        return not self.missing


def _move(part: Path, path: Path) -> None:
    """Give a file its name once its bytes are on the disk, and put the name there, too."""
    for place in (part, path.parent):
        handle = os.open(place, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        if place == part:
            os.replace(part, path)
