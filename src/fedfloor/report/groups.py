"""Groups of runs that differ only in their seed, their headline, and checks that they are comparable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from fedfloor.base.errors import SettingError
from fedfloor.base.names import REFERENCES
from fedfloor.report.evaluation_records import EvaluationRecord
from fedfloor.report.ledger import RecordedRound, RecordedRun
from fedfloor.report.record_types import Figures
from fedfloor.report.records import HeadlineRecord
from fedfloor.tasks.figures import ACCURACY, Figure

CLASSES = "classification"
ROUNDING = 1e-9  # largest difference that is rounding, as a share of the largest value
T = TypeVar("T")
Against = Callable[[RecordedRound], float | None]


class Label(str):
    """The label of a group; ``shown`` holds the method's name as written in papers."""

    shown: str


def display_name(label: str) -> str:
    """Return a group's label with the method's name as written in papers."""
    return label.shown if isinstance(label, Label) else label


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed.

    Args:
        label: the method's name with its replaced parts, and the experiment's name if the method has several settings.
        runs: the runs in the order of their seeds.
    """

    label: Label
    runs: tuple[RecordedRun, ...]

    @property
    def whole(self) -> tuple[RecordedRun, ...]:
        """The runs that did not diverge."""
        return tuple(run for run in self.runs if run.diverged is None)

    @property
    def drawn(self) -> tuple[RecordedRun, ...]:
        """The runs averaged in curves: those that did not diverge, or, if all did, all up to their divergence."""
        return self.whole or tuple(run for run in self.runs if run.rounds)

    @property
    def finals(self) -> list[EvaluationRecord]:
        """The evaluations of the group's final models."""
        return [run.evaluation for run in self.runs if run.evaluation]

    def last_lines(self, read: Callable[[RecordedRound], object]) -> tuple[RecordedRound, ...]:
        """Return the lines of the last round in which every seed has a metric, one per run; () if there is none.

        Of runs that ended by themselves, each has its own last round. Diverged runs are left out, as their
        last good round is not the end of their schedule.
        """
        if self.whole and all(run.ended and read(run.rounds[-1]) is not None for run in self.whole):
            return tuple(run.rounds[-1] for run in self.whole)
        having = [{line.round: line for line in run.rounds if read(line) is not None} for run in self.whole]
        common = set.intersection(*(set(by_round) for by_round in having)) if having else set()
        return tuple(by_round[max(common)] for by_round in having) if common else ()

    def last_spreads(self, figure: Figure) -> list[HeadlineRecord]:
        """Return the spread of a metric over devices in the last round in which every seed has one."""
        lines = self.last_lines(lambda line: line.spread(figure))
        return [spread for line in lines if (spread := line.spread(figure))]


class MedianDevice(Figure):
    """A metric of the median device, for models that differ between devices."""

    @property
    def name(self) -> str:
        """The name, such as ``"median device's accuracy"``."""
        return f"median device's {super().name}"

    @property
    def key(self) -> str:
        """The key in rows of JSON, such as ``"median_accuracy"``."""
        return f"median_{super().key}"

    def read(self, line: Any) -> float | None:
        """Return the metric of the median device in a ledger line; None if it is missing."""
        spread = line.spread(Figure(self.kind, self.of, self.own))
        return None if spread is None else float(spread.p50)


