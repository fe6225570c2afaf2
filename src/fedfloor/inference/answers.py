"""A model's answers for samples of files, prepared for output: classes, numbers with intervals, forecasts, scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, require
from fedfloor.base.names import count
from fedfloor.inference.samples import UNKNOWN, FileSamples
from fedfloor.inference.trained import BLOCK, Trained
from fedfloor.park.recorded import PARTS
from fedfloor.runs.terminal import show
from fedfloor.tasks.answer import Answer, flat
from fedfloor.tasks.classification import CLASSIFICATION, log_odds
from fedfloor.tasks.figures import ACCURACY, Figure, of_task
from fedfloor.tasks.metric import of_some, samples_of
from fedfloor.tasks.regression import Predicting


@dataclass(frozen=True)
class Prediction:
    """The predicted classes of one sample.

    Attributes:
        file: the path of its file.
        origin: the sample's origin, as of :func:`_origin`.
        best: the most likely classes with their probabilities, in descending order.
        label: the true class; None where it is unknown.
        scores: the log-odds of the classes by which the run's headline ranks samples; empty for other headlines.
    """

    file: Path
    origin: Row
    best: tuple[tuple[str, float], ...]
    label: str | None
    scores: tuple[float, ...] = ()


def _predictions(trained: Trained, answers: Iterable[tuple[FileSamples, Answer]], top: int) -> list[Prediction]:
    predictions: list[Prediction] = []
    scored = trained.headline.scored(trained.classes)
    for part, answer in answers:
        probabilities, logits = answer.parts().values()
        order = np.argsort(-logits, axis=1, kind="stable")  # the first of equal values, as in argmax
        if trained.decision is not None and trained.decision.positive is not None:  # the decided class comes first
            decided = trained.decision.of(probabilities)[:, None]
            order = np.concatenate([decided, order[order != decided].reshape(len(order), -1)], axis=1)
        scores = log_odds(torch.from_numpy(logits), scored).tolist() if scored else [()] * len(order)
        for i, chosen in enumerate(order[:, :top].tolist()):
            best = tuple((trained.classes[c], float(probabilities[i, c])) for c in chosen)
            label = None if part.y[i] == UNKNOWN else trained.classes[part.y[i]]
            predictions.append(Prediction(part.file, _origin(trained, part, i), best, label, tuple(scores[i])))
    return predictions


def _accuracy(predictions: Sequence[Prediction]) -> tuple[float | None, int]:
    """Return the accuracy on labelled samples (None without any), and the number of these samples."""
    known = [each for each in predictions if each.label is not None]
    return (sum(each.label == each.best[0][0] for each in known) / len(known) if known else None), len(known)


def _headline(trained: Trained, predictions: Sequence[Prediction]) -> dict[str, float | None]:
    """Return the name and the value on labelled samples of the run's headline; empty if it is the accuracy or a loss.

    The value is None where it is undefined, such as without labelled samples.
    """
    figure = trained.headline
    others = figure.kind.tasks and not figure.kind.each
    if figure == ACCURACY or others or figure.kind.column == "loss" or not _permitted(trained):
        return {}
    known = [each for each in predictions if each.label is not None]
    number = {name: i for i, name in enumerate(trained.classes)}
    y = np.array([number[str(each.label)] for each in known], np.int64)
    table = np.zeros((len(number), len(number)), np.int64)
    guessed = np.array([number[each.best[0][0]] for each in known], np.int64)
    np.add.at(table, (y, guessed), 1)
    ranked = figure.scored(trained.classes)
    scores = np.array([each.scores for each in known]).reshape(len(known), len(ranked))
    tested = trained.task.judged(table, math.nan, y, scores, ranked)
    if figure.kind.each:
        whose = _numbers([each.origin["device"] for each in known])
        tested = replace(tested, samples=samples_of(tested, y, guessed, scores, trained.classes, whose))
    return {figure.name: of_some(figure, tested, trained.classes) if known else None}


def _permitted(trained: Trained) -> bool:
    """Return whether the run's headline may be computed: code of one's own only where it may be imported."""
    return trained.own_code or not trained.headline.kind.each


def _numbers(names: Sequence[str | None]) -> NDArray[np.int64] | None:
    """Return a number for each name; None if one is not known."""
    return None if None in names else np.unique(np.array(names, str), return_inverse=True)[1]


def _unread(trained: Trained, known: int) -> list[str]:
    """Return a warning of a metric of one's own that is not computed on so many samples with known values."""
    if _permitted(trained) or not known:
        return []
    return [
        f"the run's headline '{trained.headline.name}' is code outside fedfloor, and not computed. If you trust it, "
        "give --own-code (in Python: load_model(folder, own=True))."
    ]


