"""Experiment files: TOML to a checked ``Experiment``, and back; paths are relative to the file."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor.base.checking import Table, check_kind, checked, plain, toml
from fedfloor.base.errors import SettingError
from fedfloor.data.files import expanded, is_there
from fedfloor.data.reading import Reading
from fedfloor.data.reading import placed as placed_columns
from fedfloor.data.sources import MADE_HERE
from fedfloor.experiment import DataSettings, Experiment
from fedfloor.methods.catalog import EXACT
from fedfloor.methods.chosen import BESIDE, EXCHANGED, method_of
from fedfloor.tasks.figures import FALSE_ALARMS, RECONSTRUCTION_ERROR
from fedfloor.tasks.metric import stated

NETWORK = ["network", "profile"]
COLUMNS = ["data", "columns"]
ROUNDS = 100  # of a model that is a sum, which ends when no further round changes it


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
        raise SettingError(f"{path}: {error}", key=error.key) from error


def _read(path: Path, changes: Sequence[Change]) -> Experiment:
    document = toml(path, "experiment file")
    check_kind(document, "experiment file", path)
    document.setdefault("name", path.stem)
    if "provenance" in document and any(keys(_key(change)) == NETWORK for change in changes):
        document["network"] = {}  # a run's file has all values, which would replace those of the new profile
    apply_all(document, changes)
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
    key, new = pair(change)
    put(document, keys(key), new, f"--set {change!r}")


def apply_all(document: Table, changes: Iterable[Change]) -> None:
    """Change keys of a document in place; another method whose model is a sum inherits no rounds of training.

    Nor does it inherit the reconstruction error as headline, of which a chart has none. A network that is named
    inherits no settings.

    >>> table = {"rounds": 604, "method": {"name": "boosting"}}
    >>> apply_all(table, ["method.name=ridge"]); table["rounds"]
    100
    """
    before = document.get("method")
    name = before.get("name") if isinstance(before, dict) else None
    given = [keys(_key(change)) for change in changes]
    if ["model", "name"] in given and isinstance(document.get("model"), dict):
        document["model"].pop("settings", None)
    for change in changes:
        apply(document, change)
    after = document.get("method")
    now = after.get("name") if isinstance(after, dict) else None
    if now == name or not is_exact(now):
        return
    if ["rounds"] not in given:
        document["rounds"] = ROUNDS
    evaluate = document.get("evaluate")
    if isinstance(evaluate, dict) and evaluate.get("headline") == RECONSTRUCTION_ERROR:
        evaluate["headline"] = FALSE_ALARMS  # its outputs are scores


def is_exact(name: str | None) -> bool:
    """Return whether a method's model is a sum, of those in ``docs/exact.md``."""
    return name in EXACT


def pair(change: str) -> tuple[str, Any]:
    """Return the key and the value of an ``a.b=value`` text.

    >>> pair("work.lr=0.1")
    ('work.lr', 0.1)
    """
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise SettingError(f"--set {change!r}: must be KEY=VALUE, such as work.lr=0.05.")
    return key.strip(), value(text)


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
        above = table
        table = table.setdefault(name, {})
        if name == "task" and isinstance(table, str):  # a task given by its name is its kind
            above[name] = table = {"kind": table}
        if not isinstance(table, dict):
            more = ' Write a part with settings as a table, such as { kind = "krum", outliers = 1 }.'
            more = more if name in {*EXCHANGED, *BESIDE} else ""
            raise SettingError(f"{typed}: '{name}' is a value, not a table.{more}")
    table[path[-1]] = new
    if len(path) >= 3 and [*path[:2]] == COLUMNS:
        placed_columns(document["data"]["columns"], path[2])


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
    _ = experiment.configured
    _ = experiment.network.built


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
    if experiment.evaluate.headline is not None:
        body["evaluate"]["headline"] = stated(experiment.evaluate.figure)
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
        mine = getattr(experiment, field.name)
        other = getattr(usual, field.name)
        if field.name == "provenance" or mine == other:
            continue
        if dataclasses.is_dataclass(mine):
            names = [f.name for f in dataclasses.fields(mine)]
            if field.name == "data":  # the default partition depends on the data
                usual_partition = dataclasses.replace(experiment.data, partition=None).partition
                other = dataclasses.replace(usual.data, partition=usual_partition)
            mine = {name: getattr(mine, name) for name in names if getattr(mine, name) != getattr(other, name)}
            if dataclasses.is_dataclass(mine.get("task")):
                mine["task"] = _set(mine["task"])
        body[field.name] = _inline(plain(mine))
    return tomlkit.dumps(body)


def _set(task: Any) -> Table:
    """Return the kind of a task, and its settings without defaults."""
    named = {field.name: (field.default, getattr(task, field.name)) for field in dataclasses.fields(task)}
    return {"kind": task.kind} | {name: mine for name, (usual, mine) in named.items() if mine != usual}


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

    data = changed(experiment.data, "path", "root", "test")
    model = changed(experiment.model, "init_from")
    network = experiment.network
    if network.profile is not None and network.profile.endswith(".toml"):  # otherwise it is a name
        network = changed(network, "profile")
    return dataclasses.replace(experiment, data=data, model=model, network=network)
