"""Faults drawn at random in parks of real processes: ``PYTHONPATH=.:tests/support python tests/programs/outages.py``.

Devices, edges, brokers, the cloud's broker and the cloud end in an orderly (SIGTERM) or a disorderly way (SIGKILL),
alone or all of a kind, and are started again; or they hang for some seconds (SIGSTOP, SIGCONT). In the end the model
and every line of the ledger must be, to the bit, those of a simulation with the same lost visits; whenever the cloud
ends by itself, it must be with exit code 1 and a sentence, and ``--resume`` goes on.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from safetensors.torch import load_file

from fedfloor import config
from fedfloor.deploy import live, provision
from fedfloor.deploy.settings import CloudSettings, EdgeSettings, read, to_toml
from fedfloor.plan import schedule
from fedfloor.runs import launch, ledger
from fedfloor.runs.orders import Limits, Orders
from forking import Nursery, nursery
from live_park import experiment, figures
from papers import documents
from parks import until

FACTORIES = 2
ROUNDS = 100_000
JOIN_S = 30.0
LIMIT = "deploy.norm_limit = false\n"  # converged devices with few samples have updates of very different lengths
GROUPS = ("brokers", "edges", "devices")  # all of a kind at once
HOW = ("SIGTERM", "SIGKILL", "SIGSTOP")


@dataclass(frozen=True)
class Kind:
    """A kind of park.

    Args:
        method: the method.
        devices: the number of devices.
        model: the model.
        more: further settings.
        own: the beginning of the names of tensors that stay on devices; empty: there are none.
    """

    method: str
    devices: int = 4
    model: str = "logistic"
    more: str = ""
    own: str = ""


KINDS = {
    "hierfavg": Kind("hierfavg"),
    "fedavg": Kind("fedavg"),
    "fedsr": Kind("fedsr"),
    # Where an absent device has no outputs, an evaluation goes on without them, and no simulation does so.
    "own classifiers": Kind("fedper", model="mlp-2nn", more=f"evaluate.every = {ROUNDS}\n", own="5."),
    "secure sums": Kind("fedavg", devices=8, more="method.travel = 'secure-sum'\n"),  # of three devices at least
}


@dataclass
class Fault:
    """A fault: what ends or hangs, how, for how long, and in which round."""

    target: str
    how: str
    seconds: float
    round: int = 0


@dataclass
class Came:
    """What came of a park."""

    seed: int
    kind: str
    faults: list[Fault]
    rounds: int = 0
    visits: int = 0
    lost: int = 0
    waits: int = 0  # rounds that waited for devices
    ends: list[str] = field(default_factory=list)  # sentences with which the cloud ended by itself
    model: bool = False
    ledger: bool = False
    wrong: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.model and self.ledger and not self.wrong


class Plant:
    """A provisioned park, each of whose processes can be ended and started again by its name."""

    def __init__(self, folder: Path, what: Path, forks: Nursery, quorum: float) -> None:
        given = config.read(what, [f"deploy.quorum={quorum:g}"])
        self.trial = live.prepare(given, folder / "park", FACTORIES, given.park.devices)
        self.folder = folder
        self.forks = forks
        self.losses = folder / "losses.jsonl"
        self.processes: dict[str, Any] = {}
        park = self.trial.park
        place = self.trial.place
        self.start_of: dict[str, Callable[[], Any]] = {}
        for where, hub in provision.hubs(park):
            self.start_of[hub.broker] = lambda where=where: self.broker(place / where)  # type: ignore[misc]
        for one in park.factory:
            words = ("park", "edge", f"edge-{one.name}.toml")
            self.start_of[f"edge-{one.name}"] = lambda w=words, m=one: self.client(w, place / "factories" / m.name)  # type: ignore[misc]
        for device in park.device:
            words = ("park", "device", f"device-{device.name}.toml")
            self.start_of[device.name] = lambda w=words, k=device: self.client(w, place / "devices" / k.name)  # type: ignore[misc]
        self.gate = folder / "gate"
        for file, kind in [(place / "cloud/cloud.toml", CloudSettings)] + [
            (place / "factories" / one.name / f"edge-{one.name}.toml", EdgeSettings) for one in park.factory
        ]:
            text = to_toml_with(file, kind)
            file.write_text(text)

    def broker(self, where: Path) -> subprocess.Popen[bytes]:
        (where / "state").mkdir(exist_ok=True)
        with (self.folder / f"broker-{where.name}.log").open("ab") as log:
            return subprocess.Popen([self.trial.mosquitto, "-c", "mosquitto.conf"], cwd=where, stdout=log, stderr=log)

    def client(self, words: Sequence[str], where: Path, losses: Path | None = None) -> Any:
        (where / "state").mkdir(exist_ok=True)
        gate = self.gate if words[1] == "device" else None
        return self.forks.command(words, where, self.folder / f"{where.name}-{words[1]}.log", losses, gate)

    def start(self, name: str) -> None:
        self.processes[name] = self.start_of[name]()

    def start_cloud(self) -> None:
        more = ("--resume",) if (self.trial.run / "experiment.toml").exists() else ()
        self.processes["cloud"] = self.client(
            ("park", "cloud", "cloud.toml", *more), self.trial.place / "cloud", self.losses
        )

    @property
    def cloud_log(self) -> str:
        path = self.folder / "cloud-cloud.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def lines(self) -> list[dict[str, Any]]:
        return live.ledger(self.trial.folder)

    def names(self, target: str) -> list[str]:
        """Return the processes of a target: itself, or all of a kind."""
        kinds = {
            "brokers": [hub.broker for _, hub in provision.hubs(self.trial.park)],
            "edges": [f"edge-{one.name}" for one in self.trial.park.factory],
            "devices": [one.name for one in self.trial.park.device],
        }
        return kinds.get(target, [target])

    def everyone(self) -> list[str]:
        """Return the targets of single faults."""
        return [*(name for kind in GROUPS for name in self.names(kind)), "cloud"]

    def strike(self, fault: Fault) -> None:
        """Let a fault happen, and mend it."""
        fault.round = len(self.lines()) + 1
        names = [name for name in self.names(fault.target) if self.processes[name].poll() is None]
        for name in names:
            self.processes[name].send_signal(getattr(signal, fault.how))
        if fault.how == "SIGSTOP":
            time.sleep(fault.seconds)
            for name in names:
                self.processes[name].send_signal(signal.SIGCONT)
            return
        for name in names:
            self.processes[name].wait(30)
        time.sleep(fault.seconds)
        for name in names:
            self.start_cloud() if name == "cloud" else self.start(name)

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold all devices in a visit of the same round, which no device has answered; yield the rounds before it."""
        self.processes["cloud"].send_signal(signal.SIGSTOP)
        last = len(self.lines()) + 2  # one round may be under way, and one done that the ledger does not have yet
        closed = self.gate.with_suffix(".part")
        closed.write_text(str(last + 1))
        closed.replace(self.gate)
        self.processes["cloud"].send_signal(signal.SIGCONT)
        marks = [self.folder / f"held-{name}" for name in self.names("devices")]
        assert until(lambda: all(mark.exists() for mark in marks), 120), self.cloud_log
        assert len(self.lines()) == last
        yield last
        for mark in marks:
            mark.unlink()
        self.gate.unlink()

    def end(self) -> None:
        self.gate.unlink(missing_ok=True)
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def to_toml_with(file: Path, kind: type[Any]) -> str:
    """Return a settings file's text with this program's deadline for returns."""
    given = read(kind, file)
    return to_toml(replace(given, deadlines=replace(given.deadlines, join_s=JOIN_S)))


