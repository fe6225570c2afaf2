"""A linear term ⟨s, w − w_start⟩, by which methods correct every local step by one and the same vector s [trained]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedfloor.parts.objective import Visit

if TYPE_CHECKING:
    from torch import Tensor


def tilt(slope: Tensor, visit: Visit) -> dict[str, Tensor]:
    """Return what an objective's ``begin`` keeps of such a term, while the network still holds w_start.

    Args:
        slope: s, [trained].
        visit: of the network that has just arrived.
    """
    return {"slope": slope, "height": slope.dot(visit.resident().flat[: len(slope)])}


def tilted(weights: Tensor, ready: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return (⟨s, w − w_start⟩ [], its gradient s [trained]), as an objective's ``penalty``.

    The gradient is s itself and not a copy: whoever steps along it must not change it.
    """
    return weights.dot(ready["slope"]).sub_(ready["height"]), ready["slope"]
