"""Reading of run folders: the experiment, the park, the ledger, the first plan, the final evaluation."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from fedfloor.base.checking import parsed
from fedfloor.base.errors import SettingError
from fedfloor.base.names import MEAN_ABS_Z, PCA, REFERENCES_FOLDER
from fedfloor.plan.nodes import Node
from fedfloor.plan.text import from_json
from fedfloor.plan.walk import devices
from fedfloor.report.evaluation_records import EvaluationRecord
from fedfloor.report.numbers import with_round
from fedfloor.report.record_types import Figures
from fedfloor.report.records import (
    AnswerRecord,
    DevicesRecord,
    DivergedRecord,
    ExperimentRecord,
    FailedRecord,
    LineRecord,
    NetworkCost,
    ParkRecord,
    PlanRecord,
    PrivacyRecord,
    PrivateModelsRecord,
    content,
    experiment,
    record,
)
from fedfloor.tasks.figures import ACCURACY, Figure
from fedfloor.tasks.metric import recorded

Matrix = tuple[tuple[int, ...], ...]
T = TypeVar("T")


def summed(evaluations: Sequence[EvaluationRecord]) -> Matrix:
    """Return the sum of confusion matrices of the same classes.

    >>> evaluation = EvaluationRecord(1, ("a", "b"), ((1, 2), (0, 3)))
    >>> summed([evaluation, evaluation])
    ((2, 4), (0, 6))
    """
    return tuple(map(tuple, np.sum([each.confusion for each in evaluations], axis=0).tolist()))


Place = tuple[int, str | None, int | None]  # number, name and factory of a device or a factory


def by_place(
    evaluations: Sequence[EvaluationRecord], kind: Literal["devices", "factories", "shared"], figure: Figure = ACCURACY
) -> dict[Place, list[float]]:
    """Return the values of a metric by device or factory, one per evaluation that has it.

    With ``shared`` the values are those of the shared model on devices. Devices of two seeds with the same number and
    another name, as made data have, are two devices, whose values have no common mean.
    """
    places: dict[Place, list[float]] = defaultdict(list)
    for evaluation in evaluations:
        record = evaluation.shared if kind == "shared" else evaluation
        known = {place.number: place.key for place in evaluation.devices or ()} if kind == "shared" else {}
        for place in getattr(record, "factories" if kind == "factories" else "devices", None) or ():
            values = places[known.get(place.number) or place.key]
            if (value := place.value(figure)) is not None:
                values.append(value)
    return dict(sorted(places.items(), key=lambda item: item[0][0]))  # of equal numbers in the order of evaluations


def frequent(matrix: Matrix, classes: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Return the five most frequent confusions: true class, predicted class, number, and samples of the true class.

    >>> frequent(((8, 2), (0, 3)), ["a", "b"])
    [('a', 'b', 2, 10)]
    """
    wrong = [(count, i, j) for i, row in enumerate(matrix) for j, count in enumerate(row) if i != j and count > 0]
    wrong.sort(key=lambda item: (-item[0], item[1], item[2]))
    return [(classes[i], classes[j], count, sum(matrix[i])) for count, i, j in wrong[:5]]


log = logging.getLogger(__name__)

# keys that differ between runs of an experiment
NOT_THE_EXPERIMENT = ("name", "seed", "provenance")
DIVERGED = "diverged.json"
FAILED = "failed.json"


@dataclass(frozen=True)
class RecordedRound(LineRecord):
    """A line of the ledger, with the cost of all rounds up to it, which is None without prices."""

    spent: NetworkCost | None = None


