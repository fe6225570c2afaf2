"""Encoding and decoding of packets by the codecs of a visit, once per hop, the same in every engine.

Down, the model itself is encoded, with random draws that a round's receivers share. Up, its change since arrival is
encoded; the receiver adds it to the model that it sent, in the state before encoding. Vectors beside the model, and
statistics that are not trained (batch norm's), are sent without codecs.
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

RESIDUAL = "residual"  # prefix of the names of error feedback's residuals in a device's memory


def coded(network: Network, travels: str, codecs: str = "") -> Parcel:
    """Return the parcel of a named part of a model, with its codecs.

    Args:
        travels: the part, as in :attr:`fedfloor.plan.nodes.Work.travels`.
        codecs: the codecs, as in :func:`fedfloor.parts.codecs.chain`.
    """
    cut, steps = network.parcel(travels), chain(codecs)
    if any(step.summed for step in steps):  # the whole part is masked, statistics included
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
    """Return the parcel that a visit sends back."""
    return coded(network, work.travels, work.travel)


def down(network: Network, work: Work) -> Parcel:
    """Return the parcel that a visit receives."""
    return coded(network, work.travels, work.travel_down)


def keeps(network: Network, work: Work) -> bool:
    """Return whether devices keep the coding errors of their uploads (error feedback)."""
    return any(codec.feedback for codec in chain(work.travel)) and up(network, work).coding is not None


def summed(way: Parcel) -> SecureSum | None:
    """Return a parcel's secure-sum codec, whose changes are decoded only as a sum; None without one."""
    return cast(Coding, way.coding).summed if way.coding is not None else None


def protected(network: Network, work: Work) -> bool:
    """Return whether a visit's update leaves its device only in a secure sum, or is of gradients with noise."""
    return work.sample_clip is not None or summed(up(network, work)) is not None


def upwards(key: Key) -> Chance:
    """Return the random draws of codecs on the way up, by the codec's place in the chain."""
    return lambda place: generator(key.seed, f"travel up {place}", *key.place())


def downwards(key: Key) -> Chance:
    """Return the random draws of codecs on the way down, the same for all receivers of a round and tick."""
    return lambda place: generator(key.seed, f"travel down {place}", key.round, key.tick)


def sent(network: Network, work: Work, packet: Packet, key: Key) -> Packet:
    """Return a packet as sent to a visit: with the whole model, or the payload of the part that travels."""
    return _sent(down(network, work), packet, downwards(key))


def arrived(network: Network, work: Work, packet: Packet, around: Tensor, key: Key) -> Packet:
    """Return the packet decoded from :func:`sent`; the numbers that do not travel are those of ``around``.

    Raises:
        RefusedError: the bytes are no payload of the work's codecs.
    """
    return _arrived(down(network, work), packet, around, downwards(key))


def leave(
    network: Network, work: Work, model: Tensor, arrived: Tensor, errors: dict[str, Tensor], key: Key
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a visit's model, or the payload of its change, and the coding errors that the device keeps.

    For a secure sum, the change itself [numbers that travel] is returned; the device or the aggregation encodes it.

    Args:
        model, arrived: the model after and before training.
        errors: the kept errors of earlier changes, by part.
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
    """Return the packet decoded from :func:`leave`: the receiver adds the change to the model ``base`` that it sent.

    Raises:
        RefusedError: the bytes are no payload of the work's codecs.
    """
    way = up(network, work)
    return packet if summed(way) else _arrived(way, packet, base, upwards(key), change=True)


# -- between the cloud and edges --------------------------------------------------------------------------------------


def to_edges(network: Network, node: Parallel, packet: Packet, place: Key) -> Packet:
    """Return a packet as sent to the edges that walk a node's branches: with its model, or the model's payload.

    Args:
        place: the round and tick, the key of the codecs' random draws.
    """
    return _sent(coded(network, "all", node.travel_down), packet, _at_edges("down", place))


def at_edge(network: Network, node: Parallel, packet: Packet, place: Key) -> Packet:
    """Return the packet decoded from :func:`to_edges` at an edge.

    Raises:
        RefusedError: the bytes are no payload of the node's codecs.
    """
    return _arrived(coded(network, "all", node.travel_down), packet, network.flat, _at_edges("down", place))


def from_edge(network: Network, node: Parallel, model: Tensor, given: Tensor, place: Key, branch: int) -> Tensor:
    """Return the payload of a branch's change from the model that its edge received."""
    return _encoded(coded(network, "all", node.travel), model, _at_edges("up", place, branch), given)[0]


def back_at(network: Network, node: Parallel, payload: Tensor, base: Tensor, place: Key, branch: int) -> Tensor:
    """Return the model decoded from :func:`from_edge`: the cloud adds the change to the model ``base`` that it sent.

    Raises:
        RefusedError: the bytes are no payload of the node's codecs.
    """
    way = coded(network, "all", node.travel)
    return _decoded(way, payload, base, _at_edges("up", place, branch), change=True)


def _at_edges(way: str, place: Key, *branch: int) -> Chance:
    return lambda step: generator(place.seed, f"travel edge {way} {step}", place.round, place.tick, *branch)


def taken(kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the coding errors from a device's memory, and return them."""
    return {name: kept.pop(name) for name in list(kept) if name.startswith(f"{RESIDUAL} ")}


def _sent(way: Parcel, packet: Packet, chance: Chance) -> Packet:
    return packet if way.coding is None else {**packet, "w": _encoded(way, packet["w"], chance)[0]}


def _arrived(way: Parcel, packet: Packet, around: Tensor, chance: Chance, *, change: bool = False) -> Packet:
    return packet if way.coding is None else {**packet, "w": _decoded(way, packet["w"], around, chance, change=change)}


def _encoded(
    way: Parcel, model: Tensor, chance: Chance, base: Tensor | None = None, error: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the payload of a model, or of its change from ``base``, and the coding error if it is fed back."""
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
    """Return the model from a payload of numbers, or of a change to add to the numbers of ``around``."""
    coding, model, data = cast(Coding, way.coding), around.clone(), payload.cpu().numpy()
    numbers, kind = way.cut(model), torch.empty(0, dtype=model.dtype).numpy().dtype  # a view, if the part is one slice
    x = coding.arrive(data[: coding.bytes], chance).astype(kind, copy=False)
    as_they_are = data[coding.bytes :].copy().view(kind)
    if not bool(np.isfinite(x).all() and np.isfinite(as_they_are).all()):  # torch.isfinite takes ten times as long
        raise RefusedError("not finite", "its payload holds infinite or undefined numbers.")
    coded, decoded = numbers[: coding.numbers], torch.from_numpy(x).to(model.device)
    _ = coded.add_(decoded) if change else coded.copy_(decoded)
    numbers[coding.numbers :] = torch.from_numpy(as_they_are).to(model.device)
    return model if len(way.parts) == 1 else way.set(numbers, model)
