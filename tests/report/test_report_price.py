"""What runs cost, from ledgers made by hand: crossings of a target and of a budget, in words, tables and curves."""

from __future__ import annotations

import json
import math
from html import unescape
from pathlib import Path

import pytest

from commands import Command
from fedfloor.report import charts
from fedfloor.report.groups import groups
from fedfloor.report.ledger import RecordedRun, collect
from fedfloor.report.numbers import amount
from fedfloor.report.page import render
from fedfloor.report.sections import budget_story
from fedfloor.report.story import prices
from fedfloor.report.table import Budget, at, paired_at, summary
from fedfloor.report.words import markdown as table
from refusals import refused
from run_folders import diverge, make_run, price

T1 = math.tan(0.475 * math.pi)  # the 97.5 % point of Student's t with one degree of freedom
LINKS = [{"device_edge_up": 3, "edge_cloud_up": 1}]


@pytest.fixture
def priced(tmp_path: Path) -> tuple[RecordedRun, ...]:
    """FedSR needs fewer rounds, which are long and of few bytes; HierFAVG, which has a round that was not evaluated,
    has short ones of many.

    ====================  ====================  ============================
    after round           FedSR (seeds 0, 1)    HierFAVG (seeds 0, 1)
    ====================  ====================  ============================
    accuracy              .5 .8 .9; .6 .7 .8    .4 – .7 .85; .4 – .8 .9
    seconds               100 200 300; same     10 20 30 40; 20 40 60 80
    bytes                 4 8 12                40 80 120 160
    joules                5 10 15               2 4 6 8
    ====================  ====================  ============================
    """
    folder = tmp_path / "runs"
    for seed, curve in enumerate(([0.5, 0.8, 0.9], [0.6, 0.7, 0.8])):
        price(make_run(folder / f"fedsr-{seed}", curve, seed=seed), [100.0] * 3, LINKS * 3, [5.0] * 3)
    for seed, rest in enumerate(([0.7, 0.85], [0.8, 0.9])):
        run = make_run(folder / f"hierfavg-{seed}", [0.4, None, *rest], method="hierfavg", seed=seed)
        price(run, [10.0 * (seed + 1)] * 4, [{"device_edge_up": 40}] * 4, [2.0] * 4)
    return collect([folder])


def test_costs_are_added_up_over_rounds_and_links(priced: tuple[RecordedRun, ...]) -> None:
    last = priced[0].rounds[-1].spent
    assert last is not None
    assert (last.seconds, last.bytes, last.joules) == (300.0, 12.0, 15.0)


def test_what_a_target_cost_is_the_sum_up_to_the_round_that_has_it(priced: tuple[RecordedRun, ...]) -> None:
    fedsr, hier = summary(priced, 0.8)
    # FedSR: round 2 with seed 0 (200 s, 8 bytes, 10 J), round 3 with seed 1 (300 s, 12 bytes, 15 J)
    assert [fedsr[f"{kind}_to_target"] for kind in ("rounds", "seconds", "bytes", "joules")] == [2.5, 250, 10, 12.5]
    assert [fedsr[kind] for kind in ("seconds", "bytes", "joules")] == [300, 12, 15]
    # HierFAVG: round 4 with seed 0 (40 s, 160 bytes, 8 J), round 3 with seed 1 (60 s, 120 bytes, 6 J)
    assert [hier[f"{kind}_to_target"] for kind in ("rounds", "seconds", "bytes", "joules")] == [3.5, 50, 140, 7]
    assert hier["seconds"] == (40 + 80) / 2


def test_a_target_that_one_seed_missed_has_no_cost(priced: tuple[RecordedRun, ...]) -> None:
    fedsr, hier = summary(priced, 0.9)
    assert (fedsr["reached"], fedsr["seconds_to_target"], hier["bytes_to_target"]) == (1, None, None)
    assert fedsr["seconds"] == 300


def test_the_story_says_that_it_depends_on_the_measure(priced: tuple[RecordedRun, ...]) -> None:
    assert prices(summary(priced, 0.8)) == (
        "To an accuracy of 80\xa0%, FedSR needed the fewest rounds (2.5) and the fewest bytes (10 B); HierFAVG needed "
        "the least time (50 s) and the least energy (7 J): the order of the methods depends on the measure."
    )
    # 0.85: only HierFAVG, in round 4 with both seeds: (40 + 80)/2 s, 160 bytes, 8 J
    assert prices(summary(priced, 0.85)) == (
        "To an accuracy of 85\xa0%, HierFAVG used 1 min, 160 B and 8 J on the network."
    )
    assert prices(summary(priced, 0.95)) == ""
    # 0.4: both in round 1: 100 s against (10 + 20)/2, 4 bytes against 40, 5 J against 2
    assert "FedSR and HierFAVG needed the fewest rounds (1); HierFAVG needed the least time (15 s)" in prices(
        summary(priced, 0.4)
    )


