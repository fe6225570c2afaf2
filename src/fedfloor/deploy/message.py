"""Messages between real machines: a header, and named arrays as safetensors. Nothing is ever unpickled.

A message is ``b"FEDF"``, a version byte, the lengths of header and seal (uint32 and uint16, big-endian), the header
(JSON), the sender's seal (:mod:`fedfloor.deploy.signing`), and the arrays.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedfloor.plan.nodes import ARRIVED, Work
from fedfloor.ranges import RefusedError

if TYPE_CHECKING:
    from fedfloor.deploy.signing import Signer
    from fedfloor.models.network import Network
    from fedfloor.models.parcel import Parcel
    from fedfloor.parts.objective import Objective

VERSION = 2
MAGIC = b"FEDF"
START = struct.Struct(">4sBIH")
MOST_BYTES = 1 << 30  # of a whole message, unless its reader allows less
MOST_HEADER = 1 << 24  # between cloud and edge, where a round's whole plan stands in it
SHORT_HEADER = 1 << 20  # between edge and device: one visit, one answer
STATUS_BYTES = 4096  # of a whole status message, which holds no arrays
MOST_ARRAYS = 1 << 14  # between cloud and edge, where each device may have answered with one
FEW_ARRAYS = 16  # from edge to device: the model, and what an objective reads beside it
ARRAY_HEADER = 512  # bytes of safetensors' header for each array
LENGTH = struct.Struct("<Q")  # of safetensors' header, before it
KINDS = {np.dtype(kind) for kind in (np.float32, np.float64, np.int64)}
CODED = np.dtype(np.uint8)  # of a model, or of a branch's, as codecs make it
TYPES: dict[str, type] = {
    "kind": str, "sender": str, "run": str, "round": int, "session": int, "number": int, "scope": str,
    "answers": str, "digest": str, "about": dict, "receiver": str,
}  # fmt: skip
Arrays = Mapping[str, NDArray[Any]]
Reply = tuple[str, dict[str, Any], dict[str, Any]]  # kind, about, arrays of an answer


@dataclass(frozen=True)
class Message:
    """One message.

    Args:
        kind: ``visit``, ``update``, ``probe``, ``answer``, …
        sender: name of the sender.
        run: which run it belongs to.
        round: which round.
        session: when its sender started, ns; later sessions replace earlier ones.
        number: counts the sender's messages in its session, so that none is taken twice or out of order.
        scope: the part of the model that ``w`` holds.
        answers: :attr:`identity` of the message that this one answers.
        about: everything else, JSON.
        arrays: by name.
        receiver: name of the receiver; "" of a status, which all read.
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
        """The text by which an answer names this message."""
        return f"{self.session}-{self.number}"


def encode(message: Message, signer: Signer | None = None) -> bytes:
    """Return a message as bytes.

    Args:
        signer: the sender's, which signs it.

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
    """Return the message that bytes hold, once it is known to be whole.

    Args:
        data: the message's bytes.
        most: the most bytes that are taken.
        header: of these, of the header.
        arrays: the most arrays; a message with more is refused before any is made.

    Raises:
        RefusedError: it is too large, cut short, no message, of another version, damaged, or holds too many arrays,
            arrays of another type or numbers that are not finite.
    """
    parts = split(data, most, header)
    digest = parts.header.pop("digest")
    if hashlib.sha256(parts.body).hexdigest() != digest:
        raise RefusedError("digest", "the arrays do not match the digest of the header.")
    return Message(**parts.header, arrays=read_arrays(parts.body, arrays))


@dataclass(frozen=True, eq=False)
class MessageParts:
    """A message's parts: its header as it was signed, the sender's seal, and the bytes of the arrays."""

    text: bytes
    seal: bytes
    body: memoryview

    @cached_property
    def header(self) -> dict[str, Any]:
        """The header, read when it is first needed; a RefusedError where it is none."""
        return read_header(self.text)

    @property
    def identity(self) -> str:
        """The :attr:`Message.identity`."""
        return f"{self.header['session']}-{self.header['number']}"


def split(data: bytes, most: int = MOST_BYTES, header: int = MOST_HEADER) -> MessageParts:
    """Return a message's parts; its header, which may be long, is not read yet.

    Raises:
        RefusedError: as :func:`decode`, of sizes and version.
    """
    if len(data) > most:
        raise RefusedError("oversized", f"{len(data)} bytes; at most {most} are taken.")
    if len(data) < START.size:
        raise RefusedError("truncated", f"{len(data)} bytes are no message.")
    magic, version, length, sealed = START.unpack_from(data)
    if magic != MAGIC:
        raise RefusedError("foreign", "it does not begin as our messages do.")
    if version != VERSION:
        raise RefusedError("version", f"protocol {version}; this side uses {VERSION}. Install the same release.")
    if length > header:
        raise RefusedError("oversized", f"a header of {length} bytes; at most {header} are taken.")
    seal = START.size + length
    if seal + sealed > len(data):
        raise RefusedError("truncated", f"a header of {length} bytes and a seal of {sealed} in {len(data)}.")
    text = data[START.size : seal]
    return MessageParts(text, data[seal : seal + sealed], memoryview(data)[seal + sealed :])


def read_header(text: bytes) -> dict[str, Any]:
    """Return a header, whose keys and types are checked."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError("header", "it is no JSON.") from error
    if not isinstance(header, dict) or set(header) != set(TYPES):
        raise RefusedError("header", f"its keys are not {', '.join(TYPES)}.")
    for name, kind in TYPES.items():
        if type(header[name]) is not kind:
            raise RefusedError("header", f"{name} is no {kind.__name__}.")
    return header


