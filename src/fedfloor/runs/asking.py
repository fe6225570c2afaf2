"""Questions before training: do all sites measure the same thing?"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.base.names import excerpt
from fedfloor.data.files import apart, own
from fedfloor.experiment import DataSettings, Experiment
from fedfloor.park import sites as park_sites
from fedfloor.park.agreement import Disagreement, judged
from fedfloor.park.normalise import DeviceNormaliser, normaliser
from fedfloor.park.park import Park
from fedfloor.park.sites import SHARES, SiteFacts, pooled, quantiles
from fedfloor.park.survey import rows_of
from fedfloor.runs import privacy

if TYPE_CHECKING:
    from fedfloor.methods.configured import ConfiguredMethod

log = logging.getLogger(__name__)
HIDDEN = "with masks or noise on updates or class counts, devices state no exact counts and sums of their rows."
REVEALS = (
    "before round 1, of a device's rows: their number, span, usual step, gaps and copies; names, order and units of "
    "columns, and the decimal mark; of 20 or more rows classes with their counts; of each sensor the number of "
    "values, of 20 or more their sum, sum of squares and, up to ten, the number of different ones; of 100 or more "
    "also minimum, maximum and the counts in 34 bins; what cannot be read, with the text of a cell; and the time of "
    "the device's clock"
)
LISTED = 20  # disagreements in an error or a log, at most
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Asked:
    """What sites state of their rows, and what does not fit together.

    Args:
        sites: the facts of each site.
        findings: the disagreements; empty where everything fits.
    """

    sites: tuple[SiteFacts, ...]
    findings: tuple[Disagreement, ...]

    @classmethod
    def of(cls, sites: Sequence[SiteFacts], data: DataSettings | None = None) -> Asked:
        """Return sites with their disagreements, by the settings of an experiment's data if there are some."""
        if data is None:
            return cls(tuple(sites), tuple(judged(sites)))
        own_scale = isinstance(normaliser(data.normalise), DeviceNormaliser)
        return cls(tuple(sites), tuple(judged(sites, own_scale=own_scale, ignored=data.columns.ignore)))

    def by_site(self) -> list[Row]:
        """Return a row for each site: rows, span, rate, gaps, missing and constant sensors, classes."""
        return [_of_site(site) for site in self.sites]

    def by_sensor(self) -> list[Row]:
        """Return a row for each sensor over all sites, whose quantiles have a largest error of ``±``."""
        names = dict.fromkeys(name for site in self.sites for name in site.sensors)
        return [_of_sensor(name, self.sites) for name in names]

    def to_dict(self) -> Row:
        """Return everything as JSON: ``sites``, ``sensors``, ``findings``."""
        return {
            "sites": [{"site": site.name, "factory": site.factory, **site.to_dict()} for site in self.sites],
            "sensors": self.by_sensor(), "findings": [asdict(one) for one in self.findings],
        }  # fmt: skip


def _of_site(site: SiteFacts) -> Row:
    clock = site.clock
    constant = [name for name, n, d in zip(site.sensors, site.sums[0], site.sums[2], strict=True) if n > 1 and not d]
    classes = [f"{name} {many:,}" for name, many in sorted(site.classes.items(), key=lambda each: -each[1])]
    times: Row = dict.fromkeys(("from", "to", "every_s", "gaps"))
    if clock is not None:
        ends = (_moment(end, dated=clock.dated) for end in (clock.first, clock.last))
        times = dict(zip(times, (*ends, _known(clock.step), clock.gaps), strict=True))
    return {
        "site": site.name, "rows": site.rows, **times, "sensors": len(site.sensors),
        "missing_%": round(100 * float(site.missing.mean()), 2) if len(site.sensors) else None,
        "constant": excerpt(constant, 3) or None, "classes": excerpt(classes, 4) or None,
    }  # fmt: skip


