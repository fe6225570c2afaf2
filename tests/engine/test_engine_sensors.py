"""Rows and windows of sensors in the engine: the same bits on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfloor.engine.team import Alone, Team
from fedfloor.methods.catalog import METHODS
from fedfloor.models.zoo import FOR_ANY_SHAPE
from fedfloor.park.park import Park
from fedfloor.plan.nodes import Parallel, Repeat, Sequence
from floor import bits, digest, engine, park, together, visits, walk
from rounds import Job, method

ROW = (4,)
WINDOW = (4, 12)
CASES = [
    ("cnn-sensor", WINDOW),
    ("cnn-sensor-gn", WINDOW),
    ("mlp-window", WINDOW),
    ("cnn-window", WINDOW),
    ("tcn", WINDOW),
    ("lstm", WINDOW),
    ("gru", WINDOW),
    ("transformer", WINDOW),
    ("mlp-sensor", WINDOW),
    *((name, ROW) for name in ("mlp-sensor", *FOR_ANY_SHAPE)),
]


def sensors(shape: tuple[int, ...], sizes: tuple[int, ...] = (6, 10, 4, 9, 5), of: tuple[int, ...] = (0,) * 5) -> Park:
    """Return a park whose samples are rows or windows of noise."""
    here = park(sizes, factory_of=of, shape=(shape[0], 1, int(np.prod(shape[1:]))))
    data = here.dataset

    def shaped(take: Callable[..., Any]) -> Callable[..., Any]:
        return lambda rows, *more: take(rows, *more).reshape(len(rows), *shape)

    data = replace(data, shape=shape, take=shaped(data.take), take_test=shaped(data.take_test))  # type: ignore[arg-type]
    return replace(here, dataset=data)


@pytest.mark.parametrize(("model", "shape"), CASES)
def test_any_number_of_ranks_gives_the_same_bits(model: str, shape: tuple[int, ...]) -> None:
    here = sensors(shape)
    plan = Sequence((Parallel(visits(range(5))), Repeat(2, Parallel(visits((4, 2, 0))))))

    def body(team: Team) -> tuple[object, ...]:
        return digest(walk(engine(here, model, team), plan))

    alone = body(Alone())
    assert [together(ranks, body) for ranks in (2, 3)] == [alone, alone]
    assert alone[0] != {"w": engine(here, model).network.flat.numpy().tobytes()}


SERIES = ("cnn-sensor-gn", "cnn-window", "tcn", "lstm", "gru", "transformer")


@pytest.mark.slow
@pytest.mark.parametrize("model", SERIES)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_every_network_for_windows(name: str, model: str, tmp_path: Path) -> None:
    here = sensors(WINDOW, (6, 10, 4, 9, 5, 8), (0, 1, 0, 1, 2, 2))
    job = Job(method(name), here, rounds=2, folder=tmp_path, model=model)
    state = job.run()
    assert bool(torch.isfinite(state.packet["w"]).all())
    if not job.method.needs.separate:
        assert bits(state.packet["w"]) != bits(job.start["w"])