def _judged(trained: Trained, predictions: Sequence[Prediction]) -> tuple[Row, int]:
    """Return the headline, if it is another metric, and the accuracy on labelled samples, and their number."""
    right, known = _accuracy(predictions)
    return _headline(trained, predictions) | {"accuracy": right}, known


def _by(
    trained: Trained, predictions: Sequence[Prediction], key: Callable[[Prediction], str | None], name: str
) -> list[Row]:
    """Return a row per file or device: samples, the most frequent prediction, its share, metrics if known."""
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        if (group := key(prediction)) is not None:
            groups.setdefault(group, []).append(prediction)
    rows = []
    for group, members in groups.items():
        most = _by_class(members)[0]
        row = {name: group, "samples": len(members), "mostly": most["class"], "share": most["share"]}
        row |= {"accuracy": _accuracy(members)[0]} | _headline(trained, members)
        rows.append(row | _trained_of([each.origin["part"] for each in members]))
    return rows


TRAINED = PARTS[0]


def _trained_of(parts: Sequence[str | None]) -> Row:
    """Return the number of samples that trained; empty where it is unknown."""
    return {} if None in parts else {"trained": parts.count(TRAINED)}


def _by_class(predictions: Sequence[Prediction]) -> list[Row]:
    """Return a row per predicted class: number of samples, their share, their mean probability."""
    classes: dict[str, list[float]] = {}
    for prediction in predictions:
        name, probability = prediction.best[0]
        classes.setdefault(name, []).append(probability)
    return [
        {"class": name, "samples": len(p), "share": len(p) / len(predictions), "mean_probability": sum(p) / len(p)}
        for name, p in sorted(classes.items(), key=lambda item: -len(item[1]))
    ]


