"""The last two models on a device's disk, switched atomically by renaming a file, also against power cuts."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, shown
from fedfloor.base.ranges import RefusedError
from fedfloor.base.strict import json_text
from fedfloor.rollout.model import Model, load
from fedfloor.rollout.statement import CHUNK_BYTES, PURPOSE, Statement, opened

log = logging.getLogger(__name__)
KEPT = 2


@dataclass(frozen=True)
class Slots:
    """The stored models of a device.

    Args:
        folder: folder of the models, ``SHA256.onnx``, and of ``serving.json`` with their statements.
        network: name of the network in the device's experiment; None if there is none.
        statements: the received statements: of the model in use, and of the previous one.
    """

    folder: Path
    root: x509.Certificate
    park: str
    device: str
    network: str | None
    statements: tuple[bytes, ...] = ()

    def read(self) -> tuple[Slots, Model | None]:
        """Return the slots on the disk, and the model in use, or the previous model if it is damaged."""
        try:
            listed = json.loads(regular.read_bytes(self.folder / "serving.json"))
            kept = tuple(str(statement).encode() for statement in listed)[:KEPT]
        except FileNotFoundError:
            return self, None
        except (OSError, *MALFORMED) as error:
            log.error("%s cannot be read (%s): waiting for a release.", self.folder / "serving.json", error)
            return self, None
        for i, envelope in enumerate(kept):
            try:
                return replace(self, statements=kept[i:]), self.model(self.opened(envelope))
            except RefusedError as error:
                log.error("a stored model is refused: %s", shown(str(error), 400))
        return self, None

    def opened(self, envelope: bytes, purpose: str = PURPOSE) -> Statement:
        """Return the statement in an envelope; see :func:`~fedfloor.rollout.statement.opened`."""
        return opened(envelope, self.root, self.park, self.device, purpose)

    def check_network(self, statement: Statement) -> None:
        """Raise RefusedError for a network other than that of this device."""
        if self.network is not None and statement.network != self.network:
            version = f"version {statement.version} is network '{statement.network}'"
            raise RefusedError("network", f"{version}; the experiment of this device has '{self.network}'.")

    def path(self, sha256: str) -> Path:
        """Return the path of a model's file."""
        return self.folder / f"{sha256}.onnx"

    def has(self, statement: Statement) -> bool:
        """Return whether a model's file exists with the right size."""
        path = self.path(statement.sha256)
        return path.is_file() and path.stat().st_size == statement.size

    def model(self, statement: Statement) -> Model:
        """Return the loaded model of a statement; raise RefusedError if its bytes are not the signed ones."""
        self.check_network(statement)
        data = regular.read_bytes(self.path(statement.sha256)) if self.has(statement) else b""
        if hashlib.sha256(data).hexdigest() != statement.sha256:
            self.path(statement.sha256).unlink(missing_ok=True)
            which = f"version {statement.version}"
            raise RefusedError("hash", f"{which}: the model's bytes differ from the signed ones.")
        return load(data, statement, self.folder)

    def switched(self, envelope: bytes) -> Slots:
        """Return the slots after an atomic switch to another model, on the disk too."""
        sha256 = self.opened(envelope).sha256
        others = [one for one in self.statements if self.opened(one).sha256 != sha256]
        made = replace(self, statements=(envelope, *others)[:KEPT])
        part = self.folder / ".serving.part"
        part.write_text(json_text([one.decode() for one in made.statements]), encoding="utf-8")
        move(part, self.folder / "serving.json")
        made.tidy()
        return made

    def tidy(self, *more: Statement) -> None:
        """Delete all models except those of the stored statements and of ``more``."""
        kept = {f"{one.sha256}.onnx" for one in (*map(self.opened, self.statements), *more)}
        for path in self.folder.glob("*.onnx"):
            if path.name not in kept:
                path.unlink(missing_ok=True)


class Download:
    """The download of a model in pieces, which may arrive in any order."""

    def __init__(self, slots: Slots, envelope: bytes, statement: Statement) -> None:
        self.envelope = envelope
        self.statement = statement
        self._slots = slots
        self.missing = set(range(statement.pieces))
        slots.folder.mkdir(parents=True, exist_ok=True)
        self._part = slots.folder / ".model.part"
        self._part.write_bytes(b"")

    def add(self, piece: str, data: bytes) -> bool:
        """Add a piece; return whether the file is complete and stored under its name."""
        number = int(piece) if piece.isdecimal() and len(piece) < 8 else -1
        if number not in self.missing or not data:
            return False
        size = min(CHUNK_BYTES, self.statement.size - number * CHUNK_BYTES)
        if len(data) != size:
            raise RefusedError("hash", f"piece {number} has {len(data)} bytes; must be {size}.")
        with regular.opened(self._part, "r+b") as file:
            file.seek(number * CHUNK_BYTES)
            file.write(data)
        self.missing.discard(number)
        if not self.missing:
            move(self._part, self._slots.path(self.statement.sha256))
        return not self.missing


def move(part: Path, path: Path) -> None:
    """Flush a file to the disk, rename it, and flush the renaming."""
    for place in (part, path.parent):
        handle = os.open(place, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        if place == part:
            os.replace(part, path)
