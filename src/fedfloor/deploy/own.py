"""The own samples of a device: a share of the experiment's data, or from a folder, a function or sensors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import RunError, SettingError, nearest
from fedfloor.base.outside import ANY, load, loaded, located
from fedfloor.base.ranges import RefusedError
from fedfloor.data.dataset import Dataset, Labels, Made, Owned, SamplePool, Targets, Values, pooled
from fedfloor.data.files import buffer, own
from fedfloor.data.files.categories import described
from fedfloor.data.files.npz import samples
from fedfloor.data.reading import DeviceReading
from fedfloor.deploy.answered import GROWN, Answers, marks
from fedfloor.deploy.facts import Facts, apply_found
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.settings import DeviceSettings
from fedfloor.experiment import EvaluateSettings, Experiment
from fedfloor.park.build import hold_out, hold_out_recent
from fedfloor.park.local import LocalSets
from fedfloor.park.normalise import Surveyed, mean_and_deviation, normaliser, prepared
from fedfloor.park.park import Park
from fedfloor.park.privacy import SECRET_BYTES
from fedfloor.park.statistics import Normalised, RemoteStatistics
from fedfloor.park.stream import Fifo, Static
from fedfloor.parts.decision import DecideSettings
from fedfloor.tasks.task import Task

Seen = tuple[Values, Labels | Targets]
MOST_LABELLED = 10_000  # samples of a device in the evaluation of a model


@dataclass(frozen=True, eq=False)
class Labelled:
    """A device's newest labelled samples, which are held out of training.

    Args:
        x: uint8 or float32 [n, *shape], not normalised.
        y: int64 [n], classes.
        target: float32 [n, T], if the task predicts numbers.
        classes: names of the classes.
        task: the task of the device's experiment.
    """

    x: Values
    y: Labels
    target: Targets | None
    classes: tuple[str, ...]
    task: Task


def labelled(park: Park) -> Labelled | None:
    """Return the samples that a device holds out for the evaluation of models; None if there are none."""
    data = park.renewed() if isinstance(park, Sensed) and park.renewed is not None else park.recent
    if data is None:
        return None
    rows = np.arange(len(data.y_test))[-MOST_LABELLED:]
    target = None if data.target_test is None else data.target_test[rows]
    return Labelled(data.take_test(rows), data.y_test[rows], target, data.classes, data.task)


@dataclass(frozen=True, eq=False)
class Sensed(Park):
    """A park on one device with samples from a function or sensors; all other devices are empty.

    Args:
        sense: tick → the samples of the device at that tick.
        renewed: returns the current ``recent`` samples; None: they do not change.
    """

    sense: Callable[[int], Seen] = field(kw_only=True)
    renewed: Callable[[], Dataset | None] | None = None

    def together(
        self, devices: Sequence[int], tick: int, visits: Sequence[int]  # noqa: ARG002
    ) -> tuple[Values, Labels | Targets, NDArray[np.int64]]:  # fmt: skip
        """Return the device's current samples, as :meth:`Park.together` does."""
        return *self.sense(tick), self.holdings[np.asarray(devices)]

    def census(self, devices: Sequence[int], tick: int, visits: Sequence[int]) -> NDArray[np.int64]:
        """Return the class counts of the device's current samples, as :meth:`Park.census` does."""
        y = self.together(devices, tick, visits)[1]
        bins = y if self.dataset.target is None else self.dataset.task.bin(y)
        counts = np.bincount(bins, minlength=len(self.dataset.classes))
        if self.census_epsilon is not None:
            counts = self.reported(counts, tick, devices[0], tick).clip(0)
            counts = counts if counts.any() else counts + 1
        return counts[None]


def check(settings: DeviceSettings) -> None:
    """Check that the source of a device's data exists.

    Raises:
        SettingError: the folder, module or function does not exist.
    """
    source = settings.data
    path = Path(str(source.path))
    is_buffer = path.name.endswith(buffer.BUFFERS)  # fedfloor park sense fills it, and may start later
    if source.kind == "folder" and not is_buffer and not path.exists():
        raise SettingError(f"[data] path: {source.path} does not exist. Put the device's samples there.")
    if source.kind == "function" and not callable(load(str(source.name), "[data] name")):
        raise SettingError(f"[data] name: '{source.name}' is not a function.")


def written(settings: DeviceSettings) -> int | None:
    """Return the number of rows in a device's sensor buffer so far; None if its samples come from elsewhere."""
    path = Path(str(settings.data.path))
    if settings.data.kind != "folder" or not path.name.endswith(buffer.BUFFERS):
        return None
    with suppress(SettingError):  # it is damaged, which the next run reports
        return buffer.written(path)
    return None


