"""Methods, parts and networks given from Python as objects, as the names and tables of experiment files."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any

from fedfloor.base.checking import native
from fedfloor.base.errors import SettingError, shown
from fedfloor.base.names import SPEC
from fedfloor.base.outside import name_of
from fedfloor.parts.attacks import ATTACKS
from fedfloor.parts.mixing.registry import MIXES
from fedfloor.parts.objectives.registry import OBJECTIVES
from fedfloor.parts.selection.selection import SELECTIONS
from fedfloor.parts.server import SERVERS
from fedfloor.parts.travel.codecs import CODECS
from fedfloor.parts.travel.limits import LIMITS
from fedfloor.parts.work import WorkSettings

OURS = "fedfloor.methods."
Table = dict[str, Any]
PARTS = (OBJECTIVES, MIXES, SERVERS, SELECTIONS, CODECS, LIMITS, ATTACKS)


def code(value: Any, key: str) -> str:
    """Return ``module:name`` of a class or function; texts are unchanged.

    Raises:
        SettingError: an object of another kind, or a function without a name.

    >>> code("lenet", "model.name"), code(inspect.getdoc, "model.name")
    ('lenet', 'inspect:getdoc')
    """
    if isinstance(value, str):
        return value
    if not (isinstance(value, type) or inspect.isfunction(value)):
        raise SettingError(
            f"{key} = {shown(value)}: must be a name, or a class or function, which makes a new network for each seed; "
            "with settings, functools.partial(Net, hidden=64)."
        )
    spec = name_of(value)
    if not SPEC.fullmatch(spec):
        raise SettingError(f"{key} = {shown(value)}: has no name that a run can record. Define it with def or class.")
    return spec


def network(value: Any, key: str) -> tuple[str, Table]:
    """Return ``module:name`` of a class or function, and its settings, those of a ``functools.partial``.

    Raises:
        SettingError: as of :func:`code`, or settings without their names.

    >>> network(functools.partial(inspect.getdoc, hidden=64), "model.name"), network("lenet", "model.name")
    (('inspect:getdoc', {'hidden': 64}), ('lenet', {}))
    """
    if not isinstance(value, functools.partial):
        return code(value, key), {}
    if value.args:
        raise SettingError(
            f"{key} = {shown(value)}: give settings of a network by their names, such as functools.partial(Net, "
            "hidden=64); the samples' shape and the number of classes come before them."
        )
    return code(value.func, key), dict(value.keywords)


def part(value: Any, key: str) -> Any:
    """Return a part as the table of its kind and settings; names, numbers and tables are unchanged.

    A list holds the codecs of a chain.

    Raises:
        SettingError: the object is not a dataclass, whose fields are its settings.
    """
    value = native(value)
    if value is None or isinstance(value, str | float | int | Mapping):
        return value
    if isinstance(value, list | tuple):
        return tuple(part(one, key) for one in value)
    kind = value if isinstance(value, type) else type(value)
    if "__dataclass_fields__" not in vars(kind):
        raise SettingError(
            f"{key} = {shown(value)}: must be a name, a table, or an object of a dataclass, whose fields are its "
            "settings."
        )
    built_in = next((name for known in PARTS for name, made in known.items() if made is kind), None)
    return {"kind": built_in or name_of(kind)} | ({} if kind is value else changed(value))


def method(value: Any) -> tuple[str, Table]:
    """Return a method's name, and the table of the settings that differ from their defaults.

    Raises:
        SettingError: the object is not a method.

    >>> from fedfloor.methods.fedavg import FedAvg
    >>> method(FedAvg(fraction=0.1, work=WorkSettings(epochs=2))), method(FedAvg), method("fedsr")
    (('fedavg', {'fraction': 0.1, 'work': {'epochs': 2}}), ('fedavg', {}), ('fedsr', {}))
    """
    if isinstance(value, str):
        return value, {}
    kind = value if isinstance(value, type) else type(value)
    if not (hasattr(kind, "plan") and dataclasses.is_dataclass(kind)):
        raise SettingError(
            f"method = {shown(value)}: must be a name, MethodSettings, or an object of a class derived from "
            "fedfloor.Method."
        )
    name = kind.__name__.lower() if kind.__module__.startswith(OURS) else name_of(kind)
    return name, {} if kind is value else changed(value)


def changed(value: Any) -> Table:
    """Return the fields of a dataclass that differ from their defaults; ``work`` as a table."""
    table = {}
    for field in dataclasses.fields(value):
        given = native(getattr(value, field.name))
        usual = field.default
        if field.default_factory is not dataclasses.MISSING:
            usual = field.default_factory()
        if given is None or given == usual:
            continue
        if isinstance(given, WorkSettings):
            given = {key: setting for key, setting in vars(given).items() if setting is not None}
        table[field.name] = given
    return table


def brief(settings: Any) -> str:
    """Return a dataclass as its constructor's call with the settings that differ from their defaults.

    >>> brief(WorkSettings(lr=0.1)), brief(5)
    ('WorkSettings(lr=0.1)', '5')
    """
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        return repr(settings)
    shown = ", ".join(f"{name}={brief(getattr(settings, name))}" for name in changed(settings))
    return f"{type(settings).__name__}({shown})"
