"""The page of a paper: each of its tables and figures, with claims, pictures and errata."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commands import Command
from papers import catalog, claims, whole


def test_every_exhibit_names_a_table_and_a_page_that_there_are() -> None:
    for _, _, exhibits in whole.PAPERS.values():
        for one in exhibits:
            if one.command.startswith(whole.R):
                catalog.find(one.command.split()[2])
            assert not one.page or (whole.RESULTS / f"{one.page}.md").is_file(), one.name
    named = {one.command.split()[2] for *_, some in whole.PAPERS.values() for one in some if whole.R in one.command}
    assert set(catalog.TABLES) - named == {"fedgs-noise", "fedgs-choice", "fedgs-baselines"}, "of no exhibit"


def test_every_claim_is_on_its_papers_page_once() -> None:
    found = [claim for paper in whole.PAPERS for those in whole.sorted_claims(paper).values() for claim in those]
    assert sorted(claim.claim for claim in found) == sorted(claim.claim for claim in claims.read())


@pytest.mark.parametrize("paper", whole.PAPERS)
def test_a_page_has_all_sections_in_both_forms(paper: str) -> None:
    text = whole.markdown(paper)
    assert whole.errata(paper).startswith("### "), "each of the five has errata"
    assert whole.errata(paper) in text
    for one in whole.PAPERS[paper][2]:
        assert f"## {one.name}: {one.title}" in text
    made = whole._html(text)
    assert not re.search(r"^\||\]\(|`", made, re.MULTILINE), "no Markdown is left"
    assert made.count("<table>") == len(re.findall(r"^\|---", text, re.MULTILINE))


def test_the_command_writes_a_page_with_pictures(command: Command) -> None:
    said = command("reproduce", "rafed", "--out", "here", "--json")
    assert said.new == {"here", "here/page.html", "here/page.md"}
    assert [row["exhibit"] for row in said.document["rows"]][:2] == ["Table I, Fig. 2, Algorithm 1", "Fig. 3"]
    page = (command.folder / "here" / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") == page.count("<figure>") >= 8
    assert "<h2>Fig. 7: training latency by devices</h2>" in page
    assert not re.search(r"(src|href)=.http", page), "it stands alone"


def test_an_axis_spans_orders_of_magnitude_by_logarithms() -> None:
    near = whole.pictures.beside([("a", 1.0, 2.0, 1.9, 2.1), ("b", 3.0, 4.0, 4.0, 4.0)])
    far = whole.pictures.beside([("a", 979.0, 0.02, 0.02, 0.02)])
    assert "10^{" not in near
    assert far != near


def test_words_of_markdown_become_html() -> None:
    assert whole._words("`a < b` of [claims](claims.md), *so*") == "<code>a &lt; b</code> of claims, <em>so</em>"


def test_pictures_are_drawn_from_stored_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(whole.training_curves()) == 1
    drawn = whole.against_parks("rafed-fig7", "devices", "median_s", "training latency (s)")
    assert [words.split(", ")[-1] for words in drawn()] == ["γ = 1", "γ = 0.1"]
    monkeypatch.setattr(whole, "RESULTS", tmp_path)
    assert drawn() == {}, "nothing is drawn of points that have not been computed"
