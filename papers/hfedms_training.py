"""HFedMS's comparisons (Zeng et al., IEEE TCC 2023, arXiv 2211.03300) that take training, as data.

Tables III and IV are printed; of Figs. 8 and 10, the growth functions and the intervals T, the text says where the best
is. The ablations have no printed figures.
"""

from __future__ import annotations

import itertools
from typing import Any

from papers import fedgs_training
from papers.cells import Accuracy, Cell, Figure, Loss, Rounds, Spent, Table, merged
from papers.forgetting import Forgetting
from papers.tuned import Tuned

PAPER = "HFedMS, arXiv 2211.03300"
ROUNDS = 500
PERIOD = 5
SHARE = 0.3
BATCH = 5
WINDOW = 50
RATE = 0.01
TARGET = 0.7
NETWORKS = {"cnn": ("the paper's CNN", "cnn-hfedms"), "small": ("a small CNN", "cnn-small")}
STREAMS = {"stream": {"kind": "augmented", "window": WINDOW}, "static": {"kind": "static"}}
BASE: dict[str, Any] = {
    "data": {"name": "femnist", "partition": {"kind": "natural", "at_least": 90}, "normalise": "standard"},
    "park": {"factories": 10, "assignment": "random"},
    "evaluate": {"every": 1},
}
# Table III: accuracy % and loss on the stream, then on static data; settings are those of FedGS's comparison
BASELINES: dict[str, tuple[float, float, float, float]] = {
    "fedavg": (70.1, 1.037, 80.1, 0.602), "fedprox": (70.3, 1.031, 78.7, 0.633), "fedmmd": (75.6, 0.821, 81.7, 0.587),
    "fedfusion-multi": (72.6, 0.951, 82.4, 0.554), "ida": (72.1, 1.003, 82.0, 0.567),
    "fedadagrad": (77.4, 0.769, 81.9, 0.582), "fedadam": (77.8, 0.730, 82.1, 0.566),
    "fedyogi": (75.8, 0.803, 83.2, 0.543),
}  # fmt: skip
# label, HFedMS's settings, what Table III prints; on the stream also what is left of D without one ingredient
VARIANTS: dict[str, tuple[str, dict[str, Any], tuple[float, float] | None]] = {
    "stream/hfedms-d": ("HFedMS-D", {}, (84.2, 0.494)),
    "stream/hfedms-s": ("HFedMS-S", {"variant": "S"}, None),
    "stream/no-memory": ("S + LASP, no memory", {"memory": 0}, None),
    "stream/uncompensated": ("D, not compensated", {"compensate": False}, None),
    "stream/samples": ("D, all samples kept", {"keep": "samples"}, None),
    "stream/random-groups": ("D, groups at random", {"grouping": "random"}, None),
    "stream/exchange": ("D, groups by exchanges (ours)", {"grouping": "exchange"}, None),
    "static/hfedms-s": ("HFedMS-S", {"variant": "S"}, (85.4, 0.453)),
}
# what HFedMS's reference code does otherwise, some by itself, then all options: label, HFedMS's settings, others
KL = {"method": {"objective": {"kind": "distilled", "weight": 0.0016}}}  # 0.1/62
STAYS = {"data": {"stream": {"kind": "augmented", "window": 49, "every": PERIOD}}}
CODE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "epochs": ("D, calibration of 3 epochs", {"calibration_epochs": 3}, {}),
    "any": ("D, any Q kept", {"rule": "random"}, {}),
    "distilled": ("D, with the KL term", {}, KL),
    "stays": ("D, windows of 49 that stay for T rounds", {}, STAYS),
    "code": (
        "D, with all that is an option of what the reference code does otherwise",
        {"calibration_epochs": 3, "rule": "random", "shuffle": "round", "weights": "by_samples",
         "grouping": "icg-euclidean"},
        merged(KL, STAYS),
    ),
}  # fmt: skip
# with chains as long as the paper's, of which D needs three epochs of calibration for its rounds in Table IV
CHAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "chains-s": ("HFedMS-S, chains of the paper's length", {"variant": "S"}),
    "chains": ("HFedMS-D, chains of the paper's length", {}),
    "chains-epochs": ("HFedMS-D, chains of the paper's length, calibration of 3 epochs", {"calibration_epochs": 3}),
}
# Fig. 7: groups that stay
FIXED = {"benchmark": ("Benchmark: fixed groups, at random", "random"), "icg": ("ICG: fixed groups, by ICG", "icg")}
DEVICES = 272  # writers here with 90 characters or more
PAPERS_DEVICES = 368
# as in hfedms-cpd: with alpha = 0.7 ICG's groups are 2/5 as far apart as random ones, which is the paper's Fig. 6
DEALT = {
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.7, "at_least": BATCH}},
    "park": {"devices": PAPERS_DEVICES},
}
TABLE4: dict[int | None, tuple[int, float, int]] = {  # T → rounds, TB, hours to 70 %; None: FedAvg, 1: HFedMS-S
    None: (490, 2.629, 1262), 1: (32, 0.172, 82), 3: (36, 0.097, 42), 5: (34, 0.056, 25), 7: (67, 0.081, 35),
    9: (81, 0.073, 32),
}  # fmt: skip
INTERVALS = (1, 3, 5, 7, 9)
CHAINS = {"growth": {"kind": "log", "alpha": 2.0, "beta": 7}, "share": 3 / 7}  # 3 of ⌊272/7⌋ = 38 devices at first
CELLULAR = {"network": {"profile": "lte-cat-m2", "devices": {"cycles_per_bit": 0.0}}}
GROWTHS = {"linear": (0.02, 0.05, 0.1), "log": (1.0, 2.0, 4.0), "exponential": (0.003, 0.006, 0.012)}  # α of each f
BETAS = (5, 10, 20)
BEST = ("log", 2.0, 10)

