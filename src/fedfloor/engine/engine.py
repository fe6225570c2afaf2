"""The state of a rank: the park, its one resident network, the devices' memory, and their samples as the network takes
them; and the contracts of executors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfloor.chance import generator
from fedfloor.data.dataset import Labels, Targets, Values
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.limit import Limit, Longest
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Blob, Team
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet
from fedfloor.network.sites import Sites, radio_uplink
from fedfloor.park.normalise import Normalise, mean_and_deviation
from fedfloor.park.park import Park
from fedfloor.parts.proximal import evaluating
from fedfloor.plan.nodes import Broadcast, Parallel, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key, NodeResult, ParallelRequest, Walking
from fedfloor.tasks.task import Task

CHUNK_BYTES = 4 << 20  # samples are turned into floats a few batches at a time: it stays in cache and bounds memory
PROBES = 8
NEAR = 1e-3  # relative, of outputs: roundings are a thousand times smaller, what samples do to each other is larger
MIXING = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class Samples:
    """A device's samples as the network takes them: bytes until a batch is needed.

    Args:
        x: uint8 [n, C, H, W], or float32 [n, C] or [n, C, L].
        y: targets: int64 [n], or float32 [n, T].
        mean, std: normalisation per channel, value = (scale·x − mean)/std; the samples lie on their device.
        scale: factor that turns a stored number into its value.
        channels_last: the network's memory format.
        missing: whether x may hold NaN, which counts as its channel's mean.
    """

    def __init__(
        self, x: np.ndarray, y: np.ndarray, mean: Tensor, std: Tensor, *, scale: float, channels_last: bool,
        missing: bool = False,
    ) -> None:  # fmt: skip
        data = torch.from_numpy(x).to(mean.device)
        self._channels_last, self._missing = channels_last and data.dim() == 4, missing
        self._x = data
        form = (1, -1, *(1,) * (data.dim() - 2))
        self._factor, self._mean, self._shift = scaling(mean, std, scale, form, data.is_floating_point())
        self.y = torch.from_numpy(y).to(mean.device)

    def __len__(self) -> int:
        return len(self.y)

    def values(self, rows: Tensor | slice) -> Tensor:
        """Return the chosen samples as floats [rows, C, …], never a view of the stored samples."""
        # choosing by an index tensor in brackets takes five to twenty times as long
        x = self._x[rows] if isinstance(rows, slice) else self._x.index_select(0, rows.to(self._x.device))
        # floats are not copied by .to(), and a slice of them is a view: changed in place they would be lost
        if self._channels_last and not x.is_floating_point():  # turned into floats and laid out anew in one go
            floats = torch.empty(x.shape, dtype=self._factor.dtype, device=x.device, memory_format=torch.channels_last)
            x = torch.mul(x, self._factor, out=floats)
        elif self._mean is not None:
            x = (x - self._mean).mul_(self._factor)
        elif x.dtype == self._factor.dtype:
            x = x * self._factor
        else:
            x = x.to(self._factor.dtype).mul_(self._factor)
        if self._shift is not None:
            x.add_(self._shift)
        if self._missing:
            x.masked_fill_(x.isnan(), 0.0)  # the mean, by now
        return x.contiguous(memory_format=torch.channels_last) if self._channels_last else x

    def stored(self) -> Tensor:
        """Return the samples as the device stores them, [n, C, …]."""
        return self._x

    def chunk(self, batch_size: int) -> int:
        """Return the number of samples that become floats at a time: whole batches, about :data:`CHUNK_BYTES`."""
        sample = max(1, self._x[0].numel() * 4)
        return batch_size * max(1, CHUNK_BYTES // (sample * batch_size))


@lru_cache(maxsize=16)  # tensors are compared by identity: an engine has one mean and one standard deviation
def scaling(
    mean: Tensor, std: Tensor, scale: float, form: tuple[int, ...], floats: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the factor, the mean that is subtracted before it, and the offset added after it; None: nothing.

    (scale·x − mean)/std: of bytes as one multiplication and one addition; of floats the mean goes first, as 1000.1 and
    1000.2 divided by 0.01 would lose their difference.
    """
    factor = (scale / std).view(form)
    if not bool((mean != 0).any()):
        return factor, None, None
    return (factor, (mean / scale).view(form), None) if floats else (factor, None, (-mean / std).view(form))


