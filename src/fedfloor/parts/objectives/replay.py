"""The objective of HFedMS's calibration rounds (SCC): training of the classifier on kept and present features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from fedfloor.base.errors import require, unknown
from fedfloor.parts.objectives.objective import Extractor, Plain, Visit
from fedfloor.plan.nodes import Work

if TYPE_CHECKING:
    from torch import Tensor

Rule = Literal["candidates", "window", "random"]  # the rules that choose the kept features
Kept = tuple["Tensor", "Tensor"]  # names of kept features, or stored samples, and their labels


@dataclass(frozen=True)
class Replay(Plain):
    r"""The mean cross-entropy of the classifier on S ∪ Z*: features of the device's present samples, and kept features.

    ::

        S ← h(window, φ), the features of the window by the frozen extractor φ
        if Z was computed by another extractor φ_bak: Z_c ← Z_c + mean_c h(window, φ) − mean_c h(window, φ_bak)
        θ ← SGD on S ∪ Z
        after the last visit of a period: Z ← the Q features of Z ∪ S_1 ∪ S_2 ∪ … nearest to their class's mean

    A device that missed the last visit of its period selects the Q features at its next visit. φ_bak is only a
    reference to an earlier global model; it is dropped once Z is compensated. The window of the round that trained
    the extractor is not among the candidates: φ is known only after that round, when the window is gone.

    Zeng et al., IEEE TCC 2023, arXiv 2211.03300, Algorithm 4; the steps are those of
    :mod:`fedfloor.parts.objectives.semantic`.

    Args:
        keep: Q, the number of features that a device keeps from one period to the next.
        compensate: whether kept features are moved when the extractor has changed.
        rule: the rule that chooses the kept features; see :func:`~fedfloor.parts.objectives.semantic.nearest`.
        last: whether the visit is the last of its period.
        raw: whether all samples of the windows are kept instead, and their features computed again: an upper bound that
            exceeds a device's memory.
    """

    keep: int = 200
    compensate: bool = True
    rule: Rule = "candidates"
    last: bool = False
    raw: bool = False

    def __post_init__(self) -> None:
        require(self.keep >= 1, "objective replay: keep", self.keep, "a whole number of at least 1")
        if self.rule not in get_args(Rule):
            raise unknown("objective replay: rule", self.rule, get_args(Rule))

    needs_classes = True  # features are kept by class
    remembers = True  # features
    on_features = True  # only the classifier is trained

    @property
    def refers(self) -> bool:
        """Whether the memory belongs to an extractor: features do, samples do not."""
        return not self.raw

    def features(self, visit: Visit) -> Kept:
        from fedfloor.parts.objectives.semantic import fused

        extractor = visit.frozen()
        return fused(extractor.window(), extractor.labels, *self._recalled(visit))

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return Z* and this period's candidates; after the period's last visit, Z."""
        import torch

        extractor = visit.frozen()
        memory = visit.memory
        if self.raw:
            old = (memory["x"], memory["y"]) if memory else (extractor.stored()[:0], extractor.labels[:0])
            return {"x": torch.cat([old[0], extractor.stored()]), "y": torch.cat([old[1], extractor.labels])}
        z, y = self._recalled(visit)
        new = extractor.window(), extractor.labels
        if memory and extractor.before == extractor.name:
            new = torch.cat([memory["new.z"], new[0]]), torch.cat([memory["new.y"], new[1]])
        if self.last:
            z, y = self._nearest((torch.cat([z, new[0]]), torch.cat([y, new[1]])), extractor)
            new = new[0][:0], new[1][:0]
        return {"z": z, "y": y, "new.z": new[0], "new.y": new[1]}

    def _recalled(self, visit: Visit) -> Kept:
        import torch

        from fedfloor.parts.objectives.semantic import compensated, drift

        extractor = visit.frozen()
        memory = visit.memory
        if not memory:
            return extractor.window()[:0], extractor.labels[:0]
        if self.raw:
            return extractor.of(memory["x"]), memory["y"]
        z = memory["z"]
        y = memory["y"]
        if extractor.before == extractor.name:
            return z, y
        if len(memory["new.y"]):  # the last visit of that period did not take place
            z = torch.cat([z, memory["new.z"]])
            y = torch.cat([y, memory["new.y"]])
            z, y = self._nearest((z, y), extractor)
        if not self.compensate:
            return z, y
        classes = 1 + int(torch.cat([y, extractor.labels]).max())
        moved = drift(extractor.window(), extractor.window(extractor.before), extractor.labels, classes)
        return compensated(z, y, moved), y

    def _nearest(self, candidates: Kept, extractor: Extractor) -> Kept:
        from fedfloor.parts.objectives.semantic import nearest

        window = min(len(extractor.labels), len(candidates[1]))
        return nearest(*candidates, self.keep, self.rule, window=window, rng=extractor.chance())


def calibrating(work: Work, goal: Replay | None, epochs: int | None) -> Work:
    """Return the work of a visit that trains the classifier alone, with a replay if given, for ``epochs`` epochs."""
    work = replace(work, trains="classifier")
    if epochs is not None:
        work = replace(work, epochs=epochs, steps=None)
    return work if goal is None else replace(work, objective="replay", settings=dict(vars(goal)))
