"""What does not fit together between devices, judged from what they state of their rows (:mod:`fedfloor.park.sites`).

A device is named if the others agree, and it differs: with two devices nobody can say which one is wrong, and both are
named. Sensors' values are judged by :mod:`fedfloor.park.peers`, as those of a run are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedfloor.base.errors import nearest
from fedfloor.base.names import alike, excerpt, misspelt, plain, toml_list
from fedfloor.data.files.clocks import forward, shift, shifted
from fedfloor.data.files.spellings import option
from fedfloor.data.files.units import spelt
from fedfloor.data.pace import RATES
from fedfloor.park import peers
from fedfloor.park.sites import SiteFacts, summaries
from fedfloor.park.summaries import Summaries

SHOWN = 6  # names in a sentence, at most
EXPECTED = 20  # rows of a class that a device would have by its share elsewhere, from which its absence is named
APART = 60.0  # seconds between a device's clock and that of who asks, which a slow link does not explain
HOLES = 0.2  # share of missing values that is named where others hardly lack one
WHOLE = 0.02  # share that these lack, at most
HARDLY = 0.05  # share of known values below which a sensor counts as missing, in park.peers
EITHER = "With two sites it cannot be said which of them is wrong"


@dataclass(frozen=True)
class Disagreement:
    """Something at sites that does not fit the others.

    Args:
        kind: such as ``unit``, ``renamed``, ``rate``, ``clock``.
        sites: the names of the sites.
        sensors: the sensors, or classes, that it concerns.
        sentence: what it is, and how it is mended, with the setting where there is one.
    """

    kind: str
    sites: tuple[str, ...]
    sensors: tuple[str, ...]
    sentence: str


def judged(
    sites: Sequence[SiteFacts], *, own_scale: bool = False, ignored: Sequence[str] = ()
) -> list[Disagreement]:  # fmt: skip
    """Return everything at sites that does not fit the others.

    Args:
        own_scale: whether each device is normalised by its own rows, so that units and levels may differ.
        ignored: the columns that are left out already.
    """
    found = [Disagreement("unreadable", (site.name,), (), f"'{site.name}': {_stopped(text)}")
             for site in sites for text in site.problems]  # fmt: skip
    found += [Disagreement("empty", (site.name,), (), f"'{site.name}' has no rows. Check its table or its source.")
              for site in sites if not site.rows and not site.problems]  # fmt: skip
    sites = [site for site in sites if site.rows]
    aligned, columns = _columns(sites)
    found += columns
    found += [one for one in _values(aligned, ignored) if not own_scale or one.kind not in ("unit", *peers.SCALED)]
    for rule in (_holes, _twins, _decimals, _rates, _clocks, _spellings, _absent, _copies):
        found += rule(aligned)
    if len(sites) != 2:
        return found
    alone = ("unreadable", "empty", "copies", "spelling", "twins")
    return [one if one.kind in alone else replace(one, sentence=f"{one.sentence} {EITHER}.") for one in found]


def _stopped(text: str) -> str:
    return text.rstrip(".") + "."


def _quoted(names: Iterable[str]) -> str:
    return excerpt([f"'{name}'" for name in names], SHOWN)


def _of_sites(sites: Sequence[SiteFacts]) -> tuple[str, ...]:
    return tuple(site.name for site in sites)


PLURAL = {"has": "have", "alone has": "alone have", "lacks": "lack", "states": "state", "writes": "write"}


def _named(sites: Sequence[SiteFacts], verb: str = "") -> str:
    """Return the names of sites, with a verb.

    >>> _named([SiteFacts("a"), SiteFacts("b")], "has no row")
    "'a', 'b' have no row"
    """
    first = next((word for word in PLURAL if verb.startswith(word)), "")
    if len(sites) > 1 and first:
        verb = PLURAL[first] + verb[len(first) :]
    return f"{_quoted(_of_sites(sites))} {verb}".rstrip()


def _usual(values: Sequence[object]) -> object:
    """Return the most common value, of equally common ones the first."""
    return Counter(values).most_common(1)[0][0]


# -- columns -----------------------------------------------------------------------------------------------------------


def _columns(sites: Sequence[SiteFacts]) -> tuple[list[SiteFacts], list[Disagreement]]:
    """Return sites with renamed sensors under the usual names, and what does not fit in their columns."""
    found = [*_roles(sites)]
    holders = Counter(name for site in sites for name in site.sensors)
    usual = [name for name, many in holders.items() if 2 * many > len(sites)]
    if len(sites) == 2:
        usual = [*sites[0].sensors]
    aligned = []
    whole = summaries(sites)
    for site in sites:
        lack = [name for name in usual if name not in site.sensors]
        more = [name for name in site.sensors if name not in usual]
        pairs = _renamed(site, lack, more, whole)
        aligned.append(site.renamed({new: old for old, new in pairs.items()}))
        for old, new in pairs.items():
            text = f"'{site.name}' has '{new}' where others have '{old}'. Give the column the same name in all tables."
            found.append(Disagreement("renamed", (site.name,), (old, new), text))
    shared = [name for name in usual if all(name in site.sensors for site in aligned)]
    way = f": --set 'data.columns.values={toml_list(shared)}'" if shared else " is impossible: they share none"
    found += _lacking(aligned, f"To train on the sensors that all have{way}.")
    orders = [tuple(name for name in site.sensors if name in shared) for site in aligned]
    order = _usual(orders) if orders else ()
    if other := [site for site, own in zip(aligned, orders, strict=True) if own != order]:
        text = f"{_named(other, 'has')} columns in another order than the others. To read them by name{way}."
        found.append(Disagreement("order", _of_sites(other), (), text))
    return aligned, found


def _lacking(sites: Sequence[SiteFacts], advice: str) -> Iterator[Disagreement]:
    """Yield the sensors that some sites lack, or that some alone have, those of the same sites together."""
    holders = Counter(name for site in sites for name in site.sensors)
    groups: dict[tuple[str, tuple[SiteFacts, ...]], list[str]] = {}
    for name, many in holders.items():
        if many < len(sites):
            kind = "missing" if 2 * many > len(sites) or len(sites) == 2 else "added"
            who = tuple(site for site in sites if (name in site.sensors) == (kind == "added"))
            groups.setdefault((kind, who), []).append(name)
    for (kind, who), names in groups.items():
        verb = "lacks" if kind == "missing" else "alone has"
        text = f"{_named(who, verb)} the sensor{'s' * (len(names) > 1)} {_quoted(names)}. {advice}"
        yield Disagreement(kind, _of_sites(who), tuple(names), text)


def _roles(sites: Sequence[SiteFacts]) -> Iterator[Disagreement]:
    """Yield roles, such as the time, whose column has another name at some sites, or which some lack."""
    for role in dict.fromkeys(role for site in sites for role in site.roles):
        usual = str(_usual([site.roles[role] for site in sites if role in site.roles]))
        if other := [site for site in sites if site.roles.get(role, usual) != usual]:
            text = (
                f"{_named(other, 'has')} the {role} in the column '{other[0].roles[role]}', others in '{usual}'. Give "
                "the column the same name in all tables."
            )
            yield Disagreement("renamed", _of_sites(other), (usual, other[0].roles[role]), text)
        some = [site for site in sites if role in site.roles]
        if len(some) < len(sites):
            few = min(some, [site for site in sites if site not in some], key=len)
            verb = "alone has a column" if few == some else "has no column"
            text = f"{_named(few, verb)} for the {role}, in others '{usual}'. Give all tables one, or none."
            yield Disagreement("role", _of_sites(few), (usual,), text)


def _renamed(site: SiteFacts, lack: Sequence[str], more: Sequence[str], whole: Summaries) -> dict[str, str]:
    """Return the usual name → the site's name of sensors that are probably the same, by their names or values."""
    pairs = dict[str, str]()
    tests: tuple[Callable[[str, str], bool], ...] = (
        lambda old, new: plain(old) == plain(new),
        lambda old, new: _base(old) == _base(new),
        lambda old, new: bool(nearest(new, [old], cutoff=0.75)),
        lambda old, new: peers.alike(whole, summaries([site]), old, new),
    )
    for test in tests:
        left = [name for name in lack if name not in pairs]
        free = [name for name in more if name not in pairs.values()]
        able = {old: [new for new in free if test(old, new)] for old in left}
        for old, fits in able.items():
            if len(fits) == 1 and sum(fits[0] in others for others in able.values()) == 1:
                pairs[old] = fits[0]
    return pairs


