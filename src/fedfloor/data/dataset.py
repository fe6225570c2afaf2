"""A data set: labels, owners and times as arrays; samples on demand, as bytes of pictures or floats of sensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.task import Task

Images = NDArray[np.uint8]
Values = NDArray[np.uint8] | NDArray[np.float32]
Labels = NDArray[np.int64]
Owners = NDArray[np.int32]
Indices = NDArray[np.int64]
Times = NDArray[np.float64]
Targets = NDArray[np.float32]
Missing = Literal["refuse", "previous", "mean", "drop"]
HOLES = ("previous", "mean")  # treatments that leave values missing, which stand for their channel's mean

LETTERS_AND_DIGITS = (*"0123456789", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *"abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True)
class Inputs:
    """The parts of a sample, needed to make samples for a trained model.

    Args:
        kind: ``"image"``: bytes [C, H, W]; ``"table"``: a row of sensors [C], or a window of rows [C, L].
        columns: C names of the sensors.
        length, step: the rows of a window, and the distance in rows between two windows; None where each row is a
            sample.
        missing: the treatment of missing values.
        names: the columns named for device, factory, time, label and id.
        decimal: the decimal mark of the tables that the samples were read from.
        scaled: whether pictures were scaled to a common size.
        dialect: the format of the tables, where it is not the default: ``time_format``, ``header``, ….
        coding: conversions of table cells: ``bins`` turn numeric labels into classes, ``categories`` turn texts into
            sensors; and ``units`` of columns, as tables state them.
        device_of: the part of a table's path that names its device, as :class:`~fedfloor.data.files.tree.Naming`; empty
            where a column or nothing names it.
        ignored: the columns that are not read, for proposals to leave out more.
    """

    kind: Literal["image", "table"] = "image"
    columns: tuple[str, ...] = ()
    length: int | None = None
    step: int | None = None
    missing: Missing = "refuse"
    names: dict[str, str] = field(default_factory=dict)
    decimal: str = "."
    scaled: bool = False
    dialect: dict[str, Any] = field(default_factory=dict)
    coding: dict[str, Any] = field(default_factory=dict)
    device_of: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = field(default=(), compare=False)

    @property
    def holes(self) -> bool:
        """Whether values of samples may be missing, NaN, and stand for their channel's mean."""
        return self.missing in HOLES

    def describe(self) -> dict[str, Any]:
        """Return the object as JSON."""
        if self.kind == "image":
            return {"kind": "image", "scaled": self.scaled}
        window = None if self.length is None else {"length": self.length, "step": self.step}
        others = {"dialect": self.dialect, "coding": self.coding, "device_of": self.device_of}
        return {
            "kind": "table", "columns": list(self.columns), "window": window, "missing": self.missing,
            "names": self.names, "decimal": self.decimal, **{key: table for key, table in others.items() if table},
        }  # fmt: skip


