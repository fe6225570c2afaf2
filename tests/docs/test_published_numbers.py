"""The figures in README, docs and the claims are those of the results' pages: a digit that is changed shows."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from benchmarks import pages
from fedfloor.base.errors import SettingError
from papers import claims, documents
from papers.verdicts import CONFIRMED, CONTRADICTED, MET, UNTESTED, outcome

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
FIGURE = re.compile(r"(?<![\d.^])\d[\d,]*\.\d+")
# tables whose figures stand in no results' page, or in several
SKIPPED = (
    "| method | accuracy in round 100 | seed by seed |",
    "| you have | begin with | because |",  # below: advice on methods
    "| method | paper |",  # numbers of papers
    "| key of ",  # constants, no results
)
MADE = ("claims.md", "results.md")  # made of results themselves; measured, with its commands, and no JSON
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in MADE)
CODE = re.compile(r"`[^`]*`")
Row = tuple[str, list[float]]


def value(text: str) -> float:
    return float(text.replace(",", ""))


def results() -> list[Row]:
    """The rows of the results' pages with the numbers in them, and the page's name."""
    pages = sorted((ROOT / "results").glob("*.md"))
    lines = [(page.name, line) for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    return [(name, [value(one) for one in NUMBER.findall(line)]) for name, line in lines if NUMBER.search(line)]


RESULTS = results()


def figures(page: str) -> list[str]:
    """The rows of a page's tables that have figures with decimals."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    found = []
    skipped = False
    for line in lines:
        line = CODE.sub("", line)  # commands are no figures
        skipped = line.startswith("|") and (skipped or line.startswith(SKIPPED))
        if line.startswith("|") and not skipped and FIGURE.search(line):
            found.append(line)
    return found


def among(figure: str, numbers: list[float], scales: tuple[float, ...]) -> bool:
    """Whether a figure is one of these numbers, rounded to the figure's places."""
    half = 0.5 * 10.0 ** -len(figure.partition(".")[2]) + 1e-9
    return any(abs(number * scale - value(figure)) <= half for number in numbers for scale in scales)


def in_a_row(line: str) -> bool:
    """Whether a single row of a results' page has all figures of a row."""
    wanted = FIGURE.findall(line)
    return any(all(among(one, numbers, (1.0,)) for one in wanted) for _, numbers in RESULTS)


def in_a_page(line: str) -> bool:
    """Whether a single results' page has them: there a method is a row, here a column. Shares may be in per cent."""
    wanted = FIGURE.findall(line)
    pages = {name for name, _ in RESULTS}
    inside = ([number for name, numbers in RESULTS if name == page for number in numbers] for page in pages)
    return any(all(among(one, numbers, (1.0, 100.0)) for one in wanted) for numbers in inside)


@pytest.mark.parametrize("line", figures("README.md"))
def test_rows_of_the_readme_are_rows_of_the_results(line: str) -> None:
    assert in_a_row(line)


def test_tables_of_docs_have_figures_of_a_results_page() -> None:
    rows = {page: figures(f"docs/{page}") for page in PAGES}
    assert len(rows["reproduce.md"]) > 40
    assert [(page, line) for page, lines in rows.items() for line in lines if not in_a_page(line)] == []


def test_advice_on_methods_has_figures_of_the_results_that_it_is_made_of() -> None:
    """Its rows draw from several pages. Figures in words are rounded, or per cent of accuracies."""
    named = {"choose", "personal", "cmapss", "cohorts"}
    numbers = [number for name, row in RESULTS if Path(name).stem in named for number in row]
    advice = (ROOT / "docs/choose.md").read_text(encoding="utf-8").split("## In short")[1].split("## Data that stay")[0]
    wanted = [one for line in advice.splitlines() for one in FIGURE.findall(CODE.sub("", line))]
    assert len(wanted) > 30
    assert [one for one in wanted if not among(one, numbers, (1.0, 100.0))] == []


