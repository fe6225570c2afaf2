"""The total privacy loss of several runs over the same devices' data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedfloor.config import combined, read
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.runs import privacy

Kind = Literal["drawn", "sums", "steps"]
Loss = tuple[float, float]  # ε, δ


@dataclass(frozen=True)
class Spent:
    """The privacy loss of one run by one kind of noise.

    Args:
        kind: ``drawn``: noise added by the cloud, with randomly chosen devices; ``sums``: noise added by devices to
            secure sums; ``steps``: noise added to the gradients of a device's samples.
        noise: standard deviation over the clipping norm.
        share: probability that a device, or a sample, takes part.
        rounds: number of rounds, sums or steps.
        epsilon: ε of this run alone; for ``steps``, that of the device with the largest ε.
    """

    kind: Kind
    noise: float
    share: float
    rounds: int
    delta: float
    epsilon: float = math.inf


def of_run(folder: Path) -> list[Spent]:
    """Return the privacy loss of a run on real machines so far; empty if it adds no noise, or has not begun.

    Steps of a run without its statement, ``privacy.json``, have no known bound, so that ε is infinite.

    Raises:
        SettingError: a file in the run's folder is damaged.
    """
    try:
        stated = json.loads((folder / privacy.STATEMENT).read_bytes())
    except FileNotFoundError:
        stated = {}
    except (OSError, ValueError) as error:
        raise SettingError(f"{folder / privacy.STATEMENT} cannot be read: it has the privacy loss of a run.") from error
    found = [_stated(key, stated[key]) for key in ("models", "samples") if key in stated]
    if found or not (folder / "experiment.toml").exists():
        return found
    method = combined(read(folder / "experiment.toml", []))
    rounds, visits = privacy.rounds_begun(folder, 0), max(privacy.visits_begun(folder, {}).values(), default=0)
    return _of_method(method, rounds, visits, math.inf if visits else 0.0)


def planned(experiment: Experiment, before: Iterable[Spent]) -> list[Spent]:
    """Return the assumed privacy loss of a further run: one sum per device and round, or as many as in the longest run
    so far; steps as in the most expensive run so far."""
    before = [*before]
    steps = max((one.epsilon for one in before if one.kind == "steps"), default=0.0)
    sums = max((one.rounds for one in before if one.kind == "sums"), default=0)
    return _of_method(combined(experiment), experiment.rounds, max(experiment.rounds, sums), steps)


def _stated(key: str, about: dict[str, Any]) -> Spent:
    kind: Kind = "steps" if key == "samples" else "sums" if about.get("distributed") else "drawn"
    value = about["epsilon"]
    numbers = about["noise_multiplier"], about["share"], about["rounds"], about["delta"]
    return Spent(kind, *numbers, math.inf if value is None else value)


def _of_method(method: ConfiguredMethod, rounds: int, visits: int, steps: float) -> list[Spent]:
    found = list[Spent]()
    if (drawn := privacy.mechanism(method.parts)) is not None:
        found.append(Spent("drawn", drawn[0].noise, drawn[1].share, rounds, drawn[0].delta))
    if (summed := privacy.distributed(method.parts)) is not None:
        found.append(Spent("sums", summed.noise, 1.0, visits, summed.delta))
    if (work := privacy.sample_work(method)) is not None:
        found.append(Spent("steps", work.sample_noise or 0.0, 1.0, visits, privacy.SAMPLE_DELTA, steps))
    return found


def together(spent: Sequence[Spent], devices: int | None) -> dict[str, Loss]:
    """Return the total (ε, δ) of runs for ``a device`` and ``a sample``, if noise protects them.

    Rounds, and secure sums, of several runs are composed as those of one (:func:`~fedfloor.runs.privacy.composed`,
    :func:`~fedfloor.runs.privacy.sums_composed`), at the largest δ. For steps, whose worst device may differ between
    runs, both ε and δ are added: Dwork and Roth, The Algorithmic Foundations of Differential Privacy (2014),
    theorem 3.16.

    Args:
        devices: K; None if unknown.
    """
    of: dict[Kind, list[Spent]] = {"drawn": [], "sums": [], "steps": []}
    for one in spent:
        of[one.kind].append(one)
    losses = dict[str, list[Loss]]()
    if drawn := of["drawn"]:
        delta = max(one.delta for one in drawn)
        events = tuple((one.noise, one.share, one.rounds) for one in drawn)
        losses["a device"] = [(privacy.composed(events, delta, devices), delta)]
    if sums := of["sums"]:
        delta = max(one.delta for one in sums)
        value = privacy.sums_composed(tuple((one.noise, one.rounds) for one in sums), delta)
        losses.setdefault("a device", []).append((value, delta))
    if of["steps"]:
        losses["a sample"] = [(one.epsilon, one.delta) for one in of["steps"]]
    return {name: (sum(e for e, _ in each), sum(d for _, d in each)) for name, each in losses.items()}