def _base(name: str) -> str:
    """Return a plain name without a unit in brackets at its end.

    >>> _base("Temp [°C]"), _base("temp (degF)"), _base("[°C]")
    ('temp', 'temp', '[°c]')
    """
    for left, right in ("[]", "()"):
        begin = name.rfind(left)
        if begin > 0 and name.rstrip().endswith(right):
            name = name[:begin]
    return plain(name)


# -- values ------------------------------------------------------------------------------------------------------------


def _values(sites: Sequence[SiteFacts], ignored: Sequence[str]) -> Iterator[Disagreement]:
    """Yield sensors whose values differ from those of all other sites: by unit, sign, level, exchange."""
    if len(sites) < 2:
        return
    s = summaries(sites)
    has = {site.name: {*site.sensors} for site in sites}
    for odd in peers.among(s) if len(sites) > 2 else peers.between(s):
        if odd.kind == "missing":
            devices = tuple(name for name in odd.devices if {*odd.sensors} <= has[name])
            odd = replace(odd, devices=devices)
        if odd.devices:
            yield Disagreement(odd.kind, odd.devices, odd.sensors, peers.sentences([odd], ignored=ignored)[0])
    for name in s.sensors:
        stated = [site.units[name] for site in sites if name in site.units]
        if len({*map(spelt, stated)}) > 1:
            usual = _usual([*map(spelt, stated)])
            unit = next(unit for unit in stated if spelt(unit) == usual)
            other = [site for site in sites if spelt(site.units.get(name, unit)) != usual]
            text = (
                f"{_named(other, 'states')} '{other[0].units[name]}' as the unit of '{name}', others '{unit}'. "
                f"{peers.WAYS['unit']}."
            )
            yield Disagreement("unit", _of_sites(other), (name,), text)