def separable(network: Network, shape: tuple[int, ...]) -> bool:
    """Return whether a network's output in training for a sample depends on that sample alone.

    Batch norm and dropout make it depend on others, and on chance. Beside looking for these layers it is tried:
    outputs for eight samples together and one by one. Not with the present weights, which differ from rank to rank and
    can hide it behind a gate of 0, but with weights of ±0.1. Statistics that a layer keeps depend on all samples, too.
    """
    if any(isinstance(part, MIXING) for part in network.module.modules()):
        return False
    before, rng = network.flat.clone(), generator(0, "separable")
    x = torch.from_numpy(rng.standard_normal((PROBES, *shape))).to(network.flat)
    network.flat[: network.trained] = torch.from_numpy(0.2 * rng.integers(0, 2, network.trained) - 0.1).to(network.flat)
    tried = network.flat.clone()
    network.module.train()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            whole = network.module(x)
            single = torch.cat([network.module(sample[None]) for sample in x])
        unchanged = network.flat.equal(tried)
    except Exception:  # a layer that wants more than one sample: it looks at others
        return False
    finally:
        network.flat.copy_(before)
    return unchanged and bool(torch.allclose(whole, single, rtol=NEAR, atol=NEAR * float(whole.abs().max())))


def headed(network: Network, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of a sample's features; None where a network does not end in one call of its classifier."""
    if network.classifier is None:
        return None
    calls: list[tuple[Tensor, object]] = []
    handle = classifier_layer(network).register_forward_hook(
        lambda _layer, inputs, output: calls.append((inputs[0], output))
    )
    try:
        with evaluating(network.module), torch.no_grad():
            answer = network.module(network.flat.new_zeros(1, *shape))
    finally:
        handle.remove()
    return tuple(calls[0][0].shape[1:]) if len(calls) == 1 and answer is calls[0][1] else None


def classifier_layer(network: Network) -> nn.Module:
    """Return the classifier."""
    return network.module.get_submodule(network.classifier or "")


@dataclass
class Engine:
    """The methods of a rank for walking plans.

    Attributes:
        shortcuts: whether super nodes take one step on the union of their mini-batches, and visits that train the
            classifier alone extract their features once.
        executor: the executor of visits; None: simulation in this process (:mod:`fedfloor.engine.executor`).
        attackers: the executor of a simulation in which devices attack; None: none do.
        altered: the change of an attacker's samples while it trains; None: they are not changed.
        factories: edges that walk branches with devices of their own; None where all is walked by the team.
    """

    park: Park  # the devices and their data
    network: Network  # this rank's one resident network
    team: Team
    memory: DeviceMemory  # of devices, between visits
    seed: int
    loss_chance: float = 0.0  # chance that a visit is lost, in [0, 1)
    normalise: Normalise = "auto"  # as ``[data] normalise``; the park is prepared for it
    sites: Sites | None = None  # the devices on the network, over whose air results may be lost, too; None without one
    shortcuts: bool = True
    executor: Executor | None = None
    factories: RemoteExecutor | None = None
    cohort: Stacker | None = None  # steps branches together; None: visit after visit
    limit: Limit | None = None  # on the length of updates; None: none
    secret: bool = False  # whether noise that protects devices comes from the operating system instead of the seed
    attackers: Executor | None = None
    altered: Callable[[Values, Labels | Targets], tuple[Values, Labels | Targets]] | None = None

    def __post_init__(self) -> None:
        mean, std = mean_and_deviation(self.park, self.normalise)
        self.stand_on(self.sites)
        kind, place = self.network.flat.dtype, self.network.flat.device
        self.mean, self.std = (torch.as_tensor(array, dtype=kind, device=place) for array in (mean, std))

    @cached_property
    def separable(self) -> bool:
        """Whether the network processes every sample independently."""
        return separable(self.network, self.park.dataset.shape)

    @cached_property
    def headed(self) -> tuple[int, ...] | None:
        """The shape of the classifier's input for a sample; None where the network does not end in it."""
        return headed(self.network, self.park.dataset.shape)

    def samples(self, device: int, tick: int = 0) -> Samples:
        """Return the samples of a device at a tick; those of the cloud, −1, are all devices' in their order."""
        x, y = self.park.held(device, tick, self.memory.visits[device])
        return self.wrap(*((x, y) if self.altered is None else self.altered(x, y)))

    def stand_on(self, sites: Sites | None) -> None:
        """Set or change the places of the devices on a network."""
        self.sites, self.air = sites, radio_uplink(sites, self.seed)

    @property
    def task(self) -> Task:
        return self.park.dataset.task

    def wrap(self, x: Values, y: Labels | Targets) -> Samples:
        """Return arrays of the park as samples for this engine's network."""
        data, last = self.park.dataset, self.network.channels_last
        missing = data.inputs.missing == "mean"
        return Samples(x, y, self.mean, self.std, scale=data.scale, channels_last=last, missing=missing)


@dataclass
class FrozenExtractor:
    """The extractor of a round's visits."""

    frozen: bool  # whether all visits of the round train the classifier alone, so that there is only one
    name: str = ""  # its digest, once a visit worked it out


class Executor(Protocol):
    """The devices that a walk visits.

    Attributes:
        at_once: whether visits are waited for, so that branches are walked at the same time.
    """

    at_once: bool

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt] | None:
        """Train a packet at a device.

        Args:
            work: the local training.
            packet: the tensors that the device receives.
            key: the visit's place in the run, by which its random numbers are drawn.
            extractor: whether the visit trains on features of a frozen part of the model.

        Returns:
            The packet that comes back and its receipt, whose bytes are counted later; None where the visit is lost.
        """
        ...

    def meeting(self, engine: Engine, aggregation: Aggregation, mine: Collection[int]) -> AbstractContextManager[None]:
        """Return the context in which the branches ``mine`` are walked and meet."""
        ...

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        """Send the model to devices that only keep it."""
        ...

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Return devices' answers, JSON or a tensor; a device that does not answer has no entry."""
        ...

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        """Return int64 [len(devices), F], the class counts that devices report of the samples they hold now."""
        ...

    def available(self, devices: Sequence[int]) -> Sequence[int]:
        """Return the devices of ``devices`` that can be chosen now."""
        ...

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Record a device whose update (kind ``visit``) or answer (``probe``) is refused."""
        ...


@dataclass(frozen=True)
class Subtask:
    """A node whose branches are walked by another process.

    Attributes:
        round, tick: when.
        updates: scope → device → its greatest recent lengths, where the length of updates is limited.
    """

    node: Parallel
    start: Packet  # the packet that goes out
    round: int
    tick: int
    visits: Counter[int]  # how often each device was visited so far in the round
    heard: Mapping[int, Mapping[str, Any]]  # device → question → answer, so far in the round
    frozen: bool  # whether all visits of the round train the classifier alone
    updates: Mapping[str, Mapping[int, Longest]] = field(default_factory=dict)


Shown = tuple[Sequence[int], Sequence[Blob] | None]


class RemoteExecutor(Executor, Protocol):
    """Real machines: edges that walk branches with devices of their own, and devices that are reached through them."""

    def walk(self, engine: Engine, subtask: Subtask) -> list[Shown]:
        """Deal the branches of a node; return each edge's branches and their results, None for a failed edge."""
        ...

    def adding(self, engine: Engine, aggregation: Aggregation, subtask: Subtask) -> AbstractContextManager[None]:
        """Return the context in which edges walk the branches of a node, and their statistics are added up."""
        ...

    def measured(self) -> dict[str, Any]:
        """Return the measurements since the last call, for the ledger."""
        ...

    def no_success(self, number: int) -> None:
        """End the run where every visit of a round was lost because devices failed.

        Raises:
            FedfloorError: all visits failed.
        """
        ...

    def keep(self, named: Mapping[int, set[str]]) -> None:
        """Note the memories that devices must not delete: device → digests that checkpoints name."""
        ...


class Stacker(Protocol):
    """Steps branches together: :class:`fedfloor.engine.cohort.cohort.Cohort`."""

    def walk(self, trainer: Any, walking: Walking) -> NodeResult: ...

    def branches(
        self, trainer: Any, request: ParallelRequest, mine: Collection[int]
    ) -> tuple[Aggregation, list[NodeResult]]: ...

    def unites(self, engine: Engine, node: Parallel, packet: Packet) -> bool: ...
