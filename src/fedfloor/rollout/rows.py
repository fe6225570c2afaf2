"""A reader of new samples in a folder of growing files: rows of CSV tables, and arrays as ``.npy``."""

from __future__ import annotations

import csv
import itertools
import json
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import regular
from fedfloor.base.arrays import mapped
from fedfloor.base.errors import MALFORMED
from fedfloor.base.ranges import RefusedError
from fedfloor.base.strict import json_text
from fedfloor.rollout.model import Model

log = logging.getLogger(__name__)
LINE_BYTES = 1 << 20  # largest row of a table in bytes
MOST_FILES = 10_000  # files whose positions are kept after they are gone from the folder
BATCH = 64  # samples predicted at once


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples [n, *shape] of a file, the first and last row of each, and the (bytes, rows) of the file read so far."""

    file: str
    x: NDArray[Any]
    rows: list[tuple[int, int]]
    end: tuple[int, int]


@dataclass
class InputRows:
    """The rows of a folder's files without a prediction; the file ``memory`` stores the position in each file."""

    folder: Path
    memory: Path
    _done: dict[str, list[int]] = field(default_factory=dict)
    _refused: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        try:
            kept = json.loads(regular.read_bytes(self.memory))
            self._done = {str(name): [int(place[0]), int(place[1])] for name, place in kept.items()}
        except FileNotFoundError:
            pass
        except (OSError, *MALFORMED) as error:
            log.error("%s cannot be read (%s): all rows are predicted again.", self.memory, error)

    def next(self, model: Model) -> Batch | None:
        """Return the next samples for a model; None if there are none."""
        paths = sorted((*self.folder.glob("*.csv"), *self.folder.glob("*.npy")))
        self._refused &= {(path.name, model.statement.version) for path in paths}
        for path in paths:
            if (path.name, model.statement.version) in self._refused:
                continue
            try:
                read = _array if path.suffix == ".npy" else _table
                batch = read(path, model, *self._begin(path))
            except (OSError, ValueError, EOFError, RefusedError, csv.Error) as error:
                log.error("%s is not predicted by version %d: %s", path, model.statement.version, error)
                self._refused.add((path.name, model.statement.version))
                continue
            if batch is not None:
                return batch
        return None

    def _begin(self, path: Path) -> tuple[int, int]:
        offset, row = self._done.get(path.name, (0, 0))
        if path.suffix == ".csv" and path.stat().st_size < offset:
            log.warning("%s is shorter than before: it is read from its beginning.", path)
            return 0, 0
        return offset, row

    def commit(self, batch: Batch) -> None:
        """Store the position after samples whose answers were published; of files that are gone only the last ones."""
        self._done.pop(batch.file, None)  # the last in use is the last of the list
        self._done[batch.file] = list(batch.end)
        if len(self._done) > MOST_FILES:
            gone = [name for name in self._done if not (self.folder / name).exists()]
            for name in gone[: len(self._done) - MOST_FILES]:
                del self._done[name]
        part = self.memory.with_name(f".{self.memory.name}.part")
        part.write_text(json_text(self._done), encoding="utf-8")
        os.replace(part, self.memory)


def _array(path: Path, model: Model, offset: int, row: int) -> Batch | None:
    """Return the next samples [n, *shape] of a ``.npy`` file from a row on; ``offset`` is not used."""
    del offset
    stored = mapped(path)
    if stored.shape[1:] != model.shape or stored.dtype != model.kind:
        wanted = f"{np.dtype(model.kind)} [n, {', '.join(map(str, model.shape))}]"
        raise RefusedError("shape", f"it holds {stored.dtype} {list(stored.shape)}; the model requires {wanted}.")
    x = np.array(stored[row : row + BATCH])
    places = [(row + i + 1, row + i + 1) for i in range(len(x))]
    return Batch(path.name, x, places, (0, row + len(x))) if len(x) else None


def _table(path: Path, model: Model, offset: int, row: int) -> Batch | None:
    """Return the next complete windows, or rows, of a table from a byte offset on."""
    if "columns" not in model.about or model.about.get("coding"):
        raise RefusedError("columns", "the model requires pictures or columns of text, which tables here lack.")
    window = model.about.get("window") or {"length": 1, "step": 1}
    length = int(window["length"])
    step = int(window["step"])
    with regular.opened(path) as file:
        header = next(_whole(file), b"")
        if not header:
            return None
        names = next(csv.reader([header.decode("utf-8-sig")]))
        if absent := [name for name in model.about["columns"] if name not in names]:
            raise RefusedError("columns", f"it has no column {absent[0]!r}; its columns are {', '.join(names)[:300]}.")
        file.seek(max(offset, len(header)))
        begin = file.tell()
        lines = list(itertools.islice(_whole(file), (BATCH - 1) * step + max(length, step)))
    chosen = [names.index(name) for name in model.about["columns"]]
    values = np.array([_numbers(line, chosen) for line in lines], np.float32).reshape(len(lines), len(chosen))
    firsts = [first for first in range(0, len(lines), step) if first + max(length, step) <= len(lines)]
    if not firsts:
        return None
    x = np.stack([values[first : first + length].T for first in firsts]).reshape(len(firsts), *model.shape)
    past = firsts[-1] + step
    end = begin + sum(map(len, lines[:past]))
    return Batch(path.name, x, [(row + first + 1, row + first + length) for first in firsts], (end, row + past))


def _whole(file: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines of a file; raise RefusedError for one that is too long."""
    while (line := file.readline(LINE_BYTES)).endswith(b"\n"):
        yield line
    if len(line) == LINE_BYTES:
        raise RefusedError("oversized", f"a line has more than {LINE_BYTES} bytes.")


def _numbers(line: bytes, chosen: list[int]) -> list[float]:
    cells = next(csv.reader([line.decode("utf-8", "replace")]), [])
    return [_number(cells[i]) if i < len(cells) else math.nan for i in chosen]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
