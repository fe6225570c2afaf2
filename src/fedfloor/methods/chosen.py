"""The method that an experiment asks for: its class, its settings and the parts exchanged in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from fedfloor.base.checking import checked, plain
from fedfloor.base.errors import SettingError, shown, unknown
from fedfloor.base.names import SPEC
from fedfloor.base.outside import load, own_name
from fedfloor.methods.catalog import EXACT, METHODS, find
from fedfloor.methods.configured import ConfiguredMethod, Parts
from fedfloor.methods.contract import Method
from fedfloor.methods.kept import kept
from fedfloor.parts import named
from fedfloor.parts.mixing.registry import MIXES, rule
from fedfloor.parts.objectives.registry import OBJECTIVES, PLANNED, objective
from fedfloor.parts.selection.selection import SELECTIONS, policy
from fedfloor.parts.server import SERVERS, optimiser
from fedfloor.parts.travel import chains, codecs
from fedfloor.parts.work import DEFAULTS, WorkSettings

TRAVEL = ("travel", "travel_down", "edge_travel", "edge_travel_down")  # settings that are codecs
PARTS: Mapping[str, named.Makers] = {
    "objective": OBJECTIVES, "mix": MIXES, "server": SERVERS, "selection": SELECTIONS,
}  # fmt: skip
BESIDE = ("norm_limit", "attackers", "headline")  # keys outside of [method] whose part may be the user's own
# keys of [method] → their kinds of part
EXCHANGED: Mapping[str, named.Makers] = {**PARTS, "edge_mix": MIXES, **dict.fromkeys(TRAVEL, codecs.CODECS)}
MAKE: Mapping[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "objective": objective, "mix": rule, "server": optimiser, "selection": policy, "edge_mix": rule,
}  # fmt: skip


class Tables(Protocol):
    """The tables of an :class:`~fedfloor.experiment.Experiment` that its method depends on."""

    @property
    def method(self) -> Any: ...

    @property
    def methods(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def work(self) -> WorkSettings: ...

    @property
    def model(self) -> Any: ...

    @property
    def deploy(self) -> Any: ...

    @property
    def faults(self) -> Any: ...

    @property
    def evaluate(self) -> Any: ...


def kind_of(experiment: Tables, name: str) -> type[Method]:
    """Return a method's class; ``[methods.NAME] method = "ida"`` makes NAME an alias with separate settings.

    Raises:
        SettingError: the method is unknown.
    """
    base = experiment.methods.get(name, {}).get("method", name)
    if not isinstance(base, str):
        raise SettingError(f"methods.{name}.method = {base!r}: must be the name of a method, in quotes.")
    if (name in METHODS or name in EXACT) and base != name:
        raise SettingError(f"methods.{name}.method = '{base}': '{name}' is already a method. Choose another name.")
    key = f"methods.{name}" + ".method" * ("method" in experiment.methods.get(name, {}))
    return find(base, key if name in experiment.methods else "method.name")


def method_of(experiment: Tables, name: str | None = None) -> Method:
    """Return the experiment's method with its settings: published defaults, then [work], then its own table.

    Raises:
        SettingError: unknown method or setting.
    """
    name = name or experiment.method.name
    kind = kind_of(experiment, name)
    table = {
        key: setting for key, setting in experiment.methods.get(name, {}).items() if key not in ("method", *EXCHANGED)
    }
    where = f"methods.{name}"
    if "work" not in {f.name for f in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        if experiment.work.sample_clip is not None:
            raise SettingError(
                f"work.sample_clip = {experiment.work.sample_clip}: method '{name}' has work of its own, in which no "
                "gradient of a sample is clipped. Leave it out, or choose another method."
            )
        with _inside(where):
            return checked(kind, table, where)
    own = checked(WorkSettings, table.pop("work", {}), f"{where}.work")
    with _inside(where):
        method = checked(kind, table, where)
    published: WorkSettings = method.work  # type: ignore[attr-defined]
    work = own.over(experiment.work.over(published.over(DEFAULTS)))
    return dataclasses.replace(method, work=work)  # type: ignore[type-var]


def combined(experiment: Tables) -> ConfiguredMethod:
    """Return the experiment's method with the parts exchanged by its own table or [method].

    The user's code named in the experiment, as ``module:Name``, is imported here.

    Raises:
        SettingError: unknown method, part or setting, or incompatible parts.
    """
    name = experiment.method.name
    method = method_of(experiment)
    for key, text in _texts(experiment, method):
        if key in ("model", "extractor", *EXCHANGED, *BESIDE) and SPEC.fullmatch(text):
            load(text, "mixing rule" if key in ("mix", "edge_mix") else key)
    _ = (
        experiment.deploy.limit,
        experiment.faults.acting,
        experiment.evaluate.figure,
    )  # refuse wrong settings of the user's own classes
    own = _parts(experiment.methods.get(name, {}), f"methods.{name}")
    general = _parts({part: getattr(experiment.method, part) for part in EXCHANGED}, "method")
    return ConfiguredMethod(name, kept(method, name) if experiment.model.keep else method, own.over(general))


def texts(experiment: Tables) -> list[tuple[str, str]]:
    """Return (key, text) for every text in the settings of an experiment's model and method, with published defaults.

    The order depends only on keys, so that machines with equal experiments number the texts equally.

    Raises:
        SettingError: unknown method or setting.
    """
    return _texts(experiment, method_of(experiment))


def _texts(experiment: Tables, method: Method) -> list[tuple[str, str]]:
    given = experiment.methods.get(experiment.method.name, {})
    own = {key: setting for key, setting in given.items() if key in ("method", *EXCHANGED)}
    tables = {
        "model": experiment.model.name, "method": {**plain(experiment.method), "name": ""},
        "methods": own, "settings": plain(method), **_parts_beside(experiment),
    }  # fmt: skip
    collected: list[tuple[str, str]] = []

    def collect(key: str, value: Any) -> None:
        if isinstance(value, str) and value:
            collected.append((key, value))
        elif isinstance(value, Mapping):
            for inner in sorted(value):
                collect(key if inner == "kind" else inner, value[inner])
        elif key in TRAVEL and isinstance(value, (list, tuple)):
            for codec in value:
                collect(key, codec)

    collect("", tables)
    return collected


def _parts_beside(experiment: Tables) -> dict[str, Any]:
    """Return the settings outside of [method] that name a part of the user's code, by their keys."""
    given = {
        "norm_limit": experiment.deploy.norm_limit, "attackers": experiment.faults.attackers,
        "headline": experiment.evaluate.headline,
    }  # fmt: skip
    return {key: {"kind": own_name(part)} for key, part in given.items() if own_name(part) is not None}


