"""A trial park on one machine, with all the processes of a real park, connected by TLS."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedfloor import config
from fedfloor.base import outside, regular
from fedfloor.base.errors import RunError, SettingError, require
from fedfloor.base.names import Names
from fedfloor.config import with_paths
from fedfloor.deploy import broker, machines, processes, provision, settings
from fedfloor.deploy.park_file import CloudTable, DeviceTable, FactoryTable, ParkFile
from fedfloor.deploy.processes import LIST, Crew, ParkProcess, resident_mb
from fedfloor.deploy.settings import ALARMS, CloudSettings
from fedfloor.experiment import Experiment
from fedfloor.plan import walk

HERE = "127.0.0.1"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MOST_DEVICES = 32  # devices started without --devices: each process has PyTorch in memory
READY_S = 300.0  # longest start: PyTorch alone takes seconds when ten processes start together
INSTALL = "Mosquitto, the MQTT broker: apt install mosquitto, dnf install mosquitto, or brew install mosquitto"
Report = Callable[[str], None]


@dataclass(frozen=True)
class TrialPark:
    """A trial park: its folder, its park file and the path of the Mosquitto program."""

    folder: Path
    park: ParkFile
    mosquitto: str

    @property
    def place(self) -> Path:
        """The parent folder of the machines' folders."""
        return self.folder / "park"

    @property
    def run(self) -> Path:
        """The folder of the park's run."""
        return self.folder / "run"

    @property
    def names(self) -> Names:
        """The names of its devices and edges."""
        devices = {device.number: device.name for device in self.park.device if device.number is not None}
        return Names(devices, tuple(factory.name for factory in self.park.factory))


def mosquitto() -> str:
    """Return the path of the Mosquitto program.

    Raises:
        SettingError: it is not installed or too old; the message names the way to install it.
    """
    program = shutil.which("mosquitto", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
    if program is None:
        raise SettingError(f"a live park needs {INSTALL}.", key="live-packages")
    broker.check_version(program)
    return program


@regular.unwritable_by_others()
def prepare(
    experiment: Experiment, folder: Path, factories: int | None = None, devices: int | None = None,
    first_port: int | None = None, *, predict: bool = False,
) -> TrialPark:  # fmt: skip
    """Provision a trial park on this machine, with the experiment's assignment of devices to factories.

    Args:
        factories, devices: their numbers; default: the experiment's, or those of the data.
        first_port: the first of the consecutive ports it needs; default: any free ports.
        predict: whether devices predict the rows written into ``rows/DEVICE`` of the folder.

    Raises:
        SettingError: Mosquitto is missing; the folder is not empty; too many devices for one machine.
        RunError: a port is in use; a park runs in the folder already.
    """
    folder = folder.resolve()
    program = mosquitto()
    _fresh(folder)
    sized, factory_of = _sized(experiment, factories, devices)
    count = sized.park.factories or 1
    names = [f"factory-{LETTERS[m]}" if m < len(LETTERS) else f"factory-{m}" for m in range(count)]
    chosen = processes.free(1 + count, first_port)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIST).write_text("[]\n", encoding="utf-8")  # marks it as a park's folder
    (folder / "experiment.toml").write_text(config.brief(sized), encoding="utf-8")
    park = ParkFile(
        "trial", folder / "experiment.toml", CloudTable(HERE, chosen[0], HERE),
        tuple(FactoryTable(n, HERE, chosen[1 + m], HERE) for m, n in enumerate(names)),
        tuple(DeviceTable(f"device-{k}", names[int(m)], predict=_rows(folder, k) if predict else None)
              for k, m in enumerate(factory_of)),
        valid_days=30, folder=folder / "park" / "cloud",
    )  # fmt: skip
    trial = TrialPark(folder, park, program)
    _provision(trial)
    return trial


def _rows(folder: Path, device: int) -> str:
    place = folder / "rows" / f"device-{device}"
    place.mkdir(parents=True, exist_ok=True)
    return str(place)


def _sized(experiment: Experiment, factories: int | None, devices: int | None) -> tuple[Experiment, list[int]]:
    """Return the experiment of a trial park with so many factories and devices, and each device's factory.

    Raises:
        SettingError: there are fewer devices than factories, or more than MOST_DEVICES and ``devices`` is None.
    """
    from fedfloor.runs.checks import batches_fit
    from fedfloor.runs.forecast import plan_of
    from fedfloor.runs.parks import build_park

    require(factories is None or factories >= 1, "--factories", factories, "at least 1")
    given = experiment.park
    if devices is not None:
        least = factories or given.factories or 1
        require(devices >= least, "--devices", devices, f"at least one for each of the {least} factories")
    park_settings = replace(given, devices=devices or given.devices, factories=factories or given.factories)
    sized = with_paths(replace(experiment, park=park_settings), Path.absolute)
    park = build_park(sized)
    if devices is None and park.devices > MOST_DEVICES:
        raise SettingError(
            f"the experiment has {park.devices:,} devices, and each is a process of its own here: limit them with "
            f"--devices N. More than {MOST_DEVICES} are started only if N is given.",
            key="devices-of-live-park",
        )
    if not sized.configured.short_batches:
        batches_fit(sized, park, max(walk.batch_sizes(plan_of(sized, park)), default=0))  # before processes are started
    factory_of = park.factory_of.tolist()
    own = tuple(factory_of) if park.factory_names else park_settings.assignment
    count = park_settings.factories or park.factories
    whole = replace(park_settings, devices=park.devices, factories=count, assignment=own)
    return replace(sized, park=whole), factory_of


