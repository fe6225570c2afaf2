"""Federations that do not wait: the cloud takes results as they arrive, and later ones count less."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.parts.mixing import registry as mixing
from fedfloor.parts.mixing.mix import Equal
from fedfloor.parts.mixing.staleness import Polynomial, Staleness
from fedfloor.parts.server import Server, Sgd
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.flow import Arrival, VisitFlow
from fedfloor.plan.nodes import Node, Parallel, Since, Train, Work, device

SQUARE_ROOT = Polynomial(power=0.5)
BUFFER = 10  # results, as in the experiments of Nguyen et al.


@dataclass(frozen=True)
class Unwaiting(Method):
    """A method whose cloud takes results as they arrive; the settings that such methods have in common."""

    concurrency: int | None = None
    staleness: Staleness = SQUARE_ROOT
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        self._check_count("concurrency", self.concurrency)

    def _check_count(self, name: str, value: int | None) -> None:
        setting = f"methods.{type(self).__name__.lower()}.{name}"
        require(value is None or value >= 1, setting, value, "a whole number from 1 on")

    @property
    def needs(self) -> Needs:
        return Needs(clock=True)

    def results(self, concurrency: int) -> int:
        """Return the number of results that make a model."""
        return 1

    def visit(self, arrival: Arrival, work: Work, number: int) -> Node:
        """Return the visit of a result that arrives in round ``number``; ``work`` is that of its departure."""
        raise SettingError(f"{type(self).__name__} does not define how a result counts: define 'visit'.")

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        """Return the plan of a round: the visits whose results arrive in it."""
        if view.arrivals is None:
            raise SettingError("a method that does not wait plans by the clock, which this view lacks.")
        devices = tuple(view.devices)

        def work(number: int) -> Work:
            return self.work.at(number, view.rounds, self.objective)

        concurrency = self.concurrency or len(devices)
        if view.invited is not None:  # a reference that trains each device alone
            concurrency = min(concurrency, len(devices))
        results = self.results(concurrency)
        results = results if view.invited is None else min(results, concurrency)
        arrivals = view.arrivals(VisitFlow(work(view.round), devices, concurrency, results))
        name, settings = mixing.to_spec(Equal())
        visits = tuple(self.visit(one, work(one.round), view.round) for one in arrivals)
        return Parallel(visits, mix=name, settings=settings)


@dataclass(frozen=True)
class FedBuff(Unwaiting):
    r"""Buffered asynchronous aggregation, w ← w + η_g/K · Σ_{i∈buffer} s(τ_i)·(w_i − v_i).

    ::

        M devices drawn at random receive the model and train
        whenever a result (w_i − v_i), trained from the earlier model v_i, arrives: put it into the buffer,
            and send the present model to another device, so that M are training
        with the K-th result: w ← w + η_g/K · Σ s(τ_i)·(w_i − v_i), τ_i the number of models made since v_i

    A round is what fills the buffer once. Times are those of the network; without one a visit takes as long as its
    number of mini-batches. A device whose result is in the buffer rests until the round ends; with M = K = all devices
    of equal sizes and η_g = 1 this is FedAvg.

    Travels: the model, down and up.

    Nguyen et al., AISTATS 2022, arXiv 2106.06639, Algorithm 1, with s(τ) = 1/√(1 + τ). The buffer's results may be
    clipped or mixed robustly (``method.mix``), but not with noise.

    Args:
        buffer: K, the number of results that make a model; by default 10, or ``concurrency`` if it is less.
        concurrency: M, the number of devices that train at the same time; all devices by default.
        server_rate: η_g > 0.
        staleness: s, by the age τ of the model from which a result was trained.
        work: the work of a visit.
    """

    buffer: int | None = None
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_count("buffer", self.buffer)
        require(self.server_rate > 0, "methods.fedbuff.server_rate", self.server_rate, "above 0")

    @property
    def server(self) -> Server:
        return Sgd(self.server_rate)

    def results(self, concurrency: int) -> int:
        """Return K."""
        return min(BUFFER, concurrency) if self.buffer is None else self.buffer

    def visit(self, arrival: Arrival, work: Work, number: int) -> Node:
        """Return a visit, whose change counts by the age of the model that it started from."""
        visit = Train(device(arrival.device), work)
        age = arrival.age(number)
        weight = self.staleness.weight(age)
        return visit if age == 0 and weight == 1 else Since(arrival.version, visit, weight, tick=arrival.version)


@dataclass(frozen=True)
class FedAsync(Unwaiting):
    r"""Asynchronous federated optimization, w ← (1 − α_τ)·w + α_τ·w_i with every result, α_τ = α·s(τ).

    ::

        M devices drawn at random receive the model and train
        whenever a result w_i, trained from an earlier model, arrives: w ← (1 − α·s(τ))·w + α·s(τ)·w_i,
            and send the new model to another device, so that M are training

    A round is one result, so that as many rounds as visits are needed. With one device and α = 1 it is SGD on it.

    Travels: the model, down and up.

    Xie, Koyejo and Gupta, OPT 2020, arXiv 1903.03934, with α = 0.6 and polynomial staleness a = 0.5; for their
    proximal term see ``method.objective = { kind = "prox" }``.

    Args:
        rate: α in (0, 1], the share of a result that is trained from the present model.
        concurrency: M, the number of devices that train at the same time; all devices by default.
        staleness: s, by the age τ of the model from which a result was trained.
        work: the work of a visit.
    """

    rate: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.rate <= 1, "methods.fedasync.rate", self.rate, "above 0 and at most 1")

    def visit(self, arrival: Arrival, work: Work, number: int) -> Node:
        """Return a visit, whose model counts by the age of the model that it started from."""
        visit = Train(device(arrival.device), work)
        age = arrival.age(number)
        weight = self.rate * self.staleness.weight(age)
        whole = age == 0 and weight == 1
        return visit if whole else Since(arrival.version, visit, weight, "model", tick=arrival.version)
