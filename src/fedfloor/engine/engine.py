"""What a rank holds: the park, its one resident network, the devices' memory; and contracts of what it works with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.data.dataset import Labels, Targets, Values
from fedfloor.engine import networks
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.limit import Limit, Longest
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.samples import Samples
from fedfloor.engine.team import Blob, Team
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet
from fedfloor.network.sites import Sites, radio_uplink
from fedfloor.park.normalise import Normalise, mean_and_deviation
from fedfloor.park.park import Park
from fedfloor.plan.nodes import Broadcast, Parallel, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key, NodeResult, ParallelRequest, Walking
from fedfloor.tasks.task import Task


@dataclass
class Engine:
    """What a rank needs to walk plans.

    Attributes:
        park: the devices and their data.
        network: this rank's one resident network.
        team: the ranks.
        memory: what devices keep between visits.
        seed: the experiment's seed.
        loss_chance: chance that a visit is lost, in [0, 1).
        normalise: as ``[data] normalise``; the park is prepared for it.
        sites: the devices on the network, over whose air results may be lost, too; None without one.
        shortcuts: whether super nodes take one step on the union of their mini-batches, and visits that train the
            classifier alone extract their features once.
        executor: where visits take place; None: here, by simulation (:mod:`fedfloor.engine.executor`).
        factories: edges that walk branches with devices of their own; None where all is walked by the team.
        cohort: what steps branches together; None: visit after visit.
        limit: on the length of updates; None: none.
    """

    park: Park
    network: Network
    team: Team
    memory: DeviceMemory
    seed: int
    loss_chance: float = 0.0
    normalise: Normalise = "auto"
    sites: Sites | None = None
    shortcuts: bool = True
    executor: Executor | None = None
    factories: Factories | None = None
    cohort: Stacker | None = None
    limit: Limit | None = None

    def __post_init__(self) -> None:
        mean, std = mean_and_deviation(self.park, self.normalise)
        self.stand_on(self.sites)
        kind, there = self.network.flat.dtype, self.network.flat.device
        self.mean, self.std = (torch.as_tensor(one, dtype=kind, device=there) for one in (mean, std))

    @cached_property
    def separable(self) -> bool:
        """Whether the network treats every sample by itself."""
        return networks.separable(self.network, self.park.dataset.shape)

    @cached_property
    def headed(self) -> tuple[int, ...] | None:
        """The shape of what goes into the classifier for a sample; None where the network does not end in it."""
        return networks.headed(self.network, self.park.dataset.shape)

    def samples(self, device: int, tick: int = 0) -> Samples:
        """Return what a device holds at a tick; −1 is the cloud, which then holds everybody's in device order."""
        return self.wrap(*self.park.held(device, tick, self.memory.visits[device]))

    def stand_on(self, sites: Sites | None) -> None:
        """Put the devices onto a network, or where they stand on it from now on."""
        self.sites, self.air = sites, radio_uplink(sites, self.seed)

    @property
    def task(self) -> Task:
        """What models are asked for."""
        return self.park.dataset.task

    def wrap(self, x: Values, y: Labels | Targets) -> Samples:
        """Return arrays of the park as samples for this engine's network."""
        data, last = self.park.dataset, self.network.channels_last
        missing = data.inputs.missing == "mean"
        return Samples(x, y, self.mean, self.std, scale=data.scale, channels_last=last, missing=missing)


@dataclass
class FrozenExtractor:
    """The extractor of a round's visits.

    Attributes:
        frozen: whether all visits of the round train the classifier alone, so that there is only one.
        name: its digest, once a visit worked it out.
    """

    frozen: bool
    name: str = ""


class Executor(Protocol):
    """Those whom a walk visits.

    Attributes:
        at_once: whether visits are waited for, so that branches are walked at the same time.
    """

    at_once: bool

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
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


@dataclass(frozen=True)
class Subtask:
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

    def walk(self, engine: Engine, subtask: Subtask) -> list[Shown]:
        """Deal the branches; return which ones each edge had, and what it shows of them, None where it is gone."""
        ...


class RemoteExecutor(Executor, Factories, Protocol):
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


class Stacker(Protocol):
    """Steps branches together: :class:`fedfloor.engine.cohort.cohort.Cohort`."""

    def walk(self, trainer: Any, walking: Walking) -> NodeResult:
        """Drive a walk to its end."""
        ...

    def branches(
        self, trainer: Any, request: ParallelRequest, mine: Collection[int]
    ) -> tuple[Aggregation, list[NodeResult]]:
        """Walk the branches ``mine`` of a ``Parallel``."""
        ...

    def unites(self, engine: Engine, node: Parallel, packet: Packet) -> bool:
        """Return whether a node is a super node that is done in one step."""
        ...