def noisy(experiment: Experiment) -> bool:
    """Return whether an experiment's class counts have noise."""
    return experiment.park.census_epsilon is not None and math.isfinite(experiment.park.census_epsilon)


def guarded(park: Park, experiment: Experiment, record: RevealRecord) -> Park:
    """Return a device's park with private noise in its census; without noise in the experiment, the park itself.

    The key of the noise is drawn once, so that the device gives the same answer to the same question after a restart.

    Raises:
        SettingError: the key cannot be stored in the device's record.
    """
    if not noisy(experiment):
        return park
    return replace(park, secret=int.from_bytes(record.secret("census", SECRET_BYTES), "big"))


def alone(
    park: Park, experiment: Experiment, device: int, known: RemoteStatistics | None = None, *, tests: bool = False
) -> Park:  # fmt: skip
    """Return a park that holds one device's samples and no others.

    Args:
        park: the park with all samples.
        known: the normalisation; default: computed from ``park``.
        tests: whether it also has the test samples with which the device evaluates a personal model.

    Raises:
        SettingError: the number ``device`` is out of range.
    """
    if device >= park.devices:
        raise SettingError(f"device = {device}: the experiment has devices 0 to {park.devices - 1}.")
    remote = known or RemoteStatistics(None, mean_and_deviation(park, experiment.data.normalise))
    first = np.concatenate([[0], np.cumsum(park.sizes)])
    x = park.samples(device)[0]
    begin = first[device]
    indices = park.indices[device]
    y = park.dataset.labels(indices)
    target = park.dataset.target
    if target is not None:
        target = np.concatenate([np.zeros((begin, target.shape[1]), target.dtype), target[indices]])
    rows = park.dataset.first
    if rows is not None:  # overlapping windows share rows, which count once
        rows = np.concatenate([np.zeros(begin, rows.dtype), rows[indices]])
    dataset = replace(
        park.dataset, y=y, y_test=y[:0], target=target, target_test=None if target is None else target[:0],
        owner=None, owner_test=None, recording_test=None,
        rendered=False, time=None, first=rows, through=None, run=None, owned=Owned(),
        take=lambda indices, _: x[indices - begin], take_test=lambda indices: x[indices],
        made=Made(first, lambda indices: y[indices - begin]),
    )  # fmt: skip
    if tests:
        dataset = replace(dataset, **own_tests(park, device))
    return replace(
        park, dataset=dataset, indices=LocalSets(first), remote=remote, recent=recent_of(park.recent, device),
    )  # fmt: skip


def recent_of(data: Dataset | None, device: int) -> Dataset | None:
    """Return a device's share of the samples held out for the evaluation of models; None if it is empty."""
    if data is None or data.held_by is None or not (data.held_by == device).any():
        return None
    rows = np.flatnonzero(data.held_by == device)
    x = data.take_test(rows)
    return replace(
        data, y=data.y[:0], target=None if data.target is None else data.target[:0], owner=None, made=None,
        owned=Owned(), first=None, time=None, through=None, run=None, rendered=False,
        take=lambda indices, _: x[indices],
        y_test=data.y_test[rows], target_test=None if data.target_test is None else data.target_test[rows],
        owner_test=None, first_test=None, recording_test=None, held_by=data.held_by[rows],
        unit_test=None if data.unit_test is None else data.unit_test[rows],
        take_test=lambda indices: x[indices],
    )  # fmt: skip


def own_tests(park: Park, device: int) -> dict[str, Any]:
    """Return the fields of a park with a device's test samples and those without an owner, for its personal model."""
    owner = park.test_devices
    rows = np.flatnonzero((owner == device) | (owner < 0))
    x = park.test(rows)[0]
    return {
        "y_test": park.dataset.y_test, "target_test": park.dataset.target_test,
        "take_test": lambda indices: x[np.searchsorted(rows, indices)],
        "owner": np.repeat(np.arange(park.devices, dtype=np.int32), park.sizes),
        "owner_test": np.where(owner < 0, park.devices, owner).astype(np.int32),
    }  # fmt: skip


