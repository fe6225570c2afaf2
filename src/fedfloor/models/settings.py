"""Settings of a network: the arguments of its class or function beside the samples' shape and the number of classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fedfloor.base.errors import SettingError, unknown

BEFORE = 2  # arguments that every network is called with: shape and classes


def with_settings(name: str, make: Callable[..., Any], settings: Mapping[str, Any] | None) -> Callable[..., Any]:
    """Return the function that builds a network, with values for its further arguments.

    A list is given as a tuple to an argument whose default is one.

    Raises:
        SettingError: the network has no such argument, or one without a default lacks a value.

    >>> def net(shape, classes, hidden=(64,), *, dropout): return hidden, dropout
    >>> with_settings("m:net", net, {"hidden": [32, 16], "dropout": 0.5})((4,), 3)
    ((32, 16), 0.5)
    """
    known, free = _arguments(make)
    given = dict(settings or {})
    for key in given:
        if not known and not free:
            raise SettingError(
                f"model '{name}' has no settings, but got '{key}': leave model.settings out.", key="model.settings"
            )
        if key not in known and not free:
            raise SettingError(str(unknown(f"setting of model '{name}'", key, known)), key="model.settings")
    for key, argument in known.items():
        if key not in given and argument.default is argument.empty:
            raise SettingError(
                f"model '{name}' needs the setting '{key}', which has no default. Set model.settings.{key}; in Python, "
                f"give functools.partial({name.rpartition(':')[2]}, {key}=…).",
                key="model.settings",
            )
        if isinstance(argument.default, tuple) and isinstance(given.get(key), list):
            given[key] = tuple(given[key])
    return partial(make, **given) if given else make


def _arguments(make: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the further arguments of a function by name, and whether it takes any others."""
    try:
        every = list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):
        return {}, True
    named = [each for each in every if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    several = any(each.kind is each.VAR_POSITIONAL for each in every)  # which takes shape and classes, if no name does
    free = any(each.kind is each.VAR_KEYWORD for each in every) or (several and len(named) < BEFORE)
    return {each.name: each for each in named[BEFORE:]}, free
