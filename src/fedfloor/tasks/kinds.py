"""The tasks by name, as ``[data] task`` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedfloor.tasks.classification import Classification
from fedfloor.tasks.forecasting import Forecasting
from fedfloor.tasks.reconstruction import Reconstruction
from fedfloor.tasks.regression import Regression
from fedfloor.tasks.task import Task

TASKS: Mapping[str, type[Task]] = {one.kind: one for one in (Classification, Regression, Reconstruction, Forecasting)}


def made(about: Mapping[str, Any] | None) -> Task:
    """Return the task of a JSON description; classification where there is none."""
    if about is None:
        return TASKS["classification"]()
    settings = {key: tuple(one) if isinstance(one, list) else one for key, one in about.items() if key != "kind"}
    return TASKS[about["kind"]](**settings)
