"""pandas, which is optional."""

from __future__ import annotations

import importlib
from typing import Any

from fedfloor.base.errors import SettingError


def pandas(noun: str) -> Any:
    """Return the module pandas.

    Raises:
        SettingError: it is not installed.
    """
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError as absent:
        raise SettingError(f"{noun} needs pandas: pip install pandas.") from absent
