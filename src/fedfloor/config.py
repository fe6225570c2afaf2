"""Experiment files: TOML to a checked ``Experiment``, and back; paths are relative to the file."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedfloor.checking import Table, check_kind, checked, toml
from fedfloor.data.files import expanded, is_there
from fedfloor.data.reading import Reading
from fedfloor.data.sources import MADE_HERE
from fedfloor.errors import SettingError, shown, unknown
from fedfloor.experiment import TRAVEL, DataSettings, Experiment
from fedfloor.methods.catalog import METHODS, find
from fedfloor.methods.configured import ConfiguredMethod, Parts
from fedfloor.methods.contract import Method
from fedfloor.outside import SPEC, load, own_name
from fedfloor.parts import codecs, named
from fedfloor.parts.mix import MIXES, rule
from fedfloor.parts.objectives import OBJECTIVES, PLANNED, objective
from fedfloor.parts.selection import SELECTIONS, policy
from fedfloor.parts.server import SERVERS, optimiser
from fedfloor.parts.work import DEFAULTS, WorkSettings

PARTS: Mapping[str, named.Makers] = {
    "objective": OBJECTIVES, "mix": MIXES, "server": SERVERS, "selection": SELECTIONS,
}  # fmt: skip
NETWORK = ["network", "profile"]
BESIDE = ("norm_limit", "attackers")  # keys outside of [method] whose part may be the user's own
# keys of [method] → their kinds of part
EXCHANGED: Mapping[str, named.Makers] = {**PARTS, "edge_mix": MIXES, **dict.fromkeys(TRAVEL, codecs.CODECS)}
MAKE: Mapping[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "objective": objective, "mix": rule, "server": optimiser, "selection": policy, "edge_mix": rule,
}  # fmt: skip


Change = str | tuple[str, Any]  # "a.b=value", or (key, value)


def read(path: Path, changes: Iterable[Change] = ()) -> Experiment:
    """Return the experiment in a file, with single keys changed. Paths to data are relative to the file first.

    If ``network.profile`` of a run's ``experiment.toml`` is changed, the values of the old network are dropped.

    Args:
        path: a TOML file.
        changes: ``a.b=value`` texts, in which a value that is not TOML is a text; or pairs of a key and a value.

    Raises:
        SettingError: the file does not exist or is not TOML; a key, type or value is wrong. The message names the file,
            unless a change is wrong.
    """
    changes = tuple(changes)
    try:
        return _read(path, changes)
    except SettingError as error:
        if str(path) in str(error) or (changes and str(error) != _own_error(path)):
            raise  # the message names the file, or a change is wrong
        raise SettingError(f"{path}: {error}") from error


def _read(path: Path, changes: Sequence[Change]) -> Experiment:
    document = toml(path, "experiment file")
    check_kind(document, "experiment file", path)
    document.setdefault("name", path.stem)
    if "provenance" in document and any(keys(_key(change)) == NETWORK for change in changes):
        document["network"] = {}  # a run's file has all values, which would replace those of the new profile
    for change in changes:
        apply(document, change)
    experiment = with_paths(checked(Experiment, document, ""), lambda given: looked_for(given, path.parent))
    check_methods(experiment)
    return experiment


def _own_error(path: Path) -> str:
    """Return the error of an experiment file without changes; "" if it is valid."""
    try:
        _read(path, ())
    except SettingError as error:
        return str(error)
    return ""


def _key(change: Change) -> str:
    return change.partition("=")[0].strip() if isinstance(change, str) else change[0]


def apply(document: Table, change: Change) -> None:
    """Change one key of a document in place.

    >>> table = {"work": {"lr": 0.1}}
    >>> apply(table, "work.lr=0.01"); apply(table, "model.name=lenet"); table
    {'work': {'lr': 0.01}, 'model': {'name': 'lenet'}}
    """
    if not isinstance(change, str):
        put(document, keys(_key(change)), change[1], _key(change))
        return
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise SettingError(f"--set {change!r}: must be KEY=VALUE, such as work.lr=0.05.")
    put(document, keys(key.strip()), value(text), f"--set {change!r}")


def value(text: str) -> Any:
    """Return a text as a TOML value, otherwise unchanged.

    >>> value("0.1"), value("[1, 2]"), value("lenet")
    (0.1, [1, 2], 'lenet')
    """
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text.strip()


def put(document: Table, path: Sequence[str], new: Any, typed: str) -> None:
    """Put a value into a document, in place.

    Raises:
        SettingError: a table in the path is a value.
    """
    table = document
    for name in path[:-1]:
        above, table = table, table.setdefault(name, {})
        if name == "task" and isinstance(table, str):  # a task given by its name is its kind
            above[name] = table = {"kind": table}
        if not isinstance(table, dict):
            more = ' Write a part with settings as a table, such as { kind = "krum", outliers = 1 }.'
            raise SettingError(f"{typed}: '{name}' is a value, not a table.{more if name in EXCHANGED else ''}")
    table[path[-1]] = new


def keys(dotted: str) -> list[str]:
    """Split a dotted key; a quoted part may contain dots, as in TOML."""
    try:
        table = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return dotted.split(".")
    names = []
    while isinstance(table, dict):
        ((name, table),) = table.items()
        names.append(name)
    return names


def from_table(document: Table) -> Experiment:
    """Check a parsed document, including all tables of methods, and return its experiment."""
    experiment = checked(Experiment, document, "")
    check_methods(experiment)
    return experiment


def check_methods(experiment: Experiment) -> None:
    """Check the settings of all methods in an experiment, and the parts of its own method.

    Raises:
        SettingError: an unknown method, part or setting.
    """
    for name in experiment.methods:
        method_of(experiment, name)
    combined(experiment)
    _ = experiment.network.built


def kind_of(experiment: Experiment, name: str) -> type[Method]:
    """Return a method's class; ``[methods.NAME] method = "ida"`` makes NAME an alias with separate settings.

    Raises:
        SettingError: the method is unknown.
    """
    base = experiment.methods.get(name, {}).get("method", name)
    if not isinstance(base, str):
        raise SettingError(f"methods.{name}.method = {base!r}: must be the name of a method, in quotes.")
    if name in METHODS and base != name:
        raise SettingError(f"methods.{name}.method = '{base}': '{name}' is already a method. Choose another name.")
    key = f"methods.{name}" + ".method" * ("method" in experiment.methods.get(name, {}))
    return find(base, key if name in experiment.methods else "method.name")


def method_of(experiment: Experiment, name: str | None = None) -> Method:
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


def combined(experiment: Experiment) -> ConfiguredMethod:
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
    _ = experiment.deploy.limit, experiment.faults.acting  # refuse wrong settings of the user's own classes
    own = _parts(experiment.methods.get(name, {}), f"methods.{name}")
    general = _parts({part: getattr(experiment.method, part) for part in EXCHANGED}, "method")
    return ConfiguredMethod(name, method, own.over(general))


def texts(experiment: Experiment) -> list[tuple[str, str]]:
    """Return (key, text) for every text in the settings of an experiment's model and method, with published defaults.

    The order depends only on keys, so that machines with equal experiments number the texts equally.

    Raises:
        SettingError: unknown method or setting.
    """
    return _texts(experiment, method_of(experiment))


def _texts(experiment: Experiment, method: Method) -> list[tuple[str, str]]:
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


def _parts_beside(experiment: Experiment) -> dict[str, Any]:
    """Return the settings outside of [method] that name a part of the user's code, by their keys."""
    given = {"norm_limit": experiment.deploy.norm_limit, "attackers": experiment.faults.attackers}
    return {key: {"kind": own_name(part)} for key, part in given.items() if own_name(part) is not None}


