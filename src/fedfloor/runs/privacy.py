"""The privacy loss (ε, δ) of the models of a run, and of several runs over the same devices' data."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, SettingError
from fedfloor.base.strict import json_text
from fedfloor.config import read
from fedfloor.experiment import Experiment
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.parts.travel import chains
from fedfloor.parts.travel.path import RECEIPT, UPDATE, AddedNoise, Kind
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Select
from fedfloor.runs.folder import BEGUN, VISITS, write

NOT_COVERED = (
    "the numbers that devices send without noise, which this file lists under 'answers' and 'normalise'",
    "evaluations of single devices in this folder: pass on models, not the folder",
    "the rounding of noise to floating-point numbers",
)
OWN_SCALE = (
    "the mean and deviation of its own samples, by which each device scales all of them (data.normalise = 'device'): a "
    "single one changes the others, too"
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


def sums_composed(runs: tuple[tuple[float, int], ...], delta: float) -> float:
    """Return ε of a device that took part in the secure sums of several runs, given (z, sums) of each.

    Devices add the noise themselves. Neighbours are parks in which a device sends zeros (with its noise) instead of its
    updates. Random participation does not reduce ε, as edges, cloud and the size of the noise reveal the participants.
    Each sum is z⁻²/2-concentrated differentially private (:mod:`fedfloor.parts.protection.discrete`); composition and
    conversion to ε for δ use the Rényi divergences of Google's dp-accounting.

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


def last_round(method: ConfiguredMethod, budget: float | None, devices: int, most: int, repeated: int = 0) -> int:
    """Return the last round within a budget of ε, at most ``most``; for noise of devices see :func:`allows`.

    Args:
        repeated: number of rounds that were begun more often than they count, after a kill.

    Raises:
        SettingError: the method's models have no noise, or the first round exceeds the budget.
    """
    drawn = mechanism(method)
    if budget is None or (drawn is None and by_visits(method)):
        return most
    if drawn is None:
        raise SettingError(
            "until epsilon (--until) needs models with noise: set method.mix = "
            '{ kind = "private", clip = 1.0, noise = 1.0 } and method.selection = { kind = "poisson", share = 0.1 }, '
            "or work.sample_clip and work.sample_noise."
        )
    noise, share = drawn
    return rounds_within(budget, noise.multiplier, share, noise.delta, devices, most + repeated) - repeated


def noises(method: ConfiguredMethod, *kinds: Kind) -> list[AddedNoise]:
    """Return the noise of these kinds that a method's parts declare, in the order of an update's path."""
    return [part.privacy for part in method.path if part.privacy is not None and part.privacy.kind in kinds]


def mechanism(method: ConfiguredMethod) -> tuple[AddedNoise, float] | None:
    """Return the noise that the cloud adds to sums, and the chance of a device; None without such noise.

    In secure sums the chance is 1: a sum of too few devices is lost, so that one device more can bring in the updates
    of many. Neighbours are then parks in which a device sends zeros, and random participation hides nothing.
    """
    share = getattr(method.parts.selection, "chance", None)
    if share is not None and chains.secure(method.parts.travel or ""):
        share = 1.0
    return next(((noise, share) for noise in noises(method, "drawn") if share is not None), None)


def protects(method: ConfiguredMethod) -> bool:
    """Return whether a method protects devices' updates by noise or secure sums."""
    return mechanism(method) is not None or on_devices(method)


def on_devices(method: ConfiguredMethod) -> bool:
    """Return whether devices themselves protect their updates, by masks or noise, from edges and the cloud."""
    return by_visits(method) or not revealed(method)[UPDATE]


def by_visits(method: ConfiguredMethod) -> bool:
    """Return whether the privacy loss of a method grows with each device's visits instead of the rounds."""
    return bool(noises(method, "sums", "steps"))


def revealed(method: ConfiguredMethod) -> dict[str, str]:
    """Return what others learn from a device's visit without noise or masks, as the parts of its path declare it."""
    entries = {
        UPDATE: "the update of a visit, with tensors beside the model, from which samples may be inferred",
        RECEIPT: "the mean loss and training accuracy of a visit",
    }
    for reveals in (method.method.reveals, *(part.reveals for part in method.path)):
        entries |= {name: content for name, content in reveals.items() if entries.get(name) != ""}
    return entries


