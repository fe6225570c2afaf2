"""A draft in the making: its document, which decisions alone change, and the data under its settings, loaded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import own
from fedfloor.data.files.excerpt import Excerpts
from fedfloor.data.reading import DraftReading, Problem, RandomSplit, TimeSplit
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.runs.parks import build_park, load_data

USUAL = {"time": TimeSplit(), "random": RandomSplit()}  # the splits of data without a set one
KEPT = 4  # parks that are kept, of those tried


@dataclass(frozen=True)
class Proposal:
    """What a draft sets, and why.

    Args:
        settings: dotted key → value, in the order of the file; None removes a key.
        notes: sentences with the reason and the alternatives.
        comments: dotted key → comment beside it in the file.
        withdraws: the beginning of notes that no longer hold; "" if all do.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    comments: Mapping[str, str] = field(default_factory=dict)
    withdraws: str = ""


def changed(document: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with settings by their dotted keys, of which None removes one; the given one stays as it is.

    >>> changed({"data": {"path": "a.csv", "sort": True}}, {"data.sort": None, "data.window.length": 20})
    {'data': {'path': 'a.csv', 'window': {'length': 20}}}
    """
    result = dict(document)
    for key, value in settings.items():
        table, _, rest = key.partition(".")
        if rest:
            result[table] = changed(result.get(table, {}), {rest: value})
        elif value is None:
            result.pop(table, None)
        else:
            result[table] = value
    return result


@dataclass(frozen=True)
class Given:
    """What the user has set, and a draft therefore leaves as it is.

    Attributes:
        split, window, time, ignored, model, rounds: whether these are set.
        coded: columns whose coding is set.
        normalise: the normalisation; None if it is not set.
    """

    split: bool
    window: bool
    time: bool
    ignored: bool
    model: bool
    rounds: bool
    coded: frozenset[str]
    normalise: Any

    @classmethod
    def of(cls, document: Mapping[str, Any], changes: Sequence[str]) -> Given:
        """Return what given settings hold.

        Args:
            document: the given settings.
            changes: their texts, as for ``--set``; the number of rounds has a default in the document.
        """
        data = document["data"]
        columns = data.get("columns", {})
        return cls(
            split="split" in data,
            window="window" in data,
            time="time" in columns,
            ignored="ignore" in columns,
            model=bool(document.get("model", {}).get("name")),
            rounds=any(change.startswith("rounds=") for change in changes),
            coded=frozenset(columns.get("categories", ())),
            normalise=data.get("normalise"),
        )


class Sketch:
    """A draft in the making.

    Args:
        document: the given settings of the experiment.
        source: the file or folder of the data.
        given: what is set.
        excerpts: reads the first rows of tables.

    Attributes:
        document: the settings so far, changed by :meth:`set` alone.
        notes: the sentences so far.
        comments: dotted key → comment beside it in the file.
    """

    def __init__(self, document: dict[str, Any], source: Path, given: Given, excerpts: Excerpts) -> None:
        self.document = document
        self.source = source
        self.given = given
        self.excerpts = excerpts
        self.notes: list[str] = []
        self.comments: Mapping[str, str] = {}
        self._data: dict[str, Dataset] = {}
        self._parks: dict[str, Park] = {}

    @property
    def data(self) -> Mapping[str, Any]:
        """The settings of the data."""
        data: Mapping[str, Any] = self.document["data"]
        return data

    def set(self, settings: Mapping[str, Any]) -> None:
        """Change the document, see :func:`changed`."""
        self.document = changed(self.document, settings)

    def decide(self, decision: Proposal) -> None:
        """Take a proposal: its settings, notes and comments."""
        self.set(decision.settings)
        if decision.withdraws:
            self.notes = [note for note in self.notes if not note.startswith(decision.withdraws)]
        self.notes = [*self.notes, *decision.notes]
        self.comments = {**self.comments, **decision.comments}

    def experiment(self, settings: Mapping[str, Any] | None = None) -> Experiment:
        """Return the experiment, with some settings changed."""
        return config.from_table(changed(self.document, settings or {}))

    def dataset(self, settings: Mapping[str, Any] | None = None) -> Dataset:
        """Return the data, with some settings changed.

        Raises:
            SettingError: the data cannot be read with these settings.
        """
        return self._loaded(self.experiment(settings))

    def park(self, settings: Mapping[str, Any] | None = None) -> Park:
        """Return the park, with some settings changed.

        Raises:
            SettingError: the data do not suit these settings.
        """
        experiment = self.experiment(settings)
        key = repr([experiment.seed, experiment.data, experiment.park, experiment.evaluate])
        if key not in self._parks:
            park = build_park(experiment, self._loaded(experiment))
            self._parks = dict([*self._parks.items(), (key, park)][-KEPT:])
        return self._parks[key]

    def measured(self) -> Park:
        """Return the park with the values as measured, unless a normalisation is given."""
        return self.park({"data.normalise": self.given.normalise})

    def inspected(self) -> tuple[Dataset | None, list[Problem]]:
        """Return the data; or None and the problems that settings must solve, the first of each kind and column.

        Raises:
            SettingError: a mistake that is none of these problems.
        """
        experiment = self.experiment()
        reading = DraftReading.of(experiment.data)
        try:
            data = own.load(Path(str(experiment.data.path)), reading, experiment.seed)
        except SettingError:
            if not reading.told:
                raise
        else:
            self._keep(experiment, data)
            return data, []
        first = dict[tuple[str, tuple[str, ...]], Problem]()
        for problem in reading.told:
            first.setdefault((problem.kind, problem.columns), problem)
        return None, [*first.values()]

    def _loaded(self, experiment: Experiment) -> Dataset:
        key = _key(experiment, experiment.data.settings())
        if key not in self._data:
            self._keep(experiment, load_data(experiment))
        return self._data[key]

    def _keep(self, experiment: Experiment, data: Dataset) -> None:
        """Keep data for those who ask for the same settings, or for the split that is usual for them."""
        settings = experiment.data.settings()
        self._data = {**self._data, _key(experiment, settings): data}
        if settings["split"] is None and data.split in USUAL:
            same = _key(experiment, settings | {"split": USUAL[data.split]})
            self._data = {**self._data, same: data}


def _key(experiment: Experiment, settings: Mapping[str, Any]) -> str:
    """Return what data depend on, as text."""
    return repr([experiment.data.path, experiment.seed, *settings.items()])
