"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedfloor.methods.contract import Answers, State, View
from fedfloor.methods.fedavg import FedAvg
from fedfloor.parts.mixing.mix import Equal, Mix
from fedfloor.parts.objectives.correction import Variates
from fedfloor.parts.objectives.objective import Objective
from fedfloor.parts.server import Server, Sgd
from fedfloor.plan.outcome import Outcome


@dataclass(frozen=True)
class Scaffold(FedAvg):
    r"""Stochastic controlled averaging, y_k ← y_k − η(g_k(y_k) + c − c_k).

    ::

        c, every c_k ← 0
        for each round:
            S ← max(C·N, 1) devices drawn at random
            for k in S in parallel: y_k ← K steps y_k ← y_k − η(g_k(y_k) + c − c_k), starting from x
                                    c_k⁺ ← c_k − c + (x − y_k)/(η·K); Δ_k ← c_k⁺ − c_k; c_k ← c_k⁺
            x ← x + η_g·mean_{k∈S}(y_k − x); c ← c + (|S|/N)·mean_{k∈S} Δ_k

    With c and all c_k left at 0, as in the first round, server_rate = 1 and equal sizes this is FedAvg.

    Travels: the model and c down, the model and c + Δ_k up: twice FedAvg's bytes. A device keeps c_k between visits. A
    lost visit changes neither c_k nor c, and its device does not count in |S|.

    Karimireddy et al., ICML 2020, arXiv 1910.06378, option II. With momentum in the local steps, a larger divisor than
    K keeps c_k a mean of gradients: see :class:`fedfloor.parts.objectives.correction.Variates`.

    Args:
        server_rate: η_g > 0; the authors use 1.
        work: the work of a visit; the paper's experiments have 1 to 20 epochs.
    """

    title = "SCAFFOLD"

    server_rate: float = 1.0

    @property
    def objective(self) -> Objective:
        return Variates()

    @property
    def server(self) -> Server:
        return Sgd(self.server_rate)

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        """Return the first state, with c = 0 in the packet (without c in a preview, which has no model), and with N."""
        notes = {"devices": len(view.sizes)}
        if not view.start:
            return State({}, notes)
        return State({**view.start, "c": view.start["w"].new_zeros(view.trained)}, notes)

    @property
    def mix(self) -> Mix:
        return Equal()

    def absorb(self, state: State, outcome: Outcome) -> State:
        """Return the state with c moved by |S|/N of the way to the mean of the uploads; S: the devices with uploads."""
        arrived = {receipt.device for receipt in outcome.receipts if not receipt.lost}
        c = state.packet["c"].lerp(outcome.packet["c"], len(arrived) / state.notes["devices"])
        return replace(state, packet={**outcome.packet, "c": c})
