"""Release statements: which model one device shall use, signed by the park's authority; and the topics of releases.

A device's judgement of a model is signed by the device, so that the broker that relays it makes up none.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cryptography import x509

from fedfloor.deploy import authority
from fedfloor.deploy.authority import Authority
from fedfloor.deploy.mqtt import ROOT
from fedfloor.deploy.settings import NAME
from fedfloor.deploy.signing import Signer
from fedfloor.ranges import COUNT, RefusedError, number, rows, table, whole

PURPOSE = "release"
TRIAL = "trial"  # the purpose of a statement by which a device judges a model, and does not use it
JUDGEMENT = b"fedfloor judgement\0"  # the purpose of a device's signature of its judgement
SHA256 = re.compile(r"[0-9a-f]{64}")
MOST_BYTES = 1 << 28  # of a model
CHUNK_BYTES = 1 << 17  # of a model's piece: a topic keeps one message, and a broker takes none of any size
STATEMENT_BYTES = 1 << 18
CHANNELS = 1 << 13  # of a sample, whose mean and deviation a statement may hold
NETWORK_CHARS = 200


def topic(park: str, kind: str, *names: str | int) -> str:
    """Return a topic: ``release/DEVICE``, ``model/SHA256/PIECE``; ``serving``, ``predictions`` or ``alarms/DEVICE``."""
    return "/".join((ROOT, park, kind, *map(str, names)))


@dataclass(frozen=True)
class Statement:
    """Which model a device shall use.

    Args:
        number: of the journal's entry that decided it; a device takes none below that of its last one.
        version: of the registry.
        network: as in ``[model] name``.
        sha256, size: of the ONNX file; size in bytes.
        scale: means and deviations [C] of this device, where a model takes them as inputs.
    """

    park: str
    device: str
    number: int
    version: int
    network: str
    sha256: str
    size: int
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def pieces(self) -> int:
        """In how many pieces the model is sent."""
        return -(-self.size // CHUNK_BYTES)


def sealed(statement: Statement, by: Authority, purpose: str = PURPOSE) -> bytes:
    """Return a statement with the authority's signature, as it is sent and kept."""
    text = json.dumps(asdict(statement))
    more = {} if purpose == PURPOSE else {"purpose": purpose}
    return json.dumps({"statement": text, "signature": authority.sign(by, purpose, text)} | more).encode()


def is_trial(data: bytes) -> bool:
    """Return whether an envelope claims to hold a statement by which a model is judged."""
    try:
        return len(data) <= STATEMENT_BYTES and json.loads(data)["purpose"] == TRIAL
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def opened(data: bytes, root: x509.Certificate, park: str, device: str, purpose: str = PURPOSE) -> Statement:
    """Return the statement that bytes hold; a RefusedError if it is not the authority's, or not for this device.

    Args:
        purpose: for which it must be signed.
    """
    if len(data) > STATEMENT_BYTES:
        raise RefusedError("oversized", f"a statement of {len(data)} bytes; at most {STATEMENT_BYTES} are taken.")
    try:
        body = json.loads(data)
        text, signature = body["statement"], body["signature"]
        genuine = authority.signed(root, purpose, text, signature)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RefusedError("form", "it is no signed statement.") from error
    if not genuine:
        raise RefusedError("signature", "the park's authority did not sign it.")
    made = _checked(table(json.loads(text), 20, "a statement"))
    if (made.park, made.device) != (park, device):
        raise RefusedError("device", f"it is for device '{made.device}' of park '{made.park}'.")
    return made


def attested(judgement: Mapping[str, Any], by: Signer) -> dict[str, str]:
    """Return a device's judgement with its signature, as its report holds it."""
    text = json.dumps(judgement)
    return {"text": text, "seal": base64.b64encode(by.sign(text.encode(), JUDGEMENT)).decode()}


def judgement(attested: Mapping[str, Any], device: str, by: Signer) -> dict[str, Any]:
    """Return the judgement that a report holds.

    Args:
        by: whose park's authority must have certified the device.

    Raises:
        RefusedError: the device did not sign it, or it is no table of texts and numbers.
    """
    text, seal = attested.get("text"), attested.get("seal")
    if not isinstance(text, str) or not isinstance(seal, str):
        raise RefusedError("signature", "it is not signed.")
    try:
        by.check(base64.b64decode(seal, validate=True), text.encode(), device, JUDGEMENT)
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError("form", "it is no signed judgement.") from error
    if not isinstance(body, dict) or any(isinstance(value, dict | list) for value in body.values()):
        raise RefusedError("form", "it is no table of texts and numbers.")
    return body


def _checked(body: dict[str, Any]) -> Statement:
    if set(body) != set(Statement.__dataclass_fields__):
        raise RefusedError("form", "its keys are not those of this release. Install the same release of fedfloor.")
    for key in ("park", "device"):
        if not isinstance(body[key], str) or not NAME.fullmatch(body[key]):
            raise RefusedError("form", f"{key} is no name.")
    network, sha256 = body["network"], body["sha256"]
    if not isinstance(network, str) or not 0 < len(network) <= NETWORK_CHARS or not network.isprintable():
        raise RefusedError("form", "network is no name.")
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise RefusedError("form", "sha256 is no digest.")
    whole(body["number"], 1, COUNT, "number")
    whole(body["version"], 1, COUNT, "version")
    whole(body["size"], 1, MOST_BYTES, "size")
    scale = body["scale"]
    if scale is not None:
        mean, deviation = (tuple(number(x, -1e30, 1e30, "scale") for x in rows(part, None, "scale")[:CHANNELS])
                           for part in rows(scale, 2, "scale"))  # fmt: skip
        if len(mean) != len(deviation) or not all(x > 0 for x in deviation):
            raise RefusedError("form", "scale holds no means with deviations above 0.")
        body["scale"] = (mean, deviation)
    return Statement(**body)