@dataclass(frozen=True)
class RecordedRun:
    """The content of a run folder.

    Args:
        key: the experiment without name, seed and provenance; equal for all seeds of an experiment.
        rounds: the ledger; empty only if training diverged in the first round.
        plan: the plan of the first round; None if it cannot be read.
        config: the resolved configuration as text; ``settings`` holds the fields used by reports.
        planned: number of scheduled rounds; None if the configuration lacks it.
        on: the data of its evaluations, ``"test"`` or ``"validation"``.
        evaluation: the evaluation of the final model; None if there is none.
        diverged: the round in which training diverged; None if it did not.
        failed: the error that ended it, with the round; None without one.
        title: the method's name as written in papers, if the run records it.
        headline: the metric by which runs are compared.
    """

    folder: Path
    name: str
    method: str
    seed: int
    key: str
    rounds: tuple[RecordedRound, ...]
    park: ParkRecord
    plan: Node | None
    config: str
    settings: ExperimentRecord
    planned: int | None = None
    on: str = "test"
    evaluation: EvaluationRecord | None = None
    diverged: int | None = None
    failed: FailedRecord | None = None
    title: str = ""
    headline: Figure = ACCURACY

    @property
    def figures(self) -> Figures | None:
        """Whether accuracies per device are ``"measured"`` or ``"expected"``; None if the run records neither."""
        return (self.evaluation and self.evaluation.device_accuracy) or self.park.device_accuracy

    @property
    def scale(self) -> str:
        """The detector whose reconstruction errors have a scale of their own; "" for residuals of networks."""
        return self.settings.kind if self.settings.kind in (PCA, MEAN_ABS_Z) else ""

    @property
    def alarms(self) -> float | None:
        """The share of test samples with an alarm in the last round, if none of them is marked as an anomaly."""
        figures = self.rounds[-1].figures if self.rounds else None
        unmarked = figures is not None and figures.get("missed") is None
        return figures.get("false alarms") if unmarked and figures is not None else None

    @property
    def seeded(self) -> bool:
        """Whether another seed may give another result."""
        return self.evaluation is None or self.evaluation.seeded

    @property
    def last(self) -> int:
        """The last finished round; 0 before the first."""
        return self.rounds[-1].round if self.rounds else 0

    @property
    def returned(self) -> int | None:
        """The round whose model is that of the last round, by ``evaluate.patience``; None without, or if it goes on."""
        return self.evaluation.returned if self.evaluation else None

    @property
    def finished(self) -> bool:
        """Whether it has done all scheduled rounds, or ended by itself."""
        return self.planned is None or self.last >= self.planned or self.ended

    @property
    def ended(self) -> bool:
        """Whether it ended by itself: by ``evaluate.patience``, or as no further round changes its model."""
        return self.evaluation is not None and (self.evaluation.returned is not None or self.evaluation.over)


def collect(paths: Iterable[Path]) -> tuple[RecordedRun, ...]:
    """Read run folders, and folders that contain run folders; contained runs without a finished round are left out.

    Args:
        paths: folders; a folder given twice, or given along with its parent, is read once.

    Raises:
        SettingError: a path is not a run folder and contains none, or a file in it cannot be read.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        folders.update(dict.fromkeys(folder.resolve() for folder in _run_folders(Path(path))))
    if not folders:
        raise SettingError("report: no folder was given. Name run folders, or a folder that contains them.")
    return tuple(read_run(folder) for folder in folders)


def with_references(paths: Iterable[Path]) -> list[Path]:
    """Return folders of runs, each followed by the folders of its references."""
    folders: list[Path] = []
    for path in map(Path, paths):
        inside = sorted((*path.glob(f"{REFERENCES_FOLDER}/*"), *path.glob(f"*/{REFERENCES_FOLDER}/*")))
        folders += [path, *(folder for folder in inside if _is_run(folder) and _has_begun(folder))]
    return folders


def _has_begun(folder: Path) -> bool:
    return bool(_lines(folder / "ledger.jsonl")) or (folder / DIVERGED).is_file()


def without_rounds(paths: Iterable[Path]) -> list[Path]:
    """Return the folders, in folders of runs, of runs that ended before their first round, or are in it."""
    inside = (child for path in paths if not _is_run(path) and path.is_dir() for child in sorted(path.iterdir()))
    return [child for child in inside if _is_run(child) and not _has_begun(child)]


def _run_folders(path: Path) -> list[Path]:
    if _is_run(path):
        return [path]
    inside = sorted(child for child in path.iterdir() if _is_run(child)) if path.is_dir() else []
    started = [child for child in inside if _has_begun(child)]
    if inside and not started:
        raise SettingError(f"{path}: {len(inside)} runs, none of which has finished a round. Wait for the first round.")
    if not started:
        reason = "has no experiment.toml, nor does a folder in it" if path.is_dir() else "is not a folder"
        raise SettingError(
            f"{path} is not a run folder: it {reason}. Name the folder of `fedfloor run --out`.", key="folder-of-run"
        )
    return started


def _is_run(path: Path) -> bool:
    return (path / "experiment.toml").is_file()


def _lines(path: Path) -> list[bytes]:
    """Return a ledger's complete lines, without an unfinished last line."""
    *lines, tail = content(path).split(b"\n") if path.exists() else [b""]
    return [*lines, tail] if _is_json(tail) else lines


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _optional(kind: type[T], path: Path, noun: str) -> T | None:
    return record(kind, path, noun, "Resume the run, or remove the file.") if path.exists() else None


def read_run(folder: Path) -> RecordedRun:
    """Read one run folder.

    Raises:
        SettingError: a file is missing or damaged; the message names the file and the line.
    """
    config, tables, settings = experiment(folder / "experiment.toml")
    headline = settings.evaluate.headline
    own = {name: value for name, value in tables.items() if name not in NOT_THE_EXPERIMENT}
    ending = _optional(DivergedRecord, folder / DIVERGED, "a diverged round")
    diverged = None if ending is None else ending.round
    park = record(ParkRecord, folder / "park.json", "the description of a park")
    plan, title = read_plan(folder / "plan.json", park)
    final = None  # after divergence, an evaluation is that of an earlier round
    if diverged is None:
        final = _optional(EvaluationRecord, folder / "evaluation.json", "an evaluation")
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
        failed=_optional(FailedRecord, folder / FAILED, "a failed round"),
        title=title or settings.method.name,
        headline=(
            ACCURACY
            if headline is None
            else recorded(headline, f"{folder / 'experiment.toml'}: evaluate.headline").within(settings.unit)
        ),
    )


