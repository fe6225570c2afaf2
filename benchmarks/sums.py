"""What secure sums cost a round of real processes, 8 devices in 2 factories, beside the same round in the clear.

Two parks of processes on this machine, each with two Mosquitto brokers: their rounds take turns, so that other work on
the machine reaches both. Seconds are the cloud's, of a round; processor seconds those of brokers, devices and edges.
``python -m benchmarks.sums`` measures all cases and writes the page, ``fedfloor bench sums`` prints the table.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Semaphore

from benchmarks.live import computed_s, open_to_anybody, started_broker
from fedfloor import config
from fedfloor.base.errors import RunError
from fedfloor.deploy import authority, cloud, processes
from fedfloor.deploy.settings import (
    CloudEdge,
    CloudSettings,
    Deadlines,
    DeviceSettings,
    EdgeSettings,
    Endpoint,
    Named,
    Tls,
    to_toml,
)
from fedfloor.deploy.signing import Signer
from fedfloor.deploy.sum_messages import Advertisement
from fedfloor.parts.protection import masking, shares
from fedfloor.runs import ledger
from fedfloor.runs.orders import Limits
from fedfloor.runs.parks import build_park
from papers import documents

Row = dict[str, object]
SIDES = {"plain": "", "secure": 'method.travel = "secure-sum"\n'}
EXPERIMENT = """
rounds = 1000
data = {{ name = "labels", samples_per_device = 600 }}
park = {{ devices = 8, factories = 2 }}
model.name = "{model}"
method.name = "fedavg"
work = {{ steps = {steps}, batch_size = {batch_size}, lr = 0.05 }}
evaluate.every = 1000
deploy.norm_limit = false
"""


@dataclass(frozen=True)
class Case:
    """A network, and the mini-batches that each device trains on in a round."""

    name: str
    steps: int
    batch_size: int
    model: str = "mlp-2nn"


CASES = (
    Case("2NN, 1 mini-batch of 10", 1, 10),
    Case("2NN, 60 mini-batches of 10", 60, 10),
    Case("2NN, 235 mini-batches of 32", 235, 32),  # one pass over an eighth of MNIST
)
WAIT_S = 900.0  # for the processes of a park to start: twenty load Python at once, edges PyTorch, too
REPEATS = 7
SIGNATURES = 200  # keys that are signed and checked
PAGE = Path(__file__).parents[1] / "results/secure-sums.md"
ABOUT = f"""\
Eight devices in two factories, each a process, with two edges and a Mosquitto broker on a machine of two cores; the 2NN (209,262 parameters, 0.84 MB),
FedAvg, all devices in each round. Two parks, one with `travel = "secure-sum"` and one without, take turns round by round; medians of {REPEATS} rounds
after one in which devices load PyTorch. The ratio is the median of the rounds' ratios; in brackets the least and the most. Processor seconds are those of
broker, devices and edges together. Brokers and messages have neither TLS nor signatures.

