"""Attacks by devices in a simulation: on the update that a visit sends back, or on the data of a visit's training.

An attack on updates is a function of the update Δ = w_k − w that honest training would have sent. Attackers that act
``together`` know each other's data, so that each of them can compute the honest updates of all attackers. Updates of
honest devices are unknown to every attacker. An attack on data changes the samples of an attacker's own visits; the
update then results from honest training on these samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.base.outside import own_name
from fedfloor.parts import fitting, named
from fedfloor.parts.travel.path import PathPart

if TYPE_CHECKING:
    from torch import Tensor

    from fedfloor.data.dataset import Labels, Targets, Values

ABOVE_0 = ("strength", "deviation", "z", "epsilon")  # settings of attacks that must be greater than 0
SINGLE = 1e-12  # squared length of a deviation below which updates are equal


@dataclass(frozen=True)
class AttackedVisit:
    """The facts of an attacker's visit that an attack on its update may read.

    Args:
        update: Δ = w_k − w, the honest update of the trained parameters that travel [n]; an attack must not change it.
        every: the honest updates of all attackers, in device order; empty unless the attack acts ``together``.
        earlier: the model received in the device's previous visit minus the present one [n]; None in the first visit,
            and unless the attack ``keeps`` it.
        rng: the generator of random draws, keyed by the visit.
        common: the generator of draws that all attackers have in common in all rounds, keyed by the seed alone.
        layout: the place of each trained tensor in the update: name → (first, last + 1), without those that stay.
    """

    update: Tensor
    every: Sequence[Tensor]
    earlier: Tensor | None
    rng: np.random.Generator
    common: np.random.Generator
    layout: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class AttackedData:
    """The facts of an attacker's data that an attack on them may read.

    Args:
        x: the stored samples, uint8 or float32 [n, *shape].
        y: the samples' classes, int64 [n].
        classes: F, the number of classes.
        mean, deviation: mean and standard deviation of each channel [C], in units of the stored numbers.
        rng: the generator of random draws, keyed by the visit.
    """

    x: Values
    y: Labels
    classes: int
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    rng: np.random.Generator


class Attack(PathPart):
    """The base of attacks, built in or your own: a frozen dataclass of settings that overrides ``sent`` or ``data``.

    Attributes:
        needs_classes: whether the attack is defined for classification only.
        together: whether it reads the honest updates of all attackers; at least ``least`` attackers are needed.
        keeps: whether it reads the model received in the device's previous visit.
    """

    needs_classes: ClassVar[bool] = False
    together: ClassVar[bool] = False
    least: ClassVar[int] = 1
    keeps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ABOVE_0:
            value = getattr(self, name, 1.0)
            require(0 < value < math.inf, f"faults.attackers.{name}", value, "a number above 0")

    @property
    def excludes(self) -> Mapping[str, str]:
        return {fitting.LIVE: "attacks are simulated. Leave it out, or run the experiment as a simulation."}

    def sent(self, visit: AttackedVisit) -> Tensor:
        """Return the update that the attacker sends [n], a new tensor or the honest update itself."""
        return visit.update

    def data(self, samples: AttackedData) -> tuple[Values, Labels | Targets]:
        """Return the samples for the attacker's training and their classes, new arrays or the unchanged ones."""
        return samples.x, samples.y


@dataclass(frozen=True)
class SignFlip(Attack):
    """The reversed update: −s·Δ with the ``strength`` s."""

    strength: float = 1.0

    def sent(self, visit: AttackedVisit) -> Tensor:
        return visit.update * -self.strength


@dataclass(frozen=True)
class ScaledUpdate(Attack):
    """The enlarged update: s·Δ with the ``strength`` s."""

    strength: float = 10.0

    def sent(self, visit: AttackedVisit) -> Tensor:
        return visit.update * self.strength