@dataclass(frozen=True)
class Owned:
    """The natural owners of samples: the devices that recorded them.

    Args:
        names: the names of the owners 0, 1, …; empty where owners have numbers only.
        factory: int32, the factory of each owner; None where factories are unknown.
        factories: the factories' names.
    """

    names: tuple[str, ...] = ()
    factory: Owners | None = None
    factories: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Made:
    """Training samples generated on demand, with classes too numerous to be kept in memory.

    Args:
        first: int64 [K + 1]: the samples of device k are first[k] … first[k + 1] − 1.
        labels: training indices [n] → their classes, int64 [n]. A pure function.
    """

    first: Indices
    labels: Callable[[Indices], Labels]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples, each with a bin (in classification: a class) and, where known, targets, an owner and a time.

    A stored number times ``scale`` is its value. A sample of sensors may hold NaN where ``inputs.holes``: it
    represents the mean of its channel.

    Args:
        name: the name, as in ``[data] name``.
        classes: F names of the bins, in the order of the labels.
        shape: the shape of one sample: (C, H, W) of images, (C,) of rows, (C, L) of windows.
        y: int64 [N], labels of the training samples in 0..F−1; empty where samples are ``made``: see :meth:`labels`.
        y_test: int64 [Nt].
        owner: int32 [N], the owner of each training sample, counted from 0; None where unknown.
        owner_test: int32 [Nt], with the same numbers as ``owner``.
        digest: SHA-256 over the content the data came from: the files' bytes, or the recipe of generated data.
        take: (training indices [n], device) → uint8 or float32 [n, *shape]. Only generated data depend on the device,
            which prints every sample assigned to it in its own style. A pure function of its arguments.
        take_test: test indices [n] → uint8 or float32 [n, *shape].
        rendered: whether ``take`` renders its images at each call, so that caching them saves time.
        scale: factor from a stored number to its value.
        time: float64 [N], the time of each training sample (of a window: of its last row); None where times are
            unknown.
        first: int64 [N], the first row of each training sample, if samples are overlapping windows: two windows share
            rows if these numbers differ by less than a window's length. None if no two samples share rows.
        first_test: int64 [Nt], the same for the test samples.
        through: float64 [N], the position of each training sample in its recording, 0 to 1, if position and not time
            determines the last samples: where a device's recordings have no order, or windows overlap and their times
            are unknown; otherwise None.
        owned: names and factories of the owners.
        inputs: the description of a sample's parts.
        run: int32 [N], the recording of each training sample, if whole recordings are held out for testing; otherwise
            None.
        made: owners and classes of training samples that are generated on demand.
        task: the task of a model.
        target: float32 [N, T], the targets of the training samples; None if the targets are the bins.
        target_test: float32 [Nt, T], the targets of the test samples.
        recording_test: int32 [Nt], the recording of each test sample, or the piece of it between gaps; its samples are
            in the order of time. None where samples have no order.
        recording_of: int32 [pieces], the recording of each piece of ``recording_test``; None where no gap divides them.
        held_by: int32 [Nt], the device from whose data each test sample was held out; None for other test samples.
        unit_test: int32 [Nt], the recording, device or block of rows of each held-out sample; None: every one is apart.
        split: the kind of split that chose the test samples, such as ``"time"``; "" if they were supplied.
        by_class: whether whole recordings or devices are held out by class.
        notes: sentences to be logged before training.
    """

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    y: Labels
    y_test: Labels
    owner: Owners | None
    owner_test: Owners | None
    digest: str
    take: Callable[[Indices, int], Values]
    take_test: Callable[[Indices], Values]
    rendered: bool = False
    scale: float = 1 / 255
    time: Times | None = None
    first: Indices | None = None
    first_test: Indices | None = None
    through: NDArray[np.float64] | None = None
    owned: Owned = field(default_factory=Owned)
    inputs: Inputs = field(default_factory=Inputs)
    run: Owners | None = None
    made: Made | None = None
    task: Task = CLASSIFICATION
    target: Targets | None = None
    target_test: Targets | None = None
    recording_test: Owners | None = None
    recording_of: Owners | None = None
    held_by: Owners | None = None
    unit_test: Owners | None = None
    split: str = ""
    by_class: bool = False
    notes: tuple[str, ...] = ()

    def labels(self, indices: Indices) -> Labels:
        """Return the classes of training samples, int64 [n]."""
        return self.y[indices] if self.made is None else self.made.labels(indices)

    def targets(self, indices: Indices) -> Labels | Targets:
        """Return the values to predict for training samples: bins int64 [n], or targets float32 [n, T]."""
        return self.labels(indices) if self.target is None else self.target[indices]

    def targets_test(self, indices: Indices) -> Labels | Targets:
        """Return the values to predict for test samples, as :meth:`targets` does."""
        return self.y_test[indices] if self.target_test is None else self.target_test[indices]

    @property
    def outputs(self) -> int:
        """The number of a network's outputs for a sample."""
        targets = self.task.targets if self.target_test is None else self.target_test.shape[1]
        return self.task.outputs(len(self.classes), targets, self.shape)

    @property
    def sample_bits(self) -> int:
        """The stored size of a sample in bits: 8 for each number of a picture, 32 for each sensor value."""
        return math.prod(self.shape) * (8 if self.inputs.kind == "image" else 32)


@dataclass(frozen=True, eq=False)
class SamplePool:
    """Samples in one contiguous array, in memory or memory-mapped, so that processes can share its pages.

    Args:
        x: uint8 or float32 [N, …].
        y: int64 [N].
        owner: int32 [N], or None.
        rows: int64 [N], the index in ``x`` of sample 0, 1, …; None where samples are in order.
    """

    x: Values
    y: Labels
    owner: Owners | None = None
    rows: Indices | None = None


def pooled(
    name: str, classes: tuple[str, ...], train: SamplePool, test: SamplePool, digest: str, owned: Owned | None = None
) -> Dataset:
    """Make a data set from two arrays of samples, whose ``take`` is ``x[indices]``.

    >>> ones = SamplePool(np.ones((3, 1, 2, 2), np.uint8), np.array([0, 1, 1]))
    >>> pooled("tiny", ("a", "b"), ones, ones, "").take(np.array([2, 0]), 0).shape
    (2, 1, 2, 2)
    """

    def take(indices: Indices, device: int) -> Values:  # noqa: ARG001  (samples do not depend on the device here)
        return train.x[indices if train.rows is None else train.rows[indices]]

    def take_test(indices: Indices) -> Values:
        return test.x[indices if test.rows is None else test.rows[indices]]

    return Dataset(
        name, classes, train.x.shape[1:], train.y, test.y, train.owner, test.owner, digest, take, take_test,
        scale=1 / 255 if train.x.dtype == np.uint8 else 1.0, owned=owned or Owned(),
    )  # fmt: skip
