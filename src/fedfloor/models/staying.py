"""The part of a model that stays on devices: its file, which needs no PyTorch, and a network with it as an input."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedfloor.models.network import Network
from fedfloor.models.parcel import Parcel


@dataclass(frozen=True, eq=False)
class Staying:
    """The part of a network that each device keeps.

    Args:
        name: the part's name, as in :meth:`~fedfloor.models.network.Network.numbers`.
        run: the name by which machines know the run: parts of another run do not fit its shared part.
    """

    network: Network
    name: str
    run: str

    @cached_property
    def parcel(self) -> Parcel:
        """The parcel of the part's numbers in the model."""
        return self.network.parcel(self.name)

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shape of each of the part's tensors, by name, in the order of its numbers."""
        views = self.network.named(self.network.flat)
        return {
            name: views[name].shape
            for name, (first, end) in self.network.layout.items()
            if any(part.start <= first and end <= part.stop for part in self.parcel.parts)
        }

    @property
    def file(self) -> str:
        """The name of the part's file on a device, derived from the run and the names and shapes of its tensors."""
        shapes = [(name, tuple(shape)) for name, shape in self.shapes.items()]
        return f"own-{hashlib.sha256(repr((self.run, shapes)).encode()).hexdigest()[:32]}.npy"

    def content(self, numbers: Tensor) -> bytes:
        """Return the content of the file for a device's numbers, float32 [P]."""
        data = io.BytesIO()
        np.save(data, numbers.cpu().numpy().astype("<f4"), allow_pickle=False)
        return data.getvalue()

    def tensors(self, numbers: Tensor) -> dict[str, Tensor]:
        """Return numbers [P] as tensors by name, views shaped as in the module."""
        pieces = numbers.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: self.network.shaped(piece, shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    @contextmanager
    def held(self, numbers: Tensor) -> Iterator[None]:
        """Put a device's numbers [P] into the network inside this context."""
        before = self.parcel.cut(self.network.flat).clone()
        self.parcel.set(numbers, self.network.flat)
        try:
            yield
        finally:
            self.parcel.set(before, self.network.flat)


class TakesOwn(nn.Module):
    """A model with the staying part, float32 [P], as its last input.

    Args:
        inner: the model, which contains the network's module.
    """

    def __init__(self, inner: nn.Module, staying: Staying) -> None:
        super().__init__()
        self.inner = inner
        self.staying = staying
        self.prefix = next(name for name, part in inner.named_modules() if part is staying.network.module)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the inner model's outputs with the numbers of the last input in the network."""
        own = {f"{self.prefix}.{name}": tensor for name, tensor in self.staying.tensors(given[-1]).items()}
        outputs: tuple[Tensor, ...] = torch.func.functional_call(self.inner, own, given[:-1])
        return outputs
