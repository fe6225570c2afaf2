"""Local, pooled and scikit-learn training beside methods: what they are, and what reports make of them."""

from __future__ import annotations

import html
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedfloor
from commands import Command, lines
from fedfloor import config
from fedfloor.engine import separate
from fedfloor.engine.evaluate import evaluate
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import text
from fedfloor.plan.nodes import Train, Work, device
from fedfloor.report import ledger
from fedfloor.report.contrast import contrast
from fedfloor.report.groups import contestants, groups
from fedfloor.report.ledger import collect
from fedfloor.report.table import natural_target, paired
from fedfloor.runs import launch, prepare, references
from fedfloor.runs.references import work
from refusals import refused

REFERENCES = ("local-only", "pooled", "scikit-learn")
UNMARKED = "No test sample is marked as an anomaly"
LIFE = """
rounds = 2
data = { name = "machines", window = { length = 8, step = 4 }, task = { kind = "regression", cap = 60 } }
park = { devices = 4 }
model = { name = "mlp-sensor" }
work = { lr = 0.01 }
methods.scikit-learn.rate = 0.3
"""
TABLE = """
name = "plant"
rounds = 3
[data]
path = "plant.csv"
normalise = "standard"
[model]
name = "mlp-sensor"
[work]
lr = 0.1
batch_size = 16
epochs = 2
"""


def plant(folder: Path, devices: int = 3, rows: int = 60, split: str = "", **changes: str) -> Path:
    """A table of two sensors in which devices disagree on where the border between two classes lies."""
    rng = np.random.default_rng(0)
    written = ["device,time,a,b,label"]
    for k in range(devices):
        x = rng.normal(size=(rows, 2))
        label = np.where(x[:, 0] + (k - 1) * x[:, 1] > 0, "bad", "ok")
        written += [f"press-{k},{i},{a:.4f},{b:.4f},{y}" for i, ((a, b), y) in enumerate(zip(x, label, strict=True))]
    (folder / "plant.csv").write_text("\n".join(written) + "\n")
    table = TABLE.replace("[model]", f"{split}\n[model]")
    for key, value in changes.items():
        table = re.sub(rf"^{key} = .*$", f"{key} = {value}", table, flags=re.M)
    (folder / "plant.toml").write_text(table)
    return folder / "plant.toml"


def compared(command: Command, *words: str) -> dict:
    said = command("compare", "plant.toml", "--ranks", "1", "--methods", "fedavg", "--references", *words, "--json")
    assert said.code == 0, said.err
    return said.document  # type: ignore[no-any-return]


def last(folder: Path) -> dict:
    line = lines(folder)[-1]
    return {key: one for key, one in line.items() if key not in ("wall_s", "plan_hash")}  # type: ignore[no-any-return]


# -- what they train ---------------------------------------------------------------------------------------------------


def test_on_one_device_local_training_is_fedavg_to_the_bit_and_pooled_training_up_to_rounding(command: Command) -> None:
    plant(command.folder, devices=1, batch_size="48")  # one mini-batch: centralised training shuffles otherwise
    compared(command, "--out", "all")
    method, local, pooled = (last(command.folder / "all" / f"{name}-seed0") for name in ("fedavg", *REFERENCES[:2]))
    assert local == method
    assert pooled["accuracy"] == method["accuracy"]
    assert pooled["loss"] == pytest.approx(method["loss"], rel=1e-5)  # float32 sums in another order
    assert 0.5 < method["accuracy"] < 1.0


