"""What follows from a claim's figures: met, confirmed, contradicted or undecided.

Ours are means of runs with a 95 % interval, mean ± h with h = t s / √n, of paired differences where both sides have a
value for every seed, and of single runs where the spread s of runs is known from elsewhere:

- the *prediction interval* of one more run is mean ± t s √(1 + 1/n) = mean ± h √(n + 1);
- of a difference without paired values, h is at most the sum of both, as s(a − b) ≤ s(a) + s(b) whatever the pairing;
- a single run, or a pair of them, counts as ± 3 s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy import stats

from fedfloor.base.errors import SettingError

MET = "met"
CONFIRMED = "confirmed"
CONTRADICTED = "contradicted"
UNDECIDED = "undecided"
UNTESTED = "not tested"
OUTCOMES = (MET, CONFIRMED, CONTRADICTED, UNDECIDED, UNTESTED)
# margins of "level with", of accuracies and of other figures, unless a claim has its own
POINT = 0.01
SHARE = 0.1
SEVERAL = 3  # runs of which a spread is known
SINGLE = 3.0  # standard deviations by which a single run counts as apart
MINUS = " minus "
TIMES = "× "  # before a printed ratio
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "MB": 1e6, "GB": 1e9}
CELL = re.compile(
    r"(?P<value>[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?: ± (?P<half>\d[\d,.]*))?(?: (?P<unit>[A-Za-zµ]+))?$"
)


@dataclass(frozen=True)
class Figure:
    """A figure of a claim.

    Args:
        name: what it is the figure of.
        paper: the paper's, None where it prints none.
        ours: as it stands on its results' page.
        against: the paper's figure that this one is compared with, where the claim lists no other.
        effect: it is a difference itself, in which the paper's must lie within the interval.
        fitted: a setting that the paper does not print was chosen by it, so that it shows nothing.
        std: the standard deviation of single runs, where the page has it in the place of an interval.
        values: ours of every seed, where the page lists them.
    """

    name: str
    paper: str | None
    ours: str
    against: str | None = None
    effect: bool = False
    fitted: bool = False
    std: str | None = None
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Args:
        paper, where, claim: the paper's name, where it stands there, and what is claimed.
        outcome: one of :data:`OUTCOMES`; :func:`outcome` derives it for those with figures.
        why: what explains it.
        command: computes ours.
        file: the page of ours, from the source tree's root; empty without any.
        proof: the page with the calculation that decides it without runs.
        figures: those that are compared.
        order: relations of figures' names or numbers, such as ``FedGS > FedAvg``; ``=`` means level with.
        effects: differences that the paper prints, such as ``{"D minus FedAvg": "0.141"}``, or ratios: ``"× 1.463"``.
        setting: ``the paper's``, ``reduced`` or ``other data``.
        deviations: what is unlike the paper's setting; empty where nothing is.
        seeds: which ours are of.
        runs: the number of seeds, parks or draws behind ours; 0: ours is computed and has no spread.
        spread: the standard deviation of single runs, as a number or a share such as ``10 %``.
        margin: by how much level figures may differ.
        accuracy: figures are accuracies, as shares.
    """

    paper: str
    where: str
    claim: str
    outcome: str
    why: str
    command: str
    file: str = ""
    proof: str = ""
    figures: tuple[Figure, ...] = ()
    order: tuple[str, ...] = ()
    effects: Mapping[str, str] = field(default_factory=dict)
    setting: str = ""
    deviations: str = ""
    seeds: str = ""
    runs: int = 1
    spread: str = ""
    margin: float | None = None
    accuracy: bool = False


@dataclass(frozen=True)
class Estimate:
    """A mean, its half width, and the half width of the prediction interval of one more run."""

    value: float
    half: float
    ahead: float


def parsed(text: str) -> tuple[float, float]:
    """Return a cell's value and half width.

    >>> parsed("0.847 ± 0.001"), parsed("216 µs"), parsed("–")
    ((0.847, 0.001), (0.000216, 0.0), (inf, 0.0))
    """
    if text == "–":
        return math.inf, 0.0
    match = CELL.match(text)
    if match is None or (match["unit"] and match["unit"] not in UNITS):
        raise SettingError(f"{text!r} is no figure: a number is wanted, perhaps with ± and one of {', '.join(UNITS)}.")
    scale = UNITS[match["unit"]] if match["unit"] else 1.0
    value, half = (float((match[part] or "0").replace("−", "-").replace(",", "")) for part in ("value", "half"))
    return value * scale, half * scale


