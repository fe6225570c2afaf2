"""Matplotlib axes of curves, and the drawing of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def axes(ax: Any, name: str) -> Any:
    """Return axes of a metric against rounds: ``ax``, or those of a new figure."""
    from matplotlib import pyplot, ticker

    if ax is None:
        _, ax = pyplot.subplots(figsize=(7, 4), layout="constrained")
    ax.set_xlabel("round")
    ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    ax.set_ylabel(name)
    ax.grid(alpha=0.25)
    return ax


@dataclass(frozen=True)
class PlanDrawing:
    """The plan of a round: a text, which a notebook shows as a drawing.

    Args:
        text: the plan as an indented list.
        svg: the plan as a drawing.
    """

    text: str
    svg: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_svg_(self) -> str:
        return self.svg
