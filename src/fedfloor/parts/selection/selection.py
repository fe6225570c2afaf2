"""Selection of devices: at random by share or samples, by a ``Select`` node's policy, or as super nodes by census."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.park.park import Park
from fedfloor.parts import fitting, named
from fedfloor.plan.nodes import Scalar, Select, Work

NODES = 200_000  # of the search tree of ``exact``: some ten milliseconds; rarely reached with 40 devices per factory
Floats = NDArray[np.float64]


def chosen(
    node: Select, census: np.ndarray, held: np.ndarray, rng: np.random.Generator, known: Iterable[str] = ()
) -> list[int]:
    """Return the devices of a super node, ascending: a few at random, then those that complement them best.

    Candidates that report no samples cannot train and are left out. If fewer than ``how_many`` candidates remain, all
    of them form the super node.

    ``node``: its policy is the name of a solver of :mod:`fedfloor.solvers.selection`. ``census``: the class counts
    reported by the candidates, [candidates, F]. ``held``: the candidates' numbers of samples, [candidates].
    """
    from fedfloor.solvers.selection.problem import SelectionProblem
    from fedfloor.solvers.selection.solve import SOLVERS, exact, solve

    if node.policy not in SOLVERS:
        raise unknown("selection policy", node.policy, (*known, *SOLVERS))
    if len(node.share) != census.shape[1]:
        raise SettingError(
            f"select share has {len(node.share)} entries: the census counts {census.shape[1]} classes.", key="select"
        )
    some = np.flatnonzero(census.sum(1) > 0)
    if not some.size:
        raise SettingError(
            f"select at {node.at}: none of its {len(node.candidates)} candidates has any samples.", key="select"
        )
    devices = np.asarray(node.candidates)[some]
    if some.size <= node.how_many:
        return sorted(devices.tolist())
    counts = trained_on(settled(census[some], held[some]), held[some], node.work)
    drawn = rng.choice(some.size, node.random, replace=False)
    left = np.ones(some.size, bool)
    left[drawn] = False
    others = np.flatnonzero(left)
    given = counts[drawn].sum(0)
    share = np.asarray(node.share)
    how_many = node.how_many - len(drawn)
    whole = counts.sum(1).mean() * how_many + given.sum()
    problem = SelectionProblem(counts.T[:, others], whole * share - given, how_many, share, given)
    solver_seed = int(rng.integers(2**32))
    if node.policy == "exact":  # limited by nodes, not by seconds: the same result on every machine
        best = others[exact(problem, nodes=NODES, seed=solver_seed).choice]
    else:
        best = others[solve(node.policy, problem, seed=solver_seed).choice]
    return sorted(devices[np.concatenate([drawn, best])].tolist())


def settled(census: np.ndarray, held: np.ndarray) -> Floats:
    """Return the counts, float64 [N, F], nearest to reported ones that are not negative and add up to the samples.

    Without noise they equal the reported counts. With noise they are max(c − τ, 0) with τ such that Σ = held: a
    function of the report alone, so it reveals nothing more about the device. Duchi, Shalev-Shwartz, Singer, Chandra,
    "Efficient projections onto the ℓ1-ball for learning in high dimensions", ICML 2008.

    ``census``: the reported counts [N, F]. ``held``: numbers of samples [N], above 0.

    >>> settled(np.array([[3, 1, 0], [4, 2, 0]]), np.array([4, 4])).tolist()
    [[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]
    """
    counts = census.astype(np.float64)
    off = np.flatnonzero(counts.sum(1) != held)
    if off.size:
        largest = -np.sort(-counts[off], axis=1)
        over = largest.cumsum(1) - held[off, None]
        many = np.arange(1, census.shape[1] + 1)
        last = (largest * many > over).sum(1)
        tau = over[np.arange(off.size), last - 1] / last
        counts[off] = np.maximum(counts[off] - tau[:, None], 0.0)
    return counts


def trained_on(counts: Floats, held: np.ndarray, work: Work) -> Floats:
    """Return the expected samples of each class that a visit processes, float64 [N, F]; two passes count twice.

    ``counts``: the samples of each class, [N, F]. ``held``: numbers of samples, [N].

    >>> trained_on(np.array([[6.0, 2.0]]), np.array([8]), Work(steps=1, batch_size=4)).tolist()
    [[3.0, 1.0]]
    """

    def used(n: int) -> int:
        if work.steps is None:
            return (work.epochs or 0) * n
        full, rest = divmod(work.steps, -(-n // work.batch_size))
        return full * n + min(rest * work.batch_size, n)

    times = {n: used(n) / n for n in set(held.tolist())}
    if set(times.values()) == {1.0}:
        return counts
    scaled: Floats = counts * np.array([[times[n]] for n in held.tolist()])
    return scaled


Census = Callable[[Sequence[int], int], np.ndarray]
Policy = Callable[[Sequence[int], int, np.ndarray, np.random.Generator], list[int]]


def _draw(devices: Sequence[int], how_many: int, rng: np.random.Generator) -> list[int]:
    places = rng.choice(len(devices), size=how_many, replace=False)  # by index: a range would become an array
    return sorted(int(devices[i]) for i in places.tolist())


POLICIES: dict[str, Policy] = {
    "everyone": lambda candidates, how_many, census, rng: list(candidates),  # noqa: ARG005
    "uniform": lambda candidates, how_many, census, rng: _draw(candidates, how_many, rng),  # noqa: ARG005
}


def choose(node: Select, census: np.ndarray, held: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Select devices by a node's policy.

    ``node``: its policy is one of :data:`POLICIES`, or a solver of :mod:`fedfloor.solvers.selection`; see
    :func:`chosen`. ``census``: the class counts reported by the candidates, [candidates, F]; no rows for policies that
    need none. ``held``: the candidates' numbers of samples, [candidates].

    Returns:
        The numbers of the selected devices, ascending.

    >>> from fedfloor.plan.nodes import Work
    >>> node = Select("everyone", (4, 7), 2, Work(steps=1))
    >>> choose(node, np.zeros((0, 10)), np.ones(2), np.random.default_rng(0))
    [4, 7]
    """
    if not 1 <= node.how_many <= len(node.candidates):
        raise SettingError(
            f"select how_many = {node.how_many}: must be 1 to {len(node.candidates)}, the number of candidates.",
            key="select",
        )
    require(0 <= node.random <= node.how_many, "select random", node.random, f"from 0 to how_many = {node.how_many}")
    if node.policy in POLICIES:
        return POLICIES[node.policy](node.candidates, node.how_many, census, rng)
    return chosen(node, census, held, rng, known=POLICIES)


def fraction(devices: Sequence[int], share: float, rng: np.random.Generator) -> list[int]:
    """Return max(1, round(share · K)) of K devices drawn uniformly without replacement, in ascending order.

    McMahan et al., AISTATS 2017: the fraction C of FedAvg.

    >>> fraction(range(4), 1.0, np.random.default_rng(0))
    [0, 1, 2, 3]
    """
    return _draw(devices, max(1, round(share * len(devices))), rng)


def by_samples(devices: Sequence[int], sizes: np.ndarray, share: float, rng: np.random.Generator) -> list[int]:
    """Return max(1, round(share · K)) of K devices drawn without replacement with probabilities p_k ∝ n_k, ascending.

    Devices are drawn one after the other, in proportion to the samples of the remaining devices. If all devices hold
    the same number of samples, it is the draw of :func:`fraction` with the same random numbers, so that a method with
    this selection can be FedAvg to the bit.

    ``sizes``: n_k > 0, the number of samples of every device of the park, [all devices]. ``share``: C in (0, 1].

    >>> by_samples([0, 2, 3], np.array([5, 0, 10**9, 5]), 0.4, np.random.default_rng(0))
    [2]
    """
    held = sizes if devices == range(len(sizes)) else sizes[np.asarray(devices)]
    how_many = max(1, round(share * len(devices)))
    if how_many == len(devices) or (held == held[0]).all():
        return fraction(devices, share, rng)
    places = rng.choice(len(devices), size=how_many, replace=False, p=held / held.sum())
    return sorted(int(devices[i]) for i in places.tolist())


def selected(
    node: Select, park: Park, seed: int, round_number: int, tick: int, visits: Mapping[int, int],
    trained: Mapping[int, int], census: Census | None = None,
) -> list[int]:  # fmt: skip
    """Return the devices that a ``Select`` node selects at a tick of a round, ascending.

    ``census``: the function that returns devices' class counts at a tick, int64 [devices, F]; None: those of the park.
    """
    reporting = node.candidates if node.reads_census else ()
    census = census or (lambda devices, tick: park.census(devices, tick, [trained.get(k, 0) for k in devices]))
    counts = census(reporting, tick)
    seen = sum(visits.get(k, 0) for k in node.candidates)
    place = (round_number, tick, min(node.candidates, default=-1), seen)  # the next selection is another draw
    rng = generator(seed, f"select {node.policy} {node.at}", *place)
    return choose(node, counts, park.holdings[list(node.candidates)], rng)


class Selection(Protocol):
    """A selection policy, a frozen dataclass of its settings.

    Attributes:
        chance: q, the probability with which each device is drawn independently of the others; None otherwise.
    """

    @property
    def chance(self) -> float | None:
        return None

    @property
    def traits(self) -> Mapping[str, str]:
        """The traits of the policy that others exclude."""
        return {fitting.DRAWS: ""}

    @property
    def excludes(self) -> Mapping[str, str]:
        """The traits of methods and settings that it excludes, with reasons: :mod:`fedfloor.parts.fitting`."""
        return {
            fitting.DRAWS: "leave one of the two out.",
            fitting.SUMS: "the sums would be those of the drawn devices alone. Leave it out.",
            fitting.CLOCK: "its visits depart as others arrive, not in rounds of drawn devices. Leave it out, and set "
            "the method's concurrency.",
        }

    def draw(self, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> list[int]:
        """Return the devices that may take part, ascending.

        Args:
            devices: all device numbers.
            sizes: the number of samples of each device, int64 [K].
            rng: the generator of random draws.
        """
        ...


@dataclass(frozen=True)
class Everyone(Selection):
    """Every device, in every round."""

    kind: Literal["everyone"] = "everyone"

    @property
    def traits(self) -> Mapping[str, str]:
        return {}

    @property
    def excludes(self) -> Mapping[str, str]:
        return {fitting.DRAWS: super().excludes[fitting.DRAWS]}

    def draw(self, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> list[int]:
        return list(devices)


@dataclass(frozen=True)
class _Share(Selection):
    share: float = 0.1

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "selection.share", self.share, "above 0 and at most 1")


@dataclass(frozen=True)
class Fraction(_Share):
    """max(1, round(C·K)) devices drawn uniformly without replacement.

    Args:
        share: C, in (0, 1].
    """

    kind: Literal["fraction"] = "fraction"

    def draw(self, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> list[int]:
        return fraction(devices, self.share, rng)


@dataclass(frozen=True)
class DrawBySamples(_Share):
    """max(1, round(C·K)) devices drawn without replacement, with probabilities proportional to their samples n_k.

    Args:
        share: C, in (0, 1].
    """

    kind: Literal["by_samples"] = "by_samples"

    def draw(self, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> list[int]:
        return by_samples(devices, sizes, self.share, rng)


@dataclass(frozen=True)
class Poisson(_Share):
    """Poisson sampling: every device takes part with probability q, independently of the others.

    An empty draw is repeated, as a round cannot be empty. This changes the distribution of rounds by at most
    P(empty) = (1 − q)^K, which the privacy accounting adds to δ.

    Args:
        share: q, in (0, 1].
    """

    kind: Literal["poisson"] = "poisson"

    @property
    def chance(self) -> float | None:
        return self.share

    def draw(self, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> list[int]:
        if self.share * len(devices) < 1:
            raise SettingError(
                f"selection.share = {self.share} of {len(devices)} devices is less than one per round on average. "
                f"Set at least {1 / len(devices):.3g}."
            )
        while not (taken := rng.random(len(devices)) < self.share).any():
            pass
        return [k for k, drawn in zip(devices, taken.tolist(), strict=True) if drawn]


_SELECTIONS: tuple[Any, ...] = (Everyone, Fraction, DrawBySamples, Poisson)
SELECTIONS: Mapping[str, Callable[..., Selection]] = {policy.kind: policy for policy in _SELECTIONS}


def policy(name: str, settings: Mapping[str, Scalar]) -> Selection:
    """Return a policy by name, or the user's ``module:Name``, with its settings.

    >>> policy("fraction", {"share": 0.5})
    Fraction(share=0.5, kind='fraction')
    """
    return named.make("selection", name, settings, SELECTIONS, Selection, ("draw",))  # type: ignore[no-any-return]


def drawn(chosen: Selection, devices: Sequence[int], sizes: np.ndarray, rng: np.random.Generator) -> tuple[int, ...]:
    """Return the devices that a policy draws for a round, ascending; ``sizes``: samples of each device, int64 [K]."""
    answer = chosen.draw(devices, sizes, rng)
    numbers = list(answer) if isinstance(answer, Iterable) else []
    if not numbers or any(k not in devices for k in numbers):
        raise SettingError(
            f"selection {type(chosen).__name__}: draw must return a list of one or more device "
            f"numbers, 0 to {len(devices) - 1}, got {answer!r:.80}.",
            key="own-selection",
        )
    if len(set(numbers)) < len(numbers):
        raise SettingError(
            f"selection {type(chosen).__name__}: draw returned a device twice: {numbers!r:.80}.", key="own-selection"
        )
    return tuple(sorted(int(k) for k in numbers))
