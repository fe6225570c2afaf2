"""Classification: the class of a sample, one of F."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedfloor.tasks.answer import Classes
from fedfloor.tasks.figures import Counts, Predictions
from fedfloor.tasks.rankings import Rankings
from fedfloor.tasks.task import Reduction, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedfloor.tasks.task import Boosted, Rows

LEAST = 1e-15  # a class missing in training has probability 0, whose logarithm would be infinite


@dataclass(frozen=True)
class Classification(Task):
    """The classification of samples: F logits, and the loss ℓ = −log softmax(z)_y; the bins are the classes."""

    headline: ClassVar[str] = "accuracy"

    kind: Literal["classification"] = "classification"

    def outputs(self, bins: int, targets: int, shape: tuple[int, ...]) -> int:
        return bins

    def losses(self, out: Tensor, y: Tensor, reduction: Reduction = "none") -> Tensor:
        """Return the cross-entropies [n] of logits [n, F] and classes int64 [n], or their mean or sum."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(out, y, reduction=reduction)

    def predicted(self, out: Tensor) -> Tensor:
        return out.argmax(1)

    def hits(self, out: Tensor, y: Tensor) -> Tensor:
        return out.argmax(1) == y

    def scores(self, out: Tensor, y: Tensor, bins: Sequence[int]) -> Tensor:
        """Return the log-odds, float32 [n, len(bins)], of the classes by which the headline metric ranks samples."""
        return log_odds(out, bins) if bins else super().scores(out, y, bins)

    def answer(self, out: Tensor, x: Tensor, temperature: float = 1.0) -> Classes:
        """Return the probabilities softmax(z/T) for logits z [n, F] and temperature T, and the logits."""
        return Classes((out if temperature == 1 else out / temperature).softmax(1), out)

    def judged(
        self, table: Counts, loss: float, y: NDArray[Any], scores: NDArray[Any], scored: Sequence[int]
    ) -> Predictions:
        """Return the confusion table, the loss, and the rankings of samples by the scored classes."""
        return Predictions(table, loss, Rankings(y, scores, scored))

    def unboosted(self, targets: int) -> str:
        return ""

    def boosted(self, rows: Rows, y: NDArray[Any], bins: int, settings: Mapping[str, Any]) -> Boosted:
        """Fit a classifier, whose outputs are the logarithms of the classes' probabilities."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        model = HistGradientBoostingClassifier(**settings).fit(rows, y)

        def outputs(rows: Rows) -> NDArray[np.float64]:
            chance = np.zeros((len(rows), bins))
            chance[:, model.classes_] = model.predict_proba(rows)
            return np.log(np.maximum(chance, LEAST))

        return outputs


def log_odds(logits: Tensor, classes: Sequence[int]) -> Tensor:
    """Return float32 [n, len(classes)]: ln p(c) − ln(1 − p(c)) = z_c − ln Σ_{j≠c} exp z_j.

    The order of samples is that of p(c), without ties where p(c) is rounded to 1.

    Args:
        logits: z [n, F].
        classes: the indices of the classes c.

    >>> import torch
    >>> log_odds(torch.tensor([[0.0, 50.0], [0.0, 60.0]]), [1]).tolist()
    [[50.0], [60.0]]
    """
    import torch

    odds = []
    for c in classes:
        others = logits.clone()
        others[:, c] = -torch.inf
        odds.append(logits[:, c] - others.logsumexp(1))
    return torch.stack(odds, 1).float()


CLASSIFICATION = Classification()
