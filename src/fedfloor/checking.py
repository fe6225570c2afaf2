"""Tables checked against the dataclasses they describe: unknown keys, wrong types and values out of range are told in
plain words."""

from __future__ import annotations

import dataclasses
import datetime
import json
import tomllib
import types
import typing
from collections.abc import Hashable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedfloor.errors import SettingError, nearest, quoted, shown, unknown

if TYPE_CHECKING:
    import pydantic

T = TypeVar("T")
OWN = " A method's own settings stand in [methods.NAME]."
DEEPEST = 20  # tables and lists in one another
LARGEST = 2**63 - 1  # of whole numbers, as TOML has them and arrays hold them
Table = dict[str, Any]


def toml(path: Path, said: str) -> Table:
    """Return the tables of a TOML file.

    Args:
        path: the file.
        said: what it is, for error messages.

    Raises:
        SettingError: it is not there (the nearest beside it is named), or not TOML (the line is quoted).
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return tomllib.loads(text)
    except OSError as error:
        beside = [one.name for one in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        near = "" if path.exists() else nearest(path.name, beside)
        raise SettingError(f"{said} {path}: {error.strerror or error}.{near}") from error
    except ValueError as error:  # no TOML, no UTF-8, a number of 5,000 digits
        raise SettingError(f"{said} {path} is not valid TOML: {error}{quoted(text, error)}") from error
    except RecursionError as error:
        raise SettingError(f"{said} {path}: lists or tables nested too deeply: at most {DEEPEST} levels.") from error


def checked(kind: type[T], table: Table, where: str) -> T:
    """Return ``kind(**table)`` once every key is known and every value of the right type.

    Args:
        kind: a dataclass.
        table: what was written.
        where: the table's name, for error messages.

    Raises:
        SettingError: an unknown key (the nearest is named), a wrong type, or a value out of range.
    """
    check_values(table, where)
    _check_keys(kind, table, where)
    try:
        import pydantic
    except ImportError:  # a bare GPU machine: ranges are still checked, types are not
        try:
            return typing.cast(T, _construct(kind, table))
        except TypeError as wrong:  # a text where a number belongs, or a value that is missing
            raise SettingError(f"[{where or 'experiment'}] {shown(table)}: {wrong}.") from wrong
    try:
        said = json.dumps(table, default=str)
        return typing.cast(T, _adapter(typing.cast(Hashable, kind)).validate_json(said, strict=True))
    except pydantic.errors.PydanticUserError:  # a method of your own with types that only it knows
        return typing.cast(T, _construct(kind, table))
    except pydantic.ValidationError as error:
        raise SettingError(_explain(error.errors(include_url=False), where, kind)) from error


def check_values(value: Any, path: str, depth: int = 0) -> None:
    """Check values of any key, however deep, for what no setting takes.

    Args:
        value: a table, a list or a scalar.
        path: its key, for error messages.
        depth: tables and lists around it.

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
        raise SettingError(f"{path} = {value}: no setting is a date or time. Put it in quotes if it is a name.")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise SettingError(f"{path} = {shown(value)}: must be a whole number within ±{LARGEST}.")
    elif isinstance(value, str) and "\0" in value:
        raise SettingError(f"{path} = {shown(value)}: must be a text without NUL characters.")


def parsed(kind: type[T], data: bytes | str, place: str, noun: str, advice: str) -> T:
    """Return a JSON record as the dataclass that describes it; fields that it does not have are left out.

    Args:
        kind: the dataclass.
        data: the JSON text.
        place: the file, and the line where it has several records.
        noun: what the record is, for the error.
        advice: what to do about a damaged one.

    Raises:
        SettingError: no JSON, a field that is missing, or a value of another type or out of range.
    """
    import pydantic

    try:
        return typing.cast(T, _adapter(typing.cast(Hashable, kind)).validate_json(data, strict=True))
    except SettingError as error:  # of its own checks
        raise SettingError(f"{place}: not {noun} ({error}). {advice}") from error
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where, got = ".".join(map(str, first["loc"])), shown(first["input"])
        wrong = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if first["type"] == "missing":
            wrong = f"{where} is missing"
        elif where:
            wrong = f"{where} = {got}: {wrong}"
        raise SettingError(f"{place}: not {noun} ({wrong}). {advice}") from error


