"""The description of a park: its public facts, its label skew, and the accuracy of a model on each device."""

from __future__ import annotations

import hashlib
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Dataset
from fedfloor.park.local import spread
from fedfloor.park.park import Park

DIGESTED = 1000  # most test samples with values in the digest


def device_accuracy(park: Park, right: NDArray[Any], by_class: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64 [n]: the accuracy of each device of the park's roster, NaN if undefined.

    Measured: the share of the device's own test samples that is right; NaN for a device that only trains. Expected:
    Σ_c p_k(c)·accuracy(c), the accuracy on test samples in the device's own class mix p_k. A class without test
    samples has no accuracy: p_k is the mix of the device's training samples of the other classes, and the device's
    accuracy is NaN only if it holds none of them.

    Args:
        right: [test samples], whether each was classified correctly, or the share of several models that did so.
        by_class: float64 [F], accuracy per class, NaN for a class without test samples.
    """
    if park.roster.figures == "measured" and park.dataset.owner_test is not None:
        owners = park.roster.owners
        total = park.roster.weights
        hits = np.bincount(park.dataset.owner_test, weights=right, minlength=int(owners.max()) + 1)[owners]  # −1: of 0
        share: NDArray[np.float64] = np.divide(hits, total, out=np.full(len(hits), np.nan), where=total > 0)
        return share
    tested = ~np.isnan(by_class)
    held = park.listed_counts[:, tested]
    total = held.sum(axis=1, keepdims=True)
    mix = np.divide(held, total, out=np.full(held.shape, np.nan), where=total > 0)
    expected: NDArray[np.float64] = (mix * by_class[tested]).sum(axis=1)
    expected = np.minimum(expected, 1.0)  # the rounded shares may add up to 1 + 2⁻⁵²
    return np.where(total[:, 0] > 0, expected, np.nan)  # an empty sum would be 0


def class_counts(park: Park) -> dict[str, tuple[int, int]]:
    """Return class → numbers of training and test samples.

    The result is empty for generated data, which are not split, and for samples that stay on real devices.
    """
    data = park.dataset
    if data.made is not None or data.rendered or park.remote is not None:
        return {}
    trained = park.counts().sum(axis=0)
    tested = np.bincount(data.y_test, minlength=len(data.classes))
    return dict(zip(data.classes, zip(trained.tolist(), tested.tolist(), strict=True), strict=True))


def raw_bytes(park: Park) -> int:
    """Return the bytes of the devices' training samples: 1 per byte of a picture, 4 per value of a sensor.

    Rows that windows have in common count once.
    """
    data = park.dataset
    size = math.prod(data.shape) * (1 if data.inputs.kind == "image" else 4)
    if data.first is None or len(data.shape) != 2:
        return int(park.sizes.sum()) * size
    first = np.unique(data.first[np.concatenate(list(park.indices))])
    length = data.shape[1]
    rows = length + int(np.minimum(np.diff(first), length).sum())
    return rows * size // length


def digest_tests(data: Dataset) -> str:
    """Return the SHA-256 of the test samples' labels and of up to 1,000 of their values, evenly spread.

    Two runs with equal digests were evaluated on the same data, however these were read and split.
    """
    count = len(data.y_test)
    x = np.ascontiguousarray(data.take_test(spread(count, DIGESTED)))
    digest = hashlib.sha256(repr((data.shape, data.classes, count, str(x.dtype))).encode())
    digest.update(np.ascontiguousarray(data.y_test).astype("<i8").tobytes())
    digest.update(x.tobytes())
    return digest.hexdigest()


def describe(park: Park) -> dict[str, Any]:
    """Return the park's public facts as JSON: counts and, if there are any, names, but no samples.

    ``untrained_classes`` holds the classes that occur only in test samples, with the number of these samples. For a
    park with more than 5,000 devices only those that are ``listed`` are described.
    """
    data = park.dataset
    listed = park.listed
    whole = len(park.listed) == park.devices
    names = park.display_names
    columns = listed, park.factory_of[listed], park.sizes[listed], park.listed_counts
    counts = class_counts(park) if data.task.labelled else {}
    untrained = {name: test for name, (train, test) in counts.items() if test and not train}
    facts: dict[str, Any] = {
        "dataset": data.name,
        "classes": list(data.classes),
        "shape": list(data.shape),
        "devices": [
            {"factory": factory, "samples": samples, "counts": row}
            | ({"name": name} if (name := names.own("device", k)) else {})
            | ({} if whole else {"device": k})
            for k, factory, samples, row in zip(*(column.tolist() for column in columns), strict=True)
        ],
        "factories": park.factories,
        "test_samples": len(data.y_test),
        "raw_bytes": raw_bytes(park),
        "device_accuracy": park.roster.figures,
        "test_sha256": digest_tests(data),
    }
    facts |= {} if whole else {"of_devices": park.devices}
    if (only := len(park.roster.names) - len(listed)) and all(tested := park.roster.names[-only:]):
        facts["test_devices"] = list(tested)
    facts |= {"factory_names": list(names.factories)} if any(names.factories) else {}
    return facts | ({"untrained_classes": untrained} if untrained else {})


NEGLIGIBLE = 1.1  # ratio to the skew by chance, below which devices do not differ
SLIGHT = 0.1  # below this skew
MODERATE = 0.4  # larger ones are strong


class LabelSkew(NamedTuple):
    """The label skew of a park; for more than 5,000 devices, of the listed ones.

    Attributes:
        measured: ½ Σ_c |p_k(c) − P(c)|, the mean over devices k, from 0 to 1; p_k the shares of the bins (classes, or
            ranges of the target) in the device's training samples, P those in all devices' samples.
        expected: its mean if every device drew as many samples independently from P.
    """

    measured: float
    expected: float

    @property
    def negligible(self) -> bool:
        """Whether the labels of devices hardly differ more than by chance."""
        return self.measured <= NEGLIGIBLE * self.expected

    @property
    def grade(self) -> str:
        """The degree of the skew in a few words.

        >>> LabelSkew(0.01, 0.013).grade, LabelSkew(0.05, 0.01).grade, LabelSkew(0.9, 0.2).grade
        ('no more than chance', 'slight', 'strong')
        """
        if self.negligible:
            return "no more than chance"
        return "slight" if self.measured < SLIGHT else "moderate" if self.measured < MODERATE else "strong"

    @property
    def words(self) -> str:
        """The values as a sentence; "" if all samples are in one bin."""
        if self.expected == 0:
            return ""
        return (
            f"label skew {self.measured:.3f}, {self.grade} (mean distance of a device's label distribution from that "
            f"of all devices, 0 to 1); a random partition gives {self.expected:.3f}"
        )


def label_skew(park: Park) -> LabelSkew | None:
    """Return a park's label skew; None if the samples stay on real devices."""
    if park.remote is not None:
        return None
    counts = park.listed_counts
    sizes = counts.sum(axis=1)
    whole = counts.sum(axis=0)
    share = whole / whole.sum()
    measured = np.abs(counts / sizes[:, None] - share).sum(axis=1) / 2
    several, place = np.unique(sizes, return_inverse=True)
    return LabelSkew(float(measured.mean()), float(deviation(several, share[share > 0])[place].mean()))


def deviation(sizes: NDArray[np.int64], share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return float64 [len(sizes)], E[½ Σ_c |X_c/n − P_c|] for the counts X of n independent draws from P.

    Each X_c is binomial, and by De Moivre E|X − np| = 2m·C(n, m)·p^m·(1 − p)^(n − m + 1) with m = ⌊np⌋ + 1. ``sizes``
    are n, each at least 1; ``share`` is P [F], all above 0.

    >>> deviation(np.array([1, 2]), np.array([0.5, 0.5])).round(4).tolist()
    [0.5, 0.25]
    """
    if len(share) == 1:
        return np.zeros(len(sizes))
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, int(sizes.max()) + 1)))))
    n = sizes[:, None]
    p = share[None]
    m = np.minimum(np.floor(n * p).astype(np.int64) + 1, n)
    ways = log_factorial[n] - log_factorial[m] - log_factorial[n - m]
    each = np.exp(np.log(2.0 * m) + ways + m * np.log(p) + (n - m + 1) * np.log1p(-p)) / n
    total: NDArray[np.float64] = each.sum(axis=1) / 2
    return total
