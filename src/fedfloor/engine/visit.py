"""One visit: a model trained in place on one device's samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedfloor.chance import generator, torch_seed
from fedfloor.errors import DivergedError, FedfloorError, RunError
from fedfloor.models.network import Network
from fedfloor.park.stream import batch_order
from fedfloor.parts.objective import Objective, Visit
from fedfloor.plan.nodes import Work

CHUNK_BYTES = 4 << 20  # samples are turned into floats a few batches at a time: it stays in cache and bounds memory


@dataclass(frozen=True)
class Key:
    """What a visit's draws are keyed by: with the experiment's seed, all of its chance."""

    seed: int
    round: int
    tick: int
    device: int
    visit: int

    def place(self) -> tuple[int, int, int, int]:
        """Return (round, tick, device, visit)."""
        return self.round, self.tick, self.device, self.visit

    @property
    def where(self) -> str:
        """The visit's place in words."""
        return "the cloud" if self.device < 0 else f"device {self.device}"


def is_lost(key: Key, chance: float) -> bool:
    """Return whether a visit is lost: one draw per visit, the same for engine and price."""
    return chance > 0 and bool(generator(key.seed, "lost", *key.place()).random() < chance)


class Samples:
    """A device's samples as the network wants them: bytes until a batch is needed.

    Args:
        x: uint8 [n, C, H, W], or float32 [n, C] or [n, C, L].
        y: int64 [n].
        mean, std: normalisation per channel, value = (scale·x − mean)/std.
        scale: factor that turns a stored number into its value.
        channels_last: the network's memory format.
        missing: whether x may hold NaN, which stands for its channel's mean.
    """

    def __init__(
        self, x: np.ndarray, y: np.ndarray, mean: Tensor, std: Tensor, *, scale: float, channels_last: bool,
        missing: bool = False,
    ) -> None:  # fmt: skip
        data = torch.from_numpy(x)
        self._channels_last, self._missing = channels_last and data.dim() == 4, missing
        if self._channels_last:
            data = data.permute(0, 2, 3, 1).contiguous()
        self._x = data
        self.y = torch.from_numpy(y)
        side = (1,) * (data.dim() - 2)
        form = (1, *side, -1) if self._channels_last else (1, -1, *side)
        self._factor = (scale / std).view(form)
        centred = bool((mean != 0).any())
        # (scale·x − mean)/std: of bytes as one multiplication and one addition; of floats the mean goes first, as
        # 1000.1 and 1000.2 divided by 0.01 would lose what tells them apart
        self._mean = (mean / scale).view(form) if centred and data.is_floating_point() else None
        self._shift = (-mean / std).view(form) if centred and self._mean is None else None

    def __len__(self) -> int:
        return len(self.y)

    def values(self, rows: Tensor | slice) -> Tensor:
        """Return the chosen samples as floats [rows, C, …], never a view of what the device holds."""
        x = self._x[rows]
        # floats are not copied by .to(), and a slice of them is a view: changed in place they would be lost
        if self._mean is not None:
            x = (x - self._mean).mul_(self._factor)
        elif x.dtype == self._factor.dtype:
            x = x * self._factor
        else:
            x = x.to(self._factor.dtype).mul_(self._factor)
        if self._shift is not None:
            x.add_(self._shift)
        if self._missing:
            x.masked_fill_(x.isnan(), 0.0)  # the mean, by now
        return x.permute(0, 3, 1, 2) if self._channels_last else x

    def chunk(self, batch_size: int) -> int:
        """Return how many samples are turned into floats at a time: whole batches, about :data:`CHUNK_BYTES`."""
        sample = max(1, self._x[0].numel() * 4)
        return batch_size * max(1, CHUNK_BYTES // (sample * batch_size))


@dataclass(frozen=True)
class Trained:
    """What a visit's training says: see :class:`fedfloor.plan.outcome.Receipt`."""

    steps: int
    loss_first: float
    loss_last: float
    accuracy: float


def train(network: Network, samples: Samples, work: Work, objective: Objective, visit: Visit, key: Key) -> Trained:
    """Train the network in place by stochastic gradient descent, v ← βv + ∇F, w ← w − ηv.

    The mini-batches are those of :func:`fedfloor.park.stream.batch_order` for the visit's key. Dropout draws from the
    process's default PyTorch generator, as PyTorch has no other way: every visit re-seeds that generator by its key and
    leaves it where training ended, so whoever draws from it between visits cannot rely on a seed of their own.

    Args:
        network: the model, changed in place.
        samples: the device's samples.
        work: epochs or steps, batch size, rate, momentum.
        objective: what is minimised.
        visit: what the objective may read.
        key: what chance is keyed by.

    Raises:
        RunError: the loss is no longer a finite number, or the network or the objective fails; names the device.
    """
    torch.default_generator.manual_seed(torch_seed(key.seed, "dropout", *key.place()))
    rng = generator(key.seed, "batches", *key.place())
    step = _stepper(network, work)
    network.module.train()
    losses: list[list[Tensor]] = []
    outputs: list[Tensor] = []
    used = samples.y[:0]
    for order, count in batch_order(len(samples), work.batch_size, work.epochs, work.steps, rng):
        losses.append([])
        outputs.clear()  # the accuracy is that of the last pass
        used = torch.from_numpy(order[: count * work.batch_size])
        for rows in used.split(samples.chunk(work.batch_size)):
            x, y = samples.values(rows), samples.y[rows]
            for bx, by in zip(x.split(work.batch_size), y.split(work.batch_size), strict=True):
                loss, logits, gradients, extra = _gradients(network, objective, bx, by, visit, key)
                step(gradients, extra)
                losses[-1].append(loss)
                outputs.append(logits)
    right = (torch.cat(outputs).argmax(1) == samples.y[used]).sum()
    return _account(losses, int(right), len(used), work, key)


def _gradients(
    network: Network, objective: Objective, x: Tensor, y: Tensor, visit: Visit, key: Key
) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor | None]:
    """Return (loss [], logits [batch, classes], its gradients, the penalty's gradient [trained]) of a mini-batch.

    What fails there is the user's code.
    """
    try:
        loss, logits = objective.loss(network.module, x, y, visit)
        gradients = torch.autograd.grad(loss, network.parameters)
        penalty = getattr(objective, "penalty", None)
        term = None if penalty is None else penalty(network.flat[: network.trained], visit)
        if term is None:
            return loss.detach(), logits.detach(), gradients, None
        return loss.detach() + term[0], logits.detach(), gradients, term[1]
    except FedfloorError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".removesuffix(".")
        if "more than 1 value per channel" in said:
            said += (
                f". Batch norm cannot be trained on a mini-batch of {len(y)}: choose a work.batch_size that leaves no "
                "last mini-batch of one sample"
            )
        raise RunError(f"training failed on {key.where} in round {key.round}: {said}.") from error