@pytest.mark.parametrize("ranks", [1, 2])
def test_local_training_is_each_device_by_itself(command: Command, ranks: int) -> None:
    """Its figure is the mean, weighted by test samples, of runs on parks of one device each."""
    plant(command.folder)
    words = ("run", "plant.toml", "--json", "--set", "method.name=local-only", "--set", "work.batch_size=48")
    assert command(*words, "--ranks", str(ranks), "--out", "all").code == 0
    whole = json.loads((command.folder / "all" / "evaluation.json").read_text())
    engine, _ = prepare.engine(*_parts(command.folder), Alone(), DeviceMemory(None))
    right = total = 0
    for k in range(3):
        w = _by_hand(command.folder, k)
        rows = np.flatnonzero(engine.park.test_devices == k)
        engine.network.flat.copy_(w)
        with torch.no_grad():
            x, y = engine.park.test(rows)
            hits = engine.network.module(engine.wrap(x, y).values(slice(None))).argmax(1).numpy() == y
        assert whole["devices"][k]["accuracy"] == pytest.approx(hits.mean())
        right = right + int(hits.sum())
        total = total + len(rows)
    assert whole["accuracy"] == pytest.approx(right / total)
    assert np.sum(whole["confusion"]) == total


def _parts(folder: Path) -> tuple:
    what = config.read(folder / "plant.toml", ["method.name=local-only"])
    return what, what.configured, launch.build_park(what)


def _by_hand(folder: Path, k: int) -> torch.Tensor:
    """Three rounds of two full-batch steps on one device's data, by automatic differentiation alone."""
    engine, _ = prepare.engine(*_parts(folder), Alone(), DeviceMemory(None))
    samples = engine.samples(k)
    w = engine.network.flat
    for _ in range(6):
        loss = torch.nn.functional.cross_entropy(engine.network.module(samples.values(slice(None))), samples.y)
        slopes = torch.autograd.grad(loss, engine.network.parameters)
        with torch.no_grad():
            for one, slope in zip(engine.network.parameters, slopes, strict=True):
                one -= 0.1 * slope
    return w.clone()


def test_samples_of_nobody_count_with_the_mean_over_all_models(command: Command) -> None:
    split = '[data.split]\nkind = "device"\ntest = 0.34'
    plant(command.folder, devices=3, split=split)
    assert (
        command("run", "plant.toml", "--ranks", "1", "--out", "o", "--json", "--set", "method.name=local-only").code
        == 0
    )
    what = config.read(command.folder / "plant.toml", ["method.name=local-only"])
    park = launch.build_park(what)
    method = what.configured
    held = {k: path.stem.partition("-")[2] for k in range(2) for path in (command.folder / "o/memory").glob(f"{k}-*")}
    full = {k: _digest(command.folder / "o/memory" / f"{k}-{one}.safetensors") for k, one in held.items()}
    memory = DeviceMemory(command.folder / "o" / "memory", full)
    engine, _ = prepare.engine(what, method, park, Alone(), memory)
    start = engine.network.flat.clone()
    each = [evaluate(engine, memory.load(k)["own all"]) for k in range(2)]
    got = separate.evaluate(engine, {"w": start})
    assert got.accuracy == pytest.approx(np.mean([one.accuracy for one in each]))
    assert got.loss == pytest.approx(np.mean([one.loss for one in each]))
    assert each[0].accuracy != each[1].accuracy
    assert (
        np.array(got.details["confusion"]).tolist() == sum(np.array(one.details["confusion"]) for one in each).tolist()
    )
    assert got.accuracy == last(command.folder / "o")["accuracy"]
    assert (
        separate.evaluate(replace(engine, memory=DeviceMemory(None)), {"w": start}).accuracy
        == evaluate(engine, start).accuracy
    )


