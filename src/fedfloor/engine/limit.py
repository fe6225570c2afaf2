"""The limit on the length of updates: a visit with an update far longer than other devices' counts as lost.

An update Δ is the change of the model that the visit received, in parts: those of the rule (parts/travel/limits.py;
usually the trained parameters, and the statistics behind them), and each packet entry beside the model.
docs/deploy-security.md, "How long an update may be", has the rule and its reasons. An update is refused only if both
‖Δ‖ and ‖Δ‖/(rate · steps) are too long, as neither alone is fair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fedfloor.base.errors import SettingError
from fedfloor.parts.travel.chains import secure
from fedfloor.parts.travel.limits import MOST_PIECES, NormLimit
from fedfloor.plan import visit_order, walk
from fedfloor.plan.nodes import Node, Work
from fedfloor.plan.outcome import Receipt

if TYPE_CHECKING:  # device agents import this module, and load PyTorch only for training
    from numpy.typing import NDArray
    from torch import Tensor

    from fedfloor.models.network import Network
    from fedfloor.models.parcel import Packet, Parcel

KNOWN = 3  # least number of devices for a median
FADED = 0.9  # weight of a device's greatest length after a further update
HARMLESS = 0.01  # factor of the weights' own length
# Before there is a median: ten times the weights' own length, and ten more per weight. Initial weights are below 1
# # and inputs are scaled to about 1, so that honest visits change the weights by about their own length at most.
BOUND = 10.0
# the same for statistics and entries beside the model, which have the scale of activations and gradients
OTHERS = 1e6
MOST = 1e300  # a length that is infinite or undefined counts as this
CHUNK = 1 << 18  # numbers that are converted to float64 at a time
Update = tuple[float, ...]  # rate · steps, then the length of each part
Longest = tuple[float, ...]  # a device's greatest recent ‖Δ‖ of each part, then ‖Δ‖/(rate · steps) of each part


@dataclass(frozen=True)
class Part:
    """One part of a packet, before and after a visit.

    Args:
        weights: whether this is the trained part of the model.
        start, end: the numbers before and after the visit.
        flaw: the reason to refuse the update whatever its length, or "".
    """

    weights: bool
    start: Tensor
    end: Tensor
    flaw: str = ""

    @cached_property
    def length(self) -> float:
        """The length ‖end − start‖ of the change."""
        return _norm(self.end, self.start)

    @cached_property
    def own(self) -> float:
        """The length ‖start‖ before the visit."""
        return _norm(self.start)

    @property
    def harmless(self) -> float:
        """The length up to which a change is always accepted."""
        return (HARMLESS if self.weights else 1.0) * self.own

    @property
    def bound(self) -> float:
        """The greatest length to accept while no median is known."""
        return (BOUND if self.weights else OTHERS) * (self.own + math.sqrt(self.start.numel()))


@runtime_checkable
class Counting(Protocol):
    """A network whose tensor ``sums`` can be implausible: :class:`fedfloor.methods.exact.network.Summed`."""

    def flaw(self, sums: Tensor) -> str: ...


def flaw(network: Network, start: Tensor, end: Tensor) -> str:
    """Return the reason to refuse a model regardless of the length of its update, or "".

    Training never makes a variance negative; a single negative one makes the mean of the models undefined. A network of
    sums counts each of a device's samples once.
    """
    if isinstance(network.module, Counting) and (why := network.module.flaw(end[slice(*network.layout["sums"])])):
        return why
    if any(bool((end[part] < 0).any()) and bool((start[part] >= 0).all()) for part in network.variances):
        return "its model holds a negative variance in a normalisation layer."
    return ""


@runtime_checkable
class NetworkOfSums(Protocol):
    """A network of sums, which can contradict each other: of the exact shelf, or a forest."""

    def implausible(self, numbers: Mapping[str, NDArray[Any]]) -> str: ...


def implausible(network: Network, start: Tensor, end: Tensor, travel: str = "") -> str:
    """Return the reason to refuse a device's update, or the mean of several, because no samples have such sums; or "".

    Numbers that codecs changed, as those of a secure sum, are rounded, and may contradict each other.
    """
    if travel or not isinstance(network.module, NetworkOfSums):
        return ""
    sent = {
        name: (end if name.partition(".")[0] == "sums" else start)[slice(*at)] for name, at in network.layout.items()
    }
    return network.module.implausible({name: value.cpu().numpy() for name, value in sent.items()})


def update(work: Work, samples: int, changed: Sequence[Part]) -> Update:
    """Return an update's record: rate · steps, then the length of each part."""
    return (work.reach(samples), *(part.length for part in changed))


