"""FedGS's Propositions 2 and 3 for logistic regression: ``python -m papers.gradients`` writes results/fedgs-gradients.

Proposition 2 bounds how far a node's gradient is from everybody's, δ = ‖∇F_m(W) − ∇F(W)‖, by how far its classes are.
Proposition 3's bounds of convergence and of the optimality gap grow with δ, and are said to be smaller for FedGS than
for FedAvg, as GBP-CS aligns the classes of super nodes. Both assume strongly convex losses, which multinomial logistic
regression with weight decay has; decay cancels in δ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.data.dataset import Labels, Values
from fedfloor.park.park import Park
from fedfloor.report.groups import half_width
from fedfloor.solvers.selection.solve import solve
from papers import documents, fedgs
from papers.selection import park_of, selections

PAGE = Path(__file__).parents[1] / "results" / "fedgs-gradients.md"
SEEDS = (0, 1, 2)
SELECTIONS = 40
STEPS = 400
BATCH = 256
RATE = 0.5
DECAY = 1e-4
NODES = ("super node, GBP-CS", "super node, at random", "single device")
Matrix = NDArray[np.float64]


class Node(NamedTuple):
    """A node: ‖p_m − p‖₁ of its classes, δ of its gradient, and the bound of δ by its classes."""

    classes: float
    gradient: float
    bound: float


class Everybody(NamedTuple):
    """All samples of a park: class shares p, the gradient at W, and the largest norm of a class's gradient there."""

    shares: Matrix
    weights: Matrix
    gradient: Matrix
    steepest: float


def gradient(x: Matrix, y: Labels, weights: Matrix) -> Matrix:
    """Return the gradient of the mean cross-entropy of logits xW, [D, F].

    Args:
        x: [n, D].
        y: classes, int64 [n].
        weights: W, [D, F].

    >>> gradient(np.ones((1, 1)), np.array([1]), np.zeros((1, 2))).tolist()
    [[0.5, -0.5]]
    """
    logits = x @ weights
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    found: Matrix = x.T @ shares / len(y)
    return found


def flat(x: Values, scale: float) -> Matrix:
    """Return samples as rows, with a one at the end of each for the bias."""
    rows = x.reshape(len(x), -1) * scale
    return np.hstack([rows, np.ones((len(x), 1))])


def everybody(park: Park, steps: int, seed: int) -> Everybody:
    """Return what all samples of a park have in common at the weights after some steps of SGD from zero."""
    scale = park.dataset.scale
    indices = np.concatenate(list(park.indices))
    y = park.dataset.labels(indices)
    x = flat(park.dataset.take(indices, 0), scale)
    classes = len(park.dataset.classes)
    weights = np.zeros((x.shape[1], classes))
    chance = generator(seed, "gradients")
    for _ in range(steps):
        some = chance.choice(len(y), BATCH, replace=False)
        weights -= RATE * (gradient(x[some], y[some], weights) + DECAY * weights)
    each = [float(np.linalg.norm(gradient(x[y == one], y[y == one], weights))) for one in np.unique(y)]
    shares = np.bincount(y, minlength=classes) / len(y)
    return Everybody(shares, weights, gradient(x, y, weights), max(each))


def node(park: Park, devices: Sequence[int], tick: int, known: Everybody) -> Node:
    """Return how far the windows of some devices together are from all samples, in classes and in gradient."""
    x, y, _ = park.together(devices, tick, [0] * len(devices))
    counts = np.bincount(np.asarray(y), minlength=len(known.shares))
    apart = float(np.abs(counts / counts.sum() - known.shares).sum())
    found = gradient(flat(x, park.dataset.scale), np.asarray(y, np.int64), known.weights)
    return Node(apart, float(np.linalg.norm(found - known.gradient)), apart * known.steepest)


def compared(park: Park, seed: int, many: int, steps: int) -> Iterator[Mapping[str, Node]]:
    """Yield the nodes of each selection; a single device stands for the mean over those of the random super node."""
    known = everybody(park, steps, seed)
    for number, one in enumerate(selections(park, seed, many)):
        best = solve("gbpcs", one.problem, seed=number).choice
        by_chance = solve("random", one.problem, seed=int(generator(seed, "at random", number).integers(2**32))).choice
        chosen, drawn = ([*one.given, *(one.others[k] for k in some)] for some in (best, by_chance))
        alone = [node(park, [device], one.tick, known) for device in drawn]
        mean = Node(*(float(np.mean(values)) for values in zip(*alone, strict=True)))
        yield dict(zip(NODES, (node(park, chosen, one.tick, known), node(park, drawn, one.tick, known), mean),
                       strict=True))  # fmt: skip


def rows(found: Sequence[Mapping[str, Node]]) -> list[list[str]]:
    """Return a row per kind of node: means over the selections with 95 % intervals; differences are paired."""
    made = []
    for kind in NODES:
        nodes = [one[kind] for one in found]
        less = [one[kind].gradient - one["single device"].gradient for one in found]
        random = [one[kind].gradient - one["super node, at random"].gradient for one in found]
        within = sum(one.gradient <= one.bound for one in nodes)
        made.append([
            kind, _pair([one.classes for one in nodes]), _pair([one.gradient for one in nodes]),
            "–" if kind == "single device" else _pair(less), "–" if kind != NODES[0] else _pair(random),
            f"{within} of {len(nodes)}",
        ])  # fmt: skip
    return made


def _pair(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f} ± {half_width(list(values)) or 0:.4f}".replace("-", "−")


def main() -> None:
    """Compute the gradients and write the page."""
    (comparison,) = fedgs.comparisons()
    point = next(one for one in comparison.points if "Dirichlet" in one.key)
    columns = ["node", "classes apart", "δ", "minus a single device", "minus at random", "δ within the bound"]
    words = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    blocks: list[Any] = ["# fedgs-gradients", words, "```bash\npython -m papers.gradients\n```"]
    blocks += [
        f"FEMNIST's characters, {point.key}; windows of 32 characters, super nodes of ten devices, {SELECTIONS} "
        f"selections in each of {len(SEEDS)} parks; ± is half of a 95 % interval over the selections. Classes apart: "
        "‖p_m − p‖₁. The bound is that distance times the largest norm of a class's gradient; a single device's "
        "figures are means over ten."
    ]
    computed = {}
    for steps in (0, STEPS):
        parks = {seed: list(compared(park_of(point, seed), seed, SELECTIONS, steps)) for seed in SEEDS}
        blocks += [
            f"## After {steps} steps",
            {"columns": columns, "rows": rows([one for few in parks.values() for one in few])},
        ]
        computed[f"after {steps} steps"] = {
            str(seed): {kind: [[round(value, 6) for value in one[kind]] for one in few] for kind in NODES}
            for seed, few in parks.items()
        }
    documents.publish(PAGE, blocks, computed=computed)


if __name__ == "__main__":
    main()
