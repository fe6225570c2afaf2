"""Commands in processes of their own that need not wait for PyTorch.

Each is a copy of a server that has imported the libraries, but nothing of fedfloor: what a command imports of it, it
imports anew, as one typed at a prompt does; and whatever a page's modules or another command did is not there.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

LIBRARIES = ("torch", "numpy", "scipy.optimize", "pydantic", "tomlkit", "typer", "rich.console", "warm")
CLONE_NEWNS = 0x20000
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Started:
    """A command in a process group of its own, with the files that what it prints goes to."""

    process: ForkServerProcess
    out: Path
    err: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float) -> int:
        self.process.join(timeout)
        code = self.process.exitcode
        if code is None:
            os.killpg(self.pid, signal.SIGKILL)
            raise TimeoutError(f"not ended after {timeout} seconds\n{self.err.read_text()}")
        return code


@dataclass(frozen=True)
class Job:
    """A job of torchrun's: its options, what each rank does before the command, and the network namespace it is in."""

    options: Sequence[str] = ("--standalone", "--nproc-per-node", "2")
    before: str = ""
    host: str = ""


def begin(
    words: Sequence[str], folder: Path, log: Path, checkpoint_s: float | None = None, job: Job | None = None
) -> Started:
    """Start ``fedfloor WORDS…`` in a folder; what it prints goes to ``log`` with the endings .out and .err.

    Checkpoints come every ``checkpoint_s`` seconds, or as often as in a user's run. With ``job`` torchrun starts it.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(LIBRARIES))
    out, err = (log.with_suffix(suffix) for suffix in (".out", ".err"))
    for file in (out, err):
        file.write_text("")
    given = (list(words), str(folder), (str(out), str(err)), dict(os.environ), checkpoint_s, job)
    process = server.Process(target=_be, args=given)
    process.start()
    return Started(process, out, err)


def fedfloor(words: Sequence[str], folder: Path, log: Path, timeout: float = 300, job: Job | None = None) -> Done:
    """Call ``fedfloor WORDS…`` in a folder and wait for it."""
    process = begin(words, folder, log, job=job)
    code = process.wait(timeout)
    return Done(code, process.out.read_text(), process.err.read_text())


def _be(
    words: list[str], folder: str, files: tuple[str, str], environment: dict[str, str], checkpoint_s: float | None,
    job: Job | None,
) -> None:  # fmt: skip
    """Be ``python -m fedfloor WORDS…``, started in a folder."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in enumerate(files, 1):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False, encoding="utf-8") for number in (1, 2))  # noqa: SIM115
    sys.argv = ["fedfloor", *words]
    sys.path.insert(0, folder)
    assert not [name for name in sys.modules if name.split(".")[0] == "fedfloor"], "it would not be imported anew"
    if checkpoint_s is not None:
        from fedfloor.runs import loop

        loop.CHECKPOINT_S = checkpoint_s
    if job is not None:
        return _launch(job, words)
    from fedfloor.cli import main

    main()


def _launch(job: Job, words: list[str]) -> None:
    """Be ``torchrun OPTIONS… rank.py WORDS…``, whose ranks are copies of this process, too."""
    from torch.distributed import run

    if job.host:  # as ip netns exec: with mounts of its own, it shares no memory with the other host
        system = ctypes.CDLL(None)
        with open(f"/run/netns/{job.host}") as place:
            assert system.setns(place.fileno(), CLONE_NEWNET) == system.unshare(CLONE_NEWNS) == 0
    launch = run.elastic_launch

    def rank(*_: str) -> None:
        exec(job.before, {"__name__": "rank"})
        from fedfloor.cli import main

        main()

    def with_copies(config: run.LaunchConfig, entrypoint: object) -> object:
        config.start_method = "fork"
        return launch(config, rank)

    run.elastic_launch = with_copies  # type: ignore[assignment,misc]
    run.main([*job.options, "rank.py", *words])
