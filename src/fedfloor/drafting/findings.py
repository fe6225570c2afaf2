"""What the values of sensors show: which to leave out, regimes, heavy tails, periods, marks for missing values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.names import excerpt
from fedfloor.data.dataset import Dataset
from fedfloor.data.files.categories import sources
from fedfloor.data.kinds import CALENDAR, COUNTS, measured, word_of
from fedfloor.data.ranges import MOST, last_row, looked_at, mark_of

# devices, and samples of each, examined for counters
DEVICES = 20
IN_A_ROW = 500
FEW = 50  # values of a sensor that may reveal a class, at most
SHOWN = 5  # samples of a value that counts, at least
ODD = 0.05  # of the rows without a flag's most frequent value, the share that may contradict the label
CHANCE = 1e-4  # probability that a value independent of the class occurs with a single class
SAME = 1e-6  # 1 − |correlation| of copies, at most
LEVELS = 12  # levels of a setting, or operating regimes, at most
LEVEL_WIDTH = 0.01  # share of a setting's range: the width of a level at most, and the distance of levels at least
MOVED = 0.5  # share of a sensor's variance between regimes from which it depends on them
BESIDE = 3  # adjacent flags that reveal the class before their neighbours are suspected too
STEADY = 0.3  # share of the squared step between independent rows below which a sensor changes slowly
KURTOSIS = 20  # of a log-normal variable whose logarithm has a deviation of 0.76
MANY = 100  # values of a target by which it is judged, at least
DECIDE = 0.5  # share of the squared deviations that a hundredth of the values has where it decides the RMSE
CONSTANT = ", and is of no use"
SERIES = 20_000  # rows of a recording searched for periods
PERIODS = (6, 400)  # the shortest and the longest period
PERIODIC = 0.15  # autocorrelation at a period, at least
SURE = 5.0  # in standard deviations of independent values
NUMBERS = ("number", "nummer")  # ends of names of parts' and orders' numbers
NUMBERED = {"serial", "barcode", "part", "workpiece", "order", "lot", "batch", "charge", "teil", "auftrag", "werkstück"}
OWN = 0.9  # share of different values among the numbers of parts
RELATED = 0.5  # rank correlation with another sensor from which a column is measured and numbers no parts
# of a meter: share of devices in which it only rises, share of steps that rise, and rises per new beginning, at least;
# the reading after a new beginning, as a share of that before, at most
METERED = 0.8
NEAR_ZERO = 0.1
RISING = 0.2
CLIMBS = 100
NEARLY = 0.8  # share of the highest autocorrelation that is nearly as high


@dataclass(frozen=True)
class Finding:
    """A sensor that may have to be left out, and the reason.

    Args:
        sensor: its name.
        text: the reason, as the predicate of a sentence with the sensor as subject.
        leave: whether it should be left out.
        counts: whether it counts, or numbers parts, so that new data have values beyond those of training.
        constant: whether it has a single value.
    """

    sensor: str
    text: str
    leave: bool = True
    counts: bool = False
    constant: bool = False


def of_sensors(data: Dataset) -> list[Finding]:
    """Return findings on sensors that are constant, count up, reveal the class, or copy another sensor."""
    if (every := looked_at(data)) is None:
        return []
    x, y = last_row(data, every), data.y[every]
    counted = _counters(data)
    named = {i for i, name in enumerate(data.inputs.columns) if _numbers_things(name, x[:, i]) and not _related(x, i)}
    reasons: dict[int, str] = {}
    texts = _texts(data)
    for i in range(x.shape[1]):
        column = x[:, i]
        kind = measured(column, np.zeros(len(column), np.int64))
        if i in data.task.unread:
            continue
        if kind.kind in ("constant", "empty") and not texts[i]:
            reasons[i] = f"{kind.evidence}{CONSTANT}"
        elif i in counted:
            reasons[i] = f"{COUNTS}: a row number or a running time, which new data do not continue"
        elif i in named:
            reasons[i] = "has another whole number in almost every row: a number of parts or orders, which says nothing"
        else:
            text = _gives_away(column, y, data.classes)
            if text:
                reasons[i] = text
    reasons = _beside(x, texts, [i for i, text in reasons.items() if text.endswith("label?")]) | reasons
    reasons |= {i: text for i, text in _copies(x, data.inputs.columns, texts).items() if i not in reasons}
    empty = "empty these cells, or name it as it is written: --set 'data.missing_texts=[\"{}\"]'"
    marks = {i: text for i in range(x.shape[1]) if i not in reasons and (text := missing_mark(x[:, i], empty))}
    marks |= {i: text for i, text in _meters(data).items() if i not in reasons}
    return [
        Finding(data.inputs.columns[i], text, i in reasons, i in counted | named, text.endswith(CONSTANT))
        for i, text in sorted((reasons | marks).items())
    ]


def _numbers_things(name: str, column: NDArray[np.floating[Any]]) -> bool:
    """Return whether a column is called like numbers of parts or orders, and hardly any of its whole numbers recurs.

    What has a unit is measured: "Charge" is a batch in German, and [mAh] of a battery.

    >>> parts = np.random.default_rng(0).permutation(1000)
    >>> [_numbers_things(name, parts) for name in ("Teilenummer", "order_no", "Lot", "Speed", "Charge [mAh]")]
    [True, True, True, False, False]
    """
    if name.rstrip().endswith(("]", ")")):
        return False
    last = word_of(name).split("_")[-1]
    called = last.endswith(NUMBERS) or last in ("id", "no", "nr") or last in NUMBERED
    known = column[~np.isnan(column)]
    return called and len(known) >= SHOWN * SHOWN and (known % 1 == 0).all() and len({*known}) >= OWN * len(known)


def _related(x: NDArray[np.float64], i: int) -> bool:
    """Return whether another column rises or falls with a column, whose ranks have a correlation of RELATED or more.

    Numbers of parts go with nothing that is measured, but a charge without its unit does.
    """
    from scipy.stats import rankdata

    ranks = rankdata(np.nan_to_num(x), axis=0)
    ranks -= ranks.mean(axis=0)
    ranks /= np.maximum(np.sqrt((ranks**2).sum(axis=0)), 1e-12)
    return bool((np.abs(np.delete(ranks, i, axis=1).T @ ranks[:, i]) >= RELATED).any())


def regimes(data: Dataset) -> tuple[list[str], int] | None:
    """Return the settings whose levels form operating regimes, and the number of regimes; None if there are none.

    Settings are sensors with 2 to :data:`LEVELS` levels that change within devices. Regimes are the combinations of
    levels that occur in at least 1 % of the samples, if they cover 99.9 % of them. They are returned if at least half
    of the other sensors have a share of :data:`MOVED` of their variance between regimes, which would hide the variance
    within them if all rows had one scale.
    """
    if (every := looked_at(data)) is None or len(every) < 100 * SHOWN:
        return None
    x = last_row(data, every)
    texts = _texts(data)
    owner = np.zeros(len(every), np.int64) if data.owner is None else data.owner[every]
    devices = np.unique(owner)[:DEVICES]
    regime = np.zeros(len(x), np.int64)
    settings = []
    others = []
    for i in range(x.shape[1]):
        level = None if texts[i] else _levels(x[:, i])
        if level is None or np.mean([np.ptp(level[owner == device]) > 0 for device in devices]) < 0.5:
            others.append(i)
            continue
        joint = np.unique(np.stack([regime, level]), axis=1, return_inverse=True)[1].ravel()
        if joint.max() > regime.max():  # otherwise the preceding settings determine this one
            regime = joint
            settings.append(i)
    size = np.bincount(regime)
    usual = size[size >= 0.01 * len(x)]
    moved = [share >= MOVED for i in others if (share := _between(x[:, i], regime)) is not None]
    if not 2 <= len(usual) <= LEVELS or usual.sum() < 0.999 * len(x) or not moved or np.mean(moved) < 0.5:
        return None
    return [data.inputs.columns[i] for i in settings], len(usual)


def ends(data: Dataset) -> list[str]:
    """Return a sentence on a class that occurs in the last rows of recordings only, as a mark of their ends."""
    whose = data.run if data.run is not None else data.owner
    if whose is None or len(data.shape) != 1 or data.target is not None or len(data.classes) != 2:
        return []
    last = np.zeros(len(data.y), np.bool_)
    last[len(whose) - 1 - np.unique(whose[::-1], return_index=True)[1]] = True
    marks = [c for c in (0, 1) if (data.y == c).sum() > 1 and last[data.y == c].all() and not last.all()]
    return [
        f"'{data.classes[c]}' is in the last rows of recordings only and seems to mark their ends, which no row before "
        "tells; to predict the rows that remain until then: --set data.remaining=true"
        for c in marks
    ]


def heavy_tailed(data: Dataset) -> list[str]:
    """Return the sensors with heavy tails: a kurtosis above :data:`KURTOSIS` (3 for the normal distribution).

    Missing values do not count.
    """
    if (every := looked_at(data)) is None:
        return []
    x = last_row(data, every)
    known = np.maximum((~np.isnan(x)).sum(axis=0), 1)
    centred = np.where(np.isnan(x), 0.0, x - np.nansum(x, axis=0) / known)
    variance = (centred**2).sum(axis=0) / known
    kurtosis = np.divide((centred**4).sum(axis=0) / known, variance**2, out=np.zeros(len(variance)), where=variance > 0)
    several = [len(np.unique(column)) > FEW for column in x.T]
    return [data.inputs.columns[i] for i in np.flatnonzero((kurtosis > KURTOSIS) & several)]


def known_ahead(data: Dataset) -> list[str]:
    """Return the sensors known for rows ahead: named for parts of a date, such as ``month``, or made from texts."""
    sensors = zip(data.inputs.columns, _texts(data), strict=True)
    return [name for name, text in sensors if text or word_of(name) in CALENDAR]


def period(data: Dataset) -> int | None:
    """Return the period, in rows, of the sensors to forecast; None where they have none, or it is too long.

    It is the most frequent period of the sensors in the largest recording, shared by at least a quarter of them.
    """
    if not data.task.ahead or len(data.shape) < 2:
        return None
    whose = data.run if data.run is not None else data.owner
    rows = np.arange(len(data.y)) if whose is None else np.flatnonzero(whose == np.bincount(whose).argmax())
    names = {*data.task.called()}
    x = last_row(data, rows[:SERIES])[:, [i for i, name in enumerate(data.inputs.columns) if name in names]]
    votes = Counter(lag for column in x.T if not _ramps(column) and (lag := _period(np.diff(column))) is not None)
    lag, many = votes.most_common(1)[0] if votes else (0, 0)
    return lag if many and 4 * many >= len(names) else None


def _ramps(column: NDArray[np.float64]) -> bool:
    """Return whether a series rises or falls along a straight line, but for the rounding of its values.

    The differences of such a clock or counter recur only as its rounding does.

    >>> _ramps(np.round(np.arange(500) * 0.07, 1)), _ramps(np.arange(500) % 7.0), _ramps(np.array([1.0, 2.0, 2.5, 9.0]))
    (True, False, False)
    """
    change = np.diff(column)
    steps = np.abs(change[change != 0])
    if not len(steps) or not ((change >= 0).all() or (change <= 0).all()):
        return False
    line = np.linspace(column[0], column[-1], len(column))
    return bool(np.abs(column - line).max() <= 2 * steps.min())


def _period(change: NDArray[np.float64]) -> int | None:
    """Return the lag of the highest autocorrelation of a series' differences, which suppress slow trends.

    The autocorrelation must reach :data:`PERIODIC` and :data:`SURE` standard deviations n^(−1/2) of n independent
    values, and half its height at two periods; the series must cover at least three periods. Of lags with nearly the
    same autocorrelation the shortest is returned. None if there is no such lag.
    """
    change = np.nan_to_num(change - np.nanmean(change)) if len(change) else change
    longest = min(PERIODS[1], len(change) // 3)
    if longest <= PERIODS[0] or not change.any():
        return None
    power = np.abs(np.fft.rfft(change, 2 * len(change))) ** 2
    every = np.fft.irfft(power)[: max(2 * longest + 3, len(change) // 2)]
    alike = every / every[0] * len(change) / (len(change) - np.arange(len(every)))
    lags = range(PERIODS[0], longest + 1)
    least = max(PERIODIC, SURE / len(change) ** 0.5)
    peaks = [lag for lag in lags if alike[lag] >= max(least, alike[lag - 2 : lag + 3].max())]
    peaks = [lag for lag in peaks if 2 * alike[2 * lag - 2 : 2 * lag + 3].max() >= alike[lag]]
    if not peaks:
        return None
    place = float(next(lag for lag in peaks if alike[lag] >= NEARLY * alike[peaks].max()))
    for many in (1, 2, 4, 8):  # the top of a broad peak is found more exactly after several periods
        around = np.arange(int((many - 0.25) * place), int((many + 0.25) * place) + 1)
        if around[-1] < len(alike):
            place = int(around[alike[around].argmax()]) / many
    return round(place) if PERIODS[0] <= round(place) <= longest else None


def _levels(column: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Return the level of each value, [n]; None where the values do not form a few levels."""
    if np.isnan(column).any() or (width := LEVEL_WIDTH * np.ptp(column)) == 0:
        return None
    order = np.sort(column)
    edges = np.flatnonzero(np.diff(order) > width)
    first = order[np.r_[0, edges + 1]]
    last = order[np.r_[edges, len(order) - 1]]
    if not 2 <= len(first) <= LEVELS or (last - first).max() > width:
        return None
    return np.searchsorted(first, column, side="right") - 1


