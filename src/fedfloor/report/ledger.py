"""Run folders as a report reads them: the experiment, the park, the ledger, the first plan, the final evaluation."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedfloor.checking import parsed
from fedfloor.errors import SettingError
from fedfloor.figures import ACCURACY, Figure, named
from fedfloor.names import REFERENCES_FOLDER, Names
from fedfloor.plan.nodes import Node
from fedfloor.plan.text import from_json
from fedfloor.plan.walk import devices
from fedfloor.report.numbers import NetworkCost, with_round
from fedfloor.report.records import (
    DecideRecord,
    DivergedRecord,
    ErrorsRecord,
    EvaluationRecord,
    ExperimentRecord,
    Figures,
    LineRecord,
    ParkRecord,
    PlanRecord,
    PrivacyRecord,
    PrivateModelsRecord,
    content,
    experiment,
    record,
)

Matrix = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PlaceFigures:
    """A device or a factory and the final model's figures there.

    Args:
        number: the device's or the factory's number.
        name: its name, where it has one.
        factory: the factory it belongs to, or is; None where that is not known.
        accuracy: None where nothing could be tested.
        figures: name → a headline that is not the accuracy; None where it is not defined there.
        role: ``"trains only"`` or ``"tests only"`` of a device that does not both.
    """

    number: int
    name: str | None
    factory: int | None
    accuracy: float | None
    role: str | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)

    def value(self, figure: Figure) -> float | None:
        """Return a figure; None where it is not defined there, or not recorded."""
        return self.accuracy if figure == ACCURACY else self.figures.get(figure.name)


@dataclass(frozen=True)
class Evaluation:
    """The final model on the test (or the validation) data.

    Args:
        round: the round it was made in.
        on: ``"test"`` or ``"validation"``.
        macro_f1: mean over classes of 2·precision·recall/(precision + recall).
        classes: their names.
        confusion: number of samples [true class][predicted class].
        devices, factories: the accuracy of each.
        figures: whether these are measured on test samples of each device, or expected from its classes; None where
            the run does not record it.
        decide: the decision that validation data chose; None where they chose none.
        errors: predicted numbers beside the true ones; None where classes are predicted.
        cohorts: the number of each device's model; empty where all have one.
        shared: each device by the shared model, where ``devices`` are by models of their own.
        sends: the share of the model's numbers that a device sends.
    """

    round: int
    on: str
    macro_f1: float | None
    classes: tuple[str, ...]
    confusion: Matrix
    devices: tuple[PlaceFigures, ...]
    factories: tuple[PlaceFigures, ...]
    figures: Figures | None = None
    decide: DecideRecord | None = None
    errors: ErrorsRecord | None = None
    cohorts: tuple[int, ...] = ()
    shared: tuple[PlaceFigures, ...] = ()
    sends: float = 1.0


def evaluation(record: EvaluationRecord) -> Evaluation:
    """Return what a record says about a final model."""
    return Evaluation(
        round=record.round,
        on=record.on,
        macro_f1=record.macro_f1,
        classes=record.classes,
        confusion=record.confusion,
        devices=tuple(
            PlaceFigures(place.device or 0, place.name, place.factory, place.accuracy, place.role, place.figures or {})
            for place in record.devices or ()
        ),
        factories=tuple(
            PlaceFigures(place.factory or 0, place.name, place.factory, place.accuracy, figures=place.figures or {})
            for place in record.factories or ()
        ),
        figures=record.device_accuracy,
        decide=record.decide,
        errors=record.errors,
        cohorts=record.cohorts or (),
        shared=tuple(
            PlaceFigures(place.device, None, None, place.accuracy, figures=place.figures or {})
            for place in (record.shared.devices if record.shared else ())
        ),
        sends=record.shared.sends if record.shared else 1.0,
    )


def summed(found: Sequence[Evaluation]) -> Matrix:
    """Return the sum of confusion matrices of the same classes.

    >>> one = Evaluation(1, "test", None, ("a", "b"), ((1, 2), (0, 3)), (), ())
    >>> summed([one, one])
    ((2, 4), (0, 6))
    """
    total = np.sum([one.confusion for one in found], axis=0)
    return tuple(tuple(int(count) for count in row) for row in total)


def by_place(
    found: Sequence[Evaluation], pick: Callable[[Evaluation], Sequence[PlaceFigures]], figure: Figure = ACCURACY
) -> dict[tuple[int, str | None, int | None], list[float]]:
    """Return a figure of each device or factory, one per evaluation that has it.

    Args:
        found: the evaluations of several seeds.
        pick: what is asked for, such as ``lambda one: one.factories``.
        figure: which.
    """
    places: dict[tuple[int, str | None, int | None], list[float]] = defaultdict(list)
    for one in found:
        for place in pick(one):
            values = places[place.number, place.name, place.factory]
            if (value := place.value(figure)) is not None:
                values.append(value)
    return dict(sorted(places.items(), key=lambda item: item[0][0]))


def frequent(matrix: Matrix, classes: Sequence[str], most: int = 5) -> list[tuple[str, str, int, int]]:
    """Return the most frequent confusions: true class, class it is taken for, how often, and of how many samples.

    >>> frequent(((8, 2), (0, 3)), ["a", "b"])
    [('a', 'b', 2, 10)]
    """
    wrong = [
        (count, i, j) for i, row in enumerate(matrix) for j, count in enumerate(row) if i != j and count > 0
    ]  # fmt: skip
    wrong.sort(key=lambda item: (-item[0], item[1], item[2]))
    return [(classes[i], classes[j], count, sum(matrix[i])) for count, i, j in wrong[:most]]


log = logging.getLogger(__name__)

# Where a run was made and which copy of an experiment it is does not change what the experiment is.
NOT_THE_EXPERIMENT = ("name", "seed", "provenance")
DIVERGED = "diverged.json"


@dataclass(frozen=True)
class Spread:
    """A figure of the 10 %, 50 % and 90 % device, and of how many devices it is defined for, where that is known."""

    p10: float
    p50: float
    p90: float
    devices: int | None = None


@dataclass(frozen=True)
class RecordedRound:
    """One line of the ledger; what was not evaluated in the round is None.

    Args:
        number: the round, counted from 1.
        accuracy: share of the test samples that the global model gets right.
        loss: its mean loss on them.
        train_loss: mean loss on the devices while they trained.
        macro_f1: mean of F1 over the classes.
        figures: name → value of the headline, where that is not the accuracy.
        by_class: accuracy per class.
        by_device: how the accuracy is spread over devices.
        headlines: name → how a headline that is not the accuracy is.
        backdoor: share of test samples that a backdoor's trigger turns into its target; None without one.
        wall_s: seconds the round took.
        participants: devices that trained.
        lost: visits that were lost.
        spent: what all rounds up to this one cost on the network; None where the run knows no prices.
        normalised: what the normalisation's questions before round 1 cost; None where there were none.
    """

    number: int
    accuracy: float | None = None
    loss: float | None = None
    train_loss: float | None = None
    by_class: tuple[float | None, ...] | None = None
    by_device: Spread | None = None
    wall_s: float = 0.0
    participants: int = 0
    lost: int = 0
    spent: NetworkCost | None = None
    normalised: NetworkCost | None = None
    macro_f1: float | None = None
    figures: Mapping[str, float | None] | None = None
    headlines: Mapping[str, Spread] = field(default_factory=dict)
    backdoor: float | None = None

    def spread(self, figure: Figure) -> Spread | None:
        """Return how a figure is spread over devices; None where that is not recorded."""
        return self.by_device if figure == ACCURACY else self.headlines.get(figure.name)


@dataclass(frozen=True)
class ListedDevice:
    """A device's factory, its number of samples, how many of each class it holds, its name if any, its number."""

    factory: int
    samples: int
    counts: tuple[int, ...]
    name: str | None = None
    number: int = 0


