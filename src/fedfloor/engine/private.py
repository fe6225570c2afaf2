"""Differentially private SGD: every sample's gradient is clipped, and the sum of a mini-batch gets Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import unfold

from fedfloor.base.chance import generator, secret
from fedfloor.base.errors import SettingError
from fedfloor.engine.steps import stepper
from fedfloor.engine.visit import Batched, VisitStats, call_objective, trained_part
from fedfloor.models.network import Network
from fedfloor.parts.objectives.objective import Objective, Visit
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key

SEPARATE = ("plain", "prox", "weighted", "focal")  # objectives with a mean over samples, plus a term of the weights
NUMBERS = 1 << 25  # of gradients of single samples that are in memory at a time
MIXING = (nn.modules.batchnorm._NormBase, nn.RNNBase)  # layers that have no gradients of single samples


def train_private(
    network: Network, samples: Batched, work: Work, objective: Objective, visit: Visit, key: Key,
    moments: dict[str, Tensor], *, hidden: bool = False,
) -> VisitStats:  # fmt: skip
    r"""Train the network in place by DP-SGD: g = (Σ_{i∈B} clip(∇ℓ_i, C) + N(0, z²C² I)) / b, then the optimiser's step.

    Every sample is in the mini-batch B of a step with chance b/n, independently of the others (Poisson sampling), so
    that B may be empty; the number of steps is that of training without privacy. C is ``work.sample_clip``, z is
    ``work.sample_noise``, b the batch size, n the number of samples. Abadi et al., CCS 2016, arXiv 1607.00133. A term
    of the weights, such as FedProx's, does not depend on samples, and is added after the noise. The statistics have
    neither losses nor accuracy, which have no noise and would not be covered by the privacy loss. A sample whose
    gradient is infinite or undefined counts as a gradient of 0, as an error would reveal it without noise.

    Args:
        moments: the optimiser's moments, which the device keeps; changed in place.
        hidden: whether sampling and noise are drawn from the operating system instead of the visit's key.

    Raises:
        SettingError: the objective or a layer mixes samples.
        RunError: the network or the objective fails; the error names the device.
    """
    check(network, work)
    torch.default_generator.manual_seed(generator(key.seed, "dropout", *key.place()).integers(2**63).item())
    rng = secret() if hidden else generator(key.seed, "private", *key.place())
    part = trained_part(network, objective, work)
    parameters = network.within(part)
    weights = network.flat[part]
    shaped = network.shaped_like(parameters)
    step = stepper(network, part, shaped, work, moments)
    share = min(1.0, work.batch_size / len(samples))
    rows_at_once = max(1, NUMBERS // len(weights))

    clip = work.sample_clip or math.inf
    summed = (network, parameters, objective, visit, clip)
    add = _by_layers(*summed) or _by_samples(*summed)
    network.module.train()
    for _ in range(work.batches(len(samples))):
        chosen = torch.from_numpy(np.flatnonzero(rng.random(len(samples)) < share))
        total = torch.zeros_like(weights)
        views = shaped(total)
        for rows in chosen.split(rows_at_once) if len(chosen) else ():
            x, y = samples.values(rows), samples.y[rows]
            call_objective(lambda x=x, y=y, v=views: add(x, y, v), len(rows), key)  # type: ignore[misc]
        if work.sample_noise:
            noise = torch.from_numpy(rng.normal(0.0, work.sample_noise * clip, len(total)))
            total.add_(noise.to(total.dtype))
        total.div_(work.batch_size)
        _, extra = objective.penalty(weights, visit) or (None, None)
        step(tuple(views), extra)
    return VisitStats(work.batches(len(samples)), None, None, None)


# adds Σ_i clip(∇ℓ_i, C) of a mini-batch to views shaped like parameters
Adder = Callable[[Tensor, Tensor, list[Tensor]], None]


def _by_samples(
    network: Network, parameters: list[nn.Parameter], objective: Objective, visit: Visit, clip: float
) -> Adder:
    """Return the function that adds up a network's clipped gradients, from the gradient of each sample."""
    names = {id(value): name for name, value in network.module.named_parameters()}
    keys = [names[id(parameter)] for parameter in parameters]

    def loss_of(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        called = lambda batch: functional_call(network.module, values, (batch,))  # noqa: E731
        return objective.loss(called, x[None], y[None], visit)[0]  # type: ignore[arg-type]

    single = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")

    def add(x: Tensor, y: Tensor, views: list[Tensor]) -> None:
        values = {name: parameter.detach() for name, parameter in zip(keys, parameters, strict=True)}
        with sdpa_kernel(SDPBackend.MATH):  # PyTorch's fused attention yields no gradients of single samples
            gradients = single(values, x, y)
        rows = [gradients[name].flatten(1) for name in keys]
        scale = _scale(torch.stack([gradient.square().sum(1) for gradient in rows]).sum(0), clip)
        for gradient, view in zip(rows, views, strict=True):
            _add_rows(view, gradient, scale)

    return add


def _by_layers(
    network: Network, parameters: list[nn.Parameter], objective: Objective, visit: Visit, clip: float
) -> Adder | None:
    """Return the function of :func:`_by_samples` for linear layers and convolutions, with one backward pass; else None.

    A linear layer's gradient for sample i is δ_i·a_iᵀ with the norm ‖δ_i‖·‖a_i‖ (Goodfellow, arXiv 1510.01799), and is
    never stored. A convolution's gradients are products with the unfolded input.
    """
    known = {id(parameter): place for place, parameter in enumerate(parameters)}
    modules = network.module.modules()
    layers = [layer for layer in modules if any(id(p) in known for p in layer.parameters(recurse=False))]
    owned = [id(p) for layer in layers for p in layer.parameters(recurse=False)]
    fits = all(type(layer) is nn.Linear or (type(layer) is nn.Conv2d and _unfolds(layer)) for layer in layers)
    if not fits or sorted(owned) != sorted(known) or any(not p.requires_grad for p in parameters):
        return None

    def add(x: Tensor, y: Tensor, views: list[Tensor]) -> None:
        with _noted(layers) as seen:
            loss: Tensor = objective.loss(network.module, x, y, visit)[0]
        if len(seen) != len(layers):
            raise SettingError(
                "work.sample_clip: a pass calls a layer of the network several times. Use another network."
            )
        deltas = torch.autograd.grad(loss * len(x), [output for *_, output in seen])
        squares = loss.new_zeros(len(x))
        adding: list[Callable[[Tensor], None]] = []
        for (layer, a, _), delta in zip(seen, deltas, strict=True):
            weight = views[known[id(layer.weight)]]
            if delta.dim() == 2:
                squares += a.square().sum(1) * delta.square().sum(1)
                adding.append(partial(_add_outer, weight, a, delta))
                bias = delta
            else:
                rows, columns = _unfolded(layer, a, delta)
                whole = torch.bmm(rows, columns).flatten(1)
                squares += whole.square().sum(1)
                adding.append(partial(_add_rows, weight, whole))
                bias = rows.sum(2)
            if layer.bias is not None:
                squares += bias.square().sum(1)
                adding.append(partial(_add_rows, views[known[id(layer.bias)]], bias))
        scale = _scale(squares, clip)
        for add_scaled in adding:
            add_scaled(scale)

    return add


@contextmanager
def _noted(layers: Sequence[nn.Module]) -> Iterator[list[tuple[Any, Tensor, Tensor]]]:
    """Record each call of the layers, with its input and output."""
    seen: list[tuple[Any, Tensor, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append((layer, inputs[0].detach(), output))
        return output.clone()  # the next layer may change its input in place

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _unfolds(layer: nn.Conv2d) -> bool:
    return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _unfolded(layer: Any, a: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Return δ [rows, outputs, positions] and a [rows, positions, inputs], whose product is a sample's gradient."""
    if type(layer) is nn.Linear:
        return delta.flatten(1, -2).transpose(1, 2), a.flatten(1, -2)
    columns = unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return delta.flatten(2), columns.transpose(1, 2)


def _add_outer(view: Tensor, a: Tensor, delta: Tensor, scale: Tensor) -> None:
    scale, a, delta = _finite(scale, a, delta)
    view.addmm_((delta * scale[:, None]).t(), a)


def _add_rows(view: Tensor, rows: Tensor, scale: Tensor) -> None:
    scale, rows = _finite(scale, rows)
    view.add_((scale @ rows).view_as(view))


def _scale(squares: Tensor, clip: float) -> Tensor:
    """Return min(1, C/‖g_i‖) from the squared norms, [rows]; 0 for a gradient that is infinite or undefined."""
    scale = (clip / squares.sqrt().clamp(min=torch.finfo(squares.dtype).tiny)).clamp(max=1.0)
    return scale.masked_fill_(~squares.isfinite(), 0.0)


def _finite(scale: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """Return the scale and the samples' rows without those of the scale 0, as 0 · ∞ is undefined."""
    kept = scale > 0
    return (scale, *rows) if bool(kept.all()) else (scale[kept], *(row[kept] for row in rows))


def check(network: Network, work: Work) -> None:
    """Raise SettingError if a network or an objective has no gradients of single samples."""
    if work.objective not in SEPARATE:
        raise SettingError(
            f"work.sample_clip with objective '{work.objective}': its loss is not known to be a mean over samples, "
            f"whose gradients could be clipped one by one. Use one of: {', '.join(SEPARATE)}.",
            key="work.sample_clip",
        )
    mixing = next((type(layer).__name__ for layer in network.module.modules() if isinstance(layer, MIXING)), None)
    if mixing is not None:
        raise SettingError(
            f"work.sample_clip with a network that has {mixing}: it gives no gradients of single samples. Use one "
            "with group norm, convolutions or attention, such as cnn-sensor-gn, tcn or transformer.",
            key="work.sample_clip",
        )
