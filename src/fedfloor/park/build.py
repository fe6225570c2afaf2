"""Construction of a park from a data set: partition, assignment of devices to factories, validation samples."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError, require
from fedfloor.base.machine import require_memory
from fedfloor.data.dataset import Dataset, Indices, Owners, Times, Values
from fedfloor.data.sources import load
from fedfloor.data.split import by_class
from fedfloor.park.augment import Augmented, pictures_only
from fedfloor.park.local import LocalSets, owner_of
from fedfloor.park.park import Park
from fedfloor.park.partition import Assignment, Mobility, Natural, Partition, assign, no_owners
from fedfloor.park.stream import Static, Stream

log = logging.getLogger(__name__)
ON = "[evaluate] on = 'validation'"


def hold_out(dataset: Dataset, parts: Sequence[Indices], share: float, seed: int) -> tuple[Dataset, list[Indices]]:
    """Hold out m_k = min(n_k − 1, max(1, ⌊share·n_k⌉)) of the n_k training samples of every device k.

    Every device with two samples or more thus holds out at least one, and none holds out all. They are drawn by
    (seed, device). Of samples with times they are the device's last ones; without an order of recordings, or for
    overlapping windows without times, they are the last ones of each recording. If whole recordings are for testing,
    whole recordings are held out, by the same formula with their number for n_k, or by class as these are. Training
    windows that share rows with a held-out one are left out; a device that would lose all its windows holds out none.
    The test data are not used.

    Args:
        parts: the training samples of each device, int64 [n_k], without duplicates.
        share: the share, in (0, 1).

    Returns:
        A data set with the held-out samples as test samples, device by device, and the remaining samples of each
        device in their original order.

    Raises:
        SettingError: the share is out of range, or no device can hold out a sample.

    >>> from fedfloor.data.made.labels import labels
    >>> data, kept = hold_out(labels(2, 20, seed=0), [np.arange(20), np.arange(20, 40)], 0.1, seed=0)
    >>> data.y_test.shape, [len(part) for part in kept]
    ((4,), [18, 18])
    """
    require(0 < share < 1, "evaluate.validation", share, "a share, above 0 and below 1, such as 0.1")
    held_out = _choose_held_out(dataset, parts, share, seed, "validation")
    if not any(len(mine) for mine in held_out):
        lacking = "two training samples" if dataset.first is None else "two training windows without common rows"
        if dataset.run is not None:
            lacking = "two recordings to train with (split = run keeps recordings whole)"
        detects = dataset.task.detects
        why = "the threshold of alarms" if detects else "data.task.coverage" if dataset.task.calibrates else ON
        raise SettingError(f"{why}: no device has {lacking}, of which one is held out. Use fewer devices.")
    return _parted(dataset, parts, held_out, ON)


def hold_out_recent(
    dataset: Dataset, parts: Sequence[Indices], share: float, seed: int
) -> tuple[Dataset | None, Sequence[Indices]]:
    """Hold out samples of every device as :func:`hold_out` does, for evaluations of models before a release.

    Returns:
        A data set with these as test samples, None if no device can hold out any, and the samples that devices keep.
    """
    held_out = _choose_held_out(dataset, parts, share, seed, "recent")
    return (
        _parted(dataset, parts, held_out, "[evaluate] recent") if any(len(mine) for mine in held_out) else (None, parts)
    )


def _parted(
    dataset: Dataset, parts: Sequence[Indices], held_out: list[Indices], key: str
) -> tuple[Dataset, list[Indices]]:  # fmt: skip
    """Return a data set with the held-out samples as test samples, and the samples that each device keeps."""
    samples = np.concatenate(held_out)
    kept = [_apart(dataset, _rest(part, mine), samples) for part, mine in zip(parts, held_out, strict=True)]
    bare = [k for k, part in enumerate(kept) if len(parts[k]) and not len(part)]
    if bare:
        raise SettingError(
            f"{key}: all training windows of device {bare[0]} share rows with held-out windows of other "
            "devices. Use fewer devices, or windows that overlap less: [data] window step."
        )
    by = np.repeat(np.arange(len(held_out), dtype=np.int32), [len(part) for part in held_out])
    return replace(_with_tests(dataset, held_out), held_by=by), kept


def hold_out_devices(
    dataset: Dataset, parts: Sequence[Indices], share: float, seed: int
) -> tuple[Dataset, NDArray[np.int64]]:
    """Hold out min(K − 1, max(1, ⌊share·K⌉)) of the K devices, drawn by the seed, with all their training samples.

    Settings are then chosen on devices that neither train nor test. Where devices for testing are drawn by class, these
    are, too, if a class has several. Return a data set with the held-out devices'
    samples as test samples, and the numbers of the training devices in ascending order.

    Raises:
        SettingError: the share is out of range.
    """
    require(0 < share < 1, "evaluate.validation", share, "a share, above 0 and below 1, such as 0.1")
    many = len(parts)
    count = min(many - 1, max(1, round(share * many)))
    chosen = np.sort(generator(seed, "validation devices").choice(many, count, replace=False))
    if dataset.by_class:
        whose, drawn = _by_class(dataset, parts, None, share, generator(seed, "validation devices by class"))
        chosen = np.unique(whose[drawn]) if drawn.any() else chosen
        count = len(chosen)
    held_out = [parts[k] for k in chosen.tolist()]
    train = np.delete(np.arange(many), chosen)
    owners = None if dataset.owner is None else dataset.owner.copy()
    if owners is not None:  # the owner of held-out samples neither trains nor tests
        owners[np.concatenate(held_out)] = owners[parts[int(train[0])][0]]
    log.info("validation: %d of %d devices are held out and neither train nor test.", count, many)
    unit = np.repeat(chosen, [len(part) for part in held_out]).astype(np.int32)
    return replace(_with_tests(dataset, held_out), owner=owners, unit_test=unit), train


def of_tests(dataset: Dataset, share: float, seed: int, *, whole_devices: bool) -> tuple[Dataset, Dataset]:
    """Hold out test samples for validation if training samples are on other machines.

    Args:
        share: the share of each owner's test samples, see :func:`hold_out`; or of their owners, see
            :func:`hold_out_devices`.
        whole_devices: whether whole owners are held out if there are two or more.

    Returns:
        The data set with the remaining test samples, and with the held-out ones.

    Raises:
        SettingError: there are too few test samples.
    """
    tests = dataset.y_test
    owner = dataset.owner_test
    groups = [np.arange(len(tests))] if owner is None else [np.flatnonzero(owner == k) for k in np.unique(owner)]
    place = None if dataset.first_test is None else dataset.first_test.astype(np.float64)  # the last windows
    inside = replace(
        dataset, y=tests, target=dataset.target_test, owner=owner, first=dataset.first_test, made=None, rendered=False,
        time=place, through=None, run=None, take=lambda indices, device: dataset.take_test(indices),  # noqa: ARG005
    )  # fmt: skip
    if whole_devices and len(groups) > 1:
        held_out, stay = hold_out_devices(inside, groups, share, seed)
        kept = [groups[k] for k in stay.tolist()]
    else:
        held_out, kept = hold_out(inside, groups, share, seed)
    left = np.sort(np.concatenate(kept))
    remain = replace(
        dataset, y_test=tests[left], owner_test=None if owner is None else owner[left],
        target_test=None if dataset.target_test is None else dataset.target_test[left],
        first_test=None if dataset.first_test is None else dataset.first_test[left],
        recording_test=None if dataset.recording_test is None else dataset.recording_test[left],
        take_test=lambda indices: dataset.take_test(left[indices]),
    )  # fmt: skip
    chosen = replace(
        dataset, y_test=held_out.y_test, target_test=held_out.target_test, owner_test=held_out.owner_test,
        first_test=held_out.first_test, recording_test=None, take_test=held_out.take_test,
    )  # fmt: skip
    return remain, chosen


def _choose_held_out(
    dataset: Dataset, parts: Sequence[Indices], share: float, seed: int, purpose: str
) -> list[Indices]:
    """Return the samples that each device holds out; none if no sample without common rows would remain."""
    place = dataset.time if dataset.through is None else dataset.through
    if dataset.run is None:
        held_out = [_last(part, share, place, generator(seed, purpose, k)) for k, part in enumerate(parts)]
    elif dataset.by_class:
        whose, drawn = _by_class(dataset, parts, dataset.run, share, generator(seed, f"{purpose} by class"))
        held_out = [part[drawn[whose == k]] for k, part in enumerate(parts)]
    else:
        held_out = [_runs(part, dataset.run, share, generator(seed, purpose, k)) for k, part in enumerate(parts)]
    for k, part in enumerate(parts):
        if not len(_apart(dataset, _rest(part, held_out[k]), held_out[k])):
            held_out[k] = part[:0]
    return held_out


def _last(part: Indices, share: float, place: Times | None, rng: np.random.Generator) -> Indices:
    """Return the last share of a device's samples, or a random share if samples have no order."""
    count = min(len(part) - 1, max(1, round(share * len(part))))
    order = rng.permutation(len(part)) if place is None else np.argsort(place[part], kind="stable")
    return part[np.sort(order[len(part) - count :])]


