"""FEMNIST in LEAF's format: JSON files of writers with their characters (Caldas et al. 2018, arXiv 1812.01097)."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.data.cache import CacheEntry, Writer, remember
from fedfloor.data.dataset import LETTERS_AND_DIGITS, Dataset, Images, Labels, SamplePool, pooled
from fedfloor.data.files import damaged, head, pieces

SPACE = re.compile(r"[ \t\n\r]*")
TOKEN = 32  # characters; a truncated token other than a string fails within this distance of the text's end


class Scan:
    """A position in a JSON text that is read in pieces, so that it need not fit into memory.

    The value of each member, and each item, must be read before the next one.

    >>> scan = Scan([b'{"a": [1, 2', b'3], "b": {}}'])
    >>> {key: [scan.value() for _ in scan.items()] if key == "a" else scan.value() for key in scan.members()}
    {'a': [1, 23], 'b': {}}
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._read = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._before = 0  # characters already discarded
        self._ended = False

    def peek(self) -> str:
        """Return the next character that is no space; an empty text at the end."""
        while True:
            parsed = SPACE.match(self._text, self._at)
            self._at = parsed.end() if parsed else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._more()

    def members(self) -> Iterator[str]:
        """Yield the name of each member of the object that begins here.

        Raises:
            ValueError: not JSON, or no object.
        """
        for _ in self._each("{", "}"):
            if self.peek() != '"':
                raise self._wrong("expecting a name in double quotes")
            key = self.value()
            self._take(":")
            yield key

    def items(self) -> Iterator[None]:
        """Yield once for each item of the array that begins here.

        Raises:
            ValueError: not JSON, or no array.
        """
        return self._each("[", "]")

    def value(self) -> Any:
        """Return the complete value that begins here.

        Raises:
            ValueError: not JSON.
            RecursionError: nested too deep.
        """
        self.peek()
        while True:
            try:
                parsed, end = self._read(self._text, self._at)
                if end < len(self._text) or self._ended:  # at the end of a piece, a number may continue
                    self._at = end
                    return parsed
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self._text) - TOKEN or error.msg.startswith("Unterminated")
                if self._ended or not cut:
                    raise self._wrong(error.msg, error.pos) from error
            wanted = 2 * (len(self._text) - self._at)  # doubled, so that a long value is not parsed too often
            while not self._ended and len(self._text) - self._at <= wanted:
                self._more()

    def end(self) -> None:
        """Check that only spaces follow.

        Raises:
            ValueError: other characters follow.
        """
        if self.peek():
            raise self._wrong("extra data")

    def _each(self, first: str, last: str) -> Iterator[None]:
        self._take(first)
        if self.peek() == last:
            self._at += 1
            return
        while True:
            yield
            if self.peek() == last:
                self._at += 1
                return
            self._take(",")

    def _take(self, character: str) -> None:
        if self.peek() != character:
            raise self._wrong(f"expecting '{character}'")
        self._at += 1

    def _more(self) -> None:
        piece = next(self._pieces, None)
        self._ended = piece is None
        self._before += self._at
        self._text = self._text[self._at :] + self._decoder.decode(piece or b"", final=self._ended)
        self._at = 0

    def _wrong(self, problem: str, at: int | None = None) -> ValueError:
        place = self._before + (self._at if at is None else at)
        return ValueError(f"{problem} at character {place:,}" if self.peek() else f"{problem}, but the text ends")


SIDE = 28
HEAD = 1 << 22  # bytes searched for "num_samples", which LEAF writes before the data
NOT_LEAF = "not LEAF: it must be an object with the keys 'users', 'num_samples' and 'user_data'"
Wrong = Callable[[str], SettingError]


@dataclass(frozen=True, eq=False)
class _Person:
    """A writer: the index of the first character among the images, and the labels, int64 [n]."""

    start: int
    y: Labels


