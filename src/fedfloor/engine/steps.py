"""Gradients of mini-batches and optimiser steps along them, on one flat vector.

Two shortcuts save time. PyTorch's autograd engine is called directly, as the argument checks of ``torch.autograd.grad``
take a tenth of a small network's step. And a large linear layer takes its step W ← W − η·δᵀx as one matrix product
within the backward pass, instead of writing and reading a gradient as large as the layer; this is exact in arithmetic,
not in rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedfloor.base.errors import SettingError
from fedfloor.engine.engine import Samples
from fedfloor.models.network import Network
from fedfloor.parts.objectives.objective import Objective, Plain
from fedfloor.parts.objectives.proximal import evaluating
from fedfloor.plan.nodes import TRAVEL, Work, factors_of
from fedfloor.tasks.task import Task

BLOCK = 500  # fixed, so that matrix products always have the same rows
PREFIX = "optimizer."  # prefix of the moments' names among a device's tensors
TINY = 1e-6  # added to the norm by which a gradient is divided, as in torch.nn.utils.clip_grad_norm_
LARGE = 1 << 20  # least number of weights of a layer that does not fit into the cache


def gradients(loss: Tensor, parameters: Sequence[Tensor], grad: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return ∂loss/∂p for each parameter p, shaped like p; equal to ``torch.autograd.grad`` to the bit.

    The loss is a scalar, or any tensor if ``grad`` gives the derivative of the minimised quantity by it.

    >>> w = torch.tensor([3.0, 1.0], requires_grad=True)
    >>> gradients((w * w).sum(), [w])
    (tensor([6., 2.]),)
    """
    if type(loss) is not Tensor or (grad is None and loss.dim()):  # a subclass may define its own gradients
        return torch.autograd.grad(loss, parameters, grad_outputs=grad)
    seed = torch.ones_like(loss) if grad is None else grad
    run = torch.autograd.Variable._execution_engine.run_backward
    return run((loss,), (seed,), False, False, tuple(parameters), False, accumulate_grad=False)


def full_gradient(network: Network, samples: Samples, task: Task) -> Tensor:
    """Return ∇F(w) = (1/n) Σ_i ∇ℓ(w; x_i, y_i) of the task's loss, float32 [trained].

    The network is in evaluation mode: no dropout, batch norm with its running statistics, and no change of state.
    """
    total = network.flat.new_zeros(network.trained)
    parts = network.shaped_like(network.parameters)(total)
    with evaluating(network.module):
        for first in range(0, len(samples), BLOCK):
            rows = slice(first, first + BLOCK)
            logits = network.module(samples.values(rows))
            loss = task.losses(logits, samples.y[rows], "sum")
            torch._foreach_add_(parts, gradients(loss, network.parameters))
    return total.div_(len(samples))


Step = Callable[[tuple[Tensor, ...], Tensor | None], None]
Shaped = Callable[[Tensor], list[Tensor]]
Moment = Callable[[str, Tensor], Tensor]  # a moment's name and initial value → the moment, which steps change in place


