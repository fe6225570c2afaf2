"""A classifier behind a projection head, as MOON puts one on its networks."""

from __future__ import annotations

from torch import Tensor, nn


class Projected(nn.Module):
    """Linear f → f, ReLU, Linear f → d, whose output is the representation z, and Linear d → C on top.

    Li, He and Song, CVPR 2021, arXiv 2103.16257.

    Args:
        features: f, numbers that come in.
        dim: d, length of the representation.
        classes: C.

    >>> [name for name, _ in Projected(8, 4, 3).named_parameters() if name.endswith("weight")]
    ['hidden.weight', 'projection.weight', 'classifier.weight']
    """

    def __init__(self, features: int, dim: int, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, features)
        self.projection = nn.Linear(features, dim)
        self.classifier = nn.Linear(dim, classes)

    def layers(self) -> tuple[nn.Module, ...]:
        """Return what :meth:`forward` asks, in turn."""
        return self.hidden, nn.ReLU(), self.projection, self.classifier

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, C] of features [batch, f]."""
        z = self.projection(self.hidden(x).relu())
        logits: Tensor = self.classifier(z)
        return logits
