"""Which split fits data of one's own, and why; for a draft that its reader can correct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.data.dataset import Dataset
from fedfloor.data.naming import of_file
from fedfloor.data.tree import walk
from fedfloor.errors import SettingError

RARE = 10  # times smaller a class's share of the training samples than of the test samples, or the other way round
KINDS = {
    "time": "the last fifth of each device's rows",
    "random": "random rows, neighbours on both sides",
    "stratified": "random rows of every class of each device",
    "device": "whole devices, which never train",
    "run": "whole recordings",
    "last": "the last rows of each device: rows = N",
}


@dataclass(frozen=True)
class Proposal:
    """A split and why.

    Args:
        kind: what it is called; empty where one was given or the data come split.
        why: the reason, in words.
    """

    kind: str
    why: str

    def words(self) -> list[str]:
        """Return the proposal and the alternatives as sentences."""
        if not self.kind:
            return [f"split: {self.why}"]
        others = [f"{kind} ({text})" for kind, text in KINDS.items() if kind != self.kind]
        return [
            f"split: by {self.kind} ({KINDS[self.kind]}), because {self.why}",
            "split alternatives, --set 'data.split={kind=\"KIND\"}': " + "; ".join(others),
        ]


def propose(
    data: Dataset, told: Mapping[str, Any], path: Path, read: Callable[[Mapping[str, Any]], Dataset]
) -> Proposal:
    """Return the split that fits data best.

    Whole recordings where devices have several; whole devices, or else rows of every class, where the default would
    train or test without a class or with hardly any of it; else the default.

    Args:
        data: as the default splits them.
        told: keys of ``[data]``.
        path: of the data.
        read: split → the data split so.
    """
    if told.get("split") is not None:
        return Proposal("", f"{_spoken(told['split'])}, as it was given.")
    if told.get("test") is not None or _comes_split(path):
        return Proposal("", "the data come with test samples of their own, which are kept.")
    if data.inputs.kind == "table" and (several := _recordings(told, path)):
        with_runs = _tried(read, "run")
        if with_runs is not None and not gaps(with_runs):
            return Proposal("run", f"{several}: rows of one recording resemble each other.")
    usual = "time" if data.time is not None or data.inputs.length is not None else "random"
    if usual == "random" and data.inputs.kind == "image":
        return Proposal("random", "pictures have no times.")
    why = "rows have times." if data.time is not None else "windows follow each other."
    if usual == "random":
        why = "no column says when rows were taken. If they follow each other, choose by device or last."
    lacking = gaps(data)
    if not lacking:
        return Proposal(usual, why)
    for kind in ("device", "stratified"):
        other = _tried(read, kind)
        if other is not None and len(gaps(other)) < len(lacking):
            return Proposal(kind, f"by {usual} {'; '.join(lacking[:3])}: so it is where machines run to failure.")
    return Proposal(usual, f"{why} But {'; '.join(lacking[:3])}, and no other split mends it.")


def gaps(data: Dataset) -> list[str]:
    """Return in words which classes training or testing lacks, or has hardly any samples of."""
    train, test = (np.bincount(y, minlength=len(data.classes)) for y in (data.y, data.y_test))
    expected = train.sum() / max(1, test.sum())
    told = []
    for name, a, b in zip(data.classes, train.tolist(), test.tolist(), strict=True):
        if not a and b:
            told.append(f"no training sample is '{name}', but {b:,} test samples are")
        elif not b and a:
            told.append(f"no test sample is '{name}', but {a:,} training samples are")
        elif a and b >= RARE and a * RARE < b * expected:
            told.append(f"{a:,} training samples are '{name}' for {b:,} test samples")
    return told


def _tried(read: Callable[[Mapping[str, Any]], Dataset], kind: str) -> Dataset | None:
    try:
        return read({"kind": kind})
    except SettingError:  # too few devices, recordings or samples for it
        return None


def _spoken(split: Any) -> str:
    return f"by {split['kind']}" if isinstance(split, Mapping) and "kind" in split else str(split)


def _comes_split(path: Path) -> bool:
    if path.is_dir():
        return any(one.part is not None for one in walk(path))
    if path.suffix.casefold() == ".npz":
        with np.load(path) as arrays:
            return "x_test" in arrays
    return False


def _recordings(told: Mapping[str, Any], path: Path) -> str:
    """Return in words that devices have several recordings; nothing where few do, or recordings have one class each."""
    run = told.get("columns", {}).get("run")
    if run:
        return f"column '{run}' names recordings"
    way, form = told.get("device", "folder"), told.get("file_name")
    if not path.is_dir() or "label" in told.get("layout", "") or way == "column":
        return ""
    found = [one for one in walk(path) if not one.empty]
    files = Counter((*one.folders, of_file(one.path.name, form)) if way == "file" else one.folders for one in found)
    if () in files:  # tables in no folder: a column names their devices
        return ""
    many = sum(count > 1 for count in files.values())
    return f"{many} of {len(files)} devices have several files" if 2 * many >= len(files) else ""
