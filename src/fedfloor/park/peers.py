"""Comparison of each device's sensors with those of other devices: units, signs, columns, dead and absent sensors.

Machines have levels of their own, so that a difference alone is no fault. A sensor is named if the evidence is
stronger: far from devices that are close to each other, and there by a usual conversion, or far beyond what five or
more others make plausible. A device that differs in many sensors is another kind of machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.reading import ignoring
from fedfloor.park.park import Park
from fedfloor.park.summaries import AGREE, FEW, Floats, Summaries, summarised

LISTED = 10  # findings in full, at most
UNITS = (  # stored = factor · usual + offset
    (1.8, 32.0, "in °F, where the others have °C"), (1 / 1.8, -32 / 1.8, "in °C, where the others have °F"),
    (1.0, 273.15, "in K, where the others have °C"), (1.0, -273.15, "in °C, where the others have K"),
    *((10.0**n, 0.0, f"{10**n:,} times the others'") for n in (1, 2, 3)),
    *((10.0**-n, 0.0, f"1/{10**n:,} of the others'") for n in (1, 2, 3)),
    (-1.0, 0.0, "with the opposite sign"),
)  # fmt: skip
ALSO = (  # other conversions, which explain a difference and do not prove one
    (14.5038, "psi and bar"), (6.89476, "kPa and psi"), (25.4, "mm and inches"), (3.28084, "feet and m"),
    (3.6, "km/h and m/s"), (60.0, "per minute and per second"), (1.34102, "hp and kW"), (4.1868, "kJ and kcal"),
    (3.78541, "litres and gallons"), (9.80665, "N and kp"),
)  # fmt: skip
SLACK = 5.0  # deviations within devices, by which a level beside all others is not far
SAME = 1.5  # ratio of deviations that are alike
NEAR = 1.25  # the same, if a conversion is to be proved by one other device
BROKEN = 0.3  # correlation below which a relation is broken
AGAINST = -0.5  # correlation below which a relation is reversed


@dataclass(frozen=True)
class Oddity:
    """A sensor of devices that differs from that of all others.

    Args:
        devices: the devices' names.
        sensors: the sensors.
        kind: ``missing``, ``constant``, ``unit``, ``sign``, ``level``, ``spread``, ``swapped`` or ``machine``.
        evidence: the predicate of a sentence with device and sensor as its subject.
    """

    devices: tuple[str, ...]
    sensors: tuple[str, ...]
    kind: str
    evidence: str


@dataclass(frozen=True, eq=False)
class _Usual:
    """The devices that agree on a sensor: their means and deviations [n], and the deviation within devices."""

    mean: Floats
    deviation: Floats

    @property
    def within(self) -> float:
        varying = self.deviation[self.deviation > 0]
        return float(np.median(varying)) if len(varying) else 0.0

    @property
    def reach(self) -> float:
        """The distance of the largest mean from the smallest."""
        return float(np.ptp(self.mean))

    def gap(self, mean: float) -> float:
        """Return the distance of a mean from the range of these devices' means."""
        return float(max(self.mean.min() - mean, mean - self.mean.max(), 0.0))

    def fits(self, mean: float, deviation: float) -> bool:
        """Return whether a mean is among these devices' means, and a deviation like one of theirs."""
        near = self.gap(mean) <= max(self.reach / 2, self.within)
        return near and self.deviation.min() / SAME <= deviation <= SAME * self.deviation.max()

    def closely(self, mean: float, deviation: float) -> str:
        """Return the conversion that explains a far mean and its deviation to within half a deviation; "" if none does.

        These devices must agree as closely themselves. A single one suffices then, as what is unlike by chance is
        hardly so by a conversion.
        """
        if self.reach > 2 * self.within or self.gap(mean) <= SLACK * min(self.within, deviation):
            return ""
        for factor, offset, text in UNITS:
            near = self.gap((mean - offset) / factor) <= self.within / 2
            if near and self.deviation.min() / NEAR <= deviation / abs(factor) <= NEAR * self.deviation.max():
                return text
        return ""