def _between(column: NDArray[np.float64], group: NDArray[np.int64]) -> float | None:
    """Return the share of a sensor's variance between groups; None if it is constant or has missing values."""
    if np.isnan(column).any() or (total := column.var()) == 0:
        return None
    count = np.bincount(group)
    means = np.bincount(group, column) / np.maximum(count, 1)
    return float((count * (means - column.mean()) ** 2).sum() / len(column) / total)


def _meters(data: Dataset) -> dict[int, str]:
    """Return the sensors that only rise in most devices, as a meter does that is read, and the predicate on each.

    A fall counts as a new beginning if it leads to near 0: a meter was replaced, or its digits were used up.
    """
    recordings = data.run is not None or data.inputs.names.get("run")  # what rises in each of them begins anew
    if data.time is None or data.owner is None or recordings:
        return {}
    rows = [np.flatnonzero(data.owner == k)[:SERIES] for k in np.unique(data.owner)[:DEVICES].tolist()]
    series = [(int(data.owner[mine[0]]), last_row(data, mine)) for mine in rows if len(mine) >= MANY]
    found = {}
    for i, name in enumerate(data.inputs.columns):
        each = [(device, _restarts(x[:, i])) for device, x in series]
        read = [(device, falls) for device, falls in each if falls is not None]
        if not each or len(read) < METERED * len(each) or word_of(name) in CALENDAR:
            continue
        again = [data.owned.names[device] for device, falls in read if falls]
        restarts = f" It begins anew in {excerpt(again, 3)}, as a meter that was replaced." if again else ""
        found[i] = (
            "only rises, as a meter's readings do: later values are beyond those of training."
            f"{restarts} If it is a meter, write what it adds from row to row in its place, without the step where it "
            f'begins anew: in pandas, table.groupby(DEVICE)["{name}"].diff().clip(lower=0)'
        )
    return found