def _holes(sites: Sequence[SiteFacts]) -> Iterator[Disagreement]:
    """Yield sensors of which a few sites lack many values, and all others hardly one."""
    for name in dict.fromkeys(name for site in sites for name in site.sensors):
        have = [site for site in sites if name in site.sensors]
        share = np.array([site.missing[site.sensors.index(name)] for site in have])
        holes = share >= HOLES
        if 0 < 3 * holes.sum() <= max(len(have), 4) and (share[~holes] <= WHOLE).all() and share.max() <= 1 - HARDLY:
            who = [site for site, hole in zip(have, holes, strict=True) if hole]
            text = (
                f"{_named(who, 'lacks')} {share.max():.0%} of the values of '{name}', others hardly one. Check it, or "
                "set how they are filled: --set data.missing=previous, or mean, or drop."
            )
            yield Disagreement("missing", _of_sites(who), (name,), text)


def _twins(sites: Sequence[SiteFacts]) -> Iterator[Disagreement]:
    """Yield sites whose counts and sums are all equal: the same rows under two names."""
    same: dict[tuple[object, ...], list[SiteFacts]] = {}
    for site in sites:
        if np.nan_to_num(site.sums[2]).any():
            same.setdefault((site.rows, site.sensors, site.sums.tobytes()), []).append(site)
    for group in same.values():
        if len(group) > 1:
            text = f"{_named(group, 'has')} the same rows, to the last digit. Remove all but one of them."
            yield Disagreement("twins", _of_sites(group), (), text)


def _decimals(sites: Sequence[SiteFacts]) -> Iterator[Disagreement]:
    """Yield sites with another decimal mark."""
    mark = _usual([site.decimal for site in sites]) if sites else ""
    if other := [site for site in sites if site.decimal != mark]:
        text = (
            f"{_named(other, 'writes')} numbers with the decimal mark '{other[0].decimal}', others with '{mark}'. "
            f"Write all tables with one mark, and state it: --set 'data.decimal={mark}'."
        )
        yield Disagreement("decimal", _of_sites(other), (), text)


# -- times -------------------------------------------------------------------------------------------------------------


def _rates(sites: Sequence[SiteFacts]) -> Iterator[Disagreement]:
    """Yield sites whose usual step of time is half or twice that of the others, or further from it."""
    steps = {site.name: site.clock.step for site in sites if site.clock and not math.isnan(site.clock.step)}
    if len(steps) < 2:
        return
    middle = float(np.median([*steps.values()])) if len(steps) > 2 else max(steps.values())
    far = {name: step for name, step in steps.items() if not middle / RATES < step < middle * RATES}
    if 3 * len(far) > len(steps) and len(steps) > 2:
        far = steps  # no common rate
    if far:
        each = excerpt([f"'{name}' every {step:g} s" for name, step in far.items()], SHOWN)
        rest = "" if far is steps else f", others every {middle:g} s"
        text = (
            f"rates differ: rows of {each}{rest}. Windows of rows last accordingly, and frequent rows count more: give "
            "all tables one rate (of sensors that are read, period_s of their source)."
        )
        yield Disagreement("rate", tuple(far), (), text)


