"""Kernels with closed-form gradients: automatic differentiation would process every pair and width again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Discrepancy(torch.autograd.Function):
    r"""The function n²·MMD²(a, b) = Σ k(aᵢ, aⱼ) + Σ k(bᵢ, bⱼ) − 2 Σ k(bᵢ, aⱼ), k(u, v) = Σ_s exp(−‖u − v‖²/(2s)).

    With the derivative by the squared distance, k′ = Σ_s −1/(2s)·exp(−‖u − v‖²/(2s)), the gradient is

        ∇_{bᵢ} = 4 Σ_j k′(bᵢ, bⱼ)(bᵢ − bⱼ) − 4 Σ_j k′(bᵢ, aⱼ)(bᵢ − aⱼ).

    The differences are not expanded into matrix products: equal samples would leave rounding errors, which narrow
    kernels enlarge 10⁶ times.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, widths: tuple[float, ...]) -> Tensor:
        """Return n²·MMD² [] of samples a [n, C], which get no gradient, and b [n, C]."""
        n = len(b)
        factors = torch.tensor([-0.5 / s for s in widths], dtype=b.dtype, device=b.device)
        apart = b.unsqueeze(1) - torch.cat([b, a])  # [n, 2n, C]
        kernels = _kernels(apart, factors)
        ctx.save_for_backward(apart, kernels, factors)
        sums = kernels.sum(0).view(n, 2, n).sum((0, 2))
        return _kernels(a.unsqueeze(1) - a, factors).sum() + sums[0] - 2 * sums[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[None, Tensor, None]:
        """Return the gradient by b, [n, C]."""
        apart, kernels, factors = ctx.saved_tensors
        n = len(apart)
        pull = torch.mv(kernels.t(), factors).view(n, 1, 2 * n).mul_(4 * slope)
        pull[:, :, n:].neg_()
        return None, torch.bmm(pull, apart).squeeze(1), None


def _kernels(apart: Tensor, factors: Tensor) -> Tensor:
    """Return exp(factor·‖difference‖²) for each factor and pair, [widths, pairs]."""
    return torch.outer(factors, apart.square().sum(2).flatten()).exp_()