@dataclass(frozen=True, eq=False)
class Classified:
    """Results of a classification: the predicted classes of samples."""

    trained: Trained
    predictions: list[Prediction]

    def __len__(self) -> int:
        return len(self.predictions)

    def rows(self, few: int) -> list[Row]:
        """Return the first ``few`` samples as rows for display."""
        return [
            {
                "file": str(each.file),
                **_shown(each.origin),
                "predicted": each.best[0][0],
                "probability": each.best[0][1],
                "next": ", ".join(f"{name} {p:.4f}" for name, p in each.best[1:]) or None,
                "label": each.label,
            }
            for each in self.predictions[:few]
        ]

    def documents(self) -> list[Row]:
        """Return samples as JSON, with ``rows`` = [first, last] and the ``top`` classes."""
        return [
            {
                "file": str(each.file),
                **each.origin,
                "predicted": each.best[0][0],
                "probability": each.best[0][1],
                "top": [{"class": name, "probability": p} for name, p in each.best],
                "label": each.label,
            }
            for each in self.predictions
        ]

    def table(self) -> list[Row]:
        """Return samples as rows of a CSV file."""
        rows = []
        for each in self.predictions:
            row: Row = {"file": each.file, **_cells(each.origin), "label": each.label}
            for k, (name, p) in enumerate(each.best, start=1):
                number = f"_{k}" if k > 1 else ""
                row |= {f"predicted{number}": name, f"probability{number}": p}
            rows.append(row)
        return _recorded(rows)

    def summary(self) -> Row:
        """Return the accuracy, another headline, the number of predictions per class, and the threshold, if any."""
        right, known = _accuracy(self.predictions)
        headline = _headline(self.trained, self.predictions)
        facts: Row = {"figures": headline} if headline else {}
        facts |= {"accuracy": right, "labelled": known, "by_class": self._mix()}
        for name, some in self._parted().items():
            figures, known = _judged(self.trained, some)
            facts[name] = {"figures": figures, "labelled": known}
        if self.trained.threshold is not None:
            facts["decide"] = dict(zip(("positive", "threshold"), self.trained.threshold, strict=True))
        return facts

    def groups(self, *, people: bool) -> dict[str, list[Row]]:  # noqa: ARG002
        """Return a row per file, per device and per recording, for display (``people``) or as JSON."""
        return {
            "by_file": _by(self.trained, self.predictions, lambda prediction: str(prediction.file), "file"),
            "by_device": _by(self.trained, self.predictions, lambda prediction: prediction.origin["device"], "device"),
            "by_recording": _by(self.trained, self.predictions, lambda one: _recording(one.origin), "recording"),
        }

    def overview(self) -> None:
        """Print the number of predictions of each class, and its share in training."""
        show(self._mix(), as_json=False, title=f"{len(self):,} samples")

    def closing(self) -> list[str]:
        """Return sentences on the threshold, and on the run's headline and the accuracy."""
        lines = []
        if self.trained.threshold is not None:
            name, least = self.trained.threshold
            lines = [
                f"decision: '{name}' if its probability is at least {least:.4g}, a threshold chosen on validation data"
            ]
        figures, known = _judged(self.trained, self.predictions)
        if known:
            lines.append(f"{_listed(figures)} on {count(known, 'sample')} with a known label")
        parts = {name: _judged(self.trained, some) for name, some in self._parted().items()}
        return lines + _apart({name: (_listed(figures), known) for name, (figures, known) in parts.items()})

    def warnings(self) -> list[str]:
        """Return warnings of devices that did not train, and of another class mix than that of training."""
        training = self.trained.training
        classes = self.trained.classes
        number = {name: i for i, name in enumerate(classes)}
        predicted = np.bincount([number[each.best[0][0]] for each in self.predictions], minlength=len(classes))
        devices = [each.origin["device"] or "" for each in self.predictions]
        unread = _unread(self.trained, _accuracy(self.predictions)[1])
        return [*_strangers(self.trained, devices), *training.odd_mix(predicted, classes), *unread]

    def _mix(self) -> list[Row]:
        """Return a row per predicted class, with its share in training if that is known."""
        shares = self.trained.training.shares(self.trained.classes)
        rows = _by_class(self.predictions)
        if shares is None:
            return rows
        beside = dict(zip(self.trained.classes, shares.tolist(), strict=True))
        return [row | {"share_in_training": beside[row["class"]]} for row in rows]

    def _parted(self) -> dict[str, list[Prediction]]:
        """Return the labelled predictions of samples that trained and of the others; empty if none trained."""
        known = [each for each in self.predictions if each.label is not None]
        trained = [each for each in known if each.origin["part"] == TRAINED]
        others = [each for each in known if each.origin["part"] != TRAINED]
        return {"trained": trained, "others": others} if trained else {}


Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Answered:
    """Results of other tasks: answers for samples, file by file.

    Args:
        parts: the samples of each file with their answer, made of arrays.
    """

    trained: Trained
    parts: list[tuple[FileSamples, Answer]]

    def __len__(self) -> int:
        return sum(len(part.x) for part, _ in self.parts)

    def rows(self, few: int) -> list[Row]:
        """Return the first ``few`` samples as rows for display."""
        rows = []
        for part, answer, i in self._each(few):
            true = list(map(_short, _true(part, answer, i).get("true", {}).values()))
            last = {"true": ", ".join(true) if {*true} - {"?"} else None, **self._label(part, i)}
            origin = _origin(self.trained, part, i)
            rows.append({"file": str(part.file), **_shown(origin), **answer.cells(i), **last})
        return rows

    def documents(self) -> list[Row]:
        """Return samples as JSON."""
        return [
            {
                "file": str(part.file),
                **_origin(self.trained, part, i),
                **answer.document(i),
                **_true(part, answer, i),
                **self._label(part, i),
            }
            for part, answer, i in self._each()
        ]

    def table(self) -> list[Row]:
        """Return samples as rows of a CSV file."""
        rows = []
        for part, answer, i in self._each():
            cells = flat(answer.document(i) | _true(part, answer, i) | self._label(part, i))
            rows.append({"file": part.file, **_cells(_origin(self.trained, part, i)), **cells})
        return _recorded(rows)

    def summary(self) -> Row:
        """Return the task and, if true values are known, its metrics."""
        figures, known = self._figures(self._masks())
        facts: Row = {"task": self.trained.task.describe(), "known": known, "figures": _named(figures)}
        for name, masks in self._parted().items():
            figures, known = self._figures(masks)
            facts[name] = {"figures": _named(figures), "known": known}
        return facts | ({"by_range": mix} if (mix := self._mix()) else {})

    def groups(self, *, people: bool) -> dict[str, list[Row]]:
        """Return a row per file, device and recording: samples, the last answer, the headline metric if known."""
        origins = [[_origin(self.trained, part, i) for i in range(len(part.x))] for part, _ in self.parts]
        kinds: dict[str, Callable[[FileSamples, Row], str | None]] = {
            "file": lambda part, _: str(part.file),
            "device": lambda _, origin: origin["device"],
            "recording": lambda _, origin: _recording(origin),
        }
        rows = {}
        for kind, name_of in kinds.items():
            each = [np.array([name_of(part, origin) for origin in whole], object)
                    for (part, _), whole in zip(self.parts, origins, strict=True)]  # fmt: skip
            names = dict.fromkeys(name for names in each for name in names.tolist() if name is not None)
            rows[f"by_{kind}"] = [
                self._group(kind, name, [names == name for names in each], people=people) for name in names
            ]
        return rows

    def closing(self) -> list[str]:
        """Return sentences on the kind of answer and the metrics."""
        figures, known = self._figures(self._masks())
        phrase = self.parts[0][1].phrase if self.parts else ""
        lines = [f"answer: {phrase}"] if phrase else []
        if figures:
            lines.append(f"{_measured(figures)} on {count(known, 'sample')} with known true values")
        parts = {name: self._figures(masks) for name, masks in self._parted().items()}
        return lines + _apart({name: (_measured(figures), known) for name, (figures, known) in parts.items()})

    def overview(self) -> None:
        """Print the number of predicted numbers in each range of the target, and the range's share in training."""
        if mix := self._mix():
            show(mix, as_json=False, title=f"{len(self):,} samples")

    def warnings(self) -> list[str]:
        """Return warnings of devices that did not train, and of another mix of ranges than that of training."""
        devices = [name for part, _ in self.parts for name in part.devices or ()]
        counts = self._counts()
        ranges = self.trained.classes
        mix = [] if counts is None else self.trained.training.odd_mix(counts, ranges, ends=True)
        return _strangers(self.trained, devices) + mix + _unread(self.trained, self._figures(self._masks())[1])

    def _label(self, part: FileSamples, i: int) -> Row:
        """Return the class of a sample that a task evaluates by labels; empty if the file has none."""
        known = any((each.y != UNKNOWN).any() for each, _ in self.parts)
        return {"label": None if part.y[i] == UNKNOWN else self.trained.classes[part.y[i]]} if known else {}

    def _counts(self) -> NDArray[np.int64] | None:
        """Return the number of predictions in each range of the first target, [F]; None where a task has none."""
        edges = self.trained.task.edges if isinstance(self.trained.task, Predicting) else ()
        if not self.parts or len(edges) + 1 != len(self.trained.classes):
            return None
        first = [np.asarray(answer.parts()["value"]).reshape(len(part.x), -1)[:, 0] for part, answer in self.parts]
        places = np.searchsorted(np.array(edges), np.concatenate(first), side="right")
        return np.bincount(places, minlength=len(edges) + 1)

    def _mix(self) -> list[Row]:
        """Return a row per range of the target: predictions, their share, and the range's share in training."""
        counts = self._counts()
        shares = self.trained.training.shares(self.trained.classes)
        if counts is None or shares is None or not counts.sum():
            return []
        ranges = zip(self.trained.classes, counts.tolist(), shares.tolist(), strict=True)
        total = int(counts.sum())
        return [
            {"range": name, "samples": many, "share": many / total, "share_in_training": share}
            for name, many, share in ranges
        ]

    def _parted(self) -> dict[str, list[Mask]]:
        """Return masks of the samples that trained and of the others; empty if none trained."""
        masks = [np.array(part.parts or [""] * len(part.x)) == TRAINED for part, _ in self.parts]
        return {"trained": masks, "others": [~mask for mask in masks]} if any(mask.any() for mask in masks) else {}

    def _each(self, few: int | None = None) -> Iterator[tuple[FileSamples, Answer, int]]:
        every = ((part, answer, i) for part, answer in self.parts for i in range(len(part.x)))
        return islice(every, few)

    def _masks(self) -> list[Mask]:
        """Return masks of all samples."""
        return [np.full(len(part.x), True) for part, _ in self.parts]

    @cached_property
    def _first(self) -> Figure | None:
        """The metric that stands beside each file, device and recording; None without known values."""
        return next(iter(self._figures(self._masks())[0]), None)

    @cached_property
    def _whose(self) -> list[NDArray[np.int64]]:
        """The number of each sample's recording of a device in its file."""
        pairs = (
            zip(part.devices or [""] * len(part.x), part.recordings or [""] * len(part.x), strict=True)
            for part, _ in self.parts
        )
        return [np.unique(["\0".join(pair) for pair in each], return_inverse=True)[1] for each in pairs]

    def _group(self, kind: str, name: str, masks: list[Mask], *, people: bool) -> Row:
        headline = self._first
        n = max(n for n, mask in enumerate(masks) if mask.any())
        i = int(np.flatnonzero(masks[n])[-1])
        answer = self.parts[n][1]
        cells = {f"last {key}": cell for key, cell in answer.cells(i).items()}
        last = cells if people else {"last": answer.document(i)}
        value = {headline.name: self._figures(masks)[0].get(headline)} if headline else {}
        whose = [part.parts[k] if part.parts else None for (part, _), mask in zip(self.parts, masks, strict=True)
                 for k in np.flatnonzero(mask).tolist()]  # fmt: skip
        return {kind: name, "samples": len(whose), **last, **value, **_trained_of(whose)}

    def _figures(self, masks: list[Mask]) -> tuple[dict[Figure, float], int]:
        """Return the task's metrics on the masked samples of each file, and the number of samples with known values."""
        answers = []
        targets = []
        recordings = list[NDArray[np.int64]]()
        places = list[tuple[FileSamples, int]]()
        first = 0
        for (part, answer), whose, mask in zip(self.parts, self._whose, masks, strict=True):
            first += len(part.x)
            target = part.target if part.target is not None else np.where(part.y == UNKNOWN, np.nan, part.y)[:, None]
            known = np.argsort(whose, kind="stable")  # samples of a recording are adjacent
            known = known[(mask & np.isfinite(target).all(axis=1))[known]]
            if len(known):
                answers.append(answer.changed(lambda _, values: values[known]))  # noqa: B023
                targets.append(target[known])
                recordings.append(first + whose[known])
                places += [(part, i) for i in known.tolist()]
        if not targets:
            return {}, 0
        several = [answer.parts() for answer in answers]
        whole = answers[0].changed(lambda name, _: np.concatenate([parts[name] for parts in several]))
        tested = self.trained.task.judge(whole, np.concatenate(targets))
        if tested is not None and tested.detection is not None:
            tested = replace(tested, detection=replace(tested.detection, recording=np.concatenate(recordings)))
        task = self.trained.task
        figures = of_task(task.kind, lives=task.lives) if tested is not None else ()
        if tested is not None and self.trained.headline.kind.each and _permitted(self.trained):
            every = [None if part.devices is None else part.devices[i] for part, i in places]
            none = np.zeros(len(every), np.int64)
            samples = samples_of(tested, none, none, none, self.trained.classes, _numbers(every))
            tested = replace(tested, samples=samples)
            figures = (self.trained.headline, *figures)
        figures = tuple(sorted(figures, key=lambda figure: figure.kind != self.trained.headline.kind))  # it comes first
        measured = {figure: of_some(figure, tested, ()) for figure in figures}  # type: ignore[arg-type]
        defined = {name: value for name, value in measured.items() if value is not None and not np.isnan(value)}
        return defined, sum(map(len, targets))


