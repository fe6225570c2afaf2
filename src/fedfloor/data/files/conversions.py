"""Data in forms that are not read: how each is recognised, and the lines that convert it."""

from __future__ import annotations

import json
import os
import re
import shlex
import zipfile
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.joined import parts_of
from fedfloor.data.files.pictures import SUFFIXES
from fedfloor.data.files.preamble import preamble
from fedfloor.data.files.rows import LEGACY, MARKS, SheetsError, delimiter_of, is_workbook, unpacked, unpacked_bytes
from fedfloor.data.files.sheet import NO_LABEL, UnlabelledError, head, looks_like_time
from fedfloor.data.files.times import moment
from fedfloor.data.files.tree import IGNORED, PARTS, TABLES, TEXTS, named, stem_of
from fedfloor.data.guess import is_number, is_text, roles_of, word_of
from fedfloor.data.reading import skipped
from fedfloor.errors import SettingError
from fedfloor.names import count

LOOKED_AT = 2000  # rows
PEEKED = 1 << 16  # bytes
MOST_LEVELS = 5  # folders in each other
SORTED = "data.sort=true"
PANDAS = " with pandas (pip install pandas)"
PAGE = "More: docs/your-data.md, section 'Conversions'."

TEXT_TABLES = (".csv", ".tsv", *TEXTS)

Rows = Sequence[Sequence[str]]


def check(path: Path, given: Mapping[str, Any]) -> None:
    """Refuse data in a form that would be read wrongly or not at all, with the lines that convert them.

    Args:
        path: a file or a folder. One that is missing or damaged passes: its reader names the problem.
        given: keys of ``[data]``; what is stated there of columns and folders is not doubted.

    Raises:
        SettingError: data in such a form.
    """
    if path.is_dir():
        with suppress(OSError):
            _check_folder(path, given)
    elif path.is_file():
        _check_file(path, given)


def _check_file(path: Path, given: Mapping[str, Any]) -> None:
    name = path.name.casefold()
    _check_archive(path, given)
    if given.get("format") is None and (ending := next((end for end in FORMATS if name.endswith(end)), None)):
        recipe = _by_content(path, ending)
        out = path.name[: -len(ending)] + recipe.ending
        lines = [recipe.lines[0], f"file, out = {_code(path)}, {_code(out)}", *recipe.lines[1:]]
        raise ConversionError(
            f"{path}: {recipe.noun}, which is not read.", recipe.needs, lines, f"{recipe.remark}{_then(out)}"
        )
    if name.endswith((*TABLES, *TEXTS)) or given.get("format") == "table":
        _check_table(path, given)


class ConversionError(SettingError):
    """Data in a form that is not read.

    Args:
        problem: the file and its form, as sentences.
        needs: what the lines need beyond fedfloor's own requirements.
        lines: of code, which convert the data.
        after: what to do then, as sentences.
    """

    def __init__(self, problem: str, needs: str, lines: Sequence[str], after: str) -> None:
        code = "\n".join(f"    {line}" for line in lines)
        super().__init__(f"{problem} To convert it{needs}:\n\n{code}\n\n{after} {PAGE}")


def _code(value: object) -> str:
    """Return a text, or a list of texts, as Python has it in double quotes."""
    return json.dumps(value if isinstance(value, list) else str(value), ensure_ascii=False)


def _then(out: str, *settings: str) -> str:
    """Return the command that reads what was converted."""
    words = ["fedfloor", "new", out, *(word for setting in settings for word in ("--set", setting))]
    return f"Then: {shlex.join(words)}."


def _literal(text: str) -> str:
    """Return a text as it stands in an f-string."""
    return text.replace("{", "{{").replace("}", "}}")