def read_ledger(path: Path, classes: int) -> tuple[RecordedRound, ...]:
    """Read the ledger of a run with ``classes`` classes; an unfinished last line is ignored.

    Raises:
        SettingError: no round is finished, or a line is damaged; the message names the line.
    """
    rounds: list[RecordedRound] = []
    spent: NetworkCost | None = NetworkCost()
    advice = "Resume the run, or remove the damaged line."
    for number, text in enumerate(_lines(path), start=1):
        if not text.strip():
            continue
        place = f"{path}, line {number}"
        line = parsed(LineRecord, text, place, "a ledger line", advice)
        if rounds and line.round <= rounds[-1].round:
            raise SettingError(
                f"{place}: round {line.round} after round {rounds[-1].round}. {advice}", key="damaged-ledger"
            )
        if line.by_class is not None and len(line.by_class) != classes:
            raise SettingError(
                f"{place}: accuracies of {len(line.by_class)} classes, park.json has {classes}. {advice}"
            )
        spent = with_round(spent, line.priced)
        rounds.append(RecordedRound(**vars(line), spent=spent))
    if not rounds:
        raise SettingError(
            f"{path}: no finished round. Wait for the first one, or resume the run.", key="damaged-ledger"
        )
    return tuple(rounds)


def read_plan(path: Path, park: ParkRecord) -> tuple[Node | None, str | None]:
    """Return the plan of a run's first round and its method's name as written in papers; None if unreadable."""
    if not path.exists():
        return None, None
    try:
        body = record(PlanRecord, path, "a plan")
        plan = from_json(body.plan)
        strange = max(devices(plan), default=-1)
        if strange >= park.size:
            raise SettingError(f"it visits device {strange}, and park.json has {park.size} devices")
    except SettingError as error:  # only the drawing is missing then; no number depends on it
        log.warning("%s is damaged and left out (%s).", path, error)
        return None, None
    return plan, body.method


def spent(kind: str) -> Callable[[RecordedRound], float | None]:
    """Return a function from a ledger line to the ``seconds``, ``bytes``, ``joules`` or ``rounds`` up to it."""

    def pick(line: RecordedRound) -> float | None:
        if kind == "rounds":
            return float(line.round)
        return None if line.spent is None else float(getattr(line.spent, kind))

    return pick


def private_models(run: RecordedRun) -> list[PrivateModelsRecord]:
    """Return the statements of ``privacy.json`` on a run's noisy models, for protected devices and samples.

    Raises:
        SettingError: the file is damaged.
    """
    body = _optional(PrivacyRecord, run.folder / "privacy.json", "a statement of privacy")
    return [] if body is None else [models for models in (body.models, body.samples) if models is not None]


def exact_answers(run: RecordedRun) -> dict[str, AnswerRecord]:
    """Return name → the numbers of a run that each device sends without noise, as ``privacy.json`` lists them.

    Raises:
        SettingError: the file is damaged.
    """
    body = _optional(PrivacyRecord, run.folder / "privacy.json", "a statement of privacy")
    return {} if body is None else dict(body.answers or {})


def over_rounds(run: RecordedRun) -> dict[int, list[tuple[int, float]]]:
    """Return device → the rounds of a run with its headline on the device; {} where they are not recorded.

    Raises:
        SettingError: the file is damaged; the message names the line.
    """
    path = run.folder / "devices.jsonl"
    found = defaultdict[int, list[tuple[int, float]]](list)
    for number, text in enumerate(_lines(path), start=1):
        line = parsed(DevicesRecord, text, f"{path}, line {number}", "a line of devices", "Remove the file.")
        if line.round > run.last or line.headline != run.headline.name:
            continue
        for device, value in line.devices.items():
            if value is not None:
                found[device].append((line.round, value))
    return dict(found)


def privacy(run: RecordedRun) -> PrivacyRecord | None:
    """Return the privacy of a run's censuses; None if they contain no noise or the run has not ended.

    Raises:
        SettingError: the file is damaged.
    """
    path = run.folder / "privacy.json"
    body = _optional(PrivacyRecord, path, "a statement of privacy")
    if body is None or (body.reports is None and (body.normalise or body.models or body.samples or body.answers)):
        return None
    if None in (body.reports, body.epsilon, body.epsilon_advanced, body.delta):
        raise SettingError(
            f"{path} is not a statement of privacy: reports, epsilon, epsilon_advanced or delta is missing."
        )
    return body
