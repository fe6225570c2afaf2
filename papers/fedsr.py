"""The tables of FedSR (Huang, Ye and Kang 2024, arXiv 2403.14718), section IV, as data.

The figures are the printed ones. Table III prints traffic only; its rounds are that traffic divided by what a round
sends (:data:`PER_ROUND`), which gives whole numbers everywhere.
"""

from __future__ import annotations

from typing import Any

from papers.cells import Accuracy, Cell, Figure, Rounds, Table, Traffic

PAPER = "FedSR, arXiv 2403.14718"
BATCH = 32
BASE = {
    "park": {"devices": 20, "factories": 5},
    "work": {"batch_size": BATCH, "momentum": 0.5, "lr": {"kind": "cosine", "start": 0.01, "end": 1e-5}},
}
LABELS = {
    "centralized": "Centralized", "fedavg": "FedAvg", "fedprox": "FedProx", "moon": "MOON", "hierfavg": "HierFAVG",
    "ring": "ring-optimization", "fedsr": "FedSR",
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "centralized": {"work": {"epochs": 1}},
    "fedavg": {"work": {"epochs": 5}},
    "fedprox": {"mu": 0.01, "work": {"epochs": 5}},
    "moon": {"mu": 1.0, "temperature": 0.5, "work": {"epochs": 5}},
    "hierfavg": {"edge_rounds": 5, "work": {"epochs": 1}},
    "ring": {"laps": 1, "work": {"epochs": 1}},
    "fedsr": {"laps": 5, "work": {"epochs": 1}},
}
# models sent in a round by 20 devices in 5 factories, as Table III counts them
PER_ROUND = {"fedavg": 40, "fedprox": 40, "moon": 40, "hierfavg": 110, "ring": 20, "fedsr": 110}
RULES = {
    **dict.fromkeys(("fedavg", "fedprox", "moon"), "device up and down"), "hierfavg": "device up, edge-cloud both ways",
    "ring": "visits", "fedsr": "visits, edge-cloud both ways",
}  # fmt: skip

TASKS = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar-10": "CIFAR-10", "cifar-100": "CIFAR-100"}
DATA = {"fashion": "fashion-mnist"}  # where the data set's name is not the task's
MODELS = {"mnist": "mlp-2nn"}  # the others have the CNN

PARTITIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "iid": ("IID", {"kind": "iid"}),
    "xi20": ("ξ = 20", {"kind": "shards", "per_device": 20}),
    "xi8": ("ξ = 8", {"kind": "shards", "per_device": 8}),
    "xi4": ("ξ = 4", {"kind": "shards", "per_device": 4}),
    "xi2": ("ξ = 2", {"kind": "shards", "per_device": 2}),
    "alpha0.3": ("α = 0.3", {"kind": "dirichlet", "alpha": 0.3, "at_least": BATCH}),
    "alpha0.1": ("α = 0.1", {"kind": "dirichlet", "alpha": 0.1, "at_least": BATCH}),
}
TEN = ("iid", "xi4", "xi2", "alpha0.3", "alpha0.1")
HUNDRED = ("iid", "xi8", "xi4", "alpha0.3", "alpha0.1")

