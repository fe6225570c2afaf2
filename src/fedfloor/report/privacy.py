"""What a run's noisy censuses tell of the devices' samples, as the run wrote it down."""

from __future__ import annotations

from dataclasses import dataclass

from fedfloor.errors import SettingError
from fedfloor.report.ledger import Run
from fedfloor.report.records import PrivacyRecord, record


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
    """Return what ``privacy.json`` says; None where censuses carry no noise, or the run has not ended.

    Raises:
        SettingError: the file is damaged.
    """
    path = run.folder / "privacy.json"
    if not path.exists():
        return None
    body = record(PrivacyRecord, path, "a statement of privacy", "Resume the run, or remove the file.")
    if body.reports is None and body.normalise is not None:
        return None
    if None in (known := (body.reports, body.epsilon, body.epsilon_advanced, body.delta)):
        raise SettingError(
            f"{path} is no statement of privacy: reports, epsilon, epsilon_advanced or delta is missing."
        )
    return Privacy(*known, secret=body.noise == "secret")  # type: ignore[arg-type]
