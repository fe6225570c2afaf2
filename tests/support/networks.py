"""Networks by name, your own among them: loaded first, as reading an experiment file does."""

from __future__ import annotations

from typing import Any

from fedfloor import models
from fedfloor.base.outside import load
from fedfloor.models.network import Network


def build(name: str, *given: Any, **more: Any) -> Network:
    """Build a network as :func:`fedfloor.models.build` does."""
    if ":" in name:
        load(name, "model")
    return models.build(name, *given, **more)
