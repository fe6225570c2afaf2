"""The step of a cohort: K models side by side, a mini-batch each, one optimiser step.

Everything a step reads and writes lies in buffers of its own that stay where they are, so that on an accelerator the
step is recorded once and replayed. Models whose visit is over are masked: nothing of them changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfloor.engine.cohort.data import Pool
from fedfloor.engine.cohort.forward import Forward, views
from fedfloor.engine.cohort.goals import NOTHING, Term, distance
from fedfloor.engine.cohort.graphs import Recorded
from fedfloor.models.network import Network
from fedfloor.parts.proximal import Distilled, Mmd
from fedfloor.parts.weighting import PerSample


@dataclass(frozen=True)
class Spec:
    """What a program is made for.

    Args:
        models: K.
        batch: B, most samples of a mini-batch.
        steps: most steps of a visit.
        held: (first, stop) of the numbers of the model that the forward pass reads.
        trained: (first, stop) of those that are trained.
        momentum, decay: of the steps.
        term: what is added to the loss that the weights alone make.
        second: the objective that compares with the logits of the model as it arrived; None: there is no such.
        apart: whether the losses of single samples are told.
        samples: the objective whose losses of single samples are others than their cross-entropies; None: there is
            no such.
    """

    models: int
    batch: int
    steps: int
    held: tuple[int, int]
    trained: tuple[int, int]
    momentum: float = 0.0
    decay: float = 0.0
    term: Term = NOTHING
    second: Distilled | Mmd | None = None
    apart: bool = False
    samples: PerSample | None = None


class Order(NamedTuple):
    """Which samples the models step on.

    Args:
        rows: int64 [S, K, B], rows of the pool; a short mini-batch is filled up with a row of its own.
        share: [S, K, B], each sample's weight in the loss, 0 for what fills up.
        many: [S], how many models step; they are the first ones.
    """

    rows: np.ndarray
    share: np.ndarray
    many: np.ndarray


class Program:
    """Models side by side, and their step.

    Args:
        spec: what it is made for.
        network: one model's.
        forward: the stacked forward pass over what is held.
        pool: where the samples lie.
    """

    def __init__(self, spec: Spec, network: Network, forward: Forward, pool: Pool) -> None:
        self.spec, self.network, self.forward, self.pool = spec, network, forward, pool
        flat, (models, steps, batch) = network.flat, (spec.models, spec.steps, spec.batch)
        begin, (first, stop) = spec.held[0], spec.trained
        self.weights = flat.new_zeros(models, spec.held[1] - begin)
        self.trained = self.weights[:, first - begin : stop - begin]
        self.velocity = torch.zeros_like(self.trained) if spec.momentum else None
        self.arrived = torch.zeros_like(self.weights) if spec.second is not None else None
        self.anchor = torch.zeros_like(self.trained) if spec.term.kind else None
        self.height = flat.new_zeros(models)
        self.rate = flat.new_zeros(())
        self.rows = torch.zeros(steps, models, batch, dtype=torch.int64, device=flat.device)
        self.share = flat.new_zeros(steps, models, batch)
        self.losses, self.hits = flat.new_zeros(steps, models), flat.new_zeros(steps, models)
        self.each, self.right = flat.new_zeros(0), flat.new_zeros(0)
        if spec.apart:
            self.each, self.right = flat.new_zeros(models, batch), flat.new_zeros(models, batch)
        self.recorded: Recorded | None = None
        self._cut: dict[int, tuple[dict[str, Tensor], list[Tensor], list[Tensor]]] = {}

    def load(self, weights: Tensor, rate: float, order: Order, anchor: Sequence[Tensor], height: Tensor | None) -> None:
        """Put in the models [K, held], the rate, the samples, and what the term is measured from."""
        many, steps = len(weights), len(order.many)
        self.weights[:many].copy_(weights)
        self.rate.fill_(rate)
        self.share.zero_()
        batch = order.rows.shape[2]
        self.rows[:steps, :many, :batch].copy_(_leaving(order.rows, weights), non_blocking=True)
        self.share[:steps, :many, :batch].copy_(_leaving(order.share, weights), non_blocking=True)
        if self.velocity is not None:
            self.velocity.zero_()
        if self.arrived is not None:
            self.arrived[:many].copy_(weights)
        if self.anchor is not None:
            torch.stack(list(anchor), out=self.anchor[:many])
            self.height[:many].copy_(self.height[:many] if height is None else height)

    def step(self, at: int, many: int) -> None:
        """Let the first ``many`` models take step number ``at``."""
        said = self._stepped(self.rows[at, :many], self.share[at, :many], many)
        self.losses[at, :many], self.hits[at, :many] = said

    def step_at(self, at: Tensor, many: int) -> None:
        """Let the first ``many`` models take the step whose number [1] lies on the device, and count it on.

        Those of them whose visit is over are masked: nothing of them changes.
        """
        rows, share = (one[:, :many].index_select(0, at)[0] for one in (self.rows, self.share))
        losses, hits = self._stepped(rows, share, many)
        self.losses[:, :many].index_copy_(0, at, losses[None])
        self.hits[:, :many].index_copy_(0, at, hits[None])
        at.add_(1)

    def gradient(self, rows: Tensor, share: Tensor) -> Tensor:
        """Return the gradients [K, trained] of the weighted cross-entropies; rows and shares as a step's."""
        numbers, leaves, _ = self._parts(len(rows))
        logits = self.forward(numbers, self.pool.values(rows))
        y = self.pool.y.index_select(0, rows.flatten())
        loss = cross_entropy(logits.flatten(0, 1), y, reduction="none").view_as(share).mul(share).sum()
        return torch.cat([self._flat(one) for one in torch.autograd.grad(loss, leaves)], 1)

    def _flat(self, gradient: Tensor) -> Tensor:
        if self.network.channels_last and gradient.dim() == 5:
            gradient = gradient.permute(0, 1, 3, 4, 2)
        return gradient.flatten(1)

    def _parts(self, many: int) -> tuple[dict[str, Tensor], list[Tensor], list[Tensor]]:
        """Return the first models' numbers by name, and of those that are trained leaves, and views to change."""
        if many not in self._cut:
            named = views(self.network, self.weights[:many], self.spec.held[0])
            first, stop = self.spec.trained
            layout = self.network.layout
            names = [name for name in named if first <= layout[name][0] and layout[name][1] <= stop]
            leaves = {name: named[name].detach().requires_grad_() for name in names}
            self._cut[many] = named | leaves, list(leaves.values()), [named[name] for name in names]
        return self._cut[many]

    def _stepped(self, rows: Tensor, share: Tensor, many: int) -> tuple[Tensor, Tensor]:
        """Take a step; return the losses and the numbers of samples classified rightly, both before it, [many]."""
        spec = self.spec
        numbers, leaves, places = self._parts(many)
        x, y = self.pool.values(rows), self.pool.y.index_select(0, rows.flatten()).view_as(rows)
        logits = self.forward(numbers, x)
        if spec.samples is None:
            each = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(share)
        else:
            each = spec.samples.losses(logits.flatten(0, 1), y.flatten()).view_as(share)
        losses = (each * share).sum(1)
        if spec.second is not None and self.arrived is not None:
            with torch.no_grad():
                other = self.forward(views(self.network, self.arrived[:many], spec.held[0]), x)
            losses = losses + distance(spec.second, other, logits, share)
        live = (share > 0).any(1, keepdim=True).to(share.dtype)
        plain = self.velocity is None
        scale = (live * self.rate if plain else live)[:, 0]
        gradients = torch.autograd.grad(losses, leaves, grad_outputs=scale)
        with torch.no_grad():
            said = losses.detach()
            extra = None
            if self.anchor is not None:
                value, extra = spec.term.of(self.trained[:many], self.anchor[:many], self.height[:many])
                said = said + value
            right = (logits.argmax(2) == y) & (share > 0)
            if spec.apart:
                self.each[:many], self.right[:many] = each, right
            self._move(places, gradients, extra, live)
        return said, right.sum(1).to(said.dtype)

    def _move(self, places: Sequence[Tensor], gradients: Sequence[Tensor], extra: Tensor | None, live: Tensor) -> None:
        spec, many = self.spec, len(live)
        weights, rate = self.trained[:many], live * self.rate
        if self.velocity is None:
            if spec.decay:
                weights.mul_(1 - rate * spec.decay)
            if extra is not None:
                weights.addcmul_(extra, -rate)
            torch._foreach_sub_(list(places), list(gradients))
            return
        velocity = self.velocity[:many]
        velocity.mul_(1 - live * (1 - spec.momentum))
        if extra is not None:
            velocity.addcmul_(extra, live)
        parts = views(self.network, velocity, spec.trained[0])
        torch._foreach_add_(list(parts.values()), list(gradients))
        if spec.decay:
            velocity.addcmul_(weights, live * spec.decay)
        weights.addcmul_(velocity, -rate)


def _leaving(array: np.ndarray, to: Tensor) -> Tensor:
    """Return an array from where it can be sent to a device while the processor goes on."""
    here = torch.from_numpy(array)
    return here.pin_memory() if to.device.type == "cuda" else here
