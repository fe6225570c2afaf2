"""Runs and comparisons in Python and in notebooks."""

from __future__ import annotations

import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedfloor
from fedfloor.api import progress
from fedfloor.api import run as api
from fedfloor.experiment import DataSettings, ModelSettings, ParkSettings
from fedfloor.runs.ledger import Line
from refusals import refused

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"
TINY = fedfloor.Experiment(
    name="tiny",
    rounds=2,
    data=DataSettings(samples_per_device=40),
    park=ParkSettings(devices=4, factories=2),
    model=ModelSettings("logistic"),
)


def line(number: int, accuracy: float | None) -> Line:
    return Line(number, accuracy, None, 0.5, None, None, None, 1.5, 4, 0, "x")


def test_a_run_shows_itself() -> None:
    shown = api.html(Path("runs/<a>"), "finished", [line(1, 0.25), line(2, None), line(3, 0.5), line(4, 0.375)])
    ET.fromstring(shown)  # well-formed, so that it cannot break the notebook around it
    assert "finished after round 4, 6.0 s of rounds" in shown
    assert "accuracy <b>0.3750</b> (best 0.5000, round 3)" in shown
    assert shown.count("<circle") == 3
    assert "<code>runs/&lt;a&gt;</code>" in shown
    # 0.5 is half-way between 0 and 1
    low, high = api.HEIGHT - api.BOTTOM, api.TOP
    assert f'cy="{(low + high) / 2:.1f}"' in shown
    for colour in ("black", "white", "#000", "#fff"):  # text has the notebook's own colour, light or dark
        assert colour not in shown


def test_a_curve_below_zero_stays_in_its_frame() -> None:
    figures = [{"R2": -3.0}, {"R2": math.inf}, {"R2": 0.5}]
    shown = api.html(Path("runs/a"), "finished", [replace(line(n, None), figures=row) for n, row in enumerate(figures)])
    heights = [float(y) for y in re.findall(r'cy="(.*?)"', shown)]
    assert heights == [api.HEIGHT - api.BOTTOM, api.TOP]


@pytest.mark.parametrize("lines", [[], [line(1, None)], [line(1, 0.5)]])
def test_a_run_with_little_to_show(lines: list[Line]) -> None:
    shown = api.html(Path("runs/a"), "interrupted", lines)
    ET.fromstring(shown)
    assert ("<svg" in shown) == any(one.accuracy is not None for one in lines)


