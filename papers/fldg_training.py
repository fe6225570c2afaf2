"""FLDG's comparisons (Liu et al., "Towards Fast and Accurate Federated Learning with non-IID Data for Cloud-Based IoT
Applications", Figs. 3 to 6) that take training, as data. The figures are curves; the text says a few of their numbers.
"""

from __future__ import annotations

from typing import Any

from papers.cells import Accuracy, Cell, Figure, Rounds, Table, merged

PAPER = "FLDG, Liu et al."
GROUPS = 10
HASHES = 5
CASES = (1, 2, 3, 4)
# key → words, data set, network, samples a device, target accuracy
TASKS = {
    "mnist": ("MNIST", "mnist", "cnn-fldg-mnist", 540, 0.9),
    "fashion": ("Fashion-MNIST", "fashion-mnist", "cnn-fldg-fashion", 600, 0.7),
    "cifar-10": ("CIFAR-10", "cifar-10", "lenet", 500, 0.4),
}
# the same with a network whose rounds take a fraction of a second, so that several seeds fit
QUICK = {
    "mnist-2nn": ("MNIST, 2NN", "mnist", "mlp-2nn", 540, 0.9),
    "fashion-2nn": ("Fashion-MNIST, 2NN", "fashion-mnist", "mlp-2nn", 600, 0.7),
}
# and with preferred labels that each device draws, of which a label has 18 devices at most
DRAWN = {"mnist-2nn-drawn": ("MNIST, 2NN, labels drawn", "mnist", "mlp-2nn", 300, 0.9)}
ALL = TASKS | QUICK | DRAWN
# label, the method's settings
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("FedAvg", {"fraction": 0.1}),
    "kcenter": ("K-Center", {"centers": GROUPS}),
    "fldg": ("FLDG", {"groups": GROUPS, "extractor": "hog"}),
    "fldgl": ("FLDG-L", {"groups": GROUPS, "extractor": "hog", "hashes": HASHES}),
}
BASE: dict[str, Any] = {
    "park": {"devices": 100, "factories": 10},
    "work": {"epochs": 5, "batch_size": 50, "lr": 0.01},
    "evaluate": {"every": 1},
}
CENTRED = merged(BASE, {"data": {"normalise": "standard"}})
FEDAVG = {1: 0.1684, 2: 0.4415, 3: 0.5062, 4: 0.5453}  # on CIFAR-10 after 300 rounds, by case
FEDAVG_IID = 0.5737
NUMBERS = (5, 10, 20, 50)
FIG_5J: dict[int, tuple[float, int]] = {
    5: (0.475, 200),
    50: (0.548, 40),
}  # K → accuracy after 800 rounds, rounds to 40 %
DIMENSIONS = (1, 2, 3, 4, 5, 8, 16)
STEADY = Accuracy(None, last=10)

NOTES = (
    "600, 600 and 500 samples a device in the paper; MNIST has 540 for each of 100 devices, as there are 5,421 fives "
    "and the devices of each label want as many of it",
    "features: HOG, as the paper's MobileNetV2 needs weights that are not in the package; of FLDG-L r = 0.5 where the "
    "paper has 3, in the unit of these features",
    "which label a device prefers and how the rest is drawn is not said: here every label is preferred by equally many "
    "devices, and the rest is of all other labels in exactly equal shares, see the partition dominant. Of momentum "
    "nothing is said: none",
    "K-Center: profiles once, the pool refilled every 10 rounds; the paper's may ask for profiles anew then",
)
UNIT = "pixels are from 0 to 1"
GAINS = (
    "the paper prints percentages for Fig. 6(a), which is taken for MNIST, case 1, after 100 rounds, and which fit "
    "together as ratios alone (docs/errata.md): FLDG 13.2 above FedAvg and 46.3 above K-Center, FLDG-L 11.8 and 44.6. "
    "How many rounds its curves have is not said"
)
CIFAR = (
    "FedAvg's figures are those of Fig. 1 after 300 rounds; of the others none are printed",
    "pixels are centred here and divided by their deviation, of which the paper prints nothing; the simulator whose "
    "cases these are (iQua/flsim) has them from −1 to 1",
)
MANY = (
    "Fig. 5(j), taken for CIFAR-10, case 2: 5 groups reach 40 % in around 200 rounds, 50 groups in less than 40; no "
    "other figures are printed",
    "with few hashes fewer devices differ than groups are asked for, and there are then fewer of them",
    "--scale 0.0375 is 30 rounds",
)
LEFTOVERS = (
    "labels drawn: each device draws its preferred label, as in the simulator whose cases these are, and has 300 "
    "samples, so that those of no label run out. K-Center's pool of 100 devices is used up in ten rounds, the last of "
    "which gets what is left; with equally many devices for every label each round finds all labels"
)
TWO = "the keys mnist-2nn and fashion-2nn have the 2NN, 200 and 200 units, in the place of the paper's networks"
FEW = ("Fig. 3 has four of the dimensions from 1 to 1280, and no printed figures; which case it is, is not said",)


