"""The papers' claims, each beside what came out here: ``python -m papers.claims`` writes the page and its summaries.

``results/claims.toml`` has an entry per claim. Its figures are no copies: each names a row and a column of a results'
page, where it is read. A verdict on figures follows from them by :func:`verdict`, which the tests compare.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor.errors import SettingError
from fedfloor.runs.folder import write

ROOT = Path(__file__).parents[1]
SOURCE, PAGE = ROOT / "results" / "claims.toml", ROOT / "docs" / "claims.md"
TABLED = ROOT / "docs" / "reproduce.md"  # has the counts as a table
TOLD = ROOT / "README.md"  # has them as a sentence
REPRODUCED, IN_KIND, NOT = "reproduced", "in kind", "not reproduced"
UNTESTABLE, LATER = "cannot be tested here", "not computed yet"
VERDICTS = (REPRODUCED, IN_KIND, NOT, UNTESTABLE, LATER)
POINT, SHARE, WIDEST = 0.01, 0.1, 0.2
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "MB": 1e6, "GB": 1e9}
CELL = re.compile(
    r"(?P<value>[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?: ± (?P<half>\d[\d,.]*))?(?: (?P<unit>[A-Za-zµ]+))?$"
)
TOTAL = "all five"
SUMMARY = "| paper | claims | " + " | ".join(VERDICTS) + " |"
HEAD = ("claim", "the paper", "ours", "verdict", "why", "command")
INTRODUCTION = f"""\
# Claim by claim

The claims of the five papers, with the section, table or figure they stand in, and what came out here. The page is made
from [claims.toml](../results/claims.toml) by `python -m papers.claims`; figures of ours are read from the results' page
that is linked beside them. ± is half of a 95 % interval over seeds or parks.

- **{REPRODUCED}**: at the paper's own setting all printed figures are met, and the order that is claimed holds. A
  figure is met if ours is within one point of accuracy, or a tenth of other figures, or if our interval contains it and
  reaches no further than a fifth of it to either side.
- **{IN_KIND}**: the order that is claimed holds (or, without one, the figures are met) with another network, another
  length or other data, named first under *why*; or it holds at the paper's setting with other figures.
- **{NOT}**: it does not. An order holds where intervals do not overlap, so that a difference within them is not
  reproduced, either.
- **{UNTESTABLE}**: the data or weights that it takes are not at hand, or the data at hand cannot show it.
- **{LATER}**: the command computes it, and has not run to its end.

"""


@dataclass(frozen=True)
class Figure:
    """A figure of a claim: the paper's, None where it prints none, and ours as it stands on its results' page."""

    name: str
    paper: str | None
    ours: str

    @property
    def value(self) -> float:
        """Ours as a number, in seconds or bytes where it has such a unit; infinity for one that was not reached."""
        return parsed(self.ours)[0]

    @property
    def half(self) -> float:
        """The half width of its interval, 0 where there is none."""
        return parsed(self.ours)[1]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Args:
        paper, where, claim: the paper's name, where it stands there, and what is claimed.
        verdict: one of :data:`VERDICTS`.
        why: what explains the verdict.
        command: computes ours.
        file: the page of ours, from the source tree's root; empty without any.
        figures: those that are compared.
        order: relations of figures' names or numbers, such as ``FedGS > FedAvg``; ``=`` means level with.
        deviations: what is unlike the paper's setting; empty where nothing is.
        seeds: which ours are of.
        accuracy: figures are accuracies, as shares.
    """

    paper: str
    where: str
    claim: str
    verdict: str
    why: str
    command: str
    file: str = ""
    figures: tuple[Figure, ...] = ()
    order: tuple[str, ...] = ()
    deviations: str = ""
    seeds: str = ""
    accuracy: bool = False

    def tolerance(self, paper: float) -> float:
        """Return by how much ours may differ from a printed figure."""
        return POINT if self.accuracy else SHARE * abs(paper)


