"""Eleven experiments whose results must not change: their plans, prices, ledgers and models, recorded and compared.

    python tests/programs/golden.py record [NAME…]     # write down what this code gives
    python tests/programs/golden.py check [NAME…]      # compare this code with what was written down

The plans' hashes and the prices do not depend on the processor: they lie in ``tests/golden/NAME.json`` and CI compares
them. Ledgers and models do: they are kept on this machine only (``.golden/``, with the kind of processor). Between them
the experiments use every interpreter of plans: chains, lost visits, edges, streams with and without shortcuts, device
memory, questions before the first round, control variates, a second network, radio prices, tables of one's own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from fedfloor import config
from fedfloor.api.run import carried_out as run

PORTABLE = Path(__file__).parents[1] / "golden"
LOCAL = Path(__file__).parents[2] / ".golden"
RELATIVE = 1e-12  # of prices: sums of seconds and joules in another order of additions

PARK = """
rounds = 4
data = { name = "labels", partition = { kind = "dirichlet", alpha = 0.3, at_least = 10 }, samples_per_device = 40 }
park = { devices = 8, factories = 2 }
model = { name = "mlp-2nn" }
work = { batch_size = 8, lr = 0.05, epochs = 1, momentum = 0.5 }
network = { profile = "lte-cat-m2" }
"""
STREAM = """
rounds = 3
park = { devices = 12, factories = 3 }
model = { name = "cnn-fedgs" }
network = { profile = "5g-edge" }
[data]
name = "labels"
partition = { kind = "dirichlet", alpha = 0.3, at_least = 20 }
samples_per_device = 60
"""
FIFO = (
    STREAM
    + """
stream = { kind = "fifo", window = 8 }
[method]
name = "fedgs"
[methods.fedgs]
iterations = 3
devices = 3
random = 1
[work]
batch_size = 8
steps = 1
lr = 0.05
"""
)
EXPERIMENTS = {
    "fedavg": PARK + '[method]\nname = "fedavg"\nselection = { kind = "fraction", share = 0.5 }',
    "fedsr-lost": PARK + '[method]\nname = "fedsr"\n[methods.fedsr]\nlaps = 2\n[faults]\nvisit = 0.2',
    "hierfavg": PARK + '[method]\nname = "hierfavg"\n[methods.hierfavg]\nedge_rounds = 2',
    "fedgs-on": FIFO + '[engine]\nshortcuts = "auto"',
    "fedgs-off": FIFO + '[engine]\nshortcuts = "off"',
    "hfedms-d": STREAM + """
stream = { kind = "augmented", window = 20 }
[method]
name = "hfedms"
[methods.hfedms]
period = 2
share = 0.5
memory = 20
[work]
epochs = 1
batch_size = 8
lr = 0.05
""",
    "fldg": PARK + '[method]\nname = "fldg"\n[methods.fldg]\ngroups = 3',
    "scaffold": PARK.replace(", momentum = 0.5", "") + '[method]\nname = "scaffold"',
    "moon": PARK + '[method]\nname = "moon"',
    "rafed": PARK.replace("lte-cat-m2", "rafed").replace("factories = 2", "factories = 1") + '[method]\nname = "rafed"',
    "table": """
