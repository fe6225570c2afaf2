"""Files and folders of a park: nobody but their user may change any, or read a folder of keys, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from commands import TINY
from fedfloor.base import regular
from fedfloor.deploy import live, provision
from fedfloor.rollout import registry
from parks import needs_mosquitto
from rollouts import model, provisioned, registered


@pytest.fixture(params=[0o000, 0o022, 0o077], ids="{:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    assert os.umask(before) == request.param  # it was restored


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def check(top: Path) -> None:
    paths = [top, *top.rglob("*")]
    assert not [path for path in paths if not path.is_symlink() and not path.is_socket() and mode(path) & 0o022]
    keys = [path for path in paths if path.suffix == ".key"]
    assert len(keys) > 4
    assert {mode(path) for path in keys} == {0o600}
    assert {mode(path.parent) for path in keys} == {0o700}


def test_what_provision_and_releases_write(tmp_path: Path, umask: int) -> None:
    place = provisioned(tmp_path)
    with regular.unwritable_by_others():  # the helper writes the model by itself
        known = registered(registry.read(place), model())
    registry.release(known, 1, ["north"], ["d0"])
    check(place)


def test_a_folder_of_keys_that_was_opened_is_closed_again(tmp_path: Path) -> None:
    place = provisioned(tmp_path)
    (place / "authority").chmod(0o777)
    provision.write_files(place, {PurePosixPath("authority/ca.crt"): (place / "authority/ca.crt").read_bytes()}, ())
    check(place)


@pytest.mark.slow
@pytest.mark.live
@needs_mosquitto
def test_what_a_live_park_writes(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    words = [
        sys.executable,
        "-m",
        "fedfloor",
        "park",
        "live",
        "up",
        "tiny.toml",
        "--out",
        "live",
        "--devices",
        "2",
        "--stay",
    ]
    try:
        subprocess.run(words, cwd=tmp_path, check=True, umask=0, timeout=600)
        check(tmp_path / "live")
    finally:
        live.down(tmp_path / "live")
