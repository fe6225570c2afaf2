"""What several tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from commands import Command, begin

if TYPE_CHECKING:
    from web import Server

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # as the command line does, and before NumPy and PyTorch start: ranks can then be copies
os.environ.pop("FEDFLOOR_MIRROR", None)  # downloads ask whom the test names


def pytest_configure(config: pytest.Config) -> None:
    """Let this session, and the workers it starts, keep what was parsed in a folder of their own."""
    if not hasattr(config, "workerinput"):
        cache = tempfile.TemporaryDirectory(prefix="fedfloor-cache-")
        os.environ["FEDFLOOR_CACHE"] = cache.name
        config.add_cleanup(cache.cleanup)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data sets; a test that needs it is skipped where there is none."""
    folder = os.environ.get("FEDFLOOR_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("FEDFLOOR_DATA names no folder with the published data sets")
    return Path(folder)


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The command line, in a folder of its own that holds ``tiny.toml``."""
    yield from begin(tmp_path, capsys, monkeypatch)


@pytest.fixture
def server() -> Iterator[Server]:
    """A web server on this machine."""
    from web import serve

    with serve() as has:
        yield has
