"""FedGS's comparisons (Li et al., IEEE IoT-J 9(18), 2022, arXiv 2202.01512) that take training, as data.

Table II is printed; the accuracies of the grids are those of its reference code's plots. What a round of a baseline is,
the paper does not say: here both ``epoch``, one local epoch on all that a device has, and ``steps``, as many
mini-batches as a device slot of FedGS trains in a round, from the same streams.
"""

from __future__ import annotations

from typing import Any

from papers.cells import Accuracy, Cell, Divergence, Epsilon, Figure, Loss, Rounds, Table, merged

PAPER = "FedGS, arXiv 2202.01512"
FACTORIES = 10
CHOSEN = 10
ITERATIONS = 50
BATCH = 32
# words, model, rate, target accuracy, normalisation
NETWORKS = {
    "cnn": ("the paper's CNN", "cnn-fedgs", 0.01, 0.82, "unit"), "2nn": ("2NN", "mlp-2nn", 0.1, 0.80, "standard"),
}  # fmt: skip
BASE: dict[str, Any] = {"data": {"name": "femnist", "partition": {"kind": "natural"}}, "evaluate": {"every": 1}}
SLOTS = {"selection": {"kind": "fraction", "share": 1 / 3}}  # 100 of 300 devices: FedGS's ten of each of ten factories

# label, the method's name here, its settings, and Table II: accuracy %, loss, rounds to 82 %
SERVER_LR = 10**-1.5  # of the devices, where the server is adaptive: Reddi et al., arXiv 2003.00295, for FEMNIST
BASELINES: dict[str, tuple[str, str, dict[str, Any], tuple[float, float, int | None]]] = {
    "fedavg": ("FedAvg", "fedavg", {}, (82.1, 0.587, 478)),
    "fedprox": ("FedProx", "fedprox", {"mu": 1.0}, (82.0, 0.586, 497)),
    "ida": ("IDA", "ida", {}, (81.0, 0.628, None)),
    "ida-intrac": ("IDA + INTRAC", "ida", {"factors": "accuracy"}, (81.0, 0.618, None)),
    "ida-fedavg": ("IDA + FedAvg", "ida", {"factors": "samples"}, (80.5, 0.687, None)),
    "cgau": ("CGAU, one layer", "cgau", {"layers": 1, "units": 256, "warm_up": 250}, (83.3, 0.509, 202)),
    "fedmmd": ("FedMMD", "fedmmd", {"weight": 0.1}, (83.0, 0.564, 378)),
    "fedfusion-conv": ("FedFusion, conv", "fedfusion", {"operator": "conv"}, (81.7, 0.624, None)),
    "fedfusion-multi": ("FedFusion, multi", "fedfusion", {"operator": "multi"}, (82.0, 0.591, 486)),
    "fedfusion-single": ("FedFusion, single", "fedfusion", {"operator": "single"}, (80.7, 0.627, None)),
    "fedavgm": ("FedAvgM", "fedavgm", {"server_rate": 10**-0.5}, (84.4, 0.820, 68)),
    "fedadagrad": ("FedAdagrad", "fedadagrad", {"server_rate": 0.1, "tau": 0.01}, (83.8, 0.583, 264)),
    "fedadam": ("FedAdam", "fedadam", {"server_rate": 10**-2.5, "tau": 1e-4}, (85.0, 0.662, 71)),
    "fedyogi": ("FedYogi", "fedyogi", {"server_rate": 10**-2.5, "tau": 1e-4}, (84.6, 0.590, 76)),
}
# (server rate, devices' rate) that were best on validation data with the 2NN: unit → method
TUNED: dict[str, dict[str, tuple[float | None, float]]] = {
    "epoch": {
        "fedavg": (None, 0.3), "fedavgm": (1.0, 0.3), "fedadagrad": (0.03, 0.3), "fedadam": (0.03, 0.3),
        "fedyogi": (0.03, 0.3),
    },
    "steps": {
        "fedavg": (None, 0.1), "fedavgm": (1.0, 0.1), "fedadagrad": (0.01, 0.1), "fedadam": (0.03, 0.1),
        "fedyogi": (0.03, 0.1),
    },
}  # fmt: skip
TUNED_MU = 0.01  # of FedProx, the best on validation data in femnist-methods, of 0.01 and 0.1
ADAPTIVE = ("fedavgm", "fedadagrad", "fedadam", "fedyogi")
SMALL = ("fedavg", *ADAPTIVE)  # those whose rates were tuned with the 2NN
FEDGS = (86.0, 0.435, 147)

