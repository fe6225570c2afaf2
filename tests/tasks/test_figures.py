"""Figures: against scikit-learn and by hand, as the headline of a run, on any number of ranks, and refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as reference

import fedfloor
from fedfloor.experiment import DataSettings, EvaluateSettings, Experiment, ModelSettings, ParkSettings
from fedfloor.tasks import figures
from fedfloor.tasks.figures import FIGURES, KINDS, Predictions, named
from fedfloor.tasks.rankings import ranking
from refusals import refused

CLASSES = ("ok", "fault", "worn")
TABLE = np.array([[90, 5, 5], [6, 4, 0], [2, 0, 8]])
TRUE = np.repeat([0, 1, 2], [100, 10, 10])
TAKEN = np.concatenate([np.repeat([0, 1, 2], row) for row in TABLE])


def value(name: str) -> float | None:
    return named(name).value(Predictions(TABLE, 0.7), CLASSES)


def test_figures_of_a_table_are_those_of_scikit_learn() -> None:
    own = {"labels": [1], "average": "macro"}
    assert value("accuracy") == pytest.approx(reference.accuracy_score(TRUE, TAKEN))
    assert value("balanced accuracy") == pytest.approx(reference.balanced_accuracy_score(TRUE, TAKEN))
    assert value("macro-F1") == pytest.approx(reference.f1_score(TRUE, TAKEN, average="macro"))
    assert value("recall of fault") == pytest.approx(reference.recall_score(TRUE, TAKEN, **own)) == 0.4
    assert value("precision of fault") == pytest.approx(reference.precision_score(TRUE, TAKEN, **own))
    assert value("f1 of fault") == pytest.approx(reference.f1_score(TRUE, TAKEN, **own))
    assert value("loss") == 0.7


def test_ranking_figures_are_those_of_scikit_learn_also_with_equal_scores() -> None:
    rng = np.random.default_rng(0)
    y = rng.random(500) < 0.1
    scores = (rng.normal(size=500) + y).round(1).astype(np.float32)  # many are equal
    found = ranking(scores, y)
    assert found.auroc == pytest.approx(reference.roc_auc_score(y, scores))
    assert found.average_precision == pytest.approx(reference.average_precision_score(y, scores))
    assert ranking(scores, np.zeros(500, bool)).auroc is None


def test_a_class_that_is_never_predicted_has_precision_0_and_one_without_samples_no_recall() -> None:
    tested = Predictions(np.array([[5, 0], [0, 0]]), 0.1)
    assert named("precision of b").value(tested, ("a", "b")) == 0
    assert named("recall of b").value(tested, ("a", "b")) is None


def test_better_may_be_lower() -> None:
    loss = named("loss")
    accuracy = named("accuracy")
    assert (loss.best([0.4, 0.2]), accuracy.best([0.4, 0.2])) == (0.2, 0.4)
    assert loss.reached(0.2, 0.3)
    assert not loss.reached(0.4, 0.3)
    assert (loss.gain(0.2, 0.3), accuracy.gain(0.2, 0.3)) == (pytest.approx(0.1), pytest.approx(-0.1))
    assert (loss.round_target([0.31, 0.34]), accuracy.round_target([0.31, 0.34])) == (0.5, 0.3)
    assert loss.round_target([]) is accuracy.round_target([]) is None


def test_every_entry_of_the_list_has_a_name_that_is_read_back() -> None:
    for kind, written in zip(KINDS, FIGURES, strict=True):
        text = written.replace("[of CLASS]", "").strip().replace("CLASS", "of a kind")
        assert named(text.upper().replace("OF A KIND", "of a kind").replace(" OF ", " of ")).kind is kind
        assert named(named(text).name) == named(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "acuracy",
            "metric",
        ),
        ("macroF1", "metric"),
        ("recall", "evaluate.headline"),
        ("accuracy of ok", "evaluate.headline"),
        ("AUROC of ", "evaluate.headline"),
        ("", "metric"),
    ],
)
def test_what_is_no_figure_is_refused(text: str, message: str) -> None:
    with refused(message):
        EvaluateSettings(headline=text)


def rare(folder: Path) -> Path:
    """A table of two sensors on three devices, of which one sample in ten is a 'fault' that one sensor half shows."""
    rng = np.random.default_rng(3)
    y = (np.arange(900) % 10 == 0).astype(np.int64)
    x = rng.normal(size=(900, 2)).astype(np.float32)
    x[:, 0] += 1.5 * y
    test = np.arange(900) % 3 == 0
    device = np.repeat(["drill", "press", "saw"], 300)
    parts = {"x": x[~test], "y": y[~test], "device": device[~test]}
    tests = {"x_test": x[test], "y_test": y[test], "device_test": device[test]}
    np.savez(folder / "rare.npz", classes=np.array(["ok", "fault"]), **parts, **tests)
    return folder / "rare.npz"


def experiment(folder: Path, headline: str | None, **more: Any) -> Experiment:
    return Experiment(
        rounds=3, data=DataSettings(path=str(rare(folder))), park=ParkSettings(devices=3, factories=1),
        model=ModelSettings("logistic"), evaluate=EvaluateSettings(headline=headline, **more),
    )  # fmt: skip


@pytest.mark.parametrize("headline", ["AUROC", "average precision of fault", "recall of fault", "macro-F1", "loss"])
def test_the_headline_stands_first_in_the_ledger_and_in_the_evaluation(tmp_path: Path, headline: str) -> None:
    run = fedfloor.run(experiment(tmp_path, headline), tmp_path / "run", ranks=1)
    texts = [json.loads(text) for text in (run.folder / "ledger.jsonl").read_text().splitlines()]
    for text, line in zip(texts, run.lines, strict=True):
        assert list(text)[:2] == ["round", "figures"]
        assert line.headline == (headline, text["figures"][headline])
        assert named(headline).read(line) == pytest.approx(line.headline[1])
    assert run.headline == run.lines[-1].headline
    written = json.loads((run.folder / "evaluation.json").read_text())
    assert written["figures"] == texts[-1]["figures"]
    assert run.evaluation == written
    table = np.array(written["confusion"])
    if named(headline).kind.ranking:
        chance = 0.5 if headline == "AUROC" else 0.1
        assert chance + 0.1 < texts[-1]["figures"][headline] < 0.95  # one sensor shows half of it
    else:
        tested = Predictions(table, written["loss"])
        assert texts[-1]["figures"][headline] == named(headline).value(tested, ("ok", "fault"))


def test_the_order_of_scores_does_not_depend_on_the_ranks(tmp_path: Path) -> None:
    what = experiment(tmp_path, "AUROC of fault")
    one, two = (fedfloor.run(what, tmp_path / f"{ranks}", ranks=ranks) for ranks in (1, 2))
    assert [line.figures for line in one.lines] == [line.figures for line in two.lines]


def test_a_resumed_run_has_the_same_ledger(tmp_path: Path) -> None:
    what = experiment(tmp_path, "average precision")
    fedfloor.run(what, tmp_path / "whole", ranks=1)
    fedfloor.run(what, tmp_path / "parts", ranks=1, limits=fedfloor.Limits(1))
    fedfloor.run(what, tmp_path / "parts", ranks=1, resume=True)
    one, other = ((tmp_path / name / "ledger.jsonl").read_text().splitlines() for name in ("whole", "parts"))
    for text, again in zip(one, other, strict=True):
        assert json.loads(text) | {"wall_s": 0} == json.loads(again) | {"wall_s": 0}
        assert list(json.loads(text)) == list(json.loads(again))


def test_validation_data_have_their_own_headline(tmp_path: Path) -> None:
    run = fedfloor.run(experiment(tmp_path, "AUROC", on="validation", validation=0.2), tmp_path / "run", ranks=1)
    assert run.evaluation["on"] == "validation"
    assert run.headline == ("AUROC", run.evaluation["figures"]["AUROC"])


def test_without_a_headline_no_file_knows_of_it(tmp_path: Path) -> None:
    run = fedfloor.run(experiment(tmp_path, None), tmp_path / "run", ranks=1)
    assert run.lines[-1].headline == ("accuracy", run.accuracy)
    texts = [*(run.folder / "ledger.jsonl").read_text().splitlines(), (run.folder / "evaluation.json").read_text()]
    assert all("figures" not in json.loads(text) for text in texts)
    assert "headline =" not in (run.folder / "experiment.toml").read_text()


def test_a_limit_on_a_figure_ends_a_run_in_its_direction(tmp_path: Path) -> None:
    what = experiment(tmp_path, "loss")
    whole = fedfloor.run(what, tmp_path / "whole", ranks=1)
    target = whole.lines[1].loss
    assert target is not None
    assert whole.lines[0].loss > target
    part = fedfloor.run(what, tmp_path / "part", ranks=1, limits=fedfloor.Limits(figures={"loss": target}))
    assert (part.stopped, len(part.lines)) == ("stopped", 2)


def test_a_headline_that_the_data_do_not_define_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with refused("evaluate.headline"):
        fedfloor.run(experiment(tmp_path, "recall of faults"), tmp_path / "run", ranks=1)
    limits = fedfloor.Limits(figures={"recall of fault": 0.5})
    with refused("--until"):
        fedfloor.run(experiment(tmp_path, None), tmp_path / "run", ranks=1, limits=limits)
    assert not (tmp_path / "run").exists()
    with refused("evaluate.headline"):
        figures.fits(named("recall of worn"), CLASSES, np.array([3, 2, 0]))
    with refused("evaluate.headline"):
        figures.fits(named("AUROC"), CLASSES, np.array([3, 0, 0]))
