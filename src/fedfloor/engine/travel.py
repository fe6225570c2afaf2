"""The path of what travels: :class:`VisitPath` for a device's visit, :class:`EdgePath` between the cloud and edges.

Both have two ways, ``down`` and ``up``, each with a sender and a receiver that call one method each: ``send`` and
``receive`` for the model on its way down, ``leave`` and ``arrive`` for its change on the way up. They are the same in
simulations, which call both ends, and on real machines. Visits that a cohort stacks, and steps of super nodes, have no
codecs, and do not come here.

Down, the model itself is encoded, with random draws that a round's receivers share. Up, its change since arrival is
encoded; the receiver adds it to the model that it sent, in the state before encoding. Vectors beside the model, and
statistics that are not trained (batch norm's), are sent without codecs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from fedfloor.base.chance import generator, secret
from fedfloor.base.errors import SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.data.dataset import Labels, Targets, Values
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.parts.travel.chains import Coding, chain
from fedfloor.parts.travel.codec import ERROR, Chance
from fedfloor.parts.travel.codecs import SecureSum
from fedfloor.parts.travel.packing import Bytes, NumberLayout, Numbers
from fedfloor.plan.nodes import Parallel, Work
from fedfloor.plan.schedule import Key

RESIDUAL = "residual"  # prefix of the names of what codecs keep of earlier changes in a device's memory
Memory = dict[str, Tensor]  # a device's tensors by name


def coded(network: Network, travels: str, codecs: str = "") -> Parcel:
    """Return the parcel of a named part of a model, with its codecs.

    Args:
        travels: the part, as in :attr:`fedfloor.plan.nodes.Work.travels`.
        codecs: the codecs, as in :func:`fedfloor.parts.travel.chains.chain`.
    """
    cut = network.parcel(travels)
    steps = chain(codecs)
    if any(step.summed for step in steps):  # the whole part is masked, statistics included
        return Parcel(cut.parts, cut.model, Coding(steps, NumberLayout(((1, cut.numbers),))))
    if not steps or not cut.among(network.trained):
        return cut
    shapes = []
    at = 0
    for view in network.named(network.flat).values():
        first = at
        stop = at + view.numel()
        inside = sum(max(0, min(part.stop, stop, network.trained) - max(part.start, first)) for part in cut.parts)
        if inside:
            rows = view.shape[0] if inside == view.numel() and view.dim() > 1 else 1
            shapes.append((rows, inside // rows))
        at = stop
    layout = NumberLayout(tuple(shapes), bits=8 * network.flat.element_size())
    return Parcel(cut.parts, cut.model, Coding(steps, layout))


class Replacing(Protocol):
    """What replaces a visit's samples and its trained model before codecs: an attack in a simulation."""

    def alter(self, x: Values, y: Labels | Targets) -> tuple[Values, Labels | Targets]: ...

    def replaced(self, model: Tensor, start: Tensor) -> Tensor: ...


