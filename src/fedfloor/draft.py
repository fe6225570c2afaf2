"""Drafts of experiment files for the user's data, based on the properties of the data."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedfloor import config
from fedfloor.checking import toml_text
from fedfloor.data import guess, proposals
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import conversions, expanded, is_there, own
from fedfloor.data.files.encode import MeasureError, UnlistedTextError, sorted_numbers, thirds
from fedfloor.data.files.layout import NoColumnError, are_names
from fedfloor.data.files.preamble import preamble
from fedfloor.data.files.rows import PACKED, unpacked
from fedfloor.data.files.sheet import head
from fedfloor.data.files.times import UNITS
from fedfloor.data.files.tree import files_in, named, tables
from fedfloor.data.files.union import EmptySensorsError, MissingValuesError, TimesError
from fedfloor.data.kinds import FEW, is_called_time
from fedfloor.data.pace import pace_of
from fedfloor.data.proposals import findings
from fedfloor.data.reading import ignoring, skipped
from fedfloor.data.series import OneClassError
from fedfloor.data.sources import SOURCES
from fedfloor.data.split import ShortRecordingsError, SmallDevicesError
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.models.forest import ROUNDS_OF_BINS, described
from fedfloor.names import count, some
from fedfloor.park.described import LabelSkew, label_skew, raw_bytes
from fedfloor.park.normalise import DeviceNormaliser, normaliser, prepared
from fedfloor.park.park import Park
from fedfloor.runs import forecast, trials
from fedfloor.runs.parks import build_park, findings_of, load_data, warn_of_gaps
from fedfloor.runs.prepare import warn
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.kinds import TASKS
from fedfloor.tasks.reconstruction import Reconstruction
from fedfloor.tasks.task import Task

log = logging.getLogger(__name__)

ROUNDS, ROUNDS_OF_ROWS = 20, 50  # single rows train fast, but networks need many rounds for thresholds
PATIENCE = 5  # evaluations in which held-out samples do not gain before a run ends
PLENTY = 10_000  # training samples of which trees, too, are drafted with some held out to end by
STEPS, MOST_ROUNDS = 1000, 100  # of a device on windows in all; devices with few windows take few steps in a round
SCATTERED = ("random", "stratified")  # kinds of splits that test rows whose neighbours train
TREES, LEVELS, EVERY = 100, 6, 24  # of boosting: trees and their levels, at most; rounds between two evaluations
DECORRELATED, CORRELATED = 0.3, 20  # share of the statistics of windows that a tree uses, where they are so many
MOST_WINDOWS = 100_000  # for trees, which compute the statistics of all windows in each of their rounds
MOST_HELD = 5e7  # the same times the features of a window, held in memory
MOST_AT_ONCE = 5000  # features times outputs, for one tree, which beyond uses a share of the features
MOST_ADDED = 3e7  # the same times windows: numbers added up in a round, about a second of one core
BATCH, SMALL_BATCH, VISIT = 32, 8, 4  # samples of a mini-batch, usually and at least; steps of a pass, if batches allow
WINDOW, SHORTEST = 20, 3  # default rows of windows for a forecast or a life; the least, for short recordings
CLIP = 1.0  # norm of gradients in forecasting, at most
TRIES = 8  # attempts to read the data, each of which may correct a mistake in the draft
MOST_NUMBERS = 30  # numeric classes that need not be listed, at most
ENDINGS = (".npz", *own.WHOLE, *(f"{kind}{packed}" for kind in own.TABLES for packed in ("", *PACKED)))
LASTING = 5  # average duration of a label, in rows, from which windows are proposed
RARE = 0.1  # share of the training samples below which a class is rare, if there are few classes
DATED, UNDATED = 1e8, 1e10  # seconds since 1970 between which a number is shown as a date (1973 to 2286)
FILES = {"cmapss": r"(train|test|rul)_fd00[1-4]\.txt", "tep": r"d\d\d(_te)?\.dat"}  # file names of published data sets
BUNDLED = ("cmapss", "skab", "tep")  # data sets with a bundled experiment
HEAVY = 0.25  # share of sensors with heavy tails from which the network applies asinh to its input
MANY, MOST_SUSPECTS = 3, 12  # constant sensors from which they share a sentence; sentences on sensors, at most
LISTED = 20  # files of a folder examined for a published data set
SMALLEST_PICTURE = 18  # pixels per side, for the network with convolutions


def title(path: Path) -> str:
    """Return the name of an experiment: the data's name without suffixes, valid as the name of a folder.

    >>> title(Path("halls/press: A.csv.gz"))
    'press- A'
    """
    name = expanded(path).resolve().name
    with suppress(StopIteration):
        name = next(name[: -len(end)] for end in ENDINGS if name.casefold().endswith(end) and len(name) > len(end))
    return _folder_name(name) or "data"


def _folder_name(text: str) -> str:
    return re.sub(r'[/\\\0:*?"<>|]', "-", text).strip()


@dataclass(frozen=True, eq=False)
class Draft:
    """A draft of an experiment for the user's data.

    Attributes:
        text: the text of the experiment file.
        park: the park of the experiment.
        notes: sentences on the assumed roles of columns and folders and the split, with reasons and alternatives.
    """

    text: str
    park: Park
    notes: tuple[str, ...]


def draft(path: Path, out: Path, changes: Sequence[str]) -> Draft:
    """Inspect data and return a draft of an experiment that trains on them.

    Roles of columns and the split are guessed unless given, and written to the file with the alternatives as comments.
    The default treatment of missing values is ``previous`` for rows with times, otherwise ``mean``; sensors without any
    value are left out.

    Args:
        path: a table, a folder or an ``.npz`` file.
        out: the path of the experiment file, which determines the experiment's name; paths to data are relative to it.
        changes: ``a.b=value`` texts, as for ``--set``.

    Raises:
        SettingError: a mistake or an ambiguity in the data; the message names file, row and column, and the settings to
            add.
    """
    document = given_settings(path, out, changes)
    data, source = document["data"], expanded(path)
    _check_published(source, data)
    given, chosen, window = "split" in data, "ignore" in data.get("columns", {}), "window" in data
    timed = "time" in data.get("columns", {})
    conversions.check(source, data)
    coded = {*data.get("columns", {}).get("categories", ())}
    notes = _guess(data, source)
    try:
        note = _mend(document, notes, timed=timed, coded=coded)
    except SettingError as error:
        lack = error if isinstance(error, NoColumnError) else error.__cause__  # in a folder with more on its place
        if not isinstance(lack, NoColumnError) or lack.role not in ("device", "label"):
            raise
        raise SettingError(str(error).replace(str(lack), str(_with_candidates(lack, data)))) from None
    park, split = _proposed(document, source, notes, settled="split" in data and not given)
    park = _recorded(document, park, notes)
    if park.dataset.task == CLASSIFICATION:
        _check_classes(data, park.dataset, path.name)
    if source.is_dir():
        notes[:0] = proposals.folder_words(park.dataset, source, data)
    notes += [*_columns(data, park.dataset), *_rare(document, park.dataset)]
    sentences, left = _suspects(data, park.dataset, free=not chosen)
    park = _without(document, left) if left else park
    park = _ahead(document, park, sentences, window=window) if park.dataset.task.ahead else park
    park = _parted(document, park, notes)
    notes += [*_asked(data, park.dataset), *sentences]
    notes += _regimes(data, park.dataset)
    park = _tried(document, park, notes)
    detects = isinstance(park.dataset.task, Reconstruction) and park.dataset.inputs.kind != "image"
    if not document.get("model", {}).get("name"):
        notes += _tails(park.dataset, detects=detects)
    judged = prepared(park, config.from_table(document).data.normalise)  # what is found is that of samples as trained
    _show(path.name, notes, judged, data)
    notes += findings_of(judged)
    more = _unmarked(document, park.dataset)
    if not {"model", "method"} & {*document} and not detects and (excess := _excess(park.dataset)):
        more.append(
            f"{excess}, beyond which the cost of trees decides for a network; trees: --set method.name=boosting --set "
            f"rounds={ROUNDS_OF_BINS + TREES * LEVELS}, best with fewer windows: --set data.window.step=N"
        )
    for sentence in more:
        log.info("%s: %s.", path.name, sentence)
    data |= {
        key: str(config.seen_from(expanded(out).parent, expanded(data[key]))) for key in ("path", "test") if key in data
    }
    sent = _train(document, park, detects=detects, paced=any(change.startswith("rounds=") for change in changes))
    sent += _traffic(document, park)
    for sentence in sent:
        log.info("%s: %s.", path.name, sentence)
    notes += [*more, *sent]
    return Draft(_text(document, park, note, split, notes), park, tuple(notes))


def given_settings(path: Path, out: Path, changes: Sequence[str]) -> dict[str, Any]:
    """Return the given settings of the experiment, checked before any guess.

    Raises:
        SettingError: a wrong setting.
    """
    document: dict[str, Any] = {
        "name": _folder_name(out.stem) or title(path),
        "rounds": ROUNDS,
        "data": {"path": str(path)},
    }
    for change in changes:
        config.apply(document, change)
    match document["data"]:
        case {"remaining": True, **others} if not {"bins", "task"} & others.keys():
            document["data"]["task"] = {"kind": "regression"}
    config.from_table(document)
    return document


def _show(name: str, notes: Sequence[str], park: Park, data: Mapping[str, Any]) -> None:
    """Log the notes on a draft, and warn of gaps and of sensors with doubtful names."""
    for sentence in notes:
        log.info("%s: %s%s", name, sentence, "" if sentence[-1] in ".?" else ".")
    warn_of_gaps(park)
    for sentence in () if data.get("columns", {}).get("values") else guess.doubtful(park.dataset.inputs.columns):
        log.warning("%s: %s.", name, sentence)


def _ahead(document: dict[str, Any], park: Park, notes: list[str], *, window: bool) -> Park:
    """Exclude calendar columns and categories from the forecast, and set windows of a period, unless set.

    Args:
        document: the draft, with its task.
        park: the park with all columns.
        notes: the list to which sentences are added.
        window: whether a window is given.
    """
    data, columns, before = document["data"], park.dataset.inputs.columns, dict(document["data"])
    task = _task_table(data)
    known = proposals.known_ahead(park.dataset)
    sensors = [name for name in columns if name not in known]
    if "sensors" not in task and known and sensors:
        task["sensors"] = sensors
        notes.append(f"{named(known)}: from a calendar or a category, therefore inputs of the forecast only")
    data["task"] = task
    if data != before:
        park = build_park(config.from_table(document))
    rows = None if window or "season" in task else proposals.period(park.dataset)
    if rows is not None:
        length = max(rows, WINDOW)
        wider = data | {"window": {"length": length, "step": 1}, "task": {**task, "season": rows}}
        with suppress(SettingError):  # too few rows for these windows
            wider_park = build_park(config.from_table(document | {"data": wider}))
            ahead = wider_park.dataset.task.called()
            if same := [sensor for sensor in park.dataset.task.called() if sensor not in ahead]:
                notes.append(f"{named(same)}: the same again after {rows} rows, therefore inputs of the forecast only")
            park = wider_park
            data.update(wider)
            notes.append(
                f"values recur after {rows} rows, therefore windows have {length} rows, and the value of a season "
                "before is a reference: --set data.task.season=N --set data.window.length=N for others"
            )
            return park
    if not window:
        notes.append(_windows(data["window"]["length"]))
    return park


def _parted(document: dict[str, Any], park: Park, notes: list[str]) -> Park:
    """Set the longest step within windows, unless set, where recordings have holes; return the park."""
    data = document["data"]
    if "window" not in data or "gap_s" in data or park.dataset.time is None or park.dataset.inputs.kind != "table":
        return park
    rows = load_data(config.from_table(document | {"data": data | {"window": {"length": 1, "step": 1}}}))
    time, owner = cast(np.ndarray, rows.time), np.zeros(len(rows.y), np.int32) if rows.owner is None else rows.owner
    pace = pace_of(time, owner if rows.run is None else rows.run, owner)
    holes = () if pace is None else pace.holes()
    if pace is None or not len(holes):
        return park
    data["gap_s"] = pace.gap
    try:
        park = build_park(config.from_table(document))
    except SettingError:  # the parts are too short for windows
        del data["gap_s"]
        return park
    notes.append(
        f"recordings have holes (steps above {pace.gap:g} s: {len(holes)}, the longest {max(holes):g} s), which "
        "windows do not cross: data.gap_s, as for buffers of sensors"
    )
    return park


def _windows(length: int) -> str:
    return f"predictions are made from windows of {length} rows; other ones: --set data.window.length=N"


def _with_candidates(lack: NoColumnError, data: Mapping[str, Any]) -> NoColumnError:
    """Return the error for a missing column of devices or labels, with candidates for it."""
    task, source = _task(data), expanded(data["path"])
    files = [file.path for file in files_in(source)] if source.is_dir() else [lack.path]
    able = guess.candidates(files, data, lack.role)
    known = {*lack.names, *data.get("columns", {})}
    unlabelled = lack.role == "device" and "label" not in known and task == CLASSIFICATION
    unlabelled = unlabelled and not data.get("remaining")
    labels = guess.candidates(files, data, "label") if unlabelled else None
    return NoColumnError(
        lack.path,
        lack.name,
        lack.role,
        lack.names,
        candidates=able,
        labels=labels,
        ordered=bool(task.ahead) or not task.labelled,
        hint=lack.hint,
    )


def _without(document: dict[str, Any], left: Sequence[str]) -> Park:
    """Leave columns out of a draft, and return the park without them."""
    _ignore(document["data"], left)
    columns = document["data"]["columns"]
    categories = {name: how for name, how in columns.pop("categories", {}).items() if name not in left}
    columns |= {"categories": categories} if categories else {}
    return build_park(config.from_table(document))


def _tails(dataset: Dataset, *, detects: bool) -> list[str]:
    """Return a sentence on sensors with heavy tails if they determine the network, otherwise an empty list."""
    if _network(dataset, detects=detects) != "mlp-sensor-asinh":
        return []
    heavy = named(proposals.heavy_tailed(dataset))
    return [f"heavy tails (values far beyond most others) of {heavy}: the network applies asinh to its input"]


def _train(document: dict[str, Any], park: Park, *, detects: bool, paced: bool) -> list[str]:
    """Set network, method, rounds and work, unless given, and return notes; simple models come before networks."""
    free = not paced and not {"model", "method", "work"} & {*document}
    model, method = document.setdefault("model", {}), document.setdefault("method", {})
    rounds, notes = None, list[str]()
    if detects and not model.get("name") and not method.get("name"):
        model["name"], method["name"], rounds = "monitor", "pca", 1
    elif free and _grows(park.dataset, detects=detects):
        method["name"] = "boosting"
        rounds, notes = _forest(document, park)
    model.setdefault("name", _network(park.dataset, detects=detects))
    _work(document, park)
    method.setdefault("name", "fedavg")
    if not paced:
        document["rounds"] = rounds or _rounds(document, park)
    if free and rounds is None and not park.dataset.task.ahead and _stops(document, 2):
        document["rounds"] = MOST_ROUNDS
    return notes


def _forest(document: dict[str, Any], park: Park) -> tuple[int, list[str]]:
    """Set the share of features, the number of trees and their end, unless given; return rounds and notes.

    The statistics of a window resemble each other: trees that use some of them differ, as those of a random forest.
    """
    given, features = document.get("methods", {}).get("boosting", {}), described(park.dataset.shape)
    settings = {"columns": _share(park.dataset), "trees": TREES} | given
    notes = []
    if len(park.dataset.y) < PLENTY or not _stops(document, EVERY):
        document.setdefault("evaluate", {}).setdefault("every", EVERY)
        data = config.from_table(document).data
        scale = normaliser(data.normalise)
        own = scale if isinstance(scale, DeviceNormaliser) else None
        scattered = getattr(data.split, "kind", "") in SCATTERED and len(park.dataset.shape) == 1
        many = TREES if "trees" in given else trials.trees(park, own, settings["columns"], scattered=scattered)
        if many < TREES:
            settings["trees"] = many
            notes.append(
                f"{count(many, 'tree')}, because more of them predict training samples that are held out worse: --set "
                f"methods.boosting.trees=N --set rounds=M for others"
            )
    usual = {"columns": 1.0, "trees": TREES}
    changed = {key: value for key, value in settings.items() if key in given or value != usual[key]}
    if changed:
        document.setdefault("methods", {})["boosting"] = changed
    shares = math.ceil(features / math.ceil(round(settings["columns"] * features, 9)))
    return ROUNDS_OF_BINS * shares + settings["trees"] * settings.get("depth", LEVELS), notes


def _stops(document: dict[str, Any], every: int) -> bool:
    """Let a run end when held-out samples no longer gain, and keep its best model; return whether data allow it."""
    evaluate = document.setdefault("evaluate", {})
    if {"on", "every", "patience"} & {*evaluate}:
        return False
    stop = {"on": "both", "every": every, "patience": PATIENCE}
    try:
        build_park(config.from_table(document | {"evaluate": evaluate | stop}))
    except SettingError:  # too few samples or devices to hold some out
        return False
    evaluate |= stop
    return True


def _traffic(document: dict[str, Any], park: Park) -> list[str]:
    """Return a sentence on what the draft sends over its network, beside the raw data; none without a network."""
    if config.from_table(document).network.profile is None:
        return []

    def cost(changed: Mapping[str, Any]) -> str:
        experiment = config.from_table({**document, **changed})
        prices = [planned.price for planned in forecast.rounds(experiment, park, experiment.rounds)]
        sent, seconds = sum(sum(price.bytes.values()) for price in prices), sum(price.seconds for price in prices)
        return f"{sent / 1e6:.3g} MB in " + (f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds:.3g} s")

    note = f"on this network training sends {cost({})}; the devices' training data have {raw_bytes(park) / 1e6:.3g} MB"
    if document["method"]["name"] == "boosting":
        other = {"method": {"name": "fedavg"}, "rounds": _rounds(document, park)}
        note += f". With a network, method fedavg and {other['rounds']} rounds: {cost(other)}"
    return [note]


def _rounds(document: Mapping[str, Any], park: Park) -> int:
    """Return the number of rounds of a network: for windows about ``STEPS`` steps of a device, within bounds."""
    if park.dataset.inputs.kind != "table" or park.dataset.task.ahead:
        return ROUNDS
    if len(park.dataset.shape) == 1:
        return ROUNDS_OF_ROWS
    work = document["work"]
    steps = work.get("steps") or work.get("epochs", 1) * math.ceil(park.sizes.mean() / work["batch_size"])
    return int(min(max(STEPS // steps, ROUNDS), MOST_ROUNDS))


def _work(document: dict[str, Any], park: Park) -> None:
    """Set the work of devices and the scaling of pictures, unless given.

    Small devices use short mini-batches, of which a usual one makes several in a pass: one tiny device does not make
    those of all others tiny.
    """
    work = document.setdefault("work", {})
    if "batch_size" not in work:
        work["batch_size"] = int(min(BATCH, max(SMALL_BATCH, park.sizes.mean() // VISIT), park.sizes.max()))
        if "partition" in document["data"] or park.sizes.min() < work["batch_size"]:  # dealt: other sizes by seed
            work.setdefault("short_batches", True)
    if park.dataset.inputs.kind == "image":
        document["data"].setdefault("normalise", "standard")
    sensors = park.dataset.inputs.kind == "table"
    if sensors and not {"lr", "momentum", "optimizer"} & {*work}:
        rate = 0.01 if park.dataset.task.targets else 0.02
        rows = park.dataset.shape[-1] if park.dataset.task.ahead else WINDOW
        linear = round(0.05 * min(1.0, WINDOW / rows), 4)  # a linear layer's gradient grows with the number of inputs
        work |= {"lr": linear if document["model"]["name"] == "linear" else rate, "momentum": 0.9}
        if park.dataset.task.ahead:  # jumps of mostly constant sensors, such as rain, make a linear layer diverge
            work.setdefault("clip_norm", CLIP)
    work.setdefault("lr", 0.05)


def _unmarked(document: dict[str, Any], dataset: Dataset) -> list[str]:
    """Set the reconstruction error as headline metric if no test sample is an anomaly, unless given; return notes."""
    tested = np.count_nonzero(np.bincount(dataset.y_test))
    if not isinstance(dataset.task, Reconstruction) or tested > 1 or "headline" in document.get("evaluate", {}):
        return []
    document.setdefault("evaluate", {})["headline"] = "reconstruction error"
    return [
        "no test sample is marked as an anomaly: the headline metric is the reconstruction error; for labels, used "
        "only in evaluations: --set data.columns.label=NAME"
    ]


def _guess(data: dict[str, Any], path: Path) -> list[str]:
    """Set the probable roles of a table's columns, and return sentences on them."""
    table, folder = path, path.is_dir()
    if folder:
        every = files_in(path)
        files = [file for file in every if file.path.name.casefold().endswith(tables(every))]
        if not files:
            return []
        table = files[0].path
    elif not path.is_file() or (data.get("format") or own.format_of(path)) != "table":
        return []
    above = [] if "skip" in data else preamble(table, data)
    if above:
        data["skip"] = len(above) if (*above,) == skipped(len(above)) else above
    if folder:
        table = max(files[:LISTED], key=lambda file: len(head(file.path, 1, data).names)).path  # most columns
        proposals.check_levels(files, data)
    labelled = not folder or len(files[0].folders) < 2 or "label" not in data.get("layout", "label")
    needed = ("label",) if labelled and not data.get("remaining") and _task(data).labelled else ()
    if not folder or data.get("device", "folder" if files[0].folders else "column") == "column":
        needed = ("device", *needed)
    try:
        guess_of = guess.guess(table, data, needed)
    except SettingError as error:  # its message names the file, but not its folder
        place = next(file.name.removesuffix(table.name) for file in files if file.path == table) if folder else ""
        raise SettingError(f"{place}{error}") from error
    sentences = [f"rows {', '.join(map(str, above))} are no data (titles or units) and are skipped"] if above else []
    guessed = guess_of.settings
    endings = guess.endings(table, data, guessed) if data.get("remaining") and "ended" not in data else []
    sentences += guess.words(guess_of, data) + endings
    if (task := _task(data)).kind == "reconstruction" or task.ahead:
        sentences += guess.marks(table, data, guessed, judged=not task.ahead)
    data.update(guessed)
    return sentences


