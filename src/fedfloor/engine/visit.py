"""One visit: a model trained in place on one device's samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from fedfloor.chance import generator, torch_seed
from fedfloor.engine import backward, chain, fused, scopes
from fedfloor.engine.chain import Gradients
from fedfloor.engine.optimisers import stepper
from fedfloor.engine.per_sample import PerSampleCache, call_objective
from fedfloor.errors import DivergedError
from fedfloor.models.network import Network
from fedfloor.park.stream import batch_order
from fedfloor.parts.objective import Objective, Plain, Visit
from fedfloor.parts.proximal import Represented
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.task import Task

# computes (loss [], logits [batch, classes], gradients) of a mini-batch from x, y, and the visit
GradientFunction = Callable[[Tensor, Tensor, Visit], Gradients]


@dataclass(frozen=True)
class Trained:
    """What a visit's training says: see :class:`fedfloor.plan.outcome.Receipt`."""

    steps: int
    loss_first: float
    loss_last: float
    accuracy: float


class Batched(Protocol):
    """What mini-batches are drawn from: a device's samples, or their features."""

    @property
    def y(self) -> Tensor:
        """Targets: int64 [n], or float32 [n, T]."""
        ...

    def __len__(self) -> int: ...

    def values(self, rows: Tensor | slice) -> Tensor:
        """Return the chosen ones, [rows, …]."""
        ...

    def chunk(self, batch_size: int) -> int:
        """Return how many are asked for at a time."""
        ...


def train(
    network: Network, samples: Batched, work: Work, objective: Objective, visit: Visit, key: Key,
    module: nn.Module | None = None, *, shortcuts: bool = False, moments: dict[str, Tensor] | None = None,
) -> Trained:  # fmt: skip
    """Train the network in place by the work's optimiser: see :func:`fedfloor.engine.optimisers.stepper`.

    With ``work.trains`` other than ``all`` only that part is trained; the rest of the flat vector, batch norm's
    statistics included, stays to the bit. The network is in training mode all the same.

    The mini-batches are those of :func:`fedfloor.park.stream.batch_order` for the visit's key. Dropout draws from the
    default PyTorch generator of the network's device, as PyTorch has no other way: every visit re-seeds it by its key
    and leaves it where training ended, so whoever draws from it between visits cannot rely on a seed of their own.

    Args:
        network: the model, changed in place.
        samples: the device's samples, or their features.
        work: epochs or steps, batch size, optimiser.
        objective: what is minimised.
        visit: what the objective may read.
        key: what chance is keyed by.
        module: what is asked for outputs: of the network's, the layer that the samples go into. Default: all of it.
        shortcuts: whether large layers take their steps without a gradient; see :mod:`fedfloor.engine.fused`.
        moments: of the optimiser, which the device keeps, changed in place; None: they begin at 0.

    Raises:
        SettingError: the objective trains nothing of the work's part; moments of another model.
        RunError: the loss is no longer a finite number, or the network or the objective fails; names the device.
    """
    _seed_dropout(network.flat.device, key)
    rng = generator(key.seed, "batches", *key.place())
    part = scopes.trained(network, objective, work)
    visit = replace(visit, first=part.start)
    visit = call_objective(lambda: replace(visit, ready=objective.begin(visit)), 0, key)
    large = fused.layers(network, work, objective) if shortcuts else []
    compute, views = _gradient_function(
        network, network.module if module is None else module, part, objective, large, visit.task
    )
    still = scopes.still(network, work)  # batch norm moves its statistics in every pass in training mode
    statistics = still.cut(network.flat).clone()
    weights = network.flat[part]
    step = stepper(weights, views, work, moments, part.start)
    cache = PerSampleCache(objective, visit, len(samples), several=work.epochs is not None and work.epochs > 1)
    network.module.train()
    losses: list[list[Tensor]] = []
    outputs: list[Tensor] = []
    used = samples.y[:0]
    with fused.stepping(large, work.rate):
        for order, count in batch_order(len(samples), work.batch_size, work.epochs, work.steps, rng):
            losses.append([])
            outputs.clear()  # the accuracy is that of the last pass
            used = torch.from_numpy(order[: count * work.batch_size])
            for rows in used.split(samples.chunk(work.batch_size)):
                x, y = samples.values(rows), samples.y[rows]
                for bx, by, about in cache.batches(rows, x, y, work.batch_size, key):
                    loss, logits, gradients, extra = _gradients(compute, objective, weights, bx, by, about, key)
                    step(gradients, extra)
                    losses[-1].append(loss)
                    outputs.append(logits)
            cache.known = True
    still.set(statistics, network.flat)
    right = visit.task.hits(torch.cat(outputs), samples.y[used]).sum()
    return account(losses, int(right), len(used), work, key)


