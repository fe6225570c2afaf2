"""A classifier behind a projection head, as MOON puts one on its networks."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


class Projected(nn.Sequential):
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
        super().__init__(
            OrderedDict(
                hidden=nn.Linear(features, features),
                relu=nn.ReLU(),
                projection=nn.Linear(features, dim),
                classifier=nn.Linear(dim, classes),
            )
        )