def _of_sensor(name: str, sites: Sequence[SiteFacts]) -> Row:
    have = [(site, site.sensors.index(name)) for site in sites if name in site.sensors]
    units = dict.fromkeys(site.units[name] for site, _ in have if name in site.units)
    _, mean, deviation = pooled([site.sums[:, c] for site, c in have])
    known = sum(float(site.sums[0, c]) for site, c in have)
    ends = np.array([site.ends[:, c] for site, c in have])
    middle, error = quantiles(sites, name) or (np.full(len(SHARES), math.nan), math.nan)
    return {
        "sensor": name, "unit": "/".join(units) or None, "sites": len(have),
        "missing_%": round(100 * (1 - known / max(1, sum(site.rows for site, _ in have))), 2),
        "mean": _known(mean), "deviation": _known(deviation),
        **{f"q{100 * share:g}": _known(value) for share, value in zip(SHARES, middle, strict=True)},
        "±": _known(error), "min": _known(np.fmin.reduce(ends[:, 0])), "max": _known(np.fmax.reduce(ends[:, 1])),
    }  # fmt: skip


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.5g}")


def _moment(value: float, *, dated: bool) -> str | float | None:
    if math.isnan(value):
        return None
    return datetime.fromtimestamp(value, UTC).isoformat(" ", "seconds")[:19] if dated else value


def of_path(path: Path) -> Asked:
    """Ask the devices of a table or of a folder of tables, whose columns are guessed.

    Raises:
        SettingError: no such path, or no table in it.
    """
    return Asked.of(park_sites.of_tables(apart.read(path)))


def of_experiment(experiment: Experiment) -> Asked:
    """Ask the devices of an experiment.

    Raises:
        SettingError: its data are no tables of sensors.
    """
    data = experiment.data
    if data.path is not None and (data.format or own.format_of(Path(data.path))) in ("table", "folder", "buffer"):
        return Asked.of(park_sites.of_tables(apart.read(Path(data.path), data)), data)
    from fedfloor.runs.parks import build_park

    park = build_park(experiment)
    sites = [of_park(park, k, park.display_names.site("device", k)) for k in range(park.devices)]
    return Asked.of(sites, data)


def of_park(park: Park, device: int, name: str) -> SiteFacts:
    """Return the facts of a device's training rows, without times.

    Raises:
        SettingError: its samples are no rows of named sensors.
    """
    columns = park.dataset.inputs.columns
    if park.dataset.inputs.kind != "table" or len(columns) != park.dataset.shape[0]:
        raise SettingError(
            f"{park.dataset.name}: its samples are no rows of named sensors, of which ask tells.", key="ask"
        )
    names = park.dataset.classes if park.dataset.task.labelled else ()
    classes = {label: int(n) for label, n in zip(names, park.classes(device), strict=False) if n > 0}
    return SiteFacts.of_rows(name, columns, rows_of(park, device), classes=classes)


def asks(experiment: Experiment) -> bool:
    """Return whether an experiment's devices are asked before it is trained."""
    return experiment.data.agree in ("refuse", "warn")


def hides(experiment: Experiment, method: ConfiguredMethod) -> bool:
    """Return whether masks or noise protect what devices send, so that they state nothing exactly."""
    epsilon = experiment.park.census_epsilon
    return privacy.on_devices(method) or (epsilon is not None and math.isfinite(epsilon))


def before(experiment: Experiment, *, resume: bool) -> None:
    """Ask the devices of an experiment before it is trained, as ``[data] agree`` says; not before it goes on.

    Raises:
        SettingError: as of :func:`check` and :func:`of_experiment`.
    """
    if not asks(experiment) or resume:
        return
    if hides(experiment, experiment.configured):
        raise SettingError(f"data.agree: {HIDDEN} Leave it out.", key="data.agree")
    check(of_experiment(experiment), experiment)


def check(asked: Asked, experiment: Experiment) -> None:
    """Log what does not fit together, or refuse it, by ``[data] agree``.

    Raises:
        SettingError: something does not fit, and ``agree`` is ``refuse``.
    """
    sentences = [one.sentence for one in asked.findings]
    if not sentences:
        return
    more = f"\n… and {len(sentences) - LISTED} more" if len(sentences) > LISTED else ""
    if experiment.data.agree == "refuse":
        text = "".join(f"\n- {sentence}" for sentence in sentences[:LISTED])
        raise SettingError(
            f"data.agree = 'refuse', and sites do not fit together:{text}{more}\nMend them, or train with a warning: "
            "--set data.agree=warn."
        )
    for sentence in sentences[:LISTED]:
        log.warning("%s", sentence)
