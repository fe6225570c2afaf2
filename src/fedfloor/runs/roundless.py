"""References that have no rounds: a run's folder with one ledger line, that of the last round."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from fedfloor.config import combined
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import Score, one_by_one, predictions, score
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment
from fedfloor.figures import Figure
from fedfloor.park.park import Park
from fedfloor.runs import folder, ledger, made, results
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Orders
from fedfloor.runs.prepare import prepare


def write(
    experiment: Experiment, orders: Orders, report: Callable[[Line], None], park: Park, found: Callable[[Engine], Score]
) -> str:
    """Evaluate a reference and write its run's folder; one that is there already stays.

    Args:
        experiment: the reference's.
        orders: the folder, and the round to stop after.
        report: called with the ledger line.
        park: whose test samples it is evaluated on.
        found: evaluates it.

    Returns:
        ``"finished"``.

    Raises:
        SettingError: the folder holds another run.
        RunError: the disk is full.
    """
    out = orders.out
    with folder.owned(out):
        prepare(experiment, orders, park)
        number = min(experiment.rounds, orders.limits.stop_after or experiment.rounds)
        if (out / "evaluation.json").exists() and any(
            line.round == number for line in ledger.read(out / "ledger.jsonl")
        ):
            return "finished"
        ledger.cut(out / "ledger.jsonl", None)
        began = time.perf_counter()
        engine, _ = made.engine(experiment, combined(experiment), park, Alone(), DeviceMemory(None))
        got = found(engine)
        line = ledger.line(number, got, (), "", time.perf_counter() - began, {})
        results.write_evaluation(out, experiment, number, got)
        ledger.append(out / "ledger.jsonl", line)
        report(line)
    return "finished"


def scored(engine: Engine, out: Tensor, headline: Figure) -> Score:
    """Return how good outputs for all test samples are.

    Args:
        engine: whose park the samples are of.
        out: [n, outputs], as a network would give them.
        headline: the figure that the run is judged by.
    """
    data, task = engine.park.dataset, engine.task
    samples, y = engine.wrap(*engine.park.test()), data.y_test
    out = out.to(samples.y.device)
    loss, ranked = float(task.losses(out, samples.y, "mean")), headline.scored(data.classes)
    found, scores = (one.cpu().numpy() for one in (task.predicted(out), task.scores(out, samples.y, ranked).float()))
    tested = predictions(engine, loss, y, found, scores, ranked)
    single = one_by_one(engine, y, found, scores, ranked, data.owner_test)
    return score(engine, loss, found == y, [tested], headline, tested.table, single)
