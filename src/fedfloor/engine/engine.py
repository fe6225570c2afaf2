"""What a rank holds: the park, its one resident network, the devices' memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.data.dataset import Labels, Values
from fedfloor.engine import features, union
from fedfloor.engine.cohort.cohort import Cohort
from fedfloor.engine.floor import Factories, Floor, Here
from fedfloor.engine.limit import Limit
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.samples import Samples
from fedfloor.engine.team import Team
from fedfloor.models.network import Network
from fedfloor.network import air
from fedfloor.network.sites import Sites
from fedfloor.park.normalise import Normalise
from fedfloor.park.park import Park


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
        floor: where visits take place.
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
    floor: Floor = field(default_factory=Here)
    factories: Factories | None = None
    cohort: Cohort | None = None
    limit: Limit | None = None

    def __post_init__(self) -> None:
        mean, std = self.park.normalisation(self.normalise)
        self.stand_on(self.sites)
        kind, there = self.network.flat.dtype, self.network.flat.device
        self.mean, self.std = (torch.as_tensor(one, dtype=kind, device=there) for one in (mean, std))

    @cached_property
    def separable(self) -> bool:
        """Whether the network treats every sample by itself."""
        return union.separable(self.network, self.park.dataset.shape)

    @cached_property
    def headed(self) -> tuple[int, ...] | None:
        """The shape of what goes into the classifier for a sample; None where the network does not end in it."""
        return features.headed(self.network, self.park.dataset.shape)

    def samples(self, device: int, tick: int = 0) -> Samples:
        """Return what a device holds at a tick; −1 is the cloud, which then holds everybody's in device order."""
        return self.wrap(*self.park.held(device, tick, self.memory.visits[device]))

    def census(self, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        """Return int64 [len(devices), F]: the class counts that devices report of what each holds now."""
        return self.floor.census(self, devices, tick)

    def stand_on(self, sites: Sites | None) -> None:
        """Put the devices onto a network, or where they stand on it from now on."""
        self.sites, self.air = sites, air.over(sites, self.seed)

    def wrap(self, x: Values, y: Labels) -> Samples:
        """Return arrays of the park as samples for this engine's network."""
        data, last = self.park.dataset, self.network.channels_last
        missing = data.inputs.missing == "mean"
        return Samples(x, y, self.mean, self.std, scale=data.scale, channels_last=last, missing=missing)
