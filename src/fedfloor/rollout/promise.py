"""The gate of a recalibrated version: what its thresholds keep must be nearer to the promise than what is kept now.

Such a version has the model in use with other thresholds (:mod:`fedfloor.runs.keeping`), so that no metric of the model
can tell it from that one. A device reports, beside its headline, the share of its newest held-out samples that are
within either version's thresholds; judged is the distance of each from the promised share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, SettingError
from fedfloor.base.ranges import number
from fedfloor.tasks.figures import named

if TYPE_CHECKING:
    from fedfloor.deploy.own import Labelled
    from fedfloor.rollout.model import Model

DISTANCE = "a distance from the promise of"
FIGURE = named("false alarms")  # a distance is a share, too, of which less is better
KEY = "recalibrated"
BATCH = 64


def recorded(folder: Path) -> dict[str, Any]:
    """Return what a run measured of its recalibration, for the journal: {} if it made none."""
    try:
        known = json.loads(regular.read_text(folder / "evaluation.json"))[KEY]
        shares = {when: known[when]["measured"] for when in ("before", "after")}
        return {KEY: {"promised": known["promised"], **shares, "nearer": known["nearer"]}}
    except (OSError, *MALFORMED):
        return {}


def promised(run: Mapping[str, Any]) -> float | None:
    """Return the share that a recalibrated version promises, by its run's facts; None for other versions."""
    return None if KEY not in run else float(run[KEY]["promised"])


def measured(run: Mapping[str, Any], version: int) -> tuple[bool | None, str]:
    """Return whether a recalibrated version was nearer to its promise on its run's test samples, and a sentence."""
    known = run[KEY]
    if known["nearer"] is None:
        return None, "its run measured nothing: samples for testing are missing"
    now = "without thresholds" if known["before"] is None else f"with the earlier thresholds {known['before']:.4g}"
    words = "nearer" if known["nearer"] else "no nearer"
    why = f"version {version} keeps a share of {known['after']:.4g} of the run's test samples, {now}"
    return known["nearer"], f"{why}: {words} to the promised {known['promised']:.4g}"


def distances(body: Mapping[str, Any], share: float) -> tuple[float, float]:
    """Return the distances from the promised share by a device's judgement: of a version, and of that in use.

    Raises:
        RefusedError: the shares are malformed or out of range.
        SettingError: the device made no such judgement; holds its reason.
    """
    if body.get("kept new") is None:
        raise SettingError(str(body.get("why") or "it measures no share within thresholds.")[:200])
    new, old = (number(body.get(f"kept {which}"), 0.0, 1.0, "a share within thresholds") for which in ("new", "old"))
    return abs(new - share), abs(old - share)


def kept(new: Model, used: Model | None, seen: Labelled) -> dict[str, float]:
    """Return the shares of a device's samples within the thresholds of a version and of that in use; {}: unknown."""
    shares = {f"kept {which}": within(model, seen) for which, model in (("new", new), ("old", used)) if model}
    known = {name: share for name, share in shares.items() if share is not None}
    return {"samples": len(seen.x), **known} if len(known) == 2 else {}


def within(model: Model, seen: Labelled) -> float | None:
    """Return the share of a device's samples within a model's thresholds; of a detector, of the normal ones."""
    batches = [model.outputs(seen.x[first : first + BATCH]) for first in range(0, len(seen.x), BATCH)]
    parts = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]} if batches else {}
    if seen.task.detects:
        known = "score" in parts and model.about["task"].get("threshold") is not None
        quiet = parts["score"][seen.y == 0] <= 1 if known else np.zeros(0, np.bool_)
        return float(quiet.mean()) if len(quiet) else None
    if "low" not in parts or seen.target is None:
        return None
    true = np.minimum(seen.target, np.inf if (cap := getattr(seen.task, "cap", None)) is None else cap)
    low, high = (parts[end].reshape(true.shape) for end in ("low", "high"))
    slack = 1e-6 * np.abs(true).max()
    return float(((low - slack <= true) & (true <= high + slack)).mean())
