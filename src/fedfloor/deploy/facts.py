"""Parks whose devices keep their samples: the facts of a sample, from the cloud, and the holding of each device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from statistics import median
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import ranges
from fedfloor.base.errors import MALFORMED, SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.data.dataset import Dataset, Inputs, Made
from fedfloor.data.reading import DeviceSplit
from fedfloor.deploy import checks
from fedfloor.deploy.answered import RUNS, Answers
from fedfloor.engine.limit import KNOWN
from fedfloor.experiment import Experiment
from fedfloor.park.augment import Augmented, pictures_only
from fedfloor.park.build import build, of_tests
from fedfloor.park.local import LocalSets, only_test
from fedfloor.park.normalise import DeviceNormaliser, Normaliser, Surveyed, normaliser, prepared, summed, tables_only
from fedfloor.park.park import Park
from fedfloor.park.statistics import RemoteStatistics, Step, device_sums, standard
from fedfloor.park.survey import RegimeNormaliser, RowQuestion, RowSurvey, added, rows_of
from fedfloor.plan.questions import SURVEY
from fedfloor.runs import keeping
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.kinds import read as read_task
from fedfloor.tasks.task import Task

Floats = tuple[float, ...]
LEAST = 1e-30  # smallest scale or deviation


@dataclass(frozen=True)
class Facts:
    """The description of a sample that all devices share, so that their labels and values have the same meaning.

    Args:
        name: name of the data set.
        classes: names of the classes, in the order of the labels.
        shape: shape of a sample.
        inputs: kind and columns of its values.
        scale: factor from a stored number to its value.
        sums: whether devices send the sums from which the normalisation is computed.
        standard: mean and deviation of each channel over all devices, once they are known.
        question: a survey's question that devices also answer, for the normalisation.
        found: the result of the survey, once it is complete.
        task: task of the model, with the scales and ranges that all devices share; None: classification.
        renews: factories in whose secure sums enough devices have new samples, so that these may be used.
    """

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    inputs: Inputs
    scale: float
    sums: bool
    standard: tuple[Floats, Floats] | None = None
    question: Mapping[str, Any] | None = None
    found: Mapping[str, Any] | None = None
    task: Task | None = None
    renews: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        body = asdict(replace(self, task=None))
        del body["inputs"]["ignored"]  # columns that no one else needs to know
        del body["task"]
        body |= {} if self.task is None else {"task": self.task.describe()}
        if not self.renews:
            del body["renews"]
        for key in ("dialect", "coding", "device_of"):
            if not body["inputs"][key]:
                del body["inputs"][key]
        return body

    @property
    def sample(self) -> Facts:
        """The facts without the question and the statistics of all devices."""
        return replace(self, standard=None, question=None, found=None, renews=())

    @property
    def digest(self) -> str:
        """SHA-256 of the facts as the devices receive them."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    @property
    def known(self) -> RemoteStatistics | None:
        """The normalisation of all devices, for a device's park; None while it is unknown."""
        if self.standard is None:
            return None
        mean, deviation = (np.array(row) for row in self.standard)
        return RemoteStatistics(None, (mean, deviation))


def of(experiment: Experiment, dataset: Dataset) -> Facts:
    """Return the facts of a data set's samples."""
    kind = experiment.data.normalise
    part = normaliser(kind)
    if isinstance(part, Surveyed):
        tables_only(dataset, part.kind)
    if isinstance(part, RegimeNormaliser):
        part.places(dataset.inputs.columns)
    return Facts(
        dataset.name, dataset.classes, dataset.shape, dataset.inputs, dataset.scale, summed(kind, dataset.inputs),
        keeping.standard(experiment), task=None if dataset.task == CLASSIFICATION else dataset.task,
    )  # fmt: skip


def read(value: object) -> Facts:
    """Parse facts as :meth:`Facts.to_dict` serialises them.

    Raises:
        RefusedError: the value has another form.
    """
    try:
        body = dict(value)  # type: ignore[call-overload]
        inputs = dict(body.pop("inputs"))
        inputs["columns"] = tuple(inputs["columns"])
        inputs.pop("ignored", None)
        standard = body.pop("standard")
        both = None if standard is None else tuple([*row] for row in standard)
        classes = tuple(map(str, body.pop("classes")))
        shape = tuple(map(int, body.pop("shape")))
        task = body.pop("task", None)
        renews = tuple(body.pop("renews", ()))
        facts = Facts(**body, classes=classes, shape=shape, inputs=Inputs(**inputs), renews=renews)
        if task is not None:
            facts = replace(facts, task=read_task(dict(task), len(classes), facts.inputs.columns, "the message"))
    except (SettingError, *MALFORMED) as error:
        raise RefusedError("header", f"it does not describe a sample: {error}") from error
    with ranges.of("header"):
        ranges.number(facts.scale, LEAST, checks.SUM, "the scale of a sample's numbers")
        for factory in facts.renews:
            ranges.whole(factory, 0, ranges.DEVICES, "a factory")
        return facts if both is None else replace(facts, standard=read_standard(both, shape[0]))


