"""Frozen dataclasses as small TOML files, both ways, with errors that name the file and the key."""

from __future__ import annotations

import tomllib
import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import tomlkit

from fedfloor.errors import SettingError, nearest, quoted

T = TypeVar("T")


def read(kind: type[T], path: Path | str) -> T:
    """Read a file of settings.

    Args:
        kind: one of :class:`DeviceSettings`, :class:`EdgeSettings`, :class:`CloudSettings`.
        path: the file.

    Raises:
        SettingError: no such file, no TOML, or something in it that cannot be; names the file and the key.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError as error:
        why = error.strerror or error
        raise SettingError(f"{path}: {why}. fedfloor provision PARK.toml writes such files.") from error
    try:
        body = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path}: {error}{quoted(text, error)}") from error
    made: T = _made(kind, body, str(path), path.parent)
    return made


def to_toml(settings: object) -> str:
    """Return settings as the text of a file that :func:`read` reads; what is not set is left out.

    >>> from fedfloor.deploy.settings import Address
    >>> print(to_toml(Address("127.0.0.1", 1883)), end="")
    host = "127.0.0.1"
    port = 1883
    """
    return tomlkit.dumps(_told(settings))


def _told(value: Any) -> Any:
    if is_dataclass(value):
        rows = {
            one.name: _told(getattr(value, one.name))
            for one in fields(value)
            if getattr(value, one.name) != one.default
        }
        return dict(sorted(rows.items(), key=lambda row: isinstance(row[1], (dict, list))))  # tables stand last
    if isinstance(value, tuple):
        return [_told(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _made(kind: type[Any], body: object, where: str, folder: Path) -> Any:
    if not isinstance(body, dict):
        raise SettingError(f"{where} = {body!r}: must be a table.")
    known: dict[str, Field[Any]] = {one.name: one for one in fields(kind)}
    for name in body:
        if name not in known:
            raise SettingError(f"{where}: unknown key '{name}'.{nearest(name, known)} Known: {', '.join(known)}.")
    lacking = [n for n, one in known.items() if n not in body and one.default is MISSING]
    if lacking:
        raise SettingError(f"{where}: '{lacking[0]}' is missing. Needed: {', '.join(lacking)}.")
    hints = typing.get_type_hints(kind)
    given = {name: _value(hints[name], value, f"{where}: {name}", folder) for name, value in body.items()}
    try:
        return kind(**given)
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from None


def _value(hint: Any, value: object, where: str, folder: Path) -> Any:
    if isinstance(hint, types.UnionType):
        (hint,) = (one for one in typing.get_args(hint) if one is not types.NoneType)
    if is_dataclass(hint):
        return _made(typing.cast("type[Any]", hint), value, where, folder)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise SettingError(f"{where} = {value!r}: must be a list.")
        kind = typing.get_args(hint)[0]
        return tuple(_value(kind, one, f"{where}[{i}]", folder) for i, one in enumerate(value))
    if hint is Path and isinstance(value, str):
        return folder / value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or isinstance(value, bool):
        words = {str: "text", int: "a whole number", float: "a number", Path: "a path, as text"}
        raise SettingError(f"{where} = {value!r}: must be {words[hint]}.")
    return value
