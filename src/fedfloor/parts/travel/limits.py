"""Limits on the length of updates: the rule of ``[deploy] norm_limit``, built in or the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedfloor.base.errors import SettingError, require, shown
from fedfloor.base.outside import own_name
from fedfloor.parts import fitting, named
from fedfloor.parts.travel.path import PathPart

MOST_PIECES = 1000  # of an update; edges state the length of each


if TYPE_CHECKING:  # device agents import this module, and load PyTorch only for training
    from fedfloor.models.network import Network
    from fedfloor.models.parcel import Parcel


@dataclass(frozen=True)
class NormLimit(PathPart):
    """Updates of at most a factor times the median length, of the trained weights and of statistics separately.

    A rule of your own overrides :meth:`pieces`, which returns the parts of the model whose change is limited.

    Args:
        factor: the longest accepted change of a piece, in multiples of the devices' median, above 1.
    """

    factor: float = 4.0

    def __post_init__(self) -> None:
        require(1 < self.factor < math.inf, "deploy.norm_limit", self.factor, "a number above 1, or false")

    @property
    def excludes(self) -> Mapping[str, str]:
        return {
            fitting.BOUNDED: "it refuses a device by the updates of others, so that one device could change the sum by "
            "more than mix.clip. Set deploy.norm_limit = false: mix 'private' bounds every update."
        }

    def pieces(self, network: Network, travels: str) -> list[Parcel]:
        """Return the parts of a model whose change is limited, each by itself; none may be empty.

        A piece that begins with a trained number is one of weights, any other one of statistics, which may change more.

        Args:
            network: the network, which has the layout of the model.
            travels: the part of the model that travels, as in :attr:`fedfloor.plan.nodes.Work.travels`.
        """
        first = network.trained
        moved = network.parcel(travels)
        weights = (slice(part.start, min(part.stop, first)) for part in moved.parts)
        others = (slice(max(part.start, first), part.stop) for part in moved.parts)
        cuts = [replace(moved, parts=tuple(_filled(parts))) for parts in (weights, others)]
        return [cut for cut in cuts if cut.numbers]


def _filled(parts: Iterator[slice]) -> Iterator[slice]:
    return (part for part in parts if part.stop > part.start)


LIMITS: dict[str, Callable[..., NormLimit]] = {"norm": NormLimit}


def limit(value: object) -> NormLimit | None:
    """Return the rule of a setting: a factor, a kind's name, a table of its ``kind`` and settings, or False for none.

    Raises:
        SettingError: the value is none of these, or a setting is out of its range.

    >>> limit(4.0), limit(False), limit({"kind": "norm", "factor": 2.0})
    (NormLimit(factor=4.0), None, NormLimit(factor=2.0))
    """
    if value is False:
        return None
    if isinstance(value, (int, float)):
        require(value is not True, "deploy.norm_limit", value, "a number above 1, or false")
        return NormLimit(float(value))
    settings: Any = {"kind": value} if isinstance(value, str) else value
    kind = settings.get("kind") if isinstance(settings, Mapping) else None
    if not isinstance(kind, str) or (kind not in LIMITS and own_name(kind) is None):
        raise SettingError(
            f"deploy.norm_limit = {shown(value)}: must be a number above 1, false, or a table such as "
            '{ kind = "my_limits:PerLayer", factor = 4.0 }.'
        )
    own = {key: setting for key, setting in settings.items() if key != "kind"}
    return named.make("limit", kind, own, LIMITS, NormLimit)  # type: ignore[no-any-return]
