"""Recognition of data in unsupported formats; ``conversions.toml`` has the lines of code that convert them."""

from __future__ import annotations

import json
import os
import re
import shlex
import textwrap
import tomllib
import zipfile
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.base.names import count, some
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.excerpt import Excerpt, Excerpts
from fedfloor.data.files.joined import parts_of
from fedfloor.data.files.layout import NO_LABEL, UnlabelledError, looks_like_time
from fedfloor.data.files.packed import unpacked_bytes
from fedfloor.data.files.pictures import SUFFIXES
from fedfloor.data.files.rows import LEGACY, SheetsError, delimiter_of, is_workbook, marked, place, unpacked
from fedfloor.data.files.times import moment
from fedfloor.data.files.tree import IGNORED, PARTS, TABLES, TEXTS, is_folder, named, stem_of
from fedfloor.data.kinds import is_number, is_text, word_of
from fedfloor.data.reading import SKEWED, skipped
from fedfloor.data.roles import NAMED, is_nameless, roles_of, stated

LOOKED_AT = 2000  # rows
PEEKED = 1 << 16  # bytes
MOST_LEVELS = 5  # nested folders
SORTED = "data.sort=true"
PAGE = "More: docs/data-reference.md, section 'Conversions'."

TEXT_TABLES = (".csv", ".tsv", *TEXTS)
RECIPES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
FORMATS = tuple(ending for recipe in RECIPES["files"] for ending in recipe["endings"])  # endings


def check(path: Path, given: Mapping[str, Any], excerpts: Excerpts | None = None) -> None:
    """Refuse data in a format that would be read wrongly or not at all; the error has lines of code that convert them.

    Args:
        path: a file or a folder. A missing or damaged one is accepted here: its reader reports the problem.
        given: keys of ``[data]``, whose columns and folders are taken to be correct.
        excerpts: reads the first rows of tables, for others too; by default for this check alone.

    Raises:
        SettingError: data in an unsupported format.
    """
    excerpts = excerpts or Excerpts()
    if path.is_dir():
        with suppress(OSError):
            _check_folder(path, given, excerpts)
    elif path.is_file():
        _check_file(path, given, excerpts)


def _check_file(path: Path, given: Mapping[str, Any], excerpts: Excerpts) -> None:
    name = path.name.casefold()
    _check_archive(path, given)
    if given.get("format") is None and name.endswith(FORMATS):
        recipe = _recipe_of(path)
        ending = next(end for end in recipe["endings"] if name.endswith(end))
        out = path.name[: -len(ending)] + recipe.get("out", ".parquet")
        first, *lines = recipe["code"].splitlines()
        code = "\n".join([first, "file, out = $source, $target", *lines])
        raise ConversionError(
            {"problem": "$path: $noun, which is not read.", **recipe, "code": code}, path=path, noun=recipe["noun"],
            source=_code(path), target=_code(out), then=_then(out),
        )  # fmt: skip
    if name.endswith((*TABLES, *TEXTS)) or given.get("format") == "table":
        _check_table(path, given, excerpts)


def _recipe_of(path: Path) -> Mapping[str, Any]:
    """Return the first recipe that fits a file's ending and its first bytes."""
    start = b""
    with suppress(OSError), regular.opened(path) as file:
        start = file.read(512)
    return next(
        recipe for recipe in RECIPES["files"]
        if path.name.casefold().endswith(tuple(recipe["endings"]))
        and re.match(recipe.get("begins", ""), start.decode("latin-1"))
    )  # fmt: skip


class ConversionError(SettingError):
    """Data in an unsupported format, with lines of code that convert them.

    Args:
        recipe: a table of ``conversions.toml``, or its name.
        values: the replacement of each ``$NAME``.
    """

    key = "conversion"

    def __init__(self, recipe: str | Mapping[str, Any], **values: object) -> None:
        parts = {"after": "$then", **(RECIPES[recipe] if isinstance(recipe, str) else recipe)}
        problem, code, after = (Template(parts[key]).substitute(values) for key in ("problem", "code", "after"))
        needs = f" with {parts['needs']} (pip install {parts['needs']})" if "needs" in parts else ""
        lines = textwrap.indent("\n".join(filter(None, code.splitlines())), "    ")
        super().__init__(f"{problem} To convert it{needs}:\n\n{lines}\n\n{after} {PAGE}")