def _parts(table: Mapping[str, Any], where: str) -> Parts:
    parts = {part: _part(part, table[part], f"{where}.{part}") for part in EXCHANGED if table.get(part) is not None}
    return Parts(**parts)


def _part(part: str, value: Any, where: str) -> Any:
    """Return a part given by its name, or by a table of its kind and settings; codecs are returned as text."""
    if part in TRAVEL:
        with _inside(where):
            return chains.text(value)
    settings = {"kind": value} if isinstance(value, str) else value
    if not isinstance(settings, Mapping) or not isinstance(settings.get("kind"), str):
        usual = next(iter(EXCHANGED[part]))
        raise SettingError(f'{where} = {shown(value)}: must be a name, or a table such as {{ kind = "{usual}" }}.')
    name = settings["kind"]
    own = {key: setting for key, setting in settings.items() if key != "kind"}
    if "weights" in own:
        own["weights"] = _listed(own["weights"])
    with _inside(where):
        if part == "objective" and name in {*PLANNED, *EXACT} - set(OBJECTIVES):
            raise unknown("objective", name, OBJECTIVES)
        return MAKE[part](name, own)


def _listed(value: Any) -> Any:
    """Return a list of class weights in the format of plans, as numbers separated by blanks."""
    several = isinstance(value, (list, tuple)) and all(type(weight) in (int, float) for weight in value)
    return " ".join(map(str, value)) if several and value else value


@contextmanager
def _inside(where: str) -> Iterator[None]:
    """Add the table's name to an error that lacks it."""
    try:
        yield
    except SettingError as error:
        if where in str(error):
            raise
        raise SettingError(f"[{where}] {error}") from error