@lru_cache(maxsize=256)
def _hints(kind: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@lru_cache(maxsize=256)  # making one takes some ms: longer than everything else that is done with a small experiment
def _adapter(kind: Hashable) -> pydantic.TypeAdapter[Any]:
    import pydantic

    return pydantic.TypeAdapter(typing.cast(Any, kind))


def _choices(hint: Any) -> list[type[Any]]:
    """The dataclasses a type hint allows."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return [part for part in parts if dataclasses.is_dataclass(part) and isinstance(part, type)]


def _check_keys(kind: type[Any], table: Any, where: str) -> None:
    if not isinstance(table, dict):
        raise SettingError(f"{where} = {shown(table)}: must be a table.{_example(where, [kind], table)}")
    names = [f.name for f in dataclasses.fields(kind)]
    hints = _hints(typing.cast(Hashable, kind))
    for key, value in table.items():
        path = f"{where}.{key}".lstrip(".")
        if key not in names:
            raise SettingError(
                f"{f'[{where}] ' if where else ''}{unknown('key', key, names)}{OWN if where == 'method' else ''}"
            )
        choices = _choices(hints[key])
        if choices and isinstance(value, dict):
            _check_keys(_chosen(choices, value, path), value, path)


def _chosen(choices: list[type[Any]], value: Table, path: str) -> type[Any]:
    tag = _hints(typing.cast(Hashable, choices[0])).get("kind")
    if len(typing.get_args(tag)) != 1:  # of several kinds in one table, such as [engine], none names a dataclass
        return choices[0]
    kinds: dict[str, type[Any]] = {c.kind: c for c in choices}
    if len(kinds) > 1 and "kind" not in value:
        raise SettingError(f"{path} = {shown(value)}: needs kind = one of {', '.join(sorted(kinds))}.")
    kind = value.get("kind", next(iter(kinds)))
    if not isinstance(kind, str):
        raise SettingError(f"{path}.kind = {shown(kind)}: must be one of {', '.join(sorted(kinds))}, in quotes.")
    if kind not in kinds:
        raise unknown(f"{path}.kind", kind, kinds)
    return kinds[kind]


def _example(path: str, choices: list[type[Any]], got: object) -> str:
    """Return how a table is written that one of these dataclasses describes."""
    tags = {}
    for choice in choices:
        tag = typing.get_args(_hints(typing.cast(Hashable, choice)).get("kind"))
        if len(tag) == 1:
            tags[str(tag[0])] = choice
    chosen = tags.get(str(got)) or next(iter(tags.values()), None) or next(iter(choices), None)
    if chosen is None:
        return ""
    needed = [
        one.name for one in dataclasses.fields(chosen)
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    keys = [f'kind = "{next(name for name, choice in tags.items() if choice is chosen)}"'] if tags else []
    names = [one.name for one in dataclasses.fields(chosen)]
    usual = next((name for name in ("name", "profile") if name in names), names[0])
    value = json.dumps(got, ensure_ascii=False) if isinstance(got, str) != bool(needed) and not tags else "…"
    keys += [f"{name} = {value}" for name in needed or ([] if tags else [usual])]
    return f" Such as {path} = {{ {', '.join(keys)} }}."


def _choices_at(kind: type[Any], path: Sequence[str]) -> list[type[Any]]:
    """Return the dataclasses that a key allows; none where it is below a choice of several."""
    choices = [kind]
    for name in path:
        if len(choices) != 1 or name not in (hints := _hints(typing.cast(Hashable, choices[0]))):
            return []
        choices = _choices(hints[name])
    return choices


def _construct(kind: type[Any], table: Table) -> Any:
    hints = _hints(typing.cast(Hashable, kind))
    values = dict(table)
    for key, value in table.items():
        choices = _choices(hints[key])
        if choices and isinstance(value, dict):
            values[key] = _construct(_chosen(choices, value, key), value)
    return kind(**values)


TEXT = "a text in quotes"
WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": TEXT,
    "bool_type": "true or false",
    "dict_type": "a table",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "a longer list",
    "too_long": "a shorter list",
    "dataclass_type": "a table",
}


def _explain(errors: list[Any], where: str, kind: type[Any]) -> str:
    """Say the first error in our words: what, got, allowed."""
    other = {e["loc"][:-1] for e in errors if e["loc"][-1:] == ("kind",)}  # tables of another kind than was asked for
    errors = [e for e in errors if not any(e["loc"][: len(place)] == place for place in other)] or errors
    deepest = max(errors, key=lambda e: (e["type"] in ("literal_error", "missing"), len(e["loc"])))
    loc = [str(part) for part in deepest["loc"] if str(part).isidentifier() and str(part)[0].islower()]
    loc = [part for part in loc if part not in ("int", "float", "str", "bool")]
    path = ".".join([where, *loc]).strip(".")
    if deepest["type"] == "missing":
        return f"{path} is missing: it has no default."
    same = [e for e in errors if e["loc"][: len(deepest["loc"]) - 1] == deepest["loc"][:-1]]
    wanted = [WANTED.get(e["type"], e["msg"].removeprefix("Input should be ")) for e in same]
    example = _example(path, _choices_at(kind, loc), deepest["input"]) if "a table" in wanted else ""
    if wanted == [TEXT] and type(deepest["input"]) in (int, float) and len(loc) == len(deepest["loc"]):
        typed = f'{path}="{deepest["input"]}"'
        example = f" Such as {typed.replace('=', ' = ')}; in a shell, --set '{typed}'."
    return f"{path} = {shown(deepest['input'])}: must be {' or '.join(dict.fromkeys(wanted))}.{example}"