def _code(value: object) -> str:
    """Return a text, or a list of texts, as a Python literal in double quotes."""
    return json.dumps(value if isinstance(value, list) else str(value), ensure_ascii=False)


def _then(out: str, *settings: str) -> str:
    """Return the command that reads the converted data."""
    words = ["fedfloor", "new", out, *(word for setting in settings for word in ("--set", setting))]
    return f"Then: {shlex.join(words)}."


def _literal(text: str) -> str:
    """Return a text as it is written in an f-string."""
    return text.replace("{", "{{").replace("}", "}}")


def unlabelled(error: UnlabelledError) -> ConversionError:
    """Return the error for rows without a label, with lines of code that leave them out."""
    path = error.path
    read, write, out = _converted(path, error.dialect, "labelled")
    column = _code(error.column)
    among = f"str.strip().str.lower().isin({_code(error.texts)})"
    missing = "isna()" if is_parquet(path) and {*error.texts} == NO_LABEL else among
    return ConversionError(
        "unlabelled", error=error, read=read, column=column, missing=missing, write=write, then=_then(out),
        or_class=", or make them a separate class" if error.classes else "",
        comment=f'  # or as a class: table.loc[missing, {column}] = "none"' if error.classes else "",
    )  # fmt: skip


def _check_archive(path: Path, given: Mapping[str, Any]) -> None:
    """Refuse an archive of several files, or of a single table if the archive's name does not denote a table."""
    name = path.name.casefold()
    module = "zipfile" if name.endswith(".zip") else "tarfile" if re.search(r"\.(tar(\.\w+)?|tgz)$", name) else ""
    if not module:
        return
    inside: list[str] = []
    if module == "zipfile":
        try:
            with zipfile.ZipFile(regular.check(path)) as archive:
                inside = [each for each in archive.namelist() if not each.endswith("/") and "__MACOSX/" not in each]
        except (OSError, zipfile.BadZipFile):  # its reader reports the problem
            return
        if len(inside) == 1 and (given.get("format") or unpacked(name).endswith(TEXT_TABLES)):
            return
        if len(inside) == 1 and inside[0].casefold().endswith(TEXT_TABLES):
            raise SettingError(
                f"{path}: holds a table, {inside[0]}. To read it: --set data.format=table.", key="archive"
            )
    holds = f" of {count(len(inside), 'file')}" if inside else ""
    folder = stem_of(re.sub(r"\.(zip|tgz|tar(\.\w+)?)$", "", path.name, flags=re.IGNORECASE)) or "unpacked"
    raise ConversionError(
        "archive", path=path, holds=holds, module=module, quoted=shlex.quote(str(path)), folder=shlex.quote(folder),
        then=_then(folder),
    )  # fmt: skip


# -- tables ------------------------------------------------------------------------------------------------------------

PAIR = re.compile(r"\d+:[+-]?\d[\d.eE+-]*")  # index:value
FLAGS = {"0", "1", "0.0", "1.0"}
ANNOTATIONS = ("#group", "#datatype", "#default")
INFLUX = {"result", "table", "_start", "_stop", "_time", "_value", "_field", "_measurement"}
KEYS = (  # names of columns with names of sensors
    "tag", "tag_name", "tagname", "tag_id", "field", "variable", "variable_name", "sensor", "sensor_name", "sensor_id",
    "signal", "signal_name", "channel", "channel_name", "parameter", "metric", "metric_name", "point", "point_id",
    "data_point", "node_id", "item", "item_id", "topic", "var_name",
    "measurement", "attribute", "property", "series", "kanal",
    "messstelle", "messgrösse", "merkmal", "signalname",
)  # fmt: skip
VALUES = (
    "value", "val", "values", "var_value",
    "reading", "measured_value", "numeric_value", "tag_value", "sensor_value", "wert",
    "messwert",
)  # fmt: skip


