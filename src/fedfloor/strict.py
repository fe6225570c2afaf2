"""Strict JSON (RFC 8259), which every reader accepts; Python's own writer also writes NaN and Infinity."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: Any, **style: Any) -> str:
    """Return ``json.dumps(value, **style)`` as strict JSON.

    JSON has no notation for a number that is not finite: it becomes null, as a number that is not defined.

    Raises:
        TypeError: the value has a part that is no JSON.

    >>> json_text({"R2": [0.5, -math.inf, math.nan]})
    '{"R2": [0.5, null, null]}'
    """
    try:
        return json.dumps(value, allow_nan=False, **style)
    except ValueError:
        return json.dumps(_defined(value), allow_nan=False, **style)


def _defined(value: Any) -> Any:
    """Return JSON's values with None for every number that is not finite."""
    if isinstance(value, Mapping):
        return {key: _defined(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