def test_the_first_by_every_measure(tmp_path: Path) -> None:
    price(make_run(tmp_path / "a", [0.9]), [1.0], LINKS)
    price(make_run(tmp_path / "b", [0.5, 0.9], method="fedavg"), [1.0] * 2, LINKS * 2)
    assert prices(summary(collect([tmp_path]), 0.9)) == (
        "To an accuracy of 90\xa0%, FedSR needed the fewest rounds (1), the least time (1 s) and the fewest bytes "
        "(4 B): the first by every measure."
    )


def test_who_is_best_for_a_budget(priced: tuple[RecordedRun, ...]) -> None:
    fedsr, hier = at(priced, Budget("seconds", 100))
    # FedSR: round 1 ends at 100 s sharp. HierFAVG was over after 40 and 80 s.
    assert (fedsr["accuracy"], fedsr["in_rounds"], fedsr["ended"]) == (pytest.approx(0.55), [1, 1], [])
    assert fedsr["half_width"] == pytest.approx(0.05 * T1)
    assert (hier["accuracy"], hier["in_rounds"], hier["ended"]) == (pytest.approx(0.875), [4, 4], [0, 1])
    (pair,) = paired_at(priced, Budget("seconds", 100))
    # 0.5 − 0.85 = −0.35 and 0.6 − 0.9 = −0.30
    assert (pair["seeds"], pair["difference"]) == ([0, 1], pytest.approx(-0.325))
    assert pair["half_width"] == pytest.approx(0.025 * T1)
    assert "rounds" not in pair


def test_a_round_that_ends_behind_the_budget_or_was_not_evaluated_does_not_count(
    priced: tuple[RecordedRun, ...],
) -> None:
    fedsr, hier = at(priced, Budget("seconds", 59.5))
    assert (fedsr["accuracy"], fedsr["in_rounds"]) == (None, [None, None])  # no round of it fits
    # seed 0 was over after 40 s; seed 1 did two rounds in 40 s, of which the second was not evaluated
    assert (hier["accuracy"], hier["in_rounds"], hier["ended"]) == (pytest.approx((0.85 + 0.4) / 2), [4, 1], [0])
    assert paired_at(priced, Budget("seconds", 59.5)) == []


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget("bytes", 119), [0.85, 0.4]),  # HierFAVG: two rounds of 40 bytes, the second not evaluated
        (Budget("bytes", 8), [0.75, None]),
        (Budget("joules", 10), [0.75, 0.875]),
        (Budget("rounds", 3), [0.85, 0.75]),
    ],
    ids=str,
)
def test_budgets_of_other_kinds(priced: tuple[RecordedRun, ...], budget: Budget, expected: list[float | None]) -> None:
    got = [row["accuracy"] for row in at(priced, budget)]
    assert got == [one if one is None else pytest.approx(one) for one in expected]


def test_a_run_that_diverged_counts_only_for_budgets_that_were_used_before(tmp_path: Path) -> None:
    run = price(make_run(tmp_path / "a", [0.5, 0.6]), [10.0, 10.0])
    diverge(run)
    runs = collect([tmp_path])
    assert [at(runs, Budget("seconds", most))[0]["accuracy"] for most in (15, 20, 21)] == [0.5, 0.6, None]
    assert [at(runs, Budget("rounds", most))[0]["accuracy"] for most in (1, 2, 3)] == [0.5, 0.6, None]


def test_runs_without_a_price(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [0.5, 0.6])
    runs = collect([run])
    with refused("--at"):
        at(runs, Budget("bytes", 1e9))
    assert summary(runs, 0.5)[0]["seconds_to_target"] is None
    assert "Costs on the network" not in render(runs)
    price(make_run(tmp_path / "b", [0.5], method="fedavg"), [1.0])
    assert [row["accuracy"] for row in at(collect([tmp_path]), Budget("seconds", 5))] == [None, 0.5]
    # a price that is missing in one round is not taken for nothing
    text = (tmp_path / "b" / "ledger.jsonl").read_text()
    (tmp_path / "b" / "ledger.jsonl").write_text(
        text + json.dumps({"round": 2, "priced": None, "accuracy": 0.7}) + "\n"
    )
    assert [line.spent is None for line in collect([tmp_path / "b"])[0].rounds] == [False, True]


def test_curves_against_costs(priced: tuple[RecordedRun, ...]) -> None:
    drawn = charts.cost_figure(groups(priced), "seconds", 0.8)
    means = {trace.name: list(zip(trace.x, trace.y, strict=True)) for trace in drawn.data if trace.name}
    # 300 s is shown in minutes; the mean of HierFAVG is drawn where its seeds are on average: 15, 45 and 60 s
    assert means["FedSR"] == [
        (pytest.approx(100 * i / 60), pytest.approx(y)) for i, y in ((1, 0.55), (2, 0.75), (3, 0.85))
    ]
    assert means["HierFAVG"] == [
        (pytest.approx(x / 60), pytest.approx(y)) for x, y in ((15, 0.4), (45, 0.75), (60, 0.875))
    ]
    assert drawn.layout.xaxis.title.text == "time on the network (min)"
    assert len(drawn.data) == 2 * 4  # per method: a band, two seeds and their mean


