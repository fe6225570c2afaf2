"""The check of what public functions are called with, by their annotations: :func:`admitted`."""

from __future__ import annotations

import inspect
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fedfloor.base.checking import native
from fedfloor.base.errors import SettingError, shown

NAMES: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "a text", bool: "True or False", Path: "a path",
    Mapping: "a dictionary", Callable: "a function",
}  # fmt: skip


def admitted(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """Return the arguments of a call, with numbers of NumPy as Python's.

    ``Annotated[KIND, "words"]`` names what is allowed in an error. Arguments without a type that can be checked, and
    those that a ``**settings`` collects, are passed on.

    Raises:
        SettingError: an argument of a wrong type; its key is the argument's name.
        TypeError: an unknown argument, or a missing one.

    >>> def train(rounds: int, name: str | None = None): ...
    >>> admitted(train, (3,), {}).arguments
    {'rounds': 3}
    >>> admitted(train, ("3",), {})
    Traceback (most recent call last):
    fedfloor.base.errors.SettingError: rounds = '3': must be a whole number.
    """
    signature, hints = _declared(function)
    bound = signature.bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        hint = hints.get(name, Any)
        if hint is Any or signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            continue
        given = native(value)
        if not _is(given, hint):
            raise SettingError(f"{name} = {shown(value)}: must be {_words(hint)}.", key=name)
        bound.arguments[name] = given if _is_plain(given) else value
    return bound


@lru_cache(maxsize=64)
def _declared(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    return inspect.signature(function), typing.get_type_hints(function, include_extras=True)


def _is_plain(value: object) -> bool:
    """Return whether a value is a number or a list of NumPy, which Python's replaces."""
    return isinstance(value, bool | int | float | list)


def _is(value: Any, hint: Any) -> bool:
    """Return whether a value has a type; True for a type that cannot be checked."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _is(value, inner[0])
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, part) for part in inner)
    if hint in (None, types.NoneType):
        return value is None
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, os.PathLike | str)
    kind = origin or hint
    if not isinstance(kind, type):
        return True
    if issubclass(kind, Iterable) and kind is not str and isinstance(value, str):
        return False
    if not isinstance(value, kind):
        return False
    entries: list[Any] = list(value) if inner and isinstance(value, list | tuple | range) else []
    return all(inner[0] is Any or _is(entry, inner[0]) for entry in entries)


def _words(hint: Any) -> str:
    """Return what a hint allows, in words."""
    if typing.get_origin(hint) is Annotated:
        return str(typing.get_args(hint)[1])
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    parts = tuple(part for part in parts if part not in (None, types.NoneType) and not (part is str and Path in parts))
    words = [_word(part) for part in parts]
    return " or ".join(dict.fromkeys(words))


def _word(part: Any) -> str:
    kind = typing.get_origin(part) or part
    if kind is Annotated:
        return _words(part)
    if kind in NAMES:
        return NAMES[kind]
    if isinstance(kind, type) and issubclass(kind, Iterable):
        return f"a list of {_words(typing.get_args(part)[0]).removeprefix('a ')}s"
    name = getattr(kind, "__name__", str(kind))
    return f"a fedfloor.{name}"