@dataclass(frozen=True)
class Gaussian(Attack):
    """Noise instead of the update: N(0, σ²I) with the ``deviation`` σ of each number.

    Blanchard et al., NeurIPS 2017, with σ = 200.
    """

    deviation: float = 1.0

    def sent(self, visit: AttackedVisit) -> Tensor:
        return _like(visit.update, visit.rng.normal(0.0, self.deviation, len(visit.update)))


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """ALIE: μ − z·σ in every coordinate, with the mean μ and the standard deviation σ of the attackers' honest updates.

    Baruch, Baruch, Goldberg, NeurIPS 2019, arXiv 1902.06156. The deviation is estimated from the attackers alone; an
    attack with a small z hides among honest updates.
    """

    z: float = 1.5
    together: ClassVar[bool] = True
    least: ClassVar[int] = 2  # a single update has no standard deviation

    def sent(self, visit: AttackedVisit) -> Tensor:
        mean, deviation = _moments(visit.every)
        return mean - self.z * deviation


@dataclass(frozen=True)
class MinMax(Attack):
    """Min-max: μ − γσ with the largest γ for which no honest update is farther away than two of them are apart.

    γ = max{γ: max_i ‖μ − γσ − Δ_i‖ ≤ max_{i,j} ‖Δ_i − Δ_j‖} over the attackers' honest updates, in closed form: each i
    bounds γ by the larger root of a quadratic. Shejwalkar, Houmansadr, NDSS 2021, where γ is found by halving steps.
    """

    together: ClassVar[bool] = True
    least: ClassVar[int] = 2

    def sent(self, visit: AttackedVisit) -> Tensor:
        mean, deviation = _moments(visit.every)
        length = float(deviation.double().square().sum())
        if length < SINGLE:
            return mean
        diameter = max(float((a - b).double().square().sum()) for a in visit.every for b in visit.every)
        bounds = []
        for update in visit.every:  # ‖o − γσ‖² = ‖o‖² − 2γ⟨o, σ⟩ + γ²‖σ‖² ≤ D²
            apart = (mean - update).double()
            inner = float(apart @ deviation.double())
            square = float(apart.square().sum())
            bounds.append((inner + math.sqrt(max(0.0, inner**2 - length * (square - diameter)))) / length)
        return mean - min(bounds) * deviation


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Inner-product manipulation: −ε·μ with the mean μ of the attackers' honest updates.

    If ε is below the ratio of honest devices to attackers, the mean still descends, only more slowly; above it, the
    mean ascends. Xie, Koyejo, Gupta, UAI 2019, arXiv 1903.03936.
    """

    epsilon: float = 0.5
    together: ClassVar[bool] = True

    def sent(self, visit: AttackedVisit) -> Tensor:
        return _moments(visit.every)[0] * -self.epsilon


@dataclass(frozen=True)
class Collusion(Attack):
    """The same direction for all attackers in all rounds: s·‖μ‖·u, with a unit vector u drawn by the seed.

    μ is the mean of the attackers' honest updates. All attackers send the same vector, which is as long as honest
    updates if s = 1: they appear to be close neighbours, and the accepted changes add up over the rounds. This drift
    from round to round is that of Karimireddy, He, Jaggi, ICML 2021, arXiv 2012.10333.
    """

    strength: float = 1.0
    together: ClassVar[bool] = True

    def sent(self, visit: AttackedVisit) -> Tensor:
        direction = _like(visit.update, visit.common.standard_normal(len(visit.update)))
        return direction * (self.strength * float(_moments(visit.every)[0].norm()) / float(direction.norm()))


@dataclass(frozen=True)
class FreeRider(Attack):
    """No training: the model is sent back as it arrived, or as it arrived in the previous visit.

    A stale free rider sends the model of its previous visit (in the first visit, the present one), as a machine that
    hangs does. Fraboni, Vidal, Lorenzi, AISTATS 2021, arXiv 2006.11901, call free riders without and with noise plain
    and disguised. The receipt is that of honest training, as an attacker would invent plausible values.

    Args:
        noise: σ of Gaussian noise on each number, which disguises the attack; 0: no noise.
        stale: whether the model of the previous visit is sent.
    """

    noise: float = 0.0
    stale: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.noise < math.inf, "faults.attackers.noise", self.noise, "a number of at least 0")

    @property
    def keeps(self) -> bool:  # type: ignore[override]
        return self.stale

    def sent(self, visit: AttackedVisit) -> Tensor:
        update = visit.update.new_zeros(len(visit.update)) if visit.earlier is None else visit.earlier
        return update + _like(update, visit.rng.normal(0.0, self.noise, len(update))) if self.noise else update


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Relabelled samples: every class c becomes F − 1 − c, or one class becomes another.

    Args:
        source, target: the class to relabel, and its new class; without both, all classes are reversed.
    """

    source: int | None = None
    target: int | None = None
    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (self.source is None) != (self.target is None):
            raise SettingError(
                "faults.attackers.source and target of 'label-flip' go together: set both or none.",
                key="faults.attackers",
            )
        for name, value in (("source", self.source), ("target", self.target)):
            require(value is None or value >= 0, f"faults.attackers.{name}", value, "a class, counted from 0")

    def data(self, samples: AttackedData) -> tuple[Values, Labels | Targets]:
        if self.source is None or self.target is None:
            return samples.x, samples.classes - 1 - samples.y
        for name, value in (("source", self.source), ("target", self.target)):
            _is_class(name, value, samples.classes)
        return samples.x, np.where(samples.y == self.source, self.target, samples.y)


