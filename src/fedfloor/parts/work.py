"""The settings of a visit's work: epochs or steps, batch size, optimiser, learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedfloor.base.checking import settle
from fedfloor.base.errors import SettingError, require
from fedfloor.parts import fitting
from fedfloor.parts.objectives.objective import Objective, Plain
from fedfloor.parts.objectives.registry import to_spec
from fedfloor.parts.travel.path import AddedNoise, PathPart
from fedfloor.plan.nodes import Work, factors_text

SAMPLE_DELTA = 1e-5  # δ of the privacy of samples


@dataclass(frozen=True)
class Cosine:
    """Half a cosine over the rounds: η_t = end + ½(start − end)(1 + cos(πt/(R − 1))), t = 0 … R − 1.

    One rate per global round, as in FedSR (arXiv 2403.14718). Loshchilov and Hutter, ICLR 2017.

    >>> Cosine(start=0.01, end=1e-5).at(1, 500), Cosine(start=0.01, end=1e-5).at(500, 500)
    (0.01, 1e-05)
    """

    start: float
    end: float = 0.0
    kind: Literal["cosine"] = "cosine"

    def __post_init__(self) -> None:
        require(self.start > 0 and math.isfinite(self.start), "work.lr.start", self.start, "a number above 0")
        require(0 <= self.end <= self.start, "work.lr.end", self.end, "between 0 and start")

    def at(self, round_number: int, rounds: int) -> float:
        """Return the rate of a round (the first is 1) out of ``rounds``."""
        share = (round_number - 1) / max(1, rounds - 1)
        return self.end + 0.5 * (self.start - self.end) * (1 + math.cos(math.pi * min(1.0, share)))


@dataclass(frozen=True)
class Exponential:
    """A constant factor per round: η_t = max(end, start · factor^t), t = 0 … R − 1.

    >>> Exponential(start=0.1, factor=0.5).at(3, 10)
    0.025
    """

    start: float
    factor: float
    end: float = 0.0
    kind: Literal["exponential"] = "exponential"

    def __post_init__(self) -> None:
        require(self.start > 0 and math.isfinite(self.start), "work.lr.start", self.start, "a number above 0")
        require(0 < self.factor <= 1, "work.lr.factor", self.factor, "above 0 and at most 1")
        require(0 <= self.end <= self.start, "work.lr.end", self.end, "between 0 and start")

    def at(self, round_number: int, rounds: int) -> float:
        """Return the rate of a round (the first is 1); ``rounds`` has no effect."""
        return max(self.end, self.start * self.factor ** (round_number - 1))


@dataclass(frozen=True, kw_only=True)
class WorkSettings(PathPart):
    """The ``[work]`` table: the work of a visit. None marks a missing setting, so that tables can override each other.

    Args:
        epochs: passes over the device's data; excludes ``steps``. One without both.
        steps: the number of mini-batches.
        batch_size: the number of samples in a mini-batch; 32 by default.
        lr: the learning rate, a number or a schedule over the rounds; 0.01 by default.
        warmup: the number of first rounds in which the rate rises in equal steps to that of ``lr``: it is multiplied by
            min(1, round/warmup). It counts rounds, as schedules do, so that every visit has a single rate.
        lr_factors: factors by which the rate is multiplied in parts of the model, of at least 0: the name of a part
            (:meth:`fedfloor.models.network.Network.numbers`) → the factor. Parts must not overlap; the factor of the
            rest is 1. None by default.
        optimizer: ``sgd``, or ``adam`` or ``adamw`` as in PyTorch; ``sgd`` by default.
        momentum: β of SGD, in [0, 1); 0 by default.
        betas: β₁ and β₂ of Adam and AdamW, in [0, 1); 0.9 and 0.999 by default.
        eps: ε of Adam and AdamW, above 0; 1e-8 by default.
        moments: ``visit``, the default: momentum and Adam's means begin at 0 in every visit; ``device``: the device
            keeps them between visits and never sends them.
        weight_decay: the L2 coefficient, for AdamW decoupled from the gradient; 0 by default.
        clip_norm: the norm to which a mini-batch's gradient is clipped; ``inf``, the default: no clipping.
        sample_clip: the norm to which every sample's gradient is clipped, for differentially private SGD, in which
            mini-batches are Poisson samples of ``batch_size`` on average; by default no such SGD.
        sample_noise: the standard deviation of its Gaussian noise, in units of ``sample_clip``; 0 by default.
        short_batches: whether a device with fewer samples than a mini-batch may take part, with all of them as one
            mini-batch; by default a park with such devices is refused.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    lr: float | Cosine | Exponential | None = None
    warmup: int | None = None
    lr_factors: Mapping[str, float] | None = None
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    moments: Literal["visit", "device"] | None = None
    weight_decay: float | None = None
    clip_norm: float | None = None
    sample_clip: float | None = None
    sample_noise: float | None = None
    short_batches: bool | None = None

    @property
    def privacy(self) -> AddedNoise | None:
        """The noise of steps with clipped gradients of samples; with noise 0 only clipped, and without a bound on ε."""
        if self.sample_clip is None:
            return None
        visit = self.at(1, 1)

        def steps(samples: int) -> tuple[float, int]:
            return min(1.0, visit.batch_size / samples), visit.batches(samples)

        return AddedNoise(
            "steps", self.sample_noise or 0.0, SAMPLE_DELTA, "work.sample_noise", {"clip": self.sample_clip}, steps
        )

    @property
    def excludes(self) -> Mapping[str, str]:
        accuracy = "devices withhold it, as it has no noise. Choose another rule, such as by_samples."
        return {} if self.sample_clip is None else {**super().excludes, fitting.READS_ACCURACY: accuracy}

    def __post_init__(self) -> None:
        settle(self, "work")
        if self.epochs is not None and self.steps is not None:
            raise SettingError(
                f"work has epochs = {self.epochs} and steps = {self.steps}: give one of them.", key="work"
            )
        for name in ("epochs", "steps", "batch_size", "warmup"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"work.{name}", value, "a whole number of at least 1")
        beta = self.momentum
        decay = self.weight_decay
        rate = self.lr
        require(beta is None or 0 <= beta < 1, "work.momentum", beta, "at least 0 and below 1")
        require(decay is None or 0 <= decay < math.inf, "work.weight_decay", decay, "at least 0")
        if isinstance(rate, (int, float)):
            require(0 < rate < math.inf, "work.lr", rate, "a number above 0")
        for name, factor in (self.lr_factors or {}).items():
            right = bool(name.strip()) and ";" not in name
            require(right, "work.lr_factors", name, "names of parts of the model, without ';'")
            require(0 <= factor < math.inf, f"work.lr_factors.{name}", factor, "a number of at least 0")
        inside = self.betas is None or all(0 <= beta < 1 for beta in self.betas)
        require(inside, "work.betas", list(self.betas or ()), "two numbers, at least 0 and below 1")
        require(self.eps is None or 0 < self.eps < math.inf, "work.eps", self.eps, "a number above 0")
        norm = self.clip_norm
        require(norm is None or norm > 0, "work.clip_norm", norm, "a number above 0, or inf for no clipping")
        for name, least in (("sample_clip", "above 0"), ("sample_noise", "of at least 0")):
            value = getattr(self, name)
            right = value is None or (0 <= value < math.inf and (value > 0 or name == "sample_noise"))
            require(right, f"work.{name}", value, f"a finite number {least}")
        if self.momentum and self.optimizer in ("adam", "adamw"):
            raise SettingError(
                f"work.momentum = {beta} belongs to optimizer 'sgd', and work.optimizer is '{self.optimizer}': its "
                "means are set by work.betas = [0.9, 0.999]. Leave momentum out."
            )
        for name in ("betas", "eps") if self.optimizer == "sgd" else ():
            if getattr(self, name) is not None:
                raise SettingError(
                    f"work.{name} belongs to optimizers 'adam' and 'adamw', and work.optimizer is 'sgd'. Leave {name} "
                    'out, or set work.optimizer = "adam".',
                    key="work.betas",
                )

    def over(self, below: WorkSettings) -> WorkSettings:
        """Return these settings, with missing settings taken from ``below``.

        >>> work = WorkSettings(steps=1).over(WorkSettings(epochs=5, batch_size=10))
        >>> work.steps, work.epochs, work.batch_size
        (1, None, 10)
        >>> WorkSettings(optimizer="adam").over(WorkSettings(momentum=0.9)).momentum is None
        True
        """
        given = {name: value for name, value in vars(self).items() if value is not None}
        base = dict(vars(below))
        if given.get("optimizer", below.optimizer) != below.optimizer:
            base |= {"momentum": None, "betas": None, "eps": None}  # each optimiser has its own settings
        if "epochs" in given or "steps" in given:
            base |= {"epochs": None, "steps": None}
        return WorkSettings(**{**base, **given})

    def at(self, round_number: int, rounds: int, objective: Objective | None = None) -> Work:
        """Return the work of a round, with the schedule's rate, and defaults for missing settings.

        Args:
            round_number: the number of the round, from 1.
            rounds: the number of rounds in the whole schedule.
            objective: the objective that devices minimise; plain cross-entropy by default.
        """
        name, settings = to_spec(objective or Plain())
        full = self.over(DEFAULTS)
        if full.sample_noise and full.sample_clip is None:
            raise SettingError(
                f"work.sample_noise = {full.sample_noise} without work.sample_clip: without a bound on gradients no "
                "noise hides a sample. Set work.sample_clip, such as 1.0."
            )
        rate = full.lr.at(round_number, rounds) if isinstance(full.lr, (Cosine, Exponential)) else full.lr
        if full.warmup is not None and round_number < full.warmup:
            rate = (rate or 0) * round_number / full.warmup
        given = {key: value for key in SAME if (value := getattr(full, key)) is not None}
        if full.betas is not None:
            given["beta1"], given["beta2"] = full.betas
        if full.clip_norm == math.inf:
            given["clip_norm"] = None
        if full.lr_factors:
            given["factors"] = factors_text(full.lr_factors)
        return Work(name, rate=float(rate or 0), settings=settings, **given)


# settings that are fields of a work unchanged
SAME = ("epochs", "steps", "batch_size", "momentum", "weight_decay", "optimizer", "eps", "moments", "clip_norm",
        "sample_clip", "sample_noise")  # fmt: skip
DEFAULTS = WorkSettings(epochs=1, batch_size=32, lr=0.01, optimizer="sgd", momentum=0.0, weight_decay=0.0)
