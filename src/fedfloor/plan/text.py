"""Plans to JSON and from JSON, and their hash."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from fedfloor.base.errors import SettingError, shown
from fedfloor.plan.nodes import MODEL, TRAVEL, Node, Radio, Site, Work

KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Node)}
NAMES = {kind: name for name, kind in KINDS.items()}
_NAMES = {kind: tuple(f.name for f in fields(kind)) for kind in NAMES}
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))  # json.dumps would make an encoder for every word
OMITTED = {"settings": {}, "random": 0, "share": (), "census_free": False, "model": MODEL,
           **dict.fromkeys(TRAVEL, "")}  # fields that are omitted with these values  # fmt: skip


def to_json(node: Node) -> dict[str, Any]:
    """Return a plan as nested dictionaries of JSON scalars.

    >>> from fedfloor.plan.nodes import Train, Work, device
    >>> to_json(Train(device(3), Work(epochs=1)))["site"]
    'device:3'
    """
    if type(node) not in NAMES:
        raise SettingError(f"a plan consists of {', '.join(KINDS)}; got {node!r}.", key="plan")
    body: dict[str, Any] = {"node": NAMES[type(node)]}
    for name in _NAMES[type(node)]:
        value = getattr(node, name)
        if name not in OMITTED or value != OMITTED[name]:
            body[name] = dict(value) if name == "settings" else _value_to_json(value)
    return body


def _value_to_json(value: Any) -> Any:
    if isinstance(value, Site):
        return str(value)
    if type(value) in NAMES:
        return to_json(value)
    if isinstance(value, Work):
        return value.to_spec() | {"settings": dict(value.settings)}
    if isinstance(value, Radio):
        return dict(vars(value))
    if isinstance(value, tuple):
        return [_value_to_json(v) for v in value]
    return value


def from_json(body: dict[str, Any]) -> Node:
    """Return the plan from the result of :func:`to_json`; SettingError: an unknown or missing node, site or field."""
    name = body.get("node") if isinstance(body, dict) else body
    kind = KINDS.get(name) if isinstance(body, dict) and isinstance(name, str) else None
    if kind is None:
        raise SettingError(f"plan: unknown node {shown(name)}. Known: {', '.join(KINDS)}.")
    return kind(**_arguments(kind, {k: v for k, v in body.items() if k != "node"}))  # type: ignore[no-any-return]


def _arguments(kind: type[Any], body: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise SettingError(f"plan: {kind.__name__} is {shown(body)}: it must be an object.")
    known = {f.name for f in fields(kind)}
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    if not set(body) <= known or not needed <= set(body):
        raise SettingError(f"plan: {kind.__name__} has {sorted(body)}; known {sorted(known)}, needed {sorted(needed)}.")
    values = {name: _value_from_json(name, value) for name, value in body.items()}
    checks = _checks(cast(Hashable, kind))
    for name, value in values.items():
        if not checks[name](value):
            wanted = next(f.type for f in fields(kind) if f.name == name)
            raise SettingError(f"plan: {kind.__name__} has {name} = {shown(value, 60)}: must be {wanted}.")
    return values


@cache
def _checks(kind: Hashable) -> dict[str, Callable[[Any], bool]]:
    return {name: _check(hint) for name, hint in get_type_hints(kind).items()}


def _check(hint: Any) -> Callable[[Any], bool]:
    """Return the function that checks a parsed value against a field's type; numbers must be finite and fit 64 bits."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Union, UnionType):
        parts = [_check(part) for part in arguments]
        return lambda value: any(part(value) for part in parts)
    if origin is Literal:
        return lambda value: value in arguments
    if origin is tuple:
        each = _check(arguments[0])
        if arguments[0] is int:  # there may be a million values
            return lambda value: isinstance(value, tuple) and set(map(type, value)) <= {int} and _fits_64(value)
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    if origin is Mapping:
        each = _check(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(each, value.values()))
    if hint is float:
        return lambda value: type(value) in (int, float) and abs(value) <= sys.float_info.max
    if hint is int:
        return lambda value: type(value) is int and _fits_64((value,))
    return lambda value: isinstance(value, hint)


def _fits_64(numbers: tuple[int, ...]) -> bool:
    return not numbers or (min(numbers) >= -(2**63) and max(numbers) < 2**63)


def _value_from_json(name: str, value: Any) -> Any:
    if name in ("site", "at"):
        return site(value)
    if name == "child":
        return from_json(value)
    if name in ("children", "devices", "candidates") and not isinstance(value, list):
        raise SettingError(f"plan: {name} = {shown(value)}: it must be a list.")
    if name == "children":
        return tuple(from_json(v) for v in value)
    if name == "work":
        return Work(**_arguments(Work, Work.fields(value) if isinstance(value, dict) else value))
    if name == "radio":
        return None if value is None else Radio(**_arguments(Radio, value))
    return tuple(value) if isinstance(value, list) else value


def site(text: str) -> Site:
    """Return the site of ``"cloud"``, ``"edge:3"`` or ``"device:17"``.

    >>> site("edge:3")
    Site(kind='edge', index=3)
    """
    kind, colon, index = text.partition(":") if isinstance(text, str) else ("", "", "")
    number = index.isascii() and index.isdigit()
    if kind not in ("cloud", "edge", "device") or (bool(colon) if kind == "cloud" else not number):
        raise SettingError(f"plan: site {shown(text)} must be cloud, edge:M or device:K.")
    return Site(kind, int(index or 0))


def digest(node: Node) -> str:
    """Return the SHA-256 of a plan's canonical JSON, in hexadecimal."""
    return hashlib.sha256(_canonical(node, {}).encode()).hexdigest()


def _canonical(node: Node, known: dict[int, str]) -> str:
    """Return the text of :func:`to_json` with sorted keys and no spaces; repeated nodes are serialised only once."""
    if id(node) not in known:
        body = {"node": _dense(NAMES[type(node)])}
        for name in _NAMES[type(node)]:
            value = getattr(node, name)
            if name == "children":
                body[name] = f"[{','.join(_canonical(child, known) for child in value)}]"
            elif name == "child":
                body[name] = _canonical(value, known)
            elif name not in OMITTED or value != OMITTED[name]:
                body[name] = _dense(dict(value) if name == "settings" else _value_to_json(value))
        known[id(node)] = f"{{{','.join(f'{_dense(name)}:{body[name]}' for name in sorted(body))}}}"
    return known[id(node)]


def _dense(value: Any) -> str:
    return _ENCODER.encode(value)
