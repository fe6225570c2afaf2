"""Thresholds and temperatures that validation data choose: by hand, by trying all, and all the way to ONNX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from commands import Command
from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.inference.onnx import export
from fedfloor.inference.trained import load_model
from fedfloor.parts import decision
from fedfloor.parts.decision import By, Cost, DecideSettings, Decision, measured, threshold
from fedfloor.runs import checkpoint, loop
from fedfloor.runs.parks import build_park
from model_files import SENSORS, write_model
from refusals import refused

RULES: dict[str, Any] = {
    "f1": "f1", "cost": By(cost=Cost(7.0, 2.0)), "recall": By(recall=0.8), "precision": By(precision=0.6),
    "alarms": By(false_alarms_per_hour=3.0, samples_per_hour=20.0),
}  # fmt: skip
WHERE = [
    "--set", "evaluate.on=both", "--set", "evaluate.validation=0.3", "--set", "decide.positive=A",
    "--set", "data.samples_per_device=400", "--set", "rounds=4",
]  # fmt: skip


# -- the choice --------------------------------------------------------------------------------------------------------


def drawn(seed: int, n: int = 40, steps: int = 12) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores of which many are equal, and which samples are positive."""
    rng = np.random.default_rng(seed)
    wanted = rng.random(n) < 0.3
    wanted[:2] = True, False
    return np.round((rng.random(n) + wanted) / 2 * steps) / steps, wanted


def worth(rule: str, scores: NDArray[np.float64], wanted: NDArray[np.bool_], limit: float) -> tuple[bool, float]:
    """Whether a threshold keeps a rule, and how good it is."""
    said = measured(scores >= limit, wanted)
    if rule == "cost":
        return True, -(7 * said["missed"] + 2 * said["false_alarms"])
    if rule == "f1":
        return True, said["f1"]
    if rule == "recall":
        return said["recall"] >= 0.8, limit
    if rule == "precision":
        return (said["precision"] or 0) >= 0.6, said["recall"]
    return said["false_alarms"] <= 3 * len(scores) / 20, said["recall"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(20))
def test_no_other_threshold_is_better(rule: str, seed: int) -> None:
    scores, wanted = drawn(seed)
    limit, kept = threshold(scores, wanted, RULES[rule])
    levels = np.unique(np.concatenate([scores, [0.0, 2.0]]))
    others = [
        worth(rule, scores, wanted, float(one)) for one in np.concatenate([levels, (levels[1:] + levels[:-1]) / 2])
    ]
    best = max((value for right, value in others if right), default=None)
    assert kept == (best is not None)
    if best is not None:
        right, value = worth(rule, scores, wanted, limit)
        assert right
        # of recall, the threshold itself counts: the highest one that decides alike lies at the next score
        same = [float(one) for one in levels if np.array_equal(scores >= one, scores >= limit)]
        assert value == best or (rule == "recall" and max(same) >= best)


def test_thresholds_by_hand() -> None:
    # ranked 0.9 +, 0.6 −, 0.4 +, 0.1 −: F1 after 1, 2, 3, 4 alarms is 2/3, 1/2, 4/5, 2/3
    scores = np.array([0.4, 0.9, 0.1, 0.6])
    wanted = np.array([True, True, False, False])
    assert threshold(scores, wanted, "f1") == (0.25, True)
    assert threshold(scores, wanted, By(precision=1.0)) == (0.75, True)
    assert threshold(scores, wanted, By(cost=Cost(1.0, 10.0))) == (0.75, True)  # 1 missed; 10 a false alarm
    assert threshold(scores, wanted, By(cost=Cost(100.0))) == (0.25, True)
    assert threshold(scores, wanted, By(false_alarms_per_hour=0.0, samples_per_hour=1.0)) == (0.75, True)
    assert threshold(scores, ~wanted, By(precision=0.9)) == (pytest.approx(0.5), False)  # at best 1 of 2
    assert threshold(scores, ~wanted, By(cost=Cost(1.0, 10.0))) == (2.0, True)  # never


def test_a_threshold_is_the_decision() -> None:
    made = Decision(1.0, 1, 0.2)
    p = np.array([[0.5, 0.2, 0.3], [0.9, 0.1999, 0.0], [0.0, 0.19, 0.81], [0.0, 1.0, 0.0]])
    assert made.of(p).tolist() == [1, 0, 2, 1]
    assert Decision().of(p).tolist() == [0, 0, 2, 1]
    assert Decision(1.0, 1, 2.0).of(p).tolist() == [0, 0, 2, 0]