def unlabelled(error: UnlabelledError) -> ConversionError:
    """Return the error for rows without a label, with the lines that leave them out."""
    path, column = error.path, _code(error.column)
    out = f"{stem_of(path.name)}-labelled{'.parquet' if is_parquet(path) else '.csv'}"
    read, write = _reader(path, error.dialect)
    which = "isna()" if is_parquet(path) else f"str.strip().str.lower().isin({_code(sorted(NO_LABEL))})"
    return ConversionError(
        f"{error} Such rows are left out, or are a class of their own.", PANDAS,
        ["import pandas", f"table = {read}", f"missing = table[{column}].{which}",
         f'table = table[~missing]  # or as a class: table.loc[missing, {column}] = "none"',
         f"table.{write.format(_code(out))}"],
        _then(out),
    )  # fmt: skip


# -- formats -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """The conversion of a file.

    Args:
        noun: what the file is.
        ending: of the converted file.
        lines: of Python, which read ``file`` and write ``out``; the first one imports.
        needs: what they need beyond fedfloor's own requirements.
        remark: a sentence on them, with a blank behind it.
    """

    noun: str
    ending: str
    lines: tuple[str, ...]
    needs: str = ""
    remark: str = ""


def _arrow(noun: str, read: str) -> Recipe:
    module = read.partition(".")[0]
    return Recipe(
        noun, ".parquet", (f"from pyarrow import {module}, parquet", f"parquet.write_table({read}.flatten(), out)")
    )


IPC = _arrow("a file of Arrow", "feather.read_table(file)")
STREAM = _arrow("a stream of Arrow", "ipc.open_stream(file).read_all()")
LINES = _arrow("JSON, a record per line", "json.read_json(file)")
LIST = Recipe(
    "JSON", ".parquet",
    (
        "import json, pyarrow.parquet",
        'with open(file, encoding="utf-8") as text:',
        "    table = pyarrow.Table.from_pylist(json.load(text))  # a list of records",
        "pyarrow.parquet.write_table(table.flatten(), out)",
    ),
)  # fmt: skip
HDF5 = Recipe(
    "HDF5", ".parquet",
    (
        "import h5py, pyarrow.parquet",
        "with h5py.File(file) as arrays:",
        "    arrays.visititems(print)  # lists them; name those of one length, which become columns:",
        '    columns = {name: arrays[name][:].ravel() for name in ["NAME", "OTHER"]}',
        "pyarrow.parquet.write_table(pyarrow.table(columns), out)",
    ),
    " with h5py (pip install h5py)",
    "A file that pandas wrote: pandas.read_hdf(file).to_parquet(out) in place of these lines. ",
)  # fmt: skip
MATLAB = Recipe(
    "a file of MATLAB", ".parquet",
    (
        "import pyarrow.parquet, scipy.io",
        'arrays = {name: x.ravel() for name, x in scipy.io.loadmat(file).items() if name[0] != "_"}',
        "print({name: len(x) for name, x in arrays.items()})  # the longest ones become columns",
        "columns = {name: x for name, x in arrays.items() if len(x) == max(map(len, arrays.values()))}",
        "pyarrow.parquet.write_table(pyarrow.table(columns), out)",
    ),
)  # fmt: skip
ARRAY = Recipe(
    "a single array", ".npz",
    ("import numpy as np", 'np.savez(out, x=np.float32(np.load(file)), y=np.load("LABELS.npy"))'),
    "", "Labels, devices and times are arrays of as many entries ('Arrays' in docs/your-data.md). ",
)  # fmt: skip
SERIES = Recipe(
    "time series in the form of sktime and of the UCR archive", ".npz",
    (
        "import numpy as np",
        'rows = [row.strip().split(":") for row in open(file) if row.strip() and row[0] not in "#@"]',
        'x = [[series.replace("?", "nan").split(",") for series in row[:-1]] for row in rows]',
        "np.savez(out, x=np.array(x, np.float32), y=np.array([row[-1] for row in rows]))",
    ),
)  # fmt: skip
ARFF = Recipe(
    "a table of Weka", ".parquet",
    (
        "import numpy as np, pyarrow.parquet, scipy.io.arff",
        "rows, about = scipy.io.arff.loadarff(file)",
        "columns = {name: rows[name] for name in about.names()}",
        'texts = {name: np.char.decode(x, "utf-8") for name, x in columns.items() if x.dtype.kind == "S"}',
        "pyarrow.parquet.write_table(pyarrow.table(columns | texts), out)",
    ),
)  # fmt: skip
PICKLE = Recipe(
    "a pickle, which could execute anything", ".parquet",
    ("import pandas", "pandas.read_pickle(file).to_parquet(out)  # if the file is from a source that you trust"),
    PANDAS,
)  # fmt: skip
FORMATS = {  # by the file's ending
    **dict.fromkeys((".feather", ".arrow", ".ipc"), IPC),
    ".orc": _arrow("a file of ORC", "orc.read_table(file)"),
    **dict.fromkeys((".jsonl", ".ndjson"), LINES),
    ".json": LIST,
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), HDF5),
    ".mat": MATLAB,
    ".npy": ARRAY,
    ".ts": SERIES,
    ".arff": ARFF,
    **dict.fromkeys((".pkl", ".pickle"), PICKLE),
}


def _by_content(path: Path, ending: str) -> Recipe:
    """Return the recipe for an ending, or another one where the file's first bytes show another form."""
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except OSError:
        start = b""
    if FORMATS[ending] == IPC and start[:6] not in (b"", b"ARROW1", b"FEA1"):
        return STREAM
    if ending == ".json" and start.lstrip()[:1] == b"{":
        return LINES
    return HDF5 if ending == ".mat" and start.startswith(b"MATLAB 7.3") else FORMATS[ending]