def _digest(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_scikit_learn_is_a_fit_by_hand(command: Command) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    plant(command.folder, rows=100)
    compared(command, "--out", "all", "--seeds", "3")
    _, *rows = (command.folder / "plant.csv").read_text().split()
    values = np.array([row.split(",")[2:4] for row in rows], float).reshape(3, 100, 2)
    labels = np.array([row.split(",")[4] for row in rows]).reshape(3, 100)
    x, y = values[:, :80].reshape(-1, 2), labels[:, :80].ravel()
    scaled = ((values - x.mean(0)) / x.std(0)).astype(np.float32)
    model = HistGradientBoostingClassifier(random_state=3).fit(scaled[:, :80].reshape(-1, 2), y)
    expected = (model.predict(scaled[:, 80:].reshape(-1, 2)) == labels[:, 80:].ravel()).mean()
    line = last(command.folder / "all" / "scikit-learn-seed3")
    assert (line["round"], line["accuracy"]) == (3, pytest.approx(expected))
    assert expected > 0.6


def test_scikit_learn_of_a_regression_is_a_fit_by_hand(command: Command) -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    (command.folder / "life.toml").write_text(LIFE)
    given = ("compare", "life.toml", "--ranks", "1", "--methods", "fedavg", "--references", "--json", "--seeds", "3")
    said = command(*given, "--out", "life")
    assert said.code == 0, said.err
    assert [row["method"] for row in said.document["rows"]] == ["fedavg", *REFERENCES]
    park = launch.build_park(config.read(command.folder / "life.toml", ["seed=3"]))
    mean, std = park.standard
    train, test = (
        references.columns(((x - mean[:, None]) / std[:, None]).astype(np.float32))
        for x in (park.pooled()[0], park.test()[0])
    )
    life, wanted = (np.minimum(y[:, 0], 60.0) for y in (park.pooled()[1], park.test()[1]))
    model = HistGradientBoostingRegressor(random_state=3, learning_rate=0.3).fit(train, life)
    expected = float(np.sqrt(np.mean((model.predict(test) - wanted) ** 2)))
    line = last(command.folder / "life" / "scikit-learn-seed3")
    assert line["figures"]["RMSE"] == pytest.approx(expected, rel=0.02)  # it is fitted to scaled targets
    assert expected < 0.8 * wanted.std()
    said = command(*given, "--out", "levels", "--set", 'data.task={ kind = "regression", loss = "quantile", cap = 60 }')
    assert said.code == 0, said.err
    (center,) = park.dataset.task.center  # type: ignore[attr-defined]
    (scale,) = park.dataset.task.scale  # type: ignore[attr-defined]
    life, wanted = ((y[:, 0].clip(max=60) - center) / scale for y in (park.pooled()[1], park.test()[1]))
    levels = np.sort([  # scaled alike: signs of residuals that are 0 hang on roundings; quantiles may cross
        HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=3, learning_rate=0.3)
        .fit(train, life)
        .predict(test)
        for level in (0.05, 0.5, 0.95)
    ], axis=0)  # fmt: skip
    inside = float(((levels[0] <= wanted + 1e-5) & (wanted <= levels[2] + 1e-5)).mean())
    figures = last(command.folder / "levels" / "scikit-learn-seed3")["figures"]
    assert figures["coverage"] == pytest.approx(inside, abs=0.01)


TREES = 'name = "boosting"\n[methods.boosting]\ntrees = 5'


def test_of_boosted_trees_local_training_is_trees_on_each_device_alone(command: Command) -> None:
    """Its figure is the mean of boosting on parks of one device each, and there is no pooled reference."""
    file = plant(command.folder, rounds="24", normalise='"unit"')
    file.write_text(file.read_text() + f"[method]\n{TREES}\n")
    header, *rows = (command.folder / "plant.csv").read_text().split()
    said = command("run", "plant.toml", "--ranks", "1", "--references", "--out", "all", "--json")
    assert said.code == 0, said.err
    assert [row["method"] for row in said.document["rows"]] == ["boosting", "local-only", "scikit-learn"]
    assert "There is no pooled reference: the method makes the same model of pooled data" in said.err
    got = json.loads((command.folder / "all/references/local-only-seed0/evaluation.json").read_text())
    assert "boosted trees, trained for 24 rounds" in command("predict", "all", "plant.csv").out
    alone = []
    for k in range(3):
        (command.folder / "plant.csv").write_text("\n".join([header, *rows[60 * k : 60 * k + 60]]) + "\n")
        assert command("run", "plant.toml", "--ranks", "1", "--out", f"{k}", "--json").code == 0
        alone.append(last(command.folder / f"{k}")["accuracy"])
    assert [one["accuracy"] for one in got["devices"]] == pytest.approx(alone)
    assert got["accuracy"] == pytest.approx(np.mean(alone))
    assert len(set(alone)) > 1


