"""Local training of one visit: mini-batches, the objective's loss, optimiser steps, and the visit's statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from fedfloor.base.chance import torch_seed
from fedfloor.base.errors import DivergedError, FedfloorError, RunError, SettingError
from fedfloor.base.names import count
from fedfloor.base.outside import located
from fedfloor.engine import chain, steps
from fedfloor.engine.chain import Gradients
from fedfloor.engine.steps import stepper
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.park.stream import batch_order
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.proximal import Represented
from fedfloor.plan import walk
from fedfloor.plan.nodes import TRAVEL, Node, Work
from fedfloor.plan.schedule import Key
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.task import Task

T = TypeVar("T")


class PerSampleCache:
    """The values per sample that an objective computes in a visit's first pass and reads again in later passes."""

    def __init__(self, objective: Objective, visit: Visit, samples: int, *, several: bool) -> None:
        self._objective = objective
        self._visit = visit
        self._samples = samples
        self._several = several
        self._kept: dict[str, Tensor] = {}
        self.known = False

    def batches(
        self, rows: Tensor, x: Tensor, y: Tensor, size: int, key: Key
    ) -> Iterator[tuple[Tensor, Tensor, Visit]]:
        """Yield the mini-batches of a chunk of samples as (x, y, the visit with the cached rows)."""
        values = self._of(rows, x, key)
        for low in range(0, len(rows), size):
            part = slice(low, low + size)
            cut = {name: tensor[part] for name, tensor in values.items()}
            yield x[part], y[part], replace(self._visit, per_sample=cut) if cut else self._visit

    def _of(self, rows: Tensor, x: Tensor, key: Key) -> Mapping[str, Tensor]:
        if self.known and self._several:
            return {name: tensor[rows.to(tensor.device)] for name, tensor in self._kept.items()}
        with torch.no_grad():
            values = call_objective(lambda: self._objective.per_sample(x, self._visit), len(x), key)
        if self._several:
            for name, tensor in values.items():
                if name not in self._kept:
                    self._kept[name] = tensor.new_empty(self._samples, *tensor.shape[1:])
                self._kept[name][rows.to(tensor.device)] = tensor
        return values


class SingleSampleError(RunError):
    """An error: a network with batch norm was trained on a mini-batch of one sample."""

    key = "single-sample"


def call_objective(call: Callable[[], T], batch: int, key: Key) -> T:
    """Return an objective's result.

    Raises:
        RunError: the objective or the network failed; the message has the device's name and, for a user's own code, its
            file and line.
        SingleSampleError: batch norm on a mini-batch of one sample.
    """
    try:
        return call()
    except FedfloorError:
        raise
    except Exception as error:
        failed = f"training failed on {key.where} in round {key.round}"
        if batch == 1 and "more than 1 value per channel" in str(error):
            raise SingleSampleError(f"{failed}: batch norm cannot be trained on a mini-batch of one sample.") from error
        raise RunError(f"{failed}: {located(error)}.", key="own-code") from error


def without_single_samples(batch_size: int, held: int, sizes: NDArray[np.int64]) -> str:
    """Return advice that spares every device of a park mini-batches of one sample.

    Args:
        batch_size: the present mini-batch.
        held: the number of samples of the device that failed, at a time.
        sizes: those of all devices, [K].

    >>> without_single_samples(16, 17, np.array([17, 33, 40])).partition(",")[0]
    'Set work.batch_size = 15'
    >>> without_single_samples(16, 1, np.array([1, 33])).partition(",")[0]
    'This device holds one sample'
    """
    other = "use a network without batch norm, such as one with group norm"
    if held == 1:
        return (
            "This device holds one sample, whatever work.batch_size is. Leave devices with one sample out of the data "
            f'(data.partition: at_least = 2, for the kinds "natural" and "dirichlet"); or {other}.'
        )
    several = np.unique(sizes[sizes > 1])
    alone = int((sizes == 1).sum())
    whole = max(batch_size, int(sizes.min()))  # beyond it, the smallest device trains with shorter mini-batches
    fitting = [size for size in range(2, int(sizes.max()) + 1) if (several % size != 1).all()]  # at least the largest
    best = min(fitting, key=lambda size: (size > whole, abs(size - batch_size), size))
    short = ", with work.short_batches = true" if best > whole else ""
    rest = f", and leave out the {count(alone, 'device')} with one sample" if alone else ""
    return f"Set work.batch_size = {best}{short}, which leaves no other mini-batch of one sample{rest}; or {other}."


