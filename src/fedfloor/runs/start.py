"""Beginning with a trained model: ``[model] init_from``."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfloor.data.dataset import Dataset
from fedfloor.errors import SettingError, shown
from fedfloor.experiment import ModelSettings
from fedfloor.models import Network, plain, saved

log = logging.getLogger(__name__)

NAMED = 3  # so many tensors are named in a message
Shapes = Mapping[str, tuple[int, ...]]


def digest(model: ModelSettings) -> dict[str, str]:
    """Return what a run records of the model it begins with; nothing where it begins afresh.

    Raises:
        SettingError: there is no such model.
    """
    if model.init_from is None:
        return {}
    with _read(model.init_from) as path:
        return {"init_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def begin(network: Network, model: ModelSettings, data: Dataset, *, tell: bool) -> None:
    """Put a trained model's numbers into a network, in place of those drawn by the seed.

    Every tensor of the file must find its place, but those of a classifier that the network has replaced; and every
    tensor of the network must be in the file, but those of its classifier and of what was added to ``[model] name``.
    A tensor's place is the one of its name and shape; that the whole network was wrapped in another is allowed for. A
    classifier is taken whole or not at all.

    Args:
        network: changed; it stays as it is where nothing is asked for.
        model: the settings.
        data: what the network is for.
        tell: log what was taken, and what begins afresh.

    Raises:
        SettingError: there is no such model, or it does not fit.
    """
    if model.init_from is None:
        return
    with _read(model.init_from) as path:
        about, tensors = saved.content(path)
    _check_samples(path, about, data)
    into = network.named(network.flat)
    whole = _Side(_shapes(into), network.classifier)
    file = _Side(_shapes(tensors), about.get("classifier"))
    pairs = _pairs(file, whole)
    wrong = _wrong(file, whole, pairs, _bare(model.name, data))
    wrong += [f"{name} holds infinite or undefined numbers" for name in pairs if not tensors[name].isfinite().all()]
    if wrong or not pairs:
        raise SettingError(
            f"model.init_from: {path} (network {shown(about.get('model'))}) does not fit network '{model.name}': "
            f"{listed(wrong) if wrong else 'they have no tensor in common'}. Give a run of the same network, or leave "
            "init_from out."
        )
    for name, place in pairs.items():
        into[place].copy_(tensors[name])
    if tell:
        taken, fresh = set(pairs.values()), [name for name in into if name not in pairs.values()]
        rest = f"begun afresh: {listed(fresh)}" if fresh else "none is begun afresh"
        said = "model.init_from: %d of %d tensors are those of %s (round %s); %s."
        log.info(said, len(taken), len(into), path, shown(about.get("round")), rest)


@contextmanager
def _read(given: str) -> Iterator[Path]:
    """Find a model's file; what is wrong with it is said of the setting."""
    try:
        yield saved.found(Path(given))
    except SettingError as error:
        raise SettingError(f"model.init_from: {error}") from error


@dataclass(frozen=True)
class _Side:
    """A model's tensors and the path of its classifier."""

    shapes: Shapes
    classifier: str | None

    def head(self) -> set[str]:
        """Return the names of the classifier's tensors."""
        return {name for name in self.shapes if self.classifier and name.startswith(f"{self.classifier}.")}


def _pairs(file: _Side, whole: _Side) -> dict[str, str]:
    """Return {tensor of the file: its place in the network}."""
    pairs = matched(file.shapes, whole.shapes)
    head, into = file.head(), whole.head()
    if head <= set(pairs) and into <= set(pairs.values()):
        return pairs
    return {name: place for name, place in pairs.items() if name not in head and place not in into}


def _wrong(file: _Side, whole: _Side, pairs: Mapping[str, str], bare: Shapes) -> list[str]:
    """Say which tensors lack a place, or a number to put there."""
    needed = set(matched(bare, whole.shapes).values()) - whole.head() - set(pairs.values())
    wrong = [
        f"{name} is {_placeless(name, file, whole)}" for name in file.shapes if name not in file.head() | set(pairs)
    ]
    return wrong + [f"{name} is missing in the file" for name in whole.shapes if name in needed]


def _placeless(name: str, file: _Side, whole: _Side) -> str:
    other = whole.shapes.get(name)
    return "not in the network" if other is None else f"{file.shapes[name]} in the file, {other} in the network"


def _bare(name: str, data: Dataset) -> Shapes:
    """Return the tensors of a network that no objective has adapted."""
    with torch.random.fork_rng(devices=[]):
        return _shapes(plain(name, data.shape, data.outputs).state_dict())


def matched(names: Shapes, places: Shapes) -> dict[str, str]:
    """Return {name: place} of the tensors with equal names and shapes, with the prefixes that match most.

    >>> matched({"0.weight": (2, 3), "1.bias": (2,)}, {"body.0.weight": (2, 3), "body.1.bias": (4,), "gamma": ()})
    {'0.weight': 'body.0.weight'}
    """
    best: dict[str, str] = {}
    for left in _prefixes(names):
        inside = [name for name in names if name.startswith(left)]
        for right in _prefixes(places) if len(inside) > len(best) else ():
            pairs = {name: right + name.removeprefix(left) for name in inside}
            pairs = {name: place for name, place in pairs.items() if places.get(place) == names[name]}
            if len(pairs) > len(best):  # the shortest prefixes come first
                best = pairs
    return best


def _prefixes(names: Iterable[str]) -> list[str]:
    """Return the paths that tensors lie under, each with its dot, shortest first; "" is the first."""
    parts = [name.split(".") for name in names]
    found = {"".join(f"{one}." for one in path[:depth]) for path in parts for depth in range(len(path))}
    return sorted(found, key=lambda prefix: (prefix.count("."), prefix))


def _check_samples(path: Path, about: Mapping[str, Any], data: Dataset) -> None:
    stated, names, classifier = about.get("shape"), about.get("classes"), about.get("classifier")
    if not isinstance(stated, list) or not isinstance(names, list) or not isinstance(classifier, str | None):
        raise SettingError(
            f"model.init_from: {path} is damaged: its shape and its classes must be lists, and its classifier a text. "
            "Give the model.safetensors of a run."
        )
    shape, classes = tuple(stated), len(names)
    if (shape, classes) != (data.shape, len(data.classes)):
        raise SettingError(
            f"model.init_from: {path} was trained on {classes} classes and samples of shape {shown(shape)}, these data "
            f"have {len(data.classes)} and {data.shape}. Give a model that was trained on such data, or leave "
            "init_from out."
        )


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in tensors.items()}


def listed(names: list[str]) -> str:
    """Return the first few names, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
