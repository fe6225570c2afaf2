"""Checks of tables against dataclasses: errors name unknown keys, wrong types and values out of range."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import numbers
import operator
import os
import re
import tomllib
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedfloor.base import regular
from fedfloor.base.errors import SettingError, nearest, quoted, shown, unknown

if TYPE_CHECKING:
    import pydantic

T = TypeVar("T")
DEEPEST = 20  # nested tables and lists
MOST_DOTS = 200  # points of a key, for which Python's reader takes the square of the time
KEY = re.compile(r"\s*[\w\"'-][\w\s\"'-]*")  # a word of a key, also in quotes
READERS = {  # the kinds of TOML files, and the command that reads each
    "experiment file": "fedfloor run",
    "park file": "fedfloor park provision",
    "settings file": "fedfloor park cloud|edge|device",
    "source file": "fedfloor park sense",
    "cell file": "fedfloor allocate",
}
LARGEST = 2**63 - 1  # of whole numbers, the limit of TOML and of arrays
WIDEST = 3e38  # of other numbers, about the largest of 32 bits, in which models are computed
Table = dict[str, Any]
TEXT = "a text in quotes"
WORDS: dict[Any, str] = {
    int: "a whole number", float: "a number", str: TEXT, bool: "true or false", Path: TEXT, tuple: "a list",
    Mapping: "a table", dict: "a table",
}  # fmt: skip
SIMPLE = {*WORDS, types.NoneType}  # types whose values are kept
_SCALARS = (str, int, float)  # types of values in Literal


def toml(path: Path, noun: str) -> Table:
    """Return the tables of a TOML file.

    Raises:
        SettingError: the file does not exist (a similar name in the folder is quoted), or is not TOML (the line is
            quoted).
    """
    try:
        text = regular.read_text(path, encoding="utf-8-sig")
    except OSError as error:
        beside = [neighbour.name for neighbour in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        near = "" if path.exists() else nearest(path.name, beside)
        raise SettingError(f"{noun} {path}: {error.strerror or error}.{near}", key="unreadable-file") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{noun} {path} is not valid TOML: {error}", key="not-toml") from error
    return toml_text(text, f"{noun} {path}")


def check_kind(document: Table, noun: str, path: Path, remedy: str = "") -> None:
    """Raise SettingError if a file is of another kind of :data:`READERS` than ``noun``; ``remedy`` ends the message."""
    found = _kind(document)
    if found in {"", noun}:
        return
    article = "an" if found[0] in "aeiou" else "a"
    raise SettingError(
        f"{noun} {path}: this is {article} {found}, which `{READERS[found]}` reads.{remedy and f' {remedy}'}",
        key="kind-of-file",
    )


def _kind(document: Table) -> str:
    """Return the kind of a file among :data:`READERS` by the keys that others lack; "" if it has none."""
    if isinstance(document.get("park"), str):
        return "settings file"
    if isinstance(devices := document.get("device"), list):
        keys = document.keys() | {key for device in devices if isinstance(device, dict) for key in device}
        return "park file" if keys & {"cloud", "experiment", "factory"} else "cell file"
    if "source" in document:
        return "source file"
    return "experiment file" if document.keys() & {"data", "method", "model"} else ""


def toml_text(text: str, source: str) -> Table:
    """Return the tables of a TOML text; errors name its source.

    Raises:
        SettingError: the text is not TOML (the line is quoted), or nested too deeply.
    """
    deep = SettingError(f"{source}: lists or tables nested too deeply: at most {DEEPEST} levels.", key="depth")
    if any(line.count(".") > MOST_DOTS and _dots(line) > MOST_DOTS for line in text.splitlines()):
        raise deep
    try:
        return tomllib.loads(text)
    except ValueError as error:  # not TOML, or a number of 5,000 digits
        raise SettingError(f"{source} is not valid TOML: {error}{quoted(text, error)}", key="not-toml") from error
    except RecursionError as error:
        raise deep from error


def _dots(line: str) -> int:
    """Return the number of points between the words of the longest key in a line of TOML."""
    keys = groupby(line.split(".")[1:-1], lambda word: KEY.fullmatch(word) is not None)
    return max((1 + sum(1 for _ in words) for is_key, words in keys if is_key), default=0)


def checked(kind: type[T], table: Table, where: str) -> T:
    """Return ``kind(**table)`` after a check of all keys and types.

    Nested tables become their dataclasses, lists become tuples, and whole numbers floats if the setting is a float.
    Types that only the class itself can resolve are not checked.

    Raises:
        SettingError: an unknown key (the nearest is suggested), a missing key, a wrong type, or a value out of range.
    """
    check_values(table, where)
    return typing.cast(T, _built(kind, table, where))


def read(kind: type[T], path: Path, noun: str, remedy: str = "") -> T:
    """Return the settings in a TOML file of one of :data:`READERS`, in which relative paths begin at its folder.

    Args:
        remedy: a sentence for a file that cannot be read.

    Raises:
        SettingError: the file is missing, not TOML or of another kind, or a key or value is wrong; the message names
            file and key.
    """
    try:
        document = toml(path, noun)
    except SettingError as error:
        raise SettingError(f"{error}{remedy and f' {remedy}'}", key=error.key) from error
    check_kind(document, noun, path)
    try:
        return typing.cast(T, below(path.parent, checked(kind, document, "")))
    except SettingError as error:
        raise SettingError(f"{path}: {error}", key=error.key) from None


def settle(settings: object, where: str) -> None:
    """Check and convert the fields of a frozen dataclass that was made in Python, as :func:`checked` does for a table.

    Numbers of NumPy become Python's, and paths become texts. To be called first in ``__post_init__``.

    Args:
        settings: the instance, whose fields are replaced.
        where: the key of its table, such as ``data``; "" for the experiment itself.

    Raises:
        SettingError: a value of a wrong type; the message names the key.
    """
    types_of = hints(typing.cast(Hashable, type(settings)))
    for field in dataclasses.fields(typing.cast(Any, settings)):
        given = getattr(settings, field.name)
        path = f"{where}.{field.name}".lstrip(".")
        value = _converted(native(given), types_of.get(field.name, Any), path)
        if value is not given:
            object.__setattr__(settings, field.name, value)


def native(value: Any) -> Any:
    """Return a value with numbers and arrays of NumPy as Python's numbers and lists, and paths as texts, at any depth.

    It is the value itself where there is nothing to replace: what several readings share, such as a draft's list of
    problems, stays shared.

    >>> native({"lr": 0.1, "laps": range(2), "path": Path("a")})
    {'lr': 0.1, 'laps': (0, 1), 'path': 'a'}
    >>> problems = ["no class"]
    >>> native(problems) is problems
    True
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, range):
        return tuple(value)
    if type(value) in (list, tuple):
        made = [*map(native, value)]
        return value if all(map(operator.is_, made, value)) else type(value)(made)
    if type(value) is dict:
        inner = {key: native(each) for key, each in value.items()}
        return value if all(map(operator.is_, inner.values(), value.values())) else inner
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # NumPy's numbers, arrays and tensors
        return value.tolist()
    if isinstance(value, numbers.Integral) and not isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, int | float) else value


