"""Softmax regression in plain NumPy, to check methods by a loop of their own; and a method's way from round to round.

The engine's twin is in float64, so that the two differ by roundings of 2^-53 only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedfloor.base.chance import generator
from fedfloor.engine.engine import Engine
from fedfloor.engine.team import Team
from fedfloor.methods.contract import Method, State, View
from fedfloor.park.park import Park
from fedfloor.park.stream import batch_order
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.outcome import Outcome
from floor import engine, walk

Vector = np.ndarray


def regression(here: Park, folder: Path | None = None, team: Team | None = None, **more: object) -> Engine:
    """Return an engine that trains softmax regression in float64; its flat model is (W [classes, inputs], b)."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(here.dataset.shape)), len(here.dataset.classes)))
    return engine(here, module.double(), team, folder, **more)


def data(of: Engine, device: int) -> tuple[Vector, Vector]:
    """Return a device's samples as the network sees them, with a 1 behind each, and its labels."""
    samples = of.samples(device)
    x = samples.values(slice(None)).flatten(1).numpy()
    return np.hstack([x, np.ones((len(x), 1))]), samples.y.numpy()


def loss_and_gradient(w: Vector, x: Vector, y: Vector) -> tuple[float, Vector]:
    """Return the mean cross-entropy and its gradient: with z = xWᵀ + b, p = softmax(z) it is (p − onehot(y))ᵀx/n."""
    classes = len(w) // x.shape[1]
    weights = np.hstack([w[: -classes or None].reshape(classes, -1), w[-classes:, None]])
    z = x @ weights.T
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(-np.log(p[rows, y]).mean())
    p[rows, y] -= 1
    slope = p.T @ x / len(y)
    return loss, np.concatenate([slope[:, :-1].ravel(), slope[:, -1]])


def batches(of: Engine, device: int, number: int, work: WorkSettings) -> Iterator[tuple[Vector, Vector]]:
    """Cut a visit's mini-batches, in the engine's order."""
    x, y = data(of, device)
    size = work.batch_size or 0
    rng = generator(of.seed, "batches", number, 0, device, 0)
    for order, count in batch_order(len(y), size, work.epochs, work.steps, rng):
        for i in range(count):
            rows = order[i * size : (i + 1) * size]
            yield x[rows], y[rows]


def view(of: Engine, number: int = 0, rounds: int = 10) -> View:
    """Return what a method sees."""
    park = of.park
    network = of.network
    return View(number, rounds, park.sizes, park.factory_of, {"w": network.flat.clone()}, trained=network.trained)


def begun(method: Method, of: Engine) -> State:
    """Ask what a method wants to know, and let it begin."""
    here = view(of)
    plan = method.setup(here)
    answers = dict(walk(of, plan, dict(here.start), 0).answers) if plan is not None else {}
    return method.init(here, answers, generator(of.seed, "init"))


def go(
    method: Method, of: Engine, rounds: int, state: State | None = None, first: int = 1
) -> Iterator[tuple[State, Outcome]]:
    """Yield the state and the outcome after each round. The server's step is left out: the model is what was mixed."""
    now = state or begun(method, of)
    for number in range(first, first + rounds):
        plan = method.plan(now, replace(view(of, number), start={}), generator(of.seed, "plan", number))
        outcome = walk(of, plan, now.packet, number)
        now = method.absorb(now, outcome)
        yield now, outcome
