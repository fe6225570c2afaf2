"""The adapter to Flower: the cloud's loop as a ServerApp, and a ClientApp that passes its messages to edges.

Flower starts a process for every message of a node: importing this module must not load PyTorch.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedfloor.base.errors import RunError
from fedfloor.deploy.checks import printable
from fedfloor.deploy.settings import CloudEdge, CloudSettings, EdgeSettings, read
from fedfloor.deploy.uplink import socket_request

if TYPE_CHECKING:
    from flwr.serverapp import Grid


def factory(message: Message, context: Context) -> Message:
    """Return a reply with the factory of this node, from its ``--node-config factory=N``."""
    number = int(context.node_config["factory"])
    return Message(RecordDict({"factory": ConfigRecord({"number": number})}), reply_to=message)


def pass_on(message: Message, _: Context) -> Message:
    """Forward a message of the cloud to the edge of the settings file in ``FEDFLOOR_EDGE``; return its answer."""
    settings = read(EdgeSettings, os.environ.get("FEDFLOOR_EDGE", ""))
    deadline_s = float(message.content.config_records["about"]["deadline_s"])  # type: ignore[arg-type]
    return Message(content(socket_request(settings.state, frame_of(message), deadline_s)), reply_to=message)


def content(message: bytes) -> RecordDict:
    """Return a Flower record that holds the bytes of a message."""
    whole = Array(dtype="uint8", shape=(len(message),), stype="fedfloor", data=message)
    return RecordDict({"frame": ArrayRecord({"frame": whole})})


def frame_of(message: Message) -> bytes:
    """Return the bytes in a Flower message; raise RunError if it has none."""
    try:
        return bytes(message.content.array_records["frame"]["frame"].data)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError("its message has no frame") from error


log = logging.getLogger(__name__)

POLL_S = 0.02  # Flower's own wait is 3 s
FIND_S = 120.0  # wait for nodes to connect and state their factories
AGAIN_S = 10.0  # wait for the new node of a factory


class ByGrid:
    """A connection to the edges through the nodes of a ServerApp's grid."""

    def __init__(self, grid: Grid, edges: Sequence[CloudEdge]) -> None:
        self._grid = grid
        self._nodes: dict[int, int] = {}
        self._met = False  # whether a node has ever connected
        self._refused = set[int]()  # nodes whose claim of a factory was refused
        self._wanted = {one.factory for one in edges}

    def request(
        self, messages: Mapping[int, bytes], deadline_s: float, most: Mapping[int, int]  # noqa: ARG002
    ) -> dict[int, bytes]:  # fmt: skip
        """Send a message to each factory's node; return the unchecked answers: factory → answer.

        Raises:
            RunError: no node connects before the first message.
        """
        if not set(messages) <= set(self._nodes):
            self.find_nodes(AGAIN_S if self._met else FIND_S)
        if not self._nodes and not self._met:
            raise RunError(
                f"no factory's SuperNode answered within {FIND_S:g} s: flwr supernode ls lists the connected ones.",
                key="no-answer",
            )
        self._met = True
        factories = [factory for factory in messages if factory in self._nodes]
        sent = [_to_node(messages[factory], self._nodes[factory], deadline_s) for factory in factories]
        answers: dict[int, bytes] = {}
        for place, answer in self.exchange(sent, deadline_s):
            factory = factories[place]
            try:
                if answer.has_error():
                    raise RunError(answer.error.reason)
                answers[factory] = frame_of(answer)
            except RunError as error:
                log.warning("factory %d: %s.", factory, printable(str(error)))
        for factory in set(messages) - set(answers):
            self._nodes.pop(factory, None)  # it may reconnect as another node
        return answers

    def find_nodes(self, deadline_s: float) -> None:
        """Query the connected nodes for their factories until all are known or the deadline passes."""
        until = time.monotonic() + deadline_s
        while not self._wanted <= set(self._nodes) and time.monotonic() < until:
            connected = set(self._grid.get_node_ids())
            self._refused &= connected  # nodes that left may be of any number
            strange = connected - set(self._nodes.values())
            queries = [Message(RecordDict(), dst_node_id=node, message_type="query.factory") for node in strange]
            self.accept({
                answer.metadata.src_node_id: stated_factory(answer)
                for _, answer in self.exchange(queries, min(60.0, deadline_s))
                if not answer.has_error()
            })  # fmt: skip
            time.sleep(0.2)

    def accept(self, claims: Mapping[int, int | None]) -> None:
        """Accept nodes' claims (node → factory); refuse a factory without an edge, with a node, or claimed twice."""
        for node, number in claims.items():
            free = number in self._wanted - set(self._nodes) and list(claims.values()).count(number) == 1
            if number is not None and free:
                self._nodes[number] = node
            elif node not in self._refused:
                self._refused.add(node)
                text = "is refused: it has no edge, or another node claims it"
                log.warning("node %d: its factory %s %s.", node, printable(repr(number)), text)

    def exchange(self, messages: Sequence[Message], deadline_s: float) -> list[tuple[int, Message]]:
        """Send messages; return the answers within the deadline, each with the index of its message.

        An error reply of the SuperLink names no node: only the message that it answers identifies the factory.
        """
        waiting = {identity: place for place, identity in enumerate(self._grid.push_messages(messages))}
        answers = list[tuple[int, Message]]()
        until = time.monotonic() + deadline_s
        while waiting and time.monotonic() < until:
            pulled = [
                (answer.metadata.reply_to_message_id, answer) for answer in self._grid.pull_messages(set(waiting))
            ]
            new = [(waiting.pop(identity), answer) for identity, answer in pulled if identity in waiting]
            answers += new
            if waiting and not new:
                time.sleep(POLL_S)
        return answers


def serve(grid: Grid, context: Context) -> None:
    """Run the cloud's loop in a ServerApp."""
    from fedfloor.deploy import cloud
    from fedfloor.runs.orders import Limits

    config = context.run_config
    settings = read(CloudSettings, str(config["settings"]))
    limits = Limits(stop_after=int(config["stop-after"]) or None)
    why = cloud.run(settings, ByGrid(grid, settings.edges), resume=bool(config["resume"]), limits=limits)
    log.info("%s. Report: fedfloor report %s", why, settings.out)


def stated_factory(answer: Message) -> int | None:
    """Return the factory in a node's answer, or None if it is not a number."""
    try:
        number = answer.content.config_records["factory"]["number"]
    except (KeyError, TypeError, ValueError):
        return None
    return number if type(number) is int else None


def _to_node(message: bytes, node: int, deadline_s: float) -> Message:
    records = content(message)
    records["about"] = ConfigRecord({"deadline_s": deadline_s})
    return Message(records, dst_node_id=node, message_type="train.walk", ttl=deadline_s)