def _check_archive(path: Path, given: Mapping[str, Any]) -> None:
    """Refuse an archive of several files, and a single table in one whose name does not state that it is a table."""
    name = path.name.casefold()
    module = "zipfile" if name.endswith(".zip") else "tarfile" if re.search(r"\.(tar(\.\w+)?|tgz)$", name) else ""
    if not module:
        return
    inside: list[str] = []
    if module == "zipfile":
        try:
            with zipfile.ZipFile(path) as archive:
                inside = [each for each in archive.namelist() if not each.endswith("/") and "__MACOSX/" not in each]
        except (OSError, zipfile.BadZipFile):  # which its reader names
            return
        if len(inside) == 1 and (given.get("format") or unpacked(name).endswith(TEXT_TABLES)):
            return
        if len(inside) == 1 and inside[0].casefold().endswith(TEXT_TABLES):
            raise SettingError(f"{path}: holds a table, {inside[0]}: --set data.format=table reads it.")
    holds = f" of {count(len(inside), 'file')}" if inside else ""
    folder = stem_of(re.sub(r"\.(zip|tgz|tar(\.\w+)?)$", "", path.name, flags=re.IGNORECASE)) or "unpacked"
    raise ConversionError(
        f"{path}: an archive{holds}. Only a table that lies in a .zip alone is read as it is.", "",
        [f"python -m {module} -e {shlex.quote(str(path))} {shlex.quote(folder)}"], _then(folder),
    )  # fmt: skip


# -- tables ------------------------------------------------------------------------------------------------------------

ANNOTATIONS = ("#group", "#datatype", "#default")
INFLUX = {"result", "table", "_start", "_stop", "_time", "_value", "_field", "_measurement"}
KEYS = (  # names of columns that hold the names of sensors
    "tag", "tag_name", "tagname", "tag_id", "field", "variable", "variable_name", "sensor", "sensor_name", "sensor_id",
    "signal", "signal_name", "channel", "channel_name", "parameter", "metric", "metric_name", "point", "point_id",
    "data_point", "node_id", "item", "item_id", "topic", "measurement", "attribute", "property", "series", "kanal",
    "messstelle", "messgrösse", "merkmal", "signalname",
)  # fmt: skip
VALUES = (
    "value", "val", "values", "reading", "measured_value", "numeric_value", "tag_value", "sensor_value", "wert",
    "messwert",
)  # fmt: skip


