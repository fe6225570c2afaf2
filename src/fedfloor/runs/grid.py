"""Grids of settings: what ``--grid`` means, and the points each method can be tried at."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedfloor import config
from fedfloor.config import EXCHANGED
from fedfloor.errors import SettingError
from fedfloor.methods.contract import Method

PAIRS = {"]": "[", "}": "{"}
EXAMPLE = "write it as KEY=VALUE,VALUE,…, such as work.lr=0.1,0.01"


@dataclass(frozen=True)
class Axis:
    """One ``--grid``: the values of one setting.

    Args:
        key: as it was typed.
        method: the only method it is for; None for every method that has such a setting.
        setting: the way to it inside the method's own table, such as ``("work", "lr")``.
        values: at least one, none twice.
    """

    key: str
    method: str | None
    setting: tuple[str, ...]
    values: tuple[Any, ...]


def axis(typed: str) -> Axis:
    """Read one ``--grid KEY=VALUE,VALUE,…``.

    Raises:
        SettingError: it cannot be read, is no setting of a method, or has a value twice.

    >>> axis("work.lr=0.1,0.01").values, axis("methods.fedsr.laps=1,5").setting
    ((0.1, 0.01), ('laps',))
    """
    key, equals, text = typed.partition("=")
    key = key.strip()
    if not equals or not key:
        raise SettingError(f"--grid {typed!r}: {EXAMPLE}.")
    method, setting = _place(key)
    values = tuple(config.value(one) for one in split(text))
    for i, one in enumerate(values):
        if one == "":
            raise SettingError(f"--grid {typed!r}: a value is missing; {EXAMPLE}.")
        if one in values[:i]:
            raise SettingError(f"--grid {typed!r}: {shown(one)} is there twice. Give each value once.")
    return Axis(key, method, setting, values)


def _place(key: str) -> tuple[str | None, tuple[str, ...]]:
    names = config.keys(key)
    if len(names) >= 2 and names[0] == "work":
        return None, tuple(names)
    if len(names) >= 2 and names[0] == "method":
        return None, tuple(names[1:])
    if len(names) >= 3 and names[0] == "methods":
        return names[1], tuple(names[2:])
    raise SettingError(
        f"--grid {key}: a sweep chooses settings of methods: work.KEY, methods.NAME.KEY, or method.KEY for every "
        "method that has it. Other data, another park, network or number of rounds would be another problem, whose "
        "accuracies cannot be compared with these: change them with --set, and sweep each by itself."
    )


def split(text: str) -> list[str]:
    """Split at the commas that are not inside brackets, braces or quotes.

    Raises:
        SettingError: a bracket, brace or quote is not closed.

    >>> split('{ kind = "cosine", start = 0.1 },0.01')
    ['{ kind = "cosine", start = 0.1 }', '0.01']
    """
    pieces, inside, quote, escaped = [""], [], "", False
    for sign in text:
        if quote:
            closes = sign == quote and not escaped
            escaped = sign == "\\" and quote == '"' and not escaped
            quote = "" if closes else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[{":
            inside.append(sign)
        elif sign in PAIRS:
            if not inside or inside.pop() != PAIRS[sign]:
                raise SettingError(f"--grid values {text}: '{sign}' closes what was not opened.")
        elif sign == "," and not inside:
            pieces.append("")
            continue
        pieces[-1] += sign
    if quote or inside:
        raise SettingError(f"--grid values {text}: '{quote or inside[-1]}' is not closed.")
    return [piece.strip() for piece in pieces]


@dataclass(frozen=True)
class Grid:
    """The points one method can be tried at: every combination of its settings' values, the last one varying fastest.

    >>> grid = Grid({("laps",): (1, 5), ("work", "lr"): (0.1, 0.01)})
    >>> grid.size, grid.point(1)
    (4, {('laps',): 1, ('work', 'lr'): 0.01})
    """

    axes: Mapping[tuple[str, ...], tuple[Any, ...]]

    @property
    def size(self) -> int:
        """The number of points; one, the experiment as it is, where there is nothing to choose."""
        return math.prod(len(values) for values in self.axes.values())

    def point(self, number: int) -> dict[tuple[str, ...], Any]:
        """Return the values of point ``number``, counted from 0."""
        chosen = {}
        for setting, values in reversed(list(self.axes.items())):
            number, place = divmod(number, len(values))
            chosen[setting] = values[place]
        return {setting: chosen[setting] for setting in self.axes}


def grids(methods: Mapping[str, type[Method]], axes: Sequence[Axis]) -> dict[str, Grid]:
    """Return each method's grid; an axis of one method takes the place of a general one for the same setting.

    Raises:
        SettingError: no axis, one key twice, or an axis that no method of the sweep can use.
    """
    if not axes:
        raise SettingError(f"a sweep needs at least one --grid: {EXAMPLE}.")
    for i, one in enumerate(axes):
        if any((one.method, one.setting) == (other.method, other.setting) for other in axes[:i]):
            raise SettingError(f"--grid {one.key} is there twice. Give all its values at once, separated by commas.")
        if one.method is not None and one.method not in methods:
            raise SettingError(f"--grid {one.key}: '{one.method}' is not among --methods {','.join(methods)}.")
        if one.method is None and not any(_has(kind, one.setting) for kind in methods.values()):
            raise SettingError(f"--grid {one.key}: none of {', '.join(methods)} has a setting '{one.setting[0]}'.")
    found = {}
    for name, kind in methods.items():
        general = {one.setting: one.values for one in axes if one.method is None and _has(kind, one.setting)}
        own = {one.setting: one.values for one in axes if one.method == name}
        found[name] = Grid(general | own)
    return found


def _has(method: type[Method], setting: tuple[str, ...]) -> bool:
    return setting[0] in EXCHANGED or setting[0] in {field.name for field in fields(method)}  # type: ignore[arg-type]


def shown(value: Any) -> str:
    """Return a value as one would type it.

    >>> shown({"kind": "cosine", "start": 0.1}), shown([1, True])
    ('{ kind = "cosine", start = 0.1 }', '[1, true]')
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {shown(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
