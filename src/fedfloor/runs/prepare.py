"""A run's folder before its first round."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from fedfloor.config import combined, resolved
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.models.network import builder
from fedfloor.park.described import describe
from fedfloor.park.park import Park
from fedfloor.park.skew import LabelSkew, label_skew
from fedfloor.runs import checks, folder, made
from fedfloor.runs.orders import Orders
from fedfloor.runs.start import digest

log = logging.getLogger(__name__)


def prepare(experiment: Experiment, orders: Orders, park: Park, *, live: bool = False) -> None:
    """Make a run's folder ready, before any rank starts: refuse what must not be overwritten, describe a new run.

    A resume leaves the folder as it is until nothing can refuse it any more, and then calls :func:`record`.

    Raises:
        SettingError: the folder holds a run and this is no resume, or a resume does not fit; or a device's samples do
            not fit into memory.
    """
    checks.figures_fit(experiment, park, orders.limits)
    if not live and made.where(experiment).device == "cpu":
        checks.memory_fits(experiment, park)
    if ":" not in experiment.model.name:
        builder(experiment.model.name)  # an unknown name before anything about the folder
    out = orders.out
    began = (out / "experiment.toml").exists()
    if orders.resume:
        if not began:
            raise SettingError(f"--resume: {out} holds no run. Leave --resume out to start one there.")
        folder.check_same(out, _document(experiment, out, park, live=live), force=orders.force)
    elif began or (out / "ledger.jsonl").exists() or any((out / "checkpoint").glob("round-*")):
        raise SettingError(f"{out} already holds a run. Go on with --resume, or give another folder with --out.")
    else:
        record(experiment, out, park, live=live)
        warn(experiment, label_skew(park))


def record(experiment: Experiment, out: Path, park: Park, *, live: bool = False) -> None:
    """Write what describes a run, of real machines or simulated: ``experiment.toml`` and ``park.json``."""
    folder.write(out / "experiment.toml", _document(experiment, out, park, live=live))
    skew = label_skew(park)
    folder.write_json(out / "park.json", describe(park) | ({} if skew is None else {"label_skew": skew._asdict()}))


def _document(experiment: Experiment, out: Path, park: Park, *, live: bool) -> str:
    here = made.where(experiment, live=live)
    provenance = folder.provenance(park.dataset.digest) | digest(experiment.model) | here.described
    return resolved(replace(experiment, provenance=provenance), out)


def warn(experiment: Experiment, skew: LabelSkew | None) -> None:
    """Warn of a method that chooses or groups devices by their labels where these hardly differ.

    Args:
        experiment: whose method.
        skew: of its park; None where it is unknown.
    """
    if skew is not None and skew.negligible and combined(experiment).needs.labels:
        skewed = ' Skewed labels: data.partition, such as { kind = "dirichlet", alpha = 0.3 }.'
        log.warning(
            "Method '%s' chooses devices by their labels, and has nothing to choose by here: expect no more of it than "
            "of devices chosen at random.%s", experiment.method.name, "" if experiment.data.path else skewed,
        )  # fmt: skip
