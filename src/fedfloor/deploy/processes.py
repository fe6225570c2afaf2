"""The processes of a trial park: choosing ports, starting, watching and ending processes and their children."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, RunError, require
from fedfloor.base.strict import json_text


def free(count: int, first: int | None = None) -> list[int]:
    """Return ``count`` free TCP ports of this machine.

    Args:
        first: the first of consecutive ports; default: the system chooses.

    Raises:
        RunError: a consecutive port is in use; names the process if possible.
    """
    if first is not None:
        require(1 <= first <= 65536 - count, "--ports", first, f"from 1 to {65536 - count}")
        ports = list(range(first, first + count))
        for port in ports:
            need(port)
        return ports
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in held:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in held]


def need(port: int, host: str = "127.0.0.1") -> None:
    """Check that a TCP port is free.

    Raises:
        RunError: it is in use, or the system refuses it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise RunError(f"port {port} of {host} cannot be used: {error.strerror or error}.") from error
            owner = holder(port)
            by = f" by {owner}" if owner else " by another user's process"
            raise RunError(
                f"port {port} is in use{by}: end that process, or choose other ports.", key="port"
            ) from error


def holder(port: int) -> str | None:
    """Return the name and id of the process that listens on a port; None if unknown to this user or not on Linux."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    pid = opener(sockets) if sockets else None
    with contextlib.suppress(OSError):
        return None if pid is None else f"'{Path(f'/proc/{pid}/comm').read_text().strip()}' (process {pid})"
    return None


def opener(files: Collection[str]) -> int | None:
    """Return the id of a process of this user that has one of these files or sockets open (Linux)."""
    pids = (int(place.name) for place in Path("/proc").glob("[0-9]*"))
    return next((pid for pid in pids if has_open(pid, files)), None)


def has_open(pid: int, files: Collection[str]) -> bool:
    """Return whether a process has one of these files or sockets open, as far as this user may inspect it."""
    with contextlib.suppress(OSError):
        return any(os.readlink(link) in files for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _listening_inodes(port: int) -> Sequence[str]:
    inodes = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:  # 0A: state LISTEN
                    inodes.append(fields[9])
    return inodes


MARK = "FEDFLOOR_LIVE"  # variable with the park's folder in the environment of its processes and their children
TAIL = 15  # lines of a log in a message
GRACE_S = 8.0
LIST = "live.json"


@dataclass(frozen=True)
class ParkProcess:
    """A process of a trial park.

    Args:
        name: name in messages.
        kind: ``broker``, ``edge``, ``device``, ``cloud`` or ``alarms``.
        pid: its process id.
        log: file with its output.
    """

    name: str
    kind: str
    pid: int
    log: str


@dataclass
class Crew:
    """All processes of a trial park.

    Attributes:
        folder: the park's folder, whose path marks the processes in their environment.
        members: the processes in the order of their start.
        children: the processes that this process started itself.
    """

    folder: Path
    members: list[ParkProcess] = field(default_factory=list)
    children: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Crew:
        """Return the processes of a park that runs, or ran, in a folder."""
        try:
            rows = json.loads(regular.read_text(folder / LIST))
        except (OSError, *MALFORMED):
            rows = []
        return cls(folder, [ParkProcess(**row) for row in rows])

    def start(
        self, name: str, kind: str, words: Sequence[str], cwd: Path, env: Mapping[str, str], files: int = 0
    ) -> ParkProcess:
        """Start a process in its own session, add it to the members, and return it.

        Args:
            kind: see :class:`ParkProcess`.
            cwd: its working directory.
            env: environment variables in addition to this process's.
            files: limit on open files, as far as this process may set it; 0: the limit of this process.

        Raises:
            RunError: the program cannot be started.
        """
        log = self.folder / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with regular.opened(log, "ab") as file:
            try:
                made = subprocess.Popen(
                    list(words), cwd=cwd, env={**os.environ, **env, MARK: str(self.folder)}, stdin=subprocess.DEVNULL,
                    stdout=file, stderr=file, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise RunError(f"{name}: {words[0]}: {error.strerror or error}.") from error
        if files and hasattr(resource, "prlimit"):  # Linux
            _, hard = resource.prlimit(made.pid, resource.RLIMIT_NOFILE)
            soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
            resource.prlimit(made.pid, resource.RLIMIT_NOFILE, (soft, hard))
        self.children[made.pid] = made
        self.members.append(ParkProcess(name, kind, made.pid, str(log)))
        rows = [asdict(process) for process in self.members]
        (self.folder / LIST).write_text(json_text(rows, indent=1) + "\n", encoding="utf-8")
        return self.members[-1]

    def alive(self, process: ParkProcess) -> bool:
        """Return whether a process runs; a later process with the same id does not count."""
        if process.pid in self.children:
            return self.children[process.pid].poll() is None
        return _is_marked(Path("/proc") / str(process.pid), self.folder)

    def need(self, watched: Collection[ParkProcess]) -> None:
        """Check that processes still run.

        Raises:
            RunError: a process died; shows the last lines of its log.
        """
        for process in watched:
            if not self.alive(process):
                child = self.children.get(process.pid)
                how = "" if child is None else f" (exit code {child.returncode})"
                raise RunError(
                    f"{process.name} died{how}. Its last lines, of {process.log}:\n{tail(Path(process.log))}",
                    key="process-died",
                )

    def wait(self, goal: str, ready: Callable[[], bool], watched: Collection[ParkProcess], seconds: float) -> None:
        """Wait until a condition holds.

        Args:
            goal: description of the condition, for the error.
            ready: returns whether the condition holds.
            watched: the processes that must run meanwhile.
            seconds: the longest wait.

        Raises:
            RunError: a watched process died, or the wait took too long; shows the last lines of the logs.
        """
        end = time.monotonic() + seconds
        while not ready():
            self.need(watched)
            if time.monotonic() > end:
                last = "\n".join(f"{process.name}:\n{tail(Path(process.log), 5)}" for process in watched)
                raise RunError(f"{goal}: not reached after {seconds:.0f} s. Last lines of the logs:\n{last}")
            time.sleep(0.05)

    def left(self) -> set[int]:
        """Return the ids of all processes with the park's mark except this one."""
        for child in self.children.values():
            child.poll()  # otherwise it would remain as a zombie
        return set(marked(self.folder)) - {os.getpid()}

    def stop(self) -> int:
        """End all processes, the last started first, then their remaining children; return the number of processes."""
        ours = self.left()
        for kind in dict.fromkeys(process.kind for process in reversed(self.members)):
            group = {process.pid for process in self.members if process.kind == kind} & ours
            _send_signal(group, signal.SIGTERM)
            self.wait_until_gone(group, GRACE_S)
        for how in (signal.SIGTERM, signal.SIGKILL):
            rest = self.left()
            _send_signal(rest, how)
            self.wait_until_gone(rest, GRACE_S)
        (self.folder / LIST).unlink(missing_ok=True)
        return len(ours)

    def wait_until_gone(self, group: set[int], seconds: float) -> None:
        """Wait until none of these processes runs, for at most ``seconds``."""
        end = time.monotonic() + seconds
        while group & self.left() and time.monotonic() < end:
            time.sleep(0.05)


def tail(log: Path, lines: int = TAIL) -> str:
    """Return the last lines of a log as text."""
    try:
        return "\n".join(regular.read_text(log, errors="replace").splitlines()[-lines:]) or "(its log is empty)"
    except OSError:
        return "(it has no log)"


def marked(folder: Path) -> Iterator[int]:
    """Yield the ids of all running processes with a park's mark (Linux)."""
    for place in Path("/proc").glob("[0-9]*"):
        if _is_marked(place, folder):
            yield int(place.name)


def resident_mb(pid: int) -> float | None:
    """Return the resident memory of a process in MB; None if it is unknown (Linux)."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return None


def _is_marked(place: Path, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        mine = f"{MARK}={folder}".encode() in regular.read_bytes(place / "environ").split(b"\0")
        return mine and regular.read_text(place / "stat").rsplit(")", 1)[1].split()[0] != "Z"
    return False


def _send_signal(pids: Collection[int], how: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, how)
