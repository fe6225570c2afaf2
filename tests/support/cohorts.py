"""What the tests of the cohort engine share: the loop and a cohort on the same plans, and how near they must be.

Tolerances: both engines do the same arithmetic in another order. In float32 a step's relative rounding is 1e-7, and 20
steps keep it below 1e-5 of the largest weight; in float64 an epoch keeps it below 1e-10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fedfloor import models
from fedfloor.engine.cohort.cohort import Cohort
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.models.network import Network
from fedfloor.park.park import Park
from fedfloor.plan import nodes
from fedfloor.plan.nodes import CLOUD, Node, Parallel, Repeat, Select, Train, Work, device, edge
from fedfloor.plan.outcome import Outcome
from floor import park, start, visits, walk

SIZES = (6, 10, 4, 9, 5, 8)
FACTORIES = (0, 1, 0, 1, 2, 2)
NEAR = {torch.float32: 1e-5, torch.float64: 1e-10}
HEAVY = Work(epochs=1, batch_size=4, rate=0.1, momentum=0.5, weight_decay=0.01)
WORKS = {
    "plain": Work(epochs=2, batch_size=4, rate=0.1),
    "steps": Work(steps=7, batch_size=4, rate=0.1),
    "momentum and decay": HEAVY,
    "decay": Work(epochs=1, batch_size=4, rate=0.1, weight_decay=0.01),
    "prox": Work("prox", epochs=2, batch_size=4, rate=0.1, momentum=0.5, settings={"mu": 0.3}),
    "mmd": Work("mmd", epochs=2, batch_size=4, rate=0.1, settings={"weight": 0.5}),
    "distilled": Work("distilled", epochs=2, batch_size=4, rate=0.1, settings={"weight": 0.5}),
    "classifier": Work(epochs=2, batch_size=4, rate=0.1, momentum=0.5, trains="classifier"),
    "prox of the classifier": Work("prox", epochs=2, batch_size=4, rate=0.1, trains="classifier", settings={"mu": 0.3}),
}


def floor_() -> Park:
    """Return a park of six ragged devices in three factories."""
    return park(SIZES, factory_of=FACTORIES)


def engine(
    here: Park, model: str, kind: torch.dtype, cohort: Cohort | None, *, on: str = "cpu", **more: object
) -> Engine:
    data = here.dataset
    built = models.build(model, data.shape, len(data.classes), 0)
    network = Network(built.module.to(kind), built.classifier).to(torch.device(on))
    team = more.pop("team", Alone())
    return Engine(here, network, team, DeviceMemory(None), 0, cohort=cohort, **more)  # type: ignore[arg-type]


def both(
    plan: Node, here: Park | None = None, model: str = "mlp-2nn", kind: torch.dtype = torch.float64, on: str = "cpu",
    fixed: bool | None = None, **more: object,
) -> tuple[Outcome, Outcome]:  # fmt: skip
    """Walk a plan with the loop, and with a cohort on a device."""
    loop = engine(here or floor_(), model, kind, None, **more)
    side = engine(here or floor_(), model, kind, Cohort(fixed=fixed), on=on, **more)
    begin = start(loop)
    return walk(loop, plan, begin), walk(side, plan, begin)


def same(one: Outcome, other: Outcome) -> None:
    """Check that two outcomes are the same but for rounding."""
    assert one.resolved == other.resolved
    assert one.ticks == other.ticks
    for name, value in one.packet.items():
        near = NEAR[value.dtype] * float(value.abs().max())
        assert float((value - other.packet[name]).abs().max()) <= near
    near = NEAR[one.packet["w"].dtype]
    for a, b in zip(one.receipts, other.receipts, strict=True):
        told = ("device", "visit", "tick", "steps", "samples", "bytes", "lost", "accuracy")
        assert [getattr(a, what) for what in told] == [getattr(b, what) for what in told]
        assert a.loss_first == pytest.approx(b.loss_first, rel=10 * near, abs=near)
        assert a.loss_last == pytest.approx(b.loss_last, rel=10 * near, abs=near)


NETWORKS = ("mlp-2nn", "logistic", "cnn-tutorial", "lenet", "cnn-small", "cnn-fedgs")


def _ring(members: Sequence[int], work: Work = HEAVY) -> nodes.Sequence:
    return nodes.Sequence(visits(members, work))


TWO = Work(steps=2, batch_size=3, rate=0.1)
PLANS = {
    "chains of several lengths": Parallel((_ring((0, 1, 2)), _ring((3,)), _ring((4, 5))), mix="equal"),
    "rings": Parallel(tuple(Repeat(2, _ring(one), tick=False) for one in ((0, 1), (2, 3, 4)))),
    "a chain alone": nodes.Sequence((*visits((3, 1)), Train(CLOUD, HEAVY))),
    "meetings within": Parallel(
        tuple(Repeat(2, Parallel(visits(one, TWO), edge(m)), tick=False) for m, one in enumerate([(0, 2), (1, 3, 4)]))
    ),
    "choices": Parallel(
        tuple(Repeat(3, Select("uniform", one, 2, TWO, edge(m))) for m, one in enumerate([(0, 2, 4), (1, 3, 5)]))
    ),
    "super nodes": Parallel(
        tuple(
            Repeat(4, Select("uniform", one, 2, replace(TWO, steps=1), edge(m)))
            for m, one in enumerate([(0, 2, 4), (1, 3, 5)])
        ),
        mix="equal",
    ),
    "unlike branches": Parallel((Train(device(0), TWO), _ring((1, 2)), Parallel(visits((3, 4), HEAVY), edge(1)))),
    "one device twice": Parallel((Train(device(1), TWO), _ring((1, 1)))),
    "a rule that looks at every model": Parallel(visits(range(5), TWO), mix="median"),
}
