"""The types of a run folder's files, with checks when they are read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from fedfloor.base.checking import parsed, toml_text
from fedfloor.base.errors import SettingError
from fedfloor.base.names import Names
from fedfloor.base.regular import read_bytes
from fedfloor.report.record_types import (
    Amount,
    Count,
    Figures,
    Loss,
    OptionalShare,
    Part,
    Positive,
    Share,
    drawable,
)
from fedfloor.tasks.figures import ACCURACY, Figure

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PartsRecord:
    """The replaced parts in a table of an experiment: each a name, or a table with ``kind``.

    ``method`` is the method of which the table's name is another name.
    """

    objective: Part = None
    mix: Part = None
    edge_mix: Part = None
    server: Part = None
    method: str | None = None


@dataclass(frozen=True, kw_only=True)
class MethodRecord(PartsRecord):
    """``[method]`` of ``experiment.toml``."""

    name: str


@dataclass(frozen=True)
class EvaluateRecord:
    """``[evaluate]`` of ``experiment.toml``."""

    on: str = "test"
    headline: Part = None


@dataclass(frozen=True)
class AttackersRecord:
    """``[faults] attackers`` of ``experiment.toml``."""

    kind: str
    share: Share | None = None
    count: Positive | None = None
    devices: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class FaultsRecord:
    """``[faults]`` of ``experiment.toml``."""

    attackers: AttackersRecord | None = None


@dataclass(frozen=True)
class ExperimentRecord:
    """The fields of ``experiment.toml`` that a report uses."""

    method: MethodRecord
    seed: int
    name: str | None = None
    rounds: int | None = None
    methods: dict[str, PartsRecord] = field(default_factory=dict)
    evaluate: EvaluateRecord = field(default_factory=EvaluateRecord)
    data: dict[str, Any] = field(default_factory=dict)
    faults: FaultsRecord = field(default_factory=FaultsRecord)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The name of the method, also where ``[methods]`` gives it another one."""
        table = self.methods.get(self.method.name)
        return (table and table.method) or self.method.name

    @property
    def task(self) -> str:
        """The kind of the task."""
        task = self.data.get("task") or "classification"
        return str(task.get("kind", "classification") if isinstance(task, dict) else task)

    @property
    def unit(self) -> str:
        """The unit of the task's targets; "" without one."""
        task = self.data.get("task")
        return str(task.get("unit", "")) if isinstance(task, dict) else ""


@dataclass(frozen=True)
class NetworkCost:
    """A cost on the network: seconds, bytes over all links, and joules of all devices and stations."""

    seconds: Amount = 0.0
    bytes: Amount = 0.0
    joules: Amount = 0.0


@dataclass(frozen=True)
class PricedRecord:
    """The cost of a round on the network: s, J, and bytes by link."""

    seconds: Amount | None = None
    joules: Amount | None = None
    bytes: dict[str, Amount] | None = None
    normalise: NetworkCost | None = None  # cost of surveys before round 1, included in the first round


@dataclass(frozen=True)
class SpreadRecord:
    """The accuracy of the 10 %, 50 % and 90 % device; all None if no device has one."""

    p10: Share | None = None
    p50: Share | None = None
    p90: Share | None = None


@dataclass(frozen=True)
class HeadlineRecord:
    """A headline of the 10 %, 50 % and 90 % device, and the number of devices for which it is defined, if known."""

    p10: float
    p50: float
    p90: float
    devices: Count | None = None


def _complete(value: object) -> object:
    """Return None for the JSON of a spread with a percentile that is null or not drawable; other values unchanged."""
    percentiles = [value.get(name, 0.0) for name in ("p10", "p50", "p90")] if isinstance(value, dict) else []
    return None if any(drawable(number) is None for number in percentiles) else value


OptionalHeadline = Annotated[HeadlineRecord | None, BeforeValidator(_complete)]


