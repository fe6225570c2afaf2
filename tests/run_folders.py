"""Run folders as the engine leaves them, made by hand for the report's tests."""

from __future__ import annotations

import json
from pathlib import Path

from fedfloor.plan.nodes import Node, Parallel, Repeat, Sequence, Train, Work, device
from fedfloor.plan.text import to_json

WORK = Work(epochs=1, rate=0.01, momentum=0.5)


def rings(factories: int = 2, size: int = 4, laps: int = 5) -> Node:
    """FedSR's round: a ring per factory."""
    visits = [[Train(device(size * m + i), WORK) for i in range(size)] for m in range(factories)]
    return Parallel(tuple(Repeat(laps, Sequence(tuple(ring)), tick=False) for ring in visits))


def star(devices: int = 8) -> Node:
    """FedAvg's round."""
    return Parallel(tuple(Train(device(k), WORK) for k in range(devices)))


def line(number: int, accuracy: float | None) -> str:
    evaluated = accuracy is not None
    body = {
        "round": number,
        "accuracy": accuracy,
        "loss": 1 - accuracy if evaluated else None,
        "train_loss": 0.8,
        "by_class": [accuracy, None, accuracy / 2] if evaluated else None,
        "by_device": {"p10": accuracy / 2, "p50": accuracy, "p90": (1 + accuracy) / 2} if evaluated else None,
        "priced": None,
        "wall_s": 1.5,
        "participants": 8,
        "lost": 0,
        "plan_hash": "x",
        "info": {},
    }
    return json.dumps(body) + "\n"


def make_run(
    folder: Path,
    accuracies: list[float | None],
    *,
    method: str = "fedsr",
    seed: int = 0,
    name: str = "trial",
    laps: int = 5,
) -> Path:
    """Write a run folder whose ledger has one line per accuracy."""
    folder.mkdir(parents=True)
    plan = rings(laps=laps) if method == "fedsr" else star()
    devices = [{"factory": k // 4, "samples": 30 + k, "counts": [30, k, 0]} for k in range(8)]
    park = {"dataset": "labels <A&B>", "classes": ["0", "1", "</script>"], "shape": [1, 28, 28]}
    park |= {"devices": devices, "factories": 2, "test_samples": 1200}
    (folder / "park.json").write_text(json.dumps(park))
    (folder / "plan.json").write_text(json.dumps({"round": 1, "plan": to_json(plan)}))
    (folder / "experiment.toml").write_text(
        f'name = "{name}"\nseed = {seed}\nrounds = {len(accuracies)}\n[method]\nname = "{method}"\n'
        f'[methods.{method}]\nlaps = {laps}\n[provenance]\nhardware = "machine {seed}"\n'
    )
    (folder / "ledger.jsonl").write_text("".join(line(i, a) for i, a in enumerate(accuracies, start=1)))
    return folder