NOTES = (
    f"{DEVICES} writers with 90 characters or more are here, where the paper has 368: its M groups are chains of "
    "⌊368/M⌋ devices, here of ⌊272/M⌋, a quarter shorter; nobody's batch is short. The writers differ in hand, not in "
    "labels, so that alike groups have nothing to even out but chance",
    "stream: in each round 50 of a device's characters, with other brightness and cropped; static: all of them",
    "baselines visit 30 % of the devices in a round, one epoch of mini-batches of 5, so that κK devices train as in "
    "HFedMS; rate 0.01, as the paper has for all devices (Table II), for adaptive servers 10^-1.5 as well, which is "
    "best for them, with the server rates of FedGS's table; FedProx's μ = 1, FedMMD's weight 0.1, FedFusion's operator "
    "multi: the paper prints none",
    "pixels are centred and scaled by their standard deviation, of which the paper says nothing: as they are (1 is "
    "paper) its CNN stays at the share of the commonest class for 30 rounds and more with PyTorch's initial weights, "
    "which these runs have; the reference code has Glorot's with zero biases",
    "the small CNN, 57,694 parameters, is ours, to make rounds short",
    "HFedMS: T = 5, κ = 0.3, f = LOG with α = 2 and β = 10, Q = 200, models meet with equal weights; after 2141 rounds "
    "the paper has 85.9 % and 0.401",
)
DEALT_NOTE = (
    "labels dealt: the characters of all writers are pooled and dealt to 368 devices by a Dirichlet draw for every "
    "class, α = 0.7, with which ICG's groups are 2/5 as far apart as random ones, as in Fig. 6"
)
CODE_NOTE = (
    "the reference code's stream has windows of 49 that stay for T rounds; code: that, 3 epochs, any Q, the KL term, "
    "another order in every round, distances that are not squared, and groups weighted by what they hold, which on a "
    "stream is equal. No options are its first period without calibration, its memory at the beginning (features of "
    "all local data by the first model), a census that is never renewed, and an old extractor whose index looks one off"
)
FORGOTTEN = (
    'the paper prints no figures: HFedMS-S\'s accuracy on a batch "drops rapidly" in the rounds after it, HFedMS-D '
    '"maintains the accuracy well", and the gain grows "as the round progresses"',
    "a round's batch: what the devices that were trained in it held then, 1,000 samples of it; the mean over all "
    "rounds of whole periods in the second half of the run but its last 20. Four in five rounds of HFedMS-D train the "
    "classifier alone",
    "fresh: as many samples of windows of the same devices at ticks after the run, which nobody was trained on. They "
    "are drawn from the same characters, otherwise cropped, some of them those of the batch. unseen: the same writers' "
    "test characters, cropped as the stream does. What a model knows of a batch because it saw it, is above them; what "
    "it gets better meanwhile, is in all three",
)
TUNED = (
    "the paper does not say how Fig. 9a was made; its authors' repository (slz-ai/hfedms) has this, commented out, "
    'under "begin finetune": ten epochs on 49 test characters; rate 0.01 and mini-batches of 5 as everywhere. '
    "hfedms-forgetting follows batches of the stream instead",
    "the batch is trained on at the end of a period, in the sixth of which that is; each variant has its own 30 rounds "
    "before",
)


