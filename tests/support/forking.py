"""Devices' processes that need not wait for Python, PyTorch and fedfloor: each is forked from one that has them.

Run as a program it is that one: it has built an experiment's park, and does what is said on its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from parks import until


class Nursery:
    """The program."""

    def __init__(self, what: Path) -> None:
        words = [sys.executable, __file__, str(what)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def device(self, file: Path, dies: Mapping[int, str] | None = None) -> Forked:
        """Start a device, which kills itself when it is sent the request of a kind in a round of ``dies``."""
        return Forked(self, int(self.ask("start", json.dumps({"file": str(file), "dies": dict(dies or {})}))))

    def command(
        self, words: Sequence[str], folder: Path, log: Path, losses: Path | None = None, gate: Path | None = None
    ) -> Forked:
        """Start ``fedfloor WORDS`` in a folder.

        Args:
            losses: file to which a cloud appends every round's visits.
            gate: file that holds a device, see :func:`held_by`.
        """
        files = {"losses": str(losses or ""), "gate": str(gate or "")}
        about = {"words": [*words], "folder": str(folder), "log": str(log), **files}
        return Forked(self, int(self.ask("command", json.dumps(about))))


class Forked:
    """A device's process, as :class:`subprocess.Popen` shows one."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode = None

    def poll(self) -> int | None:
        if self.returncode is None:
            said = self._nursery.ask("poll", self.pid)
            self.returncode = int(said) if said else None  # type: ignore[assignment]
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self) -> None:
        self.send_signal(9)

    def wait(self, timeout: float = 10) -> int:
        if not until(lambda: self.poll() is not None, timeout):
            raise subprocess.TimeoutExpired("device", timeout)
        assert self.returncode is not None
        return self.returncode


@contextmanager
def nursery(what: Path) -> Iterator[Nursery]:
    made = Nursery(what)
    try:
        yield made
    finally:
        made.process.communicate()


def command(about: dict[str, Any]) -> None:
    """Become ``fedfloor WORDS``."""
    from fedfloor import cli

    os.setsid()
    os.chdir(about["folder"])
    log = os.open(about["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.argv = ["fedfloor", *about["words"]]
    if about["losses"]:
        tell_losses(Path(about["losses"]))
    if about["gate"]:
        before_serving(partial(held_by, Path(about["gate"])))
    cli.main()


def before_serving(do: Callable[[Any, Any], None]) -> None:
    """Call ``do`` with the agent and each message before the agent serves it."""
    from fedfloor.deploy.device import Agent
    from fedfloor.deploy.message import decode

    usual = Agent.serve

    def serve(agent: Agent, edge: str, payload: bytes) -> None:
        do(agent, decode(payload))
        usual(agent, edge, payload)

    Agent.serve = serve  # type: ignore[method-assign]


def dying(dies: Mapping[str, str], _: Any, message: Any) -> None:
    """Kill this process if the message is a request of a kind in a round of ``dies``."""
    if dies.get(str(message.round)) == message.kind:
        os.kill(os.getpid(), signal.SIGKILL)


def held_by(gate: Path, agent: Any, message: Any) -> None:
    """Do not serve a visit of the round in the file ``gate``, or of a later one, while that file exists.

    A held device says so by a file beside it.
    """

    def closed() -> bool:
        try:
            return bool(message.round >= int(gate.read_text()))
        except FileNotFoundError:
            return False

    if message.kind == "visit" and closed():
        gate.with_name(f"held-{agent.settings.name}").touch()
        while closed():
            time.sleep(0.02)


def tell_losses(path: Path) -> None:
    """Append every round to a file: its number, that of its visits, and the device and number of each lost one."""
    from fedfloor.engine import ranks

    usual = ranks.run

    def run(*parts: Any, **about: Any) -> Any:
        outcome = usual(*parts, **about)
        lost = [[one.device, one.visit] for one in outcome.receipts if one.lost]
        with path.open("a") as file:
            file.write(json.dumps([about["round_number"], len(outcome.receipts), lost]) + "\n")
        return outcome

    ranks.run = run


def main() -> None:
    from fedfloor import config
    from fedfloor.cli import deploying
    from fedfloor.deploy import cloud, device_sum, edge, mqtt, names, own, settings, worker
    from fedfloor.runs.parks import build_park

    what = config.read(Path(sys.argv[1]), [])
    own.alone(build_park(what), what, 0)
    where = settings.Endpoint("127.0.0.1", 1)
    assert cloud.run
    assert edge.serve
    with tempfile.TemporaryDirectory() as folder:  # a worker with secure sums opens its record of them
        place = Path(folder)
        made = settings.DeviceSettings("p", "d", 0, 0, where, place, place / "memory", place, edge="e")
        sums = device_sum.made(made, what, what.configured, 1)
        worker.Worker(made, what, what.configured, names.table(what), build_park(what), sums)
    mqtt.MqttConnection("d", made.broker)
    for line in sys.stdin:
        kind, _, said = line.strip().partition(" ")
        if kind == "poll":
            pid, status = os.waitpid(int(said), os.WNOHANG)
            print(os.waitstatus_to_exitcode(status) if pid else "", flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(2, 1)
            code = 0
            try:
                about = json.loads(said)
                if kind == "command":
                    command(about)
                else:
                    before_serving(partial(dying, about["dies"]))
                    deploying.device(Path(about["file"]))
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
                code = 1
            os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