def test_no_curve_against_what_nothing_was_spent_of(tmp_path: Path) -> None:
    runs = collect([price(make_run(tmp_path / "a", [0.5]), [2.0], LINKS)])
    assert charts.cost_figure(groups(runs), "joules") is None
    page = render(runs)
    assert "Accuracy against time" in page
    assert "Accuracy against bytes" in page
    assert "Accuracy against energy" not in page


def test_the_story_of_a_budget(priced: tuple[RecordedRun, ...]) -> None:
    low = f"HierFAVG 87.5\xa0% ({87.5 - 2.5 * T1:.1f} to 100.0), FedSR 55.0\xa0% (0.0 to 100.0)"
    assert budget_story(priced, Budget("seconds", 100)) == f"After 100 s on the network, the accuracies are: {low}."
    # 59.5 s: no round of FedSR fits; HierFAVG 0.85 and 0.4
    assert budget_story(priced, Budget("seconds", 59.5)) == (
        "After 59.5 s on the network, the accuracies are: HierFAVG 62.5\xa0% (0.0 to 100.0); FedSR had none by then."
    )
    assert "no method has an accuracy" in budget_story(priced, Budget("seconds", 5))
    assert budget_story(priced, Budget("seconds", 100)) in unescape(render(priced, 0.8, Budget("seconds", 100)))


def test_the_page_has_the_table_and_the_budget(priced: tuple[RecordedRun, ...]) -> None:
    page = render(priced, 0.8, Budget("seconds", 100))
    assert '<a href="#s-cost">' in page
    assert "Ranking after 100 s on the network" in page
    for cells in (
        ("FedSR", "2.5", "4.17 min", "10 B", "12.5 J", "5 min", "12 B", "15 J"),
        ("HierFAVG", "3.5", "50 s", "140 B", "7 J", "1 min", "160 B", "8 J"),
    ):
        names, *rest = cells
        row = page[page.index(f'<th scope="row">{names}</th>', page.index('id="s-cost"')) :]
        row = row[: row.index("</tr>")]
        assert [cell.split("<")[0] for cell in row.split(">") if cell.endswith("</td")] == rest


def test_markdown_with_costs(priced: tuple[RecordedRun, ...]) -> None:
    head, _, fedsr, _ = table(priced, 0.8, Budget("rounds", 1)).splitlines()
    assert head.split(" | ")[8:] == [
        "rounds to 0.8", "time to 0.8", "bytes to 0.8", "energy to 0.8", "time", "bytes", "energy", "after 1 round |",
    ]  # fmt: skip
    assert fedsr.split(" | ")[8:] == [
        "2.5", "4.17 min", "10 B", "12.5 J", "5 min", "12 B", "15 J", "0.5500 (0.0000 to 1.0000) |",
    ]  # fmt: skip


def test_amounts_have_three_digits_and_a_unit() -> None:
    assert [amount("seconds", x) for x in (0.5, 59, 90, 5400, 90000)] == ["0.5 s", "59 s", "1.5 min", "1.5 h", "1.04 d"]
    assert [amount("bytes", x) for x in (0, 999, 1234567, 5e17)] == ["0 B", "999 B", "1.23 MB", "500 PB"]
    assert [amount("joules", x) for x in (0.02, 7, 123456)] == ["20 mJ", "7 J", "123 kJ"]


@pytest.mark.parametrize("what", ["--at seconds=100", "--at rounds=2"])
def test_the_report_command_compares_at_a_budget(priced: tuple[RecordedRun, ...], command: Command, what: str) -> None:
    document = command("report", "runs", "--target", "0.8", *what.split(), "--json").document
    kind, most = what.removeprefix("--at ").split("=")
    budget = Budget(kind, float(most))
    assert document["at"] == {"budget": kind, "most": float(most), "rows": at(priced, budget),
                              "paired": paired_at(priced, budget)}  # fmt: skip
    assert document["rows"][0]["joules_to_target"] == 12.5
    shown = command("report", "runs", "--target", "0.8", *what.split()).out
    assert "cost on the network" in shown
    assert "4.17 min" in shown
    assert f"after {budget.words}" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("seconds", "--at seconds: give a number, such as seconds=3600."),
        ("accuracy=0.8", "unknown --at 'accuracy'. Known: bytes, joules, rounds, seconds."),
        ("second=3", "unknown --at 'second'. Did you mean 'seconds'?"),
        ("seconds=0", "seconds (--at) = 0.0: must be a number above 0, such as 3600."),
        ("bytes=inf", "bytes (--at) = inf: must be"),
        ("rounds=1.5", "rounds (--at) = 1.5: must be a whole number of at least 1."),
        ("seconds=1,bytes=2", "--at seconds=1,bytes=2: give one budget, such as seconds=3600."),
        ("seconds=3", "--at seconds: these runs have no price"),
    ],
)
def test_at_refuses(command: Command, words: str, message: str) -> None:
    make_run(command.folder / "runs", [0.5])
    command.refused(command("report", "runs", "--at", words), message)