def _seed_dropout(device: torch.device, key: Key) -> None:
    rng = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index]
    rng.manual_seed(torch_seed(key.seed, "dropout", *key.place()))


def _gradient_function(
    network: Network, module: nn.Module, part: slice, objective: Objective, large: Sequence[nn.Linear], task: Task
) -> tuple[GradientFunction, Callable[[Tensor], list[Tensor]]]:
    """Return how gradients of a part come about, and what cuts a vector like the part into views shaped like them.

    Args:
        network: the model.
        module: what is asked for outputs.
        part: what is trained.
        objective: what is minimised.
        large: layers that take their own steps.
        task: the chain of layers knows classification alone.
    """
    known, own = network.within(part), {id(p) for one in large for p in one.parameters()}
    shaped, kept = network.shaped_like(known), [i for i, p in enumerate(known) if id(p) not in own]
    whole = module is network.module and len(kept) == len(network.parameters)
    written = _hand_written(network, objective) if whole and task == CLASSIFICATION else None
    if written is not None:
        return written, shaped

    def views(vector: Tensor) -> list[Tensor]:
        parts = shaped(vector)
        return [parts[i] for i in kept]

    return partial(_by_autograd, objective, module, [known[i] for i in kept]), views


def _hand_written(network: Network, objective: Objective) -> GradientFunction | None:
    """Return the gradients written out for a chain of layers: cross-entropy, and a term of its last layer's input."""
    loss = getattr(type(objective), "loss", None)
    written = chain.of(network) if loss in (Plain.loss, Represented.loss) else None
    if written is None:
        return None
    if loss is Plain.loss:
        return lambda x, y, _: written.mean(x, y)
    if isinstance(objective, Represented) and written.last is network.module.get_submodule(network.classifier or ""):
        return lambda x, y, visit: written.mean(x, y, lambda z: objective.term(z, visit))
    return None


def _by_autograd(
    objective: Objective, module: nn.Module, parameters: list[nn.Parameter], x: Tensor, y: Tensor, visit: Visit
) -> Gradients:
    """Compute the loss by the objective, and its gradients by automatic differentiation."""
    loss, logits = objective.loss(module, x, y, visit)
    return loss.detach(), logits.detach(), backward.gradients(loss, parameters)


def _gradients(
    compute: GradientFunction, objective: Objective, weights: Tensor, x: Tensor, y: Tensor, visit: Visit, key: Key
) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor | None]:
    """Return (loss [], logits [batch, classes], its gradients, the penalty's gradient [part]) of a mini-batch."""

    def call() -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor | None]:
        loss, logits, gradients = compute(x, y, visit)
        term = objective.penalty(weights, visit)
        return (loss, logits, gradients, None) if term is None else (loss + term[0], logits, gradients, term[1])

    return call_objective(call, len(y), key)


def account(losses: list[list[Tensor]], right: int, seen: int, work: Work, key: Key) -> Trained:
    """Return what a visit says.

    Args:
        losses: of its mini-batches [], pass by pass.
        right: of the samples of the last pass, how many were classified rightly before their step.
        seen: samples of the last pass.
        work: what was done.
        key: says where.

    Raises:
        DivergedError: a loss is no finite number.
    """
    flat = [loss for one in losses for loss in one]
    every = torch.stack(flat).double()
    if not bool(torch.isfinite(every).all()):
        check_finite(float(every[~torch.isfinite(every)][0]), key, work)
    if work.steps is not None:
        first, last = float(every[0]), float(every[-1])
    else:
        first, last = float(every[: len(losses[0])].mean()), float(every[-len(losses[-1]) :].mean())
    return Trained(len(flat), first, last, right / seen if seen else math.nan)


def check_finite(loss: float, key: Key, work: Work) -> None:
    """Refuse to go on where a visit's loss is no longer a finite number.

    Raises:
        DivergedError: it is not; names the device and the rate.
    """
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss of {key.where} became {loss} in round {key.round} (learning rate {work.rate:g}). "
            "Lower work.lr, or look at that device's data; the last checkpoint is untouched."
        )