def _parts(table: Mapping[str, Any], where: str) -> Parts:
    parts = {part: _part(part, table[part], f"{where}.{part}") for part in EXCHANGED if table.get(part) is not None}
    return Parts(**parts)


def _part(part: str, value: Any, where: str) -> Any:
    """Return a part given by its name, or by a table of its kind and settings; codecs are returned as text."""
    if part in TRAVEL:
        with _inside(where):
            return codecs.text(value)
    settings = {"kind": value} if isinstance(value, str) else value
    if not isinstance(settings, Mapping) or not isinstance(settings.get("kind"), str):
        usual = next(iter(EXCHANGED[part]))
        raise SettingError(f'{where} = {shown(value)}: must be a name, or a table such as {{ kind = "{usual}" }}.')
    name, own = settings["kind"], {key: setting for key, setting in settings.items() if key != "kind"}
    if "weights" in own:
        own["weights"] = _listed(own["weights"])
    with _inside(where):
        if part == "objective" and name in set(PLANNED) - set(OBJECTIVES):
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


def resolved(experiment: Experiment, folder: Path | None = None) -> str:
    """Return the experiment as TOML with all defaults, and only the table of the chosen method.

    Args:
        experiment: the experiment; its paths are relative to the working folder.
        folder: the folder to which paths in the text are relative; by default the working folder.
    """
    import tomlkit

    body = plain(experiment if folder is None else placed(experiment, folder))
    name = experiment.method.name
    given = experiment.methods.get(name, {})
    own = {key: given[key] for key in ("method", *EXCHANGED) if key in given}
    body["methods"] = {name: plain(own | plain(method_of(experiment)))}
    body["data"] = _with_effect(experiment.data, body["data"])
    network = experiment.network.built
    if network is not None:
        whole = body["network"] | {
            key: setting for key, setting in plain(network).items() if key not in ("name", "about")
        }
        body["network"] = dict(sorted(whole.items(), key=lambda item: (isinstance(item[1], dict), item[0])))
    order = sorted(body, key=lambda key: isinstance(body[key], dict))
    return tomlkit.dumps({key: body[key] for key in order if body[key] != {}})


