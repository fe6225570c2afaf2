"""Plans of every shape and kind of work, which all that interprets plans is tried on; see test_plan_suite.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedfloor.park.park import Park
from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Node,
    Parallel,
    Probe,
    Radio,
    Repeat,
    Select,
    Sequence,
    Train,
    Work,
    device,
    edge,
)
from floor import park, visits

FACTORY_OF = (0, 0, 1, 1, 2, 2)
STEP = Work(steps=1, batch_size=3, rate=0.1)
HEAVY = Work(epochs=2, batch_size=3, rate=0.1, momentum=0.5, weight_decay=0.01)
WORKS = {
    "one step": STEP,
    "epochs": HEAVY,
    "prox": Work("prox", epochs=1, batch_size=4, rate=0.1, settings={"mu": 0.3}),
    "classifier": Work(epochs=1, batch_size=4, rate=0.1, trains="classifier"),
}


def here() -> Park:
    """Return a park of six ragged devices in three factories."""
    return park((6, 10, 4, 9, 5, 7), factory_of=FACTORY_OF)


def _star(work: Work, members: tuple[int, ...] = (0, 1, 2, 4), at: int | None = None, mix: str = "by_samples") -> Node:
    return Parallel(visits(members, work), CLOUD if at is None else edge(at), mix)


def _chain(work: Work, members: tuple[int, ...] = (3, 1, 4)) -> Node:
    return Sequence(visits(members, work))


def _edges(work: Work) -> tuple[Node, ...]:
    return tuple(_star(work, (2 * m, 2 * m + 1), m) for m in range(3))


def _choices(work: Work, tick: bool) -> Node:
    some = ((0, 1), (2, 3), (4, 5))
    return Parallel(
        tuple(Repeat(3, Select("uniform", one, 1 + m % 2, work, edge(m)), tick) for m, one in enumerate(some))
    )


SHAPES: dict[str, Callable[[Work], Node]] = {
    "a visit": lambda work: Train(device(1), work),
    "a chain": _chain,
    "a ring": lambda work: Repeat(2, _chain(work), tick=False),
    "a star": _star,
    "a ticking star": lambda work: Repeat(2, _star(work)),
    "rings": lambda work: Parallel(tuple(Repeat(2, _chain(work, one), tick=False) for one in ((0, 1), (2, 3, 4)))),
    "edges": lambda work: Parallel(_edges(work)),
    "edges again": lambda work: Parallel(tuple(Repeat(2, one, tick=False) for one in _edges(work)), mix="equal"),
    "unlike branches": lambda work: Parallel((Train(device(0), work), _chain(work, (1, 2)), _star(work, (3, 4), 1))),
    "a device in two branches": lambda work: Parallel((Train(device(1), work), _chain(work, (1, 0, 1)))),
    "one after another": lambda work: Sequence((_star(work), _chain(work), _star(work, (5, 3)))),
    "a choice": lambda work: Select("uniform", tuple(range(6)), 3, work),
    "ticking choices": lambda work: _choices(work, tick=True),
    "choices": lambda work: _choices(work, tick=False),
}
PLANS: dict[str, Node] = {f"{shape}: {name}": SHAPES[shape](work) for shape in SHAPES for name, work in WORKS.items()}
PLANS |= {
    "the cloud": Train(CLOUD, HEAVY),
    "the cloud in a chain": Sequence((*visits((3, 1), STEP), Train(CLOUD, HEAVY))),
    "nothing": Sequence(()),
    "deep": Repeat(2, Sequence((Repeat(1, Parallel((Repeat(2, _star(STEP, (0, 1), 0)),))), _chain(STEP))), tick=False),
    "a share of ticks": Parallel((Repeat(2, _star(STEP, (0, 1), 0)), Repeat(3, _star(STEP, (2, 3), 1)))),
    "median": _star(STEP, mix="median"),
    "krum": Parallel(visits((0, 1, 2, 3, 4), STEP), mix="krum", settings={"outliers": 1}),
    "median at edges": Parallel(tuple(_star(STEP, (0, 1, 2), m, "median") for m in (0, 1))),
    "q-fair": Sequence((Probe((0, 1, 2), "loss"), _star(STEP, (0, 1, 2), mix="q_fair"))),
    "q-fair that asked nobody": _star(STEP, (0, 1, 2), mix="q_fair"),
    "a rule that does not exist": _star(STEP, mix="mean of means"),
    "kept models": Parallel(visits((0, 1, 2), replace(HEAVY, sends="nothing"))),
    "handed out": Sequence((Broadcast((0, 1, 2)), _star(WORKS["classifier"], (0, 1, 3)))),
    "radio": Parallel(tuple(Train(device(k), STEP, Radio(k % 2, 10.0)) for k in range(4))),
    "chosen by the census": Select("exact", tuple(range(6)), 3, STEP, edge(0), random=1, share=(0.4, 0.3, 0.3)),
    "chosen, census free": Select("swap", tuple(range(6)), 2, STEP, share=(0.4, 0.3, 0.3), census_free=True),
    "everyone": Select("everyone", (1, 3, 5), 3, HEAVY, edge(2)),
    "too many chosen": Select("uniform", (1, 3), 3, STEP),
    "scopes that cannot meet": Parallel((Train(device(0), STEP), Train(device(1), WORKS["classifier"]))),
    "scopes in turn": Sequence((_star(STEP), _star(WORKS["classifier"]))),
    "a device that does not exist": Train(device(6), STEP),
}
PLANS |= {
    f"asked: {what}": Sequence((Probe(tuple(range(4)), what, settings=settings), _star(STEP)))
    for what, settings in {
        "census": {},
        "classes": {},
        "loss": {},
        "gradient": {},
        "profile": {"steps": 1, "batch_size": 3, "rate": 0.1},
        "features": {"extractor": "raw"},
        "hash": {"extractor": "raw", "hashes": 3, "width": 1.0},
        "resources": {},
        "the weather": {},
    }.items()
}
PLANS |= {
    "asked in a branch": Parallel((Sequence((Probe((0,), "loss"), Train(device(0), STEP))), Train(device(1), STEP))),
    "a vector asked in a branch": Parallel((Sequence((Probe((0,), "gradient"), Train(device(0), STEP))),)),
    "asked and chosen": Sequence((Probe((0, 1), "census"), Select("uniform", (0, 1, 2), 2, STEP))),
}
