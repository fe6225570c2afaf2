"""Where a plan's visits and questions are carried out: here, or on machines somewhere else."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedfloor.engine.attend import Still, attended
from fedfloor.engine.limit import Longest
from fedfloor.engine.questions import question
from fedfloor.engine.team import Blob
from fedfloor.engine.tree import Packet
from fedfloor.plan.nodes import Broadcast, Parallel, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key

if TYPE_CHECKING:
    from fedfloor.engine.engine import Engine

log = logging.getLogger(__name__)


class Floor(Protocol):
    """Those whom a walk visits.

    Attributes:
        at_once: whether visits are waited for, so that branches are walked at the same time.
    """

    at_once: bool

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, still: Still
    ) -> tuple[Packet, Receipt] | None:
        """Let a device train; return what goes on and the receipt but for its bytes, or None where it is lost."""
        ...

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        """Hand the model to devices that only keep it."""
        ...

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Return what devices answer, JSON or a tensor; who does not is not in it."""
        ...

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        """Return int64 [len(devices), F], the class counts that devices report of what each holds now."""
        ...

    def there(self, devices: Sequence[int]) -> Sequence[int]:
        """Return those of ``devices`` that can be chosen now."""
        ...

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Name a device whose update (kind ``visit``) or answer (``probe``) is refused."""
        ...


class Here:
    """Devices that are simulated in this process."""

    at_once = False

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, still: Still
    ) -> tuple[Packet, Receipt] | None:
        """Train on the device's samples."""
        return attended(engine, work, packet, key, still)

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


@dataclass(frozen=True)
class Errand:
    """A node whose branches are walked somewhere else.

    Attributes:
        node: the node.
        start: the packet that goes out.
        round, tick: when.
        visits: how often each device was visited so far in the round.
        heard: what devices answered so far in the round.
        frozen: whether all visits of the round train the classifier alone.
        updates: scope → device → its greatest recent lengths, where the length of updates is limited.
    """

    node: Parallel
    start: Packet
    round: int
    tick: int
    visits: Counter[int]
    heard: Mapping[int, Mapping[str, Any]]
    frozen: bool
    updates: Mapping[str, Mapping[int, Longest]] = field(default_factory=dict)


Shown = tuple[Sequence[int], Sequence[Blob] | None]


class Factories(Protocol):
    """Edges that walk the branches of a node with devices of their own."""

    def walk(self, engine: Engine, errand: Errand) -> list[Shown]:
        """Deal the branches; return which ones each edge had, and what it shows of them, None where it is gone."""
        ...


class Live(Floor, Factories, Protocol):
    """Real machines: edges that walk branches, and devices that are asked through them."""

    def measured(self) -> dict[str, Any]:
        """Return what was measured since this was asked last, for the ledger."""
        ...

    def nobody(self, number: int) -> None:
        """End the run where every visit of a round was lost because devices failed.

        Raises:
            FedfloorError: they did.
        """
        ...

    def keep(self, named: Mapping[int, set[str]]) -> None:
        """Note which of their memories devices must not delete: device → digests that checkpoints name."""
        ...
