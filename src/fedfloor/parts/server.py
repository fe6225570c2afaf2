"""Servers: optimisers of the cloud, which use a round's mean change as a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from fedfloor.base.errors import SettingError, require
from fedfloor.parts import fitting, named
from fedfloor.plan.nodes import Scalar

if TYPE_CHECKING:  # methods refer to servers by name, so that listing methods does not import PyTorch
    from numpy.random import Generator
    from torch import Tensor

    Moments = Mapping[str, Tensor]
    Stepped = tuple[Tensor, dict[str, Tensor]]  # the new model [P], and the moments for the next step


class Server(Protocol):
    """A server's optimiser, a frozen dataclass of its settings."""

    @property
    def excludes(self) -> Mapping[str, str]:
        """The traits of methods and settings that it excludes, with reasons: :mod:`fedfloor.parts.fitting`."""
        return {
            fitting.SEPARATE: "there is no mean to step with. Leave it out.",
            fitting.COHORTS: "its moments are of a single model. Leave it out, or choose another method.",
            fitting.PARTIAL: "the server's momentum or rate would move the rest. Leave it out: the mixed model is then "
            "the next one.",
        }

    def step(self, model: Tensor, mean: Tensor, moments: Moments, rng: Generator | None = None) -> Stepped:
        """Return (new model [P], new moments: flat tensors by name, checkpointed); the arguments must not change.

        Args:
            model: w, the trained part of the global model at the round's start, float32 [P].
            mean: the mean of the round's models, float32 [P].
            moments: the moments of the previous step, by name; empty before the first.
            rng: the generator of random draws, keyed by the seed and the round.
        """
        ...


@dataclass(frozen=True)
class Sgd(Server):
    """SGD with momentum on the server: Δ = mean − w, m ← βm + Δ, w ← w + ηm.

    With rate = 1 and momentum = 0 it is FedAvg, to the bit; with momentum = 0.9 it is FedAvgM. The first m is Δ. There
    is no factor (1 − β) before Δ, so that a constant Δ is finally multiplied by 1/(1 − β). Hsu et al., arXiv
    1909.06335.

    Args:
        rate: η.
        momentum: β in [0, 1).

    >>> import torch
    >>> Sgd(rate=0.5).step(torch.tensor([1.0]), torch.tensor([3.0]), {})
    (tensor([2.]), {})
    """

    rate: float = 1.0
    momentum: float = 0.0
    kind: Literal["sgd"] = "sgd"

    @property
    def excludes(self) -> Mapping[str, str]:
        return {} if self == Sgd() else super().excludes

    def __post_init__(self) -> None:
        _check(self.rate, momentum=self.momentum)

    def step(self, model: Tensor, mean: Tensor, moments: Moments, rng: Generator | None = None) -> Stepped:
        """Return (new model [P], new moments: ``m`` [P] if there is momentum); see :func:`step`."""
        if self.momentum == 0:
            # FedAvg is the mean itself: w + (mean − w) would be rounded twice
            return (mean.clone() if self.rate == 1 else model.lerp(mean, self.rate)), {}
        m = _moment(moments, "m", model, 0.0) * self.momentum
        m += mean - model
        return model.add(m, alpha=self.rate), {"m": m}


@dataclass(frozen=True)
class Adagrad(Server):
    """FedAdagrad: Δ = mean − w, m ← β1·m + (1 − β1)Δ, v ← v + Δ², w ← w + ηm/(√v + τ).

    v starts at τ², the smallest value allowed by Algorithm 2 of the paper (v₋₁ ≥ τ²); the code of Google and Flower
    starts at 0. The default rate was tuned with another τ. Reddi et al., ICLR 2021, arXiv 2003.00295.

    Args:
        rate: η.
        beta1: the decay of m; 0, the paper's choice: no m.
        tau: τ, the deviation of the step from one that is equal for every weight.
    """

    rate: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3
    kind: Literal["adagrad"] = "adagrad"

    def __post_init__(self) -> None:
        _check(self.rate, self.tau, beta1=self.beta1)

    def step(self, model: Tensor, mean: Tensor, moments: Moments, rng: Generator | None = None) -> Stepped:
        delta = mean - model
        v = delta.square().add_(_moment(moments, "v", model, self.tau**2))
        return _adaptive(model, delta, v, moments, self.rate, self.beta1, self.tau)