@contextmanager
def running(folder: Path, kind: str, quorum: float = 1) -> Iterator[Plant]:
    """A park that trains."""
    of = KINDS[kind]
    what = experiment(folder, of.method, ROUNDS, of.devices, of.model, LIMIT + of.more, FACTORIES)
    what.write_text(what.read_text().replace("lr = 0.05", "lr = { kind = 'cosine', start = 0.05 }"))
    with nursery(what) as forks:
        plant = Plant(folder, what, forks, quorum)
        try:
            for name in plant.start_of:
                plant.start(name)
            plant.start_cloud()
            assert until(lambda: len(plant.lines()) >= 2, 120), plant.cloud_log
            yield plant
        finally:
            plant.end()


def drawn(rng: random.Random, plant: Plant, count: int) -> list[Fault]:
    """Return faults drawn at random: a quarter of a whole kind, the others of one process."""
    singles = plant.everyone()
    faults = []
    for _ in range(count):
        target = rng.choice(GROUPS if rng.random() < 0.25 else singles)
        faults.append(Fault(target, rng.choice(HOW), round(rng.uniform(0.1, 4.0), 2)))
    return faults


def resumed(plant: Plant, came: Came) -> None:
    """Resume the cloud if it has ended by itself, and note its sentence."""
    code = plant.processes["cloud"].poll()
    if code is None:
        return
    sentence = next((line for line in reversed(plant.cloud_log.splitlines()) if line.startswith("error: ")), "")
    if code != 1 or not sentence or "Traceback" in plant.cloud_log:
        came.wrong.append(f"the cloud ended with exit code {code}: {plant.cloud_log[-300:]}")
    came.ends.append(sentence)
    plant.start_cloud()