def tables() -> tuple[Table, ...]:
    """Return Fig. 6, in two tables as CIFAR-10 takes more rounds, Figs. 4 and 5, and Fig. 3."""
    cases = "accuracy in the four cases"
    groups = "accuracy by the number of groups"
    hashes = "accuracy by hashes"
    six = f"{PAPER}, Fig. 6"
    small = _cases("mnist", "fashion", *QUICK, *DRAWN)
    large = (_iid(), *_cases("cifar-10"))
    return (
        Table(
            "fldg-cases",
            f"{cases}, MNIST and Fashion-MNIST",
            six,
            100,
            BASE,
            small,
            (*NOTES, UNIT, GAINS, TWO, LEFTOVERS),
        ),
        Table("fldg-cases-cifar", f"{cases}, CIFAR-10", six, 300, CENTRED, large, (*NOTES, *CIFAR)),
        Table("fldg-groups", groups, f"{PAPER}, Figs. 4 and 5", 800, BASE, _groups(), (*NOTES[:3], UNIT, *MANY)),
        Table("fldg-hash", hashes, f"{PAPER}, Fig. 3", 100, BASE, _hashes(), (*NOTES[:3], UNIT, *FEW, TWO)),
    )


def _cell(
    task: str, case: int, method: str, figures: tuple[Figure, ...], own: dict[str, Any], name: str = "", words: str = ""
) -> Cell:
    said, data, model, samples, _ = ALL[task]
    label, usual = METHODS[method]
    key = f"{task}/case{case}/{method}" + (f"/{name}" if name else "")
    labels = {"labels": "drawn"} if task in DRAWN else {}
    settings = {
        "data": {"name": data, "partition": {"kind": "dominant", "case": case, "samples": samples, **labels}},
        "model": {"name": model},
        "methods": {method: merged(usual, own)},
    }
    setting = f"case {case}" + (f", {words}" if words else "")
    return Cell(key, said, setting, label, method, key.replace("/", "-"), settings, figures)


def _cases(*tasks: str) -> tuple[Cell, ...]:
    found = []
    for task in tasks:
        for case in CASES:
            for method in METHODS:
                paper = FEDAVG[case] if (task, method) == ("cifar-10", "fedavg") else None
                found.append(_cell(task, case, method, (Accuracy(paper), STEADY), {}))
    return tuple(found)


def _iid() -> Cell:
    settings = {
        "data": {"name": "cifar-10", "partition": {"kind": "iid"}},
        "model": {"name": TASKS["cifar-10"][2]},
        "methods": {"fedavg": METHODS["fedavg"][1]},
    }
    figures = Accuracy(FEDAVG_IID), STEADY
    return Cell("cifar-10/iid/fedavg", "CIFAR-10", "IID", "FedAvg", "fedavg", "cifar-10-iid-fedavg", settings, figures)


def _groups() -> tuple[Cell, ...]:
    found = []
    for task in ("mnist", "cifar-10"):
        for case in CASES:
            for method in ("fldg", "fldgl"):
                printed = FIG_5J if (task, case, method) == ("cifar-10", 2, "fldgl") else {}
                for groups in NUMBERS:
                    accuracy, rounds = printed.get(groups, (None, None))
                    figures = Accuracy(accuracy), STEADY, Rounds(rounds, TASKS[task][4])
                    name = f"groups{groups}"
                    words = f"{groups} groups"
                    found.append(_cell(task, case, method, figures, {"groups": groups}, name, words))
    return tuple(found)


def _hashes() -> tuple[Cell, ...]:
    found = []
    for task in TASKS | QUICK:
        for h in DIMENSIONS:
            figures = Accuracy(None), STEADY, Rounds(None, ALL[task][4])
            words = "1 hash" if h == 1 else f"{h} hashes"
            found.append(_cell(task, 1, "fldgl", figures, {"hashes": h}, f"h{h}", words))
    return tuple(found)
