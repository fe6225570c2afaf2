"""A validation split: some of every device's training samples held out, to choose settings by without the test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from fedfloor.chance import generator
from fedfloor.data.dataset import Dataset, Indices, Values
from fedfloor.errors import SettingError, require


def hold_out(dataset: Dataset, parts: Sequence[Indices], share: float, seed: int) -> tuple[Dataset, list[Indices]]:
    r"""Hold out m_k = min(n_k − 1, max(1, ⌊share·n_k⌉)) of the n_k training samples of every device k.

    So every device with two samples or more gives at least one, and none gives all it has. Which ones is drawn by
    (seed, device); where samples have times they are the device's last ones, and training windows that share rows with
    them are left out. The test data are not looked at.

    Args:
        dataset: whose samples they are.
        parts: for each device its training samples, int64 [n_k]; no sample twice.
        share: in (0, 1).
        seed: of the draw.

    Returns:
        A data set whose test samples are those held out, device by device, and for each device the samples it keeps,
        in their old order.

    Raises:
        SettingError: a share out of range, or no device with two samples.

    >>> from fedfloor.data.labels import labels
    >>> data, kept = hold_out(labels(2, 20, seed=0), [np.arange(20), np.arange(20, 40)], 0.1, seed=0)
    >>> data.y_test.shape, [len(part) for part in kept]
    ((4,), [18, 18])
    """
    require(0 < share < 1, "evaluate.validation", share, "a share, above 0 and below 1, such as 0.1")
    held, kept = [], []
    for device, part in enumerate(parts):
        count, rng = _number(len(part), share), generator(seed, "validation", device)
        order = rng.permutation(len(part)) if dataset.time is None else np.argsort(dataset.time[part], kind="stable")
        cut = len(part) - count
        held.append(part[np.sort(order[cut:])])
        kept.append(part[np.sort(order[: max(1, cut - _overlap(dataset))])])
    samples = np.concatenate(held)
    if not len(samples):
        raise SettingError(
            "[evaluate] on = 'validation': no device has two training samples, one to hold out. Use fewer devices."
        )
    owners = None if dataset.owner is None else dataset.owner[samples]
    take = _Held(dataset, tuple(held)).take
    return replace(dataset, y_test=dataset.y[samples], owner_test=owners, take_test=take), kept


def _number(size: int, share: float) -> int:
    return min(size - 1, max(1, round(share * size)))


def _overlap(dataset: Dataset) -> int:
    """Return how many windows in the order of time share rows with the one after them: they are left out in between."""
    inputs = dataset.inputs
    if dataset.time is None or inputs.length is None or inputs.step is None:
        return 0
    return -(-inputs.length // inputs.step) - 1


class _Held:
    """Samples held out of the devices' training data, numbered device by device.

    Args:
        dataset: whose training samples they are.
        parts: for each device those held out.
    """

    def __init__(self, dataset: Dataset, parts: tuple[Indices, ...]) -> None:
        sizes = [len(part) for part in parts]
        self._dataset = dataset
        self._samples = np.concatenate(parts)
        self._device = np.repeat(np.arange(len(parts)), sizes)
        self._first = np.cumsum([0, *sizes])

        @cache
        def rendered(device: int) -> Values:  # asked for in every evaluation: made once, then kept
            return dataset.take(parts[device], device)

        self._rendered = rendered

    def take(self, indices: Indices) -> Values:
        """Return the held-out samples of the given numbers, each as its own device sees it."""
        if not len(indices):
            return self._dataset.take(indices, 0)
        devices = self._device[indices]
        order = np.argsort(devices, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(devices[order])) + 1)
        taken = np.concatenate([self._of_device(int(devices[group[0]]), indices[group]) for group in groups])
        x = np.empty_like(taken)
        x[order] = taken
        return x

    def _of_device(self, device: int, indices: Indices) -> Values:
        if self._dataset.rendered:
            x: Values = self._rendered(device)[indices - self._first[device]]
            return x
        return self._dataset.take(self._samples[indices], device)