def _check_table(path: Path, given: Mapping[str, Any], excerpts: Excerpts) -> None:
    """Refuse a table whose rows are no samples, or whose header has a cell without a name."""
    try:
        table = excerpts.head(path, LOOKED_AT, given)
        if table.first and not given.get("header"):
            _check_influx(path, table)
            _check_channels(path, table, given)
            _check_pairs(path, table)
            _check_nameless(path, table, given)
            _check_short_header(path, table, given)
        if given.get("skip") is None and (above := excerpts.preamble(path, given)):
            given = {**given, "skip": above}
            table = excerpts.head(path, LOOKED_AT, given)
    except ConversionError:
        raise
    except SheetsError as several:
        folder = stem_of(path.name)
        raise ConversionError(
            "sheets", error=several, folder=_code(folder), path=_code(path), names=_code(several.sheets),
            file=_code(_literal(folder) + "/{name}.csv"), quoted=shlex.quote(folder),
        ) from several  # fmt: skip
    except SettingError:  # the table's reader reports the mistake
        return
    if {len(row) for row in table.rows} == {len(table.names)} == {len({*table.names})}:
        _check_long(path, table, given)
        _check_one_hot(path, table, given)


def _check_influx(path: Path, table: Excerpt) -> None:
    """Refuse InfluxDB's annotated CSV, with rows of annotations above each header, and a row per field."""
    if table.first[0] not in ANNOTATIONS:
        return
    names = next((row for row in table.rows if row and row[0] not in ANNOTATIONS), [])
    kept = [name for name in names if name == "_time" or (name and name not in INFLUX)]
    out = f"{stem_of(path.name)}-wide.csv"
    per_field = "_field" in names
    write = f"to_csv({_code(out)}, index=False)"
    raise ConversionError(
        "influx", name=path.name, path=_code(path), last=_code(names[-1] if names else "_value"),
        per_field=", and which has a row per field" if per_field else "",
        write=_pivoted(kept, "_field", "_value", write) if per_field else f"table[{_code(kept)}].{write}",
        then=_then(out, SORTED),
    )  # fmt: skip


def _check_channels(path: Path, table: Excerpt, given: Mapping[str, Any]) -> None:
    """Refuse exports of oscilloscopes with blocks of properties, and a column of times beside that of each channel."""
    names = next((row for row in table.rows if len(row) >= 4 and {*row[::2]} == {"Name"}), None)
    if names is not None and not is_workbook(path):
        out = f"{stem_of(path.name)}-wide.csv"
        settings = dict(setting.split("=", 1) for setting in _as_text(path, given))
        raise ConversionError(
            "channels", name=path.name, path=_code(path), many=len(names) // 2, out=_code(out), then=_then(out),
            encoding=settings.get("encoding", '"utf-8-sig"'), mark=settings.get("sep", '","'),
        )  # fmt: skip


def _check_pairs(path: Path, table: Excerpt) -> None:
    """Refuse rows of a label and pairs ``index:value``, as LIBSVM and SVMlight write them.

    A text instead of the label means a header, such as one with channels of a controller: ``time,1:1,1:2``.
    """
    if len(table.first) > 1 and is_number(table.first[0]) and all(PAIR.fullmatch(cell) for cell in table.first[1:]):
        out = f"{stem_of(path.name)}-columns.csv"
        raise ConversionError("pairs", name=path.name, path=_code(path), out=_code(out), then=_then(out))


