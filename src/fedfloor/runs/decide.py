"""The final models of a run, with their decision thresholds, chosen on validation data."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from fedfloor.base.errors import SettingError
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import evaluate, logits_on_test, tested_on
from fedfloor.experiment import Experiment
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.park.park import Park
from fedfloor.parts import decision
from fedfloor.parts.decision import Decision
from fedfloor.runs.checkpoint import Checkpoint, held_out
from fedfloor.tasks.classification import CLASSIFICATION

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Decided:
    """A final model of a run, with its decision."""

    which: str  # "last" or "best" round
    round: int  # number of the round
    model: Tensor  # flat, [P]
    decision: Decision | None = None  # from its logits; None: the likeliest class
    chosen: Mapping[str, Any] = field(default_factory=dict)  # metrics of the decision on validation data, as JSON
    figures: Mapping[str, Any] = field(default_factory=dict)  # its metrics on the run's evaluation data, as JSON

    @property
    def header(self) -> dict[str, Any]:
        """The fields on the decision in the header of the model's file."""
        return {} if self.decision is None else {**asdict(self.decision), "validation": dict(self.chosen)}


def check(experiment: Experiment, park: Park, *, warn: bool) -> None:
    """Raise SettingError, before the first round, if a decision cannot be chosen on validation data."""
    if experiment.decide.asked and park.dataset.task != CLASSIFICATION:
        raise SettingError(f"[decide] is for classes, but data.task is '{park.dataset.task.kind}'. Leave it out.")
    held = held_out(experiment, park)
    warning = decision.check(experiment.decide, park.dataset.classes, None if held is None else held.dataset.y_test)
    if warning and warn:
        log.warning("%s", warning)


def models(experiment: Experiment, engine: Engine, method: ConfiguredMethod, point: Checkpoint) -> list[Decided]:
    """Return the last round's model and, with validation data, the best round's; to be called on every rank."""
    kept = [_decided("last", point.round, point.state.packet["w"], experiment, engine)]
    if point.best is not None:
        best = point.best
        made = _decided("best", best.round, best.model, experiment, engine)
        score = evaluate(engine, best.model, method.objective, experiment.evaluate.figure)
        figures: dict[str, Any] = {"accuracy": score.accuracy, "loss": score.loss, "macro_f1": score.macro_f1}
        figures |= {"figures": dict(score.figures)} if score.figures else {}
        kept.append(replace(made, figures={"validation": best.about, **figures, **made.figures}))
    if engine.team.rank == 0 and experiment.decide.positive is not None:
        _note(experiment, kept)
    return kept


def _decided(which: str, number: int, model: Tensor, experiment: Experiment, engine: Engine) -> Decided:
    settings = experiment.decide
    held = held_out(experiment, engine.park)
    if not settings.asked or held is None:
        return Decided(which, number, model)
    classes = engine.park.dataset.classes
    mine = logits_on_test(tested_on(engine, held), model)
    made, chosen = decision.choose(settings, mine, held.dataset.y_test, classes)
    if made.positive is None:
        return Decided(which, number, model, made, chosen)
    tested = logits_on_test(engine, model)
    y = engine.park.dataset.y_test
    wanted = y == made.positive
    likeliest = tested.argmax(1) == made.positive
    alarms = made.of(decision.softmax(tested, made.temperature)) == made.positive
    figures = {"decided": decision.measured(alarms, wanted), "likeliest": decision.measured(likeliest, wanted)}
    return Decided(which, number, model, made, chosen, figures)


def about(made: Sequence[Decided]) -> dict[str, Any]:
    """Return the entries of ``evaluation.json`` on decisions and on the best round's model."""
    last = made[0]
    best = {model.which: model for model in made}.get("best")
    entries: dict[str, Any] = {} if last.decision is None else {"decide": {**last.header, **last.figures}}
    if best is not None:
        entries["best"] = {"round": best.round, **best.figures} | ({"decide": best.header} if best.decision else {})
    return entries


def _note(experiment: Experiment, made: Sequence[Decided]) -> None:
    """Log each model's threshold, and its metrics on the run's evaluation samples."""
    settings = experiment.decide
    on = "these validation" if experiment.evaluate.on == "validation" else "the test"
    for model in made:
        chosen = model.chosen
        decision = model.decision
        if decision is None or (model.which == "best" and model.round == made[0].round):
            continue
        if chosen.get("missed_rule"):
            log.warning("decide: no threshold satisfies the rule (%s); the most precise one is used.", chosen["by"])
        decided = model.figures["decided"]
        likeliest = model.figures["likeliest"]
        log.info(
            "decide: '%s' where its probability is at least %.4g (%s; chosen on %d validation samples, %d of them "
            "'%s'). On %s samples: recall %s, precision %s; by the likeliest class: recall %s, precision %s "
            "(%s round's model).",
            settings.positive, decision.threshold, chosen["by"], chosen["samples"], chosen["positives"],
            settings.positive, on, *(_share(figures[name]) for figures in (decided, likeliest)
                                     for name in ("recall", "precision")), model.which,
        )  # fmt: skip


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
