"""The methods of a call in Python, given by their names and as objects: :func:`with_methods`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fedfloor.api.source import with_fraction
from fedfloor.experiment import Experiment, MethodSettings
from fedfloor.methods.chosen import EXCHANGED
from fedfloor.parts import objects
from fedfloor.parts.named import written

Methods = Any  # a sequence of names and objects, a dictionary, or one of them; None: the experiment's own
Seeds = Annotated[Sequence[int], "several whole numbers, such as range(3) or [0, 1]"]


def with_methods(experiment: Experiment, methods: Methods, fraction: float | None) -> tuple[Experiment, list[str]]:
    """Return an experiment with the settings of all methods, and their names.

    An object has the name of its class, with its settings if the class occurs several times, and with exchanged parts.
    """
    several = methods is None or (isinstance(methods, Iterable) and not isinstance(methods, str))
    given = methods if several else [methods]
    named = given.items() if isinstance(given, Mapping) else [("", method) for method in given or ()]
    entries = [(label, *_entry(method)) for label, method in named or [("", experiment.method.name)]]
    times = Counter(base for _, base, _ in entries)
    tables = dict(experiment.methods)
    names = []
    for label, base, own in entries:
        name = label or (base if own is None else _label(base, own, several=times[base] > 1))
        before = dict(tables.get(base, {}))
        tables[name] = {**before, **(own or {})} | ({} if name == base else {"method": base})
        names.append(name)
    experiment = replace(experiment, methods={name: table for name, table in tables.items() if table})
    for name in names:
        if fraction is not None and "fraction" not in experiment.methods.get(name, {}):
            experiment = with_fraction(experiment, name, fraction)
    return experiment, names


def _label(base: str, own: Mapping[str, Any], *, several: bool) -> str:
    """Return a name for a method given as an object.

    >>> _label("mine:Mine", {"mu": 0.5, "mix": {"kind": "mine:Capped", "most": 50}}, several=True)
    'Mine(mu=0.5) + Capped(most=50)'
    >>> _label("fedavg", {"travel": ({"kind": "top-k", "share": 0.1}, "int8")}, several=False)
    'fedavg + top-k(share=0.1) + int8'
    """
    given = [part for key, part in own.items() if key in EXCHANGED]
    each = [one for part in given for one in (part if isinstance(part, list | tuple) else [part])]
    parts = [part if isinstance(part, Mapping) else {"kind": part} for part in each]
    settings = {key: setting for key, setting in own.items() if key not in EXCHANGED}
    texts = [_called(base, settings if several else {})]
    texts += [_called(str(part.get("kind")), {k: v for k, v in part.items() if k != "kind"}) for part in parts]
    return " + ".join(texts)


def _called(name: str, settings: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{key}={written(setting)}" for key, setting in settings.items())
    return name.rpartition(":")[2] + (f"({shown})" if shown else "")


def _entry(method: Any) -> tuple[str, dict[str, Any] | None]:
    """Return a method's name, and its own settings and parts; None for a name alone."""
    if isinstance(method, str):
        return method, None
    if isinstance(method, MethodSettings):
        return method.name, {key: value for key in EXCHANGED if (value := getattr(method, key)) is not None}
    return objects.method(method)