# FedGS, and what is left of it without one ingredient or both: label, its settings, mini-batches between two syncs
VARIANTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "fedgs": ("FedGS", {}, 1),
    "fedgs-gbpcs": ("FedGS, GBP-CS", {"solver": "gbpcs"}, 1),
    "fedgs-random": ("FedGS, at random", {"solver": "random"}, 1),
    "fedgs-random-round": ("FedGS, at random, the same all round", {"solver": "random", "choose": "round"}, 1),
    "chosen": (f"sync every {ITERATIONS} steps, chosen", {"iterations": 1}, ITERATIONS),
    "random": (f"sync every {ITERATIONS} steps, at random", {"iterations": 1, "solver": "random"}, ITERATIONS),
}
FAST = {
    "fedgs-fast": ("FedGS, rate 0.3", {}),
    "fedgs-random-fast": ("FedGS, at random, rate 0.3", {"solver": "random"}),
}
T_GRID = {  # T → n → accuracy after 500 rounds
    50: {64: 0.857, 32: 0.860, 16: 0.860, 8: 0.861}, 30: {64: 0.850, 32: 0.851, 16: 0.852, 8: 0.852},
    10: {64: 0.791, 32: 0.792, 16: 0.792, 8: 0.792},
}  # fmt: skip
M_GRID = {  # M → L → accuracy
    20: {5: 0.862, 10: 0.864, 20: 0.865, 40: 0.867}, 10: {5: 0.861, 10: 0.860, 20: 0.864, 40: 0.865},
    5: {5: 0.860, 10: 0.861, 20: 0.863, 40: 0.864},
}  # fmt: skip
WHOLE = {"data": {"partition": {"kind": "natural", "at_least": BATCH}}}  # a sample stands in a window once
EPSILONS = (None, 10.0, 3.0, 1.0, 0.3, 0.1)

WRITERS = (
    "these writers differ in hand, not in labels: 71 % of their characters are digits, each has the classes in much "
    "the same shares, and ten of them drawn at random are 0.051 from everybody's classes (Eq. 6), as 320 characters "
    "drawn by chance are (0.054). The paper's random ones are at 0.083, which takes skewed labels: so these runs "
    "cannot show what choosing by labels brings. fedgs-skew deals the same characters with skewed labels"
)
NOTES = (
    "300 writers are here, of the paper's some 368, 28 of them with fewer than 90 characters for training and one with "
    "2, where the paper's have 100 or more in all; devices go to factories one by one at random, as in the reference "
    "code; baselines visit 100 devices a round, as many as FedGS has places for",
    "the paper's CNN: pixels as they are (1 is paper), of which the paper says nothing, rate 0.01, and "
    "PyTorch's initial weights, where the reference code has Glorot's with zero biases. The 2NN, 200 "
    "and 200 units, is ours, to make rounds short: pixels centred and scaled by their standard deviation",
    "rates of the 2NN are the best of six pairs (FedAvg, FedGS: of three) on validation data, after 40 rounds of an "
    "epoch or 10 of 50 steps; FedGS's variants have FedAvg's of 50 steps, 0.1, at which all are stable, and, where it "
    "says so, FedGS's own best, 0.3",
    "server rates of the CNN are those that Reddi et al. (arXiv 2003.00295) found best for these characters, the "
    "devices' rate for these methods 10^-1.5; FedProx's μ = 1, FedMMD's weight 0.1: the paper prints none",
    "epoch: one local epoch on all that a device has. steps: 50 mini-batches of what streams past in 50 ticks, as much "
    "as FedGS trains",
    "without one-step synchronisation a device trains on its next 50 windows, 1600 samples, and is chosen by them; "
    "models meet at the edges, then at the cloud",
)


LABELS: dict[str, tuple[str, dict[str, Any]]] = {
    "writers": ("writers", {}),
    "alpha0.7": (
        "Dirichlet, α = 0.7",
        {"data": {"partition": {"kind": "dirichlet", "alpha": 0.7}}, "park": {"devices": 300}},
    ),
}
DEALT = (
    "methods whose rate was not tuned have FedAvg's. Rates of the CNN: those of Reddi et al., for adaptive servers",
    f"FedProx, μ = {TUNED_MU:g}: the better of 0.01 and 0.1 on validation data in femnist-methods; the paper tunes μ, "
    "without printing it",
    "CGAU has one layer, and FedAvg's rounds up to 250 in the place of a trained extractor",
    "Dirichlet, α = 0.7: the characters of all writers are pooled and dealt to 300 devices by a draw for every class",
)