def test_a_changed_digit_shows() -> None:
    """Every last digit of every figure in the README's tables, one more than it is."""
    missed = []
    for line in figures("README.md"):
        for match in FIGURE.finditer(line):
            end = match.end()
            changed = f"{line[: end - 1]}{(int(line[end - 1]) + 1) % 10}{line[end:]}"
            missed += [changed] if in_a_row(changed) else []
    assert missed == []


def test_every_page_of_results_is_made_of_the_json_beside_it() -> None:
    made = pages.pages()
    there = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "results").glob("*.md")}
    assert made.keys() == there.keys()
    assert [name for name in there if made[name] != there[name]] == [], "python -m benchmarks.pages"


def test_a_command_writes_its_page_and_json_and_keeps_remarks(tmp_path: Path) -> None:
    page = tmp_path / "one.md"
    table = {"columns": ["a"], "rows": [["0.5"]]}
    source = page.with_suffix(".json")
    source.write_text(json.dumps({"blocks": ["old"], "converted": True, "remarks": ["By hand."]}))
    documents.publish(page, ["# One", table], runs=[0.5])
    assert page.read_text(encoding="utf-8") == "# One\n\n| a |\n|---|\n| 0.5 |\n\nBy hand.\n"
    assert pages.pages(tmp_path) == {"one": page.read_text(encoding="utf-8")}
    assert json.loads(source.read_text(encoding="utf-8")).keys() == {"page", "runs", "blocks", "remarks"}


def test_the_claims_page_and_its_summaries_are_made_of_the_claims() -> None:
    found = claims.read()
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page(found), "python -m papers.claims"
    assert claims.summary(found) in claims.TABLED.read_text(encoding="utf-8"), "python -m papers.claims"
    assert claims.sentence(found) in claims.TOLD.read_text(encoding="utf-8"), "python -m papers.claims"


def test_outcomes_follow_from_the_figures() -> None:
    for claim in claims.read():
        assert claim.why
        assert bool(claim.setting) == (claim.outcome != UNTESTED), claim.claim
        if claim.figures:
            assert outcome(claim) == claim.outcome, claim.claim
        elif claim.proof:
            assert claim.outcome in (MET, CONFIRMED, CONTRADICTED), claim.claim
            assert (ROOT / claim.proof).exists(), claim.claim
        else:
            assert claim.outcome == UNTESTED, claim.claim


def test_figures_in_words_about_claims_stand_in_their_file() -> None:
    for claim in claims.read():
        page = claim.file or claim.proof
        text = (ROOT / page).read_text(encoding="utf-8") if page else ""
        numbers = [value(one) for one in NUMBER.findall(text)]
        wanted = FIGURE.findall(claim.why) + (FIGURE.findall(claim.deviations) if claim.file else [])
        assert [one for one in wanted if not among(one, numbers, (1.0,))] == [], claim.claim


def test_a_changed_digit_of_a_result_changes_its_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last digit of every claim's last figure, wherever that stands in its file."""
    entries = [one for one in tomllib.loads(claims.SOURCE.read_text(encoding="utf-8"))["claims"] if "figures" in one]
    before = [claims.claim_of(entry) for entry in entries]
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    for entry, claim in zip(entries, before, strict=True):
        number = re.match(r"[^ ]*", claim.figures[-1].ours)
        assert number is not None
        old = number[0]
        new = "1" if old == "–" else f"{old[:-1]}{(int(old[-1]) + 1) % 10}"
        *_, last = files = [one.get("file", claim.file) for one in entry["figures"]]
        for file in files:
            text = (ROOT / file).read_text(encoding="utf-8")
            changed = re.sub(rf"(?<![\d.]){re.escape(old)}(?![\d.])", new, text) if file == last else text
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text(changed, encoding="utf-8")
        with contextlib.suppress(SettingError):  # a row that is found by this figure is not there any more
            assert claims.claim_of(entry) != claim, claim.claim