class Compared(tuple[Group, ...]):
    """Groups of runs in a comparison, and their common properties."""

    @cached_property
    def runs(self) -> list[RecordedRun]:
        """The runs of all groups."""
        return [run for group in self for run in group.runs]

    @cached_property
    def recorded(self) -> Figure:
        """The common headline metric of the runs; the accuracy, which every run has, if headlines differ."""
        return common({run.headline for run in self.runs}, ACCURACY)

    @cached_property
    def headline(self) -> Figure:
        """The metric by which groups are ranked: :attr:`recorded`, or that of the median device.

        The latter where devices have different models and no test sample belongs to a device: the mean over all
        models on all samples would count each model mostly on samples that its devices never have.
        """
        personal = any(run.evaluation and (run.evaluation.cohorts or run.evaluation.shared) for run in self.runs)
        median = personal and self.figures == "expected" and self.placed == self.recorded
        figure = self.recorded
        return MedianDevice(figure.kind, figure.of, figure.own) if median else figure

    @cached_property
    def task(self) -> str:
        """The common kind of task of the runs; classification if the kinds differ."""
        return common({run.settings.task for run in self.runs}, CLASSES)

    @cached_property
    def placed(self) -> Figure:
        """The metric of devices and factories: the headline, or the accuracy if the headline is not recorded.

        Older runs do not record it, nor do runs without a device that has both classes; the loss is never recorded.
        """
        known = [run for run in self.runs if run.rounds]
        headline = common({run.headline for run in known}, ACCURACY)
        recorded = all(any(line.spread(headline) for line in run.rounds) for run in known)
        return headline if recorded else ACCURACY

    @property
    def by_place(self) -> bool:
        """Whether :attr:`placed` describes a device: an accuracy is no metric of a task without classes."""
        return self.placed == self.recorded or self.task == CLASSES

    @cached_property
    def figures(self) -> Figures | None:
        """Whether the accuracies per device are ``"measured"`` or ``"expected"`` in all runs; None if runs differ."""
        return common({run.figures for run in self.runs}, None)

    @property
    def several(self) -> bool:
        """Whether a group has several seeds."""
        return any(len(group.runs) > 1 for group in self)


def common(values: Set[T], otherwise: T) -> T:
    """Return the only distinct value; ``otherwise`` if values differ or none is given.

    >>> common({1}, 0), common({1, 2}, 0), common(set(), 0)
    (1, 0, 0)
    """
    return next(iter(values)) if len(values) == 1 else otherwise


@dataclass(frozen=True)
class Curve:
    """A metric against rounds: the mean over seeds and, with two seeds or more, its 95 % half width.

    Args:
        rounds: the rounds that every seed evaluated, or the mean cost over seeds up to each of these rounds.
        mean: one value per round.
        half_width: one value per round, None with one seed.
    """

    rounds: tuple[float, ...]
    mean: tuple[float, ...]
    half_width: tuple[float, ...] | None


def groups(runs: Iterable[RecordedRun]) -> Compared:
    """Group runs by experiment, in the order of the experiments' first runs.

    A second run of the same experiment and seed is not a second sample and forms its own group.
    """
    experiments: dict[tuple[str, int], dict[int, RecordedRun]] = {}
    for run in runs:
        copy = 0
        while run.seed in experiments.get((run.key, copy), {}):
            copy += 1
        experiments.setdefault((run.key, copy), {})[run.seed] = run
    members = [tuple(by_seed[seed] for seed in sorted(by_seed)) for by_seed in experiments.values()]
    labels = _labels([runs[0] for runs in members])
    return Compared(Group(_shown(label, runs[0]), runs) for label, runs in zip(labels, members, strict=True))


def contestants(compared: Compared) -> Compared:
    """Return the groups of methods, without references; all groups if there are only references."""
    return Compared(group for group in compared if group.runs[0].method not in REFERENCES) or compared


def _shown(text: str, run: RecordedRun) -> Label:
    label = Label(text)
    label.shown = run.title + text.removeprefix(run.method)
    return label


def _labels(firsts: Sequence[RecordedRun]) -> list[str]:
    """Return the shortest labels that differ: method, then with the experiment's name, the folder's, or a number."""
    tries: tuple[Callable[[RecordedRun], str], ...] = (
        composed,
        lambda run: f"{composed(run)} ({run.name})",
        lambda run: f"{composed(run)} ({run.folder.name})",
    )
    for make in tries:
        labels = [make(run) for run in firsts]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{composed(run)} ({i})" for i, run in enumerate(firsts, start=1)]


def composed(run: RecordedRun) -> str:
    """Return a run's method with the objective, mixing rule and server that replace its own; a given name alone."""
    tables = (run.settings.methods.get(run.method), run.settings.method)  # the experiment's part takes precedence
    names = [run.method]
    if getattr(tables[0], "method", None) is not None:
        return run.method
    for part in ("objective", "mix", "edge_mix", "server"):
        given = next((value for table in tables if (value := getattr(table, part, None)) is not None), None)
        if given is not None:
            names.append(given if isinstance(given, str) else str(given.get("kind", "?")))
    return " + ".join(names)


