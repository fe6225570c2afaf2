"""Sentences on the columns of a draft, and those that are left out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.base.names import alike, count, excerpt, misspelt, some
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import expanded, own
from fedfloor.data.files.encode import sorted_numbers, thirds
from fedfloor.data.files.times import UNITS
from fedfloor.data.files.tree import files_in, named
from fedfloor.data.kinds import FEW
from fedfloor.data.reading import ignoring
from fedfloor.drafting import findings, folders, splits
from fedfloor.drafting.outcomes import task_table
from fedfloor.drafting.readable import ignored
from fedfloor.drafting.sketch import Proposal
from fedfloor.drafting.training import network_of
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.figures import FALSE_ALARMS, MISSED, RECONSTRUCTION_ERROR
from fedfloor.tasks.reconstruction import Reconstruction

KEEPING = "to keep them"
MOST_NUMBERS = 30  # numeric classes that need not be listed, at most
RARE = 0.1  # share of the training samples below which a class is rare, if there are few classes
# seconds since 1970 between which a number is shown as a date (1973 to 2286)
DATED = 1e8
UNDATED = 1e10
MANY = 3  # constant sensors from which they share a sentence
MOST_SUSPECTS = 12  # sentences on sensors, at most
NAMED = 5  # devices named in a sentence, at most


def without(data: Mapping[str, Any], left: Sequence[str]) -> Proposal:
    """Leave columns out of a draft, and their coding."""
    columns = data.get("columns", {})
    categories = {name: how for name, how in columns.get("categories", {}).items() if name not in left}
    others = {role: name for role, name in columns.items() if role != "categories"}
    coding = {"categories": categories} if categories else {}
    return Proposal({"data.columns": {**others, "ignore": ignored(data, left), **coding}})


def on_tails(dataset: Dataset, *, detects: bool) -> list[str]:
    """Return a sentence on sensors with heavy tails if they determine the network, otherwise an empty list."""
    if network_of(dataset, detects=detects) != "mlp-sensor-asinh":
        return []
    heavy = named(findings.heavy_tailed(dataset))
    return [f"heavy tails (values far beyond most others) of {heavy}: the network applies asinh to its input"]


def headline(document: Mapping[str, Any], dataset: Dataset) -> Proposal:
    """Decide on a headline metric if test samples are all normal, or all anomalies, unless given.

    It is the reconstruction error, or for charts, which have none, the share of alarms; of anomalies that of missed
    ones.
    """
    tested = np.count_nonzero(np.bincount(dataset.y_test))
    if not isinstance(dataset.task, Reconstruction) or tested > 1 or "headline" in document.get("evaluate", {}):
        return Proposal()
    if dataset.y_test.any():
        note = (
            f"each test sample is an anomaly: the headline metric is the share of {MISSED} ones, as AUROC, precision "
            "and false alarms need test samples of normal operation, too: add their rows, labelled as normal"
        )
        return Proposal({"evaluate.headline": MISSED}, [note])
    charts = config.is_exact(document.get("method", {}).get("name"))
    metric = "share of false alarms, if all samples are normal" if charts else "reconstruction error"
    note = (
        f"no test sample is marked as an anomaly: the headline metric is the {metric}; for labels, used only in "
        "evaluations: --set data.columns.label=NAME"
    )
    return Proposal({"evaluate.headline": FALSE_ALARMS if charts else RECONSTRUCTION_ERROR}, [note])


def on_target(data: Mapping[str, Any], dataset: Dataset) -> list[str]:
    """Return a sentence on the target and its usual settings; of classes on one that marks the ends of recordings."""
    if not dataset.task.targets:
        return findings.ends(dataset) if dataset.task == CLASSIFICATION else []
    names = ", ".join(dataset.task.called()[:8])
    given = task_table(data)
    wishes = dict(dataset.task.wishes)
    if dataset.task.ahead:
        return [f"the forecast is the next {dataset.task.ahead} rows of {names}; others: --set data.task.horizon=N, "
                "--set 'data.task.sensors=[…]'. Compare with repeated values: fedfloor run --references"]  # fmt: skip
    if dataset.task.lives or data.get("remaining"):
        wishes |= {"cap": "data.task.cap=125 (if sensors show no longer life)"}
    left = [f"--set {text}" for key, text in wishes.items() if key not in given]
    targets = () if dataset.target is None else dataset.target.T
    advice = "remove these rows: training counts it as measured"
    marks = [findings.missing_mark(target, advice) or findings.few_decide(target) for target in targets]
    return [
        f"the target is {names}"
        + (f"; useful settings, with --task {dataset.task.kind}: {', '.join(left)}" if left else ""),
        *(f"the target '{name}' {mark}" for name, mark in zip(dataset.task.called(), marks, strict=False) if mark),
    ]


def check_classes(data: Mapping[str, Any], dataset: Dataset, name: str) -> None:
    """Refuse numbers as labels if there are many, or each device has another, unless classes or edges are given.

    Labels of pictures are classes.
    """
    each = dataset.owner is not None and splits.MANY <= len(dataset.owned.names) == len(dataset.classes)
    if data.get("classes") or data.get("bins") or dataset.inputs.kind == "image":
        return
    if len(dataset.classes) <= MOST_NUMBERS and not (each and splits.constant(dataset)):
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


def on_roles(data: Mapping[str, Any], dataset: Dataset) -> list[str]:
    """Return a sentence on the assumed roles of columns; an empty list for data without tables."""
    inputs = dataset.inputs
    path = expanded(data["path"])
    folder = path.is_dir()
    if inputs.kind != "table" or (not folder and (data.get("format") or own.format_of(path)) == "npz"):
        return []
    labelled = dataset.task.labelled and not data.get("remaining")
    present = {
        "device": dataset.owner is not None and not folder, "factory": bool(dataset.owned.factories) and not folder,
        "time": dataset.time is not None, "run": "run" in inputs.names,
        "life": "life" in inputs.names, "entry": "entry" in inputs.names,
        "label": labelled and not (folder and "label" in folders.layout_of(dataset, files_in(path), data)),
    }  # fmt: skip
    present["label"] &= bool(inputs.names.get("label"))  # tables to predict have none of lives
    sentences = [f"{role} is '{inputs.names[role]}'" for role, is_there in present.items() if is_there]
    if dataset.time is not None:
        first, last = (_moment(time, data.get("time_format")) for time in (dataset.time.min(), dataset.time.max()))
        zone = ", in UTC, or without a zone as written" if "-" in first[1:] else ""
        sentences[sentences.index(f"time is '{inputs.names['time']}'")] += f" (training: {first} to {last}{zone})"
    none = [role for role in ("time", "run") if not present[role]]
    lacking = f"; no column for {' or '.join(none)}" if none else ""
    roles = f"{', '.join(sentences)}{lacking}" if sentences else lacking.removeprefix("; ")
    measured = [name for number, name in enumerate(inputs.columns) if number not in dataset.task.unread]
    sensors = f"{count(len(measured), 'sensor')}: {some(measured, 8)}" if measured else "no sensor"
    return [f"columns: {roles}; {sensors}; to change a role: --set data.columns.ROLE=NAME"]


def _moment(time: float, form: str | None) -> str:
    """Return a time as a text: a date if it was given as a date or in seconds since 1970, otherwise a number."""
    dated = (form in UNITS or abs(time) >= DATED) and abs(time) < UNDATED
    return f"{np.datetime64(int(time), 's')}".replace("T", " ") if dated else f"{time:g}"


def on_suspects(data: Mapping[str, Any], dataset: Dataset, *, free: bool) -> tuple[list[str], list[str]]:
    """Return a sentence for each column that is probably no sensor, and the columns left out for this reason.

    With ``free``, the columns that would reveal classes or are missing in later predictions are left out: all for a
    classification, and counters for an anomaly detection. For others, the sentence proposes to leave them out.
    """
    suspects = findings.of_sensors(dataset)
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
    task = dataset.task
    judged = isinstance(dataset.task, Reconstruction)
    left = [
        name for name, finding in doubtful.items()
        if task == CLASSIFICATION or (judged and finding.counts)
        or (task.ahead and (finding.counts or finding.constant))
    ]  # fmt: skip
    free = free and not columns.get("values") and len(doubtful) < len(dataset.inputs.columns)
    before = columns.get("ignore", [])
    if left and free:
        sentences.append(f"left out: {', '.join(map(repr, left))}; {KEEPING}: {ignoring(*before)}")
        doubtful = {name: finding for name, finding in doubtful.items() if name not in left}
    if doubtful:
        how = "out of data.columns.values" if columns.get("values") else ignoring(*before, *doubtful)
        sentences.append(f"proposed: leave {'them' if len(doubtful) > 1 else 'it'} out, {how}")
    return sentences, left if free else []


def completed(note: str, ignored: Sequence[str]) -> str:
    """Return a note whose option to leave columns out keeps those out that the draft has left out meanwhile.

    >>> print(completed(f"'b' holds a few texts. Or leave it out: {ignoring('b')}", ["a"]))
    'b' holds a few texts. Or leave it out: --set 'data.columns.ignore=["a", "b"]'
    """
    option = re.search(r"--set 'data\.columns\.ignore=(\[.*?\])'", note)
    if option is None or KEEPING in note:
        return note
    names = json.loads(option[1])
    return note.replace(option[0], ignoring(*dict.fromkeys([*ignored, *names])))


def on_rare_class(document: Mapping[str, Any], dataset: Dataset) -> list[str]:
    """Return a sentence on the rarest class and settings for it, unless they are set."""
    if dataset.task != CLASSIFICATION:
        return []
    evaluate = document.get("evaluate", {})
    samples = np.bincount(dataset.y, minlength=len(dataset.classes))
    often = dict(zip(dataset.classes, samples.tolist(), strict=True))
    slips = {*misspelt(often), *(name for _, name in alike(sorted(often, key=lambda name: -often[name])))}
    tested = [c for c in np.unique(dataset.y_test) if samples[c] and dataset.classes[c] not in slips]
    held = {dataset.classes[c]: float(samples[c] / len(dataset.y)) for c in tested}
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


def on_single_class(dataset: Dataset) -> list[str]:
    """Return a sentence on devices whose training samples have one class, while others have several; else none."""
    if dataset.task != CLASSIFICATION or dataset.owner is None or not dataset.owned.names:
        return []
    pairs = np.unique(np.stack([dataset.owner, dataset.y]).astype(np.int64), axis=1)
    devices, first, many = np.unique(pairs[0], return_index=True, return_counts=True)
    single = {int(devices[i]): int(pairs[1, first[i]]) for i in np.flatnonzero(many == 1)}
    if not 0 < len(single) < len(devices):
        return []
    named = excerpt([f"{dataset.owned.names[k]} ('{dataset.classes[c]}')" for k, c in single.items()], NAMED)
    each = "has" if len(single) == 1 else "have"
    return [
        f"{len(single):,} of {count(len(devices), 'device')} {each} training samples of one class only: {named}. "
        "Trained alone, or with a model of its own (personal methods), such a device hardly recognises another class; "
        "the shared model may"
    ]