def read_arrays(body: memoryview, most: int) -> dict[str, NDArray[Any]]:
    """Return a message's arrays, whose number, types and values are checked."""
    if not body:
        return {}
    check_count(body, most)
    try:
        found: dict[str, NDArray[Any]] = load(bytes(body))
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise RefusedError("arrays", f"they cannot be read ({type(error).__name__}).") from error
    for name, one in found.items():
        if one.dtype not in KINDS and (one.dtype != CODED or not (name == "w" or name.isdecimal())):
            raise RefusedError("type", f"'{name}' is {one.dtype}.")
        if one.dtype.kind == "f" and not bool(np.isfinite(one).all()):
            raise RefusedError("not finite", f"'{name}' holds infinite or undefined numbers.")
    return found


def check_count(body: memoryview, most: int) -> None:
    """Refuse more arrays than ``most``, by safetensors' header alone.

    Raises:
        RefusedError: there are more, or the header is longer than that of so many arrays.
    """
    if most == 0:
        raise RefusedError("arrays", f"{len(body)} bytes of arrays; its kind has none.")
    if len(body) < LENGTH.size:
        raise RefusedError("arrays", f"{len(body)} bytes are no arrays.")
    (length,) = LENGTH.unpack_from(body)
    if length > most * ARRAY_HEADER:
        raise RefusedError(
            "arrays", f"their header has {length} bytes; {most} arrays need no more than {ARRAY_HEADER} each."
        )
    try:
        count = len(json.loads(bytes(body[LENGTH.size : LENGTH.size + length])))
    except (ValueError, RecursionError, TypeError) as error:
        raise RefusedError("arrays", "their header is no JSON.") from error
    if count > most:
        raise RefusedError("arrays", f"{count} arrays; at most {most} are taken.")


def fits(arrays: Arrays, wanted: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
    """Refuse arrays other than the expected ones.

    Args:
        arrays: those that arrived.
        wanted: name → shape and type.

    Raises:
        RefusedError: a name, a shape or a type is another one.
    """
    if set(arrays) != set(wanted):
        raise RefusedError("names", f"{sorted(arrays)} came; {sorted(wanted)} are expected.")
    for name, (shape, kind) in wanted.items():
        got = arrays[name]
        if (got.shape, got.dtype) != (shape, kind):
            raise RefusedError(
                "shape", f"'{name}' came as {got.dtype} {list(got.shape)}; {kind} {list(shape)} is expected."
            )


def check_visit(got: Arrays, network: Network, cut: Parcel, goal: Objective) -> None:
    """Refuse arrays for a visit that are not the network's model and the objective's own arrays.

    Raises:
        RefusedError: it is not.
    """
    if "w" not in got or not set(goal.travels) <= set(got):
        raise RefusedError("names", f"{sorted(got)} came; w and {sorted(goal.travels)} are needed.")
    fits({"w": got["w"]}, cut.like({"w": network.flat}))


def returned(network: Network, work: Work, sent: Parcel) -> Parcel:
    """Return what an update holds of the model: what was sent to the visit, but nothing that is the device's own.

    A model of the device's own beside the one that arrived sends nothing back.

    Args:
        sent: the part of the model that was sent to the visit: at a first visit all of it.
    """
    from fedfloor.engine import travel  # with PyTorch, without which devices begin

    if work.sends == ARRIVED:
        return network.parcel("nothing")
    return travel.up(network, work) if work.sends or work.travel else sent


def layout_digest(network: Network) -> str:
    """Return a digest of where each tensor of a model lies: those of two machines must be the same."""
    layout: Mapping[str, tuple[int, int]] = network.layout
    return hashlib.sha256(repr((sorted(layout.items()), network.flat.numpy().dtype.str)).encode()).hexdigest()[:16]