def _runs(part: Indices, run: Owners, share: float, rng: np.random.Generator) -> Indices:
    """Return the samples of a random share of a device's recordings; none if it has only one."""
    every = np.unique(run[part])
    if len(every) < 2:
        return part[:0]
    chosen = rng.choice(every, min(len(every) - 1, max(1, round(share * len(every)))), replace=False)
    return part[np.isin(run[part], chosen)]


def _by_class(
    dataset: Dataset, parts: Sequence[Indices], run: Owners | None, share: float, rng: np.random.Generator
) -> tuple[Owners, NDArray[np.bool_]]:
    """Return the device of each training sample, device by device, and whether it is held out.

    Whole devices are held out by class, or whole recordings, ``run``, of each.
    """
    samples = np.concatenate(parts)
    whose = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])
    if run is None:
        return whose, by_class(dataset.labels(samples), whose, np.zeros_like(whose), share, rng)
    unit = np.unique(np.stack([whose, run[samples]]), axis=1, return_inverse=True)[1].ravel().astype(np.int32)
    return whose, by_class(dataset.labels(samples), unit, whose, share, rng)


def _rest(part: Indices, held_out: Indices) -> Indices:
    return part[~np.isin(part, held_out)]


def _apart(dataset: Dataset, part: Indices, held_out: Indices) -> Indices:
    """Return the samples of a device without common rows with a held-out sample."""
    if dataset.first is None:
        return part
    mine = dataset.first[part]
    theirs = np.sort(dataset.first[held_out])
    length = dataset.inputs.length or 1
    apart: Indices = part[
        np.searchsorted(theirs, mine - length, "right") == np.searchsorted(theirs, mine + length, "left")
    ]
    return apart