def test_the_temperature_that_made_the_labels_is_found() -> None:
    # labels drawn by softmax(z) and logits 3·z: T = 3; 20,000 samples know it to about 2 %
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1.5, (20_000, 3))
    p = decision.softmax(z, 1.0)
    y = (rng.random((len(z), 1)) > p.cumsum(1)).sum(1)
    heat = decision.temperature(3 * z, y)
    assert heat == pytest.approx(3.0, rel=0.05)
    assert decision.loss(3 * z, y, heat) < decision.loss(3 * z, y, 1.0)


# -- a run -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(loop, "CHECKPOINT_S", 0.0)
    assert command.run(*WHERE, "--set", "decide.calibrate=temperature").code == 0
    return command


def test_the_test_data_choose_nothing(run: Command) -> None:
    evaluation = json.loads((run.folder / "out/evaluation.json").read_text())
    chosen = evaluation["decide"]
    trained = load_model(run.folder / "out")
    held = build_park(config.read(run.folder / "out/experiment.toml")).validating
    assert held is not None
    x, y = held.test()
    p = trained.predict(x)
    positive = trained.classes.index("A")
    assert trained.threshold == ("A", chosen["threshold"])
    assert chosen["validation"]["samples"] == len(y) > 50
    again, _ = threshold(p[:, positive].astype(np.float64), y == positive, "f1")
    assert again == pytest.approx(chosen["threshold"], rel=1e-5)  # of float32 probabilities here
    assert measured(p[:, positive] >= again, y == positive)["f1"] == chosen["validation"]["f1"]


def test_predictions_and_figures_go_by_the_threshold(run: Command) -> None:
    here = build_park(config.read(run.folder / "out/experiment.toml"))
    trained = load_model(run.folder / "out")
    x, y = here.test()
    np.savez(run.folder / "test.npz", x=x, y=y)
    said = run("predict", "out", "test.npz", "--json").document
    assert trained.decision is not None
    decided = trained.decision.of(trained.predict(x))
    assert [row["predicted"] for row in said["rows"]] == [trained.classes[c] for c in decided]
    assert said["decide"] == {"positive": "A", "threshold": trained.decision.threshold}
    positive = trained.classes.index("A")
    evaluation = json.loads((run.folder / "out/evaluation.json").read_text())["decide"]
    assert evaluation["decided"] == measured(decided == positive, y == positive)
    assert evaluation["likeliest"] == measured(trained.outputs(x)[1].numpy().argmax(1) == positive, y == positive)
    assert "decision: 'A' if its probability is at least" in run("predict", "out", "test.npz").out


def test_the_closing_note_and_the_report_tell_the_samples_apart(run: Command) -> None:
    note = run("run", "tiny.toml", "--ranks", "1", *WHERE, "--set", "rounds=1", "--out", "noted").err
    made = json.loads((run.folder / "noted/evaluation.json").read_text())["decide"]
    held = made["validation"]
    assert (
        f"chosen on {held['samples']} validation samples, {held['positives']} of them 'A'). On the test samples: "
        in note
    )
    assert f"On the test samples: recall {made['decided']['recall']:.3f}, " in note
    page = (run.folder / "noted/report.html").read_text()
    assert f"is at least {made['threshold']:.4g} (the largest F1; chosen on {held['samples']} validation" in page


def test_the_best_round_is_that_of_the_held_out_samples(run: Command) -> None:
    point = checkpoint.latest(run.folder / "out/checkpoint", run.folder / "out/memory")
    assert point is not None
    assert point.best is not None
    evaluation = json.loads((run.folder / "out/evaluation.json").read_text())["best"]
    best = load_model(run.folder / "out", which="best")
    assert best.round == point.best.round == evaluation["round"]
    held = build_park(config.read(run.folder / "out/experiment.toml")).validating
    assert held is not None
    x, y = held.test()
    assert point.best.value == (best.outputs(x)[1].numpy().argmax(1) == y).mean()
    for number in range(1, 4):  # what was stopped there has that round's model as its last
        assert run.run(*WHERE, "--out", f"to{number}", "--stop-after", str(number)).code == 0
        other = load_model(run.folder / f"to{number}")
        assert (other.outputs(x)[1].numpy().argmax(1) == y).mean() <= point.best.value


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_ranks_and_a_resume_keep_both_models(run: Command, ranks: str) -> None:
    words = ("run", "tiny.toml", "--ranks", ranks, *WHERE, "--set", "decide.calibrate=temperature", "--out", "cut")
    assert run(*words, "--stop-after", "3").code == 0
    assert run(*words, "--resume").code == 0
    for name in ("model.safetensors", "best.safetensors", "evaluation.json"):
        assert (run.folder / "cut" / name).read_bytes() == (run.folder / "out" / name).read_bytes()


