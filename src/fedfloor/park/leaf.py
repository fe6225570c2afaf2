"""FEMNIST as LEAF makes it: JSON files of writers with their characters (Caldas et al. 2018, arXiv 1812.01097)."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfloor.errors import SettingError
from fedfloor.park.dataset import LETTERS_AND_DIGITS, Dataset, Images, Labels, Pool, pooled
from fedfloor.park.files import content, damaged

SIDE = 28
HEAD = 1 << 22  # bytes looked at for "num_samples", which LEAF writes before the data


@dataclass(frozen=True, eq=False)
class _Writer:
    """One person's characters: uint8 [n, 28·28] and int64 [n]."""

    x: Images
    y: Labels


def load(name: str, folder: Path) -> Dataset:
    """Read ``train/*.json[.gz]`` and ``test/*.json[.gz]``; the writers are the natural owners.

    Owners are numbered in the order of the writers' names, the same in both parts; writers who appear in the test part
    only (a split by writers) come after the others. Pixels v ∈ [0, 1] become round(255·v), 1 = paper, 0 = ink.

    Args:
        name: the data set's name.
        folder: the folder that holds ``train`` and ``test``.

    Raises:
        SettingError: no files, or one that is cut short, damaged or contradicts itself.
    """
    digest = hashlib.sha256()
    train = _part(folder / "train", digest)
    test = _part(folder / "test", digest)
    names = sorted(train) + sorted(set(test) - set(train))
    number = {writer: i for i, writer in enumerate(names)}
    return pooled(name, LETTERS_AND_DIGITS, _pool(train, number), _pool(test, number), digest.hexdigest())


def samples(folder: Path) -> tuple[int, int] | None:
    """Return the numbers of training and test characters that the heads of the files declare; None if they do not."""
    totals = []
    for part in ("train", "test"):
        total = 0
        for path in files(folder / part):
            try:
                with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
                    found = re.search(rb'"num_samples"\s*:\s*\[([\d\s,]*)\]', stream.read(HEAD))
            except (OSError, EOFError):
                return None
            if found is None:
                return None
            total += sum(map(int, found[1].replace(b",", b" ").split()))
        totals.append(total)
    return totals[0], totals[1]


def files(folder: Path) -> list[Path]:
    """Return the JSON files of one part in the order of their names.

    Raises:
        SettingError: there is none.
    """
    found = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    if not found:
        raise SettingError(
            f"{folder} holds no *.json or *.json.gz. Put LEAF's FEMNIST files there, or set FEDFLOOR_DATA."
        )
    return found


def _part(folder: Path, digest: hashlib._Hash) -> dict[str, _Writer]:
    writers: dict[str, _Writer] = {}
    for path in files(folder):
        found = _read(path, digest)
        twice = sorted(set(found) & set(writers))
        if twice:
            raise SettingError(
                f"{path}: writer '{twice[0]}' is already in another file of {folder}. "
                "Keep one copy of each file (not both packed and unpacked)."
            )
        writers.update(found)
    if not any(len(writer.y) for writer in writers.values()):
        raise damaged(files(folder)[0], "holds no characters")
    return writers


def _read(path: Path, digest: hashlib._Hash) -> dict[str, _Writer]:
    data = content(path)
    digest.update(data)
    try:
        # Each writer becomes bytes as soon as it is parsed: a file's floats would need 35 times its pixels.
        top = json.loads(data, object_hook=_convert)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"not valid JSON ({error})") from error
    users, user_data = (top.get("users"), top.get("user_data")) if isinstance(top, dict) else (None, None)
    if not isinstance(users, list) or not isinstance(user_data, dict):
        raise damaged(path, "not LEAF: it must be an object with the keys 'users', 'num_samples' and 'user_data'")
    writers: dict[str, _Writer] = {}
    for user in users:
        found = user_data.get(user) if isinstance(user, str) else None
        if found is None:
            raise damaged(path, f"writer {user!r} is in 'users' but not in 'user_data'")
        if not isinstance(found, _Writer):
            raise damaged(path, f"writer '{user}': {found if isinstance(found, str) else 'no x and y'}")
        writers[user] = found
    if len(users) != len(writers):
        raise damaged(path, "a writer is named twice in 'users'")
    if len(user_data) != len(writers):
        raise damaged(path, f"'user_data' has {len(user_data)} writers, 'users' names {len(writers)}")
    if top.get("num_samples") != [len(writer.y) for writer in writers.values()]:
        raise damaged(path, "'num_samples' disagrees with the lengths of the writers' data")
    return writers


def _convert(record: dict[str, object]) -> object:
    """Turn {"x": …, "y": …} into a writer, or into the sentence that says what is wrong; leave other objects alone."""
    if "x" not in record and "y" not in record:
        return record if record else "has neither 'x' nor 'y'"
    missing = {"x", "y"} - set(record)
    if missing:
        return f"has no '{missing.pop()}'"
    try:
        x = np.asarray(record["x"], np.float32).reshape(-1, SIDE * SIDE) if record["x"] else np.empty((0, SIDE * SIDE))
        y = np.asarray(record["y"])
    except (TypeError, ValueError):
        return f"'x' must be lists of {SIDE * SIDE} numbers each and 'y' a list of labels"
    return _checked(x, y)


def _checked(x: np.ndarray, y: np.ndarray) -> _Writer | str:
    if y.ndim != 1 or len(x) != len(y):
        return f"{len(x)} images, but {y.size} labels"
    if len(y) == 0:
        return _Writer(x.astype(np.uint8), y.astype(np.int64))
    if y.dtype.kind not in "iu":
        return f"labels must be whole numbers, not {y.dtype}"
    if y.min() < 0 or y.max() >= len(LETTERS_AND_DIGITS):
        return f"label {y.min() if y.min() < 0 else y.max()}: labels are 0 to {len(LETTERS_AND_DIGITS) - 1}"
    if not (x.min() >= 0 and x.max() <= 1):  # also False for NaN
        return f"pixels from {x.min()} to {x.max()}: they must be finite and lie in [0, 1]"
    return _Writer(np.rint(255 * x).astype(np.uint8), y.astype(np.int64))


def _pool(writers: dict[str, _Writer], number: dict[str, int]) -> Pool:
    ordered = sorted(writers, key=number.__getitem__)
    x = np.concatenate([writers[name].x for name in ordered]).reshape(-1, 1, SIDE, SIDE)
    y = np.concatenate([writers[name].y for name in ordered])
    lengths = [len(writers[name].y) for name in ordered]
    owner = np.repeat(np.array([number[name] for name in ordered], np.int32), lengths)
    return Pool(x, y, owner)
