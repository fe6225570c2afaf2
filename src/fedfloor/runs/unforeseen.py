"""Whether a method's plans read what only training gives, which no forecast has."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.methods.contract import Method, State, View
from fedfloor.plan.nodes import Node

Mark = Callable[[], None]


def watched(configured: ConfiguredMethod, mark: Mark) -> ConfiguredMethod:
    """Return a method that calls ``mark`` when its plan reads the outcome of earlier rounds.

    The outcome is the receipts, and whatever ``absorb`` may change: notes, tensors and the packet. A method with
    ``noted`` states what follows from its plans alone, so that only its receipts are watched. The package's own methods
    are not: of what they keep, they plan by what was there before round 1, or by what they take from plans.
    """
    if configured.built_in:
        return configured
    method = copy.copy(configured.method)
    kind = type(configured.method)
    learns = kind.absorb is not Method.absorb and kind.noted is Method.noted

    def plan(state: State, view: View, rng: np.random.Generator) -> Node:
        if view.round == 1:  # nothing has been reported yet
            return kind.plan(configured.method, state, view, rng)
        seen = copy.copy(state)
        for name in ("notes", "tensors", "packet") if learns else ():
            object.__setattr__(seen, name, _Watched(getattr(state, name), mark))
        return kind.plan(configured.method, seen, replace(view, receipts=_Receipts(view.receipts, mark)), rng)

    object.__setattr__(method, "plan", plan)
    marked = copy.copy(configured)
    marked.method = method
    return marked


class _Watched(UserDict[str, Any]):
    """A dictionary that calls ``mark`` whenever it is read."""

    def __init__(self, values: Mapping[str, Any], mark: Mark) -> None:
        self.values_, self.mark = dict(values), mark

    @property
    def data(self) -> dict[str, Any]:  # type: ignore[override]  # through which all that a UserDict does goes
        self.mark()
        return self.values_


class _Receipts(tuple[Any, ...]):
    """A tuple that calls ``mark`` whenever it is read."""

    mark: Mark

    def __new__(cls, values: tuple[Any, ...], mark: Mark) -> _Receipts:
        made = super().__new__(cls, values)
        made.mark = mark
        return made

    def __iter__(self) -> Any:
        self.mark()
        return super().__iter__()

    def __len__(self) -> int:
        self.mark()
        return super().__len__()

    def __getitem__(self, place: Any) -> Any:
        self.mark()
        return super().__getitem__(place)