ACCURACY = {  # Table II, in per cent, in the order of TEN and HUNDRED
    "mnist": {
        "centralized": (97.53, 97.53, 97.53, 97.53, 97.53),
        "fedavg": (97.64, 97.38, 93.52, 97.50, 96.87),
        "fedprox": (97.60, 97.40, 93.46, 97.43, 96.83),
        "moon": (97.74, 97.30, 92.98, 97.59, 96.62),
        "hierfavg": (97.69, 97.46, 95.19, 97.53, 97.25),
        "ring": (97.07, 97.08, 96.98, 97.41, 97.17),
        "fedsr": (97.71, 97.45, 97.83, 97.62, 97.54),
    },
    "cifar-10": {
        "centralized": (81.02, 81.02, 81.02, 81.02, 81.02),
        "fedavg": (78.20, 75.13, 68.33, 76.99, 72.83),
        "fedprox": (78.24, 75.02, 68.36, 76.91, 72.84),
        "moon": (79.22, 74.80, 69.18, 76.23, 71.41),
        "hierfavg": (79.47, 76.10, 69.82, 77.78, 73.93),
        "ring": (80.90, 80.06, 79.26, 80.93, 78.66),
        "fedsr": (80.30, 79.59, 77.58, 79.48, 78.10),
    },
    "fashion": {
        "centralized": (92.84, 92.84, 92.84, 92.84, 92.84),
        "fedavg": (92.62, 90.85, 85.23, 91.49, 90.20),
        "fedprox": (92.54, 90.98, 85.38, 91.71, 90.09),
        "moon": (92.44, 90.67, 85.81, 90.99, 88.90),
        "hierfavg": (92.48, 90.81, 86.64, 91.99, 90.51),
        "ring": (93.02, 92.70, 92.31, 92.64, 92.27),
        "fedsr": (92.93, 92.57, 92.04, 92.24, 92.24),
    },
    "cifar-100": {
        "centralized": (49.04, 49.04, 49.04, 49.04, 49.04),
        "fedavg": (43.49, 34.18, 29.99, 42.01, 39.95),
        "fedprox": (42.84, 33.92, 30.54, 42.89, 39.34),
        "moon": (43.41, 33.49, 29.58, 42.18, 38.97),
        "hierfavg": (36.31, 27.96, 23.84, 34.87, 32.51),
        "ring": (49.70, 46.14, 41.64, 49.53, 48.56),
        "fedsr": (47.94, 45.53, 44.44, 48.94, 47.07),
    },
}
TARGETS = {"mnist": ("xi2", 0.90), "fashion": ("xi2", 0.80), "cifar-10": ("xi2", 0.67), "cifar-100": ("xi4", 0.33)}
TRAFFIC: dict[str, tuple[int | None, ...]] = {  # Table III, in models, in the order of TARGETS
    "fedavg": (4680, 3200, 9760, 14720),
    "fedprox": (4600, 2800, 9840, 14960),
    "moon": (4040, 3000, 9800, None),
    "hierfavg": (3410, 3410, 14520, 29150),
    "ring": (260, 3120, 7080, 9140),
    "fedsr": (660, 1980, 6160, 5390),
}
FRACTIONS = {0.2: 5, 0.4: 10}  # → factories, so that four devices of each take part on average
SCALABILITY = {  # Table IV, in per cent: after 250 and 500 rounds with fraction 0.2, then with 0.4
    "fedavg": ((62.08, 68.31), (62.62, 68.85)),
    "fedprox": ((62.74, 68.48), (64.65, 68.92)),
    "moon": ((64.52, 69.26), (66.17, 70.12)),
    "hierfavg": ((65.14, 69.18), (62.08, 69.47)),
    "ring": ((69.19, 76.48), (72.66, 78.46)),
    "fedsr": ((70.05, 77.30), (71.56, 76.73)),
}

PRELIMINARY = {  # Table I, in per cent: one epoch by ten devices, with the CNN; IID, then skewed labels
    "mnist": {"fedavg": (97.66, 94.38), "ring": (97.61, 96.96)},
    "fashion": {"fedavg": (92.29, 81.71), "ring": (93.09, 90.58)},
    "cifar-10": {"fedavg": (80.62, 68.57), "ring": (81.20, 76.78)},
    "cifar-100": {"fedavg": (46.05, 40.32), "ring": (48.79, 44.36)},
}
WORK = {
    "laps1": (1, 1),
    "laps2": (2, 1),
    "laps5": (5, 1),
    "epochs2": (1, 2),
    "epochs5": (1, 5),
}  # laps and epochs, Fig. 9
RINGS = (5, 10, 15, 20)  # devices of 50 in a ring, Fig. 10

# Tables II to IV with the 2NN in the place of the CNN: partition, park, target accuracy
QUICK: dict[str, tuple[str, str, dict[str, Any], float]] = {
    "fashion-2nn": ("fashion", "xi2", {}, 0.80),
    "cifar-10-2nn": ("cifar-10", "xi2", {}, 0.35),
    "cifar-10-2nn-100": ("cifar-10", "xi2", {"devices": 100, "factories": 5}, 0.35),
}

