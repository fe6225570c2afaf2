"""A headline other than the accuracy governs summary, story, differences, curves, sweep and tracking; and remarks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import unescape
from pathlib import Path

import pytest

from fedfloor import config
from fedfloor.base.errors import RunError
from fedfloor.experiment import EvaluateSettings, Experiment
from fedfloor.report import charts
from fedfloor.report.groups import groups
from fedfloor.report.ledger import RecordedRun, collect
from fedfloor.report.page import render
from fedfloor.report.remarks import baseline, one_class, remarks, rising
from fedfloor.report.sections import budget_story
from fedfloor.report.story import story
from fedfloor.report.table import Budget, at, leader, natural_target, paired, paired_at, summary
from fedfloor.report.words import markdown as table
from fedfloor.runs import sweep as sweeps
from fedfloor.tasks.figures import named
from fedfloor.tracking.sinks import about, csv_table
from refusals import refused
from run_folders import evaluate, make_run, number


def judge(folder: Path, headline: str, values: list[float | None]) -> Path:
    """Give a run folder a headline, with a value per round."""
    file = folder / "experiment.toml"
    file.write_text(file.read_text().replace("[method]", f'[evaluate]\nheadline = "{headline}"\n[method]', 1))
    lines = [json.loads(text) for text in (folder / "ledger.jsonl").read_text().splitlines()]
    for body, value in zip(lines, values, strict=True):
        body |= {"loss": value} if headline == "loss" else {"figures": {headline: value}}
    (folder / "ledger.jsonl").write_text("".join(json.dumps(body) + "\n" for body in lines))
    return folder


def recalled(folder: Path) -> tuple[RecordedRun, ...]:
    """FedAvg is the more accurate, FedSR has the better recall of class 1."""
    judge(make_run(folder / "a", [0.90, 0.95], method="fedavg"), "recall of 1", [0.10, 0.20])
    judge(make_run(folder / "b", [0.85, 0.90], method="fedsr"), "recall of 1", [0.50, 0.72])
    return collect([folder])


def test_the_headline_governs_the_summary_the_differences_and_the_story(tmp_path: Path) -> None:
    runs = recalled(tmp_path)
    assert groups(runs).headline.name == "recall of 1"
    rows = {row["method"]: row for row in summary(runs, 0.5)}
    assert list(rows["fedsr"])[3:7] == ["recall_of_1", "half_width", "low", "high"]
    assert list(rows["fedsr"])[7:10] == ["over", "best_recall_of_1", "accuracy"]
    assert (rows["fedsr"]["recall_of_1"], rows["fedsr"]["accuracy"]) == (0.72, 0.90)
    assert (rows["fedsr"]["rounds_to_target"], rows["fedavg"]["rounds_to_target"]) == (1, None)
    assert natural_target(runs) == 0.7
    (pair,) = paired(runs)
    assert (pair["method"], pair["against"], pair["difference"]) == ("fedavg", "fedsr", pytest.approx(-0.52))
    assert leader(groups(runs), [pair]) == "fedsr"
    told = story(groups(runs), natural_target(runs))
    assert told[1] == "FedSR reached a recall of 1 of 70\xa0% after 2 rounds; FedAvg did not within 2."
    assert told[0] == "In round 2, the recall of 1 of the model on the test samples: FedSR 72.0\xa0%, FedAvg 20.0\xa0%."
    assert told[2].startswith("FedSR is ahead of FedAvg by 52.0 percentage points in round 2, with one common seed")
    page = unescape(render(runs))
    for words in ("Recall of 1 against rounds", "The first method's recall of 1 minus the second's (higher is better)"):
        assert words in page
    drawn = charts.headline_figure(groups(runs), 0.7)
    assert drawn is not None
    assert drawn.layout.yaxis.title.text == "recall of 1"
    assert list(drawn.data[1].y) == [0.50, 0.72]
    assert "| method | recall of 1 | minus fedavg | macro-F1 |" in table(runs)
    budget = Budget("rounds", 1)
    assert [row["recall_of_1"] for row in at(runs, budget)] == [0.10, 0.50]
    assert paired_at(runs, budget)[0]["difference"] == pytest.approx(-0.40)
    told = "After 1 round, the values of recall of 1 are: FedSR 50.0\xa0%, FedAvg 10.0\xa0%."
    assert budget_story(runs, budget) == told


def test_lower_is_better_where_it_is(tmp_path: Path) -> None:
    judge(make_run(tmp_path / "a", [0.9, 0.9], method="fedavg"), "loss", [0.8, 0.6])
    judge(make_run(tmp_path / "b", [0.9, 0.9], method="fedsr"), "loss", [0.4, 0.45])
    runs = collect([tmp_path])
    rows = {row["method"]: row for row in summary(runs, 0.5)}
    assert (rows["fedsr"]["best_loss"], rows["fedsr"]["loss"], rows["fedavg"]["best_loss"]) == (0.4, 0.45, 0.6)
    assert (rows["fedsr"]["rounds_to_target"], rows["fedavg"]["rounds_to_target"]) == (1, None)
    assert natural_target(runs) == 0.5
    assert leader(groups(runs), paired(runs)) == "fedsr"
    told = " ".join(story(groups(runs), 0.5))
    assert "FedSR reached a loss of 0.5 after 1 round" in told
    assert "FedSR is ahead of FedAvg by 0.150 in round 2" in told
    page = unescape(render(runs))
    assert "Best: the lowest loss of any round" in page
    assert page.count("<h2>Loss against rounds</h2>") == 1


def test_runs_with_different_headlines_are_compared_by_accuracy_and_that_is_told(tmp_path: Path) -> None:
    judge(make_run(tmp_path / "a", [0.90], method="fedavg"), "loss", [0.8])
    make_run(tmp_path / "b", [0.95], method="fedsr")
    runs = collect([tmp_path])
    assert groups(runs).headline.name == "accuracy"
    assert story(groups(runs), 0.9)[1] == (
        "These runs have different headlines (loss and accuracy); here they are judged by accuracy."
    )


def test_a_headline_that_is_none_is_refused_with_its_file(tmp_path: Path) -> None:
    judge(make_run(tmp_path / "a", [0.90]), "recal of 1", [0.8])
    with refused("metric"):
        collect([tmp_path])


def test_the_majority_baseline_is_told_for_the_accuracy_and_the_headline(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.9])
    evaluate(tmp_path / "a")  # 10 samples of class 0 and 10 of class 1, two of the former taken for the latter
    found = groups(collect([tmp_path]))
    assert baseline(found) == "Always predicting '0' would reach an accuracy of 50.0\xa0%."
    judge(tmp_path / "a", "AUROC", [0.9])
    assert (
        baseline(groups(collect([tmp_path])))
        == "Always predicting '0' would reach an accuracy of 50.0\xa0% and an AUROC of 50.0\xa0%."
    )
    judge(make_run(tmp_path / "b" / "b", [0.9]), "recall of 1", [0.9])
    evaluate(tmp_path / "b" / "b")
    rare = json.loads((tmp_path / "b" / "b" / "evaluation.json").read_text())
    rare["confusion"][0][0] = 970 - rare["confusion"][0][1]
    rare["confusion"][1][1] = 30
    (tmp_path / "b" / "b" / "evaluation.json").write_text(json.dumps(rare))
    told = baseline(groups(collect([tmp_path / "b"])))
    assert told == "Always predicting '0' would reach an accuracy of 97.0\xa0% and a recall of 1 of 0.0\xa0%."
    assert told in story(groups(collect([tmp_path / "b"])), None)


def test_a_model_that_predicts_one_class_only_is_named(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"{seed}", [0.9], seed=seed)
        evaluate(tmp_path / f"{seed}")
    assert one_class(groups(collect([tmp_path]))) == ""
    file = tmp_path / "1" / "evaluation.json"
    flat = json.loads(file.read_text())
    flat["confusion"] = [[10, 0, 0], [10, 0, 0], [0, 0, 0]]
    file.write_text(json.dumps(flat))
    assert one_class(groups(collect([tmp_path]))) == (
        "A model that does not separate the classes: that of FedSR with seed 1 predicts '0' for every test sample."
    )


def losses(
    folder: Path, series: list[float], accuracies: Sequence[float] = (), train: Sequence[float] = ()
) -> str:  # fmt: skip
    make_run(folder, list(accuracies) or [0.9] * len(series))
    training = [{"train_loss": loss} for loss in train] or [{}] * len(series)
    lines = [json.loads(text) | {"loss": loss} | more for text, loss, more in
             zip((folder / "ledger.jsonl").read_text().splitlines(), series, training, strict=True)]  # fmt: skip
    (folder / "ledger.jsonl").write_text("".join(json.dumps(body) + "\n" for body in lines))
    return rising(groups(collect([folder])))


def test_a_rising_test_loss_is_pointed_at(tmp_path: Path) -> None:
    told = losses(tmp_path / "up", [0.9, 0.5, 0.3, 0.32, 0.3, 0.4, 0.5, 0.6])
    assert told.startswith(
        "The test loss rises: FedSR from 0.3 in round 4 to 0.5 in the last. The accuracy does not fall, so the model"
    )
    up = [0.9, 0.5, 0.3, 0.32, 0.3, 0.4, 0.5, 0.6]
    falling = [0.5, 0.8, 0.9, 0.9, 0.9, 0.7, 0.6, 0.5]
    assert "the model may overfit" in losses(tmp_path / "worse", up, falling, [0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1])
    both = losses(tmp_path / "both", up, falling, up)
    assert both.endswith("in the last. Fewer rounds or a smaller learning rate may help.")
    assert losses(tmp_path / "down", [0.9, 0.5, 0.4, 0.3, 0.25, 0.2]) == ""
    assert losses(tmp_path / "spike", [0.9, 0.5, 0.4, 0.3, 0.25, 0.9]) == ""  # one bad round is not a trend
    assert losses(tmp_path / "short", [0.3, 0.5, 0.9]) == ""


def test_a_run_without_an_evaluation_has_no_remarks(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.9])
    assert remarks(groups(collect([tmp_path]))) == []


def test_tracked_ledgers_have_the_headline(tmp_path: Path) -> None:
    judge(make_run(tmp_path / "a", [0.90, 0.95]), "recall of 1", [0.10, None])
    head, first, second = (line.split(",") for line in csv_table([about(tmp_path / "a")]).splitlines())
    place = head.index("figure:recall of 1")
    assert (first[place], second[place]) == ("0.1", "")


def test_a_sweep_chooses_by_the_headline_in_its_direction(tmp_path: Path) -> None:
    experiment = Experiment(evaluate=EvaluateSettings(headline="loss"))
    what = sweeps.plan(experiment, ["fedavg"], [sweeps.Axis("work.lr", None, ("work", "lr"), (0.1, 0.01))], [0], None)
    for trial, (loss, accuracy) in zip(what.trials, [(0.5, 0.9), (0.3, 0.8)], strict=True):
        folder = what.folder(tmp_path, trial, 0)
        folder.mkdir()
        (folder / "evaluation.json").write_text(json.dumps({"accuracy": accuracy, "loss": loss}))
    found = sweeps.results(what, tmp_path, set())
    best = sweeps.winners(found)
    assert (best["fedavg"].trial.number, best["fedavg"].score) == (2, 0.3)
    assert sweeps.winner(best).trial.number == 2
    assert "the final model's loss on validation data" in sweeps.document(what, best, 3, tmp_path)
    assert config.read(_written(tmp_path / "best.toml", sweeps.document(what, best, 3, tmp_path))).evaluate.headline
    (what.folder(tmp_path, what.trials[0], 0) / "evaluation.json").write_text('{"accuracy": 0.9}')
    with refused("trial-lacks", RunError):
        sweeps.results(what, tmp_path, set())


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_regression_is_reported_by_its_own_figures_in_their_unit(tmp_path: Path) -> None:
    number(make_run(tmp_path / "a", [0.4, 0.5], method="fedavg", devices=12), {"RMSE": [40.0, 18.0], "R2": [0.0, 0.84]})
    number(make_run(tmp_path / "b", [0.4, 0.3], method="fedsr", devices=12), {"RMSE": [30.0, 12.4], "R2": [0.1, 0.9]})
    runs = collect([tmp_path])
    rows = {row["method"]: row for row in summary(runs, 20)}
    assert (rows["fedsr"]["RMSE"], rows["fedsr"]["best_RMSE"], rows["fedsr"]["R2"]) == (12.4, 12.4, 0.9)
    assert not {"accuracy", "macro_f1"} & rows["fedsr"].keys()
    assert (rows["fedsr"]["rounds_to_target"], leader(groups(runs), paired(runs))) == (2, "fedsr")
    assert natural_target(runs) == 15
    told = " ".join(story(groups(runs), natural_target(runs)))
    assert "FedSR reached an RMSE of 15 cycles after 2 rounds; FedAvg did not within 2" in told
    assert "on the test samples: FedSR 12.4 cycles, FedAvg 18.0 cycles." in told
    assert "FedSR is ahead of FedAvg by 5.60 cycles" in told
    assert (
        "the mean of the test values would reach an RMSE of 39.2 cycles to 45.0 cycles" in told
    )  # 12.4/√0.1, 18/√0.16
    assert "has an RMSE of at most 24.8 cycles" in told  # nine in ten: the upper end
    page = unescape(render(runs))
    for words in ("RMSE against rounds", "Best: the lowest RMSE of any round", "Mean loss on scaled targets"):
        assert words in page
    for words in ("ccuracy", "mistaken", "cross-entropy", "nats", "macro", "which classes"):
        assert words not in page.split('<script type="application/json"')[0].replace("s-accuracy", "").replace(
            'id="accuracy"', ""
        )
    drawn = charts.headline_figure(groups(runs), 20)
    assert drawn is not None
    assert drawn.layout.yaxis.title.text == "RMSE (cycles)"
    assert "| method | RMSE (cycles) | minus fedavg | R2 | loss |" in table(runs)


@pytest.mark.parametrize(
    "phrase", ["an RMSE", "a MASE", "an R2", "an MAE", "a loss", "an interval width", "an F1 of a"]
)
def test_articles(phrase: str) -> None:
    assert named(phrase.partition(" ")[2]).phrase == phrase


def test_round_targets_of_numbers() -> None:
    assert named("RMSE").round_target([13.4, 20]) == 15
    assert named("RMSE").round_target([0.0231]) == 0.025
    assert named("MASE").round_target([1.05]) == 1.5
    assert named("R2").round_target([0.56, -2]) == 0.55
    assert named("R2").round_target([-0.5]) is None