def tables() -> tuple[Table, ...]:
    """Return Table II with FedGS's ingredients apart, the grids of T, n, M and L, and what noise costs."""
    priced = "the census is priced where there is a network; solver exact, which the paper's GBP-CS comes near to"
    more = (*NOTES, priced, WRITERS)
    grid = (*NOTES[:3], WRITERS)
    noise = (
        "discrete Laplace noise on every count of every census; reports in one run: one of all classes, and one in "
        "each tick",
        "divergence: of the chosen devices' true counts, over all choices of the first round, with devices drawn at "
        "random included, as in Eq. 6",
        "of the 300 writers those with 32 characters or more, so that no sample stands in a window twice",
        *NOTES[:3],
        WRITERS,
    )
    baselines = (*NOTES[:1], *NOTES[2:5], *DEALT)
    return (
        Table("fedgs-table2", "accuracy, loss and rounds", f"{PAPER}, Table II", 500, BASE, _table2(), more),
        Table("fedgs-grid", "accuracy by T, n, M and L", f"{PAPER}, accuracy surfaces", 500, BASE, _grid(), grid),
        Table("fedgs-noise", "choices by a census with noise", PAPER, 500, BASE, _noise(), noise),
        Table("fedgs-baselines", "Table II with the 2NN", f"{PAPER}, Table II", 500, BASE, _baselines(), baselines),
    )


def fedgs(network: str, own: dict[str, Any], *, steps: int = 1, batch: int = BATCH, factories: int = FACTORIES,
          epsilon: float | None = None, rate: float | None = None) -> dict[str, Any]:  # fmt: skip
    """Return the settings of a cell with FedGS.

    Args:
        network: one of :data:`NETWORKS`.
        own: the method's settings.
        steps: mini-batches between two synchronisations at an edge; a window is as long.
        batch: n.
        factories: M.
        epsilon: of a census.
        rate: η; left out, the network's.
    """
    work = {"steps": steps, "batch_size": batch, "lr": rate or NETWORKS[network][2]}
    noise = {} if epsilon is None else {"census_epsilon": epsilon}
    return {
        "data": {"stream": {"kind": "fifo", "window": steps * batch}, "normalise": NETWORKS[network][4]},
        "park": {"factories": factories, "assignment": "random", **noise},
        "model": {"name": NETWORKS[network][1]},
        "methods": {"fedgs": {"devices": CHOSEN, **own, "work": work}},
    }


def baseline(network: str, key: str, unit: str, *, tuned: bool = True) -> dict[str, Any]:
    """Return the settings of a cell with a baseline.

    Args:
        network: one of :data:`NETWORKS`.
        key: one of :data:`BASELINES`.
        unit: ``epoch`` or ``steps``.
        tuned: with the 2NN its own rates, those of FedAvg where a method has none; else those of the paper's CNN.
    """
    _, method, own, _ = BASELINES[key]
    rate = SERVER_LR if key in ADAPTIVE else NETWORKS[network][2]
    if network == "2nn" and tuned:
        server, rate = TUNED[unit].get(key, TUNED[unit]["fedavg"])
        own = own if server is None else {**own, "server_rate": server}
    work = {"batch_size": BATCH, "lr": rate, **({"epochs": 1} if unit == "epoch" else {"steps": ITERATIONS})}
    stream = {"kind": "static"} if unit == "epoch" else {"kind": "fifo", "window": ITERATIONS * BATCH}
    return {
        "data": {"stream": stream, "normalise": NETWORKS[network][4]},
        "park": {"factories": FACTORIES, "assignment": "random"},
        "model": {"name": NETWORKS[network][1]},
        "method": SLOTS,
        "methods": {method: {**own, "work": {**work, "short_batches": True}}},
    }


def _cell(
    network: str, setting: str, label: str, key: str, method: str, settings: dict[str, Any], figures: tuple[Figure, ...]
) -> Cell:
    settings = {**settings, "data": {"name": "femnist", **settings["data"]}}
    return Cell(f"{network}/{key}", f"FEMNIST, {NETWORKS[network][0]}", setting, label, method,
                f"{network}-{key}".replace("/", "-"), settings, figures)  # fmt: skip