```bash
python -m benchmarks.sums
```"""  # noqa: E501


@dataclass(frozen=True)
class Park:
    """A park of processes, and the processor seconds that they had spent after its first and its last round."""

    settings: CloudSettings
    processes: list[subprocess.Popen[bytes]]
    spent_s: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """Seconds of each round but the first, in which devices load PyTorch.

        Raises:
            RunError: a round lost a device.
        """
        lines = ledger.read(self.settings.out / "ledger.jsonl")[1:]
        if any(line.lost for line in lines):
            raise RunError("a round lost a device: this machine is too busy to measure on; try again.")
        return [line.wall_s for line in lines]


def measure(cases: Sequence[Case], repeats: int, say: Callable[[str], None]) -> list[Row]:
    """Time so many rounds of each side; return a row for each case.

    Raises:
        RunError: there is no Mosquitto, a round lost a device, or a process did not come up.
    """
    rows = list[Row]()
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="ff-") as place, ExitStack() as parks:
            sides = {
                name: parks.enter_context(_park(Path(place) / name, name, EXPERIMENT.format(**vars(case)) + more))
                for name, more in SIDES.items()
            }
            _in_turns(sides, repeats + 1, lambda number, what=case.name: say(f"{what}: round {number}"))
            plain = sides["plain"]
            secure = sides["secure"]
            ratios = [masked / clear for masked, clear in zip(secure.seconds, plain.seconds, strict=True)]
            spent = {name: (park.spent_s[1] - park.spent_s[0]) / repeats for name, park in sides.items()}
            figures = {
                "plain_s": statistics.median(plain.seconds), "secure_s": statistics.median(secure.seconds),
                "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
                "plain_cpu_s": spent["plain"], "secure_cpu_s": spent["secure"],
                "cpu_ratio": spent["secure"] / spent["plain"],
            }  # fmt: skip
            rows.append({"case": case.name, **{name: round(value, 3) for name, value in figures.items()}})
            say(str(rows[-1]))
    return rows


def _in_turns(sides: Mapping[str, Park], rounds: int, say: Callable[[int], None]) -> None:
    """Let two parks do so many rounds each, one round at a time."""
    turn = {name: Semaphore(0) for name in sides}

    def train(name: str, park: Park) -> None:
        (other,) = (turn[side] for side in sides if side != name)
        turn[name].acquire()

        def done(line: ledger.Line) -> None:
            say(line.round)
            if line.round in (1, rounds):
                park.spent_s.append(sum(computed_s(one.pid) for one in park.processes))
            other.release()
            turn[name].acquire()

        try:
            cloud.run(park.settings, limits=Limits(stop_after=rounds), report=done)
        finally:
            other.release(rounds + 1)

    with ThreadPoolExecutor(len(sides)) as pool:
        ended = [pool.submit(train, name, park) for name, park in sides.items()]
        next(iter(turn.values())).release()
    for end in ended:
        end.result()


@contextmanager
def _park(folder: Path, name: str, text: str) -> Iterator[Park]:
    """Yield a park whose brokers, devices and edges run, or are started."""
    above = folder / "cloud"
    above.mkdir(parents=True)
    what, where, over = folder / "experiment.toml", *(Endpoint("127.0.0.1", port) for port in processes.free(2))
    what.write_text(text)
    places = build_park(config.read(what, [])).factory_of.tolist()
    started = list[subprocess.Popen[bytes]]()
    factories = sorted(set(places))
    try:
        for place, port in ((folder, where.port), (above, over.port)):
            started.append(started_broker(open_to_anybody(place, port)))
        for k, m in enumerate(places):
            own = folder / f"d{k}"
            device = DeviceSettings(name, own.name, m, k, where, what, own, own, edge=f"e{m}")
            started.append(_process("device", folder / f"{own.name}.toml", device))
        for m in factories:
            devices = tuple(Named(f"d{k}", k) for k, place in enumerate(places) if place == m)
            edge = EdgeSettings(name, f"e{m}", m, where, what, folder, devices, cloud=over)
            started.append(_process("edge", folder / f"e{m}.toml", edge))
        edges = tuple(CloudEdge(f"e{m}", m) for m in factories)
        waits = Deadlines(join_s=WAIT_S)  # an edge waits for its devices first
        yield Park(CloudSettings(name, what, folder / "run", edges, over, deadlines=waits), started)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait()


def _process(kind: str, file: Path, settings: DeviceSettings | EdgeSettings) -> subprocess.Popen[bytes]:
    file.write_text(to_toml(settings))
    return subprocess.Popen([sys.executable, "-m", "fedfloor", "park", kind, str(file)], stderr=subprocess.DEVNULL)


def row(case: Case, found: Row) -> list[str]:
    """Return the page's row of a case that was measured."""
    ratio = "{ratio:.2f} ({least:.2f}–{most:.2f})".format(**found)
    name = f"{case.steps} of {case.batch_size}"
    spent = [f"{found[key]:.2f}" for key in ("plain_cpu_s", "secure_cpu_s", "cpu_ratio")]
    return [name, f"{found['plain_s']:.2f}", f"{found['secure_s']:.2f}", ratio, *spent]


def signing_ms() -> tuple[float, float]:
    """Return the milliseconds in which a device signs its keys for a sum, and checks those of another device."""
    with tempfile.TemporaryDirectory(prefix="ff-") as place:
        ca = authority.found("sums", authority.now())
        files = Tls(*(Path(place) / name for name in ("ca", "cert", "key")))
        texts = authority.issue(ca, authority.Holder("d0", device=True), 1, authority.now())
        for path, text in zip((files.ca, files.cert, files.key), (ca.pem()[0], *texts), strict=True):
            path.write_bytes(text)
        signer = Signer(files, "d0")
        keys = masking.advertise(0, bytes(shares.KEY_BYTES))
        made_s = list[float]()
        checked_s = list[float]()
        for _ in range(SIGNATURES):
            before = time.thread_time()
            advertised = Advertisement.made(keys, 0, signer)
            between = time.thread_time()
            advertised.signatory(keys.device, keys.context, signer)
            made_s.append(between - before)
            checked_s.append(time.thread_time() - between)
    return 1e3 * statistics.median(made_s), 1e3 * statistics.median(checked_s)


def main() -> None:
    """Measure and write the page."""
    found = measure(CASES, REPEATS, lambda text: print(text, file=sys.stderr))
    load = os.getloadavg()[2]
    (made_ms, checked_ms) = signing_ms()
    around = (
        f"With certificates a device also signs its keys, in {made_ms:.2f} ms of processor time, and checks the "
        f"signature of each neighbour, in {checked_ms:.2f} ms. On average {load:.0f} processes ran or "
        "waited on the machine."
    )
    columns = ["mini-batches of a visit", "plain, s", "secure, s", "ratio", "processor s, plain", "secure", "ratio"]
    rows = [row(case, one) for case, one in zip(CASES, found, strict=True)]
    title = "# Secure sums: what they cost a round of real processes"
    documents.publish(PAGE, [title, ABOUT, {"columns": columns, "rows": rows}, around])


if __name__ == "__main__":
    main()
