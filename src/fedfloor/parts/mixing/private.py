"""The mean of clipped updates with noise, whose ε protects a device: the rule ``private``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.parts import fitting
from fedfloor.parts.mixing.mix import Meeting, Mix
from fedfloor.parts.travel.packing import Bytes, NumberLayout, Numbers
from fedfloor.parts.travel.path import NONE, RECEIPT, SUM, AddedNoise
from fedfloor.plan import nodes, walk
from fedfloor.plan.nodes import CLOUD, Node, Parallel

if TYPE_CHECKING:  # methods refer to rules by name, so that listing methods does not import PyTorch
    from torch import Tensor

    from fedfloor.parts.selection.selection import Selection

STATISTICS = "batch norm's statistics travel with the model; take a network with group norm or without normalisation"


@dataclass(frozen=True)
class Private(Mix):
    r"""The Gaussian mechanism at the cloud: w + (Σ_k clip(w_k − w, C) + N(0, z²C² I)) / (q·K).

    clip(Δ, C) = Δ·min(1, C/‖Δ‖). Adding or removing a device changes the sum by at most C. A round whose devices are
    drawn by the selection ``poisson`` with probability q is therefore one step of the Poisson-subsampled Gaussian
    mechanism with noise multiplier z; :mod:`fedfloor.runs.privacy` accounts for all rounds. The denominator is the
    expected number of devices, never the actual number. With z = 0, C = ∞ and q = 1 it is the mean ``equal``, up to
    rounding.

    With a ``quantile`` γ, C follows that quantile of the updates' norms: Σ_k (1[‖Δ_k‖ ≤ C] − 1/2) gets the noise
    N(0, σ_b²), its mean b̃ over q·K (plus 1/2) is compared with γ, and C ← C·exp(−η(b̃ − γ)) for the next round. The
    updates then get the noise multiplier (z⁻² − (2σ_b)⁻²)^(−1/2), so that both together are one step with z (Andrew,
    Thakkar, McMahan, Ramaswamy, "Differentially private learning with adaptive clipping", NeurIPS 2021, Theorem 1).

    If ``distributed``, the devices of a secure sum add the noise before masking: discrete Gaussian noise
    (:mod:`fedfloor.parts.protection.discrete`) with the variance z²(C·2^f + √P/2)²/m per device, in steps of 2^−f,
    where √P/2 bounds the effect of rounding on the norm, and m is the least number of devices in a sum. No party knows
    the noise. The denominator is the number of devices in the sum. With z = 0 it is the plain secure sum.

    McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", ICLR 2018, arXiv
    1710.06963, Algorithm 1 with the estimator f̃_f. The noise is drawn in double precision and rounded; information
    that rounding can reveal (Mironov, CCS 2012) is not accounted for.

    Args:
        clip: C > 0, the greatest norm of a device's update; with a quantile, that of the first round.
        noise: z ≥ 0, the noise's standard deviation in units of C.
        delta: δ in (0, 1) for which ε is stated; below one over the number of devices.
        expected: q·K; derived from the selection and the park by default.
        quantile: γ in (0, 1), the intended share of updates shorter than C; by default C is fixed.
        clip_rate: η > 0, the rate of the changes of C.
        count_noise: σ_b of the count, above z/2; q·K/20 by default, as in the paper.
        distributed: whether the devices of secure sums add the noise, instead of the cloud.
    """

    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5
    expected: float | None = None
    quantile: float | None = None
    clip_rate: float = 0.2
    count_noise: float | None = None
    distributed: bool = False
    kind: Literal["private"] = "private"
    whole: ClassVar[bool] = True

    @property
    def traits(self) -> Mapping[str, str]:
        return {**super().traits, fitting.NOISED if self.distributed else fitting.BOUNDED: ""}

    @property
    def privacy(self) -> AddedNoise:
        about: dict[str, float | None] = {"clip": self.clip}
        if self.quantile is not None:  # the count of short updates and the updates form one step with the joint noise
            about |= {"quantile": self.quantile, "count_noise": self.count_noise}
        return AddedNoise("sums" if self.distributed else "drawn", self.noise, self.delta, "mix.noise", about)

    @property
    def reveals(self) -> Mapping[str, str]:
        return {RECEIPT: "", SUM: ""} if self.distributed else {}

    def __post_init__(self) -> None:
        require(self.clip > 0, "mix.clip", self.clip, "a number above 0")
        require(0 <= self.noise < math.inf, "mix.noise", self.noise, "a number of at least 0")
        require(0 < self.delta < 1, "mix.delta", self.delta, "above 0 and below 1")
        least = self.expected is None or 1 <= self.expected < math.inf
        require(least, "mix.expected", self.expected, "a number of at least 1, or left out")
        if self.noise and math.isinf(self.clip):
            raise SettingError(
                f"mix.noise = {self.noise} with clip = inf: without a bound on updates no noise hides a device. Set "
                "mix.clip, such as 1.0."
            )
        self._check_quantile()

    def _check_quantile(self) -> None:
        if self.quantile is None:
            require(self.count_noise is None, "mix.count_noise", self.count_noise, "left out without mix.quantile")
            return
        require(0 < self.quantile < 1, "mix.quantile", self.quantile, "above 0 and below 1, such as 0.5")
        require(0 < self.clip_rate < math.inf, "mix.clip_rate", self.clip_rate, "a number above 0")
        require(math.isfinite(self.clip), "mix.clip", self.clip, "a finite number, from which C follows mix.quantile")
        if self.count_noise is not None:
            allowed = f"a number above half of mix.noise, {self.noise / 2:g}"
            require(self.noise / 2 < self.count_noise < math.inf, "mix.count_noise", self.count_noise, allowed)

    def planned(self, node: Node, selection: Selection | None, devices: Sequence[int], park_devices: int) -> Private:
        """Return the rule with its denominator, after a check that a round of the plan is one step of the mechanism.

        Raises:
            SettingError: the devices are not drawn by Poisson sampling, δ is too large for their number, or a device
                reveals more in the round than one clipped update.
        """
        from fedfloor.parts.objectives.registry import objective
        from fedfloor.parts.selection.selection import Everyone, Poisson
        from fedfloor.parts.travel.chains import secure

        if self.distributed and not all(secure(work.travel) for work in walk.works(node)):
            raise SettingError(
                "mix.distributed = true: devices add the noise to sums that hide it. Set method.travel = 'secure-sum', "
                "or leave distributed out: the cloud then adds the noise."
            )
        if not isinstance(selection, (Poisson, Everyone, type(None)) if self.distributed else Poisson):
            raise unfit(
                'its devices are not drawn at random alone: set method.selection = { kind = "poisson", share = 0.1 }, '
                "the chance that a device takes part in a round"
            )
        if self.noise:
            require(self.delta < 1 / park_devices, "mix.delta", self.delta, f"below one over {park_devices} devices")
        if walk.probes(node):
            raise unfit("the method's rounds have questions to devices, whose answers have no noise")
        if isinstance(node, nodes.Sequence):
            # beside it the plan has a question of the method's own rule, or hands models out, which reveals nothing
            meeting = [child for child in node.children if not isinstance(child, nodes.Broadcast)]
            node = meeting[0] if len(meeting) == 1 else node
        at_once = isinstance(node, Parallel) and (node.at, node.mix) == (CLOUD, "private")
        if not at_once or any(walk.meets(child) or len(walk.devices(child)) != 1 for child in walk.children(node)):
            raise unfit("rounds of the method are more than parallel visits that the cloud averages")
        if sorted(map(walk.first_device, walk.children(node))) != sorted(devices):
            raise unfit("the method selects among the drawn devices, so that participation is not random alone")
        for work in walk.works(node):
            goal = objective(work.objective, work.settings)
            if goal.travels:
                raise unfit(f"devices send '{min(goal.travels)}' beside the model, which is not clipped")
        if self.distributed or not isinstance(selection, Poisson):
            return self
        expected = selection.share * park_devices
        if self.quantile is None or self.count_noise is not None:
            return replace(self, expected=expected)
        if expected / 20 <= self.noise / 2:
            raise SettingError(
                f"mix.quantile with {expected:g} devices in a round on average: their count would have the noise "
                f"{expected / 20:g}, which has to be above half of mix.noise = {self.noise}. Set mix.count_noise = "
                f"{max(1.0, self.noise):g}, or let more devices take part.",
                key="mix.quantile",
            )
        return replace(self, expected=expected, count_noise=expected / 20)

    @property
    def update_noise(self) -> float:
        """The noise multiplier of the updates: z, or more if the count of short updates uses a part of z."""
        if self.quantile is None or not self.noise or self.count_noise is None:
            return self.noise
        return float((self.noise**-2 - (2 * self.count_noise) ** -2) ** -0.5)

    @property
    def least(self) -> int:
        """0: a round whose visits are all lost gets the noise alone, as without it the model would state that."""
        return 0 if self.noise and not self.distributed else super().least

    @property
    def additive(self) -> bool:
        return self.quantile is None

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        """Return clip(Δ, C): in secure sums, devices clip their updates themselves."""
        import torch

        from fedfloor.parts.mixing.means import clipped

        return NONE, clipped(torch.from_numpy(x).double(), self.clip).numpy()

    def of_sum(self, start: Tensor, total: Tensor, weight: float, trained: int, rng: np.random.Generator) -> Tensor:
        from fedfloor.parts.mixing.means import noisy

        mixed = start.clone()
        front = slice(trained)
        noise = self.noise * self.clip if self.noise and not self.distributed else 0.0
        mixed[front] = noisy(total[front], noise, rng).div_(self.expected or weight).add_(start[front])
        return mixed

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.means import gaussian_sum

        if self.expected is None or met.rng is None:
            raise unfit("its plan names no mix.expected, the devices that take part in a round on average")
        if any(not model[met.trained :].equal(met.start[met.trained :]) for model in met.models if met.trained):
            raise unfit(STATISTICS)
        front = slice(met.trained)
        mixed = met.start.clone()
        updates = (model[front].double().sub_(met.start[front]) for model in met.models)
        lengths = list[float]()
        deviation = self.update_noise * self.clip if self.noise else 0.0
        nothing = mixed[front].double().clone().zero_()
        total = gaussian_sum(updates, self.clip, deviation, met.rng, lengths, nothing)
        mixed[front] = total.div_(self.expected).add_(met.start[front])
        if self.quantile is not None:
            short = sum(0.5 if length <= self.clip else -0.5 for length in lengths)
            short += met.rng.normal(0.0, self.count_noise or 0.0) if self.noise else 0.0
            away = 0.5 + short / self.expected - self.quantile
            met.settings["clip"] = self.clip * math.exp(-self.clip_rate * away)
        return mixed


def unfit(reason: str) -> SettingError:
    """Return the error of the rule ``private`` for a reason why updates are not protected."""
    return SettingError(
        f"mix 'private': {reason}. It needs a method with parallel visits and one aggregation, such as fedavg."
    )