def test_windows_become_statistics_of_each_sensor() -> None:
    x = np.array([[[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]]])
    assert references.columns(x)[0].tolist() == pytest.approx(
        [3, 1, np.std([1, 2, 6]), np.std([0, 0, 3]), 1, 0, 6, 3, 6, 3]
    )


# -- how much they train -----------------------------------------------------------------------------------------------

MADE = """
rounds = 2
[data]
name = "labels"
samples_per_device = 40
[park]
devices = 8
factories = 2
[model]
name = "logistic"
[work]
batch_size = 10
lr = 0.1
momentum = 0.5
"""


@pytest.mark.parametrize(
    ("name", "own", "local", "pooled"),
    [
        ("fedavg", {"fraction": 1.0, "work": {"epochs": 3}}, {"epochs": 3}, {"epochs": 3}),
        # a quarter of the devices, 3 epochs: 0.75 of 320 samples in a round
        ("fedavg", {"fraction": 0.25, "work": {"epochs": 3}}, {"epochs": 3}, {"steps": 24}),
        ("fedavg", {"fraction": 0.5, "work": {"epochs": 4}}, {"epochs": 4}, {"epochs": 2}),
        ("fedavg", {"fraction": 1.0, "work": {"steps": 6}}, {"steps": 6}, {"steps": 48}),
        ("ring", {"laps": 2, "work": {"epochs": 1}}, {"epochs": 2}, {"epochs": 2}),
        ("fedsr", {"laps": 5, "work": {"epochs": 1}}, {"epochs": 5}, {"epochs": 5}),
        ("centralized", {"work": {"epochs": 2}}, {"epochs": 2}, {"epochs": 2}),
    ],
    ids=str,
)  # fmt: skip
def test_they_make_the_passes_of_the_first_method(
    name: str, own: dict, local: dict, pooled: dict, tmp_path: Path
) -> None:
    (tmp_path / "made.toml").write_text(MADE)
    what = config.read(tmp_path / "made.toml", [f"method.name={name}"])
    what = replace(what, methods={name: own})
    usual = WorkSettings(batch_size=10, lr=0.1, momentum=0.5, weight_decay=0.0, optimizer="sgd")
    got = work(what, launch.build_park(what))
    assert [vars(one) | {"short_batches": None} for one in got] == [
        vars(replace(usual, **one)) for one in (local, pooled)
    ]


# -- comparing ---------------------------------------------------------------------------------------------------------


def test_compare_shows_them_beside_methods_and_goes_on_where_it_was_stopped(command: Command) -> None:
    plant(command.folder)
    whole = compared(command, "--seeds", "0,1", "--out", "whole")
    assert [row["method"] for row in whole["rows"]] == ["fedavg", *REFERENCES]
    assert all(row["seeds"] == [0, 1] and row["accuracy"] is not None for row in whole["rows"])
    assert {frozenset((row["method"], row["against"])) for row in whole["paired"]} >= {
        frozenset(("fedavg", name)) for name in REFERENCES
    }
    digests = {json.loads(path.read_text())["test_sha256"] for path in (command.folder / "whole").glob("*/park.json")}
    assert len(digests) == 1
    half = compared(command, "--out", "half", "--stop-after", "2")
    assert {row["rounds"] for row in half["rows"]} == {2}
    again = command("compare", "plant.toml", "--ranks", "1", "--methods", "fedavg", "--references", "--seeds", "0,1",
                    "--out", "half", "--resume", "--json")  # fmt: skip
    assert again.code == 0
    for name in ("fedavg", "local-only", "pooled"):
        for seed in (0, 1):
            assert lines(command.folder / "half" / f"{name}-seed{seed}") == lines(
                command.folder / "whole" / f"{name}-seed{seed}"
            )
    page = (command.folder / "whole" / "report.html").read_text()
    assert "pooled training (the same network, all data in one place)" in page
    assert "local training" in page  # the sentence beside it depends on the interval