def park(
    settings: DeviceSettings, experiment: Experiment, facts: Facts, answers: Answers | None = None, *,
    tests: bool = False,
) -> Park:  # fmt: skip
    """Return a park that holds the samples of one device, from the source in its settings.

    Args:
        answers: the exact answers so far, which determine the samples that are used; None: all are.

    Raises:
        SettingError: there are no samples, or they do not fit the cloud's facts.
        RefusedError: they differ too little from those of earlier answers.
        RunError: the function of the settings fails.
    """
    device = settings.device
    source = settings.data
    if source.kind == "partition":
        from fedfloor.runs.parks import build_park

        apart = EvaluateSettings(recent=experiment.evaluate.recent)  # validation is done at the cloud
        reduced = replace(experiment, evaluate=apart, decide=DecideSettings())
        if isinstance(normaliser(experiment.data.normalise), Surveyed):  # surveys run over all devices before round 1
            reduced = replace(reduced, data=replace(experiment.data, normalise="standard"))
        whole = build_park(reduced)
        place = Path(f"device {device} of the experiment")
        held = whole.validating and replace(whole.validating, dataset=fitted(place, whole.validating.dataset, facts))
        whole = replace(whole, dataset=fitted(place, whole.dataset, facts), validating=held)
        return alone(whole, experiment, device, facts.known or RemoteStatistics(), tests=tests)
    if source.kind == "function":
        made = function_park(settings, experiment, facts)
        return made if answers is None else settled(made, experiment, device, answers)
    path = Path(str(source.path))
    stream = experiment.data.stream
    if isinstance(stream, Fifo) and path.name.endswith(buffer.BUFFERS):
        made = buffer_park(settings, experiment, facts, path, stream.window)
        return made if answers is None else settled(made, experiment, device, answers)
    loaded = own.load(path, device_reading(experiment, facts), experiment.seed, settings.name)
    data = fitted(path, loaded, facts)
    used = None
    if answers is not None:
        trains = park_of_one(data, experiment, device, facts.known).indices[device]
        used = answers.settle(marks(data, device, texts(experiment)), trains, forgets=stream.kind == "static")
    return park_of_one(data, experiment, device, facts.known, used=used)


def texts(experiment: Experiment) -> tuple[str, ...]:
    """Return the names of the columns of texts that become sensors."""
    return tuple(experiment.data.columns.categories or ())


def settled(made: Park, experiment: Experiment, device: int, answers: Answers) -> Park:
    """Return a park of sensors whose samples at the start of a run differ enough from those of earlier answers.

    Raises:
        RefusedError: they do not.
    """
    given = marks(made.dataset, device, texts(experiment))
    if len(used := answers.settle(given, made.indices[device])) < len(given):
        raise RefusedError(
            "data",
            f"{len(given) - len(used)} of its {len(given)} samples are new since its last exact answers. With masks "
            f"or noise on updates it answers for {GROWN} new ones or more. Wait for more samples.",
        )
    return made


def device_reading(experiment: Experiment, facts: Facts) -> DeviceReading:
    """Return the settings for reading a device's files: the experiment's, with all devices' classes and values."""
    columns = experiment.data.columns
    if columns.categories is not None:  # the values are those of the park, not of this device alone
        columns = replace(columns, categories=described(facts.inputs.coding.get("categories", {})))
    task = facts.task  # its classes are bins of all devices' targets, or normal and anomaly, and not in a column
    classes = () if task is not None and (task.targets > 0 or task.calibrates) else facts.classes
    other = {"columns": columns, "format": None, "classes": classes, "split": None, "test": None}
    return DeviceReading(**(experiment.data.settings() | other))


def fitted(path: Path, data: Dataset, facts: Facts) -> Dataset:
    """Return samples with the task of all devices; raise SettingError if they do not fit the cloud's facts."""
    if facts.task is not None:
        data = replace(data, task=facts.task)
        if data.target is not None:
            data = replace(data, classes=facts.classes, y=facts.task.bin(data.target))
    check_fits(str(path), data, facts)
    return data


def buffer_park(settings: DeviceSettings, experiment: Experiment, facts: Facts, path: Path, window: int) -> Park:
    """Return a park that holds, at each tick, the newest samples of a buffer filled by sensors."""
    reading = device_reading(experiment, facts)
    share = experiment.evaluate.recent or 0.0
    enough = window + math.ceil(share * window) + (windows_across(reading) if share else 0)

    def now() -> Park:
        data = fitted(path, buffer.newest(path, reading, experiment.seed, enough), facts)
        data = replace(data, digest=buffer.identity(path))  # its rows change with each reading
        return park_of_one(data, experiment, settings.device, facts.known, window)

    first = now()
    held = int(first.sizes[settings.device])

    @lru_cache(maxsize=1)
    def sense(tick: int) -> Seen:  # noqa: ARG001
        try:
            x, y = now().samples(settings.device)
            if len(y) < held:
                raise SettingError(f"{path}: {len(y)} samples; must be {held}, as at the first tick.")
        except SettingError as error:  # a later failure must not end the run of all devices
            raise RunError(str(error), key=error.key) from error
        return x[-held:], y[-held:]

    return replace(sensed_park(first, sense, settings.device), renewed=lambda: now().recent)


