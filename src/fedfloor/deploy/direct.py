"""The way from the cloud to edges, and the shortest: through their doors, without Flower."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from fedfloor.deploy import door
from fedfloor.deploy.settings import CloudEdge

log = logging.getLogger(__name__)


class Edges(Protocol):
    """The way from the cloud to the edges."""

    def ask(self, messages: Mapping[int, bytes], deadline_s: float) -> dict[int, bytes]:
        """Ask the edges of factories, all at the same time.

        Args:
            messages: factory → what is asked.
            deadline_s: how long is waited.

        Returns:
            Factory → answer, of those that answered in time.
        """
        ...


class Direct:
    """Edges that are asked through their doors.

    Args:
        edges: each with a door.
    """

    def __init__(self, edges: Sequence[CloudEdge]) -> None:
        self._doors = {one.factory: one.door for one in edges if one.door is not None}

    def ask(self, messages: Mapping[int, bytes], deadline_s: float) -> dict[int, bytes]:
        """Ask each through its door."""

        def one(factory: int) -> tuple[int, bytes]:
            try:
                return factory, door.ask(self._doors[factory], messages[factory], deadline_s)
            except OSError as error:
                log.warning("the edge of factory %d at %s: %s.", factory, self._doors[factory], error)
                return factory, b""

        with ThreadPoolExecutor(max(1, len(messages))) as pool:
            return {factory: said for factory, said in pool.map(one, messages) if said}