def _check_nameless(path: Path, table: Excerpt, given: Mapping[str, Any]) -> None:
    """Refuse a first row of values if it is too long for names to be written in a command."""
    many = len(table.first)
    if many <= NAMED or is_workbook(path) or not is_nameless(path, table.names, given):
        return
    read, write, out = _converted(path, given, "named")
    raise ConversionError(
        "nameless", place=place(path, 1), first=", ".join(map(repr, table.names[:3])), many=many, write=write,
        read=f"{read.removesuffix(')')}, header=None)", then=_then(out),
    )  # fmt: skip


def _check_one_hot(path: Path, table: Excerpt, given: Mapping[str, Any]) -> None:
    """Refuse a label in several columns, of which exactly one is 1 in each row: the others would state it."""
    columns = given.get("columns", {})
    label = roles_of(table, {}, given.get("time_format")).get("label")
    if label is None or columns.get("label") in table.names or columns.get("ignore"):
        return
    classes = _exclusive(table, table.names.index(label)) if label in table.names else []
    if len(classes) < FEWEST:
        return
    read, write, out = _converted(path, given, "labelled")
    raise ConversionError(
        "one_hot", name=path.name, few=some(classes, 3), many=len(classes), read=read, write=write, label=label,
        classes=_code(classes), then=_then(out, "data.columns.label=label"),
    )  # fmt: skip


def _exclusive(table: Excerpt, own: int) -> list[str]:
    """Return the most adjacent columns around one, of which exactly one is 1 and the others are 0 in each row.

    Three of them, with the one, must vary: a flag that is always 1 completes any flags that are always 0.
    """
    cells = np.array(table.rows).T
    flags = np.array([{*column} <= FLAGS for column in cells.tolist()])
    varies = np.array([len({*column}) > 1 for column in cells.tolist()])
    if not (flags[own] and varies[own]):
        return []
    breaks = np.flatnonzero(~flags)
    first = breaks[breaks < own].max(initial=-1) + 1
    stop = breaks[breaks > own].min(initial=len(flags))
    ones = cells[first:stop].astype(float).cumsum(axis=0)
    above = np.vstack([np.zeros(ones.shape[1]), ones])
    totals = above.sum(axis=1)
    groups = list[tuple[int, int]]()
    for start in range(first, own + 1):  # the longest group from here on has as many 1s as there are rows
        end = first + int(np.searchsorted(totals, totals[start - first] + len(table.rows), side="right")) - 1
        single = end > own and (above[end - first] - above[start - first] == 1).all()
        if single and varies[start:end].sum() >= FEWEST:
            groups.append((start, end))
    start, end = max(groups, key=lambda group: group[1] - group[0], default=(own, own))
    return table.names[start:end]


def _pivoted(index: list[str], key: str, value: str, write: str) -> str:
    """Return lines of code that make a column for each sensor."""
    how = f'index={_code(index)}, columns={_code(key)}, values={_code(value)}, aggfunc="first", sort=False'
    return f"table = table.pivot_table({how})\ntable.reset_index().{write}"


def _converted(path: Path, given: Mapping[str, Any], how: str) -> tuple[str, str, str]:
    """Return the pandas calls that read a table as texts and write the converted table, and the name of the latter."""
    out = f"{stem_of(path.name)}-{how}{'.parquet' if is_parquet(path) else '.csv'}"
    if is_parquet(path):
        return f"pandas.read_parquet({_code(path)})", f"to_parquet({_code(out)})", out
    settings = [_code(path), "dtype=str", "keep_default_na=False"]
    if is_workbook(path):
        settings += [f"sheet_name={_code(given['sheet'])}"] if given.get("sheet") else []
    else:
        settings += _as_text(path, given)
    settings += [f"names={_code([*given['header']])}"] if given.get("header") else []
    settings += [f"skiprows={[row - 1 for row in above]}"] if (above := skipped(given.get("skip"))) else []
    read = f"pandas.read_{'excel' if is_workbook(path) else 'csv'}({', '.join(settings)})"
    return read, f"to_csv({_code(out)}, index=False)", out


