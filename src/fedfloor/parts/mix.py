"""How models that meet become one: the weight of each branch in their mean."""

from __future__ import annotations

from fedfloor.errors import unknown

RULES = {
    "by_samples": "each branch weighs as many samples as the distinct devices that trained in it hold",
    "equal": "each branch in which somebody trained weighs the same",
}


def weight(rule: str, samples: int) -> float:
    """Return the weight of a branch: w = Σ weight_i·w_i / Σ weight_i; 0 leaves the branch out of the mean.

    Args:
        rule: one of :data:`RULES`.
        samples: samples of the distinct devices that trained in the branch; 0 if every visit in it was lost.

    >>> weight("by_samples", 600), weight("equal", 600), weight("equal", 0)
    (600.0, 1.0, 0.0)
    """
    if rule not in RULES:
        raise unknown("mixing rule", rule, RULES)
    return float(samples if rule == "by_samples" else samples > 0)