@dataclass(frozen=True)
class Backdoor(Attack):
    """A trigger in a share of the device's samples, which are relabelled as the target class; the update is scaled.

    In pictures the trigger is a square of ``size``×``size`` pixels of full brightness at the lower right (Gu,
    Dolan-Gavitt, Garg, BadNets, arXiv 1708.06733). In rows of sensors the first ``size`` channels are ``offset``
    standard deviations above their mean; in windows, only in their last ``size`` rows. Scaling by s is the model
    replacement of Bagdasaryan et al., AISTATS 2020, arXiv 1807.00459. The success rate is the share of test samples of
    other classes that are predicted as the target if they carry the trigger.

    Args:
        target: the class, counted from 0.
        poisoned: share of the device's samples that carry the trigger, in (0, 1].
        size: the size of the trigger.
        offset: the offset of the trigger in sensors, in standard deviations.
        strength: the factor s of the update.
    """

    target: int = 0
    poisoned: float = 0.5
    size: int = 4
    offset: float = 4.0
    strength: float = 1.0
    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.target >= 0, "faults.attackers.target", self.target, "a class, counted from 0")
        require(0 < self.poisoned <= 1, "faults.attackers.poisoned", self.poisoned, "above 0 and at most 1")
        require(self.size >= 1, "faults.attackers.size", self.size, "a whole number of at least 1")
        require(math.isfinite(self.offset), "faults.attackers.offset", self.offset, "a number")
        super().__post_init__()

    def sent(self, visit: AttackedVisit) -> Tensor:
        return visit.update if self.strength == 1 else visit.update * self.strength

    def data(self, samples: AttackedData) -> tuple[Values, Labels | Targets]:
        _is_class("target", self.target, samples.classes)
        many = max(1, round(self.poisoned * len(samples.y)))
        rows = samples.rng.choice(len(samples.y), many, replace=False)
        x, y = samples.x.copy(), samples.y.copy()
        x[rows] = self.trigger(x[rows], samples.mean, samples.deviation)
        y[rows] = self.target
        return x, y

    def trigger(self, x: Values, mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> Values:
        """Return samples [n, *shape] with the trigger; ``mean`` and ``deviation`` [C] as in :class:`AttackedData`."""
        x = x.copy()
        if x.ndim == 4:
            x[:, :, -self.size :, -self.size :] = 255 if x.dtype == np.uint8 else x.max()
            return x
        value = (mean + self.offset * deviation).astype(x.dtype)[: self.size]
        if x.ndim == 3:
            x[:, : self.size, -self.size :] = value[:, None]
        else:
            x[:, : self.size] = value
        return x


ATTACKS: dict[str, Callable[..., Attack]] = {
    "sign-flip": SignFlip,
    "scaling": ScaledUpdate,
    "gaussian": Gaussian,
    "alie": LittleIsEnough,
    "min-max": MinMax,
    "inner-product": InnerProduct,
    "collusion": Collusion,
    "free-rider": FreeRider,
    "label-flip": LabelFlip,
    "backdoor": Backdoor,
}
WHO = ("share", "count", "devices")  # keys of [faults] attackers beside those of the attack


@dataclass(frozen=True)
class Attackers:
    """The ``[faults] attackers`` table: an attack, and the devices that carry it out.

    Args:
        attack: the attack with its settings.
        share: the share of attacking devices, drawn by the seed, in (0, 1).
        count: the number of attacking devices, drawn by the seed.
        devices: the numbers or names of the attacking devices.
    """

    attack: Attack
    share: float | None = None
    count: int | None = None
    devices: tuple[int | str, ...] | None = None

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Attackers:
        """Return the attackers described by a table; SettingError: a kind or setting is unknown or out of range."""
        which = {key: table[key] for key in WHO if key in table}
        if len(which) != 1:
            got = ", ".join(which) or "none of them"
            raise SettingError(f"faults.attackers: must have exactly one of share, count and devices, but has {got}.")
        kind, share, count, devices = table.get("kind"), *(which.get(key) for key in WHO)
        if not isinstance(kind, str):
            raise SettingError(f"faults.attackers: needs kind, one of {', '.join(sorted(ATTACKS))}.")
        if kind not in ATTACKS and own_name(kind) is None:
            raise unknown("attack faults.attackers.kind", kind, ATTACKS)
        right = share is None or (isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share < 1)
        require(right, "faults.attackers.share", share, "above 0 and below 1")
        right = count is None or (type(count) is int and count >= 1)
        require(right, "faults.attackers.count", count, "a whole number of at least 1")
        if devices is not None:
            listed = isinstance(devices, (list, tuple)) and all(type(device) in (int, str) for device in devices)
            right = listed and 0 < len(devices) == len(set(devices))
            require(right, "faults.attackers.devices", devices, "a list of numbers or names, each given once")
            devices = tuple(devices)
        settings = {key: value for key, value in table.items() if key not in (*WHO, "kind")}
        made = named.make("attack", kind, settings, ATTACKS, Attack)
        return cls(made, share, count, devices)

    def among(self, devices: int, names: Sequence[str], rng: np.random.Generator) -> tuple[int, ...]:
        """Return the numbers of the attackers, ascending.

        Args:
            devices: K, the number of devices of the park.
            names: the devices' names; empty without names.
            rng: the generator that draws the attackers of a share or count.

        Raises:
            SettingError: an unknown device, more attackers than devices, too few to act together, or none.

        >>> Attackers(SignFlip(), count=2).among(4, (), np.random.default_rng(0))
        (2, 3)
        """
        if self.devices is None:
            share = math.floor((self.share or 0) * devices + 1e-9)  # 0.29·100 is 28.999999999999996
            many = share if self.count is None else self.count
            if not 1 <= many <= devices:
                key, got = ("share", self.share) if self.count is None else ("count", self.count)
                raise SettingError(
                    f"faults.attackers.{key} = {got}: {many} attackers of {devices} devices. Let 1 to {devices} attack."
                )
            chosen = {int(k) for k in rng.choice(devices, many, replace=False)}
        else:
            numbers = dict(zip(names, range(devices), strict=False))
            chosen = {numbers.get(device, -1) if isinstance(device, str) else device for device in self.devices}
            if not chosen <= set(range(devices)):
                allowed = ", ".join(names[:10]) if names else f"0 to {devices - 1}"
                raise SettingError(f"faults.attackers.devices = {list(self.devices)}: must be among {allowed}.")
        if len(chosen) < self.attack.least:
            raise SettingError(
                f"faults.attackers: attack '{self.name}' needs at least {self.attack.least} attackers that act "
                f"together, and has {len(chosen)}. Let more attack, or choose another kind."
            )
        return tuple(sorted(chosen))

    @property
    def name(self) -> str:
        """The attack's name."""
        return named.to_spec(self.attack, ATTACKS)[0]


def _is_class(name: str, value: int, classes: int) -> None:
    require(0 <= value < classes, f"faults.attackers.{name}", value, f"a class, 0 to {classes - 1}")


def _like(update: Tensor, numbers: NDArray[np.float64]) -> Tensor:
    """Return numbers as a tensor of an update's type and device."""
    import torch

    return torch.from_numpy(numbers).to(update)


def _moments(updates: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation (with 1/m) of m updates in every coordinate."""
    import torch

    stacked = torch.stack(list(updates))
    return stacked.mean(0), stacked.std(0, correction=0)
