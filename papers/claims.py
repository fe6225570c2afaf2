"""The papers' claims, each beside what came out here: ``python -m papers.claims`` writes the page and its summaries.

    python -m papers.claims --check [--only rafed]    # recomputes rows that take a minute or less, and compares

``results/claims.toml`` has an entry per claim. Its figures are no copies: each names a row and a column of a results'
page, where it is read. Outcomes follow from them by :func:`papers.verdicts.outcome`, which the tests compare.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.runs.folder import write
from papers.verdicts import (
    CONFIRMED,
    CONTRADICTED,
    MET,
    MINUS,
    OUTCOMES,
    TIMES,
    UNDECIDED,
    UNTESTED,
    Claim,
    Figure,
    parsed,
    visible,
)

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "results" / "claims.toml"
PAGE = ROOT / "docs" / "claims.md"
TABLED = ROOT / "docs" / "reproduce.md"  # has the counts as a table
TOLD = ROOT / "README.md"  # has them as a sentence
SETTINGS = ("the paper's", "reduced", "other data")
TOTAL = "all five"
FITTED = " (fitted)"
SUMMARY = "| paper | claims | " + " | ".join(OUTCOMES) + " |"
HEAD = ("claim", "the paper", "ours", "outcome", "setting", "why", "command")
INTRODUCTION = f"""\
---
kind: reference
---

# Claim by claim

The claims of the five papers, with the section, table or figure they stand in, and what came out here. The page is made
from [claims.toml](../results/claims.toml) by `python -m papers.claims`; figures of ours are read from the results' page
that is linked beside them. ± is half of a 95 % interval over seeds, parks or draws.

The *outcome* says what our figures show:

- **{MET}**: the printed number lies where one more run of ours would lie with 95 % (mean ± h √(n + 1), with the half
  width h of the interval of n runs, of logarithms for rounds by seed), and this range is narrower than the effect that
  the claim is about; or the printed difference or ratio lies in the interval of ours. What is computed without chance
  meets the printed digits. A number that a setting which the paper does not print was chosen by, *fitted*, is not met
  by that.
- **{CONFIRMED}**: the interval of the difference excludes 0 with the claimed sign. Differences are taken seed by seed
  where the page has them, of rounds, bytes and times as ratios; otherwise the sum of both half widths bounds theirs,
  whatever the pairing. Or a calculation shows what is claimed, of which no number is printed.
- **{CONTRADICTED}**: it excludes 0 with the other sign, or a printed number lies outside; or a calculation shows the
  opposite. *Why* states whose it is: ours, or the paper's against itself.
- **{UNDECIDED}**: the interval contains 0. The smallest difference that could have been seen is stated. Single runs
  count as apart by three standard deviations of runs alike, and decide nothing where these are not known. Where the
  first seeds left a claim undecided and others were added, the row says so: looking twice, chance gives a verdict
  somewhat more often than in one case of twenty.
- **{UNTESTED}**: data, weights or hours of computing are missing.

"Level with" needs the whole interval within the margin that is claimed, or within a point of accuracy. The *setting* is
the paper's, or reduced (a smaller network, fewer rounds or devices), or other data; what is unlike it stands first
under *why*.