def test_held_out_samples_alone_choose_in_a_run_on_validation_data(command: Command) -> None:
    words = [word.replace("=both", "=validation") for word in WHERE]
    assert command.run(*words).code == 0
    said = json.loads((command.folder / "out/evaluation.json").read_text())
    assert said["on"] == "validation"
    assert said["decide"]["decided"] == {key: said["decide"]["validation"][key] for key in said["decide"]["decided"]}


def test_without_held_out_samples_there_is_one_model_alone(command: Command) -> None:
    assert command.run("--set", "rounds=1").code == 0
    out = command.folder / "out"
    assert not list(out.glob("best*"))
    assert not {"best", "decide"} & set(json.loads((out / "evaluation.json").read_text()))
    assert "decide" not in (out / "experiment.toml").read_text()
    np.savez(command.folder / "x.npz", x=np.zeros((1, 1, 28, 28), np.uint8))
    said = command("predict", "out", "x.npz", "--which", "best")
    assert said.code == 2
    assert 'train with [evaluate] on = "both"' in said.err
    assert command("predict", "out", "x.npz", "--which", "first").code == 2


# -- ONNX --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("positive", [None, 1])
def test_onnx_decides_the_same(tmp_path: Path, positive: int | None) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    about = {"temperature": 1.7, "positive": positive, "threshold": 0.4}
    folder = write_model(tmp_path / "run", shape=(2,), classes=("a", "b", "c"), inputs=SENSORS, decide=about)
    trained = load_model(folder)
    export(trained, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).normal(0, 3, (500, 2)).astype(np.float32)
    p, logits, decided = session.run(["probabilities", "logits", "decision"], {"x": x})
    np.testing.assert_allclose(p, torch.softmax(torch.tensor(logits) / 1.7, 1).numpy(), atol=1e-6)
    assert decided.tolist() == Decision(1.7, positive, 0.4).of(p).tolist()
    assert (decided != p.argmax(1)).any() == (positive is not None)
    facts = session.get_modelmeta().custom_metadata_map
    assert ("decide" in facts) == (positive is not None)


@pytest.mark.parametrize(
    "wrong", [{"positive": 2}, {"temperature": 0.0}, {"threshold": -1.0}, {"positive": -1}], ids=str
)
def test_a_models_file_with_another_decision_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    about = {"temperature": 1.0, "positive": 1, "threshold": 0.4} | wrong
    with refused("damaged-model"):
        load_model(write_model(tmp_path, shape=(2,), inputs=SENSORS, decide=about))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"by": "f1"}, "decide.by"),
        ({"positive": "A", "by": {}}, "decide.by"),
        ({"positive": "A", "by": {"recall": 0.5, "precision": 0.5}}, "decide.by"),
        ({"positive": "A", "by": {"recall": 1.5}}, "decide.by.recall"),
        ({"positive": "A", "by": {"cost": {"missed": 0}}}, "decide.by.cost.missed"),
        ({"positive": "A", "by": {"cost": {"false_alarm": 1}}}, "missing-setting"),
        ({"positive": "A", "by": {"false_alarms_per_hour": 1}}, "decide.by"),
        ({"positive": "A", "by": "f2"}, "decide.by"),
        ({"calibrate": "platt"}, "decide.calibrate"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(table: dict[str, Any], message: str) -> None:
    with refused(message):
        config.from_table({"decide": table})


def test_what_validation_data_cannot_choose_is_refused_before_the_first_round() -> None:
    classes = ("ok", "fault")
    y = np.array([0, 1, 0, 1])
    assert decision.check(DecideSettings(), classes, None) == ""
    assert "mostly chance" in decision.check(DecideSettings("fault"), classes, y)
    for settings, samples, message in (
        (DecideSettings("fault"), None, 'on = "both"'),
        (DecideSettings("faults"), y, "Did you mean 'fault'"),
        (DecideSettings("fault"), y * 0, "0 of 4 validation samples are positive"),
        (DecideSettings("fault"), y * 0 + 1, "4 of 4 validation samples are positive"),
    ):
        with pytest.raises(SettingError, match=message):
            decision.check(settings, classes, samples)
