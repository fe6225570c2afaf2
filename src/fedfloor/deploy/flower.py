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

from fedfloor.deploy import door
from fedfloor.deploy.checks import printable
from fedfloor.deploy.settings import CloudEdge, CloudSettings, EdgeSettings, read
from fedfloor.errors import RunError

if TYPE_CHECKING:
    from flwr.serverapp import Grid


def factory(message: Message, context: Context) -> Message:
    """Return the factory of this node: its ``--node-config factory=N``."""
    number = int(context.node_config["factory"])
    return Message(RecordDict({"factory": ConfigRecord({"number": number})}), reply_to=message)


def pass_on(message: Message, _: Context) -> Message:
    """Pass a message of the cloud on to the edge whose settings ``FEDFLOOR_EDGE`` names, and its answer back."""
    settings = read(EdgeSettings, os.environ.get("FEDFLOOR_EDGE", ""))
    deadline_s = float(message.content.config_records["about"]["deadline_s"])  # type: ignore[arg-type]
    return Message(content(door.request(settings.state, frame_of(message), deadline_s)), reply_to=message)


def content(message: bytes) -> RecordDict:
    """Return bytes as Flower carries them."""
    whole = Array(dtype="uint8", shape=(len(message),), stype="fedfloor", data=message)
    return RecordDict({"frame": ArrayRecord({"frame": whole})})


def frame_of(message: Message) -> bytes:
    """Return the bytes that Flower carried, or raise RunError where there are none."""
    try:
        return bytes(message.content.array_records["frame"]["frame"].data)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError("its message holds no frame") from error


log = logging.getLogger(__name__)

POLL_S = 0.02  # Flower's own wait is 3 s
FIND_S = 120.0  # for nodes to be there, and to state their factories
AGAIN_S = 10.0  # for a factory that was without a node


class ByGrid:
    """Edges that are reached through Flower: the grid of a ServerApp, and the edges whose nodes are looked for."""

    def __init__(self, grid: Grid, edges: Sequence[CloudEdge]) -> None:
        self._grid = grid
        self._nodes: dict[int, int] = {}
        self._met = False  # whether any node was there
        self._refused = set[int]()  # nodes whose statement of their factory was refused
        self._wanted = {one.factory for one in edges}

    def request(
        self, messages: Mapping[int, bytes], deadline_s: float, most: Mapping[int, int]  # noqa: ARG002
    ) -> dict[int, bytes]:  # fmt: skip
        """Send a message to each factory's node; the cloud's loop checks what comes.

        Raises:
            RunError: no node is there before the first message.
        """
        if not set(messages) <= set(self._nodes):
            self.find_nodes(AGAIN_S if self._met else FIND_S)
        if not self._nodes and not self._met:
            raise RunError(
                f"no factory's SuperNode answered within {FIND_S:g} s: flwr supernode ls lists those that are there."
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
            self._nodes.pop(factory, None)  # it may come back as another node
        return answers

    def find_nodes(self, deadline_s: float) -> None:
        """Query the connected nodes for their factories until all are known."""
        until = time.monotonic() + deadline_s
        while not self._wanted <= set(self._nodes) and time.monotonic() < until:
            strange = set(self._grid.get_node_ids()) - set(self._nodes.values())
            queries = [Message(RecordDict(), dst_node_id=node, message_type="query.factory") for node in strange]
            self.accept({
                answer.metadata.src_node_id: stated_factory(answer)
                for _, answer in self.exchange(queries, min(60.0, deadline_s))
                if not answer.has_error()
            })  # fmt: skip
            time.sleep(0.2)

    def accept(self, claims: Mapping[int, int | None]) -> None:
        """Accept the factories that nodes state; refuse one that is of no edge, has its node, or is stated twice."""
        for node, number in claims.items():
            free = number in self._wanted - set(self._nodes) and list(claims.values()).count(number) == 1
            if number is not None and free:
                self._nodes[number] = node
            elif node not in self._refused:
                self._refused.add(node)
                text = "is refused: it is of no edge, or another node states it"
                log.warning("node %d: its factory %s %s.", node, printable(repr(number)), text)

    def exchange(self, messages: Sequence[Message], deadline_s: float) -> list[tuple[int, Message]]:
        """Send messages; return the answers that come in time, each with the place of the message that it answers.

        An error reply of the SuperLink's own is of no node: only the message that it answers identifies the factory.
        """
        waiting = {identity: place for place, identity in enumerate(self._grid.push_messages(messages))}
        answers, until = list[tuple[int, Message]](), time.monotonic() + deadline_s
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
    """Return the factory that a node states, or None where it states no number."""
    try:
        number = answer.content.config_records["factory"]["number"]
    except (KeyError, TypeError, ValueError):
        return None
    return number if type(number) is int else None


def _to_node(message: bytes, node: int, deadline_s: float) -> Message:
    records = content(message)
    records["about"] = ConfigRecord({"deadline_s": deadline_s})
    return Message(records, dst_node_id=node, message_type="train.walk", ttl=deadline_s)
