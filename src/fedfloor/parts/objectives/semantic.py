"""HFedMS's semantic memory (SCC): the features of earlier samples that a device keeps, and their update.

A semantic is a feature z = h(x, φ), the classifier's input of D numbers for a sample, with its label. A device keeps Q
semantics. When the extractor has changed from φ_bak to φ, the kept features are out of date; they are moved by the mean
change of the present samples' features of the same class (:func:`drift`, :func:`compensated`). The classifier alone is
then trained on the present window and the kept features (:func:`fused`). At the end of a period the Q semantics nearest
to their classes' means are kept (:func:`nearest`).

All functions take features without gradient, as float tensors [n, D] with labels int64 [n], return the same bits for
the same order of samples, preserve dtype and device, and do not change their arguments. Zeng et al., IEEE TCC 2023,
arXiv 2211.03300, section III-D.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedfloor.base.errors import DivergedError, SettingError, require, unknown

RULES = ("candidates", "window", "random")  # the rules that choose the kept features


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
    # class by class, not with index_add, whose order of additions is random on a GPU
    parts = features[labels.argsort(stable=True)].split(counts.tolist())
    for label, part in enumerate(parts):
        if len(part):
            means[label] = part.mean(0)
    return means, counts


def drift(now: Tensor, before: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return Δ_c = mean_c h(x, φ) − mean_c h(x, φ_bak) [F, D] over one window, Eqs. (13)–(15); 0 for absent classes.

    It is computed as the equivalent mean of the samples' differences, which is 0 to the bit for an unchanged extractor.
    ``now`` and ``before`` [n, D] are the features by the present extractor, and by the memory's extractor.

    >>> drift(torch.tensor([[5.0], [7.0]]), torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1]), classes=2)
    tensor([[0.0000],
            [4.5000]])
    """
    _alike("features by the extractor now and before", now, before)
    require(len(now) == len(before), "samples seen by the extractor before", len(before), f"as many as now, {len(now)}")
    return class_means(now - before, labels, classes)[0]


def compensated(memory: Tensor, labels: Tensor, moved: Tensor) -> Tensor:
    """Return z + Δ_y for every semantic z of the memory [Q', D], Eq. (15), with Δ [F, D] of :func:`drift`.

    All semantics of a class are moved by the same vector. The mean of a class in memory is exact if the window holds
    the samples in memory, or, with a linear extractor, other samples with the same mean. A single semantic is exact
    only if all samples of its class moved equally. After a ReLU z + Δ can be negative, as in the paper.

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

    Among equally near candidates the first is kept, so that the old memory, in front, stays. The only candidate of a
    class is its own mean, δ = 0, and is kept before all others. Up to Q candidates are all kept.

    The paper writes the mean as μ_c^r, its symbol for the mean of round r's window alone (Eq. 13), but applies it to
    all candidates and calls it the mean of the class. By default it is the mean over all candidates, stored and new, as
    in the reference code (slz-ai/hfedms). That code then shuffles the order and keeps the first Q: ``"random"``.

    ``features``: z of the candidates [n, D], the memory and then the period's windows. ``keep``: Q. ``rule``: the
    samples of the mean μ: ``"candidates"``, or the last ``window`` candidates (``"window"``; a class absent there takes
    its mean over all candidates). ``"random"``: any Q, drawn from ``rng`` uniformly without replacement.

    >>> nearest(torch.tensor([[0.0], [9.0], [3.0]]), torch.tensor([0, 0, 0]), keep=2)  # μ = 4
    (tensor([[0.],
            [3.]]), tensor([0, 0]))
    """
    _check("the candidates' features", features, labels)
    require(keep >= 0, "semantics to keep", keep, "a whole number of at least 0")
    if rule == "random":
        if rng is None:
            raise SettingError("the rule 'random' draws the kept features: pass a generator as rng.", key="rng")
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
        good, f"labels of {label}", f"{labels.dtype} {list(labels.shape)}", f"int64 [{len(features)}], one per sample"
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
            "length, [samples, length]. Take both from the same network.",
            key="memory-differs",
        )


def _within(labels: Tensor, classes: int) -> None:
    if len(labels):
        low, high = int(labels.min()), int(labels.max())
        require(low >= 0, "the smallest label", low, f"between 0 and {classes - 1}")
        require(high < classes, "the largest label", high, f"between 0 and {classes - 1}")