def _with_effect(data: DataSettings, table: Table) -> Table:
    """Return a ``[data]`` table without defaults that do not affect these data."""
    idle = {"name", "root", "samples_per_device"}
    if data.path is None:
        idle = {field.name for field in dataclasses.fields(Reading)}
        idle |= set() if data.name in MADE_HERE else {"samples_per_device"}
    usual = plain(DataSettings())
    return {key: value for key, value in table.items() if key not in idle or value != usual.get(key)}


def brief(experiment: Experiment) -> str:
    """Return the experiment as TOML without default settings, from which :func:`read` returns an equal experiment."""
    import tomlkit

    usual = Experiment()
    body: Table = {"name": experiment.name}
    for field in dataclasses.fields(Experiment):
        mine, other = getattr(experiment, field.name), getattr(usual, field.name)
        if field.name == "provenance" or mine == other:
            continue
        if dataclasses.is_dataclass(mine):
            names = [f.name for f in dataclasses.fields(mine)]
            if field.name == "data":  # the default partition depends on the data
                usual_partition = dataclasses.replace(experiment.data, partition=None).partition
                other = dataclasses.replace(usual.data, partition=usual_partition)
            mine = {name: getattr(mine, name) for name in names if getattr(mine, name) != getattr(other, name)}
        body[field.name] = _inline(plain(mine))
    return tomlkit.dumps(body)


def _inline(value: Any) -> Any:
    """Return tables with a ``kind``, such as partitions and schedules, as TOML's inline tables."""
    import tomlkit

    if not isinstance(value, Mapping):
        return value
    if "kind" in value:
        table = tomlkit.inline_table()
        table.update(value)
        return table
    inner = {key: _inline(setting) for key, setting in value.items() if setting != {}}
    return dict(sorted(inner.items(), key=lambda item: type(item[1]) is dict))  # tables last: keys would belong to them


def plain(value: Any) -> Any:
    """Return dataclasses and mappings as dictionaries of TOML values, without None."""
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items() if v is not None}
    return value


def looked_for(given: Path, folder: Path) -> Path:
    """Return a path of an experiment file, relative to the file if it exists there, otherwise to the working folder."""
    beside = folder / given
    return given if is_there(given) and not is_there(beside) else beside


def placed(experiment: Experiment, folder: Path) -> Experiment:
    """Return the experiment with paths relative to ``folder``; absolute paths are unchanged."""
    return with_paths(experiment, lambda given: given if given.is_absolute() else seen_from(folder, given))


def seen_from(folder: Path, path: Path) -> Path:
    """Return a path relative to a folder, with links resolved."""
    return Path(os.path.relpath(path.parent.resolve() / path.name, folder.resolve()))


def with_paths(experiment: Experiment, change: Callable[[Path], Path]) -> Experiment:
    """Return the experiment with changed paths to data, a trained model and a network's profile; ``~`` is expanded."""

    def changed(table: Any, *keys: str) -> Any:
        given = {key: getattr(table, key) for key in keys}
        return dataclasses.replace(
            table, **{key: str(change(expanded(setting))) for key, setting in given.items() if setting}
        )

    data, model = changed(experiment.data, "path", "root", "test"), changed(experiment.model, "init_from")
    network = experiment.network
    if network.profile is not None and network.profile.endswith(".toml"):  # otherwise it is a name
        network = changed(network, "profile")
    return dataclasses.replace(experiment, data=data, model=model, network=network)
