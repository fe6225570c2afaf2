"""References for other methods: all data in one place, no federation, no network, or no learning at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from fedfloor.errors import SettingError, require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import CLOUD, Node, Parallel, Train, device
from fedfloor.plan.outcome import Outcome


@dataclass(frozen=True)
class Centralized(Method):
    """Stochastic gradient descent on the union of all devices' data, w ← w − η∇F(w; batch).

    ::

        for each round: E epochs of SGD on all data, in one place

    The bound federated methods are measured against. It is FedAvg on a park of one device.

    Travels: nothing; the data are where the model is, unlike in federated methods.

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
    """Stochastic gradient descent on each device's own data, w_k ← w_k − η∇F_k(w_k; batch), all from one first model.

    ::

        for each round: for each device k: w_k ← E epochs of SGD on the data of k, starting from its own w_k

    The lower reference: the gain of a federation is its lead over this. Its accuracy is that of each tested
    device's own model on its own test samples, weighted by their number; on test samples of owners who never train, or
    without an owner, it is the mean over all devices' models. It is a plan of visits that send nothing
    (``Work.sends = "nothing"``): no vector of all models exists, engines, checkpoints and ranks are those of every
    method, and the arithmetic of a visit is that of FedAvg, so that on a park of one device the two agree to the bit.

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

        one row per sample: a row of sensors as it is; of a window the mean, standard deviation, minimum, maximum and
        last value of each sensor; then HistGradientBoostingClassifier of scikit-learn, fitted once, or
        HistGradientBoostingRegressor, fitted once for each output

    The table is normalised as for the network. It is not a federated method, and no plan: ``fedfloor compare
    --references`` fits it (:mod:`fedfloor.runs.references`).

    Travels: all data.

    Ke et al., LightGBM, NeurIPS 2017, as in scikit-learn; the defaults are scikit-learn's.

    Args:
        iterations: trees per class or output, at most: with more than 10,000 rows, it stops once a tenth of them that
            is held out gets no better.
        rate: η of each tree.
        leaves: the number of leaves of a tree, at most.
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
    """The last value of every sensor is repeated: x̂_{t+h} = x_t for h = 1 … H.

    ::

        of the window x_{t−L+1} … x_t: repeat x_t; a missing value is the last one before it

    Nothing is trained and nothing travels. It is not a federated method, and no plan: ``fedfloor compare --references``
    shows it beside forecasts (:mod:`fedfloor.runs.references`). Hyndman and Athanasopoulos, Forecasting: Principles and
    Practice, 3rd edition (2021), section 5.2.

    Travels: nothing.
    """

    title = "persistence"

    def plan(self, state: State, view: View, rng: np.random.Generator) -> NoReturn:
        raise SettingError(
            f"method '{self.title}' has no rounds: it is a reference of forecasts that learns nothing. fedfloor "
            "compare … --references shows it beside methods."
        )


@dataclass(frozen=True)
class Seasonal(Persistence):
    """The value a season before: x̂_{t+h} = x_{t+h−m·⌈h/m⌉} with the season m of ``data.task.season``.

    ::

        of the window x_{t−L+1} … x_t, L ≥ m: repeat its last m rows

    With m = 1 it is persistence.

    Travels: nothing.
    """

    title = "seasonal"
