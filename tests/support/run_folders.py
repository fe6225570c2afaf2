"""Run folders as the engine leaves them, made by hand for the report's tests."""

from __future__ import annotations

import json
from pathlib import Path

from fedfloor.methods.catalog import title
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


def line(number: int, accuracy: float | None, lost: int = 0, classes: int = 3) -> str:
    evaluated = accuracy is not None
    body = {
        "round": number,
        "accuracy": accuracy,
        "loss": 1 - accuracy if evaluated else None,
        "train_loss": 0.8,
        "by_class": [accuracy, None, accuracy / 2, *[None] * (classes - 3)] if evaluated else None,
        "by_device": {"p10": accuracy / 2, "p50": accuracy, "p90": (1 + accuracy) / 2} if evaluated else None,
        "priced": None,
        "wall_s": 1.5,
        "participants": 8,
        "lost": lost,
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
    rounds: int | None = None,
    lost: int = 0,
    classes: int = 3,
    devices: int = 8,
    factories: int = 2,
) -> Path:
    """Write a run folder whose ledger has one line per accuracy.

    Args:
        folder: what is made.
        accuracies: one per round.
        method, seed, name, laps: what the experiment says.
        rounds: of its schedule; as many as there are accuracies where it is left out.
        lost: visits lost in every round.
        classes, devices, factories: of the park.
    """
    folder.mkdir(parents=True)
    size = devices // factories
    plan = rings(factories, size, laps) if method == "fedsr" else star(devices)
    held = [[30, k, *[0] * (classes - 2)] for k in range(devices)]
    park = {"dataset": "labels <A&B>", "classes": ["0", "1", "</script>", *map(str, range(3, classes))]}
    park |= {"devices": [{"factory": k // size, "samples": 30 + k, "counts": held[k]} for k in range(devices)]}
    park |= {"shape": [1, 28, 28], "factories": factories, "test_samples": 1200}
    (folder / "park.json").write_text(json.dumps(park))
    (folder / "plan.json").write_text(json.dumps({"round": 1, "method": title(method), "plan": to_json(plan)}))
    (folder / "experiment.toml").write_text(
        f'name = "{name}"\nseed = {seed}\nrounds = {rounds or len(accuracies)}\n[method]\nname = "{method}"\n'
        f'[methods.{method}]\nlaps = {laps}\n[provenance]\nhardware = "machine {seed}"\n'
    )
    (folder / "ledger.jsonl").write_text("".join(line(i, a, lost, classes) for i, a in enumerate(accuracies, start=1)))
    return folder


def price(
    folder: Path,
    seconds: list[float],
    links: list[dict[str, int]] | None = None,
    joules: list[float] | None = None,
) -> Path:
    """Give the rounds of a run folder a price: seconds, bytes per link and joules, one of each per round."""
    links = links or [{}] * len(seconds)
    joules = joules or [0.0] * len(seconds)
    lines = [json.loads(text) for text in (folder / "ledger.jsonl").read_text().splitlines()]
    total = {"seconds": 0.0, "joules": 0.0, "bytes": 0}
    for body, s, j, moved in zip(lines, seconds, joules, links, strict=True):
        each = {"seconds": s, "joules": j, "bytes": sum(moved.values())}
        total = {name: total[name] + each[name] for name in total}
        body["priced"] = {"seconds": s, "joules": j, "bytes": moved, "total": total}
    (folder / "ledger.jsonl").write_text("".join(json.dumps(body) + "\n" for body in lines))
    return folder


def diverge(folder: Path) -> Path:
    """Leave the note of a run that diverged in the round after its last, as the loop does."""
    done = len((folder / "ledger.jsonl").read_text().splitlines())
    (folder / "diverged.json").write_text(json.dumps({"round": done + 1, "why": "the loss became nan"}))
    return folder


def evaluate(folder: Path, *, on: str = "test", named: bool = True, accuracy: float = 0.9) -> Path:
    """Write an ``evaluation.json`` into a run folder: two in ten of class 0 are taken for class 1."""
    park = json.loads((folder / "park.json").read_text())
    count = len(park["classes"])
    confusion = [[0] * count for _ in range(count)]
    confusion[0][0] = 8
    confusion[0][1] = 2
    confusion[1][1] = 10
    places = enumerate(park["devices"])
    devices = [{"device": k, "name": f"press-{k}" if named else None, **_at(d["factory"], k)} for k, d in places]
    factories = [
        {"name": "north <hall>" if named and m == 0 else None, **_at(m, 0, accuracy)} for m in range(park["factories"])
    ]
    body = {"round": 3, "on": on, "accuracy": 0.9, "loss": 0.3, "macro_f1": accuracy - 0.05, "classes": park["classes"]}
    body |= {"confusion": confusion, "devices": devices, "factories": factories}
    (folder / "evaluation.json").write_text(json.dumps(body))
    return folder


def _at(factory: int, k: int, accuracy: float = 0.9) -> dict[str, float | int | None]:
    return {"factory": factory, "accuracy": None if k == 3 else accuracy}


def number(folder: Path, figures: dict[str, list[float]], unit: str = "cycles") -> Path:
    """Make a run one of a regression, whose targets have a unit; the first of the figures is the headline."""
    name = next(iter(figures))
    path = folder / "experiment.toml"
    task = f'[data]\npath = "life.csv"\n[data.task]\nkind = "regression"\nunit = "{unit}"\n'
    path.write_text(f'{path.read_text()}[evaluate]\nheadline = "{name}"\n{task}')
    rows = [json.loads(text) for text in (folder / "ledger.jsonl").read_text().splitlines()]
    for i, row in enumerate(rows):
        ends = {"p10": figures[name][i] / 2, "p50": figures[name][i], "p90": 2 * figures[name][i], "devices": 8}
        row |= {"figures": {key: values[i] for key, values in figures.items()}, "headlines": {name: ends}}
    (folder / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