def check_parts(network: Network, plan: Node, packet: Packet) -> None:
    """Raise SettingError for an unknown part in a plan, or for a vector that travels beside a trained part."""
    trained = walk.scopes(plan)
    for scope in sorted(trained | walk.handed(plan)):
        network.parcel(scope)
    beside = sorted(set(packet) - {"w"})
    parts = sorted(trained - {"all"})
    if beside and parts:
        raise SettingError(
            f"work.trains = '{parts[0]}': '{beside[0]}' travels beside the model, and its value after a visit that "
            "trains a part is not defined. Train 'all', or use a method and an objective that send the model alone."
        )


def trained_part(network: Network, objective: Objective, work: Work) -> slice:
    """Return the slice of the flat model that a visit trains: the overlap of the objective's part and the work's."""
    wanted = objective.trains(network)
    if objective.on_features and work.trains != "classifier":
        raise SettingError(
            f"objective '{work.objective}' with work.trains = '{work.trains}': it trains the classifier alone, on "
            "features, in rounds of a method that are made for it, such as hfedms. Use another objective."
        )
    if work.trains == "all":
        return wanted
    if objective.personal:
        raise SettingError(
            f"work.trains = '{work.trains}' with objective '{work.objective}': it puts the device's "
            "own parameters into the model, and those outside of that part would not stay. Train 'all', or use another "
            "objective."
        )
    part = network.part(work.trains)
    both = slice(max(wanted.start, part.start), min(wanted.stop, part.stop))
    if both.start >= both.stop:
        raise SettingError(
            f"work.trains = '{work.trains}' with objective '{work.objective}': the objective trains the numbers "
            f"{wanted.start} to {wanted.stop} of the model, and that part has {part.start} to {part.stop}: nothing is "
            "left to train. Train 'all', or use another objective."
        )
    return both


def frozen_part(network: Network, work: Work) -> Parcel:
    """Return the parcel of the statistics that a visit must not change: all but those of the part that it trains."""
    trained = () if work.trains == "all" else network.numbers(f"all but {work.trains}")
    behind = (slice(max(piece.start, network.trained), piece.stop) for piece in trained if piece.stop > network.trained)
    return Parcel(tuple(behind), network.flat.numel())


def mixed_part(network: Network, node: Node) -> Parcel | None:
    """Return the part of the flat model that is mixed when a node's branches are aggregated; None: the whole model."""
    travelling = set[str]().union(*map(walk.scopes, walk.children(node)))
    return network.parcel(travelling.pop()) if len(travelling) == 1 and "all" not in travelling else None


# (x, y, the visit) of a mini-batch → (loss [], logits [batch, classes], gradients)
GradientFunction = Callable[[Tensor, Tensor, Visit], Gradients]


@dataclass(frozen=True)
class VisitStats:
    """The statistics of a visit's training: see :class:`fedfloor.plan.outcome.Receipt`."""

    steps: int
    loss_first: float | None
    loss_last: float | None
    accuracy: float | None


