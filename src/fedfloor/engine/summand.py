"""What a device adds to a secure sum: its term, bounds on it, and its noise, in NumPy.

A device of a model that is sums has no PyTorch; simulations and devices that train call the same functions.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.parts.mixing import mix
from fedfloor.parts.mixing.private import STATISTICS, unfit
from fedfloor.parts.objectives import registry as objectives
from fedfloor.parts.protection.discrete import LEAST_DEVIATION
from fedfloor.parts.protection.masking import FixedPoint
from fedfloor.parts.travel import chains
from fedfloor.parts.travel.codecs import BOUND, SecureSum
from fedfloor.parts.travel.packing import NumberLayout, Numbers
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt

# The longest gradient of a mini-batch, and the most that Adam moves a number in a step, in rates. Honest visits to
# pictures, sensors, remaining life, anomalies and forecasts had a third of this at most, and their means a tenth.
STEEPEST = 10.0
ADAM = 2.0


class WithdrawnError(RefusedError):
    """An error: a device's sums fail, and it withdraws from the secure sum of a round, and with it its crew.

    Attributes:
        why: the reason, which may depend on samples, and stays on the device.
    """

    def __init__(self, why: str) -> None:
        super().__init__("sum", "this device withdraws from the sum of this round; its own log states why.")
        self.why = why


def withdraws(work: Work) -> bool:
    """Return whether a visit that fails is lost with its device's crew, instead of adding zeros to a secure sum.

    Without crews it adds zeros, which the device's noise hides.
    """
    return chains.together(work.travel) and objectives.objective(work.objective, work.settings).withdraws


def farthest(work: Work, samples: int, numbers: int) -> float:
    """Return how far a visit moves so many weights at most: rate · steps, times the longest direction of a step.

    A direction of SGD is as long as a gradient, over 1 − momentum; one of Adam has about 1 in every number. Infinite
    for objectives that do not follow a gradient of the weights.

    >>> farthest(Work(steps=5, rate=0.1, momentum=0.5), 24, 100), farthest(Work(steps=5, optimizer="adam"), 24, 100)
    (10.0, 1.0)
    """
    if not objectives.objective(work.objective, work.settings).descends:
        return math.inf
    if work.optimizer != "sgd":
        return work.reach(samples) * ADAM * math.sqrt(numbers)
    steepest = STEEPEST if work.clip_norm is None else 2 * work.clip_norm  # twice, as weight decay is not clipped
    return work.reach(samples) * steepest / (1 - work.momentum)


def bound(codec: SecureSum, work: Work, samples: int) -> float:
    """Return the greatest change of a number in a visit, to which a device clips larger ones.

    Sums are not clipped: a device beyond theirs withdraws.

    Raises:
        SettingError: the bound of a model that is sums is so wide that its smaller numbers would be rounded away.
    """
    if objectives.objective(work.objective, work.settings).withdraws:
        if codec.widest > codec.most:
            raise SettingError(
                f"travel.secure-sum.bound = {codec.bound:g} with bits = {codec.bits}: smaller numbers would be rounded "
                f"away, and the model would be another one. A model that is sums allows {codec.most:g} at most. Set "
                'bits = 64 and a lower bound, or data.normalise = "standard".',
                key="travel.secure-sum.bound",
            )
        return codec.widest
    return codec.bound or min(BOUND, farthest(work, samples, 1))


def summand(rule: mix.Mix, change: NDArray[np.floating], trained: int, seed: int, visit: Receipt) -> Numbers:
    """Return a device's term in a sum, float64 or as given [n]: its change as the rule's ``leave`` bounds it.

    Args:
        rule, change: the mixing rule, and the change of the model in the visit.
        trained: the trained numbers, before the statistics.
        seed, visit: of the run, and the visit, by which ``leave`` draws.

    Raises:
        SettingError: statistics behind the trained numbers changed, for which the rule's noise is not meant.
    """
    if rule.privacy is not None and bool(change[trained:].any()):
        raise unfit(STATISTICS)
    rng = generator(seed, "mix", visit.tick, visit.device, visit.visit)
    _, bounded = rule.leave(change, NumberLayout(((1, len(change)),)), rng)
    return bounded


def sum_noise(rule: mix.Mix, numbers: int = 0, fraction: int = 0) -> float:
    """Return the standard deviation of the noise that all devices of a secure sum add to it; 0: no noise.

    Args:
        numbers: the length of a vector.
        fraction: the fractional bits: the deviation is in steps of 2^−fraction.

    Raises:
        SettingError: the rule states no bound on updates.
    """
    noise = rule.privacy
    if noise is None or noise.kind != "sums" or not noise.multiplier:
        return 0.0
    clip = noise.about.get("clip")
    if clip is None:
        raise SettingError(
            'method.mix: the noise of its sums needs a bound on the length of updates, about = {"clip": …} of its '
            "AddedNoise."
        )
    return noise.multiplier * (clip * 2.0**fraction + math.sqrt(numbers) / 2)


def device_noise(rule: mix.Mix, fixed: FixedPoint, needed: int) -> float:
    """Return the standard deviation, in steps, of a device's noise in a sum of at least ``needed`` devices; 0: none.

    Raises:
        SettingError: the deviation is so small that the published bound does not cover the sum's noise.
    """
    deviation = sum_noise(rule, fixed.ring.numbers, fixed.fraction) / math.sqrt(needed)
    if 0 < deviation < LEAST_DEVIATION:
        raise SettingError(
            f"mix.distributed with travel.secure-sum.bits = {fixed.ring.bits} and bound = {fixed.bound:g}: a device's "
            f"noise has a standard deviation of {deviation:.2g} steps; at least {LEAST_DEVIATION:g} are needed. Set "
            "bits = 32, a bound near mix.clip, or more noise.",
            key="mix.distributed",
        )
    return deviation
