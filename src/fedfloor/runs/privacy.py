"""The privacy loss (ε, δ) of the models of a run, and of several runs over the same devices' data."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fedfloor import regular
from fedfloor.config import combined, read
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.configured import ConfiguredMethod, Parts
from fedfloor.parts import codecs
from fedfloor.parts.mix import Private
from fedfloor.parts.selection import Poisson
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Select
from fedfloor.runs.folder import write
from fedfloor.strict import json_text

NOT_COVERED = (
    "the numbers that devices send without noise, which this file lists under 'answers' and 'normalise'",
    "evaluations of single devices in this folder: pass on models, not the folder",
    "the rounding of noise to floating-point numbers",
)
NO_SURVEY = (
    "devices add noise to their updates, but answer the questions of this normalisation without any, and whoever asks "
    "chooses the values in them. Set data.normalise = 'standard', 'device' or 'unit'."
)


def _accounting() -> tuple[Any, Any, Any]:
    """Return the modules of dp-accounting: its main one, privacy loss distributions and Rényi divergences."""
    try:
        import dp_accounting
        from dp_accounting import pld, rdp
    except ImportError as error:
        raise SettingError("privacy accounting needs dp-accounting: pip install 'fedfloor[privacy]'.") from error
    return dp_accounting, pld, rdp


def epsilon(noise: float, share: float, rounds: int, delta: float, devices: int | None = None) -> float:
    """Return ε such that the models of all rounds together are (ε, δ)-differentially private for every device.

    Neighbours are parks with one device more or less. The privacy loss distribution of the Poisson-subsampled Gaussian
    mechanism is composed by Google's dp-accounting (pessimistic estimate). An empty draw is repeated: with
    P = 1 − (1 − (1 − q)^K)^T, the probability that one of T rounds would be empty, the mechanism without such rounds
    has δ = (δ₀ + e^ε·P)/(1 − P), and ε is that for δ₀ = δ(1 − P) − e^ε·P.

    Args:
        noise: z, the noise's standard deviation over the clipping norm.
        share: q, the probability that a device takes part in a round.
        rounds: T ≥ 0.
        delta: δ.
        devices: K; None if rounds may be empty.

    Returns:
    ε ≥ 0; infinity without noise, or if empty rounds alone exceed δ.

    Raises:
        SettingError: dp-accounting is not installed.
    """
    return composed(((noise, share, rounds),), delta, devices)


@lru_cache(maxsize=256)
def composed(runs: tuple[tuple[float, float, int], ...], delta: float, devices: int | None = None) -> float:
    """Return ε of the models of several runs together, given (z, q, T) of each; see :func:`epsilon`.

    Raises:
        SettingError: dp-accounting is not installed.
    """
    runs = tuple(run for run in runs if run[2])
    if not runs:
        return 0.0
    if not all(noise for noise, _, _ in runs):
        return math.inf
    dp, pld, _ = _accounting()
    accountant = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for noise, share, rounds in runs:
        event = dp.GaussianDpEvent(noise)
        accountant.compose(dp.PoissonSampledDpEvent(share, event) if share < 1 else event, rounds)
    value = float(accountant.get_epsilon(delta))
    drawn = [(share, rounds) for _, share, rounds in runs if share < 1]
    if not drawn or devices is None:
        return value
    empty = -math.expm1(sum(rounds * math.log1p(-((1 - share) ** devices)) for share, rounds in drawn))
    for _ in range(20):  # δ₀ falls as ε rises: approaches the fixed point from below
        left = delta * (1 - empty) - math.exp(min(value, 700.0)) * empty
        if left <= 0:
            return math.inf
        after = float(accountant.get_epsilon(left))
        if after <= value * (1 + 1e-12):
            break
        value = after
    return value


def sums_epsilon(noise: float, sums: int, delta: float) -> float:
    """Return ε of a device that took part in ``sums`` secure sums to which devices add the noise themselves.

    Neighbours are parks in which a device sends zeros (with its noise) instead of its updates. Random participation
    does not reduce ε, as edges, cloud and the size of the noise reveal the participants. Each sum is z⁻²/2-concentrated
    differentially private (:mod:`fedfloor.parts.discrete`); composition and conversion to ε for δ use the Rényi
    divergences of Google's dp-accounting.

    Raises:
        SettingError: dp-accounting is not installed.
    """
    return sums_composed(((noise, sums),), delta)


@lru_cache(maxsize=256)
def sums_composed(runs: tuple[tuple[float, int], ...], delta: float) -> float:
    """Return ε of a device that took part in the secure sums of several runs, given (z, sums) of each.

    Raises:
        SettingError: dp-accounting is not installed.
    """
    runs = tuple(run for run in runs if run[1])
    if not runs:
        return 0.0
    if not all(noise for noise, _ in runs):
        return math.inf
    dp, _, rdp = _accounting()
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    for noise, sums in runs:
        accountant.compose(dp.ZCDpEvent(0.5 / noise**2), sums)
    return float(accountant.get_epsilon(delta))


def rounds_within(budget: float, noise: float, share: float, delta: float, devices: int, most: int) -> int:
    """Return the largest number of rounds, at most ``most``, with ε within a budget.

    Raises:
        SettingError: the first round exceeds the budget.
    """
    low, high = 0, most + 1  # ε(low) ≤ budget < ε(high), unless ε(most) is within the budget
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon(noise, share, middle, delta, devices) <= budget:
            low = middle
        else:
            high = middle
    if not low:
        first = epsilon(noise, share, 1, delta, devices)
        raise SettingError(
            f"until epsilon (--until) = {budget:g}: the first round has ε = {first:.4g}. Raise mix.noise."
        )
    return low


def last_round(method: ConfiguredMethod, budget: float | None, devices: int, most: int) -> int:
    """Return the last round within a budget of ε, at most ``most``; for the privacy of samples see :func:`allows`.

    Raises:
        SettingError: the method's models have no noise, or the first round exceeds the budget.
    """
    private = mechanism(method.parts)
    if budget is None or (private is None and by_visits(method)):
        return most
    if private is None:
        raise SettingError(
            "until epsilon (--until) needs models with noise: set method.mix = "
            '{ kind = "private", clip = 1.0, noise = 1.0 } and method.selection = { kind = "poisson", share = 0.1 }, '
            "or work.sample_clip and work.sample_noise."
        )
    mix, selection = private
    return rounds_within(budget, mix.noise, selection.share, mix.delta, devices, most)


def mechanism(parts: Parts) -> tuple[Private, Poisson] | None:
    """Return the mechanism of a method's rounds; None if the cloud adds no noise."""
    mix, selection = parts.mix, parts.selection
    noisy = isinstance(mix, Private) and isinstance(selection, Poisson) and not mix.distributed
    return (mix, selection) if noisy else None  # type: ignore[return-value]