def _as_text(path: Path, given: Mapping[str, Any]) -> list[str]:
    """Return the pandas arguments for an unusual delimiter or encoding of a text table."""
    with unpacked_bytes(path) as stream:
        start = stream.read(PEEKED)
    encoding = given.get("encoding") or marked(start)
    if encoding is None:
        try:
            getincrementaldecoder("utf-8")().decode(start)  # the last character may be incomplete
        except UnicodeDecodeError:
            encoding = LEGACY
    above = skipped(given.get("skip"))
    lines = enumerate(start.decode(encoding or "utf-8-sig", "replace").splitlines(), start=1)
    first = next((line for number, line in lines if number not in above and line.strip()), "")
    mark = delimiter_of(first, given.get("decimal", "."), given.get("delimiter"))
    sep = [r'sep=r"\s+"' if mark == " " else f"sep={_code(mark)}"] if mark != "," else []
    return sep + ([f"encoding={_code(encoding)}"] if encoding else [])


def _check_short_header(path: Path, table: Excerpt, given: Mapping[str, Any]) -> None:
    """Refuse a header with one cell fewer than each row, as pandas and R write for an unnamed index."""
    names = table.names
    body = table.rows
    longer = {len(row) for row in body} == {len(names) + 1} and len({row[0] for row in body}) == len(body)
    if not longer or len(names) < 2 or any(map(is_number, names)) or is_workbook(path):
        return
    if not any(row[-1] for row in body) or not any(map(is_number, body[0])):  # final delimiters; names below a title
        return
    index = "time" if looks_like_time(body[0][0]) else "index"
    read, _, out = _converted(path, given, "named")
    raise ConversionError(
        "index", name=path.name, few=len(names), many=len(names) + 1, read=read, out=_code(out), index=_code(index),
        above=max(skipped(given.get("skip")), default=0) + 1, header=_code([index, *names]), then=_then(out),
    )  # fmt: skip


def _check_long(path: Path, table: Excerpt, given: Mapping[str, Any]) -> None:
    """Refuse tables with a row per sensor and time: a column of sensors' names, and a column of their values.

    If only one of the two columns has a usual name, the other must be the only further column of texts (of numbers),
    and several sensors must have a value at the same time.
    """
    names = table.names
    columns = given.get("columns", {})
    known = {role: name for role, name in columns.items() if isinstance(name, str) and name in names}
    roles = roles_of(table, known, given.get("time_format"))
    cells = {name: table.cells(name) for name in names}
    if "unit" in map(word_of, filter(None, [roles.get("device")])) and is_text(cells.get(roles["device"], []), "."):
        del roles["device"]  # the column "unit" is a unit of measurement
    free = [name for name in names if name not in stated(columns) | {*roles.values()}]
    index = [name for role in ("device", "factory", "run", "time") if (name := roles.get(role)) in cells]
    sensors = _sensors(free, cells)
    if "time" not in roles or roles["time"] not in cells or sensors is None:
        return
    key, value, both = sensors

    def different(*among: str) -> int:
        return len({*zip(*(cells[name] for name in among), strict=True)})

    if 2 * different(key) > len(table.rows) or not (both or different(*index) < different(*index, key)):
        return
    index += [
        name for name in free if name not in (key, value) and looks_like_time(cells[name][0]) and different(name) > 1
    ]
    label = roles.get("label")
    if label in cells and different(label) > 1 and different(*index, label) == different(*index):
        index.append(label)
    for name in free:  # other columns that distinguish rows
        if name not in (*index, key, value) and different(*index, key) < different(*index, key, name):
            index.append(name)
    index = [part for name in index for part in _columns_of(name, names)]
    read, write, out = _converted(path, given, "wide")
    own = f'table = table[~table[{_code(key)}].str.startswith("$")]  # of the archive itself\n'
    own = own if any(tag.startswith("$") for tag in cells[key]) else ""
    wide = _pivoted(index, key, value, write)
    machines = Counter(tag.partition(".")[0] for tag in {*cells[key]} if "." in tag)
    if "device" not in roles and machines.total() == different(key) > len(machines) > 1:  # tags such as P101.temp
        wide = f'table[["device", "sensor"]] = table[{_code(key)}].str.split(".", n=1, expand=True)\n'
        wide += _pivoted(["device", *index], "sensor", value, write)
    raise ConversionError(
        "long", name=path.name, key=key, value=value, read=read, write=own + wide,
        setting=shlex.quote(f"data.columns.device={key}"), then=_then(out, SORTED),
    )  # fmt: skip


