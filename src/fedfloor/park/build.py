"""From a data set to a park: samples dealt to devices, devices put into factories."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedfloor.chance import generator
from fedfloor.data.dataset import Dataset, Indices, Owners
from fedfloor.data.sources import load
from fedfloor.errors import SettingError
from fedfloor.machine import require_memory
from fedfloor.park.augment import Augmented, pictures_only
from fedfloor.park.factories import Assignment, assign
from fedfloor.park.local import LocalSets, owner_of
from fedfloor.park.mobility import Mobility
from fedfloor.park.park import Park
from fedfloor.park.partition import Natural, Partition, no_owners
from fedfloor.park.stream import Static, Stream
from fedfloor.park.validation import hold_out, hold_out_devices

log = logging.getLogger(__name__)


def build(
    data: Dataset | str,
    *,
    root: Path | str | None = None,
    devices: int | None = None,
    factories: int | None = None,
    assignment: Assignment = "random",
    partition: Partition | None = None,
    stream: Stream | None = None,
    samples_per_device: int = 100,
    seed: int = 0,
    validation: float | None = None,
    whole_devices: bool = False,
    census_epsilon: float | None = None,
    mobility: Mobility | None = None,
) -> Park:
    """Load a data set, deal it to devices, and put these into factories.

    Args:
        data: a data set, or the name of one in :data:`~fedfloor.data.sources.SOURCES`.
        root: where named data sets lie; see :func:`~fedfloor.data.sources.load`.
        devices: K; None for all natural owners.
        factories: M; None for those the data name, where devices are the natural owners, or else a single one.
        assignment: how devices come to factories that the data do not name; see
            :func:`~fedfloor.park.factories.assign`.
        partition: which samples each device gets; natural owners if None.
        stream: what of them it holds at a time; all if None.
        samples_per_device: for generated data.
        seed: of the partition, the assignment, the stream, the census's noise, who moves and generated data.
        validation: share of each device's training samples held out as the test samples; the real ones if None.
        whole_devices: whether it is a share of the devices, where these are natural owners, with all their samples; so
            it is in any case where whole recordings are held out and every device has a single one.
        census_epsilon: ε of a census; no noise if None.
        mobility: which devices are guests in other factories when; none ever if None.

    Raises:
        SettingError: anything of it that cannot be.

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
    _check_window(data, stream)
    factory_of, names = _factories(data, parts, factories, assignment, seed)
    if data.run is not None and validation is not None:  # of devices with a single recording none can give one
        whole_devices = whole_devices or all(len(np.unique(data.run[part])) == 1 for part in parts)
    if validation is not None and whole_devices and len(parts) > 1 and owner_of(data, parts) is not None:
        data, train = hold_out_devices(data, parts, validation, seed)
        parts = [parts[k] for k in train.tolist()]
        there, left = np.unique(factory_of[train], return_inverse=True)
        factory_of, names = left.astype(np.int32), tuple(names[m] for m in there.tolist()) if names else ()
    elif validation is not None:
        data, parts = hold_out(data, parts, validation, seed)
    return Park(
        data, parts, factory_of, stream or Static(), seed,
        factory_names=names, census_epsilon=census_epsilon, mobility=mobility,
    )  # fmt: skip


def _check_window(data: Dataset, stream: Stream | None) -> None:
    """Refuse a window, or passes that are put in order together, that do not fit into memory."""
    window, drift = getattr(stream, "window", 0), getattr(stream, "drift", None)
    shorter = "Set a shorter window."
    require_memory(f"data.stream.window = {window}", window * (8 + data.sample_bits // 8), shorter)
    if drift is not None:
        require_memory(f"data.stream.drift.period = {drift.period}", 8 * drift.period, "Set a shorter period.")


def _dealt(data: Dataset, split: Partition, devices: int | None, seed: int) -> Sequence[Indices]:
    """Return the samples of each device."""
    if data.made is None:
        number = _owners(data, split) if devices is None else devices
        return LocalSets.of(split.split(data.y, data.owner, len(data.classes), number, generator(seed, "partition")))
    if not isinstance(split, Natural):
        raise SettingError(
            f"partition kind = '{split.kind}': the data set '{data.name}' is made device by device, and there is "
            'nothing to deal out. Leave [data] partition out, or set kind = "natural".'
        )
    sets = LocalSets(data.made.first)
    if devices not in (None, len(sets)):
        raise SettingError(f"[park] devices = {devices}: the data were made for {len(sets)}. Give the same number.")
    return sets


def _factories(
    data: Dataset, parts: Sequence[Indices], factories: int | None, how: Assignment, seed: int
) -> tuple[Owners, tuple[str, ...]]:
    """Return the factory of each device and the factories' names, () where they have none."""
    owners = owner_of(data, parts)
    if factories is None and owners is not None and data.owned.factory is not None:
        there, factory_of = np.unique(data.owned.factory[owners], return_inverse=True)  # those that have a device
        return factory_of.astype(np.int32), tuple(data.owned.factories[m] for m in there)
    if owners is not None and data.owned.factory is not None and not isinstance(how, tuple):
        log.warning(
            "[park] factories = %d: the factories that the data name (%d) are not used, and devices are put together "
            "anew (assignment = '%s'). Leave park.factories out to keep them.",
            factories, len(np.unique(data.owned.factory[owners])), how,
        )  # fmt: skip
    return assign(len(parts), factories or 1, how, generator(seed, "factories")), ()


def _owners(dataset: Dataset, partition: Partition) -> int:
    if isinstance(partition, Natural) and dataset.owner is None:
        raise no_owners()
    if not isinstance(partition, Natural) or dataset.owner is None:
        raise SettingError(
            f"[park] devices is not set: partition '{partition.kind}' of data set '{dataset.name}' needs a number of "
            "devices. Only a natural partition of data with owners has one of its own."
        )
    return len(partition.owners(dataset.owner))