@dataclass(frozen=True)
class MeasuredRecord:
    """``measured`` of a ledger line: see :class:`fedfloor.runs.ledger.Line`."""

    floor_s: Amount | None = None
    training_s: Amount | None = None
    bytes: dict[str, Amount] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    refused: dict[str, dict[str, dict[str, Count]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    untrained: tuple[Count, ...] = ()
    against: dict[str, Count] = field(default_factory=dict)


InTime = tuple[Count, Count, Amount, Amount]  # device, version of the model, departure, arrival
VisitRecord = InTime | tuple[Count, Count, Amount, Amount, Amount, Amount]  # and begin and end of training


@dataclass(frozen=True)
class LineRecord:
    """A line of ``ledger.jsonl``: the global model's metrics on the test data, None in a round without evaluation.

    ``figures`` and ``headlines`` hold headlines other than the accuracy, and their spread over devices. ``backdoor``
    is the share of test samples whose prediction a trigger changes to its target. ``arrivals`` are the device, the
    version of the model, the departure and the arrival of each visit, and if known when its training began and ended,
    unless all were waited for. ``info`` is what the method and the run report.
    """

    round: Positive
    accuracy: OptionalShare = None
    loss: Loss = None
    train_loss: Loss = None
    macro_f1: OptionalShare = None
    figures: dict[str, Loss] | None = None
    by_class: tuple[OptionalShare, ...] | None = None
    by_device: SpreadRecord | None = None
    priced: PricedRecord | None = None
    wall_s: Amount | None = None
    participants: Count | None = None
    lost: Count | None = None
    headlines: dict[str, OptionalHeadline] | None = None
    lost_by: dict[str, tuple[Count, Count]] | None = None
    visits: Count | None = None
    measured: MeasuredRecord | None = None
    backdoor: OptionalShare = None
    arrivals: tuple[VisitRecord, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def late(self) -> list[int]:
        """The numbers of devices whose results came after the end of the round."""
        late = self.info.get("late")
        return [k for k in late if type(k) is int and k >= 0] if isinstance(late, list) else []

    def spread(self, figure: Figure) -> HeadlineRecord | None:
        """Return the spread of a metric over devices; None if it is not recorded."""
        if figure != ACCURACY:
            return (self.headlines or {}).get(figure.name)
        spread = self.by_device
        if spread is None or spread.p10 is None or spread.p50 is None or spread.p90 is None:
            return None
        return HeadlineRecord(spread.p10, spread.p50, spread.p90)


@dataclass(frozen=True)
class DevicesRecord:
    """A line of ``devices.jsonl``: the headline of each device in a round, by its number."""

    round: Positive
    headline: str
    devices: dict[Count, Loss]


@dataclass(frozen=True)
class DeviceRecord:
    """A device of ``park.json``; ``counts`` are its samples of each class."""

    factory: Count
    samples: Count
    counts: tuple[Count, ...]
    name: str | None = None
    device: Count | None = None


@dataclass(frozen=True)
class ParkRecord:
    """``park.json``; of a very large park (``of_devices``) a representative selection of devices is listed.

    ``device_accuracy``: accuracies per device are measured on test samples of their own, or expected from classes.
    ``raw_bytes``: the size of the devices' training samples. ``findings``: sentences on data that may be wrong.
    """

    dataset: str
    classes: Annotated[tuple[str, ...], Field(min_length=1)]
    devices: Annotated[tuple[DeviceRecord, ...], Field(min_length=1)]
    factories: Positive
    test_samples: Count
    of_devices: Positive | None = None
    device_accuracy: Figures | None = None
    test_sha256: str | None = None
    raw_bytes: Count | None = None
    untrained_classes: dict[str, Count] = field(default_factory=dict, hash=False)  # and their numbers of test samples
    factory_names: tuple[str, ...] = ()
    shape: tuple[Count, ...] = ()
    findings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.factory_names) not in (0, self.factories):
            raise ValueError(f"{len(self.factory_names)} names for {self.factories} factories")
        for k, device in enumerate(self.devices):
            if len(device.counts) != len(self.classes):
                raise ValueError(f"devices[{k}] counts {len(device.counts)} classes of {len(self.classes)}")
            if device.factory >= self.factories:
                raise ValueError(f"devices[{k}] is in factory {device.factory} of {self.factories}")

    @property
    def size(self) -> int:
        """The number of all devices."""
        return self.of_devices or len(self.devices)

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the listed devices."""
        return [k if device.device is None else device.device for k, device in enumerate(self.devices)]

    @cached_property
    def names(self) -> Names:
        """The names of devices and factories."""
        devices = {k: device.name for k, device in zip(self.numbers, self.devices, strict=True) if device.name}
        return Names(devices, self.factory_names or ("",) * self.factories)


@dataclass(frozen=True)
class PlanRecord:
    """``plan.json``."""

    plan: dict[str, Any]
    method: str | None = None


@dataclass(frozen=True)
class FailedRecord:
    """``failed.json``."""

    round: Positive
    why: str


@dataclass(frozen=True)
class WaitRecord:
    """``waiting.json``."""

    round: Count
    why: str
    since: Amount
    until: Amount


@dataclass(frozen=True)
class DivergedRecord:
    """``diverged.json``."""

    round: Positive


@dataclass(frozen=True)
class PrivateModelsRecord:
    """The statement of ``privacy.json`` on a run's models; ``epsilon`` is None without a bound."""

    rounds: Count
    clip: Amount
    noise_multiplier: Amount
    share: Share
    delta: Share
    noise: str
    epsilon: Amount | None = None
    protects: str = ""
    not_covered: list[str] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class AnswerRecord:
    """Numbers in ``privacy.json`` that a device sends without noise, at most ``times`` times."""

    times: Count
    reveals: str


@dataclass(frozen=True)
class PrivacyRecord:
    """``privacy.json``; without the first four fields if censuses contain no noise.

    ``reports`` is the largest number of reports of a device, ``epsilon`` is the ε of all of them together,
    ``epsilon_advanced`` by advanced composition, with ``delta``. ``noise`` is ``"secret"`` if real devices drew it.
    """

    reports: Count | None = None
    epsilon: Annotated[float, Field(ge=0)] | None = None
    epsilon_advanced: Annotated[float, Field(ge=0)] | None = None
    delta: Share | None = None
    noise: str | None = None
    normalise: dict[str, Any] | None = None
    answers: dict[str, AnswerRecord] | None = None
    models: PrivateModelsRecord | None = None
    samples: PrivateModelsRecord | None = None


def content(path: Path) -> bytes:
    """Return the content of a run folder's file.

    Raises:
        SettingError: the file does not exist, is not a regular file, or cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            raise SettingError(f"{path} cannot be read: it is not a file. A run folder has a file of this name.")
        return read_bytes(path)
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read: {error.strerror or error}. A run folder has it; was the run interrupted?",
            key="folder-of-run",
        ) from error


def record(kind: type[T], path: Path, noun: str, advice: str = "Run the experiment again.") -> T:
    """Return a run folder's JSON file as :func:`~fedfloor.base.checking.parsed` does.

    Raises:
        SettingError: the file cannot be read, or is damaged.
    """
    return parsed(kind, content(path), str(path), noun, advice)


def experiment(path: Path) -> tuple[str, dict[str, Any], ExperimentRecord]:
    """Return a resolved ``experiment.toml`` as text, as tables, and as the fields that a report uses.

    Raises:
        SettingError: the file cannot be read, is not TOML, or is not a resolved experiment.
    """
    noun = "a resolved experiment"
    advice = "Name a folder that `fedfloor run` wrote."
    raw = content(path)
    try:
        text = raw.decode()
        tables = toml_text(text, "the file")
        data = json.dumps(tables, default=str)
    except (SettingError, ValueError, RecursionError) as error:  # a number with too many digits is a ValueError, too
        raise SettingError(f"{path}: not {noun} ({error}). {advice}") from error
    return text, tables, parsed(ExperimentRecord, data, str(path), noun, advice)