def _with_tests(dataset: Dataset, parts: Sequence[Indices]) -> Dataset:
    """Return a data set with training samples of devices as test samples, rendered as on each device."""
    samples = np.concatenate(parts)
    sizes = [len(part) for part in parts]
    device_of = np.repeat(np.arange(len(parts)), sizes)
    begin = np.cumsum([0, *sizes])

    @cache
    def rendered(device: int) -> Values:  # cached, as every evaluation needs them
        return dataset.take(parts[device], device)

    def of_device(device: int, indices: Indices) -> Values:
        if not dataset.rendered:
            return dataset.take(samples[indices], device)
        x: Values = rendered(device)[indices - begin[device]]
        return x

    def take(indices: Indices) -> Values:
        if not len(indices):
            return dataset.take(indices, 0)
        devices = device_of[indices]
        order = np.argsort(devices, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(devices[order])) + 1)
        taken = np.concatenate([of_device(int(devices[group[0]]), indices[group]) for group in groups])
        x = np.empty_like(taken)
        x[order] = taken
        return x

    return replace(
        dataset, y_test=dataset.labels(samples), take_test=take, recording_test=None,
        target_test=None if dataset.target is None else dataset.target[samples],
        owner_test=None if dataset.owner is None else dataset.owner[samples],
        first_test=None if dataset.first is None else dataset.first[samples], unit_test=_units(dataset, samples),
    )  # fmt: skip


def _units(dataset: Dataset, samples: Indices) -> Owners | None:
    """Return the unit of held-out samples: a recording, or windows that begin close together; None if all are apart.

    A unit begins with the first window that has no row in common with the first one of the unit before, so that there
    are as many units as windows without common rows, at most.
    """
    if dataset.run is not None:
        return dataset.run[samples]
    if dataset.first is None:
        return None
    rows = (dataset.inputs.length or 1) + dataset.task.ahead
    first = dataset.first[samples]
    starts = np.unique(first)
    begin = list[int]()
    place = 0
    while place < len(starts):
        begin.append(int(starts[place]))
        place = int(np.searchsorted(starts, begin[-1] + rows))
    return (np.searchsorted(begin, first, "right") - 1).astype(np.int32)