class VisitPath:
    """The path of a visit's packets: the model down to the device, and its change up again.

    Args:
        network: the network, which has the layout of the model.
        work: the visit's work, which names the part that travels and the codecs.
        replacing: what comes before the codecs on the way up; None: nothing.
    """

    def __init__(self, network: Network, work: Work, replacing: Replacing | None = None) -> None:
        self.network = network
        self.work = work
        self.replacing = replacing

    @cached_property
    def down(self) -> Parcel:
        """The parcel that a visit receives."""
        return coded(self.network, self.work.travels, self.work.travel_down)

    @cached_property
    def up(self) -> Parcel:
        """The parcel that a visit sends back."""
        return coded(self.network, self.work.travels, self.work.travel)

    @property
    def summed(self) -> SecureSum | None:
        """The codec of a secure sum, whose changes are decoded only as a sum; None without one."""
        return None if self.up.coding is None else _coding(self.up).summed

    @property
    def keeps(self) -> bool:
        """Whether devices keep tensors of an upload for the next one, such as its coding error."""
        return self.up.coding is not None and _coding(self.up).memory is not None

    @property
    def protected(self) -> bool:
        """Whether an update leaves its device only in a secure sum, or with noise, also of its gradients."""
        return self.work.sample_clip is not None or self.summed is not None or self.noisy

    @property
    def noisy(self) -> bool:
        """Whether a codec adds noise to changes, so that receipts have no metrics."""
        return self.up.coding is not None and any(step.privacy is not None for step in _coding(self.up).codecs)

    def send(self, packet: Packet, key: Key) -> Packet:
        """Return a packet as sent to a visit: with the whole model, or the payload of the part that travels."""
        return _send(self.down, packet, _downwards(key))

    def receive(self, packet: Packet, around: Tensor, key: Key) -> Packet:
        """Return the packet decoded from :meth:`send`; the numbers that do not travel are those of ``around``.

        Raises:
            RefusedError: the bytes are no payload of the work's codecs.
        """
        return _receive(self.down, packet, around, _downwards(key))

    def leave(
        self, model: Tensor, arrived: Tensor, kept: Memory, key: Key, *, hidden: bool = False
    ) -> tuple[Tensor, Memory]:
        """Return a visit's model, or the payload of its change, and what the device keeps for its next change.

        For a secure sum, the change itself [numbers that travel] is returned; the device or the aggregation encodes it.

        Args:
            model, arrived: the model after and before training.
            kept: what the device has kept of earlier changes, of all parts.
            hidden: whether noise is drawn from the operating system instead of the visit's key.
        """
        if self.replacing is not None:
            model = self.replacing.replaced(model, arrived)
        if self.up.coding is None:
            return model, kept
        if self.summed:
            return self.up.cut(model) - self.up.cut(arrived), kept
        change = _change(self.up, model, arrived)
        codec = _coding(self.up).memory
        chance = self._leaving(key) if hidden else _upwards(key)
        if codec is None:
            return _payload(self.up, model, _coding(self.up).leave(change, chance)), kept
        own = self._own(kept)
        corrected = codec.correct(change, own)
        if np.shape(corrected) != change.shape:
            raise SettingError(
                f"codec {type(codec).__name__}: correct must return {len(change)} numbers, as the change has, got "
                f"{corrected!r:.80}.",
                key="own-codec",
            )
        # the device decodes what it sends, to know the error that its receiver will have
        encoded = _coding(self.up).leave(corrected, chance)
        decoded = _coding(self.up).arrive(encoded, _upwards(key)).astype(corrected.dtype, copy=False)
        left = codec.keep(change, corrected, decoded, own)
        if not isinstance(left, Mapping) or not all(isinstance(numbers, np.ndarray) for numbers in left.values()):
            raise SettingError(
                f"codec {type(codec).__name__}: keep must return a dictionary of NumPy arrays, got {left!r:.80}.",
                key="own-codec",
            )
        return _payload(self.up, model, encoded), {**kept, **self._entries(left)}

    def arrive(self, packet: Packet, base: Tensor, key: Key) -> Packet:
        """Return the packet decoded from :meth:`leave`: the change is added to the model ``base`` that was sent.

        Raises:
            RefusedError: the bytes are no payload of the work's codecs.
        """
        return packet if self.summed else _receive(self.up, packet, base, _upwards(key), change=True)

    def _leaving(self, key: Key) -> Chance:
        """Return the draws of codecs at a device: those of noise are secret, others are shared with the receiver."""
        steps = _coding(self.up).codecs
        shared = _upwards(key)
        return lambda place: secret() if steps[place].privacy is not None else shared(place)

    @property
    def _prefix(self) -> str:
        """The name in a device's memory of a codec's error, and the beginning of the names of other tensors."""
        return f"{RESIDUAL} {self.work.travels}"

    def _own(self, kept: Memory) -> dict[str, Numbers]:
        """Return what the device keeps for the codec, by the codec's names."""
        before = f"{self._prefix} | "
        own = {name.removeprefix(before): x.cpu().numpy() for name, x in kept.items() if name.startswith(before)}
        return own | ({ERROR: kept[self._prefix].cpu().numpy()} if self._prefix in kept else {})

    def _entries(self, left: Mapping[str, Numbers]) -> Memory:
        """Return what a codec leaves for a device's next change, by the memory's names."""
        return {
            self._prefix if name == ERROR else f"{self._prefix} | {name}": torch.from_numpy(numbers)
            for name, numbers in left.items()
        }