class Batched(Protocol):
    """The samples from which mini-batches are drawn: a device's samples, or their features."""

    @property
    def y(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def values(self, rows: Tensor | slice) -> Tensor:
        """Return the values of the chosen samples, [rows, …]."""
        ...

    def chunk(self, batch_size: int) -> int:
        """Return the number of samples to read at a time."""
        ...


def train(
    network: Network, samples: Batched, work: Work, objective: Objective, visit: Visit, key: Key,
    module: nn.Module | None = None, *, shortcuts: bool = False, moments: dict[str, Tensor] | None = None,
) -> VisitStats:  # fmt: skip
    """Train the network in place by the work's optimiser: see :func:`fedfloor.engine.steps.stepper`.

    With ``work.trains`` other than ``all`` only that part is trained; the rest of the flat vector, batch norm's
    statistics included, does not change by a bit. The whole network is in training mode nevertheless.

    The mini-batches are those of :func:`fedfloor.park.stream.batch_order` for the visit's key. Dropout draws from the
    default PyTorch generator of the network's device, as PyTorch offers no other. Every visit seeds it by its key and
    does not restore it afterwards, so code that draws from it between visits cannot rely on its own seed.
    """
    _seed_dropout(network.flat.device, key)
    rng = key.rng("batches")
    part = trained_part(network, objective, work)
    visit = replace(visit, first=part.start)
    visit = call_objective(lambda: replace(visit, ready=objective.begin(visit)), 0, key)
    large = steps.large_layers(network, work, objective) if shortcuts else []
    compute, views = _gradient_function(
        network, network.module if module is None else module, part, objective, large, visit.task
    )
    frozen = frozen_part(network, work)  # batch norm updates its statistics in every pass in training mode
    statistics = frozen.cut(network.flat).clone()
    weights = network.flat[part]
    step = stepper(network, part, views, work, moments)
    cache = PerSampleCache(objective, visit, len(samples), several=work.epochs is not None and work.epochs > 1)
    network.module.train()
    losses: list[list[Tensor]] = []
    outputs: list[Tensor] = []
    used = samples.y[:0]
    with steps.stepping(large, work.rate):
        # a pass is an order of all samples, of which the last pass of ``steps`` may use the first mini-batches only
        for order, batches in batch_order(len(samples), work.batch_size, work.epochs, work.steps, rng):
            losses.append([])
            outputs.clear()  # the accuracy is that of the last pass
            used = torch.from_numpy(order[: batches * work.batch_size])
            # a chunk, a whole number of mini-batches, is read at a time, as samples as floats take much memory
            for rows in used.split(samples.chunk(work.batch_size)):
                x, y = samples.values(rows), samples.y[rows]
                for bx, by, about in cache.batches(rows, x, y, work.batch_size, key):
                    loss, logits, gradients, extra = _gradients(compute, objective, weights, bx, by, about, key)
                    step(gradients, extra)
                    losses[-1].append(loss)
                    outputs.append(logits)
            cache.known = True
    frozen.set(statistics, network.flat)
    right = visit.task.hits(torch.cat(outputs), samples.y[used]).sum()
    return account(losses, int(right), len(used), work, key)


def _seed_dropout(device: torch.device, key: Key) -> None:
    rng = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index]
    rng.manual_seed(torch_seed(key.seed, "dropout", *key.place()))


def _gradient_function(
    network: Network, module: nn.Module, part: slice, objective: Objective, large: Sequence[nn.Linear], task: Task
) -> tuple[GradientFunction, Callable[[Tensor], list[Tensor]]]:
    """Return the function of a part's gradients, and the function that cuts a vector into views of their shapes."""
    known = network.within(part)
    own = {id(p) for layer in large for p in layer.parameters()}
    shaped = network.shaped_like(known)
    kept = [i for i, p in enumerate(known) if id(p) not in own]
    whole = module is network.module and len(kept) == len(network.parameters)
    written = _hand_written(network, objective) if whole and task == CLASSIFICATION else None
    if written is not None:
        return written, shaped

    def views(vector: Tensor) -> list[Tensor]:
        parts = shaped(vector)
        return [parts[i] for i in kept]

    return partial(_by_autograd, objective, module, [known[i] for i in kept]), views


def _hand_written(network: Network, objective: Objective) -> GradientFunction | None:
    """Return the closed-form gradients of a chain of layers with cross-entropy, or None where they do not apply."""
    loss = getattr(type(objective), "loss", None)
    written = chain.chain_of(network) if loss in (Plain.loss, Represented.loss) else None
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
    loss, logits = objective.loss(module, x, y, visit)
    return loss.detach(), logits.detach(), steps.gradients(loss, parameters)