def load(name: str, folder: Path) -> Dataset:
    """Read ``train/*.json[.gz]`` and ``test/*.json[.gz]``; the writers are the natural owners.

    Owners are numbered in the order of the writers' names, equally in both parts; writers that occur only in the test
    part (a split by writers) come last. Pixels v ∈ [0, 1] become round(255·v), 1 = paper, 0 = ink. Files are read as
    streams, and converted to bytes image by image.

    Raises:
        SettingError: no files, or a file that is incomplete, damaged or inconsistent.
    """
    train = files(folder / "train")
    test = files(folder / "test")
    recipe = f"leaf 2, {len(train)} for training"  # names of files do not show their part
    entry = remember(recipe, [*train, *test], lambda writer: _parse(train, test, writer))
    return pooled(name, LETTERS_AND_DIGITS, _pool(entry, ""), _pool(entry, "_test"), entry.facts["digest"])


def samples(folder: Path) -> tuple[int, int] | None:
    """Return the numbers of training and test characters stated at the beginning of the files; None if missing."""
    totals = []
    for part in ("train", "test"):
        total = 0
        for path in files(folder / part):
            try:
                parsed = re.search(rb'"num_samples"\s*:\s*\[([\d\s,]*)\]', head(path, HEAD))
            except SettingError:
                return None
            if parsed is None:
                return None
            total += sum(map(int, parsed[1].replace(b",", b" ").split()))
        totals.append(total)
    return totals[0], totals[1]


def files(folder: Path) -> list[Path]:
    """Return the JSON files of one part in the order of their names."""
    parsed = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    if not parsed:
        raise SettingError(
            f"{folder} holds no *.json or *.json.gz. Put LEAF's FEMNIST files there, or set FEDFLOOR_DATA.",
            key="published-file-missing",
        )
    return parsed


def _pool(entry: CacheEntry, part: str) -> SamplePool:
    parsed = entry.arrays
    return SamplePool(parsed[f"x{part}"], parsed[f"y{part}"], parsed[f"owner{part}"], parsed.get(f"rows{part}"))


def _parse(train: Sequence[Path], test: Sequence[Path], writer: Writer) -> Mapping[str, Any]:
    hashes = hashlib.sha256(), hashlib.sha256()  # one for each part: the division matters
    parts = {"": _part(train, "x", writer, hashes[0]), "_test": _part(test, "x_test", writer, hashes[1])}
    names = sorted(parts[""]) + sorted(set(parts["_test"]) - set(parts[""]))
    number = {name: i for i, name in enumerate(names)}
    for part, people in parts.items():
        ordered = sorted(people, key=number.__getitem__)
        lengths = [len(people[name].y) for name in ordered]
        writer.append(f"y{part}", np.concatenate([people[name].y for name in ordered]))
        writer.append(f"owner{part}", np.repeat(np.array([number[name] for name in ordered], np.int32), lengths))
        rows = np.concatenate([people[name].start + np.arange(len(people[name].y)) for name in ordered])
        if (rows != np.arange(len(rows))).any():
            writer.append(f"rows{part}", rows, np.int64)
    return {"digest": hashlib.sha256(b"".join(part.digest() for part in hashes)).hexdigest()}


def _part(paths: Sequence[Path], array: str, writer: Writer, digest: hashlib._Hash) -> dict[str, _Person]:
    people: dict[str, _Person] = {}
    for path in paths:
        parsed = _read(path, array, writer, digest)
        twice = sorted(set(parsed) & set(people))
        if twice:
            raise SettingError(
                f"{path}: writer '{twice[0]}' is already in another file of {path.parent}. "
                "Keep one copy of each file, either packed or unpacked.",
                key="repeated-writer",
            )
        people.update(parsed)
    if not any(len(person.y) for person in people.values()):
        raise damaged(paths[0], "holds no characters")
    return people


def _read(path: Path, array: str, writer: Writer, digest: hashlib._Hash) -> dict[str, _Person]:
    people: dict[str, _Person] = {}
    top: dict[str, Any] = {}
    try:
        scan = Scan(_hashed(path, digest))
        if scan.peek() == "[":
            raise damaged(path, NOT_LEAF)
        for key in scan.members():
            if key != "user_data":
                top[key] = scan.value()
                continue
            if scan.peek() != "{":
                raise damaged(path, NOT_LEAF)
            for name in scan.members():
                if name in people:
                    raise damaged(path, f"writer '{name}' occurs twice in 'user_data'")
                people[name] = _person(scan, array, writer, partial(_damaged_writer, path, name))
            top[key] = None
        scan.end()
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"not valid JSON ({error})") from error
    _check(path, top, people)
    return people