def tables() -> tuple[Table, ...]:
    """Return Tables III and IV, and the grids of f, α, β and T."""
    iv = "rounds, bytes and hours to 70 %"
    grids = "accuracy and loss by f, α, β and T"
    more = (
        "Benchmark and ICG (Fig. 7): groups that stay, β = 10 of them, which the paper does not say",
        DEALT_NOTE,
        CODE_NOTE,
    )
    priced = (
        "TB of 2^40 bytes over the devices' links, hours by the profile lte-cat-m2: all transfers take turns, "
        "computing takes no time. The paper's are those of 368 devices and 6,687,834 parameters, and grow with both",
    )
    chains = (
        "chains of the paper's length: β = 7 and κ = 3/7, so that at first three of seven groups of ⌊272/7⌋ = 38 "
        "devices train, where the paper has three of ten of ⌊368/10⌋ = 36; as many chains train in a round"
    )
    grid = (
        "f, α, β: HFedMS-S on static data, where LOG with α = 2, β = 10 was the paper's best, loss 0.453; T: HFedMS-D "
        "on the stream, where T = 1 is HFedMS-S. The paper's heat maps have no numbers, so that α and β are ours",
        "with fewer rounds M grows to less",
    )
    return (
        Table("hfedms-table3", "accuracy and loss", f"{PAPER}, Table III", ROUNDS, BASE, _table3(), (*NOTES, *more)),
        Table("hfedms-table4", iv, f"{PAPER}, Table IV", ROUNDS, BASE, _table4(), (*NOTES, *priced, chains)),
        Table("hfedms-growth", grids, f"{PAPER}, Figs. 8 and 10", ROUNDS, BASE, _growth(), (*NOTES, *grid)),
    )


def forgettings() -> tuple[Forgetting, ...]:
    """Return Fig. 9a: what is left of a batch in the rounds after it, with SCC and without."""
    wanted = ("hfedms-s", "no-memory", "uncompensated", "hfedms-d", "samples")
    there = {cell.key: cell for cell in _table3()}
    cells = tuple(there[f"{network}/stream/{key}"] for network in ("small", "cnn") for key in wanted)
    title = "accuracy on a batch in the rounds after it"
    notes = (*FORGOTTEN, *(note for note in NOTES if not note.startswith("baselines")))
    table = Table("hfedms-forgetting", title, f"{PAPER}, Fig. 9a", ROUNDS, BASE, cells, notes)
    return (Forgetting(table, PERIOD, usual="small/"),)


