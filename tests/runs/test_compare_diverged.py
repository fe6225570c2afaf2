"""A run that diverges does not end a comparison, is named everywhere, and is in no mean."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import fedfloor
from commands import Command, Said, lines
from fedfloor import config
from fedfloor.report.groups import curve, groups
from fedfloor.report.ledger import collect
from fedfloor.report.page import render
from fedfloor.report.story import story
from fedfloor.report.table import paired, summary
from fedfloor.report.words import markdown as table
from fedfloor.tasks.figures import ACCURACY
from refusals import refused
from run_folders import diverge, evaluate, make_run

T1 = math.tan(0.475 * math.pi)  # the 97.5 % point of Student's t with one degree of freedom

# a method of two devices, one of which is given an absurd learning rate in one round
DIVERGES = """
from dataclasses import dataclass
from fedfloor.methods.contract import Method
from fedfloor.plan.nodes import Parallel, Train, Work, device

@dataclass(frozen=True)
class Wild(Method):
    first: int = 2

    def plan(self, state, view, rng):
        rates = (0.01, 3e38 if view.round == self.first else 0.01)
        return Parallel(tuple(Train(device(k), Work(epochs=2, rate=rate)) for k, rate in zip((1, 3), rates)))
"""
WILD = "wild_method:Wild"


def compare(command: Command, *words: str, methods: str = f"fedavg,{WILD},fedprox") -> Said:
    command.module("wild_method", DIVERGES)
    return command("compare", "tiny.toml", "--methods", methods, "--ranks", "1", "--out", "all", *words)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_others_are_done_and_the_one_is_named(command: Command) -> None:
    said = compare(command, "--json")
    assert said.code == 1
    assert f"note: {WILD} seed 0: the loss of device 3 became" in said.err
    assert f"error: 1 of 3 runs diverged: {WILD} seed 0 in round 2." in said.err
    rows = {row["method"]: row for row in said.document["rows"]}
    assert rows[WILD]["accuracy"] is rows[WILD]["loss"] is rows[WILD]["best_accuracy"] is None
    assert rows[WILD]["diverged"] == [{"seed": 0, "round": 2}]
    assert [rows[name]["rounds"] for name in ("fedavg", WILD, "fedprox")] == [3, 1, 3]
    assert rows["fedavg"]["diverged"] == []
    assert [(row["method"], row["against"]) for row in said.document["paired"]] == [("fedavg", "fedprox")]
    assert len(lines(command.folder / "all" / "wild_method.Wild-seed0")) == 1
    page = (command.folder / "all" / "report.html").read_text(encoding="utf-8")
    assert f"Training diverged: {WILD} (seed 0 in round 2)." in page


def test_resume_tries_it_again_and_does_no_finished_round_anew(command: Command) -> None:
    first = compare(command, "--json").document
    before = (command.folder / "all" / "fedprox-seed0" / "ledger.jsonl").read_bytes()
    again = compare(command, "--resume", "--json")
    assert (again.code, again.document) == (1, first)
    assert "round 1/3" not in again.err
    assert (command.folder / "all" / "fedprox-seed0" / "ledger.jsonl").read_bytes() == before
    # gone on with as far as it is sound, it is a run as any other
    shorter = compare(command, "--resume", "--stop-after", "1", "--json")
    assert shorter.code == 0
    assert [row["diverged"] for row in shorter.document["rows"]] == [[], [], []]


def test_one_that_diverges_in_its_first_round_has_a_row_too(command: Command) -> None:
    said = compare(command, "--set", f"methods.{WILD}.first=1")
    assert said.code == 1
    assert "seed 0 in round 1" in said.out
    folder = command.folder / "all" / "wild_method.Wild-seed0"
    assert not (folder / "ledger.jsonl").exists()
    assert json.loads((folder / "diverged.json").read_text())["round"] == 1
    again = command("report", "all", "--json")
    assert again.code == 0
    assert "fedavg-seed0,fedavg" in command("track", "all", "--to", "csv", "--out", "-").out  # it has no round to show
    assert [row["rounds"] for row in again.document["rows"] if row["diverged"]] == [0]
    assert compare(command, "--set", f"methods.{WILD}.first=1", "--resume").out == said.out


def test_all_diverge(command: Command) -> None:
    said = compare(command, "--set", f"methods.{WILD}.first=1", methods=WILD)
    assert said.code == 1
    assert "error: 1 of 1 runs diverged" in said.err
    page = (command.folder / "all" / "report.html").read_text(encoding="utf-8")
    assert "No accuracy to compare has been reached yet." in page
    assert f"Training diverged: {WILD} (seed 0 in round 1)." in page


def test_ranks_agree_on_it(command: Command) -> None:
    one = compare(command, "--json").document
    two = compare(command, "--json", "--out", "two", "--ranks", "2").document
    assert [row["diverged"] for row in two["rows"]] == [row["diverged"] for row in one["rows"]]
    note = Path("wild_method.Wild-seed0") / "diverged.json"
    assert (command.folder / "two" / note).read_text() == (command.folder / "all" / note).read_text()


def test_from_python(command: Command) -> None:
    command.module("wild_method", DIVERGES)
    got = fedfloor.compare(config.read(Path("tiny.toml")), [WILD, "fedavg"], out="all", ranks=1)
    assert got.stopped == "finished"
    assert got.diverged == (Path("all") / "wild_method.Wild-seed0",)
    assert [bool(row["diverged"]) for row in got.rows] == [True, False]
    assert "Training diverged" in got._repr_html_()


# -- what is made of it ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three seeds of two methods; FedSR's seed 1 was ahead when it diverged in round 3."""
    for seed in range(3):
        make_run(tmp_path / f"a{seed}", [0.5, 0.6, 0.7 + seed / 100], method="fedavg", seed=seed, rounds=3)
        make_run(tmp_path / f"b{seed}", [0.5, 0.9, 0.8 + seed / 20][: 2 if seed == 1 else 3], seed=seed, rounds=3)
    diverge(evaluate(tmp_path / "b1"))  # the evaluation is of an earlier stop
    return tmp_path


