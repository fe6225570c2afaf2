"""Experiment files: TOML in, a checked :class:`~fedfloor.experiment.Experiment` out, and back."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedfloor.errors import SettingError, nearest, quoted, unknown
from fedfloor.experiment import Experiment
from fedfloor.methods.catalog import find
from fedfloor.methods.contract import Method
from fedfloor.parts.work import DEFAULTS, WorkSettings
from fedfloor.places import looked_for, with_paths

T = TypeVar("T")
OWN = " A method's own settings stand in [methods.NAME]."
Table = dict[str, Any]


def read(path: Path, changes: Iterable[str] = ()) -> Experiment:
    """Read an experiment file and change single keys. Paths to data are looked for beside the file first.

    Args:
        path: a TOML file.
        changes: ``a.b=value`` texts; the value is TOML, or else taken as text.

    Raises:
        SettingError: the file is not there or not TOML; a key, type or value is wrong.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text)
    except OSError as error:
        beside = [one.name for one in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        near = "" if path.exists() else nearest(path.name, beside)
        raise SettingError(f"experiment file {path}: {error.strerror or error}.{near}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"experiment file {path} is not valid TOML: {error}{quoted(text, error)}") from error
    document.setdefault("name", path.stem)
    for change in changes:
        apply(document, change)
    return with_paths(from_table(document), lambda given: looked_for(given, path.parent))


def apply(document: Table, change: str) -> None:
    """Change one key of a document in place.

    >>> table = {"work": {"lr": 0.1}}
    >>> apply(table, "work.lr=0.01"); apply(table, "model.name=lenet"); table
    {'work': {'lr': 0.01}, 'model': {'name': 'lenet'}}
    """
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise SettingError(f"--set {change!r}: write it as key=value, such as work.lr=0.05.")
    put(document, keys(key.strip()), value(text), f"--set {change!r}")


def value(text: str) -> Any:
    """Read what was typed as a TOML value, or else as the text it is.

    >>> value("0.1"), value("[1, 2]"), value("lenet")
    (0.1, [1, 2], 'lenet')
    """
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def put(document: Table, path: Sequence[str], new: Any, said: str) -> None:
    """Put a value into a document, in place.

    Args:
        document: changed.
        path: the names of the tables that lead there, and of the key.
        new: the value.
        said: what the user typed, for error messages.

    Raises:
        SettingError: one of these tables is a value.
    """
    table = document
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise SettingError(f"{said}: '{name}' is a value, not a table.")
    table[path[-1]] = new


def keys(dotted: str) -> list[str]:
    """Split a dotted key; a part in quotes may hold dots, as in TOML."""
    try:
        table = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return dotted.split(".")
    names = []
    while isinstance(table, dict):
        ((name, table),) = table.items()
        names.append(name)
    return names


def from_table(document: Table) -> Experiment:
    """Check a parsed document and return its experiment, with every method table in it checked too."""
    experiment = checked(Experiment, document, "")
    check_methods(experiment)
    return experiment


def check_methods(experiment: Experiment) -> None:
    """Check the settings of every method an experiment speaks of.

    Raises:
        SettingError: an unknown method or setting.
    """
    for name in {*experiment.methods, experiment.method.name}:
        method_of(experiment, name)


def method_of(experiment: Experiment, name: str | None = None) -> Method:
    """Return the experiment's method with its settings: published defaults, [work], its own table, in this order.

    Raises:
        SettingError: unknown method or setting.
    """
    name = name or experiment.method.name
    kind = find(name)
    table = dict(experiment.methods.get(name, {}))
    where = f"methods.{name}"
    if "work" not in {f.name for f in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        return checked(kind, table, where)
    own = checked(WorkSettings, table.pop("work", {}), f"{where}.work")
    method = checked(kind, table, where)
    published: WorkSettings = method.work  # type: ignore[attr-defined]
    work = own.over(experiment.work.over(published.over(DEFAULTS)))
    return dataclasses.replace(method, work=work)  # type: ignore[type-var]


def resolved(experiment: Experiment) -> str:
    """Return the experiment as TOML with every default written out; only the chosen method's table is kept."""
    import tomlkit

    body = _plain(experiment)
    name = experiment.method.name
    body["methods"] = {name: _plain(method_of(experiment))}
    order = sorted(body, key=lambda key: isinstance(body[key], dict))
    return tomlkit.dumps({key: body[key] for key in order if body[key] != {}})


def brief(experiment: Experiment) -> str:
    """Return the experiment as TOML without what has its default; :func:`read` makes an equal one of it."""
    import tomlkit

    usual = Experiment()
    body: Table = {"name": experiment.name}
    for field in dataclasses.fields(Experiment):
        mine, other = getattr(experiment, field.name), getattr(usual, field.name)
        if field.name == "provenance" or mine == other:
            continue
        if dataclasses.is_dataclass(mine):
            names = [f.name for f in dataclasses.fields(mine)]
            mine = {name: getattr(mine, name) for name in names if getattr(mine, name) != getattr(other, name)}
        body[field.name] = _inline(_plain(mine))
    return tomlkit.dumps(body)


def _inline(value: Any) -> Any:
    """Tables that say their kind, such as partitions and schedules, on one line."""
    import tomlkit

    if not isinstance(value, Mapping):
        return value
    if "kind" in value:
        table = tomlkit.inline_table()
        table.update(value)
        return table
    inner = {key: _inline(one) for key, one in value.items() if one != {}}
    return dict(sorted(inner.items(), key=lambda item: type(item[1]) is dict))  # what follows a table belongs to it


def _plain(value: Any) -> Any:
    """Dataclasses and mappings as dictionaries of TOML values; None is left out."""
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return value


def checked(kind: type[T], table: Table, where: str) -> T:
    """Return ``kind(**table)`` once every key is known and every value of the right type.

    Args:
        kind: a dataclass.
        table: what was written.
        where: the table's name, for error messages.

    Raises:
        SettingError: an unknown key (the nearest is named), a wrong type, or a value out of range.
    """
    _check_keys(kind, table, where)
    try:
        import pydantic
    except ImportError:  # a bare GPU machine: ranges are still checked, types are not
        try:
            return typing.cast(T, _construct(kind, table))
        except TypeError as wrong:  # a text where a number belongs, or a value that is missing
            raise SettingError(f"[{where or 'experiment'}] {table!r}: {wrong}.") from wrong
    try:
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(table, default=str), strict=True)
    except pydantic.errors.PydanticUserError:  # a method of your own with types that only it knows
        return typing.cast(T, _construct(kind, table))
    except pydantic.ValidationError as error:
        raise SettingError(_explain(error.errors(include_url=False), where)) from error


def _choices(hint: Any) -> list[type[Any]]:
    """The dataclasses a type hint allows."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return [part for part in parts if dataclasses.is_dataclass(part) and isinstance(part, type)]


def _check_keys(kind: type[Any], table: Any, where: str) -> None:
    if not isinstance(table, dict):
        raise SettingError(f"{where} = {table!r}: must be a table.")
    names = [f.name for f in dataclasses.fields(kind)]
    hints = typing.get_type_hints(kind)
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
    if not hasattr(choices[0], "kind"):
        return choices[0]
    kinds: dict[str, type[Any]] = {c.kind: c for c in choices}
    if len(kinds) > 1 and "kind" not in value:
        raise SettingError(f"{path} = {value!r}: needs kind = one of {', '.join(sorted(kinds))}.")
    kind = value.get("kind", next(iter(kinds)))
    if kind not in kinds:
        raise unknown(f"{path}.kind", str(kind), kinds)
    return kinds[kind]


def _construct(kind: type[Any], table: Table) -> Any:
    hints = typing.get_type_hints(kind)
    values = dict(table)
    for key, value in table.items():
        choices = _choices(hints[key])
        if choices and isinstance(value, dict):
            values[key] = _construct(_chosen(choices, value, key), value)
    return kind(**values)


WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "dict_type": "a table",
    "dataclass_type": "a table",
}


def _explain(errors: list[Any], where: str) -> str:
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
    return f"{path} = {deepest['input']!r}: must be {' or '.join(dict.fromkeys(wanted))}."