def _mend(document: dict[str, Any], notes: list[str], *, timed: bool, coded: Collection[str]) -> str:
    """Correct a draft for empty sensors, missing values and the split; return a comment on missing values.

    Args:
        document, notes: the draft and its notes.
        timed, coded: whether the time is given, and the columns whose coding is.
    """
    data, note = document["data"], ""
    free = (_task(data).ahead > 0 or (data.get("remaining") and "bins" not in data)) and "window" not in data
    if free:
        data["window"] = {"length": WINDOW, "step": 1}
    for _ in range(TRIES):
        experiment: Experiment = config.from_table(document)
        try:
            dataset = load_data(experiment)
            if free and not _task(data).ahead:
                notes.append(_windows(data["window"]["length"]))
                if (step := math.ceil(len(dataset.y) / MOST_WINDOWS)) > 1:
                    data["window"]["step"] = step
                    notes[-1] += f"; one begins every {step} rows, for at most {MOST_WINDOWS:,} in training"
            return note
        except TimesError as error:
            if timed or not _untimed(data, notes):
                if (run := guess.separating(expanded(data["path"]), data)) is None:
                    raise
                raise SettingError(f"{error} '{run}' does: --set 'data.columns.run={run}'.") from error
        except ShortRecordingsError as short:
            if not free or short.longest <= SHORTEST:
                raise
            data["window"]["length"] = max(SHORTEST, short.longest // 2)
        except EmptySensorsError as empty:
            if experiment.data.columns.values:
                raise
            _ignore(data, empty.columns)
            names = ", ".join(map(repr, empty.columns))
            notes.append(f"{names} {'hold' if len(empty.columns) > 1 else 'holds'} no value in any row and is ignored")
        except UnlistedTextError as third:  # in rows or tables beyond those that the guess examined
            if third.name in coded:
                raise
            data["columns"]["categories"][third.name] = "one-hot"
            notes[:] = [text for text in notes if not text.startswith(f"'{third.name}' holds a few texts")]
            notes.append(f"'{third.name}' holds a few texts: a sensor for each (one-hot)")
        except MeasureError as measure:
            if "task" in data:
                raise
            data["task"] = {"kind": "regression"}
            notes.append(_number_note(measure))
        except SmallDevicesError:
            if "split" in data or "test" in data or not data.get("remaining"):
                raise
            data["split"] = {"kind": "device"}
            notes.append(
                "split: by device (whole devices, excluded from training), because by time the ends of short "
                "recordings have no test sample"
            )
        except OneClassError:
            if "split" in data or "test" in data or not _resplit(document, notes):
                raise
        except MissingValuesError as holes:
            data["missing"] = "previous" if holes.carried else "mean"
            note = f"{holes.count:,} missing; or " + ('"mean", "drop"' if holes.carried else '"drop"')
    return note


def _number_note(measure: MeasureError) -> str:
    """Return the note on a label that is drafted as a number, with the setting for classes of its ranges."""
    several = str(measure).partition("'data.bins=")[2].partition("'")[0] or "[EDGE, …]"
    return f"the label is a number and is predicted as a number; for classes of its ranges: --set 'data.bins={several}'"


def _ignore(data: dict[str, Any], names: Sequence[str]) -> None:
    """Add columns to those left out."""
    columns = data.setdefault("columns", {})
    columns["ignore"] = [*columns.get("ignore", ()), *names]


def _untimed(data: dict[str, Any], notes: list[str]) -> bool:
    """Leave out a column of dates that was guessed to be the time; return False if its name is clear."""
    name = data.get("columns", {}).get("time", "")
    if not name or is_called_time(name):
        return False
    _ignore(data, [name])
    data["columns"]["time"] = ""
    notes[:] = [note for note in notes if note != f"'{name}' is taken for the time"]
    notes.append(
        f"'{name}' holds times, but rows are not in their order, therefore it is left out; if it is the time: --set "
        f"'data.columns.time={name}' --set data.sort=true"
    )
    return True


def _resplit(document: dict[str, Any], notes: list[str]) -> bool:
    """Set a split whose training rows have several classes; return whether there is one."""
    data = document["data"]
    several = proposals.recordings(data, expanded(data["path"]))
    for kind in ("run", "device", "stratified")[0 if several else 1 :]:
        split, dataset = proposals.drawn(kind, _reader(document))
        if dataset is not None:
            data["split"] = split
            notes.append(f"{proposals.words(split)}, because by time the training rows have one class")
            return True
    return False


def _reader(document: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Dataset]:
    """Return a function from a split to the data of an experiment with it."""

    def read(split: Mapping[str, Any]) -> Dataset:
        return load_data(config.from_table({**document, "data": document["data"] | {"split": dict(split)}}))

    return read


def _task_table(data: Mapping[str, Any]) -> dict[str, Any]:
    given = data.get("task")
    return dict(given) if isinstance(given, Mapping) else {"kind": given}


def _task(data: Mapping[str, Any]) -> Task:
    """Return the task of the given kind; a classification by default."""
    kind = _task_table(data).get("kind") or "classification"
    return TASKS[kind]() if kind in TASKS else CLASSIFICATION


def _asked(data: Mapping[str, Any], dataset: Dataset) -> list[str]:
    """Return a sentence on the target and its usual settings; of classes on one that marks the ends of recordings."""
    if not dataset.task.targets:
        return proposals.ends(dataset) if dataset.task == CLASSIFICATION else []
    names, given = ", ".join(dataset.task.called()[:8]), _task_table(data)
    wishes = {"loss": "data.task.loss=quantile (with intervals)", "unit": "data.task.unit=NAME"}
    if dataset.task.ahead:
        return [f"the forecast is the next {dataset.task.ahead} rows of {names}; others: --set data.task.horizon=N, "
                "--set 'data.task.sensors=[…]'. Compare with repeated values: fedfloor run --references"]  # fmt: skip
    if dataset.task.lives or data.get("remaining"):
        wishes |= {"cap": "data.task.cap=125 (if sensors show no longer life)"}
    left = [f"--set {text}" for key, text in wishes.items() if key not in given]
    targets = () if dataset.target is None else dataset.target.T
    marks = [proposals.missing_mark(target, "remove these rows: training counts it as measured") for target in targets]
    return [
        f"the target is {names}" + (f"; useful settings, with --task regression: {', '.join(left)}" if left else ""),
        *(f"the target '{name}' {mark}" for name, mark in zip(dataset.task.called(), marks, strict=False) if mark),
    ]


def _proposed(document: dict[str, Any], path: Path, notes: list[str], *, settled: bool) -> tuple[Park, str]:
    """Set the most suitable split, or complete a given kind; return the park and the sentence on the split."""
    experiment, data = config.from_table(document), document["data"]
    if settled:
        return build_park(experiment), str(data["split"]["kind"])

    split, sentences = proposals.propose(load_data(experiment), data, path, _reader(document))
    notes += sentences
    if split:
        data["split"] = split
    return build_park(config.from_table(document)), str(split.get("kind", ""))


def _recorded(document: dict[str, Any], park: Park, notes: list[str]) -> Park:
    """Set windows, unless set, if each recording has a single class; return the park."""
    data, dataset = document["data"], park.dataset
    if "window" in data or dataset.run is None or dataset.task != CLASSIFICATION or dataset.inputs.kind != "table":
        return park
    rows = np.unique(dataset.run, return_counts=True)[1]
    several = len(np.unique(np.stack([dataset.run, dataset.y]), axis=1).T) > len(rows)
    if several or rows.min() < 2 * WINDOW:
        return park
    window = {"length": WINDOW, "step": math.ceil(len(dataset.y) / MOST_WINDOWS)}
    try:
        park = build_park(config.from_table(document | {"data": data | {"window": window}}))
    except SettingError:  # too few rows for windows
        return park
    data["window"] = window
    order = "" if dataset.time is not None else ", whose order is taken for the time"
    notes.append(
        f"each recording has a single class, therefore samples are windows of {WINDOW} rows{order}; longer ones may be "
        "better: --set data.window.length=N (1 for single rows)"
    )
    return park


def _check_published(path: Path, data: Mapping[str, Any]) -> None:
    """Refuse a published data set, given by its name, file or folder, because experiments read it by name.

    A file with the same name but with names of columns, in its first row or in ``[data] header``, is accepted.
    """
    name = path.name if path.name in SOURCES and not path.exists() else None
    inside = [path, *islice(path.iterdir(), LISTED)] if path.is_dir() else [path]
    for published, pattern in FILES.items():
        if any(re.fullmatch(pattern, unpacked(file.name)) for file in inside):
            name = published
    if name is None or "header" in data or (path.is_file() and are_names(head(path, 1, {}).first)):
        return
    own = f"fedfloor run {name}, or " if name in BUNDLED else ""
    raise SettingError(
        f"{path.name}: '{name}' is a published data set, which experiments read by name: {own}[data] name = "
        f'"{name}". Put its files into the folder {name} in $FEDFLOOR_DATA, or in FOLDER with --set data.root=FOLDER.'
    )


def _regimes(data: dict[str, Any], dataset: Dataset) -> list[str]:
    """Set normalisation by operating regime if sensors depend on regimes; return sentences on it."""
    proposal = None if "normalise" in data or dataset.task.ahead else proposals.regimes(dataset)
    if proposal is None:
        return []
    columns, regimes = proposal
    data["normalise"] = {"kind": "regime", "columns": columns, "regimes": regimes}
    return [
        f"operating regimes: {regimes}, by the levels of {', '.join(columns)}. Most sensors depend on them and are "
        "therefore normalised within each regime; for one scale for all rows: --set data.normalise=standard"
    ]


def _check_classes(data: Mapping[str, Any], dataset: Dataset, name: str) -> None:
    """Refuse numbers as labels if there are many, or each device has another, unless classes or edges are given.

    Labels of pictures are classes.
    """
    each = dataset.owner is not None and proposals.MANY <= len(dataset.owned.names) == len(dataset.classes)
    if data.get("classes") or data.get("bins") or dataset.inputs.kind == "image":
        return
    if len(dataset.classes) <= MOST_NUMBERS and not (each and proposals.constant(dataset)):
        return
    if (numbers := sorted_numbers(dataset.classes)) is None:
        return
    low, high = thirds(numbers)
    listed = "[" + ", ".join(f'"{label}"' for label in dataset.classes[:2]) + ", …]"
    raise SettingError(
        f"{name}: the label is one of {len(numbers)} different numbers from {numbers[0]:g} to {numbers[-1]:g}: a "
        f"measure, or codes? If a measure, make classes of its ranges: --set 'data.bins=[{low}, {high}]' (below {low}, "
        f"{low} to {high}, {high} or more), or predict the number itself: --set data.task=regression. If each "
        f"number is a class, list them: --set 'data.classes={listed}'."
    )


def _columns(data: Mapping[str, Any], dataset: Dataset) -> list[str]:
    """Return a sentence on the assumed roles of columns; an empty list for data without tables."""
    inputs, path = dataset.inputs, expanded(data["path"])
    folder = path.is_dir()
    if inputs.kind != "table" or (not folder and (data.get("format") or own.format_of(path)) == "npz"):
        return []
    labelled = dataset.task.labelled and not data.get("remaining")
    present = {
        "device": dataset.owner is not None and not folder, "factory": bool(dataset.owned.factories) and not folder,
        "time": dataset.time is not None, "run": "run" in inputs.names,
        "label": labelled and not (folder and "label" in proposals.layout_of(dataset, files_in(path), data)),
    }  # fmt: skip
    sentences = [f"{role} is '{inputs.names[role]}'" for role, is_there in present.items() if is_there]
    if dataset.time is not None:
        first, last = (_moment(time, data.get("time_format")) for time in (dataset.time.min(), dataset.time.max()))
        zone = ", in UTC, or without a zone as written" if "-" in first[1:] else ""
        sentences[sentences.index(f"time is '{inputs.names['time']}'")] += f" (training: {first} to {last}{zone})"
    none = [role for role in ("time", "run") if not present[role]]
    lacking = f"; no column for {' or '.join(none)}" if none else ""
    roles = f"{', '.join(sentences)}{lacking}" if sentences else lacking.removeprefix("; ")
    sensors = f"{count(len(inputs.columns), 'sensor')}: {some(inputs.columns, 8)}"
    return [f"columns: {roles}; {sensors}; to change a role: --set data.columns.ROLE=NAME"]


def _moment(time: float, form: str | None) -> str:
    """Return a time as a text: a date if it was given as a date or in seconds since 1970, otherwise a number."""
    dated = (form in UNITS or abs(time) >= DATED) and abs(time) < UNDATED
    return f"{np.datetime64(int(time), 's')}".replace("T", " ") if dated else f"{time:g}"


def _suspects(data: Mapping[str, Any], dataset: Dataset, *, free: bool) -> tuple[list[str], list[str]]:
    """Return a sentence for each column that is probably no sensor, and the columns left out for this reason.

    With ``free``, the columns that would reveal classes or are missing in later predictions are left out: all for a
    classification, and counters for an anomaly detection. For others, the sentence proposes to leave them out.
    """
    suspects = findings(dataset)
    columns = data.get("columns", {})
    categories = dataset.inputs.coding.get("categories", {})
    constant = [finding.sensor for finding in suspects if finding.constant]
    constant = constant if len(constant) > MANY else []
    sentences = [f"{named(constant)} each have one value in every row examined, and are of no use"] if constant else []
    sentences += [f"'{finding.sensor}' {finding.text}" for finding in suspects if finding.sensor not in constant]
    if len(sentences) > MOST_SUSPECTS:
        sentences[MOST_SUSPECTS:] = [f"{len(sentences) - MOST_SUSPECTS} more of these sensors are in the list below"]
    many = {text: len(how["values"]) for text, how in categories.items() if how["kind"] == "one-hot"}
    sentences += [
        f"'{text}' becomes {count} sensors, one for each of its texts" for text, count in many.items() if count > FEW
    ]
    texts = {f"{text}={value}": text for text, how in categories.items() for value in how.get("values", ())}
    doubtful = {texts.get(finding.sensor, finding.sensor): finding for finding in suspects if finding.leave}
    task, judged = dataset.task, isinstance(dataset.task, Reconstruction)
    left = [
        name for name, finding in doubtful.items()
        if task == CLASSIFICATION or (judged and finding.counts)
        or (task.ahead and (finding.counts or finding.constant))
    ]  # fmt: skip
    free = free and not columns.get("values") and len(doubtful) < len(dataset.inputs.columns)
    before = columns.get("ignore", [])
    if left and free:
        sentences.append(f"left out: {', '.join(map(repr, left))}; to keep them: {ignoring(*before)}")
        doubtful = {name: finding for name, finding in doubtful.items() if name not in left}
    if doubtful:
        how = "out of data.columns.values" if columns.get("values") else ignoring(*before, *doubtful)
        sentences.append(f"proposed: leave {'them' if len(doubtful) > 1 else 'it'} out, {how}")
    return sentences, left if free else []


def _rare(document: Mapping[str, Any], dataset: Dataset) -> list[str]:
    """Return a sentence on the rarest class and settings for it, unless they are set."""
    if dataset.task != CLASSIFICATION:
        return []
    evaluate, samples = document.get("evaluate", {}), np.bincount(dataset.y, minlength=len(dataset.classes))
    held = {dataset.classes[c]: float(samples[c] / len(dataset.y)) for c in np.unique(dataset.y_test) if samples[c]}
    name, share = min(held.items(), key=lambda item: item[1], default=("", 1.0))
    if share >= min(RARE, 0.5 / len(dataset.classes)) or "headline" in evaluate or "decide" in document:
        return []
    quoted = json.dumps(name, ensure_ascii=False)
    headline = "macro-F1" if sum(each < RARE for each in held.values()) > 1 else f"F1 of {name}"
    return [
        f"class '{name}' has {100 * share:.2g} % of the samples for training and hardly affects the accuracy: use "
        f"[evaluate] headline = {json.dumps(headline, ensure_ascii=False)}; train with [method] objective = "
        f'"weighted"; or decide with a threshold, [decide] positive = {quoted} with [evaluate] on = "both"'
    ]


def _tried(document: dict[str, Any], park: Park, notes: list[str]) -> Park:
    """Set windows and normalisation by device, unless set, where a trial shows a gain; return the park.

    Windows are tried if what is predicted lasts for many rows in order.
    """
    data, dataset = document["data"], park.dataset
    if dataset.inputs.kind != "table" or dataset.task.ahead:
        return park
    ordered = dataset.time is not None or "run" in data.get("columns", {})
    ordered = ordered or expanded(data["path"]).is_dir()  # the rows of a file in a folder are in order
    lasts = _slow(dataset) if ordered and "window" not in data else ""
    shortest = WINDOW if dataset.run is None else int(np.unique(dataset.run, return_counts=True)[1].min())
    window = {"length": min(WINDOW, shortest), "step": math.ceil(len(dataset.y) / MOST_WINDOWS)}
    windowed = None
    if lasts and shortest >= SHORTEST:
        with suppress(SettingError):  # too few rows for windows
            raw = {key: value for key, value in data.items() if key != "normalise"} | {"window": window}
            windowed = build_park(config.from_table(document | {"data": raw}))
    wider, scale, evidence = trials.best(park, windowed, own=not {"normalise", "partition"} & {*data}) or (
        False,
        {},
        "",
    )
    changed = []
    if wider and windowed is not None:
        park, data["window"] = windowed, window
        length = f"windows of {window['length']} rows"
        changed.append(f"{lasts}, therefore samples are {length} (data.window.length=1: single rows)")
    if scale:
        data["normalise"] = scale
        rows = f"first {scale['rows']}" if "rows" in scale else "training"
        changed.append(
            f"devices have levels of their own, therefore each is normalised by its {rows} rows (one scale for all: "
            "data.normalise=standard)"
        )
    if changed:
        notes.append(f"{'; '.join(changed)}. Evidence: {evidence}")
    if lasts and not wider:
        notes.append(
            f"{lasts}, and a window of several rows may be more informative than a single row: --set "
            f"'data.window={{length={window['length']},step=1}}'"
        )
    return park


def _slow(dataset: Dataset) -> str:
    """Return a clause if a label usually lasts for :data:`LASTING` rows, or a target hardly changes; "" otherwise."""
    owner = np.zeros(len(dataset.y), np.int64) if dataset.owner is None else dataset.owner
    if dataset.target is not None and not dataset.task.ahead:
        target = dataset.target[:, 0].astype(np.float64)
        step = np.diff(target)[np.diff(owner) == 0]
        slow = len(step) > 0 and (step**2).mean() < 2 * proposals.STEADY * target.var()
        return "the target hardly changes from row to row" if slow else ""
    if dataset.task != CLASSIFICATION:
        return ""
    change = np.flatnonzero((np.diff(dataset.y) != 0) | (np.diff(owner) != 0))
    rows = np.diff(np.r_[-1, change, len(dataset.y) - 1])
    label = dataset.y[np.r_[change, len(dataset.y) - 1]]
    rare = rows[label != np.bincount(dataset.y).argmax()]
    return f"a label lasts for {rare.mean():.0f} rows on average" if len(rare) and rare.mean() >= LASTING else ""


def _network(data: Dataset, *, detects: bool = False) -> str:
    if detects:
        return "ae-dense" if len(data.shape) == 1 else "ae-conv"
    if data.inputs.kind == "image":
        return "cnn-tutorial" if min(data.shape[1:]) >= SMALLEST_PICTURE else "mlp-2nn"
    if len(data.shape) == 1:
        heavy = len(proposals.heavy_tailed(data)) >= HEAVY * data.shape[0]
        return "mlp-sensor-asinh" if heavy else "mlp-sensor-soft"
    return "linear" if data.task.ahead else "cnn-window"  # NLinear, the simple model that deeper networks must beat


def _grows(data: Dataset, *, detects: bool) -> bool:
    """Return whether boosted trees are drafted: for classes or numbers of rows or windows, within bounds of cost."""
    return not detects and not data.task.ahead and data.inputs.kind == "table" and not _excess(data)


def _excess(data: Dataset) -> str:
    """Return the bound of cost that windows exceed; "" within the bounds, and for rows."""
    if len(data.shape) == 1 or data.inputs.kind != "table" or data.task.ahead:
        return ""
    features = described(data.shape)
    if len(data.y) > (most := int(min(MOST_WINDOWS, MOST_HELD / features))):
        return f"{len(data.y):,} windows are more than {most:,}"
    enough = _share(data) ** 2 * features >= 1
    return "" if enough else f"{len(data.y):,} windows are too many for trees that use √{features} features or more"


def _share(data: Dataset) -> float:
    """Return the share of the features that a tree uses, within bounds of what is sent and added up in a round."""
    targets = 0 if data.target is None else data.target.shape[1]
    features = described(data.shape)
    windows = len(data.shape) > 1
    sums = features * data.task.outputs(len(data.classes), targets, data.shape)
    most = min(MOST_AT_ONCE, MOST_ADDED / len(data.y)) if windows else MOST_AT_ONCE
    return min(DECORRELATED if windows and features >= CORRELATED else 1.0, math.ceil(100 * most / sums) / 100)


def _text(document: dict[str, Any], park: Park, missing: str, proposed: str, notes: Sequence[str]) -> str:
    """Return a document as TOML with comments on the data and alternatives."""
    import tomlkit

    body = tomlkit.document()
    for sentence in (summary(park), *notes):
        body.add(tomlkit.comment(re.sub(r"[\x00-\x1f\x7f]+", " ", sentence)))  # a comment is a single line
    data = dict(document["data"])
    if proposed:
        others = [kind + " (rows = N)" * (kind == "last") for kind in proposals.KINDS if kind != proposed]
        table = tomlkit.inline_table()
        table.update(data["split"])
        data["split"] = table.comment(f"or {', '.join(others)}")
    for key, value in sorted((document | {"data": data}).items(), key=lambda item: isinstance(item[1], dict)):
        body.add(key, tomlkit.item(value))
    if missing:
        body["data"]["missing"].comment(missing)
    body["method"]["name"].comment("see: fedfloor list methods")
    body["model"]["name"].comment("see: fedfloor list models")
    if document["method"]["name"] == "boosting":
        settings = document.get("methods", {}).get("boosting", {})
        trees, depth = settings.get("trees", TREES), settings.get("depth", LEVELS)
        bins = document["rounds"] - trees * depth
        if bins > 0:  # not given
            body["rounds"].comment(f"{bins} for the bins, then {count(trees, 'tree')} of at most {depth} levels")
        body["method"]["name"].comment(f'trees; with a network: "fedavg", and rounds = {_rounds(document, park)}')
        body["model"]["name"].comment("of methods with a network, and [work] likewise; see: fedfloor list models")
    if document["method"]["name"] == "pca":
        deeper = _network(park.dataset, detects=True)
        body["method"]["name"].comment("in one round")
        body["model"]["name"].comment(
            f'a deeper network must be better: "{deeper}", with rounds = {ROUNDS}, method "fedavg"'
        )
    return tomlkit.dumps(body)


def without_labels(data: Dataset) -> bool:
    """Return whether no sample of a detector's data is marked as an anomaly, as without a column of labels."""
    return isinstance(data.task, Reconstruction) and not (data.y.any() or data.y_test.any())


def summary(park: Park) -> str:
    """Return the size and content of a park in one line."""
    data = park.dataset
    if data.inputs.kind == "image":
        holdings = f"pictures of {data.shape[1]}×{data.shape[2]} pixels, {'grey' if data.shape[0] == 1 else 'colour'}"
    else:
        holdings = count(data.shape[0], "sensor")
        holdings += f", windows of {count(data.shape[1], 'row')}" if len(data.shape) > 1 else ""
    if data.target is not None:
        ahead = f"the next {data.task.ahead} rows of " if data.task.ahead else ""
        low, high, unit = data.target[:, 0].min(), data.target[:, 0].max(), getattr(data.task, "unit", "")
        span = "" if ahead else f" from {low:.4g} to {high:.4g}{f' {unit}' if unit else ''}"
        targets = f"{ahead}{', '.join(data.task.called()[:8])}{span}"
    elif without_labels(data):
        targets = "no label of an anomaly"
    else:
        share = np.bincount(data.y, minlength=len(data.classes)) / len(data.y)
        parts = [f"{name} {100 * part:.0f} %" for name, part in zip(data.classes, share, strict=True)]
        targets = ", ".join(parts[:8]) + (f", … ({len(parts)} classes)" if len(parts) > 8 else "")
    return (
        f"{count(park.devices, 'device')} in {count(park.factories, 'factory', 'factories')}, {len(data.y):,} training "
        f"and {count(len(data.y_test), 'test sample')}: {holdings}; {targets}"
    )


def skew(text: str, park: Park) -> LabelSkew | None:
    """Return a park's label skew, and warn if it is too small for the device selection of the draft's method."""
    measured = label_skew(park)
    warn(config.from_table(toml_text(text, "the draft")), measured)
    return measured


def rows(park: Park) -> list[dict[str, Any]]:
    """Return a row per factory: its devices, the range of their numbers of samples, and its classes."""
    factories = []
    table = park.counts()
    for factory in range(park.factories):
        members = list(park.members(factory))
        sizes, counts = park.sizes[members], table[members].sum(axis=0)
        order = np.argsort(-counts, kind="stable")[:6]
        order = order if park.dataset.target is None else np.sort(order)  # ranges by their numbers
        excerpt = ", ".join(f"{park.dataset.classes[c]} {counts[c]:,}" for c in order if counts[c])
        factories.append({
            "factory": park.display_names.own("factory", factory) or (str(factory) if park.factories > 1 else None),
            "devices": len(members),
            "samples": int(sizes.sum()), "smallest": int(sizes.min()), "largest": int(sizes.max()),
        } | ({} if without_labels(park.dataset) else {
            "classes" if park.dataset.target is None else "ranges": excerpt + (", …" if (counts > 0).sum() > 6 else ""),
        }))  # fmt: skip
    return factories


def check_free(out: Path, *, force: bool) -> None:
    """Check that an experiment file can be written, and does not exist yet unless ``force``.

    Raises:
        SettingError: the file exists, is a folder, or its folder is missing.
    """
    exists = is_there(out)
    if out.is_dir():
        raise SettingError(f"{out} is a folder. Give the name of a file with --out.")
    if exists and not force:
        raise SettingError(f"{out} exists already. Give another name with --out, or overwrite it with --force.")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise SettingError(f"{out}: {out.parent} is not a writable folder. Give another path with --out.")
