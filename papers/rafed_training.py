"""RaFed's Fig. 4, training accuracy against iterations, as runs: the sets that each scheme chooses, trained.

The paper prints curves without numbers, on T-LESS. Where that is not at hand, MNIST stands in its place.
"""

from __future__ import annotations

from typing import Any

from papers.cells import Accuracy, Cell, Table
from papers.rafed import CLEAN, DEADLINE, PAPER

ROUNDS = 20
SHARES = (0.25, 0.5, 1.0)
DATA: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mnist": ("MNIST", "ξ = 2", {
        "data": {"name": "mnist", "partition": {"kind": "shards", "per_device": 2}}, "model": {"name": "mlp-2nn"},
    }),
    "tless": ("T-LESS", "IID", {
        "data": {"name": "tless", "partition": {"kind": "iid"}, "tless": {"side": 32}},
        "model": {"name": "cnn-tutorial"},
    }),
}  # fmt: skip
BASE: dict[str, Any] = {
    "park": {"devices": 40, "factories": 1},
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
        Cell(f"{data}/{key}", task, setting, label, method, f"{data}-{key}", {**own, "methods": {method: more}},
             figures)
        for data, (task, setting, own) in DATA.items()
        for key, (label, method, more) in SCHEMES.items()
    )  # fmt: skip
    notes = (
        "T-LESS: crops of the visible parts in 32 × 32 pixels, dealt to 40 devices at random, and the CNN of "
        "TensorFlow's tutorial; the paper names no network and no partition. MNIST: two classes per device, and the "
        "2NN. 20 rounds, of which the paper has more",
        f"γ = {CLEAN:g}, at which hardly an update is lost; at γ = 1 random channels lose most of them, of which the "
        "paper's curves show nothing",
        f"q-FFL (q = 0.1) and FEDL draw half of the devices in each round; FedCS has a deadline of {DEADLINE:g} s; "
        "one epoch of mini-batches of 32, rate 0.05; FEDL: η = 1 and 256, for its authors call small ones unstable",
        "the paper prints no figures; it says that all converge, and RaFed's accuracy is no better than the others'",
    )
    return (
        Table("rafed-fig4", "training accuracy of different methods", f"{PAPER}, Fig. 4", ROUNDS, BASE, cells, notes),
    )
