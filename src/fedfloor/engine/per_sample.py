"""Calls of an objective: what it computes once per sample is kept for a visit, and an error names the device."""

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


class PerSampleCache:
    """What an objective computes once per sample of a visit: in the first pass, kept for the others."""

    def __init__(self, objective: Objective, visit: Visit, samples: int, *, several: bool) -> None:
        self._objective, self._visit, self._samples, self._several = objective, visit, samples, several
        self._kept: dict[str, Tensor] = {}
        self.known = False

    def batches(
        self, rows: Tensor, x: Tensor, y: Tensor, size: int, key: Key
    ) -> Iterator[tuple[Tensor, Tensor, Visit]]:
        """Cut a chunk of samples into mini-batches (x, y, the visit with their rows of what is kept)."""
        values = self._of(rows, x, key)
        for low in range(0, len(rows), size):
            part = slice(low, low + size)
            about = (
                replace(self._visit, per_sample={name: one[part] for name, one in values.items()})
                if values
                else self._visit
            )
            yield x[part], y[part], about

    def _of(self, rows: Tensor, x: Tensor, key: Key) -> Mapping[str, Tensor]:
        if self.known and self._several:
            return {name: one[rows.to(one.device)] for name, one in self._kept.items()}
        with torch.no_grad():
            values = call_objective(lambda: self._objective.per_sample(x, self._visit), len(x), key)
        if self._several:
            for name, one in values.items():
                if name not in self._kept:
                    self._kept[name] = one.new_empty(self._samples, *one.shape[1:])
                self._kept[name][rows.to(one.device)] = one
        return values


def call_objective(call: Callable[[], T], batch: int, key: Key) -> T:
    """Call an objective; an error in it is the user's code's, and is raised with the name of the device."""
    try:
        return call()
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