Results = Classified | Answered


def _origin(trained: Trained, part: FileSamples, i: int) -> Row:
    """Return a sample's device, whether it trained, its recording, its rows in the file, its time, and its part."""
    device = None if part.devices is None else part.devices[i]
    return {
        "device": device,
        "recording": None if part.recordings is None else part.recordings[i],
        "rows": None if part.places is None else [*part.places[i]],
        "time": None if part.times is None else part.times[i],
        "device_trained": trained.training.knows(device or ""),
        "part": None if part.parts is None else part.parts[i],
    }


def _recording(origin: Row) -> str | None:
    """Return the name of a sample's recording, with its device where there are both; None without recordings."""
    names = [origin["device"], origin["recording"]]
    return None if names[1] is None else ", ".join(filter(None, names))


def _strangers(trained: Trained, devices: list[str]) -> list[str]:
    """Return warnings of devices that did not train, or are answered by a model that is not their own."""
    return trained.training.strangers(devices) + ([] if trained.models is None else trained.models.warnings())


def _shown(origin: Row) -> Row:
    """Return an origin as cells for people; the devices that did not train are named in a warning."""
    first, last = origin["rows"] or (None, None)
    cells = origin | {"rows": first if first == last else f"{first}–{last}", "part": origin["part"] or None}
    return {key: cell for key, cell in cells.items() if key != "device_trained"}