def _columns_of(name: str, names: Sequence[str]) -> list[str]:
    parts = parts_of(name)
    return parts if len(parts) > 1 and {*parts} <= {*names} else [name]


def _sensors(free: Sequence[str], cells: Mapping[str, Sequence[str]]) -> tuple[str, str, bool] | None:
    """Return the columns of sensors' names and of their values, and whether both names are usual; None if not found."""

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


# -- folders -----------------------------------------------------------------------------------------------------------

PARTITION = re.compile(r"([A-Za-z_][\w-]*)=.+")  # the name of a folder, such as year=2026
DATES = {"year", "month", "day", "hour", "minute", "date", "dt", "week", "quarter", "jahr", "monat", "stunde"}
TRAINING = ("train", "training")
TESTING = ("test", "testing", "val", "valid", "validation")
MOMENT = re.compile(  # a date, or a date and a time of day
    r"(?:19|20)\d\d(\D?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])(?:\D?[0-2]\d(\D?)[0-5]\d(?:\2[0-5]\d)?)?"
)
DEALT = ("data.layout=label/file", "park.devices=10", f"data.partition={{{SKEWED}}}")
FEWEST = 3  # files named by moments, or columns of one label, at least


def _check_folder(root: Path, given: Mapping[str, Any], excerpts: Excerpts) -> None:
    """Refuse a folder whose subfolders or files would be mistaken for devices."""
    folders, files = _inside(root, root)
    if not (given.get("device") or given.get("layout")):
        _check_partitions(root, [root, *folders])
    if {folder.name for folder in folders} != {*PARTS} or files:
        _check_parts(root, [root, *folders])
    leaf = root
    while not files and folders and len(leaf.parts) < len(root.parts) + MOST_LEVELS:
        leaf = folders[0]
        folders, files = _inside(leaf, root)
    if files:
        _check_moments(leaf, files, given, excerpts, alone=leaf == root)
        if files[0].name.casefold().endswith((*TABLES, *TEXTS)):
            _check_table(files[0], given, excerpts)


