"""A network with its normalisation: it takes numbers as they stand in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedfloor.errors import SettingError
from fedfloor.park.survey import Regimes
from fedfloor.tasks.answer import Answer

Answers = Callable[[Tensor, Tensor], Answer]


class Raw(nn.Module):
    """A network that takes numbers as they stand in files: value = (scale·x − mean)/std, a hole is the mean.

    Args:
        network: takes values [n, …], gives outputs.
        answers: outputs and values → what they mean, as :meth:`~fedfloor.tasks.task.Task.answer`.
        scale: factor from a stored number to its value.
        mean, std: [C], per channel.
        holes: whether numbers may be missing (NaN).
        dims: number of dimensions of a batch.
    """

    factor: Tensor
    shift: Tensor

    def __init__(
        self, network: nn.Module, answers: Answers, scale: float, mean: Tensor, std: Tensor, *, holes: bool, dims: int
    ) -> None:
        super().__init__()
        form = (1, -1, *(1,) * (dims - 2))
        self.network, self.holes, self.answers = network, holes, answers
        self.register_buffer("factor", (scale / std).view(form))  # one multiplication, one addition: as in training
        self.register_buffer("shift", (-mean / std).view(form))

    def values(self, x: Tensor) -> Tensor:
        """Return stored numbers [n, …] as the network takes them."""
        return x.to(self.factor.dtype) * self.factor + self.shift

    def answer(self, x: Tensor) -> Answer:
        """Return the answer for stored numbers [n, …]."""
        values = self.values(x)
        if self.holes:
            values = torch.where(torch.isnan(values), 0.0, values)  # the mean, by now
        return self.answers(self.network(values), values)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of the answer for stored numbers [n, …]."""
        return tuple(self.answer(x).parts().values())


class RegimeRaw(Raw):
    """A network whose rows are normalised by their operating regimes, as :class:`~fedfloor.park.survey.Regimes` does.

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
        super().__init__(raw.network, raw.answers, 1.0, middle, width, holes=raw.holes, dims=dims)
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
        regimes = Regimes.from_dict(told, shape[0])
    except (KeyError, TypeError, ValueError) as error:
        raise SettingError(f"{place}: its regimes are damaged ({error}). Train it again.") from error
    return RegimeRaw(raw, regimes, len(shape) + 1)
