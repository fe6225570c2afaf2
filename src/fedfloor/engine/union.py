"""Super nodes, devices that take one step each before their edge averages them, computed as one common step.

With w_k = w − η∇F_k(w), F_k = (1/b_k) Σ_i ℓ_i over the mini-batch of device k, the mean Σ_k n_k w_k / Σ_k n_k is one
step on the union of the mini-batches: w − η∇Σ_k Σ_i c_k ℓ_i, c_k = n_k / (b_k Σ_j n_j). This is exact in arithmetic,
not in rounding. Whether it applies depends on the plan and the experiment, never on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedfloor.engine import chain
from fedfloor.engine.engine import Engine
from fedfloor.engine.steps import gradients, stepper
from fedfloor.engine.visit import check_finite
from fedfloor.models.parcel import Packet
from fedfloor.park.stream import batch_order
from fedfloor.parts.mixing import registry as mixing
from fedfloor.parts.mixing.mix import Mix, weigh
from fedfloor.plan.nodes import Parallel, Scalar, Train, Work, only
from fedfloor.plan.schedule import Key
from fedfloor.tasks.classification import CLASSIFICATION

ALIKE = ("plain", "prox")  # objectives with the mean cross-entropy's gradient in the first step
# fields of a work that a common step implements
UNITED = ("objective", "settings", "epochs", "steps", "batch_size", "rate", "momentum", "weight_decay")
# steps, samples, loss before, loss after, accuracy: as in a receipt
VisitFigures = tuple[int, int, float, float, float]


def fits(engine: Engine, node: Parallel, packet: Packet) -> bool:
    """Return whether a node can be one common step: at an edge, a mini-batch of equal work per device, a plain mean."""
    if not engine.shortcuts or node.at.kind != "edge" or engine.air is not None or set(packet) != {"w"}:
        return False
    if engine.limit is not None or engine.attackers is not None:  # which judge every update
        return False
    first = node.children[0] if node.children and only(node, "children", "at", "mix", "settings") else None
    if not isinstance(first, Train) or first.work.objective not in ALIKE or not first.work.only(*UNITED):
        return False
    known = set()
    held = engine.park.holdings
    for visit in node.children:
        if not isinstance(visit, Train) or visit.site.kind != "device" or not only(visit, "site", "work"):
            return False
        if visit.work is not first.work and visit.work != first.work:
            return False
        if visit.work.batches(int(held[visit.site.index])) != 1:
            return False
        known.add(visit.site.index)
    mean = ":" not in node.mix and not rule(node).whole  # a user's own rule may give every branch the weight 0
    return len(known) == len(node.children) and mean and engine.separable


def rule(node: Parallel) -> Mix:
    """Return a node's mixing rule."""
    return _made(node.mix, tuple(sorted(node.settings.items())))


@lru_cache(maxsize=64)
def _made(name: str, settings: tuple[tuple[str, Scalar], ...]) -> Mix:
    """Return a rule, cached: the check of its settings takes a tenth of a small network's step."""
    return mixing.rule(name, dict(settings))


def step(engine: Engine, node: Parallel, packet: Packet, keys: Sequence[Key]) -> list[VisitFigures]:
    """Take the common step, which leaves the new model in the network; return each visit's statistics."""
    if not keys:
        return []
    network = engine.network
    work = node.children[0].work  # type: ignore[union-attr]
    if packet["w"] is not network.flat:
        network.flat.copy_(packet["w"])
    x, y, rows, sizes = _batches(engine, work, keys)
    samples = engine.wrap(x, y)
    mean = rule(node)
    weights = [weigh(mean, int(engine.park.holdings[key.device])) for key in keys]
    share = np.array(weights) / (sum(weights) * sizes)
    if not network.module.training:  # setting the mode takes as long as a layer
        network.module.train()
    chosen = slice(None) if rows is None else torch.from_numpy(rows)
    each = torch.from_numpy(np.repeat(share, sizes)).to(network.flat)  # c_k of each sample
    task = engine.task
    written = chain.chain_of(network) if task == CLASSIFICATION else None
    if written is None:
        logits = network.module(samples.values(chosen))
        losses = task.losses(logits, samples.y[chosen])
        grads = gradients(losses, network.parameters, each)
    else:
        losses, logits, grads = written.weighted(samples.values(chosen), samples.y[chosen], each)
    shaped = network.shaped_like(network.parameters) if work.momentum else lambda _: network.own
    stepper(network, network.part("all"), shaped, work)(grads, None)
    hits = task.hits(logits.detach(), samples.y[chosen])
    return _figures(losses.detach(), hits, sizes, engine.park.holdings, keys, work)


def _batches(
    engine: Engine, work: Work, keys: Sequence[Key]
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
    """Return x and y of all devices, the rows of their mini-batches (None: all rows) and each mini-batch's size."""
    devices = [key.device for key in keys]
    seen = engine.memory.visits
    x, y, held = engine.park.together(devices, keys[0].tick, [seen[k] for k in devices])
    sizes = np.minimum(held, work.batch_size)
    if (held <= work.batch_size).all():
        return x, y, None, sizes
    rows = []
    for key, first, many, size in zip(keys, held.cumsum() - held, held, sizes, strict=True):
        rng = key.rng("batches")
        order, _ = next(batch_order(int(many), work.batch_size, None, 1, rng))
        rows.append(first + order[:size])
    return x, y, np.concatenate(rows), sizes


def _figures(
    losses: Tensor, hits: Tensor, sizes: np.ndarray, holdings: np.ndarray, keys: Sequence[Key], work: Work
) -> list[VisitFigures]:
    starts = sizes.cumsum() - sizes
    both = np.empty((2, len(hits)))
    both[0], both[1] = losses.cpu().numpy(), hits.cpu().numpy()
    means, right = (np.add.reduceat(both, starts, axis=1) / sizes).tolist()
    for key, loss in zip(keys, means, strict=True):
        check_finite(loss, key, work)
    held = [int(holdings[key.device]) for key in keys]
    return [(1, n, loss, loss, hit) for n, loss, hit in zip(held, means, right, strict=True)]