rounds = 3
data = { path = "TABLE", window = { length = 4 }, normalise = "standard" }
model = { name = "cnn-sensor" }
method = { name = "fedavg" }
work = { batch_size = 8, lr = 0.05, epochs = 1 }
network = { profile = "wifi" }
""",
}  # fmt: skip
BY_FEATURES = {"fldg"}  # groups by floating-point features: its plans belong to the machine


def write_table(path: Path) -> None:
    """Write a table of sensors: three devices in two halls, 120 rows each, two classes."""
    rng = np.random.Generator(np.random.PCG64(7))
    rows = ["device,factory,time,temperature,pressure,label"]
    for device, factory in (("press 1", "north"), ("press 2", "north"), ("mill", "south")):
        for time in range(120):
            worn = time // 15 % 2
            a, b = (rng.integers(-500, 500, 2) / 1000 + worn).tolist()
            rows.append(f"{device},{factory},{time},{a:.3f},{b:.3f},{'worn' if worn else 'fine'}")
    path.write_text("\n".join(rows) + "\n")


def results(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run an experiment and return its portable results and those of this machine."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_table(folder / "table.csv")
        text = EXPERIMENTS[name].replace("TABLE", str(folder / "table.csv"))
        done = run(config.from_table({"name": name, "seed": 3, **tomllib.loads(text)}), folder / "run", ranks=1)
        lines = [json.loads(line) for line in (folder / "run" / "ledger.jsonl").read_text().splitlines()]
        model = hashlib.sha256(done.model_file.read_bytes()).hexdigest()
    for line in lines:
        del line["wall_s"]
    plans = {"plans": [line["plan_hash"] for line in lines], "priced": [line["priced"] for line in lines]}
    local = {"ledger": lines, "model": model}
    return ({}, local) if name in BY_FEATURES else (plans, local)


def processor() -> str:
    """Return the kind of processor that results of this machine belong to."""
    path = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in path.read_text().splitlines() if line.startswith("model name")] \
        if path.exists() else []  # fmt: skip
    return names[0] if names else platform.processor() or platform.machine()


def differences(was: Any, now: Any, place: str = "", relative: float = 0.0) -> Iterator[str]:
    """Yield each place in which two results differ.

    >>> list(differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]}))
    ['.a[1]: 2.0 before, 2.5 now']
    """
    if isinstance(was, dict) and isinstance(now, dict) and was.keys() == now.keys():
        for key in was:
            yield from differences(was[key], now[key], f"{place}.{key}", relative)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from differences(one, other, f"{place}[{number}]", relative)
    elif isinstance(was, float) and isinstance(now, float | int):
        if not math.isclose(was, now, rel_tol=relative, abs_tol=0.0):
            yield f"{place}: {was} before, {now} now"
    elif was != now:
        yield f"{place}: {str(was)[:80]} before, {str(now)[:80]} now"


def record(names: Sequence[str]) -> None:
    """Write down the results of experiments."""
    LOCAL.mkdir(exist_ok=True)
    for name in names:
        portable, local = results(name)
        if portable:
            (PORTABLE / f"{name}.json").write_text(json.dumps(portable, indent=1) + "\n")
        (LOCAL / f"{name}.json").write_text(json.dumps({"processor": processor(), **local}) + "\n")
        print(f"{name}: recorded", flush=True)


def check(names: Sequence[str]) -> bool:
    """Compare the results of experiments with those written down; return whether all are the same."""
    same = True
    for name in names:
        portable, local = results(name)
        found = list(checked_portable(name, portable))
        path = LOCAL / f"{name}.json"
        was = json.loads(path.read_text()) if path.exists() else {}
        here = was.pop("processor", None) == processor()
        found += list(differences(was, local)) if here else []
        same &= not found
        scope = "plans, prices, ledger, model" if here else "plans, prices (nothing was recorded on this machine)"
        print(f"{name}: {'differs' if found else 'the same'}: {scope}", *found[:5], sep="\n  ", flush=True)
    return same


def checked_portable(name: str, portable: dict[str, Any]) -> Iterator[str]:
    """Yield the differences between an experiment's plans and prices and the golden file in the repository."""
    if portable:
        yield from differences(json.loads((PORTABLE / f"{name}.json").read_text()), portable, relative=RELATIVE)


def main() -> int:
    """Record or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "check"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}; all if left out")
    given = parser.parse_args()
    names = given.names or list(EXPERIMENTS)
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"no experiment {unknown[0]}: {', '.join(EXPERIMENTS)}")
    if given.what == "record":
        record(names)
        return 0
    return 0 if check(names) else 1


if __name__ == "__main__":
    sys.exit(main())
