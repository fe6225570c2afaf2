"""The training of a model, as its run's folder records it: devices, rows, and the mix of classes or ranges."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, SettingError
from fedfloor.base.names import some
from fedfloor.data.files.npz import read_arrays
from fedfloor.inference.samples import FileSamples
from fedfloor.park.recorded import FILE, PARTS, parts_of
from fedfloor.park.summaries import FILE as SENSORS
from fedfloor.park.summaries import Summaries

APART = 0.2  # distance of two mixes that exceeds chance
NAMED = 5  # devices, or classes, in a message
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Training:
    """The training of a model.

    Args:
        folder: the run's folder; each of its files may be missing.
    """

    folder: Path

    @cached_property
    def _park(self) -> dict[str, Any]:
        try:
            park = json.loads(regular.read_text(self.folder / "park.json"))
            return {"classes": park["classes"], "devices": park["devices"], "listed": "of_devices" not in park}
        except (OSError, SettingError, *MALFORMED):
            return {}

    @cached_property
    def devices(self) -> frozenset[str]:
        """The names of the devices that trained; empty if they have none, or not all are listed."""
        try:
            names = [device.get("name") for device in self._park.get("devices", ())]
        except (TypeError, AttributeError):
            return frozenset()
        named = self._park.get("listed") and all(isinstance(name, str) for name in names)
        return frozenset(names) if named else frozenset()

    def knows(self, device: str) -> bool | None:
        """Return whether a device trained; None if it has no name, or the names of the run's devices are unknown."""
        return device in self.devices if self.devices and device else None

    def shares(self, classes: tuple[str, ...]) -> Floats | None:
        """Return the share of each class, or range of the target, in the training samples; None if it is unknown."""
        try:
            if self._park["classes"] != list(classes):
                return None
            total = np.sum([device["counts"] for device in self._park["devices"]], axis=0, dtype=np.float64)
        except MALFORMED:
            return None
        return total / total.sum() if total.shape == (len(classes),) and total.sum() > 0 else None

    @cached_property
    def rows(self) -> dict[str, NDArray[np.uint32]]:
        """The hashes of the run's rows by part, as of :func:`~fedfloor.park.recorded.record`; empty if unrecorded.

        Raises:
            SettingError: the file is damaged.
        """
        path = self.folder / FILE
        if not path.is_file():
            return {}
        try:
            arrays = read_arrays(path, lambda names: [name for name in names if name in PARTS])
            if not all(array.ndim == 1 and array.dtype == np.uint32 for array in arrays.values()):
                raise SettingError("its arrays are no hashes")
        except SettingError as error:
            raise SettingError(
                f"{path} is damaged ({error}). Delete it: samples are then not recognised as those of training.",
                key="damaged-training",
            ) from error
        return arrays

    @cached_property
    def sensors(self) -> Summaries | None:
        """The summaries of the run's devices; None if they are not recorded.

        Raises:
            SettingError: the file is damaged.
        """
        path = self.folder / SENSORS
        if not path.is_file():
            return None
        try:
            return Summaries.from_dict(json.loads(regular.read_text(path)))
        except MALFORMED as error:
            raise SettingError(
                f"{path} is damaged ({error}). Delete it: files are then not compared with the devices of training.",
                key="damaged-training",
            ) from error

    def mark(self, samples: FileSamples) -> FileSamples:
        """Return samples as stored in a file with the part of the run to which each belongs, if that is recorded."""
        return replace(samples, parts=parts_of(samples.x, self.rows)) if self.rows else samples

    def strangers(self, names: list[str]) -> list[str]:
        """Return a sentence on the devices among ``names`` that did not train, if any."""
        strange = [f"'{name}'" for name in dict.fromkeys(names) if self.knows(name) is False]
        if not strange:
            return []
        which = f"device {strange[0]} was" if len(strange) == 1 else f"devices {some(strange, NAMED)} were"
        return [
            f"{which} not in training (its devices: {some(sorted(self.devices), NAMED)}). The model's measured quality "
            "holds for machines like those of its test; check its answers with labelled rows of this machine first."
        ]

    def odd_mix(self, counts: NDArray[np.int64], classes: tuple[str, ...], *, ends: bool = False) -> list[str]:
        """Return a warning if ½ Σ_c |p_c − q_c| of predictions and training exceeds 0.2 + ½ √(F/n); otherwise none.

        The last term is the distance by chance for n samples of F classes. All classes whose shares differ by more than
        a tenth are named, the largest differences first. Predicted numbers are nearer to their mean than true ones, so
        that of ranges (``ends``) only Σ_c max(0, p_c − q_c) of the first and the last counts.
        """
        trained = self.shares(classes)
        total = int(counts.sum())
        if trained is None or not total:
            return []
        here = counts / total
        apart = np.abs(here - trained)
        if ends:
            apart[1:-1] = 0.0
            apart[here < trained] = 0.0
        if apart.sum() / (1 if ends else 2) <= APART + math.sqrt(len(here) / total) / 2:
            return []
        worst = [c for c in np.argsort(-apart, kind="stable").tolist() if apart[c] > APART / 2][:NAMED]
        listed = "; ".join(f"{here[c]:.1%} '{classes[c]}', {trained[c]:.1%} in training" for c in worst)
        return [
            f"the mix of the predictions differs from training: {listed}. The model's measured quality applies to a "
            "mix like that of its test samples."
        ]
