"""A model of sums as a network of fixed size, which is sent, averaged, stored and exported like any other network."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedfloor.methods.exact.rows import Charted, Floats, Named, Shapes

SLACK = 1e-3  # of a count in the fixed-point numbers of a secure sum


class Summing(Protocol):
    """What a network reads of a model: see :class:`fedfloor.methods.exact.sums.ExactSums`."""

    @property
    def threshold(self) -> float | None: ...

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named: ...

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes: ...

    def implausible(self, total: Named, count: float, theta: Named) -> bool: ...

    def outputs(self, x: Tensor, theta: Mapping[str, Tensor]) -> Tensor: ...

    def charted(self, x: Tensor, sensors: tuple[str, ...], theta: Mapping[str, Tensor]) -> Charted | None: ...


class Summed(nn.Module):
    """The parameters θ of a model in double precision, and a device's sums.

    Args:
        model: the model.
        shape: the shape of a sample.
        outputs: the number of outputs per sample.

    Attributes:
        sums: after a visit the sums over a device's samples divided by their number, beginning with 1; otherwise 0.
        about: the number of outputs, and the shape of a sample.
        theta: the parameters by name.
    """

    residuals = True  # of a reconstruction: the outputs are residuals already

    def __init__(self, model: Summing, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.model = model
        self.set_by = type(model).__name__
        self.threshold = model.threshold
        self.shapes = model.shapes(shape, outputs)
        self.sums = nn.Parameter(torch.zeros(1 + sum(map(prod, self.shapes.values())), dtype=torch.float64))
        self.about = _fixed(np.array([outputs, *shape], np.float64))
        self.theta = nn.ParameterDict({name: _fixed(value) for name, value in model.parameters(shape, outputs).items()})

    def flaw(self, sums: Tensor) -> str:
        """Return the reason to refuse sums per sample, which count more samples than a device holds; or ""."""
        count = float(sums[0])
        return "" if -SLACK <= count <= 1 + SLACK else f"its sums count {count:.6g} times the samples that it holds."

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of samples float32 [n, *shape], [n, outputs]."""
        return self.model.outputs(x, self._like(x))

    def charted(self, x: Tensor, sensors: tuple[str, ...]) -> Charted | None:
        """Return the control charts of samples: see :mod:`fedfloor.engine.charted`; None for a model without limits."""
        return self.model.charted(x, sensors, self._like(x))

    def _like(self, x: Tensor) -> dict[str, Tensor]:
        return {name: value.to(x) for name, value in self.theta.items()}

    def implausible(self, numbers: Mapping[str, Floats]) -> str:
        """Return why a device's sums are refused, or "".

        Args:
            numbers: the tensors, flat, by name: the device's ``sums``, and those of the model that it received.
        """
        each, theta = learnt(self.model, numbers, 1.0)
        false = self.model.implausible(each, float(numbers["sums"][0]), theta)
        return "its sums are those of no samples, as they contradict each other." if false else ""


def learnt(model: Summing, numbers: Mapping[str, Floats], count: float) -> tuple[Named, Named]:
    """Return the sums over all samples, and the parameters, by name with their shapes.

    Args:
        numbers: the tensors of the aggregated network, flat, by name.
        count: the number of samples that the sums were divided by.
    """
    outputs, *shape = (int(number) for number in numbers["about"])
    shapes: Shapes = model.shapes(tuple(shape), outputs)
    ends = np.cumsum([1, *map(prod, shapes.values())])
    parts = np.split(numbers["sums"] * count, ends)[1:-1]
    total = {name: part.reshape(of) for (name, of), part in zip(shapes.items(), parts, strict=True)}
    first = model.parameters(tuple(shape), outputs)
    return total, {name: numbers[f"theta.{name}"].reshape(value.shape) for name, value in first.items()}


def _fixed(values: Floats) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64), requires_grad=False)
