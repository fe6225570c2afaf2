"""A factory's Flower node: what the cloud sends is passed on to the edge's door, and its answer back.

Flower starts a process for every message: it must not wait for PyTorch.
"""

from __future__ import annotations

import os

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedfloor.deploy import door
from fedfloor.deploy.settings import EdgeSettings, read
from fedfloor.errors import RunError


def factory(message: Message, context: Context) -> Message:
    """Say which factory this node stands in: its ``--node-config factory=N``."""
    number = int(context.node_config["factory"])
    return Message(RecordDict({"factory": ConfigRecord({"number": number})}), reply_to=message)


def pass_on(message: Message, context: Context) -> Message:
    """Pass a frame on to the edge's door and its answer back.

    The edge is the one whose settings ``FEDFLOOR_EDGE`` names, or ``--node-config edge="FILE"``.

    Raises:
        RunError: nobody opens, or it takes too long.
    """
    file = str(context.node_config.get("edge") or os.environ.get("FEDFLOOR_EDGE", ""))
    settings = read(EdgeSettings, file)
    deadline_s = float(message.content.config_records["about"]["deadline_s"])  # type: ignore[arg-type]
    try:
        answer = door.ask(settings.listen, frame_of(message), deadline_s)
    except OSError as error:
        raise RunError(f"the edge {settings.name} at {settings.listen}: {error}.") from error
    return Message(content(answer), reply_to=message)


def content(frame: bytes) -> RecordDict:
    """Return bytes as Flower carries them."""
    whole = Array(dtype="uint8", shape=(len(frame),), stype="fedfloor", data=frame)
    return RecordDict({"frame": ArrayRecord({"frame": whole})})


def frame_of(message: Message) -> bytes:
    """Return the bytes that Flower carried.

    Raises:
        RunError: the message holds no frame.
    """
    try:
        return bytes(message.content.array_records["frame"]["frame"].data)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError("its message holds no frame") from error
