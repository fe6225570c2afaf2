"""The normalisation of a trained model: in its network, by regimes, or by the statistics of each device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfloor.base.errors import MALFORMED, SettingError
from fedfloor.inference.samples import FileSamples, within
from fedfloor.park.normalise import read_statistics, scaled, statistics
from fedfloor.park.statistics import Statistics, first_rows
from fedfloor.park.survey import Regimes
from fedfloor.tasks.answer import Answer

log = logging.getLogger(__name__)

Answers = Callable[[Tensor, Tensor], Answer]


class RawNetwork(nn.Module):
    """A network for numbers as stored in files: value = (scale·x − mean)/std, with the mean for missing numbers unless
    the network reads them.

    Args:
        network: values [n, …] → outputs.
        answers: (outputs, stored numbers) → answer, such as :meth:`~fedfloor.tasks.task.Task.answer`.
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
        self.network = network
        self.holes = holes
        self.answers = answers
        self.register_buffer("factor", (scale / std).view(form))  # one multiplication, one addition: as in training
        self.register_buffer("shift", (-mean / std).view(form))

    def values(self, x: Tensor) -> Tensor:
        """Return the network's input values for stored numbers [n, …]."""
        return x.to(self.factor.dtype) * self.factor + self.shift

    def answer(self, x: Tensor) -> Answer:
        """Return the answer for stored numbers [n, …]."""
        values = self.values(x)
        if self.holes and not getattr(self.network, "reads_missing", False):
            values = torch.where(torch.isnan(values), 0.0, values)  # 0 is the mean after normalisation
        return self.answers(self.network(values), x.to(self.factor.dtype))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of the answer for stored numbers [n, …]."""
        return tuple(self.answer(x).parts().values())


class RegimeRawNetwork(RawNetwork):
    """A network with rows normalised by their operating regimes, as in :class:`~fedfloor.park.survey.Regimes`.

    Args:
        raw: the network, without scaling of its own.
    """

    places: Tensor
    centre: Tensor
    spread: Tensor
    centres: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(self, raw: RawNetwork, regimes: Regimes, dims: int) -> None:
        clusters = regimes.clusters
        kind = raw.factor.dtype
        middle, width = (torch.tensor(rows.mean(axis=0), dtype=kind) for rows in (regimes.mean, regimes.deviation))
        super().__init__(raw.network, raw.answers, 1.0, middle, width, holes=raw.holes, dims=dims)
        self.register_buffer("places", torch.tensor(clusters.columns))
        for name, values in (("centre", clusters.mean), ("spread", clusters.deviation), ("centres", clusters.centres),
                             ("means", regimes.mean), ("deviations", regimes.deviation)):  # fmt: skip
            self.register_buffer(name, torch.tensor(values, dtype=kind))

    def values(self, x: Tensor) -> Tensor:
        """Return stored numbers [n, C] or [n, C, L] with each row normalised by its regime."""
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
        mean, deviation = (rows[regime].movedim(-1, 1) for rows in (self.means, self.deviations))
        return (x - mean) / deviation


def by_regimes(raw: RawNetwork, document: Mapping[str, Any], shape: tuple[int, ...], place: str) -> RawNetwork:
    """Return a network with the regimes in a model's header.

    Raises:
        SettingError: the header's regimes are damaged.
    """
    try:
        regimes = Regimes.from_dict(document, shape[0])
    except MALFORMED as error:
        raise SettingError(
            f"{place}: its regimes are damaged ({error}). Train it again.", key="damaged-model"
        ) from error
    return RegimeRawNetwork(raw, regimes, len(shape) + 1)


@dataclass(frozen=True, eq=False)
class OwnScale:
    """The normalisation of samples by their device.

    Args:
        rows: the number of a device's first rows to use for its statistics; None for all.
        known: the statistics of the run's devices by name.
        fixed: the statistics of the last channels, if they are the same for all devices.
    """

    rows: int | None
    known: Mapping[str, Statistics]
    fixed: Statistics | None = None

    @classmethod
    def read(cls, rows: int | None, folder: Path, channels: int, fixed: Statistics | None = None) -> OwnScale:
        """Return the normalisation with the statistics in the model's folder, if present.

        Raises:
            SettingError: the file is damaged or belongs to another model.
        """
        return cls(rows, read_statistics(folder, channels), fixed)

    def file(self, samples: FileSamples) -> FileSamples:
        """Return the samples of a file, normalised by their devices' statistics in the run or by rows of the file."""
        names = np.array(samples.devices or [""] * len(samples.x))
        x = np.array(samples.x, np.float32)
        others = list[str]()
        for name in np.unique(names).tolist():
            mine = np.flatnonzero(names == name)
            if name not in self.known:
                others.append(name)
            first = None if samples.first is None else samples.first[mine]
            x[mine] = self.of_device(samples.x[mine], name, first)
        if others:
            self._note(samples, names, others)
        return replace(samples, x=x, stored=samples.x)

    def of_device(self, x: NDArray[Any], name: str = "", first: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """Return samples [n, C, …] of a device, normalised by its statistics in the run, or by its first rows."""
        known = self.known.get(name)
        return scaled(x, *(known if known is not None else statistics(x, first, self.rows, self.fixed)))

    def _note(self, samples: FileSamples, names: NDArray[Any], others: Sequence[str]) -> None:
        """Log the rows by which devices outside the run are normalised."""
        whose = ", ".join(f"device '{name}'" if name else "a device without a name" for name in others)
        many = "all of its rows" if self.rows is None else f"its first {self.rows} rows"
        log.info("%s: %s: no statistics in the run, therefore normalised by %s in this file.",
                 within(samples.file), whose, many)  # fmt: skip
        for name in others if self.rows is not None else ():
            mine = names == name
            got = len(first_rows(samples.x[mine], None if samples.first is None else samples.first[mine], self.rows))
            if got < (self.rows or 0):
                whose = f"device '{name}'" if name else "the device"
                log.warning("%s: %s has %d rows for its normalisation; in training, devices were normalised by %d.",
                            within(samples.file), whose, got, self.rows)  # fmt: skip


class AtDevice(nn.Module):
    """A model with a device's statistics as inputs: raw((x − mean)/std)."""

    def __init__(self, raw: nn.Module) -> None:
        super().__init__()
        self.raw = raw

    def forward(self, x: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities and logits [n, F] for x [n, C, …], with mean and std [C]."""
        form = (1, -1, *(1,) * (x.dim() - 2))
        outputs: tuple[Tensor, Tensor] = self.raw((x - mean.view(form)) / std.view(form))
        return outputs
