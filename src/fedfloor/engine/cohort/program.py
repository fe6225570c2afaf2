"""The optimiser step of a stack of models: its objective's terms, its mini-batches, its recording as CUDA graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from fedfloor.data.dataset import Indices
from fedfloor.engine.cohort.data import Pool
from fedfloor.engine.cohort.forward import Forward, views
from fedfloor.engine.visit import VisitStats, check_finite
from fedfloor.models.network import Network
from fedfloor.park.stream import batch_order
from fedfloor.parts.mixing.weighting import Focal, PerSample, Weighted
from fedfloor.parts.objectives.correction import Corrected, Variates
from fedfloor.parts.objectives.objective import Objective, Plain
from fedfloor.parts.objectives.proximal import WIDTHS, Distilled, Mmd, Prox
from fedfloor.parts.objectives.replay import Replay
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key

WHY = {
    "contrastive": "it looks into the network's layers",
    "fusion": "it looks into the network's layers",
    "reweighted": "it has a term besides the losses of weighted samples",
    "gated": "every device has parameters of its own in the network",
}
WARM_UPS = 3  # steps before recording, in which libraries choose kernels and allocate memory


@dataclass(frozen=True)
class Term:
    """A term of the loss that depends on the weights alone, with value [K] and gradient [K, trained].

    Args:
        kind: ``""``: no term; ``"pull"``: (weight/2)·‖w − a‖²; ``"tilt"``: ⟨a, w⟩ − height, with a each model's anchor.
    """

    kind: str = ""
    weight: float = 0.0  # weight of the pull

    def of(self, weights: Tensor, anchor: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind == "pull":
            away = weights - anchor
            return away.square().sum(1).mul(self.weight / 2), away.mul_(self.weight)
        return (weights * anchor).sum(1) - height, anchor


NOTHING = Term()


def refusal(name: str, goal: Objective) -> str:
    """Return the reason why an objective cannot be stacked, or "" if it can.

    >>> refusal("plain", Plain()), refusal("mine:Own", Plain())
    ('', '')
    """
    if type(goal) in (Plain, Prox, Corrected, Variates, Distilled, Mmd, Replay, Weighted, Focal):
        return ""
    kind = type(goal)
    same = ("penalty", "per_sample", "arrive", "begin", "features", "trains")
    if kind.loss is Plain.loss and all(getattr(kind, hook) is getattr(Objective, hook) for hook in same):
        return ""
    return f"objective '{name}': {WHY.get(name, 'its loss is not known to be a sum over samples')}"


def term(goal: Objective) -> Term:
    """Return the term that an objective adds and that depends on the weights alone."""
    if isinstance(goal, Prox) and goal.mu > 0:
        return Term("pull", goal.mu)
    tilts = isinstance(goal, Variates) or (isinstance(goal, Corrected) and goal.weight > 0)
    return Term("tilt") if tilts else NOTHING


def second(goal: Objective) -> Distilled | Mmd | None:
    """Return the objective if it compares the logits with those of the arrived model, else None."""
    return goal if isinstance(goal, (Mmd, Distilled)) and goal.weight > 0 else None


def of_samples(goal: Objective) -> PerSample | None:
    """Return the objective if its losses per sample are not cross-entropies, else None."""
    return goal if isinstance(goal, PerSample) and not goal.is_plain else None


def distance(goal: Distilled | Mmd, fixed: Tensor, logits: Tensor, share: Tensor) -> Tensor:
    """Return the distance [K] of logits from those of the arrived model, [K, B, F], weighted by ``share`` [K, B]."""
    if isinstance(goal, Distilled):
        apart = kl_div(logits.log_softmax(2), fixed.log_softmax(2), reduction="none", log_target=True).sum(2)
        return goal.weight * (apart * share).sum(1)
    inside = _kernels(logits, logits) + _kernels(fixed, fixed) - 2 * _kernels(fixed, logits)
    return goal.weight * torch.einsum("kij,ki,kj->k", inside, share, share).clamp(min=0)


def _kernels(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of Gaussian kernels Σ_s exp(−‖a_i − b_j‖²/(2s)) over the widths s, [K, B, B]."""
    apart = (a[:, :, None] - b[:, None]).square().sum(3)
    return torch.stack([(apart / (-2 * width)).exp() for width in WIDTHS]).sum(0)


