"""A reference without a network: gradient boosting of scikit-learn on the pooled table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from fedfloor.errors import SettingError, require
from fedfloor.methods.contract import Method, State, View


@dataclass(frozen=True)
class GradientBoosting(Method):
    """Histogram gradient boosting on all devices' training samples in one table, F(x) = Σ_t η·tree_t(x).

    ::

        one row per sample: a row of sensors as it is; of a window the mean, standard deviation, minimum, maximum and
        last value of each sensor; then HistGradientBoostingClassifier of scikit-learn, fitted once, or
        HistGradientBoostingRegressor, fitted once for each output

    The table is normalised as for the network. It is no federated method, and no plan: ``fedfloor compare
    --references`` fits it (:mod:`fedfloor.runs.roundless`).

    Travels: all data.

    Ke et al., LightGBM, NeurIPS 2017, as in scikit-learn; the defaults are scikit-learn's.

    Args:
        iterations: trees per class or output, at most: with more than 10,000 rows, it stops once a tenth of them that
            is held out gets no better.
        rate: η of each tree.
        leaves: of a tree, at most.
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