class EdgePath:
    """The path between the cloud and the edges that walk a node's branches: the model down, and each change up again.

    Args:
        node: the node, which names the codecs of both ways.
        place: the round and tick, the key of the codecs' random draws.
    """

    def __init__(self, network: Network, node: Parallel, place: Key) -> None:
        self.down = coded(network, "all", node.travel_down)
        self.up = coded(network, "all", node.travel)
        self.place = place
        self.around = network.flat

    def send(self, packet: Packet) -> Packet:
        """Return a packet as sent to edges: with its model, or the model's payload."""
        return _send(self.down, packet, self._chance("down"))

    def receive(self, packet: Packet) -> Packet:
        """Return the packet decoded from :meth:`send` at an edge.

        Raises:
            RefusedError: the bytes are no payload of the node's codecs.
        """
        return _receive(self.down, packet, self.around, self._chance("down"))

    def leave(self, model: Tensor, given: Tensor, branch: int) -> Tensor:
        """Return the payload of a branch's change from the model ``given`` that its edge received."""
        encoded = _coding(self.up).leave(_change(self.up, model, given), self._chance("up", branch))
        return _payload(self.up, model, encoded)

    def arrive(self, payload: Tensor, base: Tensor, branch: int) -> Tensor:
        """Return the model decoded from :meth:`leave`: the change is added to the model ``base`` that was sent.

        Raises:
            RefusedError: the bytes are no payload of the node's codecs.
        """
        return _decode(self.up, payload, base, self._chance("up", branch), change=True)

    def _chance(self, way: str, *branch: int) -> Chance:
        place = self.place
        return lambda step: generator(place.seed, f"travel edge {way} {step}", place.round, place.tick, *branch)


def pop_memory(kept: Memory) -> Memory:
    """Remove what codecs keep of earlier changes from a device's memory, and return it."""
    return {name: kept.pop(name) for name in list(kept) if name.startswith(f"{RESIDUAL} ")}


def _upwards(key: Key) -> Chance:
    """Return the random draws of codecs on the way up, by the codec's place in the chain."""
    return lambda place: generator(key.seed, f"travel up {place}", *key.place())


def _downwards(key: Key) -> Chance:
    """Return the random draws of codecs on the way down, the same for all receivers of a round and tick."""
    return lambda place: generator(key.seed, f"travel down {place}", key.round, key.tick)


def _coding(way: Parcel) -> Coding:
    return cast(Coding, way.coding)


def _send(way: Parcel, packet: Packet, chance: Chance) -> Packet:
    if way.coding is None:
        return packet
    numbers = way.cut(packet["w"]).cpu()[: _coding(way).numbers]
    return {**packet, "w": _payload(way, packet["w"], _coding(way).leave(numbers.numpy(), chance))}


def _receive(way: Parcel, packet: Packet, around: Tensor, chance: Chance, *, change: bool = False) -> Packet:
    return packet if way.coding is None else {**packet, "w": _decode(way, packet["w"], around, chance, change=change)}


def _change(way: Parcel, model: Tensor, base: Tensor) -> Numbers:
    """Return the coded numbers of a model less those of ``base``."""
    coded = _coding(way).numbers
    change: Numbers = (way.cut(model).cpu()[:coded] - way.cut(base).cpu()[:coded]).numpy()
    return change


def _payload(way: Parcel, model: Tensor, encoded: Bytes) -> Tensor:
    """Return encoded numbers with the numbers of a model that travel without codecs behind them, uint8 [bytes]."""
    as_they_are = way.cut(model).cpu()[_coding(way).numbers :].contiguous().numpy().view(np.uint8)
    return torch.from_numpy(np.concatenate([encoded, as_they_are]))


def _decode(way: Parcel, payload: Tensor, around: Tensor, chance: Chance, *, change: bool) -> Tensor:
    """Return the model from a payload of numbers, or of a change to add to the numbers of ``around``."""
    coding = _coding(way)
    model = around.clone()
    data = payload.cpu().numpy()
    numbers = way.cut(model)  # a view, if the part is one slice
    kind = torch.empty(0, dtype=model.dtype).numpy().dtype
    x = coding.arrive(data[: coding.bytes], chance).astype(kind, copy=False)
    # statistics of normalisation layers are no gradient's work: they travel uncoded, behind the trained numbers
    as_they_are = data[coding.bytes :].copy().view(kind)
    if not bool(np.isfinite(x).all() and np.isfinite(as_they_are).all()):  # torch.isfinite takes ten times as long
        raise RefusedError("not finite", "its payload holds infinite or undefined numbers.")
    coded = numbers[: coding.numbers]
    decoded = torch.from_numpy(x).to(model.device)
    _ = coded.add_(decoded) if change else coded.copy_(decoded)
    numbers[coding.numbers :] = torch.from_numpy(as_they_are).to(model.device)
    return model if len(way.parts) == 1 else way.set(numbers, model)