def _cells(origin: Row) -> Row:
    """Return an origin as cells of a CSV file."""
    first, last = origin["rows"] or (None, None)
    trained = {True: "yes", False: "no", None: None}[origin["device_trained"]]
    return {
        "device": origin["device"], "time": origin["time"], "first": first, "last": last, "device_trained": trained,
        "part": origin["part"], "recording": origin["recording"],
    }  # fmt: skip


def _recorded(rows: list[Row]) -> list[Row]:
    """Return rows of a CSV file, without the column of recordings if no sample has one."""
    if any(row["recording"] is not None for row in rows):
        return rows
    return [{key: cell for key, cell in row.items() if key != "recording"} for row in rows]


def _listed(figures: Row, form: str = "{}: {:.4f}") -> str:
    """Return metrics with their names; those without a value are left out.

    >>> _listed({"F1 of worn": 0.5, "accuracy": None})
    'F1 of worn: 0.5000'
    """
    return ", ".join(form.format(name, value) for name, value in figures.items() if value is not None)


def _measured(figures: Mapping[Figure, float]) -> str:
    """Return a task's metrics with their names."""
    return _listed(_named(figures), "{} {:.4g}")


def _named(figures: Mapping[Figure, float]) -> Row:
    return {figure.name: value for figure, value in figures.items()}