def among(s: Summaries) -> list[Oddity]:
    """Return the sensors of devices that differ from those of all other devices; at least three devices are needed."""
    if len(s.names) < 3:
        return []
    found = list[Oddity]()
    usual = list[_Usual | None]()
    odd = np.zeros(s.mean.shape, np.bool_)
    for c in range(len(s.sensors)):
        varying = (s.count[:, c] > 1) & ~_constant(s)[:, c] & np.isfinite(s.mean[:, c])
        rest = np.flatnonzero(varying)
        if len(rest) >= 3:
            rest = rest[_agreeing(s.mean[rest, c], s.deviation[rest, c], s.factory[rest])]
            rest = _of_one_unit(s, c, rest)
        usual.append(_Usual(s.mean[rest, c], s.deviation[rest, c]) if len(rest) >= 2 else None)
        odd[varying, c] = True
        odd[rest, c] = False
        found += _dead(s, c)
    related = s.relations if len(s.names) > AGREE else None
    for k, name in enumerate(s.names):
        mine = [*_swapped(s, k, odd[k], usual)]
        moved = {sensor for oddity in mine for sensor in oddity.sensors}
        for c, beside in enumerate(usual):
            if beside is not None and s.sensors[c] not in moved and s.count[k, c] > 1 and s.deviation[k, c] > 0:
                mine += _far(s, k, c, beside, odd=bool(odd[k, c]))
        if not mine and related is not None:  # levels are the clearer evidence
            mine = _related(s.sensors, related.each[k], related.without(related.each[k]), name)
        found += _machine(s, k, mine)
    return _merged(found)


def between(s: Summaries) -> list[Oddity]:
    """Return sensors of the second of two devices in another unit or sign than the first's, or constant at one."""
    found = []
    flat = _constant(s)
    known = ((s.count > 1) & np.isfinite(s.mean)).all(axis=0)
    for c in np.flatnonzero(known & (flat.sum(axis=0) == 1)).tolist():
        still = int(flat[:, c].argmax())
        if not _coarse(s, c, ~flat[:, c]):
            text = f"never changes, and does at '{s.names[1 - still]}'"
            found.append(Oddity((s.names[still],), (s.sensors[c],), "constant", text))
    for c in np.flatnonzero(known & ~flat.any(axis=0)).tolist():
        usual = _Usual(s.mean[:1, c], s.deviation[:1, c])
        if why := usual.closely(float(s.mean[1, c]), float(s.deviation[1, c])):
            text = f"has a mean of {s.mean[1, c]:.4g}, '{s.names[0]}' one of {s.mean[0, c]:.4g}: {why}"
            kind = "sign" if "sign" in why else "unit"
            found.append(Oddity((s.names[1],), (s.sensors[c],), kind, text))
    return _merged(found)


def alike(s: Summaries, new: Summaries, sensor: str, other: str) -> bool:
    """Return whether a new device's ``other`` sensor has the level and the spread of ``sensor`` at all devices."""
    c = s.sensors.index(sensor)
    k = new.sensors.index(other)
    on = (s.count[:, c] > 1) & (s.deviation[:, c] > 0)
    usual = _Usual(s.mean[on, c], s.deviation[on, c])
    return bool(on.any()) and usual.fits(float(new.mean[0, k]), float(new.deviation[0, k]))


def _constant(s: Summaries) -> NDArray[np.bool_]:
    """Return whether sensors are constant on devices, [K, C], up to rounding in single precision."""
    with np.errstate(invalid="ignore"):
        flat: NDArray[np.bool_] = (s.count > 1) & (s.deviation <= 1e-7 * np.abs(s.mean))
    return flat


