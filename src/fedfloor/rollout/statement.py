"""Release statements, which assign a model to a device and are signed by the park's authority.

A device signs its judgement of a model, so that the relaying broker cannot forge one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cryptography import x509

from fedfloor.base.errors import MALFORMED
from fedfloor.base.ranges import COUNT, RefusedError, number, rows, table, whole
from fedfloor.base.strict import json_text
from fedfloor.deploy import authority
from fedfloor.deploy.authority import Authority
from fedfloor.deploy.settings import NAME
from fedfloor.deploy.signing import Signer

PURPOSE = "release"
TRIAL = "trial"  # purpose of a statement with which a device judges a model without using it
JUDGEMENT = b"fedfloor judgement\0"  # purpose of a device's signature of its judgement
SHA256 = re.compile(r"[0-9a-f]{64}")
MOST_BYTES = 1 << 28  # largest model
CHUNK_BYTES = 1 << 17  # size of a piece of a model, as brokers limit the size of messages
STATEMENT_BYTES = 1 << 18
CHANNELS = 1 << 13  # most channels whose mean and deviation a statement may hold
NETWORK_CHARS = 200


@dataclass(frozen=True)
class Statement:
    """The assignment of a model to a device.

    Args:
        number: number of the journal's entry of the assignment; a device refuses lower numbers than its last one.
        version: number of the version in the registry.
        network: name of the network, as in ``[model] name``.
        sha256, size: digest of the ONNX file, and its size in bytes.
        scale: means and deviations [C] of this device, if the model has them as inputs.
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
        """The number of pieces of the model."""
        return -(-self.size // CHUNK_BYTES)


def sealed(statement: Statement, by: Authority, purpose: str = PURPOSE) -> bytes:
    """Return the envelope of a statement with the authority's signature, as bytes."""
    text = json_text(asdict(statement))
    more = {} if purpose == PURPOSE else {"purpose": purpose}
    return json_text({"statement": text, "signature": authority.sign(by, purpose, text)} | more).encode()


def is_trial(data: bytes) -> bool:
    """Return whether an envelope claims to hold a statement for a trial."""
    try:
        return len(data) <= STATEMENT_BYTES and json.loads(data)["purpose"] == TRIAL
    except MALFORMED:
        return False


def opened(data: bytes, root: x509.Certificate, park: str, device: str, purpose: str = PURPOSE) -> Statement:
    """Return the statement in an envelope; raise RefusedError if it is not the authority's, or not for this device.

    Args:
        purpose: the required purpose of the signature.
    """
    if len(data) > STATEMENT_BYTES:
        raise RefusedError("oversized", f"a statement of {len(data)} bytes; at most {STATEMENT_BYTES} are accepted.")
    try:
        body = json.loads(data)
        text = body["statement"]
        signature = body["signature"]
        genuine = authority.signed(root, purpose, text, signature)
    except MALFORMED as error:
        raise RefusedError("form", "it is not a signed statement.") from error
    if not genuine:
        raise RefusedError("signature", "it was not signed by the park's authority.")
    made = _checked(table(json.loads(text), 20, "a statement"))
    if (made.park, made.device) != (park, device):
        raise RefusedError("device", f"it is for device '{made.device}' of park '{made.park}'.")
    return made


def attested(judgement: Mapping[str, Any], by: Signer) -> dict[str, str]:
    """Return a device's judgement with its signature, for a report."""
    text = json_text(judgement)
    return {"text": text, "seal": base64.b64encode(by.sign(text.encode(), JUDGEMENT)).decode()}


def judgement(attested: Mapping[str, Any], device: str, by: Signer) -> dict[str, Any]:
    """Return the verified judgement in a report.

    Args:
        by: a signer with the authority of the device's park.

    Raises:
        RefusedError: the signature is not the device's, or the judgement is not a table of texts and numbers.
    """
    text = attested.get("text")
    seal = attested.get("seal")
    if not isinstance(text, str) or not isinstance(seal, str):
        raise RefusedError("signature", "it is not signed.")
    try:
        by.check(base64.b64decode(seal, validate=True), text.encode(), device, JUDGEMENT)
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError("form", "it is not a signed judgement.") from error
    if not isinstance(body, dict) or any(isinstance(value, dict | list) for value in body.values()):
        raise RefusedError("form", "it is not a table of texts and numbers.")
    return body


def _checked(body: dict[str, Any]) -> Statement:
    if set(body) != set(Statement.__dataclass_fields__):
        raise RefusedError("form", "its keys are not those of this release. Install the same release of fedfloor.")
    for key in ("park", "device"):
        if not isinstance(body[key], str) or not NAME.fullmatch(body[key]):
            raise RefusedError("form", f"{key} is not a name.")
    network = body["network"]
    sha256 = body["sha256"]
    if not isinstance(network, str) or not 0 < len(network) <= NETWORK_CHARS or not network.isprintable():
        raise RefusedError("form", "network is not a name.")
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise RefusedError("form", "sha256 is not a digest.")
    whole(body["number"], 1, COUNT, "number")
    whole(body["version"], 1, COUNT, "version")
    whole(body["size"], 1, MOST_BYTES, "size")
    scale = body["scale"]
    if scale is not None:
        mean, deviation = (tuple(number(x, -1e30, 1e30, "scale") for x in rows(part, None, "scale")[:CHANNELS])
                           for part in rows(scale, 2, "scale"))  # fmt: skip
        if len(mean) != len(deviation) or not all(x > 0 for x in deviation):
            raise RefusedError("form", "scale does not hold means and positive deviations.")
        body["scale"] = (mean, deviation)
    return Statement(**body)
