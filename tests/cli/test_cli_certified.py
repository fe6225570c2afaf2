"""The process in which an agent checks its certificate before it connects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedfloor.base.errors import SettingError
from fedfloor.cli import deploying
from fedfloor.deploy import authority
from parks import until

SLOW = """
import time
from types import SimpleNamespace
from fedfloor.cli import deploying
from fedfloor.deploy import authority

def slow(*_):
    print("checking", flush=True)
    time.sleep(1)

authority.check = slow
deploying._certified(SimpleNamespace(tls="tls", name="d0"))
time.sleep(600)
"""


@pytest.mark.parametrize("error", [None, SettingError("tls: the certificate has expired.")])
def test_what_the_check_finds_is_raised(error: SettingError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(authority, "check", check)
    settings = SimpleNamespace(tls="tls", name="d0")
    if error is None:
        deploying._certified(settings)  # type: ignore[arg-type]
        return
    with pytest.raises(SettingError) as raised:
        deploying._certified(settings)  # type: ignore[arg-type]
    assert str(raised.value) == str(error)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the processes of a group are read from /proc")
def test_it_ends_although_the_agent_was_killed() -> None:
    """It waited for further work for ever, as a pool's process does."""
    agent = subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert agent.stdout is not None
    assert agent.stdout.readline() == "checking\n"
    agent.kill()
    agent.wait()

    def ended() -> bool:
        try:
            os.killpg(agent.pid, 0)
        except ProcessLookupError:
            return True
        return False

    try:
        assert until(ended, 20)
    finally:
        if not ended():
            os.killpg(agent.pid, signal.SIGKILL)
