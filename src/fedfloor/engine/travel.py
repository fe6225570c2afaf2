"""Where packets leave and arrive: coded by a visit's codecs, each once per hop, in every engine alike.

Down, the model itself is coded, with draws that a round's receivers share. Up, it is the change of the model that
arrived; the receiver adds it to the model that it sent, which no codec has touched. Vectors beside the model, and
statistics that are not trained (batch norm's), go as they are.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedfloor.chance import generator
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.parts.codecs import Chance, Coding, SecureSum, chain
from fedfloor.parts.packing import NumberLayout
from fedfloor.plan.nodes import Parallel, Work
from fedfloor.plan.schedule import Key
from fedfloor.ranges import RefusedError

RESIDUAL = "residual"  # prefix of the names of error feedback in a device's memory


def coded(network: Network, travels: str, codecs: str = "") -> Parcel:
    """Return the named part of a model as codecs make it.

    Args:
        travels: the part: see :attr:`fedfloor.plan.nodes.Work.travels`.
        codecs: see :func:`fedfloor.parts.codecs.chain`.
    """
    cut, steps = network.parcel(travels), chain(codecs)
    if any(step.summed for step in steps):  # masked whole, statistics included
        return Parcel(cut.parts, cut.model, Coding(steps, NumberLayout(((1, cut.numbers),))))
    if not steps or not cut.among(network.trained):
        return cut
    shapes, at = [], 0
    for view in network.named(network.flat).values():
        first, stop = at, at + view.numel()
        inside = sum(max(0, min(part.stop, stop, network.trained) - max(part.start, first)) for part in cut.parts)
        if inside:
            rows = view.shape[0] if inside == view.numel() and view.dim() > 1 else 1
            shapes.append((rows, inside // rows))
        at = stop
    layout = NumberLayout(tuple(shapes), bits=8 * network.flat.element_size())
    return Parcel(cut.parts, cut.model, Coding(steps, layout))


def up(network: Network, work: Work) -> Parcel:
    """Return the parcel that leaves a visit."""
    return coded(network, work.travels, work.travel)


def down(network: Network, work: Work) -> Parcel:
    """Return the parcel that goes to a visit."""
    return coded(network, work.travels, work.travel_down)


def keeps(network: Network, work: Work) -> bool:
    """Return whether devices keep the error of their uploads."""
    return any(codec.feedback for codec in chain(work.travel)) and up(network, work).coding is not None


def summed(way: Parcel) -> SecureSum | None:
    """Return the visit's codec whose changes are decoded only once they are added up, if it has one."""
    return cast(Coding, way.coding).summed if way.coding is not None else None


def upwards(key: Key) -> Chance:
    """Return the draws of codecs on the way up."""
    return lambda place: generator(key.seed, f"travel up {place}", *key.place())


def downwards(key: Key) -> Chance:
    """Return the draws of codecs on the way down: one copy may serve all receivers."""
    return lambda place: generator(key.seed, f"travel down {place}", key.round, key.tick)


def sent(network: Network, work: Work, packet: Packet, key: Key) -> Packet:
    """Return a packet as it goes to a visit: with its whole model, or the payload of the part that travels."""
    return _sent(down(network, work), packet, downwards(key))


def arrived(network: Network, work: Work, packet: Packet, around: Tensor, key: Key) -> Packet:
    """Decode the result of :func:`sent` where it arrives; numbers that do not travel are those of ``around``.

    Raises:
        RefusedError: the bytes are no payload of the work's codecs.
    """
    return _arrived(down(network, work), packet, around, downwards(key))


