"""``fedfloor reproduce``, with a published table that takes no time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commands import Command, lines, pressed
from fedfloor.cli import benchmarking
from fedfloor.runs import launch, ledger
from papers import catalog, work
from papers.cells import Accuracy, Cell, Rounds, Table, Traffic


def cell(setting: str, method: str, *more: Accuracy | Rounds | Traffic) -> Cell:
    partition = {"kind": "iid"} if setting == "iid" else {"kind": "shards", "per_device": 8}
    data = {"name": "labels", "samples_per_device": 40, "partition": partition}
    own = {"fedsr": {"laps": 2}, "diverging": {"work": {"lr": 3e38}}}.get(method, {})
    real = "fedavg" if method == "diverging" else method
    settings = {"data": data, "methods": {real: own}}
    figures = more or (Accuracy(0.5),)
    return Cell(f"{setting}/{method}", "labels", setting, method, real, f"{setting}-{method}", settings, figures)


TINY = Table(
    "tiny", "a table for tests", "nobody, Table 0", 6,
    {"park": {"devices": 4, "factories": 2}, "model": {"name": "logistic"}, "work": {"lr": 0.3}},
    (
        cell("iid", "fedavg", Accuracy(0.25, share=0.5), Accuracy(None)), cell("xi8", "fedavg"),
        cell("iid", "fedsr", Rounds(1, 0.02), Traffic(20, 0.02, "visits, edge-cloud both ways")),
        cell("xi8", "unheard"),
    ),
    ("this was chosen",),
)  # fmt: skip
REPRODUCE = ("reproduce", "tiny", "--ranks", "1", "--scale", "0.5")


@pytest.fixture
def tiny(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line, with a published table that takes no time."""
    monkeypatch.setitem(catalog.TABLES, TINY.name, TINY)  # type: ignore[call-overload]
    return command


def test_the_command_says_what_came_of_it(tiny: Command) -> None:
    said = tiny(*REPRODUCE, "--out", "all", "--json")
    half, end, shards, rounds, sent, missing = said.document["rows"]
    assert "note: 3 runs of up to 3 rounds, 1 not possible here" in said.err
    assert (said.document["rounds"], said.document["paper_rounds"], said.document["scale"]) == (3, 6, 0.5)
    ran = lines(tiny.folder / "all" / "iid-fedavg-seed0")
    assert [line["round"] for line in ran] == [1, 2, 3]
    assert half["figure"] == "accuracy at round 2"
    assert half["measured"] == ran[1]["accuracy"]
    assert half["difference"] == ran[1]["accuracy"] - 0.25
    assert (end["measured"], end["paper"], end["difference"]) == (ran[2]["accuracy"], None, None)
    assert shards["measured"] == lines(tiny.folder / "all" / "xi8-fedavg-seed0")[-1]["accuracy"]
    reached = lines(tiny.folder / "all" / "iid-fedsr-seed0")
    assert reached[-1]["accuracy"] >= 0.02 > max([0.0, *(line["accuracy"] for line in reached[:-1])])  # and no further
    assert rounds["measured"] == len(reached)
    assert sent["measured"] == len(reached) * (2 * 4 + 2 * 2)  # 2 laps of 4 devices; 2 rings, down and up
    assert missing["note"] == "skipped: method 'unheard': not in this version"
    assert "| labels | xi8 | unheard | accuracy | 0.5000 | – |" in (tiny.folder / "all" / "table.md").read_text()
    assert "- this was chosen" in (tiny.folder / "all" / "table.md").read_text()
    assert "3 rounds instead of the paper's 6 (scale 0.5)" in (tiny.folder / "all" / "table.md").read_text()


def test_the_table_of_what_is_there_takes_no_run(tiny: Command) -> None:
    asked = ("reproduce", "tiny", "--scale", "0.5", "--so-far")
    tiny.refused(tiny(*asked), "no run of tiny has begun in runs/reproduce-tiny")
    whole = tiny(*REPRODUCE, "--json").document["rows"]
    assert tiny("reproduce", "tiny", "--ranks", "1", "--scale", "0.5", "--only", "iid/fedavg", "--out", "one").code == 0
    there = lines(tiny.folder / "one" / "iid-fedavg-seed0")
    said = tiny(*asked, "--out", "one", "--json")
    assert said.document["rows"] == whole[:2]
    assert "note: 4 figures of runs that have not begun are left out" in said.err
    assert sorted(one.name for one in (tiny.folder / "one").iterdir()) == ["iid-fedavg-seed0", "table.json", "table.md"]
    assert lines(tiny.folder / "one" / "iid-fedavg-seed0") == there
    tiny.refused(tiny("reproduce", "hfedms-cpd", "--so-far"), "is not made of runs")


