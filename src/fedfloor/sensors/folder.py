"""A growing folder of tables: CSV files with rows appended, and new CSV or Parquet files."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedfloor import regular
from fedfloor.data.files import unreadable
from fedfloor.data.files.columnar import PARQUET, parquet_names, parquet_rows
from fedfloor.data.files.layout import MISSING
from fedfloor.data.files.rows import delimiter_of
from fedfloor.errors import SettingError, nearest, require
from fedfloor.sensors.events import POLL_S, Event, Signal, Update, seconds
from fedfloor.strict import json_text

log = logging.getLogger(__name__)

BLOCK = 1 << 20  # bytes of CSV read at a time
LONGEST = 1 << 16  # bytes of a line


@dataclass(frozen=True)
class FolderSource:
    """A folder of tables, read in the order of their names; a CSV row is read once its line is complete.

    Args:
        path: the path of the folder.
        files: the pattern of the names of files to read, such as ``*.csv``.
        time: the column of times.
        unit: the unit of times that are numbers.
        decimal: the decimal mark.
    """

    path: Path
    files: str = "*.csv"
    time: str = "time"
    unit: Literal["s", "ms", "us", "ns"] = "s"
    decimal: Literal[".", ","] = "."
    kind: Literal["folder"] = "folder"

    def __post_init__(self) -> None:
        plain = bool(self.files) and "/" not in self.files and ".." not in self.files
        require(plain, "source.files", self.files, "a pattern of file names in the folder, such as '*.csv'")

    def events(self, addresses: Sequence[str], stop: threading.Event, position: str | None) -> Iterator[Event]:
        """Yield the rows of all files, and then those that are added."""
        if not self.path.is_dir():
            raise SettingError(f"source.path: folder {self.path} does not exist. Create it, or correct the path.")
        read = _positions(position)
        while not stop.is_set():
            news = False
            for path in sorted(self.path.glob(self.files)):
                if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
                    for update in self._rows(path, addresses, read):
                        news = True
                        yield update
                        if stop.is_set():
                            return
            if not news:
                yield Signal.IDLE
                stop.wait(POLL_S)

    def _rows(self, path: Path, addresses: Sequence[str], read: dict[str, int]) -> Iterator[Update]:
        """Yield a file's new rows; ``read`` has the bytes (CSV) or rows (Parquet) already read by file."""
        done = read.get(path.name, 0)
        rows: Iterator[tuple[int, list[str]]]
        if path.name.casefold().endswith(PARQUET):
            if done:
                return
            header = parquet_names(path)
            self._check(path, header, addresses)
            rows = parquet_rows(path)
        else:
            try:
                if path.stat().st_size < done:
                    log.warning("%s: shorter than before, therefore read from its beginning.", path)
                    done = 0
                if path.stat().st_size == done:
                    return
                header, rows = self._lines(path, done)
            except OSError as error:
                raise unreadable(path, error) from error
            if header:
                self._check(path, header, addresses)
        place = header.index(self.time) if header else 0
        wanted = {*addresses} or {*header} - {self.time}
        for end, cells in rows:
            time = seconds(cells[place], self.unit) if len(cells) == len(header) else None
            if time is None:
                yield Update(math.nan, {})
                continue
            values = {name: self._value(cell) for name, cell in zip(header, cells, strict=True) if name in wanted}
            read[path.name] = end
            yield Update(time, values, position=json_text(read))

    def _lines(self, path: Path, done: int) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
        """Return a CSV file's header and its complete rows from a byte on, each with the offset of its end."""
        with regular.opened(path) as file:
            first = file.readline(LONGEST)
        text = first.decode("utf-8-sig", "replace")
        if not text.endswith("\n"):
            if len(first) >= LONGEST:
                raise SettingError(
                    f"{path}: the first line has more than {LONGEST:,} bytes and is no header. Give "
                    "CSV files with a header."
                )
            return [], iter(())  # its header is not complete yet
        mark = delimiter_of(text, self.decimal)
        header = [name.strip() for name in next(csv.reader([text], delimiter=mark))]
        return header, whole_rows(path, max(done, len(first)), mark)

    def _check(self, path: Path, header: Sequence[str], addresses: Sequence[str]) -> None:
        for name in (self.time, *addresses):
            if header.count(name) != 1:
                known = f"Available: {', '.join(header[:40])}."
                raise SettingError(f"{path}: no column '{name}', or several.{nearest(name, header)} {known}")

    def _value(self, cell: str) -> object:
        text = cell.strip()
        if text.casefold() in MISSING:
            return None
        try:
            return float(text.replace(",", ".", 1) if self.decimal == "," else text)
        except ValueError:
            return text


def whole_rows(path: Path, begin: int, mark: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the complete rows of a CSV file from a byte on, each with the offset of its end."""
    with regular.opened(path) as file:
        file.seek(begin)
        while block := file.read(BLOCK):
            end = block.rfind(b"\n") + 1
            if not end:
                if len(block) == BLOCK:
                    raise SettingError(
                        f"{path}, after byte {begin}: a row of more than {BLOCK:,} bytes. Correct the file."
                    )
                return  # a row still being written
            for line in io.BytesIO(block[:end]):
                begin += len(line)
                text = line.decode("utf-8-sig", "replace").strip("\r\n")
                if text:
                    yield begin, next(csv.reader([text], delimiter=mark), [])
            file.seek(begin)


def _positions(position: str | None) -> dict[str, int]:
    try:
        known = json.loads(position or "{}")
    except ValueError:
        known = {}
    return {str(name): end for name, end in known.items() if type(end) is int} if isinstance(known, dict) else {}
