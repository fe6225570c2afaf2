"""What the benchmarks of rounds share: a made park, and a clock for several processes."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from fedfloor.data.dataset import SamplePool, pooled
from fedfloor.engine.team import Team
from fedfloor.park.park import Park
from fedfloor.tasks.regression import Regression


def park(
    shape: tuple[int, ...], classes: int, devices: int, samples: int, factories: int = 1, skew: float | None = None,
    tests: int = 1,
) -> Park:  # fmt: skip
    """Return a park of random pictures and labels: how long a step takes does not depend on them.

    Args:
        shape: of one sample.
        classes: number of classes.
        devices: K.
        samples: of each device.
        factories: M; the devices stand in them in turn.
        skew: α > 0, where each device's class shares are to be Dirichlet(α); None: all have all classes alike.
        tests: test samples.

    >>> park((1, 4, 4), classes=3, devices=5, samples=2, factories=2).members(1)
    (1, 3)
    """
    rng = np.random.default_rng(0)
    total = devices * samples
    x = rng.integers(0, 256, (total, *shape), dtype=np.uint8)
    if skew is None:
        y = rng.integers(0, classes, total)
    else:
        mixes = rng.dirichlet(np.full(classes, skew), devices)
        y = np.concatenate([rng.choice(classes, samples, p=mix) for mix in mixes])
    unseen = SamplePool(rng.integers(0, 256, (tests, *shape), dtype=np.uint8), rng.integers(0, classes, tests))
    data = pooled("random", tuple(map(str, range(classes))), SamplePool(x, y), unseen, digest="")
    parts = tuple(np.arange(k * samples, (k + 1) * samples) for k in range(devices))
    return Park(data, parts, np.arange(devices, dtype=np.int32) % factories)


def sensors(shape: tuple[int, int], devices: int, samples: int, tests: int = 1) -> Park:
    """Return a park of random windows of sensors (channels, length), each with a number to be predicted.

    >>> here = sensors((3, 8), devices=2, samples=5)
    >>> here.dataset.task.kind, here.samples(1)[0].dtype, here.samples(1)[1].shape
    ('regression', dtype('float32'), (5, 1))
    """
    rng = np.random.default_rng(0)
    total = devices * samples
    x = rng.standard_normal((total + tests, *shape), dtype=np.float32)
    target = rng.uniform(0, 125, (total + tests, 1)).astype(np.float32)
    task = Regression().fitted(target)
    bins = task.bin(target)
    names = tuple(map(str, range(len(task.edges) + 1)))
    data = pooled("random", names, SamplePool(x[:total], bins[:total]), SamplePool(x[total:], bins[total:]), digest="")
    data = replace(data, task=task, target=target[:total], target_test=target[total:])
    parts = tuple(np.arange(k * samples, (k + 1) * samples) for k in range(devices))
    return Park(data, parts, np.zeros(devices, np.int32))


def timed(team: Team, work: Callable[[], object]) -> float:
    """Let all processes of a team start together; return the longest of their own times, in seconds."""
    team.gather([])  # who sleeps in it is woken later than who has just come:
    team.gather([])  # this one all leave at once
    began = time.perf_counter()
    work()
    taken = struct.pack("d", time.perf_counter() - began)
    return float(max(struct.unpack("d", one[0])[0] for one in team.gather([taken])))


def in_turn(team: Team, kinds: Mapping[str, Callable[[int], object]], repeats: int) -> dict[str, list[float]]:
    """Let all processes of a team do work of several kinds in turn; return the seconds of each, round by round.

    Args:
        team: the processes; each does its own part of every kind, or nothing.
        kinds: what is called with the round's number, from 0, which warms up and is not reported.
        repeats: rounds after it.
    """
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(repeats + 1):
        for kind, work in kinds.items():
            taken = timed(team, partial(work, number))
            if number:
                times[kind].append(taken)
    return times