def windows_across(reading: DeviceReading) -> int:
    """Return the largest number of earlier windows that overlap with a given window."""
    return 0 if reading.window is None else math.ceil(reading.window.length / reading.window.stride) - 1


def sensed_park(base: Park, sense: Callable[[int], Seen], device: int) -> Sensed:
    """Return a park whose samples at each tick are those of ``sense``."""
    keys = ("dataset", "indices", "factory_of", "seed", "census_epsilon", "remote", "normalised", "validating")
    kept = {key: getattr(base, key) for key in keys}
    return Sensed(**kept, stream=Static(), sense=normalised_sense(sense, base.normalised, device))


def park_of_one(
    data: Dataset, experiment: Experiment, device: int, remote: RemoteStatistics | None, newest: int | None = None,
    used: NDArray[np.intp] | None = None,
) -> Park:  # fmt: skip
    """Return a park with one non-empty device, which keeps its number, as random draws depend on it.

    Args:
        newest: number of its last samples that are used, besides those held out of training; None: all.
        used: positions of its samples that are used at all, [n]; None: all.
    """
    devices = experiment.park.devices or device + 1
    first = np.where(np.arange(devices + 1) > device, len(data.y), 0)
    parts = [np.arange(low, high) for low, high in pairwise(first.tolist())]
    parts[device] = parts[device] if used is None else used
    bare = replace(data, owner=None, owner_test=None, rendered=False, owned=Owned())
    recent = None
    if (share := experiment.evaluate.recent) is not None:
        of_window = share if newest is None else share * newest / len(data.y)
        recent, kept = hold_out_recent(bare, parts, of_window, experiment.seed)
        parts = [*kept]
    parts[device] = parts[device][-(newest or len(data.y)) :]
    park = Park(
        bare, LocalSets.of(parts), np.zeros(devices, np.int32), experiment.data.stream, experiment.seed,
        census_epsilon=experiment.park.census_epsilon, remote=remote, recent=recent_of(recent, device),
    )  # fmt: skip
    if data.task.calibrates:  # held-out samples only determine the threshold
        held, kept = hold_out(bare, parts, experiment.evaluate.validation, experiment.seed)
        park = replace(park, indices=LocalSets.of(kept))
        park = replace(park, validating=replace(park, dataset=held))
    part = normaliser(experiment.data.normalise)
    return park if isinstance(part, Surveyed) else prepared(park, experiment.data.normalise)


def normalised(park: Park, experiment: Experiment, facts: Facts, device: int) -> Park:
    """Return a device's park, as :func:`park` made it, normalised by the statistics of all devices."""
    applied = apply_found(replace(park, remote=facts.known), experiment, facts)
    if applied.normalised is park.normalised or not isinstance(applied, Sensed):
        return applied
    return replace(applied, sense=normalised_sense(applied.sense, applied.normalised, device))


def normalised_sense(sense: Callable[[int], Seen], done: Normalised | None, device: int) -> Callable[[int], Seen]:
    """Return ``sense`` with its samples normalised; ``sense`` itself if there is no normalisation."""
    if done is None:
        return sense
    return lru_cache(maxsize=1)(lambda tick: (done.apply(sense(tick)[0], device), sense(tick)[1]))


def check_task(facts: Facts, experiment: Experiment) -> None:
    """Check that the facts' task is that of a device's own experiment, but for what samples determine.

    A device states how many of its targets, or failures, are in each of their ranges: with thousands of narrow ones,
    every one.

    Raises:
        RefusedError: it is another task, or has more ranges, or others than the experiment states.
    """
    if not experiment.data.asked.admits(facts.task, experiment.data.bins):
        raise RefusedError("facts", "their task has other settings or ranges than this device's experiment.")


def check_fits(where: str, data: Dataset, facts: Facts) -> None:
    """Raise SettingError if samples differ from the cloud's facts in kind, shape, sensors or classes."""
    if data.inputs.kind != facts.inputs.kind:
        raise SettingError(f"{where}: the data are {data.inputs.kind}; must be {facts.inputs.kind}.")
    if data.shape != facts.shape:
        hint = " [data] size = [height, width] scales pictures." if facts.inputs.kind == "image" else ""
        raise SettingError(f"{where}: samples of shape {list(data.shape)}; must be {list(facts.shape)}.{hint}")
    if data.inputs.columns != facts.inputs.columns:
        given = ", ".join(data.inputs.columns)
        expected = ", ".join(facts.inputs.columns)
        raise SettingError(f"{where}: its sensors are {given}; must be {expected}, in this order.")
    if data.classes != facts.classes:
        raise SettingError(f"{where}: its classes differ from the experiment's: {', '.join(data.classes)}.")


