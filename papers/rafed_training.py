"""RaFed's Fig. 4, training accuracy against iterations, as runs: the sets that each scheme chooses, trained.

The paper prints curves without numbers, on T-LESS; here it is MNIST, and there is no figure of the paper's.
"""

from __future__ import annotations

from typing import Any

from papers.cells import Accuracy, Cell, Table
from papers.rafed import CLEAN, DEADLINE, PAPER

ROUNDS = 20
SHARES = (0.25, 0.5, 1.0)
DATA: dict[str, Any] = {"name": "mnist", "partition": {"kind": "shards", "per_device": 2}}
BASE: dict[str, Any] = {
    "park": {"devices": 40, "factories": 1},
    "model": {"name": "mlp-2nn"},
    "work": {"batch_size": 32, "lr": 0.05},
    "network": {"profile": "rafed", "radio": {"threshold": CLEAN}},
    "evaluate": {"every": 1},
}
SCHEMES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "search": ("RaFed, search (ours)", "rafed", {"solver": "search"}),
    "rafed": ("RaFed, Algorithm 1", "rafed", {"solver": "rafed"}),
    "qffl": ("q-FFL", "qffl", {"q": 0.1, "fraction": 0.5}),
    "fedl": ("FEDL", "fedl", {"fraction": 0.5, "eta": 1.0, "work": {"epochs": 1, "batch_size": 256}}),
    "fedcs": ("FedCS", "fedcs", {"fraction": 1.0, "deadline_s": DEADLINE, "work": {"epochs": 1}}),
}


def tables() -> tuple[Table, ...]:
    """Return Fig. 4."""
    figures = tuple(Accuracy(None, share=share) for share in SHARES)
    cells = tuple(
        Cell(f"mnist/{key}", "MNIST", "ξ = 2", label, method, key, {"data": DATA, "methods": {method: own}}, figures)
        for key, (label, method, own) in SCHEMES.items()
    )
    notes = (
        "T-LESS is not here: MNIST with two classes per device, and the 2NN; 20 rounds, of which the paper has more",
        f"γ = {CLEAN:g}, at which hardly an update is lost; at γ = 1 random channels lose most of them, of which the "
        "paper's curves show nothing",
        f"q-FFL (q = 0.1) and FEDL draw half of the devices in each round; FedCS has a deadline of {DEADLINE:g} s; "
        "one epoch of mini-batches of 32, rate 0.05; FEDL: η = 1 and 256, for its authors call small ones unstable",
        "the paper prints no figures; it says that all converge, and RaFed's accuracy is no better than the others'",
    )
    return (
        Table("rafed-fig4", "training accuracy of different methods", f"{PAPER}, Fig. 4", ROUNDS, BASE, cells, notes),
    )
