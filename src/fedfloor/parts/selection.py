"""Who may take part in a round: the policies that ``[method] selection`` names for any method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedfloor.errors import SettingError, require
from fedfloor.parts import named
from fedfloor.parts.sampling import by_samples, fraction
from fedfloor.plan.nodes import Scalar


class Selection(Protocol):
    """A policy, a frozen dataclass of its numbers."""

    def draw(self, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> list[int]:
        """Return who may take part, ascending.

        Args:
            devices: all device numbers.
            sizes: samples of each, int64 [K].
            rng: where chance comes from.
        """
        ...


@dataclass(frozen=True)
class Everyone(Selection):
    """Every device, in every round."""

    kind: Literal["everyone"] = "everyone"

    def draw(self, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> list[int]:  # noqa: ARG002
        """Return all."""
        return list(devices)


@dataclass(frozen=True)
class Fraction(Selection):
    """max(1, round(C·K)) devices drawn uniformly without replacement.

    Args:
        share: C, in (0, 1].
    """

    share: float = 0.1
    kind: Literal["fraction"] = "fraction"

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "selection.share", self.share, "above 0 and at most 1")

    def draw(self, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> list[int]:  # noqa: ARG002
        """Return those drawn."""
        return fraction(devices, self.share, rng)


@dataclass(frozen=True)
class BySamples(Selection):
    """max(1, round(C·K)) devices drawn without replacement, each draw in proportion to their samples n_k.

    Args:
        share: C, in (0, 1].
    """

    share: float = 0.1
    kind: Literal["by_samples"] = "by_samples"

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "selection.share", self.share, "above 0 and at most 1")

    def draw(self, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> list[int]:
        """Return those drawn."""
        return by_samples(devices, sizes, self.share, rng)


SELECTIONS: Mapping[str, Callable[..., Selection]] = {
    "everyone": Everyone,
    "fraction": Fraction,
    "by_samples": BySamples,
}


def policy(name: str, settings: Mapping[str, Scalar]) -> Selection:
    """Return a policy by name, or ``module:Name`` of your own, with its numbers.

    Raises:
        SettingError: no policy of this name, a setting it does not have, one that is missing or out of range; or one of
            your own that is incomplete.

    >>> policy("fraction", {"share": 0.5})
    Fraction(share=0.5, kind='fraction')
    """
    found: Selection = named.make("selection", name, settings, SELECTIONS, Selection)
    named.complete("selection", name, found, Selection, writes=("draw",))
    return found


def drawn(chosen: Selection, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> tuple[int, ...]:
    """Return who may take part in a round, ascending.

    Args:
        chosen: the policy.
        devices: all device numbers.
        sizes: samples of each, int64 [K].
        rng: where chance comes from.

    Raises:
        SettingError: a policy of your own returns nobody, or something else than devices, each once.
    """
    said = chosen.draw(devices, sizes, rng)
    found = list(said) if isinstance(said, Iterable) else []
    if not found or any(k not in devices for k in found):
        raise SettingError(
            f"selection {type(chosen).__name__}: draw must return a list of device numbers, 0 to {len(devices) - 1}, "
            f"at least one, got {said!r:.80}."
        )
    if len(set(found)) < len(found):
        raise SettingError(f"selection {type(chosen).__name__}: draw returned a device twice: {found!r:.80}.")
    return tuple(sorted(int(k) for k in found))