def varied(values: Sequence[float]) -> bool:
    """Return whether values differ by more than rounding errors, which show nothing about the error of their mean.

    >>> varied([0.9 - 0.8, 0.8 - 0.7]), varied([0.1, 0.1001])
    (False, True)
    """
    return bool(values) and max(values) - min(values) > ROUNDING * max(map(abs, values))


def half_width(values: Sequence[float]) -> float | None:
    """Return the half width of the 95 % Student-t interval of a mean: t(0.975, n − 1) · s / √n; None for one value.

    0 for values that are not :func:`varied`.

    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.484
    """
    n = len(values)
    if n < 2:
        return None
    if not varied(values):
        return 0.0
    from scipy.special import stdtrit  # the function behind scipy.stats.t.ppf, whose import takes a second

    mean = sum(values) / n
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)


def values(run: RecordedRun, read: Callable[[RecordedRound], float | None]) -> dict[int, float]:
    """Return a metric per round, without the rounds that do not have it."""
    return {line.round: value for line in run.rounds if (value := read(line)) is not None}


def curve(group: Group, read: Callable[[RecordedRound], float | None], against: Against | None = None) -> Curve:
    """Return a metric's mean over the seeds that did not diverge, up to the end of the shortest of these runs.

    Args:
        read: returns the metric of a ledger line.
        against: returns the cost on the horizontal axis; default: the round.
    """
    series = [values(run, read) for run in group.drawn]
    places = [values(run, against or (lambda line: line.round)) for run in group.drawn]
    common = sorted(set.intersection(*(set(figures) for figures in (*series, *places)))) if series else []
    samples = [[figures[number] for figures in series] for number in common]
    mean = tuple(sum(sample) / len(sample) for sample in samples)
    rounds = [sum(costs[number] for costs in places) / len(places) for number in common] if against else common
    widths = None if len(series) < 2 else tuple(half_width(sample) or 0.0 for sample in samples)
    return Curve(tuple(rounds), mean, widths)


# keys of [data] that do not affect the test samples
ELSEWHERE = ("name", "root", "path", "partition", "stream", "normalise", "samples_per_device")


def check_same_test(runs: Iterable[RecordedRun]) -> None:
    """Check that runs were evaluated on the same data, so that their metrics can be compared.

    Runs with a common seed must have the same test samples, by their digests if both are recorded, otherwise by the
    other records. With different seeds only the data set, its classes and the kind of data (test or validation) must
    be the same, as splits and generated data depend on the seed.

    Raises:
        SettingError: two runs were evaluated on different data; both are named, with the difference of the data.
    """
    first: dict[int, RecordedRun] = {}
    for run in runs:
        other = first.get(run.seed) or next(iter(first.values()), run)
        first.setdefault(run.seed, run)
        if different := list(_different(other, run)):
            raise SettingError(
                f"{other.folder} and {run.folder} were measured on different data, so that their metrics are not "
                f"comparable: {'; '.join(different)}. Report them separately.",
                key="runs-differ",
            )


def _different(first: RecordedRun, second: RecordedRun) -> Iterator[str]:
    digests = first.park.test_sha256, second.park.test_sha256
    known = None not in digests
    if known and digests[0] == digests[1]:
        return
    contents = [run.settings.provenance.get("data_sha256") for run in (first, second)]
    same = None not in contents and contents[0] == contents[1]
    facts: list[tuple[str, Any, Any]] = [("measured on", first.on, second.on)]
    if not same:
        facts += [("data set", first.park.dataset, second.park.dataset)]
        facts += [("classes", len(first.park.classes), len(second.park.classes))]
    if first.seed == second.seed:
        facts += [("test samples", first.park.test_samples, second.park.test_samples)]
        if None not in contents:
            facts.append(("content (data_sha256)", str(contents[0])[:12], str(contents[1])[:12]))
        a, b = first.settings.data, second.settings.data
        facts += [(f"[data] {key}", a.get(key), b.get(key)) for key in sorted({*a, *b} - {*ELSEWHERE})]
    named = [f"{name} {_short(a)} and {_short(b)}" for name, a, b in facts if a != b]
    yield from named
    if known and not named and first.seed == second.seed:
        yield f"test samples (test_sha256) {str(digests[0])[:12]} and {str(digests[1])[:12]}"


def _short(value: Any) -> str:
    text = "not set" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= 60 else text[:60] + "…"
