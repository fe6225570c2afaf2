"""A device's samples as a network wants them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

CHUNK_BYTES = 4 << 20  # samples are turned into floats a few batches at a time: it stays in cache and bounds memory


class Samples:
    """A device's samples as the network wants them: bytes until a batch is needed.

    Args:
        x: uint8 [n, C, H, W], or float32 [n, C] or [n, C, L].
        y: targets: int64 [n], or float32 [n, T].
        mean, std: normalisation per channel, value = (scale·x − mean)/std; the samples lie on their device.
        scale: factor that turns a stored number into its value.
        channels_last: the network's memory format.
        missing: whether x may hold NaN, which stands for its channel's mean.
    """

    def __init__(
        self, x: np.ndarray, y: np.ndarray, mean: Tensor, std: Tensor, *, scale: float, channels_last: bool,
        missing: bool = False,
    ) -> None:  # fmt: skip
        data = torch.from_numpy(x).to(mean.device)
        self._channels_last, self._missing = channels_last and data.dim() == 4, missing
        self._x = data
        form = (1, -1, *(1,) * (data.dim() - 2))
        self._factor, self._mean, self._shift = scaling(mean, std, scale, form, data.is_floating_point())
        self.y = torch.from_numpy(y).to(mean.device)

    def __len__(self) -> int:
        return len(self.y)

    def values(self, rows: Tensor | slice) -> Tensor:
        """Return the chosen samples as floats [rows, C, …], never a view of what the device holds."""
        # choosing by an index tensor in brackets takes five to twenty times as long
        x = self._x[rows] if isinstance(rows, slice) else self._x.index_select(0, rows.to(self._x.device))
        # floats are not copied by .to(), and a slice of them is a view: changed in place they would be lost
        if self._channels_last and not x.is_floating_point():  # turned into floats and laid out anew in one go
            floats = torch.empty(x.shape, dtype=self._factor.dtype, device=x.device, memory_format=torch.channels_last)
            x = torch.mul(x, self._factor, out=floats)
        elif self._mean is not None:
            x = (x - self._mean).mul_(self._factor)
        elif x.dtype == self._factor.dtype:
            x = x * self._factor
        else:
            x = x.to(self._factor.dtype).mul_(self._factor)
        if self._shift is not None:
            x.add_(self._shift)
        if self._missing:
            x.masked_fill_(x.isnan(), 0.0)  # the mean, by now
        return x.contiguous(memory_format=torch.channels_last) if self._channels_last else x

    def stored(self) -> Tensor:
        """Return the samples as the device stores them, [n, C, …]."""
        return self._x

    def chunk(self, batch_size: int) -> int:
        """Return how many samples are turned into floats at a time: whole batches, about :data:`CHUNK_BYTES`."""
        sample = max(1, self._x[0].numel() * 4)
        return batch_size * max(1, CHUNK_BYTES // (sample * batch_size))


@lru_cache(maxsize=16)  # tensors are told apart by identity: an engine has one mean and one standard deviation
def scaling(
    mean: Tensor, std: Tensor, scale: float, form: tuple[int, ...], floats: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the factor, the mean that is taken off before it, and what is added after it; None: nothing.

    (scale·x − mean)/std: of bytes as one multiplication and one addition; of floats the mean goes first, as 1000.1 and
    1000.2 divided by 0.01 would lose what tells them apart.
    """
    factor = (scale / std).view(form)
    if not bool((mean != 0).any()):
        return factor, None, None
    return (factor, (mean / scale).view(form), None) if floats else (factor, None, (-mean / std).view(form))
