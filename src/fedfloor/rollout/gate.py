"""The gate before a release: a version must be better than the one in use on labelled samples held out on devices.

Each device evaluates both models on its own samples, and reports two metrics and the number of samples. The weight of
a device is at most the lower median of all numbers, and its gain is in [−1, 1]. A device whose gain is far from the
others' does not decide by itself: where the result is another one with each gain limited to the lower median of those
that are not 0, or to the upper median of all if that is less, a person decides.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfloor.base.errors import SettingError, shown
from fedfloor.base.ranges import COUNT, RefusedError, number, whole
from fedfloor.deploy.checks import printable
from fedfloor.deploy.mqtt import topic
from fedfloor.rollout import promise
from fedfloor.rollout import registry as registries
from fedfloor.rollout.delivery import Station, files, stations
from fedfloor.rollout.registry import Registry
from fedfloor.rollout.statement import TRIAL, Statement, sealed
from fedfloor.tasks.figures import Figure

FEW = 20  # weighted samples of all devices, below which a metric is not significant
LARGEST = 1e30  # largest value of an unbounded metric
WHY_CHARS = 200
Row = dict[str, Any]


@dataclass(frozen=True)
class Judgement:
    """A device's judgement: the metrics of a new model (None: undefined, as after divergence) and of the model in use.

    Args:
        samples: number of samples held out of training.
    """

    samples: int
    new: float | None
    old: float

    def gain(self, figure: Figure) -> float:
        """Return the new model's gain in [−1, 1]: the difference of shares, or of other metrics divided by their sum.

        >>> from fedfloor.tasks.figures import named
        >>> Judgement(9, 3.0, 5.0).gain(named("RMSE")), Judgement(9, None, 5.0).gain(named("RMSE"))
        (0.25, -1.0)
        """
        if self.new is None:
            return -1.0
        gain = figure.gain(self.new, self.old)
        return gain if figure.share else gain / max(abs(self.new) + abs(self.old), 1e-300)


@dataclass(frozen=True)
class Verdict:
    """The result of the gate.

    Args:
        better: whether the version may be released; None: a person must decide.
        why: the reason as text.
        rows: a row for each device of the target.
    """

    better: bool | None
    why: str
    rows: Sequence[Row] = ()


def verdict(known: Registry, version: int, to: Sequence[str], wait_s: float) -> Verdict:
    """Compare a version with the versions in use on the devices' samples, and return whether it is better.

    Without judgements of devices, the headline on the cloud's test samples can only refuse the version.

    Args:
        to: factories or devices; empty: all.
        wait_s: longest wait for judgements.
    """
    named = registries.named(known, "--to", to)
    devices = [name for name in named if name in known.used and known.used[name].version != version]
    devices = [name for name in devices if not known.versions[version].lacks(name)]
    if not devices:
        return Verdict(True, "no device of its target uses another version")
    run = known.versions[version].run
    share = promise.promised(run)
    rows = judged(known, version, devices, wait_s, registries.metric_of(run) if run.get("headline") else None)
    judgements = {row["device"]: Judgement(row["samples"], row["new"], row["in use"]) for row in rows if row["samples"]}
    alone = len(judgements) == 1 < len(devices)
    if sum(_weights(judgements).values()) >= FEW and not alone:
        if share is not None:
            return _weighed(judgements, promise.FIGURE, rows, version, f"{promise.DISTANCE} {share:.4g} of")
        return _weighed(judgements, registries.metric_of(run), rows, version)
    if share is not None and not judgements:
        return Verdict(*promise.measured(run, version), rows)
    if refused := registries.no_better(known, version, to):
        return Verdict(False, refused, rows)
    lack = "no device judged it by" if not judgements else f"devices judged it by fewer than {FEW}"
    lack = f"{next(iter(judgements))} alone of {len(devices)} devices judged it by" if alone else lack
    return Verdict(None, f"{lack} labelled samples of their own", rows)


def _weights(judgements: Mapping[str, Judgement]) -> dict[str, int]:
    """Return the weight of each device: its number of samples, at most the lower median of all."""
    counts = sorted(judgement.samples for judgement in judgements.values())
    return {name: min(judgement.samples, counts[(len(counts) - 1) // 2]) for name, judgement in judgements.items()}


def _weighed(
    judgements: Mapping[str, Judgement], figure: Figure, rows: Sequence[Row], version: int, name: str = ""
) -> Verdict:  # fmt: skip
    weights = _weights(judgements)
    total = sum(weights.values())
    gains = {name: judgement.gain(figure) for name, judgement in judgements.items()}
    most = _usual(gains)
    better = sum(weights[name] * gain for name, gain in gains.items()) > 0
    limited = sum(weights[name] * max(-most, min(most, gain)) for name, gain in gains.items()) > 0
    old = sum(weights[name] * judgement.old for name, judgement in judgements.items()) / total
    valid = {name: judgement.new for name, judgement in judgements.items() if judgement.new is not None}
    new = sum(weights[name] * value for name, value in valid.items()) / max(1, sum(weights[name] for name in valid))
    name = name or figure.name
    ends = f"{name} {new:.4g}" if len(valid) == len(judgements) else f"no {name} on some devices"
    samples = sum(judgement.samples for judgement in judgements.values())
    many = f"{samples} samples that {len(judgements)} device{'s' * (len(judgements) > 1)} held out"
    why = f"version {version} has {ends}, the one in use {old:.4g}, on {many}"
    silent = [row["device"] for row in rows if not row["samples"]]
    why = f"{why}; without {', '.join(silent)}" if silent else why
    if better is limited:
        return Verdict(better, why, rows)
    far = [name for name, gain in gains.items() if abs(gain) > most]
    words = "better" if better else "no better"
    return Verdict(None, f"{why}; it is {words} only by the gains of {', '.join(far)}, far from those of others", rows)


def _usual(gains: Mapping[str, float]) -> float:
    """Return the lower median of the devices' gains that are not 0, by amount, at most the upper median of all.

    >>> _usual({"a": 0.02, "b": -0.01, "c": -1.0, "d": 0.0}), _usual({"a": 1.0, "b": 0.0, "c": 0.0})
    (0.02, 0.0)
    """
    amounts = sorted(map(abs, gains.values()))
    some = [amount for amount in amounts if amount]
    return min(some[(len(some) - 1) // 2], amounts[len(amounts) // 2]) if some else 0.0


def judged(known: Registry, version: int, devices: Sequence[str], wait_s: float, headline: Figure | None) -> list[Row]:
    """Request judgements of a version from devices; return a row for each with samples and metrics, or a reason.

    Args:
        headline: the headline metric of the version's run; None without one.
    """
    trials = {device: known.trial(device, version) for device in devices}
    edges = [edge for edge in known.floor if any(device.name in trials for device in edge.devices)]
    with stations(edges, known.ca, known.place) as all_stations:
        reached = [station for station in all_stations if station.there.is_set()]
        try:
            for station in reached:
                _send_trials(known, station, trials)
            until = time.monotonic() + wait_s
            while any(not _answered(station, trials) for station in reached) and time.monotonic() < until:
                time.sleep(0.02)
        finally:  # also after Ctrl-C, as brokers would keep the models
            for station in reached:
                used = files(known, station.edge)
                sent = {trial.sha256: trial.pieces for trial in _trials_at(station, trials).values()}
                for sha256, pieces in sent.items():
                    if sha256 not in used:
                        station.withdraw(sha256, pieces)
        share = promise.promised(known.versions[version].run)
        return [_row(known, station, device, trial, headline, share)
                for station in all_stations for device, trial in _trials_at(station, trials).items()]  # fmt: skip


def _trials_at(station: Station, trials: Mapping[str, Statement]) -> dict[str, Statement]:
    return {device.name: trials[device.name] for device in station.edge.devices if device.name in trials}


def _send_trials(known: Registry, station: Station, trials: Mapping[str, Statement]) -> None:
    """Publish models, and a trial for each device, which is not retained."""
    own = _trials_at(station, trials)
    for sha256 in dict.fromkeys(trial.sha256 for trial in own.values()):
        station.publish(sha256, known.data(sha256))
    for device, trial in own.items():
        station.link.publish(topic(known.park, "release", device), sealed(trial, known.ca, TRIAL))


def _answered(station: Station, trials: Mapping[str, Statement]) -> bool:
    own = _trials_at(station, trials)
    return all(_judgement_of(station, device, trial) is not None for device, trial in own.items())


def _judgement_of(station: Station, device: str, trial: Statement) -> Mapping[str, Any] | None:
    """Return a device's judgement in this trial; None if there is none."""
    judgement = station.judged.get(device, {})
    return judgement if (judgement.get("sha256"), judgement.get("number")) == (trial.sha256, trial.number) else None