def _clocks(sites: Sequence[SiteFacts]) -> Iterator[Disagreement]:
    """Yield sites whose clock is apart: by what it showed when asked, by both ends of its rows, or without a zone."""
    for site in sites:
        if site.offset is not None and abs(site.offset) > APART:
            way = "ahead of" if site.offset > 0 else "behind"
            text = f"the clock of '{site.name}' is {abs(site.offset):,.0f} s {way} the cloud's. Set it, by NTP."
            yield Disagreement("clock", (site.name,), (), text)
    dated = [site for site in sites if site.clock and site.clock.dated and not math.isnan(site.clock.first)]
    zoned = [site for site in dated if site.clock and site.clock.zoned]
    if 0 < len(zoned) < len(dated):
        few = min(zoned, [site for site in dated if site not in zoned], key=len)
        word = "with" if few == zoned else "without"
        text = f"{_named(few, 'alone has')} times {word} a time zone. Write all with one: 2026-03-02T06:00:00+01:00."
        yield Disagreement("clock", _of_sites(few), (), text)
        return
    ends = np.array([(site.clock.first, site.clock.last) for site in dated if site.clock])
    steps = np.array([site.clock.step for site in dated if site.clock])
    longest = np.array([site.clock.longest for site in dated if site.clock])
    for k, site in enumerate(dated):
        if len(dated) == 2 and k == 0:  # one of them is named for both
            continue
        if off := shift(ends, steps, k):
            yield Disagreement("clock", (site.name,), (), shifted(site.name, off))
        elif off := forward(ends, steps, longest, k):
            one, rest = ("goes", "do not") if off > 0 else ("does not go", "do")
            text = (
                f"the clock of '{site.name}' {one} forward an hour, as at the beginning of summer time, and those of "
                f"all others {rest}. Set all clocks alike, or write times with their zone: 2026-03-02T06:00:00+01:00."
            )
            yield Disagreement("clock", (site.name,), (), text)


# -- classes -----------------------------------------------------------------------------------------------------------


def _spellings(sites: Sequence[SiteFacts]) -> Iterator[Disagreement]:
    """Yield classes whose names differ only in capitals, blanks or marks, as a number is written, or by a slip."""
    for name, other in _pairs(sites):
        who = [site for site in sites if other in site.classes]
        text = (
            f"{_named(who, 'has')} the class {other!r}, others {name!r}: they count as two. If they are the same, give "
            f"them the same name in all tables, or {option({other: name})}."
        )
        yield Disagreement("spelling", _of_sites(who), (name, other), text)


def _pairs(sites: Sequence[SiteFacts]) -> list[tuple[str, str]]:
    """Return the class at most sites and the same in another spelling, or with a typing error."""
    holders = Counter(name for site in sites for name in site.classes)
    rows = sum((Counter(site.classes) for site in sites), Counter[str]())
    slips = [(meant, name) for name, meant in misspelt(rows).items()]
    return [*alike(name for name, _ in holders.most_common()), *slips]


def _absent(sites: Sequence[SiteFacts]) -> Iterator[Disagreement]:
    """Yield classes that a few sites lack, though they would have enough rows of them by the least share elsewhere."""
    labelled = [site for site in sites if site.classes]
    usual = {other: name for name, other in _pairs(labelled)}
    counts = [Counter[str]() for _ in labelled]
    for own, site in zip(counts, labelled, strict=True):
        for name, many in site.classes.items():
            own[usual.get(name, name)] += many
    for name in dict.fromkeys(name for own in counts for name in own):
        shares = [own[name] / own.total() for own in counts]
        without = [site for site, share in zip(labelled, shares, strict=True) if not share]
        least = min(share for share in shares if share)
        expected = min((least * sum(site.classes.values()) for site in without), default=0.0)
        if without and 3 * len(without) <= max(len(labelled), 4) and expected >= EXPECTED:
            text = (
                f"{_named(without, 'has')} no row of the class '{name}', of which all others have {least:.0%} of their "
                "rows or more. Check its labels; if it does not occur there, the other sites teach it: "
                "--set data.agree=warn."
            )
            yield Disagreement("class", _of_sites(without), (name,), text)


def _copies(sites: Sequence[SiteFacts]) -> Iterator[Disagreement]:
    """Yield sites with rows that repeat an earlier one, with its time."""
    if who := [site for site in sites if site.copies]:
        most = max(who, key=lambda site: site.copies)
        text = (
            f"{_named(who, 'has')} rows that repeat an earlier one exactly, '{most.name}' {most.copies:,} of "
            f"{most.rows:,}. To leave them out: --set data.copies=drop."
        )
        yield Disagreement("copies", _of_sites(who), (), text)
