"""The feature extractors by name, with their settings checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedfloor.parts import named
from fedfloor.parts.extractors.extractor import FeatureExtractor
from fedfloor.parts.extractors.fixed import Hog, Penultimate, RandomConv, Raw
from fedfloor.parts.extractors.pretrained import MobileNet, Onnx
from fedfloor.plan.nodes import Scalar

EXTRACTORS: dict[str, Callable[..., FeatureExtractor]] = {
    "mobilenet": MobileNet,
    "onnx": Onnx,
    "hog": Hog,
    "random-conv": RandomConv,
    "raw": Raw,
    "penultimate": Penultimate,
}


def extractor(name: str, settings: Mapping[str, Scalar]) -> FeatureExtractor:
    """Return a feature extractor by name, or ``module:Name`` of your own, with its settings.

    >>> extractor("hog", {"cells": 8})
    Hog(cells=8, orientations=9)
    """
    made = named.make("extractor", name, settings, EXTRACTORS, FeatureExtractor)
    named.complete("extractor", name, made, FeatureExtractor, writes=("dimension", "features"))
    return made  # type: ignore[no-any-return]


def to_spec(made: FeatureExtractor) -> tuple[str, dict[str, Scalar]]:
    """Return an extractor's name and settings.

    >>> to_spec(RandomConv(filters=64))
    ('random-conv', {'filters': 64, 'size': 5, 'seed': 0})
    """
    return named.to_spec(made, EXTRACTORS)
