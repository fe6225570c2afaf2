"""Messages between real machines: a header, and named arrays in safetensors format. Nothing is unpickled.

A message is ``b"FEDF"``, a version byte, the lengths of header and seal (uint32 and uint16, big-endian), the header
(JSON), the sender's seal (:mod:`fedfloor.deploy.signing`), and the arrays.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedfloor.base.ranges import RefusedError
from fedfloor.plan.nodes import ARRIVED, Work

if TYPE_CHECKING:
    from fedfloor.deploy.signing import Signer
    from fedfloor.models.network import Network
    from fedfloor.models.parcel import Parcel

VERSION = 2
MAGIC = b"FEDF"
START = struct.Struct(">4sBIH")
MOST_BYTES = 1 << 30  # largest message, unless its reader sets a lower limit
MOST_HEADER = 1 << 24  # largest header between cloud and edge, which holds the plan of a round
SHORT_HEADER = 1 << 20  # largest header between edge and device
STATUS_BYTES = 4096  # largest status message, which has no arrays
MOST_ARRAYS = 1 << 14  # most arrays between cloud and edge, as each device may send one
FEW_ARRAYS = 16  # most arrays from edge to device: the model, and tensors of the objective
ARRAY_HEADER = 512  # bytes per array in the header of safetensors
LENGTH = struct.Struct("<Q")  # bytes of the length before the header of safetensors
KINDS = {np.dtype(kind) for kind in (np.float32, np.float64, np.int64)}
CODED = np.dtype(np.uint8)  # types of the arrays of a model, also coded
TYPES: dict[str, type] = {
    "kind": str, "sender": str, "run": str, "round": int, "session": int, "number": int, "scope": str,
    "answers": str, "digest": str, "about": dict, "receiver": str,
}  # fmt: skip
Arrays = Mapping[str, NDArray[Any]]
Reply = tuple[str, dict[str, Any], dict[str, Any]]  # kind, about and arrays of an answer


@dataclass(frozen=True)
class Message:
    """A message between two processes of a park.

    Args:
        kind: ``visit``, ``update``, ``probe``, ``answer``, …
        sender: name of the sender.
        run: name of the run.
        round: number of the round.
        session: start time of the sender, ns; later sessions replace earlier ones.
        number: number of the message in the sender's session, against repetition and reordering.
        scope: the part of the model in the array ``w``.
        answers: :attr:`identity` of the answered message; "" if this is not an answer.
        about: further content, JSON.
        arrays: arrays by name.
        receiver: name of the receiver; "" for a status, which has many readers.
    """

    kind: str
    sender: str
    run: str = ""
    round: int = 0
    session: int = 0
    number: int = 0
    scope: str = "all"
    answers: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    receiver: str = ""

    @property
    def identity(self) -> str:
        """The text by which an answer refers to this message."""
        return f"{self.session}-{self.number}"


def encode(message: Message, signer: Signer | None = None) -> bytes:
    """Return the encoded bytes of a message.

    Args:
        signer: the sender's signer; None: the message is not signed.

    >>> sent = Message("update", "press-1", number=3, arrays={"w": np.ones(2, np.float32)})
    >>> decode(encode(sent)).arrays["w"]
    array([1., 1.], dtype=float32)
    """
    body = save({name: np.ascontiguousarray(one) for name, one in message.arrays.items()}) if message.arrays else b""
    fields = {name: one for name, one in vars(message).items() if name != "arrays"}
    header = json.dumps(fields | {"digest": hashlib.sha256(body).hexdigest()}, separators=(",", ":")).encode()
    seal = signer.sign(header) if signer else b""
    return b"".join((START.pack(MAGIC, VERSION, len(header), len(seal)), header, seal, body))


def decode(data: bytes, most: int = MOST_BYTES, header: int = MOST_HEADER, arrays: int = MOST_ARRAYS) -> Message:
    """Return the message encoded in bytes, after checking its integrity.

    Args:
        data: the encoded message.
        most: largest size in bytes.
        header: largest size of the header in bytes.
        arrays: the most arrays; a message with more is refused before any array is made.

    Raises:
        RefusedError: the data are too large, truncated, damaged, not a message or of another version, or hold too many
            arrays, arrays of another type or numbers that are not finite.
    """
    parts = split(data, most, header)
    digest = parts.header.pop("digest")
    if hashlib.sha256(parts.body).hexdigest() != digest:
        raise RefusedError("digest", "the arrays do not match the digest of the header.")
    return Message(**parts.header, arrays=read_arrays(parts.body, arrays))


@dataclass(frozen=True, eq=False)
class MessageParts:
    """The parts of a message: the bytes of its header, as signed, of the sender's seal, and of the arrays."""

    text: bytes
    seal: bytes
    body: memoryview

    @cached_property
    def header(self) -> dict[str, Any]:
        """The parsed header; raises RefusedError if it is malformed."""
        return read_header(self.text)

    @property
    def identity(self) -> str:
        """The :attr:`Message.identity` of the message."""
        return f"{self.header['session']}-{self.header['number']}"