def _restarts(column: NDArray[np.number[Any]]) -> int | None:
    """Return how often a meter's readings begin anew; None if a series does not only rise besides.

    >>> _restarts(np.arange(9)), _restarts(np.arange(300) % 150), _restarts(np.arange(300) % 9)
    (0, 1, None)
    """
    known = column[~np.isnan(column)]
    steps = np.diff(known)
    rises = int((steps > 0).sum())
    falls = np.flatnonzero(steps < 0)
    anew = bool((known[falls + 1] <= NEAR_ZERO * known[falls]).all()) if len(falls) else True
    return len(falls) if anew and rises >= RISING * len(steps) > 0 and rises >= CLIMBS * len(falls) else None


def _counters(data: Dataset) -> set[int]:
    """Return the sensors with whole numbers that rise from sample to sample of a device or a recording."""
    owner = data.run if data.run is not None else data.owner
    owner = np.zeros(len(data.y), np.int32) if owner is None else owner
    rows = [np.flatnonzero(owner == device)[:IN_A_ROW] for device in np.unique(owner)[:DEVICES].tolist()]
    every = np.concatenate([np.empty(0, np.int64), *(mine for mine in rows if len(mine) >= SHOWN)])
    if not len(every):
        return set()
    x = last_row(data, every)
    whose = owner[every]
    return {i for i, column in enumerate(x.T) if measured(column, whose).kind == "counter"}


