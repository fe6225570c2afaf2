"""FedGS against the log of its reference code, and against random devices where labels are skewed, as data.

The log is that of the reference code's first published run (Lizonghang/fedgs, commit b36d6e2): devices drawn at random
once a round, 50 synchronisations of mini-batches of 5. FEMNIST's writers differ in hand, not in labels, so that a
choice by classes has nothing to choose by; here their pooled characters are dealt with skewed labels as well.
"""

from __future__ import annotations

from typing import Any

from papers.cells import Accuracy, Cell, Figure, Loss, Table, merged
from papers.fedgs_training import CHOSEN, FACTORIES, ITERATIONS, NETWORKS, PAPER

LOG = {20: 0.349, 40: 0.617, 60: 0.726, 80: 0.772, 100: 0.795, 140: 0.821}  # round → accuracy on the test data
LOGGED_BATCH = 5
BATCH = 32
DEVICES = 300
NATURAL = {"kind": "natural", "at_least": 90}
SKEWED: dict[str, tuple[str, dict[str, Any]]] = {
    "alpha0.7": ("Dirichlet, α = 0.7", {"kind": "dirichlet", "alpha": 0.7}),
    "alpha0.1": ("Dirichlet, α = 0.1", {"kind": "dirichlet", "alpha": 0.1}),
    "labels2": ("two labels a device", {"kind": "shards", "per_device": 2}),
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("FedGS, exact", {"solver": "exact"}),
    "gbpcs": ("FedGS, GBP-CS", {"solver": "gbpcs"}),
    "balanced": ("FedGS, exact, classes in balance (ours)", {"solver": "exact", "balance": True}),
    "random": ("at random", {"solver": "random"}),
    "random-round": ("at random, the same all round", {"solver": "random", "choose": "round"}),
}
REFERENCE = (
    "initial weights by Glorot's rule, biases 0, pixels as they are (1 is paper): as in the reference code",
    "devices wait with their next mini-batch until they are chosen, and go round their own characters, as in the "
    "reference code (recycle)",
    "of the 300 writers here those with 90 characters or more for training; the log's park has some 368 of 100 or more "
    "in all, other ones. 71 % of the characters here are digits",
)
SKEW = (
    "the characters of FEMNIST's 300 writers are pooled and dealt to 300 devices: by a Dirichlet draw for every class, "
    "or in two shards of the characters in order of their labels; ten factories, devices go there one by one at random",
    "2NN of 200 and 200 units, pixels centred and scaled by their standard deviation, rate 0.1, PyTorch's initial "
    "weights, as in fedgs-table2",
    "where a device holds fewer than 32 characters (α = 0.1: 15 at least) its window shows some of them several times",
    "one-shot streams: at tick t a device holds samples 32t … 32t + 31 of its stream (fifo)",
    "the ledgers record coverage: samples and devices of each class that were trained on",
)


def tables() -> tuple[Table, ...]:
    """Return the log, the choice with its settings, and the choice on skewed labels."""
    log = "reference code of FedGS, commit b36d6e2"
    return (
        Table("fedgs-log", "accuracy by round, random devices once a round", log, max(LOG), {}, _log(), REFERENCE),
        Table("fedgs-choice", "choice beside random devices, natural writers", PAPER, 60, {}, _choice(), REFERENCE),
        Table("fedgs-skew", "choice beside random devices, skewed labels", PAPER, 100, {}, _skew(), SKEW),
    )


def _cell(
    key: str, setting: str, network: str, variant: str, settings: dict[str, Any], figures: tuple[Figure, ...]
) -> Cell:
    """Return a cell with FedGS.

    Args:
        key: its name.
        setting: as the table shows it.
        network: one of :data:`NETWORKS`.
        variant: one of :data:`VARIANTS`.
        settings: partition, stream, batch size and what else differs.
        figures: what is read off.
    """
    label, own = VARIANTS[variant]
    words, model, rate, _, normalise = NETWORKS[network]
    whole = {
        "data": {"name": "femnist", "normalise": normalise},
        "park": {"factories": FACTORIES, "assignment": "random"},
        "model": {"name": model},
        "methods": {"fedgs": {"iterations": ITERATIONS, "devices": CHOSEN, **own, "work": {"steps": 1, "lr": rate}}},
    }
    run = key.replace("/", "-")
    return Cell(key, f"FEMNIST, {words}", setting, label, "fedgs", run, merged(whole, settings), figures)


def _natural(batch: int, every: int) -> dict[str, Any]:
    """Return what the reference code does with natural writers, evaluated every so many rounds."""
    return {
        "data": {"partition": NATURAL, "stream": {"kind": "recycle", "window": batch}},
        "model": {"init": "glorot"},
        "methods": {"fedgs": {"work": {"batch_size": batch}}},
        "evaluate": {"every": every, "coverage": True},
    }


def _log() -> tuple[Cell, ...]:
    figures = tuple(Accuracy(paper, share=number / max(LOG)) for number, paper in LOG.items())
    settings = _natural(LOGGED_BATCH, every=20)
    return (_cell("cnn/n5/random-round", f"n = {LOGGED_BATCH}", "cnn", "random-round", settings, figures),)


def _choice() -> tuple[Cell, ...]:
    settings = _natural(BATCH, every=10)
    figures = (Accuracy(None, share=0.5), Accuracy(None), Loss(None))
    return tuple(
        _cell(f"cnn/n{BATCH}/{one}", f"n = {BATCH}", "cnn", one, settings, figures)
        for one in ("gbpcs", "random-round", "random")
    )


def _skew() -> tuple[Cell, ...]:
    found = []
    for key, (words, partition) in SKEWED.items():
        settings = {
            "data": {"partition": partition, "stream": {"kind": "fifo", "window": BATCH}},
            "park": {"devices": DEVICES},
            "methods": {"fedgs": {"work": {"batch_size": BATCH}}},
            "evaluate": {"every": 10, "coverage": True},
        }
        found += [
            _cell(f"2nn/{key}/{one}", words, "2nn", one, settings, (Accuracy(None), Loss(None))) for one in VARIANTS
        ]
    return tuple(found)
