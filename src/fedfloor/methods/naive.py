"""References of a forecast that learn nothing: values that repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from fedfloor.errors import SettingError
from fedfloor.methods.contract import Method, State, View


@dataclass(frozen=True)
class Persistence(Method):
    """The last value of every sensor goes on: x̂_{t+h} = x_t for h = 1 … H.

    ::

        of the window x_{t−L+1} … x_t: repeat x_t; a missing value is the last one before it

    Nothing is trained and nothing travels. It is no federated method, and no plan: ``fedfloor compare --references``
    shows it beside forecasts (:mod:`fedfloor.runs.roundless`). Hyndman and Athanasopoulos, Forecasting: Principles and
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
