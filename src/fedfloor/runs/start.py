"""Beginning with a trained model: ``[model] init_from``."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfloor.data.dataset import Dataset
from fedfloor.errors import SettingError
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
    return {"init_sha256": hashlib.sha256(_file(model.init_from).read_bytes()).hexdigest()}


def begin(network: Network, model: ModelSettings, data: Dataset, *, tell: bool) -> None:
    """Put a trained model's numbers into a network, in place of those drawn by the seed.

    Every tensor of the file must find its place, but those of a classifier that the network has replaced; and every
    tensor of the network must be in the file, but those of its classifier and of what was added to ``[model] name``.
    A tensor's place is the one of its name and shape; that the whole network was wrapped in another is allowed for.

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
    path = _file(model.init_from)
    about, tensors = saved.content(path)
    _check_samples(path, about, data)
    into = network.named(network.flat)
    whole = _Side(_shapes(into), network.classifier)
    file = _Side(_shapes(tensors), about.get("classifier"))
    with torch.random.fork_rng(devices=[]):
        bare = dict(plain(model.name, data.shape, len(data.classes)).state_dict())
    pairs = matched(file.shapes, whole.shapes)
    expected = set(matched(_shapes(bare), whole.shapes).values())
    wrong = [f"{name} is {_placeless(name, file, whole)}" for name in file.beyond(pairs)]
    wrong += [f"{name} is missing in the file" for name in whole.beyond(pairs.values()) if name in expected]
    wrong += [
        f"{name} holds infinite or undefined numbers" for name in pairs if not bool(tensors[name].isfinite().all())
    ]
    if wrong or not pairs:
        raise SettingError(
            f"model.init_from: {path} (network '{about.get('model')}') does not fit network '{model.name}': "
            f"{listed(wrong) if wrong else 'they have no tensor in common'}. Give a run of the same network, or leave "
            "init_from out."
        )
    for name, place in pairs.items():
        into[place].copy_(tensors[name])
    if tell:
        fresh = [name for name in into if name not in pairs.values()]
        log.info(
            "model.init_from: %d of %d tensors are those of %s (round %s); %s.", len(pairs), len(into), path,
            about.get("round"), f"begun afresh: {listed(fresh)}" if fresh else "none is begun afresh",
        )  # fmt: skip


def _file(given: str) -> Path:
    try:
        return saved.found(Path(given))
    except SettingError as error:
        raise SettingError(f"model.init_from: {error}") from error


@dataclass(frozen=True)
class _Side:
    """A model's tensors and the path of its classifier."""

    shapes: Shapes
    classifier: str | None

    def beyond(self, known: Iterable[str]) -> list[str]:
        """Return the names that are neither known nor of the classifier."""
        head = f"{self.classifier}." if self.classifier else None
        left = [name for name in self.shapes if name not in set(known)]
        return [name for name in left if head is None or not name.startswith(head)]


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


def _placeless(name: str, file: _Side, whole: _Side) -> str:
    other = whole.shapes.get(name)
    if other is None:
        return "not in the network"
    return f"{file.shapes[name]} in the file, {other} in the network"


def _check_samples(path: Path, about: Mapping[str, Any], data: Dataset) -> None:
    for what, got, wanted in (
        ("samples of shape", tuple(about.get("shape", ())), data.shape),
        ("a number of classes of", len(about.get("classes", ())), len(data.classes)),
    ):
        if got != wanted:
            raise SettingError(
                f"model.init_from: {path} was trained on {what} {got}, these data have {wanted}. Give a model that "
                "was trained on such data, or leave init_from out."
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
