"""A growing folder of tables: CSV files with rows appended, and new CSV or Parquet files."""

from __future__ import annotations

import csv
import json
import logging
import threading
import time
import zlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, SettingError, nearest, require, shown
from fedfloor.base.strict import json_text
from fedfloor.data.ended import MISSING
from fedfloor.data.files import unreadable
from fedfloor.data.files.columnar import PARQUET, parquet_count, parquet_names, parquet_rows
from fedfloor.data.files.rows import delimiter_of
from fedfloor.sensors.events import POLL_S, Event, Missing, Refusal, Signal, Update, seconds

log = logging.getLogger(__name__)

BLOCK = 1 << 20  # bytes of CSV read at a time
LONGEST = 1 << 16  # bytes of a line
FOOT = 64  # last bytes of a Parquet file, by which another content is recognised
GONE = 1_000  # files that are no longer there of which the places are kept, as they may be back
UNFINISHED_S = 60.0  # time without a change after which a last row without a line end is named


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
        reader = FolderReader(self, addresses, position)
        while not stop.is_set():
            news = False
            paths = [path for path in sorted(self.path.glob(self.files)) if _readable(path)]
            reader.forget({path.name for path in paths})
            for path in paths:
                for event in reader.news(path):
                    news = True
                    yield event
                    if stop.is_set():
                        return
            if not news:
                yield Signal.IDLE
                stop.wait(POLL_S)


class FilePosition(NamedTuple):
    """A place in a file up to which it has been read.

    Args:
        end: the number of bytes (CSV) or rows (Parquet).
        size: the number of bytes that recognise the content, before the place or at the end of a Parquet file; 0: none.
        crc: their CRC-32.
    """

    end: int = 0
    size: int = 0
    crc: int = 0


