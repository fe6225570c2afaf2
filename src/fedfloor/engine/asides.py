"""What an objective is asked: what it says aside of samples, and the error that names the device if it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from fedfloor.errors import FedfloorError, RunError
from fedfloor.parts.objective import Objective, Visit

if TYPE_CHECKING:
    from fedfloor.plan.schedule import Key

T = TypeVar("T")


class Asides:
    """What an objective says aside of each sample: worked out in a visit's first pass, kept for the others."""

    def __init__(self, objective: Objective, visit: Visit, samples: int, *, several: bool) -> None:
        self._objective, self._visit, self._samples, self._several = objective, visit, samples, several
        self._kept: dict[str, Tensor] = {}
        self.known = False

    def batches(
        self, rows: Tensor, x: Tensor, y: Tensor, size: int, key: Key
    ) -> Iterator[tuple[Tensor, Tensor, Visit]]:
        """Cut a chunk of samples into mini-batches (x, y, what their visit says)."""
        said = self._of(rows, x, key)
        for low in range(0, len(rows), size):
            part = slice(low, low + size)
            about = replace(self._visit, aside={name: one[part] for name, one in said.items()}) if said else self._visit
            yield x[part], y[part], about

    def _of(self, rows: Tensor, x: Tensor, key: Key) -> Mapping[str, Tensor]:
        if self.known and self._several:
            return {name: one[rows.to(one.device)] for name, one in self._kept.items()}
        with torch.no_grad():
            said = told(lambda: self._objective.aside(x, self._visit), len(x), key)
        if self._several:
            for name, one in said.items():
                if name not in self._kept:
                    self._kept[name] = one.new_empty(self._samples, *one.shape[1:])
                self._kept[name][rows.to(one.device)] = one
        return said


def told(ask: Callable[[], T], batch: int, key: Key) -> T:
    """Ask an objective; what fails there is the user's code, and the error names the device."""
    try:
        return ask()
    except FedfloorError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".removesuffix(".")
        if "more than 1 value per channel" in said:
            said += (
                f". Batch norm cannot be trained on a mini-batch of {batch}: choose a work.batch_size that leaves no "
                "last mini-batch of one sample"
            )
        raise RunError(f"training failed on {key.where} in round {key.round}: {said}.") from error
