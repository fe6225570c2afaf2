"""FedAvg, and the schedule that most methods share with it: drawn devices train alone, the cloud mixes their models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedfloor.errors import SettingError, require
from fedfloor.methods.contract import Method, State, View
from fedfloor.parts import mix
from fedfloor.parts.mix import BySamples, Mix
from fedfloor.parts.selection import fraction
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import ARRIVED, Node, Parallel, Probe, Sequence, Train, Work, device


@dataclass(frozen=True)
class FedAvg(Method):
    r"""Federated averaging, w ← Σ_k (n_k/n) w_k.

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    With every device and one step per visit it is one centralised step on the union of the mini-batches (equal sizes).

    Travels: the model, down and up.

    McMahan et al., AISTATS 2017, arXiv 1602.05629. Methods with another objective, mixing
    rule or server are this class with that property exchanged.

    Args:
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: the work of a visit; E = 5 epochs is FedSR's setting (arXiv 2403.14718) and McMahan's usual one.
    """

    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        require(0 < self.fraction <= 1, f"methods.{name}.fraction", self.fraction, "above 0 and at most 1")
        _ = self.objective  # settings out of range are refused by the parts that have them
        try:
            _ = self.mix, self.server
        except SettingError as error:
            setting = str(error).removeprefix("mix.").removeprefix("server.")
            raise SettingError(f"methods.{name}.{'server_' if setting.startswith('rate') else ''}{setting}") from error

    @property
    def mix(self) -> Mix:
        """The aggregation of the devices' models at the cloud."""
        return BySamples()

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        """Visit the drawn devices in parallel."""
        return self._visits(view, rng)

    def _visits(self, view: View, rng: np.random.Generator) -> Parallel:
        return visiting(self, self.work, view, fraction(view.devices, self.fraction, rng), self.mix)


def visiting(method: Method, work: WorkSettings, view: View, chosen: list[int], rule: Mix | None = None) -> Parallel:
    """Return visits to the chosen devices in parallel, whose models meet by a rule; by samples where it is left out."""
    todo = work.at(view.round, view.rounds, method.objective)
    name, settings = mix.to_spec(rule or BySamples())
    return Parallel(tuple(Train(device(k), todo) for k in chosen), mix=name, settings=settings)


def profiling(method: Method, work: WorkSettings, view: View) -> Probe:
    """Return the question to all devices for the model that one local training makes; it keeps no moments."""
    todo = replace(work.at(max(1, view.round), view.rounds, method.objective), moments="visit")
    settings = {name: value for name, value in todo.to_spec().items() if name != "settings" and value is not None}
    return Probe(tuple(view.devices), "profile", settings=settings)


def beside(plan: Parallel, own: Callable[[Work], Work]) -> Parallel:
    """Return visits that each first train a model of the device's own, besides the arrived one (``Work.sends``)."""
    visits = [visit for visit in plan.children if isinstance(visit, Train)]
    pairs = [(replace(visit, work=replace(own(visit.work), sends=ARRIVED)), visit) for visit in visits]
    return replace(plan, children=tuple(map(Sequence, pairs)))
