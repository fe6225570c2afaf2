"""Devices that are simulated in this process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.engine.engine import Engine, Executor, FrozenExtractor
from fedfloor.engine.local_update import local_update
from fedfloor.engine.questions import question
from fedfloor.models.parcel import Packet
from fedfloor.plan.nodes import Broadcast, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key

log = logging.getLogger(__name__)


class LocalExecutor:
    """Devices that are simulated in this process."""

    at_once = False

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt] | None:
        """Train on the device's samples."""
        return local_update(engine, work, packet, key, extractor)

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        """Do nothing: whoever is simulated has the model."""

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Ask each device."""
        asked = question(node)
        return {k: asked.answer(engine, k, packet, tick) for k in devices}

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        """Look at what each device holds."""
        return engine.park.census(devices, tick, [engine.memory.visits[k] for k in devices])

    def there(self, devices: Sequence[int]) -> Sequence[int]:
        """All are."""
        return devices

    def refuse(self, device: int, kind: str, why: str) -> None:  # noqa: ARG002
        """Log it."""
        log.warning("device %d is refused: %s", device, why)


LOCAL = LocalExecutor()


def of(engine: Engine) -> Executor:
    """Return where an engine's visits take place."""
    return engine.executor or LOCAL