def taken(memory: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the optimisers' moments from a device's memory, and return them.

    >>> memory = {"c": torch.zeros(2), "optimizer.sgd.0.velocity": torch.ones(2)}
    >>> list(taken(memory)), list(memory)
    (['optimizer.sgd.0.velocity'], ['c'])
    """
    return {name: memory.pop(name) for name in list(memory) if name.startswith(PREFIX)}


def stepper(network: Network, part: slice, shaped: Shaped, work: Work, kept: dict[str, Tensor] | None = None) -> Step:
    """Return the function that takes one optimiser step from a tuple of gradients and a flat gradient, or None.

    With g the gradient, divided by max(1, ‖g‖/c) where it is clipped to the norm c, and η the rate:

        sgd    v ← βv + g + λw,  w ← w − ηv
        adam   g ← g + λw,  m ← β₁m + (1 − β₁)g,  s ← β₂s + (1 − β₂)g²,  w ← w − η·m̂/(√ŝ + ε)
        adamw  the same without λw in g, after w ← (1 − ηλ)w

    with m̂ = m/(1 − β₁ᵗ) and ŝ = s/(1 − β₂ᵗ) in step t. The steps of Adam and AdamW are PyTorch's own (``fused=True``).
    Where the work has factors f of its rate, these are steps of Δw, and w ← w + f·Δw.

    Args:
        network: the network, whose flat vector is changed in place.
        part: the slice of the flat vector that is trained.
        shaped: the function that cuts a vector like this part into views shaped like the parameters.
        work: optimiser, rate η, momentum β, β₁, β₂, ε, weight decay λ, clip_norm c.
        kept: the device's moments by name, changed in place; those of this work are added. Unused if the work starts
            every visit with new moments.
    """
    flat = network.flat[part]
    if work.factors:
        even = stepper(network, part, shaped, replace(work, factors=""), kept)
        return _scaled(even, flat, rate_factors(network, work)[part])
    stored = {} if kept is None or work.moments == "visit" else kept

    def moment(name: str, start: Tensor) -> Tensor:
        value = stored.setdefault(f"{PREFIX}{work.optimizer}.{part.start}.{name}", start)  # other parts have their own
        if value.shape != start.shape:
            raise SettingError(
                f"a device memory from another model: the optimiser's '{name}' has {value.numel()} numbers, this model "
                f"trains {start.numel()}. Begin the run again with another --out.",
                key="device-memory",
            )
        return value

    if work.optimizer == "sgd" and work.clip_norm is None:
        return _sgd(flat, shaped, work, moment)
    whole = torch.empty_like(flat)
    parts = shaped(whole)
    if work.optimizer == "sgd":
        update: Callable[[], None] = partial(_sgd(flat, shaped, work, moment), tuple(parts), None)
    else:
        update = _adam(flat, whole, work, moment)

    def step(gradients: tuple[Tensor, ...], extra: Tensor | None) -> None:
        torch._foreach_copy_(parts, gradients)
        if extra is not None:
            whole.add_(extra)
        if work.clip_norm is not None:
            clip(whole, parts, work.clip_norm)
        update()

    return step


def rate_factors(network: Network, work: Work) -> Tensor:
    """Return the factor of the rate of each number of a model, float32 [P]: 1 outside of the parts that work names.

    Raises:
        SettingError: the model has no such part, or two parts overlap.

    >>> network = Network(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)), "1")
    >>> rate_factors(network, Work(factors="head 2.0; 0.bias 0.5"))
    tensor([1.0000, 1.0000, 0.5000, 0.5000, 2.0000, 2.0000, 2.0000])
    """
    factors = torch.full_like(network.flat, math.nan)
    for name, factor in factors_of(work.factors).items():
        try:
            pieces = network.numbers(name)
        except SettingError as error:
            raise SettingError(f"work.lr_factors: {error}") from None
        for piece in pieces:
            if not bool(factors[piece].isnan().all()):
                raise SettingError(
                    f"work.lr_factors: '{name}' and another part share numbers of the model, which would have two "
                    "rates. Name parts that do not overlap."
                )
            factors[piece] = factor
    return factors.nan_to_num_(1.0)


def _scaled(step: Step, flat: Tensor, factors: Tensor) -> Step:
    """Return the step w ← w + f·Δw, with Δw the change by the given step, whose bits it has where f = 1."""
    before = torch.empty_like(flat)

    def scaled(gradients: tuple[Tensor, ...], extra: Tensor | None) -> None:
        before.copy_(flat)
        step(gradients, extra)
        torch.lerp(before, flat, factors, out=flat)

    return scaled


def clip(whole: Tensor, parts: Iterable[Tensor], norm: float) -> None:
    """Scale a gradient, in place, to a norm of at most ``norm`` > 0, as ``torch.nn.utils.clip_grad_norm_`` does.

    >>> gradient = torch.tensor([3.0, 4.0])
    >>> clip(gradient, [gradient], 1.0)
    >>> gradient
    tensor([0.6000, 0.8000])
    """
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(parts))))
    whole.mul_((norm / (length + TINY)).clamp_(max=1.0))


def _sgd(flat: Tensor, shaped: Shaped, work: Work, moment: Moment) -> Step:
    views = shaped(flat)
    if work.momentum == 0:

        def plain(gradients: tuple[Tensor, ...], extra: Tensor | None) -> None:
            if work.weight_decay:
                flat.mul_(1 - work.rate * work.weight_decay)
            if extra is not None:
                flat.add_(extra, alpha=-work.rate)
            torch._foreach_add_(views, gradients, alpha=-work.rate)

        return plain
    velocity = moment("velocity", torch.zeros_like(flat))
    parts = shaped(velocity)

    def heavy(gradients: tuple[Tensor, ...], extra: Tensor | None) -> None:
        velocity.mul_(work.momentum)
        if extra is not None:
            velocity.add_(extra)
        torch._foreach_add_(parts, gradients)
        if work.weight_decay:
            velocity.add_(flat, alpha=work.weight_decay)
        flat.add_(velocity, alpha=-work.rate)

    return heavy


def _adam(flat: Tensor, gradient: Tensor, work: Work, moment: Moment) -> Callable[[], None]:
    mean, square = (moment(name, torch.zeros_like(flat)) for name in ("mean", "square"))
    steps = moment("steps", torch.zeros((), dtype=torch.float32, device=flat.device))  # as torch.optim counts its steps
    run = torch._fused_adamw_ if work.optimizer == "adamw" else torch._fused_adam_

    def step() -> None:
        steps.add_(1)
        run(
            [flat], [gradient], [mean], [square], [], [steps], lr=work.rate, beta1=work.beta1, beta2=work.beta2,
            weight_decay=work.weight_decay, eps=work.eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    return step


def large_layers(network: Network, work: Work, objective: Objective) -> list[nn.Linear]:
    """Return the layers that can take their steps within the backward pass; [] if the result would differ.

    With plain cross-entropy, each layer is called once per mini-batch and not needed after its step. Momentum, weight
    decay and other objectives read gradients or weights after the backward pass.
    """
    if type(objective) is not Plain or not work.only("objective", "epochs", "steps", "batch_size", "rate", *TRAVEL):
        return []
    chain = network.module
    if type(chain) is not nn.Sequential or any(not p.requires_grad for p in chain.parameters()):
        return []  # forward() of another class may call a layer twice
    known = [layer for layer in chain if any(True for _ in layer.parameters())]
    inside = [id(p) for layer in known for p in layer.parameters()]
    if len(set(inside)) < len(inside):  # a layer that occurs twice, or layers that share their weights
        return []
    # not the first layer: the backward pass ends at the first layer with gradients to compute
    large = [layer for layer in known[1:] if type(layer) is nn.Linear and layer.weight.numel() >= LARGE]
    return [layer for layer in large if "weight" in dict(layer.named_parameters())]  # not with weight normalisation


@contextmanager
def stepping(large: list[nn.Linear], rate: float) -> Iterator[None]:
    """Let the layers take plain SGD steps within the backward pass, inside this context."""
    for layer in large:
        layer.forward = partial(_Stepped.through, layer, rate)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in large:
            del layer.forward


class _Stepped(torch.autograd.Function):
    """The layer y = x·Wᵀ + b with a backward pass that computes ∂loss/∂x and then takes the layer's step."""

    @classmethod
    def through(cls, layer: nn.Linear, rate: float, x: Tensor) -> Tensor:
        return cls.apply(x, layer.weight, layer.bias, rate)  # type: ignore[no-any-return,no-untyped-call]

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rate: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = (weight, bias)
        ctx.rate = rate
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x,) = ctx.saved_tensors
        (weight, bias) = ctx.layer
        before = grad.matmul(weight) if ctx.needs_input_grad[0] else None
        rows = grad.flatten(0, -2)  # a sample may have several rows
        weight.data.addmm_(rows.t(), x.flatten(0, -2), alpha=-ctx.rate)
        if bias is not None:
            bias.data.add_(rows.sum(0), alpha=-ctx.rate)
        return before, None, None, None