def distributed(parts: Parts) -> Private | None:
    """Return the mixing rule of a method whose devices add the noise to secure sums; None for other methods."""
    return parts.mix if isinstance(parts.mix, Private) and parts.mix.distributed else None


def protects(method: ConfiguredMethod) -> bool:
    """Return whether a method protects devices' updates by noise or secure sums."""
    return mechanism(method.parts) is not None or on_devices(method)


def on_devices(method: ConfiguredMethod) -> bool:
    """Return whether devices themselves protect their updates, by masks or noise, from edges and the cloud."""
    return by_visits(method) or codecs.secure(method.parts.travel or "")


def by_visits(method: ConfiguredMethod) -> bool:
    """Return whether the privacy loss of a method grows with each device's visits instead of the rounds."""
    return distributed(method.parts) is not None or sample_work(method) is not None


def sample_work(method: ConfiguredMethod) -> WorkSettings | None:
    """Return the work of a method whose devices clip samples' gradients; None for other methods."""
    return method.private_work


def allows(
    method: ConfiguredMethod, budget: float | None, held: Sequence[int], visits: Mapping[int, int], plan: Node
) -> bool:  # fmt: skip
    """Return whether a round keeps every device, or its samples, within a budget of ε that visits spend.

    Args:
        held: number of samples of each device at a time, [K].
        visits: device → number of its visits before the round.
        plan: the plan of the round; every candidate of a ``Select`` counts as visited.

    Raises:
        SettingError: the first round exceeds the budget.
    """
    private, work, after = distributed(method.parts), sample_work(method), Counter(visits) + most_visits(plan)
    if budget is None or mechanism(method.parts) is not None:
        return True
    if private is not None:
        value, key = sums_epsilon(private.noise, max(after.values(), default=0), private.delta), "mix.noise"
    elif work is not None:
        value, key = worst_device(work, held, after)[0], "work.sample_noise"
    else:
        return True
    if value > budget and not visits:
        raise SettingError(f"until epsilon (--until) = {budget:g}: the first round has ε = {value:.4g}. Raise {key}.")
    return value <= budget