@dataclass(frozen=True)
class Adam(Server):
    """FedAdam: Δ = mean − w, m ← β1·m + (1 − β1)Δ, v ← β2·v + (1 − β2)Δ², w ← w + ηm/(√v + τ).

    As in Algorithm 2 of the paper there is no bias correction; m starts at 0 and v at τ², the smallest allowed value
    (v₋₁ ≥ τ²), while the code of Google and Flower starts v at 0. β2 = 0.99 and τ = 10⁻³ are the paper's values
    (Google's code has β2 = 0.999); the default rate 10^−2.5 was tuned with another τ. Reddi et al., ICLR 2021, arXiv
    2003.00295.

    Args:
        rate: η.
        beta1: decay of m.
        beta2: decay of v.
        tau: τ, the deviation of the step from one that is equal for every weight.
    """

    rate: float = 0.00316
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    kind: Literal["adam"] = "adam"

    def __post_init__(self) -> None:
        _check(self.rate, self.tau, beta1=self.beta1, beta2=self.beta2)

    def step(self, model: Tensor, mean: Tensor, moments: Moments, rng: Generator | None = None) -> Stepped:
        delta = mean - model
        v = _moment(moments, "v", model, self.tau**2) * self.beta2
        v.addcmul_(delta, delta, value=1 - self.beta2)
        return _adaptive(model, delta, v, moments, self.rate, self.beta1, self.tau)


@dataclass(frozen=True)
class Yogi(Adam):
    """FedYogi: as FedAdam, but v ← v − (1 − β2)Δ² sign(v − Δ²), which grows as fast and shrinks more slowly.

    Args:
        rate: η.
        beta1: decay of m.
        beta2: β2; v changes by at most (1 − β2)Δ².
        tau: τ, the deviation of the step from one that is equal for every weight.
    """

    kind: Literal["yogi"] = "yogi"  # type: ignore[assignment]

    def step(self, model: Tensor, mean: Tensor, moments: Moments, rng: Generator | None = None) -> Stepped:
        delta = mean - model
        square = delta.square()
        v = _moment(moments, "v", model, self.tau**2)
        v = v.addcmul(square, (v - square).sign(), value=self.beta2 - 1)
        return _adaptive(model, delta, v, moments, self.rate, self.beta1, self.tau)


SERVERS: dict[str, Callable[..., Server]] = {"sgd": Sgd, "adagrad": Adagrad, "adam": Adam, "yogi": Yogi}


def optimiser(name: str, settings: Mapping[str, Scalar]) -> Server:
    """Return a server by name, or the user's ``module:Name``, with its settings.

    >>> optimiser("sgd", {"momentum": 0.9})
    Sgd(rate=1.0, momentum=0.9, kind='sgd')
    """
    return named.make("server", name, settings, SERVERS, Server, ("step",))  # type: ignore[no-any-return]


def words(server: Server) -> str:
    """Return a server's name and settings in words.

    >>> words(Sgd(momentum=0.9))
    'sgd, rate 1, momentum 0.9'
    """
    name, settings = named.to_spec(server, SERVERS)
    shown = [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in settings.items()]
    return ", ".join([name, *shown])


def step(server: Server, model: Tensor, mean: Tensor, moments: Moments, rng: Generator | None = None) -> Stepped:
    """Take one step of a server's optimiser, and check its result; the arguments are not changed."""
    after = server.step(model, mean, moments, rng)
    if not isinstance(after, tuple) or len(after) != 2 or getattr(after[0], "shape", None) != model.shape:
        raise SettingError(
            f"server {type(server).__name__}: step must return (new model of {model.numel()} numbers, "
            "{name: moment}), with {} where it keeps none.",
            key="own-server",
        )
    return after


def _adaptive(
    model: Tensor, delta: Tensor, v: Tensor, moments: Moments, rate: float, beta1: float, tau: float
) -> Stepped:
    if beta1 == 0:
        m = delta
        kept = {"v": v}
    else:
        m = _moment(moments, "m", model, 0.0) * beta1
        m.add_(delta, alpha=1 - beta1)
        kept = {"m": m, "v": v}
    return model.addcdiv(m, v.sqrt().add_(tau), value=rate), kept


def _moment(moments: Moments, name: str, like: Tensor, start: float) -> Tensor:
    if name not in moments:
        return like.new_full(like.shape, start)
    if moments[name].shape != like.shape:
        raise SettingError(
            f"the server's moment '{name}' has {moments[name].numel()} numbers, the model {like.numel()}: it belongs "
            "to another model. Resume with the model of the checkpoint, or start a new run.",
            key="state-of-server",
        )
    return moments[name]


def _check(rate: float, tau: float = 1.0, **decays: float) -> None:
    require(0 < rate < math.inf, "server.rate", rate, "a number above 0")
    for name, value in decays.items():
        require(0 <= value < 1, f"server.{name}", value, "at least 0 and below 1")
    require(0 < tau < math.inf, "server.tau", tau, "a number above 0")
