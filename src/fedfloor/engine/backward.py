"""Gradients of a mini-batch's loss.

``torch.autograd.grad`` looks at everything it is given from Python before it calls PyTorch's engine, which takes a
tenth of a small network's step. Here the engine is called straight away where nothing is left to look at.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gradients(loss: Tensor, parameters: Sequence[Tensor], grad: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return ∂loss/∂p of each parameter p, shaped like it, to the bit as ``torch.autograd.grad``.

    Args:
        loss: a scalar; or any tensor, with ``grad``.
        parameters: every one of them has a part in the loss.
        grad: ∂(what is minimised)/∂loss, shaped like the loss. Default: 1.

    Raises:
        RuntimeError: the loss is no scalar and ``grad`` is missing, or a parameter has no part in it.

    >>> w = torch.tensor([3.0, 1.0], requires_grad=True)
    >>> gradients((w * w).sum(), [w])
    (tensor([6., 2.]),)
    """
    if type(loss) is not Tensor or (grad is None and loss.dim()):  # a subclass may have gradients of its own
        return torch.autograd.grad(loss, parameters, grad_outputs=grad)
    seed = torch.ones_like(loss) if grad is None else grad
    run = torch.autograd.Variable._execution_engine.run_backward
    return run((loss,), (seed,), False, False, tuple(parameters), False, accumulate_grad=False)
