"""Experiments from files, by bundled names and by names of data sets, with changed settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from fedfloor import config
from fedfloor.api.wording import in_python
from fedfloor.base.checking import native, toml_text
from fedfloor.base.errors import SettingError, unknown
from fedfloor.data.files.conversions import FORMATS
from fedfloor.data.files.rows import unpacked
from fedfloor.data.sources import SOURCES
from fedfloor.experiment import Experiment
from fedfloor.methods import chosen
from fedfloor.park.partition import Blocks, Dirichlet, Dominant, Iid, Natural, Shards
from fedfloor.parts import objects
from fedfloor.parts.work import Cosine, Exponential

DATA = (".csv", ".tsv", ".npz", ".parquet", ".xlsx")
FIXED = ("data.name", "data.path")  # on which other settings of an experiment depend
KEYS = {  # names of arguments → keys of experiment files
    "name": "name", "seed": "seed", "rounds": "rounds", "partition": "data.partition", "devices": "park.devices",
    "factories": "park.factories", "model": "model.name", "epochs": "work.epochs", "batch_size": "work.batch_size",
    "lr": "work.lr", "network": "network.profile",
}  # fmt: skip

Source = Annotated[
    Experiment | Path | str,
    "an experiment, the path of its file, or a name. A table of machines is for fedfloor.train; arrays are saved by "
    "numpy.savez, and read by DataSettings(path='….npz')",
]
Changes = Annotated[
    Mapping[str, Any], 'a dictionary of keys of the experiment file and their values, such as {"evaluate.every": 5}'
]


class Settings(TypedDict, total=False):
    """Settings that :func:`load`, :func:`~fedfloor.run` and :func:`~fedfloor.compare` take as arguments.

    ``partition``, ``devices`` and ``factories`` are those of ``[data]`` and ``[park]``, ``epochs``, ``batch_size`` and
    ``lr`` those of ``[work]``; ``fraction`` is the share of devices drawn in a round, for methods with this setting.
    """

    name: str
    seed: int
    rounds: int
    partition: Natural | Iid | Dirichlet | Shards | Dominant | Blocks
    devices: int
    factories: int
    model: Any
    method: Any
    fraction: float
    epochs: int
    batch_size: int
    lr: float | Cosine | Exponential
    network: str


@in_python
def load(source: Source, *, changes: Changes | None = None, **settings: Any) -> Experiment:
    """Return an experiment from a file, a bundled name, a data set's name, or another experiment.

    >>> load("mnist", partition=Dirichlet(0.1), devices=20, method="fedsr").data.partition.alpha
    0.1

    Args:
        source: the path of an experiment file, the name of a bundled experiment as on the command line, an experiment,
            or the name of a data set: an experiment with defaults, in which devices with fewer samples than a
            mini-batch may take part (``work.short_batches``).
        changes: key of the experiment file → value, such as ``{"evaluate.every": 5}``.
        settings: see :class:`Settings`, such as ``rounds=20``.

    Raises:
        SettingError: no such file or name, or a wrong setting; the message names it.
    """
    fraction = settings.pop("fraction", None)
    method = settings.pop("method", None)
    for name in settings:
        if name not in KEYS:
            raise unknown("argument", name, {*KEYS, "fraction", "method", "changes"})
    pairs = {KEYS[name]: value for name, value in settings.items()} | dict(changes or {})
    experiment = read(source, in_files(pairs))
    if method is not None:
        experiment = replace(experiment, method=method)
    return experiment if fraction is None else with_fraction(experiment, experiment.method.name, fraction)


def in_files(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys and values in which objects are names and tables of experiment files."""
    values = dict[str, Any]()
    for key, value in pairs.items():
        if key == "model.name":
            values[key], settings = objects.network(value, key)
            values |= {"model.settings": settings} if settings else {}
        else:
            values[key] = in_file(key, value)
    return values


def in_file(key: str, value: Any) -> Any:
    """Return an object as the name or table of experiment files."""
    value = native(value)
    return objects.part(value, key) if key.rpartition(".")[2] in chosen.EXCHANGED else value


def read(source: Experiment | Path | str, pairs: Mapping[str, Any]) -> Experiment:
    """Return an experiment as :func:`load` does, with keys and values of changes as in experiment files."""
    if isinstance(source, Experiment):
        for key in pairs:
            if key in FIXED:
                raise SettingError(
                    f"{key} of an experiment cannot be changed, as its other settings are for its data: load the other "
                    "data by their name or file, or make an Experiment with DataSettings of them.",
                    key="experiment-data",
                )
        document = toml_text(config.brief(source), "the experiment")
    elif isinstance(source, str) and source in SOURCES and source not in bundled() and not Path(source).is_file():
        document = {"name": source, "data": {"name": source}, "work": {"short_batches": True}}
    else:
        return config.read(experiment_file(str(source), more=SOURCES), tuple(pairs.items()))
    config.apply_all(document, tuple(pairs.items()))
    return config.from_table(document)


def with_fraction(experiment: Experiment, method: str, fraction: float) -> Experiment:
    """Return an experiment in which a method draws a share of the devices in each round.

    Raises:
        SettingError: the method has no such setting, or a wrong value.
    """
    if "fraction" not in {field.name for field in fields(chosen.kind_of(experiment, method))}:  # type: ignore[arg-type]
        raise SettingError(
            f"fraction = {fraction}: method '{method}' has no such setting. Leave it out, and give methods that have "
            "it as objects, such as FedAvg(fraction=0.1)."
        )
    own = {**experiment.methods.get(method, {}), "fraction": fraction}
    changed = replace(experiment, methods={**experiment.methods, method: own})
    chosen.method_of(changed, method)  # refuses a wrong value at once
    return changed


def bundled(kind: str = "experiments") -> dict[str, Path]:
    """Return the bundled files of a kind, ``"experiments"`` or ``"experiments/cells"``, by name."""
    here = Path(__file__).parents[1]
    folder = here / kind if (here / kind).is_dir() else here.parents[1] / kind
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def experiment_file(file: str, more: Mapping[str, Any] | None = None) -> Path:
    """Return the path of an experiment file, given by its path or its bundled name.

    Args:
        more: further names for the error of an unknown name.

    Raises:
        SettingError: an unknown name, a folder, or a file of data.
    """
    path = Path(file)
    known = bundled()
    if path.is_file() and (unpacked(path.name).endswith(DATA) or path.suffix.casefold() in (".zip", *FORMATS)):
        raise SettingError(
            f"{path} holds data and is not an experiment file. fedfloor new {path} writes one for them. In Python, "
            f"Experiment('{path.stem}', data=DataSettings(path='{path}')) is one.",
            key="data-file",
        )
    if path.is_dir() and file not in known:
        beside = Path(f"{path}.toml")
        hint = f"Did you mean {beside}? " if beside.is_file() else ""
        raise SettingError(
            f"{path} is a folder and not an experiment file. {hint}fedfloor new {path} writes one for data."
        )
    if path.is_file() or path.suffix or len(path.parts) > 1 or (path.exists() and file not in known):
        return path
    if file not in known:
        raise unknown("experiment", file, {*known, *(more or ()), *(beside.name for beside in Path().glob("*.toml"))})
    return known[file]