def _check_table(path: Path, given: Mapping[str, Any]) -> None:
    """Refuse a table whose rows are no samples, or whose header lacks a name."""
    try:
        rows = head(path, LOOKED_AT, given)
        if rows and rows[0] and not given.get("header"):
            _check_influx(path, rows)
            _check_short_header(path, rows, given)
        if given.get("skip") is None and (above := preamble(path, given)):
            given = {**given, "skip": above}
            rows = head(path, LOOKED_AT, given)
    except ConversionError:
        raise
    except SheetsError as several:
        folder = stem_of(path.name)
        raise ConversionError(
            str(several), "",
            ["import csv, pathlib, openpyxl", f"pathlib.Path({_code(folder)}).mkdir()",
             f"book = openpyxl.load_workbook({_code(path)}, read_only=True, data_only=True)",
             f"for name in {_code(several.sheets)}:",
             f'    with open(f{_code(_literal(folder) + "/{name}.csv")}, "w", newline="") as file:',
             "        csv.writer(file).writerows(book[name].iter_rows(values_only=True))"],
            f"Then, if each sheet is a device: fedfloor new {shlex.quote(folder)} --set data.device=file.",
        ) from several  # fmt: skip
    except SettingError:  # a mistake that the table's reader names
        return
    names = list(given.get("header") or (rows[0] if rows else ()))
    body = rows[not given.get("header") :]
    if {len(row) for row in body} == {len(names)} == {len({*names})}:
        _check_long(path, names, body, given)


def _check_influx(path: Path, rows: Rows) -> None:
    """Refuse InfluxDB's annotated CSV: rows of annotations above each header, and a row per field."""
    if rows[0][0] not in ANNOTATIONS:
        return
    names = next((row for row in rows if row and row[0] not in ANNOTATIONS), [])
    kept = [name for name in names if name == "_time" or (name and name not in INFLUX)]
    out = f"{stem_of(path.name)}-wide.csv"
    lines = ["import pandas", f'table = pandas.read_csv({_code(path)}, comment="#", dtype=str, keep_default_na=False)']
    last = _code(names[-1] if names else "_value")
    lines.append(f"table = table[table[{last}] != {last}]  # headers that are repeated")
    if "_field" in names:
        lines += _pivoted(kept, "_field", "_value", f"to_csv({_code(out)}, index=False)")
    else:
        lines.append(f"table[{_code(kept)}].to_csv({_code(out)}, index=False)")
    raise ConversionError(
        f"{path.name}: annotated CSV of InfluxDB, whose annotations (#group, #datatype, #default) are no rows"
        f"{', and which has a row per field' if '_field' in names else ''}.", PANDAS, lines,
        f"{_then(out, SORTED)} Or query the database itself: fedfloor datasets query --help.",
    )  # fmt: skip


def _pivoted(index: list[str], key: str, value: str, write: str) -> list[str]:
    """Return the lines that make a column of each sensor."""
    how = f'index={_code(index)}, columns={_code(key)}, values={_code(value)}, aggfunc="first", sort=False'
    return [f"table = table.pivot_table({how})", f"table.reset_index().{write}"]


def _reader(path: Path, given: Mapping[str, Any]) -> tuple[str, str]:
    """Return the calls of pandas that read a table, all cells as they are written, and that write another one."""
    if is_parquet(path):
        return f"pandas.read_parquet({_code(path)})", "to_parquet({})"
    settings = [_code(path), "dtype=str", "keep_default_na=False"]
    if is_workbook(path):
        settings += [f"sheet_name={_code(given['sheet'])}"] if given.get("sheet") else []
    else:
        settings += _as_text(path, given)
    settings += [f"names={_code([*given['header']])}"] if given.get("header") else []
    settings += [f"skiprows={[row - 1 for row in above]}"] if (above := skipped(given.get("skip"))) else []
    return f"pandas.read_{'excel' if is_workbook(path) else 'csv'}({', '.join(settings)})", "to_csv({}, index=False)"