def test_no_mean_and_no_difference_has_the_seed(folder: Path) -> None:
    rows = {row["method"]: row for row in summary(collect([folder]), 0.9)}
    assert rows["fedsr"]["accuracy"] is rows["fedsr"]["half_width"] is rows["fedsr"]["macro_f1"] is None
    assert (rows["fedsr"]["reached"], rows["fedsr"]["rounds_to_target"]) == (3, 2)  # that it was there stays true
    assert rows["fedavg"]["accuracy"] == pytest.approx(0.71)
    (pair,) = paired(collect([folder]))
    # fedavg − fedsr: 0.70 − 0.80 and 0.72 − 0.90, seeds 0 and 2
    assert (pair["seeds"], pair["left_out"], pair["rounds"]) == ([0, 2], [1], [3])
    assert pair["difference"] == pytest.approx(-0.14)
    assert pair["half_width"] == pytest.approx(0.04 * T1)


def test_the_story_names_it_and_does_not_count_it_as_unfinished(folder: Path) -> None:
    runs = collect([folder])
    told = story(groups(runs), 0.9)
    assert told[-1] == (
        "Training diverged: FedSR (seed 1 in round 3). A method with a diverged run has no mean, and no difference "
        "includes that seed."
    )
    assert "FedSR" not in told[0]  # the standing
    # the leader is a method that holds with every seed
    assert told[2].startswith("No significant difference: FedAvg is behind FedSR by 14.0 percentage points in round 3")


def test_curves_leave_it_out_of_the_mean_and_draw_it(folder: Path) -> None:
    runs = collect([folder])
    fedsr = groups(runs)[1]
    assert curve(fedsr, ACCURACY.read).mean == pytest.approx((0.5, 0.9, 0.85))
    page = render(runs)
    assert "Means exclude diverged seeds." in page
    assert "(without seed 1)" in page
    assert runs[4].evaluation is None


def test_markdown_says_it(folder: Path) -> None:
    head, _, *rest = table(collect([folder])).splitlines()
    assert head.endswith("| diverged |")
    assert [row.split(" | ")[-1] for row in rest] == ["– |", "seed 1 in round 3 |"]


def test_a_damaged_note_is_named(folder: Path) -> None:
    (folder / "b1" / "diverged.json").write_text("{}")
    with refused("damaged-model"):
        collect([folder])


# -- many methods ------------------------------------------------------------------------------------------------------


def many(folder: Path, count: int) -> Path:
    for i in range(count):
        make_run(folder / f"m{i:02}", [0.9 - i / 100], laps=i + 1, name=f"n{i:02}")
    return folder


def test_of_more_than_six_methods_the_pairs_of_the_best_are_shown(command: Command) -> None:
    many(command.folder / "runs", 7)
    said = command("report", "runs", "--json")
    assert len(said.document["paired"]) == 7 * 6 // 2
    shown = command("report", "runs").out
    pairs = " ".join(shown[shown.index("differences in accuracy") :].split())
    assert "only those of fedsr (n00), the best method" in pairs
    assert pairs.count("fedsr (n00)") == 6 + 1
    page = (command.folder / "runs" / "report.html").read_text(encoding="utf-8")
    assert page.count('<th scope="row">FedSR (n00) – ') == 6
    assert "FedSR (n01) – " not in page
    assert "Only those of FedSR (n00), the best method, are listed; --json lists all 21 pairs." in page


def test_of_six_methods_all_pairs_are_shown(tmp_path: Path) -> None:
    page = render(collect([many(tmp_path, 6)]))
    assert page.count(" – FedSR (n") == 6 * 5 // 2
