"""How many samples of each class a round trained on, and on how many devices."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedfloor
import streaming
from commands import lines
from fedfloor.engine.team import Alone
from fedfloor.experiment import DataSettings, EvaluateSettings, Experiment, ParkSettings
from fedfloor.park.park import Park
from fedfloor.park.stream import Fifo, Recycle, Static
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import CLOUD, Node, Parallel, Repeat, Sequence, Train, Work, device
from fedfloor.runs import loop
from fedfloor.runs.orders import Orders
from fedfloor.runs.parks import build_park
from fedfloor.runs.results import Coverage
from floor import engine, park, walk
from refusals import refused
from streaming import streamed

STEP = Work(objective="streaming:Seeing", steps=1, batch_size=4, rate=0.1)
TWICE = Work(objective="streaming:Seeing", epochs=2, batch_size=4, rate=0.1)
DEVICES = Parallel(tuple(Repeat(3, Sequence((Train(device(k), STEP), Train(device(k), STEP)))) for k in (0, 2, 3)))


def counted(
    here: Park, plan: Node, tick: int = 0, before: Counter[int] | None = None
) -> tuple[list[float], list[float]]:
    """Return coverage as it is counted, and the number of samples of each class in the mini-batches of the visits."""
    streaming.SEEN.clear()
    of = engine(here)
    of.memory.visits.update(before or {})
    outcome = walk(of, plan, tick=tick)
    seen = np.bincount([label for batch in streaming.SEEN for label in batch], minlength=len(here.dataset.classes))
    found = Coverage(here).of(outcome, before or {})
    assert len(found["devices"]) == len(here.dataset.classes)
    return found["samples"], seen.tolist()


@pytest.mark.parametrize("stream", [Fifo(4), Recycle(4)], ids=["fifo", "recycle"])
def test_samples_of_windows_are_those_of_the_mini_batches(stream: Fifo | Recycle) -> None:
    here = streamed(stream)
    ours, theirs = counted(here, DEVICES, tick=7, before=Counter({0: 3, 2: 1}))
    assert ours == theirs
    assert sum(ours) == 3 * 6 * 4  # devices · visits · window


def test_epochs_count_every_sample_once_each() -> None:
    here = park((6, 10, 4, 9, 5))
    ours, theirs = counted(here, Parallel((Train(device(1), TWICE), Train(device(3), TWICE))))
    assert ours == theirs == (2 * here.counts()[[1, 3]].sum(axis=0)).tolist()


def test_steps_count_the_expectation() -> None:
    here = park((6, 10, 4, 9, 5))
    ours, theirs = counted(here, Train(device(1), STEP))
    assert ours == (here.counts()[1] * 0.4).round(3).tolist()  # 4 of 10 samples
    assert sum(theirs) == 4


def test_visits_at_the_cloud_train_on_what_all_devices_hold() -> None:
    here = park((6, 10, 4, 9, 5))
    ours, theirs = counted(here, Train(CLOUD, TWICE))
    assert ours == theirs == (2 * here.counts().sum(axis=0)).tolist()


def test_devices_are_counted_once_and_lost_visits_not_at_all() -> None:
    here = replace(park((6, 10, 4, 9, 5)), stream=Static())
    of = engine(here)
    plan = Sequence((Train(device(1), TWICE), Train(device(1), TWICE), Train(device(3), TWICE)))
    outcome = walk(of, plan)
    both = (here.counts()[[1, 3]] > 0).sum(axis=0).tolist()
    assert Coverage(here).of(outcome, {})["devices"] == both
    lost = replace(outcome, receipts=tuple(replace(one, lost=one.device == 3) for one in outcome.receipts))
    found = Coverage(here).of(lost, {})
    assert found["devices"] == (here.counts()[1] > 0).astype(int).tolist()
    assert found["samples"] == (4 * here.counts()[1]).tolist()


def test_a_ledger_line_has_it_where_the_experiment_asks_and_is_the_same_otherwise(tmp_path: Path) -> None:
    what = Experiment(
        name="one", rounds=2, data=DataSettings(samples_per_device=40), park=ParkSettings(devices=4, factories=2),
        work=WorkSettings(epochs=2),
    )  # fmt: skip
    fedfloor.run(what, tmp_path / "plain", ranks=1)
    fedfloor.run(replace(what, evaluate=EvaluateSettings(coverage=True)), tmp_path / "more", ranks=1)
    plain = lines(tmp_path / "plain")
    more = lines(tmp_path / "more")
    assert all("coverage" not in line for line in plain)
    found = [line.pop("coverage") for line in more]
    assert more == plain
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "more")]
    assert models[0] == models[1]
    counts = build_park(what).counts()
    each = {"samples": (2 * counts.sum(axis=0)).tolist(), "devices": (counts > 0).sum(axis=0).tolist()}
    assert found == [each, each]


def test_real_devices_are_not_counted(tmp_path: Path) -> None:
    what = Experiment(evaluate=EvaluateSettings(coverage=True))
    with refused("combination"):
        loop.execute(what, Orders(tmp_path), Alone(), park(), lambda _: None, lambda: False, live=object())  # type: ignore[arg-type]