def test_compare_in_python(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    got = fedfloor.compare(
        TINY,
        ["fedavg", "fedsr"],
        [0, 1],
        tmp_path / "all",
        ranks=1,
        report=lambda method, seed, line: seen.append((method, seed, line.round)),
    )
    pairs = [("fedavg", 0), ("fedsr", 0), ("fedavg", 1), ("fedsr", 1)]
    assert seen == [(*pair, number) for pair in pairs for number in (1, 2)]
    assert (got.stopped, len(got.folders)) == ("finished", 4)
    assert [(row["method"], row["seeds"], row["rounds"]) for row in got.rows] == [
        ("fedavg", [0, 1], 2),
        ("fedsr", [0, 1], 2),
    ]
    assert [row["against"] for row in got.differences] == ["fedsr"]
    assert "<td>FedSR</td>" in got._repr_html_()
    ET.fromstring(got._repr_html_())
    assert got.report() == tmp_path / "all" / "report.html"
    assert "FedSR" in got.report().read_text(encoding="utf-8")
    again = fedfloor.compare(TINY, ["fedavg", "fedsr"], [0, 1], tmp_path / "all", ranks=1, resume=True)
    assert again.rows == got.rows
    with refused("exists"):
        fedfloor.compare(TINY, ["fedavg"], [0], tmp_path / "all", ranks=1)


def test_write_report_of_a_run_a_folder_and_several(tmp_path: Path) -> None:
    run = fedfloor.run(TINY, tmp_path / "one", ranks=1)
    assert "<circle" in run._repr_html_()
    assert fedfloor.write_report(run) == tmp_path / "one" / "report.html"
    assert fedfloor.write_report(str(run.folder), tmp_path / "x.html").stat().st_size > 1e6
    assert fedfloor.write_report([run, tmp_path / "one"], tmp_path / "y.html").is_file()


def test_the_tutorial_is_kept_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.read(TUTORIAL, as_version=4)
    nbformat.validate(book)
    assert not [cell for cell in book.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]


CELLS = (
    """
from dataclasses import dataclass
import threading, torch
import fedfloor
torch.set_num_threads(2)

@dataclass(frozen=True)
class Mine(fedfloor.FedAvg):
    "FedAvg under another name."
    factor: float = 0.5
""",
    """
run = fedfloor.run("labels", method=Mine(factor=0.25), model="logistic", devices=2, rounds=2,
                   changes={"data.samples_per_device": 40})
run
""",
    "(threading.active_count() > 1, str(run.folder), torch.get_num_threads())",
)  # a kernel has threads, so that the class cannot be sent to other processes


@pytest.mark.slow
def test_a_class_of_a_cell_trains_with_a_bar_and_again(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (*CELLS, *CELLS[1:])])
    bars: list[str] = []
    client = nbclient.NotebookClient(book, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    process = client.process_message

    def watched(message, *rest):  # type: ignore[no-untyped-def]
        bars.append(message["content"].get("data", {}).get("text/html", ""))
        return process(message, *rest)

    client.process_message = watched  # type: ignore[method-assign]
    client.execute()
    assert any("<progress" in bar for bar in bars)
    shown = [output for cell in book.cells for output in cell.outputs if output.output_type != "stream"]
    pages = [output.data["text/html"] for output in shown if "text/html" in output.data]
    assert not any("<progress" in page for page in pages)  # it is gone at the end
    assert sum("<circle" in page for page in pages) == 2
    values = [output.data["text/plain"] for output in shown if output.data["text/plain"].startswith("(True")]
    assert values == ["(True, 'runs/labels', 2)", "(True, 'runs/labels-2', 2)"]


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(TUTORIAL, as_version=4)
    assert any("seeds=[0, 1, 2]" in cell.source for cell in book.cells)
    first = next(cell for cell in book.cells if "experiment = " in cell.source)
    first.source += "\nimport dataclasses\nbrief = dataclasses.replace(experiment, rounds=2)"
    for cell in book.cells:  # two seeds have an interval, too; the page's own run has all its rounds
        cell.source = cell.source.replace("seeds=[0, 1, 2]", "seeds=[0, 1], ranks=1").replace(
            "compare(experiment", "compare(brief"
        )
    done = nbclient.NotebookClient(book, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    html = "".join(
        output.data.get("text/html", "")
        for cell in done.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type in ("execute_result", "display_data")
    )
    assert "<circle" in html  # the run's curve
    assert "<td>FedSR</td>" in html  # the comparison's table
    assert "ff-plan" in str(done)  # a plan
    lines = (tmp_path / "runs" / "first" / "ledger.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["accuracy"] > 0.5  # of 62 characters: a newcomer sees something being learned
    assert (tmp_path / "runs" / "first-compare" / "report.html").is_file()


def test_a_run_draws_its_round(tmp_path: Path) -> None:
    drawn = fedfloor.run(TINY, tmp_path / "run", ranks=1).draw()
    assert str(drawn) == repr(drawn)
    assert str(drawn).count("device") >= 4
    ET.fromstring(drawn._repr_svg_())
    (tmp_path / "run" / "plan.json").unlink()
    with refused("folder-of-run"):
        fedfloor.load_run(tmp_path / "run").draw()


def test_all_runs_of_a_cell_share_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page makes the output, the others update it, and the last run empties it."""
    shown = []

    def showing(how: str) -> Callable[..., None]:
        return lambda data, raw, display_id: shown.append((how, display_id, bool(data["text/html"]), raw))

    display = SimpleNamespace(display=showing("made"), update_display=showing("updated"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    bar = progress.bars(2, wanted=True)
    for label in ("one", "two"):
        with bar(label, 3):
            pass
    (cell,) = {name for _, name, *_ in shown}
    assert shown == [("made", cell, True, True), ("updated", cell, True, True), ("updated", cell, False, True)]
