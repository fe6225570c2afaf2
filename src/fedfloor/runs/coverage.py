"""Coverage: how many samples of each class a round trained on, and on how many devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedfloor.park.park import Park
from fedfloor.park.windows import Windows
from fedfloor.plan import schedule
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Outcome, Receipt


class Coverage:
    """Counts what a park's rounds train on; the windows it looks at are its own, so that the park's stay cached.

    A visit whose work counts epochs trains on every sample it holds, once per epoch. One whose work counts steps trains
    on steps · min(batch size, n) of the n samples it holds, which are spread over the classes as these n are: exact
    where mini-batches use all n equally often, the expectation otherwise. Lost visits train on nothing.

    Args:
        park: the devices.
    """

    def __init__(self, park: Park) -> None:
        self.park = park
        labels = park.dataset.labels
        self._windows = Windows(park.stream, park.seed, labels, park.indices, len(park.dataset.classes))

    def of(self, outcome: Outcome, visits: Mapping[int, int]) -> dict[str, list[float]]:
        """Return ``samples`` and ``devices``, F numbers each: those of each class that a round trained on.

        Args:
            outcome: the round's; visits at the cloud count as visits to every device.
            visits: device → how often it was trained in the run before the round.
        """
        classes, seen = len(self.park.dataset.classes), Counter(visits)
        samples = np.zeros(classes)
        covered: dict[int, NDArray[np.bool_]] = {}
        for train, receipt in zip(schedule.in_order(outcome.resolved), outcome.receipts, strict=True):
            if receipt.lost:
                continue
            devices = range(self.park.devices) if receipt.device < 0 else (receipt.device,)
            counts = self._counts(devices, receipt, seen[receipt.device])
            seen[receipt.device] += 1
            samples += counts.sum(axis=0) * _passes(train.work, int(counts.sum()))
            for device, row in zip(devices, counts > 0, strict=True):
                covered[device] = covered[device] | row if device in covered else row
        devices_of = np.sum(list(covered.values()), axis=0) if covered else np.zeros(classes)
        return {"samples": samples.round(3).tolist(), "devices": devices_of.astype(int).tolist()}

    def _counts(self, devices: Sequence[int], receipt: Receipt, visits: int) -> NDArray[np.int64]:
        """Return int64 [len(devices), F], the classes of what devices held at a visit, without any noise."""
        if self.park.stream.kind == "static":
            return self.park.counts_of(np.asarray(devices, np.int64))
        now = self._windows.at(devices, receipt.tick, [visits] * len(devices))
        return np.array([block.counts[position - block.first] for block, position in now], np.int64)


def _passes(work: Work, held: int) -> float:
    """Return how often a visit trains on each of the samples it holds."""
    if work.epochs is not None:
        return float(work.epochs)
    return (work.steps or 0) * min(work.batch_size, held) / held
