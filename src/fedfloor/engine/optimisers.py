"""A device's optimiser on a flat vector: SGD, Adam or AdamW, with or without the clipping of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from fedfloor.errors import SettingError
from fedfloor.plan.nodes import Work

Step = Callable[[tuple[Tensor, ...], Tensor | None], None]
Shaped = Callable[[Tensor], list[Tensor]]
Moment = Callable[[str, Tensor], Tensor]  # its name, and how it begins → the moment, which steps change in place
PREFIX = "optimizer."  # of the moments' names among what a device keeps
TINY = 1e-6  # added to the norm that a gradient is divided by, as in torch.nn.utils.clip_grad_norm_


def taken(memory: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take the moments of optimisers out of what a device keeps.

    >>> memory = {"c": torch.zeros(2), "optimizer.sgd.0.velocity": torch.ones(2)}
    >>> list(taken(memory)), list(memory)
    (['optimizer.sgd.0.velocity'], ['c'])
    """
    return {name: memory.pop(name) for name in list(memory) if name.startswith(PREFIX)}


def stepper(flat: Tensor, shaped: Shaped, work: Work, kept: dict[str, Tensor] | None = None, first: int = 0) -> Step:
    """Return the function that takes one optimiser step from a tuple of gradients and a flat one, or None.

    With g the gradient, divided by max(1, ‖g‖/c) where it is clipped to the norm c, and η the rate:

        sgd    v ← βv + g + λw,  w ← w − ηv
        adam   g ← g + λw,  m ← β₁m + (1 − β₁)g,  s ← β₂s + (1 − β₂)g²,  w ← w − η·m̂/(√ŝ + ε)
        adamw  the same without λw in g, after w ← (1 − ηλ)w

    with m̂ = m/(1 − β₁ᵗ) and ŝ = s/(1 − β₂ᵗ) in step t. The steps of Adam and AdamW are PyTorch's own (``fused=True``).

    Args:
        flat: what is trained, changed in place.
        shaped: cuts a vector like ``flat`` into views shaped like the parameters.
        work: optimiser, rate η, momentum β, β₁, β₂, ε, weight decay λ, clip_norm c.
        kept: the device's moments by name, changed in place; those of this work are added. They are neither read nor
            written where the work makes moments anew in every visit.
        first: where in the model ``flat`` begins: the moments of each of its parts are kept.

    Raises:
        SettingError: kept moments belong to another model.
    """
    stored = {} if kept is None or work.moments == "visit" else kept

    def moment(name: str, start: Tensor) -> Tensor:
        found = stored.setdefault(f"{PREFIX}{work.optimizer}.{first}.{name}", start)
        if found.shape != start.shape:
            raise SettingError(
                f"a device memory from another model: the optimiser's '{name}' has {found.numel()} numbers, this model "
                f"trains {start.numel()}. Begin the run again with another --out."
            )
        return found

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


def clip(whole: Tensor, parts: Iterable[Tensor], norm: float) -> None:
    """Scale a gradient, in place, to a norm of at most ``norm``, as ``torch.nn.utils.clip_grad_norm_`` does.

    Args:
        whole: the gradient.
        parts: views of it, one per parameter.
        norm: above 0.

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
    """Return the function that takes a step of Adam or AdamW along a gradient [part]."""
    mean, square = (moment(name, torch.zeros_like(flat)) for name in ("mean", "square"))
    steps = moment("steps", torch.zeros((), dtype=torch.float32, device=flat.device))  # as torch.optim counts
    run = torch._fused_adamw_ if work.optimizer == "adamw" else torch._fused_adam_

    def step() -> None:
        steps.add_(1)
        run(
            [flat], [gradient], [mean], [square], [], [steps], lr=work.rate, beta1=work.beta1, beta2=work.beta2,
            weight_decay=work.weight_decay, eps=work.eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    return step
