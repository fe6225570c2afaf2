"""What arrives for a visit is checked against the model that is here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fedfloor.deploy.message import Arrays, fits
from fedfloor.models.network import Network
from fedfloor.models.parcel import Parcel
from fedfloor.parts.objective import Objective
from fedfloor.ranges import RefusedError


def check_visit(got: Arrays, network: Network, cut: Parcel, goal: Objective) -> None:
    """Refuse what arrives for a visit if it is not the network's model and what the objective reads beside it.

    Raises:
        RefusedError: it is not.
    """
    if "w" not in got or not set(goal.travels) <= set(got):
        raise RefusedError("names", f"{sorted(got)} came; w and {sorted(goal.travels)} are needed.")
    fits({"w": got["w"]}, {"w": ((cut.numbers,), network.flat.numpy().dtype)})


def layout(network: Network) -> str:
    """Return a digest of where each tensor of a model lies: those of two machines must be the same."""
    told: Mapping[str, tuple[int, int]] = network.layout
    return hashlib.sha256(repr((sorted(told.items()), network.flat.numpy().dtype.str)).encode()).hexdigest()[:16]