def recorded(value: Any, path: str) -> Any:
    """Return a setting that is passed on to the user's code, as an experiment file has it, with lists for tuples.

    Raises:
        SettingError: a file cannot have it.

    >>> recorded((64, 32), "model.settings.hidden")
    [64, 32]
    """
    value = native(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: recorded(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [recorded(inner, path) for inner in value]
    if not isinstance(value, str | int | float):
        allowed = "a number, a text, true or false, or a list of these, which a run can record"
        raise SettingError(f"{path} = {shown(value)}: must be {allowed}.")
    check_values(value, path)
    return value


def below(folder: Path, value: Any) -> Any:
    """Return settings, or a value in them, with relative paths as paths in a folder."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        paths = {entry.name: below(folder, getattr(value, entry.name)) for entry in dataclasses.fields(value)}
        return dataclasses.replace(value, **paths)
    if isinstance(value, tuple):
        return tuple(below(folder, entry) for entry in value)
    return folder / value if isinstance(value, Path) else value


def check_values(value: Any, path: str, depth: int = 0) -> None:
    """Refuse values, at any depth, that no setting accepts.

    Raises:
        SettingError: a date or time, a whole number of more than 64 bits, a text with a NUL, or too deep a nesting.
    """
    if depth > DEEPEST:
        raise SettingError(f"{path}: lists or tables nested too deeply: at most {DEEPEST} levels.")
    if isinstance(value, dict):
        for key, inner in value.items():
            check_values(inner, f"{path}.{key}".lstrip("."), depth + 1)
    elif isinstance(value, list):
        for inner in value:
            check_values(inner, path, depth + 1)
    elif isinstance(value, datetime.date | datetime.time):
        raise SettingError(
            f"{path} = {value}: no setting is a date or time. If it is a name, put it in quotes.", key="date-as-value"
        )
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise SettingError(f"{path} = {shown(value)}: must be a whole number within ±{LARGEST}.")
    elif isinstance(value, str) and "\0" in value:
        raise SettingError(f"{path} = {shown(value)}: must be a text without NUL characters.", key="nul-character")


def narrow(value: T, path: str) -> T:
    """Return a value unchanged; raise SettingError for a finite number that 32 bits cannot hold."""
    if isinstance(value, (int, float)) and WIDEST < abs(value) < math.inf:
        raise SettingError(f"{path} = {shown(value)}: must be a number within ±{WIDEST:g}.")
    return value


def parsed(kind: type[T], data: bytes | str, place: str, noun: str, advice: str) -> T:
    """Return a JSON record as its dataclass; unknown fields are ignored.

    Raises:
        SettingError: not JSON, a missing field, or a value of another type or out of range.
    """
    import pydantic

    try:
        return typing.cast(T, _adapter(typing.cast(Hashable, kind)).validate_json(data, strict=True))
    except SettingError as error:  # from the checks of the dataclass
        raise SettingError(f"{place}: not {noun} ({error}). {advice}", key="damaged-model") from error
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        got = shown(first["input"])
        wrong = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if first["type"] == "missing":
            wrong = f"{where} is missing"
        elif where:
            wrong = f"{where} = {got}: {wrong}"
        raise SettingError(f"{place}: not {noun} ({wrong}). {advice}", key="damaged-model") from error


@lru_cache(maxsize=256)  # cached, because parts of plans are checked at every visit
def hints(kind: Hashable) -> dict[str, Any]:
    """Return the type hints of a class; empty if they contain names that only a type checker resolves."""
    try:
        return typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
    except NameError:
        return {}


@lru_cache(maxsize=256)  # cached, because each takes milliseconds
def _adapter(kind: Hashable) -> pydantic.TypeAdapter[Any]:
    import pydantic

    return pydantic.TypeAdapter(typing.cast(Any, kind))


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types that a type hint allows, with the values in place of ``Literal``.

    >>> alternatives(float | typing.Literal["auto"] | None)
    (<class 'float'>, 'auto', <class 'NoneType'>)
    """
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(inner for part in typing.get_args(hint) for inner in alternatives(part))
    return (hint,)


def fits(value: object, part: Any) -> bool:
    """Return whether a scalar has a type or equals a value; whole numbers count as floats, booleans do not.

    >>> fits(1, float), fits(True, float), fits("auto", "auto"), fits(None, types.NoneType)
    (True, False, True, True)
    """
    if not isinstance(part, type):
        return type(value) is type(part) and value == part
    if part in (int, float):
        return isinstance(value, (int, part)) and not isinstance(value, bool)
    return isinstance(value, (str, Path)) if part is Path else isinstance(value, part)


def wanted(hint: Any) -> str:
    """Return a description of the values that a type hint allows; empty for a type that only its class can resolve.

    >>> wanted(float | None), wanted(typing.Literal["a", "b"]), wanted(int | tuple[int, ...])
    ('a number', "'a' or 'b'", 'a whole number or a list')
    """
    words: list[str] = []
    parts = [part for part in alternatives(hint) if part is not types.NoneType]
    values = [repr(part) if isinstance(part, str) else shown(part) for part in parts if isinstance(part, _SCALARS)]
    for part in parts:
        origin = typing.get_origin(part) or part
        if isinstance(part, _SCALARS):
            words.append(" or ".join(filter(None, (", ".join(values[:-1]), values[-1]))))
        elif origin in WORDS:
            words.append(WORDS[origin])
        elif dataclasses.is_dataclass(origin):
            words.append("a table")
        else:
            return ""
    return " or ".join(dict.fromkeys(words))


def _built(kind: type[Any], table: Any, path: str) -> Any:
    """Return ``kind(**table)`` with checked and converted values."""
    if not isinstance(table, Mapping):
        raise SettingError(f"{path} = {shown(table)}: must be a table.{_example(path, [kind], table)}")
    known = {field.name: field for field in dataclasses.fields(kind)}
    types_of = hints(typing.cast(Hashable, kind))
    values = {}
    for key, value in table.items():
        if key not in known:
            own = " A method's own settings belong in [methods.NAME]." if path == "method" else ""
            raise SettingError(f"{f'[{path}] ' if path else ''}{unknown('key', key, known)}{own}", key="unknown-key")
        values[key] = _converted(value, types_of.get(key, Any), f"{path}.{key}".lstrip("."))
    for name, field in known.items():
        if name not in values and _is_required(field):
            raise SettingError(f"{path}.{name}".lstrip(".") + " is missing: it has no default.", key="missing-setting")
    try:
        return kind(**values)
    except TypeError as error:  # a user's class, whose types are unknown here
        raise SettingError(f"[{path or 'experiment'}] {shown(table)}: {error}.") from error


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


Origins = Mapping[Any, tuple[Any, ...]]  # generic type → its arguments


@lru_cache(maxsize=1024)  # cached, because every setting of an experiment is checked several times
def _allowed(hint: Hashable, _order: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[type[Any], ...], Origins]:
    """Return the types that a hint allows, the dataclasses among them, and the arguments of generic ones.

    ``_order``: the hint's arguments, which tell apart unions that are equal but for their order.
    """
    parts = alternatives(hint)
    choices = tuple(part for part in parts if dataclasses.is_dataclass(part) and isinstance(part, type))
    return parts, choices, {typing.get_origin(part): typing.get_args(part) for part in parts}


def _converted(value: Any, hint: Any, path: str, *, listed: bool = False) -> Any:
    """Return a value converted to a type hint; ``listed`` means an item of the list at ``path``."""
    if type(value) is hint:
        return narrow(value, path)
    parts, choices, of_origin = _allowed(hint, getattr(hint, "__args__", ()))
    if choices and isinstance(value, choices):  # given from Python, and checked by itself
        return value
    if isinstance(value, Mapping):
        if choices:
            return _built(_chosen(choices, value, path), value, path)
        if items := of_origin.get(Mapping) or of_origin.get(dict):
            return {key: _converted(inner, items[1], f"{path}.{key}") for key, inner in value.items()}
    elif isinstance(value, list | tuple):
        if items := of_origin.get(tuple):
            each = items[:1] * len(value) if items[-1] is Ellipsis else items
            if len(each) != len(value):
                raise SettingError(f"{path} = {shown(value)}: must be a list of {len(each)}.")
            return tuple(_converted(inner, item, path, listed=True) for inner, item in zip(value, each, strict=True))
    elif part := next((part for part in parts if part in SIMPLE and fits(value, part)), None):
        return part(narrow(value, path)) if part in (float, Path) else value
    elif any(isinstance(part, _SCALARS) and fits(value, part) for part in parts):
        return value
    words = wanted(hint)
    if not words:
        return value
    example = _example(path, choices, value) if choices else ""
    if words == TEXT and type(value) in (int, float) and not listed:
        typed = f'{path}="{value}"'
        example = f" Such as {typed.replace('=', ' = ')}; in a shell, --set '{typed}'."
    raise SettingError(f"{path} = {shown(value)}: must be {words}.{example}")


def _by_kind(choices: Sequence[type[Any]]) -> dict[str, type[Any]]:
    """Return dataclasses by their ``kind``; none whose table is for several kinds, such as [engine]."""
    tags = [typing.get_args(hints(typing.cast(Hashable, choice)).get("kind")) for choice in choices]
    return {str(tag[0]): choice for tag, choice in zip(tags, choices, strict=True) if len(tag) == 1}


def _chosen(choices: Sequence[type[Any]], value: Mapping[str, Any], path: str) -> type[Any]:
    """Return the dataclass selected by the ``kind`` of a table."""
    kinds = _by_kind(choices)
    if not kinds:
        return choices[0]
    if len(kinds) > 1 and "kind" not in value:
        raise SettingError(f"{path} = {shown(value)}: needs kind = one of {', '.join(sorted(kinds))}.")
    kind = value.get("kind", next(iter(kinds)))
    if not isinstance(kind, str):
        raise SettingError(f"{path}.kind = {shown(kind)}: must be one of {', '.join(sorted(kinds))}, in quotes.")
    if kind not in kinds:
        raise unknown(f"{path}.kind", kind, kinds)
    return kinds[kind]


def _example(path: str, choices: Sequence[type[Any]], got: object) -> str:
    """Return an example of a table for one of these dataclasses."""
    tags = _by_kind(choices)
    chosen = tags.get(str(got)) or next(iter(tags.values()), choices[0])
    names = [field.name for field in dataclasses.fields(chosen)]
    needed = [field.name for field in dataclasses.fields(chosen) if _is_required(field)]
    keys = [f'kind = "{next(name for name, choice in tags.items() if choice is chosen)}"'] if tags else []
    usual = next((name for name in ("name", "profile") if name in names), names[0])
    value = json.dumps(got, ensure_ascii=False) if isinstance(got, str) != bool(needed) and not tags else "…"
    keys += [f"{name} = {value}" for name in needed or ([] if tags else [usual])]
    return f" Such as {path} = {{ {', '.join(keys)} }}."


def plain(value: Any) -> Any:
    """Return dataclasses and mappings as dictionaries of TOML values, without None."""
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items() if v is not None}
    return value
