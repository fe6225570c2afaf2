"""FedAvg, and the schedule of most methods: drawn devices train in parallel, and the cloud averages their models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.contract import Method, State, View
from fedfloor.parts.mixing import registry as mixing
from fedfloor.parts.mixing.mix import BySamples, Mix
from fedfloor.parts.selection.selection import fraction
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

    With all devices, one step per visit and equal sizes it is a centralised step on the union of the mini-batches.

    Travels: the model, down and up.

    McMahan et al., AISTATS 2017, arXiv 1602.05629. Methods with another objective, mixing rule or server are subclasses
    with that property exchanged.

    Args:
        fraction: C in (0, 1], the share of devices drawn in a round.
        work: the work of a visit; E = 5 epochs is FedSR's setting (arXiv 2403.14718) and McMahan's usual setting.
    """

    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        require(0 < self.fraction <= 1, f"methods.{name}.fraction", self.fraction, "above 0 and at most 1")
        _ = self.objective  # the parts with these settings refuse values out of range
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
        """Return the plan of a round: parallel visits to the drawn devices."""
        return self._visits(view, rng)

    def _visits(self, view: View, rng: np.random.Generator) -> Parallel:
        return visiting(self, self.work, view, fraction(view.devices, self.fraction, rng), self.mix)


def visiting(method: Method, work: WorkSettings, view: View, chosen: list[int], rule: Mix | None = None) -> Parallel:
    """Return parallel visits to the chosen devices, whose models are mixed by a rule; by samples by default."""
    todo = work.at(view.round, view.rounds, method.objective)
    name, settings = mixing.to_spec(rule or BySamples())
    return Parallel(tuple(Train(device(k), todo) for k in chosen), mix=name, settings=settings)


def profile(method: Method, work: WorkSettings, round_number: int = 1, rounds: int = 1) -> Probe:
    """Return the question, without devices, for the model after one local training, which keeps no moments."""
    todo = replace(work.at(max(1, round_number), rounds, method.objective), moments="visit")
    settings = {name: value for name, value in todo.to_spec().items() if name != "settings" and value is not None}
    return Probe((), "profile", settings=settings)


def profiling(method: Method, work: WorkSettings, view: View) -> Probe:
    """Return the question :func:`profile` of a view's round to all its devices."""
    return replace(profile(method, work, view.round, view.rounds), devices=tuple(view.devices))


def beside(plan: Parallel, own: Callable[[Work], Work]) -> Parallel:
    """Return visits that first train the device's own model and then the arrived one (``Work.sends``)."""
    visits = [visit for visit in plan.children if isinstance(visit, Train)]
    pairs = [(replace(visit, work=replace(own(visit.work), sends=ARRIVED)), visit) for visit in visits]
    return replace(plan, children=tuple(map(Sequence, pairs)))