def function_park(settings: DeviceSettings, experiment: Experiment, facts: Facts) -> Park:
    """Return a park whose samples at each tick are the result of a function."""
    name = str(settings.data.name)
    stream = experiment.data.stream
    device = settings.device
    if facts.task is not None:
        raise SettingError(
            f"[data] name = '{name}': a function returns samples and their classes, but data.task is "
            f"'{facts.task.kind}'. Let the device read a folder or an .npz file."
        )
    if stream.kind not in ("static", "fifo"):
        raise SettingError(f"[data] stream kind = '{stream.kind}': a function has only ticks. Use static or fifo.")
    function = loaded(name, "[data] name")
    most = [0]

    @lru_cache(maxsize=1)
    def sense(tick: int) -> tuple[Values, Labels]:
        where = f"function '{name}' at tick {tick}"
        try:
            result = function(device, tick)
        except ANY as error:
            raise RunError(f"{where} failed: {located(error)}") from error
        try:
            x, y = checked_result(where, result, facts)
            most[0] = most[0] or len(y)
            if len(y) != most[0]:
                raise SettingError(f"{where}: {len(y)} samples; must be {most[0]}, as at the first tick.")
        except SettingError as error:  # a later failure must not end the run of all devices
            raise RunError(str(error), key=error.key) from error
        return x, y

    x, y = sense(0)
    if stream.holds(len(y)) != len(y):
        raise SettingError(f"function '{name}' yields {len(y)} samples; [data] stream window = {stream.holds(len(y))}.")
    digest = hashlib.sha256(np.ascontiguousarray(x).data)
    digest.update(y.tobytes())
    data = pooled(
        facts.name, facts.classes, SamplePool(x, y), SamplePool(x[:0], np.zeros(0, np.int64)), digest.hexdigest()
    )
    base = park_of_one(replace(data, scale=facts.scale, inputs=facts.inputs), experiment, device, facts.known)
    return sensed_park(base, sense, device)


def checked_result(where: str, result: Any, facts: Facts) -> tuple[Values, Labels]:
    """Return a function's samples and labels, checked against the facts of the experiment.

    Raises:
        SettingError: the result is not (x, y), or its types, shapes or labels differ from the facts.
    """
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise SettingError(f"{where}: returned {type(result).__name__}; must be (x, y): samples and their labels.")
    raw, labels = result
    form = ", ".join(["n", *map(str, facts.shape)])
    if not isinstance(raw, np.ndarray):
        raise SettingError(f"{where}: x is {type(raw).__name__}; must be a NumPy array [{form}].")
    x = samples(where, "x", raw)
    y = class_numbers(where, np.asarray(labels), facts.classes)
    kind = np.dtype(np.uint8 if facts.inputs.kind == "image" else np.float32)
    if x.dtype != kind or x.shape[1:] != facts.shape or not len(x):
        raise SettingError(f"{where}: x is {x.dtype} {list(x.shape)}; must be {kind} [{form}].")
    if y.shape != x.shape[:1]:
        raise SettingError(f"{where}: y has shape {list(y.shape)} for {len(x)} samples. Return a label for each.")
    if kind == np.float32 and not facts.inputs.holes and bool(np.isnan(x).any()):
        raise SettingError(f"{where}: x holds NaN. Omit these samples, or set [data] missing = 'mean'.")
    return x, y


def class_numbers(where: str, y: NDArray[Any], classes: Sequence[str]) -> Labels:
    """Return labels, given as class names or numbers, as class numbers, int64 [n]."""
    if y.dtype.kind == "U":
        odd = next((label for label in y.ravel().tolist() if label not in classes), None)
        if odd is not None:
            known = ", ".join(classes)
            raise SettingError(f"{where}: label '{odd}' is not a class.{nearest(odd, classes)} Known: {known}.")
        return np.array([classes.index(label) for label in y.ravel().tolist()], np.int64).reshape(y.shape)
    if y.dtype.kind not in "iu":
        raise SettingError(f"{where}: y is {y.dtype}; must be class names, or whole numbers.")
    odd = next((label for label in y.ravel().tolist() if not 0 <= label < len(classes)), None)
    if odd is not None:
        raise SettingError(f"{where}: label {odd}; must be from 0 to {len(classes) - 1}, the numbers of the classes.")
    return y.astype(np.int64)
