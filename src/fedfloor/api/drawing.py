"""Matplotlib axes of curves."""

from __future__ import annotations

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