def _as_text(path: Path, given: Mapping[str, Any]) -> list[str]:
    """Return the settings of pandas for the delimiter and the encoding of a table as text, where they are not usual."""
    with unpacked_bytes(path) as stream:
        start = stream.read(PEEKED)
    encoding = given.get("encoding") or next((name for mark, name in MARKS if start.startswith(mark)), None)
    if encoding is None:
        try:
            getincrementaldecoder("utf-8")().decode(start)  # which may end within a letter
        except UnicodeDecodeError:
            encoding = LEGACY
    above = skipped(given.get("skip"))
    lines = enumerate(start.decode(encoding or "utf-8-sig", "replace").splitlines(), start=1)
    first = next((line for number, line in lines if number not in above and line.strip()), "")
    mark = delimiter_of(first, given.get("decimal", "."), given.get("delimiter"))
    sep = [r'sep=r"\s+"' if mark == " " else f"sep={_code(mark)}"] if mark != "," else []
    return sep + ([f"encoding={_code(encoding)}"] if encoding else [])


def _check_short_header(path: Path, rows: Rows, given: Mapping[str, Any]) -> None:
    """Refuse a header that has a cell less than each row, as pandas and R write it for an index without a name."""
    names, body = list(rows[0]), rows[1:]
    longer = {len(row) for row in body} == {len(names) + 1} and len({row[0] for row in body}) == len(body)
    if not longer or len(names) < 2 or any(map(is_number, names)) or is_workbook(path):
        return
    if not any(row[-1] for row in body) or not any(map(is_number, body[0])):  # a delimiter at ends; names below a title
        return
    index = "time" if looks_like_time(body[0][0]) else "index"
    out = f"{stem_of(path.name)}-named.csv"
    read, _ = _reader(path, given)
    above = max(skipped(given.get("skip")), default=0) + 1
    raise ConversionError(
        f"{path.name}: the header has {len(names)} names, but the rows have {len(names) + 1} cells: the first cell is "
        "an index without a name, as pandas and R write it.", PANDAS,
        ["import pandas", f"table = {read}", f"table.to_csv({_code(out)}, index_label={_code(index)})"],
        f"{_then(out)} Or without a copy name all columns: --set data.skip={above} --set "
        f"'data.header={_code([index, *names])}'.",
    )  # fmt: skip


def _check_long(path: Path, names: list[str], body: Rows, given: Mapping[str, Any]) -> None:
    """Refuse a row per sensor and time: a column with sensors' names, and one with the values of all of them.

    Where only one of the two has a usual name, the other one must be the only other column of texts (of numbers), and
    several sensors must have a value at one time.
    """
    columns = given.get("columns", {})
    stated = {name for each in columns.values() for name in ([each] if isinstance(each, str) else each or ())}
    known = {role: name for role, name in columns.items() if isinstance(name, str) and name in names}
    roles = roles_of(names, body, known, given.get("time_format"))
    cells = {name: [row[i] for row in body] for i, name in enumerate(names)}
    if "unit" in map(word_of, filter(None, [roles.get("device")])) and is_text(cells.get(roles["device"], []), "."):
        del roles["device"]  # a unit of measurement
    free = [name for name in names if name not in {*stated, *roles.values()}]
    index = [name for role in ("device", "factory", "run", "time") if (name := roles.get(role)) in cells]
    sensors = _sensors(free, cells)
    if "time" not in roles or roles["time"] not in cells or sensors is None:
        return
    key, value, both = sensors

    def different(*among: str) -> int:
        return len({*zip(*(cells[name] for name in among), strict=True)})

    if 2 * different(key) > len(body) or not (both or different(*index) < different(*index, key)):
        return
    index += [name for name in free if name not in (key, value) and _varies_in_time(cells[name])]
    label = roles.get("label")
    if label in cells and different(label) > 1 and different(*index, label) == different(*index):
        index.append(label)
    for name in free:  # whatever else tells rows apart
        if name not in (*index, key, value) and different(*index, key) < different(*index, key, name):
            index.append(name)
    _refuse_long(path, given, [part for name in index for part in _columns_of(name, names)], key, value)