def most_visits(plan: Node) -> Counter[int]:
    """Return each device's greatest possible number of visits in a round."""
    chosen = Counter[int]()
    for at, times in walk.every(plan):
        chosen.update(dict.fromkeys(at.candidates, times) if isinstance(at, Select) else {})
    return walk.visits(plan) + chosen


SAMPLE_DELTA = 1e-5
MOST_PAIRS = 20  # most pairs of samples and visits for which ε is computed one by one
BEGUN = "private-rounds"  # file in a run's folder: rounds begun on real machines, including repeated ones
STATEMENT = "privacy.json"  # file with the privacy loss at the end of a run
VISITS = "private-visits.json"  # file with the visits to each device in these rounds


def begin_round(folder: Path) -> None:
    """Count a round before its devices are drawn, as after a kill it is repeated with other draws, and both count.

    An earlier statement of the run's privacy loss, which is for fewer rounds, is deleted.
    """
    (folder / STATEMENT).unlink(missing_ok=True)
    write(folder / BEGUN, f"{rounds_begun(folder, 0) + 1}\n")


def rounds_begun(folder: Path, done: int) -> int:
    """Return the number of begun rounds, at least the number of completed ones, ``done``.

    Raises:
        SettingError: the file with the count is damaged.
    """
    path = folder / BEGUN
    try:
        return max(done, int(regular.read_text(path))) if path.exists() else done
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: it counts the rounds that spend privacy.") from error


def begin_visits(folder: Path, plan: Node) -> None:
    """Count a round's visits before it begins; after a kill they are repeated with other noise, and both count."""
    (folder / STATEMENT).unlink(missing_ok=True)
    known = Counter(visits_begun(folder, {})) + most_visits(plan)
    write(folder / VISITS, json_text({str(device): times for device, times in sorted(known.items())}))


def visits_begun(folder: Path, done: Mapping[int, int]) -> Mapping[int, int]:
    """Return device → number of begun visits, at least the number of completed ones, ``done``.

    Raises:
        SettingError: the file with the counts is damaged.
    """
    path = folder / VISITS
    try:
        begun = json.loads(regular.read_text(path)) if path.exists() else {}
        return Counter(done) | Counter({int(device): int(times) for device, times in begun.items()})
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise SettingError(
            f"{path} cannot be read: it counts the visits, which determine the privacy loss. Restore it from a copy, "
            "or start a new run."
        ) from error


def statement(
    method: ConfiguredMethod, rounds: int, held: Sequence[int], visits: Mapping[int, int]
) -> dict[str, dict[str, Any]]:
    """Return the privacy loss of a run's models for a device and for a sample; empty without noise.

    Args:
        method: the method, whose parts and work define the noise.
        rounds: number of begun rounds.
        held: number of samples of each device at a time, [K].
        visits: device → number of its visits.
    """
    stated: dict[str, dict[str, Any]] = {}
    private, work = mechanism(method.parts), sample_work(method)
    if private is not None:
        mix, selection = private
        value = epsilon(mix.noise, selection.share, rounds, mix.delta, len(held))
        about = {"clip": mix.clip, "noise_multiplier": mix.noise, "share": selection.share, "rounds": rounds}
        if mix.quantile is not None:  # the count of short updates and the updates form one step with the joint noise
            count_noise = mix.count_noise or selection.share * len(held) / 20
            about |= {"quantile": mix.quantile, "count_noise": count_noise}
        stated["models"] = {"protects": "a device with all its samples", **about, "delta": mix.delta} | _loss(value)
    if (summed := distributed(method.parts)) is not None:
        sums = max(visits.values(), default=0)
        about = {"clip": summed.clip, "noise_multiplier": summed.noise, "share": 1.0, "rounds": sums}
        about |= {"distributed": True, "delta": summed.delta}
        loss = _loss(sums_epsilon(summed.noise, sums, summed.delta))
        stated["models"] = {"protects": "a device with all its samples", **about} | loss
    if work is not None:
        value, share, steps = worst_device(work, held, visits)
        about = {"clip": work.sample_clip or math.inf, "noise_multiplier": work.sample_noise or 0.0, "share": share}
        about |= {"rounds": steps, "delta": SAMPLE_DELTA}
        stated["samples"] = {"protects": "a sample of a device", **about} | _loss(value)
    return stated