def outcome(claim: Claim) -> str:
    """Return what follows from a claim's figures, by the rules that the page states."""
    relations = [relation(claim, one) for one in claim.order]
    if CONTRADICTED in relations:
        return CONTRADICTED
    if UNDECIDED in relations:
        return UNDECIDED
    numbers = [printed(claim, figure) for figure in claim.figures if figure.paper is not None and not figure.fitted]
    effects = [_printed_effect(claim, name, paper) for name, paper in claim.effects.items()]
    if any(each and set(each) == {MET} for each in (numbers, effects)):
        return MET
    if relations:
        return CONFIRMED
    return CONTRADICTED if CONTRADICTED in (*numbers, *effects) else UNDECIDED


def relation(claim: Claim, text: str) -> str:
    """Return the outcome of a relation, such as ``FedSR > FedAvg > 0.5`` or ``FLDG = FLDG-L``."""
    terms = re.split(r" ([<>=]) ", text)
    triples = zip(terms[::2], terms[1::2], terms[2::2], strict=False)
    found = [_compared(claim, left, sign, right) for left, sign, right in triples]
    return next((one for one in (CONTRADICTED, UNDECIDED) if one in found), CONFIRMED)


def _compared(claim: Claim, left: str, sign: str, right: str) -> str:
    apart = difference(claim, left + MINUS + right)
    if sign == "=":
        known = {figure.name: estimate(claim, figure).value for figure in claim.figures}
        whole = 1.0 if _paired(claim, left, right) else abs(_number(known, right))  # ratios are shares already
        margin = claim.margin or (POINT if claim.accuracy else SHARE * whole)
        if abs(apart.value) + apart.half <= margin:
            return CONFIRMED
        return CONTRADICTED if abs(apart.value) - apart.half > margin else UNDECIDED
    ahead = apart.value if sign == ">" else -apart.value
    if abs(ahead) <= apart.half:
        return UNDECIDED
    return CONFIRMED if ahead > 0 else CONTRADICTED


def difference(claim: Claim, text: str, *, ratio: bool = False) -> Estimate:
    """Return ``A minus B`` of two figures, or of a figure and a number, seed by seed where both have values of each.

    Rounds, bytes and times, which have values by seed, are taken as logarithms, accuracies as they are, unless their
    ratio is asked for.

    Raises:
        SettingError: a term is no figure of the claim and no number.
    """
    figures = {figure.name: figure for figure in claim.figures}
    left, right = text.split(MINUS)
    if values := _paired(claim, left, right):
        sides = [np.array(each) if claim.accuracy and not ratio else np.log(each) for each in values]
        return _mean(sides[0] - sides[1])
    pair = [figures.get(name) for name in (left, right)]
    a, b = (
        estimate(claim, figure) if figure else Estimate(parsed(name)[0], 0.0, 0.0)
        for figure, name in zip(pair, (left, right), strict=True)
    )
    if a.value == b.value == math.inf:
        return Estimate(0.0, math.inf, math.inf)
    if math.inf in (a.value, b.value):
        return Estimate(a.value - b.value, 0.0, 0.0)
    single = max(_spread(claim, each.value) for each in (a, b)) if _alone(claim, pair) else 0.0
    half = max(a.half + b.half, SINGLE * single)
    return Estimate(a.value - b.value, half, half)


def _paired(claim: Claim, *names: str) -> list[tuple[float, ...]]:
    """Return the values by seed of figures that all have some; else none."""
    values = {figure.name: figure.values for figure in claim.figures}
    found = [values.get(name, ()) for name in names]
    return found if all(found) else []


def estimate(claim: Claim, figure: Figure) -> Estimate:
    """Return a figure with its intervals."""
    if figure.values:
        return _mean(np.array(figure.values))
    value, half = parsed(figure.ours)
    if figure.std is not None:
        half = float(stats.t.ppf(0.975, claim.runs - 1)) * parsed(figure.std)[0] / math.sqrt(claim.runs)
        return Estimate(value, half, half * math.sqrt(claim.runs + 1))
    if not claim.runs:
        return Estimate(value, 0.0, 0.0)
    if "±" in figure.ours and claim.runs >= SEVERAL:
        return Estimate(value, half, half * math.sqrt(claim.runs + 1))
    return Estimate(value, half, SINGLE * _spread(claim, value))


