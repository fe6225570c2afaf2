"""The state of a rank (park, resident network, the devices' memory and samples), and the contracts of executors."""

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

from fedfloor.base.chance import drawing, generator
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
from fedfloor.parts.objectives.proximal import evaluating
from fedfloor.plan.nodes import Broadcast, Parallel, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key, NodeResult, ParallelRequest, Walking
from fedfloor.tasks.task import Task

CHUNK_BYTES = 4 << 20  # samples become floats a few batches at a time, which stay in the cache and bound the memory
PROBES = 8
NEAR = 1e-3  # relative difference of outputs: rounding errors are a thousand times smaller, other effects larger
MIXING = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class Samples:
    """A device's samples as inputs of the network: stored as they are, turned into floats when a batch is read.

    Args:
        x: uint8 [n, C, H, W], or float32 [n, C] or [n, C, L].
        y: targets: int64 [n], or float32 [n, T].
        mean, std: normalisation per channel, value = (scale·x − mean)/std; both on the device that holds the samples.
        scale: factor that turns a stored number into its value.
        channels_last: the network's memory format.
        missing: whether x may hold NaN, which counts as its channel's mean.
    """

    def __init__(
        self, x: np.ndarray, y: np.ndarray, mean: Tensor, std: Tensor, *, scale: float, channels_last: bool,
        missing: bool = False,
    ) -> None:  # fmt: skip
        data = torch.from_numpy(x).to(mean.device)
        self._channels_last = channels_last and data.dim() == 4
        self._missing = missing
        self._x = data
        form = (1, -1, *(1,) * (data.dim() - 2))
        self._factor, self._mean, self._shift = scaling(mean, std, scale, form, data.is_floating_point())
        self.y = torch.from_numpy(y).to(mean.device)

    def __len__(self) -> int:
        return len(self.y)

    def values(self, rows: Tensor | slice) -> Tensor:
        """Return the chosen samples as floats [rows, C, …], never a view of the stored samples."""
        # indexing by a tensor in brackets takes five to twenty times as long
        x = self._x[rows] if isinstance(rows, slice) else self._x.index_select(0, rows.to(self._x.device))
        # .to() does not copy floats, and a slice of them is a view: operations in place would change stored samples
        if self._channels_last and not x.is_floating_point():  # new type and memory format in one operation
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
            x.masked_fill_(x.isnan(), 0.0)  # the mean, after normalisation
        return x.contiguous(memory_format=torch.channels_last) if self._channels_last else x

    def stored(self) -> Tensor:
        """Return the samples as the device stores them, [n, C, …]."""
        return self._x

    def chunk(self, batch_size: int) -> int:
        """Return the number of samples to turn into floats at a time: whole batches, about :data:`CHUNK_BYTES`."""
        sample = max(1, self._x[0].numel() * 4)
        return batch_size * max(1, CHUNK_BYTES // (sample * batch_size))


@lru_cache(maxsize=16)  # tensors are compared by identity: an engine has only one mean and one standard deviation
def scaling(
    mean: Tensor, std: Tensor, scale: float, form: tuple[int, ...], floats: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the factor, the mean to subtract before the multiplication, and the offset to add after it (or None).

    Bytes need one multiplication and one addition for (scale·x − mean)/std. For floats the mean is subtracted first, as
    1000.1 and 1000.2 divided by 0.01 would lose their difference.
    """
    factor = (scale / std).view(form)
    if not bool((mean != 0).any()):
        return factor, None, None
    return (factor, (mean / scale).view(form), None) if floats else (factor, None, (-mean / std).view(form))


def separable(network: Network, shape: tuple[int, ...]) -> bool:
    """Return whether a network's output for a sample in training mode depends on that sample alone.

    Batch norm and dropout make it depend on other samples, and on chance. These layers are looked for, and outputs for
    eight samples together are compared with those one by one. The test takes weights of ±0.1, as the present ones
    differ from rank to rank and can hide a dependence behind a gate of 0. Running statistics depend on all samples.
    """
    if any(isinstance(part, MIXING) for part in network.module.modules()):
        return False
    before = network.flat.clone()
    rng = generator(0, "separable")
    x = torch.from_numpy(rng.standard_normal((PROBES, *shape))).to(network.flat)
    network.flat[: network.trained] = torch.from_numpy(0.2 * rng.integers(0, 2, network.trained) - 0.1).to(network.flat)
    tried = network.flat.clone()
    network.module.train()
    try:
        with torch.no_grad(), drawing():
            whole = network.module(x)
            single = torch.cat([network.module(sample[None]) for sample in x])
        unchanged = network.flat.equal(tried)
    except Exception:  # a layer that needs more than one sample depends on the others
        return False
    finally:
        network.flat.copy_(before)
    return unchanged and bool(torch.allclose(whole, single, rtol=NEAR, atol=NEAR * float(whole.abs().max())))


def headed(network: Network, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of the classifier's input for a sample; None if the network does not end in one call of it."""
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
    """Return the network's classifier layer."""
    return network.module.get_submodule(network.classifier or "")


@dataclass
class Unchanged:
    """The visits that count as no change, as their training failed where masks or noise protect it.

    Attributes:
        visits: their number; ``why``: the reason of the last one. Both stay in this process.
        withdrawn: number of those that are lost instead, with their device's crew.
        cut: number of visits whose change a secure sum cuts to its bound; ``beyond``: by how much, of the last one.
    """

    visits: int = 0
    why: str = ""
    withdrawn: int = 0
    cut: int = 0
    beyond: str = ""

    def note_cut(self, excess: str) -> None:
        """Count a visit whose change is cut, if it has an ``excess``."""
        self.cut += bool(excess)
        self.beyond = excess or self.beyond

    def add(self, why: str, *, withdrawn: bool = False) -> None:
        self.visits += not withdrawn
        self.withdrawn += withdrawn
        self.why = why


# samples x and targets y → those that an attacker trains on
Alter = Callable[[Values, "Labels | Targets"], tuple[Values, "Labels | Targets"]]


@dataclass
class Engine:
    """The state of a rank that walks plans: data, network, device memory and settings.

    Attributes:
        shortcuts: whether super nodes take one step on the union of their mini-batches, and visits that train the
            classifier alone compute their features once.
        executor: the executor of visits and questions; None: simulation (:mod:`fedfloor.engine.executor`).
        attackers: the executor of a simulation with attacking devices; None: no device attacks.
        factories: the edges that walk branches with their own devices; None: the team walks every branch.
    """

    park: Park  # the devices with their data
    network: Network  # this rank's only network
    team: Team
    memory: DeviceMemory  # the devices' tensors between visits
    seed: int
    loss_chance: float = 0.0  # chance that a visit is lost, in [0, 1)
    normalise: Normalise = "auto"  # as ``[data] normalise``; the park is prepared for it
    sites: Sites | None = None  # the devices' places on the network, whose radio can lose results, too
    shortcuts: bool = True
    executor: Executor | None = None
    factories: RemoteExecutor | None = None
    cohort: Stacker | None = None  # trains visits as one stack; None: one visit after the other
    limit: Limit | None = None  # the limit on the length of updates; None: no limit
    secret: bool = False  # whether privacy noise comes from the operating system instead of the seed
    attackers: Executor | None = None
    unchanged: Unchanged = field(default_factory=Unchanged)
    thresholds: Callable[[int], Task] | None = None  # device, or −1 → the task with known thresholds; None: found

    def __post_init__(self) -> None:
        mean, std = mean_and_deviation(self.park, self.normalise)
        self.stand_on(self.sites)
        kind = self.network.flat.dtype
        place = self.network.flat.device
        self.mean, self.std = (torch.as_tensor(array, dtype=kind, device=place) for array in (mean, std))

    @cached_property
    def separable(self) -> bool:
        """Whether the network in training mode processes every sample independently."""
        return separable(self.network, self.park.dataset.shape)

    @cached_property
    def headed(self) -> tuple[int, ...] | None:
        """The shape of the classifier's input for a sample; None if the network does not end in the classifier."""
        return headed(self.network, self.park.dataset.shape)

    def samples(self, device: int, tick: int = 0, alter: Alter | None = None) -> Samples:
        """Return the samples of a device at a tick, altered by an attacker; for the cloud, −1, those of all devices."""
        x, y = self.park.held(device, tick, self.memory.visits[device])
        return self.wrap(*((x, y) if alter is None else alter(x, y)))

    def stand_on(self, sites: Sites | None) -> None:
        """Set the devices' places on the network, and the radio uplink that follows from them; None: no network."""
        self.sites, self.air = sites, radio_uplink(sites, self.seed)

    @property
    def task(self) -> Task:
        return self.park.dataset.task

    def wrap(self, x: Values, y: Labels | Targets) -> Samples:
        """Return arrays x [n, …] and y of the park as samples for this engine's network."""
        data = self.park.dataset
        last = self.network.channels_last
        missing = data.inputs.holes and not self.network.reads_missing
        return Samples(x, y, self.mean, self.std, scale=data.scale, channels_last=last, missing=missing)


@dataclass
class FrozenExtractor:
    """The frozen extractor that the visits of a round have in common."""

    frozen: bool  # whether all visits of the round train the classifier alone, so that there is only one
    name: str = ""  # its digest, once a visit has computed it


class Executor(Protocol):
    """The contract of an executor: it carries out a walk's visits and questions on devices.

    Attributes:
        at_once: whether visits wait for other machines, so that branches are better walked at the same time.
    """

    at_once: bool

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt] | None:
        """Train the model of a packet on a device.

        Args:
            work: the settings of the local training.
            packet: the tensors that the device receives.
            key: the visit's place in the run, by which its random numbers are drawn.
            extractor: the round's frozen extractor, if its visits train the classifier alone.

        Returns:
            The returned packet and its receipt, whose bytes are counted later; None where the visit is lost.
        """
        ...

    def meeting(self, engine: Engine, aggregation: Aggregation, mine: Collection[int]) -> AbstractContextManager[None]:
        """Return the context in which the branches ``mine`` are walked and aggregated."""
        ...

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        """Send the model to devices that only keep it."""
        ...

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Return the answers by device, JSON or a tensor each; a device that does not answer has no entry."""
        ...

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        """Return the class counts of the samples that devices hold at a tick, int64 [len(devices), F]."""
        ...

    def available(self, devices: Sequence[int]) -> Sequence[int]:
        """Return those of ``devices`` that can be selected now."""
        ...

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Record the refusal of a device's update (kind ``visit``) or answer (``probe``), with the reason."""
        ...


@dataclass(frozen=True)
class Subtask:
    """A node whose branches are walked by another process.

    Attributes:
        round, tick: the position of the node in the run.
        updates: scope → device → its greatest recent lengths, where the length of updates is limited.
    """

    node: Parallel
    start: Packet  # the packet that is sent
    round: int
    tick: int
    visits: Counter[int]  # device → number of its visits so far in the round
    heard: Mapping[int, Mapping[str, Any]]  # device → question → answer, so far in the round
    frozen: bool  # whether all visits of the round train the classifier alone
    updates: Mapping[str, Mapping[int, Longest]] = field(default_factory=dict)


Shown = tuple[Sequence[int], Sequence[Blob] | None]


class RemoteExecutor(Executor, Protocol):
    """The contract of an executor on real machines: edges walk branches and connect the devices."""

    def begin(self, number: int) -> None:
        """Wait until enough devices are connected for the round ``number``.

        Raises:
            RunError: too few are connected until the deadline.
        """
        ...

    def walk(self, engine: Engine, subtask: Subtask) -> list[Shown]:
        """Deal a node's branches to edges; return each edge's branch indices and results, None for a failed edge."""
        ...

    def adding(self, engine: Engine, aggregation: Aggregation, subtask: Subtask) -> AbstractContextManager[None]:
        """Return the context in which edges walk the branches of a node for an aggregation."""
        ...

    def measured(self) -> dict[str, Any]:
        """Return the measurements since the last call, as entries of the ledger."""
        ...

    def no_success(self, number: int) -> None:
        """Check that the round ``number``, in which every visit was lost, did not fail because of the devices.

        Raises:
            FedfloorError: all visits failed on their devices.
        """
        ...

    def visits(self, engine: Engine, point: Any) -> Any:
        """Return the visits of a run whose results are taken as they come; ``point``: the state of the run."""
        ...

    def keep(self, named: Mapping[int, set[str]]) -> None:
        """Record the memories that devices must not delete: device → digests named by checkpoints."""
        ...


class Stacker(Protocol):
    """The contract of :class:`fedfloor.engine.cohort.cohort.Cohort`, which trains simultaneous visits as one stack."""

    def walk(self, trainer: Any, walking: Walking) -> NodeResult: ...

    def branches(
        self, trainer: Any, request: ParallelRequest, mine: Collection[int]
    ) -> tuple[Aggregation, list[NodeResult]]: ...

    def unites(self, engine: Engine, node: Parallel, packet: Packet) -> bool: ...