def allows(
    method: ConfiguredMethod, budget: float | None, held: Sequence[Held], visits: Mapping[int, int], plan: Node
) -> bool:  # fmt: skip
    """Return whether a round keeps every device, or its samples, within a budget of ε that visits spend.

    Args:
        held: each device's samples at a time, [K].
        visits: device → number of its visits before the round.
        plan: the plan of the round; every candidate of a ``Select`` counts as visited.

    Raises:
        SettingError: the first round exceeds the budget.
    """
    if budget is None or mechanism(method) is not None:
        return True
    after = Counter(visits) + most_visits(plan)
    losses = [(worst_device(noise, held, after)[0], noise.key) for noise in noises(method, "steps")]
    if sums := noises(method, "sums"):
        losses.append((of_sums(sums, max(after.values(), default=0)), sums[0].key))
    value, key = max(losses, default=(0.0, ""))
    if value > budget and not visits:
        raise SettingError(
            f"until epsilon (--until) = {budget:g}: the first round has ε = {value:.4g}. Raise {key}.", key="--until"
        )
    return value <= budget


def of_sums(noises: Sequence[AddedNoise], sums: int) -> float:
    """Return ε, at the largest δ, of what a device with several kinds of noise sent in so many visits."""
    return sums_composed(tuple((noise.multiplier, sums) for noise in noises), max(noise.delta for noise in noises))


def most_visits(plan: Node) -> Counter[int]:
    """Return each device's greatest possible number of visits in a round."""
    chosen = Counter[int]()
    for at, times in walk.every(plan):
        chosen.update(dict.fromkeys(at.candidates, times) if isinstance(at, Select) else {})
    return walk.visits(plan) + chosen


Held = tuple[int, int]  # a device's samples at a time, and how often one of them occurs at most
MOST_PAIRS = 20  # most pairs of samples and visits for which ε is computed one by one
STATEMENT = "privacy.json"  # file with the privacy loss at the end of a run


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
    except (OSError, *MALFORMED) as error:
        raise SettingError(
            f"{path} cannot be read: it counts the visits, which determine the privacy loss. Restore it from a copy, "
            "or start a new run.",
            key="damaged-record",
        ) from error