def _figures(network: str, paper: tuple[float, float, int | None] | None = None) -> tuple[Figure, ...]:
    """Return accuracy, loss and rounds; the paper's figures are those of its CNN."""
    per_cent, loss, rounds = (None, None, None) if paper is None or network != "cnn" else paper
    accuracy = None if per_cent is None else round(per_cent / 100, 4)
    return Accuracy(accuracy), Loss(loss), Rounds(rounds, NETWORKS[network][3])


def _table2() -> tuple[Cell, ...]:
    found = []
    for network in NETWORKS:
        for key, (label, method, _, paper) in BASELINES.items():
            for unit in ("epoch", "steps") if key in SMALL else ("epoch",):
                if network == "cnn" or key in SMALL:
                    figures = _figures(network, paper if unit == "epoch" else None)
                    made = baseline(network, key, unit)
                    found.append(_cell(network, unit, label, f"{unit}/{key}", method, made, figures))
        for key, (label, own, steps) in VARIANTS.items():
            figures = _figures(network, FEDGS if key == "fedgs-gbpcs" else None)
            made = fedgs(network, own, steps=steps)
            found.append(_cell(network, "steps", label, f"steps/{key}", "fedgs", made, figures))
    for key, (label, own) in FAST.items():
        made = fedgs("2nn", own, rate=0.3)
        found.append(_cell("2nn", "steps", label, f"steps/{key}", "fedgs", made, _figures("2nn")))
    return tuple(found)


def _baselines() -> tuple[Cell, ...]:
    """Return all baselines and FedGS with the 2NN, on the writers' characters and on dealt ones."""
    found = []
    for key, (words, data) in LABELS.items():
        made = {one: (BASELINES[one][0], BASELINES[one][1], baseline("2nn", one, "epoch")) for one in BASELINES}
        for one in ADAPTIVE:
            label, method, _, _ = BASELINES[one]
            made[f"{one}-cnn"] = (f"{label}, rates of the CNN", method, baseline("2nn", one, "epoch", tuned=False))
        label, method, settings = made["fedprox"]
        tuned = merged(settings, {"methods": {method: {"mu": TUNED_MU}}})
        made["fedprox-tuned"] = (f"{label}, μ = {TUNED_MU:g}", method, tuned)
        for one in ("fedgs-gbpcs", "fedgs", "fedgs-random"):
            made[one] = (VARIANTS[one][0], "fedgs", fedgs("2nn", VARIANTS[one][1]))
        found += [
            _cell("2nn", words, label, f"{key}/{one}", method, merged(settings, data), _figures("2nn"))
            for one, (label, method, settings) in made.items()
        ]
    return tuple(found)


def _grid() -> tuple[Cell, ...]:
    found = []
    for network in NETWORKS:
        for t, row in T_GRID.items():
            for n, paper in row.items():
                made = fedgs(network, {"iterations": t}, batch=n)
                figures = (Accuracy(paper if network == "cnn" else None),)
                found.append(_cell(network, f"T = {t}, n = {n}", "FedGS", f"T{t}/n{n}", "fedgs", made, figures))
        for m, row in M_GRID.items():
            for chosen, paper in row.items():
                made = fedgs(network, {"devices": chosen}, factories=m)
                figures = (Accuracy(paper if network == "cnn" else None),)
                words = f"M = {m}, L = {chosen}"
                found.append(_cell(network, words, "FedGS", f"M{m}/L{chosen}", "fedgs", made, figures))
    return tuple(found)


def _noise() -> tuple[Cell, ...]:
    found = []
    for network in NETWORKS:
        figures: tuple[Figure, ...] = (Divergence(), Epsilon(), Epsilon(delta=True), Accuracy(None))
        for epsilon in EPSILONS:
            key = "none" if epsilon is None else f"epsilon{epsilon:g}"
            words = "no noise" if epsilon is None else f"ε = {epsilon:g} a report"
            made = merged(fedgs(network, {}, epsilon=epsilon), WHOLE)
            found.append(_cell(network, words, "FedGS", key, "fedgs", made, figures))
        made = merged(fedgs(network, {"solver": "random"}), WHOLE)
        found.append(_cell(network, "no census", "FedGS, at random", "random", "fedgs", made, figures))
    return tuple(found)