def leave(
    network: Network, work: Work, model: Tensor, arrived: Tensor, errors: dict[str, Tensor], key: Key
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the model of a visit, or the payload of its change, and the errors that the device keeps.

    Of a secure sum it is the change itself [numbers that travel], which the device or the aggregation encodes.

    Args:
        model, arrived: after and before training.
        errors: the errors of the changes before, by part.
    """
    way = up(network, work)
    if way.coding is None:
        return model, errors
    if summed(way):
        return way.cut(model) - way.cut(arrived), errors
    name = f"{RESIDUAL} {work.travels}"
    payload, error = _encoded(way, model, upwards(key), arrived, errors.get(name))
    return payload, errors if error is None else {**errors, name: error}


def received(network: Network, work: Work, packet: Packet, base: Tensor, key: Key) -> Packet:
    """Decode the result of :func:`leave` at the receiver, which adds it to the model ``base`` that it had sent.

    Raises:
        RefusedError: the bytes are no payload of the work's codecs.
    """
    way = up(network, work)
    return packet if summed(way) else _arrived(way, packet, base, upwards(key), change=True)


# -- between the cloud and edges --------------------------------------------------------------------------------------


def to_edges(network: Network, node: Parallel, packet: Packet, place: Key) -> Packet:
    """Return a packet as it goes to the edges that walk the branches of a node: with its model, or a payload of it.

    Args:
        place: the round and tick, by which codecs draw.
    """
    return _sent(coded(network, "all", node.travel_down), packet, _at_edges("down", place))


def at_edge(network: Network, node: Parallel, packet: Packet, place: Key) -> Packet:
    """Decode the result of :func:`to_edges` where it arrives.

    Raises:
        RefusedError: the bytes are no payload of the node's codecs.
    """
    return _arrived(coded(network, "all", node.travel_down), packet, network.flat, _at_edges("down", place))


def from_edge(network: Network, node: Parallel, model: Tensor, given: Tensor, place: Key, branch: int) -> Tensor:
    """Return the payload of a branch's change from the model that its edge was given."""
    return _encoded(coded(network, "all", node.travel), model, _at_edges("up", place, branch), given)[0]


def back_at(network: Network, node: Parallel, payload: Tensor, base: Tensor, place: Key, branch: int) -> Tensor:
    """Decode the result of :func:`from_edge` at the cloud, which adds it to the model ``base`` that it had sent.

    Raises:
        RefusedError: the bytes are no payload of the node's codecs.
    """
    way = coded(network, "all", node.travel)
    return _decoded(way, payload, base, _at_edges("up", place, branch), change=True)


def _at_edges(way: str, place: Key, *branch: int) -> Chance:
    return lambda step: generator(place.seed, f"travel edge {way} {step}", place.round, place.tick, *branch)


def taken(kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take the errors out of a device's memory, and return them."""
    return {name: kept.pop(name) for name in list(kept) if name.startswith(f"{RESIDUAL} ")}


def _sent(way: Parcel, packet: Packet, chance: Chance) -> Packet:
    return packet if way.coding is None else {**packet, "w": _encoded(way, packet["w"], chance)[0]}


def _arrived(way: Parcel, packet: Packet, around: Tensor, chance: Chance, *, change: bool = False) -> Packet:
    return packet if way.coding is None else {**packet, "w": _decoded(way, packet["w"], around, chance, change=change)}


def _encoded(
    way: Parcel, model: Tensor, chance: Chance, base: Tensor | None = None, error: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the payload of a model, or of its change from ``base``, and the error where it is fed back."""
    coding = cast(Coding, way.coding)
    numbers, many = way.cut(model).cpu(), coding.numbers
    x = numbers[:many] if base is None else numbers[:many] - way.cut(base).cpu()[:many]
    if error is not None:
        x = x + error.cpu()
    payload = coding.leave(x.numpy(), chance)
    left = None
    if coding.feedback:
        left = x - torch.from_numpy(coding.arrive(payload, chance).astype(x.numpy().dtype, copy=False))
    as_they_are = numbers[many:].contiguous().numpy().view(np.uint8)
    return torch.from_numpy(np.concatenate([payload, as_they_are])), left


def _decoded(way: Parcel, payload: Tensor, around: Tensor, chance: Chance, *, change: bool) -> Tensor:
    """Return the model of a payload: the numbers themselves, or a change that is added to those of ``around``."""
    coding, model, data = cast(Coding, way.coding), around.clone(), payload.cpu().numpy()
    numbers, kind = way.cut(model), torch.empty(0, dtype=model.dtype).numpy().dtype  # a view, where that is one piece
    x = coding.arrive(data[: coding.bytes], chance).astype(kind, copy=False)
    as_they_are = data[coding.bytes :].copy().view(kind)
    if not bool(np.isfinite(x).all() and np.isfinite(as_they_are).all()):  # PyTorch's takes ten times as long
        raise RefusedError("not finite", "its payload holds infinite or undefined numbers.")
    coded, decoded = numbers[: coding.numbers], torch.from_numpy(x).to(model.device)
    _ = coded.add_(decoded) if change else coded.copy_(decoded)
    numbers[coding.numbers :] = torch.from_numpy(as_they_are).to(model.device)
    return model if len(way.parts) == 1 else way.set(numbers, model)