def parsed(text: str) -> tuple[float, float]:
    """Return a cell's value and half width.

    >>> parsed("0.847 ± 0.001"), parsed("216 µs"), parsed("–")
    ((0.847, 0.001), (0.000216, 0.0), (inf, 0.0))
    """
    if text == "–":
        return math.inf, 0.0
    found = CELL.match(text)
    if found is None or (found["unit"] and found["unit"] not in UNITS):
        raise SettingError(f"{text!r} is no figure: a number is wanted, perhaps with ± and one of {', '.join(UNITS)}.")
    scale = UNITS[found["unit"]] if found["unit"] else 1.0
    value, half = (float((found[part] or "0").replace("−", "-").replace(",", "")) for part in ("value", "half"))
    return value * scale, half * scale


def read(source: Path = SOURCE) -> tuple[Claim, ...]:
    """Return the claims of a file, their figures as they stand on the results' pages.

    Raises:
        SettingError: a verdict is none, or a figure does not stand where it should.
    """
    document = tomllib.loads(source.read_text(encoding="utf-8"))
    return tuple(claim_of(entry) for entry in document["claims"])


def claim_of(entry: Mapping[str, Any]) -> Claim:
    """Return the claim of an entry, as :func:`read` does."""
    if entry["verdict"] not in VERDICTS:
        raise SettingError(f"verdict = {entry['verdict']!r}: {entry['claim']!r} takes one of {', '.join(VERDICTS)}.")
    figures = tuple(_figure(entry["file"], one) for one in entry.get("figures", ()))
    return Claim(**{**entry, "figures": figures, "order": tuple(entry.get("order", ()))})


def _figure(file: str, one: Mapping[str, Any]) -> Figure:
    columns = [one[key] for key in ("column", "plus_minus") if key in one]
    texts = [cell(file, one["row"], column, one.get("under", "")) for column in columns]
    return Figure(one["name"], one.get("paper"), " ± ".join(texts))


def cell(file: str, row: str, column: str | int, under: str = "") -> str:
    """Return the cell of a table on a page, without emphasis and without what stands in brackets.

    Args:
        file: the page, from the source tree's root.
        row: the row's first cells, separated by ``|``.
        column: the column's heading, or its number from 1 where a heading stands twice.
        under: the heading of the section, where rows of several sections begin alike.

    Raises:
        SettingError: no cell or more than one is meant.
    """
    wanted, head, section, found = [part.strip() for part in row.split("|")], [""], "", []
    for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        cells = (
            [part.replace("`", "").strip(" *") for part in line.strip("|").split("|")] if line.startswith("|") else []
        )
        if not cells:
            head = []
        elif not head:
            head = cells
        elif cells[: len(wanted)] == wanted and section.startswith(under):
            place = column - 1 if isinstance(column, int) else head.index(column) if column in head else len(head)
            found += cells[place : place + 1]
    if len(found) != 1:
        where = f"row {row!r}, column {column!r}" + (f", under {under!r}" if under else "")
        raise SettingError(f"{file}: {len(found)} cells are {where}; exactly one must be.")
    return re.sub(r"\s*\(.*\)$", "", found[0]).strip(" *")


def verdict(claim: Claim) -> str:
    """Return what follows from a claim's figures, by the rules that the page states."""
    printed = [figure for figure in claim.figures if figure.paper is not None]
    met, holds = all(meets(claim, figure) for figure in printed), all(ordered(claim, one) for one in claim.order)
    if met and holds and not claim.deviations:
        return REPRODUCED
    return IN_KIND if holds and (claim.order or met) else NOT


def meets(claim: Claim, figure: Figure) -> bool:
    """Return whether a figure is the paper's, within the tolerance or a narrow interval."""
    paper = parsed(str(figure.paper))[0]
    apart = abs(figure.value - paper)
    return apart <= claim.tolerance(paper) or apart <= figure.half <= WIDEST * abs(paper)


