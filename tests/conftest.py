"""What several tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data sets; a test that needs it is skipped where there is none."""
    folder = os.environ.get("FEDFLOOR_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("FEDFLOOR_DATA names no folder with the published data sets")
    return Path(folder)