"""


def read(source: Path = SOURCE) -> tuple[Claim, ...]:
    """Return the claims of a file, their figures as they stand on the results' pages.

    Raises:
        SettingError: an outcome or a setting is none, or a figure does not stand where it should.
    """
    document = tomllib.loads(source.read_text(encoding="utf-8"))
    return tuple(claim_of(entry) for entry in document["claims"])


def claim_of(entry: Mapping[str, Any]) -> Claim:
    """Return the claim of an entry, as :func:`read` does."""
    for key, known in (("outcome", OUTCOMES), ("setting", ("", *SETTINGS))):
        if entry.get(key, "") not in known:
            raise SettingError(f"{key} = {entry[key]!r}: {entry['claim']!r} takes one of {', '.join(known)}.")
    figures = tuple(_figure(entry["file"], one) for one in entry.get("figures", ()))
    return Claim(**{**entry, "figures": figures, "order": tuple(entry.get("order", ()))})


def _figure(file: str, one: Mapping[str, Any]) -> Figure:
    """Return a figure, read from the page: ours is the mean, where it has every seed's value.

    ``seeds`` names a column of each, ``by_seed`` one that lists all of them.
    """

    def read(column: str | int) -> str:
        return cell(one.get("file", file), one["row"], column, one.get("under", ""))

    more = {key: one[key] for key in ("against", "effect", "fitted") if key in one}
    if "std" in one:
        more["std"] = read(one["std"])
    seeds = [read(column) for column in one.get("seeds", ())]
    if "by_seed" in one:
        seeds = read(one["by_seed"]).split(", ")
    more["values"] = tuple(parsed(text)[0] for text in seeds)
    texts = [read(one[key]) for key in ("column", "plus_minus") if key in one]
    return Figure(one["name"], one.get("paper"), " ± ".join(texts), **more)


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
    wanted = [part.strip() for part in row.split("|")]
    head = [""]
    section = ""
    found = []
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


def page(claims: Sequence[Claim]) -> str:
    """Return the page: rules, counts, and a table for each paper."""
    sections = [INTRODUCTION + summary(claims)]
    for paper in dict.fromkeys(claim.paper for claim in claims):
        rows = ["| " + " | ".join(row(claim)) + " |" for claim in claims if claim.paper == paper]
        lines = [f"## {paper}", "", "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD), *rows]
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def row(claim: Claim) -> tuple[str, ...]:
    """Return the cells of a claim in its paper's table, those of :data:`HEAD`."""
    printed = [f"{each.name} {each.paper}{FITTED if each.fitted else ''}" for each in claim.figures if each.paper]
    printed += [_effect(name, size) for name, size in claim.effects.items()]
    ours = [f"{figure.name} {_shown(figure)}" for figure in claim.figures]
    page = claim.file or claim.proof
    link = f"[{Path(page).stem}]({f'../{page}'.replace('../docs/', '')})"
    if claim.proof:
        ours += [f"by calculation, {link}" if claim.proof.endswith(".md") else f"by calculation, `{claim.proof}`"]
    elif ours:
        ours += [f"{link}, {claim.seeds}"]
    why = ". ".join(part for part in (claim.deviations, claim.why) if part)
    return (
        f"{claim.claim} ({claim.where})",
        "; ".join(printed),
        "; ".join(ours),
        claim.outcome + _seen(claim),
        claim.setting,
        why,
        f"`{claim.command}`",
    )


def _effect(name: str, size: str) -> str:
    return f"{name.replace(MINUS, ' / ' if size.startswith(TIMES) else ' − ')} {size.removeprefix(TIMES)}"


def _shown(figure: Figure) -> str:
    return f"{figure.ours} ({', '.join(f'{value:g}' for value in figure.values)})" if figure.values else figure.ours


def _seen(claim: Claim) -> str:
    """Return what an undecided claim's runs could have shown, in brackets."""
    if claim.outcome != UNDECIDED or not claim.order:
        return ""
    least = visible(claim)
    return (
        " (single runs, whose spread is not known)"
        if least == math.inf
        else f" (differences above {least:.2g} would show)"
    )


def summary(claims: Sequence[Claim]) -> str:
    """Return the table of how many claims of each paper have which outcome."""
    rows = [SUMMARY, "|" + "---|" * (len(OUTCOMES) + 2)]
    for paper in (*dict.fromkeys(claim.paper for claim in claims), TOTAL):
        those = [claim.outcome for claim in claims if paper in (claim.paper, TOTAL)]
        counts = (len(those), *(those.count(one) for one in OUTCOMES))
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
    count = {one: sum(claim.outcome == one for claim in claims) for one in OUTCOMES}
    without = sum(claim.outcome == MET and bool(claim.proof) for claim in claims)
    return (
        f"Of {len(claims)} claims of the five papers, {count[MET]} are met with their printed figures ({without} of "
        f"them without a run, by calculation), "
        f"{count[CONFIRMED]} are confirmed, {count[CONTRADICTED]} are contradicted (by our runs, or by a calculation), "
        f"{count[UNDECIDED]} need more runs to decide, and {count[UNTESTED]} are not tested."
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


def main() -> int:
    """Write the page, and the summaries in README and docs; or check what is printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="recompute the rows of results/checks.toml instead")
    parser.add_argument("--only", default="", help="with --check: those whose command holds this")
    given = parser.parse_args()
    if given.check:
        from papers import check

        return check.main(given.only)
    claims = read()
    write(PAGE, page(claims))
    write(TABLED, summarised(TABLED.read_text(encoding="utf-8"), claims))
    write(TOLD, told(TOLD.read_text(encoding="utf-8"), claims))
    return 0


if __name__ == "__main__":
    sys.exit(main())