class FolderReader:
    """A reader of a folder's files, each row once.

    Args:
        source: the settings of the folder.
        addresses: the columns of sensors; if empty, all columns.
        position: the places in all files.
    """

    def __init__(self, source: FolderSource, addresses: Sequence[str], position: str | None) -> None:
        self._source = source
        self._addresses = addresses
        self._places = _places(position)  # in the order of their last reading
        self._others = ("", "")  # a file, and the text of all other places
        self._began = bool(self._places)
        self._marks = dict[str, tuple[int, ...]]()  # file → its state when it was read
        self._refused = dict[str, tuple[int, ...]]()  # the same when it was refused
        self._unfinished = dict[str, float]()  # file with a row that has no end yet → since when

    def forget(self, present: Set[str]) -> None:
        """Forget the files that are not among the present ones.

        The last places of :data:`GONE` of them are kept, and all while no file is present, as on a share that is not
        mounted.
        """
        if not present:
            return
        for known in (self._marks, self._refused, self._unfinished):
            for name in known.keys() - present:
                del known[name]
        for name in [name for name in self._places if name not in present][:-GONE]:
            del self._places[name]
            self._others = ("", "")

    def news(self, path: Path) -> Iterator[Event]:
        """Yield the new rows of a file.

        Raises:
            SettingError: the first file cannot be read, or lacks a column. Further such files are left out.
        """
        try:
            facts = path.stat()
        except OSError:  # it was removed meanwhile
            return
        name = path.name
        mark = (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
        if self._marks.get(name) == mark:
            if time.monotonic() - self._unfinished.get(name, float("inf")) > UNFINISHED_S:
                del self._unfinished[name]
                text = f"{path}: its last row has no line end, and is read once it has"
                yield Refusal("unfinished row", name, text)
            return
        try:
            yield from self._parquet(path) if name.casefold().endswith(PARQUET) else self._csv(path, facts.st_size)
        except (OSError, SettingError) as error:
            refusal = unreadable(path, error) if isinstance(error, OSError) else error
            if not self._began:
                raise refusal from error
            if self._refused.get(name) != mark:
                self._refused[name] = mark
                yield Refusal("file", name, f"{refusal} It is read once this is corrected.")
            return
        self._marks[name] = mark

    def _csv(self, path: Path, size: int) -> Iterator[Event]:
        with regular.opened(path) as file:
            header, mark, begin = self._header(path, file)
            if not header:  # it is not complete yet
                return
            place = self._places.get(path.name, FilePosition())
            repeated = bool(place.end) and not _same(file, place)
            if repeated:
                place = self._replaced(path)
            end = begin = max(place.end, begin)
            for end, line in whole_lines(file, begin):
                if cells := _cells(line, mark):
                    known = b"" if line is None else line + b"\n"
                    yield self._row(
                        path, header, cells, FilePosition(end, len(known), zlib.crc32(known)), repeated=repeated
                    )
            self._unfinished.pop(path.name, None)
            if end < size:
                self._unfinished[path.name] = time.monotonic()

    def _parquet(self, path: Path) -> Iterator[Event]:
        with regular.opened(path) as file:
            file.seek(max(0, path.stat().st_size - FOOT))
            foot = file.read(FOOT)
        place = self._places.get(path.name, FilePosition())
        crc = zlib.crc32(foot)
        repeated = bool(place.size) and place.crc != crc
        if repeated:
            place = self._replaced(path)
        if place.end == parquet_count(path):
            return
        header = parquet_names(path)
        self._check(path, header)
        for number, cells in parquet_rows(path):
            if number > place.end:
                yield self._row(path, header, cells, FilePosition(number, len(foot), crc), repeated=repeated)

    def _replaced(self, path: Path) -> FilePosition:
        log.warning(
            "%s has another content than before, therefore it is read from its beginning. Rows that are not later than "
            "all others count as repeated.",
            path,
        )
        return FilePosition()

    def _row(
        self, path: Path, header: Sequence[str], cells: Sequence[str] | Missing, place: FilePosition, *, repeated: bool
    ) -> Event:
        """Return the update of a row, or its refusal."""
        moment, reason = self._time(path, header, cells)
        position = self._position(path.name, place)
        if moment is None or isinstance(cells, Missing):
            text = f"{path}, the row that ends at {place.end:,}: {reason}"
            return Refusal("row without time or of another form", path.name, text, position=position)
        wanted = {*self._addresses} or {*header} - {self._source.time}
        values = {name: self._value(cell) for name, cell in zip(header, cells, strict=True) if name in wanted}
        self._began = True
        return Update(moment, values, repeated=repeated, position=position)

    def _position(self, name: str, place: FilePosition) -> str:
        """Keep a file's place; return all places as a text, in which the others' are written once for a file's rows."""
        if self._others[0] != name:
            self._places.pop(name, None)
            self._others = (name, json_text(self._places)[1:-1])
        self._places[name] = place
        return "{" + ",".join(filter(None, (self._others[1], json_text({name: place})[1:-1]))) + "}"

    def _time(self, path: Path, header: Sequence[str], cells: Sequence[str] | Missing) -> tuple[float | None, str]:
        """Return the time of a row, or None and the reason for which the row cannot be read.

        Raises:
            SettingError: it is another header, so that the following rows have other columns.
        """
        if isinstance(cells, Missing):
            return None, cells.reason
        if len(cells) != len(header):
            return None, f"{len(cells)} cells instead of {len(header)}: {shown(list(cells), 60)}"
        cell = cells[header.index(self._source.time)]
        moment = seconds(cell, self._source.unit)
        if moment is not None:
            return moment, ""
        names = [name.strip() for name in cells]
        if names == [*header]:
            return None, "the header again"
        if cell.strip() == self._source.time:
            raise SettingError(f"{path}: another header within the file: {shown(names)}. Begin a new file.")
        return None, f"{shown(cell, 60)} is not a time"

    def _header(self, path: Path, file: BinaryIO) -> tuple[list[str], str, int]:
        """Return a CSV file's header, the delimiter and the offset of the first row; an empty header if incomplete."""
        first = file.readline(LONGEST)
        text = first.decode("utf-8-sig", "replace")
        if not text.endswith("\n"):
            if len(first) >= LONGEST:
                raise SettingError(
                    f"{path}: the first line has more than {LONGEST:,} bytes and is not a header. Give "
                    "CSV files with a header."
                )
            return [], "", 0
        mark = delimiter_of(text, self._source.decimal)
        cells = _cells(first.removeprefix(b"\xef\xbb\xbf"), mark)
        if isinstance(cells, Missing):
            raise SettingError(
                f"{path}: the first line is not a header ({cells.reason}). Give CSV files with a header."
            )
        header = [name.strip() for name in cells]
        self._check(path, header)
        return header, mark, len(first)

    def _check(self, path: Path, header: Sequence[str]) -> None:
        for name in (self._source.time, *self._addresses):
            if header.count(name) != 1:
                known = f"Available: {', '.join(header[:40])}."
                raise SettingError(
                    f"{path}: no column '{name}', or several.{nearest(name, header)} {known}", key="no-column"
                )

    def _value(self, cell: str) -> object:
        text = cell.strip()
        if text.casefold() in MISSING:
            return None
        try:
            return _number(text.replace(",", ".", 1) if self._source.decimal == "," else text)
        except ValueError:
            return text


def _readable(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and not path.name.startswith(".")


def _number(text: str) -> int | float:
    """Return the number in a text; whole numbers are exact."""
    return int(text) if text.isdecimal() and len(text) < 40 else float(text)


def whole_lines(file: BinaryIO, begin: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the complete lines of a file from a byte on, each with the offset of its end; None for too long ones."""
    file.seek(begin)
    end = begin
    rest = b""
    long = False
    while block := file.read(BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            end += len(line) + 1
            yield end, None if long or len(line) > LONGEST else line
            long = False
        if len(rest) > LONGEST:  # its end is awaited without keeping it
            end += len(rest)
            rest = b""
            long = True


def _cells(line: bytes | None, mark: str) -> list[str] | Missing:
    """Return the cells of a line, an empty list for a blank one."""
    if line is None:
        return Missing(f"more than {LONGEST:,} bytes")
    text = line.decode("utf-8", "replace").strip("\r\n")
    try:
        return next(csv.reader([text], delimiter=mark), []) if text else []
    except csv.Error as error:
        return Missing(f"no CSV: {error}")


def whole_rows(path: Path, begin: int, mark: str) -> Iterator[tuple[int, list[str] | Missing]]:
    """Yield the complete rows of a CSV file from a byte on, each with the offset of its end."""
    with regular.opened(path) as file:
        for end, line in whole_lines(file, begin):
            if cells := _cells(line if begin or line is None else line.removeprefix(b"\xef\xbb\xbf"), mark):
                yield end, cells


def _same(file: BinaryIO, place: FilePosition) -> bool:
    """Return whether a file has the content that was read up to a place."""
    file.seek(0, 2)
    if file.tell() < place.end:
        return False
    file.seek(place.end - place.size)
    return not place.size or zlib.crc32(file.read(place.size)) == place.crc


def _places(position: str | None) -> dict[str, FilePosition]:
    """Return the places in files from a buffer's text; entries that are none are left out.

    >>> _places('{"a.csv": 7, "b.csv": [9, 4, 1], "c.csv": [1, 2], "d.csv": -1}')
    {'a.csv': FilePosition(end=7, size=0, crc=0), 'b.csv': FilePosition(end=9, size=4, crc=1)}
    """
    try:
        known = json.loads(position or "{}")
    except MALFORMED:
        known = {}
    places = dict[str, FilePosition]()
    for name, entry in known.items() if isinstance(known, dict) else ():
        numbers = entry if isinstance(entry, list) else [entry]  # one number in buffers of earlier versions
        if len(numbers) in (1, 3) and all(type(number) is int and number >= 0 for number in numbers):
            places[str(name)] = FilePosition(*numbers)
    return places