def test_one_park_serves_the_runs_in_it(tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = launch.build_park
    monkeypatch.setattr(launch, "build_park", lambda what: built.append(what) or build(what))
    assert tiny(*REPRODUCE, "--seeds", "0,1").code == 0
    kinds = [(what.seed, what.data.partition.kind) for what in built]
    assert kinds == [(0, "iid"), (0, "shards"), (1, "iid"), (1, "shards")]


def test_ctrl_c_prints_what_is_there_and_resume_goes_on(tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiny(*REPRODUCE, "--out", "whole").code == 0
    whole = (tiny.folder / "whole" / "table.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "append", pressed(lambda _path, line: line.round == 2, ledger.append))
        said = tiny(*REPRODUCE, "--out", "all", "--json")
    assert said.code == 130
    assert said.err.endswith("stopped. Continue with the same command and --resume\n")
    notes = [row["note"] for row in said.document["rows"]]
    assert notes[:5] == [None, "after round 2 of 3", "not run yet", "not run yet", "not run yet"]
    tiny.refused(
        tiny(*REPRODUCE, "--out", "all"), "all/iid-fedavg-seed0 already holds a run. Continue it with --resume"
    )
    assert tiny(*REPRODUCE, "--out", "all", "--resume").code == 0
    assert (tiny.folder / "all" / "table.json").read_bytes() == whole
    before = {path: path.read_bytes() for path in tiny.folder.glob("all/*/ledger.jsonl")}
    assert len(before) == 3
    assert tiny(*REPRODUCE, "--out", "all", "--resume").code == 0  # nothing is left to do
    assert {path: path.read_bytes() for path in before} == before  # the seconds of the rounds, too
    assert (tiny.folder / "all" / "table.json").read_bytes() == whole
    other = tiny(*REPRODUCE[:-1], "1", "--out", "all", "--resume")
    assert other.code == 2
    assert "was started differently: rounds: 3 → 6" in other.err


def test_a_run_that_diverges_does_not_end_the_table(tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    table = replace(TINY, cells=(cell("iid", "diverging"), cell("iid", "fedavg")))
    monkeypatch.setitem(catalog.TABLES, "tiny", table)  # type: ignore[call-overload]
    bad, good = tiny(*REPRODUCE, "--json").document["rows"]
    assert (bad["measured"], bad["note"]) == (None, "diverged, seed 0")
    assert good["measured"] is not None
    assert good["note"] is None


def test_a_table_without_a_cell_that_can_be_run_is_a_table(tiny: Command) -> None:
    said = tiny(*REPRODUCE, "--only", "unheard", "--out", "none")
    assert said.code == 0
    assert said.new == {"none", "none/table.md", "none/table.json"}


def test_the_tables_are_listed_with_what_they_cost(command: Command) -> None:
    rows = {row["table"]: row for row in command("reproduce", "--scale", "0.1", "--json").document["rows"]}
    fedsr = [f"fedsr-{one}" for one in ("table1", "settings", "table2", "table3", "table4", "2nn")]
    fedgs = [f"fedgs-{one}" for one in ("table2", "grid", "noise", "baselines", "log", "choice", "skew")]
    hfedms = [f"hfedms-{one}" for one in ("table3", "table4", "growth")]
    fldg = [f"fldg-{one}" for one in ("cases", "cases-cifar", "groups", "hash")]
    figures = [*(f"rafed-fig{i}" for i in (3, 5, 6, 7, 8)), "fedgs-samplers", "hfedms-cpd", "fldg-privacy"]
    assert list(rows) == [*fedsr, *fedgs, "rafed-fig4", *hfedms, *fldg, "hfedms-forgetting", "hfedms-tuned", *figures]
    two = rows["fedsr-table2"]
    assert two["runs"] == 4 * (1 + 6 * 5)  # centralised training is one run per data set
    assert two["rounds"] == (two["runs"] - two["not_possible_here"]) * 50
    command.refused(command("reproduce", "fedsr-table5"), "unknown table 'fedsr-table5'. Known: ")
    command.refused(command("reproduce", "fedsr-table2", "--scale", "2"), "--scale = 2.0: must be a share")


def test_a_full_table_does_not_speak_of_scale(tmp_path: Path) -> None:
    what = work.plan(TINY, "iid/fedavg", 1.0, [0], tmp_path)
    assert work.heading(what) == "nobody, Table 0: a table for tests, 6 rounds"


# -- real data ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cell_on_mnist_twice(data_root: Path, command: Command) -> None:
    assert data_root
    words = ("reproduce", "fedsr-table3", "--only", "mnist/xi2/fedsr", "--scale", "0.004", "--ranks", "1", "--out", "t")
    first = command(*words, "--json")
    assert first.code == 0
    rounds, sent = first.document["rows"]
    done = lines(command.folder / "t" / "mnist-xi2-fedsr-seed0")
    assert rounds["rounds_done"] == len(done) <= 2
    assert sent["measured"] == (rounds["measured"] and 110 * rounds["measured"])
    table = (command.folder / "t" / "table.md").read_bytes()
    assert command(*words, "--json", "--resume").document == first.document
    assert (command.folder / "t" / "table.md").read_bytes() == table
    assert lines(command.folder / "t" / "mnist-xi2-fedsr-seed0") == done


def test_without_the_sources_the_command_names_their_folder(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from an installed wheel, which holds neither papers nor benchmarks."""
    monkeypatch.setattr(benchmarking, "ROOT", command.folder)
    command.refused(command("reproduce"), "needs the folder papers/", "--papers DIR")
    command.refused(command("bench", "price"), "needs the folder benchmarks/")
    command.refused(command("reproduce", "--papers", "elsewhere", "fedsr-table2"), "elsewhere is not that folder")
    sources = Path(work.__file__).parent
    assert command("reproduce", "--papers", str(sources), "--json").document["rows"]
    monkeypatch.setenv("FEDFLOOR_PAPERS", str(sources))
    assert command("reproduce", "--json").document["rows"]