@dataclass(frozen=True)
class RecordedPark:
    """What a run was trained on; of very many devices (``of_devices``) some are listed that stand for all.

    ``figures`` says whether accuracies per device are measured on test samples of their own or expected from their
    classes, ``test_sha256`` is the digest of the test samples; None where the run does not record it.
    """

    dataset: str
    classes: tuple[str, ...]
    devices: tuple[ListedDevice, ...]
    factories: int
    test_samples: int
    of_devices: int
    untrained: tuple[tuple[str, int], ...] = ()  # classes that only test samples have, and how many of these
    figures: Figures | None = None
    test_sha256: str | None = None
    factory_names: tuple[str, ...] = ()  # by number; empty where they have none

    @property
    def names(self) -> Names:
        """What its devices and factories are called."""
        devices = {device.number: device.name for device in self.devices if device.name}
        return Names(devices, self.factory_names or ("",) * self.factories)


@dataclass(frozen=True)
class RecordedRun:
    """A run folder's content.

    Args:
        folder: where it was read from.
        name: the experiment's name.
        method: the method's name.
        seed: its seed.
        key: the experiment without its name, seed and provenance; equal for seeds of one experiment.
        rounds: the ledger; empty only where training diverged in the first round.
        park: devices, classes and who holds what.
        plan: the first round's plan, where the run's folder has one that can be read.
        config: the resolved configuration as text.
        settings: the same, as far as it is read.
        planned: rounds of its schedule; None where the configuration does not say.
        on: what its accuracy was measured on, ``"test"`` or ``"validation"`` data.
        evaluation: what is known about the final model, where the run wrote it.
        diverged: the round in which training diverged; None where it did not.
        title: the method's name as papers write it, as far as the run records it.
        headline: the figure that it is judged by.
    """

    folder: Path
    name: str
    method: str
    seed: int
    key: str
    rounds: tuple[RecordedRound, ...]
    park: RecordedPark
    plan: Node | None
    config: str
    settings: ExperimentRecord
    planned: int | None = None
    on: str = "test"
    evaluation: Evaluation | None = None
    diverged: int | None = None
    title: str = ""
    headline: Figure = ACCURACY

    @property
    def figures(self) -> Figures | None:
        """Whether accuracies per device are ``"measured"`` or ``"expected"``; None where the run records neither."""
        return self.evaluation.figures if self.evaluation and self.evaluation.figures else self.park.figures

    @property
    def last(self) -> int:
        """The last round that was finished; 0 where there is none."""
        return self.rounds[-1].number if self.rounds else 0


