"""Runs grouped by experiment, the seeds of a method together; their headline, and whether they can be compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from fedfloor.errors import SettingError
from fedfloor.figures import ACCURACY, Figure
from fedfloor.names import REFERENCES
from fedfloor.report.ledger import RecordedRound, RecordedRun
from fedfloor.report.records import EvaluationRecord, Figures, HeadlineRecord

CLASSES = "classification"
T = TypeVar("T")
Against = Callable[[RecordedRound], float | None]


class Label(str):
    """A group's label; ``shown`` has the method's name as papers write it."""

    shown: str


def display_name(label: str) -> str:
    """Return a group's label with the method's name as papers write it."""
    return label.shown if isinstance(label, Label) else label


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only.

    Args:
        label: the method's name with the parts that were exchanged, and the experiment's where that occurs with several
            settings.
        runs: one per seed, by seed.
    """

    label: Label
    runs: tuple[RecordedRun, ...]

    @property
    def whole(self) -> tuple[RecordedRun, ...]:
        """The runs that did not diverge."""
        return tuple(run for run in self.runs if run.diverged is None)

    @property
    def drawn(self) -> tuple[RecordedRun, ...]:
        """The runs that curves are the mean of: those that did not diverge, or all up to their divergence."""
        return self.whole or tuple(run for run in self.runs if run.rounds)

    @property
    def finals(self) -> list[EvaluationRecord]:
        """The evaluations of the group's final models."""
        return [run.evaluation for run in self.runs if run.evaluation]

    def last_lines(self, read: Callable[[RecordedRound], object]) -> tuple[RecordedRound, ...]:
        """Return the lines of the last round in which every seed has a figure, one per run; () if there is none.

        Runs that diverged are left out: their last good round is not their end.
        """
        having = [{line.round: line for line in run.rounds if read(line) is not None} for run in self.whole]
        common = set.intersection(*(set(by_round) for by_round in having)) if having else set()
        return tuple(by_round[max(common)] for by_round in having) if common else ()

    def last_spreads(self, figure: Figure) -> list[HeadlineRecord]:
        """Return the spread of a figure over devices in the last round in which every seed has one."""
        lines = self.last_lines(lambda line: line.spread(figure))
        return [spread for line in lines if (spread := line.spread(figure))]


class Compared(tuple[Group, ...]):
    """Groups of runs that are compared, and their common facts."""

    @cached_property
    def runs(self) -> list[RecordedRun]:
        """The runs of all groups."""
        return [run for group in self for run in group.runs]

    @cached_property
    def headline(self) -> Figure:
        """The headline figure that runs have in common; the accuracy, which every run has, where headlines differ."""
        return common({run.headline for run in self.runs}, ACCURACY)

    @cached_property
    def task(self) -> str:
        """The kind of the runs' task; where these differ, classification, whose bins all have."""
        return common({run.settings.task for run in self.runs}, CLASSES)

    @cached_property
    def placed(self) -> Figure:
        """The figure of devices and factories: the headline, or the accuracy where that is not recorded.

        It is not recorded by older runs, where no device has both of its classes, and for the loss.
        """
        known = [run for run in self.runs if run.rounds]
        headline = common({run.headline for run in known}, ACCURACY)
        recorded = all(any(line.spread(headline) for line in run.rounds) for run in known)
        return headline if recorded else ACCURACY

    @cached_property
    def figures(self) -> Figures | None:
        """Whether all runs' accuracies per device are ``"measured"`` or ``"expected"``; None where these differ."""
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
    """A figure against rounds: the mean over seeds and, with two seeds or more, its 95 % half width.

    Args:
        rounds: the rounds that every seed evaluated; against a cost, its mean over the seeds in each of them.
        mean: one value per round.
        half_width: one value per round, None with one seed.
    """

    rounds: tuple[float, ...]
    mean: tuple[float, ...]
    half_width: tuple[float, ...] | None


def groups(runs: Iterable[RecordedRun]) -> Compared:
    """Put the seeds of each experiment together, in the order of the experiments' first runs.

    A second run of the same experiment and seed is not a second sample: it makes a group of its own.
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
    """Return the groups of methods, without references; all where there are references only."""
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
    """Return a run's method with the objective, mixing rule and server that replace its own."""
    tables = (run.settings.methods.get(run.method), run.settings.method)  # its own goes first
    names = [run.method]
    for part in ("objective", "mix", "edge_mix", "server"):
        given = next((value for table in tables if (value := getattr(table, part, None)) is not None), None)
        if given is not None:
            names.append(given if isinstance(given, str) else str(given.get("kind", "?")))
    return " + ".join(names)


def half_width(values: Sequence[float]) -> float | None:
    """Return the half width of the 95 % Student-t interval of a mean: t(0.975, n − 1) · s / √n; None for one value.

    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.484
    """
    n = len(values)
    if n < 2:
        return None
    from scipy.special import stdtrit  # called by scipy.stats.t.ppf, which takes a second to import

    mean = sum(values) / n
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)


def values(run: RecordedRun, read: Callable[[RecordedRound], float | None]) -> dict[int, float]:
    """Return a metric per round, without the rounds that do not have it."""
    return {line.round: value for line in run.rounds if (value := read(line)) is not None}


def curve(group: Group, read: Callable[[RecordedRound], float | None], against: Against | None = None) -> Curve:
    """Return a figure's mean over the seeds that did not diverge; it ends with the shortest of these runs.

    Args:
        read: reads the figure from a ledger line.
        against: reads the cost that it is drawn against; left out: the round.
    """
    series = [values(run, read) for run in group.drawn]
    places = [values(run, against or (lambda line: line.round)) for run in group.drawn]
    common = sorted(set.intersection(*(set(figures) for figures in (*series, *places)))) if series else []
    samples = [[figures[number] for figures in series] for number in common]
    mean = tuple(sum(sample) / len(sample) for sample in samples)
    rounds = [sum(costs[number] for costs in places) / len(places) for number in common] if against else common
    widths = None if len(series) < 2 else tuple(half_width(sample) or 0.0 for sample in samples)
    return Curve(tuple(rounds), mean, widths)


# keys of [data] for the place of data and for training samples, not for test samples
ELSEWHERE = ("name", "root", "path", "partition", "stream", "normalise", "samples_per_device")


def check_same_test(runs: Iterable[RecordedRun]) -> None:
    """Check that runs were measured on the same data, so that their accuracies can be compared.

    Runs with a common seed must have the same test samples, by their digest where both recorded it, else as far as
    their records show. With different seeds a split or generated data differ as they should: the data set, its classes
    and whether it is test or validation data must be the same.

    Raises:
        SettingError: two runs were measured on different data; both are named, with the difference of the data.
    """
    first: dict[int, RecordedRun] = {}
    for run in runs:
        other = first.get(run.seed) or next(iter(first.values()), run)
        first.setdefault(run.seed, run)
        if different := list(_different(other, run)):
            raise SettingError(
                f"{other.folder} and {run.folder} were measured on different data, so that no difference between "
                f"their accuracies means anything: {'; '.join(different)}. Report them one by one."
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