def split(data: bytes, most: int = MOST_BYTES, header: int = MOST_HEADER) -> MessageParts:
    """Return a message's parts without parsing its header, which may be long.

    Raises:
        RefusedError: a size or the version is wrong.
    """
    if len(data) > most:
        raise RefusedError("oversized", f"{len(data)} bytes; at most {most} are accepted.")
    if len(data) < START.size:
        raise RefusedError("truncated", f"{len(data)} bytes are too few for a message.")
    magic, version, length, sealed = START.unpack_from(data)
    if magic != MAGIC:
        raise RefusedError("foreign", "it does not begin with the mark of fedfloor's messages.")
    if version != VERSION:
        raise RefusedError("version", f"protocol {version}; this side uses {VERSION}. Install one release on both.")
    if length > header:
        raise RefusedError("oversized", f"a header of {length} bytes; at most {header} are accepted.")
    seal = START.size + length
    if seal + sealed > len(data):
        raise RefusedError("truncated", f"a header of {length} bytes and a seal of {sealed} in {len(data)}.")
    text = data[START.size : seal]
    return MessageParts(text, data[seal : seal + sealed], memoryview(data)[seal + sealed :])


def read_header(text: bytes) -> dict[str, Any]:
    """Return the parsed header, with keys and types checked."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError("header", "it is not JSON.") from error
    if not isinstance(header, dict) or set(header) != set(TYPES):
        raise RefusedError("header", f"its keys are not {', '.join(TYPES)}.")
    for name, kind in TYPES.items():
        if type(header[name]) is not kind:
            raise RefusedError("header", f"{name} is not of type {kind.__name__}.")
    return header


def read_arrays(body: memoryview, most: int) -> dict[str, NDArray[Any]]:
    """Return a message's arrays by name, with their number, types and values checked."""
    if not body:
        return {}
    check_count(body, most)
    try:
        found: dict[str, NDArray[Any]] = load(bytes(body))
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise RefusedError("arrays", f"they cannot be read ({type(error).__name__}).") from error
    for name, one in found.items():
        if one.dtype not in KINDS and (one.dtype != CODED or not (name == "w" or name.isdecimal())):
            raise RefusedError("type", f"'{name}' has the type {one.dtype}, which is not accepted.")
        if one.dtype.kind == "f" and not bool(np.isfinite(one).all()):
            raise RefusedError("not finite", f"'{name}' holds infinite or undefined numbers.")
    return found


def check_count(body: memoryview, most: int) -> None:
    """Refuse more arrays than ``most``, by the header of safetensors alone.

    Raises:
        RefusedError: there are more arrays, or the header is too long for ``most`` arrays.
    """
    if most == 0:
        raise RefusedError("arrays", f"{len(body)} bytes of arrays; its kind has none.")
    if len(body) < LENGTH.size:
        raise RefusedError("arrays", f"{len(body)} bytes are too few for arrays.")
    (length,) = LENGTH.unpack_from(body)
    if length > most * ARRAY_HEADER:
        raise RefusedError(
            "arrays", f"their header has {length} bytes; {most} arrays need no more than {ARRAY_HEADER} each."
        )
    try:
        count = len(json.loads(bytes(body[LENGTH.size : LENGTH.size + length])))
    except (ValueError, RecursionError, TypeError) as error:
        raise RefusedError("arrays", "their header is not JSON.") from error
    if count > most:
        raise RefusedError("arrays", f"{count} arrays; at most {most} are accepted.")


def fits(arrays: Arrays, wanted: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
    """Refuse arrays other than the expected ones.

    Args:
        arrays: the received arrays.
        wanted: name → expected shape and type.

    Raises:
        RefusedError: a name, a shape or a type differs.
    """
    if set(arrays) != set(wanted):
        raise RefusedError("names", f"received {sorted(arrays)}, expected {sorted(wanted)}.")
    for name, (shape, kind) in wanted.items():
        got = arrays[name]
        if (got.shape, got.dtype) != (shape, kind):
            raise RefusedError(
                "shape", f"received '{name}' as {got.dtype} {list(got.shape)}, expected {kind} {list(shape)}."
            )


def check_visit(got: Arrays, network: Network, cut: Parcel, travels: Collection[str] = ()) -> None:
    """Check that the arrays of a visit are the network's model and the objective's own tensors ``travels``.

    Raises:
        RefusedError: an array is missing, unexpected, or of another shape or type.
    """
    if not {"w", *travels} <= set(got):
        raise RefusedError("names", f"received {sorted(got)}, expected w and {sorted(travels)}.")
    fits({"w": got["w"]}, cut.like({"w": network.flat}))


def returned(network: Network, work: Work, sent: Parcel) -> Parcel:
    """Return the part of the model in an update: the part sent to the device without its personal tensors.

    A personal model trained beside the received one is not returned.

    Args:
        sent: the part of the model sent to the device; the whole model at a first visit.
    """
    from fedfloor.engine.travel import VisitPath  # imports PyTorch, which devices load late

    if work.sends == ARRIVED:
        return network.parcel("nothing")
    return VisitPath(network, work).up if work.sends or work.travel else sent


def layout_digest(network: Network) -> str:
    """Return a digest of the names, shapes and offsets of a model's tensors, to compare two machines."""
    return digest_of(network.layout, network.flat.numpy().dtype)


def digest_of(layout: Mapping[str, tuple[int, int]], kind: np.dtype[Any]) -> str:
    """Return the digest of a model's layout by its tensors' places and type."""
    return hashlib.sha256(repr((sorted(layout.items()), kind.str)).encode()).hexdigest()[:16]