def statement(
    method: ConfiguredMethod, rounds: int, held: Sequence[Held], visits: Mapping[int, int], *, own_scale: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the privacy loss of a run's models for a device and for a sample; empty without noise.

    Args:
        method: the method, whose parts and work define the noise.
        rounds: number of begun rounds.
        held: each device's samples at a time, [K].
        visits: device → number of its visits.
        own_scale: whether devices scale their samples by these samples.
    """
    stated: dict[str, dict[str, Any]] = {}
    if (drawn := mechanism(method)) is not None:
        noise, share = drawn
        value = epsilon(noise.multiplier, share, rounds, noise.delta, len(held))
        stated["models"] = _entry(noise, share, rounds) | {"delta": noise.delta} | _loss(value)
        if "quantile" in noise.about and noise.about["count_noise"] is None:
            stated["models"]["count_noise"] = share * len(held) / 20
    if sums := noises(method, "sums"):
        most = max(visits.values(), default=0)
        about = {"distributed": True, "delta": max(noise.delta for noise in sums)}
        stated["models"] = _entry(sums[0], 1.0, most) | about | _loss(of_sums(sums, most))
    for noise in noises(method, "steps"):
        value, share, steps, copies = worst_device(noise, held, visits)
        about = {"delta": noise.delta} | ({"copies": copies} if copies > 1 else {})
        stated["samples"] = _entry(noise, share, steps) | about | _loss(value)
        stated["samples"]["not_covered"] += [OWN_SCALE] * own_scale
    return stated


def _entry(noise: AddedNoise, share: float, rounds: int) -> dict[str, Any]:
    whom = "a sample of a device" if noise.kind == "steps" else "a device with all its samples"
    about = dict(noise.about)
    clip = {"clip": about.pop("clip")} if "clip" in about else {}
    return {"protects": whom, **clip, "noise_multiplier": noise.multiplier, "share": share, "rounds": rounds} | about


def _loss(value: float) -> dict[str, Any]:
    return {"epsilon": value if math.isfinite(value) else None, "not_covered": list(NOT_COVERED)}


def worst_device(noise: AddedNoise, held: Sequence[Held], visits: Mapping[int, int]) -> tuple[float, float, int, int]:
    """Return (ε, q, steps, m) of visits by differentially private SGD for the device with the largest ε.

    All values that a device sends are (ε, δ)-differentially private for each of its samples: its steps over all visits
    form a Poisson-subsampled Gaussian mechanism with q = b/n. A sample that occurs up to m times in a window is in a
    step with the chance 1 − (1 − q)^m, and then changes the sum by at most mC: as one of noise z/m, since fewer copies
    change it less.

    Args:
        noise: the noise of the visits' steps.
        held: each device's samples at a time.
        visits: device → number of its visits.
    """
    pairs = {(held[device], times) for device, times in visits.items() if times}
    counted = {(*_in_a_step(noise, *of), noise.steps(of[0])[1] * times) for of, times in pairs}
    if len(pairs) > MOST_PAIRS:  # the fewest samples, the most copies and the most visits bound all devices
        most = max(times for _, times in pairs) * max(noise.steps(n)[1] for (n, _), _ in pairs)
        counted = {(max(m for m, _, _ in counted), max(q for _, q, _ in counted), most)}
    losses = ((epsilon(noise.multiplier / m, q, steps, noise.delta), q, steps, m) for m, q, steps in counted)
    return max(losses, default=(0.0, 0.0, 0, 1))


def _in_a_step(noise: AddedNoise, samples: int, copies: int) -> tuple[int, float]:
    """Return the copies of a sample, and the chance that a step has one of them."""
    share = noise.steps(samples)[0]
    if copies > 1 and share < 1:
        share = -math.expm1(copies * math.log1p(-share))
    return copies, share


# -- several runs over the same data -----------------------------------------------------------------------------------

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
    except (OSError, *MALFORMED) as error:
        raise SettingError(
            f"{folder / STATEMENT} cannot be read: it has the privacy loss of a run.", key="damaged-record"
        ) from error
    found = [_stated(key, stated[key]) for key in ("models", "samples") if key in stated]
    if found or not (folder / "experiment.toml").exists():
        return found
    method = read(folder / "experiment.toml", []).configured
    rounds = rounds_begun(folder, 0)
    visits = max(visits_begun(folder, {}).values(), default=0)
    return _of_method(method, rounds, visits, math.inf if visits else 0.0)


def planned(experiment: Experiment, before: Iterable[Spent]) -> list[Spent]:
    """Return the assumed privacy loss of a further run: one sum per device and round, or as many as in the longest run
    so far; steps as in the most expensive run so far."""
    before = [*before]
    steps = max((one.epsilon for one in before if one.kind == "steps"), default=0.0)
    sums = max((one.rounds for one in before if one.kind == "sums"), default=0)
    return _of_method(experiment.configured, experiment.rounds, max(experiment.rounds, sums), steps)


def _stated(key: str, about: dict[str, Any]) -> Spent:
    kind: Kind = "steps" if key == "samples" else "sums" if about.get("distributed") else "drawn"
    value = about["epsilon"]
    numbers = about["noise_multiplier"], about["share"], about["rounds"], about["delta"]
    return Spent(kind, *numbers, math.inf if value is None else value)


def _of_method(method: ConfiguredMethod, rounds: int, visits: int, steps: float) -> list[Spent]:
    found = list[Spent]()
    if (drawn := mechanism(method)) is not None:
        found.append(Spent("drawn", drawn[0].multiplier, drawn[1], rounds, drawn[0].delta))
    found += [Spent("sums", noise.multiplier, 1.0, visits, noise.delta) for noise in noises(method, "sums")]
    found += [Spent("steps", noise.multiplier, 1.0, visits, noise.delta, steps) for noise in noises(method, "steps")]
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