def read_standard(both: Sequence[object], channels: int) -> tuple[Floats, Floats]:
    """Return a mean and a deviation of each channel as facts state them.

    Raises:
        RefusedError: their number is not ``channels``, a number is not finite, or a deviation is not positive.
    """
    label = "a number of its normalisation"
    lists = ranges.rows([*both], 2, "its normalisation")
    mean, deviation = (ranges.rows(row, channels, "its normalisation of the channels") for row in lists)
    return (
        tuple(ranges.number(value, -checks.SUM, checks.SUM, label) for value in mean),
        tuple(ranges.number(value, LEAST, checks.SUM, label) for value in deviation),
    )


@dataclass(frozen=True)
class Holding:
    """The statistics of a device's samples that it sends to the cloud.

    Args:
        samples: number of samples.
        counts: samples per class, with the noise of ``census_epsilon``.
        sums: (n, S, D) of each channel, see :func:`~fedfloor.park.statistics.device_sums`; empty if not requested.
        digest: SHA-256 of the samples.
        answer: the flattened answer to the facts' question; empty without a question.
        waits: whether new samples are in no secure sum yet, but others were.
        crew: the crew with which the device is in secure sums; "" for none.
    """

    samples: int
    counts: tuple[int, ...]
    sums: tuple[Floats, ...]
    digest: str
    answer: Floats = ()
    waits: bool = field(default=False, compare=False)
    crew: str = field(default="", compare=False)

    def bare(self, *, digest: bool) -> Holding:
        """Return a holding with only the number of samples and, with ``digest``, their digest."""
        sums = tuple((0.0,) * len(row) for row in self.sums)
        return Holding(self.samples, (0,) * len(self.counts), sums, self.digest if digest else "0" * len(self.digest))


def holding(park: Park, device: int, facts: Facts) -> Holding:
    """Return the holding of a device of this park, for the facts' question and sums."""
    sums = tuple(tuple(row.tolist()) for row in device_sums(park.samples(device)[0])) if facts.sums else ()
    counts = tuple(int(count) for count in park.classes(device))
    question = None if facts.question is None else RowQuestion.from_dict(facts.question)
    answer = () if question is None else tuple(question.answer(rows_of(park, device)).ravel().tolist())
    return Holding(int(park.sizes[device]), counts, sums, park.dataset.digest, answer)


def read_holding(value: object, facts: Facts) -> Holding:
    """Return the checked holding that a device sent as JSON.

    Raises:
        RefusedError: the value is malformed, out of range, or for other classes.
    """
    try:
        body = dict(value)  # type: ignore[call-overload]
        samples, counts, sums, digest = (body[name] for name in ("samples", "counts", "sums", "digest"))
        waits = body.get("waits") is True
        crew = body.get("crew", "")
    except MALFORMED as error:
        raise RefusedError("header", f"its holding is malformed: {error}") from error
    with ranges.of("header"):
        samples = ranges.whole(samples, 1, checks.SAMPLES, "its number of samples")
        counts = ranges.rows(counts, len(facts.classes), "its census")
        counts = [ranges.whole(n, -ranges.COUNT, ranges.COUNT, "a count of its classes") for n in counts]
        rows = [ranges.rows(row, facts.shape[0], "its sums") for row in ranges.rows(sums, 3 * facts.sums, "its sums")]
        known = read_sums(rows, samples, facts)
        digest = ranges.matching(digest, checks.DIGEST, "its digest is not 64 hexadecimal digits.")
        known_answer = read_answer(body.get("answer", []), samples, facts)
        crew = ranges.matching(crew, checks.CREW, "its crew is malformed.")
    return Holding(samples, tuple(counts), known, digest, known_answer, waits, crew)


def read_answer(values: object, samples: int, facts: Facts) -> Floats:
    """Return a device's answer to the facts' question, checked against the range for its number of samples.

    Raises:
        RefusedError: the answer has another length, or a number is out of range.
    """
    if facts.question is None:
        ranges.rows(values, 0, "its answer")
        return ()
    question = RowQuestion.from_dict(facts.question)
    low, high = question.bounds(facts.shape[0], samples * prod(facts.shape[1:]), checks.SUM)
    given = ranges.rows(values, low.size, "its answer")
    limits = zip(given, low.ravel().tolist(), high.ravel().tolist(), strict=True)
    return tuple(ranges.number(number, least, most, "a number of its answer") for number, least, most in limits)