NOTES = (
    "devices stay with their edge; in the paper they choose one in each round: here park.mobility = { every = 1, "
    "share = 1.0 }, or ring_size = 4",
    "the paper tuned μ of FedProx and MOON and does not print it: 0.01 and 1.0 here, and MOON's temperature is 0.5",
    "the rounds of Tables II and III are not printed; 500 is the schedule of Fig. 6 and Table IV",
    "Centralized trains one epoch over all data per round, which the paper leaves open",
    "ring-optimization goes round its ring once per round, which is what Table III's traffic comes to",
    "pixels are scaled to [0, 1] and not centred; the paper says nothing about it",
    f"a Dirichlet draw that leaves a device without one full mini-batch ({BATCH} samples) is drawn again",
)
TEN_DEVICES = "the keys mnist-2nn are MNIST with the 2NN, which the paper has in its other tables, in place of the CNN"
SETTINGS = (
    "the paper's figures have no numbers, and are of CIFAR-10; the keys mnist are quicker. With one lap, epochs are "
    "varied; with one epoch, laps",
    "rings of 50 devices are drawn anew over the whole park in each round; what is left after whole rings is one more",
)
SCALING = (
    "5 factories with fraction 0.2 and 10 with 0.4, so that HierFAVG's edges have four participants on average; the "
    "paper states four devices per ring for FedSR only, whose rings are drawn over the whole park",
)

SMALL = (
    "the 2NN, 200 and 200 units, in the place of the paper's CNN, whose rounds take a hundred times as long; it is a "
    "weak network for CIFAR-10, so that the target is 35 % there, for the paper's 67 %",
    "100 devices: a fifth of them in a round, as in Table IV; 20 devices otherwise, as in Tables II and III",
)


def tables() -> tuple[Table, ...]:
    """Return Tables I to IV, Figs. 9 and 10, and cells of Tables II to IV with a small network."""
    settings = "accuracy by laps, epochs and size of rings"
    return (
        Table("fedsr-table1", "accuracy with ten devices", f"{PAPER}, Table I", 500, BASE, _preliminary(),
              (*NOTES, TEN_DEVICES)),
        Table("fedsr-settings", settings, f"{PAPER}, Figs. 9 and 10", 500, BASE, _varied(), (*NOTES, *SETTINGS)),
        Table("fedsr-table2", "accuracy by data and partition", f"{PAPER}, Table II", 500, BASE, _accuracies(), NOTES),
        Table("fedsr-table3", "traffic to a target accuracy", f"{PAPER}, Table III", 500, BASE, _traffics(), NOTES),
        Table(
            "fedsr-table4", "accuracy with 100 devices, a fraction of them per round", f"{PAPER}, Table IV", 500, BASE,
            _scalabilities(), (*NOTES, *SCALING),
        ),
        Table("fedsr-2nn", "accuracy and traffic with a small network", f"{PAPER}, Tables II to IV", 500, BASE,
              _small(), (*NOTES, *SMALL)),
    )  # fmt: skip


def _share(per_cent: float) -> float:
    return round(per_cent / 100, 4)


def _settings(task: str, partition: str, method: str) -> dict[str, Any]:
    return {
        "data": {"name": DATA.get(task, task), "partition": PARTITIONS[partition][1]},
        "model": {"name": MODELS.get(task, "cnn-tutorial")},
        "methods": {method: METHODS[method]},
    }


def _cell(task: str, partition: str, method: str, *figures: Figure) -> Cell:
    # which does not see the partition
    setting = PARTITIONS[partition][0]
    alike = method == "centralized"
    settings = _settings(task, "iid" if alike else partition, method)
    run = f"{task}-{method}" if alike else f"{task}-{partition}-{method}"
    key = f"{task}/{partition}/{method}"
    return Cell(key, TASKS[task], setting, LABELS[method], method, run, settings, figures)


