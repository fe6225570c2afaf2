"""Packets as arrays that travel, and back; a part of the model travels alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.deploy.message import Arrays, fits
from fedfloor.engine.tree import Packet
from fedfloor.models.network import Network
from fedfloor.parts.objective import Objective
from fedfloor.ranges import RefusedError

Wanted = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


def part(network: Network, scope: str) -> slice:
    """Return which numbers of the flat model travel to visits of a scope, and from them."""
    return slice(0, network.flat.numel()) if scope == "all" else network.part(scope)


def arrays(packet: Packet, within: slice) -> dict[str, NDArray[Any]]:
    """Return a packet's arrays, of the model only the part ``within``."""
    found = {name: one.detach().contiguous().numpy() for name, one in packet.items()}
    return {**found, "w": found["w"][within]}


def tensors(got: Arrays) -> dict[str, Tensor]:
    """Return arrays as tensors that may be written to."""
    return {name: torch.from_numpy(np.array(one)) for name, one in got.items()}


def whole(got: Arrays, around: Packet, within: slice) -> dict[str, Tensor]:
    """Return the packet of arrays that came back: what did not travel is that of the packet that went out."""
    found = tensors(got)
    if within != slice(0, around["w"].numel()):
        model = around["w"].clone()
        model[within] = found["w"]
        found["w"] = model
    return found


def like(packet: Packet, within: slice) -> Wanted:
    """Return the shapes and types of what must come back for a packet."""
    wanted = {name: (tuple(one.shape), one.numpy().dtype) for name, one in packet.items()}
    return {**wanted, "w": ((within.stop - within.start,), wanted["w"][1])}


def check_visit(got: Arrays, network: Network, within: slice, goal: Objective) -> None:
    """Refuse what arrives for a visit if it is not the network's model and what the objective reads beside it.

    Raises:
        RefusedError: it is not.
    """
    if "w" not in got or not set(goal.travels) <= set(got):
        raise RefusedError("names", f"{sorted(got)} came; w and {sorted(goal.travels)} are needed.")
    fits({"w": got["w"]}, {"w": ((within.stop - within.start,), network.flat.numpy().dtype)})


def rest(model: Tensor, within: slice) -> str:
    """Return the digest of the numbers of a model that do not travel; "" where all do."""
    if within == slice(0, model.numel()):
        return ""
    said = hashlib.sha256(model[: within.start].contiguous().numpy().data)
    said.update(model[within.stop :].contiguous().numpy().data)
    return said.hexdigest()


def layout(network: Network) -> str:
    """Return a digest of where each tensor of a model lies: those of two machines must be the same."""
    told: Mapping[str, tuple[int, int]] = network.layout
    return hashlib.sha256(repr((sorted(told.items()), network.flat.numpy().dtype.str)).encode()).hexdigest()[:16]
