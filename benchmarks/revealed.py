"""ε beside what devices send without noise: every method with every setting that protects devices or samples.

    python -m benchmarks.revealed                    # results/revealed.json, then: python -m benchmarks.pages

A cell is a simulation of two rounds on twelve devices, or its refusal. Its numbers are those of ``privacy.json``.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import fedfloor
from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.methods.catalog import EXACT, METHODS, title
from fedfloor.runs.folder import write

Table = dict[str, Any]
OUT = Path("results/revealed.json")
LABELS: Table = {
    "name": "revealed", "rounds": 2, "data": {"name": "labels", "samples_per_device": 24},
    "park": {"devices": 12, "factories": 3}, "model": {"name": "logistic"}, "work": {"batch_size": 6, "lr": 0.05},
    "network": {"profile": "wifi"},
    "methods": {
        "boosting": {"trees": 2, "depth": 2, "bins": 4}, "fedcs": {"fraction": 1.0}, "fldg": {"groups": 3},
        "fedgs": {"devices": 2, "random": 1, "iterations": 2}, "fldgl": {"groups": 3}, "flhc": {"after": 1},
        "hfedms": {"period": 2, "memory": 5}, "kcenter": {"centers": 3}, "astraea": {"devices": 3},
    },
}  # fmt: skip
MACHINES: Table = LABELS | {
    "data": {
        "name": "machines", "window": {"length": 6, "step": 3}, "task": "reconstruction", "normalise": "standard",
    },
    "model": {"name": "mlp-sensor"},
}  # fmt: skip
MODELS = {"fedfusion": "mlp-2nn", "fedrep": "mlp-2nn", "pca": "monitor"}  # others cannot be trained by them
DRAWN = {"kind": "poisson", "share": 0.5}
WIDE = {"bits": 64, "bound": 1000.0}  # for sums, which are larger than updates
NOISE = {"kind": "private", "clip": 0.1, "noise": 2.0, "delta": 1e-2}
SETTINGS: dict[str, Table] = {
    "none": {},
    "`census_epsilon`": {"park": {"census_epsilon": 1.0}},
    "`secure-sum`": {"method": {"travel": "secure-sum"}},
    "`secure-sum`, `across`": {"method": {"travel": {"kind": "secure-sum", "across": True}}},
    '`mix = "private"`': {"method": {"mix": NOISE, "selection": DRAWN}},
    "`private`, `distributed`": {
        "method": {"mix": NOISE | {"distributed": True}, "travel": {"kind": "secure-sum", "across": True}}
    },
    "`sample_noise`": {"work": {"sample_clip": 1.0, "sample_noise": 1.0}},
}
CASES: dict[str, tuple[str, Table]] = {name: (name, LABELS) for name in METHODS}
ASKED: Table = MACHINES | {"data": MACHINES["data"] | {"agree": "warn"}}
CASES |= {"fedavg, anomalies, `agree`": ("fedavg", ASKED)}
CASES |= {f"{name}, anomalies": (name, MACHINES) for name in ("fedavg", "fedsr", "pca")}
STEPS = {"kind": "survival", "distribution": "steps"}
TASKS = {"reconstruction": "anomalies", "classification": "states", "regression": "lives", "survival": "survival"}
for name, method in EXACT.items():
    kind = method.tasks[0]
    answered = STEPS if name in ("kaplanmeier", "cox") else kind
    CASES[f"{name}, {TASKS[kind]}"] = (name, MACHINES | {"data": MACHINES["data"] | {"task": answered}})


def table(case: str, setting: str) -> Table:
    """Return the experiment of a cell."""
    name, base = CASES[case]
    made = copy.deepcopy(base) | {"method": {"name": name}}
    made["methods"] = {key: own for key, own in made["methods"].items() if key == name}
    made["network"] = {"profile": "rafed" if name == "rafed" else "wifi"}
    made["model"] = {"name": MODELS.get(name, made["model"]["name"])}
    for key, part in SETTINGS[setting].items():
        made[key] = {**made.get(key, {}), **part}
    if name in (*EXACT, "boosting") and (travel := made["method"].get("travel")):
        crews = {"together": "mix" not in made["method"]}  # in whose place noise may stand
        wide = WIDE if name in EXACT else {}
        made["method"]["travel"] = {**({"kind": travel} if isinstance(travel, str) else travel), **wide, **crews}
    return made


def cell(case: str, setting: str) -> Table:
    """Return a cell: its status, and the reason of a refusal, or ε and the numbers without noise.

    The status is ``counted`` if ε covers updates or class counts, and ``listed`` if nothing has noise.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            fedfloor.run(config.from_table(table(case, setting)), Path(folder) / "run", ranks=1)
        except SettingError as error:
            return {"status": "refused", "reason": str(error)}
        stated = json.loads((Path(folder) / "run/privacy.json").read_text())
    losses = {"device": stated.get("models"), "sample": stated.get("samples")}
    losses |= {"class counts": stated if stated.get("reports") else None}
    epsilon = {name: round(loss["epsilon"], 2) for name, loss in losses.items() if loss is not None}
    answers = {name: answer["times"] for name, answer in stated["answers"].items()}
    answers |= {"normalisation": stated["normalise"]["questions"]} if "normalise" in stated else {}
    return {"status": "counted" if epsilon else "listed", "epsilon": epsilon, "answers": answers}


def shown(found: Table) -> str:
    """Return a cell's text."""
    if found["status"] == "refused":
        question = re.search(r"devices answer ('\w+')", found["reason"])
        return "refused" if question is None else f"refused: {question[1]}"
    sent = ", ".join(f"{name} {times}" for name, times in found["answers"].items() if name != "holding")
    counted = "; ".join(f"ε = {value:g} ({name})" for name, value in found["epsilon"].items())
    return "; ".join(filter(None, (counted and f"counted: {counted}", sent and f"listed: {sent}"))) or "listed: holding"


def page(rows: dict[str, dict[str, Table]]) -> str:
    """Return the page."""
    lines = [
        "# What devices reveal beside ε\n",
        "Every method with every setting that protects devices or their samples, as a run's `privacy.json` states it: "
        "two rounds on twelve devices in three factories, the pictures of `labels`, or where it says anomalies sensors "
        "of `machines`; models that are sums have secure sums of 64 bits in crews. **Counted** is ε of a device, a "
        "sample, or of the class counts. **Listed** are the numbers "
        "that a device sends without noise or masks, with the largest number of times; each device also sends once its "
        "number of samples, a digest, and without `census_epsilon` its class counts (`holding`). **Refused**: the "
        "combination has an error, after the colon the question whose answers would reveal samples. "
        "[revealed.json](revealed.json) has the whole reasons. [What each party sees](../docs/parties.md) explains who "
        "reads these numbers.\n",
        "```bash\npython -m benchmarks.revealed && python -m benchmarks.pages\n```\n",
        f"| method | {' | '.join(SETTINGS)} |",
        "|---|" + "---|" * len(SETTINGS),
    ]
    for case, cells in rows.items():
        name, *more = case.split(", ")
        lines.append(f"| {', '.join([title(name), *more])} | {' | '.join(shown(cells[key]) for key in SETTINGS)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compute all cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", nargs="*", metavar="CASE", help="compute these, and keep the others")
    given = parser.parse_args()
    rows: dict[str, dict[str, Table]] = json.loads(given.out.read_text(encoding="utf-8")) if given.only else {}
    for case in given.only or CASES:
        rows[case] = {setting: cell(case, setting) for setting in SETTINGS}
        print(case, {setting: shown(found) for setting, found in rows[case].items()}, flush=True)
    write(given.out, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
