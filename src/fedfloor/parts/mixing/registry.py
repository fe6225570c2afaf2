"""Mixing rules by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.parts import named
from fedfloor.parts.mixing.defences import (
    Bulyan,
    ByNeighbours,
    CentredClipping,
    FoolsGold,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBound,
    TrimmedMean,
)
from fedfloor.parts.mixing.mix import BySamples, Equal, InverseDistance, Mix, QFair
from fedfloor.parts.mixing.private import Private
from fedfloor.plan.nodes import Scalar

_MIXES: tuple[Any, ...] = (
    BySamples, Equal, InverseDistance, QFair, Median, TrimmedMean, Krum, MultiKrum, Bulyan, GeometricMedian,
    CentredClipping, NormBound, FoolsGold, Private,
)  # fmt: skip
MIXES: dict[str, Callable[..., Mix]] = {mix.kind: mix for mix in _MIXES}


def rule(name: str, settings: Mapping[str, Scalar]) -> Mix:
    """Return a mixing rule by name, or the user's ``module:Name``, with its settings.

    >>> rule("by_samples", {}).weight(600), rule("equal", {}).weight(600), rule("equal", {}).weight(0)
    (600.0, 1.0, 0.0)
    """
    made: Mix = named.make("mixing rule", name, settings, MIXES, Mix)
    if made.whole:
        named.complete("mixing rule", name, made, Mix, writes=("mixed",))
    return made


def to_spec(mix: Mix) -> tuple[str, dict[str, Scalar]]:
    """Return a rule's name and settings, in the form of a ``Parallel``.

    >>> to_spec(QFair(q=2.0)), to_spec(Equal())
    (('q_fair', {'q': 2.0}), ('equal', {}))
    """
    return named.to_spec(mix, MIXES)


def check(mix: Mix, name: str, branches: int) -> None:
    """Check that a rule can mix a number of branches; SettingError: too few."""
    if branches < mix.least:
        fewer = replace(mix, guarantee=False).least if isinstance(mix, ByNeighbours) else mix.least
        against = " mix.guarantee = false accepts so few, without the rule's guarantee." if branches >= fewer else ""
        raise SettingError(
            f"mix '{name}' has {branches} models to mix: it needs at least {mix.least}. Let "
            f"{mix.least - branches} more take part, or lower its settings (mix.outliers, mix.keep).{against}"
        )