def _gives_away(column: NDArray[np.float64], y: NDArray[np.int64], classes: Sequence[str]) -> str:
    """Return the relation of a sensor to the class: a copy, a coarser label, or a consequence; empty if none.

    The sensor has few values. In a copy each value occurs with one class only. A coarser label has one value per class,
    except in at most :data:`ODD` of the rows without its most frequent value: ``failure`` beside the kinds of failures.
    A consequence has another value that occurs with one class only, where the probability for a value independent of
    the class is below :data:`CHANCE`: a flag of one kind of failure beside ``failure``.
    """
    values, code, count = np.unique(column, return_inverse=True, return_counts=True)
    if not 2 <= len(values) <= FEW or len(values) * SHOWN > len(column):
        return ""
    table = np.zeros((len(values), len(classes)), np.int64)
    np.add.at(table, (code.ravel(), y), 1)
    most = table.argmax(axis=1)
    share = table.sum(axis=0) / len(y)
    pure = table.max(axis=1) == count
    if pure.all() and len({*most.tolist()}) > 1:
        return f"reveals the class: each of its {len(values)} values occurs with one class only. A copy of the label?"
    held = table[:, share > 0]
    others = len(y) - count.max()
    odd = len(y) - held.max(axis=0).sum()
    if others >= SHOWN and odd <= ODD * others and len({*held.argmax(axis=0).tolist()}) > 1:
        return f"follows from the class: one value for each, except in {odd} of {len(y):,} rows. A coarser label?"
    certain = pure & (most != share.argmax()) & (count >= SHOWN)
    certain &= len(values) * share[most] ** count < CHANCE
    if len(values) <= SHOWN and certain.any():
        value = int(np.flatnonzero(certain)[0])
        name = classes[int(most[value])]
        return f"is {values[value]:g} for '{name}' only ({count[value]} times): a consequence of the label?"
    return ""


