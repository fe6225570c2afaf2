"""What a run's noisy censuses tell of the devices' samples, as the run wrote it down."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fedfloor.report.ledger import Run


@dataclass(frozen=True)
class Privacy:
    """What the censuses of a device come to.

    Args:
        reports: of the device that told most.
        epsilon: ε of all of them together.
        advanced: ε by advanced composition, with ``delta``.
        delta: δ.
        secret: whether real devices drew the noise; a simulation's is drawn from a public seed and protects nobody.
    """

    reports: int
    epsilon: float
    advanced: float
    delta: float
    secret: bool = False


def privacy(run: Run) -> Privacy | None:
    """Return what ``privacy.json`` says; None where censuses carry no noise, or the run has not ended."""
    try:
        body = json.loads((run.folder / "privacy.json").read_text(encoding="utf-8"))
        epsilons = float(body["epsilon"]), float(body["epsilon_advanced"]), float(body["delta"])
        return Privacy(int(body["reports"]), *epsilons, secret=body.get("noise") == "secret")
    except (OSError, ValueError, KeyError, TypeError):
        return None