def _apart(parts: Mapping[str, tuple[str, int]]) -> list[str]:
    """Return a sentence with the metrics of samples that trained, and of the others; none without one that trained.

    Samples count whose label or true value is known.
    """
    if not parts or not parts["trained"][1]:
        return []
    (trained, many) = parts["trained"]
    (others, more) = parts["others"]
    beside = f"; {others} on the {more:,} others" if more else ", so that they say nothing about new rows"
    if not trained:  # answers without metrics, as at the present age of machines
        return [f"{many:,} of these samples trained the model, {more:,} others did not"]
    return [f"{many:,} of these samples trained the model: {trained}{beside}"]


def _true(part: FileSamples, answer: Answer, i: int) -> Row:
    """Return the true numbers of a sample, None for unknown ones; empty if the file has none."""
    return {} if part.target is None else _plain(answer.truth(part.target[i].tolist()))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if np.isnan(value) else value


def _short(value: Any) -> str:
    if isinstance(value, list):
        ends = value if len(value) == 1 else [value[0], value[-1]]
        return "?" if set(ends) == {None} else " → ".join(map(_short, ends))
    return "?" if value is None else f"{value:.4g}"


def check_top(trained: Trained, top: int) -> None:
    """Refuse a ``top`` above the number of a model's classes, or above 1 for a task without classes."""
    if trained.task == CLASSIFICATION:
        require(1 <= top <= len(trained.classes), "--top", top, f"from 1 to {len(trained.classes)}")
    elif top != 1:
        raise SettingError(
            f"--top {top}: is only for classifications, but this model's task is {trained.task.kind}. Leave --top out."
        )