def _hashed(path: Path, digest: hashlib._Hash) -> Iterator[bytes]:
    for piece in pieces(path):
        digest.update(piece)
        yield piece


def _damaged_writer(path: Path, name: str, problem: str) -> SettingError:
    return damaged(path, f"writer '{name}': {problem}")


def _check(path: Path, top: Mapping[str, Any], people: Mapping[str, _Person]) -> None:
    """Check that 'users' and 'num_samples' agree with 'user_data'."""
    users = top.get("users")
    if not isinstance(users, list) or "user_data" not in top:
        raise damaged(path, NOT_LEAF)
    for user in users:
        if not isinstance(user, str) or user not in people:
            raise damaged(path, f"writer {user!r} is in 'users' but not in 'user_data'")
    if len(users) != len(set(users)):
        raise damaged(path, "a writer occurs twice in 'users'")
    if len(people) != len(users):
        raise damaged(path, f"'user_data' has {len(people)} writers, 'users' names {len(users)}")
    if top.get("num_samples") != [len(people[user].y) for user in users]:
        raise damaged(path, "'num_samples' disagrees with the lengths of the writers' data")


def _person(scan: Scan, array: str, writer: Writer, wrong: Wrong) -> _Person:
    """Read {"x": …, "y": …} in any order, write the images, and return the writer."""
    if scan.peek() != "{":
        raise wrong("no x and y")
    images: bytearray | None = None
    labels: object = None
    seen = set()
    for key in scan.members():
        seen.add(key)
        if key == "x":
            with np.errstate(over="ignore"):  # an overflow gives infinity, which is refused
                images = _images(scan, wrong)
        else:
            value = scan.value()
            labels = value if key == "y" else labels
    if images is None and "y" not in seen:
        raise wrong("has neither 'x' nor 'y'")
    if images is None or "y" not in seen:
        raise wrong(f"has no '{'x' if images is None else 'y'}'")
    x: Images = np.frombuffer(images, np.uint8).reshape(-1, 1, SIDE, SIDE)
    y = _labels(labels, len(x), wrong)
    start = writer.length(array)
    writer.append(array, x)
    return _Person(start, y)


def _images(scan: Scan, wrong: Wrong) -> bytearray:
    images = bytearray()
    if scan.peek() != "[":
        raise wrong(_shapes())
    for number, _ in enumerate(scan.items(), 1):
        values = scan.value()
        try:
            v = np.asarray(values)
        except ValueError:
            raise wrong(_shapes()) from None
        if v.size != SIDE * SIDE or v.dtype.kind not in "fiu":
            raise wrong(_shapes())
        v = v.astype(np.float32)
        if not (v.min() >= 0 and v.max() <= 1):  # also False for NaN
            raise wrong(f"image {number}: pixels from {v.min()} to {v.max()}: they must be finite and in [0, 1]")
        images += np.rint(255 * v).astype(np.uint8).tobytes()
    return images


def _shapes() -> str:
    return f"'x' must be lists of {SIDE * SIDE} numbers each and 'y' a list of labels"


def _labels(labels: object, images: int, wrong: Wrong) -> Labels:
    try:
        y = np.asarray(labels)
    except ValueError:
        raise wrong(_shapes()) from None
    if y.ndim != 1 or len(y) != images:
        raise wrong(f"{images} images, but {y.size} labels")
    if images and y.dtype.kind not in "iu":
        raise wrong(f"labels must be whole numbers, not {y.dtype}")
    if images and (y.min() < 0 or y.max() >= len(LETTERS_AND_DIGITS)):
        raise wrong(f"label {y.min() if y.min() < 0 else y.max()}: labels are 0 to {len(LETTERS_AND_DIGITS) - 1}")
    return y.astype(np.int64)