def park(folder: Path, seed: int, kind: str, faults: Callable[[Plant], list[Fault]]) -> Came:
    """Run a park with faults, end it, and compare it with its simulation."""
    rng = random.Random(seed)
    with running(folder, kind) as plant:
        came = Came(seed, kind, faults(plant))
        for fault in came.faults:
            plant.strike(fault)
            time.sleep(rng.uniform(0.2, 2.5))
            resumed(plant, came)
        after = len(plant.lines())

        def whole() -> bool:
            resumed(plant, came)
            lines = plant.lines()
            return len(lines) > after and lines[-1]["lost"] == 0

        if not until(whole, 180):
            came.wrong.append("no round without a lost visit followed the last fault")
        plant.processes["cloud"].send_signal(signal.SIGINT)
        if (code := plant.processes["cloud"].wait(120)) != 130:
            came.wrong.append(f"Ctrl-C ended the cloud with exit code {code}")
        came.waits = plant.cloud_log.count(" goes on after ")
        compare(plant, came)
    return came


def _without_reasons(line: ledger.Line) -> dict[str, object]:
    """Return a line but for what is measured, and for the reasons of lost sums, which a simulation does not have."""
    fields = figures(line)
    return fields | {"info": {key: told for key, told in (line.info or {}).items() if key != "refused"}}


def compare(plant: Plant, came: Came) -> None:
    """Compare a run with the simulation that loses the same visits."""
    told = {row[0]: row for row in map(json.loads, plant.losses.read_text().splitlines())}  # the last time of each
    lost = {(number, device, visit) for number, _, visits in told.values() for device, visit in visits}
    got = ledger.read(plant.trial.run / "ledger.jsonl")
    out = plant.folder / "simulated"
    with mock.patch.object(schedule, "is_lost", lambda key, _: (key.round, key.device, key.visit) in lost):
        what = config.read(plant.trial.folder / "experiment.toml", [])
        launch.start(what, Orders(out, limits=Limits(stop_after=len(got))), 1, launch.ignore)
    wanted = ledger.read(out / "ledger.jsonl")
    came.rounds = len(got)
    came.lost = sum(line.lost for line in got)
    came.visits = sum(told[line.round][1] for line in got)
    came.ledger = [_without_reasons(line) for line in got] == [_without_reasons(line) for line in wanted]
    own = KINDS[came.kind].own
    models = [shared(place / "model.safetensors", own) for place in (plant.trial.run, out)]
    came.model = models[0] == models[1] and (not own or same_parts(plant, out))


def shared(path: Path, own: str) -> dict[str, bytes]:
    """Return the tensors of a model that do not stay on devices."""
    tensors = load_file(path)
    return {name: one.numpy().tobytes() for name, one in tensors.items() if not own or not name.startswith(own)}


def same_parts(plant: Plant, out: Path) -> bool:
    """Return whether each device holds the part of its own that the simulation ended with."""
    newest = dict[str, Path]()
    for path in sorted((out / "memory").iterdir(), key=lambda path: path.stat().st_mtime_ns):
        newest[path.name.partition("-")[0]] = path
    parts = {device: plant.trial.place / "devices" / f"device-{device}/state/memory" for device in newest}
    return len(newest) == len(plant.names("devices")) and all(
        (parts[device] / path.name).exists() and (parts[device] / path.name).read_bytes() == path.read_bytes()
        for device, path in newest.items()
    )