Answered = list[tuple[RowQuestion, NDArray[np.float64]]]  # questions with the answers of all devices [K, …]


def survey(gather: Callable[[Facts], Sequence[Holding]], facts: Facts, answers: Answered) -> RowSurvey:
    """Return a function that conducts surveys among devices that hold their own samples.

    Args:
        gather: returns the holdings of all devices, with their answers to the facts' question.
        answers: the list to which questions and answers are added.
    """

    def answer_all(question: RowQuestion) -> NDArray[np.float64]:
        form = question.shape(facts.shape[0])
        held = gather(replace(facts, question=question.to_dict()))
        answers.append((question, np.array([np.array(reply.answer).reshape(form) for reply in held])))
        return added(answers[-1][1])

    return RowSurvey(answer_all)


def read_sums(rows: Sequence[Sequence[object]], samples: int, facts: Facts) -> tuple[Floats, ...]:
    """Return a device's (n, S, D) of each channel, checked against the range for its number of samples."""
    if not rows:
        return ()
    most = samples * prod(facts.shape[1:])
    largest = 255 if facts.inputs.kind == "image" else checks.SUM
    count = tuple(ranges.number(n, 0, most, "a count of its values") for n in rows[0])
    total = (ranges.number(v, -bound, bound, "a sum") for v, bound in
             zip(rows[1], (min(largest * n, checks.SUM) for n in count), strict=True))  # fmt: skip
    squares = (ranges.number(v, 0, bound, "a sum of squares") for v, bound in
               zip(rows[2], (min(largest**2 * n, checks.SUM) for n in count), strict=True))  # fmt: skip
    return count, tuple(total), tuple(squares)


class Questions:
    """The survey questions that a device answers, limited to those of a few surveys.

    Args:
        part: the experiment's normaliser.
        answers: the answers that it has given.
    """

    def __init__(self, part: Normaliser | None, answers: Answers) -> None:
        self._part = part
        self._answers = answers

    def admit(self, question: Mapping[str, Any], sensors: tuple[str, ...]) -> None:
        """Count a question; a repeated question reveals nothing more and does not count.

        Raises:
            RefusedError: the experiment's normalisation has no questions, none of this kind or size, or fewer of them.
        """
        part = self._part
        if not isinstance(part, Surveyed):
            raise RefusedError("question", "the experiment's normalisation has no questions for devices.")
        try:
            parsed = RowQuestion.from_dict(question)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RefusedError("question", f"it is malformed: {error}") from error
        if parsed.kind not in part.asks:
            raise RefusedError("question", f"normalise = '{part.kind}' has no question '{parsed.kind}'.")
        if parsed.clusters is not None and not (
            isinstance(part, RegimeNormaliser) and np.array_equal(parsed.clusters.columns, part.places(sensors))
        ):
            raise RefusedError("question", "its clusters use other columns than the experiment's.")
        if parsed.numbers > part.largest(len(sensors)):
            raise RefusedError("question", f"it has more numbers than {part.largest(len(sensors))}.")
        self._answers.admit(SURVEY.name, question, RUNS * part.questions)


def park(
    experiment: Experiment, facts: Facts, factory_of: Sequence[int], held: Sequence[Holding],
    tests_here: Dataset | None = None, steps: tuple[Step, ...] = (), sums: NDArray[np.float64] | None = None,
) -> Park:  # fmt: skip
    """Return the park of devices with these holdings; it raises SettingError if training samples are read.

    Args:
        tests_here: the data set with the park's test samples, partly held out for validation; None: no tests.
        sums: the sums of each device's values [K, 3, C], from a survey; None: not asked for.

    Raises:
        SettingError: the number of devices differs, a claim is implausible, or the experiment needs the samples.
    """
    data = experiment.data
    expected = experiment.park.devices
    if expected not in (None, len(held)):
        raise SettingError(f"[park] devices = {expected}: the edges list {len(held)}. Make both the same.")
    check_claims(experiment, held)
    first = np.cumsum([0, *(entry.samples for entry in held)], dtype=np.int64)
    digests = [tests_here.digest if tests_here is not None else "", *(entry.digest for entry in held)]
    digest = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
    known = facts.known.standard if facts.known is not None else None
    if facts.sums and known is None:
        known = standard((tuple(map(np.array, entry.sums)) for entry in held), facts.scale)  # type: ignore[misc]
    if facts.sums:
        sums = np.array([entry.sums for entry in held])
    elif sums is not None and len(sums) != len(held):  # devices joined or left during the survey
        sums = None
    remote = RemoteStatistics(np.array([entry.counts for entry in held], np.int64), known, sums)
    part = normaliser(data.normalise)
    away = part.away() if isinstance(part, DeviceNormaliser) else None
    if (
        isinstance(part, DeviceNormaliser) and tests_here is not None
    ):  # as in a simulation: by the local rows of their devices
        tests_here = prepared(build(tests_here, seed=experiment.seed), part).dataset
    if isinstance(data.stream, Augmented):
        pictures_only(remote_dataset(facts, first, digest, tests_here))

    def testing(tests: Dataset | None) -> Park:
        remote_park = Park(
            remote_dataset(facts, first, digest, tests), LocalSets(first), np.array(factory_of, np.int32), data.stream,
            experiment.seed, census_epsilon=experiment.park.census_epsilon, mobility=experiment.park.mobility,
            remote=remote, normalised=away,
        )  # fmt: skip
        return apply_found(remote_park, experiment, facts, steps)

    on = experiment.evaluate.on
    share = experiment.evaluate.validation
    if tests_here is None or on == "test":
        return testing(tests_here)
    whole = data.path is not None and isinstance(data.split, DeviceSplit)
    remain, chosen = of_tests(tests_here, share, experiment.seed, whole_devices=whole)
    return testing(chosen) if on == "validation" else replace(testing(remain), validating=testing(chosen))


