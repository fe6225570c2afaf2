"""A mini-batch's gradients: those of torch.autograd.grad, to the bit, with its errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfloor import models
from fedfloor.engine.steps import gradients


def of(model: str, reduction: str) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    net = models.plain(model, (1, 28, 28), 10)
    x, y = torch.randn(7, 1, 28, 28), torch.arange(7)
    return cross_entropy(net(x), y, reduction=reduction), list(net.parameters())


@pytest.mark.parametrize("model", ["mlp-2nn", "cnn-tutorial"])
def test_the_same_bits(model: str) -> None:
    ours = gradients(*of(model, "mean"))
    theirs = torch.autograd.grad(*of(model, "mean"))
    assert len(ours) == len(theirs) > 3
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_weighted_losses() -> None:
    share = torch.linspace(0.0, 1.0, 7)
    ours = gradients(*of("mlp-2nn", "none"), share)
    theirs = torch.autograd.grad(*of("mlp-2nn", "none"), grad_outputs=share)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_what_has_no_gradient_is_refused() -> None:
    losses, parameters = of("mlp-2nn", "none")
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        gradients(losses, parameters)
    loss, parameters = of("mlp-2nn", "mean")
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        gradients(loss, [*parameters, torch.zeros(3, requires_grad=True)])


def test_a_tensor_of_the_users_own_kind_keeps_its_gradients() -> None:
    class Own(Tensor):
        pass

    w = torch.tensor([2.0, 3.0], requires_grad=True)
    (found,) = gradients((w * w).sum().as_subclass(Own), [w])
    assert torch.equal(found, torch.tensor([4.0, 6.0]))