def _gradients(
    compute: GradientFunction, objective: Objective, weights: Tensor, x: Tensor, y: Tensor, visit: Visit, key: Key
) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor | None]:
    """Return (loss [], logits [batch, classes], its gradients, the penalty's gradient [part]) for a mini-batch."""

    def call() -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor | None]:
        loss, logits, gradients = compute(x, y, visit)
        term = objective.penalty(weights, visit)
        return (loss, logits, gradients, None) if term is None else (loss + term[0], logits, gradients, term[1])

    return call_objective(call, len(y), key)


def account(losses: list[list[Tensor]], right: int, seen: int, work: Work, key: Key) -> VisitStats:
    """Return a visit's statistics from the losses [] of its mini-batches, pass by pass."""
    flat = [loss for losses_of in losses for loss in losses_of]
    every = check_losses(flat, key, work)
    if work.steps is not None:
        first, last = float(every[0]), float(every[-1])
    else:
        first = float(every[: len(losses[0])].mean())
        last = float(every[-len(losses[-1]) :].mean())
    return VisitStats(len(flat), first, last, right / seen if seen else math.nan)


def check_losses(losses: Sequence[Tensor], key: Key, work: Work) -> Tensor:
    """Return the losses [] of mini-batches as a vector; DivergedError: a loss is not finite."""
    every = torch.stack([*losses]).double() if losses else torch.zeros(0, dtype=torch.float64)
    if not bool(torch.isfinite(every).all()):
        check_finite(float(every[~torch.isfinite(every)][0]), key, work)
    return every


def check_finite(loss: float, key: Key, work: Work) -> None:
    """Raise DivergedError, with the device and the learning rate, if a visit's loss is not finite."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss of {key.where} became {loss} in round {key.round} (learning rate {work.rate:g}). "
            "Lower work.lr, or check that device's data; the last checkpoint is unchanged."
        )


def is_linear_visit(layer: nn.Module, work: Work, objective: Objective) -> bool:
    """Return whether a visit trains one linear layer by plain SGD on cross-entropy alone."""
    kind = type(objective)
    plain = kind.loss is Plain.loss and kind.penalty is Objective.penalty and kind.per_sample is Objective.per_sample
    trained = type(layer) is nn.Linear and layer.bias is not None and all(p.requires_grad for p in layer.parameters())
    known = work.only("objective", "settings", "epochs", "steps", "batch_size", "rate", "trains", *TRAVEL)
    return plain and trained and known


def train_linear(layer: nn.Linear, data: Batched, work: Work, key: Key) -> VisitStats:
    """Train a linear layer (W [F, D], b [F]) in place on features [n, D], with the mini-batches of :func:`train`."""
    weight = layer.weight.detach()
    bias = layer.bias.detach()
    size = work.batch_size
    onehot = torch.eye(len(bias), dtype=bias.dtype, device=bias.device)
    losses: list[list[Tensor]] = []
    right = seen = 0
    with torch.no_grad():
        rng = key.rng("batches")
        for order, batches in batch_order(len(data), size, work.epochs, work.steps, rng):
            rows = torch.from_numpy(order[: batches * size])
            x, y = data.values(rows), data.y[rows]
            losses.append([])
            guessed = []
            for bx, by in zip(x.split(size), y.split(size), strict=True):
                log_probabilities = torch.addmm(bias, bx, weight.t()).log_softmax(1)
                losses[-1].append(nll_loss(log_probabilities, by))
                guessed.append(log_probabilities.argmax(1))
                gradient = log_probabilities.exp_().sub_(onehot.index_select(0, by))
                weight.addmm_(gradient.t(), bx, alpha=-work.rate / len(by))
                bias.sub_(gradient.sum(0), alpha=work.rate / len(by))
            right = int((torch.cat(guessed) == y).sum())
            seen = len(y)
    return account(losses, right, seen, work, key)