@dataclass
class Limit:
    """The limit on updates by a rule; ``known``: scope → device → greatest recent lengths."""

    rule: NormLimit
    known: dict[str, dict[int, Longest]] = field(default_factory=dict)

    @property
    def factor(self) -> float:
        """The longest accepted length, in multiples of the median."""
        return self.rule.factor

    def knowing(self, known: Mapping[str, Mapping[int, Longest]]) -> Limit:
        return Limit(self.rule, {scope: dict(lengths) for scope, lengths in known.items()})

    def copy(self) -> Limit:
        """Return an independent copy, for a branch."""
        return self.knowing(self.known)

    def parts(self, network: Network, travels: str, start: Packet, end: Packet) -> list[Part]:
        """Return the parts of a packet whose change by a visit with the scope ``travels`` is limited."""
        why = flaw(network, start["w"], end["w"])
        changed = [
            Part(cut.parts[0].start < network.trained, cut.cut(start["w"]), cut.cut(end["w"]), why)
            for cut in self.pieces(network, travels)
        ]
        return changed + [Part(False, start[name], end[name]) for name in sorted(set(start) - {"w"})]

    def pieces(self, network: Network, travels: str) -> Sequence[Parcel]:
        """Return the rule's pieces of a model.

        Raises:
            SettingError: they are no list of pieces with numbers, or none though a part travels.
        """
        given = self.rule.pieces(network, travels)
        right = isinstance(given, (list, tuple)) and all(getattr(piece, "numbers", 0) for piece in given)
        if not right or len(given) > MOST_PIECES or (not given and network.parcel(travels).numbers):
            raise SettingError(
                f"limit {type(self.rule).__name__}: pieces must return a list of 1 to {MOST_PIECES} parts of the model "
                f"that hold numbers, such as those of network.parcel(travels), got {given!r:.80}.",
                key="own-limit",
            )
        return given

    def settled(self, node: Node) -> bool:
        """Return whether enough devices for a median are known in each scope whose updates a node's visits show."""
        shown = (work.travels for work in walk.works(node) if not secure(work.travel))
        return all(len(self.known.get(scope, ())) >= KNOWN for scope in shown)

    def judge(self, scope: str, device: int, new: Update, changed: Sequence[Part]) -> str:
        """Record an update; return the reason to refuse it, or ""."""
        self._keep(scope, device, new)
        return self.reason(scope, new, changed)

    def reason(self, scope: str, new: Update, changed: Sequence[Part]) -> str:
        """Return the reason to refuse an update, given the recorded updates, or ""."""
        if changed and changed[0].flaw:
            return changed[0].flaw
        for place, (part, length) in enumerate(zip(changed, new[1:], strict=True), 1):
            middle = self._medians(scope, place, len(new))
            if middle is None:
                if not length <= part.bound:
                    most = f"until {KNOWN} devices are known, at most {part.bound:.3g} is accepted."
                    return f"its update has the length {length:.3g}; {most}"
                continue
            ratio = min(length / middle[0], length / new[0] / middle[1])
            if not ratio <= self.factor and not length <= part.harmless:
                count = len(self.known[scope])
                return (
                    f"its update is {ratio:.3g} times as long as the median of {count} devices; "
                    f"norm_limit = {self.factor:g}."
                )
        return ""

    def most(self, scope: str, place: int, new: Update, part: Part) -> float:
        """Return the greatest length of one part of an update that :meth:`reason` accepts.

        Args:
            scope: the slices of the model that travel.
            place: the place of the part among the update's parts, from 1.
            new: the update, whose first number is its rate · steps.
            part: the part before and after the visit.
        """
        middle = self._medians(scope, place, len(new))
        if middle is None:
            return part.bound
        return max(self.factor * middle[0], self.factor * middle[1] * new[0], part.harmless)

    def strange(self, sizes: Mapping[int, float], harmless: float) -> dict[int, str]:
        """Return the devices with answers longer than ``factor`` times the median, each with the reason to refuse it.

        Args:
            sizes: device → length of its answer.
            harmless: the length up to which no answer is refused.
        """
        middle = median(sizes.values()) if len(sizes) >= KNOWN else 0.0
        return {
            k: f"is {size / middle:.3g} times the median of {len(sizes)} devices; norm_limit = {self.factor:g}."
            for k, size in sizes.items()
            if middle > 0 and not size <= max(self.factor * middle, harmless)
        }

    def note(self, resolved: Node, receipts: Sequence[Receipt]) -> None:
        """Record the updates of a walk's visits, in plan order."""
        for visit, receipt in zip(visit_order.in_order(resolved), receipts, strict=True):
            if receipt.update:
                self._keep(visit.work.travels, receipt.device, receipt.update)

    def _keep(self, scope: str, device: int, new: Update) -> None:
        """Update a device's greatest lengths, plain and per rate · steps; each decays by itself."""
        known = self.known.setdefault(scope, {})
        lengths = new[1:]
        longest = (*lengths, *(min(length / new[0], MOST) for length in lengths))
        old = known.get(device, longest)
        if len(old) == len(longest):
            longest = tuple(max(a, FADED * b) for a, b in zip(longest, old, strict=True))
        known[device] = longest

    def _medians(self, scope: str, place: int, size: int) -> tuple[float, float] | None:
        """Return the medians of a part's lengths and of its lengths per rate · steps.

        None if too few devices are known, or most updates of the part are 0.
        """
        parts = size - 1
        rows = [row for row in self.known.get(scope, {}).values() if len(row) == 2 * parts]
        if len(rows) < KNOWN:
            return None
        middle = median(row[place - 1] for row in rows)
        return (middle, median(row[parts + place - 1] for row in rows)) if middle > 0 else None