def _inside(folder: Path, root: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders and the files in a folder, sorted by name, without hidden ones.

    Args:
        folder: the data folder ``root``, or a folder in it.

    Raises:
        SettingError: a link out of the data folder, a pipe or a device, before any table is opened.
    """
    top = root.resolve()
    with os.scandir(folder) as entries:
        names = sorted(each.name for each in entries if each.name[0] != "." and each.name.casefold() not in IGNORED)
    folders = list[Path]()
    files = list[Path]()
    for path in (folder / name for name in names):
        (folders if is_folder(path, top, str(path.relative_to(root))) else files).append(path)
    return folders, files


def _name(folder: Path) -> str:
    return folder.name or folder.resolve().name


def _beside(folder: Path, ending: str) -> str:
    """Return a path beside a folder, derived from its name."""
    return f"{'../' if folder.resolve() == Path.cwd() else ''}{_name(folder)}{ending}"


def _check_partitions(root: Path, tops: Sequence[Path]) -> None:
    """Refuse a table partitioned into folders named ``key=value``, as Hive and Spark write it."""
    for top in tops:
        folders = _inside(top, root)[0]
        if folders and all(PARTITION.fullmatch(folder.name) for folder in folders):
            break
    else:
        return
    first = folders[0].name
    keys = []
    files = list[Path]()
    while folders and (match := PARTITION.fullmatch(folders[0].name)):
        keys.append(match[1])
        folders, files = _inside(folders[0], root)
    kinds = {".csv": "csv", ".orc": "orc", ".feather": "feather", ".arrow": "ipc", ".json": "json"}
    kind = next((kinds[end] for end in kinds if files and end in files[0].name), "parquet")
    dates = [key for key in keys if key in DATES]
    out = _beside(root, ".parquet")
    raise ConversionError(
        "partitions", root=root, first=first, keys=", ".join(keys), top=_code(top), kind=kind, out=_code(out),
        without_dates=f"table = table.drop_columns({_code(dates)})" if dates else "", then=_then(out, SORTED),
    )  # fmt: skip


def _check_parts(root: Path, tops: Sequence[Path]) -> None:
    """Refuse folders for training and testing beside or below other folders, which the reader does not support."""
    for top in tops:
        names = {folder.name.casefold(): folder.name for folder in _inside(top, root)[0]}
        train, test = (next((names[word] for word in words if word in names), "") for words in (TRAINING, TESTING))
        if train and test:
            break
    else:
        return
    labels, _ = _inside(top / train, root)
    inner, files = _inside(labels[0], root) if labels else ([], [])
    pictures = not inner and any(file.name.casefold().endswith(SUFFIXES) for file in files)
    alone = top == root
    merged = pictures and len(labels) == 1
    out = _beside(root, "-parts")
    others = [name for name in names.values() if name not in (train, test)]
    raise ConversionError(
        "merged_parts" if merged else "copied_parts", root=root, train=train, test=test,
        where="it" if alone else _name(top), path=_code(root), label=labels[0].name if labels else "",
        train_name=_code(train), test_name=_code(test), found="name" if alone else 'f"*/{name}"',
        target=_code(_literal(out) + ("/{part}" if alone else "/{part}/{folder.parent.name}")),
        above="" if alone else "*/", starts="".join(sorted({train[0], test[0]})), out=_code(out),
        device="" if alone else "file.parts[-4], ", then=_then(out, *DEALT * (pictures and alone)),
        left_out=f" Left out: {named(others)}." if others else "",
    )  # fmt: skip


def _check_moments(
    folder: Path, files: Sequence[Path], given: Mapping[str, Any], excerpts: Excerpts, *, alone: bool
) -> None:
    """Refuse files named by moments, which would be taken for devices; tables in a device's folder are recordings."""
    tables = [file.name.casefold().endswith((*TABLES, *TEXTS)) for file in files]
    if len(files) < FEWEST or given.get("file_name") or any(file.name.casefold().endswith(SUFFIXES) for file in files):
        return
    moments = [MOMENT.match(file.name) for file in files]
    stems = [stem_of(file.name) if table else file.name for file, table in zip(files, tables, strict=True)]
    if any(match is None or match[0] != stem for match, stem in zip(moments, stems, strict=True)):
        return
    way = given.get("device")
    table = Excerpt()
    with suppress(SettingError):
        table = excerpts.head(files[0], LOOKED_AT, given)
    known = {role: name for role, name in given.get("columns", {}).items() if name in table.names or name == ""}
    named_device = way is None and (not alone or "device" in roles_of(table, known))
    if tables[0] and (way in ("folder", "column") or named_device):
        return
    name = stems[0]
    codes = iter("mdHMS")
    form = "%Y" + re.sub(r"\d\d", lambda _: f"%{next(codes)}", name[4:])
    settings = [] if moment(name, None) is not None else [f"data.time_format={form}"]
    out = _beside(folder, ".csv")
    how = _as_text(files[0], {}) + ["header=None"] * any(map(is_number, table.first))
    read = f"pandas.read_csv({', '.join(['file', *how])})"
    if any(is_text(cells, ".") for cells in zip(*table.rows, strict=False)):
        read += '.select_dtypes("number")'
    raise ConversionError(
        "moments", folder=folder, many=len(files), first=files[0].name, path=_code(folder), read=read, length=len(name),
        out=_code(out), then=_then(out, *settings),
    )  # fmt: skip