def results(trained: Trained, answers: Iterable[tuple[FileSamples, Answer]], top: int = 1) -> Results:
    """Return the answers for all files; for a classification the ``top`` most likely classes of each sample."""
    if trained.task == CLASSIFICATION:
        return Classified(trained, _predictions(trained, answers, top))
    parts = [(part, answer.informed(part.y)) for part, answer in answers]
    if not any(part.target is not None and np.isfinite(part.target).any() for part, _ in parts):
        parts = [(replace(part, target=None), answer) for part, answer in parts]
    return Answered(trained, parts)


Row = dict[str, Any]


def answers_of(
    trained: Trained, parts: Iterable[FileSamples], follow: Callable[[int], None] | None = None,
    failed: dict[Path, str] | None = None,
) -> Iterator[tuple[FileSamples, Answer]]:  # fmt: skip
    """Yield the samples of each file with the model's answer, made of arrays.

    Raises:
        SettingError: a file does not fit the model or has too large numbers, and ``failed`` is None.
    """
    for batch in _batches(parts, follow):
        names = [name for part in batch for name in part.devices or [""] * len(part.x)]
        answered = trained.answered(np.concatenate([part.x for part in batch]), names)
        whole = answered.changed(lambda _, values: values.numpy())
        first = 0
        for part in batch:
            mine = slice(first, first + len(part.x))
            first += len(part.x)
            answer = whole.changed(lambda _, values: values[mine])  # noqa: B023
            if answer.usable():
                yield part, answer
                continue
            error = f"{part.file}: the model's answer is not a finite number. Check for far too large values."
            if failed is None:
                raise SettingError(error)
            failed[part.file] = error


def _batches(parts: Iterable[FileSamples], follow: Callable[[int], None] | None) -> Iterator[list[FileSamples]]:
    """Yield batches of small files, because a network is much faster with many samples at a time."""
    batch: list[FileSamples] = []
    for number, part in enumerate(parts, start=1):
        batch.append(part)
        if sum(len(each.x) for each in batch) >= BLOCK:
            yield batch
            batch = []
            if follow is not None:
                follow(number)
    if batch:
        yield batch