def to_json(known: Mapping[str, Mapping[int, Longest]]) -> dict[str, dict[str, list[float]]]:
    """Return the recorded lengths by scope and device as JSON."""
    return {scope: {str(k): list(longest) for k, longest in lengths.items()} for scope, lengths in known.items()}


def from_json(table: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[int, Longest]]:
    """Return recorded lengths by scope and device from their JSON."""
    return {scope: {int(k): tuple(map(float, longest)) for k, longest in rows.items()} for scope, rows in table.items()}


def _norm(values: Tensor, less: Tensor | None = None) -> float:
    """Return the 2-norm of ``values`` (or of values − less) in float64, at most ``MOST``."""
    total = 0.0
    others = None if less is None else less.flatten().split(CHUNK)
    for index, part in enumerate(values.flatten().split(CHUNK)):
        wide = part.double()
        total += float((wide if others is None else wide - others[index].double()).square().sum())
    return min(math.sqrt(total), MOST) if total < math.inf else MOST


def offenders(
    limit: Limit, network: Network, start: Packet, branches: Sequence[tuple[Node, Sequence[Receipt]]]
) -> Iterator[tuple[int, int, str]]:
    """Yield (branch index, receipt index, reason) of updates that are too long given those of all branches."""
    for resolved, receipts in branches:
        limit.note(resolved, receipts)
    changed: dict[str, list[Part]] = {}
    for index, (resolved, receipts) in enumerate(branches):
        for place, (visit, receipt) in enumerate(zip(visit_order.in_order(resolved), receipts, strict=True)):
            if receipt.update and not receipt.lost:
                scope = visit.work.travels
                changed[scope] = changed.get(scope) or limit.parts(network, scope, start, start)
                why = limit.reason(scope, receipt.update, changed[scope])
                if why:
                    yield index, place, why