def _beside(x: NDArray[np.float64], texts: Sequence[str], away: Collection[int]) -> dict[int, str]:
    """Return findings on flags among adjacent flags most of which (:data:`BESIDE` or more) reveal the class."""
    flags = [not text and bool(np.isin(column, (0, 1)).all()) for text, column in zip(texts, x.T, strict=True)]
    beside: dict[int, str] = {}
    for _, run in groupby(range(len(flags)), key=lambda i: flags[i] or i):
        every = list(run)
        rest = [i for i in every if i not in away]
        if len(every) - len(rest) >= max(BESIDE, len(rest)):
            beside |= dict.fromkeys(rest, "is a flag beside flags that follow from the label: does it, too?")
    return beside


def missing_mark(column: NDArray[np.floating[Any]], advice: str) -> str:
    """Return a finding on a value, such as -999, that seems to denote missing values: far from all others."""
    if (found := mark_of(column)) is None:
        return ""
    value, count = found
    return (
        f"is {value:g} in {count:,} of the rows examined, far from all its other values: if this value denotes "
        f"a missing one, {advice.replace('{}', f'{value:g}')}"
    )


def few_decide(target: NDArray[np.floating[Any]]) -> str:
    """Return a finding on a target of which a hundredth of the values has most of the squared deviations.

    >>> few_decide(np.r_[np.arange(99.0), 9e4])
    'is 90000 or the like in 1 % of the rows, beside a median of 49.5: these rows decide the RMSE. If they are \
mistakes, correct or remove them; or judge by the mean error: --set evaluate.headline=MAE'
    >>> few_decide(np.arange(100.0))
    ''
    """
    known = target[np.isfinite(target)].astype(np.float64)
    squares = (known - np.median(known)) ** 2 if len(known) else known
    few = max(1, len(known) // 100)
    farthest = np.argsort(squares, kind="stable")[::-1][:few]
    if len(known) < MANY or squares[farthest].sum() <= DECIDE * squares.sum():
        return ""
    return (
        f"is {known[farthest[0]]:.5g} or the like in 1 % of the rows, beside a median of {np.median(known):.4g}: these "
        "rows decide the RMSE. If they are mistakes, correct or remove them; or judge by the mean error: --set "
        "evaluate.headline=MAE"
    )


def _texts(data: Dataset) -> list[str]:
    """Return for each sensor the column of texts that it was made from; empty for other sensors."""
    columns = data.inputs.columns
    texts = sources(columns, data.inputs.coding.get("categories", ()))
    return ["" if text == name else text for name, text in zip(columns, texts, strict=True)]


def _copies(x: NDArray[np.float64], names: Sequence[str], texts: Sequence[str]) -> dict[int, str]:
    """Return findings on sensors that are a linear function of another, except between sensors of one category."""
    filled = np.where(np.isnan(x), 0.0, x)
    centred = filled - filled.mean(axis=0)
    length = np.sqrt((centred**2).sum(axis=0))
    unit = np.divide(centred, length, out=np.zeros_like(centred), where=length > 0)
    alike = np.abs(unit.T @ unit)
    copies: dict[int, str] = {}
    for i in range(1, len(names)):
        before = [
            j for j in range(i)
            if j not in copies and alike[i, j] > 1 - SAME and length[i] > 0 and not (texts[i] and texts[i] == texts[j])
        ]  # fmt: skip
        if before:
            same = np.array_equal(filled[:, i], filled[:, before[0]])
            how = "has the same values as" if same else "is a multiple of (and perhaps a constant more than)"
            copies[i] = f"{how} '{names[before[0]]}'"
    return copies


def neighbours_alike(data: Dataset) -> bool:
    """Return whether rows are consecutive: half of the sensors, except counters, hardly change from row to row.

    A sensor hardly changes if Σ (x_{i+1} − x_i)²/(2 Σ (x_i − m)²) is below :data:`STEADY`, over adjacent rows of the
    same device and class with mean m; this ratio is 1 on average for independent rows (von Neumann, Ann. Math. Stat. 12
    (1941)).
    """
    if data.inputs.kind != "table" or data.made is not None or len(data.shape) > 1 or len(data.y) < 100 * SHOWN:
        return False
    first = np.arange(min(len(data.y), MOST))
    x = last_row(data, first)
    texts = _texts(data)
    owner = np.zeros(len(first), np.int64) if data.owner is None else data.owner[first]
    group = np.unique(np.stack([owner, data.y[first]]), axis=1, return_inverse=True)[1].ravel()
    same = np.diff(group) == 0
    steady = []
    counted = _counters(data)
    for column in (x[:, i] for i in range(x.shape[1]) if not texts[i] and i not in counted):
        known = ~np.isnan(column)
        count = np.maximum(np.bincount(group, known), 1)
        apart = np.where(known, column - (np.bincount(group, np.where(known, column, 0.0)) / count)[group], 0.0)
        spread = 2 * float((apart**2).mean())
        if spread > 0 and same.any():
            steady.append(float((np.diff(apart)[same] ** 2).mean()) < STEADY * spread)
    return len(steady) > 0 and 2 * sum(steady) >= len(steady)
