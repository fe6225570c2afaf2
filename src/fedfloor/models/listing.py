"""Descriptions of networks: a row per network, and a card of a network with its layers."""

from __future__ import annotations

import inspect
from typing import Any

from fedfloor.base.errors import SettingError, require
from fedfloor.base.names import SPEC
from fedfloor.base.outside import load
from fedfloor.models.classifier import layers
from fedfloor.models.network import Network, build, builder
from fedfloor.models.zoo import LISTED_ON, NETWORKS, Shape

Row = dict[str, Any]


def rows() -> list[Row]:
    """Return a row per network: a description, and its size on the samples listed with it."""
    return [
        {
            "model": name,
            "what": _text(name).split("\n")[0].removeprefix("Return ").rstrip("."),
            **_facts(build(name, shape, classes, seed=0), shape, classes),
        }
        for name in NETWORKS
        for shape, classes in [_samples(name, None, None)]
    ]


def card(name: str, shape: Shape | None = None, classes: int | None = None) -> tuple[str, Row, list[Row]]:
    """Return a network's docstring, its facts on samples of a shape, and a row per layer with trained parameters."""
    if SPEC.fullmatch(name):
        load(name, "model")
    shape, classes = _samples(name, shape, classes)
    network = build(name, shape, classes, seed=0)
    parts = [(path, network.module.get_submodule(path)) for path in layers(network.module)]
    described = [
        {
            "layer": path,
            "kind": type(part).__name__,
            "parameters": sum(p.numel() for p in part.parameters(recurse=False) if p.requires_grad),
        }
        for path, part in parts
    ]
    return _text(name), _facts(network, shape, classes), described


def _samples(name: str, shape: Shape | None, classes: int | None) -> tuple[Shape, int]:
    builder(name)  # the error for a mistyped name has priority
    listed = LISTED_ON.get(name)
    if listed is not None:
        shape = listed[0] if shape is None else shape
        classes = listed[1] if classes is None else classes
    if shape is None or classes is None:
        raise SettingError(f"model '{name}': give its shape and classes, such as --shape 1,28,28 --classes 10.")
    require(min(shape) >= 1, "--shape", ",".join(map(str, shape)), "whole numbers of at least 1")
    require(classes >= 1, "--classes", classes, "a whole number of at least 1")
    return shape, classes


def _facts(network: Network, shape: Shape, classes: int) -> Row:
    return {
        "shape": list(shape),
        "classes": classes,
        "parameters": network.trained,
        "classifier": network.classifier,
        "classifier_parameters": network.classifier_parameters,
    }


def _text(name: str) -> str:
    return inspect.getdoc(builder(name)) or ""