def blocks(all_came: Sequence[Came], command: str) -> Iterator[str | dict[str, Any]]:
    """Yield what the page consists of."""
    faults = [fault for came in all_came for fault in came.faults]
    each = f"{KINDS['fedavg'].devices}, with secure sums {KINDS['secure sums'].devices}"
    yield "# Faults drawn at random"
    yield (
        f"`{command}`: parks of real processes on one machine, behind TLS ({FACTORIES} factories with a broker and an "
        f"edge each, the cloud's broker, {each} devices, the cloud), each with faults "
        "drawn by a seed. A fault ends a process by SIGTERM or SIGKILL and starts it again after 0.1 to 4 s, or stops "
        "it for that time (SIGSTOP, SIGCONT); a quarter of the faults take all brokers, all edges or all devices at "
        f"once. `deadlines.join_s` is {JOIN_S:g} s. Then the run is ended by Ctrl-C and compared with a simulation in "
        "which the same visits are lost: the model to the bit, every line of the ledger but for what is measured."
    )
    good = sum(came.good for came in all_came)
    ends = sum(len(came.ends) for came in all_came)
    yield (
        f"{len(faults)} faults in {sum(came.rounds for came in all_came)} rounds of {len(all_came)} parks; {good} of "
        f"{len(all_came)} parks equal their simulations. Ends of the cloud by itself, with exit code 1 and a sentence, "
        f"after which it was resumed: {ends}."
    )
    yield {
        "columns": ["seed", "park", "faults", "rounds", "visits", "lost", "waits", "ends", "model", "ledger"],
        "rows": [
            [str(cell) for cell in (came.seed, came.kind, len(came.faults), came.rounds, came.visits, came.lost,
                                    came.waits, len(came.ends), *("equal" if same else "DIFFERS"
                                                                  for same in (came.model, came.ledger)))]
            for came in all_came
        ],
    }  # fmt: skip
    kinds = Counter((kind_of(fault.target), fault.how) for fault in faults)
    yield {
        "columns": ["target", *HOW],
        "rows": [[kind, *(str(kinds[kind, how]) for how in HOW)] for kind in sorted({kind for kind, _ in kinds})],
    }
    yield from (f"{'; '.join(came.wrong)}" for came in all_came if came.wrong)


def kind_of(target: str) -> str:
    """Return the kind of a fault's target."""
    if target in GROUPS:
        return f"all {target}"
    if target == "cloud":
        return target
    if "broker" in target:
        return "the cloud's broker" if "cloud" in target else "a factory's broker"
    return "an edge" if target.startswith("edge-") else "a device"


def finished(page: Path) -> list[Came]:
    """Return the parks of a page that was written before, in the order of their seeds."""
    source = page.with_suffix(".json")
    parks = json.loads(source.read_text())["parks"] if source.exists() else []
    return [Came(**{**one, "faults": [Fault(**fault) for fault in one["faults"]]}) for one in parks]


def main() -> int:
    """Run parks and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--parks", type=int, default=len(KINDS))
    parser.add_argument("--seed", type=int, default=0, help="of the first park; a park's seed gives its kind, too")
    parser.add_argument("--keep", type=Path, help="folder for the parks; default: a temporary one")
    parser.add_argument("--out", type=Path, help="write a page")
    parser.add_argument("--resume", action="store_true", help="keep the parks that the page's JSON has already")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    program = "PYTHONPATH=.:tests/support python tests/programs/outages.py"
    command = f"{program} --faults {given.faults} --parks {given.parks}"
    all_came = finished(given.out) if given.resume and given.out else []
    for n in range(len(all_came), given.parks):
        with tempfile.TemporaryDirectory() as place:
            folder = (given.keep or Path(place)) / f"park-{given.seed + n}"
            folder.mkdir(parents=True)
            seed = given.seed + n
            kind = [*KINDS][seed % len(KINDS)]
            faults = partial(drawn, random.Random(seed), count=given.faults // given.parks)
            came = park(folder, seed, kind, faults)
        all_came.append(came)
        print(json.dumps(asdict(came)), flush=True)
        if given.out:
            documents.publish(given.out, list(blocks(all_came, command)), parks=[asdict(came) for came in all_came])
    return int(not all(came.good for came in all_came))


if __name__ == "__main__":
    sys.exit(main())