class Recorded:
    """A program's step as CUDA graphs, recorded for few numbers of models: all of them, a half, a quarter, and so on.

    The buffers that a step reads and writes must keep their addresses. The recordings share working memory, as they
    are replayed one after the other and keep nothing in it. On a CPU the plain steps replace them, for tests.
    """

    def __init__(self, step: Callable[[Tensor, int], None], models: int, device: torch.device) -> None:
        self._step = step
        self._models = models
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._graphs: dict[int, Callable[[], object]] = {}

    def prepare(self, many: Iterable[int]) -> None:
        """Record the step for the numbers of models that :meth:`replay` needs; no model may be in training."""
        for width in sorted({halved(self._models, live) for live in many} - set(self._graphs), reverse=True):
            self._graphs[width] = self._record(width)

    def replay(self, many: Sequence[int]) -> None:
        self._at.zero_()
        for live in many:
            self._graphs[halved(self._models, live)]()

    def _record(self, width: int) -> Callable[[], object]:
        device = self._at.device
        if device.type != "cuda":
            self._at.zero_()
            self._step(self._at, width)
            return partial(self._step, self._at, width)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._at.zero_()
                self._step(self._at, width)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self._at.zero_()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(self._at, width)
        return graph.replay


def halved(models: int, live: int) -> int:
    """Return the smallest of ``models``, models/2, models/4, … (rounded up) that is at least ``live``.

    >>> [halved(100, live) for live in (100, 51, 50, 26, 25, 1)]
    [100, 100, 50, 50, 25, 1]
    """
    while live <= (half := -(-models // 2)) < models:
        models = half
    return models


@dataclass(frozen=True)
class Spec:
    """The shapes and loss terms of a program for a stack of K models."""

    models: int  # K
    batch: int  # B, the greatest number of samples in a mini-batch
    steps: int  # the greatest number of steps of a visit
    held: tuple[int, int]  # (first, stop) of the slice of the model that the forward pass reads
    trained: tuple[int, int]  # (first, stop) of the slice that is trained
    momentum: float = 0.0
    decay: float = 0.0
    term: Term = NOTHING  # a term of the loss that depends on the weights alone
    second: Distilled | Mmd | None = None
    apart: bool = False  # whether the losses of the single samples are kept
    samples: PerSample | None = None


class Order(NamedTuple):
    """The samples of each model in each step, in order."""

    rows: np.ndarray  # int64 [S, K, B], rows of the pool; a short mini-batch is padded with a row of its own
    share: np.ndarray  # [S, K, B], each sample's weight in the loss, 0 for padding
    many: np.ndarray  # [S], the number of models that take the step: the first ones


class Program:
    """A stack of models with its buffers, and the step that trains it."""

    def __init__(self, spec: Spec, network: Network, forward: Forward, pool: Pool) -> None:
        self.spec = spec
        self.network = network
        self.forward = forward
        self.pool = pool
        flat = network.flat
        models = spec.models
        steps = spec.steps
        batch = spec.batch
        begin = spec.held[0]
        (first, stop) = spec.trained
        self.weights = flat.new_zeros(models, spec.held[1] - begin)
        self.trained = self.weights[:, first - begin : stop - begin]
        self.velocity = torch.zeros_like(self.trained) if spec.momentum else None
        self.arrived = torch.zeros_like(self.weights) if spec.second is not None else None
        self.anchor = torch.zeros_like(self.trained) if spec.term.kind else None
        self.height = flat.new_zeros(models)
        self.rate = flat.new_zeros(())
        self.rows = torch.zeros(steps, models, batch, dtype=torch.int64, device=flat.device)
        self.share = flat.new_zeros(steps, models, batch)
        self.losses = flat.new_zeros(steps, models)
        self.hits = flat.new_zeros(steps, models)
        self.each = flat.new_zeros(0)
        self.right = flat.new_zeros(0)
        if spec.apart:
            self.each = flat.new_zeros(models, batch)
            self.right = flat.new_zeros(models, batch)
        self.recorded: Recorded | None = None
        self._cut: dict[int, tuple[dict[str, Tensor], list[Tensor], list[Tensor]]] = {}

    def load(self, weights: Tensor, rate: float, order: Order, anchor: Sequence[Tensor], height: Tensor | None) -> None:
        many = len(weights)
        steps = len(order.many)
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
        losses_and_hits = self._stepped(self.rows[at, :many], self.share[at, :many], many)
        self.losses[at, :many], self.hits[at, :many] = losses_and_hits

    def step_at(self, at: Tensor, many: int) -> None:
        """Let the first ``many`` models take the step number ``at`` [1], a tensor on the device, and increment it.

        Models whose visit is over are masked and do not change.
        """
        rows, share = (tensor[:, :many].index_select(0, at)[0] for tensor in (self.rows, self.share))
        losses, hits = self._stepped(rows, share, many)
        self.losses[:, :many].index_copy_(0, at, losses[None])
        self.hits[:, :many].index_copy_(0, at, hits[None])
        at.add_(1)

    def gradient(self, rows: Tensor, share: Tensor) -> Tensor:
        """Return the gradients [K, trained] of the weighted cross-entropies; arguments [K, B] as in :class:`Order`."""
        numbers, leaves, _ = self._parts(len(rows))
        logits = self.forward(numbers, self.pool.values(rows))
        y = self.pool.y.index_select(0, rows.flatten())
        loss = cross_entropy(logits.flatten(0, 1), y, reduction="none").view_as(share).mul(share).sum()
        return torch.cat([self._flat(gradient) for gradient in torch.autograd.grad(loss, leaves)], 1)

    def _flat(self, gradient: Tensor) -> Tensor:
        if self.network.channels_last and gradient.dim() == 5:
            gradient = gradient.permute(0, 1, 3, 4, 2)
        return gradient.flatten(1)

    def _parts(self, many: int) -> tuple[dict[str, Tensor], list[Tensor], list[Tensor]]:
        """Return the first models' tensors by name, their trained tensors as leaves, and views to change these."""
        if many not in self._cut:
            named = views(self.network, self.weights[:many], self.spec.held[0])
            first, stop = self.spec.trained
            layout = self.network.layout
            names = [name for name in named if first <= layout[name][0] and layout[name][1] <= stop]
            leaves = {name: named[name].detach().requires_grad_() for name in names}
            self._cut[many] = named | leaves, list(leaves.values()), [named[name] for name in names]
        return self._cut[many]

    def _stepped(self, rows: Tensor, share: Tensor, many: int) -> tuple[Tensor, Tensor]:
        """Take a step; return the losses and the numbers of correctly classified samples before it, both [many]."""
        spec = self.spec
        numbers, leaves, places = self._parts(many)
        x = self.pool.values(rows)
        y = self.pool.y.index_select(0, rows.flatten()).view_as(rows)
        logits = self.forward(numbers, x)
        losses_of = partial(cross_entropy, reduction="none") if spec.samples is None else spec.samples.losses
        each = losses_of(logits.flatten(0, 1), y.flatten()).view_as(share)
        losses = (each * share).sum(1)
        if spec.second is not None and self.arrived is not None:
            with torch.no_grad():
                other = self.forward(views(self.network, self.arrived[:many], spec.held[0]), x)
            losses = losses + distance(spec.second, other, logits, share)
        live = (share > 0).any(1, keepdim=True).to(share.dtype)
        plain = self.velocity is None
        scale = (live * self.rate if plain else live)[:, 0]  # without momentum, gradients are multiplied by the rate
        gradients = torch.autograd.grad(losses, leaves, grad_outputs=scale)
        with torch.no_grad():
            reported = losses.detach()
            extra = None
            if self.anchor is not None:
                value, extra = spec.term.of(self.trained[:many], self.anchor[:many], self.height[:many])
                reported = reported + value
            right = (logits.argmax(2) == y) & (share > 0)
            if spec.apart:
                self.each[:many] = each
                self.right[:many] = right
            self._move(places, gradients, extra, live)
        return reported, right.sum(1).to(reported.dtype)

    def _move(self, places: Sequence[Tensor], gradients: Sequence[Tensor], extra: Tensor | None, live: Tensor) -> None:
        spec = self.spec
        many = len(live)
        weights = self.trained[:many]
        rate = live * self.rate
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
    """Return an array as a tensor; pinned for an asynchronous transfer where the device is an accelerator."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if to.device.type == "cuda" else tensor


def batches(held: Indices, work: Work, key: Key) -> list[Indices]:
    """Return a visit's mini-batches in order, each the rows of its samples in the pool."""
    rng = key.rng("batches")
    size = work.batch_size
    minibatches: list[Indices] = []
    for order, count in batch_order(len(held), size, work.epochs, work.steps, rng):
        rows = held[order[: count * size]]
        minibatches += [rows[first : first + size] for first in range(0, len(rows), size)]
    return minibatches


def stacked(visits: Sequence[Sequence[Indices]], kind: np.dtype) -> Order:
    """Return the order of steps for a stack of visits, those with more mini-batches first."""
    steps = len(visits[0])
    widest = max(len(batch) for visit in visits for batch in visit)
    rows = np.zeros((steps, len(visits), widest), np.int64)
    share = np.zeros((steps, len(visits), widest), kind)
    many = np.zeros(steps, np.int64)
    for k, visit in enumerate(visits):
        many[: len(visit)] += 1
        for s, batch in enumerate(visit):
            rows[s, k, : len(batch)], rows[s, k, len(batch) :] = batch, batch[0]
            share[s, k, : len(batch)] = 1 / len(batch)
        rows[len(visit) :, k] = visit[-1][0]
    return Order(rows, share, many)


def fetching(*tensors: Tensor) -> Callable[[], list[np.ndarray]]:
    """Return a function that copies tensors from the device as float64 at its first call, and frees them there."""
    left = list(tensors)
    arrays = list[np.ndarray]()

    def fetched() -> list[np.ndarray]:
        while left:
            arrays.append(left.pop(0).double().cpu().numpy())
        return arrays

    return fetched


Stats = Callable[[], list[VisitStats]]


def lazy_stats(
    losses: Tensor, hits: Tensor, visits: Sequence[Sequence[Indices]], keys: Sequence[Key], work: Work,
    held: Sequence[int],
) -> list[Stats]:  # fmt: skip
    """Return a function for each stacked visit that returns its statistics; the first call fetches all of them.

    Args:
        losses, hits: [S, K] on the device: mean losses of the mini-batches, and the numbers of their correctly
            classified samples.
    """
    fetched = fetching(losses, hits)
    sizes_of = [[len(batch) for batch in visit] for visit in visits]

    def stats(k: int) -> list[VisitStats]:
        sizes = sizes_of[k]
        losses, hits = (array[: len(sizes), k] for array in fetched())
        wrong = losses[~np.isfinite(losses)]
        if len(wrong):
            check_finite(float(wrong[0]), keys[k], work)
        per_pass = -(-held[k] // work.batch_size)
        last = slice((len(sizes) - 1) // per_pass * per_pass, None)
        seen = sum(sizes[last])
        right = float(hits[last].sum()) / seen if seen else math.nan
        if work.steps is not None:
            return [VisitStats(len(sizes), float(losses[0]), float(losses[-1]), right)]
        return [VisitStats(len(sizes), float(losses[:per_pass].mean()), float(losses[last].mean()), right)]

    return [partial(stats, k) for k in range(len(visits))]


def lazy_union_stats(
    each: Tensor, right: Tensor, sizes: Sequence[np.ndarray], keys: Sequence[Sequence[Key]], work: Work
) -> list[Stats]:
    """Return a function for each stacked super node that returns its visits' statistics.

    Args:
        each, right: [K, B] on the device: the losses of the single samples, and whether each was classified correctly.
    """
    fetched = fetching(each, right)

    @cache
    def stats(k: int) -> list[VisitStats]:
        starts = sizes[k].cumsum() - sizes[k]
        many = sizes[k].sum()
        means, right = ((np.add.reduceat(array[k, :many], starts) / sizes[k]).tolist() for array in fetched())
        for key, loss in zip(keys[k], means, strict=True):
            check_finite(loss, key, work)
        return [VisitStats(1, loss, loss, hit) for loss, hit in zip(means, right, strict=True)]

    return [partial(stats, k) for k in range(len(sizes))]