def _columns_of(name: str, names: Sequence[str]) -> list[str]:
    parts = parts_of(name)
    return parts if len(parts) > 1 and {*parts} <= {*names} else [name]


def _varies_in_time(cells: Sequence[str]) -> bool:
    return looks_like_time(cells[0]) and len({*cells}) > 1


def _sensors(free: Sequence[str], cells: Mapping[str, Sequence[str]]) -> tuple[str, str, bool] | None:
    """Return the columns of sensors' names and of their values, and whether both have a usual name; None for none."""

    def called(words: Sequence[str]) -> str | None:
        return next((name for word in words for name in free if word_of(name) == word), None)

    key, value = called(KEYS), called(VALUES)
    if key and value:
        whole = all(re.fullmatch(r"-?\d+", cell) for cell in cells[key])
        return (key, value, True) if whole or is_text(cells[key], ".") else None
    if not (key or value):
        return None
    texts = [name for name in free if is_text(cells[name], ".") and not looks_like_time(cells[name][0])]
    numbers = [name for name in free if all(is_number(cell.replace(",", ".")) for cell in cells[name] if cell)]
    if len(texts) != 1 or len(numbers) != 1 or not {key, value} - {None} <= {*texts, *numbers}:
        return None
    return texts[0], numbers[0], False


def _refuse_long(path: Path, given: Mapping[str, Any], index: list[str], key: str, value: str) -> None:
    read, write = _reader(path, given)
    out = f"{stem_of(path.name)}-wide{'.parquet' if is_parquet(path) else '.csv'}"
    raise ConversionError(
        f"{path.name}: a row per sensor and time: '{key}' names the sensor, and '{value}' holds the values of all "
        "sensors. A sample is a row with a column for each of them.", PANDAS,
        ["import pandas", f"table = {read}", *_pivoted(index, key, value, write.format(_code(out)))],
        f"{_then(out, SORTED)} If each '{key}' is a device with one sensor: --set "
        f"{shlex.quote(f'data.columns.device={key}')}.",
    )  # fmt: skip


# -- folders -----------------------------------------------------------------------------------------------------------

PARTITION = re.compile(r"([A-Za-z_][\w-]*)=.+")  # the name of a folder, such as year=2026
DATES = {"year", "month", "day", "hour", "minute", "date", "dt", "week", "quarter", "jahr", "monat", "stunde"}
TRAINING = ("train", "training")
TESTING = ("test", "testing", "val", "valid", "validation")
MOMENT = re.compile(  # a date, or one and a time of day
    r"(?:19|20)\d\d(\D?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])(?:\D?[0-2]\d(\D?)[0-5]\d(?:\2[0-5]\d)?)?"
)
DEALT = ("data.layout=label/file", "park.devices=10", 'data.partition={kind="dirichlet",alpha=1.0}')
FEWEST = 3  # files named by moments


def _check_folder(root: Path, given: Mapping[str, Any]) -> None:
    """Refuse a folder whose folders, or files, would be taken for devices and are none."""
    folders, files = _inside(root)
    if not (given.get("device") or given.get("layout")):
        _check_partitions(root, [root, *folders])
    if {folder.name for folder in folders} != {*PARTS} or files:
        _check_parts(root, [root, *folders])
    leaf = root
    while not files and folders and len(leaf.parts) < len(root.parts) + MOST_LEVELS:
        leaf = folders[0]
        folders, files = _inside(leaf)
    if files:
        _check_moments(leaf, files, given, alone=leaf == root)
        if files[0].name.casefold().endswith((*TABLES, *TEXTS)):
            _check_table(files[0], given)


