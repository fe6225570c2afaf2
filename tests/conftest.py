"""What several tests share."""

from __future__ import annotations

import os
import shutil
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


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data sets; a test that needs it is skipped where there is none."""
    folder = os.environ.get("FEDFLOOR_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("FEDFLOOR_DATA names no folder with the published data sets")
    return Path(folder)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of these tests' own, for them and the processes they start."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFLOOR_CACHE", str(folder))
        yield
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def labels_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of logistic regression on rendered labels, 124 test samples; do not write in it."""
    import fedfloor
    from fedfloor.experiment import DataSettings, ModelSettings, ParkSettings

    what = fedfloor.Experiment(
        rounds=1, data=DataSettings(samples_per_device=310, normalise="standard"), park=ParkSettings(devices=4),
        model=ModelSettings("logistic"),
    )  # fmt: skip
    return fedfloor.run(what, tmp_path_factory.mktemp("labels") / "run", ranks=1).folder


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
