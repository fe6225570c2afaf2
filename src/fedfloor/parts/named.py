"""Parts by name: a built-in part, or the user's ``module:Name``, with checked settings; and names of parts."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import NoneType
from typing import Any

from fedfloor.base.checking import alternatives, fits, hints, narrow, wanted
from fedfloor.base.errors import SettingError, shown, unknown
from fedfloor.base.outside import loaded, name_of
from fedfloor.base.public import MODULE_OF
from fedfloor.plan.nodes import Scalar

Makers = Mapping[str, Callable[..., Any]]


def maker(noun: str, name: str, known: Makers, base: type[Any]) -> Callable[..., Any]:
    """Return the class of a part by name; a user's class is checked before it is ever called.

    ``noun``: such as ``objective``, for error messages. ``name``: one of ``known``, or ``module:Name``.
    """
    if ":" in name:
        made = loaded(name, noun)
        if not isinstance(made, type):  # a function would run with the settings of a file
            raise SettingError(f"{noun} '{name}' is {made!r:.40}: must be the name of a dataclass.", key="own-part")
        if base not in made.__mro__:  # a protocol, which issubclass refuses
            raise SettingError(f"{noun} '{name}' is not a subclass of {_path(base)}.", key="own-part")
        if "__dataclass_fields__" not in vars(made):  # otherwise a plan could not contain its settings
            raise SettingError(f"{noun} '{name}' is not a dataclass: put @dataclass(frozen=True) before its class.")
        if lacking := sorted(getattr(made, "__abstractmethods__", ())):
            raise _lacks(noun, name, lacking[0], base)
        return made
    if name not in known:
        raise unknown(noun, name, known)
    return known[name]


def make(
    noun: str, name: str, settings: Mapping[str, Scalar], known: Makers, base: type[Any], writes: Sequence[str] = ()
) -> Any:
    """Return a part, an instance of the named class with the given settings; arguments as of :func:`complete`."""
    made = maker(noun, name, known, base)
    check(noun, name, made, settings)
    part = made(**settings)
    complete(noun, name, part, base, writes)
    return part


def complete(noun: str, name: str, part: object, base: type[Any], writes: Sequence[str]) -> None:
    """Check the methods of a user's part; built-in parts need no check.

    ``noun``: such as ``objective``, for error messages. ``name``: ``module:Name``. ``writes``: the abstract methods
    of ``base``.
    """
    if ":" not in name:
        return
    for hook, given in inspect.getmembers(base, inspect.isfunction):
        if hook.startswith("_"):
            continue
        if hook in writes and getattr(type(part), hook, None) is given:
            raise _lacks(noun, name, hook, base)
        words = list(inspect.signature(given).parameters)
        try:
            inspect.signature(getattr(part, hook)).bind(*words[1:])
        except TypeError as error:
            raise SettingError(
                f"{noun} '{name}': {hook} must take ({', '.join(words)}): {error}.", key="own-part"
            ) from error


def _lacks(noun: str, name: str, hook: str, base: type[Any]) -> SettingError:
    return SettingError(
        f"{noun} '{name}' has no '{hook}': a class derived from {_path(base)} must define it.", key="own-part"
    )


def _path(kind: type[Any]) -> str:
    return f"fedfloor.{kind.__name__}" if kind.__name__ in MODULE_OF else f"{kind.__module__}.{kind.__qualname__}"


@lru_cache(maxsize=256)  # a part is made for every visit
def _settings_of(made: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters that are settings; None if any are allowed, or the callable has no signature."""
    try:
        known = {key: parameter for key, parameter in inspect.signature(made).parameters.items() if key != "kind"}
    except (TypeError, ValueError):
        return None
    return None if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()) else known


def check(noun: str, name: str, made: Callable[..., Any], settings: Mapping[str, object]) -> None:
    """Check that a part has the given settings, with values of their types."""
    known = _settings_of(made)
    if known is None:
        return
    for key in settings:
        if not known:
            raise SettingError(f"{noun} '{name}' has no settings, but got '{key}': leave it out.", key="part-settings")
        if key not in known:
            raise unknown(f"setting of {noun} '{name}'", key, known)
    types = hints(made)
    for key, value in settings.items():
        if not isinstance(value, (str, int, float, NoneType)):  # plans, which are JSON, contain them
            raise SettingError(f"{noun} '{name}': {key} = {shown(value)}: must be a number, a text, true or false.")
        hint = types.get(key, Any)
        words = wanted(hint)
        if words and not any(fits(value, part) for part in alternatives(hint)):
            raise SettingError(f"{noun} '{name}': {key} = {shown(value)}: must be {words}.", key="part-settings")
        narrow(value, f"{noun} '{name}': {key}")
    for key, parameter in known.items():
        if (
            key not in settings
            and parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_POSITIONAL
        ):
            raise SettingError(f"{noun} '{name}' needs the setting '{key}': it has no default.", key="part-settings")


def literals(made: Callable[..., Any]) -> set[str]:
    """Return all texts that a part's settings list as their values.

    >>> from fedfloor.parts.objectives.layers import Fusion
    >>> sorted(literals(Fusion))
    ['conv', 'multi', 'single']
    """
    return {part for hint in hints(made).values() for part in alternatives(hint) if isinstance(part, str)}


def to_spec(part: object, known: Makers) -> tuple[str, dict[str, Scalar]]:
    """Return a part's name and settings in the form of a plan: the inverse of :func:`make`."""
    names = {made: name for name, made in known.items()}
    kind = type(part)
    name = names.get(kind) or name_of(kind)
    shown = fields(part) if is_dataclass(part) else ()
    settings = {f.name: getattr(part, f.name) for f in shown if f.name != "kind"}
    return name, {key: value for key, value in settings.items() if value is not None}


def rows(known: Makers) -> list[dict[str, str]]:
    """Return a row per part: its name, its summary, and its settings with their defaults.

    >>> from fedfloor.parts.attacks import SignFlip
    >>> rows({"sign-flip": SignFlip})[0]["what"]
    'The reversed update: −s·Δ with the strength s'
    """
    rows = []
    for name, made in known.items():
        shown = fields(made) if is_dataclass(made) else ()
        settings = [f.name + _usual(f.default) for f in shown if f.name != "kind"]
        summary = (inspect.getdoc(made) or "").partition("; see")[0].partition(".\n")[0].split("\n\n")[0]
        what = " ".join(summary.replace("``", "").split()).rstrip(".")
        rows.append({"name": name, "settings": ", ".join(settings), "what": what})
    return rows


def written(value: object) -> str:
    """Return a setting's value in the notation of an experiment file.

    >>> written(True), written({"kind": "cosine", "start": 0.1}), written([1, True])
    ('true', '{ kind = "cosine", start = 0.1 }', '[1, true]')
    """
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {written(item)}' for key, item in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else str(value)


def _usual(default: object) -> str:
    if default is MISSING:
        return ""
    return " (may be left out)" if default is None else f" = {written(default)}"