def ordered(claim: Claim, relation: str) -> bool:
    """Return whether a relation of a claim's figures holds, such as ``FedSR > FedAvg > 0.5`` or ``FLDG = FLDG-L``.

    Raises:
        SettingError: a term is no figure of the claim and no number.
    """
    terms = re.split(r" ([<>=]) ", relation)
    known = {figure.name: (figure.value, figure.half) for figure in claim.figures}
    values = [known[term] if term in known else parsed(term) for term in terms[::2]]
    return all(_compared(claim, *pair) for pair in zip(values, terms[1::2], values[1:], strict=False))


def _compared(claim: Claim, left: tuple[float, float], sign: str, right: tuple[float, float]) -> bool:
    (a, spread), (b, more) = left, right
    if sign == "=":
        return abs(a - b) <= max(spread + more, claim.tolerance(b))
    return b - a > spread + more if sign == "<" else a - b > spread + more


def page(claims: Sequence[Claim]) -> str:
    """Return the page: rules, counts, and a table for each paper."""
    sections = [INTRODUCTION + summary(claims)]
    for paper in dict.fromkeys(claim.paper for claim in claims):
        rows = ["| " + " | ".join(_row(claim)) + " |" for claim in claims if claim.paper == paper]
        lines = [f"## {paper}", "", "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD), *rows]
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def _row(claim: Claim) -> tuple[str, ...]:
    printed = [f"{figure.name} {figure.paper}" for figure in claim.figures if figure.paper is not None]
    ours = [f"{figure.name} {figure.ours}" for figure in claim.figures]
    link = f"[{Path(claim.file).stem}]({f'../{claim.file}'.replace('../docs/', '')})"
    ours += [f"{link}, {claim.seeds}"] if ours else []
    why = ". ".join(part for part in (claim.deviations, claim.why) if part)
    return (
        f"{claim.claim} ({claim.where})",
        "; ".join(printed),
        "; ".join(ours),
        claim.verdict,
        why,
        f"`{claim.command}`",
    )


def summary(claims: Sequence[Claim]) -> str:
    """Return the table of how many claims of each paper have which verdict."""
    rows = [SUMMARY, "|" + "---|" * (len(VERDICTS) + 2)]
    for paper in (*dict.fromkeys(claim.paper for claim in claims), TOTAL):
        those = [claim.verdict for claim in claims if paper in (claim.paper, TOTAL)]
        counts = (len(those), *(those.count(one) for one in VERDICTS))
        rows.append(f"| {paper} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(rows) + "\n"


def summarised(text: str, claims: Sequence[Claim]) -> str:
    """Return a page with its summary renewed.

    Raises:
        SettingError: it has none.
    """
    renewed, times = re.subn(re.escape(SUMMARY) + r"\n(\|.*\n)*", lambda _: summary(claims), text)
    if times != 1:
        raise SettingError(f"{times} tables begin with {SUMMARY!r}; a page has exactly one.")
    return renewed


SENTENCE = re.compile(r"Of (the )?\d+ claims of the five papers[^.]*\.")


def sentence(claims: Sequence[Claim]) -> str:
    """Return the counts as one sentence."""
    count = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}
    return (
        f"Of {len(claims)} claims of the five papers, {count[REPRODUCED]} are reproduced with their printed figures, "
        f"{count[IN_KIND]} hold in kind (another network, length or data), {count[NOT]} do not, "
        f"{count[UNTESTABLE]} cannot be tested here, and {count[LATER]} are not computed yet."
    )


def told(text: str, claims: Sequence[Claim]) -> str:
    """Return a page with its sentence renewed.

    Raises:
        SettingError: it has none.
    """
    renewed, times = SENTENCE.subn(lambda _: sentence(claims), text)
    if times != 1:
        raise SettingError(f"{times} sentences count the claims; a page has exactly one.")
    return renewed


def main() -> None:
    """Write the page, and the summaries in README and docs."""
    claims = read()
    write(PAGE, page(claims))
    write(TABLED, summarised(TABLED.read_text(encoding="utf-8"), claims))
    write(TOLD, told(TOLD.read_text(encoding="utf-8"), claims))


if __name__ == "__main__":
    main()