def _fresh(folder: Path) -> None:
    if Crew(folder).left():
        raise RunError(f"a park runs in {folder} already: fedfloor park live down --park {folder} ends it.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"--out {folder}: the folder is not empty. Name a new folder, or delete this one.")


def _provision(trial: TrialPark) -> None:
    provision.provision(trial.park, trial.place)
    (trial.folder / "park.toml").write_text(settings.to_toml(trial.park), encoding="utf-8")
    path = trial.place / "cloud" / "cloud.toml"
    cloud = settings.read(CloudSettings, path)
    patient = replace(cloud.deadlines, join_s=READY_S)  # the loop starts before the edges are connected
    path.write_text(settings.to_toml(replace(cloud, out=trial.run, deadlines=patient)), encoding="utf-8")


@regular.unwritable_by_others()
def up(trial: TrialPark, report: Report) -> Crew:
    """Start every process of a park except the cloud's loop, and wait until the brokers listen.

    Raises:
        RunError: a process died, or was not ready in time.
    """
    crew = Crew(trial.folder)
    (trial.folder / "tmp").mkdir(exist_ok=True)
    park = trial.park
    place = trial.place
    service = machines.cloud_services(park)[0]
    for folder, hub in provision.hubs(park):
        process = _start(crew, trial, service, hub.broker, "broker", place / folder)
        crew.wait(process.name, lambda port=hub.port: listens(port), [process], READY_S)  # type: ignore[misc]
        report(f"{process.name} listens on port {hub.port}")
    for device in park.device:
        service = machines.device_services(device)[0]
        _start(crew, trial, service, device.name, "device", place / "devices" / device.name)
    for one in park.factory:
        service = machines.factory_services(one)[1]
        _start(crew, trial, service, f"edge-{one.name}", "edge", place / "factories" / one.name)
    if any(one.predict for one in park.device):
        _start(crew, trial, machines.alarm_services()[0], ALARMS, ALARMS, place / ALARMS)
    for line in provision.unguarded(park):
        report(line)
    return crew


@regular.unwritable_by_others()
def cloud(crew: Crew, trial: TrialPark, *more: str) -> ParkProcess:
    """Start the cloud's loop and so the run; ``more`` are further words of its command, such as ``--resume``."""
    service = machines.cloud_services(trial.park)[1]
    service = replace(service, words=(*service.words, *more))
    return _start(crew, trial, service, "cloud", "cloud", trial.place / "cloud")


def _start(crew: Crew, trial: TrialPark, service: machines.Service, name: str, kind: str, where: Path) -> ParkProcess:
    (where / machines.STATE).mkdir(exist_ok=True)
    first, *rest = service.words
    words = [*([sys.executable, "-m", "fedfloor"] if first == "fedfloor" else [trial.mosquitto]), *rest]
    environment = {**outside.paths(), **service.env, "TMPDIR": str(trial.folder / "tmp"), "PYTHONUNBUFFERED": "1"}
    return crew.start(name, kind, words, where, environment, service.files)


def listens(port: int) -> bool:
    """Return whether a process listens on a port of this machine."""
    with socket.socket() as connection:
        connection.settimeout(1.0)
        return connection.connect_ex((HERE, port)) == 0


def ledger(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the run's ledger so far."""
    path = folder / "run" / "ledger.jsonl"
    lines = regular.read_text(path).splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def follow(crew: Crew, process: ParkProcess, report: Callable[[dict[str, Any]], None]) -> int:
    """Report each new line of the run's ledger until the run ends; return the cloud's exit code.

    Raises:
        RunError: a broker or an edge ended before the first round, so that the cloud would wait for it in vain.
    """
    needed = [member for member in crew.members if member.kind in ("broker", "edge")]
    seen = 0
    running = True
    while running:
        running = crew.alive(process)
        lines = ledger(crew.folder)
        for line in lines[seen:]:
            report(line)
        seen = len(lines)
        if running and not seen:
            crew.need(needed)
        time.sleep(0.2 if running else 0.0)
    return int(crew.children[process.pid].returncode)


def status(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each process of a park: whether it is alive, its memory, the path of its log.

    Raises:
        SettingError: no park runs in the folder.
    """
    crew = Crew.of(folder.resolve())
    if not crew.members:
        raise SettingError(
            f"no park runs in {folder}: fedfloor park live up EXPERIMENT.toml --out {folder} starts one."
        )
    rows = []
    for process in crew.members:
        alive = crew.alive(process)
        memory = resident_mb(process.pid) if alive else None
        row = {"name": process.name, "kind": process.kind, "alive": alive, "pid": process.pid}
        rows.append(row | {"memory_mb": None if memory is None else round(memory), "log": process.log})
    return rows


def down(folder: Path, keep: bool = False) -> int:
    """End a park's processes and delete its keys and settings, but not its run and logs.

    Args:
        folder: the folder of the park.
        keep: whether keys and settings are kept, too.

    Returns:
        The number of ended processes.
    """
    folder = folder.resolve()
    known = (folder / LIST).exists()  # otherwise files of these names are not a park's
    count = Crew.of(folder).stop()
    if known and not keep:
        for path in (folder / name for name in ("park", "tmp", "rows", "park.toml", "experiment.toml")):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return count