def test_the_library_compares_them_too(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(command.folder)
    monkeypatch.chdir(command.folder)
    got = fedfloor.compare(config.read(Path("plant.toml")), ["fedavg"], (0,), "lib", ranks=1, references=True)
    assert [row["method"] for row in got.rows] == ["fedavg", *REFERENCES]
    assert any("local training only" in sentence for sentence in got.story)
    runs = ledger.collect(got.folders)
    assert [group.label for group in contestants(groups(runs))] == ["fedavg"]
    assert natural_target(runs) == natural_target([run for run in runs if run.method == "fedavg"])


def test_a_loss_of_samples_is_theirs_too_and_what_is_federated_is_not(command: Command) -> None:
    plant(command.folder)
    tried = {"weighted": "weighted", "prox": None}
    for kind, kept in tried.items():
        given = f'method.objective={{ kind = "{kind}"{", mu = 0.1" if kind == "prox" else ""} }}'
        compared(command, "--out", kind, "--set", given, "--stop-after", "1")
        for name in REFERENCES[:2]:
            told = tomllib.loads((command.folder / kind / f"{name}-seed0" / "experiment.toml").read_text())["method"]
            assert told.get("objective", {}).get("kind") == kept


def test_pictures_have_no_table(command: Command) -> None:
    said = command("compare", "tiny.toml", "--ranks", "1", "--methods", "fedavg", "--references", "--json")
    assert said.code == 0
    assert [row["method"] for row in said.document["rows"]] == ["fedavg", "local-only", "pooled"]
    assert "There is no scikit-learn reference: the data are pictures" in said.err


def test_what_a_story_makes_of_differences(command: Command) -> None:
    plant(command.folder)
    compared(command, "--seeds", "0,1", "--out", "all")
    runs = ledger.collect([command.folder / "all"])
    found = groups(runs)
    (first,) = contestants(found)
    told = contrast(found, first, paired(found.runs))
    mean = {g.runs[0].method: np.mean([run.rounds[-1].accuracy for run in g.runs]) for g in found}
    cost = mean["pooled"] - mean["fedavg"]
    gain = mean["fedavg"] - mean["local-only"]
    rows = [row for row in paired(found.runs) if "fedavg" in (row["method"], row["against"])]
    assert told.count("No significant difference: ") == sum(row["p_holm"] >= 0.05 for row in rows) > 0
    for size in (cost, gain):
        assert f"{100 * abs(size):.1f} percentage points" in told
    assert told.count(" over ") == told.count("; p ") == 3
    pooled = next(group for group in found if group.runs[0].method == "pooled")
    assert contrast(groups(pooled.runs), pooled, []) == ""


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_what_sends_nothing_is_refused_where_it_has_no_meaning(command: Command) -> None:
    for words, message in {
        "method.mix=median": "aggregates no models",
        "method.server=adam": "aggregates no models",
        "method.objective.kind=contrastive": "whose devices keep tensors between visits already",
        "network.profile=lte-cat-m2": "visits without a result have no price",
    }.items():
        command.refused(command.set("method.name=local-only", words), message)
    command.refused(command.set("method.name=scikit-learn"), "it is a reference that is fitted once")
    command.refused(
        command("compare", "tiny.toml", "--methods", "fedavg,local-only", "--references"),
        "method 'local-only' is also one of the --references",
    )
    assert command.set("method.name=local-only").code == 0
    command.refused(command("predict", "out", "tiny.toml"), "out has no model: it is a reference")


def test_visits_that_send_what_they_trained_are_written_as_before() -> None:
    plan = Train(device(0), Work(epochs=1))
    assert "own" not in json.dumps(text.to_json(plan))
    kept = Train(device(0), Work(epochs=1, sends="nothing"))
    assert text.from_json(text.to_json(kept)) == kept
    assert text.digest(kept) != text.digest(plan)


def test_local_only_has_one_name() -> None:
    with refused("method.name"):
        _ = replace(Experiment(), method=replace(Experiment().method, name="local")).configured


# -- the headline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headline", ["AUROC of bad", "recall of bad"])
def test_they_are_judged_by_the_headline_too(command: Command, headline: str) -> None:
    from sklearn.metrics import recall_score, roc_auc_score

    plant(command.folder)
    compared(command, "--out", "all", "--set", f"evaluate.headline={headline}")
    named = {name: last(command.folder / "all" / f"{name}-seed0")["figures"] for name in ("fedavg", *REFERENCES)}
    assert len({key for one in named.values() for key in one}) == 1
    what = config.read(command.folder / "plant.toml", ["method.name=scikit-learn"])
    engine, _ = prepare.engine(what, what.configured, launch.build_park(what), Alone(), DeviceMemory(None))
    model = references.fitted(engine, what.configured.method)  # type: ignore[arg-type]
    x, y = engine.park.test()
    assert engine.park.dataset.classes == ("bad", "ok")
    rows = references.table(engine.wrap(x, y))
    by_hand = {
        "AUROC of bad": roc_auc_score(y == 0, np.exp(model(rows)[:, 0])),
        "recall of bad": recall_score(y == 0, model(rows).argmax(1) == 0),
    }
    assert named["scikit-learn"] == {next(iter(named["fedavg"])): pytest.approx(by_hand[headline])}


# -- beside a single run -----------------------------------------------------------------------------------------------


def test_a_run_with_references_has_the_rows_of_a_comparison_with_them(command: Command) -> None:
    plant(command.folder)
    rows = {row["method"]: row for row in compared(command)["rows"]}
    said = command("run", "plant.toml", "--ranks", "1", "--references", "--out", "one", "--json")
    assert said.code == 0, said.err
    beside = said.document["rows"]
    assert [row["method"] for row in beside] == ["fedavg", *REFERENCES]
    for row in beside:
        assert {key: one for key, one in row.items() if key != "wall_s"} == {
            key: one for key, one in rows[row["method"]].items() if key != "wall_s"
        }
    for name in ("fedavg", *REFERENCES):
        assert any(name in line for line in said.err.splitlines()) or name == "fedavg"  # its progress
    page = (command.folder / "one" / "report.html").read_text(encoding="utf-8")
    assert "scikit-learn" in page
    assert command("report", "one", "--json").document["rows"] == beside


def test_references_of_a_run_stop_where_it_did_and_go_on_with_it(command: Command) -> None:
    plant(command.folder)
    words = ("run", "plant.toml", "--ranks", "1", "--references", "--out", "one", "--json")
    first = command(*words, "--stop-after", "2").document["rows"]
    assert [row["rounds"] for row in first] == [2] * 4
    then = command(*words, "--resume").document["rows"]
    assert [row["rounds"] for row in then] == [3] * 4
    whole = command(*words[:-2], "whole", "--json").document["rows"]
    assert [row["accuracy"] for row in then] == [row["accuracy"] for row in whole]


def test_a_reference_has_no_references(command: Command) -> None:
    plant(command.folder)
    said = command("run", "plant.toml", "--set", 'method.name="local-only"', "--references")
    command.refused(said, "leave out one of the two")


# -- anomalies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["pca", "fedavg"])
def test_detectors_stand_beside_the_mean_of_deviations(command: Command, method: str) -> None:
    """By hand: |z| with mean and deviation of all training rows, and the 99 % quantile of held-out normal rows."""
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(8)
    rows = ["device,time,a,b,label"]
    for k in range(4):
        for t in range(100):
            odd = t >= 75 and t % 4 == 0
            a, b = rng.normal(size=2) * (5, 2) + 3 * odd
            rows.append(f"d{k},{t},{a:.3f},{b:.3f},{'fault' if odd else 'normal'}")
    (command.folder / "rows.csv").write_text("\n".join(rows) + "\n")
    model = "monitor" if method == "pca" else "ae-dense"
    (command.folder / "detect.toml").write_text(
        f'rounds = 1\nmodel.name = "{model}"\nmethod.name = "{method}"\n[data]\npath = "rows.csv"\n'
        'task = "reconstruction"\n'
    )
    ran = command("run", "detect.toml", "--ranks", "1", "--out", "out", "--json")
    assert ran.code == 0, ran.err
    assert [row["method"] for row in ran.document["rows"]] == [method, "mean-abs-z"]
    park = launch.build_park(config.read(command.folder / "detect.toml"))
    x = park.pooled()[0].astype(np.float64)
    held = park.validating or park
    score = np.abs((park.test()[0] - x.mean(0)) / x.std(0)).mean(1)
    normal = np.abs((held.test()[0] - x.mean(0)) / x.std(0)).mean(1)[held.dataset.y_test == 0]
    figures = last(command.folder / "out" / "references" / "mean-abs-z-seed0")["figures"]
    assert figures["AUROC"] == pytest.approx(roc_auc_score(park.dataset.y_test, score), abs=1e-6)
    limit = np.quantile(normal, 0.99, method="inverted_cdf")
    alarms = score > limit * (1 + 1e-5)
    assert figures["false alarms"] == pytest.approx(alarms[park.dataset.y_test == 0].mean())
    assert figures["missed"] == pytest.approx((~alarms)[park.dataset.y_test == 1].mean())
    page = (command.folder / "out" / "report.html").read_text()
    assert "the mean of |z|" in page
    assert UNMARKED not in ran.out


def test_scores_of_two_detectors_are_not_compared_without_labels(command: Command) -> None:
    """The mean score of unmarked rows has no common scale, and an alarm for an unmarked anomaly is no false one."""
    rng = np.random.default_rng(8)
    rows = ["device,time,a,b"]
    for k in range(4):
        rows += [f"d{k},{t},{rng.normal() + 4 * (t > 90):.3f},{rng.normal():.3f}" for t in range(100)]
    (command.folder / "rows.csv").write_text("\n".join(rows) + "\n")
    (command.folder / "detect.toml").write_text(
        'rounds = 1\nmodel.name = "monitor"\nmethod.name = "pca"\nevaluate.headline = "reconstruction error"\n'
        '[data]\npath = "rows.csv"\ntask = "reconstruction"\n'
    )
    ran = command("run", "detect.toml", "--ranks", "1", "--out", "out")
    assert ran.code == 0, ran.err
    assert "mean-abs-z" not in ran.out
    assert "false alarms" not in ran.out
    alarms = json.loads((command.folder / "out" / "ledger.jsonl").read_text())["figures"]["false alarms"]
    assert f"{UNMARKED}: PCA has an alarm at {100 * alarms:.1f}\u00a0% of them" in ran.out
    command.refused(command("run", "detect.toml", "--references", "--out", "new"), "method 'pca' does not train")
    page = html.unescape((command.folder / "out" / "report.html").read_text())
    begun = "fedfloor run out/experiment.toml"
    offered = page.split(begun, 1)[1].split("<", 1)[0]
    assert "--references --set method.name=fedavg" in offered
    small = ["--set", "rounds=1", "--ranks", "1"]
    trained = command("run", "out/experiment.toml", *offered.split(), *small, "--json")
    assert trained.code == 0, trained.err
    assert [row["method"] for row in trained.document["rows"]] == ["fedavg", "local-only", "pooled"]
    apart = paired(collect([command.folder / "out", command.folder / "runs" / "again"]))
    assert apart == []  # errors without a common scale