def _loss(value: float) -> dict[str, Any]:
    return {"epsilon": value if math.isfinite(value) else None, "not_covered": list(NOT_COVERED)}


def worst_device(work: WorkSettings, held: Sequence[int], visits: Mapping[int, int]) -> tuple[float, float, int]:
    """Return (ε, q, steps) of visits by differentially private SGD for the device with the largest ε.

    All values that a device sends are (ε, δ)-differentially private for each of its samples: its steps over all visits
    form a Poisson-subsampled Gaussian mechanism with q = b/n.

    Args:
        work: the work of the method's visits.
        held: number of samples of each device at a time.
        visits: device → number of its visits.
    """
    visit, noise = work.at(1, 1), work.sample_noise or 0.0
    pairs = {(held[device], times) for device, times in visits.items() if times}
    if len(pairs) > MOST_PAIRS:  # the fewest samples and the most visits bound all devices
        least, most = min(n for n, _ in pairs), max(times for _, times in pairs)
        counted = {(least, most * max(visit.batches(n) for n, _ in pairs))}
    else:
        counted = {(n, visit.batches(n) * times) for n, times in pairs}
    shares = [(min(1.0, visit.batch_size / n), steps) for n, steps in counted]
    return max(((epsilon(noise, q, steps, SAMPLE_DELTA), q, steps) for q, steps in shares), default=(0.0, 0.0, 0))


# -- several runs over the same data -----------------------------------------------------------------------------------

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
        stated = json.loads(regular.read_bytes(folder / STATEMENT))
    except FileNotFoundError:
        stated = {}
    except (OSError, ValueError) as error:
        raise SettingError(f"{folder / STATEMENT} cannot be read: it has the privacy loss of a run.") from error
    found = [_stated(key, stated[key]) for key in ("models", "samples") if key in stated]
    if found or not (folder / "experiment.toml").exists():
        return found
    method = combined(read(folder / "experiment.toml", []))
    rounds, visits = rounds_begun(folder, 0), max(visits_begun(folder, {}).values(), default=0)
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
    if (drawn := mechanism(method.parts)) is not None:
        found.append(Spent("drawn", drawn[0].noise, drawn[1].share, rounds, drawn[0].delta))
    if (summed := distributed(method.parts)) is not None:
        found.append(Spent("sums", summed.noise, 1.0, visits, summed.delta))
    if (work := sample_work(method)) is not None:
        found.append(Spent("steps", work.sample_noise or 0.0, 1.0, visits, SAMPLE_DELTA, steps))
    return found


def together(spent: Sequence[Spent], devices: int | None) -> dict[str, Loss]:
    """Return the total (ε, δ) of runs for ``a device`` and ``a sample``, if noise protects them.

    Rounds, and secure sums, of several runs are composed as those of one (:func:`composed`, :func:`sums_composed`), at
    the largest δ. For steps, whose worst device may differ between runs, both ε and δ are added: Dwork and Roth, The
    Algorithmic Foundations of Differential Privacy (2014), theorem 3.16.

    Args:
        devices: K; None if unknown.
    """
    drawn, sums, steps = ([one for one in spent if one.kind == kind] for kind in ("drawn", "sums", "steps"))
    losses = {"a device": list[Loss](), "a sample": [(one.epsilon, one.delta) for one in steps]}
    if drawn:
        delta = max(one.delta for one in drawn)
        events = tuple((one.noise, one.share, one.rounds) for one in drawn)
        losses["a device"].append((composed(events, delta, devices), delta))
    if sums:
        delta = max(one.delta for one in sums)
        losses["a device"].append((sums_composed(tuple((one.noise, one.rounds) for one in sums), delta), delta))
    return {name: (sum(e for e, _ in each), sum(d for _, d in each)) for name, each in losses.items() if each}