def span(claim: Claim, figure: Figure) -> tuple[float, float, float]:
    """Return ours and the ends of its interval, that of a single run three standard deviations away, if they are known.

    Of rounds, bytes and times by seed it is the geometric mean, as their logarithms are compared.
    """
    if figure.values and not claim.accuracy:
        mean = _mean(np.log(figure.values))
        low, ours, high = (math.exp(mean.value + side * mean.half) for side in (-1, 0, 1))
        return ours, low, high
    one = estimate(claim, figure)
    half = one.half or one.ahead
    half = half if math.isfinite(half) else 0.0
    return one.value, one.value - half, one.value + half


def printed(claim: Claim, figure: Figure) -> str:
    """Return whether a printed figure is met, contradicted, or neither.

    It is met within the prediction interval, if that is narrower than the effect: the distance to the figure that the
    claim compares it with; in logarithms where these are taken of values by seed. A figure that is computed meets it to
    the digits that the paper prints.
    """
    ours = estimate(claim, figure)
    text = str(figure.paper)
    paper = parsed(text)[0]
    if figure.effect:
        return _effect(ours, text)
    if not claim.runs:
        return MET if abs(ours.value - paper) <= 0.5 * _digit(text) * (1 + 1e-9) else CONTRADICTED
    others = [parsed(str(other.paper))[0] for other in claim.figures if other.paper not in (None, figure.paper)]
    others += [parsed(figure.against)[0]] if figure.against else []
    if figure.values and not claim.accuracy:
        ours = _mean(np.log(figure.values))
        paper, *others = (math.log(one) for one in (paper, *others))
    if abs(ours.value - paper) > ours.ahead:
        return CONTRADICTED
    effect = max((abs(paper - other) for other in others), default=0.0)
    return MET if ours.ahead < effect else UNDECIDED


def visible(claim: Claim) -> float:
    """Return the smallest effect that the undecided relations of a claim could have shown; inf without a spread."""
    undecided = [text for text in claim.order if relation(claim, text) == UNDECIDED]
    pairs = [pair for text in undecided for pair in _pairs(text)]
    halves = [difference(claim, pair).half for pair in pairs]
    return max(halves, default=math.inf)


def _pairs(text: str) -> list[str]:
    terms = re.split(r" [<>=] ", text)
    return [left + MINUS + right for left, right in pairwise(terms)]


def _printed_effect(claim: Claim, name: str, text: str) -> str:
    """Return whether a printed difference is met, or a printed ratio, of which both figures have values by seed."""
    if not text.startswith(TIMES):
        return _effect(difference(claim, name), text)
    ratio = difference(claim, name, ratio=True)
    return _effect(ratio, str(math.log(parsed(text.removeprefix(TIMES))[0])))


def _effect(ours: Estimate, text: str) -> str:
    paper = parsed(text)[0]
    if abs(ours.value - paper) > ours.half:
        return CONTRADICTED
    return MET if ours.half < abs(paper) else UNDECIDED


def _mean(values: Sequence[float] | np.ndarray) -> Estimate:
    count = len(values)
    spread = float(np.std(values, ddof=1)) * float(stats.t.ppf(0.975, count - 1))
    return Estimate(float(np.mean(values)), spread / math.sqrt(count), spread * math.sqrt(1 + 1 / count))


def _alone(claim: Claim, pair: Sequence[Figure | None]) -> bool:
    """Return whether a figure of a pair has no interval, as one of a single run."""
    figures = [figure for figure in pair if figure is not None]
    return bool(claim.runs) and any(
        not figure.values and figure.std is None and "±" not in figure.ours for figure in figures
    )


def _spread(claim: Claim, value: float) -> float:
    """Return the standard deviation of a claim's single runs; inf if it is not known."""
    if claim.spread.endswith("%"):
        return float(claim.spread.removesuffix("%")) / 100 * abs(value)
    return float(claim.spread) if claim.spread else math.inf


def _number(known: Mapping[str, float], term: str) -> float:
    return known[term] if term in known else parsed(term)[0]


def _digit(text: str) -> float:
    """Return the unit of the last digit of a number.

    >>> _digit("0.056"), _digit("1,262"), _digit("979 s")
    (0.001, 1.0, 1.0)
    """
    return 10.0 ** -len(text.split(" ")[0].partition(".")[2])
