"""The best round's model, by validation data: kept beside the last one where samples are held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import Score, evaluate
from fedfloor.engine.outputs import tested_on
from fedfloor.experiment import Experiment
from fedfloor.methods.combined import Combined
from fedfloor.park.park import Park


@dataclass(frozen=True, eq=False)
class Best:
    """The model of the round that was best on validation data so far.

    Attributes:
        round: its number; only rounds with an evaluation are compared.
        figure: by which it is the best, and then by the loss.
        value, loss: of it, on validation data; None where the figure is not defined on them.
        model: flat, [P].
    """

    round: int
    figure: str
    value: float | None
    loss: float
    model: Tensor

    @property
    def about(self) -> dict[str, Any]:
        """All but the model, as JSON."""
        return {"round": self.round, "figure": self.figure, "value": self.value, "loss": self.loss}

    @classmethod
    def of(cls, about: Mapping[str, Any], model: Tensor) -> Best:
        """Return what :attr:`about` and a model say."""
        return cls(int(about["round"]), str(about["figure"]), about["value"], float(about["loss"]), model)


def held_out(experiment: Experiment, park: Park) -> Park | None:
    """Return the park whose test samples are those held out for validation; None where there are none."""
    on = experiment.evaluate.on  # where samples are held out for a threshold alone, the last model is the run's
    return park if on == "validation" else park.validating if on == "both" else None


def after(
    before: Best | None, number: int, model: Tensor, score: Score, experiment: Experiment, engine: Engine,
    method: Combined,
) -> Best | None:  # fmt: skip
    """Return the best model after a round with an evaluation; on every rank alike.

    Args:
        before: the best one before.
        number: the round.
        model: its flat model [P].
        score: its evaluation, on validation data if the experiment evaluates on these.
        experiment: says by what it is judged.
        engine: evaluates on validation data, where these are others.
        method: whose objective says how.
    """
    park, figure = held_out(experiment, engine.park), experiment.evaluate.figure
    if park is None:
        return None
    if park is not engine.park:
        score = evaluate(tested_on(engine, park), model, method.objective, figure)
    value = figure.read(score)
    new = Best(number, figure.name, value, score.loss, model.clone())
    if before is None:
        return new
    gain = 0.0 if value is None or before.value is None else figure.gain(value, before.value)
    return new if gain > 0 or (gain == 0 and score.loss < before.loss) else before