def collect(paths: Iterable[Path]) -> tuple[RecordedRun, ...]:
    """Read run folders, and folders that contain run folders; runs that have not finished a round are left out there.

    Args:
        paths: folders; one that is named twice, or both by itself and by its parent, is read once.

    Raises:
        SettingError: a path is no run folder and contains none, or a file in it cannot be read.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        folders.update(dict.fromkeys(folder.resolve() for folder in _run_folders(Path(path))))
    if not folders:
        raise SettingError("report: no folder was given. Name run folders, or a folder that contains them.")
    return tuple(read_run(folder) for folder in folders)


def with_references(paths: Iterable[Path]) -> list[Path]:
    """Return folders of runs with those of the references that were made beside a run, after it."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted((*path.glob(f"{REFERENCES_FOLDER}/*"), *path.glob(f"*/{REFERENCES_FOLDER}/*")))
        found += [path, *(one for one in inside if _is_run(one) and _has_begun(one))]
    return found


def _has_begun(folder: Path) -> bool:
    return bool(_lines(folder / "ledger.jsonl")) or (folder / DIVERGED).is_file()


def _run_folders(path: Path) -> list[Path]:
    if _is_run(path):
        return [path]
    inside = sorted(child for child in path.iterdir() if _is_run(child)) if path.is_dir() else []
    started = [child for child in inside if _has_begun(child)]
    if inside and not started:
        raise SettingError(f"{path}: {len(inside)} runs, none of which has finished a round. Wait for the first ones.")
    if not started:
        what = "has no experiment.toml, and neither has a folder in it" if path.is_dir() else "is not a folder"
        raise SettingError(f"{path} is not a run folder: it {what}. Name what `fedfloor run --out` was given.")
    return started


def _is_run(path: Path) -> bool:
    return (path / "experiment.toml").is_file()


def _lines(path: Path) -> list[bytes]:
    """Return a ledger's lines without a last one that was cut off while it was written."""
    *lines, tail = content(path).split(b"\n") if path.exists() else [b""]
    return [*lines, tail] if _is_json(tail) else lines


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def read_run(folder: Path) -> RecordedRun:
    """Read one run folder.

    Raises:
        SettingError: a file is missing or damaged; the message names the file and the line.
    """
    config, tables, settings = experiment(folder / "experiment.toml")
    headline = settings.evaluate.headline
    own = {name: value for name, value in tables.items() if name not in NOT_THE_EXPERIMENT}
    diverged, park = _diverged(folder / DIVERGED), _park(folder / "park.json")
    plan, title = _plan(folder / "plan.json", park)
    final = _evaluation(folder / "evaluation.json") if diverged is None else None  # else of a round before
    return RecordedRun(
        folder=folder,
        name=folder.name if settings.name is None else settings.name,
        method=settings.method.name,
        seed=settings.seed,
        key=json.dumps(own, sort_keys=True, default=str),
        rounds=() if diverged == 1 else read_ledger(folder / "ledger.jsonl", len(park.classes)),
        park=park,
        plan=plan,
        config=config,
        settings=settings,
        planned=settings.rounds,
        on=final.on if final else "validation" if settings.evaluate.on == "validation" else "test",
        evaluation=final,
        diverged=diverged,
        title=title or settings.method.name,
        headline=(
            ACCURACY
            if headline is None
            else named(headline, f"{folder / 'experiment.toml'}: evaluate.headline").within(settings.unit)
        ),
    )


def read_ledger(path: Path, classes: int) -> tuple[RecordedRound, ...]:
    """Read a ledger; a last line that is only partly written is ignored.

    Args:
        path: the ledger.
        classes: F, the number of classes of the run's data.

    Raises:
        SettingError: there is no finished round, or a line is damaged.
    """
    rounds: list[RecordedRound] = []
    spent: NetworkCost | None = NetworkCost()
    advice = "Resume the run, or remove the damaged line."
    for number, text in enumerate(_lines(path), start=1):
        if not text.strip():
            continue
        place = f"{path}, line {number}"
        line = parsed(LineRecord, text, place, "a ledger line", advice)
        if rounds and line.round <= rounds[-1].number:
            raise SettingError(f"{place}: round {line.round} after round {rounds[-1].number}. {advice}")
        if line.by_class is not None and len(line.by_class) != classes:
            raise SettingError(
                f"{place}: accuracies of {len(line.by_class)} classes, park.json has {classes}. {advice}"
            )
        spent = with_round(spent, line.priced)
        rounds.append(_round(line, spent))
    if not rounds:
        raise SettingError(f"{path}: no finished round. Wait for the first one, or resume the run.")
    return tuple(rounds)


def _round(line: LineRecord, spent: NetworkCost | None) -> RecordedRound:
    spread, asked = line.by_device, None if line.priced is None else line.priced.normalise
    whole = spread is not None and None not in (spread.p10, spread.p50, spread.p90)
    return RecordedRound(
        number=line.round,
        accuracy=line.accuracy,
        loss=line.loss,
        train_loss=line.train_loss,
        by_class=line.by_class,
        by_device=Spread(spread.p10, spread.p50, spread.p90) if spread is not None and whole else None,  # type: ignore[arg-type]
        wall_s=line.wall_s or 0.0,
        participants=line.participants or 0,
        lost=line.lost or 0,
        spent=spent,
        normalised=None if asked is None else NetworkCost(asked.seconds, asked.bytes, asked.joules),
        macro_f1=line.macro_f1,
        figures=line.figures,
        headlines={name: Spread(s.p10, s.p50, s.p90, s.devices) for name, s in (line.headlines or {}).items()},
        backdoor=line.backdoor,
    )


def _park(path: Path) -> RecordedPark:
    body = record(ParkRecord, path, "the description of a park")
    devices = tuple(
        ListedDevice(d.factory, d.samples, d.counts, d.name, k if d.device is None else d.device)
        for k, d in enumerate(body.devices)
    )
    return RecordedPark(
        body.dataset, body.classes, devices, body.factories, body.test_samples,
        len(devices) if body.of_devices is None else body.of_devices, tuple(body.untrained_classes.items()),
        body.device_accuracy, body.test_sha256, body.factory_names,
    )  # fmt: skip


def _plan(path: Path, park: RecordedPark) -> tuple[Node | None, str | None]:
    """Return a run's first plan, and its method's name as papers write it; nothing where they cannot be read."""
    if not path.exists():
        return None, None
    try:
        body = record(PlanRecord, path, "a plan")
        plan = from_json(body.plan)
        strange = max(devices(plan), default=-1)
        if strange >= park.of_devices:
            raise SettingError(f"it visits device {strange}, and park.json has {park.of_devices} devices")
    except SettingError as error:  # a picture less; no figure depends on it
        log.warning("%s is damaged and left out (%s).", path, error)
        return None, None
    return plan, body.method


def _evaluation(path: Path) -> Evaluation | None:
    if not path.exists():
        return None
    return evaluation(record(EvaluationRecord, path, "an evaluation", "Resume the run, or remove the file."))


def _diverged(path: Path) -> int | None:
    if not path.exists():
        return None
    return record(DivergedRecord, path, "a diverged round", "Resume the run, or remove the file.").round


def spent(kind: str) -> Callable[[RecordedRound], float | None]:
    """Return what picks out of a ledger line how much of something all rounds up to it cost.

    Args:
        kind: ``"seconds"``, ``"bytes"``, ``"joules"``, or ``"rounds"`` themselves.
    """

    def pick(line: RecordedRound) -> float | None:
        if kind == "rounds":
            return float(line.number)
        return None if line.spent is None else float(getattr(line.spent, kind))

    return pick


@dataclass(frozen=True)
class Privacy:
    """What the censuses of a device come to.

    Args:
        reports: of the device that told most.
        epsilon: ε of all of them together.
        advanced: ε by advanced composition, with ``delta``.
        delta: δ.
        secret: whether real devices drew the noise; a simulation's is drawn from a public seed and protects nobody.
    """

    reports: int
    epsilon: float
    advanced: float
    delta: float
    secret: bool = False


def private_models(run: RecordedRun) -> list[PrivateModelsRecord]:
    """Return what ``privacy.json`` states of a run's models with noise: for a device, and for a sample.

    Raises:
        SettingError: the file is damaged.
    """
    body = _privacy_record(run.folder / "privacy.json")
    return [] if body is None else [one for one in (body.models, body.samples) if one is not None]


def _privacy_record(path: Path) -> PrivacyRecord | None:
    if not path.exists():
        return None
    return record(PrivacyRecord, path, "a statement of privacy", "Resume the run, or remove the file.")


def privacy(run: RecordedRun) -> Privacy | None:
    """Return what ``privacy.json`` says; None where censuses carry no noise, or the run has not ended.

    Raises:
        SettingError: the file is damaged.
    """
    path = run.folder / "privacy.json"
    body = _privacy_record(path)
    if body is None or (body.reports is None and (body.normalise or body.models or body.samples)):
        return None
    if None in (known := (body.reports, body.epsilon, body.epsilon_advanced, body.delta)):
        raise SettingError(
            f"{path} is no statement of privacy: reports, epsilon, epsilon_advanced or delta is missing."
        )
    return Privacy(*known, secret=body.noise == "secret")  # type: ignore[arg-type]
