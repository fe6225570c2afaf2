"""A run's model in Python: tables or arrays in, answers of the same kind out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedfloor.api.wording import in_python
from fedfloor.data import frames
from fedfloor.inference import inputs
from fedfloor.inference.answers import answers_of, results
from fedfloor.inference.trained import Trained, load_model
from fedfloor.inference.unlike import odd_sensors

log = logging.getLogger(__name__)

PLACE = ("file", "device", "time", "first", "last", "device_trained", "part", "label")  # columns that are no answers
TRUE = "true"  # with which columns of true values begin


@dataclass(frozen=True)
class TrainedModel:
    """A trained model that predicts tables and arrays; ``trained`` has its classes, shape and network."""

    trained: Trained

    @classmethod
    def of(cls, folder: Path, *, own: bool) -> TrainedModel:
        """Return the model in a run's folder; ``own``: whether code that it names may be imported."""
        return cls(load_model(folder, own, by_device=True))

    @in_python
    def predict(self, data: Any, device: str = "") -> Any:
        """Return the predicted class, number, alarm or chance to fail of every row or sample.

        Args:
            data: a table with the columns of training, such as a DataFrame; or an array of samples [n, *shape].
            device: the device of all samples; by default that in the table's column.

        Returns:
            For a pandas or Polars DataFrame a Series with its index; otherwise an array. Where a model predicts several
            numbers, a DataFrame, or a dictionary of arrays. A row without an answer, such as the first rows of a
            window, has a missing value.

        Raises:
            SettingError: a column is missing, or no row has an answer.
        """
        columns = self._columns(data, device)
        names = [name for name in columns if name == "predicted" or name.startswith("predicted ")]
        names = names or [name for name in columns if name in ("alarm", "chance")] or ["score"]
        chosen = frames.columns_like(data, {name: columns[name] for name in names})
        return chosen[names[0]] if len(names) == 1 else chosen

    @in_python
    def answers(self, data: Any, device: str = "") -> Any:
        """Return all columns of the answers: predictions with probabilities or intervals, or scores and alarms.

        Arguments and errors are those of :meth:`predict`.
        """
        return frames.columns_like(data, self._columns(data, device))

    def _columns(self, data: Any, device: str) -> dict[str, list[Any]]:
        framed = frames.is_frame(data)
        with TemporaryDirectory() as folder:
            path = Path(folder) / ("data.parquet" if framed else "data.npz")
            if framed:
                frames.write(data, path)
            else:
                np.savez(path, x=np.asarray(data))
            parts = list(inputs.read([path], self.trained, device=device))
        for part in parts:
            for text in (*part.left_out, *odd_sensors(self.trained, part)):
                log.warning("%s", text)
        answers = results(self.trained, answers_of(self.trained, parts))
        for text in answers.warnings():
            log.warning("%s", text)
        found = answers.table()
        rows = len(next(iter(data.values()))) if isinstance(data, dict) else len(data)
        return _placed(found, rows, int(framed))


def _placed(found: Sequence[dict[str, Any]], rows: int, first: int) -> dict[str, list[Any]]:
    """Return answers by column, each in its row, None in rows without one; ``first`` is the number of the first row."""
    names = [name for name in found[0] if name not in PLACE and not name.startswith(TRUE)]
    columns: dict[str, list[Any]] = {name: [None] * rows for name in names}
    for answer in found:
        for name in names:
            columns[name][answer["last"] - first] = answer[name]
    return columns
