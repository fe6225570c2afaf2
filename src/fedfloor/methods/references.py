"""References for other methods: training in one place, on each device alone, without a network, or not at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import CLOUD, Node, Parallel, Train, device
from fedfloor.plan.outcome import Outcome


@dataclass(frozen=True)
class Centralized(Method):
    """Stochastic gradient descent on the union of all devices' data, w ← w − η∇F(w; batch).

    ::

        for each round: E epochs of SGD on all data, in one place

    An upper reference for federated methods. It is FedAvg on a park of one device.

    Travels: nothing during training; all data are in one place, unlike in federated methods.

    Robbins and Monro, Annals of Mathematical Statistics, 1951.

    Args:
        work: the work of a round; one epoch.
    """

    title = "centralised training"

    work: WorkSettings = WorkSettings(epochs=1)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        return Train(CLOUD, self.work.at(view.round, view.rounds))


@dataclass(frozen=True)
class LocalOnly(Method):
    """Stochastic gradient descent on each device's own data, w_k ← w_k − η∇F_k(w_k; batch), from a common start.

    ::

        for each round: for each device k: w_k ← E epochs of SGD on the data of k, starting from its own w_k

    A lower reference: the gain of a federation is its lead over local training. The accuracy is that of each tested
    device's own model on its own test samples, weighted by their number; on test samples without an owner that trains,
    it is the mean over all devices' models. The plan consists of visits that send nothing (``Work.sends = "nothing"``),
    and engines, checkpoints and ranks are those of every method. A visit's arithmetic is that of FedAvg, so that both
    agree to the bit on a park of one device.

    Travels: nothing.

    Args:
        work: the work of a device in a round; E = 1 epoch.
    """

    title = "local only"

    work: WorkSettings = WorkSettings(epochs=1)

    @property
    def needs(self) -> Needs:
        return Needs(remembers=True, own="all", separate=True)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        work = replace(self.work.at(view.round, view.rounds), sends="nothing")
        return Parallel(tuple(Train(device(k), work) for k in view.devices))

    def absorb(self, state: State, outcome: Outcome) -> State:
        return state


@dataclass(frozen=True)
class GradientBoosting(Method):
    """Histogram gradient boosting on all devices' training samples in one table, F(x) = Σ_t η·tree_t(x).

    ::

        one row per sample: a row of sensors unchanged; for a window the mean, standard deviation, minimum, maximum and
        last value of each sensor; then HistGradientBoostingClassifier of scikit-learn, fitted once, or
        HistGradientBoostingRegressor, fitted once for each output

    The table is normalised as for the network. It is no federated method and has no plan: ``fedfloor compare
    --references`` fits it (:mod:`fedfloor.runs.references`).

    Travels: all data.

    Ke et al., LightGBM, NeurIPS 2017, as in scikit-learn; the defaults are scikit-learn's.

    Args:
        iterations: the greatest number of trees per class or output; with more than 10,000 rows, the fit stops when the
            loss on a held-out tenth of them does not improve.
        rate: η of each tree.
        leaves: the greatest number of leaves of a tree.
    """

    title = "scikit-learn"

    iterations: int = 100
    rate: float = 0.1
    leaves: int = 31

    def __post_init__(self) -> None:
        where = "methods.scikit-learn"
        require(self.iterations >= 1, f"{where}.iterations", self.iterations, "a whole number of at least 1")
        require(0 < self.rate <= 1, f"{where}.rate", self.rate, "above 0 and at most 1")
        require(self.leaves >= 2, f"{where}.leaves", self.leaves, "a whole number of at least 2")

    def plan(self, state: State, view: View, rng: np.random.Generator) -> NoReturn:
        raise SettingError(
            "method 'scikit-learn' has no rounds: it is a reference that is fitted once. fedfloor compare … "
            "--references shows it beside methods."
        )


@dataclass(frozen=True)
class Persistence(Method):
    """A forecast that repeats the last value of every sensor: x̂_{t+h} = x_t for h = 1 … H.

    ::

        from the window x_{t−L+1} … x_t: repeat x_t; a missing value is replaced by the last value before it

    Nothing is trained and nothing travels. It is no federated method and has no plan: ``fedfloor compare --references``
    shows it beside forecasts (:mod:`fedfloor.runs.references`). Hyndman and Athanasopoulos, Forecasting: Principles and
    Practice, 3rd edition (2021), section 5.2.

    Travels: nothing.
    """

    title = "persistence"

    def plan(self, state: State, view: View, rng: np.random.Generator) -> NoReturn:
        raise SettingError(
            f"method '{self.title}' has no rounds: it is a reference that learns nothing. fedfloor "
            "compare … --references shows it beside methods."
        )


@dataclass(frozen=True)
class Seasonal(Persistence):
    """A forecast by the value one season earlier: x̂_{t+h} = x_{t+h−m·⌈h/m⌉} with the season m of ``data.task.season``.

    ::

        from the window x_{t−L+1} … x_t, L ≥ m: repeat its last m rows

    With m = 1 it is persistence.

    Travels: nothing.
    """

    title = "seasonal"


@dataclass(frozen=True)
class MeanAbsZ(Persistence):
    """An anomaly score without a model: the mean of |z| over a sample's numbers, z = (x − m)/s as normalised.

    ::

        score = (1/D) Σ_d |z_d|; alarms begin at the threshold of the task, a quantile over held-out normal samples

    Detectors that are trained must be better. A report has it beside every detector of sensors.

    Travels: nothing but the normalisation's sums, and counts for the threshold.
    """

    title = "mean |z|"
