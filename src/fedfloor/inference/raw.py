"""A network with its normalisation: it takes numbers as they stand in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedfloor.errors import SettingError
from fedfloor.park.regimes import Regimes


class Raw(nn.Module):
    """A network that takes numbers as they stand in files: value = (scale·x − mean)/std, a hole is the mean.

    Args:
        network: takes values [n, …], gives logits [n, F].
        scale: factor from a stored number to its value.
        mean, std: [C], per channel.
        holes: whether numbers may be missing (NaN).
        dims: number of dimensions of a batch.
        temperature: T that logits are divided by before they become probabilities.
    """

    factor: Tensor
    shift: Tensor

    def __init__(
        self, network: nn.Module, scale: float, mean: Tensor, std: Tensor, *, holes: bool, dims: int,
        temperature: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        form = (1, -1, *(1,) * (dims - 2))
        self.network, self.holes, self.temperature = network, holes, temperature
        self.register_buffer("factor", (scale / std).view(form))  # one multiplication, one addition: as in training
        self.register_buffer("shift", (-mean / std).view(form))

    def values(self, x: Tensor) -> Tensor:
        """Return stored numbers [n, …] as the network takes them."""
        return x.to(self.factor.dtype) * self.factor + self.shift

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities [n, F] and logits [n, F] of stored numbers [n, …]."""
        values = self.values(x)
        if self.holes:
            values = torch.where(torch.isnan(values), 0.0, values)  # the mean, by now
        logits = self.network(values)
        return torch.softmax(logits if self.temperature == 1 else logits / self.temperature, 1), logits


class RegimeRaw(Raw):
    """A network whose rows are normalised by their operating regimes, as :class:`~fedfloor.park.regimes.Regimes` does.

    Args:
        raw: the network; its own scaling does nothing.
        regimes: the regimes.
        dims: number of dimensions of a batch.
    """

    places: Tensor
    centre: Tensor
    spread: Tensor
    centres: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(self, raw: Raw, regimes: Regimes, dims: int) -> None:
        clusters, kind = regimes.clusters, raw.factor.dtype
        middle, width = (torch.tensor(one.mean(axis=0), dtype=kind) for one in (regimes.mean, regimes.deviation))
        kept = {"holes": raw.holes, "temperature": raw.temperature}
        super().__init__(raw.network, 1.0, middle, width, dims=dims, **kept)  # type: ignore[arg-type]
        self.register_buffer("places", torch.tensor(clusters.columns))
        for name, values in (("centre", clusters.mean), ("spread", clusters.deviation), ("centres", clusters.centres),
                             ("means", regimes.mean), ("deviations", regimes.deviation)):  # fmt: skip
            self.register_buffer(name, torch.tensor(values, dtype=kind))

    def values(self, x: Tensor) -> Tensor:
        """Return stored numbers [n, C] or [n, C, L], each row normalised by its own regime."""
        form = (1, -1, *(1,) * (x.dim() - 2))
        s = (x.index_select(1, self.places) - self.centre.view(form)) / self.spread.view(form)
        s = torch.where(torch.isnan(s), 0.0, s)
        distances = []
        for centre in self.centres.unbind():
            distance = torch.zeros_like(s[:, 0])
            for i, value in enumerate(centre.unbind()):
                distance = distance + (s[:, i] - value) ** 2
            distances.append(distance)
        regime = torch.stack(distances).argmin(0)  # [n] or [n, L]
        mean, deviation = (one[regime].movedim(-1, 1) for one in (self.means, self.deviations))
        return (x - mean) / deviation


def by_regimes(raw: Raw, told: Mapping[str, Any], shape: tuple[int, ...], place: str) -> Raw:
    """Return a network with the regimes of a model's header.

    Raises:
        SettingError: the header's regimes are damaged.
    """
    try:
        regimes = Regimes.read(told, shape[0])
    except (KeyError, TypeError, ValueError) as error:
        raise SettingError(f"{place}: its regimes are damaged ({error}). Train it again.") from error
    return RegimeRaw(raw, regimes, len(shape) + 1)