def _preliminary() -> tuple[Cell, ...]:
    cells = []
    for key in (*PRELIMINARY, "mnist-2nn"):
        task = key.removesuffix("-2nn")
        skew = "xi20" if key == "cifar-100" else "xi2"
        for method, row in PRELIMINARY[task].items():
            for partition, per_cent in zip(("iid", skew), row, strict=True):
                settings = _settings(task, partition, method)
                settings |= {"park": {"devices": 10}, "methods": {method: METHODS[method] | {"work": {"epochs": 1}}}}
                settings |= {} if key == "mnist-2nn" else {"model": {"name": "cnn-tutorial"}}
                paper = None if key == "mnist-2nn" else _share(per_cent)
                name = f"{key}/{partition}/{method}"
                setting = PARTITIONS[partition][0]
                run = name.replace("/", "-")
                cells.append(
                    Cell(name, TASKS[task], setting, LABELS[method], method, run, settings, (Accuracy(paper),))
                )
    return tuple(cells)


def _varied() -> tuple[Cell, ...]:
    cells = []
    for task in ("mnist", "cifar-10"):
        own: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
            key: (f"laps {laps}, epochs {epochs}", {"laps": laps, "work": {"epochs": epochs}}, {})
            for key, (laps, epochs) in WORK.items()
        }
        for size in RINGS:
            changes = METHODS["fedsr"] | {"ring_size": size}
            own[f"ring{size}"] = f"50 devices, rings of {size}", changes, {"park": {"devices": 50}}
        for key, (words, changes, more) in own.items():
            settings = _settings(task, "xi4", "fedsr") | {"methods": {"fedsr": changes}} | more
            name = f"{task}/{key}"
            run = name.replace("/", "-")
            cells.append(Cell(name, TASKS[task], words, LABELS["fedsr"], "fedsr", run, settings, (Accuracy(None),)))
    return tuple(cells)


def _accuracies() -> tuple[Cell, ...]:
    return tuple(
        _cell(task, partition, method, Accuracy(_share(per_cent)))
        for task, by_method in ACCURACY.items()
        for method, row in by_method.items()
        for partition, per_cent in zip(HUNDRED if task == "cifar-100" else TEN, row, strict=True)
    )


def _traffics() -> tuple[Cell, ...]:
    cells = []
    for method, row in TRAFFIC.items():
        for (task, (partition, target)), models in zip(TARGETS.items(), row, strict=True):
            rounds = None if models is None else models // PER_ROUND[method]
            cells.append(_cell(task, partition, method, Rounds(rounds, target), Traffic(models, target, RULES[method])))
    return tuple(cells)


def _scalabilities() -> tuple[Cell, ...]:
    cells = []
    for method, row in SCALABILITY.items():
        for (fraction, factories), (half, end) in zip(FRACTIONS.items(), row, strict=True):
            settings = _settings("cifar-10", "xi2", method)
            own = METHODS[method] | {"fraction": fraction} | ({"ring_size": 4} if method == "fedsr" else {})
            settings |= {"park": {"devices": 100, "factories": factories}, "methods": {method: own}}
            figures = (Accuracy(_share(half), share=0.5), Accuracy(_share(end)))
            key = f"cifar-10/fraction{fraction}/{method}"
            label = f"fraction {fraction}"
            name = key.replace("/", "-")
            cells.append(Cell(key, TASKS["cifar-10"], label, LABELS[method], method, name, settings, figures))
    return tuple(cells)


def _small() -> tuple[Cell, ...]:
    cells = []
    for key, (task, partition, park, target) in QUICK.items():
        for method in ("fedsr", "fedavg", "hierfavg", "ring"):
            settings = _settings(task, partition, method) | {"model": {"name": MODELS["mnist"]}}
            if park:
                own = METHODS[method] | {"fraction": 0.2} | ({"ring_size": 4} if method == "fedsr" else {})
                settings |= {"park": park, "methods": {method: own}}
            figures = Accuracy(None), Rounds(None, target), Traffic(None, target, RULES[method])
            words = f"{PARTITIONS[partition][0]}, {'100 devices' if park else '20 devices'}"
            name = f"{key}/{method}"
            run = name.replace("/", "-")
            cells.append(Cell(name, f"{TASKS[task]}, 2NN", words, LABELS[method], method, run, settings, figures))
    return tuple(cells)