def tuned() -> tuple[Tuned, ...]:
    """Return Fig. 9a as the authors' code does it."""
    there = {cell.key: cell for cell in _table3()}
    wanted = ("hfedms-s", "hfedms-d", "no-memory")
    cells = tuple(there[f"{network}/stream/{key}"] for network in ("small", "cnn") for key in wanted)
    title = "accuracy on a batch that the global model was trained on"
    notes = (*TUNED, *(note for note in NOTES if not note.startswith("baselines")))
    return (Tuned(Table("hfedms-tuned", title, f"{PAPER}, Fig. 9a", ROUNDS, BASE, cells, notes)),)


def baseline(key: str, *, printed: bool = False) -> tuple[str, str, dict[str, Any]]:
    """Return a baseline's label, its method's name here and its settings.

    Args:
        key: one of :data:`BASELINES`.
        printed: adaptive servers' devices have the paper's rate as well, in the place of the best one for them.
    """
    label, method, own, _ = fedgs_training.BASELINES[key]
    rate = fedgs_training.SERVER_LR if key in fedgs_training.ADAPTIVE and not printed else RATE
    drawn = {"method": {"selection": {"kind": "fraction", "share": SHARE}}}
    return label.removesuffix(", multi"), method, {**drawn, "methods": {method: {**own, "work": work(rate)}}}


def work(rate: float = RATE) -> dict[str, Any]:
    """Return what a visit does."""
    return {"epochs": 1, "batch_size": BATCH, "lr": rate}


