"""RaFed's figures with 50 parks: a file per point, and the page of the points that are done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import pages, parks


def test_every_point_has_a_file_of_its_own_and_fifty_parks_or_more() -> None:
    every = dict(parks.points())
    assert len(every) == len(list(parks.points())) == 18 + 18 + 12 + 21 + 9
    for what in every.values():
        assert what.parks == tuple(range(len(what.parks)))
        assert (what.draws, len(what.points)) == (5, 1)
    more = {what.points[0].key: len(what.parks) for what in every.values() if len(what.parks) != 50}
    assert more == {point: 5 * len(seeds) for (_, point), seeds in parks.MORE.items()}, "no name is mistyped"


@pytest.mark.usefixtures("few")
def test_points_that_are_done_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / parks.FOLDER
    folder.mkdir()
    done = '{"parks": [0, 1]}'
    (folder / "rafed-fig8-00.json").write_text('{"parks": [0]}')  # of fewer parks than are wanted now
    (folder / "rafed-fig8-01.json").write_text(done)
    monkeypatch.setattr("sys.argv", ["parks", "--results", str(tmp_path), "--only", "rafed-fig8"])
    assert parks.main() == 0
    assert sorted(path.name for path in folder.iterdir()) == ["rafed-fig8-00.json", "rafed-fig8-01.json"]
    assert (folder / "rafed-fig8-01.json").read_text() == done
    made = json.loads((folder / "rafed-fig8-00.json").read_text())
    assert made["parks"] == [0, 1]
    assert [len(row["parks_s"]) for row in made["rows"]] == [2, 2, 2]  # Algorithm 1, our search, the lower bound
    (folder / "rafed-fig8-01.json").unlink()
    text = pages.pages(tmp_path)[parks.FOLDER]
    assert "## Fig. 8: active devices against available devices" in text
    row = next(row for row in made["rows"] if row["scheme"] == "search (ours)")
    assert f"| γ = 1, 10 devices | search (ours) | {row['median_s']:.2f} |" in text


def test_what_a_command_wrote_becomes_a_page_with_its_values(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    results = tmp_path / "results"
    folder.mkdir()
    results.mkdir()
    (folder / "table.json").write_text(json.dumps({"table": "hfedms-cpd", "rows": [{"cpds": [1.0, 2.0]}]}))
    (folder / "table.md").write_text("# hfedms-cpd\n\n![one](hfedms-cpd-one.svg)\n\n| a |\n|---|\n| b |\n")
    (folder / "hfedms-cpd-one.svg").write_text("<svg/>")
    pages.publish(folder, "dealt", results)
    assert (results / "dealt.md").read_text() == "# dealt\n\n![one](dealt-one.svg)\n\n| a |\n|---|\n| b |\n"
    assert (results / "dealt-one.svg").read_text() == "<svg/>"
    assert json.loads((results / "dealt.json").read_text())["computed"]["rows"] == [{"cpds": [1.0, 2.0]}]
    pages.publish(folder, results=results)
    assert (results / "hfedms-cpd.md").read_text() == (folder / "table.md").read_text()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two points of Fig. 8, two parks and one draw."""
    some = [(name, replace(what, parks=(0, 1), draws=1)) for name, what in parks.points() if "fig8-0" in name][:2]
    monkeypatch.setattr(parks, "points", lambda: iter(some))
