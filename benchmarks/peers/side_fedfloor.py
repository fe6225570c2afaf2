"""fedfloor, as a user runs it: an experiment on a folder of one's own data, with ledger and checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from workload import BATCH_SIZE, DEVICES, RATE, SAMPLES, Clock, data, job

import fedfloor
from fedfloor.config import read


def main() -> None:
    """Run rounds of FedAvg, without evaluation."""
    asked = job()
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        x, y = data()
        owner = np.arange(DEVICES).repeat(SAMPLES)
        some = slice(None, None, SAMPLES)  # for the evaluation at the end of a run, which is not timed
        tests = {"x_test": x[some], "y_test": y[some], "device_test": owner[some]}
        np.savez(place / "data.npz", x=x, y=y, device=owner, **tests)
        (place / "peers.toml").write_text(f"""
name = "peers"
rounds = {asked.rounds}
[data]
path = "{place / "data.npz"}"
format = "npz"
partition = {{ kind = "natural" }}
[model]
name = "mlp-2nn"
[method]
name = "fedavg"
[work]
epochs = {asked.epochs}
batch_size = {BATCH_SIZE}
lr = {RATE}
[evaluate]
every = {asked.rounds + 1}
""")
        fedfloor.run(read(place / "peers.toml"), place / "run", ranks=asked.ranks, report=clock.tick)
    clock.tell()


if __name__ == "__main__":
    main()
