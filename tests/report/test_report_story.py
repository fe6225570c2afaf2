"""The story on top of the report: true for one run and for many, for ties, for runs that are not done."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedfloor.report.groups import display_name, groups
from fedfloor.report.ledger import collect
from fedfloor.report.remarks import remarks
from fedfloor.report.story import story, verdict
from fedfloor.report.table import natural_target, summary
from run_folders import make_run

T1 = math.tan(0.475 * math.pi)  # the 97.5 % point of Student's t with one degree of freedom


def told(folder: Path, target: float | None = None) -> list[str]:
    runs = collect([folder])
    hindsight = target is None
    return story(groups(runs), natural_target(runs) if hindsight else target, hindsight=hindsight)


def test_one_run(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5, 0.7, 0.83])
    assert told(tmp_path) == [
        "In round 3, the share of the test samples that the model gets right: FedSR 83.0\xa0%.",
        "This is one run with one seed: the difference to another seed is not known.",
    ]


def test_one_run_reaches_the_target_that_was_asked_for(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5, 0.7, 0.83], devices=20)
    first, reached, *_, last = told(tmp_path, 0.8)
    assert first.endswith("FedSR 83.0\xa0%.")
    assert reached == "FedSR reached an accuracy of 80\xa0% after 3 rounds."
    assert last == (
        "On about nine devices in ten, the model of FedSR has an accuracy of at least 41.5\xa0%, measured or expected "
        "by the classes they hold: the runs do not record which."  # p10 is half the accuracy
    )


def test_two_methods_with_two_seeds_that_differ_by_more_than_chance(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"a{seed}", [0.9, 0.90 + seed / 100], seed=seed)
        make_run(tmp_path / f"b{seed}", [0.2, 0.40 + seed * 0.012], method="fedavg", seed=seed)
    paragraphs = told(tmp_path, 0.8)
    assert paragraphs[1] == (
        "FedSR reached an accuracy of 80\xa0% after 1 round (mean of 2 seeds); FedAvg did not within 2."
    )
    # differences 0.5 and 0.498: mean 0.499, half of their distance times t around it
    low, high = 0.499 - 0.001 * T1, 0.499 + 0.001 * T1
    assert paragraphs[2] == (
        f"FedSR is ahead of FedAvg by 49.9 percentage points in round 2 (95 % interval {100 * low:.1f} to "
        f"{100 * high:.1f} over 2 seeds; p = 0.001): more than chance explains."
    )


def test_an_interval_around_zero_tells_nothing_apart(tmp_path: Path) -> None:
    for seed, ahead in enumerate((0.1, 0.3)):
        make_run(tmp_path / f"a{seed}", [0.5 + ahead], seed=seed)
        make_run(tmp_path / f"b{seed}", [0.5], method="fedavg", seed=seed)
    paragraph = told(tmp_path)[2]
    assert 0.1 * T1 - 0.2 > 1  # Student's interval is wider than differences of shares can be, which end at −1 and 1
    # t = 0.2/0.1 with one degree of freedom: p = 1 − 2·arctan(2)/π
    assert paragraph.endswith("(95 % interval −100.0 to 100.0 over 2 seeds; p = 0.295).")
    assert paragraph.startswith(
        "No significant difference: FedSR is ahead of FedAvg by 20.0 percentage points in round 1 (95 %"
    )


def test_one_seed_each_proves_nothing(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5, 0.75])
    make_run(tmp_path / "b", [0.5, 0.5], method="fedavg")
    assert told(tmp_path)[2] == (
        "FedSR is ahead of FedAvg by 25.0 percentage points in round 2, with one common seed: more seeds are needed "
        "to exclude chance."
    )


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_tie(tmp_path: Path, seeds: int) -> None:
    for seed in range(seeds):
        make_run(tmp_path / f"a{seed}", [0.75], seed=seed)
        make_run(tmp_path / f"b{seed}", [0.75], method="fedavg", seed=seed)
    which = "the only common seed" if seeds == 1 else "every common seed"
    assert told(tmp_path)[1] == f"FedSR and FedAvg are equally accurate in round 1, with {which}."


def test_more_than_a_handful_of_methods_are_counted_not_named(tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox", "moon", "ida", "qffl"):
        make_run(tmp_path / method, [0.5, 0.6], method=method)
    assert told(tmp_path, 0.9)[1] == "5 methods did not reach an accuracy of 90\xa0% within 2 rounds."
    make_run(tmp_path / "fedsr", [0.5, 0.95], method="fedsr")
    assert told(tmp_path, 0.9)[1] == "FedSR reached an accuracy of 90\xa0% after 2 rounds; 5 others did not within 2."


def test_nobody_reached_the_target(tmp_path: Path) -> None:
    for method, rounds in (("fedsr", 2), ("fedavg", 2), ("hierfavg", 1)):
        make_run(tmp_path / method, [0.5] * rounds, method=method)
    assert told(tmp_path, 0.9)[1] == (
        "HierFAVG did not reach an accuracy of 90\xa0% within 1 round; FedAvg and FedSR did not within 2."
    )


def test_nothing_was_evaluated(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [None, None])
    assert told(tmp_path)[0] == "No accuracy to compare has been reached yet."


def test_methods_that_share_no_seed_are_not_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.9], seed=0)
    make_run(tmp_path / "b", [0.5], method="fedavg", seed=1)
    assert any("cannot be compared seed by seed" in text for text in told(tmp_path))


def test_different_numbers_of_rounds_are_compared_where_both_are(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5, 0.6, 0.9], rounds=3)
    make_run(tmp_path / "b", [0.75], method="fedavg", rounds=3)
    paragraphs = told(tmp_path, 0.9)
    assert "In their last rounds" in paragraphs[0]
    assert "FedSR 90.0\xa0% (round 3), FedAvg 75.0\xa0% (round 1)" in paragraphs[0]
    assert paragraphs[2].startswith("FedAvg is ahead of FedSR by 25.0 percentage points in round 1")


def test_runs_that_are_not_done_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "a0", [0.5, 0.6], seed=0, rounds=2)
    make_run(tmp_path / "a1", [0.5], seed=1, rounds=2)
    assert told(tmp_path)[-1] == (
        "Schedule not finished: FedSR (seed 1) did 1 of 2 rounds, stopped early or still running. All other runs "
        "completed all rounds."
    )


def test_noisy_censuses_are_told_by_the_seed_that_tells_most(tmp_path: Path) -> None:
    for seed, epsilon in ((0, 50.5), (1, 60.0)):
        folder = make_run(tmp_path / f"a{seed}", [0.5, 0.7], method="fedgs", seed=seed)
        body = {"reports": 101, "epsilon": epsilon, "epsilon_advanced": min(epsilon, 55.25), "delta": 1e-5}
        (folder / "privacy.json").write_text(json.dumps(body))
    make_run(tmp_path / "b", [0.5, 0.6], method="fedavg")
    said = "With noise: in FedGS a device sent its class counts 101 times, {}together ε = 60, or 55.25 with δ = 1e-05."
    public = " The noise of a simulation is drawn from its public seed and gives no protection."
    assert told(tmp_path)[-1] == said.format("on real machines ") + public  # as runs of before say nothing of it
    for seed in (0, 1):
        (tmp_path / f"a{seed}" / "privacy.json").write_text(json.dumps({**body, "noise": "secret"}))
    assert told(tmp_path)[-1] == said.format("")
    for seed in (0, 1):
        (tmp_path / f"a{seed}" / "privacy.json").unlink()
    assert not any("noise" in sentence for sentence in told(tmp_path))


def test_lost_visits_are_counted(tmp_path: Path) -> None:
    make_run(tmp_path / "a0", [0.5, 0.6], seed=0, lost=3)
    make_run(tmp_path / "b0", [0.5, 0.6], seed=0, method="fedavg")
    assert told(tmp_path)[-1] == "Lost visits: 6 visits of FedSR in 2 of 2 rounds."


def test_the_best_of_many_is_compared_with_the_nearest_four(tmp_path: Path) -> None:
    for i in range(6):
        make_run(tmp_path / f"m{i}", [0.9 - i / 10], laps=i + 1, name=f"n{i}")
    paragraphs = told(tmp_path)
    assert paragraphs[0].count("FedSR") == 4
    assert paragraphs[0].endswith("and 2 more below.")
    assert paragraphs[2].startswith("FedSR (n0) is ahead of FedSR (n1) by 10.0 percentage points")
    assert paragraphs[2].endswith("Of the 1 methods further behind, 0 are behind by more than chance.")


def test_validation_data_are_called_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [0.5])
    text = (folder / "experiment.toml").read_text().replace("[method]", '[evaluate]\non = "validation"\n[method]')
    (folder / "experiment.toml").write_text(text)
    assert "the share of the validation samples" in told(tmp_path)[0]


def test_a_name_of_ones_own_stays(tmp_path: Path) -> None:
    assert display_name("mine:Halves (x)") == "mine:Halves (x)"
    make_run(tmp_path / "a", [0.8], method="centralized")
    assert told(tmp_path, 0.7)[1].startswith("Centralised training reached")
    assert verdict(summary(collect([tmp_path]), 0.8)).startswith("centralised")


def test_methods_with_other_seeds_are_not_ranked_in_silence(tmp_path: Path) -> None:
    """Means over seeds 0 and 1 and over seeds 1 and 2 are of different parks: of seed 1 alone the other one leads."""
    for seed, one, other in ((0, 0.5, None), (1, 0.9, 0.8), (2, None, 0.9)):
        if one is not None:
            make_run(tmp_path / f"a{seed}", [one], seed=seed)
        if other is not None:
            make_run(tmp_path / f"b{seed}", [other], method="fedavg", seed=seed)
    compared = groups(collect([tmp_path]))
    assert [text for text in remarks(compared) if text.startswith("Not all methods have the same seeds")] == [
        "Not all methods have the same seeds (FedSR 0, 1; FedAvg 1, 2): their means are over different parks and first "
        "models, and do not rank them. Differences seed by seed are over common seeds alone."
    ]
    make_run(tmp_path / "a2", [0.5], seed=2)
    make_run(tmp_path / "b0", [0.5], method="fedavg", seed=0)
    assert not any("same seeds" in text for text in remarks(groups(collect([tmp_path]))))