def _row(
    known: Registry, station: Station, device: str, trial: Statement, headline: Figure | None,
    share: float | None = None,
) -> Row:  # fmt: skip
    row: Row = {"device": device, "factory": station.edge.name, "samples": None, "new": None, "in use": None}
    body = _judgement_of(station, device, trial)
    if body is None:
        silent = "it did not answer" if station.there.is_set() else f"broker {station.edge.broker} did not answer"
        return row | {"why": station.refused.get(device, silent)}
    try:
        made = read(body, headline) if share is None else judgement(body, *promise.distances(body, share))
    except RefusedError as error:
        return row | {"why": printable(f"refused: {error.text}")}
    except SettingError as error:
        return row | {"why": printable(str(error))}
    if body.get("used") != known.used[device].version:
        return row | {"why": f"it uses version {shown(body.get('used'), 40)}, not {known.used[device].version}"}
    return row | {"samples": made.samples, "new": made.new, "in use": made.old, "why": None}


def read(body: Mapping[str, Any], headline: Figure | None) -> Judgement:
    """Return a device's checked judgement.

    Args:
        headline: the expected metric.

    Raises:
        RefusedError: the judgement is malformed, of another metric, or out of range.
        SettingError: the device made no judgement; holds its reason.
    """
    if "why" in body:
        raise SettingError(str(body["why"])[:WHY_CHARS])
    if headline is None or body.get("figure") != headline.name:
        name = "" if headline is None else headline.name
        raise RefusedError("range", f"its metric is {shown(str(body.get('figure')), 40)}; the run's is '{name}'.")
    low, high = (0.0, 1.0) if headline.share else (-LARGEST, LARGEST)
    new, old = (None if body.get(key) is None else number(body[key], low, high, key) for key in ("new", "old"))
    if old is None:
        raise SettingError("it uses no version.", key="no-version")
    return judgement(body, new, old)


def judgement(body: Mapping[str, Any], new: float | None, old: float) -> Judgement:
    """Return a device's judgement with its checked number of samples."""
    return Judgement(whole(body.get("samples"), 1, COUNT, "samples"), new, old)