def apply_found(park: Park, experiment: Experiment, facts: Facts, steps: tuple[Step, ...] = ()) -> Park:
    """Return a park normalised by the result of a survey; unchanged without a survey or before its end."""
    part = normaliser(experiment.data.normalise)
    if not isinstance(part, Surveyed) or facts.found is None:
        return park
    return part.from_dict(facts.found, facts.shape[0]).prepare(park, steps)


def check_claims(experiment: Experiment, held: Sequence[Holding]) -> None:
    """Check that no device claims far more samples than the others, or class counts that do not match its samples.

    Raises:
        SettingError: a device's claims fail a check; names the device.
    """
    for why in doubts(experiment, dict(enumerate(held))).values():
        raise SettingError(why, key="claims")


def doubts(experiment: Experiment, held: Mapping[int, Holding]) -> dict[int, str]:
    """Return the devices whose claims fail :func:`check_claims`, each with the reason."""
    most = experiment.deploy.samples_limit
    noise = ranges.noise(experiment.park.census_epsilon)
    middle = median(entry.samples for entry in held.values())
    found = dict[int, str]()
    for device, entry in held.items():
        if most and len(held) >= KNOWN and entry.samples > most * middle:
            found[device] = (
                f"device {device} claims {entry.samples} samples, the median of {len(held)} devices is {middle:g}: at "
                f"most deploy.samples_limit = {most:g} times as many. Inspect that device, remove it from the park "
                "file, or set a higher limit in the experiment file."
            )
            continue
        try:
            ranges.counts(list(entry.counts), len(entry.counts), entry.samples, noise, -noise)
        except RefusedError as error:
            found[device] = f"device {device}: {error.text} Inspect that device."
    return found


def with_statistics(facts: Facts, park: Park) -> Facts:
    """Return facts with the normalisation computed from all devices."""
    if park.remote is None or park.remote.standard is None:
        return facts
    mean, deviation = (tuple(values.tolist()) for values in park.remote.standard)
    return replace(facts, standard=(mean, deviation))


def remote_dataset(
    facts: Facts, first: np.ndarray[Any, np.dtype[np.int64]], digest: str, tests_here: Dataset | None
) -> Dataset:
    """Return a data set without training samples, which stay with the devices; tests are those of ``tests_here``."""

    def refuse(*_: object) -> NoReturn:
        raise SettingError("this needs the devices' samples, which are not available at the cloud.")

    none = np.zeros(0, np.int64)
    dataset = Dataset(
        facts.name, facts.classes, facts.shape, none, none, None, None, digest, refuse, refuse, scale=facts.scale,
        inputs=facts.inputs, made=Made(first, refuse), task=facts.task or CLASSIFICATION,
    )  # fmt: skip
    if tests_here is None:
        return dataset
    dataset = replace(
        dataset, y_test=tests_here.y_test, target_test=tests_here.target_test, take_test=tests_here.take_test,
        recording_test=tests_here.recording_test, recording_of=tests_here.recording_of,
    )  # fmt: skip
    if tests_here.owner_test is None or not np.isin(tests_here.owner_test, only_test(tests_here)).all():
        return dataset  # the device of a training owner is unknown at the cloud
    return replace(dataset, owner_test=tests_here.owner_test, owned=tests_here.owned)
