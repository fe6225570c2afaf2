"""The tasks by their names in ``[data] task``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedfloor.base.checking import parsed
from fedfloor.base.errors import SettingError, shown
from fedfloor.tasks.classification import Classification
from fedfloor.tasks.forecasting import Forecasting
from fedfloor.tasks.reconstruction import Reconstruction
from fedfloor.tasks.regression import Regression
from fedfloor.tasks.survival import Survival
from fedfloor.tasks.task import Task

TASKS: Mapping[str, type[Task]] = {
    task.kind: task for task in (Classification, Regression, Reconstruction, Forecasting, Survival)
}


def made(about: Mapping[str, Any] | None) -> Task:
    """Return the task of a JSON description; a classification for None."""
    if about is None:
        return TASKS["classification"]()
    settings = {
        key: tuple(value) if isinstance(value, list) else value for key, value in about.items() if key != "kind"
    }
    return TASKS[about["kind"]](**settings)


def read(about: Mapping[str, Any] | None, bins: int, columns: Sequence[str], place: str) -> Task:
    """Return the task described in a model's file or a message, after checks of the untrusted content.

    Args:
        about: a task's description; None is a classification.
        bins: F, the number of bins of the model.
        columns: the model's sensors; empty for pictures.
        place: the file or the message, for errors.

    Raises:
        SettingError: the description is not that of a task, or cannot result from training.
    """
    if about is None:
        return TASKS["classification"]()
    noun = "the task of a model"
    advice = "Train it again with this version."
    kind = about.get("kind")
    if not isinstance(kind, str) or kind not in TASKS:
        raise SettingError(
            f"{place}: not {noun} (kind = {shown(kind)}; known: {', '.join(TASKS)}). {advice}", key="damaged-model"
        )
    task = parsed(TASKS[kind], json.dumps(about), place, noun, advice)
    try:
        task.check_fitted(bins, columns)
    except ValueError as error:
        raise SettingError(f"{place}: not {noun} ({error}). {advice}", key="damaged-model") from error
    return task