def _agreeing(mean: Floats, deviation: Floats, factory: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the devices that agree: all but a few at either end, beyond a gap wider than the range of the others.

    A few are a third of the devices, or up to half of them if they are those of one factory.
    """
    order = np.argsort(mean, kind="stable")
    many = len(mean)
    value = mean[order]
    least = 2 * float(np.median(deviation))
    first = 0
    end = many
    while end - first > 2:
        cuts = np.arange(first + 1, end)
        gap = value[cuts] - value[cuts - 1]
        wide = np.maximum(np.stack([value[end - 1] - value[cuts], value[cuts - 1] - value[first]]), max(least, 1e-300))
        left = np.stack([end - cuts, cuts - first])  # devices that remain above, or below, the gap
        ratio = np.where((left >= 2) & (2 * left >= many), gap / wide, 0.0)
        for side, place in zip(
            *np.unravel_index(np.argsort(-ratio, axis=None, kind="stable"), ratio.shape), strict=True
        ):
            cut = int(cuts[place])
            low, high = (cut, end) if side == 0 else (first, cut)
            gone = np.concatenate([order[:low], order[high:]])
            if ratio[side, place] <= 1 or 3 * len(gone) <= many or _whole(gone, order[low:high], factory):
                break
        if ratio[side, place] <= 1:
            break
        first = low
        end = high
    return order[first:end]


def _of_one_unit(s: Summaries, c: int, rest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the devices in the unit of most, if a conversion takes all others to these; otherwise all.

    Up to half of the devices may be in the other unit, so that their levels alone do not show which are unusual. Ten or
    a hundred times, which may be another size of machine, must fit closely; half of the devices may be mirrored.
    """
    order = rest[np.argsort(s.mean[rest, c], kind="stable")]
    value = s.mean[order, c]
    with np.errstate(all="ignore"):
        ratio = value[1:] / value[:-1]
    steps = (np.diff(value), np.where(np.isfinite(ratio) & (ratio > 0), ratio, 0.0))  # the widest gap, in both scales
    for cut in {int(step.argmax()) + 1 for step in steps if len(step)}:
        few, most = sorted((order[:cut], order[cut:]), key=len) if 2 * cut != len(order) else (order[cut:], order[:cut])
        usual = _Usual(s.mean[most, c], s.deviation[most, c])
        found = {_other_unit(float(s.mean[k, c]), float(s.deviation[k, c]), usual) for k in few}
        if len(most) >= 2 and len(found) == 1 and "" not in found:
            return most
    return rest


def _other_unit(mean: float, deviation: float, usual: _Usual) -> str:
    """Return the conversion by which a level is far from the usual one; "" if none is, or if it is doubtful."""
    close = usual.closely(mean, deviation)
    far = usual.gap(mean) > max(2.0, 12 / max(1, len(usual.mean) - 1)) * max(usual.reach, 2 * usual.within)
    why = close or (unit(mean, deviation, usual) if far else "")
    doubtful = "sign" in why or (not close and why.startswith(("10 ", "100 ", "1/10 ", "1/100 ")))
    return "" if doubtful else why


def _whole(some: NDArray[np.int64], others: NDArray[np.int64], factory: NDArray[np.int64]) -> bool:
    """Return whether devices are all of one factory, and the others of others."""
    return len(np.unique(factory[some])) == 1 and not bool(np.isin(factory[others], factory[some]).any())


def _few(mask: NDArray[np.bool_], factory: NDArray[np.int64]) -> bool:
    """Return whether devices are a few: a fifth of all, or all of one factory; at least two others are left."""
    some = np.flatnonzero(mask)
    others = np.flatnonzero(~mask)
    if not len(some) or len(others) < 2:
        return False
    return len(some) <= max(1, len(mask) // 5) or _whole(some, others, factory)


def _dead(s: Summaries, c: int) -> Iterator[Oddity]:
    """Yield a finding for devices without a value of a sensor, or with a constant one, which varies on all others."""
    share = s.count[:, c] / np.maximum(s.rows, 1)
    absent = share < 0.05
    if _few(absent, s.factory) and (share[~absent] > 0.5).all():
        names = tuple(np.array(s.names)[absent].tolist())
        yield Oddity(names, (s.sensors[c],), "missing", "has no value, and values on all other devices")
    flat = _constant(s)[:, c]
    unknown = (s.count[:, c] > 1) & ~np.isfinite(s.mean[:, c])  # few values
    others = ~flat & ~absent & ~unknown
    if not others.any() or _coarse(s, c, others):
        return
    rest = len(flat) - flat.sum() - absent.sum() - unknown.sum()
    if _few(flat, s.factory) and others.sum() == rest >= 2:
        names = tuple(np.array(s.names)[flat].tolist())
        yield Oddity(names, (s.sensors[c],), "constant", "never changes, and does on all other devices")


def _coarse(s: Summaries, c: int, others: NDArray[np.bool_]) -> bool:
    """Return whether a sensor has few values on most devices; without their number, whether it is 0 or 1 on all.

    Numbers that are 0 or 1 with the mean m have the variance m·(1 − m), and others in that range a smaller one.
    """
    if s.levels is not None:
        return bool(np.median(s.levels[others, c]) <= FEW)
    mean, variance = s.mean[others, c], s.deviation[others, c] ** 2
    return bool((np.abs(variance - mean * (1 - mean)) <= 1e-6).all())


def _far(s: Summaries, k: int, c: int, usual: _Usual, *, odd: bool) -> Iterator[Oddity]:
    """Yield a finding for a level or a spread of a device's sensor that is far from those of the devices that agree."""
    mean = float(s.mean[k, c])
    deviation = float(s.deviation[k, c])
    many = len(usual.mean)
    gap = usual.gap(mean)
    reach = usual.reach
    within = usual.within
    why = usual.closely(mean, deviation)
    if odd and not why and gap > max(2.0, 12 / (many - 1)) * max(reach, 2 * within):
        why = unit(mean, deviation, usual)
    kind = why and ("sign" if "sign" in why else "unit")
    alone = many >= max(AGREE + 1, len(s.names) - max(1, len(s.names) // 6))
    far = gap > max(_least(many) * reach, SLACK * within) and _far_in_logarithms(mean, usual)
    if odd and not why and alone and far:
        kind = "level"
        why = _also(mean, deviation, usual)
    if kind:
        others = f"those of the others from {usual.mean.min():.4g} to {usual.mean.max():.4g}"
        yield Oddity((s.names[k],), (s.sensors[c],), kind, f"has a mean of {mean:.4g}, {others}{why and f': {why}'}")
        return
    ratio = np.log(deviation) - np.log(usual.deviation)
    away = float(max(ratio.min(), -ratio.max()))
    width = float(np.ptp(ratio))
    tens = [text for factor, offset, text in UNITS if offset == 0 and factor > 0
            and usual.fits(mean / factor, deviation / factor)]  # fmt: skip
    if many >= 4 and tens and away > max(np.log(4), width):
        kind = "unit"
        why = f": {tens[0]}"
    elif many >= 5 and ratio.min() > 0 and away > max(np.log(10), _least(many) * width):
        kind = "spread"
    if kind:
        others = f"those of the others from {usual.deviation.min():.3g} to {usual.deviation.max():.3g}"
        yield Oddity((s.names[k],), (s.sensors[c],), kind, f"has a deviation of {deviation:.3g}, {others}{why}")


def _least(many: int) -> float:
    """Return how many times the range of n devices' levels another one must be away: 4.5 for five, towards 2 for many.

    Of six normal levels Dixon's ratio gap/(gap + range) exceeds 0.82 with a probability below 1 %. Dixon, Biometrics 9
    (1953) 74.
    """
    return 2 + 40 / (many - 1) ** 2


def _far_in_logarithms(mean: float, usual: _Usual) -> bool:
    """Return whether a level is far on a logarithmic scale, too; True if levels have several signs."""
    both = np.array([*usual.mean, mean])
    if not ((both > 0).all() or (both < 0).all()):
        return True
    log = np.log(np.abs(both))
    away = max(log[:-1].min() - log[-1], log[-1] - log[:-1].max())
    return bool(away > _least(len(usual.mean)) * np.ptp(log[:-1]))


def unit(mean: float, deviation: float, usual: _Usual) -> str:
    """Return the conversion that takes the usual mean and deviation to those of a device; "" if none does."""
    fitting = (text for factor, offset, text in UNITS if usual.fits((mean - offset) / factor, deviation / abs(factor)))
    return next(fitting, "")


def _also(mean: float, deviation: float, usual: _Usual) -> str:
    """Return a less usual conversion that would explain a difference; "" if none does."""
    for factor, names in ALSO:
        if usual.fits(mean / factor, deviation / factor) or usual.fits(mean * factor, deviation * factor):
            return f"as between {names}"
    return ""


def _swapped(s: Summaries, k: int, odd: NDArray[np.bool_], usual: Sequence[_Usual | None]) -> Iterator[Oddity]:
    """Yield a finding for two sensors of a device that are both far from their own values, and each at the other's."""
    for i, j in combinations(np.flatnonzero(odd).tolist(), 2):
        own = usual[i]
        other = usual[j]
        if own is None or other is None or not own.fits(s.mean[k, j], s.deviation[k, j]):
            continue
        if other.fits(s.mean[k, i], s.deviation[k, i]):
            text = "have each other's values, as with exchanged columns"
            yield Oddity((s.names[k],), (s.sensors[i], s.sensors[j]), "swapped", text)
            return


def _related(sensors: tuple[str, ...], own: Floats, sign: NDArray[np.int8], name: str) -> list[Oddity]:
    """Return a finding on sensors of a device whose correlations [C, C] contradict the relations of all other devices.

    A sensor of the wrong sign reverses all of its relations; two exchanged columns break some of theirs, and satisfy
    all once they are exchanged back.
    """
    holds = sign != 0
    with np.errstate(invalid="ignore"):  # NaN: a sensor is constant
        broken = holds & (sign * own < BROKEN)
        against = holds & (sign * own <= AGAINST)
    if not broken.any():
        return []
    many = against.sum(axis=1)
    turned = [i for i in np.flatnonzero(many).tolist() if many[i] == against.sum() // 2 == holds[i].sum()]
    if turned:
        which = "contradicts its" if len(turned) == 1 else "(one of them) contradict their"
        text = f"{which} relations to other sensors on all other devices, as with the opposite sign"
        return [Oddity((name,), tuple(sensors[i] for i in turned), "sign", text)]
    for i, j in combinations(np.flatnonzero(broken.any(axis=1)).tolist(), 2):
        back = np.arange(len(sensors))
        back[[i, j]] = back[[j, i]]
        with np.errstate(invalid="ignore"):
            solved = not (holds & (sign * own[np.ix_(back, back)] < BROKEN)).any()
        if solved and broken[[i, j]].sum() - broken[i, j] >= 2:
            text = "have each other's relations to the other sensors, as with exchanged columns"
            return [Oddity((name,), (sensors[i], sensors[j]), "swapped", text)]
    return []


def _machine(s: Summaries, k: int, mine: Sequence[Oddity]) -> list[Oddity]:
    """Return a device's findings, or a single one on the device if it differs in more than a quarter of the sensors."""
    sensors = dict.fromkeys(sensor for finding in mine for sensor in finding.sensors)
    if len(sensors) <= max(2, len(s.sensors) / 4):
        return [*mine]
    text = f"in {len(sensors)} of {len(s.sensors)} sensors far from all other devices, as another kind of machine"
    return [Oddity((s.names[k],), (), "machine", text)]


def _merged(found: Sequence[Oddity]) -> list[Oddity]:
    """Return findings with the sensors of those with the same devices and evidence joined."""
    joined: dict[tuple[tuple[str, ...], str], Oddity] = {}
    for finding in found:
        before = joined.get((finding.devices, finding.evidence))
        both = finding if before is None else replace(before, sensors=before.sensors + finding.sensors)
        joined[finding.devices, finding.evidence] = both
    return [*joined.values()]


def beside(new: Summaries, s: Summaries) -> list[Oddity]:
    """Return the sensors of new devices that are absent, constant, turned or exchanged, unlike in all of a training."""
    found: list[Oddity] = []
    varies = ~_constant(s) & (s.count > 1)
    usual = [_Usual(s.mean[on, c], s.deviation[on, c]) if on.any() else None for c, on in enumerate(varies.T)]
    for k, name in enumerate(new.names):
        known = (new.count[k] > 1) & (new.deviation[k] > 0)
        odd = [of is not None and known[c] and of.gap(new.mean[k, c]) > max(of.reach, 2 * of.within)
               for c, of in enumerate(usual)]  # fmt: skip
        found += (swapped := [*_swapped(new, k, np.array(odd), usual)])
        if not swapped and s.related is not None and new.relations is not None:
            found += _related(new.sensors, new.relations.each[k], s.related, name)
        both = _joined(new, s, k)
        found += [f for c in range(len(s.sensors)) for f in _dead(both, c) if name in f.devices]
    return _merged(found)


def _joined(new: Summaries, s: Summaries, k: int) -> Summaries:
    """Return the summaries of a training's devices with a new one, a factory of its own."""

    def stacked(part: str) -> Floats:
        return np.concatenate([getattr(s, part), getattr(new, part)[[k]]])

    levels = None if s.levels is None else np.concatenate([s.levels, np.full((1, len(s.sensors)), FEW + 1.0)])
    factory = np.append(s.factory, s.factory.max() + 1)
    return Summaries(
        s.sensors, (*s.names, new.names[k]), factory, stacked("rows"), stacked("count"), stacked("mean"),
        stacked("deviation"), levels,
    )  # fmt: skip


WAYS = {  # what to do about findings of a kind; {} is the option that leaves the sensors out
    "missing": "Check it, or leave it out for all devices: {}",
    "constant": "Check it, or leave it out for all devices: {}",
    "sign": "Correct its table or its source; no normalisation does",
    "swapped": "Correct its table or its source; no normalisation does",
    "unit": "Convert it in its table or its source, or normalise each device by its rows: --set data.normalise=device",
    "level": "A unit, an offset, a failing sensor? If machines have levels of their own: --set data.normalise=device",
    "spread": "Noise, a loose contact, or marks of missing values? Check it, or leave it out for all devices: {}",
    "machine": "If machines have levels of their own: --set data.normalise=device",
}
SCALED = ("level", "spread", "machine")  # kinds of findings on what each device's own scale takes away
OWN = {
    **WAYS,
    "unit": "Convert it in its table or its source; the model allows for it, as each device has its own scale",
}


def explained(mean: float, deviation: float, s: Summaries, sensor: int) -> str:
    """Return the conversion that would explain a mean and a deviation beside those of all devices; "" if none does."""
    on = s.deviation[:, sensor] > 0
    if not on.any():
        return ""
    usual = _Usual(s.mean[on, sensor], s.deviation[on, sensor])
    why = "" if usual.gap(mean) <= 0 else unit(mean, deviation, usual) or _also(mean, deviation, usual)
    return f" (as {why.removeprefix('as ')})" if why else ""


def sentences(
    found: Sequence[Oddity], *, trained: bool = False, ways: Mapping[str, str] = WAYS, ignored: Sequence[str] = ()
) -> list[str]:
    """Return findings as sentences with the evidence and the setting that mends it; of many, a number at the end.

    Args:
        ignored: the columns that are left out already.
        ways: kind → what to do.
        trained: whether the findings are of files for a trained model, whose settings cannot be changed.
    """
    lines = []
    for finding in found[:LISTED]:
        who = " and ".join(map(repr, finding.devices))
        names = " and ".join(map(repr, finding.sensors))
        subject = f"{who}, sensor{'s' * (len(finding.sensors) > 1)} {names}" if names else f"{who} is"
        out = ignoring(*ignored, *finding.sensors)
        way = "Do not rely on these answers" if trained else ways[finding.kind].format(out)
        lines.append(f"{subject} {finding.evidence}. {way}.")
    more = len(found) - len(lines)
    return lines + ([f"{more} more sensors of devices differ from all others."] if more > 0 else [])


def differing(park: Park) -> list[str]:
    """Return sentences on sensors of a park's devices that differ from those of all other devices.

    Samples that were dealt to made-up devices count not; nor do devices' levels where each is normalised by its own
    rows, unless they are of another unit.
    """
    if (park.remote is None and park.natural_owners is None) or (s := summarised(park)) is None:
        return []
    unread = {s.sensors[i] for i in park.dataset.task.unread}
    found = [finding for finding in among(s) if not unread & {*finding.sensors}]
    ignored = park.dataset.inputs.ignored
    if park.normalised is None or park.normalised.about.get("kind") != "device":
        return sentences(found, ignored=ignored)
    return sentences([finding for finding in found if finding.kind not in SCALED], ways=OWN, ignored=ignored)
