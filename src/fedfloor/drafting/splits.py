"""Proposals for a split that tests a model on what it will be used for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.base.names import count
from fedfloor.data.dataset import Dataset
from fedfloor.data.files.tree import walk
from fedfloor.drafting.findings import neighbours_alike
from fedfloor.drafting.folders import recordings
from fedfloor.tasks.classification import CLASSIFICATION

MANY = 4  # devices from which it is examined whether a model is for devices that are not in training
TELLS = 0.8  # share of the errors of a guessed class that knowing the recording avoids, where each has a single class
RARE = 10  # ratio of a class's shares of training and test samples, or its inverse, that counts as a gap
KINDS = {
    "time": "the last fifth of each device's rows",
    "random": "random rows, neighbours on both sides",
    "stratified": "random rows of every class of each device",
    "device": "whole devices, excluded from training",
    "run": "whole recordings",
    "last": "the last rows of each device: rows = N",
}


def words(split: Mapping[str, Any]) -> str:
    """Return the name of a split and what it tests."""
    kind = split["kind"]
    return f"split: by {kind} ({KINDS[kind]}{', of each class its share' if 'by_class' in split else ''})"


def _proposal(split: str | Mapping[str, Any], why: str) -> tuple[dict[str, Any], list[str]]:
    """Return a split, of which the kind may suffice, and sentences on it and on its alternatives."""
    chosen = {"kind": split} if isinstance(split, str) else dict(split)
    others = [f"{other} ({text})" for other, text in KINDS.items() if other != chosen["kind"]]
    return chosen, [
        f"{words(chosen)}, because {why}",
        "split alternatives, --set 'data.split={kind=\"KIND\"}': " + "; ".join(others),
    ]


def propose(
    data: Dataset, given: Mapping[str, Any], path: Path, read: Callable[[Mapping[str, Any]], Dataset]
) -> tuple[dict[str, Any], list[str]]:
    """Return the most suitable split, empty where it is settled, and sentences on it and the reason.

    Whole recordings, if devices have several. Otherwise the default, unless it would leave training or testing without
    a class, or with hardly any samples of it: then whole devices, or rows of every class.
    """
    if given.get("split") is not None:
        split = given["split"]
        named_kind = f"by {split['kind']}" if isinstance(split, Mapping) and "kind" in split else str(split)
        return {}, [f"split: {named_kind}, as given."]
    if given.get("test") is not None or _comes_split(path):
        return {}, ["split: the data have test samples of their own, which are kept."]
    if data.inputs.kind == "table" and (several := recordings(given, path)):
        chosen, with_runs = drawn("run", read)
        if with_runs is not None and not gaps(with_runs):
            return _proposal(chosen, f"{several}: rows of the same recording resemble each other.")
    doubt = ""
    if unmet := never_met(data):
        chosen, unknown = drawn("device", read)
        if unknown is not None and not (data.target is None and data.task.labelled and gaps(unknown)):
            return _proposal(chosen, f"{unmet}.")
        doubt = f" But {unmet}: another split may show how well devices are recognised."
    usual = "time" if data.time is not None or given.get("window") is not None else "random"
    if usual == "random" and data.inputs.kind == "image":
        return _proposal("random", f"pictures have no times.{doubt}")
    why = "rows have times." if data.time is not None else "windows follow each other."
    if usual == "random":
        why = "no column holds the times of rows. If rows are in the order of time, choose by device or last."
        if neighbours_alike(data):
            usual = "time"
            why = "rows resemble their neighbours, as those of a recording do, though none has a time."
    ranked = data.task.labelled or data.target is not None
    lacking = gaps(data) if ranked and not data.task.ahead else []  # other tasks learn no classes or ranges
    if not lacking:
        return _proposal(usual, f"{why}{doubt}")
    for kind in ("device", "stratified"):
        chosen, other = drawn(kind, read)
        if other is not None and len(gaps(other)) < len(lacking):
            worn = ": this is usual where machines run to failure" if usual == "time" and wears(data) else ""
            return _proposal(chosen, f"by {usual} {'; '.join(lacking[:3])}{worn}.")
    return _proposal(usual, f"{why} But {'; '.join(lacking[:3])}, and no other split avoids this.{doubt}")


def drawn(kind: str, read: Callable[[Mapping[str, Any]], Dataset]) -> tuple[dict[str, Any], Dataset | None]:
    """Return a split of a kind that draws its samples, and the data with it; None where it is refused.

    Whole recordings or devices are drawn by class where most have a single class, or a random draw would leave training
    or testing without a class, or with hardly any samples of it.
    """
    split: dict[str, Any] = {"kind": kind}
    data = _tried(read, split)
    if data is not None and not (data.task == CLASSIFICATION and (gaps(data) or _single_class(data))):
        return split, data
    by_class = split | {"by_class": True}
    other = _tried(read, by_class)
    if other is None or (data is not None and len(gaps(other)) > len(gaps(data))):
        return split, data
    return by_class, other


def _single_class(data: Dataset) -> bool:
    """Return whether the recording or device of a training sample tells its class: λ of at least :data:`TELLS`.

    λ = (Σ_u max_c n_uc − max_c n_c)/(n − max_c n_c) is the share of the errors of a guess of the class that knowing the
    unit u avoids (Goodman and Kruskal, J. Am. Stat. Assoc. 49 (1954)); it is 1 where each unit has a single class.
    """
    unit = data.owner if data.run is None else data.run
    if unit is None:
        return False
    table = np.zeros((int(unit.max()) + 1, len(data.classes)))
    np.add.at(table, (unit, data.y), 1)
    usual = table.sum(axis=0).max()
    return bool(table.max(axis=1).sum() - usual >= TELLS * (len(data.y) - usual) > 0)


def never_met(data: Dataset) -> str:
    """Return a clause if a model is to be used on devices that are not in training; "" where nothing indicates it.

    Each of at least :data:`MANY` devices has a single label or target: a split within devices would test whether
    devices are recognised. Or no two devices have times in common: they are recordings, made one after another.
    """
    if data.owner is None or data.owner_test is None or data.task.ahead or len(data.owned.names) < MANY:
        return ""
    if constant(data):
        return "each device has a single label, which devices that are not in training may have, too"
    if data.time is None:
        return ""
    order = np.lexsort((np.asarray(data.time), data.owner))
    owner = data.owner[order]
    time = data.time[order]
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    last = np.append(first[1:] - 1, len(owner) - 1)
    begin, end = time[first], time[last]
    turn = np.argsort(begin)
    if len(first) >= MANY and (begin[turn][1:] > end[turn][:-1]).all():
        return "devices have no times in common: they are recordings, made one after another"
    return ""


def constant(data: Dataset) -> bool:
    """Return whether each device has a single label or target, but not all devices the same."""
    if data.owner is None or data.owner_test is None or not (data.task.labelled or data.target is not None):
        return False
    owner = np.concatenate([data.owner, data.owner_test])
    label = np.concatenate([data.y, data.y_test]).astype(np.float64)
    if data.target is not None and data.target_test is not None:
        label = np.concatenate([data.target, data.target_test])[:, 0]
    pairs = np.unique(np.stack([owner, label]), axis=1)
    return bool(len(np.unique(owner)) == len(pairs.T) < len(owner) and np.ptp(label) > 0)


def wears(data: Dataset) -> bool:
    """Return whether on most devices whose label changes none returns, where each device's last rows are for testing.

    Labels of numbers are their ranges. Rows of a test are in their order in the file, after those of training.
    """
    if data.owner is None or data.owner_test is None or data.time is None:
        return False
    owner = np.concatenate([data.owner, data.owner_test])
    label = np.concatenate([data.y, data.y_test])
    order = np.lexsort((np.concatenate([data.time, np.full(len(data.y_test), np.inf)]), owner))
    begins = np.diff(owner[order], prepend=-1) != 0
    stretches = np.bincount(owner[order], begins | (np.diff(label[order], prepend=-1) != 0))
    labels = np.bincount(np.unique(np.stack([owner, label]), axis=1)[0])
    changing = labels > 1
    return bool(2 * (stretches == labels)[changing].sum() > changing.sum())


def gaps(data: Dataset) -> list[str]:
    """Return a clause for each class with no samples, or hardly any, for training or for testing."""
    train, test = (np.bincount(y, minlength=len(data.classes)) for y in (data.y, data.y_test))
    expected = train.sum() / max(1, test.sum())
    lacking = []
    for name, a, b in zip(data.classes, train.tolist(), test.tolist(), strict=True):
        if not a and b:
            lacking.append(f"no training sample is '{name}', but {_are(b, 'test sample')}")
        elif not b and a:
            lacking.append(f"no test sample is '{name}', but {_are(a, 'training sample')}")
        elif a and b >= RARE and a * RARE < b * expected:
            lacking.append(f"{_are(a, 'training sample')} '{name}' for {count(b, 'test sample')}")
    return lacking


def _are(number: int, noun: str) -> str:
    """Return a number with its noun and verb.

    >>> _are(1, "test sample"), _are(1200, "test sample")
    ('1 test sample is', '1,200 test samples are')
    """
    return f"{count(number, noun)} {'is' if number == 1 else 'are'}"


def _tried(read: Callable[[Mapping[str, Any]], Dataset], split: Mapping[str, Any]) -> Dataset | None:
    try:
        return read(split)
    except SettingError:  # too few devices, recordings or samples for this split
        return None


def _comes_split(path: Path) -> bool:
    if path.is_dir():
        return any(file.part is not None for file in walk(path))
    if path.suffix.casefold() == ".npz":
        with np.load(regular.check(path)) as arrays:
            return "x_test" in arrays
    return False
