"""The metric that an experiment asks for as its headline: a built-in one, or one of the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedfloor.base.errors import SettingError, shown
from fedfloor.base.names import SPEC
from fedfloor.base.outside import loaded
from fedfloor.parts import named as part
from fedfloor.tasks.figures import Figure, named
from fedfloor.tasks.metric import OPTION, STATED, Metric, figure, parts_of


def headline(value: str | Mapping[str, Any], option: str = OPTION) -> Figure:
    """Return the metric of an experiment's setting: a built-in one by its name, or one's own, imported already.

    Args:
        value: the name, ``module:Name``, or a table of it as ``kind`` and its settings; the table in a run's folder
            states name, direction and unit, too.
        option: the setting, for messages.

    Raises:
        SettingError: there is no such metric, its code is not loaded, or it is not as stated.

    >>> headline("recall of fault").of
    'fault'
    """
    if isinstance(value, str) and not SPEC.fullmatch(value):
        return named(value, option)
    code, table = parts_of(value, option)
    fields = getattr(loaded(code, "metric"), "__dataclass_fields__", {})
    said = {key: table.pop(key) for key in STATED if key in table and key not in fields}
    metric = part.make("metric", code, table, {}, Metric, ("value",))
    facts = {
        "name": metric.name or _words(type(metric).__name__), "better": getattr(metric, "better", None),
        "unit": metric.unit, "tasks": list(metric.tasks),
    }  # fmt: skip
    for key, word in said.items():
        if word != facts[key]:
            raise SettingError(
                f"{option}: metric '{code}' has {key} = {shown(facts[key])}, and the experiment states {shown(word)}. "
                "Leave it out, or use the code with which the run was made.",
                key="own-metric",
            )
    return figure(code, table, facts, option)


def _words(name: str) -> str:
    """Return a class's name in words.

    >>> _words("AlarmCost"), _words("F2"), _words("LateRMSE")
    ('alarm cost', 'F2', 'late RMSE')
    """
    words = re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+", name) or [name]
    return " ".join(word if word[:2].isupper() or word[1:].isdigit() else word.lower() for word in words)