def build(
    data: Dataset | str, *, root: Path | str | None = None, devices: int | None = None, factories: int | None = None,
    assignment: Assignment = "random", partition: Partition | None = None, stream: Stream | None = None,
    samples_per_device: int = 100, seed: int = 0, validation: float | None = None, whole_devices: bool = False,
    census_epsilon: float | None = None, mobility: Mobility | None = None, recent: float | None = None,
) -> Park:  # fmt: skip
    """Return the park of a data set, given by itself or its name, with samples dealt to devices in factories.

    Args:
        devices, factories: K, by default all natural owners; M, by default the number in the data, or one.
        assignment: the assignment of devices to factories, unless it is in the data; see
            :func:`~fedfloor.park.partition.assign`.
        validation: share of each device's training samples held out as test samples; None: the real test samples.
        whole_devices: whether ``validation`` is a share of natural owners with all their samples; always so if whole
            recordings are held out and every device has only one.
        recent: share of each device's training samples that is held out first; see :func:`hold_out_recent`.

    Raises:
        SettingError: an argument is out of range, or arguments do not fit the data or each other.

    >>> park = build("labels", devices=4, factories=2, assignment="equal", samples_per_device=30)
    >>> park.devices, park.factories, park.sizes.tolist(), park.counts().shape
    (4, 2, [30, 30, 30, 30], (4, 62))
    """
    split = partition or Natural()
    if isinstance(data, str):
        data = load(data, root=root, devices=devices, samples_per_device=samples_per_device, seed=seed)
    if isinstance(stream, Augmented):
        pictures_only(data)
    parts = _dealt(data, split, devices, seed)
    window = getattr(stream, "window", 0)
    drift = getattr(stream, "drift", None)
    require_memory(f"data.stream.window = {window}", window * (8 + data.sample_bits // 8), "Set a shorter window.")
    if drift is not None:
        require_memory(f"data.stream.drift.period = {drift.period}", 8 * drift.period, "Set a shorter period.")
    factory_of, names = _factories(data, parts, factories, assignment, seed)
    newest = None
    if recent is not None:
        newest, parts = hold_out_recent(data, parts, recent, seed)
    if validation is not None:
        if data.run is not None:  # devices with a single recording cannot hold it out
            whole_devices = whole_devices or all(len(np.unique(data.run[part])) == 1 for part in parts)
        if whole_devices and len(parts) > 1 and owner_of(data, parts) is not None:
            data, train = hold_out_devices(data, parts, validation, seed)
            parts = [parts[k] for k in train.tolist()]
            homes, numbers = np.unique(factory_of[train], return_inverse=True)
            factory_of = numbers.astype(np.int32)
            names = tuple(names[m] for m in homes.tolist()) if names else ()
        else:
            data, parts = hold_out(data, parts, validation, seed)
    return Park(
        data, parts, factory_of, stream or Static(), seed,
        factory_names=names, census_epsilon=census_epsilon, mobility=mobility, recent=newest,
    )  # fmt: skip


def _dealt(data: Dataset, split: Partition, devices: int | None, seed: int) -> Sequence[Indices]:
    """Return the samples of each device."""
    if data.made is None:
        number = _owners(data, split) if devices is None else devices
        return LocalSets.of(split.split(data.y, data.owner, len(data.classes), number, generator(seed, "partition")))
    if not isinstance(split, Natural):
        raise SettingError(
            f"partition kind = '{split.kind}': the data set '{data.name}' is generated device by device, and there is "
            'nothing to deal out. Leave [data] partition out, or set kind = "natural".'
        )
    sets = LocalSets(data.made.first)
    if devices not in (None, len(sets)):
        raise SettingError(f"[park] devices = {devices}: the data were generated for {len(sets)}. Set the same number.")
    return sets


def _factories(
    data: Dataset, parts: Sequence[Indices], factories: int | None, how: Assignment, seed: int
) -> tuple[Owners, tuple[str, ...]]:
    """Return the factory of each device, int32 [K], and the factories' names, () if they have none."""
    owners = owner_of(data, parts)
    if factories is None and owners is not None and data.owned.factory is not None:
        used, factory_of = np.unique(data.owned.factory[owners], return_inverse=True)  # factories with a device
        return factory_of.astype(np.int32), tuple(data.owned.factories[m] for m in used)
    if owners is not None and data.owned.factory is not None and not isinstance(how, tuple):
        log.warning(
            "[park] factories = %d: the %d factories of the data are not used, and devices are assigned by assignment "
            "= '%s'. Leave park.factories out to keep the data's factories.",
            factories, len(np.unique(data.owned.factory[owners])), how,
        )  # fmt: skip
    return assign(len(parts), factories or 1, how, generator(seed, "factories")), ()


def _owners(dataset: Dataset, partition: Partition) -> int:
    if isinstance(partition, Natural) and dataset.owner is None:
        raise no_owners()
    if not isinstance(partition, Natural) or dataset.owner is None:
        raise SettingError(
            f"[park] devices is not set: partition '{partition.kind}' of data set '{dataset.name}' needs a number of "
            "devices. Only a natural partition of data with owners defines one."
        )
    return len(partition.owners(dataset.owner))