def hfedms(own: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a cell with HFedMS.

    Args:
        own: what differs from the paper's.
    """
    usual = {"variant": "D", "period": PERIOD, "share": SHARE, "growth": growth(*BEST)}
    return {"methods": {"hfedms": {**usual, **own, "work": work()}}}


def growth(kind: str, alpha: float, beta: int) -> dict[str, Any]:
    """Return a growth function as an experiment has it."""
    return {"kind": kind, "alpha": alpha, "beta": beta}


def _cell(network: str, setting: str, key: str, label: str, method: str, own: dict[str, Any],
          figures: tuple[Figure, ...], words: str = "") -> Cell:  # fmt: skip
    said, model = NETWORKS[network]
    data = {"name": "femnist", "stream": STREAMS[setting]}
    settings = merged({"data": data, "model": {"name": model}}, own)
    return Cell(f"{network}/{key}", f"FEMNIST, {said}", words or setting, label, method,
                f"{network}-{key}".replace("/", "-"), settings, figures)  # fmt: skip


def _scores(network: str, paper: tuple[float, float] | None) -> tuple[Figure, ...]:
    """Return accuracy and loss; the paper's figures are those of its CNN."""
    if paper is None or network != "cnn":
        return Accuracy(None), Loss(None)
    return Accuracy(round(paper[0] / 100, 4)), Loss(paper[1])


def _table3() -> tuple[Cell, ...]:
    found = []
    for network in NETWORKS:
        for key, printed in BASELINES.items():
            label, method, own = baseline(key)
            papers = {"stream": printed[:2], "static": printed[2:]}
            for setting, paper in papers.items():
                scores = _scores(network, paper)
                found.append(_cell(network, setting, f"{setting}/{key}", label, method, own, scores))
                if key in fedgs_training.ADAPTIVE:
                    _, _, same = baseline(key, printed=True)
                    words = f"{label}, η = {RATE:g}"
                    found.append(_cell(network, setting, f"{setting}/{key}-printed", words, method, same, scores))
        for key, (label, settings, best) in VARIANTS.items():
            setting = key.split("/")[0]
            found.append(_cell(network, setting, key, label, "hfedms", hfedms(settings), _scores(network, best)))
        for key, (label, settings, more) in CODE.items():
            own = merged(hfedms(settings), more)
            words = "stream, windows stay" if key in ("stays", "code") else ""
            found.append(_cell(network, "stream", f"stream/{key}", label, "hfedms", own, _scores(network, None), words))
        for key, (label, settings) in CHAINED.items():
            own = hfedms({**settings, **CHAINS})
            found.append(_cell(network, "stream", f"stream/{key}", label, "hfedms", own, _scores(network, None)))
        for key, (label, grouping) in FIXED.items():
            for dealt, devices in (("", DEVICES), ("-dealt", PAPERS_DEVICES)):
                fixed = {"devices": devices // BEST[2], "share": SHARE, "grouping": grouping, "weights": "equal"}
                own = merged({"methods": {"astraea": {**fixed, "work": work()}}}, DEALT if dealt else {})
                words = "static, labels dealt" if dealt else ""
                scores = _scores(network, None)
                found.append(_cell(network, "static", f"static/{key}{dealt}", label, "astraea", own, scores, words))
    return tuple(found)


def _table4() -> tuple[Cell, ...]:
    found = []
    for network in NETWORKS:
        for every, printed in TABLE4.items():
            figures = _to_target(network, printed)
            if every is None:
                label, method, own = baseline("fedavg")
                found.append(_cell(network, "stream", "fedavg", label, method, merged(own, CELLULAR), figures))
                continue
            own = merged(hfedms(_by_interval(every)), CELLULAR)
            words = f"stream, T = {every}"
            found.append(_cell(network, "stream", f"T{every}", _interval(every), "hfedms", own, figures, words))
        label, method, own = baseline("fedadam")
        figures = _to_target(network, (None, None, None))
        found.append(_cell(network, "stream", "fedadam", label, method, merged(own, CELLULAR), figures))
        label, settings, _ = CODE["epochs"]
        own = merged(hfedms(settings), CELLULAR)
        figures = _to_target(network, TABLE4[PERIOD])
        words = f"stream, T = {PERIOD}"
        found.append(_cell(network, "stream", f"T{PERIOD}-epochs", label, "hfedms", own, figures, words))
        for every, epochs in itertools.product(INTERVALS, (1, 3)):
            if every == 1 and epochs == 3:
                continue  # no round calibrates
            own = merged(hfedms({**_by_interval(every), **CHAINS, "calibration_epochs": epochs}), CELLULAR)
            words = f"stream, T = {every}, chains of the paper's length"
            label = _interval(every) if epochs == 1 else f"D, calibration of {epochs} epochs"
            key = f"chains/T{every}" if epochs == 1 else f"chains/T{every}-epochs"
            found.append(_cell(network, "stream", key, label, "hfedms", own, _to_target(network, TABLE4[every]), words))
    return tuple(found)


def _to_target(network: str, paper: tuple[int | None, float | None, int | None]) -> tuple[Figure, ...]:
    """Return rounds, TB and hours to the target; the paper's are those of its CNN."""
    rounds, volume, hours = paper if network == "cnn" else (None, None, None)
    return Rounds(rounds, TARGET), Spent(volume, TARGET, "bytes"), Spent(hours, TARGET, "seconds")


def _growth() -> tuple[Cell, ...]:
    found = []
    for network in NETWORKS:
        for kind, alphas in GROWTHS.items():
            for alpha in alphas:
                for beta in BETAS:
                    paper = (85.4, 0.453) if (kind, alpha, beta) == BEST else None
                    own = hfedms({"variant": "S", "growth": growth(kind, alpha, beta)})
                    key = f"{kind}/alpha{alpha:g}/beta{beta}"
                    words = f"{kind}, α = {alpha:g}, β = {beta}"
                    scores = _scores(network, paper)
                    found.append(_cell(network, "static", key, "HFedMS-S", "hfedms", own, scores, words))
        for every in INTERVALS:
            paper = (84.2, 0.494) if every == PERIOD else None
            own = hfedms(_by_interval(every))
            scores = _scores(network, paper)
            words = f"stream, T = {every}"
            found.append(_cell(network, "stream", f"T{every}", _interval(every), "hfedms", own, scores, words))
    return tuple(found)


def _interval(every: int) -> str:
    return "HFedMS-S" if every == 1 else "HFedMS-D"


def _by_interval(every: int) -> dict[str, Any]:
    return {"variant": "S"} if every == 1 else {"period": every}