def _inside(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders and the files in a folder by their names, without hidden ones."""
    with os.scandir(folder) as entries:
        shown = [each for each in entries if each.name[0] != "." and each.name.casefold() not in IGNORED]
        folders, files = ([each.name for each in shown if each.is_dir() == kind] for kind in (True, False))
    return [folder / name for name in sorted(folders)], [folder / name for name in sorted(files)]


def _name(folder: Path) -> str:
    return folder.name or folder.resolve().name


def _beside(folder: Path, ending: str) -> str:
    """Return a name like a folder's for what is made of it, which is not in it."""
    return f"{'../' if folder.resolve() == Path.cwd() else ''}{_name(folder)}{ending}"


def _check_partitions(root: Path, tops: Sequence[Path]) -> None:
    """Refuse the partitions of one table in folders named ``key=value``, as Hive and Spark write them."""
    for top in tops:
        folders = _inside(top)[0]
        if folders and all(PARTITION.fullmatch(folder.name) for folder in folders):
            break
    else:
        return
    first, keys, files = folders[0].name, [], list[Path]()
    while folders and (match := PARTITION.fullmatch(folders[0].name)):
        keys.append(match[1])
        folders, files = _inside(folders[0])
    kinds = {".csv": "csv", ".orc": "orc", ".feather": "feather", ".arrow": "ipc", ".json": "json"}
    kind = next((kinds[end] for end in kinds if files and end in files[0].name), "parquet")
    out = _beside(root, ".parquet")
    lines = [
        "from pyarrow import dataset, parquet",
        f'table = dataset.dataset({_code(top)}, format="{kind}", partitioning="hive").to_table()',
        *([f"table = table.drop_columns({_code(dates)})"] if (dates := [key for key in keys if key in DATES]) else []),
        f"parquet.write_table(table, {_code(out)})",
    ]
    raise ConversionError(
        f"{root}: folders such as '{first}' are partitions of one table, with the values of a column ({', '.join(keys)}"
        ") for names.", "", lines,
        f"{_then(out, SORTED)} Or if a column within the tables names the device: --set "
        "data.device=column, which does not read the folders' names.",
    )  # fmt: skip


def _check_parts(root: Path, tops: Sequence[Path]) -> None:
    """Refuse folders for training and testing beside others, or below another one, as the reader knows them alone."""
    for top in tops:
        names = {folder.name.casefold(): folder.name for folder in _inside(top)[0]}
        train, test = (next((names[word] for word in words if word in names), "") for words in (TRAINING, TESTING))
        if train and test:
            break
    else:
        return
    labels, _ = _inside(top / train)
    inner, files = _inside(labels[0]) if labels else ([], [])
    pictures = not inner and any(file.name.casefold().endswith(SUFFIXES) for file in files)
    alone, merged, out = top == root, pictures and len(labels) == 1, _beside(root, "-parts")
    others = [name for name in names.values() if name not in (train, test)]
    remark = ""
    if merged:
        remark = f" All of '{train}' is '{labels[0].name}': to learn other labels, both parts are put together."
    raise ConversionError(
        f"{root}: '{train}' and '{test}' in {'it' if alone else _name(top)} are parts for training and testing and no "
        f"devices. Data come split where their folder holds 'train' and 'test' and nothing else.{remark}", "",
        (_merged if merged else _copied)(root, train, test, out, alone=alone),
        f"{_then(out, *DEALT * (pictures and alone))}"
        f"{f' Left out: {named(others)}.' if others else ''}",
    )  # fmt: skip


def _copied(root: Path, train: str, test: str, out: str, *, alone: bool) -> list[str]:
    """Return the lines that make folders for training and testing, with a folder for each device where several are."""
    found = "name" if alone else 'f"*/{name}"'
    target = _literal(out) + ("/{part}" if alone else "/{part}/{folder.parent.name}")
    return [
        "import pathlib, shutil",
        f'for part, name in [("train", {_code(train)}), ("test", {_code(test)})]:',
        f"    for folder in pathlib.Path({_code(root)}).glob({found}):",
        f"        shutil.copytree(folder, f{_code(target)})",
    ]


def _merged(root: Path, train: str, test: str, out: str, *, alone: bool) -> list[str]:
    """Return the lines that make a folder for each label, of each device where several are, of both parts."""
    starts = "".join(sorted({train[0], test[0]}))
    device = "" if alone else "file.parts[-4], "
    return [
        "import pathlib, shutil",
        f'for file in pathlib.Path({_code(root)}).glob("{"" if alone else "*/"}[{starts}]*/*/*"):',
        f"    folder = pathlib.Path({_code(out)}, {device}file.parts[-2])",
        "    folder.mkdir(parents=True, exist_ok=True)",
        '    shutil.copy(file, folder / f"{file.parts[-3]}-{file.name}")',
    ]


def _check_moments(folder: Path, files: Sequence[Path], given: Mapping[str, Any], *, alone: bool) -> None:
    """Refuse a file per moment that would be taken for a device; in a device's folder tables are its recordings."""
    tables = [file.name.casefold().endswith((*TABLES, *TEXTS)) for file in files]
    if len(files) < FEWEST or given.get("file_name") or any(file.name.casefold().endswith(SUFFIXES) for file in files):
        return
    moments = [MOMENT.match(file.name) for file in files]
    stems = [stem_of(file.name) if table else file.name for file, table in zip(files, tables, strict=True)]
    if any(match is None or match[0] != stem for match, stem in zip(moments, stems, strict=True)):
        return
    way, rows = given.get("device"), []
    with suppress(SettingError):
        rows = head(files[0], LOOKED_AT, given)
    names, body = (rows[0], rows[1:]) if rows else ([], [])
    known = {role: name for role, name in given.get("columns", {}).items() if name in names or name == ""}
    named_device = way is None and (not alone or "device" in roles_of(names, body, known))
    if tables[0] and (way in ("folder", "column") or named_device):
        return
    _refuse_moments(folder, files, rows, stems[0])


def _refuse_moments(folder: Path, files: Sequence[Path], rows: Rows, name: str) -> None:
    codes = iter("mdHMS")
    form = "%Y" + re.sub(r"\d\d", lambda _: f"%{next(codes)}", name[4:])
    settings = [] if moment(name, None) is not None else [f"data.time_format={form}"]
    out = _beside(folder, ".csv")
    how = _as_text(files[0], {}) + ["header=None"] * any(map(is_number, rows[0] if rows else ()))
    read = f"pandas.read_csv({', '.join(['file', *how])})"
    if any(is_text(cells, ".") for cells in zip(*rows[1:], strict=False)):
        read += '.select_dtypes("number")'
    raise ConversionError(
        f"{folder}: its {len(files)} files are named by moments ({files[0].name}, …): recordings of one device, and no "
        "devices. Recordings lie in a folder of the device's name, beside those of other devices; short ones, such as "
        "snapshots of a vibration, may become a table with a row of features for each.", PANDAS,
        [
            "import pandas, pathlib",
            f"files = sorted(pathlib.Path({_code(folder)}).iterdir())",
            f"tables = ({read} for file in files)",
            'rows = [{**x.std().add_prefix("deviation "), **x.kurt().add_prefix("kurtosis ")} for x in tables]',
            f"table = pandas.DataFrame(rows, index=[file.name[:{len(name)}] for file in files])",
            f'table.to_csv({_code(out)}, index_label="time")',
        ],
        f"{_then(out, *settings)} Such tables of several devices lie in one folder: --set data.device=file.",
    )  # fmt: skip
