"""A validation split: some of every device's training samples held out, to choose settings by without the test data."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedfloor.chance import generator
from fedfloor.data.dataset import Dataset, Indices, Owners, Times, Values
from fedfloor.errors import SettingError, require

log = logging.getLogger(__name__)


def hold_out(dataset: Dataset, parts: Sequence[Indices], share: float, seed: int) -> tuple[Dataset, list[Indices]]:
    r"""Hold out m_k = min(n_k − 1, max(1, ⌊share·n_k⌉)) of the n_k training samples of every device k.

    So every device with two samples or more gives at least one, and none gives all it has. Which ones is drawn by
    (seed, device); where samples have times they are the device's last ones, and those that lie last in their
    recordings where these have no order or windows without times overlap. Where whole recordings are for testing, whole
    recordings are held out: the same formula with their number for n_k. Training windows that share rows with any
    held-out one are left out; a device all of whose windows would be gives none. The test data are not looked at.

    Args:
        dataset: whose samples they are.
        parts: for each device its training samples, int64 [n_k]; no sample twice.
        share: in (0, 1).
        seed: of the draw.

    Returns:
        A data set whose test samples are those held out, device by device, and for each device the samples it keeps,
        in their old order.

    Raises:
        SettingError: a share out of range, or no device that has a sample to give.

    >>> from fedfloor.data.made.labels import labels
    >>> data, kept = hold_out(labels(2, 20, seed=0), [np.arange(20), np.arange(20, 40)], 0.1, seed=0)
    >>> data.y_test.shape, [len(part) for part in kept]
    ((4,), [18, 18])
    """
    require(0 < share < 1, "evaluate.validation", share, "a share, above 0 and below 1, such as 0.1")
    held = _held(dataset, parts, share, seed)
    samples = np.concatenate(held)
    kept = [_apart(dataset, _rest(part, mine), samples) for part, mine in zip(parts, held, strict=True)]
    bare = [k for k, part in enumerate(kept) if len(parts[k]) and not len(part)]
    if bare:
        device = bare[0]
        raise SettingError(
            f"[evaluate] on = 'validation': all training windows of device {device} share rows with windows held out "
            "of other devices. Use fewer devices, or windows that overlap less: [data] window step."
        )
    owners = None if dataset.owner is None else dataset.owner[samples]
    take = _Held(dataset, tuple(held)).take
    first = None if dataset.first is None else dataset.first[samples]
    y, target = dataset.labels(samples), None if dataset.target is None else dataset.target[samples]
    made = replace(dataset, y_test=y, target_test=target, owner_test=owners, take_test=take, first_test=first)
    by = np.repeat(np.arange(len(held), dtype=np.int32), [len(part) for part in held])
    return replace(made, recording_test=None, held_by=by), kept


def hold_out_devices(
    dataset: Dataset, parts: Sequence[Indices], share: float, seed: int
) -> tuple[Dataset, NDArray[np.int64]]:
    """Hold out min(K − 1, max(1, ⌊share·K⌉)) of the K devices, drawn by the seed, with all their training samples.

    So the samples that choose are of devices that neither train nor test, as those are that the test data stand for.

    Args:
        dataset: whose samples they are.
        parts: for each device its training samples.
        share: in (0, 1).
        seed: of the draw.

    Returns:
        A data set whose test samples are those of the held-out devices, which own none of its training samples, and
        the numbers of the devices that train, ascending.

    Raises:
        SettingError: a share out of range.
    """
    require(0 < share < 1, "evaluate.validation", share, "a share, above 0 and below 1, such as 0.1")
    many = len(parts)
    count = min(many - 1, max(1, round(share * many)))
    chosen = np.sort(generator(seed, "validation devices").choice(many, count, replace=False))
    held = [parts[k] for k in chosen.tolist()]
    samples = np.concatenate(held)
    owners = None if dataset.owner is None else dataset.owner.copy()
    tested = None if owners is None else owners[samples]
    train = np.delete(np.arange(many), chosen)
    if owners is not None:
        owners[samples] = owners[parts[int(train[0])][0]]  # of none that tests: these samples train no device
    first = None if dataset.first is None else dataset.first[samples]
    take = _Held(dataset, tuple(held)).take
    log.info("validation: %d of %d devices are held out whole: they neither train nor test.", count, many)
    y, target = dataset.labels(samples), None if dataset.target is None else dataset.target[samples]
    made = replace(dataset, y_test=y, target_test=target, owner_test=tested, take_test=take, first_test=first)
    return replace(made, owner=owners, recording_test=None), train


def of_tests(dataset: Dataset, share: float, seed: int, *, whole_devices: bool) -> tuple[Dataset, Dataset]:
    """Hold out test samples, where training samples lie on other machines: nothing trains on either.

    Args:
        dataset: whose test samples they are.
        share: of each owner's test samples, see :func:`hold_out`; or of their owners, see :func:`hold_out_devices`.
        seed: of the draw.
        whole_devices: whether whole owners are held out, where there are two or more.

    Returns:
        The data set with the test samples that remain, and with those that were held out.

    Raises:
        SettingError: there are too few.
    """
    tests, owner = dataset.y_test, dataset.owner_test
    groups = [np.arange(len(tests))] if owner is None else [np.flatnonzero(owner == k) for k in np.unique(owner)]
    place = None if dataset.first_test is None else dataset.first_test.astype(np.float64)  # windows: each owner's last
    inside = replace(
        dataset, y=tests, target=dataset.target_test, owner=owner, first=dataset.first_test, made=None, rendered=False,
        time=place, through=None, run=None, take=lambda indices, device: dataset.take_test(indices),  # noqa: ARG005
    )  # fmt: skip
    if whole_devices and len(groups) > 1:
        held, stay = hold_out_devices(inside, groups, share, seed)
        kept = [groups[k] for k in stay.tolist()]
    else:
        held, kept = hold_out(inside, groups, share, seed)
    left = np.sort(np.concatenate(kept))
    remain = replace(
        dataset, y_test=tests[left], owner_test=None if owner is None else owner[left],
        target_test=None if dataset.target_test is None else dataset.target_test[left],
        first_test=None if dataset.first_test is None else dataset.first_test[left],
        recording_test=None if dataset.recording_test is None else dataset.recording_test[left],
        take_test=lambda indices: dataset.take_test(left[indices]),
    )  # fmt: skip
    chosen = replace(
        dataset, y_test=held.y_test, target_test=held.target_test, owner_test=held.owner_test,
        first_test=held.first_test, recording_test=None, take_test=held.take_test,
    )  # fmt: skip
    return remain, chosen


def _held(dataset: Dataset, parts: Sequence[Indices], share: float, seed: int) -> list[Indices]:
    """Return the samples that each device gives, none where it would have no other left that shares no row with them.

    Raises:
        SettingError: no device gives any.
    """
    place = dataset.time if dataset.through is None else dataset.through
    if dataset.run is None:
        held = [_last(part, share, place, generator(seed, "validation", k)) for k, part in enumerate(parts)]
    else:
        held = [_runs(part, dataset.run, share, generator(seed, "validation", k)) for k, part in enumerate(parts)]
    for k, part in enumerate(parts):
        if not len(_apart(dataset, _rest(part, held[k]), held[k])):
            held[k] = part[:0]
    if not any(len(mine) for mine in held):
        what = "two training samples" if dataset.first is None else "two training windows that share no row"
        if dataset.run is not None:
            what = "two recordings to train with (split = run keeps recordings whole)"
        why = "the threshold of alarms" if dataset.task.calibrates else "[evaluate] on = 'validation'"
        raise SettingError(f"{why}: no device has {what}, one to hold out. Use fewer devices.")
    return held


def _last(part: Indices, share: float, place: Times | None, rng: np.random.Generator) -> Indices:
    """Return the share of a device's samples that comes last, or a random one where none comes before another."""
    count = min(len(part) - 1, max(1, round(share * len(part))))
    order = rng.permutation(len(part)) if place is None else np.argsort(place[part], kind="stable")
    return part[np.sort(order[len(part) - count :])]


def _runs(part: Indices, run: Owners, share: float, rng: np.random.Generator) -> Indices:
    """Return the samples of a random share of a device's recordings, none where it has only one."""
    every = np.unique(run[part])
    if len(every) < 2:
        return part[:0]
    chosen = rng.choice(every, min(len(every) - 1, max(1, round(share * len(every)))), replace=False)
    return part[np.isin(run[part], chosen)]


def _rest(part: Indices, held: Indices) -> Indices:
    return part[~np.isin(part, held)]


def _apart(dataset: Dataset, part: Indices, held: Indices) -> Indices:
    """Return those of a device's samples that share no row with any held-out one."""
    if dataset.first is None:
        return part
    mine, theirs = dataset.first[part], np.sort(dataset.first[held])
    length = dataset.inputs.length or 1
    apart: Indices = part[
        np.searchsorted(theirs, mine - length, "right") == np.searchsorted(theirs, mine + length, "left")
    ]
    return apart


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