def _stepper(network: Network, work: Work) -> Callable[[tuple[Tensor, ...], Tensor | None], None]:
    """Return the function that takes one optimiser step from a tuple of gradients and a flat one [trained], or None."""
    flat = network.flat[: network.trained]
    views = [p.data for p in network.parameters]
    if work.momentum == 0:

        def plain(gradients: tuple[Tensor, ...], extra: Tensor | None) -> None:
            if work.weight_decay:
                flat.mul_(1 - work.rate * work.weight_decay)
            if extra is not None:
                flat.add_(extra, alpha=-work.rate)
            torch._foreach_add_(views, gradients, alpha=-work.rate)

        return plain
    velocity = torch.zeros_like(flat)
    parts = network.views(velocity)

    def heavy(gradients: tuple[Tensor, ...], extra: Tensor | None) -> None:
        velocity.mul_(work.momentum)
        if extra is not None:
            velocity.add_(extra)
        torch._foreach_add_(parts, gradients)
        if work.weight_decay:
            velocity.add_(flat, alpha=work.weight_decay)
        flat.add_(velocity, alpha=-work.rate)

    return heavy


def _account(losses: list[list[Tensor]], right: int, seen: int, work: Work, key: Key) -> Trained:
    flat = [loss for one in losses for loss in one]
    every = torch.stack(flat).double()
    if not bool(torch.isfinite(every).all()):
        first_bad = float(every[~torch.isfinite(every)][0])
        raise DivergedError(
            f"the loss of {key.where} became {first_bad} in round {key.round} (learning rate {work.rate:g}). "
            "Lower work.lr, or look at that device's data; the last checkpoint is untouched."
        )
    if work.steps is not None:
        first, last = float(every[0]), float(every[-1])
    else:
        first, last = float(every[: len(losses[0])].mean()), float(every[-len(losses[-1]) :].mean())
    return Trained(len(flat), first, last, right / seen if seen else math.nan)
