"""HFedMS's semantic memory (SCC): the features that a device keeps of earlier samples, and their update.

A semantic is the feature z = h(x, φ) that goes into the classifier, D numbers in place of a sample, with its label. A
device keeps Q of them. When the extractor has moved from φ_bak to φ, the kept features are out of date; they are moved
by as much as the features of the current samples of the same class have moved (:func:`drift`, :func:`compensated`).
With it, the classifier alone is trained on more than the current window (:func:`fused`); at the end of a period those Q
are kept that lie nearest to their classes' means (:func:`nearest`).

Everything here takes features without gradient, as float tensors [n, D] with labels int64 [n], gives the same bits for
the same order of samples, keeps dtype and device, and changes nothing that goes in. Zeng et al., IEEE TCC 2023,
arXiv 2211.03300, section III-D.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedfloor.errors import DivergedError, SettingError, require, unknown

RULES = ("candidates", "window", "random")  # which features are kept


def class_means(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return (μ_c = mean of the z_i with y_i = c [F, D], n_c [F]); the mean of an absent class is 0.

    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), classes=3)
    (tensor([[2.],
            [0.],
            [5.]]), tensor([2, 0, 1]))
    """
    _check("features", features, labels)
    _within(labels, classes)
    counts = torch.bincount(labels, minlength=classes)
    means = features.new_zeros(classes, features.shape[1])
    # class by class, not with index_add: on a GPU the order of its additions is left to chance
    parts = features[labels.argsort(stable=True)].split(counts.tolist())
    for label, part in enumerate(parts):
        if len(part):
            means[label] = part.mean(0)
    return means, counts


def drift(now: Tensor, before: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return Δ_c = mean_c h(x, φ) − mean_c h(x, φ_bak) [F, D] over one window, Eqs. (13)–(15); 0 for absent classes.

    Formed as the mean of the samples' differences, which is the same: 0 to the bit where the extractor is unchanged.
    ``now`` and ``before`` [n, D] are the features by the extractor of now, and by that the memory was made with.

    >>> drift(torch.tensor([[5.0], [7.0]]), torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1]), classes=2)
    tensor([[0.0000],
            [4.5000]])
    """
    _alike("features by the extractor now and before", now, before)
    require(len(now) == len(before), "samples seen by the extractor before", len(before), f"as many as now, {len(now)}")
    return class_means(now - before, labels, classes)[0]


def compensated(memory: Tensor, labels: Tensor, moved: Tensor) -> Tensor:
    """Return z + Δ_y for every semantic z of the memory [Q', D], Eq. (15), with Δ [F, D] of :func:`drift`.

    A class is moved as one: its mean in memory comes to lie where φ would put it if the window holds the samples in
    memory, and with a linear extractor if it holds others with the same mean; a single semantic comes to lie there only
    where all samples of its class moved alike. After a ReLU z + Δ can be negative; as in the paper it is left so.

    >>> compensated(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0]), torch.tensor([[0.0], [4.5]]))
    tensor([[5.5000],
            [2.0000]])
    """
    _check("the memory's features", memory, labels)
    _alike("the memory and its drift", memory, moved)
    _within(labels, len(moved))
    _finite("the drift of the features", moved)
    return memory + moved[labels]


def nearest(
    features: Tensor, labels: Tensor, keep: int, rule: str = "candidates", *, window: int = 0,
    rng: np.random.Generator | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the Q candidates with the smallest δ_i = ‖z_i − μ_{y_i}‖₂, Eqs. (17)–(18), in the order of arrival.

    Of equally near ones the first, so that the old memory, in front, stays. A class with one candidate is
    its own mean, δ = 0, and is kept before all others. Where there are no more than Q candidates all are kept.

    The paper writes the mean as μ_c^r, its symbol for that of the window of round r alone (Eq. 13), but lets z be any
    candidate's and calls it the class's: by default it is taken over all candidates, stored and new, as in the
    reference code (slz-ai/hfedms). That code then shuffles the order and keeps the first Q: ``"random"``.

    ``features``: z of the candidates [n, D], the memory and then the period's windows. ``keep``: Q. ``rule``: over what
    μ is the mean: ``"candidates"``, or the last ``window`` of them (``"window"``; a class absent there takes its mean
    over all candidates). ``"random"``: any Q, drawn from ``rng`` uniformly without replacement.

    >>> nearest(torch.tensor([[0.0], [9.0], [3.0]]), torch.tensor([0, 0, 0]), keep=2)  # μ = 4
    (tensor([[0.],
            [3.]]), tensor([0, 0]))
    """
    _check("the candidates' features", features, labels)
    require(keep >= 0, "semantics to keep", keep, "a whole number of at least 0")
    if rule == "random":
        if rng is None:
            raise SettingError("the rule 'random' draws the kept features: pass a generator as rng.")
        order = torch.from_numpy(rng.permutation(len(features))).to(labels.device)
    elif rule in RULES:
        classes = int(labels.max()) + 1 if len(labels) else 0
        centres, _ = class_means(features, labels, classes)
        if rule == "window":
            allowed = f"between 1 and the number of candidates, {len(features)}"
            require(1 <= window <= len(features), "window", window, allowed)
            recent, counts = class_means(features[-window:], labels[-window:], classes)
            centres = torch.where((counts > 0)[:, None], recent, centres)
        order = torch.linalg.vector_norm(features - centres[labels], dim=1).argsort(stable=True)
    else:
        raise unknown("rule of the memory", rule, RULES)
    kept = order[:keep].sort().values
    return features[kept], labels[kept]


def fused(features: Tensor, labels: Tensor, memory: Tensor, memory_labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the calibration set [S ∪ Z*, Y ∪ Y*] of Eq. (16): the window's semantics, then the compensated memory's.

    >>> fused(torch.tensor([[1.0]]), torch.tensor([0]), torch.tensor([[2.0]]), torch.tensor([3]))
    (tensor([[1.],
            [2.]]), tensor([0, 3]))
    """
    _check("the window's features", features, labels)
    _check("the memory's features", memory, memory_labels)
    _alike("the window and the memory", features, memory)
    return torch.cat([features, memory]), torch.cat([labels, memory_labels])


def _check(label: str, features: Tensor, labels: Tensor) -> None:
    good = features.dim() == 2 and features.is_floating_point()
    require(good, label, f"{features.dtype} {list(features.shape)}", "a float tensor [samples, length]")
    good = labels.dtype == torch.int64 and labels.shape == features.shape[:1]
    require(
        good, f"labels of {label}", f"{labels.dtype} {list(labels.shape)}", f"int64 [{len(features)}], one a sample"
    )
    _finite(label, features)


def _finite(label: str, features: Tensor) -> None:
    if not bool(torch.isfinite(features).all()):
        raise DivergedError(
            f"{label} hold infinite or undefined numbers. Lower work.lr; the last checkpoint is untouched."
        )


def _alike(label: str, a: Tensor, b: Tensor) -> None:
    same = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[1] and a.dtype == b.dtype
    if not same:
        raise SettingError(
            f"{label} are {a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}: they must be of one dtype and one "
            "length, [samples, length]. Take both from the same network."
        )


def _within(labels: Tensor, classes: int) -> None:
    if len(labels):
        low, high = int(labels.min()), int(labels.max())
        require(low >= 0, "the smallest label", low, f"between 0 and {classes - 1}")
        require(high < classes, "the largest label", high, f"between 0 and {classes - 1}")
