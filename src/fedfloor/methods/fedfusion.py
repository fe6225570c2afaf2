"""FedFusion: FedAvg with devices that fuse their features with those of the global model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.contract import Answers, State, View
from fedfloor.methods.fedavg import FedAvg
from fedfloor.parts.mixing.mix import Equal, Mix
from fedfloor.parts.objectives.layers import Fusion
from fedfloor.parts.objectives.objective import Objective
from fedfloor.plan.outcome import Outcome

GAMMA = "fusion.gamma"  # last part of the name of the gates in the module :class:`fedfloor.models.layers.Fused`


@dataclass(frozen=True)
class FedFusion(FedAvg):
    r"""Federated learning with feature fusion, min F_k(w_k) with features γ⊙y + (1 − γ)⊙x.

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on F_k, starting from w, where the features x of w_k are
                          fused with y, those of w, by the operator, whose parameters (γ) are part of w_k
            w' ← Σ_{k∈S} w_k / |S|;  γ' ← (1 − s)·γ' + s·γ;  w ← w'

    The operators are ``multi`` (a γ per channel), ``single`` (one γ) and ``conv`` (a 1×1 convolution of [x; y], which
    is not smoothed). With one step per visit, ``multi`` or ``single``, and no dropout or batch norm, this is FedAvg
    with an equal mean up to rounding: γ starts at 0, and y = x gives it no gradient.

    Travels: the model with its operator, down and up.

    Yao et al., ICIP 2019; arXiv 1908.05891. The equal mean and the smoothing follow the code thu-media/FedFusion. The
    authors train with SGD with momentum 0.9 and weight decay 5e-4, E = 5, batches of 64, and a rate of 2e-3 (MNIST) or
    5e-3 (CIFAR-10), times 0.99 per round down to 1e-4. In FedGS's comparison (arXiv 2202.01512) ``multi`` is the best.

    Args:
        operator: the operator that fuses features.
        smoothing: s in [0, 1), the share of the previous round's γ; for ``multi`` and ``single``.
        layer: the path of the layer whose input is fused; by default the first ``nn.Flatten`` after trained layers, or
            else the classifier.
    """

    operator: Literal["conv", "multi", "single"] = "multi"
    smoothing: float = 0.9
    layer: str | None = None

    def __post_init__(self) -> None:
        require(0 <= self.smoothing < 1, "methods.fedfusion.smoothing", self.smoothing, "at least 0 and below 1")
        super().__post_init__()

    @property
    def objective(self) -> Objective:
        return Fusion(self.operator, self.layer)

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        """Return the first state, with the place of γ in the model."""
        if self.operator == "conv" or not view.start:  # a preview of a plan has no model
            return State(view.start)
        places = [place for name, place in view.layout.items() if f".{name}".endswith(f".{GAMMA}")]
        if len(places) != 1:
            raise SettingError(
                f"methods.fedfusion: gamma is missing: {len(places)} of the model's {len(view.layout)} tensors are "
                f"named '…{GAMMA}', and it must be one. Leave method.objective out, or choose operator = 'conv'."
            )
        return State(view.start, {"gamma": list(places[0])})

    @property
    def mix(self) -> Mix:
        return Equal()

    def absorb(self, state: State, outcome: Outcome) -> State:
        if "gamma" not in state.notes or self.smoothing == 0:
            return State(outcome.packet, state.notes, state.tensors)
        gamma = slice(*state.notes["gamma"])
        w = outcome.packet["w"].clone()
        w[gamma] += self.smoothing * (state.packet["w"][gamma] - w[gamma])  # no change if no device trained
        return State({**outcome.packet, "w": w}, state.notes, state.tensors)
